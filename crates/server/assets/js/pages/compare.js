// Several runs over one another, and where their settings differ.
import {all, get} from '../lib/api.js';
import {empty, fill, find, h, note, table} from '../lib/dom.js';
import {Chart} from '../lib/chart.js';
import {say} from '../lib/dialog.js';
import {patiently, turns} from '../lib/live.js';
import {ago, bytes, count, duration, energy, number} from '../lib/words.js';
import {settingsOf} from '../parts/settings.js';
import {jobPath, nameOf, stateChip} from '../parts/state.js';

const MOST = 8;
const chosen = new Set((new URLSearchParams(location.search).get('jobs') ?? '').split(',').filter(Boolean));
const curves = new Map();
const begin = turns();

const [jobs, {data: options}, files] = await patiently(() => Promise.all([all('/v1/fine_tuning/jobs', 300), get('/v1/garden/options'), all('/v1/files')]),
  error => fill(find('#pick'), note('bad', `${error.message} This page tries again every three seconds.`))).catch(error => { fill(find('#pick'), note('bad', error.message)); throw error; });

// A link may name jobs that were deleted.
for (const id of chosen) if (!jobs.some(job => job.id === id)) chosen.delete(id);

const sheet = () => find('#curves').appendChild(h('div', {class: 'sheet'}));
const blank = 'Choose runs above.';
const charts = {
  loss: new Chart(sheet(), {title: 'Loss', summary: 'of every step', blank}),
  held: new Chart(sheet(), {title: 'Held-out loss', summary: 'of every evaluation', blank}),
  speed: new Chart(sheet(), {title: 'Throughput', summary: 'tokens a second', fromZero: true, blank}),
  memory: new Chart(sheet(), {title: 'Memory', summary: 'resident bytes over time', unit: 'bytes', axis: 'time', fromZero: true, blank}),
};

function pickView() {
  if (!jobs.length) return fill(find('#pick'), empty('Nothing to compare', 'Two jobs make a comparison.', h('a', {class: 'button main', href: '/jobs/new'}, 'New job')));
  const row = job => {
    const tick = h('input', {type: 'checkbox', id: `pick-${job.id}`, change: event => pick(job.id, event.target)});
    tick.checked = chosen.has(job.id);
    return [tick, h('label', {for: tick.id}, nameOf(job), h('span', {class: 'small soft'}, ` ${job.model}`)), stateChip(job), number(job.garden.progress.loss), ago(job.created_at)];
  };
  const listed = [...jobs].sort((a, b) => chosen.has(b.id) - chosen.has(a.id)).slice(0, 30);
  fill(find('#pick'), table({caption: 'Runs to choose from', cards: true, head: [{name: 'Choose', unseen: true}, {name: 'Job', title: true}, 'State', {name: 'Loss', number: true}, {name: 'Created', number: true}], rows: listed.map(row)}));
}

function pick(id, tick) {
  if (tick.checked && chosen.size >= MOST) {
    tick.checked = false;
    return say(`${MOST} runs are compared at most: take one away first.`, 'bad');
  }
  tick.checked ? chosen.add(id) : chosen.delete(id);
  history.replaceState(null, '', `?jobs=${[...chosen].join(',')}`);
  show();
}

/** A file by its name; one that was deleted has only its id. */
const fileName = id => id ? files.find(file => file.id === id)?.filename ?? id : '–';

/** A name of its own for each run. */
function names(runs) {
  const seen = new Map();
  return runs.map(job => {
    const name = nameOf(job);
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return seen.get(name) > 1 ? `${name} (${job.id.slice(-4)})` : name;
  });
}

async function show() {
  const current = begin();
  const runs = jobs.filter(job => chosen.has(job.id)).reverse();
  find('#curves').hidden = !runs.length;
  find('#picked').textContent = runs.length ? `${runs.length} of at most ${MOST} chosen` : `choose up to ${MOST}`;
  await Promise.all(runs.filter(job => !curves.has(job.id)).map(async job => curves.set(job.id, await get(`/v1/fine_tuning/jobs/${encodeURIComponent(job.id)}/curves`))));
  if (!current()) return;
  const named = names(runs);
  const lines = (group, x, y) => ({lines: runs.map((job, at) => ({name: named[at], x: curves.get(job.id)[group][x], y: curves.get(job.id)[group][y]}))});
  charts.loss.set(lines('train', 'step', 'loss'));
  charts.held.set(lines('eval', 'step', 'loss'));
  charts.speed.set(lines('train', 'step', 'tokens_per_second'));
  charts.memory.set(lines('memory', 'time', 'bytes'));
  settings(runs, named);
}

function settings(runs, named) {
  find('#settings-sheet').hidden = !runs.length;
  const each = runs.map(job => settingsOf(job, options));
  const keys = [...new Set(each.flatMap(one => [...one.keys()]))];
  const line = (name, values, code) => h('tr', {'data-differs': new Set(values).size > 1}, h('th', {scope: 'row'}, code ? h('code', {}, name) : name, new Set(values).size > 1 ? h('span', {class: 'unseen'}, ' (differs)') : null),
    ...values.map(value => h('td', {class: 'number'}, value)));
  const results = [['loss', job => number(job.garden.progress.loss)], ['held-out loss', job => number(job.garden.progress.eval_loss)], ['steps', job => count(job.garden.progress.step)],
    ['time', job => job.garden.started_at && job.finished_at ? duration(job.finished_at - job.garden.started_at) : '–'], ['peak memory', job => bytes(job.garden.memory?.peak_bytes)],
    ['plan', job => bytes(job.garden.plan?.total_bytes)], ['energy', job => energy(job.garden.energy_joules)]];
  const sources = [['model', job => job.model], ['rows', job => fileName(job.training_file)], ['rows to evaluate on', job => fileName(job.validation_file)]];
  const source = ([name, value]) => line(name, runs.map(value), false);
  const plain = ([name, value]) => h('tr', {}, h('th', {scope: 'row'}, name), ...runs.map(job => h('td', {class: 'number'}, value(job))));
  const differing = keys.filter(key => new Set(each.map(one => one.get(key)?.value)).size > 1);
  const same = keys.filter(key => !differing.includes(key));
  const rows = list => list.map(key => line(key, each.map(one => one.get(key)?.value ?? '–'), true));
  const head = () => ['Name', ...runs.map((job, at) => ({name: h('a', {href: jobPath(job.id)}, named[at]), number: true}))];
  fill(find('#settings'), table({caption: 'Results, and what differs', head: head(), rows: [...results.map(plain), ...sources.map(source), ...rows(differing)]}),
    h('details', {class: 'fold'}, h('summary', {}, 'Settings that are the same'), table({caption: 'The same in all', head: head(), rows: rows(same)})));
}

pickView();
show().catch(error => fill(find('#pick'), note('bad', error.message)));
