"""max_lifetime, max_idle and max_uses."""

import asyncio

import pytest

from cenote.testing import advance, now
from tests.support.kit import (
    STYLES,
    Thing,
    Things,
    obtain,
    recorded,
    started,
    styled,
)

# -- max_uses ------------------------------------------------------------------------------------


async def test_max_uses_is_how_often_it_is_handed_out(make_pool):
    things, destroyed = Things(), []
    pool = make_pool(things, destructor=destroyed.append, max_uses=2, max_size=1)
    first = await pool.acquire()
    pool.release(first)
    assert pool.try_acquire() is first
    assert destroyed == []
    pool.release(first)
    assert destroyed == [first]
    assert await pool.acquire() is things.made[1]
    pool.release(things.made[1])


@pytest.mark.parametrize("kind", STYLES)
async def test_a_waiter_gets_a_new_one_for_the_used_up(make_pool, kind):
    things = Things()
    pool = make_pool(styled(kind, things), max_uses=1, max_size=1)
    old = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.release(old)
    new = await waiter
    assert things.made == [old, new]
    pool.release(new)


def pass_unnoticed(seconds):
    """Time goes by while the loop is blocked: no timer fires."""
    loop = asyncio.get_running_loop()
    loop.jump(loop.time() + seconds)


# -- max_lifetime --------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_max_lifetime_retires_idle_resources_with_jitter(make_pool):
    pool = make_pool(Thing, min_size=30, max_size=30, max_lifetime=100.0)
    await pool.open()
    pool.resize(min_size=0)
    events, made_at = recorded(pool), now()
    await advance(200)
    ages = [event.time - made_at for event in events if event.kind == "destroyed"]
    assert len(ages) == 30
    assert 90 <= min(ages) < max(ages) <= 110
    assert {event.reason for event in events} == {"max_lifetime"}


@pytest.mark.virtual_time
async def test_max_lifetime_never_ends_what_is_in_use(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_lifetime=100.0)
    async with pool.acquire() as thing:
        await advance(500)
        assert destroyed == []
    assert destroyed == [thing]


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_a_waiter_gets_a_new_one_for_the_expired(make_pool, kind):
    things = Things()
    pool = make_pool(styled(kind, things), max_lifetime=100.0, max_size=1)
    old = await pool.acquire()
    waiter = await started(obtain(pool))
    await advance(200)
    pool.release(old)
    new = await waiter
    assert things.made == [old, new]
    pool.release(new)


async def try_acquire(pool):
    return pool.try_acquire()


async def acquire_at_once(pool):
    return await pool.acquire(timeout=0)


@pytest.mark.virtual_time
@pytest.mark.parametrize("hook", [None, "sync"])
@pytest.mark.parametrize("way", [obtain, acquire_at_once, try_acquire])
async def test_an_expired_idle_resource_is_never_handed_out(make_pool, way, hook):
    destroyed, seen = [], []
    pool = make_pool(
        Thing,
        before_acquire=seen.append if hook else None,
        destructor=destroyed.append,
        max_lifetime=100.0,
        max_size=1,
    )
    pool.release(old := await pool.acquire())
    pass_unnoticed(111)
    new = await way(pool)
    assert new is not None
    assert new is not old
    assert destroyed == [old]
    assert seen == []
    pool.release(new)


@pytest.mark.virtual_time
async def test_an_expired_resource_is_not_granted_to_a_waiter(make_pool):
    pool = make_pool(Thing, max_lifetime=100.0, max_size=1)
    old = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.release(old)
    pass_unnoticed(111)
    new = await waiter
    assert new is not old
    pool.release(new)


# -- max_idle ------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_max_idle_destroys_above_min_size_only(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_idle=30.0, min_size=1, max_size=4)
    things = [await pool.acquire() for _ in range(4)]
    for thing in things:
        pool.release(thing)
    await advance(29.9)
    assert destroyed == []
    await advance(0.1)
    assert len(destroyed) == 3
    await advance(1000)
    assert pool.idle_count == 1


@pytest.mark.virtual_time
async def test_busy_resources_count_to_min_size(make_pool):
    pool = make_pool(Thing, max_idle=30.0, min_size=1)
    busy, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    await advance(31)
    assert (pool.active_count, pool.idle_count) == (1, 0)
    pool.release(busy)


@pytest.mark.virtual_time
async def test_the_idle_time_begins_with_the_return(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_idle=30.0)
    pool.release(thing := await pool.acquire())
    await advance(29)
    assert pool.try_acquire() is thing
    await advance(100)
    assert destroyed == []
    pool.release(thing)
    await advance(29.9)
    assert destroyed == []
    await advance(0.1)
    assert destroyed == [thing]


@pytest.mark.virtual_time
async def test_each_goes_when_its_own_time_is_over(make_pool):
    pool = make_pool(Thing, max_idle=30.0)
    events = recorded(pool)
    first, second = await pool.acquire(), await pool.acquire()
    began = now()
    pool.release(first)
    await advance(10)
    pool.release(second)
    await advance(100)
    gone = [(e.resource, e.time - began, e.reason) for e in events if e.kind == "destroyed"]
    assert gone == [(first, 30, "max_idle"), (second, 40, "max_idle")]


@pytest.mark.virtual_time
async def test_a_smaller_min_size_lets_the_idle_go(make_pool):
    pool = make_pool(Thing, max_idle=30.0, min_size=2)
    await pool.open()
    await advance(100)
    assert pool.idle_count == 2
    pool.resize(min_size=0)
    await advance(30)
    assert pool.count == 0
