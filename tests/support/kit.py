"""Small things that many tests need."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import cenote

STYLES = ["sync", "async", "awaitable"]  # the three ways to write a hook


class Thing:
    """A resource."""


class Listener:
    """A strategy that writes down what it hears: "success", or the error."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.sources: list[Any] = []

    def report_success(self, source: Any) -> None:
        self.heard.append("success")
        self.sources.append(source)

    def report_failure(self, source: Any, error: BaseException) -> None:
        self.heard.append(error)
        self.sources.append(source)


class Tripwire(Listener):
    """A strategy that deactivates the pool on every failure, and recovers when `ready`."""

    ready = False
    asked = 0

    def report_failure(self, source: Any, error: BaseException) -> None:
        super().report_failure(source, error)
        source.deactivate()

    def should_recover(self) -> bool:
        self.asked += 1
        return self.ready


def styled(style: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a hook of that style; the slow ones suspend once before they call it."""
    if style == "sync":
        return function

    async def slow(*args: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args)

    return slow if style == "async" else lambda *args: slow(*args)


class Gate:
    """A hook that waits until the gate is opened; `entered` counts the calls."""

    def __init__(self, answer: Callable[..., Any] = lambda *_: None) -> None:
        self.answer = answer
        self.entered = 0
        self.opened = asyncio.Event()

    async def __call__(self, *args: Any) -> Any:
        self.entered += 1
        await self.opened.wait()
        return self.answer(*args)

    def open(self) -> None:
        self.opened.set()


class Holding:
    """A task that acquires in a block and holds until `leave()`."""

    def __init__(self, pool: cenote.Pool[Any], name: str | None = None, **options: Any) -> None:
        self._leave = asyncio.Event()
        self.resource: Any = None
        self.task = start(self._hold(pool, options), name)

    async def _hold(self, pool: cenote.Pool[Any], options: dict[str, Any]) -> None:
        async with pool.acquire(**options) as self.resource:
            await self._leave.wait()

    async def leave(self) -> None:
        self._leave.set()
        await self.task


def start(coroutine: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
    return asyncio.create_task(coroutine, name=name)


def acquiring(pool: cenote.Pool[Any], name: str | None = None, **options: Any) -> asyncio.Task[Any]:
    """A task that acquires and keeps what it gets."""

    async def acquire() -> Any:
        return await pool.acquire(**options)

    return start(acquire(), name)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """What it returns, or the exception that it raises, in this very task."""
    try:
        return await awaitable
    except (Exception, asyncio.CancelledError) as error:
        return error


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)


def recorded(pool: cenote.Pool[Any]) -> list[cenote.PoolEvent]:
    """The list into which all events go from now on."""
    events: list[cenote.PoolEvent] = []
    pool.subscribe(events.append)
    return events


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno
