"""Long holds are logged and sent."""

import inspect

import pytest

from cenote.testing import advance, now
from tests.support.kit import (
    Thing,
    recorded,
)


@pytest.mark.virtual_time
async def test_a_long_hold_is_logged_and_sent_once(make_pool, caplog):
    pool = make_pool(Thing, hold_warning=5.0, name="shop")
    events = recorded(pool)
    thing = await pool.acquire()
    line = inspect.currentframe().f_lineno - 1
    await advance(4.9)
    assert caplog.text == ""
    await advance(0.1)
    [event] = [event for event in events if event.kind == "held_long"]
    assert (event.resource, event.reason) == (thing, f"{__file__}:{line}")
    assert (event.task, event.duration) == ("test", pytest.approx(5.0))
    [logged] = caplog.records
    assert (logged.name, logged.levelname) == ("cenote", "WARNING")
    for word in ("'shop'", "'test'", f"{__file__}:{line}"):
        assert word in logged.getMessage()
    await advance(100)
    assert len(caplog.records) == 1
    assert [event.kind for event in events].count("held_long") == 1
    pool.release(thing)


@pytest.mark.virtual_time
async def test_each_lease_is_warned_of_in_its_time(make_pool):
    pool = make_pool(Thing, hold_warning=5.0)
    events, began = recorded(pool), now()
    first = await pool.acquire()
    await advance(3)
    async with pool.acquire() as second:
        await advance(10)
    pool.release(first)
    third = await pool.acquire()
    await advance(10)
    pool.release(third)
    moments = [(e.resource, e.time - began) for e in events if e.kind == "held_long"]
    assert moments == [(first, 5), (second, 8), (third, 18)]


@pytest.mark.virtual_time
async def test_what_comes_back_in_time_is_not_warned_of(make_pool, caplog):
    pool = make_pool(Thing, hold_warning=5.0)
    for _ in range(3):
        async with pool.acquire():
            await advance(4)
    await advance(100)
    assert caplog.text == ""


@pytest.mark.virtual_time
async def test_nothing_is_warned_of_without_hold_warning(make_pool, caplog):
    pool = make_pool(Thing)
    async with pool.acquire():
        await advance(1e6)
    assert caplog.text == ""


@pytest.mark.own_loop
@pytest.mark.virtual_time
async def test_long_holds_are_sent_in_the_order_of_leases(make_pool):
    pool = make_pool(Thing, max_size=8, hold_warning=1.0)
    told = []
    pool.subscribe(lambda event: told.append(event.resource) if event.kind == "held_long" else None)
    held = [await pool.acquire() for _ in range(8)]
    await advance(2)
    assert told == held
    for thing in held:
        await pool.release(thing)
