"""Metrics and spans for OpenTelemetry, by its semantic conventions for connection pools.

    instrument(db, spans=["statement", "acquire"])    # without arguments all pools of the process

Counts are read when a reader collects. Durations are kept in a queue until then, because recording
one takes the SDK longer than the pool needs for an acquire.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from .. import __version__, observe, sqlstate
from ..observe import EventKind
from ..pool import Pool
from ..sql.database import Database
from ..sql.view import address_of, database_of, dialect_of
from .summary import summarize
from .tracking import PoolTracker, Target

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
BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)  # seconds
KEPT: Final = 100_000  # durations of a pool that wait for the next collection, at most
SPANS: Final = ("acquire", "create", "statement")

Attributes = dict[str, str | int]


def instrument(
    *targets: Target,
    meter_provider: metrics.MeterProvider | None = None,
    tracer_provider: trace.TracerProvider | None = None,
    spans: Iterable[str] = (),
    query_text: bool = False,
) -> Instrumentation:
    """Measure pools and databases until the result is closed.

    Args:
        targets: The pools and databases; all pools of the process if there are none.
        meter_provider: The provider of the meter; None for the global one.
        tracer_provider: The provider of the tracer; None for the global one.
        spans: The spans to make, of "acquire", "create" and "statement".
        query_text: Whether a span has the text of its statement. Parameters are never in it, but
            literals may be.

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
    )


class Instrumentation:
    """The running instrumentation that `instrument()` returns."""

    def __init__(
        self, targets: tuple[Target, ...], meter: metrics.Meter, tracing: Tracing | None
    ) -> None:
        self._tracing = tracing
        self._create_time = self._histogram(
            meter, "create_time", "The time it took to create a new connection."
        )
        self._wait_time = self._histogram(
            meter, "wait_time", "The time it took to obtain an open connection from the pool."
        )
        self._use_time = self._histogram(
            meter, "use_time", "The time between borrowing a connection and returning it."
        )
        self._tracker = PoolTracker(targets, self._attach)
        if tracing is not None and tracing.statements:
            for target in targets:
                if isinstance(target, Database):
                    tracing.observe(target)
        up_down = meter.create_observable_up_down_counter
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
            meter.create_observable_counter(
                "db.client.connection.timeouts", [self._timeouts], "{timeout}",
                "The number of acquires that timed out."),
        ]  # fmt: skip

    def close(self) -> None:
        """Stop measuring. Instruments that the API cannot remove report no values."""
        self._record()
        for pool, watch in self._tracker.close():
            observe.unsubscribe(pool, watch.hear)
        if self._tracing is not None:
            self._tracing.close()

    def _histogram(self, meter: metrics.Meter, name: str, text: str) -> metrics.Histogram:
        return meter.create_histogram(
            f"db.client.connection.{name}", "s", text, explicit_bucket_boundaries_advisory=BOUNDS
        )

    def _attach(self, pool: Pool[Any], name: str) -> Watch:
        watch = Watch(name, self._wait_time, self._use_time, self._create_time)
        if self._tracing is not None:
            watch.hear = self._tracing.subscriber(pool, name, watch.hear)
        pool.subscribe(watch.hear)
        return watch

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

    def _idle_max(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._sum(lambda pool: pool.max_size)

    def _idle_min(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._sum(lambda pool: pool.min_size)

    def _pending(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._sum(lambda pool: pool.waiting_count)

    def _timeouts(self, _: CallbackOptions) -> Iterator[Observation]:
        return self._sum(lambda pool: pool.stats().timeouts)

    def _sum(self, number: Callable[[Pool[Any]], int]) -> Iterator[Observation]:
        """Return one observation for each name; pools of the same name are added up."""
        tally: Tally[str] = Tally()
        for pool, watch in self._tracker.living():
            tally[watch.name] += number(pool)
        return (Observation(value, {POOL_NAME: name}) for name, value in tally.items())


class Watch:
    """The durations of one pool that were not recorded yet, in queues."""

    __slots__ = ("_attributes", "_create", "_uses", "_waits", "hear", "name")

    def __init__(
        self, name: str, wait: metrics.Histogram, use: metrics.Histogram, create: metrics.Histogram
    ) -> None:
        self.name: str = name
        self._attributes = {POOL_NAME: name}
        self._waits: tuple[deque[float], metrics.Histogram] = (deque(), wait)
        self._uses: tuple[deque[float], metrics.Histogram] = (deque(), use)
        self._create = create
        self.hear: Callable[[Any], None] = self._subscriber()

    def record(self, keep: int = 0) -> None:
        """Record all durations but the last `keep`, each once; it may run in any thread."""
        for queue, histogram in (self._waits, self._uses):
            for _ in range(len(queue) - keep):
                try:
                    seconds = queue.popleft()
                except IndexError:  # another reader was here
                    break
                histogram.record(seconds, self._attributes)

    def _subscriber(self) -> Callable[[Any], None]:
        waits, uses = self._waits[0], self._uses[0]
        note_wait, note_use = waits.append, uses.append
        acquired, released = EventKind.ACQUIRED, EventKind.RELEASED

        def hear(event: Any) -> None:
            kind = event.kind
            if kind == acquired:
                note_wait(event.duration)
            elif kind == released:
                note_use(event.duration)
                if len(uses) > KEPT:  # no reader collects, or too rarely
                    self.record(KEPT)
            elif kind == EventKind.CREATED:
                self._create.record(event.duration, self._attributes)
            elif kind == EventKind.CLOSED:
                self.record()

        return hear


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

    def subscriber(
        self, pool: Pool[Any], name: str, then: Callable[[Any], None]
    ) -> Callable[[Any], None]:
        """Return a subscriber that makes a span at the end of each step, from its event."""
        database = database_of(pool)
        attributes: Attributes = {} if database is None else describe(database)
        attributes[POOL_NAME] = name
        if database is not None and self.statements:
            self.observe(database)
        waiters = Waiters()
        acquires, creates = self._acquires, self._creates

        def hear(event: Any) -> None:
            then(event)
            kind = event.kind
            if acquires and kind == EventKind.WAITING:
                waiters.add(event.task)
            elif acquires and kind in (EventKind.ACQUIRED, EventKind.CANCELLED):
                self._over("cenote.acquire", event, attributes, None)
            elif acquires and kind == EventKind.TIMEOUT:
                self._over("cenote.acquire", event, attributes, waiters.find(event.task))
            elif creates and kind == EventKind.CREATED:
                # A creation belongs to the pool: a task that waits is not its parent.
                self._over("cenote.create", event, attributes, context.Context())

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
        task = self._tasks.get(name or "")
        return None if task is None else self._contexts.get(task)


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
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    span.set_attribute("error.type", code or name)
    span.set_status(StatusCode.ERROR)


def status_code(error: BaseException) -> str | None:
    """Return the code of the database: MySQL's number, SQLite's result code, or SQLSTATE."""
    number = getattr(error, "sqlite_errorcode", None)
    if any(base.__name__ == "MySQLError" for base in type(error).__mro__):
        number = error.args[0] if error.args else None
    return str(number) if isinstance(number, int) and number > 0 else sqlstate(error)
