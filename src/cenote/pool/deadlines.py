"""The timer for the deadlines of all who wait for one pool: one, however many they are.

The core has the deadlines. Whoever adds one that is earlier than `core.alarm_at` sets this timer.
"""

from __future__ import annotations

import asyncio
import weakref
from contextvars import Context
from math import inf
from typing import Any

from .._core import Claim
from ..states import ClaimState
from .holders import Snapshot, holdings


class DeadlineTimer:
    """The timer of the loop, and what happens when it comes."""

    __slots__ = ("_expiring", "_pool", "_snapshot", "_timer")

    def __init__(self, pool: Any) -> None:
        self._pool = weakref.ref(pool)
        self._timer: asyncio.TimerHandle | None = None
        self._expiring = False  # in the step in which deadlines pass,
        self._snapshot: Snapshot | None = None  # and what all timeouts of that step share

    def set(self, when: float) -> None:
        """Let the timer come at that time, instead of when it would have come."""
        self.stop()
        pool = self._alive()
        # A cancelled timer lives on in the loop: it keeps neither a context nor the pool alive.
        self._timer = pool._loop.call_at(when, ring, self._pool, context=Context())
        pool._core.alarm_at = when

    def stop(self) -> None:
        """Cancel it: nobody waits any more, or the loop is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pool = self._pool()
        if pool is not None:  # else this is a part of its collection
            pool._core.alarm_at = inf

    def set_again(self) -> None:
        """After a step that was broken off: somebody's deadline may have no timer."""
        pool = self._alive()
        when = pool._core.next_deadline()
        if when != inf and pool._loop is not None:
            self.set(when)

    def expire(self) -> None:
        """As a step: fail whoever has waited too long."""
        pool = self._alive()
        core = pool._core
        due = max(pool._time(), core.alarm_at)  # a timer may come a clock tick early
        self._timer, core.alarm_at = None, inf
        self._expiring = True
        try:
            while (claim := core.expired(due)) is not None:
                if claim.state is ClaimState.WAITING or is_inspected(claim):
                    pool._time_out(claim)
        finally:
            self._expiring, self._snapshot = False, None
            when = core.next_deadline()
            if when < core.alarm_at:
                self.set(when)

    def snapshot(self) -> Snapshot:
        """Who holds what now: one for all timeouts of a step, until something changes hands."""
        pool = self._alive()
        core = pool._core
        version = core.acquired, core.released
        snapshot = self._snapshot
        if snapshot is None or snapshot.version != version:
            snapshot = Snapshot(version, holdings(core, pool._time()))
            if self._expiring:
                self._snapshot = snapshot
        return snapshot

    def _alive(self) -> Any:
        pool = self._pool()
        assert pool is not None  # it is the pool that calls
        return pool


def is_inspected(claim: Claim) -> bool:
    """Whether an async before_acquire looks at what it was granted, which counts as waiting."""
    waiter = claim.waiter
    return waiter is not None and waiter.inspection is not None


def ring(pool: weakref.ref[Any]) -> None:
    """The callback of the loop; it keeps nothing alive."""
    alive = pool()
    if alive is not None:
        alive._step(alive._deadlines.expire)
