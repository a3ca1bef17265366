// One field of a form: its name, its control, its help, and what is wrong with it.
import {h} from '../lib/dom.js';

const LANGUAGE = {lora: 'LoRA', lr: 'learning rate', r: 'rank', rslora: 'rsLoRA', mlp: 'MLP', optim: 'optimizer', num: 'number of', seq: 'sequence', adam: 'Adam', json: 'JSON'};

/** A key as a name: `lora_r` is `LoRA rank`. */
export function label(key) {
  const text = key.split('_').map(word => LANGUAGE[word] ?? word).join(' ');
  return text[0].toUpperCase() + text.slice(1);
}

/**
 * A field for an option of a job: `{key, type, default, choices, help}`, and for those that the page itself adds `id`, `name`,
 * `least` and `most`. An empty field has the default.
 */
export class Field {
  constructor(option, onChange) {
    this.option = option;
    const id = this.id = option.id ?? `option-${option.key}`;
    const [wrong, help] = [`${id}-wrong`, `${id}-help`];
    this.input = control(option, {id, name: option.key, 'aria-describedby': `${wrong} ${help}`, input: () => { this.blame(''); this.mark(); onChange(); }});
    this.wrong = h('p', {class: 'wrong', id: wrong, hidden: true});
    this.element = h('div', {class: 'field'}, h('label', {for: id}, this.name), this.input, this.wrong, h('p', {class: 'help', id: help}, option.help));
  }

  get name() { return this.option.name ?? label(this.option.key); }
  get isWrong() { return !this.wrong.hidden; }
  isChanged() { return this.input.value !== ''; }
  mark() { this.element.toggleAttribute('data-changed', this.isChanged() && !this.option.id); }

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
    words ? this.input.setAttribute('aria-invalid', 'true') : this.input.removeAttribute('aria-invalid');
  }

  /** Blames what can be told without asking: a number out of its bounds. */
  check() {
    const {least, most} = this.option;
    if (least === undefined || !this.isChanged()) return;
    const value = this.value();
    if (!Number.isInteger(value) || value < least || value > most) this.blame(`A whole number from ${least} to ${most}.`);
  }
}

function control(option, shared) {
  const standard = option.default ?? 'not set';
  if (option.type === 'switch' || option.type === 'choice') {
    const choices = option.type === 'switch' ? [['true', 'yes'], ['false', 'no']] : option.choices.map(choice => [choice, choice]);
    const shown = {true: 'yes', false: 'no'}[standard] ?? (option.type === 'switch' ? 'no' : standard);
    return h('select', shared, h('option', {value: ''}, `default: ${shown}`), ...choices.map(([value, name]) => h('option', {value}, name)));
  }
  if (option.type === 'pick') return h('select', shared, ...option.choices.map(([value, name]) => h('option', {value}, name)));
  const kind = {whole: {inputmode: 'numeric'}, number: {inputmode: 'decimal'}}[option.type] ?? {};
  return h('input', {...shared, type: 'text', autocomplete: 'off', spellcheck: 'false', placeholder: standard, ...kind});
}
