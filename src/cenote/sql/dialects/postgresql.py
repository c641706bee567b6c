"""The dialect of PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..parsing.items import (
    HEAD,
    Items,
    created,
    explained,
    first_two,
    follows,
    name_at,
    next_semicolon,
    open_blocks,
    positions,
)
from ..parsing.session_rules import SessionRules
from .dialect import Dialect, Isolation


class PostgreSQLDialect(Dialect):
    """The dialect of PostgreSQL: BEGIN takes the isolation level."""

    __slots__ = ()

    def begin(self, isolation: Isolation | None, read_only: bool) -> tuple[str, ...]:
        level = "" if isolation is None else f" ISOLATION LEVEL {isolation.upper()}"
        return (f"BEGIN{level}{' READ ONLY' if read_only else ''}",)


class PostgreSQLRules(SessionRules):
    """What changes a session of PostgreSQL."""

    functions: re.Pattern[str] = re.compile(
        r"set_config|setseed|pg_advisory_(un)?lock(_shared|_all)?|pg_try_advisory_lock(_shared)?"
        r"|pg_replication_origin_session_(re)?set(up)?|dblink_(dis)?connect(_u)?|u&"
    )
    schemas: re.Pattern[str] = re.compile(r"pg_temp(_\d+)?")
    touching: re.Pattern[str] = re.compile(
        "CALL|DEALLOCATE|DISCARD|DO|EXECUTE|LISTEN|LOAD|RESET|UNLISTEN"
    )
    suspicious: tuple[str, ...] = (
        "_config", "setseed", "advisory", "origin", "dblink", "temp", "explain", "pg_settings",
        'u&"',
    )  # fmt: skip
    lasting: re.Pattern[str] = re.compile(
        r"LOAD|dblink_connect(_u)?\(\)|pg_replication_origin_session_setup\(\)"
    )
    replanning: re.Pattern[str] = re.compile("DEALLOCATE|DISCARD")
    doubtful: frozenset[str] = frozenset(
        {"CALL", "DEALLOCATE", "DISCARD", "DO", "EXECUTE", "LOAD", "RESET", "UNLISTEN",
         "pg_advisory_unlock()", "pg_advisory_unlock_all()", "pg_advisory_unlock_shared()"}
    )  # fmt: skip
    undone: frozenset[str] = frozenset(
        {"CREATE TEMPORARY", "DECLARE WITH HOLD", "LISTEN", "RESET", "SET", "UNLISTEN"}
    )  # locks, plans and libraries stay

    def end(self, items: Items, start: int) -> int:
        """A semicolon in parentheses (CREATE RULE) or in BEGIN ATOMIC ... END ends nothing."""
        routine = created(items[start : start + HEAD])[0] in ("FUNCTION", "PROCEDURE")
        parentheses = blocks = 0
        position = start
        while True:
            end = next_semicolon(items, position)
            piece = items[position:end]
            parentheses += piece.count("(") - piece.count(")")
            if routine:
                blocks = open_blocks(piece, blocks)
            if end == len(items) or (parentheses <= 0 and not blocks):
                return end
            position = end + 1

    def by_statement(self, items: Items) -> str | None:
        items = explained(items)
        first, second = first_two(items)
        if first == "SET":
            return None if second in ("LOCAL", "TRANSACTION", "CONSTRAINTS") else "SET"
        if first == "PREPARE":
            return None if second == "TRANSACTION" else "PREPARE"
        if first == "DECLARE" and follows(items, "WITH", "HOLD"):
            return "DECLARE WITH HOLD"
        return super().by_statement(items)

    def by_content(self, items: Items) -> Iterator[str]:
        if selects_into_temporary(items):
            yield "SELECT INTO TEMPORARY"
        if "UPDATE" in items and any(name_at([item], 0) == "pg_settings" for item in items):
            yield "UPDATE pg_settings"  # which does what SET does
        yield from super().by_content(items)


def selects_into_temporary(items: Items) -> bool:
    for at in positions(items, "INTO"):
        following = items[at + 1 : at + 3]
        if following[:1] in (["LOCAL"], ["GLOBAL"]):
            del following[0]
        inserts = at and items[at - 1] in ("INSERT", "MERGE")  # a table may be called temp
        if following[:1] in (["TEMP"], ["TEMPORARY"]) and not inserts:
            return True
    return False


POSTGRESQL = PostgreSQLDialect(
    "postgresql",
    nested_comments=True,
    return_ends_line=True,
    e_strings=True,
    unicode_names=True,
    dollar_quotes=True,
    rules=PostgreSQLRules(),
)
