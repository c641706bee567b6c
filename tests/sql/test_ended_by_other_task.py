"""A block that another task has ended: what its own task runs meanwhile is not committed alone."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import contextlib
from typing import Any

import pytest

from cenote import PoolError, TransactionClosedError, TransactionLostError
from cenote.testing import rolled_back
from tests.support.backends import Backend
from tests.support.held import ids, is_quiet, within
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def use_in_every_way(db: Any, insert: str) -> None:
    """Each raises `TransactionLostError`; `insert` takes an id."""

    async def stream() -> None:
        async for _ in db.iterate("select 1"):
            pass

    async def inner_block() -> None:
        async with db.transaction():
            pass

    async def connection() -> None:
        async with db.connection():
            pass

    for use in (
        db.execute(insert, [7]),
        db.execute(insert, [8], timeout=30),
        db.execute_many(insert, [[9]]),
        db.fetch_val("select 1"),
        stream(),
        inner_block(),
        connection(),
        db.prepare("select 1"),
        db.begin(),
        db.commit(),
    ):
        with pytest.raises(TransactionLostError, match="another task has ended it") as caught:
            await use
        assert caught.value.outcome == "rolled_back"


@pytest.mark.parametrize("way", ["db.rollback()", "tx.rollback()"])
@pytest.mark.parametrize("left", ["by an error", "normally", "after rollback()"])
async def test_the_owner_commits_nothing_after_an_end_by_another_task(
    backend: Backend, way: str, left: str
) -> None:
    """What it runs until it leaves its block is not committed by itself."""
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"

        async def end(tx: Any) -> None:
            async with tx.join():
                await (db.rollback() if way == "db.rollback()" else tx.rollback())

        with pytest.raises(KeyError if left == "by an error" else TransactionClosedError):
            async with db.transaction() as tx:
                await db.execute(insert, [1])
                await asyncio.create_task(end(tx))
                assert not db.in_transaction
                await use_in_every_way(db, insert)
                if left == "by an error":
                    raise KeyError
                if left == "after rollback()":
                    await db.execute("rollback")
                    assert await db.fetch_val("select 1") == 1
                    if way == "tx.rollback()":
                        raise TransactionClosedError("known")
        assert await ids(db, table) == []
        assert db.pool.active_count == 0


async def test_a_commit_by_another_task_is_told_as_such(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        async with db.transaction() as tx:
            await db.execute(insert, [1])
            await asyncio.create_task(tx.commit())
            with pytest.raises(TransactionLostError) as caught:
                await db.execute(insert, [2])
            assert caught.value.outcome == "committed"
        await db.execute(insert, [3])
        assert await ids(db, table) == [1, 3]


@pytest.mark.parametrize("end", ["error", "rollback()", "end of the task"])
async def test_a_child_commits_nothing_after_its_outer_block(backend: Backend, end: str) -> None:
    """It is in a block of its own, inside that of its parent, by `child_tasks="join"`."""
    async with backend.database(child_tasks="join") as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        inside, ended = asyncio.Event(), asyncio.Event()

        async def child() -> None:
            with pytest.raises(TransactionClosedError):
                async with db.transaction():
                    with contextlib.suppress(KeyError):
                        async with db.transaction():
                            await db.execute(insert, [1])
                            inside.set()
                            await ended.wait()
                            await use_in_every_way(db, insert)
                            raise KeyError
                    await use_in_every_way(db, insert)
            await db.execute(insert, [2])

        async def parent() -> asyncio.Task[None]:
            block = db.transaction()
            await block.__aenter__()
            task = asyncio.create_task(child())
            await inside.wait()
            if end == "error":
                await block.__aexit__(KeyError, KeyError(), None)
            elif end == "rollback()":
                await db.rollback()
            return task

        task = await asyncio.create_task(parent())
        await eventually(lambda: is_quiet(db) or db.pool.active_count == 0)
        ended.set()
        assert await within(task) is None
        assert await ids(db, table) == [2]
        await eventually(lambda: is_quiet(db))


@pytest.mark.parametrize("inside", ["its own block", "a block that it joined"])
@pytest.mark.parametrize("end", ["reopened", "rolled_back"])
async def test_a_block_outlives_no_close(backend: Backend, inside: str, end: str) -> None:
    """The database is closed and opened again while a task is inside: it goes on with nothing."""
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        entered, closed = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            async with db.transaction() as tx:
                if inside == "its own block":
                    await go_on()
                    return
                joined = asyncio.create_task(join(tx))
                try:
                    await asyncio.shield(joined)
                finally:
                    await joined

        async def join(tx: Any) -> None:
            async with tx.join():
                await go_on()

        async def go_on() -> None:
            await db.execute(insert, [1])
            entered.set()
            await closed.wait()
            with pytest.raises(TransactionLostError, match="the database was closed"):
                await db.execute(insert, [2])
            with pytest.raises(TransactionLostError, match="the database was closed"):
                await db.fetch_val("select 1")
            await db.rollback()
            await db.execute(insert, [3])

        async def closing() -> asyncio.Task[None]:
            if end == "rolled_back":
                async with rolled_back(db):
                    task = asyncio.create_task(work())
                    await entered.wait()
            else:
                task = asyncio.create_task(work())
                await entered.wait()
                await db.close()
                await db.open()
            return task

        task = await closing()
        closed.set()
        assert isinstance(await within(task), PoolError)
        assert await ids(db, table) == [3]
        assert not db._loop_databases.left_behind
        await eventually(lambda: is_quiet(db))


async def test_a_transaction_without_block_outlives_no_close(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        begun, closed = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            await db.begin()
            await db.execute(insert, [1])
            begun.set()
            await closed.wait()
            for use in (lambda: db.execute(insert, [2]), db.commit):
                with pytest.raises(TransactionLostError, match="the database was closed"):
                    await use()
            await db.rollback()
            await db.execute(insert, [3])

        task = asyncio.create_task(work())
        await begun.wait()
        await db.close()
        await db.open()
        closed.set()
        assert await within(task) is None
        assert await ids(db, table) == [3]
        await eventually(lambda: is_quiet(db))
