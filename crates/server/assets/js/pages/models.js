// Models: base ones, adapters and their checkpoints, merged ones; merge, download, delete, try.
import {del, get, post} from '../lib/api.js';
import {button, empty, fill, find, h, note, table} from '../lib/dom.js';
import {modal, say, sure, tried} from '../lib/dialog.js';
import {ago, bytes} from '../lib/words.js';
import {patiently} from '../lib/live.js';
import {jobPath} from '../parts/state.js';
import {tryView} from '../parts/try_model.js';

const KINDS = {base: ['Base models', 'found below the server’s folders of models'], adapter: ['Tuned here', 'what jobs made'], merged: ['Merged', 'an adapter and its base in one'], checkpoint: ['Checkpoints', 'of jobs, on the way']};
const path = id => `/v1/models/${encodeURIComponent(id)}`;
let trial;

async function refresh() {
  const {data} = await get('/v1/models');
  const place = find('#list');
  if (!data.length) {
    find('#try-sheet').hidden = true;
    return fill(place, empty('No model yet', 'The server lists the model folders below the folders that it was started with. A new job can also start from a model of the hub.'));
  }
  find('#try-sheet').hidden = false;
  trial ? trial.update(data) : trial = tryView(find('#try'), data);
  const groups = Object.entries(KINDS).map(([kind, words]) => [words, data.filter(model => model.garden.kind === kind)]).filter(([, models]) => models.length);
  fill(place, ...groups.map(([[title, caption], models], at) => h('details', {class: 'fold', open: at < 2 || models.length < 6}, h('summary', {}, title, h('span', {class: 'soft'}, models.length)),
    table({caption, cards: true, head: [{name: 'Model', title: true}, {name: 'Size', number: true}, {name: 'Made', number: true}, {name: 'Do', unseen: true}], rows: models.map(row)}))));
  return data;
}

function row(model) {
  const {kind, job, bytes: size} = model.garden;
  const tuned = kind === 'adapter' || kind === 'checkpoint';
  const actions = [button('Try', () => { trial.select(model.id); trial.focus(); }, 'small'),
    h('a', {class: 'button small', href: `/jobs/new?model=${encodeURIComponent(model.id)}`}, 'Train'),
    tuned ? button('Merge', () => merge(model), 'small') : null,
    kind === 'base' ? null : h('a', {class: 'button small', href: `/v1/garden/models/${encodeURIComponent(model.id)}/download`}, 'Download'),
    kind === 'base' ? null : button('Delete', () => remove(model), 'small danger')];
  return [h('div', {}, h('strong', {}, model.id), job ? h('div', {class: 'small'}, h('a', {href: jobPath(job)}, 'its job')) : null), bytes(size), ago(model.created), h('span', {class: 'actions'}, ...actions.filter(Boolean))];
}

async function merge(model) {
  const name = h('input', {id: 'merge-name', required: true, pattern: '[A-Za-z0-9._\\-]+', value: model.id.split(':').slice(2).join('-').replace(/[^\w.-]/g, '-')});
  const content = h('div', {class: 'field'}, h('label', {for: 'merge-name'}, 'Name of the merged model'), name, h('p', {class: 'help'}, 'The adapter is added to the weights of its base. The result needs no adapter, and as much disk as the base.'));
  const bits = await modal('Merge', content, [{name: 'Leave it', value: ''}, {name: 'In 4 bits', value: '4bit'}, {name: 'In 16 bits', value: '16bit', main: true}]);
  if (!bits) return;
  say('Merging; this takes a while for a large model.');
  if (await tried(() => post(`/v1/garden/models/${encodeURIComponent(model.id)}/merge`, {name: name.value, save_as: bits}), 'Merged.')) refresh();
}

async function remove(model) {
  if (await sure(`Delete ${model.id}?`, 'Its files go from the disk. This cannot be undone.', 'Delete') && await tried(() => del(path(model.id)), 'Deleted.')) refresh();
}

const waiting = error => fill(find('#list'), note('bad', `${error.message} This page tries again every three seconds.`));
try {
  const models = await patiently(refresh, waiting);
  if (models) {
    const wanted = new URLSearchParams(location.search).get('try') ?? models.find(model => model.garden.kind === 'adapter')?.id;
    if (wanted && models.some(model => model.id === wanted)) trial.select(wanted);
    if (location.search.includes('try=')) find('#try-sheet').scrollIntoView();
  }
} catch (error) {
  fill(find('#list'), note('bad', error.message));
}
