"""Who holds a resource that was handed over, before the task that gets it has run."""

import asyncio
from types import SimpleNamespace

import pytest

import cenote
from cenote.observe import holders_of
from tests.support.clock import advance, settle

pytestmark = pytest.mark.virtual_time


def who(holders):
    return [(holder.task, holder.seconds) for holder in holders]


async def acquire(pool, name, **options):
    task = asyncio.create_task(pool.acquire(**options), name=name)
    await settle()
    return task


async def test_a_waiter_with_a_grant_is_a_holder(make_pool):
    pool = make_pool(object, max_size=1)
    resource = await pool.acquire()
    waiter = await acquire(pool, "waiter")
    await advance(3)
    pool.release(resource)
    [holder] = pool.holders()
    assert (holder.task, holder.resource, holder.seconds) == ("waiter", resource, 0.0)
    assert (holder.file, holder.line) == (__file__, acquire.__code__.co_firstlineno + 1)
    with pytest.raises(cenote.AcquireTimeoutError, match="held by task 'waiter'") as caught:
        await pool.acquire(timeout=0)
    assert who(caught.value.holders) == [("waiter", 0.0)]
    assert await waiter is resource
    assert who(pool.holders()) == [("waiter", 0.0)]
    pool.release(resource)
    assert pool.holders() == []


async def test_a_waiter_that_may_create_holds_nothing(make_pool):
    pool = make_pool(object, max_size=1)
    resource = await pool.acquire()
    waiter = await acquire(pool, "waiter")
    pool.discard(resource)
    assert (pool.active_count, pool.holders()) == (0, [])
    pool.release(await waiter)


@pytest.mark.parametrize("queued", [False, True])
async def test_a_task_in_before_acquire_holds_its_resource(make_pool, queued):
    answer = asyncio.Event()

    async def look(resource):
        await answer.wait()

    pool = make_pool(object, max_size=1, before_acquire=look)
    resource = await pool.acquire()
    if not queued:
        pool.release(resource)
    await advance(1)
    other = await acquire(pool, "other", timeout=None)
    if queued:
        pool.release(resource)
    await advance(2)
    assert who(pool.holders()) == [("other", 2.0)]
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await pool.acquire(timeout=0)
    assert who(caught.value.holders) == [("other", 2.0)]
    answer.set()
    await other
    assert who(pool.holders()) == [("other", 0.0)]
    pool.release(resource)


async def test_a_timeout_in_before_acquire_does_not_name_itself(make_pool):
    async def look(resource):
        await asyncio.sleep(100)

    pool = make_pool(object, max_size=1, before_acquire=look, hook_timeout=50)
    pool.release(await pool.acquire())
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await pool.acquire(timeout=2)
    assert caught.value.holders == ()
    assert pool.holders() == []


async def test_the_longest_holder_comes_first_in_the_list(make_pool):
    pool = make_pool(object, max_size=2)
    first = await pool.acquire()
    waiters = [await acquire(pool, "a"), await acquire(pool, "b")]
    pool.release(first)
    await advance(1)
    again = await acquire(pool, "c")
    pool.release(await waiters[0])
    assert [holder.task for holder in pool.holders()] == ["b", "c"]
    for task in (waiters[1], again):
        pool.release(await task)


def test_a_claim_that_ends_during_a_reading_names_nobody():
    for waiting in (None, SimpleNamespace(inspected=None)):
        over = SimpleNamespace(slot=None, waiter=waiting)
        core = SimpleNamespace(holders=list, granted=lambda over=over: [over])
        assert holders_of(core, 0.0) == []
