"""One connection to PostgreSQL through asyncpg."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count as counter
from typing import Any, ClassVar

from ...sql.dialects import POSTGRESQL, Dialect, Isolation
from ...sql.driver import (
    Arguments,
    Collected,
    DriverConnection,
    Prepared,
    Received,
    RowCursor,
)
from ...sql.parsing.placeholders import Template
from ..postgresql import (
    ADDING,
    RESET,
    affected,
    has_cursor,
    keeps,
)
from . import private
from .private import Connection
from .replies import Replies
from .values import KNOWN, parameters

(BEGIN,) = POSTGRESQL.begin(None, False)
COMMIT = POSTGRESQL.commit()

_numbers = counter(1)


class AsyncpgConnection(DriverConnection):
    """A connection of asyncpg."""

    __slots__ = ("_alters", "_heard", "_is_ours", "_place", "_same_values", "_wire")

    dialect: ClassVar[Dialect] = POSTGRESQL
    aborts: ClassVar[bool] = True
    cancels: ClassVar[bool] = True
    caches_statements: ClassVar[bool] = True
    gives_sqlstate: ClassVar[bool] = True
    keeping: ClassVar[frozenset[str]] = private.KEEPING
    finalizers: ClassVar[frozenset[str]] = private.FINALIZERS
    guard_bases: ClassVar[tuple[type, ...]] = (private.PROXY,)
    raw: Any
    status: str | None

    def __init__(self, raw: Any, *, same_values: bool = True) -> None:
        super().__init__(raw)
        self._same_values = same_values
        self._alters = False  # its transaction has changed the schema, if that is not rolled back
        # What asyncpg calls with a notification.
        self._heard: Callable[[Any, int, str, str], None] | None = None
        self._is_ours = type(raw) is Connection  # and not of a class of the user's
        self._place = private.place(raw)
        self._wire = private.wire(raw)

    # One call and not two.
    in_transaction: property = property(private.is_in_transaction)  # pyright: ignore[reportIncompatibleMethodOverride]

    def values(self, arguments: Any) -> Any:
        """What is sent in the place of the arguments: the same object if all are known."""
        if KNOWN.issuperset(map(type, arguments)) or not self._same_values:
            return arguments
        if getattr(self.raw, "takes_enums", False):
            return arguments
        return parameters(arguments)

    async def execute(self, text: str, arguments: Arguments) -> int:
        if not arguments:
            status = await private.command(self.raw, text)
        elif self._is_ours:
            status = await self.raw.run(text, self.values(arguments), private.STATUS)
        else:
            status = await self.raw.execute(text, *self.values(arguments))
        self.status = status
        if status.startswith(("ALTER", "CREATE", "DROP", "ROLLBACK")):
            self._note_change(status)
        return affected(status)

    def _note_change(self, status: str) -> None:
        """In a transaction nothing can be run again: what is kept is forgotten before."""
        if status == "ROLLBACK":
            self._forget_changes()
            return
        self._alters = self.in_transaction
        if not status.startswith(ADDING):
            self.forget_plans()

    def _forget_changes(self) -> None:
        """Those of a transaction that is rolled back, perhaps to a savepoint."""
        if self._alters or getattr(self.raw, "alters", False):
            self._alters = self.in_transaction
            if isinstance(self.raw, Connection):
                self.raw.alters = self._alters
            self.forget_plans()

    def fetch_all(self, text: str, arguments: Arguments) -> Any:
        known = arguments and KNOWN.issuperset(map(type, arguments))
        values: Any = arguments if known else self.values(arguments or ())
        if self._is_ours:
            return self.raw.run(text, values, private.ROWS)
        return self.raw.fetch(text, *values)

    def fetch_one(self, text: str, arguments: Arguments) -> Any:
        known = arguments and KNOWN.issuperset(map(type, arguments))
        values: Any = arguments if known else self.values(arguments or ())
        if self._is_ours:
            return self.raw.run(text, values, private.ROW)
        return self.raw.fetchrow(text, *values)

    def fetch_val(self, text: str, arguments: Arguments) -> Any:
        known = arguments and KNOWN.issuperset(map(type, arguments))
        values: Any = arguments if known else self.values(arguments or ())
        if self._is_ours:
            return self.raw.run(text, values, private.VALUE)
        return self.raw.fetchval(text, *values)

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        rows = [*map(self.values, arguments)]
        await self.run_series(rows, lambda: self.raw.executemany(text, rows))

    async def run_series(self, rows: Sequence[Any], send: Callable[[], Awaitable[object]]) -> None:
        """Send these rows: all or none. Outside a transaction that is so by itself."""

        async def counted() -> None:
            with Replies(self.raw, len(rows)):
                await send()

        await (self.atomically(counted) if self.in_transaction else counted())

    async def stream(
        self, text: str, arguments: Arguments, keyword: str, *, alone: bool
    ) -> RowCursor:
        if not has_cursor(keyword, text):  # run to its end, however much of it is read
            return Collected(await self.fetch_all(text, arguments))
        own = not self.in_transaction
        if own and not alone:
            return await self._hold(text, arguments)
        if own:
            await self.begin(None, False)
        try:
            cursor = await self._open_cursor(text, self.values(arguments or ()), own=own)
        except Exception:
            if own and self.in_transaction and not self.looks_dead():
                await self.rollback()
            raise
        return AsyncpgRowCursor(self, cursor, own)

    async def _open_cursor(self, text: str, arguments: Any, *, own: bool) -> Any:
        """A portal: bound, and nothing of it executed. `own`: so is the transaction."""
        raw = self.raw
        kept = private.keeps_prepared(raw, text)
        try:
            return await private.open_cursor(raw, text, arguments, use_cache=keeps(text))
        except Exception as error:
            if not (kept and isinstance(raw, Connection) and raw.refused(error) and own):
                raise
        await self.rollback()
        await self.begin(None, False)
        return await private.open_cursor(raw, text, arguments, use_cache=True)

    async def _hold(self, text: str, arguments: Arguments) -> RowCursor:
        name = f"cenote_{next(_numbers)}"
        declare = f"DECLARE {name} NO SCROLL CURSOR WITH HOLD FOR {text}"
        await self.raw.execute(declare, *(self.values(arguments) if arguments else ()))
        return AsyncpgHeldRowCursor(self, name)

    def begin(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, isolation: Isolation | None, read_only: bool
    ) -> Coroutine[Any, Any, None]:
        if isolation is None and not read_only:
            return private.command(self.raw, BEGIN)  # type: ignore[no-any-return]
        return self._begin_as(isolation, read_only)

    async def _begin_as(self, isolation: Isolation | None, read_only: bool) -> None:
        for text in POSTGRESQL.begin(isolation, read_only):
            await private.command(self.raw, text)

    async def commit(self) -> bool:
        status: str = await private.command(self.raw, COMMIT)
        if status == "ROLLBACK":
            self._forget_changes()
            return False
        self._alters = False
        return True

    async def rollback(self) -> None:
        await private.command(self.raw, POSTGRESQL.rollback())
        self._forget_changes()

    async def close(self) -> None:
        if self.interrupted or private.is_cancelling(self.raw):
            await private.cancel(self._place)
        elif not self.broken:
            await self.raw.close()

    async def stop(self) -> None:
        await private.cancel(self._place)

    def terminate(self) -> None:
        private.terminate(self.raw)

    def looks_dead(self) -> bool:
        return private.is_dead(self.raw)

    def peer_closed(self) -> bool:
        return self._wire.peer_closed()

    def has_unread_bytes(self) -> bool:
        return not self.raw.is_closed() and self._wire.has_unread_bytes()

    async def listen(self, channel: str) -> None:
        await self.raw.add_listener(channel, self._heard)

    async def unlisten(self, channel: str) -> None:
        await self.raw.remove_listener(channel, self._heard)

    def on_notification(self, received: Received, lost: Callable[[], None]) -> None:
        self._heard = lambda raw, pid, channel, payload: received(channel, payload, pid)
        self.raw.add_termination_listener(lambda raw: lost())

    async def ping(self) -> None:
        await self.raw.execute("SELECT 1")  # asyncpg cannot read the answer to nothing

    @property
    def can_reset(self) -> bool:
        # A class of the user's has a reset of its own, which may be less thorough.
        return not getattr(self.raw, "codecs", True)

    def greeted(self) -> None:
        if isinstance(self.raw, Connection):
            self.raw.codecs = False  # those of on_connect are set again after every reset

    async def reset(self) -> bool:
        if not self.can_reset:
            return False
        raw = self.raw
        private.forget_session(raw)
        answer: str = await raw.execute(RESET)
        if self.replans or int(answer.removeprefix("SELECT ")) < private.count_prepared(raw):
            raw.forget_plans()  # by whatever way, somebody may have thrown them away
        self.replans = False
        return True

    async def prepare(self, template: Template, text: str) -> Prepared:
        statement = AsyncpgPrepared(self, template.text)
        await statement.ready()
        return statement

    def returned(self) -> None:
        if self.touched:  # what was made by way of connection() and is still there ends here
            private.end_leftovers(self.raw)

    def forget_plans(self) -> None:
        if isinstance(self.raw, Connection):
            self.raw.forget_plans()
        else:
            private.forget_plans(self.raw)


class AsyncpgPrepared(Prepared):
    """A prepared statement of asyncpg, prepared again after the plans were forgotten."""

    __slots__ = ("plans", "statement")

    connection: AsyncpgConnection  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, connection: AsyncpgConnection, text: str) -> None:
        super().__init__(connection, text)
        self.plans: int = 0  # of the connection, when it was prepared
        self.statement: Any = None

    async def ready(self) -> Any:
        """Prepared, and not before the plans of the connection were forgotten."""
        raw = self.connection.raw
        plans = getattr(raw, "plans", 0)  # a class of the user's does not count them
        if self.statement is None or self.plans != plans:
            self.plans = plans
            kept = private.keeps_prepared(raw, self.text)
            self.statement = await raw.prepare(self.text)
            if not kept:
                await private.sync(raw)
        return self.statement

    async def _run(self, method: str, *arguments: Any) -> Any:
        raw = self.connection.raw
        before, statement = self.statement, await self.ready()
        try:
            return await getattr(statement, method)(*arguments)
        except Exception as error:
            kept = before is statement and keeps(self.text) and isinstance(raw, Connection)
            if not (kept and raw.refused(error)) or self.connection.in_transaction:
                raise
        return await getattr(await self.ready(), method)(*arguments)

    async def execute(self, arguments: Arguments) -> int:
        await self._run("fetch", *(self.connection.values(arguments) if arguments else ()))
        return affected(self.statement.get_statusmsg())

    def fetch_all(self, arguments: Arguments) -> Any:
        return self._run("fetch", *(self.connection.values(arguments) if arguments else ()))

    def fetch_one(self, arguments: Arguments) -> Any:
        return self._run("fetchrow", *(self.connection.values(arguments) if arguments else ()))

    def fetch_val(self, arguments: Arguments) -> Any:
        return self._run("fetchval", *(self.connection.values(arguments) if arguments else ()))

    async def execute_many(self, arguments: Sequence[Any]) -> None:
        rows = [*map(self.connection.values, arguments)]
        await self.connection.run_series(rows, lambda: self._run("executemany", rows))

    async def close(self) -> None:
        self.statement = None  # asyncpg keeps it in its cache, or closes it with the next message


class AsyncpgRowCursor(RowCursor):
    """A portal, in a transaction of its own unless there is one."""

    def __init__(self, connection: AsyncpgConnection, cursor: Any, own: bool) -> None:
        self.connection: AsyncpgConnection = connection
        self.cursor: Any = cursor
        self.own: bool = own

    async def fetch(self, count: int) -> Sequence[Any]:
        rows: Sequence[Any] = await self.cursor.fetch(count)
        return rows

    async def close(self) -> None:
        self.cursor = None
        if self.own:
            await self.connection.commit()


class AsyncpgHeldRowCursor(RowCursor):
    """A cursor that needs no transaction."""

    def __init__(self, connection: AsyncpgConnection, name: str) -> None:
        self.connection: AsyncpgConnection = connection
        self.name: str = name
        self.count: int = 0
        self.statement: Any = None

    async def fetch(self, count: int) -> Sequence[Any]:
        if self.count != count:  # not by way of the cache, from which it would drive out others
            self.statement = await self.connection.raw.prepare(f"FETCH {count} FROM {self.name}")
            self.count = count
        rows: Sequence[Any] = await self.statement.fetch()
        return rows

    async def close(self) -> None:
        self.statement = None
        await self.connection.raw.execute(f"CLOSE {self.name}")
