"""Servers that stop, crash, restart or are demoted, and connections that outlive it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import cenote
from tests.support import backends
from tests.support.backends import Backend
from tests.support.faults import (
    across_connections,
    all_at_once,
    drivers_error,
    is_drivers_own,
    marked,
    no_slot_is_lost,
    outcome,
    sessions,
    watching,
    with_mysql,
    with_postgresql,
)
from tests.support.waiting import eventually

pytestmark = across_connections


@pytest.fixture(params=["asyncpg", "psycopg", "mysql"])
def own(request: pytest.FixtureRequest) -> Backend:
    """A backend whose server is this module's own; SQLite has none."""
    name = request.param
    pytest.importorskip("asyncmy" if name == "mysql" else name)
    if name == "mysql":
        return backends.mysql(request.getfixturevalue("own_mariadb"))
    make = backends.asyncpg if name == "asyncpg" else backends.psycopg
    return make(request.getfixturevalue("own_postgres"))


# -- servers that go away ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stopped", "crashed"])
async def test_a_server_that_goes_away_and_comes_back(own: Backend, how: str) -> None:
    server = own.server
    end = server.stop if how == "stopped" else server.kill
    async with own.database(max_size=5, strategy=None) as db, own.table(db) as table:
        before = await sessions(own, db, 5)
        slow, nonce = marked(own.slow)
        in_mid_query = asyncio.create_task(db.execute(slow))
        went = asyncio.Event()
        inside = asyncio.Event()

        async def in_transaction() -> None:
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                inside.set()
                await went.wait()
                with drivers_error():
                    await db.execute(f"insert into {table} values (2, 'b')")
                with pytest.raises(cenote.TransactionLostError):
                    await db.execute(f"insert into {table} values (3, 'c')")

        transaction = asyncio.create_task(in_transaction())
        await inside.wait()
        async with watching(own) as watcher:
            await watcher.until_running(nonce)
        try:
            await asyncio.to_thread(end)
            went.set()
            assert is_drivers_own(await outcome(in_mid_query))
            assert isinstance(await outcome(transaction), cenote.TransactionLostError)
            for _ in range(3):  # while it is down: the error of connecting
                with pytest.raises(cenote.ConnectError):
                    await db.fetch_val("select 1")
            assert db.pool.count == 0
        finally:
            await asyncio.to_thread(server.start)
        assert await db.fetch_val("select 1") == 1
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        after = await sessions(own, db, 5)
        if how == "stopped" and own.name != "mysql":  # which counts from 1 again
            assert not before & after
        await no_slot_is_lost(db)


@pytest.mark.parametrize("how", ["stopped", "crashed"])
async def test_a_restart_that_nobody_noticed(own: Backend, how: str) -> None:
    server = own.server
    async with own.database(max_size=4) as db:
        await sessions(own, db, 4)
        await asyncio.to_thread(server.stop if how == "stopped" else server.kill)
        await asyncio.to_thread(server.start)
        results = await asyncio.gather(*(db.fetch_val("select 1") for _ in range(20)))
        assert results == [1] * 20
        await no_slot_is_lost(db)


async def test_a_restart_under_load(own: Backend) -> None:
    """Only who was in mid-statement hears of it, or who connects while it is down."""
    server = own.server
    async with own.database(max_size=4, strategy=None) as db:
        over = False
        failures: list[BaseException] = []
        peak = 0

        async def work() -> None:
            nonlocal peak
            while not over:
                result = await outcome(db.fetch_val("select 1"))
                peak = max(peak, db.pool.stats().count + db.pool.stats().creating)
                if result != 1:
                    failures.append(result)
                    await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(work()) for _ in range(10)]
        await eventually(lambda: db.pool.stats().acquired > 100)
        await asyncio.to_thread(server.kill)
        await eventually(lambda: failures)
        await asyncio.to_thread(server.start)
        acquired = db.pool.stats().released
        await eventually(lambda: db.pool.stats().released > acquired + 100)
        over = True
        await asyncio.gather(*tasks)
        assert all(is_drivers_own(each) for each in failures), failures
        assert peak <= 4
        await no_slot_is_lost(db)


# -- a server that was demoted -------------------------------------------------------------------


@asynccontextmanager
async def demoted(backend: Backend) -> AsyncIterator[None]:
    """It takes no more changes, from new sessions at least."""
    server = backend.server
    if backend.name == "mysql":
        admin = f"mysql://root@/mysql?unix_socket={server.socket_path}"
        on, off = "set global read_only = 1", "set global read_only = 0"
    else:
        admin = server.url
        on = "alter database app set default_transaction_read_only = on"
        off = "alter database app reset default_transaction_read_only"
    async with cenote.Database(admin, max_size=1) as db:
        await db.execute(on)
        try:
            yield
        finally:
            await db.execute(off)


async def test_a_demoted_server_retires_the_generation(own: Backend) -> None:
    async with own.database(max_size=5) as db, own.table(db) as table:
        insert = f"insert into {table} values (?, 'a')"
        before = await sessions(own, db, 3)
        held = asyncio.Event()
        told = asyncio.Event()

        async def holder() -> int:
            """Of the old generation, and busy."""
            async with db.connection():
                session = await db.fetch_val(own.session)
                held.set()
                await told.wait()
                assert await db.fetch_val("select 1") == 1  # it lives on until it is returned
                return int(session)

        holding = asyncio.create_task(holder())
        await held.wait()
        async with demoted(own):
            await all_at_once(db, 4)  # of PostgreSQL's only the new ones know it
            assert db.pool.idle_count == 4
            for number in range(4):
                result = await outcome(db.execute(insert, [number]))
                if isinstance(result, Exception):
                    break
            assert is_drivers_own(result), result
            assert cenote.sqlstate(result) == "25006" or result.args[0] == 1290
            assert db.pool.idle_count == 0
        told.set()
        before.add(await holding)
        await eventually(lambda: db.pool.stats().destroying == 0)
        assert db.pool.count == 0
        await db.execute(insert, [9])
        assert not before & await sessions(own, db, 5)


async def test_who_asked_for_read_only_is_not_demoted(own: Backend) -> None:
    async with own.database(max_size=2) as db, own.table(db) as table:
        before = await sessions(own, db, 2)
        insert = f"insert into {table} values (1, 'a')"
        with drivers_error():
            async with db.transaction(read_only=True):
                await db.execute(insert)
        with drivers_error():
            async with db.transaction(read_only=True), db.transaction():
                await db.execute(insert)
        await db.execute("start transaction read only")
        with drivers_error():
            await db.execute(insert)
        await db.execute("rollback")
        assert await sessions(own, db, 2) == before


@with_postgresql
async def test_read_only_by_a_statement_is_no_demotion(backend: Backend) -> None:
    async with backend.database(min_size=2) as db, backend.table(db) as table:
        insert = f"insert into {table} values (1, 'a')"
        await db.open()

        async def in_a_block() -> None:
            async with db.transaction():
                await db.execute("set transaction read only")
                await db.execute(insert)

        async def in_the_session() -> None:
            await db.execute("set default_transaction_read_only = on")
            await db.execute(insert)

        for work in (in_a_block, in_the_session):
            created = db.pool.stats().created
            with drivers_error():
                await asyncio.create_task(work())
            await db.execute("select 1")
            assert db.pool.stats().created == created
            assert db.pool.stats().destroyed == {}


@with_mysql
async def test_what_other_options_forbid_is_no_demotion(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        text = (
            "The MariaDB server is running with the {} option so it cannot execute this statement"
        )
        with drivers_error() as caught:
            await db.execute("selct 1")
        for option, expected in (("--read-only", True), ("--secure-file-priv", False)):
            caught.value.args = (1290, text.format(option))
            assert db._driver.is_demoted(caught.value) == expected
