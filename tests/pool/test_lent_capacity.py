"""What whoever lends capacity to pools needs: none at all, the peak, a ceiling, a probe."""

import asyncio

import pytest

import cenote
from cenote import AcquireTimeoutError, PoolClosedError, PoolDeadlockError
from cenote.testing import settle
from tests.support.kit import STYLES, Gate, Thing, acquiring, cancel, outcome, raising, styled

styles = pytest.mark.parametrize("style", STYLES)


# -- max_size=0 ------------------------------------------------------------------------------------


@styles
async def test_with_a_max_size_of_zero_acquires_wait(make_pool, style):
    pool = make_pool(styled(style, Thing), max_size=2)
    pool.release(await pool.acquire())
    await pool.resize(max_size=0)
    assert (pool.max_size, pool.count) == (0, 0)
    waiter = acquiring(pool)
    await settle()
    assert pool.try_acquire() is None
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=0)
    await pool.resize(max_size=1)
    pool.release(await waiter)


async def test_what_is_out_stays_usable_with_max_size_zero(make_pool):
    pool = make_pool(Thing, max_size=2)
    thing = await pool.acquire()
    await pool.resize(max_size=0)
    assert pool.active_count == 1
    pool.release(thing)
    assert pool.stats().destroyed == {"resized": 1}


async def test_only_resize_takes_a_max_size_of_zero(make_pool):
    with pytest.raises(ValueError, match="max_size must be 1 or more"):
        cenote.Pool(Thing, max_size=0)
    pool = make_pool(Thing, min_size=1)
    with pytest.raises(ValueError, match=r"min_size \(1\) must not be more than max_size \(0\)"):
        pool.resize(max_size=0)


# -- occupied, take_peak ---------------------------------------------------------------------------


async def test_occupied_counts_opening_open_and_closing(make_pool):
    factory, destructor = Gate(lambda: Thing()), Gate()
    pool = make_pool(factory, destructor=destructor, max_size=3)
    waiter = acquiring(pool)
    await settle()
    assert (pool.occupied, pool.count) == (1, 0)
    factory.open()
    pool.discard(await waiter)
    assert (pool.occupied, pool.count) == (1, 0)
    destructor.open()
    await settle()
    assert pool.occupied == 0


async def test_take_peak_gives_the_most_since_the_last_call(make_pool):
    pool = make_pool(Thing, max_size=2)
    assert pool.take_peak() == 0
    things = [await pool.acquire(), await pool.acquire()]
    waiters = [acquiring(pool) for _ in range(3)]
    await settle()
    for waiter in waiters:
        await cancel(waiter)
    pool.release(things.pop())
    assert pool.take_peak() == 5
    assert pool.take_peak() == 1  # what is out now
    pool.release(things.pop())
    assert pool.take_peak() == 1
    assert pool.take_peak() == 0
    pool.release(pool.try_acquire())
    assert pool.take_peak() == 1


# -- ceiling ---------------------------------------------------------------------------------------


async def test_below_the_ceiling_no_wait_is_a_deadlock(make_pool):
    pool = make_pool(Thing, max_size=2)
    pool.resize(max_size=1, ceiling=2)
    async with pool.acquire():
        with pytest.raises(AcquireTimeoutError) as caught:
            await pool.acquire(timeout=1)
        assert "Deadlock" not in str(caught.value)
        pool.resize(ceiling=None)
        with pytest.raises(PoolDeadlockError):
            await pool.acquire()


async def test_a_nested_acquire_below_the_ceiling_waits(make_pool):
    pool = make_pool(Thing, max_size=2)
    pool.resize(max_size=1, ceiling=2)
    asyncio.get_running_loop().call_later(1, lambda: pool.resize(max_size=2))
    async with pool.acquire(), pool.acquire():
        assert pool.active_count == 2


# -- probe -----------------------------------------------------------------------------------------


@styles
async def test_a_probe_makes_one_while_inactive(make_pool, style):
    pool = make_pool(styled(style, Thing), max_size=2)
    pool.deactivate()
    assert await pool.probe() is True
    assert (pool.idle_count, pool.stats().created) == (1, 1)
    assert pool.state == "INACTIVE"


@styles
async def test_a_probe_raises_what_the_factory_raises(make_pool, style):
    failures = []

    class Strategy:
        def report_success(self, pool):
            raise AssertionError

        def report_failure(self, pool, error):
            failures.append(error)

    error = OSError("down")
    pool = make_pool(styled(style, raising(error)), strategy=Strategy())
    with pytest.raises(OSError, match="down"):
        await pool.probe()
    assert failures == [error]
    assert (pool.occupied, pool.stats().begun) == (0, 0)


async def test_the_failure_of_a_probe_goes_to_no_waiter(make_pool):
    factory = Gate()
    pool = make_pool(factory, max_size=2)
    probe = asyncio.ensure_future(pool.probe())
    await settle()
    waiter = acquiring(pool)
    await settle()
    first, *_ = factory.calls
    first.set_exception(OSError("down"))
    with pytest.raises(OSError, match="down"):
        await probe
    assert not waiter.done()
    await settle()
    factory.calls[-1].set_result(Thing())
    pool.release(await waiter)


async def test_a_probe_without_room_makes_nothing(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    assert await pool.probe() is False
    assert pool.stats().created == 1
    pool.release(thing)


async def test_a_cancelled_probe_leaves_its_resource_to_the_pool(make_pool):
    factory = Gate(lambda: Thing())
    pool = make_pool(factory)
    probe = asyncio.ensure_future(pool.probe())
    await settle()
    await cancel(probe)
    factory.open()
    await settle()
    assert pool.idle_count == 1


async def test_a_probe_of_a_closed_pool_raises(make_pool):
    factory = Gate()
    pool = make_pool(factory)
    probe = asyncio.ensure_future(pool.probe())
    await settle()
    await pool.close()
    assert isinstance(await outcome(probe), PoolClosedError)
    with pytest.raises(PoolClosedError):
        await pool.probe()
