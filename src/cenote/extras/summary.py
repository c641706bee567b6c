"""A short summary of a statement: `SELECT songs artists`.

That is the `db.query.summary` of the OpenTelemetry conventions: operations and tables in the order
of the text, as they are written there. Subqueries are not looked into.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final

from ..sql.dialects import Dialect
from ..sql.parsing.tokens import tokens

LONGEST: Final = 255  # characters, as the conventions ask for
LOOKED_AT: Final = 1000  # tokens
KEPT: Final = 16_000  # characters of the longest text whose summary is kept
WRITES: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE"})
BEFORE_A_NAME: Final = frozenset(
    {"IF", "NOT", "EXISTS", "ONLY", "LATERAL", "IGNORE", "LOW_PRIORITY"}
    | {"OR", "ROLLBACK", "ABORT", "FAIL", "REPLACE"}
)
ENDS_A_LIST: Final = frozenset(
    {"WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "ON", "USING", "SET", "VALUES"}
    | {"RETURNING", "UNION", "WINDOW", "FOR", "FETCH"}
)
OPEN: Final = ("symbol", "(", False)

Item = tuple[str, str, bool]  # kind, text, and whether a comma stands before it


def summarize(text: str, dialect: Dialect) -> str:
    """Return operations and tables of a statement, in their order; empty if there are none."""
    # What is kept must not grow with the texts of the program.
    return _summarize(text, dialect) if len(text) > KEPT else _kept(text, dialect)


def _summarize(text: str, dialect: Dialect) -> str:
    parts: list[str] = []
    depth = 0  # of parentheses
    before = ";"  # the item before this one, words in upper case
    awaits = ""  # after which word a table is to follow
    listed = False  # in the list after FROM, where a comma brings another table
    items = list(_items(text, dialect))
    place = 0
    while place < len(items):
        kind, shown, comma = items[place]
        item = shown.upper() if kind == "word" else shown
        place += 1
        if kind == "symbol":
            depth += (item == "(") - (item == ")")
            awaits = ""
        elif depth == 0:
            if listed and comma:
                awaits = "FROM"
            if kind == "word" and _operates(item, before, items[place : place + 1]):
                parts += [] if item == "WITH" else [shown]
                awaits, listed = "UPDATE" if item == "UPDATE" else "", False
            elif kind == "word" and item in ("FROM", "JOIN", "INTO", "TABLE"):
                awaits = "" if before == "DISTINCT" else item  # IS DISTINCT FROM
                listed = awaits == "FROM" or (listed and item == "JOIN")
            elif awaits and item not in BEFORE_A_NAME:
                name, place = _whole_name(items, place - 1)
                if awaits in ("INTO", "TABLE", "UPDATE") or items[place : place + 1] != [OPEN]:
                    parts.append(name)  # else it is a function
                awaits = ""
            elif item in ENDS_A_LIST:
                listed = False
        before = item
    return " ".join(parts)[:LONGEST]


_kept = lru_cache(maxsize=1024)(_summarize)


def _items(text: str, dialect: Dialect) -> Iterator[Item]:
    """Yield all tokens but comments; literals appear as empty symbols."""
    last = 0
    for kind, start, end in islice(tokens(text, dialect), LOOKED_AT):
        comma = "," in text[last:start]
        last = end
        if kind in ("word", "name", "symbol"):
            yield kind, text[start:end], comma
        elif kind != "comment":
            yield "symbol", "", comma


def _operates(word: str, before: str, following: list[Item]) -> bool:
    """Return whether an operation begins with this word, unlike FOR UPDATE or replace(...)."""
    if before == ";" or word == "SELECT":
        return True
    return before == ")" and word in WRITES and following != [OPEN]


def _whole_name(items: list[Item], place: int) -> tuple[str, int]:
    """Return the name at a place, with its schema, and the place after it."""
    name = items[place][1]
    place += 1
    while place + 1 < len(items) and items[place][1] == ".":
        name += f".{items[place + 1][1]}"
        place += 2
    return name, place
