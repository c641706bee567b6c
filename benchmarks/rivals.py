"""One interface for every pool, over resources that do nothing, so that one loop measures them all.

The pools of the drivers are in `pools.py`; here are ours and what one writes by hand.
"""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Self

import cenote

LONG = 3600.0  # seconds: where a pool has a timeout by default, it has this one, which never passes

Make = Callable[[], Any]  # a resource


class Rival:
    """Something of which `size` can be out; after open() all of them exist."""

    package: ClassVar[str | None] = None  # what has to be installed
    module: ClassVar[str] = ""  # its name when it is imported

    take: Callable[[], Awaitable[Any]]
    give: Callable[[Any], Awaitable[object] | None]  # what it returns has to be awaited
    try_take: Callable[[], Any] | None = None  # without waiting, where there is such a thing

    def __init__(self, size: int, make: Make | None = None) -> None:
        self.size = size
        self.make = make or self.resource

    @staticmethod
    def resource() -> Any:
        """What this pool accepts as a resource."""
        return object()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot be measured."""
        if cls.package is None or importlib.util.find_spec(cls.module) is not None:
            return None
        return f"{cls.package} is not installed: pip install 'cenote[bench]'"


class PoolRival(Rival):
    timeout: ClassVar[float | None] = None

    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)
        self.pool = cenote.Pool(
            self.make, min_size=size, max_size=size, acquire_timeout=self.timeout
        )
        self.take = self.pool.acquire
        self.give = self.pool.release
        self.try_take = self.pool.try_acquire

    async def open(self) -> None:
        await self.pool.open()

    async def close(self) -> None:
        await self.pool.close()


class TimedPoolRival(PoolRival):
    """As most of the others are by default: a wait has a deadline."""

    timeout = LONG


class SemaphoreRival(Rival):
    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)
        semaphore = asyncio.Semaphore(size)
        self.take = semaphore.acquire
        self.give = lambda taken: semaphore.release()


class QueueRival(Rival):
    def __init__(self, size: int, make: Make | None = None) -> None:
        super().__init__(size, make)
        queue: asyncio.Queue[object] = asyncio.Queue()
        for _ in range(size):
            queue.put_nowait(self.make())
        self.take = queue.get
        self.give = queue.put_nowait
        self.try_take = queue.get_nowait


async def settle(waiting: Awaitable[object] | None) -> None:
    """What give() returned, to its end."""
    if waiting is not None:
        await waiting
