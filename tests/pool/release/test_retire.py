"""What `retire()` does."""

import pytest

from cenote.testing import settle
from tests.support.kit import (
    STYLES,
    Gate,
    Thing,
    Things,
    obtain,
    started,
    styled,
)


@pytest.mark.parametrize("kind", STYLES)
async def test_retire_destroys_idle_now_and_busy_on_release(make_pool, kind):
    things, destroyed = Things(), []
    pool = make_pool(things, destructor=styled(kind, destroyed.append), max_size=3)
    busy, *others = [await pool.acquire() for _ in range(3)]
    for thing in others:
        pool.release(thing)
    await pool.retire()
    assert destroyed == others
    assert pool.count == 1
    await pool.release(busy)
    assert destroyed == [*others, busy]


async def test_a_sync_retire_has_happened_when_it_returns(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append)
    pool.release(thing := await pool.acquire())
    pool.retire()
    assert destroyed == [thing]


async def test_an_async_retire_goes_on_if_nobody_awaits_it(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=2)
    await pool.open()
    pool.resize(min_size=0)
    pool.retire()
    await settle()
    assert (pool.count, pool.stats().destroying) == (0, 2)
    for call in destructor.calls:
        call.set_result(None)
    await settle()
    assert pool.stats().destroying == 0


async def test_what_is_made_after_retire_lives(make_pool):
    pool = make_pool(Thing)
    await pool.open()
    pool.retire()
    thing = await pool.acquire()
    pool.release(thing)
    assert await pool.acquire() is thing
    pool.release(thing)


@pytest.mark.parametrize("kind", STYLES)
async def test_a_waiter_is_not_given_a_retired_resource(make_pool, kind):
    things = Things()
    pool = make_pool(styled(kind, things), max_size=1)
    old = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.retire()
    pool.release(old)
    new = await waiter
    assert things.made == [old, new]
    pool.release(new)


@pytest.mark.parametrize("kind", [None, *STYLES])
async def test_a_creation_under_way_belongs_to_the_old_generation(make_pool, kind):
    factory, destroyed = Gate(), []
    destructor = None if kind is None else styled(kind, destroyed.append)
    pool = make_pool(factory, destructor=destructor, max_size=1)
    waiter = await started(obtain(pool))
    pool.retire()
    old, new = Thing(), Thing()
    factory.calls[0].set_result(old)
    await settle()
    assert not waiter.done()
    factory.calls[1].set_result(new)
    assert await waiter is new
    assert destroyed == ([] if kind is None else [old])
    pool.release(new)


async def test_a_retired_creation_is_replaced_during_its_destructor(make_pool):
    factory, destructor = Gate(), Gate()
    pool = make_pool(factory, destructor=destructor, max_size=2)
    waiter = await started(obtain(pool))
    pool.retire()
    factory.calls[0].set_result(Thing())
    await settle()
    assert (factory.entered, destructor.entered) == (2, 1)
    factory.calls[1].set_result(new := Thing())
    assert await waiter is new
    destructor.open()
    await pool.release(new)


async def test_open_goes_on_when_its_creations_are_retired(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=1)
    opening = await started(pool.open())
    pool.retire()
    factory.calls[0].set_result(old := Thing())
    await settle()
    assert not opening.done()
    factory.calls[1].set_result(new := Thing())
    await opening
    assert pool.try_acquire() is new
    assert new is not old
    pool.release(new)


async def test_a_resource_in_before_release_is_retired_afterwards(make_pool):
    hook, destroyed = Gate(), []
    pool = make_pool(Thing, before_release=hook, destructor=destroyed.append)
    operation = pool.release(thing := await pool.acquire())
    await settle()
    pool.retire()
    assert destroyed == []
    hook.calls[0].set_result(True)
    await operation
    assert destroyed == [thing]


async def test_retire_gives_the_freed_slots_to_the_waiters(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, max_size=1)
    pool.release(await pool.acquire())
    pool.retire()
    waiter = await started(obtain(pool))
    assert not waiter.done()
    destructor.calls[0].set_result(None)
    pool.release(await waiter)
    closing = await started(pool.close())
    destructor.calls[1].set_result(None)
    await closing
