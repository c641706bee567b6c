"""MySQL and MariaDB through asyncmy."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import Any, ClassVar

from ..sql.analysis import analyse
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
from .wire import Wire, hang_up

try:
    import asyncmy
    from asyncmy import errors
    from asyncmy.charset import charset_by_name
    from asyncmy.constants.CLIENT import FOUND_ROWS
    from asyncmy.constants.SERVER_STATUS import (
        SERVER_STATUS_AUTOCOMMIT as AUTOCOMMIT,
    )
    from asyncmy.constants.SERVER_STATUS import (
        SERVER_STATUS_IN_TRANS as IN_TRANSACTION,
    )
    from asyncmy.cursors import RE_INSERT_VALUES, SSCursor
except ImportError:
    raise missing("asyncmy", "mysql") from None

COM_RESET_CONNECTION = 0x1F
PORT = 3306

# Server shut down, connection killed, gone away, lost during query, protocol out of step, ...
GONE_AWAY = 2006  # of asyncmy: closed before the statement was sent
GONE = frozenset({1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2000,
                  2002, 2003, 2006, 2012, 2013, 2014, 2027, 2055, 4031})  # fmt: skip
# Deadlock, no memory for locks, lock timeout (if so configured), record changed: then the whole
# transaction is rolled back. Whatever else ends one has committed it.
ROLLED_BACK = frozenset({1213, 1206, 1205, 1020, 1614})
DEMOTED = frozenset({1290, 1836})
UNSUPPORTED = 1295  # as a prepared statement, or in bulk

BATCH = 1_000_000  # bytes, about, of what execute_many() sends at once

CHANGING = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE"})
RETURNING = re.compile(r"\breturning\b", re.IGNORECASE)

FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
SSL_MODES = ("disable", "require", "verify-ca", "verify-full")
OPTIONS = ("charset", "unix_socket", "connect_timeout", "read_timeout", "sql_mode", "init_command",
           "program_name", "local_infile", "sslmode", "ssl_ca", "ssl_cert", "ssl_key")  # fmt: skip


WHO = "SELECT CURRENT_ROLE(), DATABASE()"  # both outlast a reset
Who = tuple[str | None, str | None]


class MysqlLink(Link):
    __slots__ = ("_driver", "_unfit", "_wire", "who")

    interleaves: ClassVar[bool] = False
    keeping: ClassVar[frozenset[str]] = frozenset({"cursor", "prepare"})
    raw: Any

    def __init__(self, raw: Any, driver: MysqlDriver) -> None:
        super().__init__(raw)
        self._driver = driver
        self._unfit = False  # it came back without autocommit, and was not reset
        self.who: Who | None = None  # as it was when it was new; None: unknown
        self._wire = Wire(raw._transport.get_extra_info("socket").fileno())

    @property
    def in_transaction(self) -> bool:
        raw = self.raw
        return bool(raw.connected and (raw.server_status & IN_TRANSACTION or self._unfit))

    def returned(self) -> None:
        # The next task would be in a transaction as soon as it does anything.
        self._unfit = not self.raw.server_status & AUTOCOMMIT

    async def execute(self, text: str, arguments: Arguments) -> int:
        return affected(text, await self._run(text, arguments))

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
        note_status(raw, result)
        return first

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        if not self.raw.server_status & (AUTOCOMMIT | IN_TRANSACTION):
            await self.begin(None, False)  # as every statement does without autocommit
        await self.atomically(lambda: self._run_batches(text, arguments))

    async def _run_batches(self, text: str, arguments: Sequence[Any]) -> None:
        """A message that is larger than max_allowed_packet costs the connection."""
        start = size = 0
        for at, each in enumerate(arguments):
            values = each.values() if isinstance(each, dict) else each
            more = sum(len(value) if isinstance(value, str | bytes) else 16 for value in values)
            if size + more > BATCH and at > start:
                await self._run_many(text, arguments[start:at])
                start, size = at, 0
            size += more
        await self._run_many(text, arguments[start:])

    async def _run_many(self, text: str, arguments: Sequence[Any]) -> None:
        """Together if that is possible, else one after the other."""
        if analyse(text, MYSQL).keyword in CHANGING and not RETURNING.search(text):
            if await self._run_bulk(text, arguments):
                return
            values = RE_INSERT_VALUES.match(text)
            if values is not None and "%" not in values[3]:  # asyncmy would not look at it there
                await self.raw.cursor().executemany(text, arguments)
                return
        for each in arguments:
            await self._run(text, each)

    async def _run_bulk(self, text: str, arguments: Sequence[Any]) -> bool:
        """In one message, as MariaDB can; False: it is not possible, and nothing was done."""
        raw = self.raw
        first = arguments[0]
        if not (raw._bulk_supported and raw._stmt_cache_size and isinstance(first, list | tuple)):
            return False
        statement = await raw._acquire_cached_statement(text, len(first))
        if statement is None:
            return False
        try:
            await statement.execute_bulk(arguments)
        except ValueError:  # values of several types in a column
            return False
        except errors.OperationalError as error:
            if code(error) != UNSUPPORTED:
                raise
            return False  # INSERT ... SELECT
        return True

    async def stream(self, text: str, arguments: Arguments, keyword: str, *, alone: bool) -> Source:
        raw = self.raw
        cursor = raw.cursor(SSCursor)
        # With arguments and a statement cache this cursor of asyncmy gives no rows.
        await cursor.execute(cursor.mogrify(text, arguments) if arguments else text)
        return MysqlSource(self, cursor, alone)

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        if isolation is not None:
            await self.raw.query(f"SET TRANSACTION ISOLATION LEVEL {isolation.upper()}")
        await self.raw.query(f"START TRANSACTION{' READ ONLY' if read_only else ''}")

    async def commit(self) -> bool:
        await self._run("COMMIT", None)
        return True

    async def rollback(self) -> None:
        await self._run("ROLLBACK", None)

    async def close(self) -> None:
        if self.busy:
            await self._driver.kill(self.raw.thread_id())
        elif not self.broken:
            await self.raw.ensure_closed()

    def terminate(self) -> None:
        raw = self.raw
        transport, raw._transport, raw._connected = raw._transport, None, False
        if transport is not None:
            hang_up(transport, transport.abort)

    def looks_dead(self) -> bool:
        return not self.raw.connected or self.raw._stream_broken

    def hung_up(self) -> bool:
        return not self.looks_dead() and self._wire.hung_up()

    def stirs(self) -> bool:
        return not self.looks_dead() and self._wire.stirs()

    async def ping(self) -> None:
        await self.raw.ping(reconnect=False)

    async def look_again(self) -> None:
        # An error does not say whether it has ended the transaction; every other answer does.
        try:
            await self.ping()
        except errors.MySQLError:
            pass  # dead, and seen to be

    @property
    def can_reset(self) -> bool:
        return True

    async def reset(self) -> bool:
        raw = self.raw
        await raw._execute_command(COM_RESET_CONNECTION, b"")
        await raw._read_ok_packet()
        self.forget_plans()
        self._unfit = False
        return await self._driver.set_up(raw, self.who)

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
        return affected(self.text, await run_prepared(self.statement, arguments))

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
    result = await statement.execute(arguments or ())
    note_status(statement._connection, result)
    return result


def note_status(raw: Any, result: Any) -> None:
    """asyncmy takes a status without flags for none: that of a session without autocommit."""
    if result.description is None and not result.server_status:
        raw.server_status = 0


def affected(text: str, result: Any) -> int:
    """Those that RETURNING gives are counted, too; those of a query are not."""
    if result.description is not None and analyse(text, MYSQL).keyword not in CHANGING:
        return 0
    return int(result.affected_rows or 0)


def named(result: Any, most: int | None = None) -> list[Any]:
    if result.description is None:
        return []
    return make_rows([column[0] for column in result.description], (result.rows or ())[:most])


class MysqlSource(Source):
    """Rows as the server sends them; nothing else runs meanwhile."""

    def __init__(self, link: MysqlLink, cursor: Any, alone: bool) -> None:
        self.link = link
        self.cursor = cursor
        self.alone = alone
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
        if self.alone and result is not None and result.unbuffered_active:
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
    reserved: ClassVar[tuple[str, ...]] = ("autocommit",)

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
            arguments["local_infile"] = flag("local_infile", arguments["local_infile"])
        if charset_by_name(arguments["charset"]) is None:
            raise ValueError(f"url option 'charset' is unknown: {arguments['charset']!r}")
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
        link = MysqlLink(await self._connect(), self)
        try:
            link.who = await self._ask_who(link.raw)
        except BaseException:
            link.terminate()
            raise
        return link

    async def _ask_who(self, raw: Any) -> Who | None:
        try:
            await raw.query(WHO)
        except errors.ProgrammingError:  # an old server, without roles
            return None
        role, database = raw._result.rows[0]
        return role, database

    async def _connect(self) -> Any:
        arguments = {**fresh(self._arguments), **fresh(dict(self.plan.connect_args))}
        arguments["client_flag"] = arguments.get("client_flag", 0) | FOUND_ROWS
        if self._tls is not None:
            arguments.setdefault("ssl", self._tls)
        if self._password is not None:
            # Encoded here: asyncmy knows but Latin-1, and shows what it cannot encode.
            arguments["password"] = self._password.reveal().encode()
        connection = asyncmy.Connection(**arguments)  # type: ignore[no-untyped-call]
        try:
            await connection.connect()
        except RuntimeError as error:
            if "socket" not in str(error):
                raise
            # On uvloop, asyncmy's words for a connection that was reset at once.
            raise ConnectionResetError("the server closed the connection at once") from error
        return connection

    async def set_up(self, raw: Any, who: Who | None) -> bool:
        """What connect() has set, and whom it has found, again; False: that is not possible."""
        if raw._db:
            await raw.select_db(raw._db)
        charset = charset_by_name(raw.character_set_name())
        names = f"SET NAMES {charset.name} COLLATE {charset.collation}"
        if who is None:
            await raw.query(names)
        else:
            await raw.query(f"{names}; {WHO}")
            await raw.next_result()
            role, database = raw._result.rows[0]
            if database != who[1]:
                return False  # it had none, and there is no way back
            if role != who[0]:
                await raw.query(f"SET ROLE {role_name(who[0])}")
        if raw._sql_mode is not None:
            await raw.query(f"SET sql_mode={raw._sql_mode}")
        if raw._init_command is not None:
            await raw.query(raw._init_command)
            await raw.commit()
        raw.autocommit_mode = True
        await raw.autocommit(True)
        return True

    async def kill(self, thread: int) -> None:
        """Stop what a connection does that was cut off."""
        if self.ask_password is not None:
            self._password = await self.ask_password()  # the old one may have expired
        connection = await self._connect()
        try:
            await connection.query(f"KILL {int(thread)}")
        except errors.MySQLError:
            pass  # it is over already
        finally:
            await connection.ensure_closed()

    def is_unsent(self, error: BaseException) -> bool:
        return isinstance(error, errors.OperationalError) and error.args[:1] == (GONE_AWAY,)

    def is_disconnect(self, error: BaseException) -> bool:
        if isinstance(error, errors.InterfaceError):
            return True
        if isinstance(error, errors.MySQLError):
            return code(error) in GONE or "sequence number" in str(error)
        return isinstance(error, OSError)

    def rolls_back(self, error: BaseException) -> bool:
        return isinstance(error, errors.MySQLError) and code(error) in ROLLED_BACK

    def is_demoted(self, error: BaseException) -> bool:
        # 1290 also comes of other options that forbid something.
        return (
            isinstance(error, errors.MySQLError)
            and code(error) in DEMOTED
            and "read" in str(error).lower()
        )


def role_name(role: str | None) -> str:
    """MySQL gives it quoted and with its host, MariaDB plain."""
    if role is None or role == "NONE" or role.startswith("`"):
        return role or "NONE"
    return f"`{role.replace('`', '``')}`"


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
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 31536000:
        raise ValueError(f"url option {name!r} must be a number of seconds, not {text!r}")
    return int(text)


def flag(name: str, text: str) -> bool:
    if text.lower() not in FLAGS:
        raise ValueError(f"url option {name!r} must be one of {', '.join(FLAGS)}, not {text!r}")
    return FLAGS[text.lower()]


driver = MysqlDriver
