"""The circuit breaker of a database: which errors it counts, and how it recovers."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio

import pytest

import cenote
from cenote import breaker
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import (
    MANY_ROWS,
    RAW,
    across_connections,
    drivers_error,
    marked,
    no_slot_is_lost,
    outcome,
    watching,
    with_server,
    with_sqlite,
)
from tests.support.held import connections_of
from tests.support.kit import RecordingStrategy
from tests.support.waiting import eventually
from tests.support.wire import through

pytestmark = across_connections


@with_server
async def test_the_breaker_counts_lost_connections(backend: Backend, proxy: FaultProxy) -> None:
    strategy = RecordingStrategy()
    async with (
        watching(backend) as watcher,
        through(backend, proxy, max_size=2, strategy=strategy) as db,
    ):
        slow, nonce = marked(backend.slow)
        task = asyncio.create_task(db.execute(slow))
        await watcher.kill(await watcher.until_running(nonce))
        lost = await outcome(task)
        assert strategy.reports == [lost]
        proxy.refuse(True)
        refused = await outcome(db.fetch_val("select 1"))
        assert strategy.reports == [lost, refused]
        proxy.refuse(False)
        with pytest.raises(cenote.TransactionLostError):
            async with db.transaction():
                await watcher.kill(await db.fetch_val(backend.session))
                await eventually(lambda: any(link.is_dead for link in connections_of(db)))
        assert len(strategy.reports) == 3
        assert isinstance(strategy.reports[2], OSError)


async def test_the_breaker_does_not_count_the_rest(backend: Backend) -> None:
    """SQL errors, cancellations, sessions that are replaced, streams that are left: no failures."""
    strategy = RecordingStrategy()
    async with backend.database(max_size=2, strategy=strategy) as db, backend.table(db) as table:
        insert = f"insert into {table} values (1, 'a')"
        await db.execute(insert)
        for _ in range(3):
            with drivers_error():
                await db.execute(insert)
            with drivers_error():
                async with db.transaction():
                    await db.execute(insert)
            with drivers_error():
                await db.execute_many(f"insert into {table} values (?, 'a')", [[1]])
            with drivers_error():
                await anext(db.iterate("selct 1"))
            with drivers_error():  # some find out when it is used
                async with await db.prepare("selct 1") as statement:
                    await statement.execute()
            with drivers_error():
                async with db.connection() as raw:
                    await RAW[backend.name](raw, "selct 1")
        for touch, _query in backend.touches:  # SQLite cannot reset
            await db.execute(touch)
            await db.release()
        async with db.connection():
            pass
        stream = db.iterate(MANY_ROWS[backend.name])
        await anext(stream)
        await stream.aclose()
        async for _ in db.iterate(MANY_ROWS[backend.name]):
            break
        with pytest.raises(KeyError):
            async with db.transaction():
                await anext(db.iterate(MANY_ROWS[backend.name]))
                raise KeyError
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await db.execute(backend.slow)
        with pytest.raises(TimeoutError):
            async with db.connection(), asyncio.timeout(0.05):
                await db.execute(backend.slow)
        with pytest.raises(TimeoutError):
            async with db.connection() as raw, asyncio.timeout(0.05):
                await RAW[backend.name](raw, backend.slow)
        with pytest.raises(TimeoutError):
            async with db.transaction(), asyncio.timeout(0.05):
                await db.execute(backend.slow)
        await eventually(lambda: db.pool.stats().destroying == 0)
        failures = [each for each in strategy.reports if each != "success"]
        assert failures == []
        await no_slot_is_lost(db)


@with_sqlite
async def test_the_breaker_and_a_driver_that_cannot_reset(backend: Backend) -> None:
    strategy = RecordingStrategy()
    async with backend.database(max_size=1, reset="always", strategy=strategy) as db:
        for _ in range(3):
            assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 3
        assert [each for each in strategy.reports if each != "success"] == []


@with_server
async def test_an_open_breaker_recovers_without_a_restart(
    backend: Backend, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    monkeypatch.setattr(breaker, "now", lambda: seconds)
    strategy = cenote.ConsecutiveFailures(2, recovery_timeout=30.0, success_threshold=1)
    async with through(backend, proxy, max_size=2, strategy=strategy) as db:
        proxy.refuse(True)
        for _ in range(2):
            with drivers_error():
                await db.fetch_val("select 1")
        connections = proxy.connections
        with pytest.raises(cenote.ServiceUnavailableError):
            await db.fetch_val("select 1")
        assert proxy.connections == connections  # nobody was bothered
        proxy.refuse(False)
        seconds = 30.0
        assert await db.fetch_val("select 1") == 1
        assert db.pool.state == cenote.CircuitState.ACTIVE
        await no_slot_is_lost(db)


async def test_a_database_makes_four_connections_at_once(backend: Backend) -> None:
    under_way, most, doors = 0, 0, asyncio.Event()

    async def on_connect(_: object) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await doors.wait()
        under_way -= 1

    doors.set()
    async with backend.database(max_size=6, on_connect=on_connect) as db:
        await db.pool.retire()
        doors.clear()
        tasks = [asyncio.create_task(db.fetch_val("select 1")) for _ in range(6)]
        await eventually(lambda: under_way == 4)
        assert db.pool.stats().creating == 4
        doors.set()
        assert await asyncio.gather(*tasks) == [1] * 6
        assert most == 4
