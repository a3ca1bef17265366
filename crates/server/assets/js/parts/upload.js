// Uploads with their progress.
import {send} from '../lib/api.js';
import {button, fill, h, note} from '../lib/dom.js';
import {speak} from '../lib/dialog.js';
import {dropZone} from '../lib/drop.js';
import {bytes, percent} from '../lib/words.js';

/** What rows come in. A file of another kind would be taken for rows too, and fail only in the job. */
const KINDS = ['.jsonl', '.json', '.csv', '.tsv', '.parquet', '.ndjson', '.zip'];
const hasRows = file => KINDS.some(kind => file.name.toLowerCase().endsWith(kind));

/** A drop zone for datasets; `onDone` gets each file that the server has taken. */
export function uploader(onDone) {
  const list = h('div', {class: 'stack'});
  const zone = dropZone({words: 'Drop datasets here', id: 'upload-files', multiple: true, accept: KINDS.join(',')}, files => files.forEach(file => take(file, list, onDone)));
  return h('div', {class: 'stack'}, zone, list);
}

function take(file, list, onDone) {
  if (hasRows(file)) return start(file, list, onDone);
  list.append(h('div', {}, note('bad', `${file.name} was not sent: no rows come in such a file. Rows are in ${KINDS.slice(0, -1).join(', ')} or ${KINDS.at(-1)} files.`)));
}

function start(file, list, onDone) {
  const bar = h('div', {class: 'stem', role: 'progressbar', 'aria-label': `Upload of ${file.name}`, 'aria-valuemin': 0, 'aria-valuemax': 100}, h('i', {}));
  const words = h('span', {class: 'small soft'}, bytes(file.size));
  const entry = h('div', {});
  const form = new FormData();
  form.append('purpose', 'fine-tune');
  form.append('file', file);
  const upload = send('/v1/files', form, (loaded, total) => {
    const share = total ? loaded / total : 0;
    bar.style.setProperty('--share', `${100 * share}%`);
    bar.setAttribute('aria-valuenow', Math.round(100 * share));
    words.textContent = share < 1 ? `${percent(Math.round(100 * share) / 100)} of ${bytes(total)}` : 'all sent; the server writes it';
  });
  fill(entry, h('p', {}, file.name, ' ', words, ' ', button('Cancel', upload.abort, 'small plain')), bar);
  list.append(entry);
  upload.done.then(made => { entry.remove(); speak(`${file.name} is uploaded`); onDone(made); }, error => fill(entry, note('bad', `${file.name}: ${error.message}`)));
}
