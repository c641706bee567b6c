"""What a statement does to the session: state it leaves behind, transactions it begins or ends.

A text is read as a list of items, without comments: words in upper case, quoted names as `"name`,
symbols as they are, `'` for anything else. In doubt the session counts as touched: that costs one
reset, while state that is overlooked is seen by the next task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from .tokens import Dialect, condensed, readings, tokens

Control = Literal["begin", "commit", "prepare", "rollback"]
READ_ONLY = re.compile(r"\bread\s+only\b|read_only")
Items = list[str]

VERSION_COMMENT = "/*!"  # the item for one: MySQL runs what is inside
ROUTINES = ("PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE")  # their bodies have semicolons
LONG = 2000  # characters from which on a text is condensed before all of it is read
HEAD = 20  # items that are enough to tell what a statement is


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one text does."""

    touches: str | None  # why the session is touched, such as "SET"; None: it is not
    control: Control | None  # of the last statement that begins or ends a transaction
    ends: Control | None  # how the first one that ends a transaction does it; None: there is none
    read_only: bool  # asked for, with BEGIN or SET
    keyword: str  # the first, in upper case; "" if there is none
    statements: int  # that are not empty
    lasting: bool = False  # the session is touched in a way that no reset undoes
    replans: bool = False  # what was prepared in the session is not there any more
    opaque: bool = False  # it may end a transaction and begin the next, and nothing would show it


def analyse(text: str, dialect: Dialect) -> Analysis:
    """Look at every statement of a text. Where sessions with other settings read it in another way,
    it touches what it would touch in any of them."""
    facts = _analyse(text, dialect)
    for each in readings(text, dialect)[1:]:
        other = _analyse(text, each)
        if other != facts:
            facts = replace(
                facts,
                touches=facts.touches or other.touches,
                lasting=facts.lasting or other.lasting,
                ends=facts.ends if facts.ends == other.ends else None,
                opaque=True,  # what it ends has to be found out
            )
    if not (dialect.e_strings and "\\'" in text):
        return facts
    # With standard_conforming_strings = off the string goes on behind such a quote.
    other = _analyse(text, replace(dialect, backslash_strings=True))
    return replace(
        facts,
        touches=facts.touches or other.touches,
        lasting=facts.lasting or other.lasting,
        replans=facts.replans or other.replans,
        control=facts.control or other.control,
        ends=facts.ends or other.ends,
        statements=max(facts.statements, other.statements),
    )


def _analyse(text: str, dialect: Dialect) -> Analysis:
    rules = _RULES.get(dialect.name, _POSTGRESQL)
    reasons: list[str] = []
    control: Control | None = None
    ends: Control | None = None
    keyword = ""
    count = 0
    opaque = False
    suspicious, several = rules.suspects(text)
    if (suspicious or several) and len(text) > LONG:
        text = condensed(text, dialect)
        suspicious, several = rules.suspects(text)
    whole = _items(text, dialect, most=None if suspicious or several else HEAD)
    for items in rules.split(whole):
        statement = _opened(items)
        count += 1
        if count == 1 and statement and statement[0].isidentifier():
            keyword = statement[0]
        reason = rules.by_statement(statement)
        if reason is not None:
            reasons.append(reason)
        if suspicious:
            reasons.extend(rules.by_content(items))
        found = rules.control(statement)
        opaque = opaque or (found is None and rules.hides(items, several=several))
        control = found or control
        ends = ends or (rules.begin_ends if found == "begin" else found)
    asks = control == "begin" or keyword == "SET"
    read_only = asks and bool(READ_ONLY.search(text.lower()))
    lasting = next(filter(rules.lasting.fullmatch, reasons), None)
    return Analysis(
        lasting or (reasons[0] if reasons else None),
        control,
        ends,
        read_only,
        keyword,
        count,
        lasting is not None,
        any(map(rules.replanning.fullmatch, reasons)),
        opaque and ends is None,
    )


class _Rules:
    """What all databases have in common."""

    functions: re.Pattern[str]  # that touch the session
    schemas: re.Pattern[str]  # of temporary objects
    touching: re.Pattern[str]  # first words that say enough
    suspicious: tuple[str, ...]  # a text without any of these is known by the heads of statements
    lasting = re.compile(r"(?!)")  # reasons that no reset undoes
    replanning = re.compile(r"(?!)")  # reasons after which nothing is prepared any more
    committing: tuple[str, ...] = ("COMMIT", "END")
    begin_ends: Control | None = None  # what BEGIN does to a transaction that is open

    def suspects(self, text: str) -> tuple[bool, bool]:
        """Whether all of it has to be read: for what it may contain, or for several statements."""
        lowered = text.lower()
        suspicious = any(word in lowered for word in self.suspicious)
        return suspicious, ";" in text.rstrip("; \t\r\n")

    def split(self, items: Items) -> Iterator[Items]:
        """The statements that are not empty."""
        start = 0
        while start < len(items):
            end = self.end(items, start)
            if end > start:
                yield items[start:end]
            start = end + 1

    def end(self, items: Items, start: int) -> int:
        """Where the statement that begins at `start` ends: at a semicolon, or with the text."""
        return _next_semicolon(items, start)

    def by_statement(self, items: Items) -> str | None:
        """Why the session is touched, from what the statement is."""
        if items and self.touching.fullmatch(items[0]):
            return items[0]
        return "CREATE TEMPORARY" if _created(items)[1] else None

    def by_content(self, items: Items) -> Iterator[str]:
        """Why the session is touched, from the functions and schemas in the statement."""
        for at, item in enumerate(items):
            if item == "(":
                function = _name(items, at - 1)
                if self.functions.fullmatch(function) and self.matters(function, items, at):
                    yield f"{function}()"
            elif item == ".":
                schema = _name(items, at - 1)
                if self.schemas.fullmatch(schema) and self.may_make(items, at):
                    yield schema

    def matters(self, function: str, items: Items, at: int) -> bool:
        """Whether a function touches the session with the arguments that begin at `at`."""
        return True

    def hides(self, items: Items, *, several: bool) -> bool:
        """Whether what it does to a transaction can neither be read nor be asked of the driver;
        `several`: there are other statements in the text."""
        return False

    def may_make(self, items: Items, at: int) -> bool:
        """Whether something of the schema before the dot at `at` may be made."""
        return items[at - 2 : at - 1] != ["."]

    def control(self, items: Items) -> Control | None:
        first, second = _first_two(items)
        if first == "BEGIN" or (first == "START" and second == "TRANSACTION"):
            return "begin"
        if second == "PREPARED":
            return None
        if first in self.committing:
            return "commit"
        if first == "PREPARE" and second == "TRANSACTION":
            return "prepare"  # for a commit in two phases, which may come or not
        if first in ("ROLLBACK", "ABORT") and "TO" not in items[1:3]:
            return "rollback"
        return None


class _PostgreSQL(_Rules):
    functions = re.compile(
        r"set_config|setseed|pg_advisory_(un)?lock(_shared|_all)?|pg_try_advisory_lock(_shared)?"
        r"|pg_replication_origin_session_(re)?set(up)?|dblink_(dis)?connect(_u)?|u&"
    )
    schemas = re.compile(r"pg_temp(_\d+)?")
    touching = re.compile("CALL|DEALLOCATE|DISCARD|DO|EXECUTE|LISTEN|LOAD|RESET|UNLISTEN")
    suspicious = ("_config", "setseed", "advisory", "origin", "dblink", "temp", "explain",
                  "pg_settings", 'u&"')  # fmt: skip
    lasting = re.compile(r"LOAD|dblink_connect(_u)?\(\)|pg_replication_origin_session_setup\(\)")
    replanning = re.compile("DEALLOCATE|DISCARD")

    def end(self, items: Items, start: int) -> int:
        """A semicolon in parentheses (CREATE RULE) or in BEGIN ATOMIC ... END ends nothing."""
        routine = _created(items[start : start + HEAD])[0] in ("FUNCTION", "PROCEDURE")
        parentheses = blocks = 0
        position = start
        while True:
            end = _next_semicolon(items, position)
            piece = items[position:end]
            parentheses += piece.count("(") - piece.count(")")
            if routine:
                blocks = _open_blocks(piece, blocks)
            if end == len(items) or (parentheses <= 0 and not blocks):
                return end
            position = end + 1

    def by_statement(self, items: Items) -> str | None:
        items = _explained(items)
        first, second = _first_two(items)
        if first == "SET":
            return None if second in ("LOCAL", "TRANSACTION", "CONSTRAINTS") else "SET"
        if first == "PREPARE":
            return None if second == "TRANSACTION" else "PREPARE"
        if first == "DECLARE" and _has(items, "WITH", "HOLD"):
            return "DECLARE WITH HOLD"
        return super().by_statement(items)

    def by_content(self, items: Items) -> Iterator[str]:
        if _selects_into_temporary(items):
            yield "SELECT INTO TEMPORARY"
        if "UPDATE" in items and any(_name([item], 0) == "pg_settings" for item in items):
            yield "UPDATE pg_settings"  # which does what SET does
        yield from super().by_content(items)


class _MySQL(_Rules):
    functions = re.compile("get_lock|release_lock|release_all_locks|last_insert_id")
    schemas = re.compile(r"(?!)")
    touching = re.compile(
        "BACKUP|BINLOG|CALL|CHANGE|DEALLOCATE|DO|EXECUTE|FLUSH|GET|HANDLER|INSTALL|LOAD|PREPARE|SET"
        "|UNINSTALL|USE|XA"
    )
    suspicious = ("_lock", "last_insert_id", "@", ":=", "/*!", "/*m!")
    committing = ("COMMIT",)
    begin_ends = "commit"
    lasting = re.compile("XA|SET PROFILING")
    # Of all other statements it is not known what else they run.
    plain = re.compile(
        "SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES|TABLE|SET|SHOW|EXPLAIN|DESCRIBE|DESC|DO"
        "|SAVEPOINT|RELEASE|ROLLBACK|HANDLER|LOAD|USE|HELP"
    )
    # These may commit, and the driver is told; if the next one begins a transaction, it is not.
    committing_alone = re.compile("CREATE|ALTER|DROP|TRUNCATE|RENAME|GRANT|REVOKE|LOCK|UNLOCK")

    def end(self, items: Items, start: int) -> int:
        """What has a body goes on to the end of the text: bodies are not read."""
        if self.body(items[start : start + HEAD]):
            return len(items)
        return super().end(items, start)

    def by_statement(self, items: Items) -> str | None:
        first, second = _first_two(items)
        if first in ("LOCK", "UNLOCK") or (first == "DROP" and second in ("TEMPORARY", "PREPARE")):
            return f"{first} {second}"
        if first == "FLUSH" and {"TABLE", "TABLES"}.intersection(items[1:3]):
            return "FLUSH TABLES"  # which may take locks
        if first == "SET" and "PROFILING" in items:
            return "SET PROFILING"  # the next task could read the texts of this one
        body = self.body(items)
        if body and (body not in _STORED or ";" in items[:-1]):
            return body  # a stored body is not run, but after its semicolons there may be anything
        return super().by_statement(items)

    def by_content(self, items: Items) -> Iterator[str]:
        if VERSION_COMMENT in items:
            yield "version comment"
        if ":=" in items or _has(items, "INTO", "@"):
            yield "user variable"
        for function in super().by_content(items):
            yield function.upper()

    def hides(self, items: Items, *, several: bool) -> bool:
        first, second = _first_two(_opened(items))
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
        first, second = _first_two(items)
        if first == "CREATE":
            kind = _created(items)[0]
            return f"CREATE {kind}" if kind in ROUTINES else None
        if first == "ALTER":
            return "ALTER EVENT" if "EVENT" in items[1:8] else None
        if first == "BEGIN":
            return None if second in ("", ";", "WORK") else "BEGIN NOT ATOMIC"
        return first if first in ("CASE", "FOR", "IF", "LOOP", "REPEAT", "WHILE") else None


class _SQLite(_Rules):
    functions = re.compile("load_extension")
    schemas = re.compile("temp")
    touching = re.compile("ATTACH|DETACH")
    suspicious = ("load_extension", "temp", "explain")
    reading = re.compile(  # pragmas whose argument changes nothing of the session
        r"\w+_list|(table|index)_x?info|(integrity|quick|foreign_key)_check"
        r"|incremental_vacuum|optimize|wal_checkpoint"
    )

    def end(self, items: Items, start: int) -> int:
        """CREATE TRIGGER ends with `; END ;`, as in sqlite3_complete()."""
        end = _next_semicolon(items, start)
        if _created(items[start : start + HEAD])[0] == "TRIGGER":
            while end < len(items) and items[end - 2 : end] != [";", "END"]:
                end = _next_semicolon(items, end + 1)
        return end

    def by_statement(self, items: Items) -> str | None:
        items = _explained(items)  # some pragmas act even so
        if items[:1] == ["PRAGMA"]:
            return self.by_pragma(items)
        return super().by_statement(items)

    def may_make(self, items: Items, at: int) -> bool:
        reads = items[0] == "SELECT" and _name(items, at + 1) in ("sqlite_master", "sqlite_schema")
        return not reads and super().may_make(items, at)

    def by_pragma(self, items: Items) -> str | None:
        at = 3 if items[2:3] == ["."] else 1
        pragma = _name(items, at)
        sets = items[at + 1 : at + 2] in (["="], ["("])
        return f"PRAGMA {pragma}" if sets and not self.reading.fullmatch(pragma) else None


_POSTGRESQL = _PostgreSQL()
_RULES = {"postgresql": _POSTGRESQL, "mysql": _MySQL(), "sqlite": _SQLite()}
_STORED = {"ALTER EVENT", *(f"CREATE {kind}" for kind in ROUTINES)}


def _items(text: str, dialect: Dialect, *, most: int | None) -> Items:
    """The first of them, or all."""
    items: Items = []
    for kind, start, end in tokens(text, dialect):
        if len(items) == most:
            break
        if kind == "word":
            items.append(text[start:end].upper())
        elif kind == "symbol":
            items.append(text[start:end])
        elif kind == "name" and dialect.e_strings and text[start - 2 : start] in ("u&", "U&"):
            items[-1] = '"U&'  # in the place of its U: a name that nobody reads here
        elif kind == "name" or (kind == "string" and text[start] == '"'):
            items.append(f'"{text[start + 1 : end - 1]}')  # with ANSI_QUOTES it is a name
        elif kind == "string" and dialect.brackets:
            items.append(text[start : end - 1])  # SQLite takes 'temp' for a name, too
        elif kind != "comment":
            items.append("'")
        elif dialect.hash_comments and text.startswith(("/*!", "/*M!"), start):
            items.append(VERSION_COMMENT)
    return items


def _name(items: Items, at: int) -> str:
    """The name at a place, in lower case and without its quote; "" if that is outside."""
    return items[at].lstrip("\"'").lower() if 0 <= at < len(items) else ""


def _first_two(items: Items) -> tuple[str, str]:
    return (items[0] if items else "", items[1] if len(items) > 1 else "")


def _next_semicolon(items: Items, start: int) -> int:
    try:
        return items.index(";", start)
    except ValueError:
        return len(items)


def _has(items: Items, first: str, second: str) -> bool:
    return any(items[at + 1 : at + 2] == [second] for at in _positions(items, first))


def _positions(items: Items, wanted: str) -> Iterator[int]:
    return (at for at, item in enumerate(items) if item == wanted)


def _opened(items: Items) -> Items:
    """Without the parentheses before the first word."""
    skip = 0
    while skip < len(items) and items[skip] in ("(", VERSION_COMMENT):
        skip += 1
    return items[skip:] if skip else items


def _explained(items: Items) -> Items:
    """The statement behind EXPLAIN: with ANALYZE it is run."""
    if items[:1] != ["EXPLAIN"]:
        return items
    skip = 1
    if items[1:2] == ["("] and ")" in items:
        skip = items.index(")") + 1
    while skip < len(items) and items[skip] in ("ANALYZE", "ANALYSE", "VERBOSE", "QUERY", "PLAN"):
        skip += 1
    return items[skip:]


def _created(items: Items) -> tuple[str, bool]:
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


def _open_blocks(items: Items, blocks: int) -> int:
    """How many BEGIN ATOMIC and CASE are open after `items`, if `blocks` were before."""
    for at, item in enumerate(items):
        if blocks:
            blocks += (item in ("BEGIN", "CASE")) - (item == "END")
        elif item == "BEGIN" and items[at + 1 : at + 2] == ["ATOMIC"]:
            blocks = 1
    return blocks


def _selects_into_temporary(items: Items) -> bool:
    for at in _positions(items, "INTO"):
        following = items[at + 1 : at + 3]
        if following[:1] in (["LOCAL"], ["GLOBAL"]):
            del following[0]
        inserts = at and items[at - 1] in ("INSERT", "MERGE")  # a table may be called temp
        if following[:1] in (["TEMP"], ["TEMPORARY"]) and not inserts:
            return True
    return False
