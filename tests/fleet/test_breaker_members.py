"""Two members of a fleet whose requests arrive in every order: who opens, probes and closes."""

import asyncio
import itertools

import pytest

import cenote
from cenote import CircuitState
from cenote.fleet.breaker import FleetBreaker
from cenote.fleet.ledger import FleetState, Sync
from cenote.testing import advance, now, settle
from tests.support.kit import Thing
from tests.support.memory_ledger import MemoryLedger, MemoryStore

pytestmark = pytest.mark.virtual_time

STEPS = 8  # requests whose order is chosen; later ones arrive as they are sent


class HeldLedger(MemoryLedger):
    """Keeps each request back until the test lets it arrive."""

    def __init__(self, store):
        super().__init__(store)
        self.delay = 0.0
        self.waiting = []
        self.holds = True

    async def _ask(self, operation, member, do):
        if self.holds:
            arrival = asyncio.get_running_loop().create_future()
            self.waiting.append(arrival)
            await arrival
        return await super()._ask(operation, member, do)


class Member:
    def __init__(self, store, name, make_pool, backend):
        self.name, self.backend = name, backend
        self.ledger = HeldLedger(store)
        self.strategy = FleetBreaker(cenote.ConsecutiveFailures(1, 1.0, 1))
        self.pool = make_pool(self.connect, strategy=self.strategy, max_size=3)

    async def connect(self):
        self.backend["probes"].append((now(), self.name))
        await asyncio.sleep(0.01)
        if self.backend["down"]:
            raise OSError("down")
        return Thing()

    async def start(self, store):
        await self.pool.open()
        await self.ledger.open(lambda news: news.circuit and self.voice.heard(news.circuit))
        self.voice = self.strategy.join(self.pool, self.name, self.ledger)
        request = Sync(self.name, 1, 1, 1, 1, 4, 99, self.name, 1, "pool", breaker="ACTIVE")
        store.reference.sync(request, now())


@pytest.mark.parametrize("first", [(0, 0), (0, 1), (1, 0), (1, 1)])
async def test_members_agree_whatever_the_order_of_their_requests(make_pool, first):
    for rest in itertools.product([0, 1], repeat=STEPS - len(first)):
        await play(make_pool, (*first, *rest))


async def play(make_pool, order):
    store = MemoryStore(ttl=1000.0)
    backend = {"down": True, "probes": []}
    members = [Member(store, name, make_pool, backend) for name in ("a", "b")]
    for each in members:
        await each.start(store)
    for each in members:
        with pytest.raises(OSError, match="down"):
            await each.pool.acquire()
    for who in order:
        await settle()
        for _ in range(3):  # in all less than a suspicion lives
            if members[who].ledger.waiting:
                members[who].ledger.waiting.pop(0).set_result(None)
                break
            await advance(0.1)
    for each in members:
        each.ledger.holds = False
        each.ledger.delay = 0.06  # so that both claim before they hear of each other
        for arrival in each.ledger.waiting:
            arrival.set_result(None)
    await advance(5)
    assert store.reference.ballot.state is FleetState.INACTIVE, order
    begun = now()
    await advance(10)
    times = [time for time, _ in backend["probes"] if time >= begun]
    assert 7 <= len(times) <= 11, order
    assert all(b - a > 0.9 for a, b in itertools.pairwise(times)), order  # one at a time
    backend["down"] = False
    await advance(2)
    assert {each.pool.state for each in members} == {CircuitState.ACTIVE}, order
    for each in members:
        each.voice.end()
        await each.ledger.close()
        await each.pool.close()
