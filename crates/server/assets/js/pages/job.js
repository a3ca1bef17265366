// One job, live: where it stands, its curves, its checkpoints, its settings, its answers and its log.
import {get} from '../lib/api.js';
import {listen} from '../lib/live.js';
import {empty, facts, fill, find, h, note, table} from '../lib/dom.js';
import {speak} from '../lib/dialog.js';
import {ago, bytes, count, duration, energy, number, sentence} from '../lib/words.js';
import {actionsFor} from '../parts/job_actions.js';
import {answersOf} from '../parts/answers.js';
import {Curves} from '../parts/curves.js';
import {jobCharts} from '../parts/job_charts.js';
import {lineOf, lineOfMessage, logOf} from '../parts/log.js';
import {settingsView} from '../parts/settings.js';
import {isOver, jobPath, nameOf, progressWords, stateChip, stem, verdictChip} from '../parts/state.js';

const id = find('#job').dataset.job;
const path = `/v1/fine_tuning/jobs/${encodeURIComponent(id)}`;
let job, curves, filename = '';

const head = () => fill(find('#head'), h('h1', {}, nameOf(job)), h('div', {class: 'line'}, stateChip(job.garden.state), h('span', {}, progressWords(job) || job.garden.waiting_for || ''),
  h('span', {class: 'soft small mono'}, job.id)), stem(job), origin());

function origin() {
  const {rerun_of: from, resumed_from: checkpoint} = job.garden;
  if (!from) return null;
  const link = h('a', {href: jobPath(from)}, from);
  return h('p', {class: 'small'}, checkpoint ? `Goes on from step ${count(checkpoint.step)} of ` : 'A rerun of ', link);
}

function trouble() {
  const {last_end: end, state, waiting_for: waits} = job.garden;
  const readings = end?.last_readings ?? [];
  const told = job.error ? note('bad', h('strong', {}, sentence(job.error.message)), ...(end?.words ?? []).map(words => h('p', {class: 'small'}, words)),
    ...(end?.judgement ?? []).map(words => h('p', {class: 'small'}, words)), readings.length ? lastReadings(readings) : null) : null;
  fill(find('#trouble'), told, state === 'queued' && waits ? note('warn', sentence(waits)) : null);
}

const lastReadings = readings => h('details', {}, h('summary', {}, 'The last readings of its memory'), table({caption: 'Before the end', head: [{name: 'Second', number: true}, {name: 'Step', number: true}, {name: 'Resident', number: true}],
  rows: readings.map(reading => [number(Math.round(10 * reading.t) / 10), count(reading.step), bytes(reading.resident_bytes)])}));

function figures() {
  const {progress: p, memory, attempt, energy_joules: joules, plan} = job.garden;
  const took = job.garden.started_at ? (job.finished_at ?? Date.now() / 1000) - job.garden.started_at : null;
  facts([
    ['loss', p.loss === null ? null : number(p.loss), p.eval_loss === null ? '' : `held out ${number(p.eval_loss)}`],
    ['step', p.max_steps ? count(p.step) : null, `of ${count(p.max_steps)}`], ['epoch', p.epoch ? number(p.epoch) : null],
    ['tokens a second', p.tokens_per_second === null ? null : count(p.tokens_per_second)],
    ['left', p.seconds_left && !isOver(job) ? duration(p.seconds_left) : null], ['time', took === null ? null : duration(took)],
    ['memory', memory ? bytes(memory.resident_bytes) : null, memory ? `peak ${bytes(memory.peak_bytes)}` : ''], ['plan', plan ? bytes(plan.total_bytes) : null],
    ['model', h('span', {class: 'small'}, job.model)], ['rows', h('a', {class: 'small', href: `/datasets?file=${encodeURIComponent(job.training_file)}`}, filename || job.training_file)],
    ['attempt', attempt > 1 ? attempt : null], ['energy', joules ? energy(joules) : null], ['created', h('span', {class: 'small'}, ago(job.created_at))],
  ], find('#facts'));
}

function verdict() {
  const {memory, plan, last_end: end} = job.garden;
  if (!memory) return fill(find('#verdict'));
  const words = memory.words ?? end?.judgement?.[0] ?? {steady: 'Memory stays at its level.', 'warm-up': 'Memory still grows, ever more slowly.', fill: 'Memory grows by a constant per row until every row was seen once.', leak: 'Memory grows without end.', undecided: 'There are too few readings to tell yet.'}[memory.verdict] ?? '';
  const told = /[.!?]$/.test(words) ? words : `${words}.`;
  const against = plan ? ` The peak was ${bytes(memory.peak_bytes)} of ${bytes(plan.total_bytes)} planned.` : '';
  fill(find('#verdict'), verdictChip(memory.verdict), h('p', {}, sentence(told) + against));
}

async function checkpoints() {
  const {data} = await get(`${path}/checkpoints?limit=100`);
  const place = find('#checkpoints');
  if (!data.length) return fill(place, empty('None yet', isOver(job) ? 'This job left no checkpoint.' : 'One is written at the end of each epoch, or every save_steps steps.'));
  const action = (name, href) => h('a', {class: 'button small', href}, name);
  fill(place, table({caption: 'Checkpoints, the newest first', cards: true, head: [{name: 'Step', number: true}, {name: 'Loss', number: true}, {name: 'Held out', number: true}, {name: 'Do', unseen: true}], rows: data.map(one => [
    count(one.step_number), number(one.metrics.train_loss ?? null), number(one.metrics.full_valid_loss ?? one.metrics.valid_loss ?? null),
    h('span', {class: 'actions'}, action('Resume from here', `/jobs/new?rerun=${id}&checkpoint=${encodeURIComponent(one.id)}&step=${one.step_number}`),
      action('Try', `/models?try=${encodeURIComponent(one.fine_tuned_model_checkpoint)}`))])}));
}

let charts, log;

function show(changed) {
  // The answer to an action may come after the stream has told the end, which no job leaves.
  if (isOver(job) && !isOver(changed)) return;
  const before = job.garden.state;
  job = changed;
  head(); trouble(); figures(); verdict();
  fill(find('#actions'), ...actionsFor(job, show));
  document.title = `${progressWords(job) || job.garden.state} · ${nameOf(job)} · Model Garden`;
  if (before !== job.garden.state) {
    speak(`The job is ${job.garden.state}`);
    if (isOver(job)) finish();
  }
  const {memory} = job.garden;
  if (curves && memory && curves.points.begun && !isOver(job)) {
    curves.memory(Date.now() / 1000 - curves.points.begun, memory.resident_bytes, job.garden.progress.step);
    charts.update(curves, job);
  }
}

/** What was written at the end: exact curves, the last checkpoint. */
async function finish() {
  curves = new Curves(await get(`${path}/curves`));
  charts.update(curves, job);
  checkpoints();
  fill(find('#live'), reportLink());
}

const reportLink = () => job.garden.state === 'succeeded' ? h('a', {href: `${path}/report`}, 'Report of the run') : null;

function follow() {
  const heard = name => event => {
    log.add(lineOf(name, event));
    if (name === 'started') curves.started(event);
    if (name === 'step') curves.step(event);
    if (name === 'evaluation') curves.evaluation(event);
    if (name === 'checkpoint') checkpoints();
    if (name === 'plan') curves.points.plan_bytes = event.total_bytes;
    if (name !== 'history') curves.points.begun ??= event.time;
    if (['step', 'evaluation', 'started', 'plan'].includes(name)) charts.update(curves, job);
  };
  const names = ['history', 'note', 'text', 'step', 'evaluation', 'checkpoint', 'rows_surveyed', 'model_loaded', 'plan', 'started', 'resumed', 'end'];
  const from = curves.points.cursor ? `?after=${encodeURIComponent(curves.points.cursor)}` : '';
  const end = listen(`${path}/stream${from}`, {...Object.fromEntries(names.map(name => [name, heard(name)])), state: changed => { show(changed); if (isOver(changed)) { end(); find('#live').textContent = ''; finish(); } }},
    state => { if (!isOver(job)) find('#live').textContent = {live: 'live', lost: 'the line is down; trying again', ended: ''}[state]; });
}

try {
  job = await get(path);
  charts = jobCharts(find('#curves'), find('#memory-chart'));
  log = logOf(find('#log'));
  curves = new Curves(await get(`${path}/curves`));
  get(`/v1/files/${encodeURIComponent(job.training_file)}`).then(file => { filename = file.filename; figures(); }, () => {});
  show(job);
  charts.update(curves, job);
  settingsView(find('#settings'), job);
  checkpoints();
  answersOf(find('#answers'), id);
  const told = await get(`${path}/events?limit=100`);
  told.data.reverse().forEach(one => log.add(lineOfMessage(one)));
  follow();
} catch (error) {
  fill(find('#head'), h('h1', {}, 'No such job'));
  fill(find('#trouble'), note('bad', error.message));
  throw error;
}
