// The list of jobs, asked for again every two seconds.
import {get} from '../lib/api.js';
import {repeat, turns, untouched} from '../lib/live.js';
import {button, empty, fill, find, h, note, table} from '../lib/dom.js';
import {speak} from '../lib/dialog.js';
import {spark} from '../lib/spark.js';
import {ago, bytes, counted, firstSentence, sentence, withoutFlags} from '../lib/words.js';
import {jobPath, lossWords, nameOf, progressWords, stateChip, stem, verdictChip} from '../parts/state.js';

const PAGE = 50;
const chosen = new Set();
const states = new Map();
const begin = turns();
let after = [];

const place = find('#jobs'), trouble = find('#trouble');
const filter = find('#state');
filter.value = new URLSearchParams(location.search).get('state') ?? '';
filter.addEventListener('change', () => {
  history.replaceState(null, '', filter.value ? `?state=${filter.value}` : location.pathname);
  after = [];
  refresh();
});

async function refresh() {
  const current = begin();
  const query = new URLSearchParams({limit: PAGE});
  if (filter.value) query.set('state', filter.value);
  if (after.length) query.set('after', after.at(-1));
  try {
    const page = await get(`/v1/fine_tuning/jobs?${query}`);
    await untouched();
    if (!current()) return;
    fill(trouble);
    show(page);
    tell(page.data);
  } catch (error) {
    // What was known before stays in sight.
    if (current()) fill(trouble, note('bad', error.message));
  }
}

function show({data, has_more: more}) {
  if (!data.length && !after.length) return fill(place, nothing());
  // What has the focus keeps it through a redraw.
  const focused = document.activeElement?.dataset?.key;
  const head = [{name: 'Choose', unseen: true}, {name: 'Job', title: true}, 'State', 'Progress', 'Loss', 'Memory', {name: 'Created', number: true}];
  fill(place, table({caption: 'Jobs, newest first', cards: true, head, rows: data.map(row)}), pager(data, more));
  if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function row(job) {
  const {memory} = job.garden;
  const tick = h('input', {type: 'checkbox', 'aria-label': `Compare ${nameOf(job)}`, 'data-key': `pick-${job.id}`, change: event => pick(job.id, event.target.checked)});
  tick.checked = chosen.has(job.id);
  const name = h('div', {}, h('a', {href: jobPath(job.id), 'data-key': job.id}, nameOf(job)), h('div', {class: 'small soft'}, job.model));
  return [
    tick, name, stateChip(job),
    h('div', {class: 'progress-cell'}, stem(job), h('div', {class: 'small'}, progressWords(job)), job.error ? h('div', {class: 'small bad'}, `${sentence(firstSentence(withoutFlags(job.error.message)))}.`) : null),
    lossWords(job),
    memory ? h('div', {}, spark(memory.sparkline), h('div', {class: 'small soft'}, bytes(memory.resident_bytes), ' ', verdictChip(memory.verdict))) : '',
    ago(job.created_at),
  ];
}

function pick(id, on) {
  on ? chosen.add(id) : chosen.delete(id);
  const link = find('#compare');
  link.hidden = chosen.size < 2;
  link.href = `/compare?jobs=${[...chosen].join(',')}`;
  link.textContent = `Compare ${chosen.size}`;
}

function pager(data, more) {
  if (!more && !after.length) return null;
  const turn = change => { change(); refresh(); };
  return h('nav', {class: 'actions', 'aria-label': 'Pages of the list'},
    button('Newer', () => turn(() => after.pop()), 'small', {disabled: !after.length, 'data-key': 'newer'}),
    button('Older', () => turn(() => after.push(data.at(-1).id)), 'small', {disabled: !more, 'data-key': 'older'}));
}

function nothing() {
  if (filter.value) return empty('No such job', `No job is ${filter.value}.`, button('Show all', () => { filter.value = ''; filter.dispatchEvent(new Event('change')); }));
  return empty('Plant the first one', 'Upload rows, pick a model, and see before the start how much memory the training takes.',
    h('a', {class: 'button', href: '/datasets'}, 'Upload a dataset'), h('a', {class: 'button main', href: '/jobs/new'}, 'New job'));
}

/** Tells changes of state, not every number. */
function tell(jobs) {
  const changes = jobs.filter(job => states.has(job.id) && states.get(job.id) !== job.garden.state);
  for (const job of jobs) states.set(job.id, job.garden.state);
  if (changes.length) speak(changes.map(job => `${nameOf(job)}: ${job.garden.state}`).join(', '));
  const running = jobs.filter(job => job.garden.state === 'running').length;
  const queued = jobs.filter(job => job.garden.state === 'queued').length;
  if (jobs.length) find('#summary').textContent = `${counted(running, 'job')} running, ${queued} waiting.`;
}

repeat(2, refresh);
