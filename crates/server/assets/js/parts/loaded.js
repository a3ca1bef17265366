// Models that are in memory to answer, and a button to unload each.
import {del, get} from '../lib/api.js';
import {button, fill, find, freshen, h, table} from '../lib/dom.js';
import {tried} from '../lib/dialog.js';
import {bytes, counted, duration} from '../lib/words.js';

/** What was shown last: the list is drawn only when it changes, so that a button is not replaced while it is pressed. */
let shown;

/** Fills the sheet; without a loaded model there is none. */
export async function loadedView(sheet) {
  // A server that is away tells of nothing; the page says so elsewhere.
  const {data: models} = await get('/v1/garden/chat').catch(() => ({data: []}));
  sheet.hidden = !models.length;
  const now = JSON.stringify(models.map(({model, memory_bytes: size, open_questions: open, ending}) => [model, size, open, ending]));
  if (now !== shown) draw(models, sheet);
  shown = now;
  models.forEach((one, at) => freshen(find('#loaded').querySelectorAll('.idle')[at], idleWords(one)));
}

const idleWords = ({open_questions: open, idle_seconds: idle, ending}) => open ? `${counted(open, 'question')} now` : ending ? 'ending' : `for ${duration(idle)}`;

function draw(models, sheet) {
  const unload = ({model}) => tried(() => del(`/v1/garden/chat/${encodeURIComponent(model)}`), 'Unloaded.').then(() => loadedView(sheet));
  const row = one => [one.model, bytes(one.memory_bytes), h('span', {class: 'idle'}),
    button('Unload', () => unload(one), 'small', {disabled: one.open_questions > 0 || one.ending, 'aria-label': `Unload ${one.model}`})];
  fill(find('#loaded'), table({caption: 'Memory that questions to models take', cards: true, head: [{name: 'Model', title: true}, {name: 'Memory', number: true}, {name: 'Idle', number: true}, {name: 'Do', unseen: true}], rows: models.map(row)}));
}
