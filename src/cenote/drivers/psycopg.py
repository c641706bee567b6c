"""PostgreSQL through psycopg 3."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Sequence
from itertools import count as counter
from traceback import clear_frames
from typing import Any, ClassVar, TypeVar

from ..sql.driver import (
    Arguments,
    Driver,
    Isolation,
    Link,
    Plan,
    Source,
    fresh,
    missing,
    reject_unknown,
)
from ..sql.placeholders import POSTGRESQL, Dialect, Style
from ..sql.rows import row_type
from ..sql.url import Secret
from .postgresql import (
    CAPABILITIES,
    GONE,
    RESET,
    Collected,
    affected,
    begin_statement,
    has_cursor,
    is_demotion,
    is_stale,
    seconds,
    server_options,
)
from .wire import Wire

try:
    import psycopg
    from psycopg.adapt import AdaptersMap
    from psycopg.pq import Conninfo, ConnStatus, TransactionStatus
    from psycopg.rows import no_result, tuple_row
    from psycopg.waiting import wait_async
except ImportError:
    raise missing("psycopg", "psycopg") from None

R = TypeVar("R")

CLOSED = "the connection is closed"  # before anything was sent
IN_TRANSACTION = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})
MADE_BY_CONNECT = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold",
                   "prepared_max", "_isolation_level", "_read_only", "_deferrable",
                   "_begin_statement", "_num_transactions", "_tpc")  # fmt: skip

_numbers = counter(1)


def named(cursor: Any) -> Any:
    """A row factory of psycopg."""
    columns = cursor.description
    if columns is None:
        return no_result
    return row_type(tuple(column.name for column in columns))


class Connection(psycopg.AsyncConnection[Any]):
    """A psycopg connection that can be left at once by who will destroy it."""

    hurried = False  # do not wait until a cancelled statement is over on the server

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        if not self.hurried:
            return await super().wait(gen, *arguments, **options)
        return await wait_async(gen, self.pgconn.socket, *arguments, **options)


class PsycopgLink(Link):
    __slots__ = ("_context", "_made", "_wire")

    raw: Connection

    def __init__(self, raw: Any, context: Any) -> None:
        super().__init__(raw)
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
        return await cursor.fetchall() if cursor.description is not None else []

    async def fetch_one(self, text: str, arguments: Arguments) -> Any:
        cursor = await self._run(text, arguments)
        return await cursor.fetchone() if cursor.description is not None else None

    async def fetch_val(self, text: str, arguments: Arguments) -> Any:
        statement: Any = text
        cursor: Any = self.raw.cursor(row_factory=tuple_row)
        await self.hurry(cursor.execute(statement, arguments))
        row = await cursor.fetchone() if cursor.description is not None else None
        return None if row is None else row[0]

    async def _run(self, text: Any, arguments: Arguments, prepare: bool | None = None) -> Any:
        if prepare is None and arguments is None and ";" in text.rstrip("; \r\n\t"):
            prepare = False  # perhaps several statements, which cannot be prepared
        cursor = self.raw.cursor(row_factory=named)
        return await self.hurry(cursor.execute(text, arguments, prepare=prepare))

    async def hurry(self, awaitable: Awaitable[R]) -> R:
        """A cancellation is not kept waiting: the link is destroyed, and the server told then."""
        raw = self.raw
        raw.hurried = True
        try:
            return await awaitable
        finally:
            raw.hurried = False

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        cursor = self.raw.cursor()
        statement: Any = text
        await self.atomically(lambda: self.hurry(cursor.executemany(statement, arguments)))

    async def stream(self, text: str, arguments: Arguments, keyword: str, *, alone: bool) -> Source:
        if not has_cursor(keyword, text):
            return Collected(await self.fetch_all(text, arguments))
        outside = not self.in_transaction
        own = outside and alone
        if own:
            await self._run("BEGIN", None, prepare=False)
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
        await self._run(begin_statement(isolation, read_only), None, prepare=False)

    async def commit(self) -> bool:
        cursor = await self._run("COMMIT", None, prepare=False)
        return cursor.statusmessage != "ROLLBACK"  # type: ignore[no-any-return]

    async def rollback(self) -> None:
        await self._run("ROLLBACK", None, prepare=False)

    async def close(self) -> None:
        raw = self.raw
        if self.busy and raw.pgconn.transaction_status == TransactionStatus.ACTIVE:
            await raw.cancel_safe()
        await raw.close()

    def terminate(self) -> None:
        self.raw._closed = True
        self.raw.pgconn.finish()

    def looks_dead(self) -> bool:
        raw = self.raw
        return raw.closed or raw.pgconn.status == ConnStatus.BAD

    def hung_up(self) -> bool:
        return not self.raw.closed and self._wire.hung_up()

    def stirs(self) -> bool:
        return not self.raw.closed and self._wire.stirs()

    async def ping(self) -> None:
        await self._run("SELECT 1", None, prepare=False)

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
        await self._run(RESET, None, prepare=False)
        raw._notifies_backlog = deque()  # also what came with the answer
        return True

    def forget_plans(self) -> None:
        self.raw._prepared.clear()


class PsycopgSource(Source):
    """A cursor on the server, in a transaction of its own unless there is one."""

    def __init__(self, link: PsycopgLink, cursor: Any, own: bool) -> None:
        self.link = link
        self.cursor = cursor
        self.own = own

    async def fetch(self, count: int) -> Sequence[Any]:
        rows: Sequence[Any] = await self.link.hurry(self.cursor.fetchmany(count))
        return rows

    async def close(self) -> None:
        await self.cursor.close()
        if self.own:
            await self.link._run("COMMIT", None, prepare=False)

    def abandon(self) -> None:
        self.cursor._closed = True  # psycopg complains about open ones


class PsycopgDriver(Driver):
    dialect: ClassVar[Dialect] = POSTGRESQL
    style: ClassVar[Style] = "format"
    capabilities: ClassVar[frozenset[str]] = CAPABILITIES
    reserved: ClassVar[tuple[str, ...]] = ("autocommit",)

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        target, options = plan.target, dict(plan.target.options)
        known = [option.keyword.decode() for option in Conninfo.get_defaults()]
        reject_unknown(options, [name for name in known if name not in ("user", "password")])
        arguments = server_options(target, options)
        if "database" in arguments:
            arguments["dbname"] = arguments.pop("database")
        if "connect_timeout" in options:
            seconds("connect_timeout", options["connect_timeout"])
        if target.hosts:
            options["host"] = ",".join(name for name, _ in target.hosts)
            options["port"] = ",".join(str(port or 5432) for _, port in target.hosts)
        self._arguments: dict[str, Any] = {**arguments, **options}

    async def connect(self, password: Secret | None) -> Link:
        arguments = {**fresh(self._arguments), **fresh(dict(self.plan.connect_args))}
        size = self.plan.statement_cache_size
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
        return PsycopgLink(raw, arguments.get("context"))

    def is_disconnect(self, error: BaseException) -> bool:
        if isinstance(error, psycopg.OperationalError):
            state = error.sqlstate
            return state is None or state in GONE or state.startswith("08")
        if isinstance(error, psycopg.InterfaceError):
            return "closed" in str(error)
        return isinstance(error, OSError)

    def is_unsent(self, error: BaseException) -> bool:
        return isinstance(error, psycopg.OperationalError) and str(error) == CLOSED

    def is_demoted(self, error: BaseException) -> bool:
        return is_demotion(getattr(error, "sqlstate", None))

    def is_stale_plan(self, error: BaseException) -> bool:
        return is_stale(getattr(error, "sqlstate", None), str(error))


def hide_passwords(attempt: Any) -> None:
    """From what an error remembers of the connection that failed."""
    if isinstance(attempt, psycopg.errors.FinishedPGconn):
        attempt.password = b""
        attempt.info = [each for each in attempt.info if b"password" not in each.keyword]


driver = PsycopgDriver
