// One job, live: where it stands, its curves, its checkpoints, its settings, its answers and its log.
import {get} from '../lib/api.js';
import {listen, oneAtATime, patiently, untouched} from '../lib/live.js';
import {facts, fill, find, freshen, h, note} from '../lib/dom.js';
import {speak} from '../lib/dialog.js';
import {ago, bytes, count, duration, energy, number, sentence} from '../lib/words.js';
import {actionsFor} from '../parts/job_actions.js';
import {answersOf} from '../parts/answers.js';
import {checkpointsView} from '../parts/checkpoints.js';
import {Curves} from '../parts/curves.js';
import {endView} from '../parts/job_end.js';
import {jobCharts} from '../parts/job_charts.js';
import {memoryWords} from '../parts/job_memory.js';
import {lineOf, lineOfMessage, logOf} from '../parts/log.js';
import {settingsView} from '../parts/settings.js';
import {isOver, jobPath, nameOf, progressWords, stateChip, stateName, stem} from '../parts/state.js';

const id = find('#job').dataset.job;
const path = `/v1/fine_tuning/jobs/${encodeURIComponent(id)}`;
let job, curves, charts, log, answers, newest, offered, filename = '';

const head = () => freshen(find('#head'), h('h1', {}, nameOf(job)), h('div', {class: 'line'}, stateChip(job), h('span', {}, sentence(progressWords(job) || job.garden.waiting_for || '')),
  h('span', {class: 'soft small mono'}, job.id)), stem(job), origin());

function origin() {
  const {rerun_of: from, resumed_from: checkpoint} = job.garden;
  if (!from) return null;
  const link = h('a', {href: jobPath(from)}, from);
  return h('p', {class: 'small'}, checkpoint ? `Goes on from step ${count(checkpoint.step)} of ` : 'A rerun of ', link);
}

function trouble() {
  const {state, waiting_for: waits} = job.garden;
  freshen(find('#trouble'), endView(job, newest), state === 'queued' && waits ? note('warn', sentence(waits)) : null);
}

/** The buttons change only with what can be done: one that has the focus, or is being pressed, stays. */
function actions() {
  const {state, priority} = job.garden;
  const offer = JSON.stringify([state, priority, job.fine_tuned_model]);
  if (offer === offered) return;
  offered = offer;
  const place = find('#actions');
  const focused = place.contains(document.activeElement) ? document.activeElement.textContent : null;
  fill(place, ...actionsFor(job, show));
  if (focused === null) return;
  const same = [...place.children].find(one => one.textContent === focused);
  (same ?? place.firstElementChild)?.focus();
}

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

const checkpoints = oneAtATime(async () => {
  const {data} = await get(`${path}/checkpoints?limit=100`);
  await untouched();
  newest = data[0];
  fill(find('#checkpoints'), checkpointsView(job, data));
  trouble();
});

function show(changed) {
  // The answer to an action may come after the stream has told the end, which no job leaves.
  if (isOver(job) && !isOver(changed)) return;
  const before = job.garden.state;
  job = changed;
  head(); trouble(); figures(); actions();
  freshen(find('#verdict'), ...memoryWords(job));
  document.title = `${isOver(job) ? stateName(job) : progressWords(job) || job.garden.state} · ${nameOf(job)} · Model Garden`;
  if (before !== job.garden.state) {
    speak(`The job is ${stateName(job)}`);
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
  answers?.ended();
  fill(find('#live'), reportLink());
}

const reportLink = () => job.garden.state === 'succeeded' ? h('a', {href: `${path}/report`}, 'Report of the run') : null;

function follow() {
  const heard = name => event => {
    log.add(lineOf(name, event));
    if (name === 'started') curves.started(event);
    if (name === 'step') curves.step(event);
    if (name === 'evaluation') curves.evaluation(event);
    if (name === 'checkpoint') { checkpoints(); answers.checkpoint(); }
    if (name === 'plan') curves.points.plan_bytes = event.total_bytes;
    if (name !== 'history') curves.points.begun ??= event.time;
    if (['step', 'evaluation', 'started', 'plan'].includes(name)) charts.update(curves, job);
  };
  const names = ['history', 'note', 'text', 'step', 'evaluation', 'checkpoint', 'rows_surveyed', 'model_loaded', 'plan', 'started', 'resumed', 'end'];
  const from = curves.points.cursor ? `?after=${encodeURIComponent(curves.points.cursor)}` : '';
  const end = listen(`${path}/stream${from}`, {...Object.fromEntries(names.map(name => [name, heard(name)])), state: changed => { show(changed); if (isOver(changed)) end(); }},
    (state, words) => { if (!isOver(job)) find('#live').textContent = {live: 'live', lost: 'the line is down; trying again', ended: '', refused: words}[state]; });
}

async function begin() {
  const [found, points, told] = await Promise.all([get(path), get(`${path}/curves`), get(`${path}/events?limit=100`)]);
  [job, curves] = [found, new Curves(points)];
  charts ??= jobCharts(find('#curves'), find('#memory-chart'));
  log ??= logOf(find('#log'));
  get(`/v1/files/${encodeURIComponent(job.training_file)}`).then(file => { filename = file.filename; figures(); }, () => {});
  show(job);
  charts.update(curves, job);
  settingsView(find('#settings'), job);
  checkpoints();
  answers = answersOf(find('#answers'), job);
  told.data.reverse().forEach(one => log.add(lineOfMessage(one)));
  fill(find('#live'), reportLink());
  follow();
}

try {
  await patiently(begin, error => fill(find('#trouble'), note('bad', `${error.message} This page tries again every three seconds.`)));
} catch (error) {
  fill(find('#head'), h('h1', {}, error.status === 404 ? 'No such job' : 'This job cannot be shown'));
  fill(find('#trouble'), note('bad', error.message));
  throw error;
}
