"""What can be seen of a pool: events, statistics, holders, slots and waiters.

Extras use this module and the public methods of a pool, and nothing else of it;
`tests/project/test_imports.py` checks that. `sql.view` is the same for databases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .events import (
    DestroyReason,
    EventKind,
    Holder,
    PoolEvent,
    Stats,
    Subscription,
    line_of,
    task_name,
)
from .pool import registry
from .pool.holders import holders_of
from .pool.registry import follow
from .states import Phase

if TYPE_CHECKING:
    from .pool import Pool
    from .pool.engine import Engine

__all__ = [
    "DestroyReason", "EventKind", "Holder", "PoolEvent", "SlotView", "Stats", "Subscription",
    "View", "WaiterView", "factory_of", "follow", "holders_of", "line_of", "look", "phase_of",
    "pools", "post", "task_name", "unsubscribe",
]  # fmt: skip


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


class WaiterView(NamedTuple):
    """One acquire that waits. Times are of the pool's clock."""

    task: str
    since: float
    deadline: float | None
    code: CodeType | None
    instruction: int


class View(NamedTuple):
    """A pool at one moment; `look()` makes it."""

    now: float  # of the pool's clock
    phase: str
    circuit: str
    circuit_since: float | None  # None: since the beginning
    strategy: object
    failure: str | None  # the last one that was reported to the breaker, in masked words
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


def factory_of(pool: Pool[Any]) -> Callable[..., Any]:
    """Return the factory that the pool was made with."""
    return pool._engine.settings.factory


def unsubscribe(pool: Pool[Any], callback: Callable[[PoolEvent], object]) -> None:
    """For those who must not keep the pool alive, as what subscribe() returns does."""
    pool._engine.signals.unsubscribe(lambda each: each.callback == callback)


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


def look(pool: Pool[Any], *, slots: bool = True, waiters: int = 0) -> View:
    """The pool as it is now, with so many waiters at most; to be called by way of `post()`."""
    engine = pool._engine
    core = engine.core
    return View(
        now=engine.time(),
        phase=core.phase.value,
        circuit=str(core.circuit),
        circuit_since=engine.circuit.since,
        strategy=engine.strategy,
        failure=engine.circuit.failure,
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
                )
            )
    found += [SlotView(id(slot), "creating", None, 0) for slot in engine.creations.tasks]
    return found


def _waiters_of(core: Any, limit: int) -> list[WaiterView]:
    found: list[WaiterView] = []
    claim = core.first
    while claim is not None and len(found) < limit:
        found.append(
            WaiterView(
                task_name(claim.task), claim.began, claim.deadline, claim.code, claim.instruction
            )
        )
        claim = claim.next
    return found
