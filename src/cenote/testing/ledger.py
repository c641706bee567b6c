"""The ledger of a pool: what was made is gone, and every acquire that began has ended."""

from __future__ import annotations

from typing import Any

from ..events import Stats
from ..pool import Pool

OPEN = ("idle", "active", "waiting", "creating", "destroying")


def imbalance(pool: Pool[Any]) -> str:
    """Return what is wrong with the ledger of a closed pool; an empty string if nothing is."""
    stats = pool.stats()
    left = {name: getattr(stats, name) for name in OPEN if getattr(stats, name)}
    destroyed = sum(stats.destroyed.values())
    left |= {
        f"{name} in lane {lane.name!r}": number
        for lane in pool.lanes()
        for name, number in (("active", lane.active_count), ("waiting", lane.waiting_count))
        if number
    }
    over = ended(stats)
    if stats.created == destroyed and not left and stats.begun == over:
        return ""
    return (
        f"{pool!r} was closed with an open ledger: "
        f"{stats.created} created, {destroyed} destroyed, "
        f"{stats.begun} acquires begun, {over} ended, left: {left}{_held(pool)}"
    )


def ended(stats: Stats) -> int:
    """Return how many acquires have ended, in all the ways in which one can end."""
    refused = sum(stats.refused.values())
    return stats.acquired + stats.timeouts + stats.cancelled + stats.failed + refused


def check_ledger(pool: Pool[Any]) -> None:
    """Check that a closed pool has destroyed everything that it created.

    Args:
        pool: The pool, which must be closed.

    Raises:
        AssertionError: The pool is not closed, more was created than destroyed, something is
            idle, in use, waited for or under way, a lane has a place that did not come back, or an
            acquire has begun and its end was not counted; the message has the figures and the
            holders.
    """
    if not isinstance(pool, Pool):
        hint = ": pass its pool, db.pool" if hasattr(type(pool), "pool") else ""
        raise TypeError(f"check_ledger() takes a Pool, not {type(pool).__name__}{hint}")
    assert pool.closed, f"{pool!r} is not closed: close it before check_ledger()"
    wrong = imbalance(pool)
    assert not wrong, wrong


def _held(pool: Pool[Any]) -> str:
    places = [f"task {each.task!r} ({each.file}:{each.line})" for each in pool.holders()]
    return f"; held by {', '.join(places)}" if places else ""
