"""Sessions that the server ends: the next statement gets another connection."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

import cenote
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import (
    RAW,
    across_connections,
    all_at_once,
    drivers_error,
    marked,
    no_slot_is_lost,
    sessions,
    watching,
    with_server,
)
from tests.support.held import connections_of
from tests.support.kit import RecordingStrategy
from tests.support.waiting import eventually
from tests.support.wire import through

pytestmark = across_connections

# More than ever arrives: of less, all may be in buffers of the client when the session is killed,
# and then nothing is missing. uvloop reads on for as long as the server is faster.
ENDLESS_ROWS = {
    "asyncpg": "select i, repeat('x', 10000) from generate_series(1, 5000) i, "
    "generate_series(1, 5000) j",
    "psycopg": "select i, repeat('x', 10000) from generate_series(1, 5000) i, "
    "generate_series(1, 5000) j",
    "mysql": "select a.seq, repeat('x', 10000) from seq_1_to_5000 a, seq_1_to_5000 b",
}


# -- killed sessions -----------------------------------------------------------------------------


@with_server
async def test_a_session_killed_while_idle_is_replaced(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=3) as db:
        before = await sessions(backend, db, 3)
        await watcher.kill(*before)
        await eventually(lambda: all(link.is_dead for link in connections_of(db)))
        assert await db.fetch_val("select 1") == 1  # nobody meets a dead one
        assert not before & await sessions(backend, db, 3)
        assert db.pool.stats().created == 6


@with_server
async def test_one_of_many_killed_while_idle(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=3) as db:
        before = await sessions(backend, db, 3)
        await watcher.kill(min(before))
        await eventually(lambda: any(link.is_dead for link in connections_of(db)))
        results = await asyncio.gather(*(db.fetch_val("select 1") for _ in range(20)))
        assert results == [1] * 20
        assert len(before & await sessions(backend, db, 3)) == 2


@with_server
async def test_killed_in_mid_query(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=2) as db:
        slow, nonce = marked(backend.slow)
        task = asyncio.create_task(db.fetch_val(slow))
        session = await watcher.until_running(nonce)
        await watcher.kill(session)
        with drivers_error():
            await task
        assert db.pool.active_count == 0
        assert await db.fetch_val(backend.session) != session
        await no_slot_is_lost(db)


@with_server
async def test_the_same_task_goes_on(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=1) as db:
        for _ in range(3):
            slow, nonce = marked(backend.slow)
            killer = asyncio.create_task(watcher.until_running(nonce))
            with drivers_error():
                await killed(db.fetch_val(slow), killer, watcher)
            assert await db.fetch_val("select 7") == 7
        await no_slot_is_lost(db)


async def killed(statement: Awaitable[Any], found: "asyncio.Task[int]", watcher: Any) -> None:
    """Run it while its session is killed; both are over at the end, and it raises."""

    async def kill() -> None:
        await watcher.kill(await found)

    result, _ = await asyncio.gather(statement, kill(), return_exceptions=True)
    raise result


@with_server
async def test_killed_with_an_open_statement(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=1) as db:
        statement = await db.prepare("select 1 + ?")
        assert await statement.fetch_val([1]) == 2
        session = await db.fetch_val(backend.session)
        await watcher.kill(session)
        await watcher.until_gone(session)
        with drivers_error():
            await statement.fetch_val([1])
        with pytest.raises(cenote.PoolError, match="Prepare it again"):
            await statement.fetch_val([1])
        assert await db.fetch_val("select 1") == 1
        await statement.close()
        again = await db.prepare("select 1 + ?")
        assert await again.fetch_val([2]) == 3
        await again.close()
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("inside", [False, True], ids=["own connection", "in a transaction"])
async def test_killed_with_an_open_stream(backend: Backend, inside: bool) -> None:
    async with watching(backend) as watcher, backend.database(max_size=2) as db:
        rows = ENDLESS_ROWS[backend.name]

        async def read() -> None:
            async with db.iterate(rows) as stream:
                await anext(stream)
                (session,) = [each for each in await all_sessions(watcher) if each not in known]
                await watcher.kill(session)
                async for _ in stream:
                    pass

        known = await all_sessions(watcher)
        with drivers_error():
            if inside:
                async with db.transaction():
                    await read()
            else:
                await read()
        assert not db.in_transaction
        assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)


async def all_sessions(watcher: Any) -> set[int]:
    """Of the user of the tests."""
    name = watcher.backend.name
    sql = (
        "select id from information_schema.processlist where user = 'app'"
        if name == "mysql"
        else "select pid from pg_stat_activity where usename = 'app'"
    )
    return {row[0] for row in await watcher.db.fetch_all(sql)}


@with_server
@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
async def test_a_session_killed_inside_connection_is_replaced(
    backend: Backend, swallowed: bool
) -> None:
    strategy = RecordingStrategy()
    async with watching(backend) as watcher, backend.database(max_size=1, strategy=strategy) as db:
        with drivers_error():
            async with db.connection() as raw:
                session = await db.fetch_val(backend.session)
                await watcher.kill(session)
                await watcher.until_gone(session)
                try:
                    await RAW[backend.name](raw, "select 1")
                except Exception as error:
                    if not swallowed:
                        raise
                    failure = error
            raise failure
        assert db.bound_connection is None
        assert await db.fetch_val(backend.session) != session
        assert strategy.reports[0] != "success"
        await no_slot_is_lost(db)


@with_server
async def test_no_second_task_meets_a_broken_connection(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=4) as db:
        over = False
        answers = 0

        async def bystander() -> None:
            nonlocal answers
            while not over:
                answers += 1
                number = answers
                assert await db.fetch_val("select 1 + ?", [number]) == number + 1

        async def victim() -> None:
            with drivers_error():
                async with db.transaction():
                    session = await db.fetch_val(backend.session)
                    await watcher.kill(session)
                    await watcher.until_gone(session)
                    await db.fetch_val("select 1")
            assert await db.fetch_val("select 2") == 2

        bystanders = [asyncio.create_task(bystander()) for _ in range(6)]
        for _ in range(15):
            await victim()
        over = True
        await asyncio.gather(*bystanders)
        assert answers > 15
        await no_slot_is_lost(db)


@with_server
async def test_an_unpooled_database_recovers_from_a_killed_session(backend: Backend) -> None:
    async with watching(backend) as watcher:
        for persistent in (False, True):
            async with backend.database(pooled=False, persistent=persistent) as db:
                session = await db.fetch_val(backend.session)
                if persistent:
                    await watcher.kill(session)
                await watcher.until_gone(session)
                assert await db.fetch_val("select 1") == 1
                slow, nonce = marked(backend.slow)
                killer = asyncio.create_task(watcher.until_running(nonce))
                with drivers_error():
                    await killed(db.fetch_val(slow), killer, watcher)
                assert await db.fetch_val("select 1") == 1


# -- the other connections are suspect -----------------------------------------------------------


@with_server
@pytest.mark.parametrize("noticed", ["in mid-query", "idle", "at commit", "in connection()"])
async def test_after_a_loss_the_idle_ones_are_pinged(
    backend: Backend, proxy: FaultProxy, noticed: str
) -> None:
    async with watching(backend) as watcher, through(backend, proxy, max_size=3) as db:
        before = await sessions(backend, db, 3)
        assert await all_at_once(db, 3, "select 5") == [5] * 3  # prepared on each

        async def round_trips() -> int:
            started = proxy.round_trips
            assert await db.fetch_val("select 5") == 5
            return proxy.round_trips - started

        assert [await round_trips() for _ in range(3)] == [1, 1, 1]
        if noticed == "in mid-query":
            slow, nonce = marked(backend.slow)
            task = asyncio.create_task(db.execute(slow))
            await watcher.kill(await watcher.until_running(nonce))
            with drivers_error():
                await task
        elif noticed == "at commit":
            with pytest.raises(cenote.TransactionLostError):
                async with db.transaction():
                    await watcher.kill(await db.fetch_val(backend.session))
                    await eventually(lambda: any(link.is_dead for link in connections_of(db)))
        elif noticed == "in connection()":
            async with db.connection():
                await watcher.kill(await db.fetch_val(backend.session))
                await eventually(lambda: any(link.is_dead for link in connections_of(db)))
        else:
            await watcher.kill(min(before))
            await eventually(lambda: any(link.is_dead for link in connections_of(db)))
        connected = proxy.connections
        if noticed != "idle":
            assert db.pool.count == 2
            await eventually(lambda: proxy.open == 2)
            assert [await round_trips() for _ in range(4)] == [2, 2, 1, 1]
        else:
            # It is passed over when it is its turn, and then the other two are asked, once each.
            trips = [await round_trips() for _ in range(6)]
            assert trips.count(1) == 4, trips
            assert db.pool.count == 2
        assert proxy.connections == connected
