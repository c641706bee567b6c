"""Child tasks are outside of the transaction of their parent, and are warned."""

# ruff: noqa: PT031 -- whole blocks are what must raise

import asyncio
import contextlib
import gc
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cenote import TransactionScopeWarning
from tests.support.backends import Backend
from tests.support.faults import uses
from tests.support.held import loop_database_of
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


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
            'handle: tx.execute() or async with tx.join(); or give the database child_tasks="join".'
        )
        assert (warning.filename, warning.lineno) == (__file__, expected)


async def test_each_use_warns_once_in_each_child(backend: Backend) -> None:
    async with backend.database() as db:

        async def child(use: Callable[[], Awaitable[Any]]) -> None:
            await use()
            await asyncio.wait_for(use(), WAIT)
            await db.fetch_val("select 2")

        async def patient(use: Callable[[], Awaitable[Any]]) -> None:
            await asyncio.wait_for(use(), WAIT)
            await use()
            await asyncio.wait_for(use(), WAIT)

        for name, use in uses(db).items():
            async with db.transaction(read_only=True):
                with pytest.warns(TransactionScopeWarning) as caught:
                    await asyncio.create_task(child(use))
                    await asyncio.create_task(child(use))
            assert len(caught) == 2, name
            assert {each.filename for each in caught} <= {__file__, uses.__code__.co_filename}, name
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
