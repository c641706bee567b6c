"""Transactions that write to one SQLite file take turns."""

import asyncio
import sqlite3

import pytest

from tests.support.backends import Backend
from tests.support.faults import no_slot_is_lost, outcome, with_sqlite
from tests.support.waiting import WAIT, eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


@with_sqlite
async def test_writers_come_in_turn(backend: Backend) -> None:
    entered: list[int] = []
    go = asyncio.Event()

    async def write(number: int) -> None:
        await go.wait()
        async with db.transaction():
            entered.append(number)
            await db.execute(f"insert into {table} values (?, 'a')", [number])

    async with backend.database(max_size=6) as db, backend.table(db) as table:
        tasks = [asyncio.create_task(write(number)) for number in range(5)]
        async with db.transaction():
            go.set()
            await eventually(lambda: db.pool.active_count == 6)
            assert entered == []
            tasks[1].cancel()
            assert isinstance(await outcome(tasks[1]), asyncio.CancelledError)
            async with db.transaction():  # a savepoint of the one that has its turn
                await db.execute(f"insert into {table} values (9, 'b')")
        await asyncio.gather(*(task for task in tasks if not task.cancelled()))
        assert entered == [0, 2, 3, 4]
        assert await db.fetch_val(f"select count(*) from {table}") == 5
        await no_slot_is_lost(db)


@with_sqlite
async def test_a_writer_waits_no_longer_than_its_busy_timeout(backend: Backend) -> None:
    url = f"{backend.url}?timeout=0.2"
    async with backend.database(url, max_size=3) as db, backend.table(db) as table:
        go = asyncio.Event()

        async def write() -> None:
            await go.wait()
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")

        async def write_many() -> None:
            await go.wait()
            await db.execute_many(f"insert into {table} values (?, 'a')", [(1,)])

        tasks = [asyncio.create_task(write()), asyncio.create_task(write_many())]
        async with db.transaction():
            go.set()
            for task in tasks:
                with pytest.raises(sqlite3.OperationalError, match="database is locked") as caught:
                    await task
                assert caught.value.sqlite_errorcode == sqlite3.SQLITE_BUSY
        await write()
        assert await db.fetch_val(f"select count(*) from {table}") == 1
        await no_slot_is_lost(db)


@with_sqlite
@pytest.mark.parametrize("end", ["raw", "forgotten", "broken", "cancelled"])
async def test_the_turn_of_a_writer_ends_with_its_transaction(backend: Backend, end: str) -> None:
    async with backend.database(max_size=2) as db:

        async def write() -> None:
            await db.begin()
            if end == "raw":
                await db.execute("commit")
                return
            if end == "broken":
                next(iter(db._loop_databases.values())).sessions[
                    asyncio.current_task()
                ].connection.terminate()
            elif end == "cancelled":
                asyncio.current_task().cancel()
                await asyncio.sleep(0)

        await outcome(asyncio.create_task(write()))
        async with asyncio.timeout(WAIT), db.transaction():
            assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)
