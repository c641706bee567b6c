"""Lanes: parts of the acquires of one pool, each with a limit and a priority.

The core has a record of each, and keeps limit and order; what users see of it is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

from .. import messages, options
from .._fast import Acquire
from ..events import LaneStats, Totals
from ..messages import label
from ..options import UNSET, Unset

if TYPE_CHECKING:
    from .engine import Engine
    from .pool import Pool

T = TypeVar("T")


class Lane(Generic[T]):
    """A part of the acquires of a pool; `Pool.lane()` makes it.

    It never has more than `max_size` resources in use. Waiters of a higher priority are served
    first; within one priority it is first come, first served.
    """

    __slots__ = ("__weakref__", "_name", "_pool")

    def __init__(self, pool: Pool[T], name: str) -> None:
        self._pool = pool
        self._name = name

    def acquire(
        self,
        timeout: float | Unset | None = UNSET,
        *,
        wait_timeout: float | None = None,
        scoped: bool = False,
    ) -> Acquire[T]:
        """Acquire a resource through this lane; the same as `Pool.acquire()` otherwise.

        Args:
            timeout: As in `Pool.acquire()`. It includes the wait for a place in the lane.
            wait_timeout: As in `Pool.acquire()`.
            scoped: As in `Pool.acquire()`.

        Raises:
            AcquireTimeoutError: There was no resource, or no place in the lane, in time. What else
                `Pool.acquire()` raises is raised as well.
        """
        acquire = self._pool.acquire(timeout, wait_timeout=wait_timeout, scoped=scoped)
        acquire.lane = self._record
        return acquire

    def try_acquire(self) -> T | None:
        """The same as `Pool.try_acquire()`; None, too, if the lane is at its limit."""
        engine = self._pool._engine
        if engine.core.busy:
            return None  # in the middle of another step: that would need waiting
        return engine.step(engine.try_acquire_slow, self._record)

    @property
    def name(self) -> str:
        """The name of the lane, shown in holders, events, errors and metrics."""
        return self._name

    @property
    def max_size(self) -> int | None:
        """The most resources that it leases at a time; None for as many as the pool has."""
        size: int | None = self._record.max_size
        return size

    @property
    def priority(self) -> int:
        """Its priority: waiters of a higher one are served first; `Pool.acquire()` has 0."""
        priority: int = self._record.priority
        return priority

    @property
    def active_count(self) -> int:
        """Resources leased through this lane, or being examined by a hook."""
        return active(self._record)

    @property
    def waiting_count(self) -> int:
        """Acquires of this lane that wait."""
        return waiting(self._record)

    def stats(self) -> LaneStats:
        """A frozen snapshot of the counts and totals."""
        return self._pool._engine.lanes.stats(self._name)

    def __repr__(self) -> str:
        record = self._record
        limit = "no limit" if record.max_size is None else f"max {record.max_size}"
        return (
            f"<Lane {self._name!r} of {label(self._pool.name)}: {active(record)} active, "
            f"{waiting(record)} waiting, {limit}, priority {record.priority}>"
        )

    @property
    def _record(self) -> Any:
        return self._pool._engine.lanes.records[self._name]


class Lanes:
    """The lanes of a pool: by name the record of the core, what is counted, and the face."""

    __slots__ = ("_engine", "_faces", "records", "totals")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self.records: dict[str, Any] = {}
        self.totals: dict[str, Totals] = {}
        self._faces: WeakValueDictionary[str, Lane[Any]] = WeakValueDictionary()

    def open(self, pool: Pool[T], name: Any, max_size: Any, priority: Any) -> Lane[T]:
        """The lane of this name, which is made if there is none.

        Raises `ValueError` if it was made with other options, or an argument is bad.
        """
        text, most, rank = options.checked_lane(name, max_size, priority)
        record = self.records.get(text)
        if record is None:
            self._add(text, most, rank)
        elif (record.max_size, record.priority) != (most, rank):
            has = record.max_size, record.priority
            raise messages.other_lane(label(pool.name), text, has, (most, rank))
        return self.face(pool, text)

    def face(self, pool: Pool[T], name: str) -> Lane[T]:
        """The lane of this name, which exists: the same object as long as somebody has it."""
        lane = self._faces.get(name)
        if lane is None:
            lane = self._faces[name] = Lane(pool, name)
        return lane

    def take_over(self, others: Lanes) -> None:
        """The same lanes as those of the parent of a fork, empty."""
        for name, record in others.records.items():
            self._add(name, record.max_size, record.priority)

    def note_time(self) -> None:
        """A place is about to be free: the claim that gets it stands in the queue from now on."""
        if self.records:
            self._engine.core.now = self._engine.time()

    def totals_of(self, claim: Any) -> tuple[Totals, ...]:
        """Where the end of this claim is counted: of the pool, and of its lane."""
        if claim.lane is None:
            return (self._engine.totals,)
        return self._engine.totals, self.totals[claim.lane.name]

    def stats(self, name: str) -> LaneStats:
        """A snapshot; from any thread."""
        engine, record, totals = self._engine, self.records[name], self.totals[name]
        began = [claim.began for claim in [*engine.core.waiters()] if claim.lane is record]
        granted = sum(claim.lane is record for claim in engine.core.granted())
        ended = totals.timeouts + totals.cancelled + totals.failed + sum(totals.refused.values())
        return LaneStats(
            name=name,
            max_size=record.max_size,
            priority=record.priority,
            active=active(record),
            waiting=waiting(record),
            oldest_wait=max(0.0, engine.time() - min(began)) if began else 0.0,
            begun=record.acquired + ended + len(began) + granted,
            acquired=record.acquired,
            timeouts=totals.timeouts,
            cancelled=totals.cancelled,
            failed=totals.failed,
            refused=totals.refused_by_reason(),
            wait_time=record.wait_time,
            max_wait_time=record.max_wait_time,
        )

    def _add(self, name: str, max_size: int | None, priority: int) -> None:
        self.records[name] = self._engine.core.add_lane(name, max_size, priority)
        self.totals[name] = Totals()


def active(record: Any) -> int:
    """How many resources a lane has out; who stands in the queue has a place, and no resource."""
    out: int = record.used - record.queued
    return out


def waiting(record: Any) -> int:
    """How many wait, in the queue or for a place."""
    waiters: int = record.queued + record.parked
    return waiters
