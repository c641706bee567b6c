"""A collector for prometheus_client.

    Collector(db, pool)    # these, in the default registry; without arguments all of the process

Counts are read from the pool when Prometheus scrapes. Durations come from a subscriber, which
only counts into lists: it looks up no label and takes no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite
from typing import Any, Final

from .. import observe
from ..observe import EventKind
from ..pool import Pool
from ..states import CircuitState
from .tracking import PoolTracker, Target

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Metric
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
except ImportError:
    raise ImportError(
        "prometheus_client is not installed: pip install 'cenote[prometheus]'",
        name="prometheus_client",
    ) from None

BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

# Name without the prefix, help, and the label besides `pool`.
GAUGES: Final = (
    ("resources", "Resources of the pool, by state.", "state"),
    ("waiting", "Acquires that are waiting.", None),
    ("min_size", "Resources that the pool keeps open, min_size.", None),
    ("max_size", "The largest number of resources, max_size.", None),
    ("circuit_state", "1 for the current state of the circuit breaker.", "state"),
)
COUNTERS: Final = (
    ("acquired", "Resources that were handed out.", None),
    ("released", "Resources that were returned, discarded ones included.", None),
    ("created", "Resources that the factory made.", None),
    ("destroyed", "Resources that were destroyed, by cause.", "reason"),
    ("timeouts", "Acquires that timed out.", None),
    ("cancelled", "Acquires that were cancelled while waiting.", None),
    ("rejected", "Resources that before_acquire or before_release rejected.", None),
    ("circuit_transitions", "Changes of the circuit breaker, by new state.", "state"),
)
HISTOGRAMS: Final = (
    ("wait_seconds", "Time from the call of acquire to the resource.", "waits"),
    ("hold_seconds", "Time from handing out a resource to its return.", "holds"),
    ("create_seconds", "Time that the factory took.", "creates"),
)


class Collector:
    """Collects the metrics of pools and databases. Pools of the same name are added up.

    Args:
        targets: The pools and databases; all pools of the process if there are none.
        registry: The registry to join; with None, register the collector yourself.
        buckets: The upper bounds of the histograms, in seconds, rising.

    Raises:
        TypeError: A target is neither a pool nor a database.
        ValueError: The buckets are not finite and rising.
    """

    def __init__(
        self,
        *targets: Target,
        registry: CollectorRegistry | None = REGISTRY,
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        self._bounds = _check_buckets(buckets)
        self._tracker = PoolTracker(targets, self._attach)
        self._registry = registry
        if registry is not None:
            try:
                registry.register(self)
            except BaseException:
                self._registry = None
                self.close()
                raise

    def close(self) -> None:
        """Leave the registry and unsubscribe from all pools."""
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.unregister(self)
        for pool, watch in self._tracker.close():
            observe.unsubscribe(pool, watch.hear)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values, which the registry asks for."""
        return self._families({})

    def collect(self) -> Iterator[Metric]:
        rows: dict[str, Row] = {}
        for pool, watch in self._tracker.living():
            row = rows.setdefault(watch.name, Row(len(self._bounds) + 1))
            row.add(pool, watch)
        return self._families(rows)

    def _attach(self, pool: Pool[Any], name: str) -> Watch:
        watch = Watch(pool, name, self._bounds)
        pool.subscribe(watch.hear)
        return watch

    def _families(self, rows: dict[str, Row]) -> Iterator[Metric]:
        for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, text, label in table:
                labels = ["pool"] if label is None else ["pool", label]
                family = kind(f"cenote_pool_{name}", text, labels=labels)
                for pool, row in rows.items():
                    for value, number in row.numbers[name].items():
                        family.add_metric([pool] if label is None else [pool, value], number)
                yield family
        for name, text, _ in HISTOGRAMS:
            histogram = HistogramMetricFamily(f"cenote_pool_{name}", text, labels=["pool"])
            for pool, row in rows.items():
                counts, total = row.durations[name]
                histogram.add_metric([pool], self._cumulative(counts), total)
            yield histogram

    def _cumulative(self, counts: list[int]) -> list[tuple[str, float]]:
        found, total = [], 0
        for bound, number in zip((*self._bounds, inf), counts, strict=True):
            total += number
            found.append(("+Inf" if bound == inf else repr(bound), float(total)))
        return found


class Row:
    """The numbers of all pools of one name, by metric."""

    def __init__(self, buckets: int) -> None:
        names = [name for name, *_ in (*GAUGES, *COUNTERS)]
        self.numbers: dict[str, Counter[str]] = {name: Counter() for name in names}
        self.durations: dict[str, tuple[list[int], float]] = {
            name: ([0] * buckets, 0.0) for name, *_ in HISTOGRAMS
        }

    def add(self, pool: Pool[Any], watch: Watch) -> None:
        """Add the numbers of one pool."""
        # Before what is counted elsewhere, so that no sum is ahead of its count for long.
        counts = {name: [*getattr(watch, field)] for name, _, field in HISTOGRAMS}
        stats, circuit = pool.stats(), pool.state
        numbers = self.numbers
        for state in ("idle", "active", "creating", "destroying"):
            numbers["resources"][state] += getattr(stats, state)
        for state in CircuitState:
            numbers["circuit_state"][state.lower()] += circuit is state
            numbers["circuit_transitions"][state.lower()] += watch.changes[state]
        numbers["min_size"][""] += pool.min_size
        numbers["max_size"][""] += pool.max_size
        for name in ("waiting", "acquired", "released", "created", "timeouts", "cancelled",
                     "rejected"):  # fmt: skip
            numbers[name][""] += getattr(stats, name)
        numbers["destroyed"].update(stats.destroyed)
        sums = {
            "wait_seconds": max(0.0, stats.wait_time - watch.waited_before),
            "hold_seconds": max(0.0, stats.hold_time - watch.held_before),
            "create_seconds": watch.create_time,
        }
        for name, (before, total) in self.durations.items():
            both = [one + other for one, other in zip(before, counts[name], strict=True)]
            self.durations[name] = (both, total + sums[name])


class Watch:
    """What the collector has counted of one pool."""

    __slots__ = ("changes", "create_time", "creates", "hear", "held_before", "holds", "name",
                 "waited_before", "waits")  # fmt: skip

    def __init__(self, pool: Pool[Any], name: str, bounds: list[float]) -> None:
        stats = pool.stats()
        self.name: str = name
        self.waited_before: float = stats.wait_time  # what came before the subscription
        self.held_before: float = stats.hold_time
        self.waits: list[int] = [0] * (len(bounds) + 1)
        self.holds: list[int] = [0] * (len(bounds) + 1)
        self.creates: list[int] = [0] * (len(bounds) + 1)
        self.create_time: float = 0.0
        self.changes: Counter[str] = Counter()
        self.hear: Callable[[Any], None] = self._subscriber(bounds)

    def _subscriber(self, bounds: list[float]) -> Callable[[Any], None]:
        """Return the subscriber; a closure is the fastest, and it runs for every acquire."""
        waits, holds, find, least = self.waits, self.holds, bisect_left, bounds[0]
        acquired, released = EventKind.ACQUIRED, EventKind.RELEASED

        def hear(event: Any) -> None:
            kind = event.kind
            if kind == acquired:
                seconds = event.duration
                waits[0 if seconds <= least else find(bounds, seconds)] += 1
            elif kind == released:
                seconds = event.duration
                holds[0 if seconds <= least else find(bounds, seconds)] += 1
            elif kind == EventKind.CREATED:
                self.create_time += event.duration
                self.creates[find(bounds, event.duration)] += 1
            elif kind == EventKind.STATE_CHANGED:
                self.changes[event.reason] += 1

        return hear


def _check_buckets(buckets: Sequence[float]) -> list[float]:
    bounds = [float(bound) for bound in buckets]
    if not bounds or not all(map(isfinite, bounds)) or bounds != sorted(set(bounds)):
        raise ValueError(
            f"buckets must be upper bounds in seconds, finite and rising, not {buckets!r}"
        )
    return bounds
