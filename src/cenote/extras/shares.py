"""What the pools that an exporter watches have of the budgets of their fleets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ..fleet.view import Share, share_of
from ..pool import Pool

# Name, unit as OpenTelemetry writes it, and help.
OF_POOLS: Final = (
    ("held", "{resource}", "Resources that the fleet lets this pool have now."),
    ("target", "{resource}", "Resources that this pool should have, as everybody needs them."),
    ("need", "{resource}", "The most resources in use and waited for at once, lately."),
    ("reachable", "1", "1 if the fleet answers this pool, 0 if the pool is on its own."),
)
OF_FLEETS: Final = (
    ("budget", "{resource}", "Resources that all pools of the fleet have together, at most."),
    ("used", "{resource}", "Resources that all pools of the fleet may have now, together."),
    ("processes", "{process}", "Processes of the fleet."),
)


@dataclass(slots=True)
class Shares:
    """The gauges of `OF_POOLS` by fleet and pool, and those of `OF_FLEETS` by fleet.

    Pools of the same name are added up; the fleet answers them if it answers each of them.
    """

    pools: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    fleets: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, name: str, share: Share) -> None:
        """Add what one pool has."""
        found = self.pools.setdefault(
            (share.fleet, name), {"held": 0, "target": 0, "need": 0, "reachable": 1}
        )
        found["held"] += share.held
        found["target"] += share.target or 0
        found["need"] += share.need
        found["reachable"] &= share.reachable
        fleet = self.fleets.setdefault(share.fleet, {})
        fleet["budget"] = min(share.budget, fleet.get("budget", share.budget))
        if share.used is not None and share.processes is not None:  # the pools' answers differ
            fleet["used"] = max(share.used, fleet.get("used", 0))
            fleet["processes"] = max(share.processes, fleet.get("processes", 0))


def shares_of(pools: Iterable[tuple[Pool[Any], str]]) -> Shares:
    """Return what these pools, each with its name, have of their fleets; from any thread."""
    shares = Shares()
    for pool, name in pools:
        share = share_of(pool)
        if share is not None:
            shares.add(name, share)
    return shares
