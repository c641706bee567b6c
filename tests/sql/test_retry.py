"""What is run again on another connection, and what never is."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import gc
import threading
from typing import Any

import pytest

import cenote
from cenote.sql import connection_hooks
from cenote.sql.driver import DriverConnection
from tests.support.backends import Backend
from tests.support.faults import no_slot_is_lost, outcome, with_server, with_sqlite
from tests.support.waiting import WAIT, eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


def links(db: Any) -> list[Any]:
    return [*db._loop_databases[asyncio.get_running_loop()].connections]


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came back is taken for alive for long."""
    monkeypatch.setattr(connection_hooks, "JUST_NOW", 1000.0)


@with_sqlite
async def test_once_and_not_again(backend: Backend) -> None:
    """A connection that is dead whenever it is handed out."""
    made = 0

    async def close_it(raw: Any) -> None:
        nonlocal made
        made += 1
        await raw.close()

    async with backend.database(on_connect=close_it, max_size=2) as db:
        with pytest.raises(ValueError, match="onnection"):
            await db.fetch_val("select 1")
        assert made == 2
        with pytest.raises(ValueError, match="onnection"):
            async with db.transaction():
                pass
        assert made <= 4


@with_sqlite
@pytest.mark.usefixtures("trusting")
async def test_session_state_on_the_second_connection_is_reset_too(backend: Backend) -> None:
    async with backend.database(max_size=2, ping_after_idle=1000.0) as db:

        async def touch() -> None:
            await db.fetch_val("select 1")
            links(db)[0].terminate()
            async for _ in db.iterate("pragma foreign_keys = on"):
                pass

        await asyncio.create_task(touch())
        await eventually(lambda: db.pool.active_count == 0)
        assert await db.fetch_val("pragma foreign_keys") == 0


@with_sqlite
@pytest.mark.usefixtures("trusting")
async def test_connection_gives_none_that_is_known_to_be_dead(backend: Backend) -> None:
    async with backend.database(max_size=1, ping_after_idle=1000.0) as db:
        await db.fetch_val("select 1")
        links(db)[0].terminate()
        async with db.connection() as raw:
            assert not raw.closed
            assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)


@pytest.mark.parametrize("backend", ["mysql"], indirect=True)
async def test_a_series_that_has_begun_is_not_run_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a table knows no transactions, the beginning of it would count twice."""
    async with backend.database(max_size=2, statement_cache_size=0) as db:
        name = "series_without_transactions"
        await db.execute(f"create table {name} (id int, x int) engine = MyISAM")
        try:
            await db.execute(f"insert into {name} values (1, 0), (2, 0)")
            (link,) = links(db)
            atomically = DriverConnection.atomically

            async def interrupted(self: Any, work: Any, *savepoint: str) -> None:
                async def part() -> None:
                    await link.execute(f"update {name} set x = x + 1", None)
                    link.raw._transport.abort()
                    await link.execute(f"update {name} set x = x + 1", None)

                await atomically(self, part if self is link else work, *savepoint)

            monkeypatch.setattr(DriverConnection, "atomically", interrupted)
            with pytest.raises(Exception, match="gone away"):
                await db.execute_many(f"update {name} set x = x + ?", [(1,), (1,)])
            assert [row[1] for row in await db.fetch_all(f"select id, x from {name}")] == [1, 1]
        finally:
            await db.execute(f"drop table {name}")


@with_server
async def test_all_who_share_a_transaction_are_cancelled_at_once(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        begun = asyncio.Event()
        handle: list[Any] = []

        async def share() -> Any:
            await begun.wait()
            return await handle[0].execute(backend.slow)

        tasks = [asyncio.create_task(share()) for _ in range(3)]
        with pytest.raises(cenote.TransactionLostError):
            async with db.transaction() as tx:
                handle.append(tx)
                begun.set()
                await eventually(lambda: tx._session.turn.taken)
                await asyncio.sleep(0.01)
                for task in tasks:
                    task.cancel()
                results = [await outcome(task) for task in tasks]
        assert [type(each) for each in results] == [asyncio.CancelledError] * 3
        await no_slot_is_lost(db)


@with_sqlite
async def test_a_turn_ends_with_a_transaction_that_the_driver_ended(backend: Backend) -> None:
    async with backend.database(max_size=1, reset="never") as db:

        async def write() -> None:
            await db.begin()
            async with db.connection() as raw:
                await raw.commit()

        await asyncio.create_task(write())
        async with db.transaction():
            assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)


@with_sqlite
async def test_cancelled_while_its_connection_is_cut_off(backend: Backend) -> None:
    go = threading.Event()
    db = cenote.Database(backend.url, max_size=1)
    db.create_function("hang", 0, lambda: go.wait(WAIT))
    async with db:
        task = asyncio.create_task(db.fetch_val("select hang()"))
        await eventually(lambda: db.pool.active_count == 1)
        await asyncio.sleep(0.01)
        (link,) = links(db)
        link.terminate()
        task.cancel()
        assert isinstance(await outcome(task), asyncio.CancelledError)
        go.set()
        await asyncio.to_thread(link.raw.thread.join, WAIT)  # it posts to this loop


@with_sqlite
async def test_a_statement_that_is_collected_in_another_thread(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        await db.fetch_val("select 1")
        statement = db.fetch_val("select 1")
        statement.send(None)
        assert db.pool.active_count == 1
        (link,) = links(db)
        await link.raw.run(lambda: None)  # after the statement: its answer is there
        thread = threading.Thread(target=statement.close)
        thread.start()
        await asyncio.to_thread(thread.join)
        del statement
        gc.collect()
        await eventually(lambda: db.pool.active_count == 0)
        assert await db.fetch_val("select 1") == 1
