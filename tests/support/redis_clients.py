"""Clients of redis-py on the pools of the adapter, and what a test does with them."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from redis.asyncio import Redis

from cenote.adapters.redis import BlockingConnectionPool, ConnectionPool
from cenote.testing import check_ledger


@contextlib.asynccontextmanager
async def client_of(
    pool: ConnectionPool, *, check: bool = True, **options: Any
) -> AsyncIterator[Redis]:
    """A client on this pool; both are closed, and the ledger of the pool is checked."""
    client = Redis(connection_pool=pool, **options)
    try:
        yield client
    finally:
        inner = pool.pool
        await client.aclose()
        await pool.aclose()
        if check:
            check_ledger(inner)


@contextlib.asynccontextmanager
async def plain(url: str, **options: Any) -> AsyncIterator[tuple[Redis, ConnectionPool]]:
    """A client on a `ConnectionPool`."""
    pool = ConnectionPool.from_url(url, **options)
    async with client_of(pool) as client:
        yield client, pool


@contextlib.asynccontextmanager
async def blocking(url: str, **options: Any) -> AsyncIterator[tuple[Redis, ConnectionPool]]:
    """A client on a `BlockingConnectionPool`."""
    pool = BlockingConnectionPool.from_url(url, **options)
    async with client_of(pool) as client:
        yield client, pool
