"""The accounts of a pool: every acquire that has begun is counted once more, by how it ended.

One that is served is counted by the core, in `acquired`. Every other end is counted here, with its
event: where it is decided, if the pool decides it (a refusal, a timeout), else where the exception
leaves the acquire. At rest `begun` is the sum of all ends.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import Claim
from ..events import EventKind, RefusalReason, Totals, lane_name
from ..states import ClaimState, Phase

if TYPE_CHECKING:
    from .engine import Engine

E = TypeVar("E", bound=BaseException)

SERVED = ClaimState.HOLDING, ClaimState.ENDED


class Accounts:
    """Counts how acquires end, and emits what each end is called."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine

    def begin(self, claim: Claim) -> None:
        """At the head of an acquire in a pool that is not open: open it, or refuse the acquire."""
        engine = self._engine
        phase = engine.core.phase
        if phase is Phase.CLOSED or phase is Phase.DRAINING:
            error = engine.closing.error()
            if engine.loop is None or threading.get_ident() == engine.thread:
                claim.began = engine.time()
                self.open(claim)
                self.refused(claim, RefusalReason.CLOSED, error)
            raise error
        engine.enter()

    def open(self, claim: Claim) -> None:
        """Count a claim as begun."""
        claim.uncounted = True
        self._engine.core.begun += 1

    def refused(self, claim: Claim, reason: RefusalReason, error: E) -> E:
        """Count a refusal. Returns the error, to be raised."""
        places = self._places(claim)
        if places:
            claim.uncounted = False
            for totals in places:
                totals.refused[reason] = totals.refused.get(reason, 0) + 1
            self._emit(EventKind.REFUSED, claim, error, reason)
        return error

    def timed_out(self, claim: Claim, error: BaseException) -> None:
        """Count a timeout."""
        places = self._places(claim)
        if places:
            claim.uncounted = False
            for totals in places:
                totals.timeouts += 1
            self._emit(EventKind.TIMEOUT, claim, error)

    def cancelled(self, claim: Claim, error: BaseException | None = None) -> None:
        """Count an acquire that was cancelled or dropped, or broken off by an error that is not an
        Exception."""
        places = self._places(claim)
        if places:
            claim.uncounted = False
            for totals in places:
                totals.cancelled += 1
            self._emit(EventKind.CANCELLED, claim, error)

    def ended(self, claim: Claim, error: BaseException) -> None:
        """Count an acquire that this error ends, unless that was done where it was decided."""
        if not claim.uncounted or claim.state in SERVED:
            return
        if isinstance(error, GeneratorExit) and _is_driven(claim):
            return  # it was dropped while it waited: counted as soon as that is safe
        if not isinstance(error, Exception):
            self.cancelled(claim)
            return
        places = self._places(claim)
        if places:
            claim.uncounted = False
            for totals in places:
                totals.failed += 1
            self._emit(EventKind.FAILED, claim, error)

    def _places(self, claim: Claim) -> tuple[Totals, ...]:
        """Where the end of this claim is counted; nowhere if it has been.

        The caller makes no call from then on until it has counted: what breaks off a step comes
        before that, and the next attempt counts it, or after.
        """
        if not claim.uncounted:
            return ()
        self._engine.history.catch_up()
        return self._engine.lanes.totals_of(claim)

    def _emit(
        self,
        kind: EventKind,
        claim: Claim,
        error: BaseException | None,
        reason: RefusalReason | None = None,
    ) -> None:
        engine = self._engine
        waited = engine.time() - claim.began
        engine.signals.note(
            kind,
            task=claim.task,
            lane=lane_name(claim),
            duration=waited,
            reason=reason,
            error=error,
        )


def _is_driven(claim: Claim) -> bool:
    """Whether the claim still waits for something, as far as is known."""
    if claim.state is ClaimState.ASKING:
        return claim.waiter is not None and not claim.waiter.over
    return claim.state is ClaimState.WAITING or claim.state is ClaimState.GRANTED
