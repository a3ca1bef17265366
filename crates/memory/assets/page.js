'use strict';
// Draws the charts of a page: each `figure[data-chart]` gets the value of that number in the element #charts.
(() => {
  const root = document.documentElement;
  const drawn = [];
  const tone = name => getComputedStyle(root).getPropertyValue('--' + name).trim();
  const element = (name, attributes, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  // ---- Words for values: the same as in the text reports.
  const SIZES = [[1e12, 'TB', 2], [9.995e9, 'GB', 1, 1e9], [9.995e8, 'GB', 2, 1e9], [9.95e6, 'MB', 0, 1e6], [9.995e5, 'MB', 1, 1e6], [1e3, 'kB', 0]];
  const bytes = value => {
    const found = SIZES.find(([from]) => Math.abs(value) >= from);
    return found ? (value / (found[3] || found[0])).toFixed(found[2]) + ' ' + found[1] : Math.round(value) + ' B';
  };
  const number = value => {
    const size = Math.abs(value);
    if (size === 0) return '0';
    if (size < 1e-3 || size >= 1e7) return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
    return String(Number(value.toPrecision(Math.max(4, Math.ceil(Math.log10(size))))));
  };
  const two = value => String(value).padStart(2, '0');
  const clock = seconds => {
    const whole = Math.round(seconds);
    const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  };
  const written = {
    bytes, number,
    share: value => number(100 * value) + ' %',
  };
  // Labels of an axis share a unit and have no more digits than they need.
  const sizeLabels = values => {
    const [from, unit, , scale] = SIZES.find(([from]) => Math.max(...values.map(Math.abs)) >= from) || [1, 'B'];
    return values.map(value => number(value / (scale || from)) + ' ' + unit);
  };
  const axisLabels = {bytes: sizeLabels, number: values => values.map(number), share: values => values.map(written.share)};
  const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];

  // ---- Columns for uPlot.
  const isPlace = value => value !== null && value !== undefined;

  /** A line's columns over steps or seconds, with one row a place. */
  function columns(line, onTime) {
    const places = onTime ? line.seconds : line.x;
    const banded = line.low.length > 0;
    const rows = [[], [], [], []];
    places.forEach((place, index) => {
      if (!isPlace(place)) return;
      const last = rows[0].length - 1;
      const row = [place, line.y[index], banded ? line.low[index] : null, banded ? line.high[index] : null];
      if (last >= 0 && rows[0][last] >= place) {
        rows[1][last] = row[1];
        if (banded) {
          rows[2][last] = Math.min(rows[2][last], row[2]);
          rows[3][last] = Math.max(rows[3][last], row[3]);
        }
      } else {
        rows.forEach((column, at) => column.push(row[at]));
      }
    });
    return rows;
  }

  /** From a step to its second, along the first line that knows both. */
  function secondOf(chart, step) {
    const line = chart.lines.find(line => line.seconds.length > 0);
    const known = line.x.map((x, index) => [x, line.seconds[index]]).filter(([x]) => isPlace(x));
    const after = known.findIndex(([x]) => x >= step);
    if (after < 0) return Infinity;
    if (after === 0) return known[0][1];
    const [[x0, t0], [x1, t1]] = [known[after - 1], known[after]];
    return t0 + (t1 - t0) * (step - x0) / Math.max(x1 - x0, 1e-12);
  }

  function color(line) {
    return line.colour === 'quiet' ? tone('quiet') : tone('line' + line.colour.nth % 6);
  }
  function dashes(line) {
    const turn = line.colour === 'quiet' ? 0 : Math.floor(line.colour.nth / 6);
    return [[], [9, 5], [2, 5]][Math.min(turn, 2)];
  }
  const faded = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, '0');

  // ---- What is drawn over and under the curves.
  function text(u, words, x, y, ink, align) {
    const {ctx} = u;
    ctx.font = `${12 * uPlot.pxRatio}px system-ui, sans-serif`;
    ctx.textAlign = align;
    ctx.textBaseline = 'alphabetic';
    ctx.lineJoin = 'round';
    ctx.lineWidth = 4 * uPlot.pxRatio;
    ctx.strokeStyle = tone('card');
    ctx.strokeText(words, x, y);
    ctx.fillStyle = ink;
    ctx.fillText(words, x, y);
    return ctx.measureText(words).width;
  }

  function stroke(u, from, to, ink, dash, width) {
    const {ctx} = u;
    ctx.beginPath();
    ctx.strokeStyle = ink;
    ctx.lineWidth = width * uPlot.pxRatio;
    ctx.setLineDash(dash.map(length => length * uPlot.pxRatio));
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  const MEANINGS = {plateau: ['mark', [5, 4], 1.3], plan: ['calm', [8, 4], 1.5], limit: ['bad', [], 1.6]};

  function under(u, view) {
    const {left, top, width, height} = u.bbox;
    const shade = (from, to, words) => {
      const [x0, x1] = [from, to].map(at => Math.min(Math.max(u.valToPos(at, 'x', true), left), left + width));
      if (x1 - x0 < 1) return;
      u.ctx.fillStyle = tone('shade');
      u.ctx.fillRect(x0, top, x1 - x0, height);
      view.words.push([words, (x0 + x1) / 2, x1 - x0]);
    };
    view.words = [];
    const {knee} = view.chart;
    const start = u.data[0][0];
    if (knee) {
      const at = view.onTime ? secondOf(view.chart, knee.at) : knee.at;
      const from = view.onTime ? view.firstStepAt : start;
      shade(from, at, knee.before);
      const [x0, x1] = [Math.max(u.valToPos(at, 'x', true), left), left + width];
      if (x1 > x0) view.words.push([knee.after, (x0 + x1) / 2, x1 - x0]);
    }
    if (view.onTime && view.firstStepAt > start) shade(start, view.firstStepAt, 'start-up');
  }

  function over(u, view) {
    const {ctx, bbox: {left, top, width, height}} = u;
    const px = uPlot.pxRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.font = `${12 * px}px system-ui, sans-serif`;
    view.names = [];
    // Before the words, whose edges keep the lines off.
    epochs(u, view);
    for (const [words, x, room] of view.words) {
      if (ctx.measureText(words).width + 8 * px < room) text(u, words, x, top + height - 8 * px, tone('soft'), 'center');
    }
    for (const level of view.chart.levels) {
      const y = u.valToPos(level.value, 'y', true);
      const [ink, dash, thick] = MEANINGS[level.meaning];
      stroke(u, [left, y], [left + width, y], tone(ink), dash, thick);
      // Above its line, or below where a curve would run through it or the plot ends.
      const [from, to] = [left + 8 * px, left + 8 * px + ctx.measureText(level.text).width];
      const hasRoom = y - 6 * px > top + 12 * px && !isCrossed(u, view, from, to, y - 18 * px, y - 4 * px);
      const below = y + 20 * px < top + height && !isCrossed(u, view, from, to, y + 4 * px, y + 18 * px);
      text(u, level.text, from, hasRoom || !below ? y - 6 * px : y + 16 * px, tone(ink), 'left');
    }
    ctx.restore();
    let taken = -Infinity;
    for (const [words, x] of view.names) {
      const half = ctx.measureText(words).width / 2;
      if (x - half < taken) continue;
      text(u, words, x, top - 7 * px, tone('soft'), 'center');
      taken = x + half + 6 * px;
    }
  }

  /** Whether a curve runs through a part of the picture. */
  function isCrossed(u, view, left, right, top, bottom) {
    return view.series.some(([series]) => {
      if (!u.series[series].show) return false;
      const known = u.data[0].map((x, row) => [x, u.data[series][row]]).filter(([, y]) => isPlace(y));
      const points = known.map(([x, y]) => [u.valToPos(x, 'x', true), u.valToPos(y, 'y', true)]);
      return points.some(([x1, y1], index) => {
        const [x0, y0] = points[Math.max(index - 1, 0)];
        if (x1 < left || x0 > right) return false;
        const at = x => x1 === x0 ? y1 : y0 + (y1 - y0) * (Math.min(Math.max(x, x0), x1) - x0) / (x1 - x0);
        const [a, b] = [at(left), at(right)];
        return Math.max(a, b) > top && Math.min(a, b) < bottom;
      });
    });
  }

  /** Lines where epochs end, as many as have room for their names. */
  function epochs(u, view) {
    const {epochs, axis} = view.chart;
    if (!epochs || axis !== 'steps' || !(epochs.steps > 0)) return;
    const px = uPlot.pxRatio;
    const {left, top, width, height} = u.bbox;
    const steps = view.chart.lines.flatMap(line => line.x.filter(isPlace));
    const last = steps.reduce((a, b) => Math.max(a, b), 0);
    const place = end => u.valToPos(view.onTime ? secondOf(view.chart, end) : end, 'x', true);
    const every = Math.abs(place(epochs.first_end + epochs.steps) - place(epochs.first_end));
    const apart = Number.isFinite(every) && every > 0 ? every : width;
    const stride = Math.max(1, Math.ceil(92 * px / apart));
    // An epoch that ends with the run is told by the run's end.
    for (let epoch = stride, end; (end = epochs.first_end + (epoch - 1) * epochs.steps) < last * 0.99; epoch += stride) {
      const x = place(end);
      if (!(x >= left && x <= left + width)) continue;
      stroke(u, [x, top], [x, top + height], tone('soft'), [2, 4], 1);
      // Above the plot, where no curve is; the last one stays inside the picture.
      view.names.push([`epoch ${epoch} ends`, Math.min(Math.max(x, left + 34 * px), left + width - 28 * px)]);
    }
  }

  // ---- One chart.
  function build(figure, chart) {
    const onlyTime = chart.axis === 'seconds';
    const canSwitch = !onlyTime && chart.lines.every(line => line.seconds.some(second => second > 0));
    const view = {chart, onTime: onlyTime, words: [], hidden: new Set(), plot: null, firstStepAt: 0};
    const firstStep = chart.lines[0].x.findIndex(isPlace);
    view.firstStepAt = onlyTime || firstStep < 0 ? -Infinity : chart.lines[0].seconds[firstStep] ?? -Infinity;

    const legend = element('ul', {class: 'legend', 'aria-label': 'Lines of the chart'});
    const place = element('li', {class: 'place'});
    const controls = element('div', {class: 'controls'});
    const reset = element('button', {type: 'button', hidden: ''}, 'Whole run');
    reset.addEventListener('click', () => whole(view));
    controls.append(reset);
    const switches = canSwitch ? [['Steps', false], ['Time', true]].map(([name, onTime]) => {
      const button = element('button', {type: 'button', class: 'axis', 'aria-pressed': String(!onTime)}, name);
      button.addEventListener('click', () => {
        view.onTime = onTime;
        switches.forEach(other => other.setAttribute('aria-pressed', String(other === button)));
        draw(view);
      });
      return button;
    }) : [];
    controls.append(...switches);
    const target = element('div', {
      class: 'plot', tabindex: '0', role: 'application', 'aria-roledescription': 'chart',
      'aria-label': `${chart.title}. ${chart.summary}. Arrow keys move along the curve, plus and minus zoom, Escape shows the whole run.`,
    });
    view.outputs = chart.lines.map((line, index) => {
      const output = element('output', {});
      const swatch = element('span', {});
      const button = element('button', {type: 'button', 'aria-pressed': 'true'}, swatch, line.name, output);
      button.addEventListener('click', () => {
        const shown = view.hidden.delete(index) || !view.hidden.add(index);
        button.setAttribute('aria-pressed', String(shown));
        for (const series of view.series[index]) view.plot.setSeries(series, {show: shown});
      });
      legend.append(element('li', {}, button));
      return {output, swatch};
    });
    Object.assign(view, {figure, target, place, reset});
    legend.append(place);
    const caption = figure.querySelector('figcaption');
    const tools = element('div', {class: 'tools'});
    caption.before(tools);
    tools.append(caption, controls);
    tools.after(legend, target);
    target.addEventListener('keydown', event => keyed(view, event));
    target.addEventListener('blur', () => view.plot.setCursor({left: -10, top: -10}));
    drawn.push(view);
    draw(view);
    new ResizeObserver(() => {
      const width = target.clientWidth;
      if (width > 0 && width !== view.plot.width) view.plot.setSize({width, height: height(width)});
    }).observe(target);
  }

  const height = width => Math.round(Math.min(360, Math.max(230, 0.42 * width)));

  function draw(view) {
    const {chart, target} = view;
    const tables = chart.lines.map(line => columns(line, view.onTime));
    const data = uPlot.join(tables);
    const series = [{label: view.onTime ? 'time' : 'step'}];
    const bands = [];
    view.series = chart.lines.map((line, index) => {
      const at = series.length;
      const quiet = line.colour === 'quiet';
      const only = chart.lines.length === 1 || (index === 0 && chart.from_zero && chart.lines.length < 4 && !quiet);
      const show = !view.hidden.has(index);
      series.push({
        label: line.name, show, spanGaps: true, width: quiet ? 1.3 : 2, dash: dashes(line), stroke: () => color(line),
        fill: only && chart.from_zero ? () => faded(color(line), 0.08) : undefined,
        points: {show: tables[index][0].length < 40, size: 5},
      });
      for (let edge = 0; edge < 2; edge++) {
        series.push({label: line.name, show, spanGaps: true, width: 0, points: {show: false}});
      }
      if (line.low.some((low, point) => line.high[point] > low)) {
        bands.push({series: [at + 2, at + 1], fill: () => faded(color(line), 0.22)});
      }
      return [at, at + 1, at + 2];
    });
    const ink = () => tone('soft');
    const line = {stroke: () => tone('rule'), width: 1};
    const font = '12px system-ui, sans-serif';
    const axis = {stroke: ink, grid: line, ticks: {...line, size: 4}, font, labelFont: font};
    view.plot?.destroy();
    view.plot = new uPlot({
      width: target.clientWidth, height: height(target.clientWidth), padding: [chart.epochs ? 24 : 14, 14, 0, 0],
      legend: {show: false}, series, bands,
      cursor: {drag: {x: true, y: false}, points: {size: 8}, y: false, dataIdx: (u, index, at) => nearest(u, index, at)},
      scales: {x: {time: false, range: (u, from, to) => from === to ? [from - 0.5, to + 0.5] : [from, to]}, y: {range: (u, low, high) => rangeOf(view, low, high)}},
      axes: [
        {...axis, label: view.onTime ? 'time' : 'step', labelSize: 22, size: 34, space: 64,
          ...(view.onTime ? {incrs: SECONDS, values: (u, values) => values.map(clock)} : {values: (u, values) => values.map(number)})},
        {...axis, size: (u, values) => 18 + 7 * Math.max(4, ...(values || []).map(value => value.length)), space: 40,
          values: (u, values) => axisLabels[chart.unit](values)},
      ],
      hooks: {
        drawClear: [u => under(u, view)], draw: [u => over(u, view)],
        setCursor: [u => tell(view, u.cursor.idx)],
        setScale: [(u, key) => key === 'x' && zoomed(view)],
      },
    }, data, target);
    view.plot.root.setAttribute('aria-hidden', 'true');
    tell(view, null);
    paint(view);
  }

  /** The row with a value nearest to the cursor. */
  function nearest(u, series, at) {
    const values = u.data[series];
    for (let away = 0; away < values.length; away++) {
      for (const row of [at - away, at + away]) if (values[row] !== null && values[row] !== undefined) return row;
    }
    return at;
  }

  /** From nothing, while the whole run is seen; close to the curve when a part of it is. */
  function rangeOf(view, low, high) {
    if (low === null || high === null) return [0, 1];
    if (!view.isZoomed) {
      const levels = view.chart.levels.map(level => level.value);
      [low, high] = [Math.min(low, ...levels), Math.max(high, ...levels)];
      if (view.chart.from_zero) return [0, 1.08 * high || 1];
    }
    const margin = (high - low || Math.abs(high) || 1) * 0.08;
    return [low - margin, high + margin];
  }

  const ends = u => [u.data[0][0], u.data[0][u.data[0].length - 1]];
  function zoomed(view) {
    const u = view.plot;
    if (!u) return;
    const [from, to] = ends(u);
    view.isZoomed = u.scales.x.min > from || u.scales.x.max < to;
    view.reset.hidden = !view.isZoomed;
  }
  function zoom(view, from, to) {
    const [first, last] = ends(view.plot);
    view.isZoomed = from > first || to < last;
    view.reset.hidden = !view.isZoomed;
    view.plot.setScale('x', {min: Math.max(from, first), max: Math.min(to, last)});
  }
  const whole = view => zoom(view, ...ends(view.plot));

  /** The values under the crosshair, or the last ones. */
  function tell(view, row) {
    const u = view.plot;
    if (!u) return;
    const at = row ?? u.data[0].length - 1;
    const place = u.data[0][at];
    view.place.textContent = (row === null || row === undefined ? 'at the end, ' : 'at ') + (view.onTime ? clock(place) : 'step ' + number(Math.round(place)));
    view.chart.lines.forEach((line, index) => {
      const series = view.series[index][0];
      const value = u.data[series][nearest(u, series, at)];
      view.outputs[index].output.textContent = isPlace(value) ? written[view.chart.unit](value) : '';
    });
  }

  function keyed(view, event) {
    const u = view.plot;
    const rows = u.data[0].length;
    const {min, max} = u.scales.x;
    const by = event.shiftKey ? Math.ceil(rows / 20) : 1;
    const now = u.cursor.idx ?? rows - 1;
    const moves = {ArrowLeft: now - by, ArrowRight: now + by, Home: 0, End: rows - 1};
    if (event.key in moves) {
      const row = Math.min(Math.max(moves[event.key], 0), rows - 1);
      u.setCursor({left: u.valToPos(u.data[0][row], 'x'), top: u.over.clientHeight / 2});
      const values = view.chart.lines.map((line, index) => `${line.name} ${view.outputs[index].output.textContent}`);
      document.getElementById('spoken').textContent = [view.place.textContent, ...values].join(', ');
    } else if (event.key === '+' || event.key === '-') {
      const middle = u.cursor.idx === null || u.cursor.idx === undefined ? (min + max) / 2 : u.data[0][u.cursor.idx];
      const half = (max - min) * (event.key === '+' ? 0.25 : 1);
      zoom(view, middle - half, middle + half);
    } else if (event.key === 'Escape') {
      whole(view);
    } else {
      return;
    }
    event.preventDefault();
  }

  // ---- Light and dark.
  function paint(view) {
    view.chart.lines.forEach((line, index) => {
      const quiet = line.colour === 'quiet';
      view.outputs[index].swatch.innerHTML =
        `<svg width="22" height="10" aria-hidden="true"><line x1="1" x2="21" y1="5" y2="5" stroke="${color(line)}" stroke-width="${quiet ? 1.6 : 3}" stroke-dasharray="${dashes(line).map(part => part / 2)}"/></svg>`;
    });
    view.plot.redraw(false, true);
  }
  const preference = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => (root.dataset.theme ?? (preference.matches ? 'dark' : 'light')) === 'dark';
  const button = document.getElementById('theme');
  function themed() {
    button.textContent = isDark() ? 'Light' : 'Dark';
    drawn.forEach(paint);
  }
  button.hidden = false;
  button.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    themed();
  });
  preference.addEventListener('change', themed);
  // Paper is light.
  let before;
  addEventListener('beforeprint', () => {
    before = root.dataset.theme;
    root.dataset.theme = 'light';
    document.querySelectorAll('.values').forEach(values => { values.open = true; });
    themed();
  });
  addEventListener('afterprint', () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    document.querySelectorAll('.values').forEach(values => { values.open = false; });
    themed();
  });

  const charts = JSON.parse(document.getElementById('charts').textContent);
  document.querySelectorAll('figure[data-chart]').forEach(figure => build(figure, charts[figure.dataset.chart]));
  themed();
})();
