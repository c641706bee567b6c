"""What `try_acquire()` gives, makes and refuses."""

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import (
    Broken,
    FakeService,
    RecordingStrategy,
    filled,
    give_all,
    line,
    queued,
    take_all,
)


async def test_try_acquire_gives_idle_then_new_then_none(make_pool):
    service = FakeService()
    pool = make_pool(**service.hooks(), max_size=2)
    first = pool.try_acquire()
    pool.release(first)
    assert pool.try_acquire() is first
    second = pool.try_acquire()
    assert second is service.made[1]
    assert pool.try_acquire() is None
    assert service.calls == 2
    await give_all(pool, [first, second])


@pytest.mark.parametrize("style", ["async def", "returns an awaitable"])
async def test_try_acquire_with_an_async_factory_gives_idle_resources_only(make_pool, style):
    service, started = FakeService("async ok"), []

    async def create():
        started.append(True)
        return await service._factory_async()

    pool = make_pool(create if style == "async def" else lambda: create())
    assert pool.try_acquire() is None
    await settle()
    assert started == []
    assert pool.stats().creating == 0
    held = await pool.acquire()
    assert pool.try_acquire() is None
    pool.release(held)
    assert pool.try_acquire() is held
    pool.release(held)


async def test_try_acquire_gives_none_when_closed_and_when_inactive(make_pool):
    pool = await filled(make_pool, FakeService(), 1)
    pool.deactivate()
    assert pool.try_acquire() is None
    assert pool.idle_count == 1
    pool.activate()
    await pool.close()
    assert pool.try_acquire() is None


async def test_try_acquire_lets_factory_errors_through_and_keeps_the_slot(make_pool):
    service, strategy = FakeService("sync fails"), RecordingStrategy()
    pool = make_pool(**service.hooks(), max_size=1, strategy=strategy)
    for _ in range(2):
        with pytest.raises(Broken):
            pool.try_acquire()
    assert strategy.reports == service.errors
    service.heal()
    pool.release(pool.try_acquire())


async def test_try_acquire_refuses_a_none_from_the_factory(make_pool):
    pool = make_pool(lambda: None)
    with pytest.raises(cenote.PoolError, match="factory returned None"):
        pool.try_acquire()


@pytest.mark.parametrize("how", ["no", "fails"])
async def test_try_acquire_asks_a_sync_before_acquire(make_pool, how):
    service = FakeService(before_acquire=f"sync {how}", destructor="sync ok")
    pool = await filled(make_pool, service, 2)
    resource = pool.try_acquire()
    assert resource is service.made[2]  # the two idle ones were rejected
    assert service.destroyed == service.made[:2]
    pool.release(resource)


@pytest.mark.parametrize("style", ["async def", "returns an awaitable"])
async def test_try_acquire_refuses_an_async_before_acquire(make_pool, style):
    service = FakeService(before_acquire="async ok", destructor="sync ok")
    hooks = service.hooks()
    if style == "returns an awaitable":
        hooks["before_acquire"] = lambda resource: service._before_acquire_async(resource)
    pool = make_pool(**hooks)
    await give_all(pool, await take_all(pool, 2))
    with pytest.raises(cenote.PoolError, match=r"acquire\(timeout=0\)"):
        pool.try_acquire()
    assert pool.idle_count == 2
    assert await pool.acquire() is service.made[0]  # its place in the order, too
    pool.release(service.made[0])
    assert service.destroyed == []


async def test_try_acquire_is_seen_as_held_by_the_calling_task(make_pool):
    pool = make_pool(object)
    resource, here = pool.try_acquire(), line()
    (holder,) = pool.holders()
    assert (holder.task, holder.file, holder.line) == ("test", __file__, here)
    pool.release(resource)


async def test_try_acquire_leaves_room_that_waiters_are_owed(make_pool):
    pool = make_pool(object, max_size=1)
    held, waiter = await queued(pool)
    pool.discard(held)
    assert pool.try_acquire() is None
    pool.release(await waiter)


async def test_try_acquire_in_a_subscriber_leaves_what_waiters_are_owed(make_pool):
    """Told of the destruction in the very step that frees the slot."""
    pool, stolen = make_pool(object, max_size=1), []
    held, waiter = await queued(pool)

    def steal(event):
        if event.kind == "destroyed":
            stolen.append(pool.try_acquire())

    unsubscribe = pool.subscribe(steal)
    pool.discard(held)
    unsubscribe()
    assert stolen == [None]
    pool.release(await waiter)
