"""The deadlines of the claims of one core: a heap, the same as in `_native/deadlines.c`."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from ..states import ClaimState
from .records import Claim, Times

FEW = 64  # empty entries that are not worth a clean-up
PENDING = ClaimState.ASKING, ClaimState.WAITING, ClaimState.GRANTED

Entry = list[Any]  # [deadline, number, claim or None]


class Deadlines(Times):
    """A heap of entries. One that is removed stays as an empty entry until half of them are.

    Whatever is broken off here leaves an entry too many at most, which expires and does nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._deadlines: list[Entry] = []
        self._empty = 0  # entries without a claim
        self._deadline_seqs = 0  # entries made: of two deadlines alike, the first expires first
        self.now: float = (
            0.0  # loop time of the last call that gave it: kept up where lanes need it
        )
        self.alarm_at = inf  # loop time of the timer for them, which the runtime sets; inf: none

    @property
    def deadline_count(self) -> int:
        return len(self._deadlines) - self._empty

    def add_deadline(self, claim: Claim) -> None:
        """From now on `expired` may name this claim, until it holds, fails, leaves or is dismissed.

        Nothing happens if it is known already, has no deadline, or has ended.
        """
        if claim.timer is not None or claim.deadline is None or claim.state not in PENDING:
            return
        if self._empty > FEW and self._empty * 2 > len(self._deadlines):
            self._clean_up()
        self._deadline_seqs += 1
        entry = [claim.deadline, self._deadline_seqs, claim]
        heappush(self._deadlines, entry)
        claim.timer = entry

    def remove_deadline(self, claim: Claim) -> None:
        """Its deadline is of no interest any more. Nothing happens if it is not known."""
        entry = claim.timer
        if entry is None:
            return
        claim.timer = None
        entry[2] = None
        self._empty += 1
        if self._empty == len(self._deadlines):
            self._deadlines, self._empty = [], 0

    def expired(self, now: float) -> Claim | None:
        """The claim with the earliest deadline, if that has passed; it is named once."""
        self.now = now
        if self.next_deadline() > now or not self._deadlines:
            return None
        claim: Claim = heappop(self._deadlines)[2]
        claim.timer = None
        return claim

    def next_deadline(self) -> float:
        """When `expired` has something to say: loop time, or inf."""
        entries = self._deadlines
        while entries and entries[0][2] is None:
            heappop(entries)
            self._empty -= 1
        return entries[0][0] if entries else inf

    def _clean_up(self) -> None:
        entries = [entry for entry in self._deadlines if entry[2] is not None]
        heapify(entries)
        self._deadlines, self._empty = entries, 0
