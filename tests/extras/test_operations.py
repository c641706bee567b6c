"""How long statements take, in both exporters, by the names of the OpenTelemetry conventions."""

import re
import sqlite3

import pytest

import cenote
from tests.support.kit import Thing, outcome

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.semconv._incubating.attributes import db_attributes, error_attributes
from opentelemetry.semconv._incubating.metrics import db_metrics
from prometheus_client import CollectorRegistry, generate_latest

from cenote.extras import operations, summary
from cenote.extras.otel import BOUNDS, instrument
from cenote.extras.prometheus import Collector
from cenote.sql.dialects import SQLITE

NAME = "db_client_operation_duration_seconds"


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def database(tmp_path):
    return cenote.Database(f"sqlite:///{tmp_path}/file.db", name="shop")


@pytest.fixture
def watch(reader, registry):
    """Attaches both exporters, and takes them off after the test."""
    closing = []

    def attach(*targets, **options):
        meters = MeterProvider([reader])
        closing.append(instrument(*targets, meter_provider=meters, **options))
        closing.append(Collector(*targets, registry=registry, **options))

    yield attach
    for each in closing:
        each.close()


def metric(reader):
    data = reader.get_metrics_data()
    found = [
        metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == db_metrics.DB_CLIENT_OPERATION_DURATION
    ]
    return found[0] if found else None


def counts(registry):
    """How many statements, by operation and error."""
    return {
        (sample.labels["db_operation_name"], sample.labels.get("error_type")): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"{NAME}_count"
    }


async def test_durations_have_the_names_of_the_conventions(watch, database, reader, tmp_path):
    watch(database)
    await database.execute("create table t (x)")
    await outcome(database.execute("select x from nowhere"))
    found = metric(reader)
    assert (found.name, found.unit) == ("db.client.operation.duration", "s")
    assert found.description
    created, failed = sorted(found.data.data_points, key=lambda point: len(point.attributes))
    place = {
        db_attributes.DB_SYSTEM_NAME: "sqlite",
        db_attributes.DB_NAMESPACE: f"{tmp_path}/file.db",
    }
    assert dict(created.attributes) == {**place, db_attributes.DB_OPERATION_NAME: "CREATE"}
    assert dict(failed.attributes) == {
        **place,
        db_attributes.DB_OPERATION_NAME: "SELECT",
        db_attributes.DB_RESPONSE_STATUS_CODE: str(sqlite3.SQLITE_ERROR),
        error_attributes.ERROR_TYPE: str(sqlite3.SQLITE_ERROR),
    }
    assert created.count == failed.count == 1
    assert created.sum > 0
    assert created.explicit_bounds == BOUNDS
    await database.close()


async def test_prometheus_has_the_same_by_operation_and_error(watch, database, registry):
    watch(database)
    await database.execute("create table t (x)")
    async with database.transaction() as tx:
        await database.execute_many("insert into t values (?)", [[1], [2]])
        assert len([row async for row in tx.iterate("select x from t")]) == 2
    await outcome(database.fetch_all("select nothing from t"))
    assert counts(registry) == {
        ("CREATE", None): 1, ("BEGIN", None): 1, ("INSERT", None): 1, ("SELECT", None): 1,
        ("COMMIT", None): 1, ("SELECT", "1"): 1,
    }  # fmt: skip
    labels = {"pool": "shop", "db_system_name": "sqlite", "db_operation_name": "INSERT"}
    assert registry.get_sample_value(f"{NAME}_sum", labels) > 0
    assert registry.get_sample_value(f"{NAME}_bucket", {**labels, "le": "+Inf"}) == 1
    await database.close()


async def test_no_text_and_no_parameter_is_in_a_label(watch, database, registry, reader):
    watch(database)
    await database.fetch_val("select 'quoted', ?", ["given value"])
    await outcome(database.execute("quoted words from 'quoted'", ["given value"]))
    await outcome(database.execute("select secret_column from secret_table"))
    everything = generate_latest(registry).decode() + metric(reader).to_json()
    assert not re.search("quoted|given value|secret|words", everything)
    assert {operation for operation, _ in counts(registry)} == {"SELECT", operations.OTHER}
    await database.close()


async def test_labels_stay_few_whatever_is_said(watch, database, registry, monkeypatch):
    monkeypatch.setattr(operations, "MOST_ERRORS", 3)
    watch(database)
    for number in range(20):

        def fail(number=number):
            raise type(f"Error{number}", (Exception,), {})

        observers = database._observers
        for observer in observers:
            end = observer(f"word{number}", "text")
            end(outcome_of(fail))
    found = counts(registry)
    assert {operation for operation, _ in found} == {operations.OTHER}
    assert len(found) == 4  # three, and all others together
    assert found[operations.OTHER, operations.OTHER] == 17


def outcome_of(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


async def test_statements_of_every_database_are_the_default(watch, tmp_path, registry):
    watch()
    database = cenote.Database(f"sqlite:///{tmp_path}/later.db", name="later")
    assert await database.fetch_val("select 1") == 1
    assert counts(registry)["SELECT", None] == 1
    await database.close()


async def test_statements_can_be_left_out(watch, database, registry, reader):
    watch(database, statements=False)
    assert not database._observers
    assert await database.fetch_val("select 1") == 1
    assert counts(registry) == {}
    assert metric(reader) is None
    await database.close()


async def test_a_database_is_observed_once_for_all_its_pools(watch, database, registry):
    watch(database, database)
    await database.fetch_val("select 1")
    await database.close()
    await database.open()
    await database.fetch_val("select 1")
    assert counts(registry) == {("SELECT", None): 2}
    await database.close()


async def test_an_ordinary_pool_has_no_statements(watch, make_pool, registry):
    pool = make_pool(Thing, name="main")
    watch(pool)
    async with pool.acquire():
        pass
    assert counts(registry) == {}


def test_the_summary_of_a_long_text_is_not_kept():
    """Else the cache would hold a thousand scripts of any size."""
    kept = summary._kept.cache_info().currsize
    assert summary.summarize(f"select a from orders -- {'x' * 20_000}", SQLITE) == "select orders"
    assert summary._kept.cache_info().currsize == kept
    summary.summarize("select a_column_of_its_own from orders", SQLITE)
    assert summary._kept.cache_info().currsize == kept + 1
