// Models that are in memory to answer, and a button to unload each.
import {del, get} from '../lib/api.js';
import {button, fill, find, freshen, h, table} from '../lib/dom.js';
import {tried} from '../lib/dialog.js';
import {bytes, counted, duration} from '../lib/words.js';

/** What was shown last: the list is drawn only when it changes, so that a button is not replaced while it is pressed. */
let shown, isTold = true;

/** Fills the sheet; a server that does not tell, or that has none loaded, shows none. */
export async function loadedView(sheet) {
  if (!isTold) return;
  const models = await get('/v1/garden/chat').then(({data}) => data, error => { isTold = error.status !== 404; return []; });
  sheet.hidden = !models.length;
  const now = JSON.stringify(models.map(({model, bytes: size, open}) => [model, size, open]));
  if (now !== shown) draw(models, sheet);
  shown = now;
  models.forEach((one, at) => freshen(find('#loaded').querySelectorAll('.idle')[at], idleWords(one)));
}

const idleWords = ({open, idle_seconds: idle}) => open ? `${counted(open, 'question')} now` : idle === null || idle === undefined ? '' : `for ${duration(idle)}`;

function draw(models, sheet) {
  const unload = ({model}) => tried(() => del(`/v1/garden/chat/${encodeURIComponent(model)}`), 'Unloaded.').then(() => loadedView(sheet));
  const row = one => [one.model, bytes(one.bytes), h('span', {class: 'idle'}),
    button('Unload', () => unload(one), 'small', {disabled: one.open > 0, 'aria-label': `Unload ${one.model}`})];
  fill(find('#loaded'), table({caption: 'Memory that questions to models take', cards: true, head: [{name: 'Model', title: true}, {name: 'Memory', number: true}, {name: 'Idle', number: true}, {name: 'Do', unseen: true}], rows: models.map(row)}));
}
