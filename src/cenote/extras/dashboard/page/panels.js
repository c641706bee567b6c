// The parts of the page beside the slots.

// The state, how long, and what it means.
const BREAKER_WORDS = {
  ACTIVE: ['Closed', 'all acquires pass'],
  INACTIVE: ['Open', 'no acquire passes'],
  RECOVERING: ['Half-open', 'a few acquires pass, to find out'],
};
const ENDING_WORDS = { draining: 'the pool is closing, no new acquire passes', closed: 'the pool itself is closed, no acquire passes' };
const PROBLEMS = new Set(['failed', 'refused', 'create_failed', 'timeout', 'cancelled', 'rejected', 'check_failed', 'held_long', 'state_changed']);
const EVENT_WORDS = { failed: 'acquire failed', refused: 'acquire refused', create_failed: 'could not create', rejected: 'check failed', timeout: 'timed out', cancelled: 'wait cancelled', check_failed: 'health check failed', held_long: 'held for long', state_changed: 'breaker' };
const HOLDERS = 12; // lines of the longest holders
const EVENTS = 200;
const LINGER = 8000; // ms for which an empty card stays: it would flicker

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
  setAttribute(node.link, 'href', `./#pool=${pool.id}`); // "#..." out of view would be a skip link
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
  setText(node.words, `${number(pool.active)} of ${number(pool.max)} in use` + (pool.waiting ? ` · ${compact(pool.waiting)} waiting` : ''));
  setAttribute(node.words, 'class', pool.waiting ? 'words busy' : 'words');
  const last = samples.length ? samples[samples.length - 1] : null;
  setText(node.rate, last ? `${compact(last[1])}/s` : '');
  node.spark.draw(samples, now);
}

function drawPill(node, pool) {
  const ending = pool.phase === 'closed' || pool.phase === 'draining';
  const fresh = pool.phase === 'new' && pool.state === 'ACTIVE';
  const shown = ending || fresh ? pool.phase.toUpperCase() : pool.state;
  const words = { ACTIVE: 'serving', INACTIVE: 'breaker open', RECOVERING: 'breaker half-open' };
  setText(node, words[shown] || pool.phase);
  setAttribute(node, 'data-state', shown);
}

const DESTROY_WORDS = { rejected: 'after a failed check', check_failed: 'by the health check', max_lifetime: 'too old', max_idle: 'idle for too long', max_uses: 'used up' };
const REFUSAL_WORDS = { circuit: 'by the breaker', overloaded: 'queue full', shed: 'waited too long', closed: 'pool closed', deadlock: 'deadlock' };

// -- the numbers of one pool -----------------------------------------------------------------------

function drawNumbers(parent, pool, samples) {
  const last = samples.length ? samples[samples.length - 1][1] : 0;
  const gone = Object.entries(pool.destroyed);
  const lost = gone.reduce((sum, [, count]) => sum + count, 0);
  const denied = Object.values(pool.refused).reduce((sum, count) => sum + count, 0);
  const reasons = gone.map(([reason, count]) => `${number(count)} ${DESTROY_WORDS[reason] || reason.replaceAll('_', ' ')}`);
  setText($('gone'), [reasons.length && `Destroyed: ${reasons.join(', ')}.`, pool.rejected && `Checks before acquire or release that failed: ${number(pool.rejected)}.`].filter(Boolean).join(' '));
  const entries = [
    ['In use', number(pool.active), pool.hook ? `${pool.hook} in a hook` : `of ${number(pool.max)}`, pool.active ? 'active' : ''],
    ['Idle', number(pool.idle), pool.creating ? `${pool.creating} being created` : '', ''],
    ['Waiting', compact(pool.waiting), '', pool.waiting ? 'waiting' : ''],
    ['Acquires', `${compact(last)}/s`, `${compact(pool.acquired)} in all`, ''],
    ['Refused', compact(denied), Object.entries(pool.refused).map(([reason, count]) => `${compact(count)} ${REFUSAL_WORDS[reason] || reason}`).join(', '), denied ? 'bad' : ''],
    ['Timeouts', compact(pool.timeouts), pool.cancelled ? `${compact(pool.cancelled)} cancelled` : '', pool.timeouts ? 'bad' : ''],
    ['Failed', compact(pool.failed), '', pool.failed ? 'bad' : ''],
    ['Created', compact(pool.created), `${compact(lost)} destroyed`, ''],
  ];
  fillNumbers(parent, entries);
}

// Large numbers, each with a name, small words and a kind.
function fillNumbers(parent, entries) {
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

// A card that has had nothing to show for a while gives its place to the others.
function collapse(card, filled, now) {
  if (filled || card.filledAt === undefined) card.filledAt = filled ? now : -Infinity;
  card.hidden = now - card.filledAt > LINGER;
  setAttribute($('grid'), `data-no-${card.id}`, card.hidden ? '' : null);
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
    const [task, where, since, deadline, lane] = line.waiter;
    const left = [deadline === null ? '' : `${age(Math.max(0, (deadline - now) / 1000))} left`, lane && `lane ${lane}`].filter(Boolean).join(' · ');
    setLine(node, age(Math.max(0, (now - since) / 1000)), task, left, where);
  });
  $('waiters-none').hidden = lines.length > 0;
  collapse($('waiting-card'), lines.length > 0, now);
}

function drawHolders(rows, now) {
  const held = rows.filter((row) => row && row[1] === 1).sort((a, b) => a[2] - b[2]).slice(0, HOLDERS);
  fill($('holders'), held, makeLine, (node, row) => {
    const runs = row[7] ? `\n${age((now - row[8]) / 1000)}: ${row[7]}` : '';
    setLine(node, age((now - row[2]) / 1000), row[3] || 'no task', [row[5], row[9] && `lane ${row[9]}`].filter(Boolean).join(' · '), (row[4] || '') + runs);
    setAttribute(node, 'class', row[5] ? 'pinned' : null);
  });
  $('holders-none').hidden = held.length > 0;
  collapse($('holders-card'), held.length > 0, now);
}

// A table whose rows have a head and as many cells as there are words for.
function fillTable(body, rows, wordsOf) {
  fill(body, rows, (row) => {
    const node = make('tr');
    node.parts = wordsOf(row).map((_, index) => make(index ? 'td' : 'th'));
    node.parts[0].scope = 'row';
    node.append(...node.parts);
    return node;
  }, (node, row) => wordsOf(row).forEach((words, index) => setText(node.parts[index], words)));
}

function drawStatements(slowest) {
  $('statements-card').hidden = !slowest.length;
  fillTable($('statements'), slowest, ([text, times, mean, longest, errors]) => [text, number(times), duration(mean), duration(longest), errors ? number(errors) : '']);
}

function drawLanes(lanes) {
  $('lanes-card').hidden = !lanes.length;
  fillTable($('lanes'), lanes, ([name, priority, limit, active, waiting, acquired, refused, failed, oldest]) => [
    name, String(priority), limit === null ? number(active) : `${number(active)} of ${number(limit)}`, compact(waiting), oldest ? age(oldest) : '', compact(acquired), refused ? compact(refused) : '', failed ? compact(failed) : '',
  ]);
}

function drawEvents(events, problemsOnly) {
  const all = [...events.values()].sort((a, b) => b[7] - a[7]);
  const shown = (problemsOnly ? all.filter(isProblem) : all).slice(0, EVENTS);
  fill($('events'), shown, makeLine, (node, event) => {
    const [ms, kind, task, said, seconds, times, until] = event;
    const lasted = until - ms >= 1000 ? ` in ${age((until - ms) / 1000)}` : '';
    const tag = times > 1 ? `× ${compact(times)}${lasted}` : seconds === null ? '' : duration(seconds);
    const text = kind === 'destroyed' ? DESTROY_WORDS[said] || said : kind === 'state_changed' ? switchWords(said) : kind === 'refused' ? REFUSAL_WORDS[said] || said : said;
    setLine(node, clock(ms), EVENT_WORDS[kind] || kind, tag, [task && times === 1 ? task : '', text].filter(Boolean).join(' · '));
    setAttribute(node, 'data-kind', kind);
    setAttribute(node, 'class', isProblem(event) ? 'problem' : null);
  });
  $('events-none').hidden = shown.length > 0;
}

// The new state, and the failure that led to it.
function switchWords(said) {
  const [state, ...cause] = said.split(' · ');
  return [BREAKER[state], ...cause].join(' · ');
}

// -- the breaker -----------------------------------------------------------------------------------

function drawBreaker(pool, breaker, now) {
  const changes = breaker.changes || [];
  const last = changes[changes.length - 1];
  setText($('breaker-state'), BREAKER[pool.state]);
  setAttribute($('breaker-state'), 'data-state', pool.state);
  const ago = (ms) => age(Math.max(0, (now - ms) / 1000));
  const begin = pool.since !== null ? pool.since : last && !last[2] ? last[0] : null;
  const since = begin === null ? '' : ` for ${ago(begin)}`;
  const tried = changes.some(([ms, state]) => state === 'RECOVERING' && ms >= begin);
  const probed = pool.state === 'INACTIVE' && tried ? `, last probe ${ago(last[0])} ago` : '';
  const strategy = breaker.strategy ? ` · ${breaker.strategy}` : ' · no strategy';
  const limit = pool.state === 'RECOVERING' ? ` (${breaker.limit} at most)` : '';
  const [word, meaning] = BREAKER_WORDS[pool.state];
  setText($('breaker-facts'), `${word}${since}${probed}: ${ENDING_WORDS[pool.phase] || meaning}${limit}${strategy}`);
  $('breaker-failure').hidden = !breaker.failure;
  setText($('breaker-failure'), breaker.failure ? `Last failure, ${ago(breaker.failed)} ago: ${breaker.failure}` : '');
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
    setText(node.parts[2], BREAKER[state]);
    setText(node.parts[3], until === null ? '' : seen ? '' : `for ${until > ms ? duration((until - ms) / 1000) : '< 1 ms'}`);
  });
}

// Which state the breaker was in, as long as the lines of the charts.
function drawStrip(changes, now) {
  const from = charts.rate.from;
  const parts = [];
  changes.forEach(([ms, state, seen], index) => {
    const until = index + 1 < changes.length ? changes[index + 1][0] : now;
    const start = index || !seen ? Math.max(ms, from) : from;
    // Before the first switch that is known: what opens was closed, all else may be forgotten.
    if (!index && start > from) parts.push([state === 'INACTIVE' ? 'ACTIVE' : '', start - from]);
    if (until > from && until > start) parts.push([state, until - start]);
  });
  fill($('strip'), parts, () => make('i'), (node, [state, length]) => {
    setAttribute(node, 'data-state', state);
    const grow = String(Math.round(length));
    if (node.shownGrow !== grow) node.style.flexGrow = node.shownGrow = grow;
  });
}
