"""The pool of the adapter under a Sentinel: it goes where the master is."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis, Sentinel
from redis.exceptions import RedisError

from cenote.adapters.redis import SentinelConnectionPool
from cenote.testing import check_ledger
from tests.support.sentinel import SERVICE, SentinelServer, service
from tests.support.servers import RedisServer
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

Service = tuple[RedisServer, RedisServer, SentinelServer]


@pytest.fixture
def servers() -> Iterator[Service]:
    if reason := RedisServer.missing():
        pytest.skip(reason)
    with service() as found:
        yield found


def sentinel_of(servers: Service) -> Sentinel:
    return Sentinel([(servers[2].host, servers[2].port)], decode_responses=True)


async def port_of(client: Redis) -> int:
    return int((await client.config_get("port"))["port"])


async def replica_is_known(sentinel: Sentinel) -> None:
    while True:
        if await sentinel.discover_slaves(SERVICE):
            return
        await asyncio.sleep(0.05)


async def close(*clients: Any) -> None:
    for client in clients:
        inner = client.connection_pool.pool
        await client.aclose()
        await client.connection_pool.aclose()
        check_ledger(inner)


async def test_master_and_replica_are_found(servers: Service) -> None:
    master, replica, _ = servers
    sentinel = sentinel_of(servers)
    options: dict[str, Any] = {"connection_pool_class": SentinelConnectionPool}
    writer = sentinel.master_for(SERVICE, max_connections=2, **options)
    reader = sentinel.slave_for(SERVICE, **options)
    async with asyncio.timeout(WAIT):
        assert await port_of(writer) == master.port
        await replica_is_known(sentinel)
        # While the replica is not ready, redis-py goes to the master.
        while await port_of(reader) != replica.port:
            await reader.connection_pool.disconnect()
        await writer.set("name", "cenote")
        while await reader.get("name") != "cenote":
            await writer.wait(1, 1000)  # ms: less than the socket_timeout of redis-py
    pool = writer.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert (pool.pool.name, pool.pool.max_size) == (f"redis {SERVICE} (Sentinel)", 2)
    await close(writer, reader)
    for each in sentinel.sentinels:
        await each.aclose()


async def test_writes_go_on_after_a_failover(servers: Service) -> None:
    master, replica, _ = servers
    sentinel = sentinel_of(servers)
    client = sentinel.master_for(SERVICE, connection_pool_class=SentinelConnectionPool)
    async with asyncio.timeout(WAIT):
        assert await port_of(client) == master.port
        await replica_is_known(sentinel)
        await asyncio.to_thread(master.kill)
        while True:
            try:
                assert await port_of(client) == replica.port
                await client.set("name", "cenote")
                break
            except RedisError:
                await asyncio.sleep(0.05)
    assert client.connection_pool.pool.active_count == 0
    await close(client)
    for each in sentinel.sentinels:
        await each.aclose()
