"""MySQL and MariaDB through asyncmy."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, ClassVar

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
from ..sql.placeholders import MYSQL, Dialect, Style, Template, compile_template
from ..sql.rows import make_rows
from ..sql.url import Secret

try:
    import asyncmy
    from asyncmy import errors
    from asyncmy.constants.CLIENT import FOUND_ROWS
    from asyncmy.cursors import SSCursor
except ImportError:
    raise missing("asyncmy", "mysql") from None

COM_RESET_CONNECTION = 0x1F
PORT = 3306

# Server shut down, connection killed, gone away, lost during query, protocol out of step, ...
GONE = frozenset({1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2000,
                  2002, 2003, 2006, 2012, 2013, 2014, 2027, 2055, 4031})  # fmt: skip
DEADLOCK = 1213  # the whole transaction is rolled back, and nothing in the answer says so
DEMOTED = frozenset({1290, 1836})
STALE_PLAN = 1615

SSL_MODES = ("disable", "require", "verify-ca", "verify-full")
OPTIONS = ("charset", "unix_socket", "connect_timeout", "read_timeout", "sql_mode", "init_command",
           "program_name", "local_infile", "sslmode", "ssl_ca", "ssl_cert", "ssl_key")  # fmt: skip


class MysqlLink(Link):
    __slots__ = ("_driver",)

    interleaves: ClassVar[bool] = False
    raw: Any

    def __init__(self, raw: Any, driver: MysqlDriver) -> None:
        super().__init__(raw)
        self._driver = driver

    @property
    def in_transaction(self) -> bool:
        raw = self.raw
        return raw.connected and (raw.get_transaction_status() or not raw.get_autocommit())

    async def execute(self, text: str, arguments: Arguments) -> int:
        result = await self._run(text, arguments)
        return 0 if result.description is not None else int(result.affected_rows or 0)

    async def fetch_all(self, text: str, arguments: Arguments) -> list[Any]:
        return named(await self._run(text, arguments))

    async def fetch_one(self, text: str, arguments: Arguments) -> Any:
        rows = named(await self._run(text, arguments), most=1)
        return rows[0] if rows else None

    async def fetch_val(self, text: str, arguments: Arguments) -> Any:
        rows = (await self._run(text, arguments)).rows
        return rows[0][0] if rows else None

    async def _run(self, text: str, arguments: Arguments) -> Any:
        """The first result; all others are read, and dropped."""
        raw = self.raw
        if arguments and raw._stmt_cache_size and not isinstance(arguments, dict):
            statement = await raw._acquire_cached_statement(text, len(arguments))
            if statement is not None:
                return await run_prepared(statement, arguments)
        if arguments:
            text = raw.cursor().mogrify(text, arguments)
        await raw.query(text)
        result = first = raw._result
        while result.has_next:
            await raw.next_result()
            result = raw._result
        return first

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        cursor = self.raw.cursor()
        await self.atomically(lambda: cursor.executemany(text, arguments))

    async def stream(self, text: str, arguments: Arguments, keyword: str) -> Source:
        raw = self.raw
        own = not self.in_transaction
        cursor = raw.cursor(SSCursor)
        # With arguments and a statement cache this cursor of asyncmy gives no rows.
        await cursor.execute(cursor.mogrify(text, arguments) if arguments else text)
        return MysqlSource(self, cursor, own)

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        if isolation is not None:
            await self.raw.query(f"SET TRANSACTION ISOLATION LEVEL {isolation.upper()}")
        await self.raw.query(f"START TRANSACTION{' READ ONLY' if read_only else ''}")

    async def commit(self) -> bool:
        await self.raw.query("COMMIT")
        return True

    async def rollback(self) -> None:
        await self.raw.query("ROLLBACK")

    async def close(self) -> None:
        if self.busy:
            await self._driver.kill(self.raw.thread_id())
        elif not self.broken:
            await self.raw.ensure_closed()

    def terminate(self) -> None:
        raw = self.raw
        transport, raw._transport, raw._connected = raw._transport, None, False
        if transport is not None:
            try:
                transport.abort()
            except RuntimeError:  # the loop is closed
                if socket := transport.get_extra_info("socket"):
                    socket._sock.close()

    def looks_dead(self) -> bool:
        return not self.raw.connected or self.raw._stream_broken

    async def ping(self) -> None:
        await self.raw.ping(reconnect=False)

    async def reset(self) -> bool:
        raw = self.raw
        await raw._execute_command(COM_RESET_CONNECTION, b"")
        await raw._read_ok_packet()
        self.forget_plans()
        await self._driver.set_up(raw)
        return True

    async def prepare(self, template: Template, text: str) -> Prepared:
        marks = compile_template(text, MYSQL, "qmark", mapping=bool(template.names))
        return MysqlPrepared(self, template.text, await self.raw.prepare(marks.text))

    def forget_plans(self) -> None:
        self.raw._stmt_cache.clear()
        self.raw._unpreparable.clear()


class MysqlPrepared(Prepared):
    __slots__ = ("statement",)

    def __init__(self, link: Link, text: str, statement: Any) -> None:
        super().__init__(link, text)
        self.statement = statement

    async def execute(self, arguments: Arguments) -> int:
        result = await run_prepared(self.statement, arguments)
        return 0 if result.description is not None else int(result.affected_rows or 0)

    async def fetch_all(self, arguments: Arguments) -> list[Any]:
        return named(await run_prepared(self.statement, arguments))

    async def fetch_one(self, arguments: Arguments) -> Any:
        rows = named(await run_prepared(self.statement, arguments), most=1)
        return rows[0] if rows else None

    async def fetch_val(self, arguments: Arguments) -> Any:
        rows = (await run_prepared(self.statement, arguments)).rows
        return rows[0][0] if rows else None

    async def close(self) -> None:
        await self.statement.close()


async def run_prepared(statement: Any, arguments: Arguments) -> Any:
    statement._meta = None  # asyncmy would not notice that a column has another type by now
    return await statement.execute(arguments or ())


def named(result: Any, most: int | None = None) -> list[Any]:
    if result.description is None:
        return []
    return make_rows([column[0] for column in result.description], (result.rows or ())[:most])


class MysqlSource(Source):
    """Rows as the server sends them; nothing else runs meanwhile."""

    def __init__(self, link: MysqlLink, cursor: Any, own: bool) -> None:
        self.link = link
        self.cursor = cursor
        self.own = own
        self.names = [column[0] for column in cursor.description or ()]
        self._hold(True)

    async def fetch(self, count: int) -> Sequence[Any]:
        if not self.names:
            return []
        self._hold(False)
        rows = await self.cursor.fetchmany(count)
        self._hold(True)
        return make_rows(self.names, rows)

    async def close(self) -> None:
        self._hold(False)
        result = self.cursor._result
        if self.own and result is not None and result.unbuffered_active:
            # Rather a new connection than to read all the rest.
            self.link.busy = self.link.broken = True
            return
        await self.cursor.close()

    def _hold(self, wait: bool) -> None:
        """asyncmy takes in whatever comes; the server has to wait for the reader."""
        transport = self.link.raw._transport
        if transport is None or transport.is_closing():
            return
        if wait:
            transport.pause_reading()
        else:
            transport.resume_reading()


class MysqlDriver(Driver):
    dialect: ClassVar[Dialect] = MYSQL
    style: ClassVar[Style] = "format"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"ping", "reset", "prepare", "cancel", "looks_dead", "sqlstate", "statement_cache"}
    )

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        target, options = plan.target, dict(plan.target.options)
        reject_unknown(options, OPTIONS)
        if len(target.hosts) > 1:
            raise ValueError("url has several hosts, which the driver asyncmy does not know")
        self._tls = tls(options)
        arguments: dict[str, Any] = {
            "charset": "utf8mb4",
            "autocommit": True,
            "stmt_cache_size": plan.statement_cache_size,
            **{name: options[name] for name in OPTIONS if name in options},
        }
        for name in ("connect_timeout", "read_timeout"):
            if name in arguments:
                arguments[name] = whole(name, arguments[name])
        if "local_infile" in arguments:
            arguments["local_infile"] = arguments["local_infile"] in ("1", "true", "yes")
        if target.hosts:
            host, port = target.hosts[0]
            arguments |= {"host": host, "port": port or PORT}
        elif "unix_socket" not in options:
            arguments |= {"host": "localhost", "port": PORT}
        if target.user is not None:
            arguments["user"] = target.user
        if target.database:
            arguments["database"] = target.database
        self._arguments = arguments
        self._password: Secret | None = None  # of the last connection, to kill its statement

    async def connect(self, password: Secret | None) -> Link:
        self._password = password
        return MysqlLink(await self._connect(), self)

    async def _connect(self) -> Any:
        arguments = {**fresh(self._arguments), **fresh(dict(self.plan.connect_args))}
        arguments["client_flag"] = arguments.get("client_flag", 0) | FOUND_ROWS
        if self._tls is not None:
            arguments.setdefault("ssl", self._tls)
        if self._password is not None:
            arguments["password"] = self._password.reveal()
        connection = asyncmy.Connection(**arguments)  # type: ignore[no-untyped-call]
        await connection.connect()
        return connection

    async def set_up(self, raw: Any) -> None:
        """What connect() has set, again."""
        arguments = {**self._arguments, **self.plan.connect_args}
        if database := arguments.get("database"):
            await raw.select_db(database)
        await raw.query(f"SET NAMES {raw.character_set_name()}")
        if raw._sql_mode is not None:
            await raw.query(f"SET sql_mode={raw._sql_mode}")
        if raw._init_command is not None:
            await raw.query(raw._init_command)
            await raw.commit()
        raw.autocommit_mode = True
        await raw.autocommit(True)

    async def kill(self, thread: int) -> None:
        """Stop what a connection does that was cut off."""
        connection = await self._connect()
        try:
            await connection.query(f"KILL {int(thread)}")
        except errors.MySQLError:
            pass  # it is over already
        finally:
            await connection.ensure_closed()

    def is_disconnect(self, error: BaseException) -> bool:
        if isinstance(error, errors.InterfaceError):
            return True
        if isinstance(error, errors.MySQLError):
            return code(error) in GONE or "sequence number" in str(error)
        return isinstance(error, OSError)

    def ends_transaction(self, error: BaseException) -> bool:
        return isinstance(error, errors.MySQLError) and code(error) == DEADLOCK

    def is_demoted(self, error: BaseException) -> bool:
        return isinstance(error, errors.MySQLError) and code(error) in DEMOTED

    def is_stale_plan(self, error: BaseException) -> bool:
        return isinstance(error, errors.MySQLError) and code(error) == STALE_PLAN


def code(error: BaseException) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def tls(options: dict[str, str]) -> ssl.SSLContext | None:
    """From sslmode and the files of ssl_ca, ssl_cert and ssl_key, which it takes out."""
    files = {name: options.pop(name, None) for name in ("ssl_ca", "ssl_cert", "ssl_key")}
    mode = options.pop("sslmode", "verify-ca" if files["ssl_ca"] else None)
    if mode is None and any(files.values()):
        mode = "require"
    if mode is not None and mode not in SSL_MODES:
        raise ValueError(
            f"url option 'sslmode' must be one of {', '.join(SSL_MODES)}, not {mode!r}"
        )
    if mode is None or mode == "disable":
        return None
    context = ssl.create_default_context(cafile=files["ssl_ca"])
    context.check_hostname = mode == "verify-full"
    if mode == "require":
        context.verify_mode = ssl.CERT_NONE
    if files["ssl_cert"]:
        context.load_cert_chain(files["ssl_cert"], files["ssl_key"])
    return context


def whole(name: str, text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"url option {name!r} must be a number of seconds, not {text!r}")
    return int(text)


driver = MysqlDriver
