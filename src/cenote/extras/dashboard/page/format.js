// Words and numbers, and the few helpers that touch the document.

const $ = (id) => document.getElementById(id);

const STATES = ['idle', 'active', 'creating', 'hook', 'destroying'];
const STATE_WORDS = { idle: 'idle', active: 'active', creating: 'creating', hook: 'in a hook', destroying: 'destroying' };
const BREAKER = { ACTIVE: 'closed', INACTIVE: 'open', RECOVERING: 'half-open' }; // as everybody calls it
const GLYPHS = { idle: '○', active: '●', creating: '◌', hook: '◐', destroying: '×' };

function duration(seconds) {
  if (!(seconds > 0)) return '0 s';
  if (seconds < 0.001) return `${Math.max(1, Math.round(seconds * 1e6))} µs`;
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  return longDuration(seconds);
}

function longDuration(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// An age changes several times a second on the page: no more digits than can be read.
function age(seconds) {
  if (seconds < 0.95) return seconds < 0.05 ? '< 0.1 s' : `${seconds.toFixed(1)} s`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  return seconds < 100 ? `${Math.round(seconds)} s` : longDuration(seconds);
}

function number(value) {
  if (value < 10) return String(Math.round(value * 10) / 10);
  return Math.round(value).toLocaleString('en-US');
}

function compact(value) {
  if (value < 10_000) return number(value);
  return value < 1e6 ? `${(value / 1000).toFixed(value < 1e5 ? 1 : 0)}k` : `${(value / 1e6).toFixed(1)}M`;
}

function clock(ms) {
  return new Date(ms).toLocaleTimeString('en-GB');
}

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Writing what is there already would still cost a layout.
function setText(node, text) {
  if (node.shownText !== text) {
    node.shownText = text;
    node.textContent = text;
  }
}

function setAttribute(node, name, value) {
  const shown = node.shownAttributes || (node.shownAttributes = {});
  if (shown[name] === value) return;
  shown[name] = value;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

// The children of `parent` become one node for each item; nodes are made once and used again.
function fill(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    let node = parent.children[index];
    if (!node) {
      node = create(item);
      parent.append(node);
    }
    update(node, item, index);
  });
}

// A line of a list: the time, then who and why, then where.
function makeLine() {
  const node = make('li');
  node.parts = { time: make('span', 'time'), what: make('span', 'what'), tag: make('span', 'tag'), where: make('span', 'where') };
  const body = make('span', 'body');
  const head = make('span', 'head');
  head.append(node.parts.what, node.parts.tag);
  body.append(head, node.parts.where);
  node.append(node.parts.time, body);
  return node;
}

function setLine(node, time, what, tag, where) {
  setText(node.parts.time, time);
  setText(node.parts.what, what);
  setText(node.parts.tag, tag || '');
  node.parts.tag.hidden = !tag;
  setText(node.parts.where, where || '');
  setAttribute(node.parts.where, 'title', where || null);
}
