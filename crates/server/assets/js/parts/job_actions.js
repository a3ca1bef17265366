// What can be done with a job, in the state that it is in.
import {del, post} from '../lib/api.js';
import {button, h} from '../lib/dom.js';
import {modal, sure, tried} from '../lib/dialog.js';
import {againPath, isOver, nameOf} from './state.js';

/** Buttons for a job; `refresh` is called with what the server answered. */
export function actionsFor(job, refresh) {
  const {state} = job.garden;
  const path = `/v1/fine_tuning/jobs/${encodeURIComponent(job.id)}`;
  const act = (name, words) => async () => {
    const changed = await tried(() => post(`${path}/${name}`), words);
    if (changed) refresh(changed);
  };
  const cancel = async () => {
    if (await sure('Cancel this job?', 'It ends at once. What it wrote so far stays; a stop would write a checkpoint first.', 'Cancel the job')) act('cancel', 'Cancelling.')();
  };
  const remove = async () => {
    const words = 'Its checkpoints, its log and its tuned model go with it. This cannot be undone.';
    if (await sure(`Delete ${nameOf(job)}?`, words, 'Delete') && await tried(() => del(path))) location.href = '/';
  };
  const priority = async () => {
    const input = h('input', {type: 'number', id: 'priority', min: -1000, max: 1000, value: job.garden.priority});
    const content = h('div', {class: 'field'}, h('label', {for: 'priority'}, 'Higher goes first'), input);
    if (await modal('Place in the queue', content, [{name: 'Leave it', value: ''}, {name: 'Move', value: 'yes', main: true}]) !== 'yes') return;
    const changed = await tried(() => post(`${path}/priority`, {priority: Number(input.value)}), 'Moved.');
    if (changed) refresh(changed);
  };
  const link = (name, href, kind = '') => h('a', {class: `button ${kind}`, href}, name);
  const again = link('Run again …', againPath(job));
  const shown = {
    validating: [button('Cancel', cancel, 'danger')],
    queued: [button('Pause', act('pause', 'Paused.')), button('Priority', priority), button('Cancel', cancel, 'danger')],
    paused: [button('Resume', act('resume', 'Back in the queue.'), 'main'), button('Cancel', cancel, 'danger')],
    running: [button('Stop and keep', act('stop', 'It writes a checkpoint and ends.')), button('Pause', act('pause', 'It writes a checkpoint and waits.')), button('Cancel', cancel, 'danger')],
    stopping: [button('Cancel', cancel, 'danger')],
  }[state] ?? [];
  const after = isOver(job) ? [job.fine_tuned_model ? link('Try it', `/models?try=${encodeURIComponent(job.fine_tuned_model)}`, 'main') : null,
    again, link('Compare', `/compare?jobs=${job.id}`), button('Delete', remove, 'danger')] : [again];
  return [...shown, ...after].filter(Boolean);
}
