"""What both exporters say of the fleets of the pools that they watch."""

import pytest

from cenote.fleet.view import share_of
from cenote.testing import advance
from tests.support.fleet_world import World
from tests.support.kit import Thing

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from cenote.extras.otel import instrument
from cenote.extras.prometheus import Collector

pytestmark = pytest.mark.virtual_time


class Exporters:
    """Both of them, on some pools."""

    def __init__(self, *pools):
        self.registry, self.reader = CollectorRegistry(), InMemoryMetricReader()
        self.collector = Collector(*pools, registry=self.registry)
        meters = MeterProvider([self.reader])
        self.instrumentation = instrument(*pools, meter_provider=meters)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.collector.close()
        self.instrumentation.close()

    def values(self):
        """Both say the same: by name, fleet and pool."""
        prometheus = {
            (sample.name.removeprefix("cenote_fleet_"), *sample.labels.values()): sample.value
            for family in self.registry.collect()
            if family.name.startswith("cenote_fleet_")
            for sample in family.samples
        }
        otel = {
            (metric.name.removeprefix("cenote.fleet."), *ordered(point.attributes)): point.value
            for resource in self.reader.get_metrics_data().resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith("cenote.fleet.")
            for point in metric.data.data_points
        }
        assert prometheus == otel
        return otel


def ordered(attributes):
    return [attributes[name] for name in sorted(attributes)]


async def test_the_gauges_show_budget_and_parts():
    async with World(30) as world:
        first = world.process().pool(max_size=20, name="shop")
        other = world.process().pool(max_size=20, name="shop")
        leases = [await first.acquire() for _ in range(3)]
        await other.release(await other.acquire())
        await advance(10)
        with Exporters(first) as exporters:
            fleet = share_of(first).fleet
            found = exporters.values()
            assert found["budget", fleet] == 30
            assert found["processes", fleet] == 2
            assert found["used", fleet] == first.max_size + other.max_size
            assert found["held", fleet, "shop"] == first.max_size
            assert found["need", fleet, "shop"] == 3
            assert found["target", fleet, "shop"] == share_of(first).target
            assert found["reachable", fleet, "shop"] == 1
            world.away = True
            await advance(5)
            assert exporters.values()["reachable", fleet, "shop"] == 0
            world.away = False
            await advance(5)
            assert exporters.values()["reachable", fleet, "shop"] == 1
        for lease in leases:
            first.release(lease)


async def test_pools_of_one_name_are_added_up():
    async with World(30) as world:
        process = world.process()
        pools = [process.pool(max_size=4, name="shop") for _ in range(2)]
        for pool in pools:
            await pool.release(await pool.acquire())
        await advance(3)
        with Exporters(*pools) as exporters:
            fleet = share_of(pools[0]).fleet
            assert exporters.values()["held", fleet, "shop"] == sum(each.max_size for each in pools)
            world.away = True
            await advance(5)
            assert exporters.values()["reachable", fleet, "shop"] == 0


async def test_a_fleet_that_has_not_answered_has_a_budget_only():
    async with World(30) as world:
        world.away = True
        pool = world.process().pool(max_size=4, name="shop")
        thing = await pool.acquire()  # as much as one alone
        with Exporters(pool) as exporters:
            found = {name: value for (name, *_), value in exporters.values().items()}
            assert found == {"budget": 30, "held": 4, "target": 0, "need": 0, "reachable": 0}
        pool.release(thing)
        world.away = False
        await advance(5)


async def test_a_pool_outside_of_any_fleet_has_no_gauge(make_pool):
    pool = make_pool(Thing, name="alone")
    await pool.release(await pool.acquire())
    assert share_of(pool) is None
    with Exporters(pool) as exporters:
        assert exporters.values() == {}
