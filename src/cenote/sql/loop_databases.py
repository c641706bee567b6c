"""A database in each of its event loops: made on first use, opened and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from logging import WARNING
from typing import TYPE_CHECKING, Any, Self

from ..log import log
from . import messages
from .per_loop import LoopDatabase, forget

if TYPE_CHECKING:
    from .driver import Driver
    from .transaction import Transaction

LOOK_AGAIN = 0.1  # seconds after which the loop of another thread may have ended


class LoopDatabases(dict[asyncio.AbstractEventLoop, LoopDatabase]):
    """What a `Database` is in each event loop in which it is used.

    Args:
        label: What messages call the database.
        make: Makes it in a loop, with what connects in place of the driver there, or None.
        release: Lets go of what all loops share, when they are closed.
    """

    __slots__ = (
        "_closings", "_label", "_make", "_release", "closed", "left_behind", "stand_ins"
    )  # fmt: skip

    def __init__(
        self,
        label: str,
        make: Callable[[asyncio.AbstractEventLoop, Driver | None], LoopDatabase],
        release: Callable[[], object],
    ) -> None:
        super().__init__()
        self._label = label
        self._make = make
        self._release = release
        self.closed: bool = False
        # Every close() under way, with its loop; while one drains, it is not closed yet.
        self._closings: dict[Future[None], asyncio.AbstractEventLoop] = {}
        # Task -> the block that it is in, and that was over when the database was closed.
        self.left_behind: dict[Any, Transaction] = {}
        # What connects in place of the driver in a loop, while a test rolls everything back there.
        self.stand_ins: dict[asyncio.AbstractEventLoop, Driver] = {}

    # -- by loop ---------------------------------------------------------------------------------

    def here(self) -> LoopDatabase:
        """That of the running loop; raises `PoolClosedError` if the database is closed."""
        if self.closed:
            raise messages.database_closed(self._label)
        loop = asyncio._get_running_loop()
        loop_db = self.get(loop)  # type: ignore[arg-type]
        return self._begin() if loop_db is None else loop_db

    def _begin(self) -> LoopDatabase:
        if self._closings:  # the others are drained
            raise messages.database_closed(self._label)
        loop = asyncio.get_running_loop()
        for other, loop_db in [*self.items()]:
            if other.is_closed():
                self.pop(other, None)
                loop_db.forsake()
        stand_in = self.stand_ins.get(loop)
        if stand_in is None and not all(other.is_closed() for other in self.stand_ins):
            raise messages.rolled_back_elsewhere(self._label)
        made = self[loop] = self._make(loop, stand_in)
        return made

    def leave(self, loop_db: LoopDatabase) -> None:
        """Forget it: its loop ends, or it was closed."""
        if self.get(loop_db.loop) is loop_db:
            del self[loop_db.loop]

    def leave_behind(self, task: Any, block: Transaction) -> None:
        """The database is closed while this task is in a block, or has joined it."""
        if task not in self.left_behind:
            self.left_behind[task] = block
            task.add_done_callback(self._forget_left_behind)

    def _forget_left_behind(self, task: Any) -> None:
        self.left_behind.pop(task, None)

    def heir(self) -> Self:
        """The same without any loop, for a forked child."""
        heir = type(self)(self._label, self._make, self._release)
        heir.closed, heir.stand_ins = self.closed, self.stand_ins
        return heir

    # -- opening and closing ---------------------------------------------------------------------

    async def open(self) -> None:
        """Connect in the running loop; raises what was raised instead of a connection."""
        await self._end_of_closing()
        reopened, self.closed = self.closed, False
        for loop, loop_db in [*self.items()]:
            if loop_db.over:
                self.leave(loop_db)
                if loop.is_closed():
                    loop_db.forsake()
        try:
            await self.here().pool._open_with(1)
        except BaseException:
            if reopened and not self._in_use():
                self.closed = True
            raise

    async def _end_of_closing(self) -> None:
        """Wait for every close() that is under way, unless its loop was closed meanwhile."""
        while under_way := [
            done for done, loop in [*self._closings.items()] if not loop.is_closed()
        ]:
            await asyncio.wait(map(asyncio.wrap_future, under_way), timeout=LOOK_AGAIN)

    def _in_use(self) -> bool:
        return any(each.pool.count for each in [*self.values()])

    async def close(self, patience: float) -> None:
        """Close the pools of all loops; what is under way has so many seconds to end."""
        done: Future[None] = Future()
        self._closings[done] = asyncio.get_running_loop()
        try:
            await self._close_all(patience)
        finally:
            del self._closings[done]
            done.set_result(None)

    async def _close_all(self, patience: float) -> None:
        here = asyncio.get_running_loop()
        self.closed = not patience
        elsewhere = []
        for loop, loop_db in [*self.items()]:
            if loop is not here:
                work = self._close_elsewhere(loop, loop_db, patience)
                elsewhere.append(asyncio.create_task(work))
        loop_db_here = self.get(here)
        try:
            if loop_db_here is not None:
                await loop_db_here.close(patience)
        finally:
            for outcome in await asyncio.gather(*elsewhere, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    log(WARNING, "%s: closing in another loop failed: %r", self._label, outcome)
            self.closed = True
            self._release()

    async def _close_elsewhere(
        self, loop: asyncio.AbstractEventLoop, loop_db: LoopDatabase, patience: float
    ) -> None:
        """In its own loop; if that has ended, or ends before it comes to it, from here."""
        if not patience:
            self.leave(loop_db)
        done: Future[None] = Future()
        closing: list[asyncio.Task[None]] = []

        def begin() -> None:
            closing.append(loop.create_task(loop_db.close(patience)))
            closing[0].add_done_callback(lambda _: done.set_result(None))

        stopped = 0  # at how many looks: between the steps of its end it does not run, either
        try:
            loop.call_soon_threadsafe(begin)
            while stopped < 2 and not done.done() and not loop.is_closed():
                await asyncio.wait([asyncio.wrap_future(done)], timeout=LOOK_AGAIN)
                stopped = 0 if loop.is_running() else stopped + 1
        except RuntimeError:
            pass  # it is closed
        if not done.done():
            loop_db.forsake()
            for task in closing:
                if loop.is_closed():
                    forget(task)
        self.leave(loop_db)
