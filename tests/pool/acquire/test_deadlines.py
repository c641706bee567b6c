"""The deadlines of the waiters of a pool."""

import asyncio
import gc
import random
import weakref

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import Thing, acquiring, full, outcome

virtual_time = pytest.mark.virtual_time
SEED = 20261116


def timed(pool, seconds, ends):
    """A waiter that notes its timeout and when it came."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def wait():
        with pytest.raises(cenote.AcquireTimeoutError):
            await pool.acquire(timeout=seconds)
        ends.append((seconds, loop.time() - began))

    return asyncio.create_task(wait())


@virtual_time
async def test_each_waiter_has_its_own_deadline(make_pool):
    pool, held = await full(make_pool)
    ends = []
    tasks = [timed(pool, each, ends) for each in random.Random(SEED).sample(range(1, 101), 100)]
    await settle()
    assert pool.waiting_count == 100
    await asyncio.gather(*tasks)
    assert ends == [(each, each) for each in range(1, 101)]
    assert pool.waiting_count == 0
    await pool.release(held)


@virtual_time
async def test_a_waiter_that_leaves_takes_its_deadline_along(make_pool):
    pool, held = await full(make_pool)
    draw = random.Random(SEED)
    ends = []
    waiters = {each: timed(pool, each, ends) for each in draw.sample(range(1, 301), 300)}
    await settle()
    for each in draw.sample(sorted(waiters), 200):
        waiters.pop(each).cancel()
    await settle()
    assert pool.waiting_count == 100
    await asyncio.gather(*waiters.values())
    assert ends == [(each, each) for each in sorted(waiters)]
    await pool.release(held)


@virtual_time
async def test_a_served_waiter_takes_its_deadline_along(make_pool):
    pool, held = await full(make_pool)
    ends = []
    for _ in range(50):  # each is served before the next one waits
        waiter = acquiring(pool, timeout=10)
        await settle()
        await pool.release(held)
        held = await waiter
    late = timed(pool, 10, ends)
    await asyncio.sleep(9)
    later = timed(pool, 10, ends)
    await asyncio.gather(late, later)
    assert ends == [(10, 10), (10, 10)]
    await pool.release(held)


@virtual_time
async def test_an_earlier_deadline_may_come_later(make_pool):
    pool, held = await full(make_pool)
    ends = []
    patient = timed(pool, 100, ends)
    await asyncio.sleep(1)
    hasty = timed(pool, 1, ends)
    await asyncio.gather(patient, hasty)
    assert ends == [(1, 1), (100, 100)]
    await pool.release(held)


@virtual_time
async def test_deadlines_passed_in_a_blocked_loop_are_kept(make_pool):
    pool, held = await full(make_pool)
    waiters = [acquiring(pool, timeout=1 + each / 100) for each in range(50)]
    await settle()
    loop = asyncio.get_running_loop()
    loop.jump(loop.time() + 20)  # as if something had not let it run for so long
    await settle()
    assert all(waiter.done() for waiter in waiters)
    for waiter in waiters:
        assert isinstance(await outcome(waiter), cenote.AcquireTimeoutError)
    await pool.release(held)


@virtual_time
async def test_deadlines_are_kept_after_a_failed_open(make_pool):
    backend_is_up = False

    async def connect():
        await asyncio.sleep(1)
        if not backend_is_up:
            raise ConnectionError("down")
        return Thing()

    pool = make_pool(connect, min_size=1, max_size=1)
    opening = asyncio.create_task(pool.open())
    await settle()
    waiter = acquiring(pool, timeout=5)
    assert isinstance(await outcome(waiter), ConnectionError)
    assert isinstance(await outcome(opening), ConnectionError)
    backend_is_up = True
    await asyncio.sleep(100)
    await pool.open()
    ends = []
    async with pool.acquire():
        await timed(pool, 7, ends)
    assert ends == [(7, 7)]


@virtual_time
async def test_a_deadline_and_a_release_may_share_a_step(make_pool):
    pool, held = await full(make_pool)
    waiter = acquiring(pool, timeout=5)
    await settle()
    asyncio.get_running_loop().call_later(5, pool.release, held)
    got = await outcome(waiter)
    if isinstance(got, cenote.AcquireTimeoutError):
        assert pool.idle_count == 1
    else:
        assert got is held
        await pool.release(held)
    async with pool.acquire(timeout=1):
        pass


async def test_a_closed_pool_leaves_no_timer(make_pool):
    pool, held = await full(make_pool)
    waiter = acquiring(pool, timeout=1000)
    await settle()
    closing = asyncio.create_task(pool.close())
    assert isinstance(await outcome(waiter), cenote.PoolClosedError)
    await pool.release(held)
    await closing
    scheduled = getattr(asyncio.get_running_loop(), "_scheduled", ())
    assert [each for each in scheduled if not each.cancelled()] == []


async def test_a_deadline_keeps_no_pool_alive():
    pool = cenote.Pool(Thing, max_size=1)
    held = await pool.acquire()
    waiter = acquiring(pool, timeout=1000)
    await settle()
    await pool.release(held)
    await pool.release(await waiter)
    gone = weakref.ref(pool)
    with pytest.warns(ResourceWarning):  # noqa: PT031
        del pool, waiter, held
        gc.collect()
    assert gone() is None
