// The check of a dataset: how many rows, what is wrong with which, how long they are.
import {post} from '../lib/api.js';
import {button, fill, facts, h, note, table} from '../lib/dom.js';
import {are, bytes, count, counted, number, rowWords} from '../lib/words.js';
import {rowsView} from './rows.js';

/** Bad rows that are named. */
const MOST = 10;

/**
 * Checks a file with a model's tokenizer and shows what was found. `onSkip` is given the settings that leave its bad rows
 * out, where the reader wants that.
 */
export async function showSurvey(target, file, model, {settings = {}, signal, onSkip} = {}) {
  fill(target, h('p', {class: 'soft', role: 'status'}, 'Reading every row …'));
  try {
    const survey = await post(`/v1/garden/datasets/${encodeURIComponent(file)}/check`, {...(model ? {model} : {}), ...settings}, {signal});
    fill(target, surveyView(survey, onSkip), rowsView(file, model, survey.rows));
  } catch (error) {
    if (error.name !== 'AbortError') fill(target, note('bad', rowWords(error.message)));
  }
}

function surveyView(survey, onSkip) {
  const {rows, images, tokens, image_tokens: imageTokens, label_tokens: labels, left_out: left, bad, ignored} = survey;
  const usable = rows - bad.count - left.too_long - left.no_label;
  const lengths = tokens ?? imageTokens;
  return h('div', {class: 'stack'},
    facts([['rows', count(rows), usable === rows ? 'all can be used' : `${count(usable)} can be used`], ['images', count(images.count), images.count ? bytes(images.encoded_bytes) : ''],
      ['tokens a row', lengths.total ? number(Math.round(lengths.mean)) : null, lengths.total ? `at most ${count(lengths.max)}` : ''],
      ['learned a row', labels ? number(Math.round(labels.mean)) : null, labels ? `${count(labels.total)} in all` : '']]),
    bad.count ? badView(bad, onSkip) : note('good', 'No bad row.'),
    left.too_long ? note('warn', `${counted(left.too_long, 'row')} with more than ${count(left.max_seq_length)} tokens ${are(left.too_long)} left out.`) : null,
    left.no_label ? note('warn', `${counted(left.no_label, 'row')} without anything to learn ${are(left.no_label)} left out.`) : null,
    Object.keys(ignored).length ? note('', `Fields that are not read: ${Object.keys(ignored).join(', ')}.`) : null,
    h('div', {class: 'two'}, lengths.total ? histogram(lengths, tokens ? 'Tokens a row' : 'Image tokens a row') : null, images.count ? sizes(images.sizes) : null));
}

const badView = (bad, onSkip) => note('bad', h('p', {}, `${counted(bad.count, 'bad row')}. A job stops at the first one, unless it leaves them out.`),
  h('ul', {}, ...bad.rows.slice(0, MOST).map(row => h('li', {class: 'small'}, rowWords(row)))),
  bad.count > MOST ? h('p', {class: 'small'}, `and ${count(bad.count - MOST)} more`) : null,
  onSkip ? button('Leave the bad rows out', () => onSkip(skipping(bad.count)), 'small') : null);

/** The settings of a job that leaves bad rows out, and no more than these. */
export const skipping = bad => ({on_bad_row: 'skip', max_bad_rows: String(bad)});

/** How long the rows are, as bars with their numbers in words. */
function histogram(lengths, title) {
  const bars = lengths.histogram;
  const most = Math.max(...bars.map(bar => bar.rows), 1);
  const words = bar => `${bar.from === bar.to ? bar.from : `${bar.from} to ${bar.to}`} tokens: ${counted(bar.rows, 'row')}`;
  return h('div', {}, h('h3', {}, title),
    h('p', {class: 'small soft'}, `half at most ${count(lengths.p50)}, 95 % at most ${count(lengths.p95)}, the longest ${count(lengths.max)}`),
    h('ul', {class: 'bars', 'aria-label': title}, ...bars.map(bar => h('li', {'--share': `${100 * bar.rows / most}%`, title: words(bar)}, h('span', {class: 'unseen'}, words(bar))))),
    h('div', {class: 'ends', 'aria-hidden': 'true'}, h('span', {}, count(bars[0]?.from)), h('span', {}, count(bars.at(-1)?.to))));
}

const sizes = list => h('div', {}, h('h3', {}, 'Images'), table({caption: 'The most frequent sizes', head: ['Size', 'Read as', {name: 'Tokens', number: true}, {name: 'Images', number: true}],
  rows: list.slice(0, 6).map(one => [`${one.width}×${one.height}`, `${one.resized_width}×${one.resized_height}`, count(one.tokens), count(one.count)])}));
