"""The reference of all ledgers: plain Python, synchronous, with the time as a parameter.

It decides who gets what. The ledger of this host runs it on the rows of a file, and the others are
compared with it, operation by operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .ballot import Ballot
from .ledger import FleetCircuit, Grant, MemberRow, News, Sync
from .shares import Demand, divide, equal_parts, turn_at

GRACE: Final = 2.0  # beats in which a ledger that knew nothing, or was away, gives newcomers only


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

    @property
    def demand(self) -> Demand:
        """What it wants."""
        return Demand.of(self.last.floor, self.last.need, self.last.ceiling)


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
            return self._grant(row, now, accepted=False)
        if row is None:
            self.lines += 1
            row = LedgerRow(request, 0, self.lines, 0.0, 0)
            self.rows[request.member] = row
        row.last, row.charge, row.silent = request, request.keep, False
        row.ends, self.heard = now + self.ttl, now
        if self.ballot.learn(request.epoch):
            self.news.append(News(circuit=self.ballot.seen(now)))
        if is_new or now >= self.growing:
            self._grow(row, now)
        grant = self._grant(row, now, accepted=True)
        row.asked = max(grant.target, grant.held - grant.owed)
        self._wake(now, but=request.member)
        return grant

    def leave(self, member: str, seq: int, now: float) -> None:
        """A member has given back everything."""
        self._advance(now)
        row = self.rows.get(member)
        if row is not None and seq > row.last.seq:
            del self.rows[member]
            self._wake(now)

    def drop(self, members: Iterable[str], now: float) -> None:
        """These have died: for a ledger that notices it by itself."""
        gone = [self.rows.pop(each) for each in members if each in self.rows]
        if gone:
            self._wake(now)

    def settle(self, member: str, counted: int, now: float) -> None:
        """Somebody has counted what a silent member has."""
        self._advance(now)
        row = self.rows.get(member)
        if row is None or not row.silent:
            return
        row.charge = min(row.charge, counted)
        if not row.charge:
            del self.rows[member]
        self._wake(now)

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
        return sum(each.charge for each in self.rows.values())

    @property
    def budget(self) -> int:
        """The smallest budget of the living; 0 if nobody lives."""
        return min((each.last.budget for each in self._living()), default=0)

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

    def _targets(self, living: Sequence[LedgerRow], now: float) -> dict[str, int]:
        """What each should have; what the silent are charged cannot be divided."""
        left = max(0, self.budget - sum(each.charge for each in self.rows.values() if each.silent))
        parts = divide([each.demand for each in living], left, turn_at(now)).parts
        return {each.last.member: part for each, part in zip(living, parts, strict=True)}

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
                row.silent = True
            else:
                del self.rows[member]

    def _grow(self, row: LedgerRow, now: float) -> None:
        """Raise the charge of a row as far as there is room: first everybody's floor, then what
        everybody needs, then what is lent in advance."""
        living = self._living()
        targets = self._targets(living, now)
        target = targets[row.last.member]
        free = self.budget - self.used
        steps = (
            (min(row.demand.floor, target), 0),
            (min(row.demand.need, target), self._missing(living, targets, row, to_floor=True)),
            (target, self._missing(living, targets, row, to_floor=False)),
        )
        for most, reserved in steps[:1] if now < self.growing else steps:
            more = max(0, min(most - row.charge, free - reserved))
            row.charge += more
            free -= more

    def _missing(
        self,
        living: Sequence[LedgerRow],
        targets: dict[str, int],
        but: LedgerRow | None,
        *,
        to_floor: bool,
    ) -> int:
        """What the others have less than their floor, or than they need."""
        return sum(
            max(0, min(d.floor if to_floor else d.need, targets[each.last.member]) - each.charge)
            for each in living
            for d in [each.demand]
            if each is not but
        )

    def _owed(self, living: Sequence[LedgerRow], targets: dict[str, int]) -> int:
        """What somebody has to give back: others need it, or more is charged than there is."""
        free = self.budget - self.used
        return max(0, self._missing(living, targets, None, to_floor=False) - free)

    def _grant(self, row: LedgerRow, now: float, *, accepted: bool) -> Grant:
        living = self._living()
        targets = self._targets(living, now)
        member = row.last.member
        shares = equal_parts([each.demand for each in living], self.budget)
        share = {each.last.member: part for each, part in zip(living, shares, strict=True)}
        return Grant(
            accepted=accepted,
            held=row.charge,
            target=targets.get(member, 0),
            owed=self._owed(living, targets),
            lend=any(each.charge < targets[each.last.member] for each in living if each is not row),
            share=share.get(member, 0),
            lasts=self.ttl,
            used=self.used,
            budget=self.budget,
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

    def _wake(self, now: float, but: str | None = None) -> None:
        """Send news to members that can get something now, and to those that are to give
        something back and do not know it yet."""
        living = self._living()
        if now < self.growing or not living:
            return
        targets = self._targets(living, now)
        free = self.budget - self.used
        owed = self._owed(living, targets)
        for each in living:
            member = each.last.member
            target = targets[member]
            missing = min(each.demand.need, target) - each.charge
            if missing > 0 and free > 0 and member != but:
                free -= missing
                self.news.append(News(member))
                continue
            least = max(target, each.charge - owed)
            if owed and each.charge > target and each.asked > least and member != but:
                self.news.append(News(member))

    def _circuit(self, changed: bool, now: float) -> FleetCircuit:
        circuit = self.ballot.seen(now)
        if changed:
            self.news.append(News(circuit=circuit))
        return circuit
