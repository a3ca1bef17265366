// The machine: what it has, what would fit, what takes disk, what was burnt.
import {get} from '../lib/api.js';
import {facts, fill, find, h, note, table} from '../lib/dom.js';
import {patiently, repeat} from '../lib/live.js';
import {bytes, counted, date, duration, energy, mass, number} from '../lib/words.js';
import {jobPath} from '../parts/state.js';
import {loadedView} from '../parts/loaded.js';
import {storageView} from '../parts/storage.js';

let fit;

/** A bar of what is used; the rest is free. */
function usage(name, {total_bytes: total, free_bytes: free}) {
  if (!total) return null;
  const used = total - (free ?? 0);
  return h('div', {}, h('dl', {class: 'pairs'}, h('dt', {}, name), h('dd', {}, `${bytes(used)} of ${bytes(total)} used`)),
    h('div', {class: 'fillbar', role: 'img', 'aria-label': `${name}: ${bytes(used)} of ${bytes(total)} used`}, h('i', {'--share': `${100 * used / total}%`})));
}

async function now() {
  try {
    const machine = await get('/v1/garden/machine');
    fill(find('#now'), h('div', {class: 'stack'}, h('div', {class: 'two'}, usage('Memory', machine.memory), usage('Disk', machine.disk), usage('Budget of jobs and models', machine.budget), ...machine.gpus.map(gpu => usage(gpu.name, gpu.memory))),
      facts([['cores', machine.cores], ['load', machine.load === null ? null : number(machine.load)], ['the server itself', machine.server_bytes ? bytes(machine.server_bytes) : null], ['runs for', duration(machine.uptime_seconds)], ['jobs at once', machine.max_jobs]])));
    find('#now-when').textContent = 'live';
    fits(machine.budget.total_bytes, machine.budget.free_bytes);
  } catch (error) {
    find('#now-when').textContent = '';
    fill(find('#now'), note('bad', error.message));
  }
}

async function fits(total, free) {
  try { fit ??= await get('/v1/garden/fit'); } catch (error) { return fill(find('#fit'), note('bad', error.message)); }
  find('#fit-note').textContent = `against the budget of ${bytes(total)}`;
  const shapes = [...new Set(fit.data.map(row => row.shape))];
  const cell = (shape, bits) => {
    const {total_bytes: need} = fit.data.find(row => row.shape === shape && row.bits === bits);
    const [tone, words] = need <= free ? ['good', 'fits now'] : need <= total ? ['held', 'fits alone'] : ['bad', 'does not fit'];
    return h('span', {class: 'actions'}, bytes(need), h('span', {class: 'chip', 'data-tone': tone}, words));
  };
  fill(find('#fit'), h('p', {class: 'small soft'}, `The least a training takes: ${fit.run}.`), table({caption: 'Memory by the size of the model', cards: true, head: [{name: 'Model of this size', title: true}, 'weights in 4 bits', 'weights in 16 bits'], rows: shapes.map(shape => [shape, cell(shape, 4), cell(shape, 16)])}));
}

async function burnt(factor = '') {
  const query = factor ? `?grams_per_kwh=${encodeURIComponent(factor)}` : '';
  const {data, joules, carbon_grams: carbon, grams_per_kwh: grams, factor_source: source, unknown} = await get(`/v1/garden/energy${query}`);
  const input = h('input', {id: 'factor', type: 'number', min: 0, max: 5000, value: grams, change: () => shown('#energy', () => burnt(input.value))});
  const form = h('div', {class: 'field'}, h('label', {for: 'factor'}, 'Grams of CO₂ for a kilowatt-hour'), input, h('p', {class: 'help'}, source));
  find('#energy-note').textContent = data.length ? `${energy(joules)}, about ${mass(carbon)} of CO₂` : '';
  const list = data.length ? energyTable(data) : note('', 'No job’s energy is known. The processor’s counters (RAPL) must be readable to the server: /sys/class/powercap/*/energy_uj.');
  fill(find('#energy'), h('div', {class: 'stack'}, list, unknown && data.length ? h('p', {class: 'small soft'}, `Of ${counted(unknown, 'more job')} it is not known.`) : null,
    h('div', {class: 'two'}, form, h('p', {}, h('a', {class: 'button', href: `/v1/garden/energy.csv${query}`}, 'Download as CSV')))));
}

const energyTable = data => table({caption: 'Jobs whose energy is known', cards: true, head: [{name: 'Job', title: true}, 'Model', {name: 'Energy', number: true}, {name: 'CO₂', number: true}, {name: 'Created', number: true}],
  rows: data.map(row => [h('a', {href: jobPath(row.id)}, row.name || row.id), row.model, energy(row.joules), mass(row.carbon_grams), date(row.created_at)])});

/** Shows a part of the page, or why it cannot be shown; a server that is away is asked again. */
function shown(place, work) {
  const told = error => fill(find(place), note('bad', error.message));
  return patiently(work, told).catch(told);
}

repeat(3, now);
repeat(3, () => loadedView(find('#loaded-sheet')));
shown('#storage', () => storageView(find('#storage')));
shown('#energy', burnt);
