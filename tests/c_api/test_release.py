"""`try_acquire`, `release`, `discard` and `close`."""

import asyncio
import sys

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import Thing, styled
from tests.support.probe import (
    called,
    native_only,
)

pytestmark = native_only


async def test_try_acquire_gives_a_resource_or_none(make_c, probe):
    pool, plan = make_c(max_size=1)
    resource = probe.try_acquire(pool)
    assert resource == b"resource"
    assert probe.try_acquire(pool) is probe.NULL
    assert probe.release(pool, resource) == 0
    assert probe.try_acquire(pool) is resource
    assert called(plan) == ["factory", "before_release", "before_acquire"]
    assert probe.release(pool, resource) == 0
    pool.deactivate()
    assert probe.try_acquire(pool) is probe.NULL
    pool.activate()
    await pool.close()
    assert probe.try_acquire(pool) is probe.NULL


async def test_try_acquire_raises_the_error_of_the_factory(make_c, probe):
    pool, plan = make_c()
    plan.factory, plan.error = probe.RAISE, OSError("down")
    with pytest.raises(OSError, match="down"):
        probe.try_acquire(pool)


async def test_release_refuses_what_is_not_held(make_c, probe):
    pool, plan = make_c()
    resource = await pool.acquire()
    assert probe.release(pool, resource) == 0
    plan.log.clear()
    for wrong in (resource, object(), None, probe.NULL):
        with pytest.raises(cenote.NotAcquiredError):
            probe.release(pool, wrong)
        with pytest.raises(cenote.NotAcquiredError):
            probe.discard(pool, wrong, probe.NULL)
    assert plan.log == []
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_release_leaves_the_reference_of_the_caller(make_c, probe):
    pool, plan = make_c()
    resource = await pool.acquire()
    counts = set()
    for _ in range(5):
        probe.release(pool, resource)
        plan.log.clear()
        counts.add(sys.getrefcount(resource))
        assert await pool.acquire() is resource
    assert len(counts) == 1
    probe.release(pool, resource)


async def test_release_goes_on_in_the_loop_with_async_hooks(make_pool, probe):
    pool = make_pool(Thing, before_release=styled("async", lambda thing: True))
    thing = await pool.acquire()
    assert probe.release(pool, thing) == 0
    assert pool.active_count == 1
    await settle()
    assert pool.idle_count == 1


async def test_discard_destroys_with_and_without_error(make_c, probe):
    pool, plan = make_c()
    strategy, error = probe.Plan(), OSError("broken")
    probe.set_strategy(pool, strategy, "success failure")
    assert probe.discard(pool, await pool.acquire(), probe.NULL) == 0
    assert strategy.log == []
    assert probe.discard(pool, await pool.acquire(), error) == 0
    assert strategy.log == [("failure", error)]
    assert called(plan) == ["factory", "destructor"] * 2
    assert pool.stats().destroyed == {"discarded": 2}


async def test_discard_takes_an_exception_and_nothing_else(make_c, probe):
    pool, _ = make_c()
    resource = await pool.acquire()
    with pytest.raises(TypeError, match="error must be an exception"):
        probe.discard(pool, resource, "broken")
    assert pool.active_count == 1
    pool.release(resource)


async def test_close_closes_the_pool_for_good(make_c, probe):
    pool, plan = make_c()
    pool.release(await pool.acquire())
    await probe.close(pool)
    assert called(plan)[-1] == "destructor"
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire()
    await asyncio.create_task(probe.close(pool))
