"""The ledger of a pool: what was created was destroyed, and nothing is left."""

from typing import Any

import cenote

OPEN = ("idle", "active", "waiting", "creating", "destroying")


def imbalance(pool: cenote.Pool[Any]) -> str:
    """What is wrong with the ledger of a closed pool; empty if nothing is."""
    stats = pool.stats()
    left = {name: getattr(stats, name) for name in OPEN if getattr(stats, name)}
    destroyed = sum(stats.destroyed.values())
    if stats.created == destroyed and not left:
        return ""
    return (
        f"{pool!r} was closed with an open ledger: "
        f"{stats.created} created, {destroyed} destroyed, left: {left}"
    )


def check_ledger(pool: cenote.Pool[Any]) -> None:
    """Fails unless the ledger of this closed pool is even."""
    wrong = imbalance(pool)
    assert not wrong, wrong
