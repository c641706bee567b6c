"""What the error of a driver leaves unsaid, added to it as a note."""

from __future__ import annotations

from ..errors import PoolError
from .placeholders import Dialect, Style, describe_placeholders

SYNTAX = "42"  # class of the SQLSTATEs of what a forgotten parameter may end in
SYNTAX_ERROR = "42601"  # of PostgreSQL


def note(error: BaseException, text: str) -> None:
    """Add a note, once."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def note_operator(error: BaseException) -> None:
    """Of a prepared statement with a `?`, which is an operator of PostgreSQL as well."""
    if getattr(error, "sqlstate", None) == SYNTAX_ERROR:
        note(error, "every ? of a prepared statement is a placeholder: write ?? for the operator")


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
