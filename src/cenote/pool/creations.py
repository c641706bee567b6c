"""Creations: the factory, called for a waiter in its own step, or in a task of the pool."""

from __future__ import annotations

import asyncio
import random
from contextvars import Context
from functools import partial
from logging import DEBUG, WARNING
from math import inf
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from .._core import Slot
from ..events import DestroyReason, EventKind
from ..hooks import drop, is_awaitable
from ..states import Phase
from .hooks import HookTask
from .operation import raise_fatal

if TYPE_CHECKING:
    from .engine import Engine

LIFETIME_JITTER: Final = 0.1  # so that resources made together do not end together


class Creations:
    """What is being made, and the last failure of the factory."""

    __slots__ = ("_engine", "_failed_at", "last_error", "listeners", "tasks")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self.tasks: dict[Slot, HookTask] = {}  # the creations in tasks of the pool
        self.listeners: list[list[BaseException]] = []  # the failures of each open() under way
        self.last_error: BaseException | None = None  # of the factory; see forget_failure
        self._failed_at = 0.0  # loop time of that error

    def fill(self, least: int = 0) -> None:
        """Start what is missing to min_size, or to `least`."""
        core = self._engine.core
        while core.shortage() or core.count + core.opening < least:
            slot = core.permit_for_pool()
            if slot is None:
                return
            self.start(slot)

    def start(self, slot: Slot, made: Any = None, context: Context | None = None) -> None:
        """Create in a task of the pool. `made`: the awaitable that the factory has returned."""
        engine = self._engine
        settings = engine.settings
        limit, began = settings.create_timeout, engine.time()
        work = HookTask(
            engine.hooks,
            settings.factory if made is None else None,
            awaitable=made,
            timeout=limit,
            overrun=lambda: errors.create_timeout(engine.name, limit),
            done=partial(self._created, slot, began),
            late=partial(self._destroy_late, began),
            slot=slot,
            context=engine.context.copy() if context is None else context,
            name=f"cenote factory of {errors.label(engine.name)}",
        )
        if not work.finished:
            self.tasks[slot] = work

    def make(self, slot: Slot, *, start: bool) -> bool:
        """Create in this step. False: the factory is async; with `start` it goes on as a task."""
        engine = self._engine
        context = engine.context.copy()
        began = engine.time()
        try:
            made = engine.call_out(context.run, engine.settings.factory)
        except BaseException as error:
            self._failed(slot, error, to_waiter=False)
            raise
        if made is None:
            nothing = errors.made_nothing(engine.name)
            self._failed(slot, nothing, to_waiter=False)
            raise nothing
        if not is_awaitable(made):
            self._opened(slot, made, began)
            return True
        engine.core.sync_factory = False
        if start or not drop(made):
            self.start(slot, made, context)
        else:
            engine.core.fail_slot(slot)
        return False

    def forget_failure(self) -> bool:
        """Let go of the factory's last error, unless a claim waits that may time out because of it:
        its traceback has the variables of every frame that it has passed."""
        core = self._engine.core
        first = core.first
        if core.granted_count or (first is not None and first.began <= self._failed_at):
            return False
        self.last_error = None
        return True

    def _created(self, slot: Slot, began: float, made: Any, error: BaseException | None) -> None:
        """The task of a factory is done. `made` beside an error: it was cut off and came late."""
        self.tasks.pop(slot, None)
        if isinstance(error, errors.Undone):
            self._undone(slot, began, made)
        elif made is None:
            nothing = error or errors.made_nothing(self._engine.name)
            self._failed(slot, nothing, to_waiter=True)
        else:
            self._opened(slot, made, began)
            if error is None:
                self._engine.settle(slot)
            else:
                self._note_failure(error, to_waiter=True)
                self._engine.destructions.destroy(slot, DestroyReason.LATE)

    def _undone(self, slot: Slot, began: float, made: Any) -> None:
        """close(), or an open() that failed, has cancelled this creation: not a failure."""
        engine = self._engine
        if made is None:
            engine.core.fail_slot(slot)
            engine.signals.changed()
            engine.advance()
            return
        self._opened(slot, made, began)
        if engine.core.phase is Phase.CLOSED:
            engine.closing.follow(engine.destructions.destroy(slot, DestroyReason.CLOSED))
        else:
            engine.destructions.destroy(slot, DestroyReason.OPEN_FAILED)

    def _opened(self, slot: Slot, made: Any, began: float) -> None:
        engine = self._engine
        now = engine.time()
        lifetime = engine.settings.max_lifetime
        expires_at = inf
        if lifetime is not None:
            expires_at = now + lifetime * random.uniform(1 - LIFETIME_JITTER, 1 + LIFETIME_JITTER)
        engine.core.open_slot(slot, made, expires_at)
        engine.totals.created += 1
        engine.maintenance.created()
        if engine.subscribers:
            engine.signals.emit(EventKind.CREATED, made, duration=now - began)
        engine.signals.changed()

    def _failed(self, slot: Slot, error: BaseException, *, to_waiter: bool) -> None:
        self._engine.core.fail_slot(slot)
        self._note_failure(error, to_waiter=to_waiter)
        self._engine.advance()

    def _note_failure(self, error: BaseException, *, to_waiter: bool) -> None:
        """A factory failed: first the oldest waiter gets the error, then the strategy."""
        engine = self._engine
        failed = isinstance(error, Exception)  # else it says nothing about the backend
        if failed:
            engine.factory_failures += 1
        for failures in self.listeners:
            failures.append(error)
        oldest = engine.core.first if to_waiter else None
        if oldest is not None:
            oldest.waiter.wake()
            engine.core.fail(oldest, error)
        if failed:
            self.last_error, self._failed_at = error, engine.time()
            if not self.forget_failure():
                engine.maintenance.remember()
        if not isinstance(error, asyncio.CancelledError):
            # The waiter gets the error anyway: no flood of warnings in an outage.
            level = WARNING if to_waiter and oldest is None else DEBUG
            engine.signals.log(level, "the factory failed", error=error)
        engine.maintenance.failed()
        if failed:
            engine.circuit.report_failure(error, None)
        engine.signals.changed()

    def _destroy_late(self, began: float, made: Any) -> None:
        """A factory was left behind and has made something after all: it has no slot any more."""
        if made is None:
            return
        engine = self._engine
        engine.signals.log(WARNING, "a factory came back after it was given up")
        engine.totals.created += 1
        if engine.subscribers:
            took = asyncio.get_running_loop().time() - began
            engine.signals.emit(EventKind.CREATED, made, duration=took)
        raise_fatal(engine.destructions.call(made, DestroyReason.LATE))
