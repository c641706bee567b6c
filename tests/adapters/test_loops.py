"""A pool of another library in a wrong loop, in the next loop, and in the child of a fork."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.conftest import MakeEngine
from tests.support.running import run_forking
from tests.support.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.own_loop

can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@dataclass
class Client:
    """What uses a pool of another library."""

    pool: Any
    use: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]

    async def evict(self) -> None:
        """Close what is idle; the pool belongs to the running loop all the same."""
        inner = self.pool.pool
        await asyncio.gather(*map(inner.evict, inner.idle_resources()))


def client_of_sqlalchemy(request: pytest.FixtureRequest) -> Client:
    make: MakeEngine = request.getfixturevalue("make_engine")
    engine = make(pool_size=1)

    async def use() -> None:
        async with engine.connect():
            pass

    return Client(engine.pool, use, engine.dispose)


def client_of_redis(request: pytest.FixtureRequest) -> Client:
    from redis.asyncio import Redis

    from cenote.adapters.redis import ConnectionPool

    server: RedisServer = request.getfixturevalue("redis_server")
    pool = ConnectionPool.from_url(server.url)
    client = Redis(connection_pool=pool)

    async def use() -> None:
        await client.ping()

    return Client(pool, use, pool.aclose)


@pytest.fixture(params=[client_of_sqlalchemy, client_of_redis])
def client(request: pytest.FixtureRequest) -> Client:
    pytest.importorskip(request.param.__name__.removeprefix("client_of_"))
    found: Client = request.param(request)
    return found


def test_a_refused_loop_has_the_pool_after_the_first(client: Client) -> None:
    first, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(client.use())
    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        other.run_until_complete(client.use())
    first.run_until_complete(client.evict())
    first.close()
    other.run_until_complete(client.use())
    other.run_until_complete(client.close())
    other.close()


def test_what_was_opened_ahead_of_its_use_is_closed(client: Client) -> None:
    async def main() -> None:
        inner = client.pool.pool
        await inner.open()
        assert await inner.probe()
        await client.close()
        assert inner.closed
        assert inner.occupied == 0

    asyncio.run(main())


@can_fork
def test_a_forked_child_has_clients_of_redis(
    redis_server: RedisServer,
) -> None:
    pytest.importorskip("redis")
    lines = run_forking(
        """
import asyncio, os, sys
from redis.asyncio import Redis
from cenote.adapters.redis import BlockingConnectionPool

pool = BlockingConnectionPool.from_url(sys.argv[1])
client = Redis(connection_pool=pool)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
""",
        """
        async def child_uses():
            say("own connection", await client.client_id() not in known)
            await pool.aclose()

        async def main():
            known.add(await client.client_id())
            waiting = asyncio.create_task(client.blpop("of the parent"))
            while not pool.pool.active_count:
                await asyncio.sleep(0)
            other = await pool.get_connection()
            child = os.fork()
            if child == 0:
                del waiting, other
                for _ in range(2):
                    asyncio.run(child_uses())
                os._exit(0)
            say("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            await client.rpush("of the parent", "item")
            say((await waiting)[1].decode())
            await pool.release(other)
            await pool.aclose()

        known = set()
        asyncio.run(main())
        """,
        [redis_server.url],
    )
    assert lines == ["own connection True"] * 2 + ["child ended with 0", "item"]


@can_fork
def test_a_forked_child_has_engines_of_sqlalchemy(
    postgres_server: PostgresServer,
) -> None:
    for name in ("sqlalchemy", "asyncpg"):
        pytest.importorskip(name)
    url = postgres_server.tcp_url().replace("postgresql://", "postgresql+asyncpg://")
    lines = run_forking(
        """
import asyncio, os, sys
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from cenote.adapters.sqlalchemy import CenotePool

engine = create_async_engine(sys.argv[1], poolclass=CenotePool)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

async def ask():
    async with engine.connect() as connection:
        return await connection.scalar(text("select pg_backend_pid()"))
""",
        """
        async def child_uses():
            say("own connection", await ask() != known)
            await engine.dispose()

        async def main():
            global known
            known = await ask()
            child = os.fork()
            if child == 0:
                for _ in range(2):
                    asyncio.run(child_uses())
                os._exit(0)
            say("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            say("same connection", await ask() == known)
            await engine.dispose()

        asyncio.run(main())
        """,
        [url],
    )
    assert lines == [*["own connection True"] * 2, "child ended with 0", "same connection True"]
