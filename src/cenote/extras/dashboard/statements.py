"""What the connections of databases run now, and which statements take the time.

A database has an observer only as long as a dashboard wants to know. Parameters are never seen;
strings and numbers in the text are replaced by question marks.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from ...messages import split_reason
from ...pool import Pool
from ...sql.database import Database
from ...sql.dialects import Dialect
from ...sql.parsing.tokens import readings, tokens
from ...sql.view import database_of, dialect_of, holder_of_statement
from ..tracking import PoolTracker
from . import text

TEXTS: Final = 200  # that are counted of each database; the most expensive stay
SHOWN: Final = 10  # of them, by the time they took together
LOOKED_AT: Final = 2000  # characters of one: megabytes would hold up the event loop
LITERALS: Final = frozenset({"string", "number"})


class Running(NamedTuple):
    """A statement that has begun."""

    text: str
    since: int  # ms of the wall clock
    task: int = 0  # the id of the task that runs it


class Totals:
    """The observer of one database."""

    def __init__(self, database: Database) -> None:
        self._database = weakref.ref(database)
        self._dialect = dialect_of(database)
        # By the id of the task that holds the connection: what it runs, and what waits for that.
        self._running: dict[int, list[Running]] = {}
        self._totals: dict[str, list[float]] = {}  # text -> times, seconds, longest, errors

    def __call__(self, operation: str, said: str) -> Callable[[BaseException | None], None]:
        shape = shape_of(said, self._dialect)
        task = asyncio.current_task()
        database = self._database()
        holder = task if database is None else holder_of_statement(database)
        begun = Running(shape, round(time.time() * 1000), id(task))
        self._running.setdefault(id(holder), []).append(begun)
        return partial(self._end, id(holder), begun, time.monotonic())

    def running(self) -> dict[int, Running]:
        """Return what each connection runs, by the id of the task that holds it.

        Several tasks may use the connection of a transaction, one after the other: it is the
        statement of the first. Of two in one task it is the inner one, such as a BEGIN.
        """
        found = {}
        for holder, begun in [*self._running.items()]:
            runs: Running | None = None
            for each in [*begun]:
                if runs is None or each.task == runs.task:
                    runs = each
            if runs is not None:
                found[holder] = runs
        return found

    def reason(self, said: str) -> str:
        """Return why a connection is pinned, without literals in the text of a statement."""
        why, text_of_it = split_reason(said)
        return f"{why} ({shape_of(text_of_it, self._dialect)})" if text_of_it else why

    def slowest(self) -> list[list[Any]]:
        """Return text, times, mean, longest (seconds) and errors, the most expensive first."""
        known = sorted(self._totals.copy().items(), key=lambda item: -item[1][1])[:SHOWN]
        return [
            [said, round(times), seconds / times, longest, round(errors)]
            for said, (times, seconds, longest, errors) in known
        ]

    def _end(
        self,
        holder: int,
        begun: Running,
        began: float,
        error: BaseException | None,
    ) -> None:
        took = time.monotonic() - began
        shape = begun.text
        others = self._running[holder]
        others.remove(begun)
        if not others:
            del self._running[holder]
        total = self._totals.get(shape)
        if total is None:
            if len(self._totals) >= TEXTS:
                self._forget()
            total = self._totals[shape] = [0, 0.0, 0.0, 0]
        total[0] += 1
        total[1] += took
        total[2] = max(total[2], took)
        total[3] += error is not None

    def _forget(self) -> None:
        """Keep the dearer half."""
        known = sorted(self._totals.items(), key=lambda item: -item[1][1])
        self._totals = dict(known[: TEXTS // 2])


class StatementLog:
    """The totals of every database, from `start()` on; it keeps no database alive."""

    def __init__(self) -> None:
        self._totals: weakref.WeakKeyDictionary[Database, Totals] = weakref.WeakKeyDictionary()
        self._endings: list[Callable[[], None]] = []
        self._tracker: PoolTracker[None] | None = None

    def start(self) -> None:
        """Observe every database of the process, and those that are made later."""
        if self._tracker is None:
            self._tracker = PoolTracker((), self._attach)

    def stop(self) -> None:
        """End that."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.close()
        while self._endings:
            self._endings.pop()()
        self._totals.clear()

    def of(self, pool: Pool[Any]) -> Totals | None:
        """Return the totals of the database that the pool belongs to, if it does."""
        database = database_of(pool) if self._tracker is not None else None
        return None if database is None else self._totals.get(database)

    def _attach(self, pool: Pool[Any], name: str) -> None:
        database = database_of(pool)
        if database is not None and database not in self._totals:
            totals = self._totals[database] = Totals(database)
            self._endings.append(database.observe(totals))


def shape_of(said: str, dialect: Dialect) -> str:
    """Return the beginning of the text on one line, with question marks for what may be data."""
    if len(said) <= LOOKED_AT:
        return _shape_of(said, dialect)
    # A literal that is cut off is one all the same: it reaches to the end.
    return text.clean(f"{_shape_of(said[:LOOKED_AT], dialect)}\u2026")


@lru_cache(maxsize=512)
def _shape_of(said: str, dialect: Dialect) -> str:
    if len(readings(said, dialect)) > 1:  # where a string ends depends on the session
        words = [said[start:end] for kind, start, end in tokens(said, dialect) if kind == "word"]
        return f"{words[0] if words else ''} \u2026".strip()
    parts: list[str] = []
    last = 0
    for kind, start, end in tokens(said, dialect):
        if kind in LITERALS or kind == "comment":
            parts.append(said[last:start])
            parts.append("?" if kind in LITERALS else " ")
            last = end
    parts.append(said[last:])
    shape = " ".join("".join(parts).split())
    return text.clean(shape.replace("?.?", "?"))  # 12.5 is two numbers to the tokens
