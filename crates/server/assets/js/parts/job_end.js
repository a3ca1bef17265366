// How a job ended, where that was not as it should: why, its last readings, and the ways on.
import {h, note, table} from '../lib/dom.js';
import {bytes, count, number, sentence, withoutFlags} from '../lib/words.js';
import {againPath, isOver, resumePath} from './state.js';

/** Ends about which the verdict on the memory says something. */
const ABOUT_MEMORY = new Set(['out_of_memory', 'memory_limit', 'killed']);

/** A note on a job's error; null without one. `checkpoint` is the newest, as the API lists it. */
export function endView(job, checkpoint) {
  if (!job.error) return null;
  const [first, ...rest] = withoutFlags(job.error.message).split('\n').filter(Boolean);
  const end = job.garden.last_end;
  const told = ABOUT_MEMORY.has(job.error.code) && end ? lastReadings(end) : null;
  return note('bad', h('strong', {}, sentence(first)), ...rest.map(words => h('p', {class: 'small'}, sentence(words))), told, isOver(job) ? waysOn(job, checkpoint) : null);
}

function lastReadings({judgement = [], last_readings: readings = []}) {
  if (!readings.length && !judgement.length) return null;
  const rows = readings.map(reading => [number(Math.round(10 * reading.t) / 10), count(reading.step), bytes(reading.resident_bytes)]);
  return h('details', {}, h('summary', {}, 'The last readings of its memory'), ...judgement.map(words => h('p', {class: 'small'}, words)),
    readings.length ? table({caption: 'Before the end', head: [{name: 'Second', number: true}, {name: 'Step', number: true}, {name: 'Resident', number: true}], rows}) : null);
}

const waysOn = (job, checkpoint) => h('div', {class: 'actions'},
  checkpoint ? h('a', {class: 'button small', href: resumePath(job, checkpoint)}, `Resume from step ${count(checkpoint.step_number)}`) : null,
  h('a', {class: 'button small', href: againPath(job)}, 'Run again'));
