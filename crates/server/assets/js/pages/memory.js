// Memory of anything: the verdict of a file, and of a process as it runs.
import {call, get} from '../lib/api.js';
import {button, fill, find, h, note, table} from '../lib/dom.js';
import {speak} from '../lib/dialog.js';
import {Chart} from '../lib/chart.js';
import {dropZone} from '../lib/drop.js';
import {listen, turns} from '../lib/live.js';
import {bytes, sentence} from '../lib/words.js';
import {chartModel, judgementView} from '../parts/judgement.js';

const LARGEST = 64 * 1024 * 1024;
const MOST_POINTS = 20000;
const begin = turns();
let end = () => {}, last;

const input = (id, attributes) => h('input', {id, ...attributes});
const field = (name, one, help) => h('div', {class: 'field'}, h('label', {for: one.id}, name), one, h('p', {class: 'help'}, help));
/** What is told later is judged at once: with the rows of an epoch a fill is told from a warm-up. */
const again = () => { if (last) judge(last); };
const rows = input('dataset-size', {type: 'number', min: 1, change: again}), each = input('samples-per-step', {type: 'number', min: 1, change: again}), limit = input('limit', {type: 'text', placeholder: '32GB', change: again});

/** The place of an answer, and whether it is still this answer's. */
function answer(name) {
  find('#answer').hidden = false;
  find('#answer-name').textContent = name;
  return {place: find('#answer-body'), current: begin()};
}

/** What the reader knows about the run, as the server takes it. */
const known = () => Object.fromEntries([['dataset_size', rows.value], ['samples_per_step', each.value], ['limit', limit.value]].filter(([, value]) => value));

async function judge(file) {
  end();
  last = file;
  const {place, current} = answer(file.name);
  if (file.size > LARGEST) return fill(place, note('bad', 'This file has more than 64 MiB. The command `model-garden memory analyze` judges files of any size.'));
  fill(place, h('p', {role: 'status', class: 'soft'}, 'Reading …'));
  try {
    const found = await call('POST', `/v1/garden/analyze?${new URLSearchParams({name: file.name, ...known()})}`, file);
    if (!current()) return;
    fill(place, judgementView(found, found.limit));
    const steps = found.chart.axis === 'steps';
    new Chart(place, {title: 'Memory', summary: `${found.samples} readings`, unit: 'bytes', axis: steps ? 'step' : 'time', fromZero: true, wide: true}).set(chartModel(found.chart));
    speak(`The verdict is ${found.verdict}`);
  } catch (error) {
    if (!current()) return;
    fill(place, note('bad', error.message));
  }
  find('#answer').scrollIntoView({block: 'nearest'});
}

function watch(pid, name) {
  end();
  last = null;
  const {place} = answer(name);
  const words = h('div', {}, h('p', {class: 'soft'}, 'The first reading comes in a second.'));
  const stop = button('Stop watching', () => { end(); stop.remove(); }, 'small');
  fill(place, h('div', {class: 'actions'}, stop));
  const chart = new Chart(place, {title: `Memory of process ${pid}`, summary: 'memory of its own, and what is backed by files; the whole process tree', unit: 'bytes', axis: 'time', fromZero: true, wide: true, blank: 'No reading yet.'});
  // Below the chart: the words change with every reading, and nothing should move under a hand.
  place.append(words);
  const points = {x: [], owned: [], file: []};
  let verdict = '';
  end = listen(`/v1/garden/watch?${new URLSearchParams({pid, ...known()})}`, {
    reading({snapshot: {sample}, assessment}) {
      if (points.x.length >= MOST_POINTS) for (const list of Object.values(points)) list.splice(0, 1000);
      points.x.push(sample.t);
      points.owned.push(sample.anon + sample.shmem + sample.swap);
      points.file.push(sample.file);
      chart.set({lines: [{name: 'memory of its own', x: points.x, y: points.owned}, {name: 'backed by files', quiet: true, x: points.x, y: points.file}]});
      fill(words, judgementView(assessment));
      if (assessment.verdict !== verdict) speak(`The verdict is ${verdict = assessment.verdict}`);
    },
    note({event, note: text, end: how}) {
      if (event === 'summary') { end(); stop.remove(); words.append(note_(how ?? 'The process has ended.')); }
      else if (text) chart.summary(text);
    },
  }, (state, why) => {
    if (state === 'refused') { end(); stop.remove(); fill(words, note('bad', sentence(why))); }
    if (state === 'lost' && !points.x.length) fill(words, h('p', {class: 'soft'}, 'The server does not answer; trying again.'));
  });
  find('#answer').scrollIntoView({block: 'nearest'});
}
const note_ = words => note('', words);

/** A process by the name of its program; the whole command follows, as far as there is room. */
function commandView({command, training}) {
  const [program, ...rest] = command.split(' ');
  const words = rest.join(' ');
  return h('div', {title: command}, h('strong', {}, program.split('/').at(-1) || program), ' ', training ? h('span', {class: 'chip', 'data-tone': 'grows'}, 'trains') : null,
    h('div', {class: 'small soft'}, words.length > 60 ? `${words.slice(0, 60)}…` : words));
}

async function processes() {
  const pid = input('pid', {type: 'number', min: 1, required: true});
  const form = h('form', {class: 'row-nav', submit: event => { event.preventDefault(); watch(pid.value, `process ${pid.value}`); }}, h('label', {for: 'pid'}, 'PID'), pid, h('button', {type: 'submit', class: 'button main'}, 'Watch'));
  const list = h('div', {});
  fill(find('#watch'), form, h('p', {}), list);
  try {
    const {data} = await get('/v1/garden/processes');
    fill(list, table({caption: 'The largest processes of the server’s user; trainings first', cards: true, head: ['PID', {name: 'Command', title: true}, {name: 'Memory', number: true}, {name: 'Do', unseen: true}],
      rows: data.slice(0, 8).map(one => [one.pid, commandView(one), bytes(one.resident_bytes),
        button('Watch', () => watch(one.pid, one.command), 'small', {'aria-label': `Watch process ${one.pid}`})])}));
  } catch (error) { fill(list, note('bad', error.message)); }
}

fill(find('#drop'), dropZone({words: 'Drop a trace or a log here', id: 'trace'}, ([file]) => judge(file)), h('p', {}),
  h('div', {class: 'fields'}, field('Rows in the dataset', rows, 'With it a fill is told from a leak.'), field('Rows a step', each, 'Batch size times accumulation.'), field('Limit', limit, 'When would it be reached?')), h('p', {}),
  h('p', {class: 'small soft'}, 'Traces of Model Garden, CSV, psrecord, mprof and training logs are read; nothing leaves this server.'));
processes();
