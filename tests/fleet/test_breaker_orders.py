"""Votes, claims and verdicts of two members on every ledger, in every order that there is.

Each order has a fleet of its own, and all go on at once, so that real ledgers take no longer than
one order does. The reference is asked at the time before and at the time after each call: the
ledger's answer must be one of its two answers. PostgreSQL is not here: it votes by the host's file.
"""

import asyncio
import copy
import itertools
from dataclasses import replace

import pytest

from cenote.fleet.ledger import FleetState, LedgerConfig, Sync
from cenote.fleet.local import LocalLedger
from cenote.fleet.redis import RedisLedger
from cenote.fleet.reference import ReferenceLedger
from cenote.testing import now
from tests.support.interleavings import interleavings
from tests.support.memory_ledger import MemoryStore

pytestmark = [pytest.mark.virtual_time, pytest.mark.once]  # ledgers only

TTL = 60.0  # no lease ends meanwhile
STEPS = ("vote", "claim", "verdict")
ORDERS = [*interleavings(*([(member, step) for step in STEPS] for member in "ab"))]
OUTCOMES = [*itertools.product([True, False], repeat=2)]  # of the probes of a and b


@pytest.fixture(params=["memory", "local", "redis"])
def connect(request, tmp_path):
    """Make a ledger for the fleet of this name."""
    stores = {}

    def make(name):
        if request.param == "memory":
            ledger = stores.setdefault(name, MemoryStore(ttl=TTL)).connect()
            ledger.delay = 0.0
            return ledger
        if request.param == "local":
            config = LedgerConfig("", name, TTL, str(tmp_path / name))
            return LocalLedger(config, clock=now)
        url = request.getfixturevalue("redis_server").url
        return RedisLedger(LedgerConfig(url, f"{tmp_path.name}-{name}", TTL), clock=now)

    return make


class Reference:
    """What the ledger may know: one state, or two while a call was under way."""

    def __init__(self):
        self.states = [ReferenceLedger(TTL, TTL / 5, learns=False)]

    async def expect(self, ledger, operation, member, epoch, **more):
        """Ask the ledger; its answer must be one that the reference gives meanwhile."""
        times = [now()]
        answer = await getattr(ledger, operation)(member, epoch, **more)
        times.append(now())
        found = []
        for state, time in itertools.product(self.states, times):
            copied = copy.deepcopy(state)
            expected = getattr(copied, operation)(member, epoch, *more.values(), time)
            if is_same(expected, answer) and copied not in found:
                found.append(copied)
        assert found, f"{operation} of {member} in epoch {epoch}: {answer}"
        self.states = found
        return answer


def is_same(expected, answer):
    """Whether both are the same, but for the time that something takes."""
    return replace(expected, next_in=0.0) == replace(answer, next_in=0.0)


async def play(ledger, order, outcomes, together):
    """Let two hosts do this, in this order. Returns the circuit in the end, and who has made a
    probe. A member that is told of a newer epoch says the same for that one."""
    await ledger.open(lambda news: None)
    reference, known, probes = Reference(), {}, []
    try:
        for member in "ab":
            request = Sync(member, 1, 1, 1, 1, 4, 100, f"host-{member}", 1, "p", breaker="ACTIVE")
            known[member] = (await ledger.sync(request)).circuit.epoch
            for state in reference.states:
                state.sync(request, now())
        for member, step in order:
            more = {}
            if step == "vote":
                more = {"down": True}
            elif step == "verdict":
                more = {"up": outcomes["ab".index(member)]}
            elif not together:
                await asyncio.sleep(1.5)
            told = await reference.expect(ledger, step, member, known[member], **more)
            if step != "verdict" and told.epoch != known[member] and told.prober is None:
                told = await reference.expect(ledger, step, member, told.epoch, **more)
            if step == "claim" and told.prober == member:
                probes.append(member)
            known[member] = told.epoch
        return told, probes
    finally:
        await ledger.close()


@pytest.mark.parametrize("together", [True, False], ids=["at once", "in time"])
async def test_every_order_is_that_of_the_reference(connect, together):
    scenarios = [*itertools.product(ORDERS, OUTCOMES)]
    assert len(scenarios) == 80
    ends = await asyncio.gather(
        *(
            play(connect(f"orders{int(together)}-{i}"), order, outcomes, together)
            for i, (order, outcomes) in enumerate(scenarios)
        )
    )
    for (_, outcomes), (told, probes) in zip(scenarios, ends, strict=True):
        if told.state is FleetState.ACTIVE:
            assert any(outcomes["ab".index(member)] for member in probes)
    states = {told.state for told, _ in ends}
    if together:
        assert not any(probes for _, probes in ends)  # nobody may probe in the first second
        assert states == {FleetState.INACTIVE}
    else:
        assert states == {FleetState.ACTIVE, FleetState.INACTIVE}
        assert {len(probes) for _, probes in ends} == {1, 2}
