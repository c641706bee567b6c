"""The probes of one pool: whether the backend takes a new resource now."""

from __future__ import annotations

import asyncio
import math
import weakref
from contextvars import Context
from typing import Any, Final

from ..errors import BackendFullError
from ..pool import Pool

STILL_TRUE: Final = 2.0  # seconds for which a success is an answer
MOST_PENDING: Final = 3  # probes without an answer; each may hold a slot of the pool meanwhile


class PoolProbes:
    """Makes resources only to see whether that works; what was made stays in the pool.

    A probe without an answer is left to the pool, which ends it by `create_timeout`; if it succeeds
    after all, that is the answer to the next `ask`. The pool is known only weakly.
    """

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = weakref.ref(pool)
        self._pending: set[asyncio.Task[bool | None]] = set()
        self._worked_at = -math.inf  # loop time of a success that nobody has asked for since

    def can_ask(self) -> bool:
        """Return whether there is room for a probe, or an idle resource that can make room."""
        pool = self._pool()
        if pool is None or pool.closed or pool.max_size == 0:
            return False
        return bool(self._pending or pool.occupied < pool.max_size or pool.idle_count)

    async def ask(self, timeout: float) -> bool | None:
        """Return whether the backend works; None if there was no room to find out.

        No answer within `timeout` seconds is False. So is an error, but for `BackendFullError`:
        a backend that says it is full works.
        """
        self._pending = {task for task in self._pending if not task.done()}
        if asyncio.get_running_loop().time() < self._take_success() + STILL_TRUE:
            return True
        if len(self._pending) < MOST_PENDING:
            self._pending.add(asyncio.create_task(self._try(), context=Context()))
        done, self._pending = await asyncio.wait(
            self._pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        answers = [task.result() for task in done]
        if True in answers:
            self._take_success()
            return True
        return None if answers == [None] else False

    def cancel(self) -> list[asyncio.Task[bool | None]]:
        """End what is under way; returns the tasks."""
        pending, self._pending = self._pending, set()
        for task in pending:
            task.cancel()
        return [*pending]

    def _take_success(self) -> float:
        """When a probe has succeeded of which nobody knows yet."""
        worked_at, self._worked_at = self._worked_at, -math.inf
        return worked_at

    async def _try(self) -> bool | None:
        pool = self._pool()
        if pool is None:
            return None
        try:
            if pool.occupied >= pool.max_size and (idle := pool.idle_resources()):
                await pool.evict(idle[0])
            if not await pool.probe():
                return None
        except BackendFullError:
            pass
        except Exception:  # the pool has logged it, and reported it to its strategy
            return False
        self._worked_at = asyncio.get_running_loop().time()
        return True
