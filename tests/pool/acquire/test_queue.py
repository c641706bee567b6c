"""The queue of waiters: order, rejected waiters, max_waiting, the price of a cancellation."""

import asyncio
import sys

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import (
    FakeService,
    Gate,
    Thing,
    acquiring,
    full,
    give_all,
    queued,
    take_all,
)

both_factories = pytest.mark.parametrize("factory", ["sync ok", "async ok"])
both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


# -- the queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before_acquire", [None, "sync ok", "async ok"])
@both_factories
async def test_waiters_are_served_in_the_order_of_their_coming(make_pool, factory, before_acquire):
    service, served = FakeService(factory, before_acquire=before_acquire), []
    pool = make_pool(**service.hooks(), max_size=2)

    async def use(number):
        async with pool.acquire():
            served.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(number) for number in range(20)))
    assert served == list(range(20))


@both_factories
async def test_a_holder_that_acquires_again_goes_to_the_back(make_pool, factory):
    pool, served = make_pool(**FakeService(factory).hooks(), max_size=1), []

    async def use(name, times):
        for _ in range(times):
            resource = await pool.acquire()
            served.append(name)
            await asyncio.sleep(0)
            pool.release(resource)

    await asyncio.gather(use("greedy", 3), use("second", 1), use("third", 1))
    assert served == ["greedy", "second", "third", "greedy", "greedy"]


@pytest.mark.parametrize("give", ["release", "discard"])
@both_factories
async def test_a_newcomer_in_the_step_of_a_return_waits(make_pool, factory, give):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1)
    held, waiter = await queued(pool)
    getattr(pool, give)(held)
    newcomer = acquiring(pool)
    assert pool.try_acquire() is None
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=0)
    await settle()
    assert waiter.done()
    assert not newcomer.done()
    pool.release(await waiter)
    pool.release(await newcomer)


async def test_a_released_resource_that_is_owed_counts_as_active(make_pool):
    pool = make_pool(object, max_size=1)
    held, waiter = await queued(pool)
    assert pool.waiting_count == 1
    pool.release(held)
    assert (pool.active_count, pool.idle_count, pool.waiting_count) == (1, 0, 0)
    assert await waiter is held
    pool.release(held)


async def test_surplus_beside_a_waiter_is_open_to_newcomers_at_once(make_pool):
    pool = make_pool(object, max_size=3)
    held = await take_all(pool, 3)
    waiter = acquiring(pool)
    await settle()
    for resource in held:
        pool.release(resource)
    assert pool.try_acquire() is held[1]
    newcomer = pool.acquire().__await__()
    with pytest.raises(StopIteration) as given:
        next(newcomer)  # without a single suspension
    assert given.value.value is held[2]
    assert await waiter is held[0]
    await give_all(pool, held)


@both_factories
async def test_a_waiter_may_leave_in_the_middle(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1)
    held = await pool.acquire()
    tasks = []
    for _ in range(5):
        tasks.append(acquiring(pool))
        await settle()
    tasks[0].cancel()
    tasks[2].cancel()
    tasks[4].cancel()
    await settle()
    assert pool.waiting_count == 2
    pool.release(held)
    pool.release(await tasks[1])
    pool.release(await tasks[3])


# -- a rejected waiter ---------------------------------------------------------------------------


@both_kinds
@both_factories
async def test_a_rejected_waiter_makes_one_in_its_slot(make_pool, factory, kind):
    service = FakeService(factory, before_acquire=f"{kind} no", destructor="async ok")
    pool = make_pool(**service.hooks(), max_size=1)
    held, first, second = await queued(pool, 2)
    pool.release(held)
    newcomer = acquiring(pool)
    await settle()
    assert first.done()
    assert await first is service.made[1]
    assert not second.done()
    assert service.destroyed == [held]
    service.heal()
    pool.release(await first)
    pool.release(await second)
    pool.release(await newcomer)
    assert service.peak == 1


@both_factories
async def test_a_rejected_waiter_stays_first_during_the_destruction(make_pool, factory):
    service, doors = FakeService(factory, before_acquire="sync no"), Gate()
    pool = make_pool(**service.hooks(), destructor=doors, max_size=2)
    bad, good = await take_all(pool, 2)
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    pool.release(bad)
    await settle()
    assert pool.waiting_count == 2
    service.heal()
    pool.release(good)
    await settle()
    assert first.done()
    assert await first is good
    assert not second.done()
    doors.calls[0].set_result(None)
    assert await second is service.made[2]
    for resource in (good, await second):
        pool.release(resource)
    closing = asyncio.create_task(pool.close())
    await settle()
    for call in doors.calls[1:]:
        call.set_result(None)
    await closing


@both_factories
async def test_a_rejected_waiter_is_handed_what_became_idle_meanwhile(make_pool, factory):
    """Whichever comes first: what is idle is there already."""
    service, doors = FakeService(factory), Gate()
    pool = make_pool(**service.hooks(), before_acquire=doors, max_size=2)
    bad, other = await take_all(pool, 2)
    waiter = acquiring(pool)
    await settle()
    pool.release(bad)
    await settle()
    pool.release(other)
    doors.calls[0].set_result(False)
    await settle()
    doors.calls[1].set_result(True)
    assert await waiter is other
    assert len(service.made) == 2
    pool.release(await waiter)


# -- max_waiting ---------------------------------------------------------------------------------


@both_factories
async def test_more_waiters_than_max_waiting_are_refused_at_once(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1, max_waiting=2)
    held = await pool.acquire()
    tasks = [acquiring(pool), acquiring(pool)]
    await settle()
    for _ in range(2):
        with pytest.raises(cenote.PoolOverloadedError):
            await pool.acquire(timeout=5)
    assert pool.waiting_count == 2
    pool.release(held)
    third = acquiring(pool)  # one that was handed something waits no more
    pool.release(await tasks[0])
    pool.release(await tasks[1])
    pool.release(await third)


async def test_max_waiting_0_serves_what_needs_no_waiting(make_pool):
    pool = make_pool(object, max_size=1, max_waiting=0)
    held = await pool.acquire()
    with pytest.raises(cenote.PoolOverloadedError):
        await pool.acquire()
    pool.release(held)
    pool.release(await pool.acquire())


async def test_a_task_whose_own_creation_runs_counts_for_max_waiting(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=5, max_waiting=1)
    creator = acquiring(pool)
    await settle()
    assert pool.waiting_count == 1
    with pytest.raises(cenote.PoolOverloadedError):
        await pool.acquire()
    assert len(doors.calls) == 1
    doors.calls[0].set_result("made")
    pool.release(await creator)


# -- the price of a cancellation -----------------------------------------------------------------


@pytest.mark.parametrize("place", ["first", "middle", "last"])
async def test_cancelling_costs_the_same_in_a_long_queue(make_pool, place):
    async def lines_run(length):
        pool = make_pool(object, max_size=1)
        held = await pool.acquire()
        queue = [acquiring(pool) for _ in range(length)]
        await settle()
        victim = queue[{"first": 0, "middle": length // 2, "last": -1}[place]]
        count = 0

        def trace(frame, event, argument):
            nonlocal count
            count += event == "line"
            return trace

        victim.cancel()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            sys.settrace(before)
        assert victim.cancelled()
        for task in queue:
            task.cancel()
        await asyncio.wait(queue)
        pool.release(held)
        return count

    await lines_run(3)
    short, long = await lines_run(10), await lines_run(2000)
    assert long <= short + 20


@pytest.mark.parametrize("answer", [True, False, "raises"])
async def test_a_waiter_keeps_its_turn_after_a_rejection(make_pool, answer):
    asked = []

    def look(resource):
        asked.append(resource)
        if len(asked) > 1 or answer is True:
            return True
        if answer == "raises":
            raise RuntimeError("out of order")
        return False

    pool = make_pool(Thing, max_size=1, before_acquire=look)
    held = await pool.acquire()
    first, second = acquiring(pool, timeout=10), acquiring(pool, timeout=10)
    await settle()
    await pool.release(held)
    got = await first
    assert (got is held) == (answer is True)
    assert not second.done()  # the first has kept its turn
    await pool.release(got)
    assert await second is got
    assert asked[0] is held
    await pool.release(got)


async def test_a_waiter_that_is_closed_leaves_the_queue(make_pool):
    pool, held = await full(make_pool)

    async def wait():
        await pool.acquire(timeout=10)

    coroutine = wait()
    coroutine.send(None)
    assert pool.waiting_count == 1
    coroutine.close()
    assert pool.waiting_count == 0
    steps = pool.acquire(timeout=10).__await__()
    next(steps)
    with pytest.raises(KeyError):
        steps.throw(KeyError("x"))
    assert pool.waiting_count == 0
    pool.acquire(timeout=10).__await__()  # never driven
    assert pool.waiting_count == 0
    await pool.release(held)
    assert pool.idle_count == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("works", [True, False])
async def test_a_thousand_waiters_are_served_with_eager_tasks(make_pool, works):
    async def make():
        if not works:
            raise OSError
        return Thing()

    async def take(pool):
        return await pool.acquire()

    pool = make_pool(make, max_size=1)
    waiters = [asyncio.ensure_future(take(pool)) for _ in range(1000)]
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        await asyncio.sleep(0)
        pool.resize(max_size=1000)
        ends = await asyncio.gather(*waiters, return_exceptions=True)
    finally:
        loop.set_task_factory(None)
    assert all(isinstance(end, Thing if works else OSError) for end in ends)
    for end in ends:
        if works:
            pool.release(end)
