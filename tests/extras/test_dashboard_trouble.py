"""What the dashboard says of trouble: refusals by reason, long outages, and lanes."""

import asyncio

import pytest

import cenote
from cenote.extras.dashboard import collector
from cenote.testing import advance, settle
from tests.support.kit import Thing, acquiring, outcome, raising
from tests.support.viewer import ACTIVE, until, use_virtual_clocks, watching

pytestmark = pytest.mark.virtual_time

app = cenote.dashboard.app


async def test_the_reasons_of_refusals_are_those_of_now(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    pool = make_pool(Thing, max_size=1, max_waiting=0, name="refusing")
    thing = await pool.acquire()
    pool.deactivate()
    await outcome(acquiring(pool))
    pool.activate()
    async with watching(app(), query="name=refusing") as viewer:
        assert viewer.pool("refusing")["denied"] == ["circuit"]  # from before the page
        await advance(1)
        await outcome(acquiring(pool))
        await until(lambda: viewer.pool("refusing")["denied"] == ["circuit", "overloaded"])
        await until(lambda: viewer.pool("refusing")["denied"] == ["overloaded"])
        await until(lambda: viewer.pool("refusing")["denied"] == [])
        assert viewer.pool("refusing")["refused"] == {"circuit": 1, "overloaded": 1}
    pool.release(thing)


async def test_a_long_outage_keeps_its_beginning(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=1.0, max_recovery_timeout=1.0)
    pool = make_pool(raising(OSError("refused")), strategy=strategy, name="away")
    begin = round(asyncio.get_running_loop().time() * 1000)
    for _ in range(300):  # five minutes of failed probes
        await outcome(acquiring(pool))
        await advance(1)
    async with watching(app(), query="name=away") as viewer:
        assert viewer.pool("away")["since"] == begin
        assert viewer.pool("away")["failure"] == "OSError: refused"
        changes = viewer.details["breaker"]["changes"]
        assert changes[0][:2] == [begin, "INACTIVE"]
        states = [state for _, state, _ in changes]
        assert states[-1] == "INACTIVE"
        assert changes[1][0] - begin > 200_000  # not half-open all the time
        lines = [(event[3], event[5]) for event in viewer.events if event[1] == "state_changed"]
        (opened, times), (probed, probes) = lines
        assert (opened, probed) == ("INACTIVE \u00b7 OSError: refused", "RECOVERING")
        assert times == probes + 1
        before = len(changes)
        await outcome(acquiring(pool))  # a probe, while the page is open
        await until(lambda: len(viewer.details["breaker"]["changes"]) >= before + 2)
        pool.activate()
        await until(lambda: viewer.pool("away")["since"] is None)
        assert viewer.details["breaker"]["changes"][-1][1] == "ACTIVE"


async def test_an_outage_that_is_watched_keeps_its_beginning(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    monkeypatch.setattr(collector, "CHANGES", 7)
    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=1.0, max_recovery_timeout=1.0)
    pool = make_pool(raising(OSError("refused")), strategy=strategy, name="away")

    def states():
        return [state for _, state, _ in viewer.details["breaker"]["changes"]]

    async with watching(app(), query="name=away") as viewer:
        begin = round(asyncio.get_running_loop().time() * 1000)
        await outcome(acquiring(pool))
        for _ in range(20):
            await advance(1)
            await outcome(acquiring(pool))  # a probe that fails
        await until(lambda: len(states()) == 6)
        assert states() == ["ACTIVE", "INACTIVE", *["RECOVERING", "INACTIVE"] * 2]
        assert viewer.details["breaker"]["changes"][1][0] == begin
        for _ in range(5):  # no probes: the oldest go
            pool.activate()
            await advance(1)
            pool.deactivate()
            await advance(1)
        assert states() == ["INACTIVE", *["ACTIVE", "INACTIVE"] * 3]


async def test_switches_of_one_instant_keep_their_order(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=1.0, max_recovery_timeout=1.0)
    pool = make_pool(raising(OSError("refused")), strategy=strategy, name="away")
    await outcome(acquiring(pool))
    async with watching(app(), query="name=away") as viewer:
        for probe in range(1, 4):
            await advance(1.25)
            await outcome(acquiring(pool))  # a probe that fails at once
            await until(lambda most=2 * probe: len(viewer.details["breaker"]["changes"]) > most)
        states = [state for _, state, _ in viewer.details["breaker"]["changes"]]
        assert states == ["INACTIVE", *["RECOVERING", "INACTIVE"] * 3]


async def test_lanes_are_on_the_page(make_pool, monkeypatch):
    use_virtual_clocks(monkeypatch)
    pool = make_pool(Thing, max_size=3, name="lanes")
    batch = pool.lane("batch", max_size=1, priority=-1)
    plain, thing = await pool.acquire(), await batch.acquire()
    waiter = asyncio.create_task(batch.acquire(timeout=50), name="patient")
    await settle()
    async with watching(app(), query="name=lanes") as viewer:
        (lane,) = viewer.details["lanes"]
        assert lane[:-1] == ["batch", -1, 1, 1, 1, 1, 0, 0]
        await advance(20)
        assert viewer.details["lanes"][0][-1] >= 19.5  # a lane of low priority can starve
        held = sorted(str(row[9]) for row in viewer.tiles.values() if row[1] == ACTIVE)
        assert held == ["None", "batch"]
        ((task, _, _, _, lane),) = viewer.details["waiters"]
        assert (task, lane) == ("patient", "batch")
        pool.release(thing)
        thing = await waiter
        await outcome(asyncio.create_task(batch.acquire(timeout=0)))
        await until(lambda: viewer.details["lanes"] == [["batch", -1, 1, 1, 0, 2, 0, 1, 0.0]])
    pool.release(thing)
    pool.release(plain)


async def test_without_lanes_there_is_no_word_of_them(make_pool):
    make_pool(Thing, name="plain")
    async with watching(app(), query="name=plain") as viewer:
        assert "lanes" not in viewer.details
