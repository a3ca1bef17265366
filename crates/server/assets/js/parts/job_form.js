// The upper part of a job's form: its model, its rows, its name and its place in the queue.
import {h} from '../lib/dom.js';
import {bytes} from '../lib/words.js';
import {Field} from './field.js';

/** The choice of a model that is not on this server. */
const HUB = ' hub';

/** A list with what a job had that is run again, even if it is gone. */
function withOld(choices, old) {
  const isThere = !old || choices.some(([value]) => value === old);
  return isThere ? choices : [...choices, [old, `${old} (no longer on this server)`]];
}

/** Fields for `models` and `files` as the API lists them; `old` is a job that is run again. */
export class JobFields {
  constructor({models, files, old}, onChange) {
    const rows = files.filter(file => file.status !== 'error').map(file => [file.id, `${file.filename} (${bytes(file.bytes)})`]);
    const bases = withOld(models.filter(model => model.garden.kind !== 'checkpoint').map(model => [model.id, model.id]), old?.model);
    const field = option => new Field({id: option.key, ...option}, () => { this.showHub(); onChange(); });
    this.hub = h('input', {type: 'text', autocomplete: 'off', spellcheck: 'false', placeholder: 'Qwen/Qwen2.5-VL-3B-Instruct', 'aria-label': 'Name of the model on the hub', 'aria-describedby': 'model-wrong',
      input: () => this.fields.model.blame(''), change: onChange});
    this.fields = {
      model: field({key: 'model', type: 'pick', choices: [...bases, [HUB, 'a model of the hub …']], help: 'What the training starts from: a base model, one that was tuned here, or one of the Hugging Face hub.'}),
      training_file: field({key: 'training_file', type: 'pick', name: 'Rows to train on', choices: withOld(rows, old?.training_file), help: 'An uploaded dataset.'}),
      validation_file: field({key: 'validation_file', type: 'pick', name: 'Rows to evaluate on', choices: [['', 'none, or the eval split below'], ...withOld(rows, old?.validation_file)], help: 'A dataset of its own, never trained on.'}),
      suffix: field({key: 'suffix', type: 'text', name: 'Name', default: 'job', help: 'A word in the tuned model’s name: letters, digits, - _ and dots.'}),
      priority: field({key: 'priority', type: 'whole', default: '0', least: -1000, most: 1000, help: 'Higher goes first in the queue.'}),
      max_restarts: field({key: 'max_restarts', type: 'whole', name: 'Restarts', default: '0', least: 0, most: 100, help: 'How often it may go on from its checkpoint after it was killed.'}),
    };
    this.fields.model.input.after(this.hub);
    this.showHub();
  }

  get all() { return Object.values(this.fields); }
  get element() { return h('fieldset', {class: 'fields'}, h('legend', {class: 'unseen'}, 'Model and rows'), ...this.all.map(field => field.element)); }
  get model() { return this.fields.model.input.value === HUB ? this.hub.value.trim() : this.fields.model.input.value; }
  get rows() { return this.fields.training_file.input.value; }

  showHub() { this.hub.hidden = this.fields.model.input.value !== HUB; }

  /** What was entered, by its key. */
  read() {
    const entered = this.all.filter(field => field.isChanged()).map(field => [field.option.key, field.value()]);
    return {...Object.fromEntries(entered), model: this.model};
  }

  write(values) {
    for (const [key, value] of Object.entries(values)) this.fields[key]?.set(value);
    const {model} = this.fields;
    // A model that is in no list is one of the hub.
    if (values.model && model.input.value !== values.model) [model.input.value, this.hub.value] = [HUB, values.model];
    this.showHub();
  }

  check() { this.all.forEach(field => field.check()); }
  forgive() { this.all.forEach(field => field.blame('')); }

  /** Shows what is wrong at its field, which it gives; nothing if the field is not here. */
  blame(key, words) {
    const field = this.fields[key];
    field?.blame(words);
    return field;
  }

  firstWrong() { return this.all.find(field => field.isWrong); }
}
