"""Lanes of a database: what is done inside `with lane:` never takes more than its connections."""

import asyncio

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_statements_in_a_lane_keep_its_limit(backend: Backend) -> None:
    async with backend.database(max_size=4) as db:
        batch = db.lane("batch", max_size=1, priority=-1)
        over = asyncio.Event()

        async def hold() -> None:
            async with batch, db.transaction(read_only=True):
                await over.wait()

        first, second = asyncio.create_task(hold()), asyncio.create_task(hold())
        await eventually(lambda: (batch.active_count, batch.waiting_count) == (1, 1))
        assert await db.fetch_val("select 1") == 1  # outside of it
        assert [holder.lane for holder in db.pool.holders()] == ["batch"]
        over.set()
        await asyncio.gather(first, second)
        assert batch.stats().acquired == 2
        assert db.pool.stats().acquired == 3


async def test_child_tasks_are_in_the_lane_of_their_parent(backend: Backend) -> None:
    async with backend.database(max_size=4) as db:
        batch = db.lane("batch", max_size=2)

        async def work() -> object:
            return await db.fetch_val("select 1")

        with batch:
            tasks = [asyncio.create_task(work()) for _ in range(6)]
        await db.fetch_val("select 1")
        assert await asyncio.gather(*tasks) == [1] * 6
        assert batch.stats().acquired == 6
        assert db.pool.stats().acquired == 7


async def test_a_connection_that_is_held_is_simply_used(backend: Backend) -> None:
    async with backend.database(max_size=2) as db:
        batch = db.lane("batch", max_size=1)
        async with db.transaction(read_only=True):
            async with batch:
                assert await db.fetch_val("select 1") == 1
            assert batch.stats().acquired == 0
        async with batch, db.transaction(read_only=True):
            assert await db.fetch_val("select 1") == 1
        assert batch.stats().acquired == 1
        assert batch.active_count == 0


async def test_streams_and_blocks_go_through_the_lane(backend: Backend) -> None:
    async with backend.database(max_size=2) as db:
        batch = db.lane("batch", max_size=1)
        with batch:
            async with db.connection():
                assert batch.active_count == 1
            async for _ in db.iterate("select 1"):
                assert [holder.lane for holder in db.pool.holders()] == ["batch"]
            statement = await db.prepare("select 1")
            assert await statement.fetch_val() == 1
            await statement.close()
        assert batch.stats().acquired == 3
        await eventually(lambda: batch.active_count == 0)


async def test_a_full_lane_times_out_by_its_name(backend: Backend) -> None:
    async with backend.database(max_size=2, acquire_timeout=1.0) as db:
        batch = db.lane("batch", max_size=1)
        await db.fetch_val("select 1")
        over, entered = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with batch, db.transaction(read_only=True):
                entered.set()
                await over.wait()

        task = asyncio.create_task(hold())
        await entered.wait()
        with pytest.raises(cenote.AcquireTimeoutError, match="lane 'batch': no resource"):
            async with batch:
                await db.fetch_val("select 1")
        assert batch.stats().timeouts == 1
        over.set()
        await task


async def test_lanes_of_two_databases_do_not_mix(backend: Backend) -> None:
    async with backend.database() as db, backend.database() as other:
        ours, theirs = db.lane("batch", max_size=1), other.lane("batch", max_size=2)
        with ours, theirs:
            await db.fetch_val("select 1")
            await other.fetch_val("select 1")
        with theirs:
            await db.fetch_val("select 1")
        assert (ours.stats().acquired, theirs.stats().acquired) == (1, 1)


async def test_the_innermost_lane_is_the_one_that_counts(backend: Backend) -> None:
    async with backend.database() as db:
        outer, inner = db.lane("outer"), db.lane("inner", max_size=1, priority=3)
        with outer:
            with inner:
                await db.fetch_val("select 1")
            await db.fetch_val("select 1")
        await db.fetch_val("select 1")
        assert (outer.stats().acquired, inner.stats().acquired) == (1, 1)
        with pytest.raises(
            RuntimeError, match="lane 'inner' was left in another task, or out of order"
        ):
            inner.__exit__(None, None, None)


def test_every_event_loop_has_a_lane_of_its_own(backend: Backend) -> None:
    db = cenote.Database(backend.url, max_size=2)
    batch = db.lane("batch", max_size=1)

    async def use() -> int:
        async with batch:
            await db.fetch_val("select 1")
        acquired = batch.stats().acquired
        await db.close()
        return acquired

    assert asyncio.run(use()) == 1


async def test_what_a_lane_has_counted_is_still_there_after_close(backend: Backend) -> None:
    async with backend.database() as db:
        batch = db.lane("batch", max_size=1)
        async with batch:
            await db.fetch_val("select 1")
    assert (batch.stats().acquired, batch.active_count, batch.waiting_count) == (1, 0, 0)
    assert db.pool.closed


def test_the_counts_of_a_database_lane_need_a_loop(backend: Backend) -> None:
    batch = cenote.Database(backend.url).lane("batch", max_size=1)
    with pytest.raises(RuntimeError, match="counts in each event loop by itself, and none is"):
        batch.stats()


def test_the_same_name_gives_the_same_database_lane(backend: Backend) -> None:
    db = cenote.Database(backend.url)
    batch = db.lane("batch", max_size=3, priority=-1)
    assert db.lane("batch", max_size=3, priority=-1) is batch
    assert db.lanes() == [batch]
    assert (batch.name, batch.max_size, batch.priority) == ("batch", 3, -1)
    assert repr(batch).startswith("<DatabaseLane 'batch' of <Database ")
    with pytest.raises(ValueError, match=r"lane 'batch' of database .* has max_size=3 and prio"):
        db.lane("batch", max_size=2, priority=-1)
    with pytest.raises(ValueError, match="max_size must be 1 or more"):
        db.lane("empty", max_size=0)
    with pytest.raises(TypeError, match="name must be a string"):
        db.lane(3)


async def test_without_lanes_a_statement_takes_the_plain_way(backend: Backend) -> None:
    """The method of the pool itself, without a look at the context."""
    async with backend.database() as db:
        await db.fetch_val("select 1")
        [loop_db] = db._loop_databases.values()
        assert loop_db.acquire == db.pool.acquire
        db.lane("batch")
        assert loop_db.acquire != db.pool.acquire
