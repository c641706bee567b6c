"""Acquires that end after something was granted to them, or while they wait."""

import asyncio
import gc

import pytest

import cenote
from cenote.pool.hooks import HookTask
from cenote.testing import advance, settle
from tests.support.kit import (
    FakeService,
    acquiring,
    outcome,
    queued,
)

virtual_time = pytest.mark.virtual_time
both_factories = pytest.mark.parametrize("factory", ["sync ok", "async ok"])


def cancelled(pool, task):
    task.cancel()


def refused(pool, task):
    pool.deactivate()


leaving = pytest.mark.parametrize("leave", [cancelled, refused])


@leaving
async def test_a_granted_resource_is_idle_again_when_its_waiter_leaves(make_pool, leave):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), max_size=1)
    held, waiter = await queued(pool)
    pool.release(held)
    leave(pool, waiter)
    assert await outcome(waiter) is not held
    assert (pool.idle_count, pool.active_count) == (1, 0)
    assert service.destroyed == []
    pool.activate()
    assert pool.try_acquire() is held
    pool.release(held)


async def test_a_granted_resource_passes_on_when_its_waiter_is_cancelled(make_pool):
    pool = make_pool(object, max_size=1)
    held, first, second = await queued(pool, 2)
    pool.release(held)
    first.cancel()
    assert await second is held
    assert first.cancelled()
    assert pool.stats().cancelled == 1
    pool.release(held)


@leaving
async def test_a_creation_right_is_free_when_its_waiter_leaves(make_pool, leave):
    service = FakeService()
    pool = make_pool(**service.hooks(), max_size=1)
    held, waiter = await queued(pool)
    pool.discard(held)
    leave(pool, waiter)
    assert await outcome(waiter) is not held
    assert service.calls == 1
    assert pool.stats().creating == 0
    pool.activate()
    pool.release(pool.try_acquire())


async def test_a_creation_right_passes_on_when_its_waiter_is_cancelled(make_pool):
    service = FakeService()
    pool = make_pool(**service.hooks(), max_size=1)
    held, first, second = await queued(pool, 2)
    pool.discard(held)
    first.cancel()
    assert await second is service.made[1]
    assert first.cancelled()
    pool.release(await second)


async def test_a_granted_resource_is_destroyed_by_close(
    make_pool,
):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), max_size=1)
    held, waiter = await queued(pool)
    pool.release(held)
    await pool.close()
    assert isinstance(await outcome(waiter), cenote.PoolClosedError)
    assert service.destroyed == [held]


@pytest.mark.parametrize(
    "leave", ["cancel", "deactivate", "close", pytest.param("timeout", marks=virtual_time)]
)
@pytest.mark.parametrize("handed", [False, True], ids=["newcomer", "waiter"])
@both_factories
async def test_leaving_during_before_acquire_interrupts_it_and_destroys(
    make_pool, factory, handed, leave
):
    service, interrupted = FakeService(factory, destructor="sync ok"), []

    async def hang(resource):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupted.append(resource)
            raise

    pool = make_pool(**service.hooks(), before_acquire=hang, max_size=1, hook_timeout=1000)
    held = await pool.acquire()
    if not handed:
        pool.release(held)
    waiter = acquiring(pool, timeout=5 if leave == "timeout" else None)
    await settle()
    if handed:
        pool.release(held)
        await settle()
    behind = acquiring(pool)
    await settle()
    assert not waiter.done()
    if leave == "cancel":
        waiter.cancel()
    elif leave == "deactivate":
        pool.deactivate()
    elif leave == "close":
        await pool.close()
    else:
        await advance(5)
    left_with = {
        "cancel": asyncio.CancelledError,
        "deactivate": cenote.ServiceUnavailableError,
        "close": cenote.PoolClosedError,
        "timeout": cenote.AcquireTimeoutError,
    }[leave]
    await settle()
    assert waiter.done()
    result = await outcome(waiter)
    assert result is left_with or isinstance(result, left_with)
    assert interrupted == [held]
    assert service.destroyed == [held]
    if leave in ("cancel", "timeout"):  # its slot went to the next
        assert await behind is service.made[1]
        pool.release(await behind)
    else:
        assert isinstance(await outcome(behind), left_with)
        assert pool.stats().creating == 0


@pytest.mark.parametrize("timeout", [None, 10])
async def test_an_iterator_dropped_while_waiting_leaves_the_queue(make_pool, timeout):
    pool = make_pool(object, max_size=1)
    resource = await pool.acquire()
    steps = pool.acquire(timeout=timeout).__await__()
    steps.send(None)
    assert pool.waiting_count == 1
    del steps
    gc.collect()
    assert pool.waiting_count == 0
    assert pool.stats().cancelled == 1
    pool.release(resource)
    assert pool.idle_count == 1


async def test_an_iterator_dropped_after_its_grant_passes_it_on(make_pool):
    pool = make_pool(object, max_size=1)
    resource = await pool.acquire()
    steps = pool.acquire().__await__()
    steps.send(None)
    pool.release(resource)
    assert (pool.idle_count, pool.active_count) == (0, 1)
    del steps
    gc.collect()
    assert (pool.idle_count, pool.active_count) == (1, 0)


async def test_an_iterator_driven_to_its_end_keeps_the_resource(make_pool):
    pool = make_pool(object, max_size=1)
    resource = await pool.acquire()
    steps = pool.acquire().__await__()
    steps.send(None)
    pool.release(resource)
    with pytest.raises(StopIteration) as stop:
        steps.send(None)
    assert stop.value.value is resource
    del steps
    gc.collect()
    assert pool.active_count == 1
    pool.release(resource)


async def test_an_iterator_dropped_during_before_acquire_loses_nothing(make_pool):
    async def look(resource):
        await asyncio.sleep(10)

    pool = make_pool(object, max_size=1, before_acquire=look)
    resource = await pool.acquire()
    steps = pool.acquire().__await__()
    steps.send(None)
    pool.release(resource)
    steps.send(None)
    assert pool.active_count == 1
    del steps
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert pool.count == 0
    assert pool.waiting_count == 0


async def test_a_hook_cut_off_before_it_began_is_closed(make_pool, monkeypatch):
    """A machine that stalls: its grace is over before its task had a step."""
    monkeypatch.setitem(HookTask.__init__.__kwdefaults__, "grace", 0.0)

    async def look(resource):
        await asyncio.sleep(10)

    pool = make_pool(object, max_size=1, before_acquire=look)
    await pool.release(await pool.acquire())
    steps = pool.acquire().__await__()
    steps.send(None)
    steps.close()
    await settle()  # and no coroutine says that it was never awaited
    assert pool.count == 0
