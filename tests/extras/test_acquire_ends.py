"""Every way in which an acquire can end has its number in both exporters."""

import asyncio
from types import SimpleNamespace

import pytest

import cenote
from cenote.observe import RefusalReason
from cenote.testing import settle
from tests.support.kit import Holding, Thing, acquiring, cancel, outcome

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from cenote.extras.otel import instrument
from cenote.extras.prometheus import Collector
from cenote.extras.tracking import Ends


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def watch(reader, registry):
    """Attaches both exporters, and takes them off after the test."""
    closing = []

    def attach(*targets):
        meters = MeterProvider([reader])
        closing.append(instrument(*targets, meter_provider=meters))
        closing.append(Collector(*targets, registry=registry))

    yield attach
    for each in closing:
        each.close()


def acquires(reader):
    """What `cenote.pool.acquires` says: by its attributes but the pool, sorted by their names."""
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == "cenote.pool.acquires":
                    assert metric.data.is_monotonic
                    assert metric.unit == "{acquire}"
                    for point in metric.data.data_points:
                        rest = {
                            name.removeprefix("cenote."): value
                            for name, value in point.attributes.items()
                            if name.startswith("cenote.")
                        }
                        found[tuple(value for _, value in sorted(rest.items()))] = point.value
    return found


class FailsAtWill:
    def __init__(self):
        self.failing = False

    async def __call__(self):
        if self.failing:
            raise OSError("away")
        return Thing()


@pytest.mark.virtual_time
async def test_every_end_is_counted_in_both(make_pool, watch, reader, registry):
    make = FailsAtWill()
    pool = make_pool(make, max_size=1, max_waiting=1, name="main")
    watch(pool)
    holding = Holding(pool)
    await settle()
    assert isinstance(await outcome(pool.acquire(timeout=1)), cenote.AcquireTimeoutError)
    waiter = acquiring(pool)
    await settle()
    assert isinstance(await outcome(pool.acquire()), cenote.PoolOverloadedError)
    await cancel(waiter)
    await holding.leave()
    pool.deactivate()
    for _ in range(3):
        assert isinstance(await outcome(pool.acquire()), cenote.ServiceUnavailableError)
    pool.activate()
    make.failing = True
    pool.discard(await pool.acquire())
    assert isinstance(await outcome(pool.acquire()), OSError)

    def value(name, **labels):
        return registry.get_sample_value(f"cenote_pool_{name}_total", {"pool": "main", **labels})

    expected = {"begun": 9, "acquired": 2, "timeouts": 1, "cancelled": 1, "failed": 1}
    assert {name: value(name) for name in expected} == expected
    assert value("create_failures") == 1
    refused = {str(reason): 0 for reason in RefusalReason} | {"overloaded": 1, "circuit": 3}
    assert {reason: value("refused", reason=reason) for reason in refused} == refused
    assert acquires(reader) == {
        ("acquired",): 2, ("timeout",): 1, ("cancelled",): 1, ("failed",): 1,
        **{("refused", reason): number for reason, number in refused.items()},
    }  # fmt: skip


@pytest.mark.virtual_time
async def test_lanes_have_their_own_and_are_not_in_the_rest(make_pool, watch, reader, registry):
    pool = make_pool(Thing, max_size=3, name="main")
    batch = pool.lane("batch", max_size=1)
    watch(pool)
    pool.release(await pool.acquire())
    async with batch.acquire():
        assert isinstance(await outcome(batch.acquire(timeout=1)), cenote.AcquireTimeoutError)
        waiter = acquiring(batch)
        await settle()

        def value(name, **labels):
            return registry.get_sample_value(f"cenote_pool_{name}", {"pool": "main", **labels})

        assert value("waiting", lane="batch") == value("lane_active", lane="batch") == 1
        assert (value("waiting"), value("lane_max_size", lane="batch")) == (0, 1)
        await cancel(waiter)
    pool.release(await pool.acquire())
    for name, rest, mine in (("begun", 2, 3), ("acquired", 2, 1), ("timeouts", 0, 1),
                             ("cancelled", 0, 1), ("failed", 0, 0)):  # fmt: skip
        assert value(f"{name}_total") == rest
        assert value(f"{name}_total", lane="batch") == mine
    assert value("refused_total", lane="batch", reason="shed") == 0
    found = acquires(reader)
    assert (found["acquired",], found["acquired", "batch"]) == (2, 1)
    assert (found["timeout",], found["timeout", "batch"]) == (0, 1)
    assert found["refused", "batch", "shed"] == 0


async def test_no_subscriber_is_on_the_hot_path(make_pool, watch):
    pool = make_pool(Thing, name="main")
    watch(pool)
    engine = pool._engine
    assert engine.on_acquired == engine.on_released == engine.on_waiting == ()
    assert len(engine.core.histograms) == 2


def test_a_counter_of_the_rest_never_falls():
    refused = {"circuit": 2}
    nothing = SimpleNamespace(timeouts=0, cancelled=0, failed=0, refused=refused)
    pool = SimpleNamespace(**vars(nothing), begun=10, acquired=10)
    lane = SimpleNamespace(**vars(nothing), begun=4, acquired=4)
    ends = Ends()
    assert ends.rest(pool, [lane])["acquired"] == 6
    lane.acquired = 5  # read before the pool has counted it
    assert ends.rest(pool, [lane])["acquired"] == 6
    assert ends.of(lane)["acquired"] == 5
    assert ends.of(pool)["circuit"] == 2


async def test_cancellation_of_many_is_no_refusal(make_pool, watch, registry):
    pool = make_pool(Thing, max_size=1, name="main")
    watch(pool)
    async with pool.acquire():
        waiters = [acquiring(pool) for _ in range(5)]
        await settle()
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    labels = {"pool": "main"}
    assert registry.get_sample_value("cenote_pool_cancelled_total", labels) == 5
    assert registry.get_sample_value(
        "cenote_pool_refused_total", {**labels, "reason": "closed"}
    ) == 0  # fmt: skip


async def test_no_counter_falls_when_one_of_several_pools_is_gone(own_registry):
    """A sum that falls is a restart to whoever reads it, and counts the others again."""
    reader = InMemoryMetricReader()
    instrumentation = instrument(meter_provider=MeterProvider([reader]))

    def read():
        data = reader.get_metrics_data()
        return {
            (metric.name, *point.attributes.values()): point.value
            for scope in (data.resource_metrics[0].scope_metrics if data else ())
            for metric in scope.metrics
            if metric.name in {"cenote.pool.acquires", "cenote.pool.use_time"}
            for point in metric.data.data_points
        }

    pools = [cenote.Pool(object, name="shop") for _ in range(2)]
    for pool in pools:
        async with pool.acquire():
            pass
    before = read()
    assert before["cenote.pool.acquires", "shop", "acquired"] == 2
    await pools.pop().close()
    assert read() == before
    assert read() == before
    await pools.pop().close()
    assert read() == {}
    instrumentation.close()
