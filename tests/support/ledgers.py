"""A machine that does the same to a ledger and to the reference, and finds every difference."""

import asyncio
import contextlib
import math
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cenote.fleet.ledger import Sync
from cenote.fleet.reference import ReferenceLedger

MEMBERS = ["a", "b", "c", "d", "ü 1", '"e"\\']
HOSTS = {"a": "one", "b": "one", "c": "two", "d": "two", "ü 1": "three", '"e"\\': "one"}
BEAT, TTL = 2.0, 10.0
SMALL = st.integers(0, 25)


@contextlib.asynccontextmanager
async def opened_ledger(ledger, news=None):
    """An open ledger, whose news go into a list."""
    await ledger.open((lambda each: None) if news is None else news.append)
    try:
        yield ledger
    finally:
        await ledger.close()


@dataclass
class Connection:
    """One connection to a ledger, and the news that came by it."""

    ledger: object
    members: set = field(default_factory=set)
    news: list = field(default_factory=list)


class LedgerMachine(RuleBasedStateMachine):
    """A subclass says how to connect, and how to bring the news in."""

    lasts = TTL
    learns = True
    connections = 2

    def __init__(self):
        super().__init__()
        self.loop = asyncio.SelectorEventLoop()
        self.now = 1000.0
        self.seqs = dict.fromkeys(MEMBERS, 0)
        self.held = dict.fromkeys(MEMBERS, 0)
        self.reference = ReferenceLedger(self.lasts, BEAT, learns=self.learns)
        self.open = []

    # -- of the subclass ---------------------------------------------------------------------------

    async def connect(self, news):
        raise NotImplementedError

    async def deliver(self):
        """Return after all news has come."""
        raise NotImplementedError

    # -- the two sides -----------------------------------------------------------------------------

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def clock(self):
        return self.now

    @initialize(
        members=st.integers(0, 6),
        need=st.sampled_from([1, 3, 9]),
        ceiling=st.sampled_from([20, 9, 4]),
        budget=st.sampled_from([30, 31, 7, 4]),
        ready=st.booleans(),
    )
    def begin(self, members, need, ceiling, budget, ready):
        """Some members of one kind, of a ledger that knows them long enough."""
        for _ in range(self.connections):
            self.reopen()
        for member in MEMBERS[:members]:
            self.ask(member, need=need, keep=0, floor=1, ceiling=ceiling, budget=budget)
        if ready:
            self.pass_beats(2)

    def reopen(self):
        connection = Connection(None)
        connection.ledger = self.run(self.connect(connection.news.append))
        self.open.append(connection)
        self.reference.members(self.now)  # time goes on by whatever is asked
        return connection

    def teardown(self):
        for each in self.open:
            self.run(each.ledger.close())
        self.run(asyncio.sleep(0))
        self.loop.close()

    def connection_of(self, member):
        for each in self.open:
            if member in each.members:
                return each
        connection = self.open[MEMBERS.index(member) % len(self.open)]
        connection.members.add(member)
        return connection

    def compare(self, name, connection, *arguments, **named):
        """Do it on both sides; returns what both said."""
        expected = getattr(self.reference, name)(*arguments, **named, now=self.now)
        found = self.run(getattr(connection.ledger, name)(*arguments, **named))
        assert found == expected, f"{name}{arguments} at {self.now}"
        self.compare_news()
        return expected

    def compare_news(self):
        self.run(self.deliver())
        expected = self.reference.take_news()
        members = sorted(each.member for each in expected if each.member)
        found = [each for connection in self.open for each in connection.news]
        assert sorted(each.member for each in found if each.member) == members, (found, expected)
        circuits = [each for each in expected if each.circuit]
        for connection in self.open:
            assert [each for each in connection.news if each.circuit] == circuits, connection.news
            assert self.at_home(connection)
            connection.news.clear()

    def at_home(self, connection):
        """Whether news of a member came to the connection of that member."""
        return all(each.member in connection.members for each in connection.news if each.member)

    @invariant()
    def rows_are_equal(self):
        if self.open:
            expected = self.reference.members(self.now)
            assert self.run(self.open[0].ledger.rows()) == expected
            self.compare_news()

    # -- what happens ------------------------------------------------------------------------------

    @rule(
        member=st.sampled_from(MEMBERS),
        need=SMALL,
        keep=st.none() | SMALL,
        floor=st.integers(0, 4),
        ceiling=st.integers(1, 25),
        budget=st.sampled_from([30, 30, 30, 12, 3, 1]),
        late=st.sampled_from([False, False, False, True]),
        audit=st.booleans(),
        making=st.sampled_from([0, 2, 9]),
        breaker=st.sampled_from(["ACTIVE", "INACTIVE", None]),
        epoch=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def sync(self, member, late, epoch, **fields):
        """Anything at all."""
        self.ask(member, late=late, epoch=self.reference.ballot.epoch + epoch - 1, **fields)

    @rule(
        member=st.sampled_from(MEMBERS),
        need=st.none() | st.integers(0, 9),
        keep=st.none() | st.integers(0, 9),
        field=st.sampled_from(
            [*[None] * 8, "audit", "breaker", "floor", "ceiling", "budget", "making"]
        ),
    )
    def sync_again(self, member, need, keep, field):
        """A beat of a member with little that is new."""
        row = self.reference.rows.get(member)
        if row is None:
            return
        new = {"audit": not row.last.audit, "breaker": "RECOVERING", "floor": 2, "ceiling": 19,
               "budget": 29, "making": 7}  # fmt: skip
        fields = {} if field is None else {field: new[field]}
        if need is not None:
            fields["need"] = need
        self.ask(member, keep=None if keep is None else min(keep, self.held[member]), **fields)

    @rule()
    def all_beat(self):
        """Everybody gives back what is asked for, and takes what there is."""
        for member in [*self.reference.rows, *self.reference.rows]:
            if row := self.reference.rows.get(member):
                self.ask(member, keep=min(self.held[member], row.asked))

    @rule(beats=st.integers(1, 3))
    def pass_beats(self, beats):
        """Time passes, and everybody is there."""
        for _ in range(beats):
            self.now += BEAT
            self.all_beat()

    def ask(self, member, *, keep=None, late=False, epoch=0, **fields):
        """A sync with these fields; the others are as they were."""
        if not late:
            self.seqs[member] += 1
        fields["keep"] = self.held[member] if keep is None else keep
        fields |= {"member": member, "seq": self.seqs[member] - late, "epoch": max(0, epoch)}
        if row := self.reference.rows.get(member):
            request = replace(row.last, **fields)
        else:
            process = 1 + MEMBERS.index(member) // 2
            usual = {"need": 1, "floor": 1, "ceiling": 20, "budget": 30, "since": 1.5,
                     "host": HOSTS[member], "process": process, "pool": "the pool"}  # fmt: skip
            request = Sync(**(usual | fields))
        grant = self.compare("sync", self.connection_of(member), request)
        if grant.accepted:
            self.held[member] = grant.held

    @rule(member=st.sampled_from(MEMBERS), late=st.booleans())
    def leave(self, member, late):
        self.seqs[member] += 1
        self.compare("leave", self.connection_of(member), member, self.seqs[member] - 2 * late)
        if member not in self.reference.rows:
            self.held[member] = 0

    @rule(member=st.sampled_from(MEMBERS), counted=SMALL)
    def settle(self, member, counted):
        self.compare("settle", self.connection_of(member), member, counted)

    @rule(member=st.sampled_from(MEMBERS), down=st.booleans(), off=st.sampled_from([0, 0, 0, 1]))
    def vote(self, member, down, off):
        epoch = self.reference.ballot.epoch - off
        self.compare("vote", self.connection_of(member), member, epoch, down=down)

    @rule()
    def judge(self):
        self.compare("judge", self.open[-1])

    @rule(member=st.sampled_from(MEMBERS), off=st.sampled_from([0, 0, 0, 1]))
    def claim(self, member, off):
        epoch = self.reference.ballot.epoch - off
        self.compare("claim", self.connection_of(member), member, epoch)

    @rule(up=st.booleans(), off=st.sampled_from([0, 0, 0, 1]), other=st.booleans())
    def verdict(self, up, off, other):
        ballot = self.reference.ballot
        member = "a" if other or ballot.prober is None else ballot.prober
        self.compare("verdict", self.connection_of(member), member, ballot.epoch - off, up=up)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, BEAT, 3.0, 2 * BEAT, 5.0, TTL, 3 * TTL, 6 * TTL]))
    def pass_time(self, seconds):
        self.now += seconds


FOREVER = math.inf
