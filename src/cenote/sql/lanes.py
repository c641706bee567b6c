"""Lanes of a database: what is acquired inside `with lane:` goes through it, in every event loop.

A context variable says in which lanes a task is, so that the tasks that it starts are in them, too.
A database that has no lanes never looks at it: see `LoopDatabase.use_lanes`.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from .. import messages
from ..options import checked_lane

if TYPE_CHECKING:
    from ..events import LaneStats
    from ..pool import Lane
    from .database import Database


class Entered(NamedTuple):
    """A lane that a context has entered, and what it had entered before."""

    lane: EnteredLane
    outer: Entered | None


entered: ContextVar[Entered | None] = ContextVar("cenote lane", default=None)


class EnteredLane:
    """A lane that is used by `with lane:` or `async with lane:`."""

    def __init__(self, owner: object, name: str, max_size: int | None, priority: int) -> None:
        self.owner = owner
        self._name = name
        self._max_size = max_size
        self._priority = priority

    def __enter__(self) -> Self:
        entered.set(Entered(self, entered.get()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        last = entered.get()
        if last is None or last.lane is not self:
            raise RuntimeError(
                f"lane {self._name!r} was left in another task, or out of order: leave "
                f"lanes in the task that entered them, the innermost first"
            )
        entered.set(last.outer)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    @property
    def name(self) -> str:
        """The name of the lane, shown in holders, events, errors and metrics."""
        return self._name

    @property
    def max_size(self) -> int | None:
        """How many connections it has out at most, in each event loop; None: as many as the
        pool."""
        return self._max_size

    @property
    def priority(self) -> int:
        """Who waits with a higher one is served first; outside of lanes it is 0."""
        return self._priority


def innermost(owner: object) -> EnteredLane | None:
    """The innermost lane of this owner in which the running code is."""
    each = entered.get()
    while each is not None and each.lane.owner is not owner:
        each = each.outer
    return None if each is None else each.lane


class DatabaseLane(EnteredLane):
    """A part of the work of a database, with a limit and a priority; `Database.lane()` makes it.

    Inside `with lane:` or `async with lane:` every connection that is taken from the pool goes
    through the lane, also in the tasks that are started there. A connection that the task has
    already is simply used. Each event loop has a pool of its own, and so a lane of its own.
    """

    def __init__(self, database: Database, name: str, max_size: int | None, priority: int) -> None:
        super().__init__(database, name, max_size, priority)
        self._database = database

    @property
    def active_count(self) -> int:
        """Connections that are out, in the running event loop."""
        return self._here().active_count

    @property
    def waiting_count(self) -> int:
        """Tasks that wait for a connection, in the running event loop."""
        return self._here().waiting_count

    def stats(self) -> LaneStats:
        """A frozen snapshot of the counts and totals, in the running event loop."""
        return self._here().stats()

    def __repr__(self) -> str:
        limit = "no limit" if self._max_size is None else f"max {self._max_size}"
        return (
            f"<DatabaseLane {self._name!r} of {self._database!r}: {limit}, "
            f"priority {self._priority}>"
        )

    def _here(self) -> Lane[Any]:
        loop = asyncio._get_running_loop()
        if loop is None:
            raise RuntimeError(
                f"{self!r} counts in each event loop by itself, and none is running here. Read it "
                f"in a coroutine, such as the one given to asyncio.run()."
            )
        loop_databases = self._database._loop_databases
        loop_db = loop_databases.get(loop)  # also one that is closed, as for `db.pool`
        return (loop_databases.here() if loop_db is None else loop_db).lane(self)


class DatabaseLanes:
    """The lanes of one database, by name."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lanes: dict[str, DatabaseLane] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def get(self, name: str, max_size: int | None, priority: int) -> DatabaseLane:
        """The lane of this name, which is made if there is none.

        Raises `ValueError` if it was made with other options, or an argument is bad.
        """
        text, most, rank = checked_lane(name, max_size, priority)
        known = self._lanes.get(text)
        if known is None:
            known = self._lanes[text] = DatabaseLane(self._database, text, most, rank)
            for loop_db in [*self._database._loop_databases.values()]:
                loop_db.use_lanes()
        elif (known.max_size, known.priority) != (most, rank):
            owner = f"database {self._database._label}"
            raise messages.other_lane(owner, text, (known.max_size, known.priority), (most, rank))
        return known

    def all(self) -> list[DatabaseLane]:
        """The oldest first."""
        return [*self._lanes.values()]

    def entered(self) -> DatabaseLane | None:
        """The innermost lane of this database in which the running code is."""
        return cast("DatabaseLane | None", innermost(self._database))
