"""The slow part of an acquire: whatever has to be waited for. Both cores share it.

What is in hand is always in one of three places: `claim.slot` (granted, and waiting for this task
to run), `inspection` (an async `before_acquire` looks at it), or a local variable between two
suspensions. Whoever fails or abandons the claim finds it in the first two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from . import errors
from ._core import Claim, Slot
from .hooks import is_awaitable
from .states import CircuitState, ClaimState, Phase, SlotState
from .work import LONGEST, Work

if TYPE_CHECKING:
    from .runtime import Runtime


class Waiting:
    """One acquire that could not be served at once."""

    __slots__ = ("_future", "_pool", "_timer", "claim", "failures", "inspection")

    def __init__(self, pool: Runtime[Any], claim: Claim) -> None:
        self._pool = pool
        self.claim = claim
        self.failures = pool._factory_failures  # before this wait
        self.inspection: Work | None = None
        self._future: asyncio.Future[None] | None = None  # while it is suspended
        self._timer: asyncio.TimerHandle | None = None  # its deadline, from the first suspension
        claim.waiting = self
        timeout = claim.timeout
        if timeout is not None and timeout > 0:
            claim.deadline = claim.began + min(timeout, LONGEST)

    async def obtain(self, slot: Slot | None, verdict: Any) -> Any:
        """The resource. `slot`: what is in hand already; `verdict`: what before_acquire said."""
        pool, claim = self._pool, self.claim
        try:
            while True:
                fresh = False
                if slot is None and claim.state is ClaimState.ASKING:
                    slot = self._reach()
                if slot is None:
                    if claim.state is ClaimState.WAITING:
                        await self._suspend()
                    slot = self._granted()
                    fresh = slot.fresh  # made for whoever waits: not shown to before_acquire
                if slot.state is SlotState.OPENING:
                    usable = self._make(slot)
                elif fresh:
                    usable = True
                else:
                    usable = await self._approve(slot, verdict)
                if usable:
                    self._check_revoked(slot)
                    self._stop_timer()
                    now = pool._time()
                    resource = slot.resource  # a subscriber may discard it
                    pool._core.hold(claim, slot, now, now - claim.began)
                    claim.waiting = None  # no cycle
                    pool._held(claim, slot)
                    return resource
                slot = verdict = None
        except GeneratorExit:
            raise  # _suspend has seen to it, now or as soon as it is safe
        except BaseException:
            self._give_up()
            claim.waiting = None  # no cycle
            raise

    def _reach(self) -> Slot | None:
        """An idle slot, or a permit to create; None: it waits now."""
        pool, core = self._pool, self._pool._core
        if core.phase is Phase.CLOSED:  # while a hook looked at what it rejected in the end
            raise errors.closed(pool._name)
        if core.circuit is CircuitState.INACTIVE:
            raise pool._unavailable()
        slot = core.take(self.claim.before)
        if slot is None and core.sync_factory:
            slot = core.permit()
        if slot is not None:
            return slot
        if self.claim.timeout == 0:
            raise pool._timed_out(self.claim)
        limit = pool._settings.max_waiting
        if limit is not None and core.waiting >= limit:
            raise errors.overloaded(pool._name, core.waiting, limit)
        if self.claim.deadline is None:
            pool._check_circle(self.claim)
        core.wait(self.claim)
        if pool._subscribers:
            pool._emit("waiting", task=self.claim.task)
        pool._advance()
        return None

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

    def _check_revoked(self, slot: Slot) -> None:
        """A hook may have closed the pool or opened the breaker in the very step it accepted."""
        pool = self._pool
        if self.claim.state is ClaimState.FAILED:
            pool._settle(slot)
            self._granted()
        elif pool._core.phase is Phase.CLOSED:
            pool._settle(slot)
            raise errors.closed(pool._name)

    def _make(self, slot: Slot) -> bool:
        """Use the permit. False: the factory turned out to be async, and goes on without us."""
        made = self._pool._make(slot, start=self.claim.timeout != 0)
        if not made:
            self._ask_on()
        return made

    def _ask_on(self, free: Callable[[], object] | None = None) -> None:
        """What was in hand is of no use: a waiter keeps its turn, a newcomer looks further.

        `free` gets rid of it, once the claim is back in the queue: else the freed slot would go to
        the next in line.
        """
        claim, core = self.claim, self._pool._core
        waits = claim.state is ClaimState.GRANTED and claim.turn != 0
        if waits:
            core.wait(claim)
        elif claim.state is ClaimState.GRANTED:
            core.ask_again(claim)
        if free is not None:
            free()
        if waits:
            self._pool._advance()  # something may be free long before an async destructor is done

    def _give_up(self) -> None:
        self._stop_timer()
        if self.claim.state is ClaimState.ASKING:
            self._pool._core.dismiss(self.claim)
            self._pool._advance()
        elif self.claim.state in (ClaimState.WAITING, ClaimState.GRANTED):
            self._pool._core.leave(self.claim)
            self._pool._pass_on(self.claim)

    # -- before_acquire --------------------------------------------------------------------------

    async def _approve(self, slot: Slot, verdict: Any) -> bool:
        """Show the slot to before_acquire. False: it was rejected, and is destroyed."""
        pool, claim = self._pool, self.claim
        if verdict is None:
            if slot.expires_at <= pool._time():
                self._ask_on(partial(pool._destroy, slot, "max_lifetime"))
                return False
            try:
                verdict = pool._ask_before_acquire(slot)
            except BaseException as error:
                self._ask_on(partial(pool._refuse, slot, error))
                return False
        if not is_awaitable(verdict):
            if verdict is False:
                self._ask_on(partial(pool._refuse, slot, None))
            return verdict is not False
        if claim.state is ClaimState.ASKING:
            pool._core.reserve(claim, slot)
        claim.slot = None
        accepted: list[bool] = []
        work = pool._start_hook(
            "before_acquire", verdict, partial(self._inspected, slot, accepted.append)
        )
        if claim.state is ClaimState.FAILED:  # by the hook itself, before it suspended
            work.cut(asyncio.CancelledError())
        elif not work.finished:
            self.inspection = work
            await self._suspend()
        if claim.state is ClaimState.FAILED:
            self._granted()
        if accepted[0]:
            claim.slot = None
        return accepted[0]

    def _inspected(
        self,
        slot: Slot,
        answer: Callable[[bool], None],
        verdict: Any,
        error: BaseException | None,
    ) -> None:
        """The hook is done with the slot, in its own task; the claim may be gone by now."""
        self.inspection = None
        pool = self._pool
        if self.claim.state is not ClaimState.GRANTED:
            pool._destroy(slot, "cancelled")
            return
        if error is not None and not isinstance(error, Exception):
            pool._fail(self.claim, error)
            pool._destroy(slot, "rejected")
            return
        if error is not None or verdict is False:
            answer(False)
            self._ask_on(partial(pool._reject, slot, "before_acquire", error))
        else:
            answer(True)
            self.claim.slot = slot  # whoever fails the claim before it runs finds it here
        self.wake()

    # -- suspending ------------------------------------------------------------------------------

    async def _suspend(self) -> None:
        """Until granted, failed, or inspected; left by cancellation, everything is passed on."""
        loop = self._pool._loop
        assert loop is not None
        self._future = loop.create_future()
        if self.claim.deadline is not None and self._timer is None:
            # In an empty context: a cancelled timer lives on in the loop, and its context with it.
            self._timer = loop.call_at(self.claim.deadline, self._expire, context=Context())
        try:
            await self._future
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                self._pool._from_finalizer(self._cancelled)
            else:
                self._cancelled()
            raise
        finally:
            self._future = None

    def _cancelled(self) -> None:
        if self.claim.state not in (ClaimState.ASKING, ClaimState.WAITING, ClaimState.GRANTED):
            return  # it has failed, and the cancellation only hides that
        pool = self._pool
        pool._totals.cancelled += 1
        self._give_up()
        if pool._subscribers:
            pool._emit(
                "cancelled",
                task=self.claim.task,
                duration=pool._time() - self.claim.began,
            )

    def _expire(self) -> None:
        self._timer = None
        if self.claim.state is ClaimState.WAITING or self.inspection is not None:
            self._pool._fail(self.claim, self._pool._timed_out(self.claim))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)
