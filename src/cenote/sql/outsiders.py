"""Tasks that wait until an inner block of another task is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..observe import task_name
from . import messages
from .waits import waits_for

if TYPE_CHECKING:
    from .transaction import Transaction

LOOK_AGAIN = 1.0  # seconds after which a task that waits may have closed a circle


class Outsiders(list[asyncio.Future[None]]):
    """The queue in front of a savepoint: while one task is inside, statements of others wait."""

    __slots__ = ()

    async def wait(self, task: Any, inner: Transaction) -> None:
        """Wait until the inner block is over; raises if its task waits for this one."""
        future = asyncio.get_running_loop().create_future()
        self.append(future)
        try:
            while not future.done():
                if waits_for(inner.task, task):
                    raise messages.waits_for_inner(task_name(task), task_name(inner.task))
                await asyncio.wait([future], timeout=LOOK_AGAIN)
        finally:
            if future in self:
                self.remove(future)

    def wake(self) -> None:
        """An inner block is over, or everything: all that wait look again."""
        futures = [*self]
        self.clear()
        for future in futures:
            if not future.done():
                future.set_result(None)
