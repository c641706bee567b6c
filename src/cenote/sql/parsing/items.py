"""Items: a statement as a list of strings, the form in which session rules read it.

Comments are left out. Words are in upper case, quoted names are written `"name`, symbols as they
are, and anything else is `'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .tokens import tokens

if TYPE_CHECKING:
    from ..dialects.dialect import Dialect

Items = list[str]

VERSION_COMMENT = "/*!"  # the item for a comment of which MySQL runs the content
ROUTINES = ("PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE")  # their bodies have semicolons
HEAD = 20  # items that show what a statement is


def items_of(text: str, dialect: Dialect, *, most: int | None) -> Items:
    """The items of a text: the first `most` of them, or all if it is None."""
    items: Items = []
    for kind, start, end in tokens(text, dialect):
        if len(items) == most:
            break
        if kind == "word":
            items.append(text[start:end].upper())
        elif kind == "symbol":
            items.append(text[start:end])
        elif kind == "name" and dialect.unicode_names and text[start - 2 : start] in ("u&", "U&"):
            items[-1] = '"U&'  # replaces its U; the escapes in the name are not decoded
        elif kind == "name" or (kind == "string" and text[start] == '"'):
            items.append(f'"{text[start + 1 : end - 1]}')  # with ANSI_QUOTES it is a name
        elif kind == "string" and dialect.string_names:
            items.append(text[start : end - 1])  # 'temp' may be a name
        elif kind != "comment":
            items.append("'")
        elif dialect.version_comments and text.startswith(("/*!", "/*M!"), start):
            items.append(VERSION_COMMENT)
    return items


def name_at(items: Items, at: int) -> str:
    """The name at an index, in lower case and without its quote; "" if the index is outside."""
    return items[at].lstrip("\"'").lower() if 0 <= at < len(items) else ""


def first_two(items: Items) -> tuple[str, str]:
    """The first two items, each "" if there is none."""
    return (items[0] if items else "", items[1] if len(items) > 1 else "")


def next_semicolon(items: Items, start: int) -> int:
    """The index of the first semicolon from `start` on, or the number of items."""
    try:
        return items.index(";", start)
    except ValueError:
        return len(items)


def has_several(items: Items) -> bool:
    """Whether something other than semicolons stands after a semicolon."""
    semicolon = next_semicolon(items, 0)
    return any(item != ";" for item in items[semicolon:])


def follows(items: Items, first: str, second: str) -> bool:
    """Whether `second` stands directly after `first` anywhere."""
    return any(items[at + 1 : at + 2] == [second] for at in positions(items, first))


def positions(items: Items, wanted: str) -> Iterator[int]:
    """The indexes of an item."""
    return (at for at, item in enumerate(items) if item == wanted)


def opened(items: Items) -> Items:
    """The items without the parentheses before the first word."""
    skip = 0
    while skip < len(items) and items[skip] in ("(", VERSION_COMMENT):
        skip += 1
    return items[skip:] if skip else items


def explained(items: Items) -> Items:
    """The statement after EXPLAIN, which runs it if ANALYZE is given."""
    if items[:1] != ["EXPLAIN"]:
        return items
    skip = 1
    if items[1:2] == ["("] and ")" in items:
        skip = items.index(")") + 1
    while skip < len(items) and items[skip] in ("ANALYZE", "ANALYSE", "VERBOSE", "QUERY", "PLAN"):
        skip += 1
    return items[skip:]


def created(items: Items) -> tuple[str, bool]:
    """What CREATE makes, such as "TABLE", and whether it is temporary; "" for other statements."""
    if items[:1] != ["CREATE"]:
        return "", False
    temporary = definer = False
    for item in items[1:HEAD]:
        if item in ("TEMP", "TEMPORARY"):
            temporary = True
        elif item == "DEFINER":
            definer = True  # = user@host, before what is made
        elif item in (*ROUTINES, "VIEW") or not (definer or item in _BEFORE_KIND):
            return item, temporary
    return "", temporary


_BEFORE_KIND = ("OR", "REPLACE", "LOCAL", "GLOBAL", "AGGREGATE", "CONSTRAINT", VERSION_COMMENT)


def open_blocks(items: Items, blocks: int) -> int:
    """How many BEGIN ATOMIC and CASE are open after `items`, if `blocks` were before."""
    for at, item in enumerate(items):
        if blocks:
            blocks += (item in ("BEGIN", "CASE")) - (item == "END")
        elif item == "BEGIN" and items[at + 1 : at + 2] == ["ATOMIC"]:
            blocks = 1
    return blocks
