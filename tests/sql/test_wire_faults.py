"""Faults on the wire: resets, cuts, silence, and the bounds of what waits for an answer."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cenote.sql import connection_hooks
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import (
    MANY_ROWS,
    across_connections,
    all_at_once,
    drivers_error,
    is_drivers_own,
    let_be_cancelled,
    marked,
    no_slot_is_lost,
    outcome,
    watching,
    with_postgresql,
    with_server,
)
from tests.support.held import connections_of, within
from tests.support.waiting import WAIT, eventually
from tests.support.wire import through

pytestmark = across_connections


@pytest.fixture(autouse=True)
def psycopg_without_limits(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a silent wire psycopg gives up by itself after 5 s; here only the limits of cenote end a
    wait, as with asyncpg and asyncmy."""
    if backend.name != "psycopg":
        return

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("psycopg.AsyncConnection._try_cancel", never)


async def works(db: Any, use: str) -> None:
    """A statement, in one of the ways in which a connection is taken for it."""
    if use == "fetch_val":
        assert await db.fetch_val("select 1") == 1
    elif use == "transaction":
        async with db.transaction():
            assert await db.fetch_val("select 1") == 1
    elif use == "prepare":
        async with await db.prepare("select 1") as statement:
            assert await statement.fetch_val() == 1
    else:
        assert use == "iterate"
        assert [row[0] async for row in db.iterate("select 1")] == [1]


@with_postgresql
@pytest.mark.parametrize("use", ["fetch_val", "transaction", "prepare", "iterate"])
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
async def test_last_words_without_an_end(
    backend: Backend, proxy: FaultProxy, use: str, read: bool
) -> None:
    """A killed server says so before it hangs up, and there is time between the two."""
    async with watching(backend) as watcher, through(backend, proxy, max_size=1) as db:
        session = await db.fetch_val(backend.session)
        proxy.hold_ends(True)
        said = proxy.server_bytes
        await watcher.kill(session)
        await watcher.until_gone(session)
        proxy.wait_for(lambda counts: counts.server_bytes > said)
        if read:
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.05, proxy.hold_ends, False)
        await works(db, use)
        await no_slot_is_lost(db)


@pytest.mark.parametrize("backend", ["asyncpg", "mysql"], indirect=True)
@pytest.mark.parametrize("use", ["fetch_val", "transaction", "prepare", "iterate", "execute_many"])
async def test_an_end_within_the_moment_of_trust(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """What came back just now is not looked at, even if its driver has heard of its end since:
    then nothing is sent on it."""
    monkeypatch.setattr(connection_hooks, "JUST_NOW", 1000.0)
    async with backend.database(max_size=1, ping_after_idle=1000.0) as db, backend.table(db) as t:
        assert await db.fetch_val("select 1") == 1
        (link,) = connections_of(db)
        transport = link.raw._transport
        transport.abort()
        await eventually(lambda: link.looks_dead() or transport.is_closing())
        await asyncio.sleep(0)
        assert db.pool.idle_count == 1
        if use != "execute_many":
            await works(db, use)
        else:
            await db.execute_many(f"insert into {t} values (?, ?)", [(1, "a"), (2, "b")])
            assert await db.fetch_val(f"select count(*) from {t}") == 2
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("fault", ["reset", "cut"])
async def test_the_news_has_reached_the_machine(
    backend: Backend, proxy: FaultProxy, fault: str
) -> None:
    async with through(backend, proxy, max_size=3) as db:
        await all_at_once(db, 3)
        await asyncio.sleep(0.005)  # the clock of uvloop ticks once in a millisecond
        getattr(proxy, fault)()
        time.sleep(0.0003)  # noqa: ASYNC251 -- so that the driver has not read it
        assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("fault", ["reset", "cut"])
async def test_a_fault_in_mid_query(backend: Backend, proxy: FaultProxy, fault: str) -> None:
    async with watching(backend) as watcher, through(backend, proxy, max_size=2) as db:
        slow, nonce = marked(backend.slow)
        task = asyncio.create_task(db.fetch_val(slow))
        session = await watcher.until_running(nonce)
        getattr(proxy, fault)()
        with drivers_error():
            await task
        assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)
        await watcher.kill(session)


@with_server
@pytest.mark.parametrize("after", [0, 1, 7, 50, 3000, 300_000])
@pytest.mark.parametrize("method", ["fetch_all", "iterate", "prepared"])
async def test_a_reply_cut_in_the_middle(
    backend: Backend, proxy: FaultProxy, after: int, method: str
) -> None:
    async with through(backend, proxy, max_size=2) as db:
        rows = MANY_ROWS[backend.name].replace("5000", "100")  # about a megabyte
        assert await db.fetch_val("select 1") == 1
        if method == "prepared":
            statement = await db.prepare(rows)
        proxy.cut_reply_after(after)
        with drivers_error():
            if method == "fetch_all":
                await db.fetch_all(rows)
            elif method == "prepared":
                await statement.fetch_all()
            else:
                async with db.iterate(rows) as stream:
                    async for _ in stream:
                        pass
        assert len(await db.fetch_all(rows)) == 100
        await no_slot_is_lost(db)


@with_server
async def test_refused_connections_raise_the_error_of_the_driver(
    backend: Backend, proxy: FaultProxy
) -> None:
    async with through(backend, proxy, max_size=3) as db:
        assert await db.fetch_val("select 1") == 1
        proxy.refuse(True)
        assert await db.fetch_val("select 1") == 1  # the idle one still works
        async with db.transaction():
            results = [await outcome(asyncio.create_task(fetch(db))) for _ in range(3)]
            assert all(is_drivers_own(each) for each in results), results
            assert db.pool.count == 1
            proxy.refuse(False)
            assert await asyncio.create_task(fetch(db)) == 1
        await no_slot_is_lost(db)


async def fetch(db: Any, sql: str = "select 1") -> Any:
    return await db.fetch_val(sql)


@with_server
@pytest.mark.parametrize("fault", ["half_open", "black_hole"])
async def test_pings_are_bounded_by_the_hook_timeout(
    backend: Backend, proxy: FaultProxy, fault: str
) -> None:
    options = {"ping_after_idle": 0, "hook_timeout": 0.2, "destructor_timeout": 0.2}
    async with through(backend, proxy, max_size=3, **options) as db:
        await all_at_once(db, 3)
        async with silence(proxy, fault):
            async with asyncio.timeout(WAIT):
                if fault == "half_open":
                    assert await db.fetch_val("select 1") == 1  # on a new one
                else:
                    task = asyncio.create_task(fetch(db))
                    await eventually(lambda: db.pool.stats().rejected == 3)
                    await let_be_cancelled(task)
            assert db.pool.stats().rejected == 3
            await eventually(lambda: db.pool.stats().destroying == 0)
        await eventually(lambda: db.pool.stats().creating == 0)
        await no_slot_is_lost(db)


@asynccontextmanager
async def silence(proxy: FaultProxy, fault: str) -> AsyncIterator[None]:
    """Nothing is heard of the server any more."""
    if fault == "half_open":
        proxy.half_open()
        yield
        return
    proxy.black_hole(True)
    try:
        yield
    finally:
        # What was opened meanwhile has no server: as if a router had come back.
        proxy.reset()
        proxy.black_hole(False)


@with_server
@pytest.mark.parametrize("fault", ["half_open", "black_hole"])
async def test_statements_are_bounded_by_the_users_timeout(
    backend: Backend, proxy: FaultProxy, fault: str
) -> None:
    async with through(backend, proxy, max_size=2, destructor_timeout=0.3) as db:
        await all_at_once(db, 2)

        async def impatient() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await db.fetch_val("select 1")

        async def in_transaction() -> None:
            with pytest.raises(TimeoutError):
                async with db.transaction():
                    going.set()
                    await silent.wait()
                    async with asyncio.timeout(0.1):
                        await db.fetch_val("select 1")

        going, silent = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(in_transaction())
        await going.wait()
        async with silence(proxy, fault):
            silent.set()
            async with asyncio.timeout(WAIT):
                await asyncio.gather(task, impatient())
            # Also the attempts to stop it on the server are given up.
            await eventually(lambda: db.pool.stats().destroying == 0)
        await no_slot_is_lost(db)
        await eventually(lambda: proxy.open == 2)


@with_server
async def test_connecting_is_bounded_by_the_create_timeout(
    backend: Backend, proxy: FaultProxy
) -> None:
    async with through(backend, proxy, max_size=2, create_timeout=2.0) as db:
        proxy.black_hole(True)
        results = await asyncio.gather(*(within(fetch(db)) for _ in range(2)))
        assert all(isinstance(each, TimeoutError) for each in results), results
        proxy.reset()
        proxy.black_hole(False)
        await no_slot_is_lost(db)
        await eventually(lambda: proxy.open == 2)


@with_server
async def test_closing_is_bounded_by_the_destructor_timeout(
    backend: Backend, proxy: FaultProxy
) -> None:
    async with through(backend, proxy, max_size=3, destructor_timeout=0.2) as db:
        await all_at_once(db, 3)
        proxy.black_hole(True)
        async with asyncio.timeout(WAIT):
            await db.close()
        await eventually(lambda: proxy.open == 0)


@with_server
async def test_a_reset_that_is_not_answered(backend: Backend, proxy: FaultProxy) -> None:
    options = {"hook_timeout": 0.2, "destructor_timeout": 0.2}
    async with through(backend, proxy, max_size=1, **options) as db:
        await db.execute(backend.touches[0][0])
        proxy.half_open()
        async with asyncio.timeout(WAIT):
            await db.release()
            assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 2
        await no_slot_is_lost(db)


@with_server
async def test_background_checks_notice_broken_connections(
    backend: Backend, proxy: FaultProxy
) -> None:
    options = {"healthcheck_interval": 0.05, "hook_timeout": 0.2, "destructor_timeout": 0.2}
    async with through(backend, proxy, max_size=2, **options) as db:
        await all_at_once(db, 2)
        proxy.half_open()
        await eventually(lambda: db.pool.count == 0)
        await no_slot_is_lost(db)


@with_server
async def test_never_more_connections_than_allowed(backend: Backend, proxy: FaultProxy) -> None:
    """Also while they break all the time."""
    async with through(backend, proxy, max_size=3) as db:
        over = False
        peak = 0

        async def work() -> None:
            while not over:
                result = await outcome(fetch(db))
                assert result == 1 or is_drivers_own(result), result

        # A worker that fails ends the group, and with it the loop below.
        async with asyncio.timeout(WAIT), asyncio.TaskGroup() as workers:
            for _ in range(8):
                workers.create_task(work())
            for _ in range(25):
                goal = db.pool.stats().released + 10
                while db.pool.stats().released < goal:
                    await asyncio.sleep(0)
                    peak = max(peak, proxy.open)
                proxy.reset()
            over = True
        assert 0 < peak <= 3
        await no_slot_is_lost(db)
