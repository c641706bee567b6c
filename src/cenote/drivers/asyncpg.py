"""PostgreSQL through asyncpg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from ..sql.driver import (
    Arguments,
    Driver,
    Isolation,
    Link,
    Plan,
    Prepared,
    Source,
    fresh,
    missing,
    reject_unknown,
)
from ..sql.placeholders import POSTGRESQL, Dialect, Style, Template
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
    import asyncpg
except ImportError:
    raise missing("asyncpg", "postgresql") from None

# Read by asyncpg from a URL only.
IN_DSN = (
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "passfile", "krbsrvname", "gsslib",
)  # fmt: skip
OTHERS = ("host", "port", "dbname", "application_name", "options", "client_encoding",
          "connect_timeout", "command_timeout", "target_session_attrs")  # fmt: skip


class Connection(asyncpg.Connection):  # type: ignore[misc]
    """An asyncpg connection that knows what a thorough reset is."""

    __slots__ = ("codecs",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.codecs = False  # set by its user: they outlast every reset

    def get_reset_query(self) -> str:
        return RESET

    async def set_type_codec(self, *arguments: Any, **options: Any) -> Any:
        self.codecs = True
        return await super().set_type_codec(*arguments, **options)

    async def set_builtin_type_codec(self, *arguments: Any, **options: Any) -> Any:
        self.codecs = True
        return await super().set_builtin_type_codec(*arguments, **options)


class AsyncpgLink(Link):
    __slots__ = ()

    raw: Any

    @property
    def in_transaction(self) -> bool:
        protocol = self.raw._protocol  # None once it is closed
        return protocol is not None and protocol.is_in_transaction()

    async def execute(self, text: str, arguments: Arguments) -> int:
        return affected(await self.raw.execute(text, *(arguments or ())))

    def fetch_all(self, text: str, arguments: Arguments) -> Any:
        return self.raw.fetch(text, *(arguments or ()))

    def fetch_one(self, text: str, arguments: Arguments) -> Any:
        return self.raw.fetchrow(text, *(arguments or ()))

    def fetch_val(self, text: str, arguments: Arguments) -> Any:
        return self.raw.fetchval(text, *(arguments or ()))

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        await self.raw.executemany(text, arguments)  # atomic by itself

    async def stream(self, text: str, arguments: Arguments, keyword: str) -> Source:
        own = not self.in_transaction
        if own:
            await self.raw.execute("BEGIN")
        cursor = await self.raw.cursor(text, *(arguments or ()))
        return AsyncpgSource(self, cursor, own)

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        await self.raw.execute(begin_statement(isolation, read_only))

    async def commit(self) -> bool:
        status: str = await self.raw.execute("COMMIT")
        return status != "ROLLBACK"

    async def rollback(self) -> None:
        await self.raw.execute("ROLLBACK")

    async def close(self) -> None:
        raw = self.raw
        if self.busy or not self.broken:
            # Unlike terminate() this also stops a statement on the server that was cut off.
            await raw.close()

    def terminate(self) -> None:
        raw = self.raw
        if not raw.is_closed():
            try:
                raw.terminate()
            except RuntimeError:  # the loop is closed
                transport = raw._transport
                if transport is not None and (socket := transport.get_extra_info("socket")):
                    socket._sock.close()

    def looks_dead(self) -> bool:
        return bool(self.raw.is_closed())

    async def ping(self) -> None:
        await self.raw.execute("")

    async def reset(self) -> bool:
        if self.raw.codecs:
            return False
        await self.raw.reset()
        return True

    async def prepare(self, template: Template, text: str) -> Prepared:
        return AsyncpgPrepared(self, template.text, await self.raw.prepare(template.text))


class AsyncpgPrepared(Prepared):
    __slots__ = ("statement",)

    def __init__(self, link: Link, text: str, statement: Any) -> None:
        super().__init__(link, text)
        self.statement = statement

    async def execute(self, arguments: Arguments) -> int:
        await self.statement.fetch(*(arguments or ()))
        return affected(self.statement.get_statusmsg())

    def fetch_all(self, arguments: Arguments) -> Any:
        return self.statement.fetch(*(arguments or ()))

    def fetch_one(self, arguments: Arguments) -> Any:
        return self.statement.fetchrow(*(arguments or ()))

    def fetch_val(self, arguments: Arguments) -> Any:
        return self.statement.fetchval(*(arguments or ()))

    async def execute_many(self, arguments: Sequence[Any]) -> None:
        await self.statement.executemany(arguments)

    async def close(self) -> None:
        self.statement = None  # asyncpg keeps it in its cache, or closes it with the next message


class AsyncpgSource(Source):
    """A portal, in a transaction of its own unless there is one."""

    def __init__(self, link: AsyncpgLink, cursor: Any, own: bool) -> None:
        self.link = link
        self.cursor = cursor
        self.own = own

    async def fetch(self, count: int) -> Sequence[Any]:
        rows: Sequence[Any] = await self.cursor.fetch(count)
        return rows

    async def close(self) -> None:
        self.cursor = None
        if self.own:
            await self.link.raw.execute("COMMIT")


class AsyncpgDriver(Driver):
    dialect: ClassVar[Dialect] = POSTGRESQL
    style: ClassVar[Style] = "numeric"
    capabilities: ClassVar[frozenset[str]] = CAPABILITIES

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        target, options = plan.target, dict(plan.target.options)
        reject_unknown(options, [*IN_DSN, *OTHERS])
        self._arguments = server_options(target, options)
        in_dsn = {name: options.pop(name) for name in IN_DSN if name in options}
        if in_dsn:
            self._arguments["dsn"] = f"postgresql://?{urlencode(in_dsn)}"
        if "target_session_attrs" in options:
            self._arguments["target_session_attrs"] = options["target_session_attrs"]
        if "connect_timeout" in options:
            self._arguments["timeout"] = seconds("connect_timeout", options["connect_timeout"])
        if "command_timeout" in options:
            limit = seconds("command_timeout", options["command_timeout"])
            self._arguments["command_timeout"] = limit
        settings = {
            name: options[name]
            for name in ("application_name", "options", "client_encoding")
            if name in options
        }
        if settings:
            self._arguments["server_settings"] = settings
        hosts = [name for name, _ in target.hosts]
        if hosts:
            self._arguments["host"] = hosts if len(hosts) > 1 else hosts[0]
            ports = [port or 5432 for _, port in target.hosts]
            self._arguments["port"] = ports if len(ports) > 1 else ports[0]
        self._arguments["statement_cache_size"] = plan.statement_cache_size
        self._arguments["connection_class"] = Connection

    async def connect(self, password: Secret | None) -> Link:
        arguments = {**fresh(self._arguments), **fresh(dict(self.plan.connect_args))}
        if password is not None:
            arguments["password"] = password.reveal()
        return AsyncpgLink(await asyncpg.connect(**arguments))

    def is_disconnect(self, error: BaseException) -> bool:
        if isinstance(error, asyncpg.PostgresConnectionError | OSError):
            return True
        if isinstance(error, asyncpg.PostgresError):
            # admin shutdown, crash shutdown, cannot connect now, idle timeouts
            return error.sqlstate in GONE
        return isinstance(error, asyncpg.InterfaceError) and "closed" in str(error)

    def is_demoted(self, error: BaseException) -> bool:
        return is_demotion(getattr(error, "sqlstate", None))

    def is_stale_plan(self, error: BaseException) -> bool:
        # In asyncpg's own cache; it tries again by itself, but not for explicit statements.
        return isinstance(error, asyncpg.InvalidCachedStatementError)


driver = AsyncpgDriver
