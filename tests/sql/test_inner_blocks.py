"""Inner blocks of a transaction that several tasks share."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import contextlib
import functools
import io
from collections.abc import Callable
from typing import Any

import pytest

import cenote
from cenote import TransactionClosedError
from tests.support.backends import Backend
from tests.support.faults import across_connections
from tests.support.held import ids, is_quiet, within
from tests.support.waiting import WAIT, eventually

pytestmark = across_connections


async def blocked(tx: Any, count: int = 1) -> None:
    """So many statements wait for the end of an inner block."""
    await eventually(lambda: len(tx._session.outsiders) == count)


async def test_others_wait_for_the_end_of_an_inner_block(backend: Backend) -> None:
    """What they write then is not undone with it."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"

        async def joined(tx: Any) -> None:
            async with tx.join():
                await db.execute(insert, [4])

        async with db.transaction() as tx:
            prepared = await tx.prepare(insert)
            with pytest.raises(KeyError):
                async with db.transaction():
                    await db.execute(insert, [1])
                    tasks = [
                        asyncio.create_task(work)
                        for work in (tx.execute(insert, [2]), prepared.execute([3]), joined(tx))
                    ]
                    await blocked(tx, 3)
                    await db.execute(insert, [5])
                    await tx.execute(insert, [6])  # of the task that is in the inner block
                    raise KeyError
            for task in tasks:
                await within(task)
        assert await ids(db, table) == [2, 3, 4]
        assert is_quiet(db)


async def test_inner_blocks_of_several_tasks_come_one_after_the_other(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        inside = 0

        async def work(tx: Any, number: int) -> None:
            nonlocal inside
            async with tx.join():
                with contextlib.suppress(KeyError):
                    async with db.transaction():
                        assert inside == 0
                        inside += 1
                        await db.execute(insert, [number])
                        with contextlib.suppress(ZeroDivisionError):
                            async with db.transaction():
                                await db.execute(insert, [number + 1])
                                assert number % 20
                        await db.execute(insert, [number + 2])
                        inside -= 1
                        if number % 30 == 0:
                            raise KeyError
                await db.execute(insert, [number + 3])

        async def outer(number: int) -> None:
            await tx.execute(insert, [number])

        async with db.transaction() as tx:
            numbers = [10, 30, 50, 70, 90]
            async with asyncio.timeout(WAIT), asyncio.TaskGroup() as group:
                for number in numbers:
                    group.create_task(work(tx, number))
                    group.create_task(outer(number + 5))
        expected = {number + 3 for number in numbers} | {number + 5 for number in numbers}
        expected |= {number + more for number in (10, 50, 70) for more in (0, 1, 2)}
        assert await ids(db, table) == sorted(expected)
        assert is_quiet(db)


async def test_the_owner_waits_for_an_inner_block_of_another_task(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def child(tx: Any) -> None:
            async with tx.join():
                with pytest.raises(KeyError):
                    async with db.transaction():
                        await db.execute(insert, [1])
                        inside.set()
                        await go_on.wait()
                        await db.execute(insert, [2])
                        raise KeyError
                await db.execute(insert, [3])

        async with db.transaction() as tx:
            task = asyncio.create_task(child(tx))
            await inside.wait()
            asyncio.get_running_loop().call_soon(go_on.set)
            await db.execute(insert, [4])
            await within(task)
        assert await ids(db, table) == [3, 4]


async def test_tasks_that_share_the_inner_block_are_inside(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"

        async def joins(inner: Any) -> None:
            async with inner.join():
                await db.execute(insert, [2])
                async with db.transaction():
                    await db.execute(insert, [3])

        for error in (None, KeyError()):
            async with db.transaction():
                with contextlib.suppress(KeyError):
                    async with db.transaction() as inner:
                        async with asyncio.timeout(WAIT), asyncio.TaskGroup() as group:
                            group.create_task(inner.execute(insert, [1]))
                            group.create_task(joins(inner))
                        await asyncio.wait_for(db.execute(insert, [4]), WAIT)
                        if error is not None:
                            raise error
                assert await ids(db, table) == ([1, 2, 3, 4] if error is None else [])
                await db.rollback()
        assert is_quiet(db)


async def test_the_end_of_the_outer_block_waits_for_inner_blocks(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        inside = asyncio.Event()

        async def child(tx: Any, go_on: asyncio.Event) -> None:
            async with tx.join(), db.transaction():
                await db.execute(insert, [1])
                inside.set()
                await go_on.wait()
                await db.execute(insert, [2])

        go_on = asyncio.Event()
        async with db.transaction() as tx:
            task = asyncio.create_task(child(tx, go_on))
            await inside.wait()
            asyncio.get_running_loop().call_later(0.01, go_on.set)
        assert await within(task) is None
        assert await ids(db, table) == [1, 2]
        # Left by an exception it does not wait: everything is undone.
        inside.clear()
        await db.execute(f"delete from {table}")
        with pytest.raises(KeyError):
            async with db.transaction() as tx:
                go_on = asyncio.Event()
                task = asyncio.create_task(child(tx, go_on))
                await inside.wait()
                raise KeyError
        go_on.set()
        assert isinstance(await within(task), TransactionClosedError)
        assert await ids(db, table) == []
        assert is_quiet(db)


async def test_an_inner_block_that_another_task_rolls_back(backend: Backend) -> None:
    """Nobody may think that it was committed."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        inside = asyncio.Event()

        async def child(tx: Any) -> None:
            async with tx.join(), db.transaction():
                await db.execute(f"insert into {table} values (1, 'y')")
                inside.set()
                await eventually(lambda: not tx.is_open)

        async with db.transaction() as tx:
            task = asyncio.create_task(child(tx))
            await inside.wait()
            await db.rollback()
        assert isinstance(await within(task), TransactionClosedError)

        async def rolls_back(tx: Any) -> None:
            async with tx.join():
                await db.rollback()

        with pytest.raises(TransactionClosedError):
            async with db.transaction() as tx:
                await tx.execute(f"insert into {table} values (2, 'y')")
                await asyncio.create_task(rolls_back(tx))
        assert await ids(db, table) == []
        assert is_quiet(db)


async def test_a_task_ending_in_an_inner_block_loses_the_transaction(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        kept, go_on = [], asyncio.Event()

        async def child(tx: Any) -> None:
            async with tx.join():
                kept.append(db.transaction())
                await kept[0].__aenter__()
                await db.execute(insert, [1])
                await go_on.wait()

        with pytest.raises(cenote.TransactionLostError, match="'careless' ended in a savepoint"):
            async with db.transaction() as tx:
                await tx.execute(insert, [2])
                task = asyncio.create_task(child(tx), name="careless")
                await eventually(lambda: kept and kept[0].is_open)
                waiting = asyncio.create_task(tx.execute(insert, [3]))
                await blocked(tx)
                go_on.set()
                await task
                assert isinstance(await within(waiting), cenote.TransactionLostError)
                with pytest.raises(cenote.TransactionLostError):
                    await db.execute(insert, [4])
        assert await ids(db, table) == []
        assert is_quiet(db)


async def directly(task: "asyncio.Task[Any]") -> Any:
    return await task


async def by_gather(task: "asyncio.Task[Any]") -> Any:
    return (await asyncio.gather(task))[0]


async def by_wait(task: "asyncio.Task[Any]") -> Any:
    await asyncio.wait([task])
    return task.result()


async def by_wait_for(task: "asyncio.Task[Any]") -> Any:
    return await asyncio.wait_for(task, WAIT)


async def by_shield(task: "asyncio.Task[Any]") -> Any:
    return await asyncio.shield(task)


async def by_another_task(task: "asyncio.Task[Any]") -> Any:
    return await asyncio.create_task(directly(task))


WAYS = [directly, by_gather, by_wait, by_wait_for, by_shield, by_another_task]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
async def test_an_inner_block_awaiting_its_own_waiter_is_refused(
    backend: Backend, way: Callable[[Any], Any], late: bool
) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        async with db.transaction() as tx:
            asyncio.current_task().set_name("the inner one")  # type: ignore[union-attr]
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'y')")
                task = asyncio.create_task(tx.fetch_val("select 1"), name="the other one")
                if late:
                    await blocked(tx)
                error = await within(way(task))
                assert type(error) is cenote.PoolDeadlockError
                assert "'the other one' would wait" in str(error)
                assert "task 'the inner one'" in str(error)
            assert await tx.fetch_val("select 1") == 1
        assert await ids(db, table) == [1]


async def until_it_is_blocked(tx: Any, task: "asyncio.Task[Any]") -> None:
    other = asyncio.create_task(blocked(tx))
    await asyncio.wait([task, other], return_when=asyncio.FIRST_COMPLETED)


async def until_a_timeout(tx: Any, task: "asyncio.Task[Any]") -> None:
    await asyncio.wait([task], timeout=0.02)


async def until_a_timeout_of_wait_for(tx: Any, task: "asyncio.Task[Any]") -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.02)


async def until_a_timeout_of_another_task(tx: Any, task: "asyncio.Task[Any]") -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.create_task(by_shield(task)), 0.02)


async def with_a_callback(tx: Any, task: "asyncio.Task[Any]") -> None:
    owner: Any = asyncio.current_task()
    task.add_done_callback(lambda _: owner.get_name())
    task.add_done_callback(functools.partial(print, owner, file=io.StringIO()))
    await blocked(tx)


async def with_a_method_for_callback(tx: Any, task: "asyncio.Task[Any]") -> None:
    task.add_done_callback(asyncio.current_task().remove_done_callback)  # type: ignore[union-attr]
    await blocked(tx)


@pytest.mark.parametrize(
    "way",
    [until_it_is_blocked, until_a_timeout, until_a_timeout_of_wait_for,
     until_a_timeout_of_another_task, with_a_callback, with_a_method_for_callback],
)  # fmt: skip
async def test_an_inner_block_may_stop_awaiting_its_waiters(
    backend: Backend, way: Callable[[Any, Any], Any]
) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        async with db.transaction() as tx:
            async with db.transaction():
                task = asyncio.create_task(tx.execute(f"insert into {table} values (1, 'y')"))
                await way(tx, task)
            assert await within(task) == 1
        assert await ids(db, table) == [1]


async def test_a_task_group_in_an_inner_block(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, db.transaction() as tx:
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.timeout(WAIT), db.transaction(), asyncio.TaskGroup() as group:
                group.create_task(tx.fetch_val("select 1"))
        assert [type(each) for each in caught.value.exceptions] == [cenote.PoolDeadlockError]
        assert await tx.fetch_val("select 1") == 1


async def test_a_waiter_for_an_inner_block_can_be_cancelled(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        async with db.transaction() as tx:
            async with db.transaction():
                tasks = [asyncio.create_task(tx.execute(insert, [i])) for i in range(3)]
                await blocked(tx, 3)
                tasks[1].cancel()
                assert isinstance(await within(tasks[1]), asyncio.CancelledError)
                await blocked(tx, 2)
                await db.execute(insert, [7])
            for task in (tasks[0], tasks[2]):
                assert await within(task) == 1
        assert await ids(db, table) == [0, 2, 7]
        assert is_quiet(db)


async def test_an_end_cancelled_while_waiting_for_an_inner_block(
    backend: Backend,
) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def child(tx: Any) -> None:
            async with tx.join(), db.transaction():
                await db.execute(f"insert into {table} values (1, 'y')")
                inside.set()
                await go_on.wait()

        async def own() -> None:
            async with db.transaction() as tx:
                task.append(asyncio.create_task(child(tx)))
                await inside.wait()
                owner.append(tx)

        task: list[Any] = []
        owner: list[Any] = []
        owning = asyncio.create_task(own())
        await eventually(lambda: owner and owner[0]._session.outsiders)
        owning.cancel()
        assert isinstance(await within(owning), asyncio.CancelledError)
        go_on.set()
        assert isinstance(await within(task[0]), TransactionClosedError)
        assert await ids(db, table) == []
        await eventually(lambda: is_quiet(db))


async def test_cancelled_at_every_moment_of_a_shared_transaction(backend: Backend) -> None:
    """After so many turns of the loop, for every number of them: whatever was told stays, and
    nothing else does; and nobody waits for ever."""
    async with backend.database(max_size=2) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"

        async def inner(tx: Any, number: int) -> None:
            async with tx.join(), db.transaction():
                await db.execute(insert, [number])
                await db.execute(insert, [number + 1])

        async def read(tx: Any) -> None:
            async for _ in tx.iterate(f"select id from {table}"):
                pass

        async def outer() -> None:
            async with db.transaction() as tx:
                tasks = [asyncio.create_task(inner(tx, n)) for n in (10, 20)]
                tasks += [asyncio.create_task(tx.execute(insert, [30]))]
                if backend.interleaves:
                    tasks += [asyncio.create_task(read(tx))]
                await asyncio.gather(*tasks)
            committed.append(True)

        async def stopped_after(turns: int) -> bool:
            task = asyncio.create_task(outer())
            for _ in range(turns):
                await asyncio.sleep(0.0002)
                if task.done():
                    break
            finished = task.done()
            task.cancel()
            await within(task)
            return finished

        turns, finished = 0, False
        while not finished:
            committed: list[bool] = []
            finished = await stopped_after(turns)
            found = await ids(db, table)
            assert found in ([], [10, 11, 20, 21, 30]), turns
            assert not committed or found, turns
            await db.execute(f"delete from {table}")
            await eventually(lambda: is_quiet(db))
            turns += 1
        assert len(asyncio.all_tasks()) < 10
