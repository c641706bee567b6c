"""Cancellation at every suspension, connections that die, and servers that go away, below
`create_pool()`."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import cenote
from cenote.testing import FaultProxy, check_ledger
from tests.support.cancelling import cancelled_at
from tests.support.servers import PostgresServer
from tests.support.waiting import WAIT, eventually

pytest.importorskip("asyncpg")

import asyncpg

from cenote.adapters.asyncpg import Pool, create_pool

Made = Callable[..., Any]
TENANT = "select coalesce(current_setting('my.tenant', true), '')"


@pytest.fixture
def pool_of(postgres_server: PostgresServer) -> Made:
    """Makes a pool with one connection, whose ledger is even at its end."""

    @asynccontextmanager
    async def make(url: str = "", **options: Any) -> AsyncIterator[Pool]:
        options = {"min_size": 0, "max_size": 1, **options}
        pool = create_pool(url or postgres_server.tcp_url(), **options)
        async with asyncio.timeout(WAIT), pool:
            yield pool
        check_ledger(pool.pool)

    return make


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        yield proxy


def url_through(server: PostgresServer, proxy: FaultProxy) -> str:
    return server.tcp_url().replace(f"{server.host}:{server.port}", f"{proxy.host}:{proxy.port}")


async def request(pool: Pool) -> None:
    """Touches the session, and is in the middle of a transaction for a while."""
    async with pool.acquire(timeout=WAIT) as connection, connection.transaction():
        await connection.execute("select set_config('my.tenant', 'x', false)")
        await connection.fetchval("select 1")
        await connection.execute("create temporary table mine (id int)")


@pytest.mark.parametrize("reset", ["auto", "always"])
@pytest.mark.parametrize("warm", [True, False])
async def test_cancelled_at_every_suspension_nothing_is_left(
    pool_of: Made, reset: str, warm: bool
) -> None:
    async def setup(connection: Any) -> None:
        await connection.fetchval("select 2")

    for number in range(1, 1000):
        async with pool_of(reset=reset, min_size=int(warm), setup=setup) as pool:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # left transactions
            task = asyncio.create_task(cancelled_at(number, request(pool)))
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert outcome is False or isinstance(outcome, asyncio.CancelledError | bool)
            async with pool.acquire() as connection:
                assert await connection.fetchval(TENANT) == ""
                assert not connection.is_in_transaction()
                if reset == "auto":  # asyncpg's own reset leaves it
                    assert await connection.fetchval("select to_regclass('pg_temp.mine')") is None
            assert pool.pool.active_count == 0
        if outcome is False:
            break
    assert number > 8


@pytest.mark.parametrize("reset", ["auto", "always"])
async def test_cancelled_statement_never_spoils_the_next(pool_of: Made, reset: str) -> None:
    async with pool_of(reset=reset) as pool:
        pid = await pool.fetchval("select pg_backend_pid()")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pool.fetchval("select 7 from pg_sleep(60)"), 0.05)
            assert await pool.fetchval("select 1") == 1
        with pytest.raises(asyncio.TimeoutError):
            await pool.fetchval("select 7 from pg_sleep(60)", timeout=0.05)
        assert await pool.fetchval("select pg_backend_pid()") == pid


async def test_cancelled_acquire_leaves_the_connect_alone(
    pool_of: Made, postgres_server: PostgresServer, proxy: FaultProxy
) -> None:
    async with pool_of(url_through(postgres_server, proxy)) as pool:
        proxy.hold_replies(True)
        acquiring = asyncio.create_task(pool.fetchval("select 1"))
        await eventually(lambda: pool.pool.stats().creating)
        await eventually(lambda: proxy.open)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        proxy.hold_replies(False)
        assert await pool.fetchval("select 1") == 1
        assert pool.pool.stats().created == 1


async def test_connection_that_died_idle_is_not_given(
    pool_of: Made, postgres_server: PostgresServer
) -> None:
    async with pool_of(min_size=1) as pool:
        pid = await pool.fetchval("select pg_backend_pid()")
        await kill(postgres_server, pid)
        assert await pool.fetchval("select pg_backend_pid()") != pid
        await kill(postgres_server, await pool.fetchval("select pg_backend_pid()"))
        await eventually(lambda: pool.pool.stats().created == 3)  # min_size, and nobody asked


async def kill(server: PostgresServer, pid: int) -> None:
    """Ends the session, and waits for its end."""
    admin = await asyncpg.connect(server.url)
    try:
        assert await admin.fetchval("select pg_terminate_backend($1, 60000)", pid)
    finally:
        await admin.close()


async def test_connection_lost_in_use_is_a_failure(
    pool_of: Made, postgres_server: PostgresServer
) -> None:
    breaker = cenote.ConsecutiveFailures(failure_threshold=1, recovery_timeout=60.0)
    async with pool_of(cenote_options={"strategy": breaker}) as pool:
        connection = await pool.acquire()
        await kill(postgres_server, connection.get_server_pid())
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await connection.fetchval("select 1")
        await eventually(lambda: pool.get_size() == 0)
        await pool.release(connection)  # as after any block
        with pytest.raises(cenote.ServiceUnavailableError):
            await pool.acquire()


async def test_connection_closed_by_the_program_is_none(pool_of: Made) -> None:
    breaker = cenote.ConsecutiveFailures(failure_threshold=1, recovery_timeout=60.0)
    async with pool_of(cenote_options={"strategy": breaker}) as pool:
        async with pool.acquire() as connection:
            await connection.close()
        async with pool.acquire() as connection:
            connection.terminate()
        assert await pool.fetchval("select 1") == 1
        assert pool.pool.stats().created == 3


async def test_pool_goes_on_when_the_server_is_back() -> None:
    with PostgresServer() as server:
        async with asyncio.timeout(WAIT):
            pool = await create_pool(server.tcp_url(), min_size=2, max_size=4)
            assert await pool.fetchval("select 1") == 1
            server.kill()
            await eventually(lambda: pool.get_size() == 0)
            with pytest.raises((OSError, asyncpg.PostgresError)):
                await pool.fetchval("select 1")
            server.start()
            assert await pool.fetchval("select 1") == 1
            await eventually(lambda: pool.get_size() >= 2)
            await pool.close()
        check_ledger(pool.pool)


async def test_many_tasks_leave_each_other_alone(pool_of: Made) -> None:
    chance = random.Random(7)

    async def work(number: int) -> None:
        try:
            async with (
                asyncio.timeout(chance.choice([0.01, 0.05, WAIT, WAIT])),
                pool.acquire() as c,
            ):
                assert await c.fetchval(TENANT) == ""
                assert not c.is_in_transaction()
                what = chance.randrange(5)
                if what == 0:
                    await c.execute(f"set my.tenant = 'task {number}'")
                elif what == 1:
                    async with c.transaction():
                        await c.execute(f"set local my.tenant = 'task {number}'")
                elif what == 2:
                    await c.execute("select pg_sleep(0.02)")
                elif what == 3:
                    raise ZeroDivisionError
                assert await c.fetchval("select $1::int", number) == number
        except (TimeoutError, ZeroDivisionError):
            pass

    async with pool_of(max_size=5, min_size=2) as pool:
        await asyncio.gather(*map(work, range(300)))
        assert pool.pool.active_count == 0
        assert pool.get_size() <= 5


async def test_pings_find_connections_that_are_dead(
    pool_of: Made, postgres_server: PostgresServer, proxy: FaultProxy
) -> None:
    options = {"healthcheck_interval": 0.05, "hook_timeout": 0.2, "destructor_timeout": 0.2}
    url = url_through(postgres_server, proxy)
    async with pool_of(url, cenote_options=options) as pool:
        assert await pool.fetchval("select 1") == 1
        proxy.hold_replies(True)
        await eventually(lambda: pool.pool.stats().destroyed.get("check_failed"))
        proxy.hold_replies(False)
        assert await pool.fetchval("select 1") == 1


async def broken_sink(chunk: bytes) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("reset", ["auto", "always", "never"])
async def test_cancellation_that_is_never_confirmed_frees_its_place(
    pool_of: Made, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    # asyncpg asks the server to cancel a COPY that is over, and waits for the answer for ever.
    async with pool_of(reset=reset, cenote_options={"hook_timeout": 0.1}) as pool:
        with pytest.raises(OSError, match="disk full"):
            async with pool.acquire() as connection:
                await connection.copy_from_query("select 1", output=broken_sink)
        assert await pool.fetchval("select 1") == 1
        assert pool.pool.stats().destroyed["discarded"] == 1
    assert "did not confirm within hook_timeout (0.1 s)" in caplog.text


async def test_confirmation_of_a_cancellation_is_awaited_as_long_as_asked(pool_of: Made) -> None:
    async with pool_of() as pool:
        connection = await pool.acquire()
        with pytest.raises(OSError, match="disk full"):
            await connection.copy_from_query("select 1", output=broken_sink)
        with pytest.raises(TimeoutError):
            await pool.release(connection, timeout=0.1)
        assert await pool.fetchval("select 1") == 1


async def test_failed_reset_never_replaces_a_cancellation(
    pool_of: Made, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(connection: Any) -> None:
        raise OSError("no reset")

    async with pool_of(reset=fail) as pool:
        with pytest.raises(asyncio.CancelledError):
            async with pool.acquire():
                raise asyncio.CancelledError
        assert "no reset" in caplog.text
        with pytest.raises(OSError, match="no reset"):
            async with pool.acquire():
                raise KeyError
        assert pool.pool.active_count == 0


async def test_reset_without_an_answer_frees_its_place(
    pool_of: Made, postgres_server: PostgresServer, proxy: FaultProxy
) -> None:
    options = {"hook_timeout": 0.2, "destructor_timeout": 0.2}
    async with pool_of(url_through(postgres_server, proxy), cenote_options=options) as pool:
        connection = await pool.acquire()
        await connection.execute("set work_mem to '9MB'")
        proxy.hold_replies(True)
        with pytest.raises(TimeoutError):
            await pool.release(connection)
        assert pool.pool.active_count == 0
        proxy.hold_replies(False)
        assert await pool.fetchval("show work_mem") != "9MB"
