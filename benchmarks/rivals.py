"""The same verbs for the pool, a semaphore and a queue, so that one loop measures them all."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import cenote


class Rival(Protocol):
    """Something of which a limited number can be out."""

    async def take(self) -> Any: ...

    def give(self, taken: Any, /) -> object: ...

    async def close(self) -> None: ...


class PoolRival:
    def __init__(self, size: int) -> None:
        self._pool = cenote.Pool(object, max_size=size)
        self.give = self._pool.release

    async def take(self) -> object:
        return await self._pool.acquire()

    async def close(self) -> None:
        await self._pool.close()


class SemaphoreRival:
    def __init__(self, size: int) -> None:
        self._semaphore = asyncio.Semaphore(size)

    async def take(self) -> bool:
        return await self._semaphore.acquire()

    def give(self, taken: object, /) -> None:
        self._semaphore.release()

    async def close(self) -> None:
        pass


class QueueRival:
    def __init__(self, size: int) -> None:
        self._queue: asyncio.Queue[object] = asyncio.Queue()
        for _ in range(size):
            self._queue.put_nowait(object())
        self.give = self._queue.put_nowait

    async def take(self) -> object:
        return await self._queue.get()

    async def close(self) -> None:
        pass


RIVALS: dict[str, Callable[[int], Rival]] = {
    "cenote.Pool": PoolRival,
    "asyncio.Semaphore": SemaphoreRival,
    "asyncio.Queue": QueueRival,
}
