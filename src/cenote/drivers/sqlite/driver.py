"""SQLite: how connections are made, what their errors mean."""

from __future__ import annotations

import os
import re
import sqlite3
from typing import Any, ClassVar
from urllib.parse import quote, urlencode
from uuid import uuid4

from ...sql.driver import ConnectConfig, Driver, DriverConnection
from ...sql.loading import check_connect_args, fresh, reject_unknown
from ...sql.parsing.placeholders import Style
from ...sql.url import Secret
from ..options import seconds
from . import statements
from .client import ConnectionClosedError, connect
from .connection import SqliteConnection, SqliteWriters

# Interrupted; or it has waited for a lock until the end of its time.
STOPPED = frozenset({sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
BUSY_TIMEOUT = 5.0  # seconds
LONGEST_TIMEOUT = 1e6  # seconds
PRAGMAS = ("journal_mode", "synchronous", "foreign_keys", "cache_size", "temp_store", "mmap_size")
NUMBER = re.compile("-?[0-9]+")
WORDS: dict[str, tuple[str, ...]] = {
    "journal_mode": ("delete", "truncate", "persist", "memory", "wal", "off"),
    "synchronous": ("off", "normal", "full", "extra"),
    "foreign_keys": ("on", "off", "true", "false", "yes", "no"),
    "temp_store": ("default", "file", "memory"),
}
MODES = ("ro", "rw", "rwc")  # not memory: each connection would have a database of its own
IN_URI = ("mode", "immutable", "nolock", "vfs", "psow")
OTHERS = ("timeout",)
CONNECT = ("timeout", "detect_types", "isolation_level", "check_same_thread", "factory",
           "cached_statements", "uri", "autocommit")  # of sqlite3.connect()  # fmt: skip

BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR})


class SqliteDriver(Driver):
    """The driver for SQLite by the sqlite3 module, each connection in a thread of its own."""

    connection_class: ClassVar[type[DriverConnection]] = SqliteConnection
    style: ClassVar[Style] = "qmark"
    reserved: ClassVar[tuple[str, ...]] = ("database", "isolation_level", "autocommit", "uri")

    def __init__(self, config: ConnectConfig) -> None:
        super().__init__(config)
        target, options = config.target, dict(config.target.options)
        if target.hosts or target.user is not None or target.password is not None:
            raise ValueError(
                "url of SQLite has no host and no user: write sqlite:///file.db for a file in the "
                "current directory, sqlite:////tmp/file.db for an absolute path"
            )
        if not target.database:
            raise ValueError("url of SQLite names no file: sqlite:///file.db or sqlite:///:memory:")
        reject_unknown(options, [*PRAGMAS, *IN_URI, *OTHERS])
        check_connect_args(config.connect_args, connect, *CONNECT)
        self._anchor: sqlite3.Connection | None = None  # keeps a database in memory alive
        self._writers = SqliteWriters()
        self._registered: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._memory = target.database == ":memory:"
        if self._memory and any(name in options for name in IN_URI):
            raise ValueError(f"url of a database in memory has no option {', '.join(IN_URI)}")
        if options.get("mode", "rw") not in MODES:
            raise ValueError(
                f"url option 'mode' must be one of {', '.join(MODES)}, not {options['mode']!r}"
            )
        if self._memory:
            path = _new_memory()
        else:
            in_uri = {name: options[name] for name in IN_URI if name in options}
            path = f"file:{quote(os.path.abspath(target.database))}"
            path += f"?{urlencode(in_uri)}" if in_uri else ""
        self._path = path
        self._pragmas = {name: _pragma(name, options[name]) for name in PRAGMAS if name in options}
        reads_only = options.get("mode") == "ro" or "immutable" in options
        if not self._memory and not reads_only:
            self._pragmas.setdefault("journal_mode", "wal")
        self._arguments = {
            "timeout": seconds(
                "timeout", options.get("timeout", str(BUSY_TIMEOUT)), most=LONGEST_TIMEOUT
            ),
            "cached_statements": config.statement_cache_size,
        }

    def register(self, method: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
        self._registered.append((method, arguments, more))

    @property
    def system_name(self) -> str:
        return "sqlite"

    async def connect(self, password: Secret | None) -> DriverConnection:
        if password is not None:
            raise ValueError("SQLite has no users and no passwords: leave it out")
        if self._memory and self._anchor is None:
            self._anchor = sqlite3.connect(self._path, uri=True, check_same_thread=False)
        arguments = {
            **self._arguments,
            "isolation_level": None,  # autocommit
            "check_same_thread": False,  # one at a time they are, in the thread or after its end
            "uri": True,
            **fresh(dict(self.config.connect_args)),
        }
        same_values = self.config.same_values
        # A program that gives detect_types has converters, and they are used as always.
        converts = same_values and "detect_types" not in arguments
        if converts:
            arguments["detect_types"] = sqlite3.PARSE_DECLTYPES
        raw = await connect(self._path, **arguments)
        connection = SqliteConnection(
            raw,
            self._writers,
            arguments["timeout"],
            eager=self._memory,
            converts=converts,
            same_values=same_values,
        )
        try:
            await connection.call(self._set_up)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        for name, value in self._pragmas.items():
            if name == "journal_mode":
                statements.set_journal_mode(connection, value, self._arguments["timeout"])
            else:
                connection.execute(f"PRAGMA {name} = {value}").close()
        for method, arguments, more in self._registered:
            getattr(connection, method)(*arguments, **more)

    def is_unsent(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionClosedError)

    def is_stopped(self, error: BaseException) -> bool:
        code = getattr(error, "sqlite_errorcode", 0)
        return isinstance(error, sqlite3.OperationalError) and code & 0xFF in STOPPED

    def is_conflict(self, error: BaseException) -> bool:
        code = getattr(error, "sqlite_errorcode", 0)  # of extended codes, the lowest byte counts
        return isinstance(error, sqlite3.OperationalError) and code & 0xFF == sqlite3.SQLITE_BUSY

    def is_disconnect(self, error: BaseException) -> bool:
        # The connection is closed, or the file is not what it was.
        if isinstance(error, ConnectionClosedError):
            return True
        if not isinstance(error, sqlite3.Error):
            return False
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_CORRUPT_VTAB:
            return False  # what a module says of its own tables
        return "closed database" in str(error) or code & 0xFF in BROKEN

    def after_fork(self) -> object:
        kept = self._anchor, self._writers
        self._writers = SqliteWriters()
        if self._memory:  # its copy may be locked by what does not exist in the child
            self._anchor, self._path = None, _new_memory()
        return kept

    def close(self) -> None:
        anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.close()
            self._path = _new_memory()  # opened again, it is another database, and empty


def _new_memory() -> str:
    return f"file:/cenote-{uuid4().hex}?vfs=memdb"


def _pragma(name: str, value: str) -> str:
    words = WORDS.get(name, ())
    if value.lower() in words or (name != "journal_mode" and NUMBER.fullmatch(value)):
        return value
    # SQLite itself would take no notice of it.
    right = f"one of {', '.join(words)}" if words else "a whole number"
    raise ValueError(f"url option {name!r} must be {right}, not {value!r}")


driver = SqliteDriver
