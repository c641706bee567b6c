"""One connection to PostgreSQL through psycopg."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count as counter
from operator import length_hint
from typing import Any, ClassVar, TypeVar

from ...sql.dialects import POSTGRESQL, Dialect, Isolation
from ...sql.driver import (
    Arguments,
    Collected,
    DriverConnection,
    Received,
    RowCursor,
)
from ...sql.notes import note_row, of_values
from ..postgresql import (
    PLANNED,
    RESET,
    affected,
    has_cursor,
    is_refusal,
    quoted,
)
from ..wire import Wire
from . import private
from .inbox import Inbox
from .private import (
    BatchCursor,
    Connection,
    ConnStatus,
    TransactionStatus,
    drive,
    has_rows,
    psycopg,
    row_factory,
    tuple_row,
)
from .values import KNOWN, Undecided, decide, parameters

R = TypeVar("R")

IN_TRANSACTION = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})
USE_COPY = (
    "COPY from and to the client needs the driver's own means: "
    "async with db.connection() as c, c.cursor() as cursor, cursor.copy(...)."
)

UNKNOWN = 0  # the type of a parameter that the server does not give
REMEMBERED = 128  # statements with lists
TYPES = "cenote_types"  # a savepoint

_numbers = counter(1)


class PsycopgConnection(DriverConnection):
    """A connection of psycopg."""

    __slots__ = ("_asked", "_context", "_defers", "_inbox", "_keeper", "_lent", "_made",
                 "_same_values", "_wire")  # fmt: skip

    dialect: ClassVar[Dialect] = POSTGRESQL
    aborts: ClassVar[bool] = True
    cancels: ClassVar[bool] = True
    caches_statements: ClassVar[bool] = True
    gives_sqlstate: ClassVar[bool] = True
    keeping: ClassVar[frozenset[str]] = frozenset(
        {"cursor", "execute", "notifies", "pipeline", "transaction"}
    )
    raw: Connection
    status: str | None

    def __init__(self, raw: Any, context: Any, *, same_values: bool = True) -> None:
        super().__init__(raw)
        self._same_values = same_values
        # What the server said of parameters that are lists, by text and types of the arguments.
        self._asked: dict[Any, list[int]] = {}
        self._keeper = private.install_keeper(raw)
        self._inbox: Inbox | None = None  # of notifications, if it listens
        self._context = context  # of adapters; given to connect(), or None
        self._made = private.settings(raw)
        self._wire = Wire(raw.pgconn.socket)
        self._defers = private.can_defer(raw)
        self._lent = 0  # connection() blocks that are open

    @property
    def in_transaction(self) -> bool:
        raw = self.raw
        return bool(raw.unsent) or raw.pgconn.transaction_status in IN_TRANSACTION

    @property
    def defers(self) -> bool:
        """Whether BEGIN and SAVEPOINT wait for the statement that follows. Not in a connection()
        block, where the program may look at the connection itself, and not after an error."""
        return (
            self._defers
            and not self._lent
            and not self.is_dead
            and self.raw.pgconn.transaction_status != TransactionStatus.INERROR
        )

    async def execute(self, text: str, arguments: Arguments) -> int:
        cursor = await self._run(text, arguments)
        self.status = status = cursor.statusmessage
        if self._asked and status is not None and status.startswith(("ALTER", "CREATE", "DROP")):
            self._asked.clear()
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
        self, text: str, arguments: Arguments, prepare: bool | None = None, rows: Any = row_factory
    ) -> Any:
        """What execute() of a cursor does, in one coroutine that a cancellation ends at once."""
        if prepare is None and arguments is None and ";" in text.rstrip("; \r\n\t"):
            prepare = False  # perhaps several statements, which cannot be prepared
        raw = self.raw
        keeper = self._keeper
        if arguments:
            arguments = self.values(arguments)
        undecided = arguments if type(arguments) is Undecided else None
        cursor: Any = raw.cursor(row_factory=rows)
        async with raw.lock:
            if undecided is not None:
                arguments = await self._decide(text, undecided)
            if keeper.unflushed:
                await self._flush()
            keeper.missed = False
            try:
                if raw.unsent and prepare is not False and PLANNED.match(text):
                    await private.execute_behind(raw, cursor, text, arguments, prepare)
                else:
                    await private.execute(raw, cursor, text, arguments, prepare)
                return cursor
            except psycopg.Error as error:
                if self.is_stuck():
                    error.add_note(USE_COPY)
                if undecided is not None:
                    self._asked.clear()  # the parameter may be of another type by now
                if keeper.missed or not self._refused(error) or self.in_transaction:
                    raise
            await self._flush()
            if undecided is not None:
                arguments = await self._decide(text, undecided)
            await private.execute(raw, cursor, text, arguments, prepare)
        return cursor

    def values(self, arguments: Any) -> Any:
        """What is sent in the place of the arguments: the same object if all are known, `Undecided`
        if there is a list."""
        plain = arguments.values() if isinstance(arguments, Mapping) else arguments
        if KNOWN.issuperset(map(type, plain)) or not self._same_values:
            return arguments
        return parameters(arguments, self.raw.adapters)

    async def _decide(self, text: str, arguments: Undecided) -> list[Any]:
        """What each list is, by what the server says of its parameter: it is asked once."""
        key = (text, *map(type, arguments))
        types = self._asked.get(key)
        if types is None:
            types = await self._ask_types(text, arguments) or [UNKNOWN] * len(arguments)
            if len(self._asked) >= REMEMBERED:
                self._asked.clear()
            self._asked[key] = types
        return decide(arguments, types)

    async def _ask_types(self, text: str, arguments: Undecided) -> list[int] | None:
        """A statement that the server cannot read without these types must not end the transaction
        that is open; it is run with arrays then."""
        raw = self.raw
        if self.raw.unsent:
            await self._send_unsent()
        if not self.in_transaction:
            return await private.parameter_types(raw, text, arguments, arguments.lists)
        if raw.pgconn.transaction_status == TransactionStatus.INERROR:
            return None
        await private.command(raw, POSTGRESQL.savepoint(TYPES))
        types = await private.parameter_types(raw, text, arguments, arguments.lists)
        if types is None:
            await private.command(raw, POSTGRESQL.rollback_to_savepoint(TYPES))
        await private.command(raw, f"RELEASE SAVEPOINT {TYPES}")
        return types

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
        if self._keeper.unflushed and pgconn.transaction_status != TransactionStatus.INERROR:
            # there only its end can run
            await drive(self._keeper.maintain_gen(self.raw), pgconn.socket)

    async def _command(self, text: str) -> bytes | None:
        """Without arguments and rows; what the server answered."""
        raw = self.raw
        async with raw.lock:
            answer = await private.command(raw, text)
        if answer == b"ROLLBACK":
            self.forget_plans()  # what was prepared in it may be of tables that are gone with it
        return answer

    async def cancel_promptly(self, awaitable: Awaitable[R]) -> R:
        """A cancellation does not wait for the server: the connection is destroyed then."""
        raw = self.raw
        raw.prompt = True
        try:
            return await awaitable
        except Exception:
            if raw.left is not None:
                raise raw.left from None  # psycopg complains of its pipeline instead
            raise
        finally:
            raw.prompt = False

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        arguments = await self._every_value(text, arguments)
        again = not self.in_transaction
        if await self._run_many(text, arguments, again=again):
            await self._run_many(text, arguments, again=False)

    async def _every_value(self, text: str, rows: Sequence[Any]) -> Sequence[Any]:
        """The values of every row; nothing of a statement is sent if one of them does not fit."""
        found = []
        for at, row in enumerate(rows):
            try:
                values = self.values(row) if row else row
                if type(values) is Undecided:
                    async with self.raw.lock:
                        values = await self._decide(text, values)
            except (TypeError, ValueError) as error:
                note_row(error, at)
                raise
            found.append(values)
        return found

    async def _run_many(self, text: str, arguments: Sequence[Any], *, again: bool) -> bool:
        """True: its plan was refused at the first element, so that it may be run `again`."""
        raw = self.raw
        plain = raw.cursor_factory is psycopg.AsyncCursor  # and not one of the user's
        cursor = BatchCursor(raw) if plain else raw.cursor()
        rows = iter(arguments)
        statement: Any = text
        refused = False

        async def series() -> None:
            nonlocal refused
            self._keeper.missed = False
            try:
                await self.cancel_promptly(cursor.executemany(statement, rows))
            except psycopg.Error as error:
                kept = not self._keeper.missed and cursor.statusmessage is None
                refused = kept and self._refused(error)
                if isinstance(cursor, BatchCursor) and cursor.refusal is error:
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
        if arguments:
            [arguments] = await self._every_value(text, [arguments])
        outside = not self.in_transaction
        own = outside and alone
        if own:
            await self.begin(None, False)
        name = f"cenote_{next(_numbers)}"
        cursor = self.raw.cursor(name, row_factory=row_factory, withhold=outside and not alone)
        statement: Any = text
        try:
            await self.cancel_promptly(cursor.execute(statement, arguments))
        except BaseException as error:
            private.abandon_cursor(cursor)
            if isinstance(error, Exception) and own and self.in_transaction:
                await self.rollback()
            raise
        return PsycopgRowCursor(self, cursor, own)

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        for text in POSTGRESQL.begin(isolation, read_only):
            if self.defers:
                self.raw.unsent += (text.encode(),)
            else:
                await self._command(text)

    async def commit(self) -> bool:
        if self._never_began():
            return True
        return await self._command(POSTGRESQL.commit()) != b"ROLLBACK"

    async def rollback(self) -> None:
        if not self._never_began():
            await self._command(POSTGRESQL.rollback())

    def _never_began(self) -> bool:
        """Forget what was not sent; whether BEGIN is among it, so that there is nothing to end."""
        unsent, self.raw.unsent = self.raw.unsent, ()
        outside = self.raw.pgconn.transaction_status == TransactionStatus.IDLE
        return bool(unsent) and outside

    async def savepoint(self, name: str) -> None:
        if self.defers:
            self.raw.unsent += (POSTGRESQL.savepoint(name).encode(),)
        else:
            await self._command(POSTGRESQL.savepoint(name))

    async def release_savepoint(self, name: str) -> None:
        if not self._forget_unsent(name, keep=False):
            await self._command(f"RELEASE SAVEPOINT {name}")

    async def rollback_to_savepoint(self, name: str) -> None:
        if not self._forget_unsent(name, keep=True):
            await self._command(POSTGRESQL.rollback_to_savepoint(name))

    def _forget_unsent(self, name: str, *, keep: bool) -> bool:
        """Forget the savepoints inside this one that were not sent; return whether it was not sent
        itself, in which case it is forgotten as well unless it is to be kept."""
        unsent, text = self.raw.unsent, POSTGRESQL.savepoint(name).encode()
        if text not in unsent:
            self.raw.unsent = ()
            return False
        self.raw.unsent = unsent[: unsent.index(text) + keep]
        return True

    async def _send_unsent(self) -> None:
        raw = self.raw
        await drive(raw.send_unsent(), raw.pgconn.socket)

    async def lend(self) -> None:
        if self.raw.unsent:
            async with self.raw.lock:
                await self._send_unsent()
        self._lent += 1

    async def take_back(self) -> None:
        self._lent -= 1

    def returned(self) -> None:
        self._lent = 0

    async def close(self) -> None:
        raw = self.raw
        if self.interrupted and raw.pgconn.transaction_status == TransactionStatus.ACTIVE:
            await raw.cancel_safe()
        self._close_inbox()
        await raw.close()

    async def stop(self) -> None:
        await self.raw.cancel_safe()

    def terminate(self) -> None:
        self._close_inbox()
        private.terminate(self.raw)

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

    async def listen(self, channel: str) -> None:
        await self._command_of_listener(f"LISTEN {quoted(channel)}")

    async def unlisten(self, channel: str) -> None:
        await self._command_of_listener(f"UNLISTEN {quoted(channel)}")

    def on_notification(self, received: Received, lost: Callable[[], None]) -> None:
        self._inbox = Inbox(self.raw, received, lost)

    async def _command_of_listener(self, text: str) -> None:
        """While a statement runs, psycopg itself reads from the socket."""
        try:
            await self._command(text)
        finally:
            if self._inbox is not None and not self.is_dead:
                self._inbox.open()

    def _close_inbox(self) -> None:
        if self._inbox is not None:
            self._inbox.close()

    async def ping(self) -> None:
        await self._command_of_listener("SELECT 1")

    async def reset(self) -> bool:
        raw = self.raw
        if not raw.autocommit:
            await raw.set_autocommit(True)
        private.restore(raw, self._made, self._context)
        answer = await self._run(RESET, None, prepare=False)
        private.drop_notifies(raw)  # also what came with the answer
        if self.replans or private.count_rows(answer) < self._keeper.kept:
            self.forget_plans()  # by whatever way, somebody may have thrown them away
        self.replans = self._keeper.guests = False
        return True

    def touch(self, reason: str, *, lasting: bool = False, replans: bool = False) -> None:
        self._keeper.guests = True
        super().touch(reason, lasting=lasting, replans=replans)

    def greeted(self) -> None:
        self._keeper.guests = True  # on_connect may have prepared some

    def forget_plans(self) -> None:
        self._asked.clear()
        self._keeper.clear()


class PsycopgRowCursor(RowCursor):
    """A cursor on the server, in a transaction of its own unless there is one."""

    def __init__(self, connection: PsycopgConnection, cursor: Any, own: bool) -> None:
        self.connection = connection
        self.cursor = cursor
        self.own = own

    async def fetch(self, count: int) -> Sequence[Any]:
        rows: Sequence[Any] = await self.connection.cancel_promptly(self.cursor.fetchmany(count))
        return rows

    async def close(self) -> None:
        await self.cursor.close()
        if self.own:
            await self.connection.commit()

    def abandon(self) -> None:
        private.abandon_cursor(self.cursor)
