// An assessment of memory in words: the verdict, its figures, what to do and why.
import {facts, h} from '../lib/dom.js';
import {bytes, count, duration, percent, sentence} from '../lib/words.js';
import {verdictChip} from './state.js';

const rate = value => value === null || value === undefined ? null : `${value < 0 ? '−' : '+'}${bytes(Math.abs(value))}`;
const share = value => percent(Math.round(100 * value) / 100);

/** `limit` in bytes, where there is one. */
export function judgementView(found, limit) {
  const list = (title, sentences) => sentences?.length ? h('div', {}, h('h3', {}, title), h('ul', {}, ...sentences.map(one => h('li', {}, one)))) : null;
  const endings = (found.endings ?? []).map(({verdict, probability, plateau}) => `${sentence(verdict)} (${share(probability)})${plateau ? `: ${bytes(plateau.bytes)}` : ''}`);
  return h('div', {class: 'stack'}, h('div', {class: 'verdict'}, chip(found), h('p', {}, `${sentence(found.meaning)}; ${ending(found)}.`)),
    facts([['per step', rate(found.growth_per_step)], ['per row', rate(found.growth_per_sample)], ['per minute', rate(found.growth_per_minute)],
      [found.verdict === 'steady' ? 'level' : 'plateau', found.plateau ? bytes(found.plateau.bytes) : null], ['limit', limit ? bytes(limit) : null],
      ['limit reached', reached(found.exhaustion)], ['can be told from step', found.decidable_at_step ? count(found.decidable_at_step) : null]]),
    h('div', {class: 'two'}, list('What to do', found.advice), list('How it may end', endings), list('Evidence', found.evidence)));
}

/** From here on an undecided verdict is as good as certain about what matters most: whether it ends. */
const SURE = 0.9;

/** The verdict; an undecided one names what is known of its ending. */
function chip({verdict, will_stop: stops, will_go_on: goesOn}) {
  if (verdict !== 'undecided') return verdictChip(verdict);
  const [tone, words] = stops >= SURE ? ['waits', 'probably no leak'] : goesOn >= SURE ? ['bad', 'probably a leak'] : ['over', 'undecided'];
  return h('span', {class: 'chip', 'data-tone': tone}, words);
}

const reached = exhaustion => !exhaustion ? null : exhaustion.step ? `step ${count(exhaustion.step)}` : exhaustion.seconds ? `in ${duration(exhaustion.seconds)}` : null;

function ending({verdict, confidence, will_stop: stops, will_go_on: goesOn}) {
  const named = {steady: 'it will stay level', 'warm-up': 'it has stopped growing', fill: 'it has stopped growing', leak: 'it will go on growing'}[verdict];
  return named ? `${named}: ${share(confidence)}` : `it will stop growing: ${share(stops)}, it will go on: ${share(goesOn)}`;
}

/** The chart that `memory analyze` drew, for our own charts. */
export function chartModel(chart) {
  const known = line => line.x.map((x, at) => [x, at]).filter(([x]) => x !== null).map(([, at]) => at);
  const lines = chart.lines.map(line => {
    const at = known(line);
    const pick = list => at.map(index => list[index]);
    return {name: line.name, quiet: line.colour === 'quiet', x: pick(line.x), y: pick(line.y), low: line.low.length ? pick(line.low) : null, high: line.high.length ? pick(line.high) : null};
  });
  return {lines, levels: chart.levels, epochs: chart.axis === 'steps' ? chart.epochs : null, knee: chart.knee, spans: []};
}
