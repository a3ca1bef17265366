// A job's state, progress and name, wherever one is shown.
import {h} from '../lib/dom.js';
import {clock, count, number, percent, stateTone, verdictTone} from '../lib/words.js';

export const nameOf = job => job.garden?.name || job.user_provided_suffix || job.id;
export const jobPath = id => `/jobs/${encodeURIComponent(id)}`;
export const againPath = job => `/jobs/new?rerun=${encodeURIComponent(job.id)}`;
export const resumePath = (job, checkpoint) => `${againPath(job)}&checkpoint=${encodeURIComponent(checkpoint.id)}&step=${checkpoint.step_number}`;
export const isOver = job => ['succeeded', 'failed', 'cancelled'].includes(job.garden.state);

/** A job that was stopped has a result; one that was cancelled has none. */
const isStopped = job => job.garden.state === 'cancelled' && job.garden.result_step !== null;
/** A job's state in one word. */
export const stateName = job => isStopped(job) ? 'stopped' : job.garden.state;
export const stateChip = job => h('span', {class: 'chip', 'data-tone': stateTone(job.garden.state)}, stateName(job));
export const verdictChip = verdict => verdict ? h('span', {class: 'chip', 'data-tone': verdictTone(verdict)}, verdict) : null;

/** Done steps as a stem that grows. */
export function stem(job) {
  const {step = 0, max_steps: most} = job.garden.progress ?? {};
  const share = job.garden.state === 'succeeded' ? 1 : most ? step / most : 0;
  return h('div', {class: 'stem', role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': Math.round(100 * share),
    'aria-label': 'Progress', 'data-still': isOver(job) && job.garden.state !== 'succeeded', '--share': `${(100 * share).toFixed(1)}%`}, h('i', {}));
}

/** Progress in words. */
export function progressWords(job) {
  const {state, progress: p = {}, queue_position: place, result_step: result} = job.garden;
  if (isStopped(job)) return `stopped at step ${count(result)}; its last checkpoint is the result`;
  if (state === 'queued') return place ? `${ordinal(place)} in the queue` : 'waits';
  if (state === 'paused') return p.step ? `held at step ${count(p.step)}` : 'held';
  if (['running', 'stopping'].includes(state) && p.phase && p.phase !== 'training') return p.phase;
  const parts = [];
  if (p.max_steps) parts.push(`step ${count(p.step)} of ${count(p.max_steps)}`);
  else if (p.step) parts.push(`step ${count(p.step)}`);
  if (state === 'running' && p.seconds_left) parts.push(`${clock(p.seconds_left)} left`);
  return parts.join(', ');
}

const ordinal = place => `${place}${['th', 'st', 'nd', 'rd'][place % 100 > 10 && place % 100 < 14 ? 0 : place % 10] ?? 'th'}`;

/** The newest losses in words. */
export function lossWords(job) {
  const {loss, eval_loss: evaluated} = job.garden.progress ?? {};
  if (loss === null || loss === undefined) return '';
  return evaluated === null || evaluated === undefined ? number(loss) : `${number(loss)} (held out ${number(evaluated)})`;
}

export const share = value => percent(value);
