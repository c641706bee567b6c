"""Identical resources, and resources that do not want to be looked at."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    RecordingStrategy,
    obtain,
    recorded,
    started,
    styled,
)


async def hold(pool, leave, verb="release"):
    resource = await pool.acquire()
    await leave.wait()
    getattr(pool, verb)(resource)


def holding(pool):
    return sorted(holder.task for holder in pool.holders())


@pytest.mark.parametrize("verb", ["release", "discard"])
@pytest.mark.parametrize("leaver", ["a", "b", "c"])
async def test_the_own_lease_of_identical_resources_comes_back(make_pool, verb, leaver):
    pool = make_pool(lambda: 42)
    events = {name: asyncio.Event() for name in "abc"}
    tasks = {}
    for name, event in events.items():
        tasks[name] = asyncio.create_task(hold(pool, event, verb), name=name)
        await settle()
    events[leaver].set()
    await tasks[leaver]
    assert holding(pool) == sorted({"a", "b", "c"} - {leaver})
    for event in events.values():
        event.set()
    await asyncio.gather(*tasks.values())
    assert pool.active_count == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("verb", ["release", "discard"])
async def test_the_oldest_foreign_lease_of_identical_resources_comes_back(make_pool, verb):
    pool = make_pool(lambda: 42)
    events = {name: asyncio.Event() for name in "abc"}
    tasks = []
    for name, event in events.items():
        tasks.append(asyncio.create_task(hold(pool, event), name=name))
        await advance(1)
    getattr(pool, verb)(42)
    assert holding(pool) == ["b", "c"]
    getattr(pool, verb)(42)
    assert holding(pool) == ["c"]
    getattr(pool, verb)(42)
    with pytest.raises(cenote.NotAcquiredError):
        getattr(pool, verb)(42)
    for event in events.values():
        event.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in results] == [cenote.NotAcquiredError] * 3


async def test_leaving_a_block_releases_its_own_lease_of_identical_resources(make_pool):
    pool = make_pool(lambda: 42)

    async def block(leave):
        async with pool.acquire():
            await leave.wait()

    events = {name: asyncio.Event() for name in "abc"}
    tasks = {}
    for name, event in events.items():
        tasks[name] = asyncio.create_task(block(event), name=name)
        await settle()
    events["b"].set()
    await tasks["b"]
    assert holding(pool) == ["a", "c"]
    events["a"].set()
    await tasks["a"]
    assert holding(pool) == ["c"]
    events["c"].set()
    await tasks["c"]


class Hostile:
    """Whoever asks it anything has lost."""

    def refuse(self, *_):
        raise AssertionError("a resource is told by its identity alone")

    __eq__ = __ne__ = __lt__ = __hash__ = __bool__ = __len__ = refuse
    __repr__ = __str__ = __iter__ = __contains__ = __getattr__ = refuse


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_nothing_is_asked_of_a_resource(make_pool, kind, caplog):
    accept = styled(kind, lambda resource: None)
    verdicts = [False]
    pool = make_pool(
        styled(kind, Hostile),
        destructor=accept,
        healthcheck=accept,
        before_acquire=styled("sync", lambda resource: None),
        before_release=styled(kind, lambda resource: verdicts.pop() if verdicts else None),
        min_size=1,
        max_size=2,
        healthcheck_interval=10.0,
        max_lifetime=100.0,
        max_idle=15.0,
        hold_warning=1.0,
        strategy=RecordingStrategy(),
    )
    events = recorded(pool)
    await pool.open()
    first, second = await pool.acquire(), await pool.acquire()
    waiter = await started(obtain(pool))
    await advance(2)
    await pool.release(first)
    with pytest.raises(cenote.NotAcquiredError):
        pool.release(first)
    await pool.discard(second, OSError("down"))
    await pool.release(await waiter)
    async with pool.acquire():
        assert len(pool.holders()) == 1
    tried = pool.try_acquire()
    pool.release(tried)
    await advance(200)
    await pool.retire()
    assert {event.kind for event in events} >= {"acquired", "released", "destroyed", "held_long"}
    assert "told by its identity" not in caplog.text
    await pool.close()


@pytest.mark.parametrize("verb", ["release", "discard"])
async def test_an_early_release_in_an_inner_block_spares_the_outer(make_pool, verb):
    pool = make_pool(lambda: 42, max_size=2)
    async with pool.acquire() as outer:
        async with pool.acquire() as inner:
            assert inner is outer
            await getattr(pool, verb)(inner)
            assert pool.active_count == 1
        assert pool.active_count == 1
        assert len(pool.holders()) == 1
    assert pool.active_count == 0


async def test_each_block_releases_its_own_lease_whichever_was_given_back(make_pool):
    pool = make_pool(lambda: 42, max_size=3)
    async with pool.acquire() as first:
        async with pool.acquire():
            async with pool.acquire():
                pool.release(first)
                assert pool.active_count == 2
            assert pool.active_count == 2
        assert pool.active_count == 1
    assert pool.active_count == 0


async def test_a_lease_without_a_block_comes_back_first(make_pool):
    pool = make_pool(lambda: 42, max_size=2)
    async with pool.acquire():
        resource = await pool.acquire()
        pool.release(resource)
        assert pool.active_count == 1
    assert pool.active_count == 0
    with pytest.raises(cenote.NotAcquiredError):
        pool.release(resource)
