// What takes disk, and bulk deletion of what nobody needs.
import {get, post} from '../lib/api.js';
import {button, fill, find, h, note, table} from '../lib/dom.js';
import {say, sure, tried} from '../lib/dialog.js';
import {bytes, counted} from '../lib/words.js';
import {jobPath} from './state.js';

const chosen = new Set();

export async function storageView(target) {
  const storage = await get('/v1/garden/storage');
  const {jobs, orphans, disk} = storage;
  const ofJobs = jobs.reduce((sum, job) => sum + job.bytes, 0);
  const parts = [['jobs', ofJobs], ['datasets', storage.files_bytes], ['merged models', storage.models_bytes], ['cache', storage.cache_bytes], ['uploads', storage.uploads_bytes], ['index', storage.index_bytes]];
  const total = parts.reduce((sum, [, size]) => sum + size, 0);
  find('#storage-note').textContent = `${bytes(total)} here, ${bytes(disk.free_bytes)} free on the disk`;
  chosen.clear();
  fill(target, bar(parts, total), h('div', {class: 'two'}, h('dl', {class: 'pairs'}, ...parts.flatMap(([name, size], at) => [h('dt', {}, h('span', {class: 'swatch', '--swatch': `var(--line${at})`}), name), h('dd', {}, bytes(size))])),
    orphanView(orphans, () => storageView(target))), checkpointView(jobs, () => storageView(target)));
}

const bar = (parts, total) => h('div', {class: 'fillbar', role: 'img', 'aria-label': `${bytes(total)} in all`}, ...parts.map(([, size]) => h('i', {'--share': `${100 * size / (total || 1)}%`})));

function orphanView(orphans, refresh) {
  if (!orphans.length) return note('good', 'Nothing lies about: every file belongs to something.');
  const size = orphans.reduce((sum, orphan) => sum + orphan.bytes, 0);
  const clean = async () => { if (await sure('Delete what belongs to nothing?', `${counted(orphans.length, 'thing')}, ${bytes(size)}.`, 'Delete')) clear({orphans: true}, refresh); };
  return note('warn', h('p', {}, `${counted(orphans.length, 'thing')} (${bytes(size)}) ${orphans.length === 1 ? 'belongs' : 'belong'} to nothing:`), h('ul', {class: 'small'}, ...orphans.slice(0, 5).map(orphan => h('li', {}, `${orphan.why}: ${bytes(orphan.bytes)}`))), button('Delete them', clean, 'small danger'));
}

async function clear(what, refresh) {
  const done = await tried(() => post('/v1/garden/storage/clean', what));
  if (!done) return;
  say(`${bytes(done.freed_bytes)} are free again.`);
  done.refused.forEach(words => say(words, 'bad'));
  refresh();
}

function checkpointView(jobs, refresh) {
  const all = jobs.flatMap(job => job.checkpoints.map(one => ({...one, job})));
  if (!all.length) return h('p', {class: 'soft'}, 'No job has a checkpoint on disk.');
  const remove = button('Delete the chosen ones', async () => {
    const names = all.filter(one => chosen.has(key(one)));
    const words = `${counted(names.length, 'checkpoint')}, ${bytes(names.reduce((sum, one) => sum + one.bytes, 0))}. Results of jobs stay.`;
    if (await sure('Delete these checkpoints?', words, 'Delete')) clear({checkpoints: names.map(one => ({job: one.job.id, step: one.step}))}, refresh);
  }, 'danger', {disabled: true});
  const key = one => `${one.job.id} ${one.step}`;
  const tick = one => {
    const box = h('input', {type: 'checkbox', 'aria-label': `Step ${one.step} of ${one.job.name ?? one.job.id}`, disabled: !one.deletable, change: () => { box.checked ? chosen.add(key(one)) : chosen.delete(key(one)); remove.disabled = !chosen.size; }});
    return box;
  };
  const boxes = all.map(one => [one, tick(one)]);
  const every = button('Choose all that may go', () => boxes.forEach(([one, box]) => { if (one.deletable && !box.checked) box.click(); }), 'small');
  return h('div', {class: 'stack'}, h('h3', {}, 'Checkpoints'), table({caption: 'Checkpoints on disk; those of jobs that may go on, and results, stay', cards: true, head: [{name: 'Choose', unseen: true}, {name: 'Job', title: true}, {name: 'Step', number: true}, {name: 'Size', number: true}, 'May go'],
    rows: boxes.map(([one, box]) => [box, h('a', {href: jobPath(one.job.id)}, one.job.name ?? one.job.id), one.step, bytes(one.bytes), one.deletable ? 'yes' : 'no'])}), h('div', {class: 'actions'}, every, remove));
}
