// A job's log: what it says as it comes, and the end of what it said before.
import {fill, h} from '../lib/dom.js';
import {duration, number} from '../lib/words.js';

const MOST = 400;

/** A log that follows. `add` appends a line that was heard on the stream. */
export function logOf(target) {
  const lines = [];
  const pre = h('pre', {class: 'log', tabindex: 0, role: 'log', 'aria-label': 'Log of the job', 'aria-live': 'off'}, 'Nothing yet.');
  fill(target, pre);
  let waiting;
  const draw = () => {
    waiting = null;
    const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
    pre.textContent = lines.join('\n') || 'Nothing yet.';
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  };
  return {
    add(line) {
      if (!line) return;
      lines.push(line);
      if (lines.length > MOST) lines.splice(0, lines.length - MOST);
      waiting ??= setTimeout(draw, 200);
    },
  };
}

const clock = moment => moment ? new Date(1000 * moment).toLocaleTimeString() : '';

/** A message of a job's list of events as a line. */
export const lineOfMessage = ({created_at: moment, message}) => `${clock(moment)}  ${message}`;

/** An event of a run as a line; null for what is told elsewhere. */
export function lineOf(name, event) {
  const time = clock(event.time);
  const words = {
    history: () => event.message ?? event.words,
    note: () => event.text,
    text: () => event.text ?? event.line,
    step: () => `Step ${event.step}/${event.max_steps}: training loss=${event.loss.toFixed(4)}`,
    evaluation: () => `evaluation at step ${event.step}: loss ${number(event.loss)}, accuracy ${number(100 * event.token_accuracy)} %`,
    checkpoint: () => `checkpoint at step ${event.step}`,
    rows_surveyed: () => `${event.usable} of ${event.rows} rows can be used, ${event.training_rows} to train on, ${event.evaluation_rows ?? 0} held out`,
    model_loaded: () => `model loaded in ${duration(event.seconds)}: ${event.trained_parameters} of ${event.parameters} parameters are trained`,
    started: () => `training begins at step ${event.step} of ${event.max_steps}`,
    resumed: () => `goes on from step ${event.step}`,
    end: () => `end: ${event.reason.replaceAll('_', ' ')}${event.message ? `: ${event.message}` : ''}`,
  }[name]?.();
  return words ? `${time}  ${words}` : null;
}

