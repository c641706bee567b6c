"""Opening, draining, closing, and being forgotten."""

from __future__ import annotations

import asyncio
import warnings
from logging import ERROR, WARNING
from math import isinf
from types import TracebackType
from typing import Self, TypeVar

from .. import errors, options
from ..events import DestroyReason, EventKind
from ..hooks import drop, is_async
from ..states import CircuitState, ClaimState, Phase
from .holders import holders_of
from .hooks import LONGEST, HookTask, inside
from .operation import Operation, raise_fatal
from .runtime import Runtime, current_task

T = TypeVar("T")


class Closer:
    """One close() that waits, perhaps inside of hooks."""

    __slots__ = ("future", "inside")

    def __init__(self, future: asyncio.Future[None], inside: tuple[HookTask, ...]) -> None:
        self.future = future
        self.inside = inside


class Lifecycle(Runtime[T]):
    """How a pool begins and ends."""

    __slots__ = ()

    async def open(self) -> None:
        """Bind to the running loop; returns when `min_size` resources exist."""
        await self._open_with(0)

    async def _open_with(self, least: int) -> None:
        """At least so many, also above `min_size`: then they are not restored later."""
        while self._undoing is not None:
            await self._undoing.wait()
        await self._turn()
        self._step(self._enter)
        failures: list[BaseException] = []
        self._openers.append(failures)
        try:
            while self._core.count < max(self._core.min_size, least):
                if failures:
                    raise failures[0]
                if self._core.phase is not Phase.OPEN:
                    raise errors.closed(self._name)
                if self._core.circuit is CircuitState.INACTIVE:
                    raise self._unavailable()
                self._step(self._fill, least)
                await self._next_change()
        except BaseException as error:
            self._openers.remove(failures)
            # Another open() goes on, unless it hears of the same failure.
            if failures or isinstance(error, Exception) or not self._openers:
                await self._undo_open()
            raise
        self._openers.remove(failures)

    async def _undo_open(self) -> None:
        """What was created is destroyed; if nobody uses the pool otherwise, it is new again."""
        core = self._core
        if core.phase is not Phase.OPEN:
            return
        self._maintenance.paused = True
        undoing = self._undoing = Operation()
        undoing.begin()
        try:
            if not core.waiting:
                for work in [*self._creations.values()]:
                    work.cut(errors.Undone())
            while self._creations and not core.waiting:
                await self._next_change()
            await self._step(
                self._destroy_idle, DestroyReason.OPEN_FAILED, core.idle_slots()
            ).wait()
        finally:
            self._maintenance.paused = False
            self._undoing = None
            undoing.end()
            if core.phase is Phase.OPEN and not (core.total or core.pending()):
                core.move("unopen")
                self._unbind()

    async def close(self, *, drain: float | None = None) -> None:
        """Refuse new acquires, fail the waiters, destroy what is idle; the rest on its release.

        With `drain`, those who already wait are still served, and busy resources have that many
        seconds to come back first.
        """
        patience = 0.0 if drain is None else options.number("drain", drain)
        if patience < 0:
            raise ValueError(f"drain must be 0 or more seconds, or None, not {drain!r}")
        self._check_loop()
        await self._turn()
        first = self._core.phase is Phase.NEW or self._core.phase is Phase.OPEN
        if not first:
            if self._closed_sent or self._closing is None:  # None: closed before a fork
                return
        else:
            self._closing = Operation()
            if patience > 0 and self._core.phase is Phase.OPEN:
                self._step(self._start_drain, patience)
            else:
                self._step(self._shut)
        self._step(self._advance)
        if not self._closed_sent:
            closer = Closer(asyncio.get_running_loop().create_future(), self._calling())
            self._closers.append(closer)
            try:
                self._step(self._finish_close)
                await closer.future
            finally:
                self._closers.remove(closer)
        failed = self._closing.errors
        if first and failed:
            raise BaseExceptionGroup(
                f"{errors.label(self._name)}: {len(failed)} destructor{'s' * (len(failed) > 1)} "
                f"failed",
                failed,
            )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except BaseExceptionGroup:  # of destructors: logged, and sent as events
            if error is None:
                raise
            assert self._closing is not None
            raise_fatal(self._closing)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None or core.phase is Phase.NEW or core.phase is Phase.CLOSED:
            return
        try:
            if self._in_own_thread():
                self._destroy_abandoned()
        finally:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def _forsake(self) -> None:
        """The loop is gone and nothing can be awaited: closed, whatever is left."""
        if self._core.phase is not Phase.CLOSED:
            self._maintenance.stop()
            self._deadlines.stop()
            self._core.move("close")

    def _destroy_abandoned(self) -> None:
        """Sync destructors only: nobody is left to await an async one."""
        destructor = self._settings.destructor
        if destructor is None or is_async(destructor):
            return
        for slot in self._core.idle_slots():
            try:
                drop(destructor(slot.resource))
            except Exception as error:
                self._log(ERROR, "unclosed, and its destructor failed", error=error)

    def _start_drain(self, patience: float) -> None:
        if not isinf(patience):
            assert self._loop is not None
            self._drain_timer = self._loop.call_later(
                min(patience, LONGEST), self._step, self._end_drain
            )
        self._core.move("drain")

    def _end_drain(self) -> None:
        holders = holders_of(self._core, self._time())
        if holders:
            who = "; ".join(errors.describe(holder) for holder in holders)
            self._log(WARNING, "the drain is over, and not everything came back: %s", who)
        self._shut()

    def _shut(self) -> None:
        """Close in one step; `_finish_close` follows when the work that is left is done."""
        self._core.move("close")
        self._shut_rest()

    def _shut_rest(self) -> None:
        core = self._core
        self._maintenance.stop()
        self._deadlines.stop()
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        for claim in core.pending():
            if claim.state is ClaimState.WAITING or claim.state is ClaimState.GRANTED:
                self._fail(claim, errors.closed(self._name))
        self._factory_error = None
        self._changed()
        calling = self._calling()
        for work in (*self._creations.values(), self._maintenance.check):
            if work is not None and work not in calling:
                work.cut(errors.Undone())
        self._shut_part(self._destroy_idle(DestroyReason.CLOSED, core.idle_slots()))
        self._shut_over = True
        self._finish_close()

    def _calling(self) -> tuple[HookTask, ...]:
        """The hooks inside of which this is called, by context or as the task that one returned."""
        task = current_task()
        return (
            *inside.get(),
            *(work for work in self._works if task is not None and work.awaited is task),
        )

    def _shut_part(self, operation: Operation) -> None:
        """What goes wrong in this one is raised from close()."""
        assert self._closing is not None
        self._closing.begin()
        operation.then(self._closing)

    def _finish_close(self) -> None:
        """See who need not wait any longer: a close() inside a hook does not wait for hooks that
        call close(), any other one waits for everything."""
        if not self._shut_over:
            return
        if not self._works and not self._closed_sent:
            self._closed_sent = True
            if self._subscribers:
                self._emit(EventKind.CLOSED)
            self._subscribers = ()
        calling = {work for closer in self._closers for work in closer.inside}
        for closer in [*self._closers]:
            if not self._works - (calling if closer.inside else set()) and not closer.future.done():
                closer.future.set_result(None)
