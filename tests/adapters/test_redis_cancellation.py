"""No cancellation and no fault lets a connection of redis-py answer the wrong question."""

import asyncio
import contextlib
from collections.abc import Coroutine, Generator
from typing import Any

import pytest
import redis.asyncio as redis
from packaging.version import Version
from redis import __version__ as redis_version
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError

import cenote
from cenote.adapters.redis import BlockingConnectionPool, ConnectionPool
from cenote.testing import FaultProxy, check_ledger
from tests.support.redis_clients import client_of, plain
from tests.support.servers import RedisServer
from tests.support.waiting import WAIT, eventually

pytestmark = pytest.mark.real_time("talks to a real server")

# Writing after a reset is a RuntimeError of uvloop, which redis-py passes on.
FAILURES = (ConnectionError, RuntimeError)


# Before 8.0 a PubSub whose end is cancelled keeps its connection, whatever the pool.
OLD_PUBSUB = Version(redis_version) < Version("8.0")


class CancelledAt:
    """Awaits a coroutine, whose task is cancelled at the coroutine's n-th suspension."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], suspension: int) -> None:
        self._coroutine = coroutine
        self._left = suspension

    @property
    def reached(self) -> bool:
        return self._left < 0

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        step, given = self._coroutine.send, None
        while True:
            try:
                wanted = step(given)
            except StopIteration as end:
                return end.value
            if self._left == 0:
                task.cancel()
            self._left -= 1
            try:
                step, given = self._coroutine.send, (yield wanted)
            except BaseException as error:
                step, given = self._coroutine.throw, error  # type: ignore[assignment]


class Work:
    """What asks for the wrong key."""

    def __init__(self, client: redis.Redis, pool: ConnectionPool) -> None:
        self.client = client
        self.pool = pool

    async def command(self) -> None:
        await self.client.get("wrong")

    async def blocking(self) -> None:
        await self.client.blmove("wrongs", "wrongs", WAIT)

    async def pipeline(self) -> None:
        async with self.client.pipeline() as pipe:
            await pipe.get("wrong").get("wrong").execute()

    async def watch(self) -> None:
        async with self.client.pipeline() as pipe:
            await pipe.watch("wrong")
            await pipe.get("wrong")
            pipe.multi()
            pipe.get("wrong")
            await pipe.execute()

    async def message(self) -> None:
        async with self.client.pubsub() as messages:
            await messages.subscribe("wrong")
            await messages.get_message(timeout=None)

    async def raw(self) -> None:
        connection = await self.pool.get_connection()
        try:
            await connection.send_command("GET", "wrong")
            await asyncio.sleep(0)  # between the question and its answer
            await connection.read_response()
        finally:
            await self.pool.release(connection)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("warm", [True, False], ids=["connected", "new"])
@pytest.mark.parametrize("work", ["command", "blocking", "pipeline", "watch", "message", "raw"])
async def test_no_answer_goes_to_another_after_cancellation(
    redis_server: RedisServer, work: str, warm: bool, protocol: int
) -> None:
    if work == "message" and OLD_PUBSUB:
        pytest.skip(f"redis-py {redis_version}: a PubSub that is cancelled in its end is lost")
    suspension, ended = 0, False
    async with plain(redis_server.url) as (setup, _):
        await setup.mset({"wrong": "wrong", "right": "right"})
        await setup.delete("wrongs")
        await setup.rpush("wrongs", "wrong")
        while not ended:
            pool = BlockingConnectionPool.from_url(
                redis_server.url, protocol=protocol, max_connections=1, timeout=WAIT
            )
            async with client_of(pool) as client:
                if warm:
                    await client.ping()
                interrupted = CancelledAt(getattr(Work(client, pool), work)(), suspension)
                task = asyncio.create_task(awaited(interrupted))
                await asyncio.wait([task])
                ended = not interrupted.reached
                assert await client.get("right") == b"right"
                assert pool.pool.active_count == 0
            suspension += 1
    assert suspension > 1


async def awaited(awaitable: Any) -> Any:
    return await awaitable


async def test_cancelled_use_closes_its_connection(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (_, pool):
        connection, sent = await pool.get_connection(), asyncio.Event()

        async def use() -> None:
            try:
                await connection.send_command("PING")
                sent.set()
                await asyncio.Event().wait()
            finally:
                await pool.release(connection)

        task = asyncio.create_task(use())
        await sent.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await eventually(lambda: pool.pool.stats().destroyed)
        assert pool.pool.idle_count == 0


async def test_commands_of_a_cleanup_keep_their_connection(redis_server: RedisServer) -> None:
    async with plain(redis_server.url) as (client, pool):
        await client.ping()

        async def clean_up() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                for _ in range(3):
                    await client.ping()
                raise

        task = asyncio.create_task(clean_up())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.pool.stats().created == 1


async def test_cancelled_connect_goes_on_for_the_next(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.host, redis_server.port) as proxy:
        pool = ConnectionPool(host=proxy.host, port=proxy.port, max_connections=1)
        async with client_of(pool) as client:
            proxy.hold_replies()
            task = asyncio.create_task(client.ping())
            await asyncio.to_thread(proxy.wait_for, lambda counts: counts.client_bytes)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert pool.pool.stats().creating == 1
            proxy.hold_replies(False)
            assert await client.ping()
            assert proxy.connections == 1


@pytest.mark.parametrize("fault", ["reset", "cut"])
@pytest.mark.parametrize("protocol", [2, 3])
async def test_connection_that_died_idle_is_replaced(
    redis_server: RedisServer, fault: str, protocol: int
) -> None:
    with FaultProxy(redis_server.host, redis_server.port) as proxy:
        pool = ConnectionPool(
            host=proxy.host, port=proxy.port, protocol=protocol, retry=Retry(NoBackoff(), 0)
        )
        async with client_of(pool) as client:
            await client.ping()
            (idle,) = pool.pool.idle_resources()
            getattr(proxy, fault)()
            reader: Any = idle._reader
            await eventually(lambda: reader.at_eof() or reader.exception())
            assert await client.ping()
            assert proxy.connections == 2


async def test_breaker_opens_when_the_server_is_away(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.host, redis_server.port) as proxy:
        pool = ConnectionPool(
            host=proxy.host,
            port=proxy.port,
            retry=Retry(NoBackoff(), 0),
            cenote_options={"strategy": cenote.ConsecutiveFailures(3, recovery_timeout=0.0)},
        )
        async with client_of(pool) as client:
            await client.ping()
            proxy.refuse()
            proxy.cut_reply_after(0)
            for _ in range(3):  # a lost command, and connects that fail
                assert pool.pool.state is cenote.CircuitState.ACTIVE
                with pytest.raises(FAILURES):
                    await client.ping()
            assert pool.pool.state is not cenote.CircuitState.ACTIVE
            proxy.refuse(False)
            pool.pool.activate()
            assert await client.ping()


async def test_failed_connects_leave_nothing_behind(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.host, redis_server.port) as proxy:
        proxy.refuse()
        pool = BlockingConnectionPool(
            host=proxy.host, port=proxy.port, max_connections=2, retry=Retry(NoBackoff(), 0)
        )
        async with client_of(pool) as client:
            pings = [client.ping() for _ in range(6)]
            ends = await asyncio.gather(*pings, return_exceptions=True)
            assert all(isinstance(each, FAILURES) for each in ends), ends
            assert pool.pool.occupied == 0
            assert len(pool._available_connections) <= 2
            proxy.refuse(False)
            assert await client.ping()


async def test_many_cancelled_commands_leave_an_even_ledger(redis_server: RedisServer) -> None:
    pool = BlockingConnectionPool.from_url(redis_server.url, max_connections=3, timeout=WAIT)
    client = redis.Redis(connection_pool=pool)

    async def ask(number: int) -> None:
        assert await client.echo(f"{number}") == f"{number}".encode()

    tasks = [asyncio.create_task(ask(number)) for number in range(200)]
    for turn, task in enumerate(tasks):
        if turn % 3 == 0:
            await asyncio.sleep(0)
            task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ends} <= {type(None), asyncio.CancelledError}
    assert pool.pool.active_count == 0
    inner = pool.pool
    await client.aclose()
    await pool.aclose()
    check_ledger(inner)
