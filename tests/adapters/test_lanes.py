"""Lanes of the pools of other libraries: what is done inside keeps their limit."""

import asyncio
from typing import Any

import pytest

from tests.adapters.conftest import MakeEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.real_time("talks to real servers")


async def test_a_lane_never_has_more_than_its_limit(open_subject: Any) -> None:
    async with open_subject() as subject:
        batch = subject.pool.lane("batch", max_size=1, priority=-1)
        over = asyncio.Event()

        async def hold() -> None:
            async with batch, subject.take():
                await over.wait()

        tasks = [asyncio.create_task(hold()) for _ in range(2)]
        await eventually(lambda: (batch.active_count, batch.waiting_count) == (1, 1))
        async with subject.take():  # outside of it
            assert [holder.lane for holder in subject.pool.pool.holders()] == ["batch", None]
        over.set()
        await asyncio.gather(*tasks)
        assert batch.stats().acquired == 2
        assert subject.pool.pool.stats().acquired == 3


async def test_tasks_that_are_started_inside_are_in_it(open_subject: Any) -> None:
    async with open_subject() as subject:
        batch = subject.pool.lane("batch")

        async def work() -> None:
            async with subject.take():
                pass

        with batch:
            tasks = [asyncio.create_task(work()) for _ in range(5)]
        await work()
        await asyncio.gather(*tasks)
        assert batch.stats().acquired == 5
        assert subject.pool.pool.stats().acquired == 6
        # Of aiosqlite a connection that is being made when its loop ends fails in its thread.
        await eventually(lambda: subject.pool.pool.stats().creating == 0)


async def test_other_options_of_a_name_are_refused(open_subject: Any) -> None:
    async with open_subject() as subject:
        batch = subject.pool.lane("batch", max_size=2)
        async with subject.take():
            pass
        assert subject.pool.lane("batch", max_size=2) is batch
        assert repr(batch).startswith("<PoolLane 'batch' of <Pool ")
        with pytest.raises(ValueError, match="lane 'batch'"):
            subject.pool.lane("batch", max_size=1)
        with pytest.raises(ValueError, match="max_size"):
            subject.pool.lane("other", max_size=0)


async def test_a_lane_of_one_pool_is_none_of_another(open_subject: Any) -> None:
    async with open_subject() as one, open_subject() as other:
        with one.pool.lane("batch"), other.pool.lane("reports"):
            async with one.take(), other.take():
                (first,), (second,) = one.pool.pool.holders(), other.pool.pool.holders()
        assert (first.lane, second.lane) == ("batch", "reports")


async def test_a_lane_outlives_the_disposal_of_an_engine(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=2)
    batch = engine.pool.lane("batch", max_size=1)
    with batch:
        for _ in range(2):
            async with engine.connect():
                assert batch.active_count == 1
                (holder,) = engine.pool.pool.holders()
                assert holder.lane == "batch"
            await engine.dispose()
