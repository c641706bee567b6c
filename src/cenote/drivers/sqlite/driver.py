"""SQLite, the embedded default, through aiosqlite."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4
from weakref import WeakKeyDictionary

from ...sql.dialects import SQLITE, Dialect, Isolation
from ...sql.driver import (
    Arguments,
    Collected,
    ConnectConfig,
    Driver,
    DriverConnection,
    Prepared,
    RowCursor,
    check_connect_args,
    fresh,
    missing,
    reject_unknown,
)
from ...sql.fifo_lock import FifoLock
from ...sql.notes import note_row
from ...sql.parsing.placeholders import Style, Template
from ...sql.parsing.session_rules import analyse
from ...sql.rows import make_rows
from ...sql.url import Secret

try:
    import aiosqlite
    from aiosqlite.core import _STOP_RUNNING_SENTINEL
except ImportError:
    raise missing("aiosqlite", "sqlite") from None

R = TypeVar("R")

BUSY_TIMEOUT = 5.0  # seconds
EAGER = 10_000  # rows that a stream reads at once from a database in memory
CLOSED = ("Connection closed", "no active connection")  # says aiosqlite, before it does anything
PRAGMAS = ("journal_mode", "synchronous", "foreign_keys", "cache_size", "temp_store", "mmap_size")
NUMBER = re.compile("-?[0-9]+")
WITH = re.compile(r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*with\b", re.IGNORECASE)
RETURNING = re.compile(r"\breturning\b", re.IGNORECASE)
WORDS = {
    "journal_mode": ("delete", "truncate", "persist", "memory", "wal", "off"),
    "synchronous": ("off", "normal", "full", "extra"),
    "foreign_keys": ("on", "off", "true", "false", "yes", "no"),
    "temp_store": ("default", "file", "memory"),
}
MODES = ("ro", "rw", "rwc")  # not memory: each connection would have a database of its own
IN_URI = ("mode", "immutable", "nolock", "vfs", "psow")
OTHERS = ("timeout",)
CONNECT = ("timeout", "detect_types", "isolation_level", "check_same_thread", "factory",
           "cached_statements", "uri", "autocommit")  # of sqlite3.connect()  # fmt: skip


INTERRUPT_AGAIN = 0.02  # seconds
NO_ROW = -1


class Writers:
    """Those who write in turn. SQLite lets in one at a time, and those who wait would only try
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
    __slots__ = ("_eager", "_patience", "_reads_only", "_stopped", "_turn", "_writers")

    dialect: ClassVar[Dialect] = SQLITE
    cancels: ClassVar[bool] = True
    caches_statements: ClassVar[bool] = True
    keeping: ClassVar[frozenset[str]] = frozenset(
        {"cursor", "execute", "executemany", "executescript", "iterdump"}
    )
    raw: Any

    def __init__(self, raw: Any, writers: Writers, patience: float, *, eager: bool) -> None:
        super().__init__(raw)
        self._writers = writers
        self._patience = patience  # seconds
        self._eager = eager  # a stream reads ahead: while it is open, nobody could write
        self._turn: FifoLock | None = None  # while it has a transaction that may write
        self._stopped = False  # what is still in the queue of its thread is not begun
        self._reads_only = False  # by our own PRAGMA

    @property
    def in_transaction(self) -> bool:
        connection = self.raw._connection
        return connection is not None and connection.in_transaction

    async def call(self, function: Callable[..., R], *arguments: Any) -> R:
        """In the thread of the connection; a cancellation interrupts it, and waits for it."""
        try:
            result: R = await self.raw._execute(self._begin, function, arguments)
            return result
        except asyncio.CancelledError:
            await self._stop()
            raise
        finally:
            self.returned()

    def returned(self) -> None:
        if self._turn is not None and not self.in_transaction:
            self._step_back()

    def _step_back(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are those who wait
                turn.give()

    def _begin(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        if self._stopped:
            raise sqlite3.OperationalError("interrupted")
        connection = self.raw._conn
        try:
            return function(connection, *arguments)
        finally:
            if self._reads_only and not connection.in_transaction:  # ended, by whatever means
                connection.execute("PRAGMA query_only = 0")
                self._reads_only = False

    async def _stop(self) -> None:
        self._stopped = True
        raw = self.raw
        over = asyncio.get_running_loop().create_future()
        raw._tx.put_nowait((over, _nothing))  # after whatever runs now
        while not over.done() and raw._running and raw._connection is not None:
            try:
                # Again and again: one that comes just before the statement begins is lost.
                raw._connection.interrupt()
                await asyncio.wait([over], timeout=INTERRUPT_AGAIN)
            except asyncio.CancelledError:
                continue  # the thread must not be left alone with its statement

    async def execute(self, text: str, arguments: Arguments) -> int:
        return await self.call(_execute, text, arguments or ())

    async def fetch_all(self, text: str, arguments: Arguments) -> list[Any]:
        return await self.call(_fetch_all, text, arguments or ())

    async def fetch_one(self, text: str, arguments: Arguments) -> Any:
        return await self.call(_fetch_one, text, arguments or ())

    async def fetch_val(self, text: str, arguments: Arguments) -> Any:
        return await self.call(_fetch_val, text, arguments or ())

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        at = [NO_ROW]
        try:
            await self.call(_execute_many, text, self._unless_stopped(arguments, at))
        except Exception as error:
            if at[0] != NO_ROW:
                note_row(error, at[0])
            raise

    def _unless_stopped(self, arguments: Sequence[Any], at: list[int]) -> Iterator[Any]:
        """An interruption ends one statement only, and not the series of them. `at`: the row."""
        for at[0], each in enumerate(arguments):
            if self._stopped:
                raise sqlite3.OperationalError("interrupted")
            yield each
        at[0] = NO_ROW  # what fails now is COMMIT

    async def stream(
        self, text: str, arguments: Arguments, keyword: str, *, alone: bool
    ) -> RowCursor:
        cursor = await self.call(sqlite3.Connection.execute, text, arguments or ())
        source = SqliteSource(self, cursor)
        if self._eager:
            rows = await source.fetch(EAGER)
            if len(rows) < EAGER:
                await source.close()
                return Collected(rows)
            source.ahead = rows
        return source

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        # Whatever level is asked for, SQLite gives serializable.
        self.returned()
        if not read_only:
            self._turn = await self._writers.queue_up(self._patience)
        self._reads_only = await self.call(_begin, read_only)

    async def commit(self) -> bool:
        await self.call(_end, "COMMIT")
        return True

    async def rollback(self) -> None:
        await self.call(_end, "ROLLBACK")

    async def close(self) -> None:
        self._stopped = True
        if self.raw._connection is not None:
            if self.interrupted:
                await self.raw.interrupt()
                await self.raw._execute(_forget_interrupt, self.raw._connection)
            await self.raw.close()
        self._step_back()

    def terminate(self) -> None:
        self._step_back()
        raw = self.raw
        connection = raw._connection
        if connection is None:
            return
        raw._running = False
        raw._connection = None
        connection.interrupt()

        def end() -> Any:
            _forget_interrupt(connection)
            connection.close()
            return _STOP_RUNNING_SENTINEL

        raw._tx.put_nowait((None, end))

    def looks_dead(self) -> bool:
        return self.raw._connection is None

    async def ping(self) -> None:
        await self.call(_fetch_val, "SELECT 1", ())

    async def prepare(self, template: Template, text: str) -> Prepared:
        # SQLite's module keeps the statements that it compiled; this only shows what is wrong.
        if analyse(text, SQLITE).keyword == "PRAGMA":  # some act even so
            return Prepared(self, template.text)
        nothing = (None,) * (len(template.names) or template.count)
        try:
            await self.call(_execute, f"EXPLAIN {template.text}", nothing)
        except sqlite3.ProgrammingError as error:
            # With placeholders of SQLite's own, which only it counts: it was compiled.
            if not template.native or "bindings" not in str(error):
                raise
        return Prepared(self, template.text)


class SqliteSource(RowCursor):
    def __init__(self, connection: SqliteConnection, cursor: sqlite3.Cursor) -> None:
        self.connection = connection
        self.cursor = cursor
        self.ahead: Sequence[Any] = ()  # read and not yet asked for

    async def fetch(self, count: int) -> Sequence[Any]:
        if self.ahead:
            rows, self.ahead = self.ahead[:count], self.ahead[count:]
            return rows
        return await self.connection.call(_fetch_many, self.cursor, count)

    async def close(self) -> None:
        await self.connection.call(_close, self.cursor)


class SqliteDriver(Driver):
    connection_class: ClassVar[type[DriverConnection]] = SqliteConnection
    style: ClassVar[Style] = "qmark"
    reserved: ClassVar[tuple[str, ...]] = ("database", "isolation_level", "autocommit", "uri")

    def __init__(self, config: ConnectConfig) -> None:
        super().__init__(config)
        target, options = config.target, dict(config.target.options)
        if target.hosts or target.user is not None or target.password is not None:
            raise ValueError(
                "url of SQLite has no host and no user: write sqlite:///file.db for a file in the "
                "current directory, sqlite:////tmp/file.db for an absolute path"
            )
        if not target.database:
            raise ValueError("url of SQLite names no file: sqlite:///file.db or sqlite:///:memory:")
        reject_unknown(options, [*PRAGMAS, *IN_URI, *OTHERS])
        check_connect_args(config.connect_args, aiosqlite.connect, *CONNECT)
        self._anchor: sqlite3.Connection | None = None  # keeps a database in memory alive
        self._writers = Writers()
        self._registered: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._memory = target.database == ":memory:"
        if self._memory and any(name in options for name in IN_URI):
            raise ValueError(f"url of a database in memory has no option {', '.join(IN_URI)}")
        if options.get("mode", "rw") not in MODES:
            raise ValueError(
                f"url option 'mode' must be one of {', '.join(MODES)}, not {options['mode']!r}"
            )
        if self._memory:
            path = _new_memory()
        else:
            in_uri = {name: options[name] for name in IN_URI if name in options}
            path = f"file:{quote(os.path.abspath(target.database))}"
            path += f"?{urlencode(in_uri)}" if in_uri else ""
        self._path = path
        self._pragmas = {name: _pragma(name, options[name]) for name in PRAGMAS if name in options}
        reads_only = options.get("mode") == "ro" or "immutable" in options
        if not self._memory and not reads_only:
            self._pragmas.setdefault("journal_mode", "wal")
        self._arguments = {
            "timeout": _seconds(options.get("timeout", str(BUSY_TIMEOUT))),
            "cached_statements": config.statement_cache_size,
        }

    def register(self, method: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
        self._registered.append((method, arguments, more))

    @property
    def system_name(self) -> str:
        return "sqlite"

    async def connect(self, password: Secret | None) -> DriverConnection:
        if password is not None:
            raise ValueError("password: SQLite has none")
        if self._memory and self._anchor is None:
            self._anchor = sqlite3.connect(self._path, uri=True, check_same_thread=False)
        arguments = {
            **self._arguments,
            "isolation_level": None,  # autocommit
            "check_same_thread": False,  # one at a time they are, in the thread or after its end
            "uri": True,
            **fresh(dict(self.config.connect_args)),
        }
        raw = aiosqlite.connect(self._path, **arguments)
        # An unclosed connection must not keep the program alive.
        raw._thread = threading.Thread(target=work, args=(raw._tx,), daemon=True)
        raw._connector = opening = Opening(raw._connector)
        try:
            connection = SqliteConnection(
                await raw, self._writers, arguments["timeout"], eager=self._memory
            )
        except BaseException:
            opening.forsake()
            raise
        try:
            await connection.call(self._set_up)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        for name, value in self._pragmas.items():
            if name == "journal_mode":
                _set_journal_mode(connection, value, self._arguments["timeout"])
            else:
                connection.execute(f"PRAGMA {name} = {value}").close()
        for method, arguments, more in self._registered:
            getattr(connection, method)(*arguments, **more)

    def is_unsent(self, error: BaseException) -> bool:
        return isinstance(error, ValueError) and str(error) in CLOSED

    def is_disconnect(self, error: BaseException) -> bool:
        # The connection is closed, or the file is not what it was.
        if isinstance(error, ValueError):
            return str(error) in CLOSED
        if not isinstance(error, sqlite3.Error):
            return False
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_CORRUPT_VTAB:
            return False  # what a module says of its own tables
        return "closed database" in str(error) or code & 0xFF in BROKEN

    def after_fork(self) -> object:
        kept = self._anchor, self._writers
        self._writers = Writers()
        if self._memory:  # its copy may be locked by what does not exist in the child
            self._anchor, self._path = None, _new_memory()
        return kept

    def close(self) -> None:
        anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.close()


def work(queue: SimpleQueue[tuple[asyncio.Future[Any] | None, Callable[[], Any]]]) -> None:
    """The thread of a connection. That of aiosqlite dies with a traceback if the loop is closed
    before it has done what nobody waits for any more, such as to open for who was cancelled."""
    result = None
    while result is not _STOP_RUNNING_SENTINEL:
        future, function = queue.get()
        error: BaseException | None = None
        result = None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        if future is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_deliver, future, result, error)
        del future, function, error


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Opening:
    """Opens a connection in its thread, and closes it if nobody waits for it any more."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        self._connector = connector
        self._made: sqlite3.Connection | None = None
        self._forsaken = False

    def __call__(self) -> sqlite3.Connection:
        connection = self._made = self._connector()
        if self._forsaken:
            connection.close()
        return connection

    def forsake(self) -> None:
        self._forsaken = True
        if self._made is not None:
            self._made.close()


BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR})


def _new_memory() -> str:
    return f"file:/cenote-{uuid4().hex}?vfs=memdb"


def _nothing() -> None:
    pass


def _forget_interrupt(connection: sqlite3.Connection) -> None:
    """A new statement ends an interruption, which would also keep close() from its checkpoint."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("SELECT 1").close()


def _execute(connection: sqlite3.Connection, text: str, arguments: Any) -> int:
    before = connection.total_changes
    cursor = connection.execute(text, arguments)
    if cursor.description is not None:
        cursor.fetchall()  # RETURNING: counted at the end
    changed = cursor.rowcount
    cursor.close()
    if changed < 0 and connection.total_changes != before and WITH.match(text):
        # Python does not count what begins with WITH; the total counts also what triggers do, and
        # what COMMIT and DDL write by themselves.
        return _ask(connection, "SELECT changes()")
    return max(changed, 0)


def _ask(connection: sqlite3.Connection, text: str) -> int:
    """One number."""
    cursor = connection.cursor()
    cursor.row_factory = None  # that of the connection may be the user's
    number: int = cursor.execute(text).fetchone()[0]
    cursor.close()
    return number


def _fetch_all(connection: sqlite3.Connection, text: str, arguments: Any) -> list[Any]:
    cursor = connection.execute(text, arguments)
    rows = _named(cursor, cursor.fetchall())
    cursor.close()
    return rows


def _fetch_one(connection: sqlite3.Connection, text: str, arguments: Any) -> Any:
    cursor = connection.execute(text, arguments)
    row = cursor.fetchone()
    found = None if row is None else _named(cursor, [row])[0]
    cursor.close()  # or its read lock stays
    return found


def _fetch_val(connection: sqlite3.Connection, text: str, arguments: Any) -> Any:
    cursor = connection.execute(text, arguments)
    row = cursor.fetchone()
    cursor.close()
    return None if row is None else row[0]


def _fetch_many(connection: sqlite3.Connection, cursor: sqlite3.Cursor, count: int) -> list[Any]:
    return _named(cursor, cursor.fetchmany(count))


def _close(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
    cursor.close()


def _named(cursor: sqlite3.Cursor, rows: list[Any]) -> list[Any]:
    if cursor.description is None or (rows and isinstance(rows[0], sqlite3.Row)):
        return rows
    if rows and type(rows[0]) is not tuple:  # of a row factory of the user's
        return rows
    return make_rows([column[0] for column in cursor.description], rows)


def _execute_many(connection: sqlite3.Connection, text: str, arguments: Iterator[Any]) -> None:
    inside = connection.in_transaction
    connection.execute("SAVEPOINT cenote_many" if inside else "BEGIN IMMEDIATE")
    try:
        if RETURNING.search(text):  # which executemany() takes up to Python 3.11 only
            for each in arguments:
                _execute(connection, text, each or ())
        else:
            connection.executemany(text, arguments)
        connection.execute("RELEASE cenote_many" if inside else "COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO cenote_many" if inside else "ROLLBACK")
            if inside:
                connection.execute("RELEASE cenote_many")
        raise


def _begin(connection: sqlite3.Connection, read_only: bool) -> bool:
    """Whether query_only is set now that was not before."""
    for text in SQLITE.begin(None, read_only):
        connection.execute(text)
    if not read_only or _ask(connection, "PRAGMA query_only"):
        return False
    connection.execute("PRAGMA query_only = 1")
    return True


def _end(connection: sqlite3.Connection, text: str) -> None:
    if connection.in_transaction:
        connection.execute(text)


def _set_journal_mode(connection: sqlite3.Connection, mode: str, patience: float) -> None:
    """Its change does not heed the busy timeout."""
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}").close()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _pragma(name: str, value: str) -> str:
    words = WORDS.get(name, ())
    if value.lower() in words or (name != "journal_mode" and NUMBER.fullmatch(value)):
        return value
    # SQLite itself would take no notice of it.
    right = f"one of {', '.join(words)}" if words else "a whole number"
    raise ValueError(f"url option {name!r} must be {right}, not {value!r}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise ValueError(f"url option 'timeout' must be seconds, not {text!r}")
    return value


driver = SqliteDriver
