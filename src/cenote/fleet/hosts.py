"""The hosts of a fleet in PostgreSQL: what each shows of itself, and what each should have.

A host shows itself by the name of its session, and what it has by the advisory locks of that. Every
host reads all of them and decides for itself, by the rules of the reference; the locks see to it
that two who decide at once never have the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from .ledger import Grant, Sync
from .reference import LedgerRow, ReferenceLedger

LONGEST: Final = 63  # characters of the name of a session; the server cuts off the rest
_SHOWN: Final = re.compile(
    r"cenote:[0-9a-f]{8} b(\d+) n(\d+) f(\d+) c(\d+) h(\d+) p(\d+) w(\d+) s([0-9a-f]+) ?(.*)"
)
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.-]")


def lock_key(name: str) -> int:
    """The first key of the advisory locks of a fleet; the second one is the number of a token."""
    return crc32(f"cenote fleet {name}".encode()) & 0x7FFFFFFF


def session_prefix(name: str) -> str:
    """How the names of the sessions of a fleet begin."""
    return f"cenote:{lock_key(name):08x} "


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host in a fleet.

    Attributes:
        key: The process of the server that serves its session.
        host: The name of the machine, as much of it as there is room for.
        budget: The smallest of its members.
        need: What its members had in use and waited for, together; `floor` and `ceiling` likewise.
        held: What its members may have. It is more than it has tokens if its session was lost.
        processes: How many it has in the fleet.
        busy: How many of its members need more than their floor.
        since: When its oldest member has joined, in whole seconds, as `time.time()`.
        tokens: Of the budget, those that its session has locked.
    """

    key: int
    host: str
    budget: int
    need: int
    floor: int
    ceiling: int
    held: int
    processes: int
    since: int
    tokens: frozenset[int] = frozenset()
    busy: int = 0

    def shown(self, name: str) -> str:
        """Return the name of its session in the fleet of this name."""
        text = (
            f"{session_prefix(name)}b{self.budget} n{self.need} f{self.floor} c{self.ceiling} "
            f"h{self.held} p{self.processes} w{self.busy} s{self.since:x} "
            f"{_UNFIT.sub('-', self.host)}"
        )
        return text[:LONGEST]

    @classmethod
    def read(cls, key: int, shown: str, tokens: frozenset[int]) -> HostRow | None:
        """Return what the name of a session shows; None if it is none of a fleet."""
        found = _SHOWN.fullmatch(shown)
        if found is None:
            return None
        *numbers, since, host = found.groups()
        budget, need, floor, ceiling, held, processes, busy = map(int, numbers)
        return cls(
            key, host, budget, need, floor, ceiling, held, processes, int(since, 16), tokens, busy
        )

    @property
    def charge(self) -> int:
        """What cannot be given to others."""
        return max(self.held, len(self.tokens))


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What a host may do now.

    Attributes:
        grant: As of a member of the reference.
        told: The keys of the hosts that should look again, for there is something to get or to
            give back.
    """

    grant: Grant
    told: tuple[int, ...]

    @property
    def surplus(self) -> int:
        """What it should give back, because others need it, or because all together have too much:
        a host whose session was lost has it without tokens."""
        grant = self.grant
        return max(0, min(grant.held - grant.target, grant.owed))


def plan(me: HostRow, others: Sequence[HostRow], beat: float, now: float) -> HostPlan:
    """Decide what a host may have; it has members. `now`: the same on all hosts, for turns."""
    ledger = ReferenceLedger(math.inf, beat, learns=False)
    rows = sorted([me, *others], key=lambda each: (each.since, each.key))
    for line, each in enumerate(rows):
        request = _request(each, me.budget)
        row = LedgerRow(request, each.charge, line, math.inf, each.charge)
        row.silent = not each.processes
        row.members, row.busy = max(each.processes, each.busy), each.busy
        if each.processes or each.charge:
            ledger.rows[request.member] = row
    request = _request(me, me.budget)
    grant = ledger.sync(replace(request, seq=2), now)
    told = tuple(int(each.member) for each in ledger.take_news() if each.member)
    return HostPlan(grant, told)


def _request(row: HostRow, budget: int) -> Sync:
    return Sync(
        str(row.key), 1, row.charge, row.need, row.floor, row.ceiling,
        row.budget if row.processes else budget, row.host, row.key, "", float(row.since),
    )  # fmt: skip
