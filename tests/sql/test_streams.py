"""Streams that several tasks read at the same time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cenote import PoolError
from tests.support.backends import Backend
from tests.support.held import Gate, is_quiet, within
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

ROWS = 1_234


@contextlib.asynccontextmanager
async def numbered(backend: Backend) -> AsyncIterator[tuple[Any, str]]:
    """A database, and a query that gives many rows."""
    async with backend.database() as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(ROWS)])
        yield db, f"select id from {table} order by id"


@pytest.mark.parametrize("place", ["db", "tx", "statement"])
@pytest.mark.parametrize("started", [True, False])
async def test_each_row_goes_to_one_task(backend: Backend, place: str, started: bool) -> None:
    async with numbered(backend) as (db, query):
        seen: list[int] = []
        done = asyncio.Event()

        async def read(stream: Any) -> None:
            async for row in stream:
                seen.append(row[0])
                await asyncio.sleep(0)
            finished.append(True)
            if len(finished) == 5:
                done.set()
            await done.wait()  # the stream ends with the task that started it

        finished: list[bool] = []
        async with contextlib.AsyncExitStack() as stack:
            if place == "db":
                stream = db.iterate(query)
            elif place == "tx":
                tx = await stack.enter_async_context(db.transaction())
                stream = tx.iterate(query)
            else:
                statement = await stack.enter_async_context(await db.prepare(query))
                stream = statement.iterate()
            if started:
                await stream.start()
            await within(asyncio.gather(*(read(stream) for _ in range(5))))
        assert sorted(seen) == [*range(ROWS)]
        await eventually(lambda: is_quiet(db))
        assert await db.fetch_val("select 1") == 1


async def test_a_stream_is_opened_once_for_two_tasks(backend: Backend) -> None:
    async with numbered(backend) as (db, query):
        stream = db.iterate(query)
        await asyncio.gather(stream.start(), stream.start())
        begun = db.pool.stats().begun
        async with stream:
            pass
        assert db.pool.stats().begun == begun
        await eventually(lambda: is_quiet(db))


async def test_a_failure_in_one_task_is_no_end_for_others(backend: Backend) -> None:
    """Who reads on must not take it for the end of the rows."""
    gate = Gate(backend)
    async with gate.database() as (db, table):
        stream = db.iterate(f"select id from {table} where 1 / (id - 1) > 0", timeout=30)
        into = db.iterate(f"select id from {table}", into=lambda id: [][id])

        async def read(stream: Any) -> list[Any]:
            return [row async for row in stream]

        outcome = await within(asyncio.create_task(read(into)))
        assert isinstance(outcome, IndexError)
        with pytest.raises(PoolError, match="has failed in another task"):
            await read(into)
        task = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        with pytest.raises(PoolError, match="has failed in another task"):
            await read(stream)
