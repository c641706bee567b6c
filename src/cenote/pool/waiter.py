"""The slow part of an acquire: whatever has to be waited for. Both cores share it.

What is in hand is always in one of three places: `claim.slot` (granted, and waiting for this task
to run), `inspection` (an async `before_acquire` looks at it), or a local variable between two
suspensions. Code that fails or abandons the claim finds it in the first two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from .. import messages
from .._core import Claim, Slot
from ..errors import PoolError
from ..events import DestroyReason, EventKind, RefusalReason, lane_name
from ..hooks import is_awaitable
from ..states import CircuitState, ClaimState, Handover, Phase, SlotState
from ..timer import LONGEST
from .hooks import HookTask

if TYPE_CHECKING:
    from .engine import Engine


# Looked up for every wait.
ASKING, WAITING = ClaimState.ASKING, ClaimState.WAITING
GRANTED, FAILED = ClaimState.GRANTED, ClaimState.FAILED
OPENING, CLOSED = SlotState.OPENING, Phase.CLOSED
SEEKING, SHOWING, INSPECTING = Handover.SEEKING, Handover.SHOWING, Handover.INSPECTING


class Waiter:
    """One acquire that could not be served at once."""

    __slots__ = ("_accepted", "_engine", "_full_deadline", "_future", "claim", "inspected",
                 "inspection", "limited", "over")  # fmt: skip

    def __init__(self, engine: Engine[Any], claim: Claim) -> None:
        self._engine = engine
        self.claim: Claim = claim
        if claim.queue_seq == 0:  # else the native core knows, where the wait began
            claim.failures = engine.factory_failures
        self.over: bool = False  # it has ended by an exception
        self._accepted = False  # by an async before_acquire, in the turn before
        self.inspection: HookTask | None = None
        self.inspected: Slot | None = None  # at which that looks
        self._future: asyncio.Future[None] | None = None  # while it is suspended
        self.limited: bool = False  # the deadline is that of the queue,
        self._full_deadline: float | None = None  # and this one that of the whole
        claim.waiter = self
        timeout = claim.timeout
        if claim.deadline is None and timeout is not None and timeout > 0:
            claim.deadline = claim.began + min(timeout, LONGEST)

    async def obtain(self, at: Handover, slot: Slot | None = None, answer: Any = None) -> Any:
        """The resource. `at`: how far the fast path has come; `slot`: what it has in hand;
        `answer`: what before_acquire has returned to be awaited, or raised."""
        try:
            resource = self._go_on(at, slot, answer)
            while resource is None:
                try:
                    await self._future_of_wait()
                except BaseException as error:
                    self._interrupted(error)
                    raise
                self._future = None
                resource = self._go_on(SEEKING)
            return resource
        except BaseException as error:
            self._engine.lose(self.claim, error)
            raise
        finally:
            if outwaited := self._engine.claims.outwaited:
                outwaited.pop(self.claim, None)

    def _go_on(self, at: Handover, slot: Slot | None = None, answer: Any = None) -> Any:
        """One step: the resource, or None if it has to be waited for."""
        engine = self._engine
        try:
            return engine.step(self._serve, at, slot, answer)
        except BaseException:
            self.over = True  # first: what follows may be broken off, too
            engine.step(engine.claims.give_up, self.claim)
            self.claim.waiter = None  # no cycle
            raise

    def _serve(self, at: Handover, slot: Slot | None, answer: Any) -> Any:
        if slot is not None and self._settles(at, slot, answer):
            return self._hold(slot)
        claim = self.claim
        while True:
            slot, usable = None, False
            if claim.state is ASKING:
                slot = self._reach()
            if slot is None:
                if claim.state is WAITING or (claim.state is GRANTED and self.inspection):
                    return None
                slot = self._granted()
                # Made for a waiter, or accepted by now: not shown to before_acquire.
                usable, self._accepted = slot.fresh or self._accepted, False
            if usable or self._settles(SHOWING, slot, None):
                return self._hold(slot)

    def _settles(self, at: Handover, slot: Slot, answer: Any) -> bool:
        """Whether the slot in hand may be held; if not, it is not in hand any more."""
        if slot.state is OPENING:
            return self._make(slot)
        if at is SHOWING:
            at, answer = self._show(slot)
        if at is INSPECTING:
            self._inspect(slot, answer)
        elif at is Handover.REFUSED:
            try:
                self._ask_on(partial(self._engine.refuse, slot, answer))
            finally:
                del answer  # no cycle through this frame
        return at is Handover.ACCEPTED

    def _hold(self, slot: Slot) -> Any:
        engine, claim = self._engine, self.claim
        if claim.state is FAILED or engine.core.phase is CLOSED:
            self._revoked(slot)
        now = engine.time()
        resource = slot.resource  # a subscriber may discard it
        engine.core.hold(claim, slot, now, now - claim.began)
        claim.waiter = None  # no cycle
        if engine.on_acquired or engine.hold_warning is not None:
            engine.held(claim, slot)
        return resource

    def _reach(self) -> Slot | None:
        """An idle slot, or a permit to create; None: it waits now."""
        engine, core = self._engine, self._engine.core
        if core.phase is Phase.CLOSED:  # while a hook looked at what it rejected in the end
            raise self._refused(RefusalReason.CLOSED, engine.closing.error())
        if core.circuit is CircuitState.INACTIVE:
            raise self._refused(RefusalReason.CIRCUIT, engine.circuit.unavailable())
        slot = None
        if core.enter(self.claim):
            slot = core.take(self.claim.seen_idle)
            if slot is None and core.sync_factory:
                slot = core.permit()
        if slot is not None:
            return slot
        if self.claim.timeout == 0:
            raise engine.claims.timed_out(self.claim)
        limit = engine.settings.max_waiting
        if limit is not None and core.waiting >= limit:
            error = messages.overloaded(
                engine.name, core.waiting, limit, engine.claims.retry_after(self.claim)
            )
            raise self._refused(RefusalReason.OVERLOADED, error)
        if self.claim.wait_timeout is not None:
            self._limit_wait(self.claim.wait_timeout)
        if self.claim.deadline is None:
            engine.check_deadlock(self.claim)
        core.wait(self.claim, engine.time())  # a hook may have taken its time before
        if engine.on_waiting:
            engine.signals.emit(EventKind.WAITING, task=self.claim.task, lane=lane_name(self.claim))
        if core.idle_count or core.room() > 0:
            engine.advance()
        return None

    def _limit_wait(self, limit: float) -> None:
        """Let the deadline be that of the queue, if it comes first. With 0 the claim may join the
        queue only if a factory runs for it, or will as soon as it does."""
        engine, core, claim = self._engine, self._engine.core, self.claim
        if limit == 0:
            makes = core.idle_count + core.opening + max(0, core.room())
            parks = claim.lane is not None and not claim.placed
            if parks or engine.creations.full is not None or core.queued >= makes:
                self.limited = True
                raise engine.claims.timed_out(claim)
            engine.claims.outwaited[claim] = self
            return
        until = engine.time() + min(limit, LONGEST)
        if not self.limited and (claim.deadline is None or until < claim.deadline):
            core.remove_deadline(claim)  # it may have been in force while a hook ran
            self._full_deadline, self.limited = claim.deadline, True
            claim.deadline = until

    def extend(self) -> bool:
        """The time in the queue is over. Whether the claim stays all the same, up to its other
        deadline: a factory runs for it, or a hook looks at what it was given."""
        engine, claim = self._engine, self.claim
        if not self.limited or (claim.state is WAITING and not self.is_made_for()):
            return False
        self.limited = False
        engine.claims.outwaited[claim] = self
        claim.deadline = self._full_deadline
        engine.core.add_deadline(claim)
        return True

    def is_made_for(self, more: int = 0) -> bool:
        """Whether one of the factories under way, or of so many more, works for this claim: those
        that are first in line."""
        ahead: Claim | None = self._engine.core.first
        for _ in range(self._engine.core.opening + more):
            if ahead is self.claim or ahead is None:
                break
            ahead = ahead.next
        else:
            return False
        return ahead is self.claim

    def _granted(self) -> Slot:
        """What was handed to this claim, now in hand; raises what it was failed with."""
        if self.claim.error is not None:
            error, self.claim.error = self.claim.error, None
            try:
                raise error
            finally:
                del error  # no cycle through this frame
        slot, self.claim.slot = self.claim.slot, None
        assert slot is not None
        return slot

    def _revoked(self, slot: Slot) -> NoReturn:
        """A hook has closed the pool or opened the breaker in the very step it accepted."""
        engine = self._engine
        engine.settle(slot)
        if self.claim.state is FAILED:
            self._granted()
        raise self._refused(RefusalReason.CLOSED, engine.closing.error())

    def _refused(self, reason: RefusalReason, error: PoolError) -> PoolError:
        return self._engine.accounts.refused(self.claim, reason, error)

    def _make(self, slot: Slot) -> bool:
        """Use the permit. False: the factory turned out to be async, and goes on without us."""
        made = self._engine.creations.make(slot, self.claim, start=self.claim.timeout != 0)
        if not made:
            self._ask_on()
        return made

    def _ask_on(self, free: Callable[[], object] | None = None) -> None:
        """What was in hand is of no use: a waiter keeps its turn, a newcomer looks further.

        `free` gets rid of it, once the claim is back in the queue: else the freed slot would go to
        the next in line.
        """
        claim, core = self.claim, self._engine.core
        waits = claim.state is ClaimState.GRANTED and claim.queue_seq != 0
        if waits:
            core.wait(claim, self._engine.time())
        elif claim.state is ClaimState.GRANTED:
            core.ask_again(claim)
        if free is not None:
            free()
        if waits:
            self._engine.advance()  # something may be free long before an async destructor is done

    # -- before_acquire ----------------------------------------------------------------------------

    def _show(self, slot: Slot) -> tuple[Handover, Any]:
        """Ask before_acquire about the slot; SEEKING: it has expired, and is destroyed."""
        engine = self._engine
        if slot.expires_at <= engine.time():
            self._ask_on(partial(engine.destructions.destroy, slot, DestroyReason.MAX_LIFETIME))
            return SEEKING, None
        try:
            verdict = engine.hooks.ask_before_acquire(slot)
        except BaseException as error:
            return Handover.REFUSED, error
        if verdict is False:
            return Handover.REFUSED, None
        if verdict is not True and is_awaitable(verdict):
            return INSPECTING, verdict
        return Handover.ACCEPTED, None

    def _inspect(self, slot: Slot, verdict: Any) -> None:
        """Let an async before_acquire look at it; its verdict arrives in `_inspected`."""
        engine, claim = self._engine, self.claim
        if claim.state is ClaimState.ASKING:
            engine.core.reserve(claim, slot)
        claim.slot = None
        work = engine.hooks.start("before_acquire", slot, verdict, partial(self._inspected, slot))
        if claim.state is ClaimState.FAILED:  # by the hook itself, before it suspended
            work.cut(asyncio.CancelledError())
        elif not work.finished:
            self.inspection, self.inspected = work, slot

    def _inspected(
        self,
        slot: Slot,
        verdict: Any,
        error: BaseException | None,
    ) -> None:
        """The hook is done with the slot, in its own task; the claim may be gone by now."""
        self.inspection = self.inspected = None
        engine = self._engine
        if self.claim.state is not ClaimState.GRANTED:
            engine.destructions.destroy(slot, DestroyReason.CANCELLED)
            return
        if error is not None and not isinstance(error, Exception):
            engine.claims.fail(self.claim, error)
            engine.accounts.cancelled(self.claim)
            engine.destructions.destroy(slot, DestroyReason.REJECTED)
            return
        if error is not None or verdict is False:
            self._ask_on(partial(engine.hooks.reject, slot, "before_acquire", error))
        else:
            self._accepted = True
            self.claim.slot = slot  # for code that fails the claim before it runs
        self.wake()

    def look_further(self) -> None:
        """What it was granted is lost: the step that takes the verdict was broken off."""
        self.inspection = self.inspected = None
        self._ask_on()
        self.wake()

    # -- suspending --------------------------------------------------------------------------------

    def _future_of_wait(self) -> asyncio.Future[None]:
        """Done when granted, failed, or inspected; not awaited in a coroutine of its own, which
        every resumption would have to pass through."""
        engine, deadline = self._engine, self.claim.deadline
        loop = engine.loop
        assert loop is not None
        self._future = future = loop.create_future()
        if deadline is not None:
            engine.core.add_deadline(self.claim)
            if deadline < engine.core.alarm_at:
                engine.set_alarm(deadline)
        return future

    def _interrupted(self, error: BaseException) -> None:
        """While suspended: everything is passed on."""
        self._future = None
        self._engine.core.remove_deadline(self.claim)
        self.over = True  # unless it is seen to later, as soon as that is safe
        self._engine.interrupted(self.claim, isinstance(error, GeneratorExit))
        self.over = self.claim.state not in (ASKING, WAITING, GRANTED)
        if self.over:
            self.claim.waiter = None  # no cycle

    def wake(self) -> None:
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)
