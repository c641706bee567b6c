"""The pools of redis.asyncio on cenote.Pool: their interface, limits, errors and what they show."""

import asyncio
import gc
import inspect
import warnings
import weakref
from typing import Any

import pytest
import redis.asyncio as redis
from packaging.version import Version
from redis import __version__ as redis_version
from redis.exceptions import ConnectionError, MaxConnectionsError, TimeoutError

import cenote
from cenote.adapters.redis import BlockingConnectionPool, ConnectionPool
from cenote.testing import FaultProxy, settle
from tests.support.redis_clients import blocking, client_of, plain
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.real_time("talks to a real server")

# Before 8.1 a client that owns its pool closes the connections only.
OLD_CLIENT = Version(redis_version) < Version("8.1")

both = pytest.mark.parametrize("pool_class", [ConnectionPool, BlockingConnectionPool])


# -- commands --------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("protocol", [2, 3])
async def test_commands_and_pipelines_share_one_connection(
    redis_server: RedisServer, pool_class: type[ConnectionPool], protocol: int
) -> None:
    pool = pool_class.from_url(redis_server.url, protocol=protocol, decode_responses=True)
    async with client_of(pool) as client:
        await client.set("name", "cenote")
        assert await client.get("name") == "cenote"
        async with client.pipeline(transaction=True) as pipe:
            assert await pipe.incrby("count", 0).get("name").execute() == [0, "cenote"]
        async with client.pipeline() as pipe:
            await pipe.watch("name")
            pipe.multi()
            pipe.get("name")
            assert await pipe.execute() == ["cenote"]
        assert pool.pool.stats().created == 1
        assert pool.pool.active_count == 0


@pytest.mark.parametrize("protocol", [2, 3])
async def test_messages_arrive_beside_other_commands(
    redis_server: RedisServer, protocol: int
) -> None:
    async with plain(redis_server.url, protocol=protocol) as (client, pool):
        async with client.pubsub(ignore_subscribe_messages=True) as messages:
            await messages.subscribe("news")
            await messages.get_message(timeout=None)  # of the subscription itself
            assert pool.pool.active_count == 1
            await client.publish("news", "first")
            message = await messages.get_message(timeout=None)
            assert message is not None
            assert message["data"] == b"first"
        assert pool.pool.active_count == 0
        assert (await client.get("nothing")) is None


async def test_monitor_sees_commands_of_another_connection(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        held = await pool.get_connection()  # connected before the monitor looks
        async with client.monitor() as monitor:
            await pool.release(held)
            await client.get("seen")
            command = await monitor.next_command()
            assert "seen" in command["command"]
        assert pool.pool.active_count == 0


async def test_single_connection_client_keeps_one_until_closed(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        single = client.client()
        await single.set("name", "one")
        assert pool.pool.active_count == 1
        await single.get("name")
        assert pool.pool.stats().acquired == 1
        await single.aclose()
        assert pool.pool.active_count == 0


async def test_client_from_pool_closes_the_pool(redis_server: RedisServer) -> None:
    pool = ConnectionPool.from_url(redis_server.url)
    async with redis.Redis.from_pool(pool) as client:
        await client.ping()
        inner = pool.pool
    assert inner.idle_count == 0
    assert inner.closed or OLD_CLIENT
    await pool.aclose()


async def test_blocking_command_waits_on_its_own_connection(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        await client.delete("queue")
        waiting = asyncio.create_task(client.blpop("queue"))
        await eventually(lambda: pool.pool.active_count == 1)
        await client.rpush("queue", "item")
        assert (await waiting)[1] == b"item"


async def test_error_of_the_server_keeps_the_connection(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        await client.set("text", "x")
        with pytest.raises(redis.ResponseError):
            await client.incr("text")
        await client.get("text")
        assert pool.pool.stats().created == 1


# -- the limit -------------------------------------------------------------------------------------


async def test_full_pool_raises_at_once_naming_the_holder(redis_server: RedisServer) -> None:
    async with plain(redis_server.url, max_connections=1) as (client, pool):
        held = await pool.get_connection()
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        with pytest.raises(MaxConnectionsError, match=r"^Too many connections: ") as caught:
            await client.ping()
        assert f"{__file__}:{line}" in str(caught.value)
        assert isinstance(caught.value.__cause__, cenote.AcquireTimeoutError)
        assert not pool.can_get_connection()
        await pool.release(held)
        assert pool.can_get_connection()
        await client.ping()


async def test_blocking_pool_gives_up_after_its_timeout(redis_server: RedisServer) -> None:
    async with blocking(redis_server.url, max_connections=1, timeout=0.01) as (client, pool):
        held = await pool.get_connection()
        with pytest.raises(ConnectionError, match=r"^No connection available\. .*1 active") as full:
            await client.ping()
        assert not isinstance(full.value, MaxConnectionsError)
        await pool.release(held)


async def test_blocking_pool_serves_waiters_in_their_order(redis_server: RedisServer) -> None:
    served = []
    async with blocking(redis_server.url, max_connections=1, timeout=None) as (_, pool):
        held = await pool.get_connection()

        async def use(number: int) -> None:
            connection = await pool.get_connection()
            served.append(number)
            await pool.release(connection)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(use(number))
            await settle()
            assert pool.pool.waiting_count == 5
            await pool.release(held)
    assert served == [0, 1, 2, 3, 4]


async def test_task_that_waits_for_itself_is_told(redis_server: RedisServer) -> None:
    async with blocking(redis_server.url, max_connections=1, timeout=None) as (client, pool):
        held = await pool.get_connection()
        with pytest.raises(ConnectionError) as caught:
            await client.ping()
        assert isinstance(caught.value.__cause__, cenote.PoolDeadlockError)
        await pool.release(held)


async def test_limit_can_be_changed_while_in_use(redis_server: RedisServer) -> None:
    async with plain(redis_server.url, max_connections=1) as (client, pool):
        held = await pool.get_connection()
        pool.max_connections = 2
        await client.ping()
        assert (pool.max_connections, pool.pool.max_size) == (2, 2)
        await pool.release(held)


async def test_connection_of_another_pool_is_refused(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (_, one), plain(redis_server.url) as (_, other):
        connection = await one.get_connection()
        with pytest.raises(KeyError, match="not in use"):
            await other.release(connection)
        await one.release(connection)
        with pytest.raises(KeyError, match="not in use"):
            await one.release(connection)


async def test_idle_connection_is_had_without_waiting(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        with pytest.raises(ConnectionError, match="No idle connection"):
            pool.get_available_connection()
        await client.ping()
        connection = pool.get_available_connection()
        assert pool.pool.active_count == 1
        await pool.release(connection)


# -- options, and what is shown --------------------------------------------------------------------


async def test_options_of_cenote_come_by_one_keyword(redis_server: RedisServer) -> None:
    options: cenote.options.CommonOptions = {"name": "cache", "min_size": 2, "hold_warning": 30.0}
    pool = ConnectionPool.from_url(redis_server.url, max_connections=5, cenote_options=options)
    async with client_of(pool):
        await pool.pool.open()
        assert (pool.pool.name, pool.pool.idle_count, pool.pool.max_size) == ("cache", 2, 5)
        assert "on <Pool 'cache' open" in repr(pool)
        assert "cenote_options" not in pool.connection_kwargs


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_size": 3}, "give redis-py's max_connections"),
        ({"acquire_timeout": 3}, "give redis-py's timeout"),
        ({"max_idel": 3}, "did you mean max_idle"),
        ({"destructor": print}, "cenote_options has no option 'destructor'"),
        (["name"], "must be a mapping"),
    ],
)
def test_option_that_is_wrong_is_named(options: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        ConnectionPool(cenote_options=options)


def test_minimum_is_bounded_by_the_most_connections() -> None:
    enough: cenote.options.CommonOptions = {"min_size": 20}
    assert ConnectionPool(max_connections=20, cenote_options=enough).pool.min_size == 20
    with pytest.raises(ValueError, match=r"min_size must be max_connections \(5\) at most, not 20"):
        ConnectionPool(max_connections=5, cenote_options=enough)


def test_timeout_that_is_no_number_is_refused() -> None:
    wrong: Any = "3"
    with pytest.raises(TypeError, match="timeout must be a number, not str"):
        BlockingConnectionPool(timeout=wrong)


async def test_timeout_below_zero_never_queues(redis_server: RedisServer) -> None:
    async with blocking(redis_server.url, max_connections=1, timeout=-1) as (client, pool):
        held = await pool.get_connection()
        with pytest.raises(ConnectionError, match="No connection available"):
            await client.ping()
        await pool.release(held)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "redis localhost:6379/0"),
        ({"host": "cache", "port": 1, "db": 3, "password": "secret"}, "redis cache:1/3"),
        ({"connection_class": redis.UnixDomainSocketConnection, "path": "/s"}, "redis /s/0"),
    ],
)
def test_name_tells_the_address_without_secrets(options: Any, name: str) -> None:
    pool = ConnectionPool(**options)
    assert pool.pool.name == name
    assert "secret" not in repr(pool.pool)


def test_both_pools_are_those_of_redis_too() -> None:
    assert issubclass(ConnectionPool, redis.ConnectionPool)
    assert issubclass(BlockingConnectionPool, redis.BlockingConnectionPool)
    assert BlockingConnectionPool(timeout=3).timeout == 3


async def test_open_breaker_is_a_connection_error(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        pool.pool.deactivate()
        with pytest.raises(ConnectionError) as caught:
            await client.ping()
        assert isinstance(caught.value.__cause__, cenote.ServiceUnavailableError)
        pool.pool.activate()
        assert await client.ping()


async def test_closed_inner_pool_is_a_connection_error(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        await pool.pool.close()
        with pytest.raises(ConnectionError) as caught:
            await client.ping()
        assert isinstance(caught.value.__cause__, cenote.PoolClosedError)


async def test_connecting_too_slowly_is_a_timeout(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.host, redis_server.port) as proxy:
        proxy.black_hole()
        pool = ConnectionPool(
            host=proxy.host, port=proxy.port, cenote_options={"create_timeout": 0.01}
        )
        async with client_of(pool) as client:
            with pytest.raises(TimeoutError, match="Timeout connecting to server"):
                await client.ping()


async def test_background_check_finds_the_dead(redis_server: RedisServer) -> None:
    options: cenote.options.CommonOptions = {"healthcheck_interval": 0.01}
    pool = ConnectionPool.from_url(redis_server.url, cenote_options=options)
    async with client_of(pool) as client, plain(redis_server.url) as (other, _):
        await other.client_kill_filter(_id=str(await client.client_id()))
        await eventually(lambda: pool.pool.stats().destroyed)
        assert pool.pool.idle_count == 0


# -- closing, and loops ----------------------------------------------------------------------------


async def test_disconnect_closes_idle_and_busy_connections(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (_, pool):
        busy, idle = await pool.get_connection(), await pool.get_connection()
        await pool.release(idle)
        await pool.disconnect(inuse_connections=False)
        assert (busy.is_connected, idle.is_connected) == (True, False)
        await pool.disconnect()
        assert not busy.is_connected
        assert pool.pool.active_count == 1
        await pool.release(busy)
        assert pool.pool.active_count == 0


async def test_pool_is_usable_after_it_was_closed(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        await client.ping()
        first = pool.pool
        await pool.aclose()
        assert first.closed
        await client.ping()
        assert pool.pool is not first


async def test_connection_is_returned_after_its_pool_closed(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (_, pool):
        connection, inner = await pool.get_connection(), pool.pool
        await pool.aclose()
        assert not connection.is_connected
        await pool.release(connection)
        assert inner.active_count == 0


async def test_waiter_gets_a_connection_although_pool_closes(redis_server: RedisServer) -> None:
    async with blocking(redis_server.url, max_connections=1) as (client, pool):
        connection, inner = await pool.get_connection(), pool.pool
        waiting = asyncio.create_task(client.ping())
        await eventually(lambda: inner.waiting_count == 1)
        await pool.aclose()
        assert await waiting
        await pool.release(connection)


def test_client_of_a_module_works_in_loop_after_loop(redis_server: RedisServer) -> None:
    pool = ConnectionPool.from_url(redis_server.url)
    client = redis.Redis(connection_pool=pool)

    async def use(*, close: bool) -> None:
        assert await client.ping()
        if close:
            await client.aclose(close_connection_pool=True)

    asyncio.run(use(close=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # left open, as it says
        asyncio.run(use(close=False))
        asyncio.run(use(close=True))
        gc.collect()


async def test_pool_that_nobody_closed_is_collected_quietly(redis_server: RedisServer) -> None:
    pool = ConnectionPool.from_url(redis_server.url)
    connection = await pool.get_connection()
    await pool.release(connection)
    await connection.disconnect()
    gone = weakref.ref(pool)
    del pool, connection
    await settle()
    gc.collect()
    assert gone() is None


async def test_reset_forgets_and_closes_what_is_idle(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        await client.ping()
        connection = pool.pool.idle_resources()[0]
        pool.reset()
        await eventually(lambda: not connection.is_connected)
        assert await client.ping()
