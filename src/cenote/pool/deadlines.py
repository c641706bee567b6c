"""The timer for the deadlines of all that wait for one pool: one timer, however many they are.

The deadlines themselves are a heap in the core: see `_core/deadlines.py`.
"""

from __future__ import annotations

import weakref
from math import inf
from typing import TYPE_CHECKING, Any

from .._core import Claim
from ..states import ClaimState
from ..timer import Timer
from .holders import Snapshot, holdings

if TYPE_CHECKING:
    from .engine import Engine


class DeadlineTimer:
    """The timer of the loop, and what happens when it comes."""

    __slots__ = ("_engine", "_expiring", "_snapshot", "_timer")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._timer = Timer()
        self._expiring = False  # in the step in which deadlines pass,
        self._snapshot: Snapshot | None = None  # and what all timeouts of that step share

    def set(self, when: float) -> None:
        """Let the timer come at that time, instead of when it would have come."""
        engine = self._engine
        assert engine.loop is not None
        self._timer.start_at(engine.loop, when, ring, weakref.ref(engine))
        engine.core.alarm_at = when

    def stop(self) -> None:
        """Cancel the timer: nothing waits any more, or the loop is gone."""
        self._timer.stop()
        self._engine.core.alarm_at = inf

    def set_again(self) -> None:
        """After a step that was broken off: a deadline may have no timer."""
        engine = self._engine
        when = engine.core.next_deadline()
        if when != inf and engine.loop is not None:
            self.set(when)

    def expire(self) -> None:
        """As a step: fail every claim that has waited too long."""
        engine = self._engine
        core = engine.core
        due = self._timer.now(engine.history.catch_up())
        core.alarm_at = inf
        self._expiring = True
        try:
            while (claim := core.expired(due)) is not None:
                if claim.wait_timeout is not None and claim.waiter.extend():
                    continue
                if claim.state is ClaimState.WAITING or is_inspected(claim):
                    engine.claims.time_out(claim)
        finally:
            self._expiring, self._snapshot = False, None
            when = core.next_deadline()
            if when < core.alarm_at:
                self.set(when)

    def snapshot(self) -> Snapshot:
        """Who holds what now: one for all timeouts of a step, until something changes hands."""
        engine = self._engine
        core = engine.core
        version = core.acquired, core.released
        snapshot = self._snapshot
        if snapshot is None or snapshot.version != version:
            snapshot = Snapshot(version, holdings(core, engine.time()))
            if self._expiring:
                self._snapshot = snapshot
        return snapshot


def is_inspected(claim: Claim) -> bool:
    """Whether an async before_acquire looks at what it was granted, which counts as waiting."""
    waiter = claim.waiter
    return waiter is not None and waiter.inspection is not None


def ring(reference: weakref.ref[Engine[Any]]) -> None:
    """The callback of the loop; it keeps nothing alive."""
    engine = reference()
    pool = None if engine is None else engine.pool
    if engine is not None and pool is not None:
        engine.step(engine.deadlines.expire)
