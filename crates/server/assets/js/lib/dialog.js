// Dialogs, short messages, and what a screen reader is told.
import {h, fill} from './dom.js';

/** Asks; resolves to the value of the button, or to null. `buttons`: [{name, value, main, danger}]. */
export function modal(title, content, buttons) {
  const heading = h('h2', {id: 'dialog-title'}, title);
  const dialog = h('dialog', {'aria-labelledby': 'dialog-title'});
  const made = buttons.map(({name, value, main, danger}) =>
    h('button', {class: `button ${main ? 'main' : ''} ${danger ? 'danger' : ''}`, value, autofocus: main}, name));
  dialog.append(h('form', {method: 'dialog'}, heading, content, h('div', {class: 'actions'}, ...made)));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise(resolve => dialog.addEventListener('close', () => {
    dialog.remove();
    resolve(dialog.returnValue || null);
  }));
}

/** Whether the reader is sure. */
export async function sure(title, words, yes, danger = true) {
  const buttons = [{name: 'No', value: ''}, {name: yes, value: 'yes', danger, main: !danger}];
  return await modal(title, h('p', {}, words), buttons) === 'yes';
}

/** Says something for a few seconds; errors stay longer. */
export function say(words, kind = '') {
  const message = h('p', {class: kind}, words);
  document.getElementById('toasts').append(message);
  setTimeout(() => message.remove(), kind === 'bad' ? 12000 : 5000);
}

/** Runs something that may fail, and says how it failed. */
export async function tried(work, done) {
  try {
    const result = await work();
    if (done) say(done);
    return result ?? true;
  } catch (error) {
    if (error.name !== 'AbortError') say(error.message, 'bad');
    return null;
  }
}

let last = '';
/** Tells a screen reader about a change, once. */
export function speak(words) {
  if (words === last) return;
  last = words;
  fill(document.getElementById('spoken'), words);
}
