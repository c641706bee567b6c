"""The event loop of a pool, its thread and its clock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from .. import messages
from ..events import EventKind
from ..states import Phase

if TYPE_CHECKING:
    from .engine import Engine


class LoopBinding:
    """Binds a pool to the loop in which it is opened, and refuses every other loop and thread."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine

    def enter(self) -> None:
        """At the head of what needs an open pool: opens a new one, refuses a closed one."""
        engine = self._engine
        phase = engine.core.phase
        if phase is Phase.OPEN and asyncio._get_running_loop() is engine.loop:
            return
        if phase is Phase.CLOSED or phase is Phase.DRAINING:
            raise engine.closing.error()
        if phase is Phase.NEW:
            self.bind()
        else:
            self.check()

    def check(self) -> None:
        """Raise if this is another loop or thread than the pool's."""
        loop = self._engine.loop
        running = asyncio._get_running_loop()
        if running is loop or loop is None:
            return
        if running is None and self.is_own_thread():
            return  # plain code, between two runs of the loop
        raise messages.elsewhere(
            self._engine.name,
            other_thread=threading.get_ident() != self._engine.thread,
            loop_closed=loop.is_closed(),
        )

    def is_own_thread(self) -> bool:
        """Whether the pool may be used here as far as the thread is concerned."""
        engine = self._engine
        loop = engine.loop
        return loop is None or (threading.get_ident() == engine.thread and not loop.is_closed())

    def current_task(self) -> asyncio.Task[Any] | None:
        """The task that runs now in the pool's loop."""
        loop = self._engine.loop
        return None if loop is None else asyncio.current_task(loop)

    def bind(self) -> None:
        """Open the pool in the running loop."""
        engine = self._engine
        engine.loop = loop = asyncio.get_running_loop()
        engine.thread = threading.get_ident()
        engine.time = loop.time
        engine.direct_clock = is_monotonic(loop)
        engine.direct_future = is_plain(loop)
        engine.history.begin(loop.time())
        engine.core.move("open")
        engine.maintenance.start(loop)
        engine.lending.begin()
        engine.signals.note(EventKind.OPENED)
        engine.advance()

    def unbind(self) -> None:
        """Make the pool new again, after an open() that failed."""
        engine = self._engine
        engine.lending.end()
        engine.maintenance.stop()
        engine.deadlines.stop()
        engine.loop = None
        engine.sample_at = inf
        engine.thread = 0
        engine.time = time.monotonic
        engine.direct_clock = True

    def from_finalizer(self, step: Callable[[], object]) -> None:
        """Do this now if this is the loop's own thread and no step is under way; else later."""
        engine = self._engine
        loop = engine.loop
        if loop is None or loop.is_closed():
            return
        if threading.get_ident() == engine.thread and not engine.core.busy:
            engine.step(step)
        else:
            loop.call_soon_threadsafe(_run_later, engine, step, engine.pool)


def _run_later(engine: Engine[Any], step: Callable[[], object], pool: Any) -> None:
    """`pool` is only kept alive until now."""
    engine.step(step)


def is_plain(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop makes its futures as asyncio does."""
    stock = asyncio.BaseEventLoop.create_future
    return type(loop).create_future is stock and "create_future" not in vars(loop)


def is_monotonic(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop's time is the monotonic clock, which C may then read by itself."""
    return type(loop).time is asyncio.BaseEventLoop.time and "time" not in vars(loop)


def current_task() -> asyncio.Task[Any] | None:
    """The task that runs now, in whatever loop; None if there is none."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
