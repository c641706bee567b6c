"""The reference of all ledgers: plain Python, synchronous, with the time as a parameter.

It decides who gets what. The ledger of this host runs it on the rows of a file, and the others are
compared with it, operation by operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from .ballot import Ballot
from .ledger import FleetCircuit, Grant, MemberRow, News, Sync
from .shares import Demand, divide, equal_parts, turn_at

GRACE: Final = 2.0  # beats in which a ledger that knew nothing, or was away, gives newcomers only
OPENING: Final = 60.0  # seconds after which a server has ended what was not opened by then


@dataclass(slots=True)
class LedgerRow:
    """What a ledger keeps of one member."""

    last: Sync
    charge: int
    line: int  # its place in the order of age
    ends: float  # when its lease ends
    asked: int  # what its `max_size` will come down to after the last answer
    silent: bool = False
    counting_until: float = 0.0  # silent: somebody counts what it has
    most: int = 0  # silent: what it was charged when its lease ended
    members: int = 1  # for how many it stands, see `Demand`
    busy: int = 1

    @property
    def demand(self) -> Demand:
        """What it wants."""
        return Demand.of(*_want(self))


@dataclass(slots=True, eq=False)
class LedgerPart:
    """What a living member should have."""

    row: LedgerRow
    demand: Demand
    target: int

    @property
    def lacks_of_floor(self) -> int:
        """What it has less than it always gets."""
        return max(0, min(self.demand.floor, self.target) - self.row.charge)

    @property
    def lacks(self) -> int:
        """What it has less than it needs."""
        return max(0, min(self.demand.need, self.target) - self.row.charge)


@dataclass(slots=True)
class ReferenceLedger:
    """The ledger of one fleet.

    Attributes:
        ttl: Seconds after which a row ends; `math.inf` if the caller says who has died.
        beat: Seconds between two requests of a member.
        learns: Whether it may have lost its rows: then it gives newcomers their floor, and nobody
            anything else, in the first `GRACE` beats.
        news: What is to be sent, in this order; the caller takes it.
    """

    ttl: float
    beat: float
    learns: bool = True
    rows: dict[str, LedgerRow] = field(default_factory=dict)
    ballot: Ballot = field(default_factory=Ballot)
    lines: int = 0  # given out so far
    heard: float = -math.inf  # when the last request has come
    growing: float = -math.inf  # newcomers get their floor, and nobody anything, before this
    news: list[News] = field(default_factory=list)

    # -- operations --------------------------------------------------------------------------------

    def sync(self, request: Sync, now: float) -> Grant:
        """A member reports what it has and needs."""
        self._advance(now)
        row = self.rows.get(request.member)
        is_new = row is None
        if row is not None and request.seq <= row.last.seq:
            return self._grant(row, self._parts(now), now, accepted=False)
        if row is None:
            self.lines += 1
            row = LedgerRow(request, 0, self.lines, 0.0, 0)
            self.rows[request.member] = row
        row.last, row.charge, row.silent = request, request.keep, False
        row.ends, self.heard = now + self.ttl, now
        if self.ballot.learn(request.epoch):
            self.news.append(News(circuit=self.ballot.seen(now)))
        parts = self._parts(now)
        if is_new or now >= self.growing:
            self._grow(row, parts, now)
        grant = self._grant(row, parts, now, accepted=True)
        row.asked = max(grant.target, grant.held - grant.owed)
        self._wake(parts, now, but=request.member)
        return grant

    def leave(self, member: str, seq: int, now: float) -> None:
        """A member has given back everything."""
        self._advance(now)
        row = self.rows.get(member)
        if row is not None and seq > row.last.seq:
            del self.rows[member]
            self._wake(self._parts(now), now)

    def drop(self, members: Iterable[str], now: float) -> None:
        """These have died: for a ledger that notices it by itself."""
        gone = [self.rows.pop(each) for each in members if each in self.rows]
        if gone:
            self._wake(self._parts(now), now)

    def settle(self, member: str, counted: int, now: float) -> None:
        """Somebody has counted what a silent member has."""
        self._advance(now)
        row = self.rows.get(member)
        if row is None or not row.silent:
            return
        # One that has nothing at all has died; another one may be paused in the middle of opening.
        making = row.last.making if counted and now < row.ends + OPENING else 0
        row.charge = min(row.most, counted + making)
        if not row.charge:
            del self.rows[member]
        self._wake(self._parts(now), now)

    def members(self, now: float) -> list[MemberRow]:
        """Every member, the oldest first."""
        self._advance(now)
        return [
            MemberRow(
                each.last.member, each.last.host, each.last.process, each.last.pool,
                each.charge, each.last.need, each.last.since, each.last.breaker, each.silent,
            )
            for each in self._by_age()
        ]  # fmt: skip

    def vote(self, member: str, epoch: int, down: bool, now: float) -> FleetCircuit:
        """A member has judged the backend."""
        self._advance(now)
        return self._circuit(self.ballot.vote(member, self._hosts(), epoch, down, now), now)

    def judge(self, now: float) -> FleetCircuit:
        """Count the votes again."""
        self._advance(now)
        return self._circuit(self.ballot.judge(self._hosts(), now), now)

    def claim(self, member: str, epoch: int, now: float) -> FleetCircuit:
        """A member asks for the probe."""
        self._advance(now)
        return self._circuit(self.ballot.claim(member, epoch, now), now)

    def verdict(self, member: str, epoch: int, up: bool, now: float) -> FleetCircuit:
        """The probe of a member has ended."""
        self._advance(now)
        return self._circuit(self.ballot.verdict(member, epoch, up, now), now)

    def take_news(self) -> list[News]:
        """Return what is to be sent."""
        news, self.news = self.news, []
        return news

    # -- figures -----------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """What everybody is charged together."""
        return sum([each.charge for each in self.rows.values()])

    @property
    def budget(self) -> int:
        """The smallest budget of the living; 0 if nobody lives."""
        living = [each.last.budget for each in self.rows.values() if not each.silent]
        return min(living, default=0)

    def _by_age(self) -> list[LedgerRow]:
        return sorted(self.rows.values(), key=lambda each: each.line)

    def _living(self) -> list[LedgerRow]:
        return [each for each in self._by_age() if not each.silent]

    def _hosts(self) -> dict[str, str]:
        return {
            each.last.member: each.last.host
            for each in self._living()
            if each.last.breaker is not None
        }

    def _parts(self, now: float) -> list[LedgerPart]:
        """What each of the living should have; what the silent are charged cannot be divided."""
        living = self._living()
        silent = sum(each.charge for each in self.rows.values() if each.silent)
        budget = min((each.last.budget for each in living), default=0)
        wants = _wants(living)
        targets = _divided(wants, max(0, budget - silent), turn_at(now))
        return [*map(LedgerPart, living, _demands(wants), targets)]

    # -- decisions ---------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """End the leases that are over; after everybody was silent, wait for them first."""
        if self.learns:
            grace = GRACE * self.beat
            if not self.rows and self.heard == -math.inf:
                self.growing = now + grace
            elif self.rows and now - self.heard > grace:
                self.growing = now + grace
                for each in self.rows.values():
                    each.ends = max(each.ends, now + grace)
            self.heard = max(self.heard, now)
        for member, row in [*self.rows.items()]:
            if row.silent or now < row.ends:
                continue
            if row.last.audit and row.charge:
                row.silent, row.most = True, row.charge
            else:
                del self.rows[member]

    def _grow(self, row: LedgerRow, parts: Sequence[LedgerPart], now: float) -> None:
        """Raise the charge of a row as far as there is room: first everybody's floor, then what
        everybody needs, then what is lent in advance."""
        [part] = [each for each in parts if each.row is row]
        others = [each for each in parts if each is not part]
        demand, target = part.demand, part.target
        free = self.budget - self.used
        steps = (
            (min(demand.floor, target), 0),
            (min(demand.need, target), sum([each.lacks_of_floor for each in others])),
            (target, sum([each.lacks for each in others])),
        )
        for most, reserved in steps[:1] if now < self.growing else steps:
            more = max(0, min(most - row.charge, free - reserved))
            row.charge += more
            free -= more

    def _owed(self, parts: Sequence[LedgerPart]) -> int:
        """What somebody has to give back: others need it, or more is charged than there is."""
        free = self.budget - self.used
        return max(0, sum([each.lacks for each in parts]) - free)

    def _grant(
        self, row: LedgerRow, parts: Sequence[LedgerPart], now: float, *, accepted: bool
    ) -> Grant:
        living = [each.row for each in parts]
        budget = self.budget
        shares = _shares(_wants(living), budget)
        [target, share] = next(
            (
                (part.target, share)
                for part, share in zip(parts, shares, strict=True)
                if part.row is row
            ),
            (0, 0),
        )
        return Grant(
            accepted=accepted,
            held=row.charge,
            target=target,
            owed=self._owed(parts),
            lend=any(each.row.charge < each.target for each in parts if each.row is not row),
            share=share,
            lasts=self.ttl,
            used=self.used,
            budget=budget,
            processes=len({(each.last.host, each.last.process) for each in living}),
            silent=self._to_count(now) if accepted and row.last.audit else (),
            circuit=self.ballot.seen(now),
        )

    def _to_count(self, now: float) -> tuple[str, ...]:
        """The silent that nobody counts now; from now on the caller does."""
        found = [each for each in self._by_age() if each.silent and each.counting_until <= now]
        for each in found:
            each.counting_until = now + self.beat
        return tuple(each.last.member for each in found)

    def _wake(self, parts: Sequence[LedgerPart], now: float, but: str | None = None) -> None:
        """Send news to members that can get something now, and to those that are to give
        something back and do not know it yet."""
        if now < self.growing or not parts:
            return
        free = self.budget - self.used
        owed = self._owed(parts)
        for each in parts:
            row, target = each.row, each.target
            member = row.last.member
            missing = min(each.demand.need, target) - row.charge
            if missing > 0 and free > 0 and member != but:
                free -= missing
                self.news.append(News(member))
                continue
            least = max(target, row.charge - owed)
            if owed and row.charge > target and row.asked > least and member != but:
                self.news.append(News(member))

    def _circuit(self, changed: bool, now: float) -> FleetCircuit:
        circuit = self.ballot.seen(now)
        if changed:
            self.news.append(News(circuit=circuit))
        return circuit


Want = tuple[int, int, int, int, int]  # the numbers of a `Demand`


def _want(row: LedgerRow) -> Want:
    last = row.last
    return last.floor, last.need, last.ceiling, row.members, row.busy


def _wants(rows: Iterable[LedgerRow]) -> tuple[Want, ...]:
    return tuple([_want(each) for each in rows])


# From one request to the next hardly anything changes: most beats say what the last ones said.


@lru_cache(maxsize=4)
def _demands(wants: tuple[Want, ...]) -> tuple[Demand, ...]:
    return tuple([Demand.of(*each) for each in wants])


@lru_cache(maxsize=4)
def _divided(wants: tuple[Want, ...], budget: int, turn: int) -> tuple[int, ...]:
    return divide(_demands(wants), budget, turn).parts


@lru_cache(maxsize=4)
def _shares(wants: tuple[Want, ...], budget: int) -> tuple[int, ...]:
    return equal_parts(_demands(wants), budget)
