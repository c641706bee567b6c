"""A pool whose loop is closed or ends."""

import asyncio
import logging
import warnings

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import Gate, Thing, drop, forget, obtain, started


def test_a_pool_whose_loop_was_closed_says_so():
    pool = cenote.Pool(Thing, min_size=2, name="shop")
    thing = asyncio.run(obtain_after_open(pool))
    for call in (
        lambda pool: asyncio.run(obtain(pool)),
        lambda pool: asyncio.run(pool.open()),
        lambda pool: asyncio.run(pool.close()),
        lambda pool: pool.release(thing),
        lambda pool: pool.discard(thing),
        lambda pool: pool.try_acquire(),
    ):
        with pytest.raises(RuntimeError, match=r"'shop'.*closed"):
            call(pool)
    assert (pool.active_count, pool.idle_count) == (1, 1)
    assert len(pool.holders()) == 1
    assert "shop" in repr(pool)
    box = [pool]
    del pool
    forget(box)


async def obtain_after_open(pool):
    await pool.open()
    return await pool.acquire()


def test_a_closed_pool_may_be_read_after_its_loop():
    pool = cenote.Pool(Thing)

    async def main():
        async with pool:
            pass

    asyncio.run(main())
    assert pool.closed
    assert pool.count == 0


async def wait_for_a_creation(pool, factory):
    await started(obtain(pool))


async def wait_for_a_release(pool, factory):
    await wait_for_a_creation(pool, factory)
    factory.calls[0].set_result(Thing())
    await started(obtain(pool))


async def wait_for_a_destructor(pool, factory):
    waiter = await started(obtain(pool))
    factory.calls[0].set_result(Thing())
    pool.discard(await waiter)
    await settle()


async def open_it(pool, factory):
    await started(pool.open())


@pytest.mark.parametrize("min_size", [0, 2])
@pytest.mark.parametrize(
    "scene", [wait_for_a_creation, wait_for_a_release, wait_for_a_destructor, open_it]
)
def test_asyncio_run_ends_quietly_with_work_under_way(scene, min_size, caplog, monkeypatch):
    # A log record would hold the pool by its traceback.
    monkeypatch.setattr(logging.getLogger("cenote"), "disabled", True)
    factory = Gate()
    pool = cenote.Pool(factory, destructor=Gate(), min_size=min_size, max_size=3)
    asyncio.run(scene(pool, factory))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        box = [pool, factory]
        del pool, factory
        drop(box)
    assert [line.getMessage() for line in caplog.records] == []
