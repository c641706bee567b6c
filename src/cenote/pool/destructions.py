"""Destructions: the destructor, and what follows when a resource is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from logging import DEBUG, ERROR
from typing import TYPE_CHECKING, Any

from .. import messages
from .._core import Slot
from ..errors import HookTimeoutError
from ..events import DestroyReason, EventKind
from ..hooks import drop, is_async, is_awaitable
from ..log import log
from ..states import SlotState
from .hooks import HookTask
from .operation import DONE, Operation

if TYPE_CHECKING:
    from .engine import Engine


class Destructions:
    """Calls the destructor. What it raises is in the operation, a BaseException included: nothing
    breaks off in the middle of a step."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine

    def destroy(self, slot: Slot, reason: DestroyReason) -> Operation:
        """Call the destructor of a reserved slot, which is free when that is done."""
        self._engine.lanes.note_time()
        self._engine.core.retire(slot)
        operation = self.call(slot.resource, reason, slot)
        if not operation.done:
            # Its place in the recovery is free, and what it was made for is missing, long before an
            # async destructor is done.
            self._engine.advance()
        return operation

    def destroy_idle(self, reason: DestroyReason, slots: Iterable[Slot]) -> Operation:
        """Destroy all of these that are idle, whatever their destructors do."""
        operation = Operation()
        operation.begin()
        for slot in slots:
            if slot.state is not SlotState.IDLE:
                continue  # a destructor before it has used the pool
            self._engine.core.take_this(slot)
            operation.begin()
            self.destroy(slot, reason).then(operation)
        operation.end()
        return operation

    def destroy_idle_quietly(self, reason: DestroyReason, slots: Iterable[Slot]) -> Operation:
        """The same, without the errors of the destructors in the operation."""
        operation = Operation()
        operation.begin()
        self.destroy_idle(reason, slots).then(operation, errors=False)
        return operation

    def destroy_abandoned(self, pool: Any) -> None:
        """Of a pool that is collected unclosed: call the destructor if it is sync. An async one
        could not be awaited any more."""
        destructor = self._engine.settings.destructor
        if destructor is None or is_async(destructor):
            return
        for slot in self._engine.core.idle_slots():
            try:
                drop(destructor(slot.resource))
            except Exception as error:
                about = {"pool": self._engine.name}
                log(ERROR, "%r: unclosed, and its destructor failed", pool,
                    error=error, fields=about, loop=self._engine.loop)  # fmt: skip

    def call(self, resource: Any, reason: DestroyReason, slot: Slot | None = None) -> Operation:
        """Call the destructor; without a slot it is of something that came late."""
        engine = self._engine
        if slot is not None:
            slot.told = True
        destructor = engine.settings.destructor
        if destructor is None:
            return self.finish(resource, reason, slot)
        try:
            result = engine.call_out(destructor, resource)
        except BaseException as error:
            return self.finish(resource, reason, slot, error)
        if not is_awaitable(result):
            return self.finish(resource, reason, slot)
        operation = Operation()
        operation.begin()
        limit = engine.settings.destructor_timeout
        HookTask(
            engine.hooks,
            awaitable=result,
            timeout=limit,
            overrun=lambda: messages.hook_timeout(
                engine.name, "destructor", limit, engine.words.of("destructor")
            ),
            done=lambda _, error: self._destroyed(resource, reason, slot, operation, error),
            slot=slot,
            operation=operation,
            grace=0,
            # The pool of a late one may be unbound by now.
            loop=asyncio.get_running_loop() if slot is None else None,
            context=engine.context.copy(),
            name=f"cenote destructor of {messages.label(engine.name)}",
        )
        return operation

    def finish(
        self,
        resource: Any,
        reason: DestroyReason,
        slot: Slot | None,
        error: BaseException | None = None,
    ) -> Operation:
        """The resource is gone: free its slot, count it, and serve the next."""
        engine = self._engine
        destroyed = engine.totals.destroyed
        if slot is not None:
            engine.core.finish(slot)
        destroyed[reason] = destroyed.get(reason, 0) + 1  # no call: freed and counted, or neither
        if isinstance(error, HookTimeoutError):
            about = {"pool": engine.name}
            log(ERROR, "%s; its slot is free again", error, fields=about, loop=engine.loop)
        elif isinstance(error, asyncio.CancelledError):
            what = engine.words.of("destructor", "the destructor")
            engine.signals.log(DEBUG, "%s was cancelled", what)
        elif error is not None:
            what = engine.words.of("destructor", "the destructor")
            engine.signals.log(ERROR, "%s failed", what, error=error)
        engine.signals.note(EventKind.DESTROYED, resource, reason=reason, error=error)
        engine.advance()
        if error is None:
            return DONE
        operation = Operation()
        operation.errors.append(error)
        return operation

    def _destroyed(
        self,
        resource: Any,
        reason: DestroyReason,
        slot: Slot | None,
        operation: Operation,
        error: BaseException | None,
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._engine.maintenance.suspect_shutdown()
        self.finish(resource, reason, slot, error)
        operation.end(None if isinstance(error, HookTimeoutError) else error)
