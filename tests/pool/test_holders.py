"""Who holds what: leases, grants and resources that a hook examines."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest

import cenote
from cenote import Holder
from cenote.observe import holders_of
from cenote.testing import advance, settle
from tests.support.kit import (
    Gate,
    Holding,
    Thing,
    counts,
    line,
)


def who(holders):
    return [(holder.task, holder.seconds) for holder in holders]


async def acquire(pool, name, **options):
    task = asyncio.create_task(pool.acquire(**options), name=name)
    await settle()
    return task


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_a_waiter_that_may_create_holds_nothing(make_pool):
    pool = make_pool(object, max_size=1)
    resource = await pool.acquire()
    waiter = await acquire(pool, "waiter")
    pool.discard(resource)
    assert (pool.active_count, pool.holders()) == (0, [])
    pool.release(await waiter)


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_a_timeout_in_before_acquire_does_not_name_itself(make_pool):
    async def look(resource):
        await asyncio.sleep(100)

    pool = make_pool(object, max_size=1, before_acquire=look, hook_timeout=50)
    pool.release(await pool.acquire())
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await pool.acquire(timeout=2)
    assert caught.value.holders == ()
    assert pool.holders() == []


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
def test_a_claim_that_ends_during_a_reading_names_nobody():
    for waiting in (None, SimpleNamespace(inspected=None)):
        over = SimpleNamespace(slot=None, waiter=waiting)
        core = SimpleNamespace(holders=list, granted=lambda over=over: [over])
        assert holders_of(core, 0.0) == []


@pytest.mark.virtual_time
async def test_holders_are_listed_longest_first(make_pool):
    pool = make_pool(Thing)
    holdings = []
    for name in ("a", "b", "c"):
        holdings.append(Holding(pool, name=name))
        await advance(2)
    holders = pool.holders()
    assert [(holder.task, holder.seconds) for holder in holders] == [
        ("a", 6.0),
        ("b", 4.0),
        ("c", 2.0),
    ]
    assert [holder.resource for holder in holders] == [each.resource for each in holdings]
    for holding in holdings:
        await holding.leave()
    assert pool.holders() == []


async def test_a_holder_says_where_and_is_frozen(make_pool):
    pool = make_pool(Thing)
    thing, at = await pool.acquire(), line()
    (holder,) = pool.holders()
    assert isinstance(holder, Holder)
    assert holder.resource is thing
    assert (holder.task, holder.file, holder.line) == ("test", __file__, at)
    assert holder.reason is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        holder.task = "other"
    pool.release(thing)


async def test_identical_resources_have_a_holder_each(make_pool):
    pool = make_pool(lambda: 42)
    holdings = [Holding(pool, name=name) for name in ("a", "b", "c")]
    await settle()
    assert counts(pool) == (3, 0, 3, 0)
    assert sorted(holder.task for holder in pool.holders()) == ["a", "b", "c"]
    await holdings[1].leave()
    assert sorted(holder.task for holder in pool.holders()) == ["a", "c"]
    await holdings[0].leave()
    await holdings[2].leave()
    assert counts(pool) == (3, 3, 0, 0)


@pytest.mark.virtual_time
async def test_holders_of_identical_resources_are_listed_longest_first(make_pool):
    pool = make_pool(lambda: 42)
    holdings = []
    for name in ("a", "b", "c"):
        holdings.append(Holding(pool, name=name))
        await advance(1)
    assert [holder.task for holder in pool.holders()] == ["a", "b", "c"]
    for holding in holdings:
        await holding.leave()


async def test_what_is_idle_or_in_a_hook_has_no_holder(make_pool):
    gate = Gate()
    pool = make_pool(Thing, before_release=gate)
    returning = pool.release(await pool.acquire())
    assert pool.active_count == 1
    assert pool.holders() == []
    gate.open()
    await returning
    assert pool.holders() == []
