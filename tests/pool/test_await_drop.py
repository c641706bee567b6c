"""An acquire that is driven by hand, and dropped in the middle."""

import asyncio
import gc

import pytest

from cenote.pool.hooks import HookTask
from tests.support.clock import settle


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
