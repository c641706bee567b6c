"""A database without a pool: a connection for each use, or one that stays."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import contextvars
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.held import loop_database_of, session_number, sessions_end
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def connection_of(db: Any) -> Any:
    async with db.connection() as connection:
        return connection.__wrapped__


async def test_a_connection_for_each_use(backend: Backend) -> None:
    async with backend.database(pooled=False) as db, backend.table(db) as table:
        assert db.pool is None
        assert await connection_of(db) is not await connection_of(db)
        if backend.session:
            one, two = await db.fetch_val(backend.session), await db.fetch_val(backend.session)
            assert one != two
            await sessions_end(backend, [one, two])
        assert not loop_database_of(db).connections
        await db.execute(f"insert into {table} values (1, 'a')")
        async with db.transaction():
            connection = db.bound_connection
            await db.execute(f"insert into {table} values (2, 'b')")
            async with db.transaction():
                await db.execute(f"insert into {table} values (3, 'c')")
            assert db.bound_connection is connection
        with pytest.raises(KeyError):
            async with db.transaction():
                await db.execute(f"insert into {table} values (4, 'd')")
                raise KeyError
        await db.execute_many(f"insert into {table} values (?, 'x')", [[5], [6]])
        statement = await db.prepare(f"select count(*) from {table}")
        assert await statement.fetch_val() == 5
        assert await db.fetch_val("select 1") == 1
        await statement.close()
        assert db.pool is None
        await eventually(lambda: not loop_database_of(db).connections)


async def test_one_task_at_a_time(backend: Backend) -> None:
    async with backend.database(pooled=False) as db, backend.table(db) as table:
        order: list[str] = []

        async def one(number: int) -> None:
            async with db.transaction():
                order.append(f"begin {number}")
                await db.execute(f"insert into {table} values (?, 'a')", [number])
                await asyncio.sleep(0)
                order.append(f"end {number}")

        await asyncio.gather(*(one(number) for number in range(5)))
        assert [word.split()[0] for word in order] == ["begin", "end"] * 5
        assert await db.fetch_val(f"select count(*) from {table}") == 5
        results = await asyncio.gather(*(db.fetch_val("select ?", [str(i)]) for i in range(20)))
        assert results == [str(i) for i in range(20)]


async def test_waiting_for_the_one_connection_has_an_end(backend: Backend) -> None:
    async with backend.database(pooled=False, acquire_timeout=1) as db:  # it has to connect, too
        await db.begin()
        with pytest.raises(cenote.AcquireTimeoutError, match="in a transaction"):
            await in_a_clean_context(db)
        await db.rollback()
        assert await db.fetch_val("select 1") == 1


async def in_a_clean_context(db: Any) -> Any:
    """In a task that was not started in a transaction, as far as anybody can see."""
    task = asyncio.get_running_loop().create_task(
        db.fetch_val("select 1"), context=contextvars.Context()
    )
    return await task


@pytest.mark.parametrize("options", [{"pooled": False}, {"pooled": False, "persistent": True}, {}])
async def test_a_stream_beside_other_statements_on_one_connection(
    backend: Backend, options: dict[str, Any]
) -> None:
    """With a pool: in a session with settings of its own. All outside of a transaction."""
    async with backend.database(**options) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        if not options:
            await db.execute("create temporary table mine (id int)")
        seen = []
        async for row in db.iterate(f"select id from {table} where id >= ? order by id", [0]):
            if row[0] in (50, 150):
                assert not db.in_transaction
                if not backend.interleaves:
                    with pytest.raises(cenote.PoolError, match=r"stream is open.*select id"):
                        await db.fetch_val("select 1")
                else:
                    if not options:
                        assert await db.fetch_val("select count(*) from mine") == 0
                    insert = f"insert into {table} values (?, 'y')"
                    await db.execute(insert, [1000 + row[0]])
                    # It is committed by itself: this one does not take it away,
                    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
                        await db.execute(insert, [0])
                    # and it can be seen from outside.
                    async with backend.database() as other:
                        count = f"select count(*) from {table} where id = ?"
                        assert await other.fetch_val(count, [1000 + row[0]]) == 1
                    async with db.transaction():
                        await db.execute(insert, [2000 + row[0]])
            if row[0] < 1000:
                seen.append(row[0])
        assert seen == list(range(250))
        assert not db.in_transaction
        if not options:
            assert "touched" in db.pin_reason
            await db.release()
        assert db.pin_reason is None
        found = await db.fetch_all(f"select id from {table} where name = 'y' order by id")
        ids = [1050, 1150, 2050, 2150] if backend.interleaves else []
        assert [row[0] for row in found] == ids


async def test_a_persistent_connection_stays_open(backend: Backend) -> None:
    async with backend.database(pooled=False, persistent=True) as db, backend.table(db) as table:
        assert db.pool is None
        connection = await connection_of(db)
        number = await session_number(backend, db)
        assert await asyncio.create_task(session_number(backend, db)) == number
        async with db.transaction():
            await db.execute(f"insert into {table} values (1, 'a')")
            assert await session_number(backend, db) == number
        assert len(loop_database_of(db).connections) == 1
        if not backend.embedded:  # which cannot be reset after connection()
            assert await connection_of(db) is connection
            assert await session_number(backend, db) == number
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(db.fetch_val(backend.slow), 0.05)
        assert await db.fetch_val(f"select count(*) from {table}") == 1  # on a new one
        assert backend.embedded or await session_number(backend, db) != number


async def test_pool_options_that_need_a_pool() -> None:
    with pytest.raises(ValueError, match="persistent"):
        cenote.Database("sqlite:///:memory:", persistent=True)
    for option in ("min_size", "max_size", "max_uses"):
        with pytest.raises(ValueError, match=option):
            cenote.Database("sqlite:///:memory:", pooled=False, **{option: 1})
