"""Controlled delay: an overloaded pool refuses those who have waited too long."""

import asyncio
import pickle

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Thing, acquiring, give_all, outcome, recorded, take_all

pytestmark = pytest.mark.virtual_time

TARGET, INTERVAL = 0.5, 2.0


@pytest.fixture
def pool(make_pool):
    return make_pool(Thing, max_size=1, queue_target=TARGET, queue_interval=INTERVAL, name="main")


def is_shed(task):
    error = task.exception() if task.done() and not task.cancelled() else None
    return isinstance(error, cenote.PoolOverloadedError) and error.reason == "shed"


async def test_an_overloaded_pool_sheds_who_waited_too_long(pool):
    events = recorded(pool)
    held = await pool.acquire()
    old = [acquiring(pool) for _ in range(3)]
    await advance(INTERVAL)
    young = acquiring(pool)
    await advance(TARGET)
    pool.release(held)
    await settle()
    assert all(map(is_shed, old))
    assert isinstance(young.result(), Thing)
    stats = pool.stats()
    assert stats.refused == {"shed": 3}
    refused = [event for event in events if event.kind == "refused"]
    assert [(event.reason, event.duration) for event in refused] == [("shed", 2.5)] * 3
    pool.release(young.result())


async def test_nobody_is_shed_before_the_interval_is_over(pool):
    held = await pool.acquire()
    waiters = [acquiring(pool) for _ in range(2)]
    await advance(INTERVAL - 0.125)
    pool.release(held)
    await settle()
    assert isinstance(waiters[0].result(), Thing)
    pool.release(waiters[0].result())
    pool.release(await waiters[1])
    assert not pool.stats().refused


async def test_without_a_target_everybody_is_served(make_pool):
    pool = make_pool(Thing, max_size=1)
    held = await pool.acquire()
    waiters = [acquiring(pool) for _ in range(3)]
    await advance(1000)
    for waiter in waiters:
        pool.release(held)
        held = await waiter
    pool.release(held)


async def test_who_waited_at_most_twice_the_target_is_served(pool):
    held = await pool.acquire()
    oldest = acquiring(pool)
    await advance(INTERVAL)
    waiters = [acquiring(pool) for _ in range(2)]
    await advance(2 * TARGET)
    pool.release(held)
    await settle()
    assert is_shed(oldest)
    assert isinstance(waiters[0].result(), Thing)
    await advance(0.125)
    pool.release(waiters[0].result())
    await settle()
    assert is_shed(waiters[1])


async def test_one_served_in_less_than_the_target_ends_it(pool):
    held = await pool.acquire()
    oldest = acquiring(pool)
    await advance(INTERVAL)
    quick, slow = acquiring(pool), acquiring(pool)
    await advance(TARGET - 0.125)
    pool.release(held)
    await settle()
    assert is_shed(oldest)
    held = quick.result()
    await advance(INTERVAL - 0.125)
    pool.release(held)
    await settle()
    assert isinstance(slow.result(), Thing)  # it waited longer, and the overload is over
    pool.release(slow.result())


async def test_a_wait_of_exactly_the_target_is_not_quick(pool):
    held = await pool.acquire()
    first = acquiring(pool)
    await advance(INTERVAL)
    second, third = acquiring(pool), acquiring(pool)
    await advance(TARGET)
    pool.release(held)
    await settle()
    assert is_shed(first)
    await advance(2 * TARGET)
    pool.release(second.result())
    await settle()
    assert is_shed(third)


async def test_those_who_are_served_keep_their_order(make_pool):
    pool = make_pool(Thing, max_size=1, queue_target=0.1, queue_interval=0.5)
    served, shed = [], []

    async def use(number):
        try:
            async with pool.acquire():
                served.append(number)
                await asyncio.sleep(0.15)
        except cenote.PoolOverloadedError:
            shed.append(number)

    tasks = []
    for number in range(60):
        tasks.append(asyncio.create_task(use(number)))
        await advance(0.05)
    await advance(20)
    assert served == sorted(served)
    assert shed == sorted(shed)
    assert sorted(served + shed) == list(range(60))
    assert served
    assert shed
    assert all(task.done() for task in tasks)


async def test_an_overload_ends_when_nobody_waits(pool):
    held = await pool.acquire()
    gone = acquiring(pool)
    await advance(INTERVAL)
    pool.release(held)
    assert is_shed(gone) or isinstance(await outcome(gone), cenote.PoolOverloadedError)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await advance(3 * TARGET)
    pool.release(held)
    pool.release(await waiter)


async def test_a_quiet_time_is_no_overload(pool):
    pool.release(await pool.acquire())
    await advance(100 * INTERVAL)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await advance(3 * TARGET)
    pool.release(held)
    pool.release(await waiter)


async def test_factories_make_nothing_for_those_who_are_shed(make_pool):
    pool = make_pool(Thing, max_size=1, queue_target=TARGET, queue_interval=INTERVAL)
    held = await pool.acquire()
    waiters = [acquiring(pool) for _ in range(2)]
    await advance(INTERVAL + TARGET)
    pool.discard(held)
    await settle()
    assert all(map(is_shed, waiters))
    assert (pool.stats().created, pool.count) == (1, 0)


async def test_the_wait_for_a_lane_is_no_overload(make_pool):
    pool = make_pool(Thing, max_size=2, queue_target=TARGET, queue_interval=INTERVAL)
    batch = pool.lane("batch", max_size=1)
    held = await batch.acquire()
    parked = [acquiring(batch) for _ in range(3)]
    for waiter in parked:
        await advance(5 * INTERVAL)
        pool.release(held)
        held = await waiter
    pool.release(held)
    assert not pool.stats().refused


async def test_a_lane_that_waits_for_a_resource_is_shed(make_pool):
    pool = make_pool(Thing, max_size=1, queue_target=TARGET, queue_interval=INTERVAL, name="main")
    batch = pool.lane("batch", max_size=1)
    held = await pool.acquire()
    waiter, parked = acquiring(batch), acquiring(batch)
    await advance(INTERVAL)
    pool.release(held)
    await settle()
    assert is_shed(waiter)
    assert str(waiter.exception()).startswith("pool 'main', lane 'batch': shed after 2.0 s in")
    assert batch.stats().refused == {"shed": 1}
    pool.release(await parked)


async def test_a_shed_error_says_when_to_come_back(pool):
    held = await pool.acquire()
    waiter = acquiring(pool)
    await advance(INTERVAL)
    pool.release(held)
    await settle()
    error = waiter.exception()
    assert str(error) == (
        "pool 'main': shed after 2.0 s in the queue: the pool is overloaded, and queue_target is "
        "0.5 s (0 waiting). Answer the client that it is to try again later, or raise max_size."
    )
    assert error.retry_after == 4.0  # one hold of 2 s, for this waiter and the next
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, again.retry_after) == ("shed", 4.0)


async def test_retry_after_grows_with_the_queue(make_pool):
    pool = make_pool(Thing, max_size=2, max_waiting=3)
    held = await take_all(pool, 2)
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await pool.acquire(timeout=0)
    assert caught.value.retry_after is None  # nothing has come back yet
    await advance(4)
    await give_all(pool, held)
    held = await take_all(pool, 2)
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await pool.acquire(timeout=0)
    assert caught.value.retry_after == 2.0  # a hold lasts 4 s, and there are two
    assert pickle.loads(pickle.dumps(caught.value)).retry_after == 2.0
    waiters = [acquiring(pool) for _ in range(3)]
    await settle()
    with pytest.raises(cenote.PoolOverloadedError) as refused:
        await pool.acquire()
    assert (refused.value.retry_after, refused.value.reason) == (8.0, "overloaded")
    for waiter in waiters:
        pool.release(held.pop(0))
        held.append(await waiter)
    await give_all(pool, held)


async def test_retry_after_is_at_least_the_interval(make_pool):
    """By then it is known whether the pool is overloaded still."""
    pool = make_pool(object, max_size=10, queue_target=0.1, queue_interval=4.0)
    held = await take_all(pool, 10)
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await pool.acquire(timeout=0)
    assert caught.value.retry_after == 4.0
    await give_all(pool, held)
    held = await take_all(pool, 10)
    with pytest.raises(cenote.AcquireTimeoutError) as caught:  # the queue alone would say: at once
        await pool.acquire(timeout=0)
    assert caught.value.retry_after == 4.0
    await give_all(pool, held)


async def test_retry_after_of_a_full_lane_is_its_own(make_pool):
    pool = make_pool(Thing, max_size=10)
    batch = pool.lane("batch", max_size=1)
    held = await batch.acquire()
    await advance(4)
    pool.release(held)
    held = await batch.acquire()
    waiter = acquiring(batch)
    await settle()
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await batch.acquire(timeout=0)
    assert caught.value.retry_after == 8.0  # one waits already, and one is out at a time
    pool.release(held)
    pool.release(await waiter)
