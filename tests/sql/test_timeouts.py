"""The timeout of a statement: the server stops, the connection and the transaction stay."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import (
    across_connections,
    watching,
    with_postgresql,
    with_server,
    with_sqlite,
)
from tests.support.waiting import WAIT, eventually

pytestmark = across_connections

SHORT = 0.2  # seconds, after which every slow statement is stopped
LONG = 2 * WAIT  # seconds, which no test may take


# -- every method --------------------------------------------------------------------------------

Run = Callable[[Any, str, float], Awaitable[Any]]


async def execute(db: Any, sql: str, timeout: float) -> None:
    await db.execute(sql, timeout=timeout)


async def fetch_all(db: Any, sql: str, timeout: float) -> None:
    await db.fetch_all(sql, timeout=timeout)


async def fetch_one(db: Any, sql: str, timeout: float) -> None:
    await db.fetch_one(sql, timeout=timeout)


async def fetch_val(db: Any, sql: str, timeout: float) -> None:
    await db.fetch_val(sql, timeout=timeout)


async def iterate(db: Any, sql: str, timeout: float) -> None:
    async for _ in db.iterate(sql, timeout=timeout):
        pass


async def start_stream(db: Any, sql: str, timeout: float) -> None:
    async with db.iterate(sql, timeout=timeout) as stream:
        await stream.start()


async def run_prepared(db: Any, sql: str, timeout: float) -> None:
    async with await db.prepare(sql, timeout=LONG) as statement:
        await statement.fetch_val(timeout=timeout)


async def execute_prepared(db: Any, sql: str, timeout: float) -> None:
    async with await db.prepare(sql) as statement:
        await statement.execute(timeout=timeout)


async def iterate_prepared(db: Any, sql: str, timeout: float) -> None:
    async with await db.prepare(sql) as statement:
        async for _ in statement.iterate(timeout=timeout):
            pass


RUNS: list[Run] = [
    execute, fetch_all, fetch_one, fetch_val, iterate, start_stream, run_prepared,
    execute_prepared, iterate_prepared,
]  # fmt: skip


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
async def test_every_method_stops_and_keeps_its_connection(backend: Backend, run: Run) -> None:
    async with backend.database(min_size=2, max_size=2) as db:
        await db.open()
        with pytest.raises(cenote.StatementTimeoutError) as caught:
            await run(db, backend.slow, SHORT)
        assert isinstance(caught.value, cenote.PoolError)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.connection_kept, str(caught.value)
        assert db.bound_connection is None
        assert await db.fetch_val("select 4711") == 4711
        await eventually(lambda: not db.pool.active_count)
        assert not db.pool.stats().destroyed


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
async def test_a_timeout_that_is_not_reached_changes_nothing(backend: Backend, run: Run) -> None:
    async with backend.database(min_size=2, max_size=2) as db:
        await run(db, "select 1", LONG)
        await eventually(lambda: not db.pool.active_count)
        assert not db.pool.stats().destroyed


@with_server
@pytest.mark.parametrize("run", [fetch_val, iterate, run_prepared], ids=lambda run: run.__name__)
async def test_the_server_runs_it_no_longer(backend: Backend, run: Run) -> None:
    async with watching(backend) as watcher, backend.database(max_size=1) as db:
        session = await db.fetch_val(backend.session)
        task = asyncio.create_task(run(db, f"{backend.slow} /* nonce_7 */", 1.0))
        assert await watcher.until_running("nonce_7") == session
        with pytest.raises(cenote.StatementTimeoutError):
            await task
        assert not await watcher.running("nonce_7")
        assert await db.fetch_val(backend.session) == session


# -- in transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
async def test_savepoint_saves_the_transaction(backend: Backend, run: Run) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        async with db.transaction() as tx:
            await tx.execute(f"insert into {table} values (1, 'one')")
            with pytest.raises(cenote.StatementTimeoutError) as caught:  # noqa: PT012
                async with db.transaction() as inner:
                    await inner.execute(f"insert into {table} values (2, 'two')")
                    await run(inner, backend.slow, SHORT)
            assert caught.value.connection_kept, str(caught.value)
            assert db.in_transaction
            await tx.execute(f"insert into {table} values (3, 'three')")
        rows = await db.fetch_all(f"select id from {table} order by id")
        assert [row[0] for row in rows] == [1, 3]


@with_postgresql
async def test_postgresql_aborts_the_transaction(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        with pytest.raises(cenote.TransactionLostError, match="a statement in it had failed"):  # noqa: PT012
            async with db.transaction() as tx:
                with pytest.raises(cenote.StatementTimeoutError, match="has to be rolled back"):
                    await tx.execute(backend.slow, timeout=SHORT)
                with pytest.raises(Exception) as caught:
                    await tx.execute("select 1")
                assert cenote.sqlstate(caught.value) == "25P02"
        assert await db.fetch_val("select 1") == 1


@pytest.mark.parametrize("backend", ["mysql", "sqlite"], indirect=True)
async def test_mysql_and_sqlite_go_on(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        async with db.transaction() as tx:
            await tx.execute(f"insert into {table} values (1, 'one')")
            with pytest.raises(cenote.StatementTimeoutError, match="as was the transaction"):
                await tx.fetch_val(backend.slow, timeout=SHORT)
            await tx.execute(f"insert into {table} values (2, 'two')")
        assert await db.fetch_val(f"select count(*) from {table}") == 2


@with_sqlite
async def test_sqlite_rolls_back_with_a_change(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db, "id {int}") as table:
        with pytest.raises(cenote.TransactionLostError):  # noqa: PT012
            async with db.transaction() as tx:
                await tx.execute(f"insert into {table} values (1)")
                with pytest.raises(cenote.StatementTimeoutError, match="transaction is over"):
                    await tx.execute(f"insert into {table} {backend.slow}", timeout=SHORT)
                await tx.execute(f"insert into {table} values (2)")
        assert await db.fetch_val(f"select count(*) from {table}") == 0


async def test_joined_task_stops_in_the_transaction(backend: Backend) -> None:
    async with backend.database(max_size=2) as db, db.transaction() as tx:
        before = db.bound_connection

        async def other() -> None:
            async with tx.join():
                with pytest.raises(cenote.StatementTimeoutError) as caught:
                    await db.fetch_val(backend.slow, timeout=SHORT)
                assert caught.value.connection_kept

        await asyncio.create_task(other())
        assert db.bound_connection is before
        assert db.pool.active_count == 1
        await tx.rollback()


async def test_wait_for_the_turn_is_bounded(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, db.transaction() as tx:
        first = asyncio.create_task(tx.fetch_val(backend.slow, timeout=1.0))
        await asyncio.sleep(0)
        with pytest.raises(cenote.StatementTimeoutError, match="was not sent") as caught:
            await tx.execute("select 1", timeout=SHORT)
        assert caught.value.connection_kept
        with pytest.raises(cenote.StatementTimeoutError, match="took longer"):
            await first
        await tx.rollback()
    assert db.in_transaction is False


async def test_execute_many_undoes_everything(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db, "id {int}") as table:
        slow = backend.slow.replace("count(*)", "count(*) + ?")
        if slow == backend.slow:
            slow = backend.slow.replace("30", "?")
            rows: list[Any] = [[0], [0], [30]]
        else:
            rows = [[1], [2], [3]]
        into = f"insert into {table} select 1 from ({slow}) as each_row"
        with pytest.raises(cenote.StatementTimeoutError) as caught:
            await db.execute_many(into, rows, timeout=0.5)
        assert caught.value.connection_kept, str(caught.value)
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        assert not db.in_transaction
        assert db.pool.stats().created == 1
