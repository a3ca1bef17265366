// The form of a job, made from what the server says its options are: a new option has its field by itself.
import {h} from '../lib/dom.js';

/** Groups that are open at first: what most people change. */
const OPEN = new Set(['Length', 'Learning']);
const TITLES = {What: 'Rows', Length: 'Length', Learning: 'Learning', Adapter: 'Adapter', Data: 'Data', Memory: 'Memory', Log: 'Evaluation, checkpoints, log'};

/** Fields for all options: `{element, read, write, blame}`. `onChange` is called after every change. */
export function optionFields(options, onChange) {
  const fields = new Map(options.map(option => [option.key, new Field(option, () => { marks(); onChange(); })]));
  const groups = [...new Set(options.map(option => option.group))];
  const folds = groups.map(group => {
    const own = [...fields.values()].filter(field => field.option.group === group);
    const changed = h('span', {class: 'soft'});
    const fold = h('details', {class: 'fold', open: OPEN.has(group)}, h('summary', {}, TITLES[group] ?? group, changed),
      h('fieldset', {class: 'fields'}, h('legend', {class: 'unseen'}, TITLES[group] ?? group), ...own.map(field => field.element)));
    return {own, changed, fold};
  });
  const marks = () => {
    for (const {own, changed} of folds) {
      const count = own.filter(field => field.isChanged()).length;
      changed.textContent = count ? `${count} changed` : '';
    }
  };
  return {
    element: h('div', {}, ...folds.map(({fold}) => fold)),
    /** What was changed, by its key. */
    read: () => Object.fromEntries([...fields.values()].filter(field => field.isChanged()).map(field => [field.option.key, field.value()])),
    write: settings => {
      for (const [key, value] of Object.entries(settings)) fields.get(key)?.set(value);
      for (const {own, fold} of folds) fold.open ||= own.some(field => field.isChanged());
      marks();
    },
    /** Shows what is wrong at its field; false if the field is not here. */
    blame: (key, words) => {
      const field = fields.get(key);
      if (!field) return false;
      field.element.closest('details').open = true;
      field.blame(words);
      field.input.focus();
      return true;
    },
    forgive: () => fields.forEach(field => field.blame('')),
  };
}

/** One option. An empty field has the default. */
class Field {
  constructor(option, onChange) {
    this.option = option;
    const id = `option-${option.key}`;
    const shared = {id, name: option.key, 'aria-describedby': `${id}-help`, input: () => { this.blame(''); this.mark(); onChange(); }};
    this.input = control(option, shared);
    this.wrong = h('p', {class: 'wrong', hidden: true});
    this.element = h('div', {class: 'field'}, h('label', {for: id}, label(option.key)), this.input, this.wrong,
      h('p', {class: 'help', id: `${id}-help`}, option.help));
  }

  isChanged() { return this.input.value !== ''; }
  mark() { this.element.toggleAttribute('data-changed', this.isChanged()); }

  value() {
    const text = this.input.value.trim();
    switch (this.option.type) {
      case 'switch': return text === 'true';
      case 'whole': case 'number': return Number.isNaN(Number(text)) ? text : Number(text);
      case 'list': return text.split(',').map(part => part.trim()).filter(Boolean).map(part => this.option.of?.type === 'whole' ? Number(part) : part);
      default: return text;
    }
  }

  set(value) {
    this.input.value = value === null || value === undefined ? '' : Array.isArray(value) ? value.join(', ') : String(value);
    this.mark();
  }

  blame(words) {
    this.wrong.textContent = words;
    this.wrong.hidden = !words;
    this.input.toggleAttribute('aria-invalid', Boolean(words));
    if (words) this.input.setAttribute('aria-invalid', 'true');
  }
}

function control(option, shared) {
  const standard = option.default === null ? 'not set' : option.default;
  if (option.type === 'switch' || option.type === 'choice') {
    const choices = option.type === 'switch' ? [['true', 'yes'], ['false', 'no']] : option.choices.map(choice => [choice, choice]);
    const shown = {true: 'yes', false: 'no'}[standard] ?? standard;
    return h('select', shared, h('option', {value: ''}, `default: ${shown}`), ...choices.map(([value, name]) => h('option', {value}, name)));
  }
  const kind = {whole: {inputmode: 'numeric', pattern: '[0-9]*'}, number: {inputmode: 'decimal'}}[option.type] ?? {};
  return h('input', {...shared, type: 'text', autocomplete: 'off', spellcheck: 'false', placeholder: standard, ...kind});
}

/** A key as a name: `lora_r` is `LoRA r`. */
export function label(key) {
  const words = key.split('_').map(word => ({lora: 'LoRA', lr: 'learning rate', r: 'rank', rslora: 'rsLoRA', mlp: 'MLP', optim: 'optimizer', num: 'number of', seq: 'sequence', adam: 'Adam', json: 'JSON'}[word] ?? word));
  const text = words.join(' ');
  return text[0].toUpperCase() + text.slice(1);
}
