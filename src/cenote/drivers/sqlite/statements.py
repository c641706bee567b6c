"""What runs in the thread of a connection to SQLite, on its `sqlite3.Connection`."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...sql.dialects import SQLITE
from ...sql.driver import MANY
from ...sql.rows import make_rows

WITH = re.compile(r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*with\b", re.IGNORECASE)
RETURNING = re.compile(r"\breturning\b", re.IGNORECASE)


def execute(connection: sqlite3.Connection, text: str, arguments: Any) -> int:
    before = connection.total_changes
    cursor = connection.execute(text, arguments)
    if cursor.description is not None:
        cursor.fetchall()  # RETURNING: counted at the end
    changed = cursor.rowcount
    cursor.close()
    if changed < 0 and connection.total_changes != before and WITH.match(text):
        # Python does not count what begins with WITH; the total counts also what triggers do, and
        # what COMMIT and DDL write by themselves.
        return ask_number(connection, "SELECT changes()")
    return max(changed, 0)


def ask_number(connection: sqlite3.Connection, text: str) -> int:
    """One number."""
    cursor = connection.cursor()
    cursor.row_factory = None  # that of the connection may be the user's
    number: int = cursor.execute(text).fetchone()[0]
    cursor.close()
    return number


def fetch_all(connection: sqlite3.Connection, text: str, arguments: Any) -> list[Any]:
    cursor = connection.execute(text, arguments)
    rows = _named(cursor, cursor.fetchall())
    cursor.close()
    return rows


def fetch_one(connection: sqlite3.Connection, text: str, arguments: Any) -> Any:
    cursor = connection.execute(text, arguments)
    row = cursor.fetchone()
    found = None if row is None else _named(cursor, [row])[0]
    cursor.close()  # or its read lock stays
    return found


def fetch_val(connection: sqlite3.Connection, text: str, arguments: Any) -> Any:
    cursor = connection.execute(text, arguments)
    row = cursor.fetchone()
    cursor.close()
    return None if row is None else row[0]


def fetch_many(connection: sqlite3.Connection, cursor: sqlite3.Cursor, count: int) -> list[Any]:
    return _named(cursor, cursor.fetchmany(count))


def close(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
    cursor.close()


def _named(cursor: sqlite3.Cursor, rows: list[Any]) -> list[Any]:
    if cursor.description is None or (rows and isinstance(rows[0], sqlite3.Row)):
        return rows
    if rows and type(rows[0]) is not tuple:  # of a row factory of the user's
        return rows
    return make_rows([column[0] for column in cursor.description], rows)


def execute_many(
    connection: sqlite3.Connection,
    text: str,
    arguments: Iterator[Any],
    no_interruption: Callable[[], object],
) -> None:
    """Run a statement for each element: all of them, or none. `no_interruption` is called before
    what was done is undone.

    Not by `DriverConnection.atomically()`: here the whole series is one call of the thread.
    """
    end: tuple[str | None, ...]
    undo: tuple[str | None, ...]
    if connection.in_transaction:
        release = SQLITE.release_savepoint(MANY)
        end, undo = (release,), (SQLITE.rollback_to_savepoint(MANY), release)
        connection.execute(SQLITE.savepoint(MANY))
    else:
        end, undo = (SQLITE.commit(),), (SQLITE.rollback(),)
        _run_all(connection, SQLITE.begin(None, False))
    try:
        if RETURNING.search(text):  # which executemany() takes up to Python 3.11 only
            for each in arguments:
                execute(connection, text, each or ())
        else:
            connection.executemany(text, arguments)
        _run_all(connection, end)
    except BaseException:
        no_interruption()
        if connection.in_transaction:
            _run_all(connection, undo)
        raise


def _run_all(connection: sqlite3.Connection, texts: Iterable[str | None]) -> None:
    """Run statements of the dialect; None is one that it does not have."""
    for text in texts:
        if text is not None:
            connection.execute(text)


def begin(connection: sqlite3.Connection, read_only: bool) -> bool:
    """Whether query_only is set now that was not before."""
    _run_all(connection, SQLITE.begin(None, read_only))
    if not read_only or ask_number(connection, "PRAGMA query_only"):
        return False
    connection.execute("PRAGMA query_only = 1")
    return True


def end(connection: sqlite3.Connection, text: str) -> None:
    if connection.in_transaction:
        connection.execute(text)


def set_journal_mode(connection: sqlite3.Connection, mode: str, patience: float) -> None:
    """Its change does not heed the busy timeout."""
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}").close()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
