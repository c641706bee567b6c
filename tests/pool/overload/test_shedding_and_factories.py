"""Controlled delay where a factory or a hook takes long: what is judged is the wait for a turn."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Thing, acquiring, give_all

pytestmark = pytest.mark.virtual_time

TARGET, INTERVAL = 0.5, 2.0
LONG = 3.0  # longer than the interval, and than twice the target


@pytest.fixture
def shedding(make_pool):
    def make(factory, **options):
        return make_pool(factory, queue_target=TARGET, queue_interval=INTERVAL, **options)

    return make


async def slow():
    await asyncio.sleep(LONG)
    return Thing()


def is_shed(task):
    error = task.exception() if task.done() and not task.cancelled() else None
    return isinstance(error, cenote.PoolOverloadedError) and error.reason == "shed"


async def test_an_idle_pool_with_a_slow_factory_sheds_nobody(shedding):
    pool = shedding(slow, max_size=3)
    waiters = [acquiring(pool) for _ in range(3)]
    await advance(LONG)
    await give_all(pool, [waiter.result() for waiter in waiters])


async def test_a_factory_under_way_saves_who_comes_later(shedding):
    pool = shedding(slow, max_size=3)
    gone = acquiring(pool)
    await settle()
    gone.cancel()
    waiter = acquiring(pool)
    await advance(LONG)
    assert pool.stats().created == 1
    pool.release(waiter.result())


async def test_a_return_while_a_factory_runs_for_it_sheds_nobody(shedding):
    pool = shedding(slow, max_size=2)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await advance(LONG - 0.25)
    pool.release(held)
    await settle()
    pool.release(waiter.result())
    await advance(LONG)


async def test_a_factory_that_hangs_saves_nobody_else(shedding):
    pool = shedding(slow, max_size=2)
    held = await pool.acquire()
    waiters = [acquiring(pool) for _ in range(3)]
    await advance(LONG - 0.25)
    pool.release(held)
    await settle()
    held = waiters[0].result()  # for which a factory runs
    pool.release(held)
    await settle()
    assert is_shed(waiters[1])
    assert is_shed(waiters[2])
    await advance(LONG)


async def test_no_async_factory_runs_for_those_who_are_shed(shedding):
    made = []

    async def create():
        made.append(Thing())
        return made[-1]

    pool = shedding(create, max_size=1)
    held = await pool.acquire()
    old = [acquiring(pool) for _ in range(2)]
    await advance(INTERVAL)
    pool.discard(held)
    await settle()
    assert all(map(is_shed, old))
    assert len(made) == 1
    pool.release(await pool.acquire())


async def test_an_overload_sheds_those_for_whom_a_factory_would_run(shedding):
    """Every resource serves once: nobody gets anything that was not made for it."""
    pool = shedding(slow, max_size=1, max_uses=1)
    held = await pool.acquire()
    old = acquiring(pool)
    await advance(INTERVAL)
    young = acquiring(pool)
    await advance(0.25)
    pool.release(held)
    await settle()
    assert is_shed(old)
    await advance(LONG)
    pool.release(young.result())


@pytest.mark.parametrize("waits", [False, True], ids=["newcomer", "waiter"])
async def test_who_had_its_turn_is_not_shed_later(shedding, waits):
    async def hangs(thing):
        await asyncio.sleep(LONG)
        return False

    pool = shedding(slow, max_size=1, before_acquire=hangs)
    held = await pool.acquire()
    if waits:
        waiter = acquiring(pool)
        await settle()
        pool.release(held)
    else:
        pool.release(held)
        waiter = acquiring(pool)
    await advance(2 * LONG)
    pool.release(waiter.result())


async def test_the_time_in_a_hook_is_no_overload(shedding):
    async def hangs(thing):
        await asyncio.sleep(LONG)
        return False

    async def create():
        await asyncio.sleep(0.125)
        return Thing()

    pool = shedding(create, max_size=1, before_acquire=hangs)
    pool.release(await pool.acquire())
    first = acquiring(pool)
    await advance(LONG)
    second = acquiring(pool)
    await advance(INTERVAL - 0.25)
    pool.discard(first.result())
    await advance(0.125)
    pool.release(second.result())


# -- the place of a lane ---------------------------------------------------------------------------


async def test_a_place_freed_by_a_slow_rejection_is_new(shedding):
    async def rejects(thing):
        await asyncio.sleep(LONG)
        return False

    pool = shedding(Thing, max_size=2, before_release=rejects)
    lane = pool.lane("lane", max_size=1)
    other, held = await pool.acquire(), await lane.acquire()
    parked = acquiring(lane)
    await settle()
    pool.release(held)
    await advance(LONG)
    for thing in (other, parked.result()):
        pool.discard(thing)


async def test_a_place_freed_by_a_slow_factory_is_new(shedding):
    fates = iter([0.0, LONG, 0.25])

    async def create():
        delay = next(fates)
        await asyncio.sleep(delay)
        if delay == LONG:
            raise OSError("no route")
        return Thing()

    pool = shedding(create, max_size=2)
    lane = pool.lane("lane", max_size=1)
    other = await pool.acquire()
    failing, parked = acquiring(lane), acquiring(lane)
    await advance(LONG + 0.25)
    assert isinstance(failing.exception(), OSError)
    await give_all(pool, [other, parked.result()])


async def test_who_waited_for_its_lane_is_not_shed(shedding):
    pool = shedding(Thing, max_size=2)
    lane = pool.lane("lane", max_size=1)
    other, held = await pool.acquire(), await lane.acquire()
    parked = acquiring(lane)
    await settle()
    old = acquiring(pool)
    await advance(INTERVAL)
    pool.release(held)
    await settle()
    assert parked.result() is held  # it stood in the queue for no time, and that ends the overload
    pool.release(other)
    await give_all(pool, [held, await old])
    assert not pool.stats().refused
