"""Closing a database: busy tasks, blocks, twice, and what was never used."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend, check_branch
from tests.support.held import Gate, linger, loop_database_of, session_number, sessions_end
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_closing_with_busy_tasks(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database(max_size=5) as (db, table):
        closed = asyncio.Event()
        seen: list[Any] = []
        ready: list[str] = []

        async def in_transaction() -> None:
            with pytest.raises(cenote.PoolClosedError):
                async with db.transaction(read_only=backend.embedded) as tx:
                    if not backend.embedded:  # there is one writer at a time
                        await db.execute(f"insert into {table} values (2, 'b')")
                    seen.append(await session_number(backend, db))
                    ready.append("transaction")
                    await closed.wait()
                    assert db.bound_connection is None
                    assert db.pin_reason is None
                    for use in (
                        db.fetch_val("select 1"),
                        tx.fetch_val("select 1"),
                        tx.join().__aenter__(),
                        anext(tx.iterate("select 1")),
                    ):
                        with pytest.raises(cenote.PoolError):
                            await use

        async def with_begin() -> None:
            await db.begin(read_only=True)
            seen.append(await session_number(backend, db))
            ready.append("begin")
            await closed.wait()
            for end in (db.commit, db.rollback, db.release):
                with pytest.raises(cenote.PoolClosedError):
                    await end()

        async def with_statement() -> None:
            statement = await db.prepare("select 1")
            seen.append(await session_number(backend, db))
            ready.append("statement")
            await closed.wait()
            with pytest.raises(cenote.PoolClosedError):
                await statement.fetch_val()
            with pytest.raises(cenote.PoolClosedError):
                statement.iterate()
            await statement.close()

        async def with_stream() -> None:
            stream = db.iterate("select 1 union all select 2")
            await anext(stream)
            ready.append("stream")
            await closed.wait()
            with pytest.raises(cenote.PoolClosedError):
                [row async for row in stream]
            await stream.aclose()

        async def in_mid_statement() -> None:
            ready.append("mid")
            assert await db.execute(gate.sql) == 1
            with pytest.raises(cenote.PoolClosedError):
                await db.fetch_val("select 1")

        async def waiting() -> None:
            with pytest.raises(cenote.PoolClosedError):
                await db.fetch_val("select 1")

        tasks = []
        for work in (in_transaction, with_begin, with_statement, with_stream, in_mid_statement):
            tasks.append(asyncio.create_task(work()))
            count = len(tasks)
            await eventually(lambda count=count: len(ready) == count)
        pool = db.pool
        await eventually(lambda: pool.active_count == 5)
        tasks.append(asyncio.create_task(waiting()))
        await eventually(lambda: pool.waiting_count == 1)
        loop_db = loop_database_of(db)
        await db.close()
        assert not loop_db.private
        assert not loop_db.joined
        assert pool.waiting_count == 0
        await eventually(lambda: pool.active_count == 1)
        await sessions_end(backend, seen)
        gate.open()
        closed.set()
        await asyncio.gather(*tasks)
        await eventually(lambda: not loop_db.connections and not pool.stats().destroying)
        check_branch(loop_db)
        async with backend.database() as other:
            assert await other.fetch_val(f"select count(*) from {table}") == 1
            assert await other.fetch_val(f"select name from {table}") == "through"


async def test_closing_while_a_shared_transaction_is_in_mid_statement(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        with pytest.raises(cenote.PoolClosedError):
            async with db.transaction() as tx:
                await db.execute(f"insert into {table} values (2, 'b')")
                running = asyncio.create_task(tx.execute(gate.sql))
                await eventually(lambda: tx._session.turn.taken)
                waiting = asyncio.create_task(tx.execute(gate.sql))
                await asyncio.sleep(0)
                pool = db.pool
                await db.close()
                assert pool.active_count == 1
                gate.open()
                assert await running == 1
                with pytest.raises(cenote.PoolClosedError):
                    await waiting
                with pytest.raises(cenote.PoolError):
                    await tx.fetch_val("select 1")
        await eventually(lambda: pool.count == 0)
        async with backend.database() as other:
            rows = await other.fetch_all(f"select name from {table}")
            assert [row[0] for row in rows] == ["a"]


async def test_closing_twice_and_at_once(backend: Backend) -> None:
    async with backend.database() as db:
        await db.fetch_val("select 1")
        await asyncio.gather(db.close(), db.close())
        await db.close()
        assert db.closed
        assert "closed" in repr(db)
        with pytest.raises(cenote.PoolClosedError, match=r"Call open\(\) to use it again"):
            await db.fetch_val("select 1")


async def test_closing_what_was_never_used(backend: Backend) -> None:
    db = cenote.Database(backend.url)
    await db.close()
    with pytest.raises(cenote.PoolClosedError):
        await db.execute("select 1")
    assert not db.in_transaction
    assert db.bound_connection is None


async def test_a_database_as_a_block(backend: Backend) -> None:
    seen = []
    async with cenote.Database(backend.url, min_size=2) as db:
        assert isinstance(db, cenote.Database)
        assert db.pool is not None
        assert db.pool.idle_count == 2
        seen.append(await session_number(backend, db))
    assert db.closed
    await sessions_end(backend, seen)
    with pytest.raises(KeyError):
        async with cenote.Database(backend.url) as db:
            await db.begin()
            raise KeyError
    assert db.closed


async def test_a_block_keeps_its_exception_when_closing_fails(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Any) -> None:
        await close(self)
        raise OSError("not closed in order")

    async def leave(error: type[BaseException] | None) -> None:
        async with cenote.Database(backend.url) as db:
            await db.fetch_val("select 1")
            link = type(next(iter(loop_database_of(db).connections)))
            monkeypatch.setattr(link, "close", fail)
            if error is not None:
                raise error

    async with cenote.Database(backend.url) as db:
        await db.fetch_val("select 1")
        close = type(next(iter(loop_database_of(db).connections))).close
    for error in (KeyError, asyncio.CancelledError):
        with pytest.raises(error):
            await leave(error)
        monkeypatch.undo()
    with pytest.raises(ExceptionGroup):
        await leave(None)


async def test_what_is_touched_while_the_database_closes_is_not_kept(backend: Backend) -> None:
    """The statement began before close() and ends after it: its task holds nothing."""
    slow = {"sqlite": "create temp table late as " + backend.slow.replace("300000000", "300000")}
    touch = slow.get(backend.name) or {
        "mysql": "do sleep(0.3)",
    }.get(backend.name, "do $$ begin perform pg_sleep(0.3); end $$")
    async with backend.database() as db:
        await db.execute("select 1")
        pool = db.pool
        task = asyncio.create_task(linger(db.execute(touch)))
        await eventually(lambda: pool.active_count == 1)
        await db.close()
        await eventually(lambda: pool.count == pool.stats().destroying == 0)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
