"""What the error of a driver leaves unsaid, added to it as a note."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ..errors import PoolError
from .dialects import Dialect
from .parsing.placeholders import Style, describe_placeholders

R = TypeVar("R")

SYNTAX = "42"  # class of the SQLSTATEs of what a forgotten parameter may end in
SYNTAX_ERROR = "42601"  # of PostgreSQL
OF_VALUES = ("22", "23", "P0")  # classes of SQLSTATEs that some rows meet, and others do not
ELEMENT = re.compile(r"element #([0-9]+) of executemany")  # says asyncpg of what it cannot encode
ROW = "execute_many(): "  # begins the note
NUMBER = re.compile(r"\b(rows? |to )([0-9]+)")  # of a row, in the note


def note(error: BaseException, text: str) -> None:
    """Add a note, once."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def explain(error: BaseException, text: str) -> None:
    """Say what an error means: by a note, or by its text if it has none."""
    if str(error):
        note(error, text)
    else:
        error.args = (text,)


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


def each_row(convert: Callable[[Any], R], rows: Iterable[Any]) -> list[R]:
    """Convert every row; the error of one that cannot be sent names it."""
    converted: list[R] = []
    for row in rows:
        try:
            converted.append(convert(row))
        except (TypeError, ValueError) as error:
            note_row(error, len(converted))
            raise
    return converted


def shift_rows(error: BaseException, by: int) -> None:
    """The rows that a note names were counted from this one."""
    notes: list[str] = getattr(error, "__notes__", [])
    if by:
        notes[:] = [
            NUMBER.sub(lambda found: f"{found[1]}{int(found[2]) + by}", each)
            if each.startswith(ROW) else each
            for each in notes
        ]  # fmt: skip


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
