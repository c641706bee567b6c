"""min_size is restored, with a backoff while the factory fails."""

import asyncio
import itertools

import pytest

import cenote
from cenote.testing import advance, now, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Moody,
    RecordingStrategy,
    Thing,
    Things,
    obtain,
    started,
    styled,
)

pytestmark = pytest.mark.virtual_time


async def discard(pool):
    pool.discard(await pool.acquire())


async def reject(pool):
    pool.release(await pool.acquire())


async def retire(pool):
    pool.retire()


async def wait(pool):
    await advance(120)


async def fail_in_block(pool):
    task = asyncio.create_task(sleep_in_block(pool))
    await settle()
    task.cancel()


async def sleep_in_block(pool):
    async with pool.acquire():
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", STYLES)
@pytest.mark.parametrize(
    ("destroy", "options"),
    [
        (discard, {}),
        (retire, {}),
        (fail_in_block, {}),
        (reject, {"before_release": lambda _: False}),
        (reject, {"max_uses": 1}),
        (wait, {"max_lifetime": 100.0}),
        (wait, {"healthcheck": lambda _: False, "healthcheck_interval": 100.0}),
    ],
)
async def test_min_size_is_restored_after_every_destruction(make_pool, kind, destroy, options):
    things = Things()
    pool = make_pool(styled(kind, things), min_size=2, **options)
    await pool.open()
    before = set(things.made)
    await destroy(pool)
    await settle()
    assert set(things.made) - before
    assert pool.idle_count == 2


async def test_min_size_is_restored_after_before_acquire_rejected(make_pool):
    verdicts = [False, False]
    pool = make_pool(Thing, before_acquire=lambda thing: not verdicts or verdicts.pop(), min_size=2)
    await pool.open()
    async with pool.acquire():
        await settle()
        assert pool.count == 2


async def test_min_size_is_restored_when_the_destructor_is_done(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=1, max_size=1)
    await pool.open()
    pool.discard(await pool.acquire())
    await settle()
    assert pool.count == 0
    destructor.calls[0].set_result(None)
    await settle()
    assert pool.count == 1
    closing = await started(pool.close())
    destructor.calls[1].set_result(None)
    await closing


async def bring_down(pool, factory):
    factory.down = True
    factory.asked.clear()
    for _ in range(pool.count):
        pool.discard(await pool.acquire())
    await settle()


@pytest.mark.parametrize("kind", STYLES)
@pytest.mark.parametrize("size", [1, 3])
async def test_a_failing_factory_is_asked_again_with_backoff(make_pool, kind, size):
    factory = Moody()
    pool = make_pool(styled(kind, factory), min_size=size)
    await pool.open()
    await bring_down(pool, factory)
    await advance(600)
    assert 600 / 60 <= len(factory.asked) <= 60 * size
    moments = sorted(set(factory.asked))
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert min(gaps) > 0.1
    assert max(gaps) > 4 * gaps[0]
    assert max(gaps) <= 60


async def test_the_backoff_is_jittered(make_pool):
    factories = [Moody(), Moody()]
    for factory in factories:
        pool = make_pool(factory, min_size=1)
        await pool.open()
        await bring_down(pool, factory)
    await advance(100)
    one, other = factories
    assert not set(one.asked[1:]) & set(other.asked[1:])


async def test_min_size_is_restored_when_the_factory_works_again(make_pool):
    factory = Moody()
    pool = make_pool(factory, min_size=2)
    await pool.open()
    await bring_down(pool, factory)
    await advance(300)
    assert pool.count == 0
    factory.down = False
    await advance(60)
    assert pool.idle_count == 2


async def test_the_backoff_begins_anew_after_a_success(make_pool):
    factory = Moody()
    pool = make_pool(factory, min_size=1)
    await pool.open()
    await bring_down(pool, factory)
    await advance(300)
    factory.down = False
    await advance(60)
    await bring_down(pool, factory)
    await advance(5)
    assert len(factory.asked) >= 3


async def acquired(pool):
    return await pool.acquire()


async def tried(pool):
    return pool.try_acquire()


async def recovered(pool):
    pool.deactivate()
    pool.recover()
    return await pool.acquire()


@pytest.mark.parametrize(
    ("kind", "way"),
    [*itertools.product(STYLES, [acquired, recovered]), ("sync", tried)],
)
async def test_any_successful_creation_restores_min_size(make_pool, kind, way):
    factory = Moody()
    pool = make_pool(styled(kind, factory), min_size=4)
    await pool.open()
    await bring_down(pool, factory)
    await advance(300)
    assert pool.count == 0
    factory.down = False
    moment = now()
    resource = await way(pool)
    await settle()
    assert (pool.count, now()) == (4, moment)
    await pool.release(resource)


async def test_a_failure_in_the_background_is_logged_and_reported(make_pool, caplog):
    factory, strategy = Moody(), RecordingStrategy()
    pool = make_pool(factory, min_size=1, strategy=strategy)
    await pool.open()
    await bring_down(pool, factory)
    assert "backend down" in caplog.text
    assert [type(error) for error in strategy.reports] == [OSError]


async def test_a_hanging_factory_in_the_background_counts_as_failed(make_pool):
    factory, strategy = Gate(), RecordingStrategy()
    pool = make_pool(factory, min_size=1, create_timeout=20.0, strategy=strategy)
    task = await started(obtain(pool))
    factory.calls[0].set_result(Thing())
    pool.discard(await task)
    await advance(19.9)
    assert not factory.calls[1].done()
    await advance(0.2)
    assert factory.calls[1].cancelled()
    [error] = strategy.reports
    assert isinstance(error, cenote.PoolError)
    assert isinstance(error, TimeoutError)
    await advance(60)
    assert len(factory.calls) > 2


@pytest.mark.parametrize("resume", ["activate", "recover"])
async def test_min_size_rests_while_inactive(make_pool, resume):
    things = Things()
    pool = make_pool(things, min_size=2)
    await pool.open()
    pool.deactivate()
    await pool.retire()
    await advance(1000)
    assert (things.calls, pool.count) == (2, 0)
    getattr(pool, resume)()
    await settle()
    assert (things.calls, pool.count) == (4, 2)


@pytest.mark.parametrize("resume", ["activate", "recover"])
async def test_a_backoff_rests_while_inactive(make_pool, resume):
    factory = Moody()
    pool = make_pool(factory, min_size=1)
    await pool.open()
    await bring_down(pool, factory)
    pool.deactivate()
    asked = len(factory.asked)
    await advance(1000)
    assert len(factory.asked) == asked
    factory.down = False
    getattr(pool, resume)()
    await advance(60)
    assert pool.idle_count == 1
