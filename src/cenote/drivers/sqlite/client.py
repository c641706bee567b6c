"""An asynchronous face of the standard library's `sqlite3`.

`db.connection()` gives a `Connection` of this module. Its methods, properties and cursors are those
of aiosqlite, so that programs and habits made for that library hold.
"""

from __future__ import annotations

import sqlite3
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, ParamSpec, TypeVar
from warnings import warn
from weakref import WeakSet

from .cursor import Cursor, pending
from .worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

ROWS_AT_ONCE = 64  # that `async for` reads in the thread


class ConnectionClosedError(ValueError):
    """The connection was closed before the call; nothing was run."""

    def __init__(self) -> None:
        super().__init__("the connection to SQLite is closed")


class SqliteView:
    """What SQLite says of a connection when a function in its thread is over.

    It is asked there: 3.53, unlike 3.40, answers no other thread before the statement that runs has
    come to its end, and the event loop would stand still until then.
    """

    __slots__ = ("in_transaction", "sqlite")

    def __init__(self) -> None:
        self.sqlite: sqlite3.Connection | None = None  # None until it is open
        self.in_transaction: bool = False

    def look(self) -> None:
        """Ask again. It is called in the thread of the connection."""
        if self.sqlite is not None:
            try:
                self.in_transaction = self.sqlite.in_transaction
            except sqlite3.ProgrammingError:  # closed
                self.in_transaction = False


class Connection:
    """One connection to SQLite and the thread in which everything on it runs.

    `run(function, ...)` calls any function in that thread; `sqlite` is the `sqlite3.Connection`,
    which may be used there only.
    """

    def __init__(
        self,
        sqlite: sqlite3.Connection,
        worker: Worker,
        view: SqliteView,
        iter_chunk_size: int = ROWS_AT_ONCE,
    ) -> None:
        """For `connect()`, which has opened the connection in the thread of the worker."""
        self._sqlite: sqlite3.Connection | None = sqlite  # None once it is closed
        self._view = view
        self._worker = worker
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()  # that may be open
        self.iter_chunk_size = iter_chunk_size  # rows that `async for` reads at once

    def __del__(self) -> None:
        if self._sqlite is not None:
            warn(f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self)
            self.terminate()

    @property
    def closed(self) -> bool:
        return self._sqlite is None

    @property
    def sqlite(self) -> sqlite3.Connection:
        """The connection of the standard library."""
        if self._sqlite is None:
            raise ConnectionClosedError
        return self._sqlite

    @property
    def thread(self) -> Thread:
        """The daemon thread in which the statements run; it ends when the connection is closed."""
        return self._worker.thread

    def post(self, function: Callable[..., R], *arguments: Any) -> Future[R]:
        """Start `function(*arguments)` in the thread; it runs also if nobody awaits the future."""
        if self._sqlite is None:
            raise ConnectionClosedError
        return self._worker.call(function, *arguments)

    async def run(self, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
        """Call the function in the thread, after everything that was started before."""
        return await self.post(partial(function, *arguments, **options))

    def watch(self, cursor: sqlite3.Cursor) -> sqlite3.Cursor:
        """Return the cursor, which is closed with the connection."""
        self._cursors.add(cursor)
        return cursor

    async def close(self) -> None:
        """Wait for everything that was started, then close; harmless after that."""
        if self._sqlite is None:
            return
        try:
            await self.post(_end, self._sqlite, [*self._cursors])
        finally:
            self._sqlite = None
            self._worker.stop()

    def terminate(self) -> None:
        """Interrupt what runs and close, without waiting for either."""
        sqlite, self._sqlite = self._sqlite, None
        if sqlite is not None:
            with suppress(sqlite3.ProgrammingError):  # closed in this very moment, by close()
                sqlite.interrupt()
            self._worker.post(_end, sqlite, [*self._cursors])
            self._worker.stop()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- statements ------------------------------------------------------------------------------

    @pending
    async def cursor(self) -> Cursor:
        return Cursor(self, self.watch(await self.run(self.sqlite.cursor)))

    @pending
    async def execute(self, sql: str, parameters: Any = ()) -> Cursor:
        return Cursor(self, self.watch(await self.run(self.sqlite.execute, sql, parameters)))

    @pending
    async def executemany(self, sql: str, parameters: Iterable[Any]) -> Cursor:
        return Cursor(self, self.watch(await self.run(self.sqlite.executemany, sql, parameters)))

    @pending
    async def executescript(self, sql_script: str) -> Cursor:
        return Cursor(self, self.watch(await self.run(self.sqlite.executescript, sql_script)))

    @pending
    async def execute_fetchall(self, sql: str, parameters: Any = ()) -> list[Any]:
        """Run a query and give all of its rows."""
        return await self.run(_fetch_all, self.sqlite, sql, parameters)

    @pending
    async def execute_insert(self, sql: str, parameters: Any = ()) -> Any:
        """Run an INSERT and give a row with the number of the row that was inserted last."""
        return await self.run(_insert, self.sqlite, sql, parameters)

    async def commit(self) -> None:
        await self.run(self.sqlite.commit)

    async def rollback(self) -> None:
        await self.run(self.sqlite.rollback)

    async def interrupt(self) -> None:
        """Make the statement that runs now fail, and all that have not come to their end."""
        self.sqlite.interrupt()

    # -- settings --------------------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was open when the last function in the thread was over."""
        if self._sqlite is None:
            raise ConnectionClosedError
        return self._view.in_transaction

    @property
    def total_changes(self) -> int:
        return self.sqlite.total_changes

    @property
    def isolation_level(self) -> Any:
        return self.sqlite.isolation_level

    @isolation_level.setter
    def isolation_level(self, value: Any) -> None:
        self.sqlite.isolation_level = value

    @property
    def row_factory(self) -> Any:
        return self.sqlite.row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self.sqlite.row_factory = factory

    @property
    def text_factory(self) -> Any:
        return self.sqlite.text_factory

    @text_factory.setter
    def text_factory(self, factory: Any) -> None:
        self.sqlite.text_factory = factory

    async def create_function(
        self, name: str, num_params: int, func: Any, deterministic: bool = False
    ) -> None:
        call = self.sqlite.create_function
        await self.run(call, name, num_params, func, deterministic=deterministic)

    async def create_aggregate(self, name: str, n_arg: int, aggregate_class: Any) -> None:
        await self.run(self.sqlite.create_aggregate, name, n_arg, aggregate_class)

    async def create_collation(self, name: str, callable: Any) -> None:
        await self.run(self.sqlite.create_collation, name, callable)

    async def enable_load_extension(self, value: bool) -> None:
        await self.run(self.sqlite.enable_load_extension, value)

    async def load_extension(self, path: str) -> None:
        await self.run(self.sqlite.load_extension, path)

    async def set_progress_handler(self, handler: Any, n: int) -> None:
        await self.run(self.sqlite.set_progress_handler, handler, n)

    async def set_trace_callback(self, handler: Any) -> None:
        await self.run(self.sqlite.set_trace_callback, handler)

    async def set_authorizer(self, authorizer_callback: Any) -> None:
        await self.run(self.sqlite.set_authorizer, authorizer_callback)

    # -- copies ----------------------------------------------------------------------------------

    async def iterdump(self) -> AsyncIterator[str]:
        """The statements that make a copy of the database, one after the other."""
        lines = self.sqlite.iterdump()
        while (line := await self.run(next, lines, None)) is not None:
            yield line

    async def backup(
        self,
        target: Connection | sqlite3.Connection,
        *,
        pages: int = 0,
        progress: Callable[[int, int, int], object] | None = None,
        name: str = "main",
        sleep: float = 0.250,
    ) -> None:
        """Copy the database into another one, which nothing else may use meanwhile."""
        into = target.sqlite if isinstance(target, Connection) else target
        options: dict[str, Any] = {"progress": progress, "name": name, "sleep": sleep}
        await self.run(partial(self.sqlite.backup, into, pages=pages, **options))


async def connect(
    database: Any, *, iter_chunk_size: int = ROWS_AT_ONCE, **options: Any
) -> Connection:
    """A new connection, opened in its thread; `options` are those of `sqlite3.connect()`.

    A connection that is opened after its caller was cancelled is closed again.
    """
    view = SqliteView()
    worker = Worker(f"cenote-sqlite {database}", view.look)

    def make() -> sqlite3.Connection:
        view.sqlite = sqlite3.connect(database, **options)
        return view.sqlite

    try:
        return Connection(await worker.call(make), worker, view, iter_chunk_size)
    except BaseException:
        worker.post(_close_made, view)
        worker.stop()
        raise


def _close_made(view: SqliteView) -> None:
    if view.sqlite is not None:
        view.sqlite.close()


def forget_interrupt(sqlite: sqlite3.Connection) -> None:
    """Run a statement, which ends an interruption: that would keep close() from its checkpoint."""
    with suppress(sqlite3.Error):
        sqlite.execute("SELECT 1").close()


def _end(sqlite: sqlite3.Connection, cursors: list[sqlite3.Cursor]) -> None:
    """Roll back and close. A cursor that is open would keep the file open, and the transaction with
    its locks, for as long as somebody refers to it."""
    with suppress(sqlite3.Error):
        for cursor in cursors:
            cursor.close()
        forget_interrupt(sqlite)
        if sqlite.in_transaction:
            sqlite.execute("ROLLBACK").close()
    sqlite.close()


def _fetch_all(sqlite: sqlite3.Connection, sql: str, parameters: Any) -> list[Any]:
    return sqlite.execute(sql, parameters).fetchall()


def _insert(sqlite: sqlite3.Connection, sql: str, parameters: Any) -> Any:
    cursor = sqlite.execute(sql, parameters)
    cursor.execute("SELECT last_insert_rowid()")
    return cursor.fetchone()
