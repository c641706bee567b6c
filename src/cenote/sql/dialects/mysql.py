"""The dialect of MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ..parsing.items import (
    HEAD,
    ROUTINES,
    VERSION_COMMENT,
    Items,
    created,
    first_two,
    follows,
    opened,
)
from ..parsing.session_rules import Control, SessionRules
from .dialect import Dialect, Isolation

STORED = {"ALTER EVENT", *(f"CREATE {kind}" for kind in ROUTINES)}


class MySQLDialect(Dialect):
    """The dialect of MySQL and MariaDB: a statement of its own sets the isolation level."""

    __slots__ = ()

    def begin(self, isolation: Isolation | None, read_only: bool) -> tuple[str, ...]:
        start = f"START TRANSACTION{' READ ONLY' if read_only else ''}"
        if isolation is None:
            return (start,)
        return (f"SET TRANSACTION ISOLATION LEVEL {isolation.upper()}", start)


class MySQLRules(SessionRules):
    """What changes a session of MySQL or MariaDB."""

    functions: re.Pattern[str] = re.compile(
        "get_lock|release_lock|release_all_locks|last_insert_id"
    )
    touching: re.Pattern[str] = re.compile(
        "BACKUP|BINLOG|CALL|CHANGE|DEALLOCATE|DO|EXECUTE|FLUSH|GET|HANDLER|INSTALL|LOAD|PREPARE|SET"
        "|UNINSTALL|USE|XA"
    )
    suspicious: tuple[str, ...] = ("_lock", "last_insert_id", "@", ":=", "/*!", "/*m!")
    committing: tuple[str, ...] = ("COMMIT",)
    begin_ends: Control | None = "commit"
    lasting: re.Pattern[str] = re.compile("XA|SET PROFILING")
    doubtful: frozenset[str] = frozenset(
        {"BINLOG", "CALL", "DEALLOCATE", "DO", "DROP PREPARE", "DROP TEMPORARY", "EXECUTE", "FLUSH",
         "GET", "LOAD", "RELEASE_ALL_LOCKS()", "RELEASE_LOCK()", "UNLOCK TABLE", "UNLOCK TABLES",
         "version comment", *STORED, "BEGIN NOT ATOMIC", "CASE", "FOR", "IF", "LOOP", "REPEAT",
         "WHILE"}
    )  # fmt: skip
    # Of all other statements it is not known what else they run.
    plain: re.Pattern[str] = re.compile(
        "SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES|TABLE|SET|SHOW|EXPLAIN|DESCRIBE|DESC|DO"
        "|SAVEPOINT|RELEASE|ROLLBACK|HANDLER|LOAD|USE|HELP"
    )
    # These may commit, and the driver is notified; if the next one begins a transaction, it is not.
    committing_alone: re.Pattern[str] = re.compile(
        "CREATE|ALTER|DROP|TRUNCATE|RENAME|GRANT|REVOKE|LOCK|UNLOCK"
    )

    def end(self, items: Items, start: int) -> int:
        """What has a body goes on to the end of the text: bodies are not read."""
        if self.body(items[start : start + HEAD]):
            return len(items)
        return super().end(items, start)

    def by_statement(self, items: Items) -> str | None:
        first, second = first_two(items)
        if first in ("LOCK", "UNLOCK") or (first == "DROP" and second in ("TEMPORARY", "PREPARE")):
            return f"{first} {second}"
        if first == "FLUSH" and {"TABLE", "TABLES"}.intersection(items[1:3]):
            return "FLUSH TABLES"  # which may take locks
        if first == "SET" and "PROFILING" in items:
            return "SET PROFILING"  # the next task could read the texts of this one
        body = self.body(items)
        if body and (body not in STORED or ";" in items[:-1]):
            return body  # a stored body is not run, but after its semicolons there may be anything
        return super().by_statement(items)

    def by_content(self, items: Items) -> Iterator[str]:
        if VERSION_COMMENT in items:
            yield "version comment"
        if ":=" in items or follows(items, "INTO", "@"):
            yield "user variable"
        for function in super().by_content(items):
            yield function.upper()

    def hides(self, items: Items, *, several: bool) -> bool:
        first, second = first_two(opened(items))
        if VERSION_COMMENT in items or (first == "SET" and second == "STATEMENT"):
            return True
        if first == "SET":
            return several and "AUTOCOMMIT" in items
        if self.committing_alone.fullmatch(first):
            return several
        return not self.plain.fullmatch(first)

    def matters(self, function: str, items: Items, at: int) -> bool:
        return function != "last_insert_id" or items[at + 1 : at + 2] != [")"]

    def control(self, items: Items) -> Control | None:
        return None if self.body(items) else super().control(items)

    def body(self, items: Items) -> str | None:
        """What statement with a body this is; None: another."""
        first, second = first_two(items)
        if first == "CREATE":
            kind = created(items)[0]
            return f"CREATE {kind}" if kind in ROUTINES else None
        if first == "ALTER":
            return "ALTER EVENT" if "EVENT" in items[1:8] else None
        if first == "BEGIN":
            return None if second in ("", ";", "WORK") else "BEGIN NOT ATOMIC"
        return first if first in ("CASE", "FOR", "IF", "LOOP", "REPEAT", "WHILE") else None


_DEFAULT = MySQLDialect(
    "mysql",
    hash_comments=True,
    version_comments=True,
    dash_needs_space=True,
    backslashes=True,
    backticks=True,
    percent_marks=True,
    rules=MySQLRules(),
)
MYSQL_NO_BACKSLASH_ESCAPES = replace(_DEFAULT, backslashes=False)
MYSQL_ANSI_QUOTES = replace(_DEFAULT, quoted_names=True)
MYSQL = replace(_DEFAULT, others=(MYSQL_NO_BACKSLASH_ESCAPES, MYSQL_ANSI_QUOTES))
