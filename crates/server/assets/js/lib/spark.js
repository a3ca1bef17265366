// A small curve in a line of text.
import {svg} from './dom.js';
import {bytes} from './words.js';

/** Memory over time, from nothing to its peak. */
export function spark(values, label = 'Memory') {
  if (!values?.length) return null;
  const top = Math.max(...values) || 1;
  const width = 100, height = 30;
  const at = (value, index) => [index * width / Math.max(values.length - 1, 1), height - 2 - (height - 4) * value / top].map(part => part.toFixed(1));
  const line = values.map((value, index) => `${index ? 'L' : 'M'}${at(value, index)}`).join('');
  return svg('svg', {class: 'spark', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${label}: ${bytes(values.at(-1))} now, ${bytes(top)} at most`},
    svg('path', {class: 'area', d: `${line}L${width},${height}L0,${height}Z`}), svg('path', {d: line}));
}
