// Held-out rows asked of every checkpoint: how the answers change over a training.
import {get, post} from '../lib/api.js';
import {button, empty, fill, h, note} from '../lib/dom.js';
import {tried} from '../lib/dialog.js';
import {count} from '../lib/words.js';

/** Shows the answers of a job and keeps them fresh while the server asks. */
export function answersOf(target, id) {
  const path = `/v1/garden/jobs/${encodeURIComponent(id)}/answers`;
  let timer;
  const refresh = async () => {
    clearTimeout(timer);
    try {
      const answers = await get(path);
      show(answers);
      if (answers.asking) timer = setTimeout(refresh, 1500);
    } catch (error) { fill(target, note('bad', error.message)); }
  };
  const ask = async () => {
    if (await tried(() => post(path))) refresh();
  };
  const show = answers => {
    const {rows, asking, error} = answers;
    const doing = asking ? h('p', {role: 'status', class: 'soft'}, `Asking ${asking} …`) : null;
    const again = asking ? null : button(rows.length ? 'Ask new checkpoints' : 'Ask the checkpoints', ask, rows.length ? 'small' : 'main');
    const trouble = error ? note('warn', error) : null;
    if (!rows.length) return fill(target, trouble, asking ? doing : empty('Nobody asked yet', 'The base model and every checkpoint answer the same few rows that were not trained on.', again));
    fill(target, h('div', {class: 'answers'}, ...rows.map(rowView)), trouble, h('div', {class: 'actions'}, again, doing));
  };
  refresh();
  return refresh;
}

function rowView(row) {
  const same = text => text.trim().toLowerCase() === row.right.trim().toLowerCase();
  return h('article', {}, h('div', {class: 'shots'}, ...row.images.map((uri, at) => h('img', {src: uri, alt: `Image ${at + 1} of row ${row.row}`}))),
    h('div', {}, h('p', {}, h('strong', {}, row.question)), h('p', {class: 'small soft'}, `right: ${row.right}`),
      h('ol', {}, ...row.answers.map(answer => h('li', {class: same(answer.text) ? 'right' : null}, h('span', {class: 'soft'}, answer.step === 0 ? 'base model' : `step ${count(answer.step)}`),
        answer.text || h('em', {}, 'nothing'), same(answer.text) ? h('span', {class: 'unseen'}, ' (right)') : null)))));
}
