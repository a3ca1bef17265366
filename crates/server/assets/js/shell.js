// What every page has: the switch between light and dark, and the keyboard.
import {h} from './lib/dom.js';
import {modal} from './lib/dialog.js';

const root = document.documentElement;
const isDark = () => (root.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';

document.getElementById('theme').addEventListener('click', () => {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  try { localStorage.setItem('theme', root.dataset.theme); } catch { /* It holds for this page. */ }
  dispatchEvent(new Event('themechange'));
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('themechange')));

// A file that is dropped beside its place would replace the page.
for (const name of ['dragover', 'drop']) {
  addEventListener(name, event => {
    if (event.defaultPrevented || ![...event.dataTransfer?.types ?? []].includes('Files')) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = 'none';
  });
}

// On a phone the page's own entry may lie beyond the edge.
const current = document.querySelector('.nav [aria-current]');
if (current) current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.offsetLeft - 40;

/** Two keys go to a page, as in other tools: g, then its letter. */
const PLACES = {j: ['/', 'Jobs'], d: ['/datasets', 'Datasets'], m: ['/models', 'Models'], c: ['/compare', 'Compare'], y: ['/memory', 'Memory'], k: ['/machine', 'Machine']};
let going = 0;

addEventListener('keydown', event => {
  const typing = event.target.closest?.('input, textarea, select, [contenteditable], dialog, .plot');
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const afterG = Date.now() - going < 1500;
  going = 0;
  if (afterG && PLACES[event.key]) location.href = PLACES[event.key][0];
  else if (event.key === 'g') going = Date.now();
  else if (event.key === 'n') location.href = '/jobs/new';
  else if (event.key === 't') document.getElementById('theme').click();
  else if (event.key === '?') help();
  else return;
  event.preventDefault();
});

function help() {
  const row = (keys, what) => h('div', {}, h('dt', {}, ...keys.map(key => h('kbd', {}, key))), h('dd', {}, what));
  const places = Object.entries(PLACES).map(([key, [, name]]) => row(['g', key], name));
  const rows = [...places, row(['n'], 'New job'), row(['t'], 'Light or dark'), row(['?'], 'This list'),
    row(['←', '→'], 'Along a chart that has the focus'), row(['+', '−', 'Esc'], 'Zoom of a chart')];
  modal('Keyboard', h('dl', {class: 'pairs'}, ...rows.flatMap(one => [...one.children])), [{name: 'Close', value: 'close', main: true}]);
}
