"""The dialect of SQLite."""

from __future__ import annotations

import re

from ..parsing.items import HEAD, Items, created, explained, name_at, next_semicolon
from ..parsing.session_rules import SessionRules
from .dialect import Dialect, Isolation


class SQLiteDialect(Dialect):
    """The dialect of SQLite: every transaction is serializable, and a writer begins as one."""

    __slots__ = ()

    def begin(self, isolation: Isolation | None, read_only: bool) -> tuple[str, ...]:
        return ("BEGIN DEFERRED" if read_only else "BEGIN IMMEDIATE",)


class SQLiteRules(SessionRules):
    """What changes a connection of SQLite."""

    functions: re.Pattern[str] = re.compile("load_extension")
    schemas: re.Pattern[str] = re.compile("temp")
    touching: re.Pattern[str] = re.compile("ATTACH|DETACH")
    suspicious: tuple[str, ...] = ("load_extension", "temp", "explain")
    reading: re.Pattern[str] = re.compile(  # pragmas whose argument changes nothing of the session
        r"\w+_list|(table|index)_x?info|(integrity|quick|foreign_key)_check"
        r"|incremental_vacuum|optimize|wal_checkpoint"
    )

    def end(self, items: Items, start: int) -> int:
        """CREATE TRIGGER ends with `; END ;`, as in sqlite3_complete()."""
        end = next_semicolon(items, start)
        if created(items[start : start + HEAD])[0] == "TRIGGER":
            while end < len(items) and items[end - 2 : end] != [";", "END"]:
                end = next_semicolon(items, end + 1)
        return end

    def by_statement(self, items: Items) -> str | None:
        items = explained(items)  # some pragmas act even so
        if items[:1] == ["PRAGMA"]:
            return self.by_pragma(items)
        return super().by_statement(items)

    def may_make(self, items: Items, at: int) -> bool:
        reads = items[0] == "SELECT" and name_at(items, at + 1) in (
            "sqlite_master",
            "sqlite_schema",
        )
        return not reads and super().may_make(items, at)

    def by_pragma(self, items: Items) -> str | None:
        at = 3 if items[2:3] == ["."] else 1
        pragma = name_at(items, at)
        sets = items[at + 1 : at + 2] in (["="], ["("])
        return f"PRAGMA {pragma}" if sets and not self.reading.fullmatch(pragma) else None


SQLITE = SQLiteDialect(
    "sqlite",
    backticks=True,
    brackets=True,
    string_names=True,
    bom_is_space=True,
    numbered_marks=True,
    rules=SQLiteRules(),
)
