"""What the error of a driver leaves unsaid, added to it as a note."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ..errors import PoolError
from .dialects import Dialect
from .parsing.placeholders import Style, describe_placeholders
from .url import Target

R = TypeVar("R")

SYNTAX = "42"  # class of the SQLSTATEs of what a forgotten parameter may end in
SYNTAX_ERROR = "42601"  # of PostgreSQL
OF_VALUES = ("22", "23", "P0")  # classes of SQLSTATEs that some rows meet, and others do not
ELEMENT = re.compile(r"element #([0-9]+) of executemany")  # says asyncpg of what it cannot encode
ROW = "execute_many(): "  # begins the note
PORTS = {"mysql": 3306, "mariadb": 3306, "postgresql": 5432, "postgres": 5432,
         "postgresql+asyncpg": 5432, "postgresql+psycopg": 5432}  # fmt: skip
UNKNOWN_HOST = ("failed to resolve host", "could not translate host", "name or service not known")
ACCESS_DENIED, UNKNOWN_DATABASE = (1044, 1045), 1049  # of MySQL
NO_DATABASE = re.compile(r'database ".*" does not exist')  # psycopg gives no SQLSTATE


def note(error: BaseException, text: str) -> None:
    """Add a note, once."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def note_operator(error: BaseException) -> None:
    """Of a prepared statement with a `?`, which is an operator of PostgreSQL as well."""
    if getattr(error, "sqlstate", None) == SYNTAX_ERROR:
        note(error, "every ? of a prepared statement is a placeholder: write ?? for the operator")


def note_row(error: BaseException, first: int, last: int | None = None) -> None:
    """Which row of execute_many() failed, or between which two."""
    if last is None or last == first:
        note(error, f"{ROW}row {first} (counted from 0) failed; none is kept")
    else:
        rows = f"one of the rows {first} to {last} (counted from 0) failed"
        note(error, f"{ROW}{rows}, and the server does not say which; none is kept")


def bind_rows(bind: Callable[[Any], R], parameters: Iterable[Any]) -> list[R]:
    """Bind every row of execute_many(); one that does not fit is named in a note on the error."""
    bound: list[R] = []
    for each in parameters:
        try:
            bound.append(bind(each))
        except (TypeError, ValueError) as error:
            note(error, f"{ROW}row {len(bound)} (counted from 0) does not fit; nothing was sent")
            raise
    return bound


def note_rows(error: BaseException, count: int) -> None:
    """The same for a driver that has not said so. Nothing is run again to find out."""
    if any(each.startswith(ROW) for each in getattr(error, "__notes__", ())):
        return
    element = ELEMENT.search(str(error))
    if element is not None:
        note_row(error, int(element[1]))
    elif of_values(error):
        note_row(error, 0, count - 1)


def of_values(error: BaseException) -> bool:
    """Whether the server refused the values of a row, and not the statement."""
    return str(getattr(error, "sqlstate", "")).startswith(OF_VALUES)


def note_missing(error: BaseException, text: str, dialect: Dialect, style: Style) -> None:
    """Of a statement that was sent without parameters: say if it has placeholders."""
    state = getattr(error, "sqlstate", None)
    if not isinstance(error, Exception) or isinstance(error, PoolError):
        return
    if isinstance(state, str) and not state.startswith(SYNTAX):
        return
    found = describe_placeholders(text, dialect, style)
    if found:
        note(error, f"the statement has {found} and no parameters were given")


def note_connect(error: BaseException, target: Target) -> None:
    """Where a connection was to be made, and what may help; without user and password."""
    if isinstance(error, Exception) and not isinstance(error, PoolError):
        remedy = _remedy(error, target)
        note(error, f"while connecting to {_place(target)}{': ' if remedy else ''}{remedy}")


def _place(target: Target) -> str:
    if target.scheme == "sqlite":
        return "a database in memory" if target.database == ":memory:" else f"{_file(target)!r}"
    options = target.options
    path = options.get("host") or options.get("unix_socket")
    hosts = ", ".join(
        f"host {name!r}, port {port or options.get('port') or PORTS.get(target.scheme, '?')}"
        for name, port in target.hosts
    )
    place = hosts or (f"{path!r}" if path else "the server of this machine")
    database = target.database or options.get("dbname")
    return f"{place}, database {database!r}" if database else place


def _file(target: Target) -> str:
    return os.path.abspath(target.database)


def _remedy(error: Exception, target: Target) -> str:
    if target.scheme == "sqlite":
        return _remedy_of_file(_file(target)) if "unable to open" in str(error) else ""
    text = str(error).lower()
    state = getattr(error, "sqlstate", None)
    number = error.args[0] if error.args else None
    if isinstance(error, socket.gaierror) or any(each in text for each in UNKNOWN_HOST):
        return "the name of the host is not known. Correct it in the URL."
    if isinstance(error, ConnectionRefusedError) or "refused" in text or "errno 111" in text:
        return "nothing listens there. Start the server, or correct host and port in the URL."
    if isinstance(error, FileNotFoundError) or "no such file" in text:
        return "there is no such socket. Start the server, or correct the path in the URL."
    if state in ("28P01", "28000") or number in ACCESS_DENIED or "authentication failed" in text:
        return f"user {target.user!r} is refused. Check the user, the password and their rights."
    if state == "3D000" or number == UNKNOWN_DATABASE or NO_DATABASE.search(text):
        return "there is no such database. Create it, or correct its name in the URL."
    if isinstance(error, TimeoutError):
        return "no answer in time. Check host and port, and whether a firewall is in between."
    return ""


def _remedy_of_file(path: str) -> str:
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return f"the directory {directory!r} does not exist. Create it, or correct the URL."
    if os.path.isdir(path):
        return "that is a directory. Name a file in the URL."
    return "the file cannot be opened or made. Check its rights, and those of its directory."
