// A fleet: one budget for many processes, as its ledger tells it.

const FLEET_BREAKER = { ACTIVE: 'closed', SUSPECT: 'suspect', INACTIVE: 'open', RECOVERING: 'half-open' };

function fleetSums(fleet) {
  const [HOST, PROCESS, HELD, NEED, SILENT] = [0, 1, 3, 4, 7];
  const processes = new Map();
  for (const row of fleet.rows) {
    const key = `${row[HOST]} ${row[PROCESS]}`;
    const sum = processes.get(key) || { host: row[HOST], process: row[PROCESS], held: 0, need: 0, silent: true };
    sum.held += row[HELD];
    sum.need += row[NEED];
    sum.silent = sum.silent && row[SILENT];
    processes.set(key, sum);
  }
  const list = [...processes.values()];
  return {
    processes: list,
    hosts: new Set(list.map((each) => each.host)).size,
    held: list.reduce((sum, each) => sum + each.held, 0),
    need: list.reduce((sum, each) => sum + each.need, 0),
    silent: list.filter((each) => each.silent).length,
    short: list.filter((each) => each.need > each.held).length,
  };
}

function several(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

// Lines for what is wrong now: kind, title, words, cause.
function fleetTroubles(fleet) {
  const found = [];
  const sums = fleetSums(fleet);
  if (fleet.problem !== null) {
    found.push(['bad', 'The fleet cannot be reached', ['This process goes on with what it has, then with its equal part at most.'], fleet.problem]);
  }
  if (fleet.circuit === 'INACTIVE') {
    found.push(['bad', 'The circuit breaker of the fleet is open', ['Most hosts have found the backend down; one process at a time makes a probe.'], '']);
  }
  if (sums.silent) {
    found.push(['warn', `${several(sums.silent, 'process is', 'processes are')} silent`, ['What they had is kept back until somebody has counted it.'], '']);
  }
  if (sums.short && sums.need > fleet.budget) {
    found.push(['warn', `${several(sums.short, 'process needs', 'processes need')} more than their part`, [`${number(sums.need)} are needed together, the budget is ${number(fleet.budget)}.`], '']);
  }
  return found;
}

function makeFleet() {
  const node = make('li');
  node.link = make('a');
  const head = make('span', 'head');
  node.name = make('span', 'name');
  node.pill = make('span', 'pill');
  head.append(node.name, node.pill);
  node.bar = make('span', 'bar');
  node.used = make('i', 'active');
  node.bar.append(node.used);
  const foot = make('span', 'foot');
  node.words = make('span', 'words');
  node.rate = make('span', 'rate');
  foot.append(node.words, node.rate);
  node.link.append(head, node.bar, foot);
  node.append(node.link);
  return node;
}

function drawFleetPill(node, fleet) {
  const state = fleet.problem !== null || fleet.circuit === 'INACTIVE' ? 'INACTIVE' : 'ACTIVE';
  setText(node, fleet.problem !== null ? 'not reachable' : fleet.circuit === 'INACTIVE' ? 'breaker open' : 'fleet');
  setAttribute(node, 'data-state', state);
}

function drawFleetCard(node, fleet, current) {
  const sums = fleetSums(fleet);
  setAttribute(node.link, 'href', `./#fleet=${encodeURIComponent(fleet.name)}`);
  setAttribute(node.link, 'aria-current', current ? 'true' : null);
  setText(node.name, fleet.name);
  setAttribute(node.name, 'title', fleet.name);
  drawFleetPill(node.pill, fleet);
  const width = `${Math.min(100, (sums.need / fleet.budget) * 100).toFixed(1)}%`;
  if (node.used.shownWidth !== width) node.used.style.width = node.used.shownWidth = width;
  setText(node.words, fleet.problem === null ? `${number(sums.need)} needed of ${number(fleet.budget)}` : '');
  setText(node.rate, fleet.problem === null ? several(sums.processes.length, 'process', 'processes') : '');
}

function drawFleetPage(fleet, now) {
  const sums = fleetSums(fleet);
  const known = fleet.problem === null;
  document.title = `${fleet.name} · cenote`;
  setText($('fleet-name'), fleet.name);
  drawFleetPill($('fleet-state'), fleet);
  setText($('fleet-facts'), known ? `a budget for ${several(sums.processes.length, 'process', 'processes')} on ${several(sums.hosts, 'host')}` : `this process may have ${number(fleet.own)} for now`);
  const free = Math.max(0, fleet.budget - sums.held);
  fillNumbers($('fleet-numbers'), [
    ['Budget', number(fleet.budget), 'resources, all together', ''],
    ['Lent', known ? number(sums.held) : '?', known ? `${number(free)} free` : '', sums.held ? 'active' : ''],
    ['Needed', known ? number(sums.need) : '?', 'in use and waited for, lately', sums.need > fleet.budget ? 'waiting' : ''],
    ['Short of it', known ? number(sums.short) : '?', 'processes that need more', sums.short ? 'waiting' : ''],
  ]);
  drawBudget($('fleet-bar'), sums.processes, fleet.budget);
  fillTable($('fleet-rows'), fleet.rows, ([host, process, pool, held, need, breaker, since, silent]) => [
    `${process}${process === fleet.here[1] && host === fleet.here[0] ? ' (this one)' : ''}`,
    host,
    pool,
    number(held),
    need > held ? `${number(need)} (short)` : number(need),
    silent ? 'silent' : breaker === null ? 'of its own' : FLEET_BREAKER[breaker] || breaker,
    age(Math.max(0, (now - since) / 1000)),
  ]);
  setText($('fleet-more'), fleet.more ? `and ${number(fleet.more)} more` : '');
  $('fleet-holders-card').hidden = !fleet.holders.length;
  fill($('fleet-holders'), fleet.holders, makeLine, (node, [host, process, pool, task, where, since, reason]) => {
    setLine(node, age(Math.max(0, (now - since) / 1000)), task, reason, `${where || ''}\n${pool} in process ${process} on ${host}`.trim());
  });
}

// One part for each process, as long as what it was lent; the rest is free.
function drawBudget(parent, processes, budget) {
  const parts = processes.map((each) => [each.held, `process ${each.process} on ${each.host}: ${number(each.held)}`]);
  fill(parent, parts, () => make('i'), (node, [held, words]) => {
    const width = `${((held / budget) * 100).toFixed(2)}%`;
    if (node.shownWidth !== width) node.style.width = node.shownWidth = width;
    setAttribute(node, 'title', words);
  });
}
