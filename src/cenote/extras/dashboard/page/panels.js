// The parts of the page beside the slots.

// The state, how long, and what it means.
const BREAKER_WORDS = {
  ACTIVE: ['Closed', 'all acquires pass'],
  INACTIVE: ['Open', 'no acquire passes'],
  RECOVERING: ['Trying', 'a few acquires pass, to find out'],
};
const PROBLEMS = new Set(['timeout', 'cancelled', 'rejected', 'check_failed', 'held_long', 'state_changed']);
const EVENT_WORDS = { timeout: 'timed out', cancelled: 'wait cancelled', check_failed: 'health check failed', held_long: 'held for long', state_changed: 'breaker' };
const HOLDERS = 12; // lines of the longest holders
const EVENTS = 100;

function isProblem(event) {
  return PROBLEMS.has(event[1]) || (event[1] === 'destroyed' && / · |rejected|check_failed|cancelled/.test(event[3] || ''));
}

// -- the cards of all pools ------------------------------------------------------------------------

function makePool() {
  const node = make('li');
  const link = make('a');
  const head = make('span', 'head');
  node.link = link;
  node.name = make('span', 'name');
  node.pill = make('span', 'pill');
  head.append(node.name, node.pill);
  node.bar = make('span', 'bar');
  node.parts = ['active', 'hook', 'creating', 'idle'].map((name) => {
    const part = make('i', name);
    node.bar.append(part);
    return [name, part];
  });
  node.words = make('span', 'words');
  node.rate = make('span', 'rate');
  node.spark = new Spark();
  const foot = make('span', 'foot');
  foot.append(node.words, node.spark.frame, node.rate);
  link.append(head, node.bar, foot);
  node.append(link);
  return node;
}

function drawPool(node, pool, samples, now, current) {
  setAttribute(node.link, 'href', `#pool=${pool.id}`);
  setAttribute(node.link, 'aria-current', current ? 'true' : null);
  setText(node.name, pool.name);
  setAttribute(node.name, 'title', pool.name);
  drawPill(node.pill, pool);
  const values = { active: pool.active - pool.hook, hook: pool.hook, creating: pool.creating + pool.destroying, idle: pool.idle };
  const whole = Math.max(pool.max, values.active + values.hook + values.creating + values.idle);
  for (const [name, part] of node.parts) {
    const width = `${((values[name] / whole) * 100).toFixed(1)}%`;
    if (part.shownWidth !== width) part.style.width = part.shownWidth = width;
  }
  setText(node.words, `${number(pool.active)} of ${number(pool.max)} active` + (pool.waiting ? ` · ${compact(pool.waiting)} waiting` : ''));
  setAttribute(node.words, 'class', pool.waiting ? 'words busy' : 'words');
  const last = samples.length ? samples[samples.length - 1] : null;
  setText(node.rate, last ? `${compact(last[1])}/s` : '');
  node.spark.draw(samples, now);
}

function drawPill(node, pool) {
  const ending = pool.phase === 'closed' || pool.phase === 'draining';
  const fresh = pool.phase === 'new' && pool.state === 'ACTIVE';
  const shown = ending || fresh ? pool.phase.toUpperCase() : pool.state;
  setText(node, shown);
  setAttribute(node, 'data-state', shown);
}

// -- the numbers of one pool -----------------------------------------------------------------------

function drawNumbers(parent, pool, samples) {
  const last = samples.length ? samples[samples.length - 1][1] : 0;
  const gone = Object.entries(pool.destroyed);
  const lost = gone.reduce((sum, [, count]) => sum + count, 0);
  const entries = [
    ['Active', number(pool.active), pool.hook ? `${pool.hook} in a hook` : `of ${number(pool.max)}`, pool.active ? 'active' : ''],
    ['Idle', number(pool.idle), pool.min ? `at least ${number(pool.min)}` : '', ''],
    ['Waiting', compact(pool.waiting), pool.creating ? `${pool.creating} being created` : '', pool.waiting ? 'waiting' : ''],
    ['Acquires', `${compact(last)}/s`, `${compact(pool.acquired)} in total`, ''],
    ['Timeouts', compact(pool.timeouts), pool.cancelled ? `${compact(pool.cancelled)} cancelled` : '', pool.timeouts ? 'bad' : ''],
    ['Rejected', compact(pool.rejected), '', pool.rejected ? 'bad' : ''],
    ['Created', compact(pool.created), '', ''],
    ['Destroyed', compact(lost), gone.map(([reason, count]) => `${count} ${reason}`).join(', '), ''],
  ];
  fill(parent, entries, () => {
    const node = make('div');
    node.parts = [make('dt'), make('dd', 'big'), make('dd', 'small')];
    node.append(...node.parts);
    return node;
  }, (node, [name, big, small, kind]) => {
    setText(node.parts[0], name);
    setText(node.parts[1], big);
    setText(node.parts[2], small);
    setAttribute(node.parts[2], 'title', small || null);
    setAttribute(node, 'class', kind || null);
  });
}

// -- lists -----------------------------------------------------------------------------------------

function drawWaiters(waiters, pool, now) {
  const more = pool.waiting - waiters.length;
  setText($('waiters-count'), pool.waiting ? `${number(pool.waiting)} in line` : '');
  const lines = waiters.map((waiter) => ({ waiter }));
  if (more > 0 && waiters.length) lines.push({ more });
  fill($('waiters'), lines, makeLine, (node, line) => {
    if (line.more) {
      setLine(node, '', `and ${number(line.more)} more`, '', '');
      return;
    }
    const [task, where, since, deadline] = line.waiter;
    const left = deadline === null ? '' : `${age(Math.max(0, (deadline - now) / 1000))} left`;
    setLine(node, age(Math.max(0, (now - since) / 1000)), task, left, where);
  });
  $('waiters-none').hidden = lines.length > 0;
}

function drawHolders(rows, now) {
  const held = rows.filter((row) => row && row[1] === 1).sort((a, b) => a[2] - b[2]).slice(0, HOLDERS);
  fill($('holders'), held, makeLine, (node, row) => {
    setLine(node, age((now - row[2]) / 1000), row[3] || 'no task', row[5] ? row[5] : '', row[4]);
    setAttribute(node, 'class', row[5] ? 'pinned' : null);
  });
  $('holders-none').hidden = held.length > 0;
}

function drawEvents(events, problemsOnly) {
  const shown = (problemsOnly ? events.filter(isProblem) : events).slice(-EVENTS).reverse();
  fill($('events'), shown, makeLine, (node, [ms, kind, task, said, seconds]) => {
    const took = seconds === null ? '' : duration(seconds);
    setLine(node, clock(ms), EVENT_WORDS[kind] || kind, took, [task, said].filter(Boolean).join(' · '));
    setAttribute(node, 'data-kind', kind);
    setAttribute(node, 'class', isProblem([ms, kind, task, said]) ? 'problem' : null);
  });
  $('events-none').hidden = shown.length > 0;
}

// -- the breaker -----------------------------------------------------------------------------------

function drawBreaker(pool, breaker, now) {
  const changes = breaker.changes || [];
  const last = changes[changes.length - 1];
  setText($('breaker-state'), pool.state);
  setAttribute($('breaker-state'), 'data-state', pool.state);
  const since = last && !last[2] ? ` for ${age(Math.max(0, (now - last[0]) / 1000))}` : '';
  const strategy = breaker.strategy ? ` · ${breaker.strategy}` : ' · no strategy';
  const limit = pool.state === 'RECOVERING' ? ` (${breaker.limit} at most)` : '';
  const [word, meaning] = BREAKER_WORDS[pool.state];
  setText($('breaker-facts'), `${word}${since}: ${meaning}${limit}${strategy}`);
  $('breaker-failure').hidden = !breaker.failure;
  setText($('breaker-failure'), breaker.failure ? `Last failure: ${breaker.failure}` : '');
  drawStrip(changes, now);
  const shown = changes.slice(-6).reverse();
  $('changes').hidden = changes.length < 2;
  fill($('changes'), shown, () => {
    const node = make('li');
    node.parts = [make('span', 'time'), make('span', 'dot'), make('span', 'name'), make('span', 'muted')];
    node.append(...node.parts);
    return node;
  }, (node, [ms, state, seen], index) => {
    const until = index ? shown[index - 1][0] : null;
    setText(node.parts[0], clock(ms));
    setAttribute(node.parts[1], 'data-state', state);
    setText(node.parts[2], state);
    setText(node.parts[3], until === null ? '' : seen ? 'when this page was opened' : `for ${duration(Math.max(0, (until - ms) / 1000))}`);
  });
}

// Which state the breaker was in, over the last three minutes.
function drawStrip(changes, now) {
  const from = now - SPAN * 1000;
  const parts = [];
  changes.forEach(([ms, state], index) => {
    const until = index + 1 < changes.length ? changes[index + 1][0] : now;
    const start = index ? Math.max(ms, from) : from;
    if (until > from && until > start) parts.push([state, until - start]);
  });
  fill($('strip'), parts, () => make('i'), (node, [state, length]) => {
    setAttribute(node, 'data-state', state);
    const grow = String(Math.round(length));
    if (node.shownGrow !== grow) node.style.flexGrow = node.shownGrow = grow;
  });
}
