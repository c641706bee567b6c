"""`db.transact()` after each of the conflicts that servers report."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import across_connections, with_mysql, with_postgresql, with_sqlite
from tests.support.waiting import WAIT, eventually

pytestmark = [*across_connections, pytest.mark.usefixtures("pauses")]


def noting(
    errors: list[Exception], function: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    """The function, whose errors are noted."""

    async def noted() -> Any:
        try:
            return await function()
        except Exception as error:
            errors.append(error)
            raise

    return noted


async def overtaken(
    backend: Backend, write: Callable[[cenote.Database, str], Awaitable[Any]], **options: Any
) -> list[Exception]:
    """The errors of a serializable transaction that appends "b" by `write(db, change)`, and finds
    that somebody has appended "a" meanwhile. Run again it succeeds."""
    async with (
        backend.database(**options) as db,
        backend.database(max_size=1) as other,
        backend.table(db) as table,
    ):
        await db.execute(f"insert into {table} values (1, '')")
        change = f"update {table} set name = name || ? where id = 1"
        errors: list[Exception] = []

        async def append() -> None:
            await db.fetch_val(f"select name from {table}")
            if not errors:
                await other.execute(change, ["a"])
            await write(db, change)

        await db.transact(noting(errors, append), isolation="serializable")
        assert await db.fetch_val(f"select name from {table}") == "ab"
        return errors


@with_postgresql
async def test_transact_repeats_a_serialization_failure(
    backend: Backend, pauses: list[int]
) -> None:
    errors = await overtaken(backend, lambda db, change: db.execute(change, ["b"]))
    assert [cenote.sqlstate(error) for error in errors] == ["40001"]
    assert pauses == [1]


DEADLOCKS = {"asyncpg": "40P01", "psycopg": "40P01", "mysql": 1213}


@pytest.mark.parametrize("backend", list(DEADLOCKS), indirect=True)
async def test_transact_repeats_the_loser_of_a_deadlock(
    backend: Backend, pauses: list[int]
) -> None:
    async with backend.database(max_size=2) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, '')", [[1], [2]])
        both = asyncio.Barrier(2)
        errors: list[Exception] = []

        def change(first: int, second: int) -> Callable[[], Awaitable[None]]:
            async def run() -> None:
                text = f"update {table} set name = ? where id = ?"
                await db.execute(text, ["begun", first])
                if not errors:
                    await both.wait()
                await db.execute(text, ["done", second])

            return noting(errors, run)

        async with asyncio.timeout(WAIT):
            # The loser begins with the row that the winner has last.
            await asyncio.gather(
                db.transact(change(1, 2), attempts=1000), db.transact(change(2, 1), attempts=1000)
            )
        assert len(pauses) == len(errors) >= 1
        for error in errors:
            code = error.args[0] if backend.name == "mysql" else cenote.sqlstate(error)
            assert code == DEADLOCKS[backend.name]


@with_mysql
async def test_transact_repeats_a_wait_for_a_lock(backend: Backend, pauses: list[int]) -> None:
    async def be_impatient(connection: Any) -> None:
        await connection.query("set innodb_lock_wait_timeout = 1")

    async with (
        backend.database(on_connect=be_impatient) as db,
        backend.database(max_size=1) as other,
        backend.table(db) as table,
    ):
        await db.execute_many(f"insert into {table} values (?, '')", [[1], [2]])
        errors: list[Exception] = []

        async def change() -> None:
            await db.execute(f"update {table} set name = concat(name, 'a') where id = 1")
            await db.execute(f"update {table} set name = concat(name, 'b') where id = 2")

        await other.begin()
        await other.execute(f"update {table} set name = 'c' where id = 2")
        task = asyncio.create_task(db.transact(noting(errors, change), attempts=1000))
        await eventually(lambda: pauses)
        await other.commit()
        async with asyncio.timeout(WAIT):
            await task
        assert {error.args[0] for error in errors} == {1205}
        # What the transaction had done before it waited was undone as well.
        rows = await db.fetch_all(f"select name from {table} order by id")
        assert [row[0] for row in rows] == ["a", "cb"]


@with_sqlite
async def test_transact_repeats_a_busy_database(backend: Backend, pauses: list[int]) -> None:
    async with (
        backend.database(f"{backend.url}?timeout=0") as db,
        backend.database(max_size=1) as other,
        backend.table(db) as table,
    ):
        await other.begin()
        await other.execute(f"insert into {table} values (1, 'a')")

        async def count() -> Any:
            await db.execute(f"insert into {table} values (2, 'b')")
            return await db.fetch_val(f"select count(*) from {table}")

        with pytest.raises(Exception, match="database is locked"):
            await db.transact(count, attempts=2)
        assert pauses == [1]
        task = asyncio.create_task(db.transact(count, attempts=100_000))
        await eventually(lambda: len(pauses) > 2)
        await other.commit()
        async with asyncio.timeout(WAIT):
            assert await task == 2


@with_postgresql
async def test_transact_repeats_a_conflict_in_a_task_group(
    backend: Backend, pauses: list[int]
) -> None:
    async def write(db: cenote.Database, change: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(db.execute(change, ["b"]))
            group.create_task(db.fetch_val("select 1"))

    (error,) = await overtaken(backend, write, child_tasks="join")
    assert isinstance(error, ExceptionGroup)
    assert "40001" in map(cenote.sqlstate, error.exceptions)
    assert pauses == [1]


@with_mysql
async def test_transact_does_not_repeat_what_a_procedure_has_committed(
    backend: Backend, pauses: list[int]
) -> None:
    async with backend.database() as db, backend.table(db, "id {int}") as table:
        await db.execute(
            f"create procedure p_{table}() begin insert into {table} values (1); commit; "
            f"signal sqlstate '40001' set mysql_errno = 1213, message_text = 'a deadlock'; end"
        )
        with pytest.raises(Exception, match="a deadlock"):
            await db.transact(db.execute, f"call p_{table}()")
        assert pauses == []
        assert await db.fetch_val(f"select count(*) from {table}") == 1
        await db.execute(f"drop procedure p_{table}")


async def test_transact_does_not_repeat_what_goes_on_after_a_rollback(
    backend: Backend, pauses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend.database() as db, backend.table(db, "id {int}") as table:
        monkeypatch.setattr(db._driver, "is_conflict", lambda error: isinstance(error, KeyError))

        async def insert() -> None:
            await db.rollback()
            await db.execute(f"insert into {table} values (1)")
            raise KeyError

        with pytest.raises(KeyError):
            await db.transact(insert)
        assert pauses == []
        assert await db.fetch_val(f"select count(*) from {table}") == 1
