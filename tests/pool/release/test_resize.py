"""What `resize()` does."""

import pytest

from cenote.testing import settle
from tests.support.kit import (
    STYLES,
    Gate,
    Thing,
    obtain,
    started,
    styled,
)


@pytest.mark.parametrize("kind", STYLES)
async def test_new_room_serves_the_waiters_at_once(make_pool, kind):
    pool = make_pool(styled(kind, Thing), max_size=1)
    first = await pool.acquire()
    waiters = [await started(obtain(pool)) for _ in range(3)]
    pool.resize(max_size=3)
    await settle()
    assert [waiter.done() for waiter in waiters] == [True, True, False]
    for thing in (first, waiters[0].result(), waiters[1].result()):
        pool.release(thing)
    pool.release(await waiters[2])
    assert pool.max_size == 3


@pytest.mark.parametrize("kind", STYLES)
async def test_surplus_idle_resources_go_now(make_pool, kind):
    destroyed = []
    pool = make_pool(Thing, destructor=styled(kind, destroyed.append), min_size=3)
    await pool.open()
    await pool.resize(min_size=0, max_size=1)
    assert len(destroyed) == 2
    assert pool.idle_count == 1


async def test_surplus_busy_resources_go_on_return(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_size=3)
    things = [await pool.acquire() for _ in range(3)]
    pool.resize(max_size=1)
    assert destroyed == []
    for thing in things:
        pool.release(thing)
    assert destroyed == things[:2]
    assert pool.idle_count == 1


async def test_surplus_resources_do_not_go_to_waiters(make_pool):
    pool = make_pool(Thing, max_size=2)
    first, second = await pool.acquire(), await pool.acquire()
    waiter = await started(obtain(pool))
    pool.resize(max_size=1)
    pool.release(first)
    await settle()
    assert not waiter.done()
    pool.release(second)
    assert await waiter is second
    pool.release(second)


async def test_idle_resources_go_before_busy_ones(make_pool):
    pool = make_pool(Thing, max_size=2)
    busy, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    pool.resize(max_size=1)
    assert (pool.active_count, pool.idle_count) == (1, 0)
    pool.release(busy)
    assert pool.idle_count == 1


async def test_a_creation_under_way_counts_as_surplus(make_pool):
    factory = Gate()
    pool = make_pool(factory, max_size=2)
    waiters = [await started(obtain(pool)) for _ in range(2)]
    pool.resize(max_size=1)
    for call in factory.calls:
        call.set_result(Thing())
    await settle()
    assert pool.count == 1
    assert [waiter.done() for waiter in waiters] == [True, False]
    pool.release(waiters[0].result())
    pool.release(await waiters[1])


async def test_a_larger_min_size_is_filled(make_pool):
    pool = make_pool(Thing)
    await pool.open()
    pool.resize(min_size=3)
    await settle()
    assert (pool.idle_count, pool.min_size) == (3, 3)


@pytest.mark.parametrize(
    ("sizes", "error", "name"),
    [
        ({"min_size": 4}, ValueError, "min_size"),
        ({"min_size": -1}, ValueError, "min_size"),
        ({"max_size": 0}, ValueError, "max_size"),
        ({"max_size": 1}, ValueError, "min_size"),
        ({"max_size": 1.5}, TypeError, "max_size"),
    ],
)
async def test_bad_sizes_change_nothing(make_pool, sizes, error, name):
    pool = make_pool(Thing, min_size=2, max_size=3)
    await pool.open()
    with pytest.raises(error, match=name):
        pool.resize(**sizes)
    assert (pool.min_size, pool.max_size, pool.count) == (2, 3, 2)


async def test_a_resize_too_large_changes_nothing(make_pool):
    pool = make_pool(Thing)
    with pytest.raises(ValueError, match="max_size"):
        pool.resize(min_size=1, max_size=10**30)
    assert (pool.min_size, pool.max_size) == (0, 10)
