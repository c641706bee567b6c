"""Tasks that join a transaction."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import warnings
from typing import Any

import pytest

import cenote
from cenote import TransactionClosedError, TransactionScopeWarning
from tests.support.backends import Backend
from tests.support.faults import uses
from tests.support.held import ENDINGS, leave, loop_database_of

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_tasks_join_a_transaction_by_its_handle(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'a')"

        async def child(tx: Any, number: int) -> None:
            async with tx.join() as joined:
                assert joined is tx
                assert db.in_transaction
                assert db.bound_connection is not None
                assert db.pin_reason == "in a transaction"
                await db.execute(insert, [number])
                await db.execute_many(insert, [[number + 1], [number + 2]])
                assert await db.fetch_val(f"select count(*) from {table} where id = ?", [number])
                async with db.transaction():
                    await db.execute(insert, [number + 3])
                async with tx.join() as again:
                    assert again is tx
                    await db.execute(insert, [number + 4])
                await db.execute(insert, [number + 5])
                statement = await db.prepare(f"select count(*) from {table}")
                assert await statement.fetch_val() > 0
                await statement.close()
            assert not db.in_transaction
            assert db.bound_connection is None

        async with db.transaction() as tx:
            await asyncio.create_task(child(tx, 10))
            await asyncio.create_task(child(tx, 20))
            async with tx.join():  # its own task
                await db.execute(insert, [1])
            async with db.transaction() as inner, inner.join():
                await db.execute(insert, [2])
            assert db.pool.active_count == 1
            assert not loop_database_of(db).joined
        assert await db.fetch_val(f"select count(*) from {table}") == 14
        with pytest.raises(KeyError):
            async with db.transaction() as tx:
                await asyncio.create_task(child(tx, 30))
                raise KeyError
        assert await db.fetch_val(f"select count(*) from {table}") == 14


async def test_join_several_at_once(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def child(tx: Any, number: int) -> None:
            async with tx.join():
                for i in range(5):
                    await db.execute(f"insert into {table} values (?, 'a')", [number * 10 + i])

        async with db.transaction() as tx, asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(child(tx, number))
        assert await db.fetch_val(f"select count(*) from {table}") == 50


async def test_join_streams_where_the_transaction_is(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def child(tx: Any) -> list[int]:
            async with tx.join():
                return [row[0] async for row in db.iterate(f"select id from {table}")]

        async with db.transaction() as tx:
            await db.execute(f"insert into {table} values (7, 'a')")
            assert await asyncio.create_task(child(tx)) == [7]


async def test_join_in_a_task_that_has_a_connection(backend: Backend) -> None:
    async with backend.database() as db:

        async def child(tx: Any) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TransactionScopeWarning)
                async with db.transaction(read_only=True):
                    with pytest.raises(cenote.PoolError, match=r"'busy'.*in a transaction.*join"):
                        async with tx.join():
                            pass
                    assert db.in_transaction
            assert not db.in_transaction
            async with tx.join():
                assert db.in_transaction

        async with db.transaction() as tx:
            await asyncio.create_task(child(tx), name="busy")

        async def of_two(one: Any, two: Any) -> None:
            async with one.join():
                with pytest.raises(cenote.PoolError, match="join"):
                    async with two.join():
                        pass
                assert db.in_transaction
                await db.fetch_val("select 1")

        other = db.transaction(read_only=True)
        ready, done = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with other:
                ready.set()
                await done.wait()

        holder = asyncio.create_task(hold())
        await ready.wait()
        async with db.transaction(read_only=True) as tx:
            await asyncio.create_task(of_two(tx, other))
        done.set()
        await holder


async def test_join_after_the_end(backend: Backend) -> None:
    async with backend.database() as db:
        over = asyncio.Event()
        joined = asyncio.Event()

        async def child(tx: Any) -> None:
            async with tx.join():
                joined.set()
                await over.wait()
                assert not db.in_transaction
                assert db.pin_reason is None
                for use in uses(db).values():
                    with pytest.raises(TransactionClosedError):
                        await use()
            assert await db.fetch_val("select 1") == 1

        async with db.transaction() as tx:
            task = asyncio.create_task(child(tx))
            await joined.wait()
        over.set()
        await task
        with pytest.raises(TransactionClosedError):
            async with tx.join():
                pass
        assert not loop_database_of(db).joined


async def test_a_join_that_is_never_left_ends_with_its_task(backend: Backend) -> None:
    async with backend.database() as db, db.transaction() as tx:
        for ending in ENDINGS:
            await leave(lambda: tx.join().__aenter__(), ending)
        await asyncio.sleep(0)
        assert not loop_database_of(db).joined
        assert await tx.fetch_val("select 1") == 1


async def test_children_of_a_joined_task_are_outside(backend: Backend) -> None:
    async with backend.database() as db:
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def early() -> None:
            async with (await ready).join():
                with pytest.warns(TransactionScopeWarning):
                    await asyncio.create_task(db.fetch_val("select 1"))
            assert await asyncio.create_task(db.fetch_val("select 1")) == 1

        task = asyncio.create_task(early())
        async with db.transaction() as tx:
            ready.set_result(tx)
            await task
