"""Resources and hooks for the tests of a pool's life: made to be counted, held back and broken."""

import asyncio
import gc
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import cenote
from tests.support.clock import settle

KINDS = ["sync", "async", "awaitable"]


class Thing:
    """A resource that is nothing but itself."""


class Things:
    """A factory that remembers what it made; the calls in `failing` (from 1) raise OSError."""

    def __init__(self, failing: Collection[int] = ()) -> None:
        self.made: list[Thing] = []
        self.calls = 0
        self.failing = failing

    def __call__(self) -> Thing:
        self.calls += 1
        if self.calls in self.failing:
            raise OSError(f"call {self.calls} failed")
        self.made.append(Thing())
        return self.made[-1]


class Gated:
    """An async hook whose calls stop until the test gives each its result or its error."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[Any]] = []
        self.arguments: list[Any] = []

    async def __call__(self, *arguments: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.calls.append(future)
        self.arguments += arguments
        return await future


class Reports:
    """A strategy that only listens."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def report_success(self, source: Any) -> None:
        self.heard.append("success")

    def report_failure(self, source: Any, error: BaseException) -> None:
        self.heard.append((source, error))


def of_kind(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same hook as a plain function, as `async def`, or as one that returns an awaitable."""

    async def later(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    if kind == "sync":
        return function
    return later if kind == "async" else lambda *arguments: later(*arguments)


def raising(error: BaseException) -> Callable[..., Any]:
    def hook(*_: Any) -> None:
        raise error

    return hook


async def obtain(pool: cenote.Pool[Any], **options: Any) -> Any:
    return await pool.acquire(**options)


async def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """The work in a task of its own, as far as it comes by itself."""
    task = asyncio.create_task(work)
    await settle()
    return task


def drop(box: list[Any]) -> None:
    """Let go of what only this box refers to."""
    box.clear()
    gc.collect()


def record(pool: cenote.Pool[Any]) -> list[cenote.PoolEvent]:
    events: list[cenote.PoolEvent] = []
    pool.subscribe(events.append)
    return events
