"""One transaction on one real connection, in which all connections of a block take turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count as counter
from logging import DEBUG
from typing import Any, TypeVar

from ..errors import PoolError
from ..log import log
from ..observe import task_name
from ..sql.driver import Driver, DriverConnection
from ..sql.waits import waits_for
from .shared_interruption import SharedInterruption

R = TypeVar("R")
Call = Callable[[DriverConnection], Awaitable[R]]
Task = asyncio.Task[Any]

_numbers = counter(1)

LOOK_AGAIN = 1.0  # seconds after which a task that waits may have closed a circle
LAST_WORDS = 10.0  # seconds for what is still under way when the block is left


class SharedTransaction:
    """The transaction of a `rolled_back()` block.

    A task that runs something has the turn, and one that is in a transaction keeps it until that
    is over. What is sent to the server is sent by a task of its own: a cancellation of the test
    never leaves the connection in the middle of an answer, it lets the statement be undone.
    """

    def __init__(
        self, label: str, driver: Driver, connection: DriverConnection, patience: float | None
    ) -> None:
        self.connection: DriverConnection = connection  # the real one
        self.lost: PoolError | None = None  # why nothing can be run any more
        self.committed: bool = False  # something has ended it, and not by a rollback
        self._label = label
        self._driver = driver
        self._patience = patience  # seconds that a task waits for its turn; None: without limit
        self._loop = asyncio.get_running_loop()
        self._taken = False  # somebody has the turn, or was just given it
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._owner: Task | None = None  # who has the turn
        self._holder: DriverConnection | None = None  # the stand-in by which it has the turn
        self._tasks: set[Task] = set()  # what is under way on the real connection

    # -- turns -----------------------------------------------------------------------------------

    async def take_turn(self, holder: DriverConnection) -> None:
        """Wait until nobody else runs anything. Raises `PoolError` if that cannot be.

        `holder`: the stand-in by which the caller has the turn then.
        """
        me = asyncio.current_task()
        if self._taken:
            await self._queue_up(me)
        self._taken = True
        self._owner, self._holder = me, holder
        if self.lost is not None:
            self.give_turn()
            raise self.lost

    def give_turn(self) -> None:
        """Let the next task go on."""
        self._owner = self._holder = None
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._taken = False

    async def _queue_up(self, me: Task | None) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiting)
        left = self._patience
        try:
            while not waiting.done():
                self._refuse_deadlock(me)
                pause = LOOK_AGAIN if left is None else min(LOOK_AGAIN, left)
                await asyncio.wait([waiting], timeout=pause)
                if left is not None and not waiting.done():
                    left -= pause
                    if left <= 0:
                        raise self._too_late()
        except BaseException:
            if waiting.done():
                self.give_turn()  # it had come
            else:
                self._waiters.remove(waiting)
            raise

    def _refuse_deadlock(self, me: Task | None) -> None:
        owner = self._owner
        if owner is None or me is None or owner.done():
            return
        if self._holder is not None and self._holder.broken:
            return  # what it has done is about to be undone, and then the turn is given
        if owner is me or waits_for(owner, me):
            raise PoolError(
                f"{self._label}: task {task_name(me)!r} waits for the transaction of task "
                f"{task_name(owner)!r}, which waits for it. Inside rolled_back() there is one "
                f"connection, and a transaction has it alone: share the transaction by "
                f"tx.execute() or tx.join(), or end it before you wait for the other task."
            )

    def _too_late(self) -> PoolError:
        owner = "another task" if self._owner is None else f"task {task_name(self._owner)!r}"
        return PoolError(
            f"{self._label}: it was not the turn of this statement within {self._patience:g} s. "
            f"Inside rolled_back() there is one connection, and {owner} has it, in a transaction "
            f"or a connection() block: end that first."
        )

    # -- what has the turn -----------------------------------------------------------------------

    def new_savepoint(self) -> str:
        """Return a name that no savepoint has had, not even one of a block around this one."""
        return f"cenote_testing_{next(_numbers)}"

    async def run(
        self, work: Coroutine[Any, Any, R], interruption: SharedInterruption | None = None
    ) -> R:
        """Run this to its end, also if the caller is cancelled: then what it sends is stopped by
        the `interruption`, and the caller's next statement waits for the end of it."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.add_done_callback(retrieve)
                if self._owner is asyncio.current_task():
                    self._owner = None
                if interruption is not None:
                    self._start(interruption.insist(task))
            raise

    def run_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this soon; harmless if the loop is closed."""
        if self._loop.is_closed():
            work.close()
        else:
            self._start(work)

    def _start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def interruption(self, *, allowed: bool) -> SharedInterruption:
        """Return what can stop one statement."""
        return SharedInterruption(self._driver, allowed=allowed)

    async def send(self, call: Call[R], interruption: SharedInterruption | None = None) -> R:
        """Send something on the real connection, and see whether the transaction is still open."""
        connection = self.connection
        if not (self.lost or connection.in_transaction or connection.is_dead):
            self.committed = True  # perhaps; then it is not undone
            self._lose("something has ended it by the driver's own means", None)
        if self.lost is not None:
            raise self.lost
        error: BaseException | None = None
        try:
            result = await self._call(call, interruption)
        except BaseException as raised:
            error = raised
            is_error = isinstance(raised, Exception)
            if is_error and connection.in_transaction and not self._is_gone(raised):
                await connection.look_again()
            raise
        finally:
            if self._is_gone(error):
                self._lose("its connection was lost", error)
            elif self.lost is None and not connection.in_transaction:
                self.committed = error is None or not self._driver.rolls_back(error)
                how = "committed" if self.committed else "rolled back"
                self._lose(f"this statement has {how} it", error)
            del error  # no cycle through this frame
        if self.lost is not None:
            raise self.lost
        return result

    async def _call(self, call: Call[R], interruption: SharedInterruption | None) -> R:
        if interruption is None:
            return await call(self.connection)
        interruption.begin(self.connection)
        try:
            result = await call(self.connection)
        except Exception:  # else the block is left, and the connection is given up
            await self._settle(interruption)
            raise
        await self._settle(interruption)
        return result

    async def _settle(self, interruption: SharedInterruption) -> None:
        """After a statement: no order to stop it may reach the next one."""
        if not (await interruption.settle() or self._is_gone(None)):
            self._lose("an order to stop a statement could reach the next one", None)

    async def send_alone(
        self, call: Call[R], is_wanted: Callable[[], bool], interruption: SharedInterruption
    ) -> R:
        """Send something behind a savepoint, as a transaction of its own: if it fails, or nobody
        wants it any more, it alone is undone."""
        name = self.new_savepoint()
        await self.send(lambda connection: connection.savepoint(name))
        try:
            result = await self.send(call, interruption)
        except Exception:
            await self.go_back(name)
            raise
        if is_wanted():
            await self.send(lambda connection: connection.release_savepoint(name))
        else:
            await self.go_back(name)
        return result

    async def go_back(self, savepoint: str) -> None:
        """Undo everything since this savepoint, unless all of it is lost."""

        async def undo(connection: DriverConnection) -> None:
            await connection.rollback_to_savepoint(savepoint)
            await connection.release_savepoint(savepoint)

        if self.lost is None:
            try:
                await self.send(undo)
            except Exception as error:
                self._lose("a savepoint in it could not be rolled back", error)

    async def calm_down(self) -> None:
        """Wait for what is under way, the caller aside."""
        me = asyncio.current_task()
        while others := {task for task in self._tasks if task is not me}:
            await asyncio.wait(others)

    def _is_gone(self, error: BaseException | None) -> bool:
        connection = self.connection
        return connection.is_dead or (error is not None and self._driver.is_disconnect(error))

    def _lose(self, why: str, cause: BaseException | None) -> None:
        if self.lost is None:
            self.lost = PoolError(
                f"{self._label}: the transaction of rolled_back() is over, because {why}: nothing "
                f"more can be run in this block"
            )
            self.lost.__cause__ = cause

    # -- the end ---------------------------------------------------------------------------------

    async def undo(self) -> None:
        """Roll all of it back, after what is still under way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_WORDS)
        for task in self._tasks:
            task.cancel()
            self.connection.interrupt()
        usable = self.lost is None and not self.connection.broken
        self._lose("its block was left", None)
        if usable:
            try:
                await self.connection.rollback()
            except Exception as error:  # then the server does it
                log(DEBUG, "%s: rolled_back() could not roll back", self._label, error=error)


def retrieve(task: Task) -> None:
    """Nobody awaits it any more, and asyncio need not complain of its error."""
    if not task.cancelled():
        task.exception()
