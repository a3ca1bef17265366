// Datasets: upload, list, check, delete.
import {all, del, get} from '../lib/api.js';
import {button, empty, fill, find, h, note, table} from '../lib/dom.js';
import {say, sure, tried} from '../lib/dialog.js';
import {ago, bytes, sentence, withoutFlags} from '../lib/words.js';
import {patiently} from '../lib/live.js';
import {showSurvey} from '../parts/survey.js';
import {uploader} from '../parts/upload.js';

let models = [], checking;
const trainPath = (file, settings = {}) => `/jobs/new?${new URLSearchParams({file: file.id, ...settings})}`;

async function list() {
  try {
    const files = await patiently(() => all('/v1/files?purpose=fine-tune'), error => fill(find('#list'), note('bad', `${error.message} This page tries again every three seconds.`)));
    if (!files.length) return fill(find('#list'), empty('No rows yet', 'A row is a conversation: a question about an image, and the answer to learn. One JSON object a line is the simplest form; the images stand inside the rows.'));
    fill(find('#list'), table({caption: 'Datasets, newest first', cards: true, head: [{name: 'Name', title: true}, {name: 'Size', number: true}, 'State', {name: 'Uploaded', number: true}, {name: 'Do', unseen: true}], rows: files.map(row)}));
  } catch (error) { fill(find('#list'), note('bad', error.message)); }
}

function row(file) {
  const name = h('div', {}, h('strong', {}, file.filename), file.status_details ? h('div', {class: 'small bad'}, sentence(withoutFlags(file.status_details))) : null);
  return [name, bytes(file.bytes), file.status === 'error' ? h('span', {class: 'chip', 'data-tone': 'bad'}, 'error') : h('span', {class: 'chip', 'data-tone': 'good'}, 'ready'), ago(file.created_at),
    h('span', {class: 'actions'}, button('Check', () => check(file), 'small'), file.status === 'error' ? null : h('a', {class: 'button small', href: trainPath(file)}, 'Train'),
      h('a', {class: 'button small', href: `/v1/files/${encodeURIComponent(file.id)}/content`, download: file.filename}, 'Download'), button('Delete', () => remove(file), 'small danger'))];
}

async function remove(file) {
  if (await sure(`Delete ${file.filename}?`, 'Jobs that were trained on it stay, but cannot be run again.', 'Delete') && await tried(() => del(`/v1/files/${encodeURIComponent(file.id)}`), 'Deleted.')) {
    find('#check-sheet').hidden = true;
    list();
  }
}

/** Checks a file with the tokenizer of a model that can be chosen. */
function check(file) {
  history.replaceState(null, '', `?file=${encodeURIComponent(file.id)}`);
  find('#check-sheet').hidden = false;
  find('#check-title').textContent = file.filename;
  const choice = h('select', {id: 'check-model', change: () => run()}, ...models.map(model => h('option', {value: model.id}, model.id)), h('option', {value: ''}, 'no model: images only'));
  fill(find('#check-with'), h('label', {class: 'pick', for: 'check-model'}, 'read as by ', choice));
  const run = () => {
    checking?.abort();
    checking = new AbortController();
    showSurvey(find('#check'), file.id, choice.value, {signal: checking.signal, onSkip: settings => { location.href = trainPath(file, settings); }});
  };
  run();
  find('#check-sheet').scrollIntoView({block: 'start'});
}

fill(find('#upload'), uploader(file => { say(`${file.filename} is here.`); list(); check(file); }));
models = await get('/v1/models').then(({data}) => data.filter(model => model.garden.kind === 'base' || model.garden.kind === 'merged'), () => []);
await list();
const wanted = new URLSearchParams(location.search).get('file');
if (wanted) get(`/v1/files/${encodeURIComponent(wanted)}`).then(check, error => say(error.message, 'bad'));
