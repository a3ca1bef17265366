// The checkpoints of a job, each with its ways on.
import {empty, h, table} from '../lib/dom.js';
import {count, number} from '../lib/words.js';
import {isOver, resumePath} from './state.js';

export function checkpointsView(job, checkpoints) {
  if (!checkpoints.length) return empty('None yet', isOver(job) ? 'This job left no checkpoint.' : 'One is written at the end of each epoch, or every save_steps steps.');
  const action = (name, href) => h('a', {class: 'button small', href}, name);
  const held = ({full_valid_loss: whole, valid_loss: some}) => whole ?? some ?? null;
  const head = [{name: 'Step', number: true}, {name: 'Loss', number: true}, {name: 'Held out', number: true}, {name: 'Do', unseen: true}];
  return table({caption: 'The newest first', cards: true, head, rows: checkpoints.map(one => [
    count(one.step_number), number(one.metrics.train_loss ?? null), number(held(one.metrics)),
    h('span', {class: 'actions'}, action('Resume from here', resumePath(job, one)), action('Try', `/models?try=${encodeURIComponent(one.fine_tuned_model_checkpoint)}`))])});
}
