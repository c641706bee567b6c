"""Statements as exporters measure them: which operation, how long, and with which error.

By the OpenTelemetry conventions for `db.client.operation.duration`. What a label may be is bounded:
no text and no parameter of a statement gets here, only its first word, if it is one that is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final

from .. import PoolError, sqlstate
from ..sql.database import Database

OTHER: Final = "_OTHER"  # as the conventions call what has no name of its own
MOST_ERRORS: Final = 50  # different ones of a database; what comes later is OTHER
KNOWN: Final = frozenset(
    {"ALTER", "ANALYZE", "ATTACH", "BEGIN", "CALL", "COMMENT", "COMMIT", "COPY", "CREATE"}
    | {"DEALLOCATE", "DELETE", "DETACH", "DISCARD", "DO", "DROP", "EXECUTE", "EXPLAIN", "GRANT"}
    | {"INSERT", "KILL", "LISTEN", "LOAD", "LOCK", "MERGE", "NOTIFY", "OPTIMIZE", "PRAGMA"}
    | {"PREPARE", "REFRESH", "REINDEX", "RELEASE", "REPLACE", "RESET", "REVOKE", "ROLLBACK"}
    | {"SAVEPOINT", "SELECT", "SET", "SHOW", "START", "TABLE", "TRUNCATE", "UNLISTEN", "UPDATE"}
    | {"USE", "VACUUM", "VALUES", "WITH"}
)

End = Callable[[BaseException | None], None]
Record = Callable[[str, float, BaseException | None], None]  # operation, seconds, error


def operation_name(word: str) -> str:
    """Return the operation of a statement by its first word; `_OTHER` if that is not known."""
    upper = word.upper()
    return upper if upper in KNOWN else OTHER


class OperationObservers:
    """Observes databases, each once, until it is closed; it keeps none of them alive."""

    def __init__(self) -> None:
        self._endings: weakref.WeakKeyDictionary[Database, Callable[[], None]]
        self._endings = weakref.WeakKeyDictionary()

    def observe(self, database: Database, record: Callable[[], Record]) -> None:
        """Call what `record` makes at the end of every statement of this database, unless the
        database is observed already."""
        if database not in self._endings:
            self._endings[database] = database.observe(Observer(record()))

    def close(self) -> None:
        """End all observations."""
        for unobserve in [*self._endings.values()]:
            unobserve()
        self._endings.clear()


class Observer:
    """What a database calls when a statement begins."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def __call__(self, operation: str, text: str) -> End:
        return partial(self._end, operation, perf_counter())

    def _end(self, operation: str, began: float, error: BaseException | None) -> None:
        self._record(operation_name(operation), perf_counter() - began, error)


class ErrorTypes:
    """The error types of one database, as many as a label may have values."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def of(self, error: BaseException) -> str:
        """Return the code of the database, or else the class of the error."""
        found = status_code(error) or class_name(error)
        if found not in self._seen:
            if len(self._seen) >= MOST_ERRORS:
                return OTHER
            self._seen.add(found)
        return found


def class_name(error: BaseException) -> str:
    """Return the class of an error, with its module unless that is `builtins`."""
    kind = type(error)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def status_code(error: BaseException) -> str | None:
    """Return the code of the database: MySQL's number, SQLite's result code, or SQLSTATE.

    None for what cenote itself raises: its class says more than the code of its cause.
    """
    if isinstance(error, PoolError):
        return None
    number = getattr(error, "sqlite_errorcode", None)
    if any(base.__name__ == "MySQLError" for base in type(error).__mro__):
        number = error.args[0] if error.args else None
    return str(number) if isinstance(number, int) and number > 0 else sqlstate(error)
