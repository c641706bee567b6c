// What is known, the connection that tells it, and the buttons.

const RETRY_FIRST = 500; // ms until the first attempt to connect again; then twice as long, up to
const RETRY_LAST = 5000;
const SILENCE = 6000; // ms without a message after which the connection counts as lost
const HIDDEN = 15000; // ms after which a page that nobody sees stops watching

const known = { fleets: [], fleet: null, pools: new Map(), ids: [], samples: new Map(), details: null, bounds: [], control: false, process: '' };
const wanted = { pool: null, name: null };
const link = { source: null, retry: RETRY_FIRST, timer: 0, heard: 0, lostAt: null, skew: 0, last: '' };
let token = null; // only here, and only as long as the page lives
let drawing = false;

const serverNow = () => Date.now() - link.skew;
const tiles = new Tiles($('tiles'), $('inspector'), $('legend'), serverNow);
const charts = {
  rate: new Lines($('rate'), 'Throughput', [{ name: 'rate', column: 1, area: true, label: 'acquires' }], (last) => `${compact(last ? last[1] : 0)} a second`),
  errors: new Lines($('errors'), 'Errors', [{ name: 'refused', column: 5, area: true, label: 'refused' }, { name: 'failed', column: 4, label: 'failed or timed out' }], (last) => (last && last[4] + last[5] ? `${compact(last[5])} refused, ${compact(last[4])} failed or timed out a second` : 'none now')),
  load: new Lines($('load'), 'Load', [{ name: 'active', column: 3, area: true, label: 'in use' }, { name: 'waiting', column: 2, label: 'waiting' }], (_, pool) => `${number(pool.active)} in use, ${compact(pool.waiting)} waiting`),
  waits: new Bars($('waits'), 'Wait time', 'waiting', 'at once'),
  holds: new Bars($('holds'), 'Hold time', 'active', '< 10 µs'),
};

// -- the connection --------------------------------------------------------------------------------

// With `after`, what was told up to there is not told again.
function connect(after = '') {
  clearTimeout(link.timer);
  if (link.source) link.source.close();
  const query = new URLSearchParams();
  if (wanted.pool !== null) query.set('pool', wanted.pool);
  if (wanted.name !== null) query.set('name', wanted.name);
  if (after) query.set('after', after);
  const source = new EventSource(`events?${query}`);
  link.source = source;
  link.heard = Date.now();
  source.onmessage = (event) => {
    if (source !== link.source) return;
    link.last = event.lastEventId;
    hear(JSON.parse(event.data));
  };
  // A stream lasts some seconds, so that a server can stop: the next one goes on where it ended.
  source.addEventListener('again', () => {
    if (source === link.source) connect(known.details && known.details.id === wanted.pool ? link.last : '');
  });
  source.onerror = () => {
    if (source === link.source) lose();
  };
}

function lose() {
  link.source.close();
  link.source = null;
  if (link.lostAt === null) link.lostAt = Date.now();
  link.timer = setTimeout(connect, link.retry * (0.8 + 0.4 * Math.random()));
  link.retry = Math.min(RETRY_LAST, link.retry * 2);
  drawLink();
  askWhetherLetIn();
}

// A stream does not say why it failed. Who is not let in any more sees the page that says why.
async function askWhetherLetIn() {
  const answer = await fetch('./', { method: 'HEAD', credentials: 'same-origin' }).catch(() => null);
  if (answer && (answer.status === 401 || answer.status === 403)) location.reload();
}

async function signOut() {
  await fetch('logout', { method: 'POST', credentials: 'same-origin' }).catch(() => null);
  location.reload();
}

function leave() {
  clearTimeout(link.timer);
  if (link.source) link.source.close();
  link.source = null;
}

function hear(message) {
  link.heard = Date.now();
  link.retry = RETRY_FIRST;
  if (message.now) link.skew = Date.now() - message.now;
  take(message);
  if (link.lostAt !== null) link.lostAt = null;
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(draw);
  }
}

function take(message) {
  if (message.full) {
    known.pools.clear();
    known.samples.clear();
    known.fleets = [];
    known.details = null;
    known.bounds = message.bounds;
    known.control = message.control;
    $('sign-out').hidden = !message.session;
    known.process = message.process;
    setText($('process'), `process ${message.pid}`);
  }
  if (message.fleets) known.fleets = message.fleets;
  if (message.ids) {
    known.ids = message.ids;
    for (const id of known.pools.keys()) if (!known.ids.includes(id)) known.pools.delete(id);
  }
  for (const pool of message.pools || []) {
    announce(known.pools.get(pool.id), pool);
    known.pools.set(pool.id, pool);
  }
  for (const [id, fresh] of Object.entries(message.samples || {})) {
    const samples = (known.samples.get(Number(id)) || []).concat(fresh).slice(-SPAN_MOST);
    known.samples.set(Number(id), samples);
  }
  if (message.details) takeDetails(message.details);
}

function takeDetails(fresh) {
  if (!known.details || known.details.id !== fresh.id) {
    known.details = { id: fresh.id, waiters: [], waits: [], holds: [], breaker: {}, slowest: [], lanes: [], events: new Map() };
    tiles.reset();
  }
  const details = known.details;
  if (fresh.tiles) tiles.take(fresh.tiles, fresh.places);
  for (const part of ['waiters', 'waits', 'holds', 'breaker', 'slowest', 'lanes']) if (fresh[part]) details[part] = fresh[part];
  for (const event of fresh.events || []) details.events.set(event[7], event);
  for (const number of details.events.keys()) {
    if (details.events.size <= EVENTS) break;
    details.events.delete(number);
  }
}

function announce(before, pool) {
  if (before && before.state !== pool.state) {
    $('live').textContent = `${pool.name}: the circuit breaker is ${BREAKER[pool.state]} now`;
  }
}

// -- drawing ---------------------------------------------------------------------------------------

function draw() {
  drawing = false;
  drawLink();
  const now = serverNow();
  const shown = known.ids.map((id) => known.pools.get(id)).filter(Boolean);
  const fleet = known.fleets.find((each) => each.name === known.fleet);
  $('fleets').hidden = !known.fleets.length;
  fill($('fleets'), known.fleets, makeFleet, (node, each) => drawFleetCard(node, each, each === fleet));
  const id = known.details && !fleet ? known.details.id : null;
  fill($('pools'), shown, makePool, (node, pool) => drawPool(node, pool, known.samples.get(pool.id) || [], now, pool.id === id));
  showCurrent(id);
  drawTrouble($('trouble'), shown, known.samples, id, now, known.fleets);
  $('fleet').hidden = !fleet;
  if (fleet) drawFleetPage(fleet, now);
  $('nothing').hidden = shown.length > 0;
  const pool = known.pools.get(id);
  $('detail').hidden = !pool;
  if (!pool) {
    if (!fleet) document.title = 'cenote';
    return;
  }
  wanted.name = pool.name;
  wanted.pool = pool.id;
  drawDetail(pool, known.details, known.samples.get(id) || [], now);
}

// On a phone the cards are in one row: the one that was chosen comes into view, once.
function showCurrent(id) {
  if (id === known.inView) return;
  known.inView = id;
  const current = $('pools').querySelector('[aria-current]');
  const row = $('pools');
  if (current) row.scrollLeft = current.parentElement.offsetLeft - row.offsetLeft - 4;
}

function drawDetail(pool, details, samples, now) {
  document.title = `${pool.waiting ? `(${compact(pool.waiting)}) ` : ''}${pool.name} · cenote`;
  setText($('pool-name'), pool.name);
  drawPill($('pool-state'), pool);
  setText($('pool-facts'), [`${pool.min} to ${number(pool.max)} slots`, pool.thread && `thread ${pool.thread}`].filter(Boolean).join(' · '));
  $('stalled').hidden = pool.stalled === null;
  setText($('stalled'), pool.stalled === null ? '' : `The event loop of this pool has not answered for ${duration(pool.stalled)}: something blocks it. The counts are right, the rest is old.`);
  drawNumbers($('numbers'), pool, samples);
  tiles.draw(pool);
  drawWaiters(details.waiters, pool, now);
  drawHolders(tiles.rows, now);
  charts.rate.draw(samples, now, pool);
  charts.errors.draw(samples, now, pool);
  charts.load.draw(samples, now, pool);
  charts.waits.draw(details.waits, known.bounds);
  charts.holds.draw(details.holds, known.bounds);
  drawLanes(details.lanes);
  drawStatements(details.slowest);
  drawBreaker(pool, details.breaker, now);
  drawEvents(details.events, $('problems').checked);
  $('controls').hidden = !known.control;
}

function drawLink() {
  const lost = link.lostAt !== null;
  const state = lost ? 'offline' : link.heard && known.bounds.length ? 'live' : 'connecting';
  setAttribute($('link'), 'data-state', state);
  setText($('link-text'), { live: 'Live', offline: 'Offline', connecting: 'Connecting' }[state]);
  setAttribute(document.body, 'class', lost ? 'stale' : null);
  $('offline').hidden = !lost;
  if (lost) setText($('offline'), `The server has not answered since ${clock(link.lostAt)}. What you see is from then; the page goes on by itself.`);
}

// -- the buttons -----------------------------------------------------------------------------------

async function order(action, secret) {
  const pool = known.details ? known.details.id : 0;
  let answer;
  try {
    answer = await fetch('control', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${secret}` },
      body: JSON.stringify({ process: known.process, pool, action }),
      credentials: 'same-origin',
    });
  } catch {
    return 'The server does not answer.';
  }
  if (answer.ok) return null;
  if (answer.status === 403) forget();
  const said = await answer.json().catch(() => ({}));
  return said.error ? capital(said.error) : `The server said ${answer.status}.`;
}

function tell(words, bad) {
  setText($('control-result'), words);
  setAttribute($('control-result'), 'class', bad ? 'bad' : null);
}

function forget() {
  token = null;
  $('unlock').hidden = false;
  $('lock').hidden = true;
}

async function unlock(event) {
  event.preventDefault();
  const secret = $('token').value.trim();
  if (!/^[!-~]+$/.test(secret)) {
    tell('Enter the control token first.', true);
    return;
  }
  const problem = await order('check', secret);
  if (problem) {
    tell(problem, true);
    return;
  }
  token = secret;
  $('token').value = '';
  $('unlock').hidden = true;
  $('lock').hidden = false;
  tell('Unlocked until this page is closed.');
}

async function press(button) {
  const action = button.dataset.action;
  if (token === null) {
    tell('Enter the control token first.', true);
    $('token').focus();
    return;
  }
  if (action === 'deactivate' && !confirmed(button)) return;
  const problem = await order(action, token);
  tell(problem || `Done: ${action}.`, Boolean(problem));
}

// Deactivating fails everybody who waits: it takes two presses.
function confirmed(button) {
  if (button.armed) {
    clearTimeout(button.armed);
    disarm(button);
    return true;
  }
  button.textContent = 'Press again to deactivate';
  button.armed = setTimeout(() => disarm(button), 4000);
  return false;
}

function disarm(button) {
  button.armed = 0;
  button.textContent = 'Deactivate';
}

// -- the rest --------------------------------------------------------------------------------------

const THEMES = ['auto', 'light', 'dark'];

function setTheme(theme) {
  if (theme === 'auto') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.setAttribute('data-theme', theme);
  $('theme').textContent = `Theme: ${theme}`;
  $('theme').dataset.theme = theme;
}

function storedTheme(theme) {
  try {
    if (theme) localStorage.setItem('cenote-theme', theme);
    return localStorage.getItem('cenote-theme');
  } catch {
    return null; // not allowed here
  }
}

function fleetAsked() {
  const found = /^#fleet=(.+)$/.exec(location.hash);
  try {
    return found && decodeURIComponent(found[1]);
  } catch {
    return null; // not by a link of ours
  }
}

function choose() {
  known.fleet = fleetAsked();
  draw();
  const found = /^#pool=(\d+)$/.exec(location.hash);
  if (!found || Number(found[1]) === wanted.pool) return;
  wanted.pool = Number(found[1]);
  wanted.name = known.pools.has(wanted.pool) ? known.pools.get(wanted.pool).name : null;
  connect();
}

$('theme').addEventListener('click', () => {
  const next = THEMES[(THEMES.indexOf($('theme').dataset.theme) + 1) % THEMES.length];
  storedTheme(next);
  setTheme(next);
});
$('sign-out').addEventListener('click', signOut);
$('unlock').addEventListener('submit', unlock);
$('lock').addEventListener('click', () => {
  forget();
  tell('Forgotten.');
});
for (const button of document.querySelectorAll('[data-action]')) button.addEventListener('click', () => press(button));
$('problems').addEventListener('change', draw);
addEventListener('hashchange', choose);

let hiding = 0;
document.addEventListener('visibilitychange', () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(leave, HIDDEN);
  else if (!link.source) connect();
});

addEventListener('pagehide', leave); // what ends with the page is not lost

setInterval(() => {
  if (link.source && Date.now() - link.heard > SILENCE) lose();
  else if (!document.hidden && link.lostAt === null && known.details && !drawing) draw();
}, 1000);

setTheme(THEMES.includes(storedTheme()) ? storedTheme() : 'auto');
known.fleet = fleetAsked();
const asked = /^#pool=(\d+)$/.exec(location.hash);
if (asked) wanted.pool = Number(asked[1]);
connect();
