"""PostgreSQL through psycopg: how connections are made, what their errors mean."""

from __future__ import annotations

from traceback import clear_frames
from typing import Any, ClassVar, TypeVar

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
from .connection import PsycopgConnection
from .private import Connection, Conninfo, psycopg

R = TypeVar("R")

CLOSED = "the connection is closed"  # before anything was sent


class PsycopgDriver(PostgresqlDriver):
    """The driver for PostgreSQL by psycopg 3."""

    connection_class: ClassVar[type[DriverConnection]] = PsycopgConnection
    style: ClassVar[Style] = "format"
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

    async def _connect(self, password: Secret | None, mark: str | None) -> DriverConnection:
        arguments = {**fresh(self._arguments), **fresh(dict(self.config.connect_args))}
        if mark is not None:
            arguments["application_name"] = marked(arguments.get("application_name"), mark)
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
        context = arguments.get("context")
        return PsycopgConnection(raw, context, same_values=self.config.same_values)

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


def hide_passwords(attempt: Any) -> None:
    """From what an error remembers of the connection that failed."""
    if isinstance(attempt, psycopg.errors.FinishedPGconn):
        attempt.password = b""
        attempt.info = [each for each in attempt.info if b"password" not in each.keyword]


driver = PsycopgDriver
