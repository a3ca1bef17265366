
const runs = JSON.parse(document.getElementById('runs').textContent);
const root = document.documentElement;
root.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
const palette = ['#0f9d8f', '#d97706', '#6366f1', '#dc2626', '#0284c7', '#84a30d', '#c026d3', '#64748b'];
const color = name => getComputedStyle(root).getPropertyValue(name).trim();
const config = {responsive: true, displaylogo: false, displayModeBar: 'hover', modeBarButtonsToRemove: ['lasso2d', 'select2d']};
let axis = 'x';

function layout(xTitle, shapes, annotations) {
  const line = {gridcolor: color('--rule'), zerolinecolor: color('--rule'), linecolor: color('--rule')};
  return {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: {color: color('--soft'), size: 12},
    margin: {l: 64, r: 18, t: 14, b: 44}, hovermode: 'x unified', shapes, annotations,
    hoverlabel: {bgcolor: color('--card'), font: {color: color('--ink')}},
    legend: {orientation: 'h', y: 1.12, x: 0},
    modebar: {bgcolor: 'rgba(0,0,0,0)', color: color('--rule'), activecolor: color('--soft')},
    xaxis: {...line, title: {text: xTitle}}, yaxis: {...line, rangemode: 'tozero', tickformat: '~s', ticksuffix: 'B'},
  };
}

function mark(axisName, value, text, tone) {
  const across = axisName === 'y';
  const shape = {type: 'line', line: {color: color(tone), dash: 'dash', width: 1.4}};
  Object.assign(shape, across
    ? {xref: 'paper', x0: 0, x1: 1, y0: value, y1: value}
    : {yref: 'paper', y0: 0, y1: 1, x0: value, x1: value});
  const note = {text, showarrow: false, font: {color: color(tone), size: 12}};
  Object.assign(note, across
    ? {xref: 'paper', x: 1, xanchor: 'right', y: value, yanchor: 'bottom'}
    : {yref: 'paper', y: 1, yanchor: 'top', x: value, xanchor: 'left'});
  return {shape, note};
}

function drawRun(run, index) {
  const x = run.steps ? run.x : run.minutes;
  const any = kind => run[kind].some(value => value > 0);
  const hover = '%{y:.4s}B';
  const kinds = ['anon', 'shmem', 'swap', 'file'].filter(any);
  const names = {anon: 'anonymous', shmem: 'shared', swap: 'swapped', file: 'file-backed (droppable)'};
  const tones = {anon: '#0f9d8f', shmem: '#6366f1', swap: '#dc2626', file: '#94a3b8'};
  const traces = kinds.map(kind => ({
    x, y: run[kind], mode: 'lines', name: names[kind], stackgroup: 'kinds', line: {width: 1, color: tones[kind]}, hovertemplate: hover,
  }));
  if (run.high.some((high, i) => high > run.low[i])) {
    traces.push({x, y: run.high, mode: 'lines', name: 'highest', line: {width: 1, dash: 'dot', color: color('--soft')}, hovertemplate: hover});
  }
  if (kinds.length === 0) {
    traces.push({x, y: run.owned, mode: 'lines', name: 'resident', line: {width: 2, color: '#0f9d8f'}, fill: 'tozeroy', hovertemplate: hover});
  }
  const marks = [];
  if (run.epochEnd && run.steps && run.epochEnd <= x[x.length - 1]) marks.push(mark('x', run.epochEnd, ' end of the first epoch', '--undecided'));
  if (run.plateau) marks.push(mark('y', run.plateau.bytes, 'plateau', '--soft'));
  if (run.limit && run.limit < 2 * Math.max(...run.high)) marks.push(mark('y', run.limit, 'limit', '--leak'));
  Plotly.react('chart' + index, traces,
    layout(run.steps ? 'step' : 'minutes', marks.map(m => m.shape), marks.map(m => m.note)), config);
}

function drawTogether() {
  if (!document.getElementById('together')) return;
  const traces = runs.map((run, index) => ({
    x: axis === 'x' && run.steps ? run.x : run.minutes, y: run.owned, mode: 'lines', name: run.name,
    line: {width: 2, color: palette[index % palette.length]}, hovertemplate: '%{y:.4s}B',
  }));
  Plotly.react('together', traces, layout(axis === 'x' ? 'step' : 'minutes', [], []), config);
}

function draw() {
  runs.forEach(drawRun);
  drawTogether();
}

document.getElementById('theme').addEventListener('click', () => {
  root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
  draw();
});
document.querySelectorAll('#axis button').forEach(button => button.addEventListener('click', () => {
  axis = button.dataset.axis;
  document.querySelectorAll('#axis button').forEach(other => other.classList.toggle('on', other === button));
  drawTogether();
}));
draw();
