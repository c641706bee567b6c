"""HookTask that belongs to the pool: hooks in tasks of their own, with a deadline.

The task that asked for it may be cancelled or gone; the work goes on, and its outcome is delivered
exactly once, by a plain call in the very step in which the hook returned: there is no moment at
which a resource exists that nobody counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar
from functools import partial
from logging import WARNING
from typing import Any, Final, Protocol

from ..hooks import drop, is_awaitable
from ..log import log
from .operation import Operation

GRACE: Final = 0.1  # seconds that a hook has to obey its cancellation before it is left behind
LONGEST: Final = 1e8  # seconds; longer timers overflow in some event loops

inside: ContextVar[tuple[HookTask, ...]] = ContextVar("cenote.inside", default=())


def was_cut() -> bool:
    """Asked by a hook that is cancelled: whether the pool did it, and not the loop at its end."""
    works = inside.get()
    return bool(works) and works[-1]._error is not None


class HookOwner(Protocol):
    """Whose work it is."""

    def work_began(self, work: HookTask) -> None: ...

    def work_ended(self, work: HookTask) -> None: ...

    def _step(self, function: Callable[..., Any], *args: Any) -> Any: ...

    def _call_out(self, function: Callable[..., Any], *args: Any) -> Any: ...


class HookTask:
    """One hook, called and awaited in a task of the pool.

    `done(result, error)` is called once. After `timeout` the hook is cancelled and the error is
    `overrun()`; a hook that ignores its cancellation is left behind after `grace`, and what it
    returns in the end goes to `late`. A hook that was cut off and returns something all the same
    gives both a result and an error.
    """

    __slots__ = ("_awaitable", "_call", "_crew", "_done", "_error", "_grace", "_late", "_loop",
                 "_outcome", "_overrun", "_task", "_timer", "awaited", "finished", "operation",
                 "slot")  # fmt: skip

    def __init__(
        self,
        crew: HookOwner,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[], Any] | None = None,
        *,
        awaitable: Any = None,
        timeout: float,
        overrun: Callable[[], BaseException],
        done: Callable[[Any, BaseException | None], None],
        late: Callable[[Any], None] | None = None,
        slot: Any = None,
        operation: Operation | None = None,
        grace: float = GRACE,
        context: Context | None = None,
        name: str,
    ) -> None:
        self._crew = crew
        self._loop = loop
        self._call = call  # what is still to be called,
        self._awaitable = awaitable  # or else awaited
        self._overrun = overrun
        self._done = done
        self._late = late
        self._grace = grace
        self._error: BaseException | None = None  # what it is cut off with
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outcome: tuple[Any, BaseException | None] | None = None  # what is to be delivered
        self.slot = slot  # which is in its hands
        self.operation = operation  # which `done` ends
        self.awaited: Any = awaitable  # what the hook has returned
        self.finished = False
        crew.work_began(self)
        # The timer first: with eager tasks, create_task runs the hook at once.
        # In an empty context: a cancelled timer lives on in the loop, and its context with it.
        self._timer = loop.call_later(min(timeout, LONGEST), self._expire, context=Context())
        steps = self._run()
        try:
            start = partial(loop.create_task, steps, name=name, context=context)
            self._task = crew._call_out(start)
        except BaseException as error:  # a task factory that does not take what it is given
            steps.close()
            drop(awaitable)
            self._finish(error=error)
        else:
            self._task.add_done_callback(self._ended)

    @property
    def stillborn(self) -> bool:
        """Whether it was broken off before it had a task; in a step that is over by now."""
        return self._task is None and not self.finished

    def bury(self) -> None:
        if self.stillborn and self.operation is not None and not self.operation.done:
            self.operation.end()
        self.finished = True
        if self._timer is not None:
            self._timer.cancel()

    def cut(self, error: BaseException) -> None:
        """Cancel the hook; its outcome is this error."""
        if self.finished or self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._grace > 0:
            self._timer = self._loop.call_later(self._grace, self._finish, context=Context())
        else:
            self._finish()

    async def _run(self) -> None:
        inside.set((*inside.get(), self))
        call, self._call = self._call, None
        result, self._awaitable = self._awaitable, None
        try:
            if call is not None:
                result = call()
            if is_awaitable(result):
                self.awaited = result
                result = await result
        except GeneratorExit:
            # Collected, in whatever thread: nothing is changed here. A closed loop has no later.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._finish, None, asyncio.CancelledError())
            raise
        except BaseException as error:
            if self.finished and not isinstance(error, asyncio.CancelledError):
                log(
                    WARNING, "%s failed after it was left behind", self._task,
                    error=error, loop=self._loop,
                )  # fmt: skip
            self._outcome = None, error
            self._finish(None, error)
            if not isinstance(error, Exception):
                raise
        else:
            if self.finished and self._late is not None:
                self._crew._step(self._late, result)
            self._outcome = result, None
            self._finish(result)

    def _expire(self) -> None:
        self.cut(self._overrun())

    def _ended(self, task: asyncio.Task[None]) -> None:
        drop(self._awaitable)  # of a task that was cancelled before its first step
        if not self.finished:  # cancelled before its first step, or its delivery was broken off
            self._finish(*(self._outcome or (None, asyncio.CancelledError())))
        elif not task.cancelled():
            task.exception()  # retrieved: it was delivered
        # Tasks that the hook has started know this work by their context: not the pool, too.
        del self._crew, self._done, self._late, self._outcome, self._overrun, self.awaited

    def _finish(self, result: Any = None, error: BaseException | None = None) -> None:
        if not self.finished:
            self._crew._step(self._deliver, result, self._error or error)

    def _deliver(self, result: Any, error: BaseException | None) -> None:
        # Here, and not before the step: if that is broken off, `_ended` delivers it.
        self.finished = True
        self._outcome = None  # no cycle
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._done(result, error)
        except BaseException as raised:
            if self.operation is not None and not self.operation.done:
                # What ends the program is raised by the loop, and once is enough.
                ends = isinstance(raised, KeyboardInterrupt | SystemExit)
                self.operation.end(None if ends else raised)
            raise
        finally:
            self._crew.work_ended(self)
