"""Claims: what becomes of an acquire that waits: granted, failed, timed out or dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import errors
from .._core import Claim, Slot
from ..events import EventKind, task_name
from ..states import ClaimState, Handover, SlotState
from .waiter import Waiter

if TYPE_CHECKING:
    from .engine import Engine

PENDING = ClaimState.ASKING, ClaimState.WAITING, ClaimState.GRANTED


class Claims:
    """How claims end."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine

    def obtain(
        self, claim: Claim, at: Handover, slot: Slot | None, answer: Any
    ) -> Coroutine[Any, Any, Any]:
        """The slow part of an acquire; see `Waiter.obtain`."""
        return Waiter(self._engine, claim).obtain(at, slot, answer)

    def held(self, claim: Claim, slot: Slot) -> None:
        """Prepare the hold_warning of a claim that holds a slot now, and emit `acquired`."""
        engine = self._engine
        if engine.hold_warning is not None:
            engine.maintenance.expect(claim.since + engine.hold_warning)
        if engine.subscribers:
            waited = claim.since - claim.began
            engine.signals.emit(EventKind.ACQUIRED, slot.resource, claim.task, duration=waited)

    # -- failing -----------------------------------------------------------------------------------

    def fail(self, claim: Claim, error: BaseException) -> None:
        """End the claim with this error; what it was granted goes to the next."""
        claim.waiter.wake()  # first: if this is broken off, it is woken for nothing, and waits on
        self._engine.core.fail(claim, error)
        self.pass_on(claim)

    def pass_on(self, claim: Claim) -> None:
        """Give what this claim was granted to the next waiter, or back to idle."""
        engine = self._engine
        slot, claim.slot = claim.slot, None
        waiter = claim.waiter  # None: it was broken off
        if waiter is not None and waiter.inspection is not None:
            waiter.inspection.cut(asyncio.CancelledError())
        elif slot is not None:
            if slot.state is SlotState.OPENING:
                engine.core.fail_slot(slot)
            else:
                engine.settle(slot)
        engine.advance()

    def time_out(self, claim: Claim) -> None:
        """Fail a claim whose deadline has passed while it waits, or is inspected."""
        error = self.timed_out(claim)
        # Unless a subscriber to the timeout has closed the pool, or opened the breaker.
        if claim.state is ClaimState.WAITING or claim.state is ClaimState.GRANTED:
            self.fail(claim, error)

    def timed_out(self, claim: Claim) -> errors.AcquireTimeoutError:
        """Count and emit the timeout of this claim, and make its error."""
        engine = self._engine
        core = engine.core
        timeout = 0.0 if claim.deadline is None else claim.deadline - claim.began
        error = errors.acquire_timeout(
            engine.name,
            timeout,
            (core.active, core.idle_count, core.waiting),
            *engine.deadlines.snapshot().but(claim),
            circle=bool(core.deadlock(claim, True)),
        )
        if engine.factory_failures != claim.failures:
            error.__cause__ = engine.creations.last_error
        engine.totals.timeouts += 1
        if engine.subscribers:
            waited = engine.time() - claim.began
            engine.signals.emit(EventKind.TIMEOUT, task=claim.task, duration=waited, error=error)
        return error

    def check_deadlock(self, claim: Claim) -> None:
        """Raise PoolDeadlockError if this claim could never be served."""
        engine = self._engine
        leases = sorted(engine.core.deadlock(claim, False), key=lambda lease: lease.lease_seq)
        if leases:
            names = dict.fromkeys(task_name(lease.task) for lease in leases)
            raise errors.deadlock(engine.name, list(names), len(leases))

    # -- a wait that was broken off ----------------------------------------------------------------

    def interrupted(self, claim: Claim, finalizing: bool) -> None:
        """The task of this claim was cancelled, or dropped: what it was granted is passed on."""
        engine = self._engine
        if finalizing or engine.core.busy:
            engine.binding.from_finalizer(partial(self._cancelled, claim))
        else:
            engine.step(self._cancelled, claim)

    def give_up(self, claim: Claim) -> None:
        """End a claim that is not driven any more."""
        engine = self._engine
        if claim.state is ClaimState.ASKING:
            engine.core.dismiss(claim)
            engine.advance()
        elif claim.state in (ClaimState.WAITING, ClaimState.GRANTED):
            engine.core.leave(claim)
            self.pass_on(claim)

    def _cancelled(self, claim: Claim) -> None:
        if claim.state not in PENDING:
            return  # it has failed, and the cancellation only hides that
        engine = self._engine
        engine.totals.cancelled += 1
        self.give_up(claim)
        if engine.subscribers:
            waited = engine.time() - claim.began
            engine.signals.emit(EventKind.CANCELLED, task=claim.task, duration=waited)
