"""Metrics and spans for OpenTelemetry, by its semantic conventions for connection pools.

    instrument(db, spans=["statement", "acquire"])    # without arguments all pools of the process

Counts are read when a reader collects. Waits and holds are counted by the core until then, in fine
buckets, because recording one takes the SDK longer than the pool needs for an acquire.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from .. import __version__, observe
from ..observe import EventKind, RefusalReason
from ..pool import Pool
from ..sql.database import Database
from ..sql.view import address_of, database_of, dialect_of
from .operations import ErrorTypes, OperationObservers, Record, class_name, status_code
from .shares import OF_FLEETS, OF_POOLS, Shares, shares_of
from .summary import summarize
from .tracking import Ends, PoolTracker, Sums, Target

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Span, SpanKind, StatusCode
except ImportError:
    raise ImportError(
        "opentelemetry-api is not installed: pip install 'cenote[otel]'", name="opentelemetry"
    ) from None

if TYPE_CHECKING:
    from opentelemetry.context import Context

SCHEMA: Final = "https://opentelemetry.io/schemas/1.36.0"
POOL_NAME: Final = "db.client.connection.pool.name"
STATE: Final = "db.client.connection.state"
OUTCOME: Final = "cenote.acquire.outcome"
REASON: Final = "cenote.refusal.reason"
LANE: Final = "cenote.lane.name"
FLEET: Final = "cenote.fleet.name"
OUTCOMES: Final = (
    ("acquired", "acquired"), ("timeout", "timeouts"), ("cancelled", "cancelled"),
    ("failed", "failed"),
)  # fmt: skip
BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)  # seconds
# Those of the core: ten to a decade, from a microsecond to a thousand seconds, and BOUNDS exactly.
FINE: Final = sorted({*BOUNDS, *(round(10 ** (power / 10), 12) for power in range(-60, 31))})
RECORDED: Final = 100_000  # durations of a pool and a kind, in one collection, at most
SPANS: Final = ("acquire", "create", "statement")
ACQUIRES: Final = frozenset(
    {EventKind.WAITING, EventKind.ACQUIRED, EventKind.CANCELLED, EventKind.TIMEOUT}
    | {EventKind.FAILED, EventKind.REFUSED}
)
CREATES: Final = frozenset({EventKind.CREATED, EventKind.CREATE_FAILED})

Attributes = dict[str, str | int]
Labels = tuple[tuple[str, str], ...]


def instrument(
    *targets: Target,
    meter_provider: metrics.MeterProvider | None = None,
    tracer_provider: trace.TracerProvider | None = None,
    spans: Iterable[str] = (),
    query_text: bool = False,
    statements: bool = True,
) -> Instrumentation:
    """Measure pools and databases until the result is closed.

    Args:
        targets: The pools and databases; all pools of the process if there are none.
        meter_provider: The provider of the meter; None for the global one.
        tracer_provider: The provider of the tracer; None for the global one.
        spans: The spans to make, of "acquire", "create" and "statement".
        query_text: Whether a span has the text of its statement. Parameters are never in it, but
            literals may be.
        statements: Whether the durations of statements are measured.

    Raises:
        TypeError: A target is neither a pool nor a database.
        ValueError: A span is unknown.
    """
    wanted = frozenset([spans] if isinstance(spans, str) else spans)
    if unknown := wanted.difference(SPANS):
        raise ValueError(f"spans must be of {', '.join(SPANS)}, not {', '.join(sorted(unknown))}")
    tracer = trace.get_tracer("cenote", __version__, tracer_provider, SCHEMA)
    return Instrumentation(
        targets,
        metrics.get_meter("cenote", __version__, meter_provider, SCHEMA),
        Tracing(tracer, wanted, query_text) if wanted else None,
        statements,
    )


class Instrumentation:
    """The running instrumentation that `instrument()` returns."""

    def __init__(
        self,
        targets: tuple[Target, ...],
        meter: metrics.Meter,
        tracing: Tracing | None,
        statements: bool,
    ) -> None:
        self._tracing = tracing
        self._statements = statements
        self._observers = OperationObservers()
        self._create_time = self._histogram(
            meter, "connection.create_time", "The time it took to create a new connection."
        )
        self._wait_time = self._histogram(
            meter,
            "connection.wait_time",
            "The time it took to obtain an open connection from the pool.",
        )
        self._use_time = self._histogram(
            meter,
            "connection.use_time",
            "The time between borrowing a connection and returning it.",
        )
        self._duration = self._histogram(
            meter, "operation.duration", "Duration of database client operations."
        )
        self._sums: defaultdict[str, Sums[Watch, Any]] = defaultdict(Sums)  # by counter
        self._tracker = PoolTracker(targets, self._attach)
        for target in targets:
            if isinstance(target, Database):
                self._observe(target)
        up_down = meter.create_observable_up_down_counter
        counter = meter.create_observable_counter
        self._instruments = [  # the first one also brings the durations
            up_down("db.client.connection.count", [self._count], "{connection}",
                    "The number of connections, by state."),
            up_down("db.client.connection.idle.max", [self._idle_max], "{connection}",
                    "The maximum number of idle open connections allowed."),
            up_down("db.client.connection.idle.min", [self._idle_min], "{connection}",
                    "The minimum number of idle open connections allowed."),
            up_down("db.client.connection.max", [self._idle_max], "{connection}",
                    "The maximum number of open connections allowed."),
            up_down("db.client.connection.pending_requests", [self._pending], "{request}",
                    "The number of acquires that are waiting."),
            counter("db.client.connection.timeouts", [self._timeouts], "{timeout}",
                    "The number of acquires that timed out."),
            counter("cenote.pool.acquires", [self._acquires], "{acquire}",
                    "The number of acquires that have ended, by outcome."),
            counter("cenote.pool.wait_time", [self._waited], "s",
                    "The time that all acquires which were served have waited, together."),
            counter("cenote.pool.use_time", [self._used], "s",
                    "The time for which all that came back was held, together."),
        ]  # fmt: skip
        for name, unit, text in OF_FLEETS:
            read = partial(self._of_fleets, name)
            self._instruments.append(up_down(f"cenote.fleet.{name}", [read], unit, text))
        for name, unit, text in OF_POOLS:
            read = partial(self._of_shares, name)
            self._instruments.append(up_down(f"cenote.fleet.{name}", [read], unit, text))

    def close(self) -> None:
        """Stop measuring. Instruments that the API cannot remove report no values."""
        self._record()
        for pool, watch in self._tracker.close():
            observe.unsubscribe(pool, watch.hear)
            observe.remove_histograms(pool, watch.histograms)
            if watch.trace is not None:
                observe.unsubscribe(pool, watch.trace)
        self._observers.close()
        if self._tracing is not None:
            self._tracing.close()

    def _histogram(self, meter: metrics.Meter, name: str, text: str) -> metrics.Histogram:
        return meter.create_histogram(
            f"db.client.{name}", "s", text, explicit_bucket_boundaries_advisory=BOUNDS
        )

    def _attach(self, pool: Pool[Any], name: str) -> Watch:
        watch = Watch(pool, name, self._wait_time, self._use_time, self._create_time)
        pool.subscribe(watch.hear, kinds={EventKind.CREATED, EventKind.CLOSED})
        if self._tracing is not None:
            watch.trace = self._tracing.follow(pool, name)
        database = database_of(pool)
        if database is not None:
            self._observe(database)
        return watch

    def _observe(self, database: Database) -> None:
        if self._tracing is not None and self._tracing.statements:
            self._tracing.observe(database)
        if self._statements:
            self._observers.observe(database, partial(self._record_of, database))

    def _record_of(self, database: Database) -> Record:
        """Return what records the statements of a database: at once, in their own context, so that
        an exemplar leads to the trace."""
        attributes, errors, histogram = describe(database), ErrorTypes(), self._duration

        def record(operation: str, seconds: float, error: BaseException | None) -> None:
            found = attributes | {"db.operation.name": operation}
            if error is not None:
                found["error.type"] = kind = errors.of(error)
                if kind == status_code(error):
                    found["db.response.status_code"] = kind
            histogram.record(seconds, found)

        return record

    # -- what is observed when a reader collects -------------------------------------------------

    def _count(self, _: CallbackOptions) -> Iterator[Observation]:
        self._record()
        idle: Tally[str] = Tally()
        used: Tally[str] = Tally()
        for pool, watch in self._tracker.living():
            stats = pool.stats()
            idle[watch.name] += stats.idle
            used[watch.name] += stats.active
        for state, tally in (("idle", idle), ("used", used)):
            for name, number in tally.items():
                yield Observation(number, {POOL_NAME: name, STATE: state})

    def _record(self) -> None:
        for _, watch in self._tracker.living():
            watch.record()

    def _shares(self) -> Shares:
        return shares_of((pool, watch.name) for pool, watch in self._tracker.living())

    def _of_fleets(self, name: str, _: CallbackOptions) -> Iterator[Observation]:
        for fleet, numbers in self._shares().fleets.items():
            if name in numbers:
                yield Observation(numbers[name], {FLEET: fleet})

    def _of_shares(self, name: str, _: CallbackOptions) -> Iterator[Observation]:
        for (fleet, pool), numbers in self._shares().pools.items():
            yield Observation(numbers[name], {FLEET: fleet, POOL_NAME: pool})

    def _idle_max(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._sum(lambda pool: pool.max_size)

    def _idle_min(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._sum(lambda pool: pool.min_size)

    def _pending(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._sum(lambda pool: pool.waiting_count)

    def _timeouts(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._total("timeouts", lambda pool: pool.stats().timeouts)

    def _waited(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._total("waited", lambda pool: pool.stats().wait_time)

    def _used(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._total("used", lambda pool: pool.stats().hold_time)

    def _sum(self, number: Callable[[Pool[Any]], float]) -> Iterator[Observation]:
        """Return one observation for each name; pools of the same name are added up."""
        tally: dict[str, float] = {}
        for pool, watch in self._tracker.living():
            tally[watch.name] = tally.get(watch.name, 0) + number(pool)
        return (Observation(value, {POOL_NAME: name}) for name, value in tally.items())

    def _total(self, what: str, number: Callable[[Pool[Any]], float]) -> Iterator[Observation]:
        """The same for a counter, which must not fall."""

        def count() -> Iterator[tuple[Watch, Tally[Any]]]:
            for pool, watch in self._tracker.living():
                values: dict[str, Any] = {what: number(pool)}
                yield watch, Tally(values)

        found = self._sums[what].read(count)
        return (Observation(tally[what], {POOL_NAME: name}) for name, tally in found.items())

    def _acquires(self, _: CallbackOptions) -> Iterator[Observation]:
        """Return one observation for each outcome, of the pool and of each lane."""
        for tally in self._sums["acquires"].read(self._ended).values():
            for labels, value in tally.items():
                yield Observation(value, dict(labels))

    def _ended(self) -> Iterator[tuple[Watch, Tally[Labels]]]:
        """Return how the acquires of each pool ended."""
        for pool, watch in self._tracker.living():
            tally: Tally[Labels] = Tally()
            lanes = observe.lanes_of(pool)  # first: what they count is in the statistics, too
            parts: list[tuple[Labels, dict[str, int]]]
            parts = [((), watch.ends.rest(pool.stats(), lanes))]
            parts += [(((LANE, lane.name),), watch.ends.of(lane)) for lane in lanes]
            for lane, ends in parts:
                base = (POOL_NAME, watch.name), *lane
                for outcome, name in OUTCOMES:
                    tally[*base, (OUTCOME, outcome)] += ends[name]
                for reason in RefusalReason:
                    tally[*base, (OUTCOME, "refused"), (REASON, str(reason))] += ends[reason]
            yield watch, tally


class Watch:
    """What of the durations of one pool was recorded already."""

    __slots__ = ("__weakref__", "_attributes", "_create", "_done", "_lock", "_use", "_wait", "ends",
                 "histograms", "name", "trace")  # fmt: skip

    def __init__(
        self,
        pool: Pool[Any],
        name: str,
        wait: metrics.Histogram,
        use: metrics.Histogram,
        create: metrics.Histogram,
    ) -> None:
        self.name: str = name
        self.trace: Callable[[Any], None] | None = None  # the subscriber that makes spans
        self.ends: Ends = Ends()
        self.histograms: observe.Histograms = observe.add_histograms(pool, FINE)
        self._attributes = {POOL_NAME: name}
        self._wait, self._use, self._create = wait, use, create
        nothing: Buckets = [(0, 0.0)] * (len(FINE) + 1)
        self._done = nothing, nothing
        self._lock = Lock()  # several readers may collect

    def record(self) -> None:
        """Record the waits and holds since the last time; it may run in any thread.

        Of each bucket, so many times its mean as there were: count and sum are exact. Above
        RECORDED a part of each, since recording takes time in proportion.
        """
        with self._lock:
            before, self._done = self._done, (self.histograms.waits, self.histograms.holds)
            after = self._done
        for histogram, old, new in zip((self._wait, self._use), before, after, strict=True):
            for seconds, times in thinned(difference(old, new), RECORDED):
                for _ in range(times):
                    histogram.record(seconds, self._attributes)

    def hear(self, event: observe.PoolEvent) -> None:
        """The subscriber, to what is rare."""
        if event.kind is EventKind.CREATED:
            self._create.record(event.duration or 0.0, self._attributes)
        else:
            self.record()


Buckets = list[tuple[int, float]]  # of each the count, and the sum of the seconds


def difference(old: Buckets, new: Buckets) -> list[tuple[float, int]]:
    """Return mean and count of what is new in each bucket."""
    found = []
    for bound, (count, total), (more, sum_) in zip((*FINE, inf), old, new, strict=True):
        if more > count:
            found.append((min(max(0.0, (sum_ - total) / (more - count)), bound), more - count))
    return found


def thinned(found: list[tuple[float, int]], most: int) -> list[tuple[float, int]]:
    """Return them in proportion so that there are about `most`, and at least one of each."""
    total = sum(times for _, times in found)
    if total <= most:
        return found
    return [(seconds, max(1, times * most // total)) for seconds, times in found]


class Tracing:
    """Makes the spans of acquires, creations and statements."""

    def __init__(self, tracer: trace.Tracer, wanted: frozenset[str], query_text: bool) -> None:
        self._tracer = tracer
        self._acquires = "acquire" in wanted
        self._creates = "create" in wanted
        self.statements: bool = "statement" in wanted
        self._query_text = query_text
        self._observed: weakref.WeakKeyDictionary[Database, Callable[[], None]]
        self._observed = weakref.WeakKeyDictionary()

    def close(self) -> None:
        for unobserve in [*self._observed.values()]:
            unobserve()
        self._observed.clear()

    # -- statements ------------------------------------------------------------------------------

    def observe(self, database: Database) -> None:
        """Record a span for every statement of this database from now on."""
        if database in self._observed:
            return
        attributes, dialect = describe(database), dialect_of(database)
        fallback = str(attributes.get("db.namespace", attributes["db.system.name"]))

        def begin(operation: str, text: str) -> Callable[[BaseException | None], None]:
            facts = dict(attributes)
            summary = summarize(text, dialect)
            if summary:
                facts["db.query.summary"] = summary
            if self._query_text:
                facts["db.query.text"] = text
            span = self._tracer.start_span(
                summary or fallback, kind=SpanKind.CLIENT, attributes=facts
            )
            token = context.attach(trace.set_span_in_context(span))

            def end(error: BaseException | None) -> None:
                context.detach(token)
                fail(span, error)
                span.end()

            return end

        self._observed[database] = database.observe(begin)

    # -- the pool --------------------------------------------------------------------------------

    def follow(self, pool: Pool[Any], name: str) -> Callable[[Any], None]:
        """Make a span at the end of each step, from its event; returns the subscriber."""
        database = database_of(pool)
        attributes: Attributes = {} if database is None else describe(database)
        attributes[POOL_NAME] = name
        waiters = Waiters()

        def hear(event: Any) -> None:
            kind = event.kind
            if kind == EventKind.WAITING:
                waiters.add(event.task)
            elif kind in CREATES:
                # A creation belongs to the pool: a task that waits is not its parent.
                self._over("cenote.create", event, attributes, context.Context())
            else:
                self._over("cenote.acquire", event, attributes, waiters.find(event.task))

        kinds: frozenset[EventKind] = frozenset()
        if self._acquires:
            kinds |= ACQUIRES
        if self._creates:
            kinds |= CREATES
        if kinds:
            pool.subscribe(hear, kinds=kinds)
        return hear

    def _over(self, name: str, event: Any, attributes: Attributes, parent: Context | None) -> None:
        end = time.time_ns()
        span = self._tracer.start_span(
            name, parent, attributes=attributes, start_time=end - round(event.duration * 1e9)
        )
        error = asyncio.CancelledError() if event.kind == EventKind.CANCELLED else event.error
        fail(span, error)
        span.end(end)


class Waiters:
    """In which context a task waits: a timeout happens in that of a timer.

    By the name of the task, which is all that an event has; of two tasks with the same name it is
    that of the last.
    """

    def __init__(self) -> None:
        self._tasks: weakref.WeakValueDictionary[str, asyncio.Task[Any]]
        self._tasks = weakref.WeakValueDictionary()
        self._contexts: weakref.WeakKeyDictionary[asyncio.Task[Any], Context]
        self._contexts = weakref.WeakKeyDictionary()

    def add(self, name: str | None) -> None:
        task = asyncio.current_task()
        if task is not None and name is not None:
            self._tasks[name] = task
            self._contexts[task] = context.get_current()

    def find(self, name: str | None) -> Context | None:
        """Return the context of the task if it is not the one that runs; None: the present one."""
        task = self._tasks.get(name or "")
        return None if task is None or name == _running() else self._contexts.get(task)


def _running() -> str | None:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None
    return None if task is None else task.get_name()


def describe(database: Database) -> Attributes:
    """Return the attributes of the server of a database, without user and password."""
    address = address_of(database)
    found: Attributes = {"db.system.name": address.system}
    if address.database:
        found["db.namespace"] = address.database
    if len(address.hosts) == 1:  # of several, the one in use is not known
        name, port = address.hosts[0]
        found["server.address"] = name
        if port is not None:
            found["server.port"] = port
    return found


def fail(span: Span, error: BaseException | None) -> None:
    """Mark the span as failed, without the message, which may show data."""
    if error is None:
        return
    code = status_code(error)
    if code is not None:
        span.set_attribute("db.response.status_code", code)
    span.set_attribute("error.type", code or class_name(error))
    span.set_status(StatusCode.ERROR)
