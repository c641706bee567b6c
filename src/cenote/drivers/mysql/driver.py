"""MySQL and MariaDB: how connections are made, what their errors mean."""

from __future__ import annotations

import asyncio
import codecs
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, ClassVar

from ...sql.driver import LONGEST_KEPT, ConnectConfig, Driver, DriverConnection
from ...sql.loading import check_connect_args, fresh, reject_unknown
from ...sql.parsing.placeholders import Style
from ...sql.url import Secret
from ..options import check_readable, whole_seconds
from .connection import MysqlConnection, code
from .login import CANNOT_LOG_IN, KEY_NOT_ASKED_FOR, NOT_ASKED_FOR, public_key
from .private import FLAGS, SETTLED, Connection, charset_by_name, errors

PORT = 3306
CANCEL_AGAIN = 0.05  # seconds after which a cancellation is taken for swallowed

# Of asyncmy itself: gone away, lost during query, protocol out of step, ...
GONE_AWAY = 2006  # closed before the statement was sent
GONE = frozenset({2000, 2002, 2003, 2006, 2012, 2013, 2014, 2027, 2055})
# Deadlock, no memory for locks, lock timeout (if so configured), record changed: then the whole
# transaction is rolled back. Whatever else ends one has committed it.
ROLLED_BACK = frozenset({1213, 1206, 1205, 1020, 1614})
# By KILL QUERY, max_statement_time, max_execution_time; of a sort that was ended so.
STOPPED = frozenset({1317, 1969, 3024, 1028})
CONFLICTS = frozenset({1213, 1205})  # a deadlock, a lock that was not to be had in time
FULL = frozenset({1040, 1203})  # max_connections of the server, max_user_connections
DEMOTED = frozenset({1290, 1836})

SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
SSL_MODES = ("disable", "require", "verify-ca", "verify-full")
SSL_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
OPTIONS = ("charset", "unix_socket", "connect_timeout", "read_timeout", "sql_mode", "init_command",
           "program_name", "local_infile", "server_public_key", "get_server_public_key", "sslmode",
           *SSL_FILES)  # fmt: skip
NOT_FOR_CLIENTS = frozenset({"ucs2", "utf16", "utf16le", "utf32"})  # servers do not take them

# What the server reports by itself from then on, and what outlasts a reset or must be known.
TRACK = (
    "SET SESSION session_track_system_variables="
    "'character_set_client,character_set_connection,character_set_results,sql_mode,time_zone'"
)
WHO = f"SELECT CURRENT_ROLE(), DATABASE(), {', '.join(f'@@{name}' for name in SETTLED)}"


async def _to_the_end(work: Coroutine[Any, Any, object]) -> None:
    """Await it in a task of its own; a cancellation is repeated until it has ended.

    asyncmy opens its socket by `asyncio.wait_for`, which swallows a cancellation that comes in the
    very moment in which the socket is open (Python 3.11): it would wait for the server's greeting.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_AGAIN)
        if not task.cancelled():
            task.exception()  # retrieved: nobody waits for it any more
        raise
    try:
        task.result()
    finally:
        del task  # no cycle through this frame


class MysqlDriver(Driver):
    """The driver for MySQL and MariaDB by asyncmy."""

    connection_class: ClassVar[type[DriverConnection]] = MysqlConnection
    style: ClassVar[Style] = "qmark"
    reserved: ClassVar[tuple[str, ...]] = ("autocommit",)

    def __init__(self, config: ConnectConfig) -> None:
        super().__init__(config)
        target, options = config.target, dict(config.target.options)
        reject_unknown(options, OPTIONS)
        check_connect_args(config.connect_args, Connection)
        if len(target.hosts) > 1:
            raise ValueError("url has several hosts, which the driver asyncmy does not know")
        self._tls = tls(options)
        if self._tls is not None and "ssl" in config.connect_args:
            raise ValueError("url has TLS options, and connect_args has 'ssl' as well; keep one")
        self.plans_kept: int = config.statement_cache_size  # for each connection
        # Characters of their texts.
        self.longest_kept: int = LONGEST_KEPT if self.plans_kept else -1
        arguments: dict[str, Any] = {
            "charset": "utf8mb4",
            "autocommit": True,
            **{name: options[name] for name in OPTIONS if name in options},
        }
        for name in ("connect_timeout", "read_timeout"):
            if name in arguments:
                arguments[name] = whole_seconds(name, arguments[name])
        if "local_infile" in arguments:
            arguments["local_infile"] = flag("local_infile", arguments["local_infile"])
        path = arguments.pop("server_public_key", None)
        ask = flag("get_server_public_key", arguments.pop("get_server_public_key", "1"))
        if (key := public_key(path, ask=ask)) is not None:
            if "server_public_key" in config.connect_args:
                raise ValueError("url and connect_args both set the server's public key; keep one")
            arguments["server_public_key"] = key
        check_charset(arguments["charset"])
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

    @property
    def system_name(self) -> str:
        return self.config.target.scheme.partition("+")[0]

    async def connect(self, password: Secret | None) -> DriverConnection:
        self._password = password
        connection = MysqlConnection(await self._connect(), self)
        try:
            connection.who = await self._ask_who(connection.raw, TRACK)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _ask_who(self, raw: Connection, *before: str) -> tuple[str | None, str | None] | None:
        """Role and database; None: this server cannot tell. Other statements may go with it."""
        try:
            *_, last = await raw.run_all("; ".join((*before, WHO)))
        except errors.MySQLError as error:
            if link_is_gone(error):
                raise
            return None  # an old server, without roles or without tracking
        role, database, *settings = last.rows[0]
        raw.settle(*settings)
        return text_of(role), text_of(database)

    async def _connect(self) -> Connection:
        arguments = {**fresh(self._arguments), **fresh(dict(self.config.connect_args))}
        arguments["client_flag"] = arguments.get("client_flag", 0) | FLAGS
        if self._tls is not None:
            arguments["ssl"] = self._tls
        if self._password is not None:
            # Encoded here: asyncmy knows but Latin-1, and shows what it cannot encode.
            arguments["password"] = self._password.reveal().encode()
        connection = Connection(**arguments)
        try:
            await _to_the_end(connection.connect())
        except asyncio.CancelledError:
            if (transport := connection.detach()) is not None:
                transport.abort()
            raise
        except ValueError as error:
            if arguments.get("server_public_key") is not NOT_ASKED_FOR or connection.connected:
                raise
            raise errors.OperationalError(CANNOT_LOG_IN, KEY_NOT_ASKED_FOR) from error
        except RuntimeError as error:
            if "socket" not in str(error):
                raise
            # On uvloop, asyncmy's words for a connection that was reset at once.
            raise ConnectionResetError("the server closed the connection at once") from error
        return connection

    async def set_up(self, connection: MysqlConnection) -> bool:
        """What connect() has set, and whom it has found, again; False: that is not possible."""
        raw, who = connection.raw, connection.who
        if raw.database:
            await raw.select_db(raw.database)
        charset = charset_by_name(raw.character_set_name())
        for name in ("character_set_client", "character_set_results"):
            raw.variables[name] = charset.name
        raw.follow_charset()
        names = f"SET NAMES {charset.name} COLLATE {charset.collation}"
        if who is None:
            await raw.run(names)
        else:
            found = await self._ask_who(raw, names, TRACK)
            if found is None or found[1] != who[1]:
                return False  # it had no database, and there is no way back
            if found[0] != who[0]:
                await raw.run(f"SET ROLE {role_name(who[0])}")
        for text in raw.settings():
            await raw.run(text)
        raw.autocommit_mode = True
        await raw.autocommit(True)
        return True

    async def kill(self, thread: int) -> None:
        """Stop what a connection does that was cut off."""
        connection = await self._connect_again()
        with suppress(errors.MySQLError):  # it is over already
            await self._order(connection, f"KILL {int(thread)}")

    async def kill_statement(self, thread: int) -> None:
        """Stop the statement that a connection runs; the server has taken note on return."""
        await self._order(await self._connect_again(), f"KILL QUERY {int(thread)}")

    async def _connect_again(self) -> Connection:
        if self.config.ask_password is not None:
            self._password = await self.config.ask_password()  # the old one may have expired
        return await self._connect()

    async def _order(self, connection: Connection, text: str) -> None:
        """Run one statement, then close the connection."""
        try:
            await connection.run(text)
        finally:
            await connection.ensure_closed()

    def is_stopped(self, error: BaseException) -> bool:
        return isinstance(error, errors.MySQLError) and code(error) in STOPPED

    def is_unsent(self, error: BaseException) -> bool:
        return link_is_gone(error) and code(error) == GONE_AWAY

    def is_disconnect(self, error: BaseException) -> bool:
        return link_is_gone(error) or isinstance(error, OSError)

    def hint(self, error: BaseException) -> str | None:
        if not isinstance(error, errors.MySQLError) or "sequence number" not in str(error):
            return None
        return (
            "so ends a connection on which more was sent at once than the server's "
            "max_allowed_packet: raise that, or send less in one parameter"
        )

    def rolls_back(self, error: BaseException) -> bool:
        return isinstance(error, errors.MySQLError) and code(error) in ROLLED_BACK

    def is_conflict(self, error: BaseException) -> bool:
        return isinstance(error, errors.MySQLError) and code(error) in CONFLICTS

    def is_full(self, error: BaseException) -> bool:
        if not isinstance(error, errors.MySQLError):
            return False
        limit = code(error) == 1226 and "max_user_connections" in str(error)  # of the account
        return limit or code(error) in FULL

    def is_demoted(self, error: BaseException) -> bool:
        # 1290 also comes of other options that forbid something.
        return (
            isinstance(error, errors.MySQLError)
            and code(error) in DEMOTED
            and "read" in str(error).lower()
        )


def text_of(value: str | bytes | None) -> str | None:
    """It is bytes if an init_command has set names binary."""
    return value.decode() if isinstance(value, bytes) else value


def role_name(role: str | None) -> str:
    """MySQL gives it quoted and with its host, MariaDB plain."""
    if role is None or role == "NONE" or role.startswith("`"):
        return role or "NONE"
    return f"`{role.replace('`', '``')}`"


def link_is_gone(error: BaseException) -> bool:
    """Whether asyncmy says so. An error of the server says nothing: SIGNAL can give any number. If
    it was the last word, the connection is closed, which `Connection` has looked at."""
    fields: Any = error
    if not isinstance(error, errors.MySQLError) or fields.sqlstate is not None:
        return False
    return (
        isinstance(error, errors.InterfaceError)
        or code(error) in GONE
        or "sequence number" in str(error)
    )


def check_charset(name: str) -> None:
    """ValueError if no text could be sent in it, or not without being misread."""
    charset = charset_by_name(name)
    if charset is None or charset.name in NOT_FOR_CLIENTS:
        raise ValueError(f"url option 'charset' is unknown: {name!r}")
    try:
        codecs.lookup(charset.encoding)
    except LookupError:
        raise ValueError(f"url option 'charset' is unknown to Python: {name!r}") from None


def tls(options: dict[str, str]) -> ssl.SSLContext | None:
    """From sslmode and the files of ssl_ca, ssl_cert and ssl_key, which it takes out. None of them
    is dropped: a CA that is given is always verified with, as libpq does."""
    files = {name: options.pop(name) for name in SSL_FILES if name in options}
    mode = options.pop("sslmode", "require" if files else None)
    if mode is None:
        return None
    if mode not in SSL_MODES:
        raise ValueError(
            f"url option 'sslmode' must be one of {', '.join(SSL_MODES)}, not {mode!r}"
        )
    if mode == "disable":
        if files:
            raise ValueError(
                f"url has {', '.join(files)} and sslmode=disable: leave out one of the two"
            )
        return None
    if "ssl_key" in files and "ssl_cert" not in files:
        raise ValueError("url has ssl_key without ssl_cert, the certificate that belongs to it")
    for name, path in files.items():
        check_readable(name, path)
    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca"))
        if "ssl_cert" in files:
            context.load_cert_chain(files["ssl_cert"], files.get("ssl_key"))
    except ssl.SSLError as error:
        named = ", ".join(f"{name}={path}" for name, path in files.items())
        raise ValueError(f"url has files for TLS that cannot be used ({named}): {error}") from None
    context.check_hostname = mode == "verify-full"
    if mode == "require" and "ssl_ca" not in files:
        context.verify_mode = ssl.CERT_NONE
    return context


def flag(name: str, text: str) -> bool:
    if text.lower() not in SWITCHES:
        raise ValueError(f"url option {name!r} must be one of {', '.join(SWITCHES)}, not {text!r}")
    return SWITCHES[text.lower()]


driver = MysqlDriver
