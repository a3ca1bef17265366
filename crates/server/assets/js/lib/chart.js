// A chart that may grow while it is looked at: uPlot's canvas, a legend that tells values, and the keyboard.
import {h, fill, table} from './dom.js';
import {bytes, bytesLabels, clock, number, percent} from './words.js';
import {speak} from './dialog.js';
import {drawOver, drawUnder} from './marks.js';
import {faded, tone} from './tone.js';

const UNITS = {
  bytes: {write: bytes, labels: bytesLabels},
  share: {write: percent, labels: values => values.map(percent)},
  number: {write: number, labels: values => values.map(number)},
};
/** Distances between ticks of steps: there is no half of a step. */
const STEPS = [1, 2, 5].flatMap(first => Array.from({length: 9}, (_, zeros) => first * 10 ** zeros)).sort((a, b) => a - b);
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000];
const DISTINCT = 6;
const MOST_ROWS = 9;
const known = value => value !== null && value !== undefined;

export class Chart {
  /**
   * `options`: title, summary, unit (bytes, share, number), axis (step, time), fromZero, blank (what stands there while
   * there is no point), wide (the height of a main chart).
   */
  constructor(target, options) {
    this.options = {unit: 'number', axis: 'step', fromZero: false, blank: 'No point yet.', ...options};
    this.hidden = new Set();
    this.model = {lines: [], levels: [], spans: []};
    this.build(target);
  }

  build(target) {
    const {title, summary, axis} = this.options;
    this.words = h('p', {}, summary);
    this.reset = h('button', {type: 'button', class: 'button small', hidden: true, click: () => this.whole()}, 'Whole run');
    this.legend = h('ul', {class: 'legend', 'aria-label': `Lines of ${title}`});
    this.place = h('li', {class: 'place'});
    this.plotted = h('div', {class: 'plot', tabindex: 0, role: 'application', 'aria-roledescription': 'chart',
      'aria-label': `${title}. Arrow keys move along the ${axis}, plus and minus zoom, Escape shows the whole run.`});
    this.values = h('div', {});
    const fold = h('details', {toggle: () => fold.open && this.tell()}, h('summary', {}, 'Values'), this.values);
    this.fold = fold;
    this.figure = h('figure', {class: 'chart'}, h('figcaption', {}, h('h3', {}, title), this.reset, this.words), this.legend, this.plotted, fold);
    target.append(this.figure);
    this.plotted.addEventListener('keydown', event => this.keyed(event));
    this.plotted.addEventListener('blur', () => this.plot?.setCursor({left: -10, top: -10}));
    new ResizeObserver(() => {
      const width = this.plotted.clientWidth;
      if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({width, height: this.height(width)});
    }).observe(this.plotted);
    addEventListener('themechange', () => this.draw());
    this.blank();
  }

  summary(words) { this.words.textContent = words; }

  /** Shows these lines: `{lines: [{name, x, y, quiet, low, high}], levels, spans, epochs, knee}`. Redraws at most four times a second. */
  set(model) {
    this.model = {levels: [], spans: [], ...model};
    this.waiting ??= setTimeout(() => {
      this.waiting = null;
      // What was set last decides: lines may have come since the first call.
      this.plot && this.drawn === this.names() ? this.grow() : this.draw();
    }, this.plot ? 250 : 0);
  }

  /** Which lines there are: the plot is made anew when they change. */
  names() { return this.model.lines.map(line => line.name).join('\n'); }

  height(width) { return Math.round(Math.min(this.options.wide ? 340 : 270, Math.max(208, 0.5 * width))); }

  blank() {
    this.plot?.destroy();
    this.plot = null;
    fill(this.legend);
    fill(this.plotted, h('p', {class: 'blank'}, this.options.blank));
    this.fold.hidden = true;
  }

  colour(at) { return this.model.lines[at].quiet ? 'quiet' : `line${at % DISTINCT}`; }

  data() {
    const tables = this.model.lines.map(({x, y, low, high}) => low?.length ? [x, y, low, high] : [x, y]);
    // Where all lines have the same places, join hands back the very lists that a live view goes on to fill.
    return uPlot.join(tables).map(column => column.slice());
  }

  isEmpty() { return !this.model.lines.some(line => line.x.length > 0); }

  /** New points for the same lines; a zoomed chart stays where it is. */
  grow() {
    if (this.isEmpty()) return this.blank();
    const zoomed = this.isZoomed();
    const {min, max} = this.plot.scales.x;
    this.plot.setData(this.data(), !zoomed);
    if (zoomed) this.plot.setScale('x', {min, max});
    this.readout(this.plot.cursor.idx);
    if (this.fold.open) this.tell();
  }

  draw() {
    if (this.drawn !== this.names()) this.hidden.clear();
    this.drawn = this.names();
    if (this.isEmpty()) return this.blank();
    this.plot?.destroy();
    fill(this.plotted);
    this.fold.hidden = false;
    const {axis, unit} = this.options;
    const {series, bands} = this.series();
    const rule = {stroke: () => tone('rule'), width: 1};
    const font = '12px system-ui, sans-serif';
    const look = {stroke: () => tone('soft'), grid: rule, ticks: {...rule, size: 4}, font, labelFont: font};
    const time = axis === 'time' ? {incrs: SECONDS, values: (u, values) => values.map(clock)} : {incrs: STEPS, values: (u, values) => values.map(number)};
    const width = this.plotted.clientWidth || 400;
    this.plot = new uPlot({
      width, height: this.height(width), padding: [this.model.epochs ? 22 : 12, 12, 0, 0], legend: {show: false}, series, bands,
      cursor: {drag: {x: true, y: false}, y: false, points: {size: 7}, dataIdx: (u, line, at) => nearest(u, line, at)},
      scales: {
        x: {time: false, range: (u, low, high) => low === high ? [low - 0.5, high + 0.5] : [low, high]},
        y: {range: (u, low, high) => this.range(low, high)},
      },
      axes: [
        {...look, label: axis, labelSize: 20, size: 32, space: 60, ...time},
        {...look, space: 38, size: (u, values) => 16 + 7 * Math.max(4, ...(values ?? []).map(value => value.length)), values: (u, values) => UNITS[unit].labels(values)},
      ],
      hooks: {
        drawClear: [u => drawUnder(u, this.model)],
        draw: [u => drawOver(u, this.model)],
        setCursor: [u => this.readout(u.cursor.idx)],
        setScale: [(u, key) => { if (key === 'x') this.ranged(u); }],
      },
    }, this.data(), this.plotted);
    this.lines();
    if (this.fold.open) this.tell();
  }

  series() {
    const series = [{}], bands = [];
    this.at = this.model.lines.map((line, at) => {
      const first = series.length;
      const show = !this.hidden.has(at);
      const dash = [[], [9, 5], [2, 5]][Math.min(Math.floor(at / DISTINCT), 2)];
      const filled = this.options.fromZero && at === 0 && this.model.lines.every((other, index) => index === 0 || other.quiet);
      series.push({label: line.name, show, spanGaps: true, width: line.quiet ? 1.3 : 2, dash, stroke: () => tone(this.colour(at)),
        fill: filled ? () => faded(this.colour(at), 0.08) : undefined, points: {show: line.x.length < 40 && line.x.length > 0, size: 5}});
      if (line.low?.length) {
        for (let edge = 0; edge < 2; edge++) series.push({show, spanGaps: true, width: 0, points: {show: false}});
        bands.push({series: [first + 2, first + 1], fill: () => faded(this.colour(at), 0.2)});
        return [first, first + 1, first + 2];
      }
      return [first];
    });
    return {series, bands};
  }

  range(low, high) {
    const shown = this.model.levels.filter(level => level.value < 2 * high).map(level => level.value);
    const top = Math.max(high, ...shown);
    if (this.options.fromZero) return [0, top * 1.1 || 1];
    const room = (top - low || Math.abs(top) || 1) * 0.08;
    return [low - room, top + room];
  }

  /** The axis was set: whether all is seen, and how far it reaches. */
  ranged(u) {
    this.reset.hidden = !this.isZoomed(u);
    this.figure.dataset.reach = u.scales.x.max;
  }

  isZoomed(u = this.plot) {
    const xs = u?.data?.[0] ?? [];
    return xs.length > 1 && (u.scales.x.min > xs[0] || u.scales.x.max < xs.at(-1));
  }

  whole() {
    const xs = this.plot.data[0];
    this.plot.setScale('x', {min: xs[0], max: xs.at(-1)});
  }

  /** The legend: each name shows or hides its line. */
  lines() {
    this.outputs = this.model.lines.map(() => h('output', {}));
    const entries = this.model.lines.map((line, at) => h('li', {}, h('button', {type: 'button', 'aria-pressed': String(!this.hidden.has(at)), click: event => this.toggle(at, event.currentTarget)},
      h('i', {'--ink-line': `var(--${this.colour(at)})`}), line.name, this.outputs[at])));
    fill(this.legend, ...entries, this.place);
    this.readout(null);
  }

  toggle(at, pressed) {
    const show = this.hidden.delete(at) || !this.hidden.add(at);
    pressed.setAttribute('aria-pressed', String(show));
    for (const series of this.at[at]) this.plot.setSeries(series, {show});
  }

  /** Values under the cursor, or the last ones. */
  readout(index) {
    if (!this.plot || !this.outputs) return;
    const xs = this.plot.data[0];
    const {write} = UNITS[this.options.unit];
    this.model.lines.forEach((line, at) => {
      const column = this.plot.data[this.at[at][0]] ?? [];
      const near = known(index) ? nearest(this.plot, this.at[at][0], index) : lastKnown(column);
      this.outputs[at].textContent = known(near) && known(column[near]) ? write(column[near]) : '';
    });
    this.place.textContent = known(index) && known(xs[index]) ? `at ${this.where(xs[index])}` : '';
  }

  where(x) { return this.options.axis === 'time' ? clock(x) : `step ${number(x)}`; }

  keyed(event) {
    const u = this.plot;
    if (!u) return;
    const xs = u.data[0];
    const now = u.cursor.idx ?? (event.key === 'ArrowLeft' ? xs.length : -1);
    const stride = event.shiftKey ? 10 : 1;
    const to = {ArrowRight: now + stride, ArrowLeft: now - stride, Home: 0, End: xs.length - 1}[event.key];
    const zoom = {'+': 0.5, '=': 0.5, '-': 2}[event.key];
    if (to !== undefined) {
      const at = Math.min(Math.max(to, 0), xs.length - 1);
      u.setCursor({left: u.valToPos(xs[at], 'x'), top: 0});
      speak(`${this.where(xs[at])}: ${this.model.lines.map((line, index) => `${line.name} ${this.outputs[index].textContent}`).join(', ')}`);
    } else if (zoom) {
      const middle = known(u.cursor.idx) ? xs[u.cursor.idx] : (u.scales.x.min + u.scales.x.max) / 2;
      const half = zoom * (u.scales.x.max - u.scales.x.min) / 2;
      u.setScale('x', {min: Math.max(xs[0], middle - half), max: Math.min(xs.at(-1), middle + half)});
    } else if (event.key === 'Escape') {
      this.whole();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Some values as a table, for those who do not see the curve. */
  tell() {
    if (!this.plot) return;
    const xs = this.plot.data[0];
    const rows = Math.min(MOST_ROWS, xs.length);
    const chosen = Array.from({length: rows}, (_, row) => Math.round(row * (xs.length - 1) / Math.max(rows - 1, 1)));
    const {write} = UNITS[this.options.unit];
    const value = (at, row) => {
      const column = this.plot.data[this.at[at][0]];
      const near = nearest(this.plot, this.at[at][0], row);
      return known(near) && known(column[near]) ? write(column[near]) : '–';
    };
    fill(this.values, table({
      caption: `Some of the ${xs.length} points`, head: [this.options.axis, ...this.model.lines.map(line => ({name: line.name, number: true}))],
      rows: chosen.map(row => [this.options.axis === 'time' ? clock(xs[row]) : number(xs[row]), ...this.model.lines.map((_, at) => value(at, row))]),
    }));
  }
}

const lastKnown = column => {
  for (let at = column.length - 1; at >= 0; at--) if (known(column[at])) return at;
  return null;
};

/** The nearest point of a line: lines have points at different places. */
function nearest(u, series, index) {
  const column = u.data[series];
  if (!column || known(column[index])) return index;
  for (let away = 1; away < column.length; away++) {
    for (const at of [index - away, index + away]) if (known(column[at])) return at;
  }
  return index;
}
