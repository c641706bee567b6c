"""PostgreSQL through asyncpg: how connections are made, what their errors mean."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlencode

from ...sql.driver import ConnectConfig, DriverConnection
from ...sql.loading import check_connect_args, fresh, reject_unknown
from ...sql.parsing.placeholders import Style
from ...sql.url import Secret
from ..options import seconds
from ..postgresql import (
    PostgresqlDriver,
    is_final,
    marked,
    server_options,
)
from .connection import AsyncpgConnection
from .private import Connection, asyncpg, set_codecs
from .rows import AsyncpgRow
from .values import CODECS

# Read by asyncpg from a URL only.
IN_DSN = (
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "passfile", "krbsrvname", "gsslib",
)  # fmt: skip
OTHERS = ("host", "port", "dbname", "application_name", "options", "client_encoding",
          "connect_timeout", "command_timeout", "target_session_attrs")  # fmt: skip


class AsyncpgDriver(PostgresqlDriver):
    """The driver for PostgreSQL by asyncpg."""

    connection_class: ClassVar[type[DriverConnection]] = AsyncpgConnection
    style: ClassVar[Style] = "numeric"
    reserved: ClassVar[tuple[str, ...]] = ("record_class",)

    def __init__(self, config: ConnectConfig) -> None:
        super().__init__(config)
        target, options = config.target, dict(config.target.options)
        reject_unknown(options, [*IN_DSN, *OTHERS])
        check_connect_args(config.connect_args, asyncpg.connect)
        self._arguments = server_options(target, options)
        in_dsn = {name: options.pop(name) for name in IN_DSN if name in options}
        if in_dsn:
            self._arguments["dsn"] = f"postgresql://?{urlencode(in_dsn)}"
        if "target_session_attrs" in options:
            self._arguments["target_session_attrs"] = options["target_session_attrs"]
        if "connect_timeout" in options:
            limit = seconds("connect_timeout", options["connect_timeout"])
            self._arguments["timeout"] = limit or None  # as for libpq, 0 is no limit
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
        self._arguments["statement_cache_size"] = config.statement_cache_size
        # The least recently used one goes; asyncpg's timers for each would outlive connections.
        self._arguments["max_cached_statement_lifetime"] = 0
        self._arguments["connection_class"] = Connection
        self._arguments["record_class"] = AsyncpgRow

    async def _connect(self, password: Secret | None, mark: str | None) -> DriverConnection:
        arguments = {**fresh(self._arguments), **fresh(dict(self.config.connect_args))}
        if mark is not None:
            settings = dict(arguments.get("server_settings") or {})
            settings["application_name"] = marked(settings.get("application_name"), mark)
            arguments["server_settings"] = settings
        if password is not None:
            arguments["password"] = password.reveal()
        raw = await asyncpg.connect(**arguments)
        same = self.config.same_values
        if same:
            set_codecs(raw, CODECS)
        return AsyncpgConnection(raw, same_values=same)

    def is_disconnect(self, error: BaseException) -> bool:
        if isinstance(error, asyncpg.PostgresError):
            fields: Any = error  # asyncpg sets them when it makes the error
            severity = fields.severity_en or fields.severity
            if severity is not None:
                return is_final(severity)
            return isinstance(error, asyncpg.PostgresConnectionError)  # made by asyncpg itself
        return isinstance(error, OSError) or self.is_unsent(error)

    def hint(self, error: BaseException) -> str | None:
        if not isinstance(error, TimeoutError) or str(error):
            return None
        limit = {**self._arguments, **self.config.connect_args}.get("command_timeout")
        return (
            f"the statement took longer than asyncpg's command_timeout ({limit} s); the server is "
            f"told to stop it, and the connection is replaced"
        )

    def is_unsent(self, error: BaseException) -> bool:
        if isinstance(error, asyncpg.InternalClientError):
            # The server has said that it ends the session, and has not yet closed the connection:
            # a state that asyncpg shows only so.
            return str(error).startswith("cannot switch to state")
        # Closed before it was used; in mid-statement it is another error.
        return isinstance(error, asyncpg.InterfaceError) and "connection is closed" in str(error)


driver = AsyncpgDriver
