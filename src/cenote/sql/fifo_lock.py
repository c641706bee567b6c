"""One at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque


class FifoLock:
    """Whose it is to do something; `taken` may be set by who finds that it is not."""

    __slots__ = ("taken", "waiters")

    def __init__(self) -> None:
        self.taken: bool = False
        self.waiters: deque[asyncio.Future[None]] | None = None  # made for the first

    async def wait(self) -> None:
        """For one that is taken."""
        future = asyncio.get_running_loop().create_future()
        if self.waiters is None:
            self.waiters = deque()
        self.waiters.append(future)
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.give()  # it had come
            elif future in self.waiters:  # else somebody has found it cancelled
                self.waiters.remove(future)
            raise

    def give(self) -> None:
        """To the next in line, whose it is from now on."""
        while self.waiters:
            future = self.waiters.popleft()
            if not future.done():
                future.set_result(None)
                return
        self.taken = False
