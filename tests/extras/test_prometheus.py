"""The Prometheus collector, by what prometheus_client writes and its own parser reads."""

import asyncio
import gc
import threading
from pathlib import Path

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Gate, Holding, Thing, acquiring, cancel, outcome

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry  # noqa: E402
from prometheus_client.exposition import generate_latest  # noqa: E402
from prometheus_client.openmetrics import exposition as openmetrics  # noqa: E402
from prometheus_client.openmetrics.parser import (  # noqa: E402
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from cenote.extras.prometheus import BUCKETS, Collector  # noqa: E402

GAUGES = {
    "resources", "waiting", "min_size", "max_size", "circuit_state", "lane_active",
    "lane_max_size",
}  # fmt: skip
COUNTERS = {
    "begun", "acquired", "released", "created", "create_failures", "destroyed", "timeouts",
    "cancelled", "failed", "refused", "rejected", "circuit_transitions",
}  # fmt: skip
HISTOGRAMS = {"wait_seconds", "hold_seconds", "create_seconds"}
FLEETS = {"budget", "used", "processes", "held", "target", "need", "reachable"}
STATEMENTS = "db_client_operation_duration_seconds"


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def collect(registry):
    """Makes collectors that stop listening after the test."""
    collectors = []

    def make(*targets, **options):
        collectors.append(Collector(*targets, registry=registry, **options))
        return collectors[-1]

    yield make
    for collector in collectors:
        collector.close()


def families(registry):
    """By name, as Prometheus itself would read them."""
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(registry, name, **labels):
    """What the samples of this name with these labels say, by their other labels."""
    found = {}
    for family in families(registry).values():
        for sample in family.samples:
            if sample.name == f"cenote_pool_{name}" and labels.items() <= sample.labels.items():
                rest = sample.labels.keys() - labels.keys()
                key = tuple(sample.labels[label] for label in sorted(rest))
                assert key not in found
                found[key[0] if len(key) == 1 else key] = sample.value
    return found


def value(registry, name, **labels):
    """The one sample of a pool of this name."""
    ((_, number),) = samples(registry, name, **labels).items()
    return number


# -- names and types -----------------------------------------------------------------------------


async def test_every_metric_has_its_name_type_and_label(make_pool, registry, collect):
    pool = make_pool(Thing, name="main")
    collect(pool)
    await pool.open()
    found = families(registry)
    assert found.pop(STATEMENTS).type == "histogram"
    assert {found.pop(f"cenote_fleet_{name}").type for name in FLEETS} == {"gauge"}
    prefixed = {
        kind: {f"cenote_pool_{name}" for name in names}
        for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS))
    }
    for kind, names in prefixed.items():
        assert {name for name, family in found.items() if family.type == kind} == names
    for family in found.values():
        assert family.documentation
        assert all(sample.labels["pool"] == "main" for sample in family.samples)


async def test_openmetrics_accepts_it_too(make_pool, registry, collect):
    pool = make_pool(Thing, name='a "strange"\\\nname')
    collect(pool)
    async with pool.acquire():
        text = openmetrics.generate_latest(registry).decode()
    found = {family.name: family for family in parse_openmetrics(text)}
    assert found["cenote_pool_acquired"].samples[0].labels["pool"] == 'a "strange"\\\nname'
    names = {name.removeprefix("cenote_pool_").removeprefix("cenote_fleet_") for name in found}
    assert names == GAUGES | COUNTERS | HISTOGRAMS | FLEETS | {STATEMENTS}


def test_a_collector_without_pools_has_names_only(registry, collect):
    collect(cenote.Pool(Thing, name="gone"))
    gc.collect()
    found = families(registry)
    assert len(found) == len(GAUGES | COUNTERS | HISTOGRAMS | FLEETS) + 1
    assert not any(family.samples for family in found.values())


# -- counts and totals ---------------------------------------------------------------------------


async def test_counts_are_those_of_now(make_pool, registry, collect):
    make, destroy = Gate(Thing), Gate()
    pool = make_pool(make, destructor=destroy, min_size=2, max_size=4, name="main")
    collect(pool)
    make.open()
    await pool.open()
    holding = Holding(pool)
    await settle()
    pool.discard(await pool.acquire())
    make.shut()
    waiters = [acquiring(pool) for _ in range(4)]
    await settle()
    expected = {"idle": 0, "active": 1, "creating": 2, "destroying": 1}
    assert samples(registry, "resources", pool="main") == expected
    assert value(registry, "waiting") == 4
    assert (value(registry, "min_size"), value(registry, "max_size")) == (2, 4)
    make.open()
    destroy.open()
    await holding.leave()
    for waiter in waiters:
        pool.release(await waiter)
    expected = {"idle": 4, "active": 0, "creating": 0, "destroying": 0}
    assert samples(registry, "resources", pool="main") == expected
    assert value(registry, "waiting") == 0


@pytest.mark.virtual_time
async def test_totals_are_split_by_cause(make_pool, registry, collect):
    verdicts = [True, False]
    pool = make_pool(Thing, max_size=1, before_release=lambda _: verdicts.pop(0), name="main")
    collect(pool)
    holding = Holding(pool)
    await settle()
    assert isinstance(await outcome(pool.acquire(timeout=1)), cenote.AcquireTimeoutError)
    waiter = acquiring(pool)
    await settle()
    await cancel(waiter)
    await holding.leave()
    async with pool.acquire():
        pass  # rejected
    pool.discard(await pool.acquire())
    totals = {name: value(registry, f"{name}_total")
              for name in COUNTERS - {"destroyed", "refused", "circuit_transitions"}}  # fmt: skip
    assert totals == {
        "begun": 5, "acquired": 3, "released": 3, "created": 2, "create_failures": 0,
        "timeouts": 1, "cancelled": 1, "failed": 0, "rejected": 1,
    }  # fmt: skip
    assert samples(registry, "destroyed_total", pool="main") == {"rejected": 1, "discarded": 1}


async def test_totals_include_what_was_before_the_collector(make_pool, registry, collect):
    pool = make_pool(Thing, name="main")
    async with pool.acquire():
        pass
    collect(pool)
    assert value(registry, "acquired_total") == 1
    assert value(registry, "hold_seconds_count") == 0
    assert value(registry, "hold_seconds_sum") == 0


# -- durations -----------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_durations_are_in_their_buckets(make_pool, registry, collect):
    async def slow():
        await asyncio.sleep(2)
        return Thing()

    pool = make_pool(slow, max_size=1, name="main")
    collect(pool)
    holding = Holding(pool)
    await advance(2)  # created
    waiter = acquiring(pool)
    await advance(0.25)
    await holding.leave()
    await settle()
    pool.release(waiter.result())
    for name, total, bounds in (
        ("wait", 2.25, (("0.1", 0), ("0.25", 1), ("1.0", 1), ("2.5", 2), ("+Inf", 2))),
        ("hold", 0.25, (("0.0005", 1), ("0.1", 1), ("0.25", 2), ("+Inf", 2))),
        ("create", 2.0, (("1.0", 0), ("2.5", 1), ("+Inf", 1))),
    ):
        buckets = samples(registry, f"{name}_seconds_bucket", pool="main")
        assert [(bound, buckets[bound]) for bound, _ in bounds] == list(bounds), name
        assert value(registry, f"{name}_seconds_count") == bounds[-1][1]
        assert value(registry, f"{name}_seconds_sum") == pytest.approx(total)


@pytest.mark.virtual_time
async def test_a_duration_on_a_bound_is_below_it(make_pool, registry, collect):
    pool = make_pool(Thing, name="main")
    collect(pool, buckets=[1, 2])
    for seconds in (1, 2, 3):
        async with pool.acquire():
            await advance(seconds)
    assert samples(registry, "hold_seconds_bucket", pool="main") == {"1.0": 1, "2.0": 2, "+Inf": 3}


def test_the_default_buckets_are_documented():
    page = Path(__file__).parents[2] / "docs" / "observability.md"
    assert ", ".join(f"{bound:g}" for bound in BUCKETS) in " ".join(page.read_text().split())


@pytest.mark.parametrize("buckets", [[], [2, 1], [1, 1], [1, float("inf")], [float("nan")]])
def test_bad_buckets_are_refused_by_name(buckets, registry):
    with pytest.raises(ValueError, match=r"^buckets must be upper bounds"):
        Collector(registry=registry, buckets=buckets)


# -- the breaker ---------------------------------------------------------------------------------


async def test_the_breaker_has_one_state_and_counted_changes(make_pool, registry, collect):
    pool = make_pool(Thing, name="main")
    collect(pool)
    await pool.open()
    seen = []
    for switch in (pool.deactivate, pool.recover, pool.activate, pool.deactivate):
        switch()
        states = samples(registry, "circuit_state", pool="main")
        assert sum(states.values()) == 1
        seen.append(max(states, key=states.get))
    assert seen == ["inactive", "recovering", "active", "inactive"]
    assert samples(registry, "circuit_transitions_total", pool="main") == {
        "active": 1, "inactive": 2, "recovering": 1,
    }  # fmt: skip


# -- which pools ---------------------------------------------------------------------------------


async def test_a_closed_pool_disappears(make_pool, registry, collect):
    pool, other = make_pool(Thing, name="main"), make_pool(Thing, name="other")
    collect(pool, other)
    async with pool.acquire():
        assert samples(registry, "max_size").keys() == {"main", "other"}
    await pool.close()
    assert samples(registry, "max_size").keys() == {"other"}


@pytest.mark.parametrize("end", ["closed", "collected"])
async def test_no_counter_falls_when_one_of_several_pools_is_gone(registry, collect, end):
    """Prometheus would take it for a restart, and count what the others have done again."""
    collect()
    pools = [cenote.Pool(Thing, name="shop", max_size=4) for _ in range(2)]
    for pool in pools:
        async with pool.acquire():
            pass
    names = ("acquired_total", "hold_seconds_count", "hold_seconds_sum", "wait_seconds_count")
    before = {name: samples(registry, name)["shop"] for name in names}
    assert before["acquired_total"] == before["hold_seconds_count"] == 2
    gone = pools.pop()
    await gone.close()
    if end == "collected":
        del gone, pool
        gc.collect()
    for _ in range(2):
        assert {name: samples(registry, name)["shop"] for name in names} == before
        assert samples(registry, "max_size") == {"shop": 4}
    async with pools[0].acquire():
        pass
    assert samples(registry, "acquired_total")["shop"] == 3
    await pools[0].close()
    assert samples(registry, "acquired_total") == {}
    again = cenote.Pool(Thing, name="shop")
    assert samples(registry, "acquired_total")["shop"] == 0
    await again.close()


def test_a_collected_pool_disappears_and_is_not_kept_alive(registry, collect):
    pool = cenote.Pool(Thing, name="main")
    collect(pool)
    assert samples(registry, "max_size").keys() == {"main"}
    del pool
    assert samples(registry, "max_size") == {}


async def test_all_pools_of_the_process_are_the_default(make_pool, registry, collect):
    before = make_pool(Thing, name="before")
    collect()
    after = make_pool(Thing, name="after")
    for pool in (before, after):
        async with pool.acquire():
            pass
    counts = samples(registry, "hold_seconds_count")
    assert (counts["before"], counts["after"]) == (1, 1)


async def test_a_database_has_no_samples_before_its_pool(tmp_path, registry, collect):
    db = cenote.Database(f"sqlite:///{tmp_path}/file.db", name="shop", max_size=2)
    other = cenote.Database(f"sqlite:///{tmp_path}/other.db", name="other")
    collect(db)
    assert samples(registry, "max_size") == {}
    assert await db.fetch_val("select 1") == 1
    assert await other.fetch_val("select 1") == 1
    assert samples(registry, "max_size") == {"shop": 2}
    assert value(registry, "hold_seconds_count") == 1
    assert value(registry, "create_seconds_count") == 1
    await db.close()
    await other.close()
    assert samples(registry, "max_size") == {}


async def test_no_password_is_in_the_default_name(registry, collect):
    pytest.importorskip("asyncpg")
    db = cenote.Database("postgresql://app:s3cr3t@127.0.0.1:1/shop")
    collect(db)
    assert isinstance(await outcome(db.fetch_val("select 1")), OSError)
    assert samples(registry, "max_size").keys() == {"postgresql://127.0.0.1:1/shop"}
    assert b"s3cr3t" not in generate_latest(registry)
    await db.close()


async def test_pools_of_the_same_name_are_added_up(make_pool, registry, collect):
    pools = [make_pool(Thing, max_size=size, name="main") for size in (2, 3)]
    collect(*pools)
    for pool in pools:
        async with pool.acquire():
            pass
    assert value(registry, "max_size", pool="main") == 5
    assert value(registry, "acquired_total", pool="main") == 2
    assert value(registry, "wait_seconds_count", pool="main") == 2


async def test_pools_without_a_name_are_numbered(make_pool, registry, collect):
    collect(make_pool(Thing, max_size=1), make_pool(Thing, max_size=2))
    assert samples(registry, "max_size") == {"pool-1": 1, "pool-2": 2}


def test_what_is_no_pool_is_refused(registry):
    with pytest.raises(TypeError, match=r"^only pools and databases can be watched, not 'main'$"):
        Collector("main", registry=registry)


async def test_closing_a_collector_unsubscribes_and_leaves_the_registry(make_pool, registry):
    pool = make_pool(Thing, name="main")
    collector = Collector(pool, registry=registry)
    others = []
    pool.subscribe(others.append)
    collector.close()
    collector.close()
    async with pool.acquire():
        pass
    assert generate_latest(registry) == b""
    assert len(pool._engine.subscribers) == 1
    assert others


def test_a_second_collector_in_a_registry_is_refused(registry, collect):
    pool = cenote.Pool(Thing, name="main")
    collect(pool)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Collector(pool, registry=registry)
    assert len(pool._engine.subscribers) == 1


async def test_a_collector_may_be_asked_from_another_thread(make_pool, registry, collect):
    pool = make_pool(Thing, name="main")
    collect(pool)
    texts = []
    async with pool.acquire():
        thread = threading.Thread(target=lambda: texts.append(generate_latest(registry)))
        thread.start()
        thread.join()
    assert b'cenote_pool_resources{pool="main",state="active"} 1.0' in texts[0]
