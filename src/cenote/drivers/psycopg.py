"""PostgreSQL through psycopg 3."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Generator, Sequence
from itertools import count as counter
from logging import DEBUG
from operator import length_hint
from traceback import clear_frames
from typing import Any, ClassVar, TypeVar

from ..log import log
from ..sql.driver import (
    LONGEST_KEPT,
    Arguments,
    Collected,
    ConnectConfig,
    Driver,
    DriverConnection,
    Isolation,
    RowCursor,
    check_connect_args,
    fresh,
    missing,
    reject_unknown,
)
from ..sql.notes import note_row, of_values
from ..sql.parsing.placeholders import POSTGRESQL, Dialect, Style
from ..sql.rows import row_type
from ..sql.url import Secret
from .postgresql import (
    CAPABILITIES,
    RESET,
    affected,
    begin_statement,
    has_cursor,
    is_demotion,
    is_final,
    is_refusal,
    keeps,
    seconds,
    server_options,
)
from .wire import Wire

try:
    import psycopg
    from psycopg._preparing import Prepare, PrepareManager
    from psycopg.adapt import AdaptersMap
    from psycopg.pq import Conninfo, ConnStatus, ExecStatus, TransactionStatus
    from psycopg.rows import no_result, tuple_row
    from psycopg.waiting import Ready, Wait
except ImportError:
    raise missing("psycopg", "psycopg") from None

R = TypeVar("R")

CLOSED = "the connection is closed"  # before anything was sent
IN_TRANSACTION = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})
MADE_BY_CONNECT = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold",
                   "prepared_max", "_isolation_level", "_read_only", "_deferrable",
                   "_begin_statement", "_num_transactions", "_tpc")  # fmt: skip

# What a generator of psycopg waits for, and what it is told.
TO_READ, TO_WRITE = Wait.R.value, Wait.W.value
READABLE, WRITABLE = Ready.R.value, Ready.W.value

# What psycopg itself has prepared, and nothing of what its user has.
DEALLOCATE_OURS = b"""
DO $cenote$
DECLARE statement record;
BEGIN
    FOR statement IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE NOT from_sql LOOP
        EXECUTE 'DEALLOCATE ' || pg_catalog.quote_ident(statement.name);
    END LOOP;
END $cenote$
"""
USE_COPY = (
    "COPY from and to the client needs the driver's own means: "
    "async with db.connection() as c, c.cursor() as cursor, cursor.copy(...)."
)

_numbers = counter(1)


def named(cursor: Any) -> Any:
    """A row factory of psycopg."""
    result = cursor.pgresult
    if result is None or not result.nfields:
        return tuple if has_rows(cursor) else no_result
    encoding = cursor._encoding
    return row_type(tuple([result.fname(at).decode(encoding) for at in range(result.nfields)]))


def has_rows(cursor: Any) -> bool:
    result = cursor.pgresult
    return result is not None and result.status == ExecStatus.TUPLES_OK


async def ride(steps: Generator[int, int, R], descriptor: int) -> R:
    """To the end of a generator of psycopg, which yields what it waits for. psycopg's own way
    wakes up ten times a second, or without a pause."""
    try:
        wanted = next(steps)
        loop = asyncio.get_running_loop()
        while True:
            ready = loop.create_future()
            if wanted & TO_READ:
                loop.add_reader(descriptor, tell, ready, READABLE)
            if wanted & TO_WRITE:
                loop.add_writer(descriptor, tell, ready, WRITABLE)
            try:
                state = await ready
            finally:
                if wanted & TO_READ:
                    loop.remove_reader(descriptor)
                if wanted & TO_WRITE:
                    loop.remove_writer(descriptor)
            wanted = steps.send(state)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except OSError as error:
        raise psycopg.OperationalError("the connection is lost") from error


def abandon(steps: Generator[int, int, Any]) -> None:
    """Close a generator of psycopg that is left in the middle. It ends a pipeline in order, so it
    may wait for something again and may fail; later, when it is collected, the connection that it
    speaks to is gone."""
    for _ in range(3):
        try:
            steps.close()
        except RuntimeError:  # it waits
            continue
        except Exception as error:
            log(DEBUG, "psycopg left a pipeline", error=error)
        return


def tell(future: asyncio.Future[int], state: int) -> None:
    if not future.done():
        future.set_result(state)


class Connection(psycopg.AsyncConnection[Any]):
    """A psycopg connection that can be left at once by who will destroy it."""

    hurried = False  # do not wait until a cancelled statement is over on the server
    left: BaseException | None = None  # with what it was

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        if not self.hurried:
            return await super().wait(gen, *arguments, **options)
        if self.left is not None:
            raise self.left  # psycopg wants to end its pipeline in order, and waits for it
        try:
            return await ride(gen, self.pgconn.socket)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.left = error
                abandon(gen)
            raise


class Keeper(PrepareManager):
    """Which statements psycopg keeps prepared on a connection."""

    def __init__(self, made: PrepareManager) -> None:
        super().__init__()
        self.prepare_threshold = made.prepare_threshold
        self.prepared_max = made.prepared_max
        self.missed = False  # of the statements since this was last set, one was not kept before
        self.guests = False  # statements of the user's own may be prepared on the server

    def get(self, query: Any, prepare: bool | None = None) -> tuple[Prepare, bytes]:
        name = self._names.get((query.query, query.types))
        if name is not None and prepare is not False:
            return Prepare.YES, name
        self.missed = True
        if not keeps(query.query.decode("latin-1")):
            return Prepare.NO, b""
        return super().get(query, prepare)

    def maybe_add_to_cache(self, query: Any, prep: Prepare, name: bytes) -> Any:
        if prep is Prepare.YES:
            self._names.move_to_end((query.query, query.types))
            return None
        if len(query.query) > LONGEST_KEPT:
            return self.key(query)  # psycopg would count how often it was run, by its text
        key = super().maybe_add_to_cache(query, prep, name)
        # psycopg looks at the answer to ROLLBACK, DISCARD ALL and their like only the first time.
        return self.key(query) if prep is Prepare.NO else key

    def maintain_gen(self, conn: Any) -> Any:
        while self._to_flush:
            name = self._to_flush.popleft()
            if name is None and self.guests:
                yield from conn._exec_command(DEALLOCATE_OURS)
            else:
                yield from conn._deallocate(name)


class Series(psycopg.AsyncCursor[Any]):
    """A cursor that knows which row of executemany() the server refused."""

    done = 0  # rows
    refusal: psycopg.Error | None = None  # of the next one

    def _check_results(self, results: Any) -> None:
        try:
            super()._check_results(results)
        except psycopg.Error as error:
            self.refusal = self.refusal or error  # those that follow are not executed
            raise
        self.done += 1


class PsycopgConnection(DriverConnection):
    __slots__ = ("_context", "_keeper", "_made", "_wire")

    keeping: ClassVar[frozenset[str]] = frozenset(
        {"cursor", "execute", "notifies", "pipeline", "transaction"}
    )
    raw: Connection

    def __init__(self, raw: Any, context: Any) -> None:
        super().__init__(raw)
        self._keeper = raw._prepared = Keeper(raw._prepared)
        self._context = context  # of adapters; given to connect(), or None
        self._made = {name: getattr(raw, name) for name in MADE_BY_CONNECT}
        self._wire = Wire(raw.pgconn.socket)

    @property
    def in_transaction(self) -> bool:
        return self.raw.pgconn.transaction_status in IN_TRANSACTION

    async def execute(self, text: str, arguments: Arguments) -> int:
        cursor = await self._run(text, arguments)
        self.status = cursor.statusmessage
        return affected(cursor.statusmessage)

    async def fetch_all(self, text: str, arguments: Arguments) -> list[Any]:
        cursor = await self._run(text, arguments)
        return await cursor.fetchall() if has_rows(cursor) else []

    async def fetch_one(self, text: str, arguments: Arguments) -> Any:
        cursor = await self._run(text, arguments)
        return await cursor.fetchone() if has_rows(cursor) else None

    async def fetch_val(self, text: str, arguments: Arguments) -> Any:
        cursor = await self._run(text, arguments, rows=tuple_row)
        row = await cursor.fetchone() if has_rows(cursor) else None
        return row[0] if row else None

    async def _run(
        self, text: str, arguments: Arguments, prepare: bool | None = None, rows: Any = named
    ) -> Any:
        """What execute() of a cursor does, in one coroutine; see hurry() about cancellations."""
        if prepare is None and arguments is None and ";" in text.rstrip("; \r\n\t"):
            prepare = False  # perhaps several statements, which cannot be prepared
        raw = self.raw
        keeper = self._keeper
        cursor: Any = raw.cursor(row_factory=rows)
        async with raw.lock:
            if keeper._to_flush:
                await self._flush()
            keeper.missed = False
            try:
                steps = cursor._execute_gen(text, arguments, prepare=prepare)
                await ride(steps, raw.pgconn.socket)
                return cursor
            except psycopg.Error as error:
                if self.is_stuck():
                    error.add_note(USE_COPY)
                if keeper.missed or not self._refused(error) or self.in_transaction:
                    raise
            await self._flush()
            steps = cursor._execute_gen(text, arguments, prepare=prepare)
            await ride(steps, raw.pgconn.socket)
        return cursor

    def _refused(self, error: Exception) -> bool:
        """Of a statement that was kept: whether its plan was refused, and nothing of it executed.
        Then all plans are forgotten."""
        if not isinstance(error, psycopg.Error):
            return False
        diag = error.diag
        refused = is_refusal(
            diag.sqlstate, diag.source_function, diag.context, diag.statement_position
        )
        if refused:
            self.forget_plans()
        return refused

    async def _flush(self) -> None:
        """Drop on the server what forget_plans() has forgotten. psycopg itself would do it after
        the next statement, and drop what that one has prepared."""
        pgconn = self.raw.pgconn
        if self._keeper._to_flush and pgconn.transaction_status != TransactionStatus.INERROR:
            # there only its end can run
            await ride(self._keeper.maintain_gen(self.raw), pgconn.socket)

    async def _command(self, text: str) -> bytes | None:
        """Without arguments and rows; what the server answered."""
        raw = self.raw
        async with raw.lock:
            result = await ride(raw._exec_command(text), raw.pgconn.socket)
        answer = None if result is None else result.command_status
        if answer == b"ROLLBACK":
            self.forget_plans()  # what was prepared in it may be of tables that are gone with it
        return answer

    async def hurry(self, awaitable: Awaitable[R]) -> R:
        """A cancellation is not kept waiting: the connection is destroyed, the server told then."""
        raw = self.raw
        raw.hurried = True
        try:
            return await awaitable
        except Exception:
            if raw.left is not None:
                raise raw.left from None  # psycopg complains of its pipeline instead
            raise
        finally:
            raw.hurried = False

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        again = not self.in_transaction
        if await self._run_many(text, arguments, again=again):
            await self._run_many(text, arguments, again=False)

    async def _run_many(self, text: str, arguments: Sequence[Any], *, again: bool) -> bool:
        """True: its plan was refused at the first element, so that it may be run `again`."""
        raw = self.raw
        plain = raw.cursor_factory is psycopg.AsyncCursor  # and not one of the user's
        cursor = Series(raw) if plain else raw.cursor()
        rows = iter(arguments)
        statement: Any = text
        refused = False

        async def series() -> None:
            nonlocal refused
            self._keeper.missed = False
            try:
                await self.hurry(cursor.executemany(statement, rows))
            except psycopg.Error as error:
                kept = not self._keeper.missed and cursor.statusmessage is None
                refused = kept and self._refused(error)
                if isinstance(cursor, Series) and cursor.refusal is error:
                    if cursor.done or of_values(error):  # else it may be the statement
                        note_row(error, cursor.done)
                elif error.sqlstate is None and (left := length_hint(rows)) < len(arguments):
                    note_row(error, len(arguments) - left - 1)  # psycopg cannot send it
                raise

        async with self.raw.lock:
            await self._flush()
        try:
            await self.atomically(series)
        except psycopg.Error:
            if not (refused and again):
                raise
        return refused

    async def stream(
        self, text: str, arguments: Arguments, keyword: str, *, alone: bool
    ) -> RowCursor:
        if not has_cursor(keyword, text):
            return Collected(await self.fetch_all(text, arguments))
        outside = not self.in_transaction
        own = outside and alone
        if own:
            await self._command("BEGIN")
        name = f"cenote_{next(_numbers)}"
        cursor = self.raw.cursor(name, row_factory=named, withhold=outside and not alone)
        statement: Any = text
        try:
            await self.hurry(cursor.execute(statement, arguments))
        except BaseException as error:
            cursor._closed = True  # psycopg complains about open ones
            if isinstance(error, Exception) and own and self.in_transaction:
                await self.rollback()
            raise
        return PsycopgSource(self, cursor, own)

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        await self._command(begin_statement(isolation, read_only))

    async def commit(self) -> bool:
        return await self._command("COMMIT") != b"ROLLBACK"

    async def rollback(self) -> None:
        await self._command("ROLLBACK")

    async def close(self) -> None:
        raw = self.raw
        if self.interrupted and raw.pgconn.transaction_status == TransactionStatus.ACTIVE:
            await raw.cancel_safe()
        await raw.close()

    def terminate(self) -> None:
        self.raw._closed = True
        self.raw.pgconn.finish()

    def looks_dead(self) -> bool:
        raw = self.raw
        return raw.closed or raw.pgconn.status == ConnStatus.BAD

    def is_stuck(self) -> bool:
        # In a COPY the server waits for rows, or sends them.
        return self.raw.pgconn.transaction_status == TransactionStatus.ACTIVE

    def peer_closed(self) -> bool:
        return not self.raw.closed and self._wire.peer_closed()

    def has_unread_bytes(self) -> bool:
        return not self.raw.closed and self._wire.has_unread_bytes()

    async def ping(self) -> None:
        await self._command("SELECT 1")

    @property
    def can_reset(self) -> bool:
        return True

    async def reset(self) -> bool:
        raw = self.raw
        if not raw.autocommit:
            await raw.set_autocommit(True)
        raw._notify_handlers.clear()
        raw._notice_handlers.clear()
        for name, value in self._made.items():
            setattr(raw, name, value)
        raw._adapters = None if self._context is None else AdaptersMap(self._context.adapters)
        answer = await self._run(RESET, None, prepare=False)
        raw._notifies_backlog = deque()  # also what came with the answer
        if self.replans or answer._results[-1].ntuples < len(self._keeper._names):
            self.forget_plans()  # by whatever way, somebody may have thrown them away
        self.replans = self._keeper.guests = False
        return True

    def touch(self, reason: str, *, lasting: bool = False, replans: bool = False) -> None:
        self._keeper.guests = True
        super().touch(reason, lasting=lasting, replans=replans)

    def greeted(self) -> None:
        self._keeper.guests = True  # on_connect may have prepared some

    def forget_plans(self) -> None:
        self._keeper.clear()


class PsycopgSource(RowCursor):
    """A cursor on the server, in a transaction of its own unless there is one."""

    def __init__(self, connection: PsycopgConnection, cursor: Any, own: bool) -> None:
        self.connection = connection
        self.cursor = cursor
        self.own = own

    async def fetch(self, count: int) -> Sequence[Any]:
        rows: Sequence[Any] = await self.connection.hurry(self.cursor.fetchmany(count))
        return rows

    async def close(self) -> None:
        await self.cursor.close()
        if self.own:
            await self.connection.commit()

    def abandon(self) -> None:
        self.cursor._closed = True  # psycopg complains about open ones


class PsycopgDriver(Driver):
    dialect: ClassVar[Dialect] = POSTGRESQL
    style: ClassVar[Style] = "format"
    capabilities: ClassVar[frozenset[str]] = CAPABILITIES
    reserved: ClassVar[tuple[str, ...]] = ("autocommit",)

    def __init__(self, config: ConnectConfig) -> None:
        super().__init__(config)
        target, options = config.target, dict(config.target.options)
        known = [option.keyword.decode() for option in Conninfo.get_defaults()]
        reject_unknown(options, [name for name in known if name not in ("user", "password")])
        check_connect_args(config.connect_args, Connection.connect, *known)
        arguments = server_options(target, options)
        if "database" in arguments:
            arguments["dbname"] = arguments.pop("database")
        if "connect_timeout" in options:
            seconds("connect_timeout", options["connect_timeout"])
        if target.hosts:
            options["host"] = ",".join(name for name, _ in target.hosts)
            options["port"] = ",".join(str(port or 5432) for _, port in target.hosts)
        self._arguments: dict[str, Any] = {**arguments, **options}

    async def connect(self, password: Secret | None) -> DriverConnection:
        arguments = {**fresh(self._arguments), **fresh(dict(self.config.connect_args))}
        size = self.config.statement_cache_size
        arguments.setdefault("prepare_threshold", 0 if size else None)
        if password is not None:
            arguments["password"] = password.reveal()
        try:
            raw = await Connection.connect(autocommit=True, **arguments)
        except psycopg.Error as error:
            hide_passwords(error.pgconn)
            raise
        except BaseException as error:
            clear_frames(error.__traceback__)  # in one of them there is the half-made connection
            raise
        raw.prepared_max = size
        return PsycopgConnection(raw, arguments.get("context"))

    def is_disconnect(self, error: BaseException) -> bool:
        if isinstance(error, psycopg.Error) and error.sqlstate is not None:
            return is_final(error.diag.severity_nonlocalized or error.diag.severity)
        if isinstance(error, psycopg.InterfaceError):
            return "connection is closed" in str(error)
        return isinstance(error, psycopg.OperationalError | OSError)

    def is_unsent(self, error: BaseException) -> bool:
        # Not one that the server sent, with these very words.
        unsent = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
        return unsent and str(error) == CLOSED

    def is_demoted(self, error: BaseException) -> bool:
        return is_demotion(getattr(error, "sqlstate", None))


def hide_passwords(attempt: Any) -> None:
    """From what an error remembers of the connection that failed."""
    if isinstance(attempt, psycopg.errors.FinishedPGconn):
        attempt.password = b""
        attempt.info = [each for each in attempt.info if b"password" not in each.keyword]


driver = PsycopgDriver
