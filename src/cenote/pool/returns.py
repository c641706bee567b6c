"""Returns: how a resource comes back from its holder, and where it goes."""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from .. import messages
from .._core import Claim, Slot
from .._fast import give_back
from ..caller import may_have_interrupted_use
from ..events import DestroyReason, EventKind, lane_name
from ..hooks import RETIRE, is_awaitable
from ..states import ClaimState, SlotState
from .loop import current_task
from .operation import DONE, Operation, raise_fatal

if TYPE_CHECKING:
    from .engine import Engine


class Returns:
    """The slow part of a return; the fast one is `give_back` of the fast path."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine

    def leased(self, resource: Any, verb: str) -> Slot:
        """The slot with this very resource that is out; of twins, the caller's own first."""
        core = self._engine.core
        task = current_task() if core.is_shared(resource) else None
        slot = core.find(resource, task)
        if slot is None:
            raise messages.not_acquired(self._engine.name, resource, verb)
        return slot

    def completed(self, operation: Operation) -> Operation:
        """If the operation has already finished, raise its error now rather than on await."""
        if operation.done:
            operation.result()
        return operation

    def returned(self, claim: Claim, slot: Slot) -> None:
        """Emit `released`."""
        held = self._engine.time() - claim.since
        self._engine.signals.emit(
            EventKind.RELEASED, slot.resource, claim.task, lane=lane_name(claim), duration=held
        )

    # -- discarding --------------------------------------------------------------------------------

    def discard(self, resource: Any, error: BaseException | None) -> Operation:
        """Destroy a resource that is out; an error is reported to the strategy."""
        engine = self._engine
        engine.check_loop()
        slot = self.leased(resource, "discard")
        if engine.core.busy:
            return engine.steps.defer(partial(self._discard_later, slot, slot.holder, error))
        return self.completed(engine.step(self._discard, slot, error))

    def _discard(self, slot: Slot, error: BaseException | None) -> Operation:
        self._reclaim(slot)
        if error is not None:
            self._engine.circuit.report_failure(error, slot.probe)
        return self._engine.destructions.destroy(slot, DestroyReason.DISCARDED)

    def _discard_later(
        self, slot: Slot, claim: Claim | None, error: BaseException | None
    ) -> Operation:
        if claim is None or slot.holder is not claim:  # somebody else was faster
            raise messages.not_acquired(self._engine.name, slot.resource, "discard")
        return self._engine.step(self._discard, slot, error)

    def _reclaim(self, slot: Slot) -> None:
        engine = self._engine
        claim = engine.core.reclaim(slot, engine.time())
        if engine.on_released:
            self.returned(claim, slot)

    # -- idle resources ----------------------------------------------------------------------------

    def evict(self, resource: Any) -> Operation:
        """Destroy a resource that is idle."""
        engine = self._engine
        engine.check_loop()
        if engine.core.busy:
            return engine.steps.defer(partial(self.evict, resource))
        for slot in engine.core.idle_slots():
            if slot.resource is resource:
                return self.completed(engine.step(self._evict, slot))
        raise messages.not_idle(engine.name, resource)

    def _evict(self, slot: Slot) -> Operation:
        self._engine.core.take_this(slot)
        return self._engine.destructions.destroy(slot, DestroyReason.EVICTED)

    # -- before_release ----------------------------------------------------------------------------

    def examine(
        self,
        slot: Slot,
        verdict: Any,
        error: BaseException | None,
        *,
        report: bool = True,
    ) -> Operation:
        """before_release has raised, rejected, or returned something to be awaited."""
        hooks = self._engine.hooks
        if isinstance(error, Exception):
            return hooks.reject(slot, "before_release", error, report=report)
        if error is not None:
            self._engine.destructions.destroy(slot, DestroyReason.REJECTED)
            raise error
        if not is_awaitable(verdict):
            if verdict is False:
                return hooks.reject(slot, "before_release", None, report=report)
            return self._accept(slot, report, worn=verdict is RETIRE)
        operation = Operation()
        operation.begin()
        examined = partial(self._examined, slot, report, operation)
        hooks.start("before_release", slot, verdict, examined, operation)
        return operation

    def _examined(
        self,
        slot: Slot,
        report: bool,
        operation: Operation,
        verdict: Any,
        error: BaseException | None,
    ) -> None:
        """An async before_release is done."""
        engine = self._engine
        if error is not None and not isinstance(error, Exception):
            if not isinstance(error, asyncio.CancelledError):
                engine.hooks.explain("before_release", error)
            inner = engine.destructions.destroy(slot, DestroyReason.REJECTED)
            operation.errors.append(error)
        elif error is not None or verdict is False:
            inner = engine.hooks.reject(slot, "before_release", error, report=report)
        else:
            inner = self._accept(slot, report, worn=verdict is RETIRE)
        inner.then(operation)

    def _accept(self, slot: Slot, report: bool, *, worn: bool = False) -> Operation:
        """`worn`: the resource has served well, and is not to be used again."""
        if report:
            self._engine.report_success(slot.probe)
        if worn:
            return self._engine.destructions.destroy(slot, DestroyReason.WORN_OUT)
        return self.settle(slot)

    # -- blocks ------------------------------------------------------------------------------------

    async def leave(self, claim: Claim, error: BaseException) -> None:
        """An `async with` is left by this exception, which goes on whatever happens here."""
        engine = self._engine
        if isinstance(error, GeneratorExit):
            engine.binding.from_finalizer(partial(self._leave_block, claim, error))
        else:
            engine.check_loop()
            await engine.steps.turn()
            operation = engine.step(self._leave_block, claim, error)
            await operation.wait()
            raise_fatal(operation)

    def _leave_block(self, claim: Claim, error: BaseException) -> Operation:
        engine = self._engine
        slot = claim.slot
        if claim.state is not ClaimState.HOLDING or slot is None:
            return DONE  # it took until now to get here
        if not may_have_interrupted_use(error):
            return give_back(engine, slot)  # type: ignore[no-any-return]
        self._reclaim(slot)
        if not engine.settings.reuse_after_cancel:
            engine.maintenance.suspect_shutdown()
            return engine.destructions.destroy(slot, DestroyReason.CANCELLED)
        hook = engine.before_release
        if hook is None:
            return self._accept(slot, False)
        try:
            verdict = engine.call_out(hook, slot.resource)
        except BaseException as raised:
            return self.examine(slot, None, raised, report=False)
        return self.examine(slot, verdict, None, report=False)

    # -- back to idle ------------------------------------------------------------------------------

    def settle(self, slot: Slot, *, looked_at: bool = False) -> Operation:
        """From the pool's hands to the oldest waiter, else to idle; destroyed if it is unfit."""
        engine = self._engine
        core, now = engine.core, engine.time()
        reason = core.put_back(slot, now) if looked_at else core.put(slot, now)
        if reason is not None:
            return engine.destructions.destroy(slot, DestroyReason(reason))
        self.expect(slot)
        engine.advance()
        if slot.state is SlotState.IDLE and not engine.advancing:
            slot.fresh = False  # nobody waited for it
        return DONE

    def expect(self, slot: Slot) -> None:
        """Let maintenance look at this slot, which is idle now, in time."""
        engine = self._engine
        idle = engine.settings.max_idle
        if idle is not None or slot.expires_at != inf:
            idle_until = inf if idle is None else slot.idle_since + idle
            engine.maintenance.expect(min(idle_until, slot.expires_at))
