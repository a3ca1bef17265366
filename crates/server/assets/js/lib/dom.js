// Elements made by calls. Text is always text: nothing here reads markup.

/** Makes an element. Functions are listeners, `true` is an empty attribute, `null` and `false` are left out. */
export function h(name, attributes = {}, ...children) {
  return put(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return put(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function put(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(key, value);
    else if (key.startsWith('--')) element.style.setProperty(key, value);
    else element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...there(children));
  return element;
}

const there = children => children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false);

/** Replaces what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...there(children));
  element.removeAttribute('aria-busy');
  return element;
}

/** Replaces only what has changed: what is the same keeps the focus, and a press that has begun. */
export function freshen(element, ...children) {
  const wanted = there(children).map(child => child instanceof Node ? child : document.createTextNode(child));
  wanted.forEach((child, at) => {
    const old = element.childNodes[at];
    if (!old) element.append(child);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
  element.removeAttribute('aria-busy');
  return element;
}

export const find = selector => document.querySelector(selector);

/** A table with a caption; `head` are names, or `{name, number}` for columns of numbers. `cards` folds it on phones. */
export function table({caption, head, rows, cards = false}) {
  const columns = head.map(column => typeof column === 'string' ? {name: column} : column);
  const cell = (content, index) => {
    const {name, number, title} = columns[index];
    const content_ = content === null || content === undefined ? '' : content;
    return h('td', {class: number ? 'number' : title ? 'name' : null, 'data-label': title ? null : name}, content_);
  };
  const body = rows.map(row => row instanceof Node ? row : h('tr', {}, ...row.map(cell)));
  return h('div', {class: 'wide'}, h('table', {class: cards ? 'cards' : null},
    h('caption', {}, caption),
    h('thead', {}, h('tr', {}, ...columns.map(({name, number, unseen}) =>
      h('th', {scope: 'col', class: number ? 'number' : null}, unseen ? h('span', {class: 'unseen'}, name) : name)))),
    h('tbody', {}, ...body)));
}

/** Names and values. */
export function facts(pairs, list = h('dl', {class: 'facts'})) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return freshen(list, ...known.map(([name, value, more]) =>
    h('div', {}, h('dt', {}, name), h('dd', {}, value, more ? h('small', {}, more) : null))));
}

const SEEDLING = 'M4 21h16M12 21v-8M12 15c0-4 2-6 6-7 0 4-2 7-6 7zM12 17c0-3-2-5-5-5 0 3 2 5 5 5z';

/** What stands where nothing is yet: why, and what to do. */
export function empty(title, words, ...actions) {
  const picture = svg('svg', {viewBox: '0 0 24 24', 'aria-hidden': 'true'}, svg('path', {d: SEEDLING}));
  return h('div', {class: 'empty'}, picture, h('h3', {}, title), h('p', {}, words), actions.length ? h('div', {class: 'actions'}, ...actions) : null);
}

/** A note in the page: `kind` is good, warn or bad. */
export const note = (kind, ...words) => h('div', {class: `note ${kind}`, role: kind === 'bad' ? 'alert' : null}, ...words);

export const button = (name, onclick, kind = '', attributes = {}) =>
  h('button', {type: 'button', class: `button ${kind}`, click: onclick, ...attributes}, name);
