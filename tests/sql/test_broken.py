"""Connections that break: killed, reset, cut, silent; servers that stop, crash or are demoted."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import cenote
from cenote.sql import per_loop
from tests.support import backends
from tests.support.backends import Backend, eventually
from tests.support.faults import (
    MANY_ROWS,
    RAW,
    all_at_once,
    drivers_error,
    is_drivers_own,
    marked,
    no_slot_is_lost,
    outcome,
    until,
    watching,
    with_mysql,
    with_postgresql,
    with_server,
    with_sqlite,
)
from tests.support.kit import Listener
from tests.support.proxy import Proxy
from tests.support.servers import MariaDBServer, PostgresServer

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

PATIENCE = 4.0  # real seconds; less than psycopg waits for a server that does not answer


@pytest.fixture
def proxy(backend: Backend) -> Iterator[Proxy]:
    with Proxy(backend.server.host, backend.server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """That may be stopped."""
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[MariaDBServer]:
    if reason := MariaDBServer.missing():
        pytest.skip(reason)
    with MariaDBServer() as server:
        yield server


@pytest.fixture(params=["asyncpg", "psycopg", "mysql"])
def own(request: pytest.FixtureRequest) -> Backend:
    """A backend whose server is this module's own; SQLite has none."""
    name = request.param
    pytest.importorskip("asyncmy" if name == "mysql" else name)
    if name == "mysql":
        return backends.mysql(request.getfixturevalue("own_mariadb"))
    make = backends.asyncpg if name == "asyncpg" else backends.psycopg
    return make(request.getfixturevalue("own_postgres"))


@pytest.fixture(autouse=True)
def allow_child_tasks() -> Iterator[None]:
    """Some tests use other connections while one is in a transaction, and know it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cenote.TransactionScopeWarning)
        yield


def through(backend: Backend, proxy: Proxy, **options: Any) -> Any:
    return backend.database(backend.url_through(proxy.host, proxy.port), **options)


def links(db: Any) -> list[Any]:
    return list(db._loop_databases[asyncio.get_running_loop()].connections)


async def sessions(backend: Backend, db: Any, count: int) -> set[int]:
    """Of so many connections, idle afterwards."""
    return set(await all_at_once(db, count, backend.session))


# -- killed sessions -----------------------------------------------------------------------------


@with_server
async def test_killed_while_idle(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=3) as db:
        before = await sessions(backend, db, 3)
        await watcher.kill(*before)
        await eventually(lambda: all(link.is_dead for link in links(db)))
        assert await db.fetch_val("select 1") == 1  # nobody meets a dead one
        assert not before & await sessions(backend, db, 3)
        assert db.pool.stats().rejected == 3


@with_server
async def test_one_of_many_killed_while_idle(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=3) as db:
        before = await sessions(backend, db, 3)
        await watcher.kill(min(before))
        await eventually(lambda: any(link.is_dead for link in links(db)))
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
        rows = MANY_ROWS[backend.name]

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
async def test_killed_inside_connection(backend: Backend, swallowed: bool) -> None:
    heard = Listener()
    async with watching(backend) as watcher, backend.database(max_size=1, strategy=heard) as db:
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
        assert heard.heard[0] != "success"
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
async def test_unpooled_connections_recover(backend: Backend) -> None:
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
    backend: Backend, proxy: Proxy, noticed: str
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
                    await eventually(lambda: any(link.is_dead for link in links(db)))
        elif noticed == "in connection()":
            async with db.connection():
                await watcher.kill(await db.fetch_val(backend.session))
                await eventually(lambda: any(link.is_dead for link in links(db)))
        else:
            await watcher.kill(min(before))
            await eventually(lambda: any(link.is_dead for link in links(db)))
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


# -- servers that go away ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stopped", "crashed"])
async def test_a_server_that_goes_away_and_comes_back(own: Backend, how: str) -> None:
    server = own.server
    end = server.stop if how == "stopped" else server.kill
    async with own.database(max_size=5) as db, own.table(db) as table:
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
                with drivers_error():
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
    async with own.database(max_size=4) as db:
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


# -- faults on the wire --------------------------------------------------------------------------


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
    backend: Backend, proxy: Proxy, use: str, read: bool
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
    monkeypatch.setattr(per_loop, "JUST_NOW", 1000.0)
    async with backend.database(max_size=1, ping_after_idle=1000.0) as db, backend.table(db) as t:
        assert await db.fetch_val("select 1") == 1
        (link,) = links(db)
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
async def test_the_news_has_reached_the_machine(backend: Backend, proxy: Proxy, fault: str) -> None:
    async with through(backend, proxy, max_size=3) as db:
        await all_at_once(db, 3)
        await asyncio.sleep(0.01)  # idle for more than a moment
        getattr(proxy, fault)()  # the event loop stands still meanwhile
        assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("fault", ["reset", "cut"])
async def test_a_fault_in_mid_query(backend: Backend, proxy: Proxy, fault: str) -> None:
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
    backend: Backend, proxy: Proxy, after: int, method: str
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
async def test_refused_connections(backend: Backend, proxy: Proxy) -> None:
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
async def test_pings_are_bounded(backend: Backend, proxy: Proxy, fault: str) -> None:
    options = {"ping_after_idle": 0, "hook_timeout": 0.2, "destructor_timeout": 0.2}
    async with through(backend, proxy, max_size=3, **options) as db:
        await all_at_once(db, 3)
        async with silence(proxy, fault):
            async with asyncio.timeout(PATIENCE):
                if fault == "half_open":
                    assert await db.fetch_val("select 1") == 1  # on a new one
                else:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(1.5):
                            await db.fetch_val("select 1")
            assert db.pool.stats().rejected == 3
            await eventually(lambda: db.pool.stats().destroying == 0)
        await eventually(lambda: db.pool.stats().creating == 0)
        await no_slot_is_lost(db)


@asynccontextmanager
async def silence(proxy: Proxy, fault: str) -> AsyncIterator[None]:
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
    backend: Backend, proxy: Proxy, fault: str
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
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(task, impatient())
            # Also the attempts to stop it on the server are given up.
            await eventually(lambda: db.pool.stats().destroying == 0)
        await no_slot_is_lost(db)
        await eventually(lambda: proxy.open == 2)


@with_server
async def test_connecting_is_bounded(backend: Backend, proxy: Proxy) -> None:
    async with through(backend, proxy, max_size=2, create_timeout=1.0) as db:
        proxy.black_hole(True)
        results = await asyncio.gather(*(outcome(fetch(db)) for _ in range(4)))
        assert all(isinstance(each, TimeoutError) for each in results), results
        proxy.reset()
        proxy.black_hole(False)
        await no_slot_is_lost(db)
        await eventually(lambda: proxy.open == 2)


@with_server
async def test_closing_is_bounded(backend: Backend, proxy: Proxy) -> None:
    async with through(backend, proxy, max_size=3, destructor_timeout=0.2) as db:
        await all_at_once(db, 3)
        proxy.black_hole(True)
        async with asyncio.timeout(PATIENCE):
            await db.close()
        await eventually(lambda: proxy.open == 0)


@with_server
async def test_a_reset_that_is_not_answered(backend: Backend, proxy: Proxy) -> None:
    options = {"hook_timeout": 0.2, "destructor_timeout": 0.2}
    async with through(backend, proxy, max_size=1, **options) as db:
        await db.execute(backend.touches[0][0])
        proxy.half_open()
        async with asyncio.timeout(PATIENCE):
            await db.release()
            assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 2
        await no_slot_is_lost(db)


@with_server
async def test_background_checks_notice(backend: Backend, proxy: Proxy) -> None:
    options = {"healthcheck_interval": 0.05, "hook_timeout": 0.2, "destructor_timeout": 0.2}
    async with through(backend, proxy, max_size=2, **options) as db:
        await all_at_once(db, 2)
        proxy.half_open()
        await eventually(lambda: db.pool.count == 0)
        await no_slot_is_lost(db)


@with_server
async def test_never_more_connections_than_allowed(backend: Backend, proxy: Proxy) -> None:
    """Also while they break all the time."""
    async with through(backend, proxy, max_size=3) as db:
        over = False
        peak = 0

        async def work() -> None:
            while not over:
                result = await outcome(fetch(db))
                assert result == 1 or is_drivers_own(result), result

        tasks = [asyncio.create_task(work()) for _ in range(8)]
        for _ in range(25):
            goal = db.pool.stats().released + 10
            while db.pool.stats().released < goal:
                await asyncio.sleep(0)
                peak = max(peak, proxy.open)
            proxy.reset()
        over = True
        await asyncio.gather(*tasks)
        assert 0 < peak <= 3
        await no_slot_is_lost(db)


# -- the breaker ---------------------------------------------------------------------------------


@with_server
async def test_the_breaker_counts_lost_connections(backend: Backend, proxy: Proxy) -> None:
    heard = Listener()
    async with (
        watching(backend) as watcher,
        through(backend, proxy, max_size=2, strategy=heard) as db,
    ):
        slow, nonce = marked(backend.slow)
        task = asyncio.create_task(db.execute(slow))
        await watcher.kill(await watcher.until_running(nonce))
        lost = await outcome(task)
        assert heard.heard == [lost]
        proxy.refuse(True)
        refused = await outcome(db.fetch_val("select 1"))
        assert heard.heard == [lost, refused]
        proxy.refuse(False)
        with pytest.raises(cenote.TransactionLostError):
            async with db.transaction():
                await watcher.kill(await db.fetch_val(backend.session))
                await eventually(lambda: any(link.is_dead for link in links(db)))
        assert len(heard.heard) == 3
        assert isinstance(heard.heard[2], OSError)


async def test_the_breaker_does_not_count_the_rest(backend: Backend) -> None:
    """SQL errors, cancellations, sessions that are replaced, streams that are left: no failures."""
    heard = Listener()
    async with backend.database(max_size=2, strategy=heard) as db, backend.table(db) as table:
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
        failures = [each for each in heard.heard if each != "success"]
        assert failures == []
        await no_slot_is_lost(db)


@with_sqlite
async def test_the_breaker_and_a_driver_that_cannot_reset(backend: Backend) -> None:
    heard = Listener()
    async with backend.database(max_size=1, reset="always", strategy=heard) as db:
        for _ in range(3):
            assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 3
        assert [each for each in heard.heard if each != "success"] == []


@with_server
async def test_an_open_breaker_recovers_without_a_restart(backend: Backend, proxy: Proxy) -> None:
    strategy = cenote.ConsecutiveFailures(2, recovery_timeout=0.05, success_threshold=1)
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

        async def recovers() -> bool:
            return bool(await outcome(db.fetch_val("select 1")) == 1)

        await until(recovers)
        assert db.pool.state == cenote.CircuitState.ACTIVE
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
async def test_who_asked_for_read_only_by_a_statement_is_not_demoted(backend: Backend) -> None:
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
