// The form of a new job, with the plan of its memory beside it. With ?rerun=ID it starts from that job's settings.
import {all, get, post} from '../lib/api.js';
import {patiently, settled} from '../lib/live.js';
import {button, empty, fill, find, h, note} from '../lib/dom.js';
import {count, counted, rowWords} from '../lib/words.js';
import {Draft} from '../parts/draft.js';
import {optionFields} from '../parts/form.js';
import {JobFields} from '../parts/job_form.js';
import {planView} from '../parts/plan.js';
import {showSurvey, skipping} from '../parts/survey.js';

const query = new URLSearchParams(location.search);
const [rerun, checkpoint, step] = [query.get('rerun'), query.get('checkpoint'), Number(query.get('step'))];
const form = find('#form');
const draft = new Draft('new-job');

const [{data: options}, {data: models}, files, old] = await patiently(() => Promise.all([
  get('/v1/garden/options'), get('/v1/models'), all('/v1/files?purpose=fine-tune'), rerun ? get(`/v1/fine_tuning/jobs/${encodeURIComponent(rerun)}`) : null,
]), error => fill(form, note('bad', `${error.message} This page tries again every three seconds.`))).catch(error => { fill(form, note('bad', error.message)); throw error; });

const own = new JobFields({models, files, old}, changed);
const fields = optionFields(options, changed);
const wrong = h('div', {});
const submit = h('button', {type: 'submit', class: 'button main'}, checkpoint ? 'Go on from here' : rerun ? 'Run again' : 'Start');

function layout() {
  if (!own.rows) return fill(form, empty('No dataset yet', 'Upload rows first; then come back.', h('a', {class: 'button main', href: '/datasets'}, 'Upload a dataset')));
  const kept = draft.read();
  const afresh = () => { draft.drop(); location.reload(); };
  fill(form, kept ? note('', h('p', {class: 'small'}, 'What you entered here before is still there.'), button('Begin afresh', afresh, 'small')) : null,
    own.element, h('p', {}), fields.element, wrong, h('div', {class: 'actions'}, submit, button('Check the dataset', check)));
  start(kept);
}

/** The settings of the job that is run again, or what was entered before. */
function start(kept) {
  if (old) {
    find('#heading').textContent = checkpoint ? `On from step ${count(step)}` : 'Run again';
    find('#lead').textContent = `with the settings of ${old.garden.name ?? old.id}; change what should differ.`;
    own.write({model: old.model, training_file: old.training_file, validation_file: old.validation_file, suffix: old.garden.name, max_restarts: old.garden.max_restarts || null});
    fields.write(old.garden.settings);
  }
  if (query.get('model')) own.write({model: query.get('model')});
  if (query.get('file')) own.write({training_file: query.get('file')});
  fields.write(Object.fromEntries(options.map(({key}) => [key, query.get(key)]).filter(([, value]) => value !== null)));
  if (kept) {
    own.write(kept.own);
    fields.write({...Object.fromEntries(options.map(({key}) => [key, null])), ...kept.settings});
  }
  replan();
}

function changed() {
  draft.keep({own: own.read(), settings: fields.read()});
  replan();
}

function replan() {
  own.check();
  if (checkpoint) tellWhatIsLeft();
  if (own.model && own.rows) plan();
}

const plan = settled(450, async signal => {
  const place = find('#plan');
  place.setAttribute('aria-busy', 'true');
  try {
    const {priority, max_restarts: restarts, suffix, ...asked} = own.read();
    const made = await post('/v1/garden/plan', {...asked, ...fields.read()}, {signal});
    forgive();
    fill(place, planView(made, use));
  } catch (error) {
    if (error.name === 'AbortError') return;
    const field = blame(error);
    fill(place, note(error.status === 400 ? 'warn' : 'bad', field ? h('p', {}, `No plan yet: “${field.name}” is not right.`) : h('pre', {}, rowWords(error.message)), leaveOut(error)));
  }
});

function use(settings) { fields.write(settings); changed(); }

/** Rows that are bad need not hold a job up. */
function leaveOut(error) {
  const bad = /^(\d+) of \d+ rows (?:is|are) bad/.exec(error.message)?.[1];
  return bad ? button(`Leave the ${counted(Number(bad), 'bad row')} out`, () => use(skipping(bad)), 'small') : null;
}

/** Shows what is wrong at its field, which it gives; nothing where no field is to blame. */
const blame = ({param, message}) => own.blame(param, rowWords(message)) || fields.blame(param, rowWords(message));

function forgive() {
  own.forgive();
  fields.forgive();
  own.check();
}

/** Whether a run from this checkpoint would have no step to do: it stands at the end of what is asked for. */
function isThrough() {
  const ends = old.garden.progress.max_steps;
  const settings = fields.read();
  const {n_epochs: epochs} = old.hyperparameters;
  const standard = key => key === 'epochs' && Number(epochs) ? epochs : options.find(option => option.key === key).default;
  const before = key => old.garden.settings[key] ?? standard(key);
  const now = key => settings[key] ?? standard(key);
  const asMany = ['batch_size', 'gradient_accumulation_steps'].every(key => Number(now(key)) === Number(before(key))) && own.rows === old.training_file;
  if (!ends || step < ends || !asMany) return false;
  return settings.max_steps ? settings.max_steps <= step : Number(now('epochs')) <= Number(old.garden.settings.max_steps ? 0 : before('epochs'));
}

function tellWhatIsLeft() {
  submit.disabled = isThrough();
  fill(wrong, submit.disabled ? note('warn', `The job was through at step ${count(step)}: there is nothing left to do. Raise the epochs, or give more steps than ${count(step)} in “Max steps”.`) : null);
}

function check() {
  find('#check-sheet').hidden = false;
  const length = fields.read().max_seq_length;
  showSurvey(find('#check'), own.rows, own.model, {settings: length ? {max_seq_length: length} : {}, onSkip: settings => { use(settings); form.scrollIntoView(); }});
  find('#check-sheet').scrollIntoView({block: 'start'});
}

/** The reader is led to the first field that is wrong; false if none is. */
function leadToWrong() {
  const field = own.firstWrong() ?? fields.firstWrong();
  field?.input.focus();
  return Boolean(field);
}

form.addEventListener('submit', async event => {
  event.preventDefault();
  forgive();
  fill(wrong);
  if (leadToWrong()) return;
  submit.disabled = true;
  try {
    const job = rerun ? await post(`/v1/fine_tuning/jobs/${encodeURIComponent(rerun)}/rerun`, changes()) : await post('/v1/fine_tuning/jobs', {...own.read(), ...fields.read()});
    draft.drop();
    location.href = `/jobs/${encodeURIComponent(job.id)}`;
  } catch (error) {
    submit.disabled = false;
    if (blame(error)) leadToWrong();
    else fill(wrong, note('bad', h('pre', {}, rowWords(error.message)), leaveOut(error)));
  }
});

/** A rerun names what differs; null takes a setting back to its default. */
function changes() {
  const settings = fields.read();
  const dropped = Object.keys(old.garden.settings).filter(key => !(key in settings)).map(key => [key, null]);
  const without = {validation_file: null, suffix: null, max_restarts: 0};
  return {...without, ...own.read(), ...settings, ...Object.fromEntries(dropped), ...(checkpoint ? {from_checkpoint: checkpoint} : {})};
}

layout();
