"""Closing a pool: `states.CLOSING` is the law of it.

`core.phase` says what the pool still decides; the state here says how far the work of closing has
come: OPEN, DRAINING while holders may give back, SHUTTING while everything idle is handed to the
destructor, CLOSED while hooks are under way, ANNOUNCED when nothing is left.
"""

from __future__ import annotations

import asyncio
from logging import WARNING
from math import isinf
from typing import TYPE_CHECKING, Any

from .. import messages
from ..errors import PoolClosedError, Undone
from ..events import DestroyReason, EventKind, RefusalReason
from ..states import CLOSING, ClaimState, ClosingState, Phase
from ..timer import Timer
from .holders import holders_of
from .hooks import HookTask
from .operation import Operation

if TYPE_CHECKING:
    from .engine import Engine


class Closer:
    """One close() that waits, perhaps inside of hooks."""

    __slots__ = ("future", "inside")

    def __init__(self, future: asyncio.Future[None], inside: tuple[HookTask, ...]) -> None:
        self.future: asyncio.Future[None] = future
        self.inside: tuple[HookTask, ...] = inside


class Closing:
    """The end of a pool."""

    __slots__ = ("_closers", "_drain", "_engine", "operation", "state")

    def __init__(self, engine: Engine[Any], *, closed: bool = False) -> None:
        """`closed`: it was closed before a fork."""
        self._engine = engine
        self.state: ClosingState = ClosingState.ANNOUNCED if closed else ClosingState.OPEN
        self.operation: Operation = Operation()  # the destructors whose errors close() raises
        self._closers: list[Closer] = []  # the close() calls that wait
        self._drain = Timer()

    def move(self, event: str) -> None:
        """drain, shut, empty, announce, forsake."""
        self.state = CLOSING[self.state, event]

    async def close(self, patience: float) -> None:
        """Close, or wait for the close() that is under way. The first one raises the errors of the
        destructors. `patience`: seconds for busy resources to come back; 0: no drain."""
        engine = self._engine
        engine.check_loop()
        await engine.steps.turn()
        first = self.state is ClosingState.OPEN
        if first and patience > 0 and engine.core.phase is Phase.OPEN:
            engine.step(self._start_drain, patience)
        elif first:
            engine.step(self.shut)
        elif self.state is ClosingState.ANNOUNCED:
            return
        engine.step(engine.advance)
        if self.state is not ClosingState.ANNOUNCED:
            await self._wait()
        await engine.lending.ended()
        failed = self.operation.errors
        if first and failed:
            plural = "s" * (len(failed) > 1)
            raise BaseExceptionGroup(
                f"{messages.label(engine.name)}: {len(failed)} destructor{plural} failed", failed
            )

    def error(self) -> PoolClosedError:
        """What an acquire gets from now on."""
        engine = self._engine
        draining = engine.core.phase is Phase.DRAINING
        return messages.closed(engine.name, engine.words.after_closing, draining=draining)

    def terminate(self) -> None:
        """As a step: do what close() does without waiting, also in the middle of a drain."""
        if self.state is ClosingState.OPEN or self.state is ClosingState.DRAINING:
            self.shut()
            self._engine.advance()

    def shut(self) -> None:
        """Close in one step; `finish` follows when the hooks under way are done."""
        self.move("shut")
        self._engine.core.move("close")
        self._shut_rest()

    def follow(self, operation: Operation) -> None:
        """Let close() wait for this operation, and raise its errors."""
        self.operation.begin()
        operation.then(self.operation)

    def finish(self) -> None:
        """Announce the end if nothing is under way, and wake every close() that need not wait any
        longer: one inside a hook does not wait for hooks that call close(), any other one waits for
        everything."""
        engine = self._engine
        if self.state is not ClosingState.CLOSED and self.state is not ClosingState.ANNOUNCED:
            return
        tasks = engine.hooks.tasks
        if not tasks and self.state is ClosingState.CLOSED:
            self.move("announce")
            engine.signals.note(EventKind.CLOSED)
            engine.signals.set(())
        if self.state is ClosingState.ANNOUNCED and not engine.core.total:
            engine.lending.end()
        calling = {task for closer in self._closers for task in closer.inside}
        for closer in [*self._closers]:
            if not tasks - (calling if closer.inside else set()) and not closer.future.done():
                closer.future.set_result(None)

    def resume(self) -> None:
        """After a step that was broken off: shut what it has not come to."""
        if self.state is ClosingState.SHUTTING:
            if self._engine.core.phase is not Phase.CLOSED:
                self._engine.core.move("close")
            self._shut_rest()

    def forsake(self) -> None:
        """Mark as closed without running destructors: the loop is gone."""
        engine = self._engine
        if engine.core.phase is not Phase.CLOSED:
            self.move("forsake")
            engine.maintenance.stop()
            engine.deadlines.stop()
            engine.core.move("close")
            engine.lending.end()

    # -- inner -------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        engine = self._engine
        future = asyncio.get_running_loop().create_future()
        closer = Closer(future, engine.hooks.calling())
        self._closers.append(closer)
        try:
            engine.step(self.finish)
            await future
        finally:
            self._closers.remove(closer)

    def _start_drain(self, patience: float) -> None:
        engine = self._engine
        if not isinf(patience):
            assert engine.loop is not None
            self._drain.start(engine.loop, patience, self._drain_is_over, engine.pool)
        engine.core.move("drain")
        self.move("drain")

    def _drain_is_over(self, pool: Any) -> None:
        """The callback of the timer. A pool that drains is not collected: `pool` keeps it alive."""
        self._engine.step(self._end_drain)

    def _end_drain(self) -> None:
        engine = self._engine
        if engine.core.phase is not Phase.DRAINING:
            return
        holders = holders_of(engine.core, engine.time())
        if holders:
            who = "; ".join(messages.describe(holder) for holder in holders)
            engine.signals.log(WARNING, "the drain is over, and not everything came back: %s", who)
        self.shut()

    def _shut_rest(self) -> None:
        engine = self._engine
        core = engine.core
        engine.maintenance.stop()
        engine.deadlines.stop()
        self._drain.stop()
        for claim in core.pending():
            if claim.state is ClaimState.WAITING or claim.state is ClaimState.GRANTED:
                error = self.error()
                engine.claims.refuse(claim, RefusalReason.CLOSED, error)
        engine.creations.last_error = None
        engine.signals.changed()
        calling = engine.hooks.calling()
        for task in (*engine.creations.tasks.values(), engine.maintenance.check):
            if task is not None and task not in calling:
                task.cut(Undone())
        self.follow(engine.destructions.destroy_idle(DestroyReason.CLOSED, core.idle_slots()))
        self.move("empty")
        self.finish()
