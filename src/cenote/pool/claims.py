"""Claims: what becomes of an acquire that waits: granted, failed, timed out or dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from .. import messages
from .._core import Claim, Slot
from ..errors import AcquireTimeoutError
from ..events import EventKind, RefusalReason, lane_name, task_name
from ..mask import explained
from ..states import CircuitState, ClaimState, Handover, Phase, SlotState
from .deadlocks import find_deadlock
from .waiter import Waiter

if TYPE_CHECKING:
    from .engine import Engine

# Looked up for every cancellation.
ASKING, WAITING, GRANTED = ClaimState.ASKING, ClaimState.WAITING, ClaimState.GRANTED
ACTIVE, OPEN = CircuitState.ACTIVE, Phase.OPEN
PENDING = ASKING, WAITING, GRANTED


class Claims:
    """How claims end."""

    __slots__ = ("_engine", "outwaited")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        # Whose time in the queue is over, and who stay because a factory runs for them.
        self.outwaited: dict[Claim, Waiter] = {}

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
        if engine.on_acquired:
            waited = claim.since - claim.began
            engine.signals.emit(
                EventKind.ACQUIRED,
                slot.resource,
                claim.task,
                lane=lane_name(claim),
                duration=waited,
            )

    # -- failing -----------------------------------------------------------------------------------

    def fail(self, claim: Claim, error: BaseException) -> None:
        """End the claim with this error; what it was granted goes to the next."""
        claim.waiter.wake()  # first: if this is broken off, it is woken for nothing, and waits on
        self._engine.lanes.note_time()
        self._engine.core.fail(claim, error)
        self.pass_on(claim)

    def refuse(self, claim: Claim, reason: RefusalReason, error: BaseException) -> None:
        """The same, by a decision of the pool: counted as refused."""
        self.fail(claim, error)
        self._engine.accounts.refused(claim, reason, error)

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

    def shed(self, claim: Claim) -> None:
        """Refuse a claim that is next, and has waited too long in an overloaded pool."""
        engine = self._engine
        core = engine.core
        waited = engine.time() - claim.queued_at
        error = messages.shed(
            engine.name, lane_name(claim), waited, core.queue_target or 0.0, core.waiting - 1,
            self.retry_after(claim),
        )  # fmt: skip
        self.refuse(claim, RefusalReason.SHED, error)

    def retry_after(self, claim: Claim) -> float | None:
        """In how many seconds all that wait now before such a claim will have been served, as fast
        as until now: of the pool, or of its lane, if that has no place for it.

        None if nothing has come back yet; with a `queue_target` at least its interval.
        """
        core, lane = self._engine.core, claim.lane
        least = None if core.queue_target is None else core.queue_interval
        if not core.released:
            return least
        turns = (core.waiting + 1) / max(1, core.max_size)
        if lane is not None and lane.max_size is not None and not claim.placed:
            turns = max(turns, (lane.parked + 1) / lane.max_size)
        return max(core.hold_time / core.released * turns, least or 0.0)

    def time_out(self, claim: Claim) -> None:
        """Fail a claim whose deadline has passed while it waits, or is inspected."""
        error = self.timed_out(claim)
        # Unless a subscriber to the timeout has closed the pool, or opened the breaker.
        if claim.state is WAITING or claim.state is GRANTED:
            self.fail(claim, error)

    def timed_out(self, claim: Claim) -> AcquireTimeoutError:
        """Count and emit the timeout of this claim, and make its error."""
        engine = self._engine
        core = engine.core
        full = engine.creations.full
        timeout, limit = 0.0 if claim.deadline is None else claim.deadline - claim.began, None
        if claim.wait_timeout is not None:
            limit = "timeout"
            if claim.waiter.limited:
                timeout, limit = claim.wait_timeout, "wait_timeout"
        error = messages.acquire_timeout(
            engine.name,
            timeout,
            (core.active, core.idle_count, core.waiting),
            *engine.deadlines.snapshot().but(claim),
            deadlock=bool(core.deadlock(claim, True)),
            limit=limit,
            full=None if full is None else explained(full),
            lane=lane_name(claim),
            at_limit=not claim.placed and _is_used_up(claim.lane),
            lent=engine.lending.sentence(),
            remedy=self._remedy(claim),
            retry_after=self.retry_after(claim),
        )
        if full is not None:
            error.__cause__ = full
        elif engine.factory_failures != claim.failures:
            error.__cause__ = engine.creations.last_error
        engine.accounts.timed_out(claim, error)
        return error

    def _remedy(self, claim: Claim) -> str:
        """What to do about a timeout: where nothing is held, nobody can hold it shorter."""
        engine = self._engine
        core = engine.core
        if claim.waiter is not None and claim.waiter.inspection is not None:
            check = engine.words.of("before_acquire", "the hook before_acquire")
            return messages.still_checking(check)
        word = engine.words.of("factory", "the factory")
        if not core.active and claim.timeout == 0 and core.room() > 0 and not core.sync_factory:
            return messages.nothing_idle(word)
        if not core.active and core.opening:
            return messages.still_creating(word)
        return messages.RAISE_BUDGET if engine.lending.lacks() else messages.HOLD_SHORTER

    def end_waits(self) -> None:
        """No factory runs any more: time out the claims that stayed because one did."""
        for claim, waiter in [*self.outwaited.items()]:
            self._end_wait(claim, waiter)

    def end_overtaken(self) -> None:
        """A factory is done: time out the claims that stayed because one ran for them, if what it
        made went to a claim of a higher priority. What is being destroyed leaves room for one."""
        for claim, waiter in [*self.outwaited.items()]:
            if not waiter.is_made_for(self._engine.core.closing):
                self._end_wait(claim, waiter)

    def _end_wait(self, claim: Claim, waiter: Waiter) -> None:
        if claim.state is WAITING:
            waiter.limited = True
            self.time_out(claim)

    def check_deadlock(self, claim: Claim) -> None:
        """Raise PoolDeadlockError if this claim could never be served."""
        engine = self._engine
        leases = engine.core.deadlock(claim, False)
        lane: str | None = None
        if not leases and engine.lanes.records:
            leases, lane = find_deadlock(engine.core, claim), lane_name(claim)
        if leases:
            leases.sort(key=lambda lease: lease.lease_seq)
            names = dict.fromkeys(task_name(lease.task) for lease in leases)
            error = messages.deadlock(engine.name, list(names), len(leases), lane)
            raise engine.accounts.refused(claim, RefusalReason.DEADLOCK, error)

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
        engine.lanes.note_time()
        if claim.state is ASKING:
            engine.core.dismiss(claim)
            engine.advance()
        elif claim.state in (WAITING, GRANTED):
            engine.core.leave(claim)
            self.pass_on(claim)

    def _only_waits(self, claim: Claim) -> bool:
        """Whether it has and owes nothing, so that nobody can be served because it leaves."""
        engine = self._engine
        core = engine.core
        return (
            claim.state is WAITING and claim.slot is None and not engine.lanes.records
            and core.circuit is ACTIVE and core.phase is OPEN
        )  # fmt: skip

    def _cancelled(self, claim: Claim) -> None:
        if claim.state not in PENDING:
            return  # it has failed, and the cancellation only hides that
        self._engine.history.catch_up()
        try:
            if self._only_waits(claim):
                self._engine.core.leave(claim)
            else:
                self.give_up(claim)
        finally:
            self._engine.accounts.cancelled(claim)


def _is_used_up(lane: Any) -> bool:
    """Whether a lane has as many out as it may have; else those that have its other places wait for
    a resource, too, and a larger lane would not help."""
    return lane is not None and lane.used - lane.queued >= (lane.max_size or inf)
