// Small charts in SVG, with their numbers as text beside them, and values under the pointer.

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 300;
const HEIGHT = 84;
const FIRM = '\u00a0'; // a space that does not break
const SPAN_LEAST = 60; // seconds that a line covers at first; it grows with what is known, up to
const SPAN_MOST = 900;

function svg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  return node;
}

function makeFrame(parent, height) {
  const frame = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  parent.append(frame);
  return frame;
}

// What is under the pointer, a finger, or the arrow keys. `pick(part)` takes 0 to 1 from the left and
// gives [part, words], where the line is put and what is said; `step(part, by)` the next place.
class Pointer {
  constructor(plot, name, pick, step) {
    this.plot = plot;
    this.pick = pick;
    this.part = null;
    this.line = make('i', 'cross');
    this.words = make('span', 'tip');
    this.line.hidden = this.words.hidden = true;
    plot.append(this.line, this.words);
    plot.tabIndex = 0;
    for (const [key, value] of Object.entries({ role: 'slider', 'aria-label': name, 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': '100', 'aria-valuetext': 'no value yet' })) {
      plot.setAttribute(key, value);
    }
    const follow = (event) => {
      const box = plot.getBoundingClientRect();
      this.show((event.clientX - box.left) / box.width);
    };
    plot.addEventListener('pointermove', follow);
    plot.addEventListener('pointerdown', follow);
    plot.addEventListener('pointerleave', () => this.hide());
    plot.addEventListener('focus', () => { if (plot.matches(':focus-visible')) this.show(1); });
    plot.addEventListener('blur', () => this.hide());
    plot.addEventListener('keydown', (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
      const by = moves[event.key];
      if (event.key === 'Escape') this.hide();
      if (by === undefined) return;
      event.preventDefault();
      const from = this.part === null ? 1 : this.part;
      this.show(by === -Infinity ? 0 : by === Infinity ? 1 : step(from, by));
    });
  }

  show(part) {
    this.part = Math.min(1, Math.max(0, part));
    this.draw();
  }

  hide() {
    this.part = null;
    this.line.hidden = this.words.hidden = true;
  }

  draw() {
    const found = this.part === null ? null : this.pick(this.part);
    this.line.hidden = this.words.hidden = found === null;
    if (found === null) return;
    const [at, words] = found;
    this.line.style.left = `${(at * 100).toFixed(2)}%`;
    setText(this.words, words);
    setAttribute(this.words, 'data-side', at > 0.5 ? 'left' : 'right');
    this.words.style.left = at > 0.5 ? 'auto' : `${(at * 100).toFixed(2)}%`;
    this.words.style.right = at > 0.5 ? `${((1 - at) * 100).toFixed(2)}%` : 'auto';
    setAttribute(this.plot, 'aria-valuenow', String(Math.round(at * 100)));
    setAttribute(this.plot, 'aria-valuetext', words);
  }
}

// Lines over the last minutes. `columns`: which numbers of a sample, by the class of their line.
class Lines {
  constructor(parent, title, columns, words) {
    this.columns = columns;
    this.words = words;
    this.shown = [];
    this.now = make('p', 'now');
    const row = make('div', 'framed');
    const ticks = make('div', 'ticks');
    ticks.setAttribute('aria-hidden', 'true');
    this.ticks = [make('span'), make('span'), make('span')];
    ticks.append(...this.ticks);
    const plot = make('div', 'lines');
    this.frame = makeFrame(plot, HEIGHT);
    for (const y of [0.5, HEIGHT / 2, HEIGHT - 0.5]) {
      this.frame.append(svg('line', { class: 'rule', x1: 0, x2: WIDTH, y1: y, y2: y }));
    }
    this.paths = columns.map(({ name, area }) => {
      const shade = area ? svg('path', { class: `area ${name}` }) : null;
      const line = svg('path', { class: `line ${name}` });
      if (shade) this.frame.append(shade);
      this.frame.append(line);
      return { shade, line };
    });
    this.pointer = new Pointer(plot, `${title}: values by time`, (part) => this.pick(part), (part, by) => this.step(part, by));
    row.append(ticks, plot);
    const axis = make('div', 'axis');
    axis.setAttribute('aria-hidden', 'true');
    this.times = [make('span'), make('span'), make('span')];
    axis.append(...this.times);
    parent.append(this.now, row, axis);
  }

  draw(samples, now, pool) {
    const first = samples.length ? samples[0][0] : now;
    this.span = Math.min(SPAN_MOST, Math.max(SPAN_LEAST, Math.ceil((now - first) / 15_000) * 15)) * 1000;
    const from = (this.from = now - this.span);
    const shown = (this.shown = samples.filter((sample) => sample[0] >= from));
    let top = 1;
    for (const sample of shown) for (const { column } of this.columns) top = Math.max(top, sample[column]);
    top = roundUp(top);
    const x = (ms) => (((ms - from) / this.span) * WIDTH).toFixed(1);
    const y = (value) => (HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1);
    this.columns.forEach(({ column }, index) => {
      const { line, shade } = this.paths[index];
      let path = '';
      for (const sample of shown) path += `${path ? 'L' : 'M'}${x(sample[0])} ${y(sample[column])}`;
      setAttribute(line, 'd', path);
      if (shade) setAttribute(shade, 'd', path && `${path}L${x(shown[shown.length - 1][0])} ${HEIGHT}L${x(shown[0][0])} ${HEIGHT}Z`);
    });
    [top, top / 2, 0].forEach((value, index) => setText(this.ticks[index], compact(value)));
    [this.span, this.span / 2, 0].forEach((ms, index) => setText(this.times[index], ms ? `−${ago(ms / 1000)}` : 'now'));
    setText(this.now, this.words(shown.length ? shown[shown.length - 1] : null, pool));
    this.pointer.draw();
  }

  nearest(part) {
    const ms = this.from + part * this.span;
    let best = this.shown.length - 1;
    while (best > 0 && Math.abs(this.shown[best - 1][0] - ms) <= Math.abs(this.shown[best][0] - ms)) best--;
    return best;
  }

  pick(part) {
    const sample = this.shown[this.nearest(part)];
    if (!sample) return null;
    const values = this.columns.map(({ column, label }) => `${number(sample[column])} ${label}`);
    return [(sample[0] - this.from) / this.span, `${clock(sample[0])} · ${values.join(', ')}`];
  }

  step(part, by) {
    const at = Math.min(this.shown.length - 1, Math.max(0, this.nearest(part) + by));
    return this.shown.length ? (this.shown[at][0] - this.from) / this.span : part;
  }
}

function ago(seconds) {
  return seconds % 60 && seconds < 120 ? `${Math.round(seconds)} s` : `${number(seconds / 60)} min`;
}

function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 4, 5, 10]) if (step * unit >= value) return step * unit;
  return 10 * unit;
}

// Bars on a logarithmic scale from 10 µs to 100 s; the first one is what took less.
class Bars {
  constructor(parent, title, name, first) {
    this.summary = make('p', 'now');
    const plot = make('div', 'bars');
    this.frame = makeFrame(plot, HEIGHT);
    this.frame.append(svg('line', { class: 'rule', x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }));
    this.name = name;
    this.first = first;
    this.bars = [];
    this.counts = [];
    this.pointer = new Pointer(plot, `${title}: how many took how long`, (part) => this.pick(part), (part, by) => (this.index(part) + Math.sign(by) + 0.5) / this.counts.length);
    this.axis = make('div', 'axis decades');
    this.axis.setAttribute('aria-hidden', 'true');
    parent.append(this.summary, plot, this.axis);
  }

  draw(counts, bounds) {
    this.counts = counts;
    this.bounds = bounds;
    const width = WIDTH / counts.length;
    if (this.bars.length < counts.length) this.label(counts.length);
    while (this.bars.length < counts.length) {
      const bar = svg('rect', { class: `bar ${this.name}`, x: (this.bars.length * width + 0.8).toFixed(2), width: (width - 1.6).toFixed(2) });
      this.bars.push(bar);
      this.frame.append(bar);
    }
    // Those that took no time would make all others invisible: their bar is cut off.
    const most = Math.max(...counts.slice(1), 1);
    if (counts.length) setAttribute(this.bars[0], 'class', counts[0] > most ? `bar cut ${this.name}` : `bar ${this.name}`);
    counts.forEach((count, index) => {
      const height = count ? Math.max(2, Math.min(1, count / most) * (HEIGHT - 3)) : 0;
      setAttribute(this.bars[index], 'y', (HEIGHT - 1 - height).toFixed(1));
      setAttribute(this.bars[index], 'height', height.toFixed(1));
    });
    this.total = counts.reduce((sum, count) => sum + count, 0);
    setText(this.summary, this.total ? this.words(counts, bounds, this.total) : 'none yet');
    this.pointer.draw();
  }

  // Four bars are one decade; the first bar has a name of its own.
  label(bars) {
    const labels = [[0, this.first], [9, '1 ms'], [17, '0.1 s'], [25, '10 s']];
    this.axis.replaceChildren(...labels.map(([bar, words]) => {
      const node = make('span', '', words);
      node.style.left = `${((bar / bars) * 100).toFixed(2)}%`;
      return node;
    }));
  }

  index(part) {
    return Math.min(this.counts.length - 1, Math.max(0, Math.floor(part * this.counts.length)));
  }

  pick(part) {
    if (!this.counts.length) return null;
    const index = this.index(part);
    const { bounds } = this;
    const range = index === 0 ? `${this.first} (under ${duration(bounds[0])})` : index === bounds.length ? `over ${duration(bounds[index - 1])}` : `${duration(bounds[index - 1])} to ${duration(bounds[index])}`;
    const part100 = this.total ? ` (${share(this.counts[index], this.total)})` : '';
    return [(index + 0.5) / this.counts.length, `${range}: ${number(this.counts[index])}${part100}`];
  }

  words(counts, bounds, total) {
    const parts = [0.5, 0.95, 0.99]
      .filter((part) => counts[0] < part * total)
      .map((part) => `p${Math.round(part * 100)} ${quantile(counts, bounds, total, part)}`);
    if (parts.length < 3) parts.unshift(`${this.first} ${share(counts[0], total)}`);
    return parts.map((part) => part.replaceAll(' ', FIRM)).join(' \u2002');
  }
}

function share(part, total) {
  const percent = (part / total) * 100;
  return percent > 99 && percent < 100 ? '> 99 %' : `${Math.round(percent)} %`;
}

function quantile(counts, bounds, total, part) {
  let left = part * total;
  for (let index = 0; index < counts.length; index++) {
    if (counts[index] && left <= counts[index]) {
      if (index === bounds.length) return `> ${duration(bounds[index - 1])}`;
      const ratio = bounds[index] / bounds[index - 1];
      return duration(bounds[index - 1] * ratio ** (left / counts[index]));
    }
    left -= counts[index];
  }
  return duration(bounds[bounds.length - 1]);
}

// A line without words, for the card of a pool.
class Spark {
  constructor() {
    this.frame = svg('svg', { viewBox: '0 0 90 20', preserveAspectRatio: 'none', class: 'spark', 'aria-hidden': 'true' });
    this.line = svg('path', { class: 'line rate' });
    this.frame.append(this.line);
  }

  draw(samples, now) {
    const shown = samples.filter((sample) => sample[0] >= now - 90_000);
    const top = shown.reduce((most, sample) => Math.max(most, sample[1]), 1);
    const path = shown.map((sample, index) => {
      const x = 90 - (now - sample[0]) / 1000;
      return `${index ? 'L' : 'M'}${x.toFixed(1)} ${(19 - (sample[1] / top) * 18).toFixed(1)}`;
    });
    setAttribute(this.line, 'd', path.join(''));
  }
}
