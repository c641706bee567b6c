"""OpenTelemetry: metrics and spans as the SDK itself gives them out."""

import asyncio
import gc
import logging
import sqlite3
import weakref

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support import backends
from tests.support.kit import Holding, Thing, acquiring, cancel, outcome

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    Sum,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)
from opentelemetry.semconv._incubating.attributes import db_attributes
from opentelemetry.semconv._incubating.metrics import db_metrics
from opentelemetry.trace import SpanKind, StatusCode

from cenote.extras import otel
from cenote.extras.summary import summarize
from cenote.sql.dialects import POSTGRESQL

POOL = "db.client.connection.pool.name"
STATE = "db.client.connection.state"


class Kit:
    """An SDK of its own, and what it has heard."""

    def __init__(self):
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracers.get_tracer("test")
        self.begun = []

    def instrument(self, *targets, **options):
        self.begun.append(
            otel.instrument(
                *targets, meter_provider=self.meters, tracer_provider=self.tracers, **options
            )
        )
        return self.begun[-1]

    def metrics(self):
        """By name, without the common prefix."""
        data = self.reader.get_metrics_data()
        return {
            metric.name.removeprefix("db.client.connection."): metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name):
        """What the points say, by their attributes besides the pool."""
        metric = self.metrics().get(name)
        found = {}
        for point in metric.data.data_points if metric else ():
            attributes = dict(point.attributes)
            pool = attributes.pop(POOL)
            key = (pool, *attributes.values())
            assert key not in found
            found[key if len(key) > 1 else pool] = (
                (point.count, point.sum) if isinstance(point, HistogramDataPoint) else point.value
            )
        return found

    def spans(self, name=None):
        spans = self.exporter.get_finished_spans()
        return [span for span in spans if name is None or span.name == name]

    def close(self):
        for instrumentation in self.begun:
            instrumentation.close()
        self.meters.shutdown()
        self.tracers.shutdown()


@pytest.fixture
def kit():
    kit = Kit()
    yield kit
    kit.close()


@pytest.fixture
def database(tmp_path):
    return cenote.Database(f"sqlite:///{tmp_path}/file.db", name="shop")


def seconds(span):
    return (span.end_time - span.start_time) / 1e9


# -- metrics -------------------------------------------------------------------------------------


async def test_all_metrics_of_the_conventions_with_their_units(make_pool, kit):
    pool = make_pool(Thing, name="main")
    kit.instrument(pool)
    async with pool.acquire():
        pass
    found = kit.metrics()
    expected = {
        name for key, name in vars(db_metrics).items() if key.startswith("DB_CLIENT_CONNECTION_")
    }
    assert len(expected) == 9
    assert {f"db.client.connection.{name}" for name in found if "cenote" not in name} == expected
    for name, metric in found.items():
        if name.startswith("cenote."):
            continue
        assert metric.description
        unit = {"pending_requests": "{request}", "timeouts": "{timeout}"}.get(name, "{connection}")
        assert metric.unit == ("s" if name.endswith("_time") else unit)
        if isinstance(metric.data, Sum):
            assert metric.data.is_monotonic == (name == "timeouts")
        for point in metric.data.data_points:
            assert point.attributes[POOL] == "main"
    assert db_attributes.DB_CLIENT_CONNECTION_POOL_NAME == POOL
    assert db_attributes.DB_CLIENT_CONNECTION_STATE == STATE


async def test_counts_are_those_of_the_pool(make_pool, kit):
    pool = make_pool(Thing, min_size=1, max_size=2, name="main")
    kit.instrument(pool)
    await pool.open()
    assert kit.points("count") == {("main", "idle"): 1, ("main", "used"): 0}
    holdings = [Holding(pool), Holding(pool)]
    waiter = acquiring(pool)
    await settle()
    assert kit.points("count") == {("main", "idle"): 0, ("main", "used"): 2}
    assert kit.points("pending_requests") == {"main": 1}
    assert kit.points("max") == kit.points("idle.max") == {"main": 2}
    assert kit.points("idle.min") == {"main": 1}
    for holding in holdings:
        await holding.leave()
    pool.release(await waiter)


@pytest.mark.virtual_time
async def test_timeouts_and_durations_are_recorded(make_pool, kit):
    async def slow():
        await asyncio.sleep(2)
        return Thing()

    pool = make_pool(slow, max_size=1, name="main")
    kit.instrument(pool)
    holding = Holding(pool)
    await advance(2)
    assert isinstance(await outcome(pool.acquire(timeout=1)), cenote.AcquireTimeoutError)
    waiter = acquiring(pool)
    await advance(3)
    await holding.leave()
    await settle()
    pool.release(waiter.result())
    assert kit.points("timeouts") == {"main": 1}
    assert kit.points("create_time") == {"main": (1, 2.0)}
    assert kit.points("wait_time") == {"main": (2, 5.0)}
    assert kit.points("use_time") == {"main": (2, 4.0)}
    assert kit.points("use_time") == {"main": (2, 4.0)}  # each of them once
    (point,) = kit.metrics()["use_time"].data.data_points
    assert point.explicit_bounds == otel.BOUNDS
    assert point.bucket_counts[0] == 1


@pytest.mark.virtual_time
async def test_too_many_durations_are_recorded_in_proportion(make_pool, kit, monkeypatch):
    monkeypatch.setattr(otel, "RECORDED", 10)
    pool = make_pool(Thing, name="main")
    kit.instrument(pool)
    for seconds in (*[0.75] * 80, *[2] * 20):
        async with pool.acquire():
            await advance(seconds)
    (point,) = kit.metrics()["use_time"].data.data_points
    assert dict(zip(otel.BOUNDS, point.bucket_counts, strict=False))[1.0] == 8
    assert (point.count, point.sum) == (10, pytest.approx(10))
    assert kit.points("cenote.pool.use_time") == {"main": pytest.approx(100)}  # all of it
    assert kit.points("cenote.pool.acquires")["main", "acquired"] == 100


async def test_the_durations_of_a_closed_pool_are_not_lost(make_pool, kit):
    pool = make_pool(Thing, name="main")
    kit.instrument(pool)
    async with pool.acquire():
        pass
    await pool.close()
    assert kit.points("use_time")["main"][0] == 1
    assert kit.points("count") == {}


async def test_pools_of_the_same_name_are_one_point(make_pool, kit):
    kit.instrument(*(make_pool(Thing, max_size=size, name="main") for size in (2, 3)))
    assert kit.points("max") == {"main": 5}


def test_a_pool_is_not_kept_alive(kit):
    pool = cenote.Pool(Thing, name="main")
    kit.instrument(pool, spans=["acquire", "create"])
    assert kit.points("max") == {"main": 10}
    del pool
    assert kit.points("max") == {}


async def test_all_pools_and_databases_are_the_default(make_pool, kit, database):
    kit.instrument(spans=["statement"])
    pool = make_pool(Thing, name="main")
    assert await database.fetch_val("select 1") == 1
    assert {"main", "shop"} <= kit.points("max").keys()
    assert [span.name for span in kit.spans()] == ["select"]
    await database.close()
    await pool.close()


async def test_closing_ends_the_instrumentation(make_pool, kit, database):
    pool = make_pool(Thing, name="main")
    instrumentation = kit.instrument(pool, database, spans=otel.SPANS)
    instrumentation.close()
    async with pool.acquire():
        await database.fetch_val("select 1")
    assert kit.metrics() == {}
    assert kit.spans() == []
    assert pool._engine.subscribers == ()
    assert not database._observers
    await database.close()


# -- spans of the pool ---------------------------------------------------------------------------


async def test_spans_are_off_unless_asked_for(make_pool, kit, database):
    pool = make_pool(Thing, name="main")
    kit.instrument(pool, database)
    async with pool.acquire():
        await database.fetch_val("select 1")
    await database.close()
    assert kit.spans() == []


def test_unknown_spans_are_refused(kit):
    with pytest.raises(ValueError, match=r"^spans must be of acquire, create, statement, not all$"):
        kit.instrument(spans=["all"])


@pytest.mark.virtual_time
async def test_an_acquire_is_a_child_of_what_asks_for_it(make_pool, kit):
    pool = make_pool(Thing, max_size=1, name="main")
    kit.instrument(pool, spans="acquire")
    holding = Holding(pool)
    await settle()

    async def request():
        with kit.tracer.start_as_current_span("request"):
            async with pool.acquire():
                pass

    task = asyncio.create_task(request())
    await advance(2)
    await holding.leave()
    await task
    first, second = kit.spans("cenote.acquire")
    (parent,) = kit.spans("request")
    assert first.parent is None
    assert second.parent.span_id == parent.context.span_id
    assert (seconds(first), seconds(second)) == (0, pytest.approx(2))
    assert second.kind is SpanKind.INTERNAL
    assert dict(second.attributes) == {POOL: "main"}
    assert second.status.status_code is StatusCode.UNSET


@pytest.mark.virtual_time
async def test_an_acquire_that_fails_has_an_error(make_pool, kit):
    pool = make_pool(Thing, max_size=1, name="main")
    kit.instrument(pool, spans=["acquire"])
    holding = Holding(pool)
    await settle()
    with kit.tracer.start_as_current_span("request") as parent:
        assert isinstance(await outcome(acquiring(pool, timeout=1)), cenote.AcquireTimeoutError)
        waiter = acquiring(pool)
        await advance(3)
        await cancel(waiter)
    await holding.leave()
    _, late, cancelled = kit.spans("cenote.acquire")
    for span, error, duration in (
        (late, "cenote.errors.AcquireTimeoutError", 1),
        (cancelled, "asyncio.exceptions.CancelledError", 3),
    ):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == error
        assert seconds(span) == pytest.approx(duration)
        assert span.parent.span_id == parent.get_span_context().span_id


@pytest.mark.virtual_time
async def test_refusals_and_failed_creations_have_spans(make_pool, kit):
    def fail():
        raise OSError("secret")

    pool = make_pool(fail, name="main")
    kit.instrument(pool, spans=["acquire", "create"])
    with kit.tracer.start_as_current_span("request") as parent:
        assert isinstance(await outcome(pool.acquire()), OSError)
        pool.deactivate()
        assert isinstance(await outcome(pool.acquire()), cenote.ServiceUnavailableError)
    failed, refused = kit.spans("cenote.acquire")
    (created,) = kit.spans("cenote.create")
    for span, error in (
        (failed, "OSError"),
        (refused, "cenote.errors.ServiceUnavailableError"),
        (created, "OSError"),
    ):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == error
        assert "secret" not in span.to_json()
    assert created.parent is None
    for span in (failed, refused):
        assert span.parent.span_id == parent.get_span_context().span_id


@pytest.mark.virtual_time
async def test_a_refused_waiter_has_the_parent_of_its_task(make_pool, kit):
    pool = make_pool(Thing, max_size=1, name="main")
    kit.instrument(pool, spans=["acquire"])
    holding = Holding(pool)
    await settle()
    with kit.tracer.start_as_current_span("request") as parent:
        waiter = acquiring(pool)
        await settle()
    with kit.tracer.start_as_current_span("operator"):
        pool.deactivate()
    assert isinstance(await outcome(waiter), cenote.ServiceUnavailableError)
    (span,) = (each for each in kit.spans("cenote.acquire") if "error.type" in each.attributes)
    assert span.parent.span_id == parent.get_span_context().span_id
    await holding.leave()


@pytest.mark.virtual_time
async def test_a_creation_has_no_parent(make_pool, kit):
    async def slow():
        await asyncio.sleep(2)
        return Thing()

    with kit.tracer.start_as_current_span("request"):
        pool = make_pool(slow, name="main")
        kit.instrument(pool, spans=["create"])
        async with pool.acquire():
            pass
    (span,) = kit.spans("cenote.create")
    assert span.parent is None
    assert seconds(span) == pytest.approx(2)
    assert dict(span.attributes) == {POOL: "main"}


# -- spans of statements -------------------------------------------------------------------------


async def test_a_statement_has_its_span(kit, database, tmp_path):
    kit.instrument(database, spans=["statement", "acquire"])
    with kit.tracer.start_as_current_span("request") as parent:
        assert await database.fetch_val("select 'secret', ?", [1]) == "secret"
        assert trace.get_current_span() is parent
    (span,) = kit.spans("select")
    assert span.kind is SpanKind.CLIENT
    assert span.parent.span_id == parent.get_span_context().span_id
    assert dict(span.attributes) == {
        db_attributes.DB_SYSTEM_NAME: "sqlite",
        db_attributes.DB_NAMESPACE: f"{tmp_path}/file.db",
        db_attributes.DB_QUERY_SUMMARY: "select",
    }
    assert span.status.status_code is StatusCode.UNSET
    (acquire,) = kit.spans("cenote.acquire")
    assert acquire.parent.span_id == span.context.span_id
    assert dict(acquire.attributes) == {
        db_attributes.DB_SYSTEM_NAME: "sqlite",
        db_attributes.DB_NAMESPACE: f"{tmp_path}/file.db",
        POOL: "shop",
    }
    await database.close()


async def test_the_text_is_only_shown_if_asked_for(kit, database):
    kit.instrument(database, spans=["statement"], query_text=True)
    await database.fetch_val("select ?", ["secret"])
    (span,) = kit.spans()
    assert span.attributes[db_attributes.DB_QUERY_TEXT] == "select ?"
    await database.close()


async def test_every_way_to_run_a_statement_is_one_span(kit, database):
    kit.instrument(database, spans=["statement"])
    await database.execute("create table t (x)")
    async with database.transaction() as tx:
        await database.execute("insert into t values (1)")
        await tx.execute("update t set x = 2")
        await tx.execute_many("insert into t values (?)", [[3], [4]])
        async with await database.prepare("select x from t") as statement:
            assert len(await statement.fetch_all()) == 3
        assert len([row async for row in tx.iterate("select x from t")]) == 3
    await database.begin()
    await database.execute_many("delete from t where x = ?", [[3], [4]])
    await database.rollback()
    await database.fetch_one("/* nothing */")
    assert [span.name for span in kit.spans()] == [
        "create t",
        "BEGIN", "insert t", "update t", "insert t", "select t", "select t", "COMMIT",
        "BEGIN", "delete t", "ROLLBACK",
        database._driver.config.target.database,
    ]  # fmt: skip
    assert all(span.status.status_code is StatusCode.UNSET for span in kit.spans())
    await database.close()


async def test_a_statement_that_fails_tells_no_message(kit, database):
    kit.instrument(database, spans=["statement"], query_text=False)
    await outcome(database.execute("select secret from nowhere"))
    (span,) = kit.spans("select nowhere")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == str(sqlite3.SQLITE_ERROR)
    assert "secret" not in span.to_json()
    assert span.events == ()
    await database.close()


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("SELECT * FROM users WHERE name = 'secret'", "SELECT users"),
        ("insert into Shipping (id) select id from orders", "insert Shipping select orders"),
        ("select * from songs s, artists, public.labels l", "select songs artists public.labels"),
        ("select * from songs join artists using (id)", "select songs artists"),
        ('select * from "song list"', 'select "song list"'),
        ("select * from (select * from orders) o", "select"),
        ("delete from t where x in (select y from z)", "delete t"),
        ("select extract(year from day) from t where a is distinct from b", "select t"),
        ("select replace(a, 'x', 'from y') from generate_series(1, 3) g, t", "select t"),
        (
            "with gone as (delete from t) insert into log select * from gone",
            "insert log select gone",
        ),
        ("insert into t values (1) on conflict (a) do update set b = 2", "insert t"),
        ("select a from t for update", "select t"),
        ("update only t set a = 1", "update t"),
        ("create table if not exists t (a int)", "create t"),
        ("select 1; delete from t", "select delete t"),
        ("-- nothing", ""),
        ("select a from " + "t" * 300, "select " + "t" * 248),
    ],
)
def test_the_summary_of_a_statement(text, summary):
    assert summarize(text, POSTGRESQL) == summary


async def test_the_number_of_mysql_is_the_error_type(kit, mariadb_server):
    pytest.importorskip("asyncmy")
    database = cenote.Database(backends.mysql(mariadb_server).url)
    kit.instrument(database, spans=["statement"])
    error = await outcome(database.execute("select * from nowhere"))
    (span,) = kit.spans("select nowhere")
    assert error.args[0] == 1146
    assert span.attributes["error.type"] == "1146"
    assert span.attributes[db_attributes.DB_RESPONSE_STATUS_CODE] == "1146"
    await database.close()


def test_the_number_of_the_operating_system_is_no_status_code():
    assert otel.status_code(ConnectionRefusedError(111, "nobody is there")) is None


async def test_an_sqlstate_is_the_error_type(kit, postgres_server):
    pytest.importorskip("asyncpg")
    database = cenote.Database(postgres_server.tcp_url())
    kit.instrument(database, spans=["statement"])
    await outcome(database.execute("select * from nowhere"))
    (span,) = kit.spans("select nowhere")
    assert span.attributes["error.type"] == "42P01"
    assert span.attributes[db_attributes.DB_RESPONSE_STATUS_CODE] == "42P01"
    assert span.attributes[db_attributes.DB_SYSTEM_NAME] == "postgresql"
    assert isinstance(span.attributes["server.port"], int)
    await database.close()


@pytest.mark.parametrize(
    ("package", "url", "expected"),
    [
        (
            "asyncpg",
            "postgresql://app:s3cr3t@db.example:5433/shop",
            {"db.system.name": "postgresql", "db.namespace": "shop",
             "server.address": "db.example", "server.port": 5433},
        ),
        (
            "psycopg",
            "postgresql+psycopg://db.example",
            {"db.system.name": "postgresql", "server.address": "db.example"},
        ),
        (
            "asyncpg",
            "postgres://a,b/shop",
            {"db.system.name": "postgresql", "db.namespace": "shop"},
        ),
        (
            "asyncmy",
            "mariadb://app:s3cr3t@db.example/shop",
            {"db.system.name": "mariadb", "db.namespace": "shop", "server.address": "db.example"},
        ),
    ],
)  # fmt: skip
def test_the_attributes_of_a_database_name_its_server(package, url, expected):
    pytest.importorskip(package)
    assert otel.describe(cenote.Database(url)) == expected


async def test_a_database_is_not_kept_alive(kit, tmp_path):
    database = cenote.Database(f"sqlite:///{tmp_path}/file.db")
    kit.instrument(database, spans=otel.SPANS)
    await database.fetch_val("select 1")
    await database.close()
    reference = weakref.ref(database)
    del database
    await settle()
    gc.collect()
    assert reference() is None


# -- the observers of a database -----------------------------------------------------------------


async def test_an_observer_gets_the_beginning_and_the_end(database):
    heard = []

    def observer(operation, text):
        heard.append((operation, text))
        return heard.append

    unobserve = database.observe(observer)
    await database.execute("create table t (x)")
    error = await outcome(database.execute("insert into nowhere values (1)"))
    unobserve()
    await database.fetch_all("select x from t")
    assert heard == [
        ("CREATE", "create table t (x)"),
        None,
        ("INSERT", "insert into nowhere values (1)"),
        error,
    ]
    await database.close()


async def test_an_observer_that_raises_disturbs_nothing(database, caplog):
    def failing(*_):
        raise ValueError("no")

    heard = []
    database.observe(failing)
    database.observe(lambda *_: failing)
    database.observe(lambda *_: heard.append)
    assert await database.fetch_val("select 1") == 1
    assert heard == [None]
    lines = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.getMessage() for line in lines] == ["shop: an observer of statements failed"] * 2
    await database.close()


async def test_a_cancelled_statement_ends_for_its_observer(database):
    await database.fetch_val("select 1")
    ends, begun = [], asyncio.Event()

    def observer(*_):
        begun.set()
        return ends.append

    database.observe(observer)
    slow = "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"
    task = asyncio.create_task(database.fetch_val(slow))
    await begun.wait()
    await cancel(task)
    assert [type(error) for error in ends] == [asyncio.CancelledError]
    await database.close()


def test_an_observer_must_be_callable(database):
    with pytest.raises(TypeError, match="observer"):
        database.observe(None)
