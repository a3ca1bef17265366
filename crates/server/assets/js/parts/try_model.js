// Trying a model: an image and a question, answered by it and by the model it was made from, side by side.
import {button, fill, h, note} from '../lib/dom.js';
import {dropZone} from '../lib/drop.js';
import {count, number} from '../lib/words.js';
import {ask, asUri} from './talk.js';

const isImage = file => file.type.startsWith('image/') && file.type !== 'image/svg+xml';

/** A form to try one of `models`: `select` chooses one, `update` takes a newer list. */
export function tryView(target, models) {
  const images = [];
  const shots = h('div', {class: 'shots'});
  const model = h('select', {id: 'try-model', name: 'model'});
  const question = h('textarea', {id: 'try-question', name: 'question', rows: 3}, 'What is in the picture?');
  const [tokens, heat] = [h('input', {id: 'try-tokens', type: 'number', min: 1, max: 4096, value: 128}), h('input', {id: 'try-heat', type: 'number', min: 0, max: 2, step: 0.1, value: 0})];
  const beside = h('input', {type: 'checkbox', id: 'try-beside', checked: true});
  const talk = h('div', {class: 'talk', 'aria-live': 'polite'});
  const go = h('button', {type: 'submit', class: 'button main'}, 'Ask');
  const stop = button('Stop', () => controller?.abort(), '', {hidden: true});
  let controller;
  const showShots = () => fill(shots, ...images.map((uri, at) => h('figure', {}, h('img', {src: uri, alt: `Image ${at + 1}`}), h('figcaption', {}, button('Take away', () => { images.splice(at, 1); showShots(); }, 'small plain')))));
  const zone = dropZone({words: 'Drop images here', id: 'try-images', multiple: true, accept: 'image/*'}, async files => {
    const [pictures, others] = [files.filter(isImage), files.filter(file => !isImage(file))];
    images.push(...await Promise.all(pictures.map(asUri)));
    showShots();
    fill(refused, others.length ? note('warn', `${others.map(file => file.name).join(', ')}: no image. PNG, JPEG, WebP, GIF and BMP can be asked about.`) : null);
  });
  const refused = h('div', {});
  const field = (name, input) => h('div', {class: 'field'}, h('label', {for: input.id}, name), input);
  const form = h('form', {class: 'stack', submit: event => { event.preventDefault(); run(); }},
    h('div', {class: 'two'}, h('div', {class: 'stack'}, field('Model', model), field('Question', question)), h('div', {class: 'stack'}, zone, refused, shots)),
    h('div', {class: 'fields'}, field('Most tokens', tokens), field('Temperature', heat), h('label', {class: 'pick', for: 'try-beside'}, beside, 'beside its base')),
    h('div', {class: 'actions'}, go, stop));
  fill(target, form, talk);

  async function run() {
    const chosen = models.find(one => one.id === model.value);
    if (!chosen) return fill(talk, note('warn', 'Choose a model first.'));
    controller = new AbortController();
    const base = chosen.garden.base;
    const asked = [chosen.id, ...(beside.checked && base && base !== chosen.id ? [base] : [])];
    const content = [...images.map(url => ({type: 'image_url', image_url: {url}})), {type: 'text', text: question.value}];
    const request = {messages: [{role: 'user', content}], settings: {max_tokens: Number(tokens.value), temperature: Number(heat.value)}, signal: controller.signal};
    [go.disabled, stop.hidden] = [true, false];
    fill(talk, ...asked.map(name => answerView(name, request)));
    await Promise.allSettled(waiting.splice(0));
    [go.disabled, stop.hidden] = [false, true];
  }

  const waiting = [];
  function answerView(name, request) {
    const said = h('div', {class: 'said', 'data-live': true});
    const facts = h('p', {class: 'small soft'}, 'thinking …');
    const show = text => { said.textContent = text; };
    const done = ask({model: name, ...request}, show).then(({text, reason, usage, seconds}) => {
      show(text || '(nothing)');
      const speed = usage ? `${count(usage.completion_tokens)} tokens, ${number(usage.completion_tokens / seconds)} a second` : '';
      facts.textContent = [speed, reason === 'length' ? 'cut at the most tokens' : ''].filter(Boolean).join('; ');
    }, error => { facts.replaceWith(error.name === 'AbortError' ? h('p', {class: 'small soft'}, 'stopped') : note('bad', error.message)); }).finally(() => said.removeAttribute('data-live'));
    waiting.push(done);
    return h('section', {'aria-label': `Answer of ${name}`}, h('h3', {}, name), said, facts);
  }

  function update(list) {
    const before = model.value;
    models = list;
    fill(model, ...models.map(one => h('option', {value: one.id}, one.id)));
    if (models.some(one => one.id === before)) model.value = before;
  }

  update(models);
  return {select(id) { model.value = id; }, focus: () => question.focus(), update};
}
