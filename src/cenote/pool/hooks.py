"""Hooks of the user: asked in a step, or awaited in tasks of the pool, with a deadline.

The task that asked may be cancelled or gone; the hook goes on, and its outcome is delivered exactly
once, by a plain call in the very step in which the hook returned: there is no moment at which a
resource exists that is not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar
from functools import partial
from logging import WARNING
from typing import TYPE_CHECKING, Any, Final, Protocol

from .. import messages
from .._core import Slot
from ..events import DestroyReason, EventKind
from ..hooks import drop, is_awaitable
from ..log import log
from ..states import Phase
from ..timer import Timer
from .loop import current_task
from .operation import Operation, raise_fatal

if TYPE_CHECKING:
    from .engine import Engine
    from .steps import Call

GRACE: Final = 0.1  # seconds that a hook has to obey its cancellation before it is left behind

inside: ContextVar[tuple[HookTask, ...]] = ContextVar("cenote.inside", default=())


def was_cut() -> bool:
    """Asked by a hook that is cancelled: whether the pool did it, and not the loop at its end."""
    tasks = inside.get()
    return bool(tasks) and tasks[-1].was_cut


class HookOwner(Protocol):
    """Owner of hook tasks, informed when one starts and ends."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which they run."""
        ...

    @property
    def pool(self) -> object:
        """The pool, which a hook task keeps alive."""
        ...

    def began(self, task: HookTask) -> None: ...

    def ended(self, task: HookTask) -> None: ...

    def step(self, function: Callable[..., Any], *args: Any) -> Any: ...

    def call_out(self, function: Callable[..., Any], *args: Any) -> Any: ...


class HookTask:
    """One hook, called and awaited in a task of the pool.

    `done(result, error)` is called once. After `timeout` the hook is cancelled and the error is
    `overrun()`; a hook that ignores its cancellation is left behind after `grace`, and what it
    returns in the end goes to `late`. A hook that was cut off and returns something all the same
    gives both a result and an error.
    """

    __slots__ = ("_awaitable", "_call", "_done", "_error", "_grace", "_late", "_loop", "_outcome",
                 "_overrun", "_owner", "_pool", "_task", "_timer", "awaited", "finished",
                 "operation", "slot")  # fmt: skip

    def __init__(
        self,
        owner: HookOwner,
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
        loop: asyncio.AbstractEventLoop | None = None,
        context: Context | None = None,
        name: str,
    ) -> None:
        self._owner = owner
        self._pool = owner.pool  # not collected while a hook is under way
        self._loop = loop = owner.loop if loop is None else loop
        self._call = call  # what is still to be called,
        self._awaitable: Any = awaitable  # or else awaited
        self._overrun = overrun
        self._done = done
        self._late = late
        self._grace = grace
        self._error: BaseException | None = None  # what it is cut off with
        self._task: asyncio.Task[None] | None = None
        self._timer = Timer()
        self._outcome: tuple[Any, BaseException | None] | None = None  # what is to be delivered
        self.slot: Any = slot  # which is in its hands
        self.operation: Operation | None = operation  # which `done` ends
        self.awaited: Any = awaitable  # what the hook has returned
        self.finished: bool = False
        owner.began(self)
        # The timer first: with eager tasks, create_task runs the hook at once.
        self._timer.start(loop, timeout, self._expire)
        steps = self._run()
        try:
            start = partial(loop.create_task, steps, name=name, context=context)
            self._task = task = owner.call_out(start)
        except BaseException as error:  # a task factory that does not take what it is given
            steps.close()
            drop(awaitable)
            self._finish(error=error)
        else:
            task.add_done_callback(self._ended)

    @property
    def was_cut(self) -> bool:
        """Whether the pool has cancelled the hook."""
        return self._error is not None

    @property
    def stillborn(self) -> bool:
        """Whether it was broken off before it had a task; in a step that is over by now."""
        return self._task is None and not self.finished

    def bury(self) -> None:
        if self.stillborn and self.operation is not None and not self.operation.done:
            self.operation.end()
        self.finished = True
        self._timer.stop()

    def cut(self, error: BaseException) -> None:
        """Cancel the hook; its outcome is this error."""
        if self.finished or self._error is not None:
            return
        self._error = error
        if self._task is not None:
            self._task.cancel()
        if self._grace > 0:
            self._timer.start(self._loop, self._grace, self._finish)
        else:
            self._timer.stop()
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
                self._owner.step(self._late, result)
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
        # Tasks that the hook has started know this one by their context: not the pool, too.
        del self._done, self._late, self._outcome, self._overrun, self._owner, self._pool
        del self.awaited

    def _finish(self, result: Any = None, error: BaseException | None = None) -> None:
        if not self.finished:
            self._owner.step(self._deliver, result, self._error or error)

    def _deliver(self, result: Any, error: BaseException | None) -> None:
        # Here, and not before the step: if that is broken off, `_ended` delivers it.
        self._timer.stop()
        self.finished = True
        self._outcome = None  # no cycle
        try:
            self._done(result, error)
        except BaseException as raised:
            if self.operation is not None and not self.operation.done:
                # What ends the program is raised by the loop, and once is enough.
                ends = isinstance(raised, KeyboardInterrupt | SystemExit)
                self.operation.end(None if ends else raised)
            raise
        finally:
            self._owner.ended(self)


class Hooks:
    """Asks the before_* hooks and the healthcheck, and owns the hook tasks of the pool."""

    __slots__ = ("_engine", "call_out", "step", "tasks")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self.step: Call = engine.step
        self.call_out: Call = engine.call_out
        self.tasks: set[HookTask] = set()  # under way

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which the hook tasks run."""
        loop = self._engine.loop
        assert loop is not None
        return loop

    @property
    def pool(self) -> object:
        """The pool, which a hook task keeps alive."""
        return self._engine.pool

    def began(self, task: HookTask) -> None:
        """A hook task is about to start."""
        self.tasks.add(task)

    def ended(self, task: HookTask) -> None:
        """A hook task has delivered its outcome; perhaps a close() has waited for it."""
        self.tasks.discard(task)
        if not self.tasks:
            self.tasks.clear()  # of the memory for all that ran at once
        if self._engine.core.phase is Phase.CLOSED:
            self._engine.closing.finish()

    def calling(self) -> tuple[HookTask, ...]:
        """The hooks inside of which this is called, by context or as the task that one returned."""
        task = current_task()
        return (
            *inside.get(),
            *(each for each in self.tasks if task is not None and each.awaited is task),
        )

    def start(
        self,
        hook: str,
        slot: Slot,
        verdict: Any,
        done: Callable[[Any, BaseException | None], None],
        operation: Operation | None = None,
    ) -> HookTask:
        """Await in a task of the pool what a hook has returned."""
        engine = self._engine
        limit = engine.settings.hook_timeout
        return HookTask(
            self,
            awaitable=verdict,
            timeout=limit,
            overrun=lambda: messages.hook_timeout(engine.name, hook, limit, engine.words.of(hook)),
            done=done,
            slot=slot,
            operation=operation,
            context=engine.context.copy() if hook == "healthcheck" else None,
            name=f"cenote {hook} of {messages.label(engine.name)}",
        )

    def ask_before_acquire(self, slot: Slot) -> Any:
        """What the hook answers, or its awaitable; True if it need not be asked."""
        engine = self._engine
        if engine.before_acquire is None or engine.skips_check(slot, engine.time()):
            return True
        return engine.call_out(engine.before_acquire, slot.resource)

    def refuse(self, slot: Slot, error: BaseException | None) -> None:
        """before_acquire has rejected the slot, or raised."""
        if error is None or isinstance(error, Exception):
            raise_fatal(self.reject(slot, "before_acquire", error))
        else:
            self._engine.destructions.destroy(slot, DestroyReason.REJECTED)
            raise error

    def reject(
        self, slot: Slot, hook: str, error: BaseException | None, *, report: bool = True
    ) -> Operation:
        """Destroy what a before_* hook has rejected."""
        engine = self._engine
        reason = self.explain(hook, error)
        engine.totals.rejected += 1
        engine.signals.note(EventKind.REJECTED, slot.resource, reason=hook, error=reason)
        if hook == "before_release" and report:
            engine.circuit.report_failure(reason, slot.probe)
        return engine.destructions.destroy(slot, DestroyReason.REJECTED)

    def fail_check(self, slot: Slot, error: BaseException | None) -> None:
        """Destroy what the healthcheck has rejected."""
        engine = self._engine
        reason = self.explain("healthcheck", error)
        engine.signals.note(EventKind.CHECK_FAILED, slot.resource, error=reason)
        engine.destructions.destroy(slot, DestroyReason.CHECK_FAILED)

    def explain(self, hook: str, error: BaseException | None) -> BaseException:
        """The error of a rejection; one that the hook has raised is logged."""
        engine = self._engine
        what = engine.words.of(hook)
        if error is None and what != hook:
            return messages.found_unusable(engine.name, what)
        if error is None:
            return messages.rejected(engine.name, hook)
        follows = f"the {engine.words.resource} is destroyed"
        engine.signals.explain(WARNING, error, follows, what=what)
        return error
