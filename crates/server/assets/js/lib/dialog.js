// Dialogs, short messages, and what a screen reader is told.
import {h, fill} from './dom.js';

/**
 * Asks; resolves to the value of the button, or to null. `buttons`: [{name, value, main, danger}]. Enter in a field is the
 * main button, or the only one that does something; a button without a value leaves whatever the fields hold.
 */
export function modal(title, content, buttons) {
  const heading = h('h2', {id: 'dialog-title'}, title);
  const dialog = h('dialog', {'aria-labelledby': 'dialog-title'});
  const chief = buttons.find(({main}) => main) ?? buttons.find(({value}) => value);
  const press = value => { if (!value || form.reportValidity()) dialog.close(value); };
  const made = buttons.map(one => h('button', {class: `button ${one.main ? 'main' : ''} ${one.danger ? 'danger' : ''}`,
    ...(one === chief ? {type: 'submit', value: one.value} : {type: 'button', click: () => press(one.value)})}, one.name));
  const form = h('form', {method: 'dialog'}, heading, content, h('div', {class: 'actions'}, ...made));
  const opener = document.activeElement;
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  begin(content, made[buttons.findIndex(({main}) => main)] ?? made[0]);
  return new Promise(resolve => dialog.addEventListener('close', () => {
    dialog.remove();
    returnTo(opener);
    resolve(dialog.returnValue || null);
  }));
}

/** The first field has the focus; without one, the main button, or the one that does no harm. */
function begin(content, button) {
  const field = content.querySelector('input, select, textarea');
  (field ?? button).focus();
  field?.select?.();
}

/** What was pressed has the focus again; if the page has made its buttons anew, the one of the same name. */
function returnTo(opener) {
  const names = element => [...document.querySelectorAll('main button')].find(one => one.textContent === element.textContent);
  const place = opener?.isConnected ? opener : opener && names(opener);
  (place ?? document.getElementById('main')).focus();
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
