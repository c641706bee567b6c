"""A collector for prometheus_client.

    Collector(db, pool)    # these, in the default registry; without arguments all of the process

Everything about acquires is read from the pool when Prometheus scrapes, histograms of waits and
holds included: the core counts them. Only what is rare has a subscriber.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf, isfinite
from threading import Lock
from typing import Any, Final

from .. import observe
from ..observe import EventKind, RefusalReason
from ..pool import Pool
from ..sql.database import Database
from ..sql.view import address_of, database_of, name_of
from ..states import CircuitState
from .operations import ErrorTypes, OperationObservers
from .shares import OF_FLEETS, OF_POOLS, Shares, shares_of
from .tracking import ENDS, Ends, PoolTracker, Sums, Target

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

# Name without the prefix, and help.
GAUGES: Final = (
    ("resources", "Resources of the pool, by state."),
    ("waiting", "Acquires that are waiting."),
    ("min_size", "Resources that the pool keeps open, min_size."),
    ("max_size", "The largest number of resources, max_size."),
    ("circuit_state", "Pools whose circuit breaker is in this state."),
    ("lane_active", "Resources that are out by way of a lane."),
    ("lane_max_size", "The largest number of resources that a lane has out, max_size."),
)
COUNTERS: Final = (
    ("begun", "Acquires that have begun."),
    ("acquired", "Resources that were handed out."),
    ("released", "Resources that were returned, discarded ones included."),
    ("created", "Resources that were created."),
    ("create_failures", "Creations that failed, whichever task waited for them."),
    ("destroyed", "Resources that were destroyed, by cause."),
    ("timeouts", "Acquires that timed out."),
    ("cancelled", "Acquires that were cancelled while waiting."),
    ("failed", "Acquires that ended because no resource could be created."),
    ("refused", "Acquires that were refused, by reason."),
    ("rejected", "Resources that before_acquire or before_release rejected."),
    ("circuit_transitions", "Changes of the circuit breaker, by new state."),
)
HISTOGRAMS: Final = (
    ("wait_seconds", "Time from the call of acquire to the resource."),
    ("hold_seconds", "Time from handing out a resource to its return."),
    ("create_seconds", "Time that it took to create a resource."),
)
OPERATION_DURATION: Final = "db_client_operation_duration_seconds"

Labels = tuple[tuple[str, str], ...]
Key = tuple[Any, ...]  # of a number in a row that never falls
Buckets = list[tuple[int, float]]  # of each the count, and the sum of the seconds


class Collector:
    """Collects the metrics of pools and databases. Pools of the same name are added up.

    Args:
        targets: The pools and databases; all pools of the process if there are none.
        registry: The registry to join; with None, register the collector yourself.
        buckets: The upper bounds of the histograms, in seconds, rising.
        statements: Whether the statements of databases are measured.

    Raises:
        TypeError: A target is neither a pool nor a database.
        ValueError: The buckets are not finite and rising.
    """

    def __init__(
        self,
        *targets: Target,
        registry: CollectorRegistry | None = REGISTRY,
        buckets: Sequence[float] = BUCKETS,
        statements: bool = True,
    ) -> None:
        self._bounds = _check_buckets(buckets)
        self._statements = statements
        self._operations: dict[str, Operations] = {}  # by the name of the database
        self._observers = OperationObservers()
        self._sums: Sums[Watch, Key] = Sums()
        self._tracker = PoolTracker(targets, self._attach)
        for target in targets:
            if isinstance(target, Database):
                self._observe(target)
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
            observe.remove_histograms(pool, watch.histograms)
        self._observers.close()
        self._operations.clear()

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values, which the registry asks for."""
        return self._families({}, {}, Shares())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now; it may be called in any thread."""
        rows: dict[str, Row] = {}
        living: list[tuple[Pool[Any], Watch]] = []

        def count() -> Iterator[tuple[Watch, Counter[Key]]]:
            living[:] = self._tracker.living()
            for pool, watch in living:
                own = Row(len(self._bounds) + 1)
                own.add(pool, watch)
                rows.setdefault(watch.name, Row(len(self._bounds) + 1)).add_gauges(own)
                yield watch, own.counters()

        for name, counters in self._sums.read(count).items():
            rows[name].set_counters(counters)
        shares = shares_of((pool, watch.name) for pool, watch in living)
        return self._families(rows, self._operations, shares)

    def _attach(self, pool: Pool[Any], name: str) -> Watch:
        watch = Watch(pool, name, self._bounds)
        pool.subscribe(
            watch.hear,
            kinds={EventKind.CREATED, EventKind.CREATE_FAILED, EventKind.STATE_CHANGED},
        )
        database = database_of(pool)
        if database is not None:
            self._observe(database)
        return watch

    def _observe(self, database: Database) -> None:
        if self._statements:
            self._observers.observe(database, partial(self._record_of, database))

    def _record_of(self, database: Database) -> Operations:
        system, name = address_of(database).system, name_of(database)
        if name not in self._operations:
            self._operations[name] = Operations(system, self._bounds)
        return self._operations[name]

    def _families(
        self, rows: dict[str, Row], operations: dict[str, Operations], shares: Shares
    ) -> Iterator[Metric]:
        for kind, table, suffix in (
            (GaugeMetricFamily, GAUGES, ""),
            (CounterMetricFamily, COUNTERS, "_total"),
        ):
            for name, text in table:
                family = kind(f"cenote_pool_{name}", text)
                for pool, row in rows.items():
                    for labels, number in row.numbers[name].items():
                        family.add_sample(
                            family.name + suffix, {"pool": pool, **dict(labels)}, number
                        )
                yield family
        for name, text in HISTOGRAMS:
            histogram = HistogramMetricFamily(f"cenote_pool_{name}", text)
            for pool, row in rows.items():
                self._add_buckets(histogram, {"pool": pool}, row.durations[name])
            yield histogram
        yield from _fleet_families(shares)
        durations = HistogramMetricFamily(
            OPERATION_DURATION, "Time that a statement took, the wait for a connection included."
        )
        for pool, measured in [*operations.items()]:
            for labels, buckets in measured.read():
                self._add_buckets(durations, {"pool": pool, **dict(labels)}, buckets)
        yield durations

    def _add_buckets(self, family: Metric, labels: dict[str, str], buckets: Buckets) -> None:
        count = 0
        for bound, (number, _) in zip((*self._bounds, inf), buckets, strict=True):
            count += number
            least = "+Inf" if bound == inf else repr(bound)
            family.add_sample(f"{family.name}_bucket", {**labels, "le": least}, count)
        family.add_sample(f"{family.name}_count", labels, count)
        family.add_sample(f"{family.name}_sum", labels, sum(total for _, total in buckets))


class Row:
    """The numbers of all pools of one name, by metric."""

    def __init__(self, buckets: int) -> None:
        names = [name for name, _ in (*GAUGES, *COUNTERS)]
        self.numbers: dict[str, Counter[Labels]] = {name: Counter() for name in names}
        self.durations: dict[str, Buckets] = {name: [(0, 0.0)] * buckets for name, _ in HISTOGRAMS}

    def add(self, pool: Pool[Any], watch: Watch) -> None:
        """Add the numbers of one pool."""
        lanes = observe.lanes_of(pool)  # first: what they count is in the statistics, too
        stats, circuit = pool.stats(), pool.state
        numbers = self.numbers
        for state in ("idle", "active", "creating", "destroying"):
            numbers["resources"][("state", state),] += getattr(stats, state)
        for each in CircuitState:
            state = each.lower()
            numbers["circuit_state"][("state", state),] += circuit is each
            numbers["circuit_transitions"][("state", state),] += watch.changes[each]
        numbers["min_size"][()] += pool.min_size
        numbers["max_size"][()] += pool.max_size
        for name in ("released", "created", "rejected"):
            numbers[name][()] += getattr(stats, name)
        numbers["create_failures"][()] += watch.create_failures
        for why, number in stats.destroyed.items():
            numbers["destroyed"][("reason", why),] += number
        self._add_ends(watch.ends.rest(stats, lanes), ())
        numbers["waiting"][()] += max(0, stats.waiting - sum(lane.waiting for lane in lanes))
        for lane in lanes:
            labels = (("lane", lane.name),)
            self._add_ends(watch.ends.of(lane), labels)
            numbers["waiting"][labels] += lane.waiting
            numbers["lane_active"][labels] += lane.active
            if lane.max_size is not None:
                numbers["lane_max_size"][labels] += lane.max_size
        for name, buckets in (
            ("wait_seconds", watch.histograms.waits),
            ("hold_seconds", watch.histograms.holds),
            ("create_seconds", watch.creates.copy()),
        ):
            self.durations[name] = [
                (count + more, total + seconds)
                for (count, total), (more, seconds) in zip(
                    self.durations[name], buckets, strict=True
                )
            ]

    def add_gauges(self, other: Row) -> None:
        """Add what of another row may rise and fall."""
        for name, _ in GAUGES:
            self.numbers[name].update(other.numbers[name])

    def counters(self) -> Counter[Key]:
        """Return everything that never falls."""
        found: dict[Key, Any] = {
            (name, labels): number
            for name, _ in COUNTERS
            for labels, number in self.numbers[name].items()
        }
        for name, _ in HISTOGRAMS:
            for index, pair in enumerate(self.durations[name]):
                found[name, index, 0], found[name, index, 1] = pair
        return Counter(found)

    def set_counters(self, counters: Counter[Key]) -> None:
        """Set what `counters()` returns."""
        for name, _ in HISTOGRAMS:
            self.durations[name] = [
                (counters.pop((name, index, 0)), counters.pop((name, index, 1)))
                for index in range(len(self.durations[name]))
            ]
        for (name, labels), number in counters.items():
            self.numbers[name][labels] = number

    def _add_ends(self, ends: dict[str, int], labels: Labels) -> None:
        """Add how acquires ended: of a lane, or outside of lanes."""
        for name in ENDS:
            self.numbers[name][labels] += ends[name]
        for reason in RefusalReason:
            self.numbers["refused"][*labels, ("reason", str(reason))] += ends[reason]


class Watch:
    """What the collector has counted of one pool."""

    __slots__ = ("__weakref__", "_bounds", "changes", "create_failures", "creates", "ends",
                 "histograms", "name")  # fmt: skip

    def __init__(self, pool: Pool[Any], name: str, bounds: list[float]) -> None:
        self._bounds = bounds
        self.name: str = name
        self.histograms: observe.Histograms = observe.add_histograms(pool, bounds)
        self.creates: Buckets = [(0, 0.0)] * (len(bounds) + 1)
        self.create_failures: int = 0
        self.changes: Counter[str] = Counter()
        self.ends: Ends = Ends()

    def hear(self, event: observe.PoolEvent) -> None:
        """The subscriber, to what is rare."""
        if event.kind is EventKind.CREATED:
            _count(self._bounds, self.creates, event.duration or 0.0)
        elif event.kind is EventKind.CREATE_FAILED:
            self.create_failures += 1
        elif event.reason is not None:
            self.changes[event.reason] += 1


class Operations:
    """The durations of the statements of one database, by operation and error."""

    def __init__(self, system: str, bounds: list[float]) -> None:
        self._system = system
        self._bounds = bounds
        self._errors = ErrorTypes()
        self._found: dict[tuple[str, str | None], Buckets] = {}
        self._lock = Lock()  # a database may be used in several threads

    def __call__(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """Count a statement that has ended."""
        with self._lock:
            key = operation, None if error is None else self._errors.of(error)
            buckets = self._found.get(key)
            if buckets is None:
                buckets = self._found[key] = [(0, 0.0)] * (len(self._bounds) + 1)
            _count(self._bounds, buckets, seconds)

    def read(self) -> list[tuple[Labels, Buckets]]:
        """Return what was counted, each with its labels."""
        with self._lock:
            found = [(key, buckets.copy()) for key, buckets in self._found.items()]
        return [
            (
                (
                    ("db_system_name", self._system),
                    ("db_operation_name", operation),
                    *(() if error is None else (("error_type", error),)),
                ),
                buckets,
            )
            for (operation, error), buckets in found
        ]


def _fleet_families(shares: Shares) -> Iterator[Metric]:
    for name, _, text in OF_FLEETS:
        family = GaugeMetricFamily(f"cenote_fleet_{name}", text, labels=["fleet"])
        for fleet, numbers in shares.fleets.items():
            if name in numbers:
                family.add_metric([fleet], numbers[name])
        yield family
    for name, _, text in OF_POOLS:
        family = GaugeMetricFamily(f"cenote_fleet_{name}", text, labels=["fleet", "pool"])
        for labels, numbers in shares.pools.items():
            family.add_metric(labels, numbers[name])
        yield family


def _count(bounds: list[float], buckets: Buckets, seconds: float) -> None:
    place = bisect_left(bounds, seconds)
    count, total = buckets[place]
    buckets[place] = count + 1, total + seconds


def _check_buckets(buckets: Sequence[float]) -> list[float]:
    bounds = [float(bound) for bound in buckets]
    if not bounds or not all(map(isfinite, bounds)) or bounds != sorted(set(bounds)):
        raise ValueError(
            f"buckets must be upper bounds in seconds, finite and rising, not {buckets!r}"
        )
    return bounds
