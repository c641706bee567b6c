"""PostgreSQL through psycopg 3."""

from __future__ import annotations

import re
import select
from collections.abc import Sequence
from itertools import count as counter
from typing import Any, ClassVar

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
    affected,
    begin_statement,
    is_demotion,
    seconds,
    server_options,
)

try:
    import psycopg
    from psycopg.pq import Conninfo, ConnStatus, TransactionStatus
    from psycopg.rows import no_result, tuple_row
except ImportError:
    raise missing("psycopg", "psycopg") from None

IN_TRANSACTION = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})
CURSORS = frozenset({"SELECT", "VALUES", "TABLE", "WITH"})  # what a server-side cursor can read
MODIFYING = re.compile(r"\b(insert|update|delete|merge)\b", re.IGNORECASE)
MADE_BY_CONNECT = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold",
                   "prepared_max")  # fmt: skip

_numbers = counter(1)


def named(cursor: Any) -> Any:
    """A row factory of psycopg."""
    columns = cursor.description
    if columns is None:
        return no_result
    return row_type(tuple(column.name for column in columns))


class PsycopgLink(Link):
    __slots__ = ("_made",)

    raw: psycopg.AsyncConnection[Any]

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self._made = {name: getattr(raw, name) for name in MADE_BY_CONNECT}

    @property
    def in_transaction(self) -> bool:
        return self.raw.pgconn.transaction_status in IN_TRANSACTION

    async def execute(self, text: str, arguments: Arguments) -> int:
        cursor = await self._run(text, arguments)
        return affected(cursor.statusmessage)

    async def fetch_all(self, text: str, arguments: Arguments) -> list[Any]:
        cursor = await self._run(text, arguments)
        return await cursor.fetchall() if cursor.description is not None else []

    async def fetch_one(self, text: str, arguments: Arguments) -> Any:
        cursor = await self._run(text, arguments)
        return await cursor.fetchone() if cursor.description is not None else None

    async def fetch_val(self, text: str, arguments: Arguments) -> Any:
        statement: Any = text
        cursor = await self.raw.cursor(row_factory=tuple_row).execute(statement, arguments)
        row = await cursor.fetchone() if cursor.description is not None else None
        return None if row is None else row[0]

    async def _run(self, text: Any, arguments: Arguments, prepare: bool | None = None) -> Any:
        cursor = self.raw.cursor(row_factory=named)
        return await cursor.execute(text, arguments, prepare=prepare)

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        cursor = self.raw.cursor()
        statement: Any = text
        await self.atomically(lambda: cursor.executemany(statement, arguments))

    async def stream(self, text: str, arguments: Arguments, keyword: str) -> Source:
        if keyword not in CURSORS or (keyword == "WITH" and MODIFYING.search(text)):
            # No cursor for those; the server itself collects what they return.
            return Collected(await self.fetch_all(text, arguments))
        own = not self.in_transaction
        if own:
            await self._run("BEGIN", None, prepare=False)
        name = f"cenote_{next(_numbers)}"
        cursor = self.raw.cursor(name, row_factory=named)
        statement: Any = text
        await cursor.execute(statement, arguments)
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
        if raw.closed:
            return True
        if raw.lock.locked():
            return False
        pgconn = raw.pgconn
        readable, _, _ = select.select([pgconn.socket], [], [], 0)
        if not readable:
            return False
        try:
            pgconn.consume_input()  # what is left to read,
            pgconn.consume_input()  # and then the end
        except psycopg.OperationalError:
            return True
        return pgconn.status == ConnStatus.BAD

    async def ping(self) -> None:
        await self._run("SELECT 1", None, prepare=False)

    async def reset(self) -> bool:
        raw = self.raw
        await self._run(RESET, None, prepare=False)
        for name, value in self._made.items():
            setattr(raw, name, value)
        raw._adapters = None
        raw._notify_handlers.clear()
        raw._notice_handlers.clear()
        if not raw.autocommit:
            await raw.set_autocommit(True)
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
        rows: Sequence[Any] = await self.cursor.fetchmany(count)
        return rows

    async def close(self) -> None:
        await self.cursor.close()
        if self.own:
            await self.link._run("COMMIT", None, prepare=False)

    def abandon(self) -> None:
        self.cursor._closed = True  # psycopg complains about open ones


class Collected(Source):
    """Rows that are all there already."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows
        self.next = 0

    async def fetch(self, count: int) -> Sequence[Any]:
        start, self.next = self.next, self.next + count
        return self.rows[start : self.next]

    async def close(self) -> None:
        self.rows = ()


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
        raw = await psycopg.AsyncConnection.connect(autocommit=True, **arguments)
        raw.prepared_max = size
        return PsycopgLink(raw)

    def is_disconnect(self, error: BaseException) -> bool:
        if isinstance(error, psycopg.OperationalError):
            state = error.sqlstate
            return state is None or state in GONE or state.startswith("08")
        if isinstance(error, psycopg.InterfaceError):
            return "closed" in str(error)
        return isinstance(error, OSError)

    def is_demoted(self, error: BaseException) -> bool:
        return is_demotion(getattr(error, "sqlstate", None))

    def is_stale_plan(self, error: BaseException) -> bool:
        state = getattr(error, "sqlstate", None)
        return state == "26000" or (state == "0A000" and "cached plan" in str(error))


driver = PsycopgDriver
