"""The ledger in PostgreSQL does what the reference does, as soon as its hosts have come to rest.

Each host has a real file and its agent makes its real rounds; the sessions are of a server in
memory, which locks as PostgreSQL does. Hosts agree with each other in rounds and not at once, so
what is compared is where they arrive; that nobody ever has too much is looked at after every step.
"""

import asyncio
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from cenote.fleet.host_session import HostLook
from cenote.fleet.hosts import HostRow
from cenote.fleet.ledger import LedgerConfig, Sync
from cenote.fleet.local import LocalLedger
from cenote.fleet.postgresql import ORPHANED, AgentRounds, PostgresLedger
from cenote.fleet.reference import ReferenceLedger

pytest.importorskip("asyncpg")
pytestmark = [pytest.mark.once, pytest.mark.own_loop, pytest.mark.driver]

BEAT = 2.0
BUDGET = 30
MEMBERS = "abcdef"
OFTEN = settings(max_examples=30, stateful_step_count=15)
VERY_OFTEN = settings(max_examples=2000, stateful_step_count=40)


class Session:
    """A session of a host at the server in memory, as `HostSession` is one at a real server."""

    def __init__(self, machine):
        self.machine = machine
        self.key = machine.next_key
        machine.next_key += 1
        self.tokens = set()
        self.shown = ""

    async def look(self, me, timeout):
        self.shown = me.shown("shop")
        others = [
            HostRow.read(each.key, each.shown, frozenset(each.tokens))
            for each in self.machine.sessions()
            if each is not self and each.shown
        ]
        return HostLook(tuple(others), self.machine.now)

    async def take(self, tokens, timeout):
        taken = set().union(*(each.tokens for each in self.machine.sessions()))
        self.tokens |= set(tokens) - taken

    async def give(self, tokens, timeout):
        self.tokens -= set(tokens)

    async def tell(self, keys, timeout):
        pass

    async def listen_on(self, timeout):
        pass


class HostLedger(PostgresLedger):
    """The ledger of a host whose agent makes a round when it is told to."""

    _watch = LocalLedger._watch
    open = LocalLedger.open


class Host:
    """A host: its file, its agent, and what was granted to its members."""

    def __init__(self, machine, path):
        self.machine = machine
        config = LedgerConfig("postgresql://app@db/shop", "shop", 5 * BEAT, str(path))
        self.ledger = HostLedger(config, clock=machine.time)
        self.grants = {}

    async def restart(self):
        """Its session ends, and there is a new one."""
        self.session = Session(self.machine)
        self.rounds = AgentRounds(self.ledger)
        self.rounds._loop = self.machine
        self.rounds._grows_at = self.machine.now + ORPHANED

    async def turn(self):
        while await self.rounds.run(self.session, woken=True):
            pass


class PostgresMachine(RuleBasedStateMachine):
    hosts = 1

    def __init__(self):
        super().__init__()
        self.loop = asyncio.SelectorEventLoop()
        self.now, self.next_key = 1000.0, 1
        self.directory = tempfile.TemporaryDirectory()
        self.reference = ReferenceLedger(math.inf, BEAT, learns=False)
        self.there = []
        self.lost = False  # a session has ended since everybody had come to rest
        self.asked = {}
        self.expected = {}  # what the reference has granted
        self.seq = 0

    def time(self):
        return self.now

    def sessions(self):
        return [each.session for each in self.there]

    def run(self, coroutine):
        async def bounded():
            async with asyncio.timeout(60):
                return await coroutine

        return self.loop.run_until_complete(bounded())

    def host_of(self, member):
        return self.there[MEMBERS.index(member) % len(self.there)]

    @initialize(members=st.integers(1, 6))
    def begin(self, members):
        async def open_all():
            for number in range(self.hosts):
                host = Host(self, Path(self.directory.name, str(number)))
                await host.restart()
                self.there.append(host)
                await host.ledger.open(lambda news: None)
                await host.turn()

        self.run(open_all())
        for member in MEMBERS[:members]:
            self.sync(member, 0, 1)

    def teardown(self):
        async def close_all():
            for host in self.there:
                await host.ledger.close()

        try:
            if self.there:
                self.rest()
        finally:
            self.run(close_all())
            self.loop.close()
            self.directory.cleanup()

    # -- what happens ------------------------------------------------------------------------------

    @rule(member=st.sampled_from(MEMBERS), need=st.sampled_from([0, 0, 9]), floor=st.just(1))
    def sync(self, member, need, floor):
        self.asked[member] = need, floor
        self.run(self.beat(member))

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member):
        if self.asked.pop(member, None) is not None:
            self.seq += 1
            host = self.host_of(member)
            del host.grants[member], self.expected[member]
            self.run(host.ledger.leave(member, self.seq))
            self.reference.leave(member, self.seq, self.now)

    @rule(number=st.integers(0, 2))
    def turn(self, number):
        self.run(self.there[number % len(self.there)].turn())

    @rule(number=st.integers(0, 2))
    def lose_session(self, number):
        self.run(self.there[number % len(self.there)].restart())
        self.lost = True

    @rule(seconds=st.sampled_from([0.1, ORPHANED, BEAT, 5.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule()
    def rest(self):
        """Everybody beats, and gives back what it is asked for, until nothing changes any more."""

        async def settle():
            for _ in range(8):
                for host in self.there:
                    await host.turn()
                    for member in [*host.grants]:
                        await self.beat(member)

        self.now += 2 * ORPHANED  # what has ended is known to everybody
        self.run(settle())
        self.now += 2 * ORPHANED
        self.run(settle())
        self.lost = False
        self.nobody_has_too_much()
        self.compare()

    async def beat(self, member):
        need, floor = self.asked[member]
        host = self.host_of(member)
        self.seq += 1
        grant = host.grants.get(member)
        request = Sync(
            member, self.seq, self.kept(grant), need, floor, 20, BUDGET, "host",
            MEMBERS.index(member), "pool",
        )  # fmt: skip
        host.grants[member] = await host.ledger.sync(request)
        request = replace(request, keep=self.kept(self.expected.get(member)))
        self.expected[member] = self.reference.sync(request, self.now)

    @staticmethod
    def kept(grant):
        """What a member that uses nothing keeps after such an answer."""
        if grant is None:
            return 0
        least = grant.held - grant.owed if not grant.lend else 0
        return min(grant.held, max(grant.target, least))

    # -- what is so --------------------------------------------------------------------------------

    def held(self, host):
        return sum(each.held for each in host.grants.values())

    @invariant()
    def nobody_has_too_much(self):
        for session in self.sessions():
            others = [each for each in self.sessions() if each is not session]
            assert not any(session.tokens & each.tokens for each in others)
        if not self.lost:
            for host in self.there:
                assert self.held(host) <= len(host.session.tokens) <= BUDGET
            assert sum(map(self.held, self.there)) <= BUDGET

    def compare(self):
        """With one host everything is that of the reference. With several, what cannot be divided
        may go to another one, and what nobody needs is lent to each host as a whole."""
        rows = self.reference.rows
        short = sum(row.demand.need for row in rows.values()) > BUDGET
        for host in self.there:
            expected = sum(rows[member].charge for member in host.grants)
            if short:
                slack = len(host.grants)
                assert abs(self.held(host) - expected) <= slack, (self.now, host.grants, rows)
            for member, grant in host.grants.items():
                if self.hosts == 1:
                    assert grant.held == rows[member].charge
                elif not short:
                    assert grant.held >= rows[member].demand.need
                assert grant.used <= BUDGET
                assert (grant.budget, grant.processes) == (BUDGET, len(rows))


class ManyHosts(PostgresMachine):
    hosts = 3


@pytest.mark.parametrize("machine", [PostgresMachine, ManyHosts], ids=["one host", "three hosts"])
def test_hosts_at_rest_have_what_the_reference_gives(machine):
    run_state_machine_as_test(machine, settings=OFTEN)


@pytest.mark.exhibit
@pytest.mark.parametrize("machine", [PostgresMachine, ManyHosts], ids=["one host", "three hosts"])
def test_hosts_at_rest_have_what_the_reference_gives_very_often(machine):
    run_state_machine_as_test(machine, settings=VERY_OFTEN)
