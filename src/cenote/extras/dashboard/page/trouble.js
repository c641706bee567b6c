// What is wrong now, in words, over the whole width.

const RECENT = 3; // seconds whose mean is the rate of now
const SATURATED = 2000; // ms for which acquires must have waited until that is worth a line

// A mean of the last seconds of one column of the samples; only of those that ended after `since`.
function recently(samples, column, since = 0) {
  const last = samples.slice(-RECENT).filter((sample) => sample[0] > since);
  return last.length ? last.reduce((sum, sample) => sum + sample[column], 0) / last.length : 0;
}

// So many acquires a second do something; one does it in other words.
function acquiring(rate, many, one) {
  const words = compact(rate);
  return words === '1' ? `1 acquire a second ${one}` : `${words} acquires a second ${many}`;
}

function troublesOf(pool, samples, now) {
  const found = [];
  if (pool.phase === 'closed') return found;
  const refused = recently(samples, 5, pool.since || 0); // at first of the outage alone
  const failed = recently(samples, 4);
  const said = (rate) => (rate > 0 ? `${acquiring(rate, 'are refused', 'is refused')}.` : '');
  const cause = pool.failure ? `Last failure: ${pool.failure}` : '';
  const since = pool.since === null ? '' : ` since ${clock(pool.since)}, for ${age(Math.max(0, (now - pool.since) / 1000))}`;
  if (pool.state === 'INACTIVE') {
    found.push(['bad', `Circuit breaker open${since}`, [said(refused) || beginning(pool), probe(pool, now)], cause]);
  } else if (pool.state === 'RECOVERING') {
    found.push(['warn', `Circuit breaker half-open${since}`, ['A few acquires are let through, to see whether the backend is back.', said(refused)], cause]);
  } else if (refused > 0) {
    found.push(...refusals(pool, said(refused)));
  }
  if (pool.saturated !== null && now - pool.saturated >= SATURATED) {
    const who = pool.top.map(([task, where, held]) => `task ${task} for ${age(Math.max(0, (now - held) / 1000))}${where ? ` (${where})` : ''}`);
    // A lane at its limit has waiters while others find something.
    const full = pool.active < pool.max ? 'Acquires wait' : `All ${number(pool.max)} in use`;
    found.push(['warn', `${full} since ${clock(pool.saturated)}, ${compact(pool.waiting)} waiting`, [], who.length ? `Longest: ${who.join('; ')}` : '']);
  }
  const late = recently(samples, 6);
  if (failed > late && pool.state === 'ACTIVE') {
    found.push(['bad', acquiring(failed - late, 'fail', 'fails'), ['No resource could be made for them.'], cause]);
  }
  if (late > 0 && pool.state === 'ACTIVE') {
    found.push(['bad', acquiring(late, 'time out', 'times out'), [`${number(pool.active)} of ${number(pool.max)} in use, ${compact(pool.waiting)} waiting.`], '']);
  }
  return found;
}

// Those of a breaker that was closed a moment ago, and of a pool that closes, are no trouble.
function refusals(pool, said) {
  const found = [];
  if (pool.denied.includes('deadlock')) found.push(['bad', 'Deadlock', [said], 'Tasks that hold a resource wait for another one of the same pool.']);
  if (pool.denied.includes('overloaded')) found.push(['bad', 'Overloaded', [said, `The queue is full: ${compact(pool.waiting)} wait.`], '']);
  else if (pool.denied.includes('shed')) found.push(['bad', 'Overloaded', [said, `Acquires that have waited for too long are dropped; ${compact(pool.waiting)} wait.`], '']);
  return found;
}

// Of the first second of an outage, whose rate is not known yet.
function beginning(pool) {
  return pool.denied.includes('circuit') ? 'Acquires are refused.' : '';
}

function probe(pool, now) {
  if (pool.retry === null) return 'It stays open until it is closed by hand.';
  const left = (pool.retry - now) / 1000;
  if (left <= 0) return 'The next acquire is the probe.';
  return `Next probe in ${left < 10 ? `${Math.ceil(left)} s` : age(left)}.`;
}

// The pool that is looked at comes first; the others have a link.
function drawTrouble(parent, pools, samples, current, now, fleets) {
  const lines = [...pools].sort((a, b) => (b.id === current) - (a.id === current)).flatMap((pool) => {
    return troublesOf(pool, samples.get(pool.id) || [], now).map((trouble) => [pool.name, `./#pool=${pool.id}`, ...trouble]);
  });
  for (const fleet of fleets) {
    for (const trouble of fleetTroubles(fleet)) lines.push([fleet.name, `./#fleet=${encodeURIComponent(fleet.name)}`, ...trouble]);
  }
  $('calm').hidden = lines.length > 0 || !pools.length;
  fill(parent, lines, () => {
    const node = make('li');
    node.parts = { name: make('a', 'name'), title: make('strong'), said: make('span', 'said'), cause: make('span', 'cause') };
    node.append(node.parts.name, node.parts.title, node.parts.said, node.parts.cause);
    return node;
  }, (node, [name, target, kind, title, said, cause]) => {
    setAttribute(node, 'class', kind);
    setText(node.parts.name, name);
    setAttribute(node.parts.name, 'href', target);
    setText(node.parts.title, title);
    setText(node.parts.said, said.filter(Boolean).join(' '));
    setText(node.parts.cause, cause);
    node.parts.cause.hidden = !cause;
  });
}
