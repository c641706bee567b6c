"""`close(drain=...)` serves and waits before it closes."""

import asyncio
import math

import pytest

import cenote
from cenote.testing import advance, now, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Thing,
    obtain,
    started,
    styled,
)


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_drain_serves_those_who_wait(make_pool, kind):
    pool = make_pool(styled(kind, Thing), max_size=1)
    thing = await pool.acquire()
    waiters = [await started(obtain(pool)) for _ in range(2)]
    closing = await started(pool.close(drain=10))
    pool.release(thing)
    for waiter in waiters:
        assert await waiter is thing
        assert not closing.done()
        pool.release(thing)
    await closing


@pytest.mark.virtual_time
async def test_drain_serves_those_whose_resource_is_being_created(make_pool):
    factory, thing = Gate(), Thing()
    pool = make_pool(factory)
    waiter = await started(obtain(pool))
    closing = await started(pool.close(drain=10))
    assert not closing.done()
    factory.calls[0].set_result(thing)
    assert await waiter is thing
    pool.release(thing)
    await closing


@pytest.mark.virtual_time
async def test_drain_refuses_new_acquires(make_pool):
    pool = make_pool(Thing, min_size=2)
    await pool.open()
    thing = await pool.acquire()
    closing = await started(pool.close(drain=10))
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire()
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire(timeout=0)
    with pytest.raises(cenote.PoolClosedError):
        async with pool.acquire():
            pytest.fail("it was let in")
    assert pool.try_acquire() is None
    pool.release(thing)
    await closing


@pytest.mark.virtual_time
async def test_drain_ends_as_soon_as_everything_is_back(make_pool):
    destroyed, began = [], now()
    pool = make_pool(Thing, destructor=destroyed.append, max_size=2)
    things = [await pool.acquire(), await pool.acquire()]
    closing = await started(pool.close(drain=10))
    await advance(3)
    pool.release(things[0])
    await settle()
    assert not closing.done()
    pool.release(things[1])
    await closing
    assert now() == began + 3
    assert sorted(map(id, destroyed)) == sorted(map(id, things))


@pytest.mark.virtual_time
async def test_drain_waits_for_the_hooks_of_what_came_back(make_pool):
    hook = Gate()
    pool = make_pool(Thing, before_release=hook)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=4))
    pool.release(thing)
    await settle()
    assert not pool.closed
    hook.calls[0].set_result(True)
    await closing
    assert pool.closed


@pytest.mark.virtual_time
async def test_a_drain_with_nobody_out_ends_at_once(make_pool):
    began = now()
    pool = make_pool(Thing, min_size=2)
    await pool.open()
    await pool.close(drain=10)
    assert now() == began
    assert pool.count == 0


@pytest.mark.virtual_time
async def test_closed_is_true_from_the_end_of_the_drain(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=10))
    await advance(9.9)
    assert not pool.closed
    await advance(0.1)
    assert pool.closed
    await closing
    pool.release(thing)


@pytest.mark.virtual_time
async def test_the_end_of_a_drain_fails_waiters_only(make_pool, caplog):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_size=1)
    thing = await pool.acquire()
    waiter = await started(obtain(pool))
    closing = await started(pool.close(drain=10))
    await advance(9.9)
    assert not waiter.done()
    assert not closing.done()
    await advance(0.1)
    await closing
    with pytest.raises(cenote.PoolClosedError):
        await waiter
    assert destroyed == []
    pool.release(thing)
    assert destroyed == [thing]


@pytest.mark.virtual_time
async def test_an_endless_drain_waits_for_everything(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=math.inf))
    await advance(1e6)
    assert not closing.done()
    pool.release(thing)
    await closing


@pytest.mark.virtual_time
async def test_a_second_close_waits_for_the_drain(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    first = await started(pool.close(drain=10))
    second = await started(pool.close())
    await advance(5)
    assert not second.done()
    pool.release(thing)
    await asyncio.gather(first, second)


@pytest.mark.virtual_time
async def test_a_drain_completes_though_its_awaiter_is_cancelled(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=10))
    closing.cancel()
    await settle()
    assert not pool.closed
    await advance(10)
    assert pool.closed
    pool.release(thing)


@pytest.mark.virtual_time
async def test_a_drained_resource_that_is_discarded_ends_the_drain(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=10))
    pool.discard(thing)
    await settle()
    assert closing.done()


@pytest.mark.virtual_time
async def test_a_cancelled_waiter_does_not_hold_up_the_drain(make_pool):
    pool = make_pool(Gate())
    waiter = await started(obtain(pool))
    closing = await started(pool.close(drain=10))
    assert not closing.done()
    waiter.cancel()
    await closing
    assert now() < 1010


async def test_drain_of_an_unopened_pool_ends_at_once(make_pool):
    pool = make_pool(Thing)
    await pool.close(drain=10)
    assert pool.closed


async def test_a_drain_of_zero_is_a_plain_close(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    await pool.close(drain=0)
    assert pool.closed
    pool.release(thing)


@pytest.mark.parametrize(
    ("drain", "error"), [(-1, ValueError), (math.nan, ValueError), ("10", TypeError)]
)
async def test_a_bad_drain_is_refused_and_nothing_is_closed(make_pool, drain, error):
    pool = make_pool(Thing)
    with pytest.raises(error, match="drain"):
        await pool.close(drain=drain)
    assert not pool.closed
