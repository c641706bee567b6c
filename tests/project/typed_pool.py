"""Checked by mypy in test_typing.py: what a type checker makes of a pool. Never run."""

import asyncio
from collections.abc import Awaitable
from typing import assert_type

from cenote import Pool, PoolEvent


class Connection:
    def ok(self) -> bool:
        return True


async def connect() -> Connection:
    return Connection()


def perhaps_later() -> Connection | Awaitable[Connection]:
    return connect()


def number() -> int:
    return 42


async def disconnect(connection: Connection) -> None: ...


# What the pool holds is what the factory makes, sync or async, whatever the hooks look like.
assert_type(Pool(connect), Pool[Connection])
assert_type(Pool(connect, destructor=disconnect), Pool[Connection])
assert_type(Pool(connect, destructor=lambda connection: None), Pool[Connection])
assert_type(Pool(connect, healthcheck=Connection.ok, min_size=1, name="main"), Pool[Connection])
assert_type(Pool(lambda: connect()), Pool[Connection])
assert_type(Pool(perhaps_later), Pool[Connection])
assert_type(Pool(Connection), Pool[Connection])
assert_type(Pool(Connection, destructor=disconnect), Pool[Connection])
assert_type(Pool(Connection, destructor=lambda connection: None), Pool[Connection])
assert_type(Pool(number, before_release=lambda number: number > 0), Pool[int])
declared: Pool[Connection] = Pool(connect)
explicit = Pool[Connection](connect, destructor=lambda connection: None)


async def use(pool: Pool[Connection]) -> None:
    async with pool as entered:
        assert_type(entered, Pool[Connection])
    async with pool.acquire(timeout=3) as connection:
        assert_type(connection, Connection)
    assert_type(await pool.acquire(), Connection)
    assert_type(await asyncio.wait_for(pool.acquire(), 1), Connection)
    assert_type(pool.try_acquire(), Connection | None)
    await pool.release(connection)
    await asyncio.create_task(pool.discard(connection, ValueError()))
    await asyncio.create_task(pool.retire())
    await asyncio.create_task(pool.resize(max_size=3))

    def watch(event: PoolEvent) -> None: ...

    pool.subscribe(watch)()
