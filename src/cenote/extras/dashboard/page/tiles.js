// The slots. Nodes are used again, so that a thousand of them stay smooth.

const LARGE = 40; // up to so many places every tile has words,
const MEDIUM = 144; // up to so many a time
const FEW = 12; // boxes that are drawn even if all are empty
const GHOSTS = 64; // free places are drawn up to this one

class Tiles {
  constructor(list, inspector, legend, now) {
    this.list = list;
    this.inspector = inspector;
    this.legend = legend;
    this.now = now;
    this.rows = []; // by place
    this.nodes = [];
    this.dirty = new Set();
    this.places = 0;
    this.current = 0; // which tile the Tab key reaches
    this.picked = null;
    list.addEventListener('keydown', (event) => this.move(event));
    list.addEventListener('click', (event) => this.pick(event));
    list.addEventListener('focusin', (event) => this.inspect(this.nodes.findIndex((node) => node.contains(event.target))));
    list.addEventListener('pointerover', (event) => {
      const node = event.target.closest('li');
      if (node && this.picked === null) this.inspect(this.nodes.indexOf(node), false);
    });
    list.addEventListener('pointerleave', () => {
      if (this.picked === null && !list.contains(document.activeElement)) this.inspected = null;
    });
  }

  reset() {
    this.rows = [];
    this.picked = this.inspected = null;
    this.nodes.forEach((_, place) => this.dirty.add(place));
  }

  take(changed, places) {
    for (const row of changed) {
      this.rows[row[0]] = row.length > 1 ? row : undefined;
      this.dirty.add(row[0]);
    }
    for (let place = places; place < this.rows.length; place++) this.dirty.add(place);
    this.rows.length = places;
  }

  draw(summary) {
    // Where nothing is, many empty boxes say less than the legend.
    const empty = summary.max > FEW && !this.rows.some(Boolean);
    const places = empty ? 0 : Math.max(this.rows.length, Math.min(summary.max, GHOSTS));
    this.list.hidden = this.inspector.hidden = !places;
    const size = places <= LARGE ? 'large' : places <= MEDIUM ? 'medium' : 'small';
    if (size !== this.size) {
      this.size = size;
      this.list.dataset.size = size;
      this.nodes.forEach((_, place) => this.dirty.add(place));
    }
    while (this.nodes.length > places) this.nodes.pop().remove();
    if (this.nodes.length < places) {
      const fresh = document.createDocumentFragment();
      while (this.nodes.length < places) {
        this.dirty.add(this.nodes.length);
        this.nodes.push(makeTile(this.nodes.length));
        fresh.append(this.nodes[this.nodes.length - 1]);
      }
      this.list.append(fresh);
    }
    if (this.current >= places) this.current = 0;
    for (const place of this.dirty) if (place < places) this.drawTile(place);
    this.dirty.clear();
    setTabStop(this, this.current);
    this.drawLegend(summary);
    this.drawAges();
  }

  drawTile(place) {
    const node = this.nodes[place];
    const row = this.rows[place];
    const state = row ? STATES[row[1]] : 'free';
    const pinned = Boolean(row && row[5]);
    setAttribute(node, 'class', pinned ? `${state} pinned` : state);
    const words = row ? describe(row) : `slot ${place + 1}, free`;
    setText(node.label, words);
    const wordy = this.size === 'large' && row;
    setText(node.glyph, row && this.size !== 'small' ? GLYPHS[state] : '');
    setText(node.task, wordy ? row[3] || STATE_WORDS[state] : '');
    const [file, line] = wordy && !row[5] && row[4] ? nearest(row[4]) : [wordy ? row[5] || uses(row) : '', ''];
    setText(node.file, file);
    setText(node.line, line);
    if (!row || this.size === 'small') setText(node.age, '');
  }

  drawAges() {
    const now = this.now();
    if (this.size !== 'small') {
      this.nodes.forEach((node, place) => {
        const row = this.rows[place];
        if (row) setText(node.age, age((now - row[2]) / 1000));
      });
    }
    const row = this.inspected === null ? null : this.rows[this.inspected];
    setAttribute(this.inspector, 'data-empty', row ? null : '');
    setText(this.inspector, row ? `${capital(describe(row))}, for ${age((now - row[2]) / 1000)}` : this.inspected === null || this.inspected === undefined ? 'Select a slot to see who holds it.' : `Slot ${this.inspected + 1} is free.`);
  }

  drawLegend(summary) {
    const counts = { idle: 0, active: 0, creating: 0, hook: 0, destroying: 0 };
    let pinned = 0;
    for (const row of this.rows) {
      if (!row) continue;
      counts[STATES[row[1]]]++;
      if (row[5]) pinned++;
    }
    const entries = STATES.map((state) => [state, `${counts[state]} ${STATE_WORDS[state]}`, counts[state]]);
    entries.splice(2, 0, ['pinned', `${pinned} pinned`, pinned]);
    const used = STATES.reduce((sum, state) => sum + counts[state], 0);
    entries.push(['free', `${number(Math.max(0, summary.max - used))} free`, summary.max - used]);
    fill(this.legend, entries, () => {
      const node = make('li');
      node.words = make('span');
      node.append(make('i'), node.words);
      return node;
    }, (node, [name, words, count]) => {
      setAttribute(node, 'class', count > 0 ? name : `${name} none`);
      setText(node.words, words);
    });
  }

  inspect(place, move = true) {
    if (place < 0) return;
    this.inspected = place;
    if (move) this.current = place;
    this.drawAges();
  }

  pick(event) {
    const place = this.nodes.findIndex((node) => node.contains(event.target));
    if (place < 0) return;
    const same = this.picked === place;
    if (this.picked !== null && this.nodes[this.picked]) this.nodes[this.picked].button.removeAttribute('aria-pressed');
    this.picked = same ? null : place;
    if (!same) this.nodes[place].button.setAttribute('aria-pressed', 'true');
    this.inspect(place);
    setTabStop(this, place);
  }

  move(event) {
    const columns = this.columns();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const last = this.nodes.length - 1;
    let target = this.current + step;
    if (Number.isFinite(step) && (target < 0 || target > last)) target = this.current;
    target = Math.min(last, Math.max(0, target));
    setTabStop(this, target);
    this.nodes[target].button.focus();
  }

  columns() {
    const top = this.nodes.length ? this.nodes[0].offsetTop : 0;
    const found = this.nodes.findIndex((node) => node.offsetTop !== top);
    return found < 0 ? this.nodes.length : found;
  }
}

function makeTile(place) {
  const node = make('li');
  node.button = make('button');
  node.button.type = 'button';
  node.button.tabIndex = -1;
  node.glyph = make('span', 'glyph');
  node.age = make('span', 'age');
  node.task = make('span', 'task');
  const why = make('span', 'why');
  node.file = make('span', 'file');
  node.line = make('span');
  why.append(node.file, node.line);
  const head = make('span', 'head');
  head.append(node.glyph, make('span', 'place', String(place + 1)), node.age);
  node.button.append(head, node.task, why);
  for (const part of node.button.children) part.setAttribute('aria-hidden', 'true');
  node.label = make('span', 'vh'); // says all of it, in words
  node.button.append(node.label);
  node.append(node.button);
  return node;
}

function setTabStop(tiles, place) {
  const before = tiles.stop;
  const node = tiles.nodes[place];
  tiles.current = place;
  if (before === node) return;
  if (before) before.button.tabIndex = -1;
  if (node) node.button.tabIndex = 0;
  tiles.stop = node;
}

function describe(row) {
  const words = [`slot ${row[0] + 1}`, STATE_WORDS[STATES[row[1]]]];
  if (row[3]) words.push(`task ${row[3]}`);
  if (row[4]) words.push(row[4]);
  if (row[5]) words.push(`pinned: ${row[5]}`);
  if (row[9]) words.push(`lane ${row[9]}`);
  if (row[7]) words.push(`runs ${row[7]}`);
  if (row[6]) words.push(uses(row));
  return words.join(', ');
}

// A tile has room for the file, not for its folders; of a long name, the line stays in view.
function nearest(where) {
  const end = where.lastIndexOf(':');
  return [where.slice(where.lastIndexOf('/') + 1, end), where.slice(end)];
}

function uses(row) {
  if (row[6] === null || STATES[row[1]] === 'creating') return '';
  return row[6] === 1 ? '1 use' : `${number(row[6])} uses`;
}

function capital(words) {
  return words[0].toUpperCase() + words.slice(1);
}
