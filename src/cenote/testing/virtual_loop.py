"""An event loop in virtual time.

1. When nothing is ready, time jumps to the next timer at once.
2. While something may still come from outside (open sockets, running threads and executor jobs,
   child processes, signal handlers), time flows at its real speed, so that no timeout fires merely
   because the loop was faster than a server. `advance()` moves it nevertheless.
3. When nothing is ready, no timer is set and nothing outside can help, `Deadlocked` is raised.
"""

from __future__ import annotations

import asyncio
import math
import os
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from concurrent.futures.thread import _threads_queues as executor_threads
from types import CodeType
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Events = list[tuple[selectors.SelectorKey, int]]

START = 1000.0  # virtual seconds; small enough that sums of ordinary fractions stay exact
SLICE = 0.05  # real seconds between two looks at whether the outside is still there
BLIND_ROUNDS = 100  # turns that settle() gives to a loop which cannot say when it is idle


class Deadlocked(AssertionError):
    """Every task waits, and nothing can wake one; the message says where each of them waits."""


def now() -> float:
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()


async def settle() -> None:
    """Let everything run until all other tasks are blocked; virtual time stands still.

    On another loop than `VirtualLoop` every task gets a hundred turns.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        await loop.settle()
        return
    for _ in range(BLIND_ROUNDS):
        await asyncio.sleep(0)


async def advance(seconds: float) -> None:
    """Move the time of the running `VirtualLoop`, as its method `advance()` does.

    Args:
        seconds: By how much; 0 or more.

    Raises:
        RuntimeError: The running loop is not a `VirtualLoop`.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError(
            "advance() needs a VirtualLoop: run the test with asyncio.Runner(loop_factory="
            "VirtualLoop), or see how your pytest plugin chooses its loop"
        )
    await loop.advance(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves at once to the next timer when every task waits.

    `asyncio.Runner(loop_factory=VirtualLoop)` runs on it. It starts at 1000 seconds.
    """

    # asyncio's own, which its stubs do not show.
    _clock_resolution: float
    _internal_fds: int
    _scheduled: list[asyncio.TimerHandle]
    _selector: selectors.BaseSelector
    _signal_handlers: dict[int, object]

    def __init__(self) -> None:
        self._now = START
        self._jobs = 0  # executor jobs whose result is still awaited
        self._settlers: list[asyncio.Future[None]] = []
        self._old_threads = set(threading.enumerate())
        selector = _Selector()
        super().__init__(selector)
        selector.wait = self._wait

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._now

    async def settle(self) -> None:
        """Let everything run until all other tasks are blocked; time stands still."""
        await self._idle()

    async def advance(self, seconds: float) -> None:
        """Move the time, firing the timers on the way in their order, and settle at the end.

        Args:
            seconds: By how much; 0 or more.

        Raises:
            ValueError: `seconds` is negative.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"cannot advance by {seconds} s")
        end = self._now + seconds
        await self._idle()
        while (when := self._next_timer()) is not None and when <= end:
            self.jump(when)
            await self._idle()
        self.jump(end)
        await self._idle()

    def _idle(self) -> asyncio.Future[None]:
        """Done as soon as the loop has nothing left to run at this instant."""
        settler = self.create_future()
        self._settlers.append(settler)
        return settler

    def _next_timer(self) -> float | None:
        when = self._scheduled[0].when() if self._scheduled else math.inf
        return None if when == math.inf else when

    def jump(self, when: float) -> None:
        """Set the time, if it is later; what is due then runs when the loop is given control.

        Args:
            when: The new time of the loop.
        """
        if when < self._now:
            return
        # A timer fires only when it is earlier than now + resolution, which for a very distant one
        # is the same float as now.
        blurred = when + self._clock_resolution == when
        self._now = math.nextafter(when, math.inf) if blurred else when

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a function in an executor; time flows at its real speed until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self._jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _: object) -> None:
        self._jobs -= 1

    def _wait(self, poll: Callable[[float], Events]) -> Events:
        # Asked before the poll: otherwise both would miss a thread that posts a callback and ends
        # in between.
        outside = self._outside()
        if events := poll(0):
            return events
        when = self._next_timer()
        if when is not None and when < self._now + self._clock_resolution:
            return []  # due but for a rounding error: the loop fires it now, settlers come after
        if self._settlers:
            self._wake_settlers()
            return []
        if outside:
            return self._wait_really(poll, when)
        if when is not None:
            self.jump(when)
            return []
        if not (events := poll(SLICE)) and not self._outside():
            raise Deadlocked(_describe(asyncio.all_tasks(self)))
        return events

    def _wait_really(self, poll: Callable[[float], Events], when: float | None) -> Events:
        left = math.inf if when is None else when - self._now
        started = time.monotonic()
        events = poll(min(SLICE, left))
        passed = time.monotonic() - started
        if when is not None and passed >= left:
            self.jump(when)
        else:
            self._now += passed
        return events

    def _outside(self) -> bool:
        return (
            self._jobs > 0
            or len(self._selector.get_map()) > self._internal_fds
            or bool(self._signal_handlers)
            or any(
                thread not in self._old_threads and thread not in executor_threads
                for thread in threading.enumerate()
            )
        )

    def _wake_settlers(self) -> None:
        settlers, self._settlers = self._settlers, []
        for settler in settlers:
            if not settler.done():
                settler.set_result(None)


class _Selector(selectors.DefaultSelector):
    wait: Callable[[Callable[[float], Events]], Events]

    def select(self, timeout: float | None = None) -> Events:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        return self.wait(super().select)


def _describe(tasks: set[asyncio.Task[Any]]) -> str:
    count = "1 task waits" if len(tasks) == 1 else f"{len(tasks)} tasks wait"
    lines = [f"{count}, no timer is set and nothing outside can wake one:"]
    for task in sorted(tasks, key=lambda task: task.get_name()):
        places = " -> ".join(_places(task.get_coro())) or "an awaitable without a frame"
        lines.append(f"  task {task.get_name()!r} waits in {places}")
    return "\n".join(lines)


def _places(awaited: Awaitable[Any] | Any) -> Iterator[str]:
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code: CodeType = frame.f_code
            yield f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
