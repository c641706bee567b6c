"""`create_pool()` has the interface of asyncpg's pool, and what `cenote.Pool` has besides."""

import asyncio
import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

import cenote
from tests.support.servers import PostgresServer
from tests.support.waiting import WAIT

pytest.importorskip("asyncpg")

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from cenote.adapters.asyncpg import create_pool

Made = Callable[..., Any]


@pytest.fixture
def pool_of(make_asyncpg_pool: Made) -> Made:
    return make_asyncpg_pool


def test_arguments_are_those_of_asyncpg_and_one() -> None:
    theirs, ours = signature(asyncpg.create_pool).parameters, signature(create_pool).parameters
    assert set(ours) == {*theirs, "cenote_options"}
    for name, parameter in theirs.items():
        assert ours[name].kind is parameter.kind
        if name != "reset":
            assert ours[name].default == parameter.default


async def test_the_pool_is_one_of_asyncpg(pool_of: Made) -> None:
    async with pool_of() as pool:
        assert isinstance(pool, asyncpg.Pool)
        assert isinstance(pool.pool, cenote.Pool)
        async with pool.acquire() as connection:
            assert type(connection) is PoolConnectionProxy
            assert isinstance(connection, asyncpg.Connection)
            assert type(connection._con).__name__ == "Connection"


async def test_every_method_of_asyncpg_runs_statements(pool_of: Made) -> None:
    async with pool_of(max_size=1) as pool:
        assert await pool.execute("create table apg (id int)") == "CREATE TABLE"
        try:
            await pool.executemany("insert into apg values ($1)", [[1], [2]])
            assert [*await pool.fetch("select id from apg order by id")] == [(1,), (2,)]
            assert await pool.fetchrow("select id from apg order by id") == (1,)
            assert await pool.fetchval("select count(*) from apg") == 2
            assert await pool.copy_records_to_table("apg", records=[(3,)]) == "COPY 1"
            lines: list[bytes] = []

            async def keep(data: bytes) -> None:
                lines.append(data)

            await pool.copy_from_table("apg", output=keep)
            await pool.copy_from_query("select 4", output=keep)
            assert b"".join(lines) == b"1\n2\n3\n4\n"
            rows = await pool.fetchmany("select $1::int", [[5], [6]])
            assert [*rows] == [(5,), (6,)]
        finally:
            await pool.execute("drop table apg")


async def test_sizes_are_what_asyncpg_says(pool_of: Made) -> None:
    async with pool_of(min_size=1, init_size=2, max_size=3) as pool:
        sizes = pool.get_init_size(), pool.get_min_size(), pool.get_max_size()
        assert sizes == (2, 1, 3)
        assert (pool.get_size(), pool.get_idle_size(), pool._queue.qsize()) == (2, 2, 3)
        async with pool.acquire():
            assert (pool.get_size(), pool.get_idle_size(), pool._queue.qsize()) == (2, 1, 2)
        await pool.pool.resize(max_size=5)
        assert pool.get_max_size() == 5


async def test_a_released_connection_says_so(pool_of: Made) -> None:
    async with pool_of() as pool:
        connection = await pool.acquire()
        statement = await connection.prepare("select 1")
        await pool.release(connection)
        await pool.release(connection)  # does nothing
        assert "[released]" in repr(connection)
        with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
            await connection.fetch("select 1")
        with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
            await statement.fetch()
        with pytest.raises(asyncpg.InterfaceError, match="is not a member of this pool"):
            await pool.release(object())


async def test_an_acquire_is_entered_only_once(pool_of: Made) -> None:
    async with pool_of() as pool:
        context = pool.acquire()
        async with context:
            with pytest.raises(asyncpg.InterfaceError, match="already acquired"):
                await context.__aenter__()


@pytest.mark.parametrize("timeout", [None, WAIT])
async def test_an_acquire_gives_another_connection_each_time(
    pool_of: Made, timeout: float | None
) -> None:
    async with pool_of() as pool:
        acquire = pool.acquire(timeout=timeout)
        one, other = await acquire, await acquire
        assert one.get_server_pid() != other.get_server_pid()
        assert {holder.file for holder in pool.pool.holders()} == {__file__}
        with pytest.raises(asyncpg.InterfaceError, match="already acquired"):
            await acquire.__aenter__()
        await pool.release(one)
        await pool.release(other)


async def test_use_before_and_after_is_refused(postgres_server: PostgresServer) -> None:
    pool = create_pool(postgres_server.url, min_size=0, max_size=1)
    with pytest.raises(asyncpg.InterfaceError, match="pool is not initialized"):
        await pool.acquire()
    assert await pool is pool
    assert await pool is pool
    await pool.close()
    await pool.close()
    assert pool.is_closing()
    with pytest.raises(asyncpg.InterfaceError, match="pool is closed"):
        await pool.fetchval("select 1")


async def test_close_waits_for_released_connections(pool_of: Made) -> None:
    async with pool_of(max_size=1) as pool:
        connection = await pool.acquire()
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        assert pool.is_closing()
        with pytest.raises(asyncpg.InterfaceError, match="pool is closing"):
            await pool.acquire()
        assert await connection.fetchval("select 1") == 1
        assert not closing.done()
        await pool.release(connection)
        await closing
        assert pool.get_size() == 0


async def test_cancelled_close_terminates_what_is_out(pool_of: Made) -> None:
    async with pool_of() as pool:
        connection = await pool.acquire()
        raw = connection._con
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.close(), 0.01)
        assert raw.is_closed()
        assert pool.is_closing()


async def test_terminate_ends_everything_at_once(pool_of: Made) -> None:
    async with pool_of(min_size=2) as pool:
        connection = await pool.acquire()
        raws = [holder._con for holder in pool._holders]
        pool.terminate()
        assert all(raw.is_closed() for raw in raws)
        with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
            await connection.fetch("select 1")


async def test_waiters_of_a_terminated_pool_fail(pool_of: Made) -> None:
    async with pool_of(max_size=1) as pool:
        await pool.acquire()
        waiting = asyncio.create_task(pool.fetchval("select 1"))
        await asyncio.sleep(0)
        pool.terminate()
        with pytest.raises(asyncpg.InterfaceError, match="pool is closed"):
            await waiting


async def test_expired_connections_are_replaced_on_return(pool_of: Made) -> None:
    async with pool_of(max_size=1) as pool:
        async with pool.acquire() as connection:
            pid = connection.get_server_pid()
            await pool.expire_connections()
            assert await connection.fetchval("select pg_backend_pid()") == pid
        assert await pool.fetchval("select pg_backend_pid()") != pid


async def test_used_up_connections_are_replaced(pool_of: Made) -> None:
    async with pool_of(max_size=1, max_queries=2) as pool:
        pids = [await pool.fetchval("select pg_backend_pid()") for _ in range(4)]
        assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_new_connections_take_new_arguments(
    pool_of: Made, postgres_server: PostgresServer
) -> None:
    async with pool_of(max_size=1) as pool:
        assert await pool.fetchval("show application_name") == ""
        pool.set_connect_args(postgres_server.url, server_settings={"application_name": "new"})
        await pool.expire_connections()
        assert await pool.fetchval("show application_name") == "new"


async def test_failing_setup_closes_its_connection(pool_of: Made) -> None:
    async def setup(connection: Any) -> None:
        seen.append(connection._con)
        if len(seen) == 1:
            raise ValueError("setup")
        if len(seen) == 2:
            await asyncio.sleep(WAIT)

    seen: list[Any] = []
    async with pool_of(max_size=1, setup=setup) as pool:
        with pytest.raises(ValueError, match="setup"):
            await pool.acquire()
        with pytest.raises(TimeoutError):
            await pool.acquire(timeout=0.2)
        assert all(raw.is_closed() for raw in seen)
        assert await pool.fetchval("select 1") == 1
        assert len(seen) == 3


async def test_failing_init_is_the_error_of_acquire(pool_of: Made) -> None:
    async def init(connection: Any) -> None:
        seen.append(connection)
        raise ValueError("init")

    seen: list[Any] = []
    async with pool_of(init=init) as pool:
        with pytest.raises(ValueError, match="init"):
            await pool.acquire()
        assert seen[0].is_closed()


async def test_failed_start_leaves_no_connection(postgres_server: PostgresServer) -> None:
    made: list[Any] = []

    async def init(connection: Any) -> None:
        made.append(connection)
        if len(made) == 2:
            raise ValueError("init")

    pool = create_pool(postgres_server.url, min_size=2, max_size=2, init=init)
    with pytest.raises(ValueError, match="init"):
        await pool
    assert all(raw.is_closed() for raw in made)
    with pytest.raises(asyncpg.InterfaceError, match="pool is closed"):
        await pool.acquire()


async def test_timeout_of_acquire_names_the_holder(pool_of: Made) -> None:
    async with pool_of(max_size=1) as pool, pool.acquire():
        asyncio.current_task().set_name("importer")  # type: ignore[union-attr]
        with pytest.raises(asyncio.TimeoutError) as caught:
            await pool.acquire(timeout=0)
    assert isinstance(caught.value, cenote.AcquireTimeoutError)
    (holder,) = caught.value.holders
    assert (holder.task, holder.file) == ("importer", __file__)
    assert "test_asyncpg.py:" in str(caught.value)


@pytest.mark.parametrize("way", ["block", "await", "wait_for", "method"])
async def test_holders_have_the_line_of_the_program(pool_of: Made, way: str) -> None:
    async def setup(connection: Any) -> None:
        places.extend(holder.file for holder in pool.pool.holders())

    places: list[str] = []
    async with pool_of(max_size=1, setup=setup) as pool:
        if way == "block":
            async with pool.acquire():
                pass
        elif way == "method":
            await pool.fetchval("select 1")
        else:
            acquire = pool.acquire()
            connection = await (asyncio.wait_for(acquire, WAIT) if way == "wait_for" else acquire)
            await pool.release(connection)
    assert places == [__file__]


async def test_blocks_that_wait_for_each_other_are_found(pool_of: Made) -> None:
    async with pool_of(max_size=1) as pool, pool.acquire():
        with pytest.raises(cenote.PoolDeadlockError):
            async with pool.acquire():
                pass


async def test_options_of_the_pool_are_given_apart(pool_of: Made) -> None:
    options = {"name": "shop", "max_waiting": 0, "acquire_timeout": 9.0}
    async with pool_of(min_size=1, max_size=1, cenote_options=options) as pool:
        assert pool.pool.name == "shop"
        async with pool.acquire():
            with pytest.raises(cenote.PoolOverloadedError):
                await pool.acquire()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_size": 3}, "cenote_options cannot have 'max_size': give max_size= itself"),
        ({"max_idle": 3}, "give max_inactive_connection_lifetime= itself"),
        ({"strateggy": None}, "no option 'strateggy' .did you mean strategy"),
        ({"before_release": print}, "no option 'before_release'"),
        ("name", "must be a mapping"),
    ],
)
async def test_bad_options_are_refused_with_a_hint(options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        create_pool("postgresql://localhost/shop", cenote_options=options)


@pytest.mark.parametrize(
    "options",
    [{"max_size": 0}, {"min_size": -1}, {"min_size": 3}, {"init_size": 3}, {"max_queries": 0}],
)
def test_bad_sizes_raise_the_errors_of_asyncpg(options: Any) -> None:
    given = {"min_size": 1, "max_size": 2, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop = asyncio.new_event_loop()
        with pytest.raises(ValueError) as theirs:
            asyncpg.create_pool("postgresql://localhost/shop", loop=loop, **given)
        with pytest.raises(ValueError) as ours:
            create_pool("postgresql://localhost/shop", loop=loop, **given)
        loop.close()
    assert str(ours.value) == str(theirs.value)
