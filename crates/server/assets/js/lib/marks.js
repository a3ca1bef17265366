// What a chart has besides its curves: spans behind them, levels across, epochs down.
import {tone} from './tone.js';

const MEANINGS = {plateau: ['sun', [5, 4]], plan: ['moss', [8, 4]], limit: ['clay', []]};

function write(u, words, x, y, ink, align) {
  const {ctx} = u;
  const px = uPlot.pxRatio;
  ctx.font = `${12 * px}px system-ui, sans-serif`;
  ctx.textAlign = align;
  ctx.lineJoin = 'round';
  ctx.lineWidth = 4 * px;
  ctx.strokeStyle = tone('sheet');
  ctx.strokeText(words, x, y);
  ctx.fillStyle = tone(ink);
  ctx.fillText(words, x, y);
}

function stroke(u, from, to, ink, dash) {
  const {ctx} = u;
  ctx.beginPath();
  ctx.strokeStyle = tone(ink);
  ctx.lineWidth = 1.4 * uPlot.pxRatio;
  ctx.setLineDash(dash.map(length => length * uPlot.pxRatio));
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
  ctx.setLineDash([]);
}

/** Spans of the axis: phases of a run, or growth before a plateau. Every second one is shaded. */
function spansOf(model) {
  const {knee} = model;
  return knee ? [{name: knee.before, from: -Infinity, to: knee.at, shaded: true}, {name: knee.after, from: knee.at, to: Infinity}] : model.spans;
}

/** Shades behind the curves. */
export function drawUnder(u, model) {
  const {left, top, width, height} = u.bbox;
  for (const [at, {from, to, shaded}] of spansOf(model).entries()) {
    if (!(shaded ?? at % 2 === 0)) continue;
    const [x0, x1] = ends(u, from, to);
    u.ctx.fillStyle = tone('shade');
    if (x1 > x0) u.ctx.fillRect(x0, top, x1 - x0, height);
  }
  return left + width;
}

function ends(u, from, to) {
  const {left, width} = u.bbox;
  const place = at => at === -Infinity ? left : at === Infinity || at === null || at === undefined ? left + width : u.valToPos(at, 'x', true);
  return [place(from), place(to)].map(x => Math.min(Math.max(x, left), left + width));
}

/** Levels, epochs and names over the curves. */
export function drawOver(u, model) {
  const {ctx, bbox: {left, top, width, height}} = u;
  const px = uPlot.pxRatio;
  ctx.save();
  if (model.epochs) epochs(u, model.epochs);
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.font = `${12 * px}px system-ui, sans-serif`;
  for (const {name, from, to} of spansOf(model)) {
    const [x0, x1] = ends(u, from, to);
    if (ctx.measureText(name).width + 10 * px < x1 - x0) write(u, name, (x0 + x1) / 2, top + height - 8 * px, 'soft', 'center');
  }
  for (const {value, text, meaning} of model.levels) {
    const y = u.valToPos(value, 'y', true);
    if (y < top || y > top + height) continue;
    const [ink, dash] = MEANINGS[meaning] ?? MEANINGS.plan;
    stroke(u, [left, y], [left + width, y], ink, dash);
    write(u, text, left + 8 * px, y - 6 * px > top + 10 * px ? y - 6 * px : y + 15 * px, ink, 'left');
  }
  ctx.restore();
}

/** Lines where epochs end, as many as have room for their names. */
function epochs(u, {first_end: first, steps}) {
  const {left, top, width, height} = u.bbox;
  const px = uPlot.pxRatio;
  if (!(steps > 0)) return;
  const place = step => u.valToPos(step, 'x', true);
  const apart = Math.abs(place(first + steps) - place(first));
  const stride = Math.max(1, Math.ceil(86 * px / Math.max(apart, 1e-6)));
  for (let epoch = stride; ; epoch += stride) {
    const x = place(first + (epoch - 1) * steps);
    if (!(x < left + width - 2)) return;
    if (x < left) continue;
    stroke(u, [x, top], [x, top + height], 'edge', [2, 4]);
    write(u, `epoch ${epoch} ends`, Math.min(Math.max(x, left + 34 * px), left + width - 30 * px), top - 7 * px, 'soft', 'center');
  }
}
