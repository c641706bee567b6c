"""What can be seen of a pool: events, statistics, holders, slots and waiters.

Extras use this module and the public methods of a pool, and nothing else of it;
`tests/project/test_imports.py` checks that. `sql.view` is the same for databases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from itertools import islice
from threading import Lock
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ._core import Histograms
from .events import (
    DestroyReason,
    EventKind,
    Holder,
    LaneStats,
    PoolEvent,
    RefusalReason,
    Stats,
    Subscription,
    lane_name,
    line_of,
    task_name,
)
from .pool import registry
from .pool.holders import holders_of
from .pool.journal import Entry
from .pool.registry import follow
from .pool.samples import SECONDS, Sample
from .states import Phase

if TYPE_CHECKING:
    from .lender import Loan
    from .pool import Pool
    from .pool.engine import Engine

__all__ = [
    "SECONDS", "DestroyReason", "Entry", "EventKind", "Histograms", "Holder", "LaneStats",
    "PoolEvent", "RefusalReason", "Sample", "SlotView", "Stats", "Subscription", "View",
    "WaiterView", "add_histograms", "entries_of", "factory_of", "follow", "holders_of",
    "lanes_of", "last_attempt_failed", "line_of", "loan_of", "look", "phase_of", "pools", "post",
    "remove_histograms", "samples_of", "task_name", "unsubscribe",
]  # fmt: skip

_histograms = Lock()  # exporters come and go in any thread


class SlotView(NamedTuple):
    """One slot at one moment. What is in a hook or being destroyed is only counted."""

    key: int  # the same as long as the slot lives
    state: str  # "idle", "active" or "creating"
    since: float | None  # of the pool's clock; None: not known
    uses: int
    task: str | None = None
    code: CodeType | None = None  # with the instruction: the caller of acquire(), see line_of()
    instruction: int = 0
    reason: str | None = None  # why it is pinned
    task_id: int = 0  # of the task, as long as that lives
    lane: str | None = None  # the name of the one through which it was acquired


class WaiterView(NamedTuple):
    """One acquire that waits. Times are of the pool's clock."""

    task: str
    since: float
    deadline: float | None
    code: CodeType | None
    instruction: int
    lane: str | None = None  # the name of the one through which it goes


class View(NamedTuple):
    """A pool at one moment; `look()` makes it."""

    now: float  # of the pool's clock
    phase: str
    circuit: str
    circuit_since: float | None  # None: since the beginning
    circuit_broken: float | None  # since when it has not been ACTIVE; None: it is
    strategy: object
    failure: str | None  # the last one that was reported to the breaker, in masked words
    failed: float | None  # when that was
    recovering_limit: int
    hooked: int  # resources in the pool's own hands: mostly in a hook
    thread: int  # in which its loop runs; 0: it has none
    slots: list[SlotView]
    waiters: list[WaiterView]  # the oldest first


def pools() -> list[Pool[Any]]:
    """Every pool of the process that lives, in no order; from any thread."""
    return cast("list[Pool[Any]]", registry.watched())


def phase_of(pool: Pool[Any]) -> Phase:
    """Return whether the pool is new, open, draining or closed."""
    return pool._engine.core.phase


def last_attempt_failed(pool: Pool[Any]) -> bool:
    """Return whether the last run of the factory that ended has failed."""
    return pool._engine.creations.failing


def factory_of(pool: Pool[Any]) -> Callable[..., Any]:
    """Return the factory that the pool was made with."""
    return pool._engine.settings.factory


def unsubscribe(pool: Pool[Any], callback: Callable[[PoolEvent], object]) -> None:
    """End a subscription; unlike what subscribe() returns, this does not keep the pool alive."""
    pool._engine.signals.unsubscribe(lambda each: each.callback == callback)


def loan_of(pool: Pool[Any]) -> Loan | None:
    """Return what was agreed with the lender of the pool's capacity; None if there is none."""
    return pool._engine.lending.loan


def add_histograms(pool: Pool[Any], bounds: Sequence[float]) -> Histograms:
    """Count waits and holds from now on, in buckets with these upper bounds; from any thread."""
    histograms = Histograms(bounds)
    core = pool._engine.core
    with _histograms:
        core.histograms = (*core.histograms, histograms)
    return histograms


def remove_histograms(pool: Pool[Any], histograms: Histograms) -> None:
    """End that; from any thread."""
    core = pool._engine.core
    with _histograms:
        core.histograms = tuple(each for each in core.histograms if each is not histograms)


def lanes_of(pool: Pool[Any]) -> list[LaneStats]:
    """Return the statistics of every lane of the pool."""
    return [lane.stats() for lane in pool.lanes()]


def post(pool: Pool[Any], step: Callable[[], object]) -> None:
    """Do this in the pool's own loop: at once if that runs here, is gone, or was never there."""
    loop = pool._engine.loop
    if loop is not None and loop is not asyncio._get_running_loop():
        try:
            loop.call_soon_threadsafe(step, context=Context())
        except RuntimeError:  # closed
            pass
        else:
            return
    step()


def samples_of(pool: Pool[Any], since: float) -> list[Sample]:
    """Return the seconds that ended after `since`, of the last 15 minutes; by way of `post()`."""
    engine = pool._engine
    if engine.loop is None:
        return []
    now = engine.history.catch_up()
    return [*engine.history.samples.since(since, now)]


def entries_of(pool: Pool[Any], changed: int) -> list[Entry]:
    """Return the entries of the journal that are new or have grown since `changed` of the newest
    that is known (0: all); by way of `post()`."""
    return pool._engine.history.journal.since(changed)


def look(pool: Pool[Any], *, slots: bool = True, waiters: int = 0) -> View:
    """The pool as it is now, with so many waiters at most; to be called by way of `post()`."""
    engine = pool._engine
    core = engine.core
    return View(
        now=engine.time(),
        phase=core.phase.value,
        circuit=str(core.circuit),
        circuit_since=engine.circuit.since,
        circuit_broken=engine.circuit.broken,
        strategy=engine.strategy,
        failure=engine.circuit.failure,
        failed=engine.circuit.failed,
        recovering_limit=core.recovering_limit,
        hooked=core.count - core.idle_count - core.out,
        thread=engine.thread,
        slots=_slots_of(engine) if slots else [],
        waiters=_waiters_of(core, waiters),
    )


def _slots_of(engine: Engine[Any]) -> list[SlotView]:
    core = engine.core
    found = [SlotView(id(slot), "idle", slot.idle_since, slot.uses) for slot in core.idle_slots()]
    for lease in core.holders():
        slot = lease.slot
        if slot is not None:
            found.append(
                SlotView(
                    id(slot),
                    "active",
                    lease.since,
                    slot.uses,
                    task_name(lease.task),
                    lease.code,
                    lease.instruction,
                    lease.reason,
                    id(lease.task),
                    lane_name(lease),
                )
            )
    found += [SlotView(id(slot), "creating", None, 0) for slot in engine.creations.tasks]
    return found


def _waiters_of(core: Any, limit: int) -> list[WaiterView]:
    waiting = islice(core.waiters(), limit)
    if core.lanes:
        waiting = islice(sorted(core.waiters(), key=lambda claim: claim.began), limit)
    return [
        WaiterView(
            task_name(claim.task), claim.began, claim.deadline, claim.code, claim.instruction,
            lane_name(claim),
        )
        for claim in waiting
    ]  # fmt: skip
