"""What `discard()` does."""

import asyncio

import pytest

from tests.support.kit import (
    STYLES,
    RecordingStrategy,
    Thing,
    obtain,
    started,
    styled,
)


@pytest.mark.parametrize("kind", STYLES)
async def test_discard_destroys_without_asking_before_release(make_pool, kind):
    seen, destroyed = [], []
    pool = make_pool(Thing, before_release=seen.append, destructor=styled(kind, destroyed.append))
    thing = await pool.acquire()
    await pool.discard(thing)
    assert destroyed == [thing]
    assert seen == []
    assert pool.count == 0
    assert pool.stats().released == 1


async def test_a_sync_discard_has_happened_when_it_returns(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append)
    thing = await pool.acquire()
    pool.discard(thing)
    assert destroyed == [thing]


async def test_discard_reports_an_error_to_the_strategy(make_pool):
    strategy, fault = RecordingStrategy(), OSError("reset by peer")
    pool = make_pool(Thing, strategy=strategy)
    pool.discard(await pool.acquire(), fault)
    pool.discard(await pool.acquire(), error=fault)
    assert (strategy.reports, strategy.sources) == ([fault] * 2, [pool] * 2)


async def test_discard_without_an_error_reports_nothing(make_pool):
    strategy = RecordingStrategy()
    pool = make_pool(Thing, strategy=strategy)
    pool.discard(await pool.acquire())
    assert strategy.reports == []


async def test_discard_with_a_cancellation_reports_nothing(make_pool):
    strategy = RecordingStrategy()
    pool = make_pool(Thing, strategy=strategy)
    pool.discard(await pool.acquire(), asyncio.CancelledError())
    assert strategy.reports == []


async def test_discard_refuses_what_is_no_error(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    with pytest.raises(TypeError, match="error"):
        pool.discard(thing, "broken")
    pool.release(thing)


@pytest.mark.parametrize("kind", STYLES)
async def test_a_discard_frees_a_slot_for_the_oldest_waiter(make_pool, kind):
    pool = make_pool(styled(kind, Thing), max_size=1)
    old = await pool.acquire()
    first = await started(obtain(pool))
    second = await started(obtain(pool))
    pool.discard(old)
    new = await first
    assert new is not old
    assert not second.done()
    pool.release(new)
    pool.release(await second)
