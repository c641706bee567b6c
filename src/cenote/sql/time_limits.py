"""The timeout of a statement: past it the server is told to stop, and the statement is awaited.

The statement is not cancelled in this program, so that its connection stays in step: what ends it
is the answer of the server. If there is none within `STOP_WITHIN`, the connection is given up.

An order to stop travels beside the connection and could arrive when the statement has ended. So
nothing else runs on the connection before `settle()`: the last order has been answered, and a
harmless statement has taken what may be left of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .. import options
from ..errors import PoolError, StatementTimeoutError
from ..messages import seconds
from ..timer import LONGEST, Timer
from . import messages
from .batches import Batches, series
from .driver import Driver, DriverConnection
from .parsing.statements import ParsedStatement

if TYPE_CHECKING:
    from .per_loop import LoopDatabase
    from .pins import Pin
    from .scope import AnyTransaction
    from .session import Session

R = TypeVar("R")
Call = Callable[[DriverConnection], Awaitable[R]]

STOP_WITHIN = 3.0  # seconds in which a statement has to end after the server was told to stop it
FIRST_PAUSE = 0.05  # seconds until the order is sent again; each pause is twice as long
ABSORBED = 3  # orders to stop that may be left, at most

# What is given at the end: what the server has worked out, or something open on the connection.
Gives = Literal["answer", "rows", "statement"]

WAITED = "while it waited for its turn on the connection"


class TimeLimit:
    """The timeout of one statement, from the call of the user's on."""

    __slots__ = (
        "_connection", "_cut", "_deadline", "_ended", "_gives", "_inside", "_loop_db", "_opened",
        "_orders", "_parsed", "_seconds", "_settled", "_timer", "_wait",
    )  # fmt: skip

    def __init__(
        self,
        loop_db: LoopDatabase,
        parsed: ParsedStatement,
        timeout: float,
        *,
        gives: Gives = "answer",
    ) -> None:
        self._seconds: float = options.duration("timeout", timeout)
        self._loop_db: LoopDatabase = loop_db
        self._connection: DriverConnection | None = None  # on which the statement runs
        self._parsed: ParsedStatement = parsed
        self._gives: Gives = gives
        self._deadline: float = loop_db.loop.time() + min(self._seconds, LONGEST)
        self._wait: asyncio.Timeout | None = None  # for the turn of the statement
        self._timer: Timer = Timer()  # until the server is told to stop
        self._cut: asyncio.Timeout | None = None  # when the connection is given up
        self._orders: asyncio.Task[None] | None = None  # sends the order to stop
        self._ended: asyncio.Future[None] | None = None  # no further orders
        self._settled: bool | None = None  # whether no order can arrive any more; None: not known
        self._inside: bool = False  # in a transaction of the user's
        self._opened: bool = False  # a stream, whose first rows are read within the same limit

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 after it."""
        return max(self._deadline - self._loop_db.loop.time(), 0.0)

    async def bound(self, work: Coroutine[Any, Any, R]) -> R:
        """Await work in which the statement runs by `guard()`; before that it is simply cancelled
        at the deadline, since nothing of it was sent."""
        wait = self._wait = asyncio.timeout_at(self._deadline)
        try:
            async with wait:
                return await work
        except TimeoutError as error:
            if isinstance(error, PoolError) or not wait.expired():
                raise
            raise self._error(WAITED, sent=False) from None

    def guard(self, call: Call[R], *, private: bool = False) -> Call[R]:
        """The same call, ended at the deadline. `private`: on the connection of a stream."""
        return partial(self._run, call, private)

    async def _run(self, call: Call[R], private: bool, connection: DriverConnection) -> R:
        loop = self._loop_db.loop
        self._rest()
        if self.left == 0 and not self._opened:
            raise self._error(WAITED, sent=False)
        self._opened = self._gives == "rows"
        self._inside = connection.in_transaction and not private
        self._orders = self._ended = self._settled = None
        self._connection, connection.time_limit = connection, self
        self._timer.start_at(loop, self._deadline, self._due, connection)
        cut = self._cut = asyncio.timeout(None)
        try:
            async with cut:
                return await self._answer(call, connection)
        except TimeoutError as error:
            if isinstance(error, PoolError) or not cut.expired():
                raise
            raise self._give_up(connection) from self._failure()
        except Exception as error:
            if self._orders is None and self._loop_db.driver.is_unsent(error):
                self._wait_again()
            raise
        finally:
            self._timer.stop()
            self._connection = connection.time_limit = None
            if self._orders is not None:
                self._orders.cancel()

    async def _answer(self, call: Call[R], connection: DriverConnection) -> R:
        driver = self._loop_db.driver
        try:
            result = await call(connection)
        except Exception as error:
            if self._orders is None or driver.is_disconnect(error) or connection.is_dead:
                raise
            if not await self.settle():
                raise self._give_up(connection) from error
            if driver.is_stopped(error):
                raise self._stopped(connection) from error
            raise
        if self._orders is None:
            return result
        if not await self.settle():
            if (
                self._gives != "answer"
                or self._inside
                or connection.in_transaction
                or self._parsed.touches
            ):
                raise self._give_up(connection) from self._failure()
            connection.mark_broken()  # it has answered, and nothing else would be lost
        elif self._gives != "statement" and connection.is_spoiled(self._parsed.keyword):
            raise self._stopped(connection)
        return result

    # -- waiting ---------------------------------------------------------------------------------

    def _rest(self) -> None:
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(None)

    def _wait_again(self) -> None:
        """It was not sent, and may be sent on another connection."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(self._deadline)

    # -- stopping the statement -------------------------------------------------------------------

    def _due(self, connection: DriverConnection) -> None:
        """The time is up."""
        loop = self._loop_db.loop
        self._ended = loop.create_future()
        self._orders = loop.create_task(self._keep_telling(connection, self._ended))
        self._orders.add_done_callback(self._told)
        self._loop_db.orders.add(self._orders)
        if self._cut is not None:
            self._cut.reschedule(loop.time() + STOP_WITHIN)

    async def _keep_telling(
        self, connection: DriverConnection, ended: asyncio.Future[None]
    ) -> None:
        """Again and again: an order that arrives between two parts of a statement has no effect."""
        pause = FIRST_PAUSE
        while not ended.done():
            await connection.stop()
            await asyncio.wait([ended], timeout=pause)
            pause *= 2

    def _told(self, orders: asyncio.Task[None]) -> None:
        self._loop_db.orders.discard(orders)
        failed = not orders.cancelled() and orders.exception() is not None
        if failed and orders is self._orders and self._settled is None:
            cut = self._cut
            if cut is not None and not cut.expired() and cut.when() is not None:
                cut.reschedule(self._loop_db.loop.time())  # no order can be sent

    async def settle(self) -> bool:
        """The statement has ended, in whichever way: wait until no order to stop can arrive any
        more. Return False if that is not certain."""
        self._timer.stop()
        orders, ended, connection = self._orders, self._ended, self._connection
        if orders is None or ended is None or connection is None:
            return True
        if self._settled is None:
            if not ended.done():
                ended.set_result(None)
            await asyncio.wait([orders])
            connection.time_limit = None
            failed = self._failure() is not None
            self._settled = not failed and await absorb(self._loop_db.driver, connection)
        return self._settled

    def _failure(self) -> BaseException | None:
        """Why the order could not be sent, if so."""
        orders = self._orders
        if orders is None or not orders.done() or orders.cancelled():
            return None
        return orders.exception()

    # -- errors ----------------------------------------------------------------------------------

    def _stopped(self, connection: DriverConnection) -> StatementTimeoutError:
        """The server has confirmed it."""
        fate = "the server has stopped it, and the connection was kept"
        if self._inside and not connection.in_transaction:
            fate += "; the transaction is over"
        elif self._inside and connection.aborts and not connection.underway:
            fate += "; the transaction has to be rolled back, or back to a savepoint"
        elif self._inside:
            fate += ", as was the transaction"
        return self._error(fate)

    def _give_up(self, connection: DriverConnection) -> StatementTimeoutError:
        connection.interrupt()
        fate = (
            f"the server was told to stop it and did not confirm that within "
            f"{seconds(STOP_WITHIN)}, so the connection was replaced"
        )
        if self._failure() is not None:
            fate = "the server could not be told to stop it, so the connection was replaced"
        if self._inside:
            fate += "; the transaction is lost"
        return self._error(fate, kept=False)

    def _error(self, fate: str, *, sent: bool = True, kept: bool = True) -> StatementTimeoutError:
        return messages.statement_timeout(
            repr(self._parsed), self._seconds, fate, sent=sent, kept=kept
        )


async def absorb(driver: Driver, connection: DriverConnection) -> bool:
    """Run something harmless, which takes an order to stop that is left, until it is answered,
    perhaps with an error of another kind. Return False if that did not succeed."""
    for _ in range(ABSORBED):
        try:
            await connection.absorb()
        except Exception as error:
            if driver.is_stopped(error):
                continue
            return not (driver.is_disconnect(error) or connection.is_dead)
        return True
    return False


def limit_of(
    loop_db: LoopDatabase,
    parsed: ParsedStatement,
    timeout: float | None,
    *,
    gives: Gives = "answer",
) -> TimeLimit | None:
    """The limit of a statement that may have none."""
    return None if timeout is None else TimeLimit(loop_db, parsed, timeout, gives=gives)


async def within(
    limit: TimeLimit | None,
    session: Session,
    call: Call[R],
    parsed: ParsedStatement | None,
    *,
    pin: Pin | None = None,
    transaction: AnyTransaction | None = None,
) -> R:
    """Run one statement on a session, within its limit if it has one. `parsed`, `pin` and
    `transaction` are those of `Session.run()`; observers are not notified."""
    if limit is None:
        return await session.run(call, parsed, pin=pin, transaction=transaction)
    call = limit.guard(call, private=session.private)
    return await limit.bound(session.run(call, parsed, pin=pin, transaction=transaction))


def observed_within(
    limit: TimeLimit | None,
    session: Session,
    call: Call[R],
    parsed: ParsedStatement,
    *,
    pin: Pin | None = None,
    transaction: AnyTransaction | None = None,
) -> Awaitable[R]:
    """The same, with the observers notified."""
    if limit is None:
        return session.run_observed(call, parsed, pin=pin, transaction=transaction)
    work = within(limit, session, call, parsed, pin=pin, transaction=transaction)
    return session.loop_db.observed(parsed.keyword, parsed.text, work, session)


async def run_rows(
    limit: TimeLimit | None,
    loop_db: LoopDatabase,
    parsed: ParsedStatement,
    text: str,
    rows: list[Any] | Batches,
) -> None:
    """Run one statement of the running task for all these rows; observers are not notified."""
    session = await loop_db.bound_session(limit=limit)
    await within(limit, session, series(text, rows), parsed)
