"""One connection to SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from ...sql.dialects import SQLITE, Dialect, Isolation
from ...sql.driver import Arguments, Collected, DriverConnection, Prepared, RowCursor
from ...sql.fifo_lock import FifoLock
from ...sql.notes import note_row
from ...sql.parsing.placeholders import Template
from ...sql.parsing.session_rules import analyse
from . import statements
from .client import Connection, ConnectionClosedError, forget_interrupt
from .interruption import Interruption
from .values import here, parameters

R = TypeVar("R")

EAGER = 10_000  # rows that a stream reads at once from a database in memory
INTERRUPT_AGAIN = 0.02  # seconds
NO_ROW = -1


class SqliteWriters:
    """Writers, one at a time. SQLite lets in one, and the others would only try
    again and again, each in its thread, until it is somebody's luck or their time is up."""

    def __init__(self) -> None:
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, FifoLock] = WeakKeyDictionary()

    async def queue_up(self, patience: float) -> FifoLock:
        turn = self._turns.setdefault(asyncio.get_running_loop(), FifoLock())
        if not turn.taken:
            turn.taken = True
            return turn
        try:
            async with asyncio.timeout(patience):
                await turn.wait()
        except TimeoutError:
            raise locked() from None
        return turn


def locked() -> sqlite3.OperationalError:
    """As SQLite says it."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_BUSY, "SQLITE_BUSY"
    return error


class SqliteConnection(DriverConnection):
    """A connection of SQLite, whose calls run in a thread of their own."""

    __slots__ = (
        "_converts",
        "_eager",
        "_interruption",
        "_patience",
        "_reads_only",
        "_same_values",
        "_sources",
        "_stopped",
        "_turn",
        "_writers",
    )  # fmt: skip

    dialect: ClassVar[Dialect] = SQLITE
    cancels: ClassVar[bool] = True
    caches_statements: ClassVar[bool] = True
    keeping: ClassVar[frozenset[str]] = frozenset(
        {"cursor", "execute", "executemany", "executescript", "iterdump"}
    )
    raw: Connection

    def __init__(
        self,
        raw: Connection,
        writers: SqliteWriters,
        patience: float,
        *,
        eager: bool,
        converts: bool = True,
        same_values: bool = True,
    ) -> None:
        super().__init__(raw)
        self._converts = converts  # columns, by their declared types
        self._same_values = same_values  # of parameters
        self._writers = writers
        self._patience = patience  # seconds
        self._eager = eager  # a stream reads ahead: while it is open, nobody could write
        self._turn: FifoLock | None = None  # while it has a transaction that may write
        self._interruption: Interruption | None = None  # of what has a time limit
        self._sources = 0  # cursors of streams that are open
        self._stopped = False  # what is still in the queue of its thread is not begun
        self._reads_only = False  # by our own PRAGMA

    @property
    def in_transaction(self) -> bool:
        try:
            return self.raw.in_transaction
        except ConnectionClosedError:
            return False

    async def call(self, function: Callable[..., R], *arguments: Any) -> R:
        """In the thread of the connection; a cancellation interrupts it, and waits for it."""
        try:
            if self.time_limit is not None:
                return await self._call_within(self.time_limit.left, function, arguments)
            result: R = await self.raw.post(self._begin, function, arguments)
            return result
        except asyncio.CancelledError:
            await self._stop()
            raise
        finally:
            self.returned()

    async def _call_within(
        self, seconds: float, function: Callable[..., R], arguments: tuple[Any, ...]
    ) -> R:
        self._interruption = interruption = Interruption()
        shared = self._sources > 0

        def limited(connection: sqlite3.Connection, *arguments: Any) -> R:
            with interruption.over(connection, seconds, shared=shared):
                return function(connection, *arguments)

        return await self.raw.post(self._begin, limited, arguments)

    async def stop(self) -> None:
        if self._interruption is not None:
            self._interruption.ask()

    def _end_interruption(self) -> None:
        if self._interruption is not None:
            self._interruption.end()

    def returned(self) -> None:
        if self._turn is not None and not self.in_transaction:
            self._step_back()

    def _step_back(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                turn.give()

    def _begin(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        if self._stopped:
            raise sqlite3.OperationalError("interrupted")
        connection = self.raw.sqlite
        here.raw = here.converts = self._converts
        try:
            return function(connection, *arguments)
        finally:
            here.converts = False
            if self._reads_only and not connection.in_transaction:  # ended, by whatever means
                connection.execute("PRAGMA query_only = 0")
                self._reads_only = False

    async def _stop(self) -> None:
        """Interrupt the statement that runs, and wait until the thread is done with it."""
        self._stopped = True
        raw = self.raw
        if raw.closed:
            return
        over = raw.post(_nothing)  # after whatever runs now
        while not over.done() and not raw.closed:
            try:
                # Repeatedly: an interruption just before the statement begins is lost.
                await raw.interrupt()
                await asyncio.wait([over], timeout=INTERRUPT_AGAIN)
            except asyncio.CancelledError:
                continue  # the thread must not be left alone with its statement

    def values(self, arguments: Arguments) -> Any:
        """What is stored in the place of the arguments: the same object if all are plain."""
        if not arguments:
            return ()
        return parameters(arguments) if self._same_values else arguments

    async def execute(self, text: str, arguments: Arguments) -> int:
        return await self.call(statements.execute, text, self.values(arguments))

    async def fetch_all(self, text: str, arguments: Arguments) -> list[Any]:
        return await self.call(statements.fetch_all, text, self.values(arguments))

    async def fetch_one(self, text: str, arguments: Arguments) -> Any:
        return await self.call(statements.fetch_one, text, self.values(arguments))

    async def fetch_val(self, text: str, arguments: Arguments) -> Any:
        return await self.call(statements.fetch_val, text, self.values(arguments))

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        at = [NO_ROW]
        try:
            rows = self._unless_stopped(arguments, at)
            await self.call(statements.execute_many, text, rows, self._end_interruption)
        except Exception as error:
            if at[0] != NO_ROW:
                note_row(error, at[0])
            raise

    def _unless_stopped(self, arguments: Sequence[Any], at: list[int]) -> Iterator[Any]:
        """An interruption ends one statement only, and not the series of them. `at`: the row."""
        for at[0], each in enumerate(arguments):
            if self._stopped:
                raise sqlite3.OperationalError("interrupted")
            yield self.values(each)
        at[0] = NO_ROW  # what fails now is COMMIT

    async def stream(
        self, text: str, arguments: Arguments, keyword: str, *, alone: bool
    ) -> RowCursor:
        self._sources += 1  # before: with a cursor that stays open an interruption would stay, too
        try:
            cursor = await self.call(sqlite3.Connection.execute, text, self.values(arguments))
        except BaseException:
            self._sources -= 1
            raise
        self.raw.watch(cursor)
        source = SqliteRowCursor(self, cursor)
        if self._eager:
            rows = await source.fetch(EAGER)
            if len(rows) < EAGER:
                await source.close()
                return Collected(rows)
            source.ahead = rows
        return source

    def forget_source(self) -> None:
        """The cursor of a stream is about to be closed."""
        self._sources -= 1

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        # Whatever level is asked for, SQLite gives serializable.
        self.returned()
        if not read_only:
            self._turn = await self._writers.queue_up(self._patience)
        self._reads_only = await self.call(statements.begin, read_only)

    async def commit(self) -> bool:
        await self.call(statements.end, SQLITE.commit())
        return True

    async def rollback(self) -> None:
        await self.call(statements.end, SQLITE.rollback())

    async def close(self) -> None:
        self._stopped = True
        raw = self.raw
        if not raw.closed:
            if self.interrupted:
                await raw.interrupt()
                await raw.post(forget_interrupt, raw.sqlite)
            await raw.close()
        self._step_back()

    def terminate(self) -> None:
        self._step_back()
        self.raw.terminate()

    def looks_dead(self) -> bool:
        return self.raw.closed

    async def ping(self) -> None:
        await self.call(statements.fetch_val, "SELECT 1", ())

    async def prepare(self, template: Template, text: str) -> Prepared:
        # SQLite's module keeps the statements that it compiled; this only shows what is wrong.
        if analyse(text, SQLITE).keyword == "PRAGMA":  # some act even so
            return Prepared(self, template.text)
        nothing = (None,) * (len(template.names) or template.count)
        try:
            await self.call(statements.execute, f"EXPLAIN {template.text}", nothing)
        except sqlite3.ProgrammingError as error:
            # With placeholders of SQLite's own, which only it counts: it was compiled.
            if not template.native or "bindings" not in str(error):
                raise
        return Prepared(self, template.text)


class SqliteRowCursor(RowCursor):
    """A cursor of SQLite that is read in parts."""

    def __init__(self, connection: SqliteConnection, cursor: sqlite3.Cursor) -> None:
        self.connection = connection
        self.cursor = cursor
        self.closed: bool = False
        self.ahead: Sequence[Any] = ()  # read and not yet asked for

    async def fetch(self, count: int) -> Sequence[Any]:
        if self.ahead:
            rows, self.ahead = self.ahead[:count], self.ahead[count:]
            return rows
        return await self.connection.call(statements.fetch_many, self.cursor, count)

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.forget_source()
        await self.connection.call(statements.close, self.cursor)


def _nothing() -> None:
    pass
