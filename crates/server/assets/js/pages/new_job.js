// The form of a new job, with the plan of its memory beside it. With ?rerun=ID it starts from that job's settings.
import {all, get, post} from '../lib/api.js';
import {settled} from '../lib/live.js';
import {button, empty, fill, find, h, note} from '../lib/dom.js';
import {say} from '../lib/dialog.js';
import {bytes} from '../lib/words.js';
import {optionFields} from '../parts/form.js';
import {planView} from '../parts/plan.js';
import {showSurvey} from '../parts/survey.js';

const query = new URLSearchParams(location.search);
const [rerun, checkpoint] = [query.get('rerun'), query.get('checkpoint')];
const form = find('#form');

const [options, models, files, old] = await Promise.all([
  get('/v1/garden/options'), get('/v1/models'), all('/v1/files?purpose=fine-tune'), rerun ? get(`/v1/fine_tuning/jobs/${encodeURIComponent(rerun)}`) : null,
]).catch(error => { fill(form, note('bad', error.message)); throw error; });

const ready = models.data.filter(model => model.garden.kind !== 'checkpoint');
const fields = optionFields(options.data, changed);
const choose = (id, name, entries, none, help) => ({
  input: h('select', {id, name: id, input: changed, required: none === undefined}, none === undefined ? null : h('option', {value: ''}, none), ...entries.map(([value, shown]) => h('option', {value}, shown))),
  id, name, help,
});
const modelField = choose('model', 'Model', ready.map(model => [model.id, model.id]), undefined, 'What the training starts from: a base model, or one that was tuned here.');
const fileEntries = files.map(file => [file.id, `${file.filename} (${bytes(file.bytes)})`]);
const rowsField = choose('training_file', 'Rows to train on', fileEntries, undefined, 'An uploaded dataset.');
const evalField = choose('validation_file', 'Rows to evaluate on', fileEntries, 'none, or the eval split below', 'A dataset of its own, never trained on.');
const suffixField = {id: 'suffix', name: 'Name', help: 'A word in the tuned model’s name: letters, digits, - _ and dots.', input: h('input', {id: 'suffix', name: 'suffix', maxlength: 64, autocomplete: 'off', placeholder: 'job'})};
const priorityField = {id: 'priority', name: 'Priority', help: 'Higher goes first in the queue.', input: h('input', {id: 'priority', name: 'priority', type: 'number', min: -1000, max: 1000, placeholder: '0'})};
const restartsField = {id: 'max_restarts', name: 'Restarts', help: 'How often it may go on from its checkpoint after it was killed.', input: h('input', {id: 'max_restarts', name: 'max_restarts', type: 'number', min: 0, max: 100, placeholder: '0'})};
const own = [modelField, rowsField, evalField, suffixField, priorityField, restartsField];
const wrong = h('div', {});

function layout() {
  if (!ready.length) return fill(form, empty('No model yet', 'The server finds model folders below the folders that it was started with (--models-dir).'));
  if (!files.length) return fill(form, empty('No dataset yet', 'Upload rows first; then come back.', h('a', {class: 'button main', href: '/datasets'}, 'Upload a dataset')));
  const field = ({id, name, input, help}) => h('div', {class: 'field'}, h('label', {for: id}, name), input, h('p', {class: 'help'}, help));
  fill(form, h('fieldset', {class: 'fields'}, h('legend', {class: 'unseen'}, 'Model and rows'), ...own.map(field)), h('p', {}), fields.element, wrong,
    h('div', {class: 'actions'}, h('button', {type: 'submit', class: 'button main'}, checkpoint ? 'Go on from here' : rerun ? 'Run again' : 'Start'), button('Check the dataset', check)));
  start();
}

/** The settings of the job that is run again. */
function start() {
  if (query.get('model')) modelField.input.value = query.get('model');
  if (query.get('file')) rowsField.input.value = query.get('file');
  if (old) {
    find('#heading').textContent = checkpoint ? `On from step ${query.get('step')}` : 'Run again';
    find('#lead').textContent = `with the settings of ${old.garden.name ?? old.id}; change what should differ.`;
    modelField.input.value = old.model;
    rowsField.input.value = old.training_file;
    evalField.input.value = old.validation_file ?? '';
    suffixField.input.value = old.garden.name ?? '';
    fields.write(old.garden.settings);
  }
  changed();
}

const inputs = () => Object.fromEntries(own.map(({id, input}) => [id, input.type === 'number' ? (input.value === '' ? '' : Number(input.value)) : input.value]).filter(([, value]) => value !== ''));
const body = () => ({...inputs(), ...fields.read()});

const plan = settled(450, async signal => {
  const place = find('#plan');
  place.setAttribute('aria-busy', 'true');
  try {
    const {priority, max_restarts: restarts, suffix, ...asked} = body();
    fill(place, planView(await post('/v1/garden/plan', asked, {signal}), settings => { fields.write(settings); changed(); }));
    fields.forgive();
  } catch (error) {
    if (error.name === 'AbortError') return;
    fill(place, note(error.status === 400 ? 'warn' : 'bad', error.message));
  }
});

function changed() { if (modelField.input.value && rowsField.input.value) plan(); }

function check() {
  find('#check-sheet').hidden = false;
  const length = fields.read().max_seq_length;
  showSurvey(find('#check'), rowsField.input.value, modelField.input.value, length ? {max_seq_length: length} : {});
  find('#check-sheet').scrollIntoView({block: 'start'});
}

form.addEventListener('submit', async event => {
  event.preventDefault();
  fields.forgive();
  fill(wrong);
  const submit = event.submitter ?? form.querySelector('[type=submit]');
  submit.disabled = true;
  try {
    const job = rerun ? await post(`/v1/fine_tuning/jobs/${encodeURIComponent(rerun)}/rerun`, changes()) : await post('/v1/fine_tuning/jobs', body());
    location.href = `/jobs/${encodeURIComponent(job.id)}`;
  } catch (error) {
    submit.disabled = false;
    const field = own.find(({id}) => id === error.param);
    if (field) field.input.focus();
    if (!fields.blame(error.param, error.message)) fill(wrong, note('bad', h('pre', {}, error.message)));
    else say(error.message, 'bad');
  }
});

/** A rerun names what differs; null takes a setting back to its default. */
function changes() {
  const settings = fields.read();
  const dropped = Object.keys(old.garden.settings).filter(key => !(key in settings)).map(key => [key, null]);
  return {...inputs(), ...settings, ...Object.fromEntries(dropped), ...(checkpoint ? {from_checkpoint: checkpoint} : {})};
}

layout();
