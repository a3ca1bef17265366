// The settings of a job: what was asked for, and the defaults of the rest.
import {get} from '../lib/api.js';
import {fill, h, table} from '../lib/dom.js';

/** A value as it is written in a form; the same value is always written alike. */
const written = value => value === null || value === undefined ? '–' : Array.isArray(value) ? value.join(', ') : typeof value === 'object' ? JSON.stringify(value) : {true: 'yes', false: 'no'}[value] ?? String(value);

/** A value of an option, which may come as text: the default does, and so may what was asked for. */
function valueOf(option, value) {
  if (option?.type === 'switch') return value === true || value === 'true';
  const isNumber = ['whole', 'number'].includes(option?.type) && typeof value === 'string' && value.trim() !== '' && !Number.isNaN(Number(value));
  return isNumber ? Number(value) : value;
}

/** All settings of a job by their keys, `{value, asked}`: those that were asked for, then the defaults. */
export function settingsOf(job, options) {
  const {settings} = job.garden;
  const {batch_size: rows, n_epochs: epochs, learning_rate_multiplier: rate} = job.hyperparameters;
  const asked = {...Object.fromEntries(Object.entries({batch_size: rows, epochs, learning_rate_multiplier: rate}).filter(([, value]) => value !== 'auto' && value !== null && value !== undefined)), seed: job.seed, ...settings};
  const known = new Map(options.map(option => [option.key, option]));
  const shown = (key, value) => written(valueOf(known.get(key), value));
  const all = new Map(Object.entries(asked).map(([key, value]) => [key, {value: shown(key, value), asked: key in settings || key !== 'seed'}]));
  for (const {key, default: standard} of options) if (!all.has(key)) all.set(key, {value: shown(key, standard), asked: false});
  return all;
}

export async function settingsView(target, job) {
  const {data: options} = await get('/v1/garden/options');
  const all = settingsOf(job, options);
  const rows = wanted => [...all].filter(([, {asked}]) => asked === wanted).map(([key, {value}]) => h('tr', {}, h('th', {scope: 'row'}, h('code', {}, key)), h('td', {class: 'number'}, value)));
  const view = (caption, wanted) => table({caption, head: ['Setting', {name: 'Value', number: true}], rows: rows(wanted)});
  const asked = rows(true).length ? view('Asked for', true) : h('p', {class: 'soft'}, 'All settings are the defaults.');
  fill(target, asked, h('details', {class: 'fold'}, h('summary', {}, 'Defaults of the rest'), view('Defaults', false)));
}
