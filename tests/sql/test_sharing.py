"""Transactions and the tasks around them: children are outside, unless they share it."""

# ruff: noqa: PT012, PT031 -- whole blocks are what must raise

import asyncio
import contextlib
import gc
import sqlite3
import sys
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cenote
from cenote import TransactionClosedError, TransactionScopeWarning
from tests.support.backends import WAIT, Backend, eventually
from tests.support.faults import no_slot_is_lost, outcome, with_sqlite
from tests.support.held import ENDINGS, Gate, leave, loop_database_of

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

# -- child tasks --------------------------------------------------------------------------------


async def by_create_task(work: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.create_task(work())  # type: ignore[arg-type]


async def by_gather(work: Callable[[], Awaitable[Any]]) -> Any:
    return (await asyncio.gather(work()))[0]


async def by_task_group(work: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())  # type: ignore[arg-type]
    return task.result()


async def by_shield(work: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.shield(work())


WAYS = [by_create_task, by_gather, by_task_group, by_shield]


@pytest.mark.parametrize("way", WAYS)
async def test_a_child_is_outside_of_the_transaction(backend: Backend, way: Any) -> None:
    async with backend.database() as db, backend.table(db) as table:
        count = f"select count(*) from {table}"

        async def child() -> tuple[int, bool, Any, Any]:
            seen = await db.fetch_val(count)
            return seen, db.in_transaction, db.bound_connection, db.pin_reason

        async with db.transaction():
            await db.execute(f"insert into {table} values (1, 'a')")
            with pytest.warns(TransactionScopeWarning):
                assert await way(child) == (0, False, None, None)
            assert await db.fetch_val(count) == 1
            assert db.in_transaction
        assert await way(child) == (1, False, None, None)


async def test_children_have_transactions_of_their_own(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        both = asyncio.Barrier(2)

        async def child(number: int) -> Any:
            async with db.transaction(read_only=True):
                await both.wait()
                mine = db.bound_connection
                assert db.in_transaction
                await db.fetch_val(f"select count(*) from {table}")
                await both.wait()
                assert db.bound_connection is mine
                return mine

        one, two = await asyncio.gather(child(1), child(2))
        assert one is not two
        assert db.pool.active_count == 0


async def test_the_warning_names_both_tasks_and_the_line(backend: Backend) -> None:
    async with backend.database() as db:

        async def child() -> int:
            await db.fetch_val("select 1"); return line()  # fmt: skip # noqa: E702

        def line() -> int:
            return sys._getframe(1).f_lineno

        asyncio.current_task().set_name("the parent")  # type: ignore[union-attr]
        async with db.transaction():
            with pytest.warns(TransactionScopeWarning) as caught:
                expected = await asyncio.create_task(child(), name="the child")
        (warning,) = caught
        assert str(warning.message) == (
            "task 'the child' was started inside the transaction of task 'the parent' and uses the "
            "database outside of it, on a connection of its own. To share the transaction use its "
            "handle: tx.execute() or async with tx.join()."
        )
        assert (warning.filename, warning.lineno) == (__file__, expected)


def uses(db: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    async def transaction() -> None:
        async with db.transaction(read_only=True):
            pass

    async def connection() -> None:
        async with db.connection():
            pass

    async def iterate() -> None:
        async for _ in db.iterate("select 1"):
            pass

    async def prepare() -> None:
        await (await db.prepare("select 1")).close()

    async def begin() -> None:
        await db.begin(read_only=True)
        await db.rollback()

    return {
        "execute": lambda: db.execute("select 1"),
        "fetch_all": lambda: db.fetch_all("select 1"),
        "fetch_one": lambda: db.fetch_one("select 1"),
        "fetch_val": lambda: db.fetch_val("select 1"),
        "transaction": transaction,
        "connection": connection,
        "iterate": iterate,
        "prepare": prepare,
        "begin": begin,
    }


async def test_each_use_warns_once_in_each_child(backend: Backend) -> None:
    async with backend.database() as db:

        async def child(use: Callable[[], Awaitable[Any]]) -> None:
            await use()
            await asyncio.wait_for(use(), 20)
            await db.fetch_val("select 2")

        async def patient(use: Callable[[], Awaitable[Any]]) -> None:
            await asyncio.wait_for(use(), 20)
            await use()
            await asyncio.wait_for(use(), 20)

        for name, use in uses(db).items():
            async with db.transaction(read_only=True):
                with pytest.warns(TransactionScopeWarning) as caught:
                    await asyncio.create_task(child(use))
                    await asyncio.create_task(child(use))
            assert len(caught) == 2, name
            assert {each.filename for each in caught} == {__file__}, name
            async with db.transaction(read_only=True):
                with pytest.warns(TransactionScopeWarning) as caught:
                    await asyncio.create_task(patient(use))
            assert len(caught) == 1, name


async def test_child_tasks_error_raises(backend: Backend) -> None:
    async with backend.database(child_tasks="error", max_size=2) as db:

        async def child(use: Callable[[], Awaitable[Any]]) -> None:
            for _ in range(2):
                with pytest.raises(TransactionScopeWarning, match="was started inside"):
                    await use()

        for use in uses(db).values():
            async with db.transaction(read_only=True):
                await asyncio.create_task(child(use))
                assert db.pool.active_count == 1
            await asyncio.create_task(use())  # type: ignore[arg-type]
        assert db.pool.active_count == 0


async def test_no_warning_outside_of_the_time_of_the_transaction(backend: Backend) -> None:
    """Warnings are errors here."""
    async with backend.database() as db:
        started, over = asyncio.Event(), asyncio.Event()

        async def early() -> None:
            await started.wait()
            assert await db.fetch_val("select 1") == 1

        async def late() -> None:
            await over.wait()
            assert await db.fetch_val("select 1") == 1

        before = asyncio.create_task(early())
        async with db.transaction() as tx:
            started.set()
            await before
            for use in uses(db).values():
                if use.__name__ not in ("begin",):
                    with contextlib.suppress(ValueError):  # read_only of a savepoint
                        await use()
            assert await db.fetch_val("select 1") == 1
            inside = asyncio.create_task(late())
        await asyncio.create_task(db.fetch_val("select 1"))
        over.set()
        await inside
        assert not tx.is_open
        for start, stop in ((db.begin, db.commit), (db.begin, db.rollback)):
            over.clear()
            await start()
            inside = asyncio.create_task(late())
            await stop()
            # In another transaction of the parent the child of the first is no child of it.
            async with db.transaction():
                over.set()
                await inside
        await db.begin()
        with pytest.warns(TransactionScopeWarning):
            await asyncio.create_task(db.fetch_val("select 1"))
        await db.rollback()


async def test_a_grandchild_and_a_nested_block_warn(backend: Backend) -> None:
    async with backend.database() as db:

        async def child() -> None:
            await asyncio.create_task(db.fetch_val("select 1"))

        async with db.transaction():
            async with db.transaction():
                with pytest.warns(TransactionScopeWarning):
                    await asyncio.create_task(child())
            with pytest.warns(TransactionScopeWarning):
                await asyncio.create_task(child())


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_raw_transaction_warns_as_well(backend: Backend, pinned: bool) -> None:
    async with backend.database() as db, backend.table(db) as table:
        count = f"select count(*) from {table}"
        statement = await db.prepare("select 1") if pinned else None
        for end in ("ROLLBACK", "COMMIT"):
            await db.execute(backend.raw_begin)
            await db.execute(f"insert into {table} values (1, 'a')")
            with pytest.warns(TransactionScopeWarning, match="inside the transaction of task"):
                assert await asyncio.create_task(db.fetch_val(count)) == 0
            await db.execute(end)
            assert await asyncio.create_task(db.fetch_val(count)) == int(end == "COMMIT")
        if statement is not None:
            await statement.close()
    if not backend.embedded:
        async with backend.database() as db:
            await db.execute(backend.raw_begin)
            await db.execute("commit and chain")  # the next one is open
            with pytest.warns(TransactionScopeWarning):
                await asyncio.create_task(db.fetch_val("select 1"))
            await db.rollback()
            await asyncio.create_task(db.fetch_val("select 1"))
    async with backend.database(child_tasks="error") as db:
        await db.execute(backend.raw_begin)
        with pytest.raises(TransactionScopeWarning):
            await asyncio.create_task(db.fetch_val("select 1"))
        await db.rollback()
        await asyncio.create_task(db.fetch_val("select 1"))


async def test_two_databases_are_not_confused(backend: Backend) -> None:
    async with backend.database() as one, backend.database() as two, one.transaction():
        assert not two.in_transaction
        assert two.bound_connection is None
        assert await asyncio.create_task(two.fetch_val("select 1")) == 1
        async with two.transaction(read_only=True):
            assert one.bound_connection is not two.bound_connection

            async def child() -> list[str]:
                with pytest.warns(TransactionScopeWarning) as first:
                    await one.fetch_val("select 1")
                with pytest.warns(TransactionScopeWarning) as second:
                    await two.fetch_val("select 1")
                await one.fetch_val("select 1")
                await two.fetch_val("select 1")
                return [len(first), len(second)]

            assert await asyncio.create_task(child()) == [1, 1]
        assert await asyncio.create_task(two.fetch_val("select 1")) == 1


async def test_the_context_keeps_nothing_alive(backend: Backend) -> None:
    async with backend.database() as db:
        stop = asyncio.Event()

        async def background() -> None:
            await stop.wait()

        async def start() -> tuple[asyncio.Task[None], list[weakref.ref[Any]]]:
            async with db.transaction() as outer, db.transaction() as tx:
                watched = [weakref.ref(tx), weakref.ref(outer), weakref.ref(tx._session)]
                task = asyncio.create_task(background())
                asyncio.get_running_loop().call_later(60, stop.set)
            return task, watched

        task, watched = await start()
        gc.collect()
        assert [ref() for ref in watched] == [None, None, None]
        # Nor does a task that was left by its transaction.
        await db.begin()
        session = weakref.ref(loop_database_of(db).session())
        other = asyncio.create_task(background())
        await db.rollback()
        gc.collect()
        assert session() is None
        stop.set()
        await asyncio.gather(task, other)


# -- sharing ------------------------------------------------------------------------------------


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


async def test_a_commit_that_is_cancelled_while_it_waits_for_its_turn(backend: Backend) -> None:
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


async def test_the_end_of_a_savepoint_that_is_cancelled_loses_the_transaction(
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


async def test_join(backend: Backend) -> None:
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


# -- those who write to one file -----------------------------------------------------------------


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
