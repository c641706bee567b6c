"""A dialect: how one database writes its statements, and what they do to a session.

The database layer asks no dialect's name. A driver of another package brings an object of this
class, or of a subclass, and nothing has to be registered anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..parsing.session_rules import SessionRules

Isolation = Literal["read uncommitted", "read committed", "repeatable read", "serializable"]
ISOLATIONS: tuple[Isolation, ...] = (
    "read uncommitted",
    "read committed",
    "repeatable read",
    "serializable",
)


@dataclass(frozen=True, slots=True)
class Quote:
    """A way of quoting that the flags of `Dialect` do not describe, such as Oracle's `q'[...]'`.

    `first` has the characters with which it may begin; none of them may begin anything else that is
    quoted, and only a string may begin with a letter. `rest` is a regular expression for what
    follows, up to the end of the quotation or of the text.
    """

    kind: Literal["string", "name", "comment", "own"]  # "own": a placeholder of the database
    first: str
    rest: str

    def __post_init__(self) -> None:
        if self.kind != "string" and any(map(str.isalnum, self.first)):
            raise ValueError(f"a {self.kind} must not begin like a word, with {self.first!r}")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a database quotes, which placeholders it has, what its statements do to a session, and
    how transactions and savepoints are written.

    Standard SQL is the default. The flags say where a database differs; `quotes` has what they do
    not describe; `rules` knows its statements; the methods can be overridden in a subclass.
    """

    name: str
    nested_comments: bool = False  # PostgreSQL
    hash_comments: bool = False  # MySQL: # to the end of the line
    version_comments: bool = False  # MySQL: the content of /*! ... */ is run
    dash_needs_space: bool = False  # MySQL: -- is a comment only before white space
    return_ends_line: bool = False  # PostgreSQL: so does \r alone, in a -- comment
    backslashes: bool = False  # MySQL: escapes in '...' and "...", both of which are strings
    e_strings: bool = False  # PostgreSQL: E'...' has backslash escapes
    backslash_strings: bool = False  # and so has '...', with standard_conforming_strings = off
    unicode_names: bool = False  # PostgreSQL: U&"..." is a name with escapes
    dollar_quotes: bool = False  # PostgreSQL: $tag$...$tag$, and $1 is a placeholder
    backticks: bool = False  # MySQL, SQLite
    brackets: bool = False  # SQLite: [name]
    string_names: bool = False  # SQLite: '...' may be a name
    bom_is_space: bool = False  # SQLite: a byte order mark is white space
    numbered_marks: bool = False  # SQLite: ?1, @name and $name are placeholders
    quoted_names: bool = False  # MySQL with ANSI_QUOTES: "..." is a name, without escapes
    percent_marks: bool = False  # asyncmy: %s and %(name)s are placeholders
    quotes: tuple[Quote, ...] = ()  # further ways of quoting
    rules: SessionRules = SessionRules()  # noqa: RUF009 - it has no state
    others: tuple[Dialect, ...] = ()  # how sessions with other settings read a backslash

    def begin(self, isolation: Isolation | None, read_only: bool) -> tuple[str, ...]:
        """The statements that begin a transaction; None is the default level of the server."""
        modes = [] if isolation is None else [f"ISOLATION LEVEL {isolation.upper()}"]
        if read_only:
            modes.append("READ ONLY")
        return (" ".join(["START TRANSACTION", ", ".join(modes)]).rstrip(),)

    def commit(self) -> str:
        """The statement that commits a transaction."""
        return "COMMIT"

    def rollback(self) -> str:
        """The statement that rolls a transaction back."""
        return "ROLLBACK"

    def savepoint(self, name: str) -> str:
        """The statement that sets a savepoint."""
        return f"SAVEPOINT {name}"

    def release_savepoint(self, name: str) -> str | None:
        """The statement that removes a savepoint; None if the database has no such statement."""
        return f"RELEASE SAVEPOINT {name}"

    def rollback_to_savepoint(self, name: str) -> str:
        """The statement that undoes everything since a savepoint, which stays."""
        return f"ROLLBACK TO SAVEPOINT {name}"
