// Rows of a dataset: small images to choose from, and one row as the model reads it, with what it learns marked.
import {get} from '../lib/api.js';
import {button, fill, h, note} from '../lib/dom.js';
import {turns} from '../lib/live.js';
import {bytes, count, counted, rowWords} from '../lib/words.js';

const SHOWN = 12;
const path = (file, row, model) => `/v1/garden/datasets/${encodeURIComponent(file)}/rows/${row}${model ? `?model=${encodeURIComponent(model)}` : ''}`;

/** A view of the rows of a file; `rows` is how many there are. */
export function rowsView(file, model, rows) {
  const one = h('div', {'aria-live': 'polite'});
  const number = h('input', {type: 'number', min: 1, max: rows, value: 1, 'aria-label': 'Row', change: () => show(Number(number.value))});
  const thumbs = h('ul', {class: 'thumbs', 'aria-label': 'The first rows'});
  const begin = turns();
  const show = async row => {
    const current = begin();
    const at = Math.min(Math.max(Math.round(row) || 1, 1), rows);
    number.value = at;
    thumbs.querySelectorAll('button').forEach(thumb => thumb.setAttribute('aria-pressed', String(thumb.dataset.row === String(at))));
    const view = await get(path(file, at, model)).then(rowView, error => note('bad', rowWords(error.message)));
    if (current()) fill(one, view);
  };
  firsts(file, rows, thumbs, show);
  show(1);
  return h('div', {class: 'stack'}, h('h3', {}, 'Rows'), thumbs,
    h('div', {class: 'row-nav'}, button('←', () => show(Number(number.value) - 1), 'small', {'aria-label': 'The row before'}), number,
      h('span', {class: 'soft small'}, `of ${count(rows)}`), button('→', () => show(Number(number.value) + 1), 'small', {'aria-label': 'The next row'})), one);
}

/** Small images of the first rows, in one question. */
async function firsts(file, rows, list, show) {
  const shown = Math.min(rows, SHOWN);
  try {
    const {data} = await get(`/v1/garden/datasets/${encodeURIComponent(file)}/rows?limit=${shown}`);
    fill(list, ...data.map(row => h('li', {}, h('button', {type: 'button', 'data-row': row.row, 'aria-pressed': row.row === 1 ? 'true' : 'false', click: () => show(row.row)}, thumb(row)))));
  } catch { list.hidden = true; }
}

/** A row's first image; a bad row has none and says so. */
function thumb({row, images = [], error}) {
  if (error) return h('span', {class: 'bad'}, `Row ${row} is bad`);
  return images[0]?.uri ? h('img', {src: images[0].uri, alt: `Row ${row}`}) : `Row ${row}`;
}

/** One row. */
export function rowView(row) {
  const facts = [counted(row.images.length, 'image'), row.tokens ? counted(row.tokens, 'token') : null, row.shape].filter(Boolean).join(', ');
  return h('div', {class: 'stack'}, h('p', {class: 'soft small'}, `Row ${count(row.row)}: ${facts}`),
    row.left_out ? note('warn', `It is left out: ${row.left_out}.`) : null,
    row.images.length ? h('div', {class: 'shots'}, ...row.images.map(imageView)) : null,
    row.runs ? maskView(row.runs) : turnsView(row.turns));
}

const imageView = (image, at) => h('figure', {}, h('img', {src: image.uri, alt: `Image ${at + 1} of the row`}),
  h('figcaption', {}, `${image.width}×${image.height}, read as ${image.resized_width}×${image.resized_height}: ${counted(image.tokens, 'token')}, ${bytes(image.bytes)}`));

/** What the model reads; what it learns is marked, in words for those who do not see it. */
function maskView(runs) {
  const learned = runs.filter(run => run.learned).reduce((sum, run) => sum + run.tokens, 0);
  const text = h('div', {class: 'masked', tabindex: 0, role: 'region', 'aria-label': 'The row as the model reads it'}, ...runs.map(run => run.learned ? h('mark', {}, run.text) : run.text));
  return h('div', {}, text, h('p', {class: 'small soft'}, h('mark', {class: 'unseen'}, ''), `Marked text is learned: ${counted(learned, 'token')}.`));
}

const turnsView = turns => h('div', {class: 'stack'}, ...turns.map(turn => h('p', {}, h('strong', {}, `${turn.role}: `), turn.parts.map(part => part.text ?? `[image ${part.image + 1}]`).join(' '))));
