"""A transaction that several tasks share by its handle."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import contextlib
from typing import Any

import pytest

import cenote
from cenote import TransactionClosedError
from tests.support.backends import Backend
from tests.support.held import ENDINGS, Gate, leave, loop_database_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_the_handle_is_shared_by_tasks(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"

        async def child(tx: Any, number: int) -> None:
            first = number * 10
            assert await tx.execute(insert, [first, "a"]) == 1
            await tx.execute_many(insert, [[first + i, "b"] for i in range(1, 5)])
            mine = "id between :low and :high"
            where = {"low": first, "high": first + 9}
            rows = await tx.fetch_all(f"select id from {table} where {mine} order by id", where)
            assert [row["id"] for row in rows] == list(range(first, first + 5))
            assert (await tx.fetch_one(f"select name from {table} where id = ?", [first]))[0] == "a"
            assert await tx.fetch_val(f"select name from {table} where id = ?", [first + 1]) == "b"
            assert not db.in_transaction

        async with db.transaction() as tx:
            async with asyncio.TaskGroup() as group:
                for number in range(10):
                    group.create_task(child(tx, number))
            assert await tx.fetch_val(f"select count(*) from {table}") == 50
            assert db.pool.active_count == 1
        assert await db.fetch_val(f"select count(*) from {table}") == 50
        with pytest.raises(KeyError):
            async with db.transaction() as tx:
                async with asyncio.TaskGroup() as group:
                    for number in range(10, 15):
                        group.create_task(child(tx, number))
                raise KeyError
        assert await db.fetch_val(f"select count(*) from {table}") == 50


async def test_streams_of_a_shared_transaction(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(350)])

        async def child(tx: Any) -> list[int]:
            return [row[0] async for row in tx.iterate(f"select id from {table} order by id")]

        async with db.transaction() as tx:
            await db.execute(f"delete from {table} where id >= 300")
            if backend.interleaves:
                for ids in await asyncio.gather(child(tx), child(tx)):
                    assert ids == list(range(300))
            else:
                assert await asyncio.create_task(child(tx)) == list(range(300))
            stream = tx.iterate(f"select id from {table} order by id")
            await anext(stream)
        with pytest.raises(TransactionClosedError):
            [row async for row in stream]
        late = tx.iterate("select 1")
        with pytest.raises(TransactionClosedError):
            await anext(late)
        assert db.pool.active_count == 0


async def test_a_handle_after_the_end(backend: Backend) -> None:
    assert issubclass(TransactionClosedError, cenote.PoolError)
    async with backend.database() as db:

        async def check(tx: Any) -> None:
            for use in (
                tx.execute("select 1"),
                tx.fetch_all("select 1"),
                tx.fetch_one("select 1"),
                tx.fetch_val("select 1"),
                tx.execute_many("select ?", [[1]]),
                tx.execute_many("select ?", []),
                tx.prepare("select 1"),
                anext(tx.iterate("select 1")),
                tx.join().__aenter__(),
            ):
                with pytest.raises(TransactionClosedError, match="over"):
                    await use

        unused = db.transaction()
        await check(unused)
        async with db.transaction() as tx:
            async with db.transaction() as inner:
                pass
            await check(inner)
            assert await tx.fetch_val("select 1") == 1
        await check(tx)
        with pytest.raises(KeyError):
            async with db.transaction() as tx:
                raise KeyError
        await check(tx)
        async with db.transaction() as tx:
            await db.rollback()
            await check(tx)
        with pytest.raises(RuntimeError, match="used before"):
            async with tx:
                pass


async def test_a_statement_prepared_by_the_handle(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def other() -> Any:
            async with await tx.prepare(f"insert into {table} values (?, 'a')") as statement:
                await statement.execute([1])
                await statement.execute([2])
            return await tx.prepare(f"select count(*) from {table} where id > ?")

        async with db.transaction() as tx:
            statement = await asyncio.create_task(other())
            assert await statement.fetch_val([0]) == 2
        await statement.close()
        assert await db.fetch_val(f"select count(*) from {table}") == 2


async def test_savepoints_left_in_the_wrong_order_are_undone(backend: Backend) -> None:
    """The outer one is told that it failed, so nothing of either may stay."""
    async with backend.database() as db, backend.table(db) as table:
        async with db.transaction():
            await db.execute(f"insert into {table} values (3, 'a')")
            first, second = db.transaction(), db.transaction()
            await first.__aenter__()
            await db.execute(f"insert into {table} values (1, 'a')")
            await second.__aenter__()
            await db.execute(f"insert into {table} values (2, 'a')")
            with pytest.raises(cenote.PoolError, match="reverse order"):
                await first.__aexit__(None, None, None)
            with pytest.raises(TransactionClosedError):
                await second.__aexit__(None, None, None)
        assert [row[0] for row in await db.fetch_all(f"select id from {table}")] == [3]


async def under_way(tx: Any) -> None:
    await eventually(lambda: tx._session.turn.taken)


async def test_those_that_wait_for_their_turn_learn_of_the_end(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        async with db.transaction() as tx:
            running = asyncio.create_task(tx.execute(gate.sql))
            await under_way(tx)
            assert db.in_transaction  # though the driver cannot say so in mid-statement
            assert db.pin_reason == "in a transaction"
            waiting = [
                asyncio.create_task(use)
                for use in (tx.execute(f"delete from {table}"), tx.fetch_val("select 1"))
            ]
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(gate.open)
        # Before the COMMIT it was their turn, and it was over already.
        assert await running == 1
        for task in waiting:
            with pytest.raises(TransactionClosedError):
                await task
        assert await db.fetch_val(f"select name from {table}") == "through"


@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_owner_ends_while_another_is_in_mid_statement(
    backend: Backend, ending: str
) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        kept: list[Any] = []

        async def own() -> Any:
            tx = db.transaction()
            await tx.__aenter__()
            kept.append(asyncio.create_task(tx.execute(gate.sql)))
            await under_way(tx)
            kept.append(asyncio.create_task(tx.execute(f"delete from {table}")))
            await asyncio.sleep(0)
            return tx

        await leave(own, ending, kept)
        running, waiting, tx = kept
        assert not tx.is_open
        assert db.pool.active_count == 1
        gate.open()
        assert await running == 1
        with pytest.raises(TransactionClosedError):
            await waiting
        await eventually(lambda: db.pool.active_count == 0)
        assert not loop_database_of(db).sessions
        assert await db.fetch_val(f"select name from {table}") == "a"


async def test_a_commit_cancelled_while_it_waits_in_turn(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):

        async def own() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    async with db.transaction() as tx:
                        await db.execute(f"insert into {table} values (2, 'b')")
                        kept.append(asyncio.create_task(tx.execute(gate.sql)))
                        await under_way(tx)
                        patience.reschedule(0)
            # It goes on outside of that transaction.
            assert not db.in_transaction
            assert await db.fetch_val(f"select count(*) from {table}") == 1
            gate.open()
            await asyncio.wait(kept)
            await db.execute(f"insert into {table} values (3, 'c')")

        kept: list[Any] = []
        await asyncio.create_task(own())
        with contextlib.suppress(Exception):
            await kept[0]
        rows = await db.fetch_all(f"select id, name from {table} order by id")
        assert [tuple(row) for row in rows] == [(1, "a"), (3, "c")]


async def test_a_cancelled_end_of_a_savepoint_loses_the_transaction(
    backend: Backend,
) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        with pytest.raises(cenote.TransactionLostError, match="savepoint"):
            async with db.transaction():
                await db.execute(f"insert into {table} values (2, 'b')")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(None) as patience, db.transaction() as tx:
                        await db.execute(f"insert into {table} values (3, 'c')")
                        running = asyncio.create_task(tx.execute(gate.sql))
                        await under_way(tx)
                        patience.reschedule(0)
                gate.open()
                await asyncio.wait([running])
        assert running.exception() is None
        assert await db.fetch_val(f"select count(*) from {table}") == 1


@pytest.mark.parametrize("inner", [False, True], ids=["block", "savepoint"])
async def test_a_block_that_is_left_with_an_open_stream(backend: Backend, inner: bool) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        kept = []

        async def block(number: int, error: Exception | None) -> None:
            async with db.transaction() as tx:
                await db.execute(f"insert into {table} values (?, 'y')", [number])
                kept.append(tx.iterate(f"select id from {table} order by id"))
                assert (await anext(kept[-1]))[0] == 0
                if error is not None:
                    raise error

        async def both() -> None:
            await block(1000, None)
            assert not db.in_transaction or inner
            with pytest.raises(KeyError):
                await block(2000, KeyError())
            await block(3000, None)

        if inner:
            async with db.transaction():
                await both()
        else:
            await both()
        assert not db.in_transaction
        assert db.pin_reason is None
        assert db.pool.active_count == 0
        for stream in kept:
            with pytest.raises(cenote.PoolError):
                [row async for row in stream]
        found = await db.fetch_all(f"select id from {table} where name = 'y' order by id")
        assert [row[0] for row in found] == [1000, 3000]
        assert db.pool.stats().created == 1


async def test_a_cancelled_statement_loses_the_shared_transaction(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        with pytest.raises(cenote.TransactionLostError) as caught:
            async with db.transaction() as tx:
                await db.execute(f"insert into {table} values (1, 'a')")
                slow = asyncio.create_task(tx.fetch_val(backend.slow))
                await under_way(tx)
                slow.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await slow
                for use in (tx.fetch_val("select 1"), db.fetch_val("select 1")):
                    with pytest.raises(cenote.TransactionLostError):
                        await use
        assert caught.value.outcome == "rolled_back"
        assert await db.fetch_val(f"select count(*) from {table}") == 0
