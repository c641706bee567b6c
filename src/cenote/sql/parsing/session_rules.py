"""Session rules: what a statement leaves in the session, and which transactions it begins or ends.

`analyse` applies the rules of a dialect to every statement of a text. In doubt the session counts
as touched: that costs one reset, while state that is overlooked is seen by the next task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from .items import (
    HEAD,
    Items,
    created,
    first_two,
    has_several,
    items_of,
    name_at,
    next_semicolon,
    opened,
)
from .tokens import condensed, readings

if TYPE_CHECKING:
    from ..dialects.dialect import Dialect

Control = Literal["begin", "commit", "prepare", "rollback"]
READ_ONLY = re.compile(r"\bread\s+only\b|read_only")
NOTHING = re.compile(r"(?!)")  # matches no text
LONG = 2000  # characters from which on a text is condensed before all of it is read


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
    """Apply the rules of a dialect to every statement of a text. Where sessions with other settings
    read it in another way, it touches what it would touch in any of them."""
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
    rules = dialect.rules
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
    whole = items_of(text, dialect, most=None if suspicious or several else HEAD)
    several = several and has_several(whole)  # a semicolon in a comment or a string separates none
    for items in rules.split(whole):
        statement = opened(items)
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


class SessionRules:
    """What the statements of a database do to a session and to its transactions.

    A reason is a short text such as "SET" or "CREATE TEMPORARY", which messages show. A subclass
    sets the attributes, and overrides the methods where they do not suffice. It has no state.
    """

    # First words of statements that touch the session, whatever follows; also the reason.
    touching: re.Pattern[str] = re.compile(
        "CALL|DEALLOCATE|DISCARD|DO|EXECUTE|LOAD|LOCK|PREPARE|RESET|SET|UNLOCK|USE"
    )
    functions: re.Pattern[str] = NOTHING  # names of functions that touch the session
    schemas: re.Pattern[str] = NOTHING  # names of schemas of temporary objects
    # Parts, in lower case, of every text in which `functions`, `schemas` or by_content() may find
    # something; of a text without them only the beginnings of the statements are read.
    suspicious: tuple[str, ...] = ()
    lasting: re.Pattern[str] = NOTHING  # reasons that no reset undoes
    replanning: re.Pattern[str] = NOTHING  # reasons after which prepared statements are gone
    # Reasons that may have changed the session or not: no setting, role or lock was asked for.
    doubtful: frozenset[str] = frozenset({"CALL", "DEALLOCATE", "DISCARD", "DO", "EXECUTE"})
    undone: frozenset[str] = frozenset()  # reasons that ROLLBACK undoes
    committing: tuple[str, ...] = ("COMMIT", "END")  # first words of statements that commit
    begin_ends: Control | None = None  # what BEGIN does to a transaction that is open

    def suspects(self, text: str) -> tuple[bool, bool]:
        """Whether a text has to be read as a whole: for its content, or for several statements."""
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
        return next_semicolon(items, start)

    def by_statement(self, items: Items) -> str | None:
        """Why the session is touched, from what the statement is."""
        if items and self.touching.fullmatch(items[0]):
            return items[0]
        return "CREATE TEMPORARY" if created(items)[1] else None

    def by_content(self, items: Items) -> Iterator[str]:
        """Why the session is touched, from the functions and schemas in the statement."""
        for at, item in enumerate(items):
            if item == "(":
                function = name_at(items, at - 1)
                if self.functions.fullmatch(function) and self.matters(function, items, at):
                    yield f"{function}()"
            elif item == ".":
                schema = name_at(items, at - 1)
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
        """What a statement does to a transaction; None: nothing."""
        first, second = first_two(items)
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
