"""Tasks that acquire, hold and return, and what became of them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import cenote
from cenote.testing import advance, settle
from tests.support.kit.resources import Thing


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
    """A task that has not run yet."""
    return asyncio.create_task(coroutine, name=name)


async def started(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that has run as far as it comes by itself."""
    task = start(coroutine)
    await settle()
    return task


async def obtain(pool: cenote.Pool[Any], **options: Any) -> Any:
    """Acquire without a block, as a coroutine."""
    return await pool.acquire(**options)


def acquiring(pool: cenote.Pool[Any], name: str | None = None, **options: Any) -> asyncio.Task[Any]:
    """A task that acquires and keeps what it gets."""
    return start(obtain(pool, **options), name)


async def queued(pool: cenote.Pool[Any], number: int = 1) -> tuple[Any, ...]:
    """Acquire the only resource, and let so many tasks wait for it: the resource and the tasks."""
    resource = await pool.acquire()
    tasks = [acquiring(pool) for _ in range(number)]
    await settle()
    assert pool.waiting_count == number
    return resource, *tasks


async def hang() -> None:
    """Wait until it is cancelled."""
    await asyncio.get_running_loop().create_future()


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """What it returns, or the exception that it raises, in this very task."""
    try:
        return await awaitable
    except (Exception, asyncio.CancelledError) as error:
        return error


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel the task, which must end cancelled."""
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)


async def make_leave(
    task: asyncio.Task[Any], pool: cenote.Pool[Any], how: str, *, timeout: float
) -> None:
    """End an acquire under way: "cancel" its task, "deactivate" its pool, or let its "timeout"
    pass."""
    if how == "cancel":
        task.cancel()
    elif how == "deactivate":
        pool.deactivate()
    else:
        await advance(timeout)
    await settle()
    assert task.done()


async def full(make_pool: Callable[..., cenote.Pool[Any]], **options: Any) -> tuple[Any, Any]:
    """A pool with one resource, and the resource, which is out."""
    pool = make_pool(Thing, max_size=1, **options)
    return pool, await pool.acquire()


async def take_all(pool: cenote.Pool[Any], size: int) -> list[Any]:
    """Acquire everything that the pool can give, at once; fails if a slot was lost."""
    return list(await asyncio.gather(*(acquiring(pool, timeout=100) for _ in range(size))))


async def give_all(pool: cenote.Pool[Any], resources: list[Any]) -> None:
    for resource in resources:
        await pool.release(resource)
