// A memory plan: its total against the budget, part by part, and what would take less.
import {button, h, note} from '../lib/dom.js';
import {bytes, percent} from '../lib/words.js';
import {label} from './field.js';

/** The bytes at which a job of this plan is stopped: as much above its plan as small processes vary (`job/planner.rs`). */

/** `onUse` is given settings that take less; without it they are only told. */
export function planView(plan, onUse) {
  const {fits, total_bytes: total, budget_bytes: budget, parts, least = []} = plan;
  const shown = parts.filter(part => part.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  const bar = h('div', {class: `fillbar ${fits ? '' : 'over'}`, role: 'img', 'aria-label': `${bytes(total)} of ${bytes(budget)}`},
    ...shown.map(part => h('i', {'--share': `${100 * part.bytes / total}%`})));
  const list = h('dl', {class: 'pairs'}, ...shown.flatMap((part, at) =>
    [h('dt', {}, h('span', {class: 'swatch', '--swatch': `var(--line${at % 6})`}), part.name), h('dd', {}, bytes(part.bytes))]));
  // An engine in Python makes no plan (`job/planner.rs`).
  const reserved = parts.some(part => part.name === 'reserved');
  const meaning = reserved ? 'reserved: this engine makes no plan, so the job may take this much and is stopped before it takes more' :
    `at the peak; the budget is ${bytes(budget)} (${percent(Math.round(100 * total / budget) / 100)})`;
  const ways = least.map(way => lessView(way, onUse));
  return h('div', {class: 'stack'},
    h('div', {}, h('div', {class: 'plan-total'}, bytes(total)), h('p', {class: 'soft small'}, meaning)),
    bar, fits ? null : note('bad', 'This does not fit: the job would be refused.'),
    plan.recomputed_blocks ? h('p', {class: 'small soft'}, `${plan.recomputed_blocks} of ${plan.blocks} blocks are computed again in the backward pass to fit.`) : null,
    fits ? null : ways, partsView(list, fits ? ways : []));
}

/** What stands beside the form is open; above it, on a phone, it would push the form away. */
const partsView = (...content) => h('details', {open: !matchMedia('(max-width: 62rem)').matches}, h('summary', {}, 'Part by part'), h('div', {class: 'stack'}, ...content));

function lessView({total_bytes: total, settings}, onUse) {
  const words = Object.entries(settings).map(([key, value]) => `${label(key).toLowerCase()} ${value}`).join(', ');
  return h('div', {class: 'note'}, h('p', {class: 'small'}, `${bytes(total)} would do with ${words}.`),
    onUse ? button('Use these', () => onUse(settings), 'small') : null);
}
