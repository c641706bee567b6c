"""What one member may have: decided here, from what its ledger says and does not say.

No clock and no I/O: times come in as arguments, on the member's own monotonic clock, and `size`,
what the `max_size` of the pool is to be, goes out. `ledger.py` has the invariants. `size` is raised
by an answer of the ledger only (and, long after the ledger is gone, to the equal part); it is
lowered at any time, which is before the next request.
"""

from __future__ import annotations

from math import inf, isinf
from typing import Final

from ..events import Word
from .ledger import Grant

SAFETY: Final = 0.99  # part of its time after which a lease ends for the member
CAUTION: Final = 0.8  # strict: the same for all but one resource
DROP: Final = 4  # a need that fell by a fourth is sent before the next beat


class LeaseState(Word):
    """How a member stands with its ledger."""

    JOINING = "joining"  # no answer yet: it has nothing
    LEASED = "leased"  # it has what it was granted
    ENDED = "ended"  # the lease has ended, and nothing new is made until the ledger answers
    ALONE = "alone"  # the ledger cannot be reached: it has its equal part at most


class MemberLease:
    """The lease of one member.

    Attributes:
        size: What its pool may have now.
        ceiling: What it can use at most.
        seq: Of the last request.
        told: The need that the ledger knows.
        grant: What the ledger has answered last; None before the first answer.
        ends: When the lease ends.
        failing_since: When the first of the requests was made that all have failed since; None if
            the last one was answered.
    """

    __slots__ = (
        "_before", "_budget", "_charge", "_fair_at", "_strict", "_strict_at", "_telling", "_ttl",
        "ceiling", "ends", "failing_since", "grant", "seq", "size", "state", "told",
    )  # fmt: skip

    def __init__(self, *, budget: int, ceiling: int, ttl: float, strict: bool) -> None:
        self._budget = budget
        self._ttl = ttl
        self._strict = strict
        self._charge = 0  # what the last answer has charged it
        self._before = 0  # its size when the lease ended
        self._telling = 0  # the need in the request under way
        self._strict_at = inf  # from then on a strict member has one resource at most
        self._fair_at = inf  # alone: from then on nobody has more than the equal part
        self.state: LeaseState = LeaseState.JOINING
        self.size: int = 0
        self.ceiling: int = ceiling
        self.seq: int = 0
        self.told: int = 0
        self.grant: Grant | None = None
        self.ends: float = inf
        self.failing_since: float | None = None

    # -- asking the ledger -------------------------------------------------------------------------

    def ask(self, occupied: int, need: int) -> int:
        """Begin a request; returns what it says the member keeps."""
        self.seq += 1
        self._telling = min(need, self.ceiling)
        return max(self.size, occupied)

    def take(self, grant: Grant, sent: float, now: float, occupied: int) -> bool:
        """Take the answer to the last request. False: it is of no use, for it came too late.

        There is one request at a time: one that was not accepted has come twice, and what the
        ledger says is true all the same.
        """
        ends = sent + SAFETY * grant.lasts
        if now >= ends:
            return False
        self.state = LeaseState.LEASED
        self.grant, self.told, self._charge = grant, self._telling, grant.held
        self.ends, self._strict_at = ends, sent + CAUTION * grant.lasts
        self.failing_since = None
        self._fair_at = inf
        size = min(grant.held, self.ceiling)
        if grant.owed and size > grant.target:
            size = max(grant.target, size - grant.owed)
        if grant.lend and size > grant.target:
            size = max(grant.target, min(size, occupied))
        self.size = size
        return True

    def fail(
        self, began: float, now: float, occupied: int, *, floor: int = 1, slow: bool = False
    ) -> None:
        """A request that was begun at that time was not answered. `floor`: what the member always
        gets. `slow`: it may be on its way still; nobody has refused it."""
        if self.failing_since is None:
            self.failing_since = began
            if isinf(self.ends):  # the ledger would have noticed our death, but who has its?
                self.ends = began + SAFETY * self._ttl
                self._strict_at = began + CAUTION * self._ttl
        if self.state is LeaseState.JOINING:
            self.state = LeaseState.ALONE
            # A line that is only slow is no reason for more than one needs to begin with.
            self.size = min(floor, self.part) if slow else self.part
            self._fair_at = self.failing_since + self._ttl
        elif self.state is LeaseState.ENDED:
            self._go_alone(self._before, now)
        elif self.state is LeaseState.ALONE and now >= self._fair_at:
            self.size = self.part
        self.pass_time(now, occupied)

    def limit(self, ceiling: int) -> None:
        """The program wants this much at most from now on."""
        self.ceiling = ceiling
        self.size = min(self.size, ceiling)

    # -- time --------------------------------------------------------------------------------------

    @property
    def alarm(self) -> float:
        """When `pass_time` is to be called."""
        if self.state is not LeaseState.LEASED:
            return inf
        return min(self._strict_at, self.ends) if self._strict and self.size > 1 else self.ends

    def pass_time(self, now: float, occupied: int) -> None:
        """Lower what has ended by now."""
        if self.state is not LeaseState.LEASED:
            return
        if now >= self.ends:
            if self.failing_since is None:  # paused: the ledger has to be asked first
                self.state = LeaseState.ENDED
                self._before, self.size = self.size, min(self.size, occupied)
            else:
                self._go_alone(self.size, now)
        elif self._strict and now >= self._strict_at:
            self.size = min(self.size, 1)

    def may_open(self, now: float) -> bool:
        """Whether one more resource may be made now."""
        if self.state is LeaseState.LEASED:
            return now < self.ends
        return self.state is LeaseState.ALONE

    @property
    def part(self) -> int:
        """What it may have without asking: its equal part, as the ledger gave it last."""
        if self._strict:
            return 1
        return min(self.ceiling, self._budget if self.grant is None else self.grant.share)

    @property
    def _is_failing(self) -> bool:
        return self.failing_since is not None

    def _go_alone(self, had: int, now: float) -> None:
        """Others may have more than their part until their leases have ended, too."""
        self.state = LeaseState.ALONE
        self._fair_at = now + self._ttl
        self.size = min(had, self.part)

    # -- is it time to ask again? ------------------------------------------------------------------

    def must_tell(self, occupied: int, wanted: int) -> bool:
        """Whether the ledger should know something before the next beat: that there is less than it
        charges, or that more is wanted than it knows of and than there is."""
        grant = self.grant
        if self.state is not LeaseState.LEASED or grant is None or self._is_failing:
            return False
        if max(self.size, occupied) < self._charge:
            return True
        if wanted <= self.size or grant.target < self.told:  # it knows that this member is short
            return False
        return min(wanted, self.ceiling) > self.told

    def must_tell_drop(self, need: int) -> bool:
        """Whether the ledger should know before the next beat that less is needed: somebody else
        has less than his part, or will have as soon as he needs it."""
        grant = self.grant
        if self.state is not LeaseState.LEASED or grant is None or self._is_failing:
            return False
        drop = self.told - need
        concerns = grant.owed or grant.lend or self.told > grant.share
        return bool(concerns) and drop > 0 and drop * DROP >= self.told
