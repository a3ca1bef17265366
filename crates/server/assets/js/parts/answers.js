// Held-out rows asked of every checkpoint: how the answers change over a training.
import {get, post} from '../lib/api.js';
import {button, empty, fill, h, note} from '../lib/dom.js';
import {say} from '../lib/dialog.js';
import {untouched} from '../lib/live.js';
import {count} from '../lib/words.js';
import {againPath, isOver} from './state.js';

/** Milliseconds until a busy server is asked again. */
const LATER = 10000;

/** A job keeps its newest checkpoints only: one may go while it is asked. */
const troubleWords = error => error.startsWith('no such model') ? 'A checkpoint was deleted before it had answered everything: the job keeps only the newest ones.' : error;

/** Whether a job has rows that it does not learn from. */
const holdsOut = job => Boolean(job.validation_file || job.garden.settings.eval_split);

/** Shows the answers of a job and keeps them fresh while the server asks. `checkpoint` is to be called when there is a new one, `ended` at the end. */
export function answersOf(target, job) {
  if (!holdsOut(job)) {
    const words = 'All its rows were trained on. A run with an eval split, or with rows to evaluate on, can be asked here.';
    fill(target, empty('No row was held out', words, h('a', {class: 'button', href: againPath(job)}, 'Run again with held-out rows')));
    return {checkpoint() {}, ended() {}};
  }
  const asker = new Asker(target, job);
  asker.refresh();
  return {checkpoint: () => asker.checkpoint(), ended: () => asker.ended()};
}

class Asker {
  constructor(target, job) {
    this.path = `/v1/garden/jobs/${encodeURIComponent(job.id)}/answers`;
    this.isRunning = !isOver(job);
    this.asking = this.isDue = false;
    this.list = h('div', {class: 'stack'});
    this.trouble = h('div', {});
    this.doing = h('p', {role: 'status', class: 'soft'});
    this.go = button('Ask the checkpoints', () => this.ask(), 'main');
    this.every = h('input', {type: 'checkbox', id: 'ask-every', change: () => this.turn()});
    this.always = h('label', {class: 'pick', for: 'ask-every'}, this.every, 'ask every new checkpoint');
    fill(target, this.list, this.trouble, h('div', {class: 'actions'}, this.go, this.always, this.doing));
  }

  async refresh() {
    clearTimeout(this.timer);
    try {
      this.show(await get(this.path));
    } catch (error) {
      // Answers that are there stay in sight.
      fill(this.trouble, note('bad', error.message));
    }
  }

  async show({rows, asking, error}) {
    await untouched();
    const wereAsked = rows.length > 0 || asking;
    if (wereAsked && !this.wereAsked) this.every.checked = true;
    [this.asking, this.wereAsked] = [Boolean(asking), wereAsked];
    if (rows.length) fill(this.list, h('div', {class: 'answers'}, ...rows.map(rowView)));
    else if (!asking) fill(this.list, empty('Nobody asked yet', 'The base model and every checkpoint answer the same few rows that were not trained on.'));
    fill(this.trouble, error ? note('warn', troubleWords(error)) : null);
    this.doing.textContent = asking ? `Asking ${asking} …` : '';
    this.go.hidden = this.asking;
    this.go.textContent = rows.length ? 'Ask new checkpoints' : 'Ask the checkpoints';
    this.go.className = `button ${rows.length ? 'small' : 'main'}`;
    this.always.hidden = !this.isRunning;
    if (asking) this.timer = setTimeout(() => this.refresh(), 1500);
    else this.turn();
  }

  /** There is a new checkpoint: it is asked when the questions before it are through. */
  checkpoint() {
    this.isDue = true;
    this.turn();
  }

  /** No checkpoint will come any more. */
  ended() {
    this.isRunning = false;
    this.always.hidden = true;
  }

  turn() {
    if (this.isDue && this.every.checked && !this.asking) this.ask(true);
  }

  async ask(byItself = false) {
    [this.isDue, this.asking] = [false, true];
    try {
      await this.show(await post(this.path));
    } catch (error) {
      this.asking = false;
      if (!byItself) return say(error.message, 'bad');
      // The server asks one job at a time.
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.checkpoint(), LATER);
    }
  }
}

function rowView(row) {
  const same = text => text.trim().toLowerCase() === row.right.trim().toLowerCase();
  return h('article', {}, h('div', {class: 'shots'}, ...row.images.map((uri, at) => h('img', {src: uri, alt: `Image ${at + 1} of row ${row.row}`}))),
    h('div', {}, h('p', {}, h('strong', {}, row.question)), h('p', {class: 'small soft'}, `right: ${row.right}`),
      h('ol', {}, ...row.answers.map(answer => h('li', {class: same(answer.text) ? 'right' : null}, h('span', {class: 'soft'}, answer.step === 0 ? 'base model' : `step ${count(answer.step)}`),
        answer.text || h('em', {}, 'nothing'), same(answer.text) ? h('span', {class: 'unseen'}, ' (right)') : null)))));
}
