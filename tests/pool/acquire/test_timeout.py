"""The timeout of an acquire, and `timeout=0`."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, now, settle
from tests.support.kit import (
    Broken,
    FakeService,
    acquiring,
    filled,
    outcome,
)

virtual_time = pytest.mark.virtual_time
both_factories = pytest.mark.parametrize("factory", ["sync ok", "async ok"])


# -- the timeout ---------------------------------------------------------------------------------


@virtual_time
@pytest.mark.parametrize(
    ("default", "given", "after"),
    [(None, {"timeout": 3}, 3), (4, {}, 4), (4, {"timeout": 3}, 3), (4, {"timeout": 6}, 6)],
)
@both_factories
async def test_acquire_gives_up_at_its_deadline(make_pool, factory, default, given, after):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1, acquire_timeout=default)
    held = await pool.acquire()
    begin = now()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(**given)
    assert now() - begin == after
    assert pool.waiting_count == 0
    assert pool.stats().timeouts == 1
    pool.release(held)


@virtual_time
@pytest.mark.parametrize(("default", "given"), [(None, {}), (4, {"timeout": None})])
async def test_acquire_waits_without_end_without_a_timeout(make_pool, default, given):
    pool = make_pool(object, max_size=1, acquire_timeout=default)
    held = await pool.acquire()
    task = acquiring(pool, **given)
    await advance(1_000_000)
    assert not task.done()
    pool.release(held)
    assert await task is held
    pool.release(held)


@virtual_time
async def test_the_timeout_bounds_an_async_factory(make_pool):
    pool = make_pool(**FakeService("async never").hooks(), create_timeout=50)
    begin = now()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=3)
    assert now() - begin == 3


@virtual_time
async def test_the_timeout_bounds_an_async_before_acquire(make_pool):
    service = FakeService(before_acquire="async never")
    pool = await filled(make_pool, service, 1, hook_timeout=50)
    begin = now()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=3)
    assert now() - begin == 3


@virtual_time
async def test_one_deadline_bounds_wait_hook_and_factory_together(make_pool):
    service = FakeService("async ok", before_acquire="async no")
    pool = make_pool(**service.hooks(), max_size=1)
    held = await pool.acquire()
    service.modes = {"factory": "async slow", "before_acquire": "async slow"}
    begin = now()
    task = acquiring(pool, timeout=5)  # 2 s of waiting, 2 s of the hook, 1 of 2 s of the factory
    await advance(2)

    def reject(hook):
        return hook != "before_acquire"

    service._act = reject
    pool.release(held)
    assert isinstance(await outcome(task), cenote.AcquireTimeoutError)
    assert now() - begin == 5
    assert service.calls == 2


@virtual_time
async def test_one_deadline_bounds_any_number_of_rejections(make_pool):
    service = FakeService(before_acquire="async ok")
    pool = await filled(make_pool, service, 8)
    service.modes["before_acquire"] = "async slow"
    service._act = lambda hook: False
    begin = now()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=5)
    assert now() - begin == 5
    assert pool.stats().rejected == 2


@virtual_time
async def test_a_served_acquire_leaves_no_timer_that_fails_it_later(make_pool):
    pool = make_pool(**FakeService("async slow").hooks(), max_size=1)
    async with pool.acquire(timeout=5):
        await advance(100)
        assert pool.active_count == 1
    assert pool.idle_count == 1
    assert pool.stats().timeouts == 0


@virtual_time
async def test_a_release_in_the_instant_of_a_deadline_loses_nothing(
    make_pool,
):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    task = acquiring(pool, timeout=5)
    await settle()
    asyncio.get_running_loop().call_later(5, pool.release, held)
    await advance(5)
    result = await outcome(task)
    if result is held:
        pool.release(held)
    assert pool.idle_count == 1


# -- timeout=0 -----------------------------------------------------------------------------------


async def test_timeout_0_gives_an_idle_resource(make_pool):
    service = FakeService("async ok")
    pool = await filled(make_pool, service, 1)
    assert await pool.acquire(timeout=0) is service.made[0]
    pool.release(service.made[0])


async def test_timeout_0_gives_what_a_sync_factory_makes(make_pool):
    pool = make_pool(object, max_size=1)
    resource = await pool.acquire(timeout=0)
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=0)
    pool.release(resource)


async def test_timeout_0_raises_what_a_sync_factory_raises(make_pool):
    pool = make_pool(**FakeService("sync fails").hooks(), max_size=1)
    with pytest.raises(Broken):
        await pool.acquire(timeout=0)


@pytest.mark.parametrize("style", ["async def", "returns an awaitable"])
async def test_timeout_0_does_not_start_an_async_factory(make_pool, style):
    started = []

    async def create():
        started.append(True)
        return object()

    pool = make_pool(create if style == "async def" else lambda: create())
    for _ in range(2):
        with pytest.raises(cenote.AcquireTimeoutError):
            await pool.acquire(timeout=0)
    await settle()
    assert started == []
    assert pool.stats().creating == 0


async def test_timeout_0_never_queues(make_pool):
    pool, events = make_pool(object, max_size=1), []
    held = await pool.acquire()
    pool.subscribe(lambda event: events.append(event.kind))
    with pytest.raises(cenote.AcquireTimeoutError):
        next(pool.acquire(timeout=0).__await__())  # without a single suspension
    assert events == ["timeout"]
    pool.release(held)


@virtual_time
async def test_timeout_0_gives_an_async_hook_all_of_hook_timeout(make_pool):
    service = FakeService(before_acquire="async slow")
    pool = await filled(make_pool, service, 1)
    begin = now()
    assert await pool.acquire(timeout=0) is service.made[0]
    assert now() - begin == 2
    pool.release(service.made[0])


@virtual_time
@both_factories
async def test_timeout_0_goes_on_after_a_hook_past_hook_timeout(make_pool, factory):
    service = FakeService(factory, before_acquire="async never")
    pool = await filled(make_pool, service, 2, hook_timeout=3)
    begin = now()
    if factory == "sync ok":
        resource = await pool.acquire(timeout=0)
        assert resource is service.made[2]
        pool.release(resource)
    else:
        with pytest.raises(cenote.AcquireTimeoutError):
            await pool.acquire(timeout=0)
    assert now() - begin == 6
    assert pool.stats().rejected == 2
