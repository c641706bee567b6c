// Small charts in SVG, with their numbers as text beside them.

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 300;
const HEIGHT = 84;
const FIRM = '\u00a0'; // a space that does not break
const SPAN = 180; // seconds that a line covers

function svg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  return node;
}

function makeFrame(parent, height) {
  const frame = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: 'none', role: 'img' });
  parent.append(frame);
  return frame;
}

// Lines over the last minutes. `columns`: which numbers of a sample, by the class of their line.
class Lines {
  constructor(parent, columns, words) {
    this.columns = columns;
    this.words = words;
    this.top = make('span', 'top');
    this.now = make('p', 'now');
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
    const axis = make('div', 'axis');
    axis.append(make('span', '', '−3 min'), make('span', '', '−2'), make('span', '', '−1'), make('span', '', 'now'));
    plot.append(this.top);
    parent.append(this.now, plot, axis);
  }

  draw(samples, now, pool) {
    const from = now - SPAN * 1000;
    const shown = samples.filter((sample) => sample[0] >= from);
    let top = 1;
    for (const sample of shown) for (const { column } of this.columns) top = Math.max(top, sample[column]);
    top = roundUp(top);
    const x = (ms) => (((ms - from) / (SPAN * 1000)) * WIDTH).toFixed(1);
    const y = (value) => (HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1);
    this.columns.forEach(({ column }, index) => {
      const { line, shade } = this.paths[index];
      let path = '';
      let area = '';
      let start = null;
      let before = 0;
      const finish = () => {
        if (start !== null) area += `L${x(before)} ${HEIGHT}L${x(start)} ${HEIGHT}Z`;
      };
      for (const sample of shown) {
        const gap = start === null || sample[0] - before > 3500; // nobody watched
        if (gap) {
          finish();
          start = sample[0];
        }
        const point = `${gap ? 'M' : 'L'}${x(sample[0])} ${y(sample[column])}`;
        path += point;
        area += point;
        before = sample[0];
      }
      finish();
      setAttribute(line, 'd', path);
      if (shade) setAttribute(shade, 'd', area);
    });
    setText(this.top, compact(top));
    const last = shown.length ? shown[shown.length - 1] : null;
    const words = this.words(last ? last[1] : 0, pool);
    setText(this.now, words);
    setAttribute(this.frame, 'aria-label', `${words}; the scale ends at ${compact(top)}`);
  }
}

function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 4, 5, 10]) if (step * unit >= value) return step * unit;
  return 10 * unit;
}

// Bars on a logarithmic scale from 10 µs to 100 s.
class Bars {
  constructor(parent, name) {
    this.summary = make('p', 'now');
    const plot = make('div', 'bars');
    this.frame = makeFrame(plot, HEIGHT);
    this.frame.append(svg('line', { class: 'rule', x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }));
    this.name = name;
    this.bars = [];
    const axis = make('div', 'axis decades');
    for (const label of ['10 µs', '1 ms', '0.1 s', '10 s']) axis.append(make('span', '', label));
    parent.append(this.summary, plot, axis);
  }

  draw(counts, bounds) {
    const width = WIDTH / counts.length;
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
    const total = counts.reduce((sum, count) => sum + count, 0);
    const words = total ? this.words(counts, bounds, total) : 'none yet';
    setText(this.summary, words);
    setAttribute(this.frame, 'aria-label', total ? `${number(total)} in the last 5 minutes: ${words}` : words);
  }

  words(counts, bounds, total) {
    const parts = [0.5, 0.95, 0.99]
      .filter((part) => counts[0] < part * total)
      .map((part) => `p${Math.round(part * 100)} ${quantile(counts, bounds, total, part)}`);
    if (parts.length < 3) parts.unshift(`at once ${share(counts[0], total)}`);
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
