"""Good use of the adapters: no type checker has anything to say."""

from typing import Any, assert_type

from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import cenote
from cenote.adapters.asyncpg import Pool, create_pool
from cenote.adapters.lanes import PoolLane
from cenote.adapters.redis import BlockingConnectionPool, ConnectionPool
from cenote.adapters.sqlalchemy import CenotePool
from cenote.options import CommonOptions

OPTIONS: CommonOptions = {"name": "shop", "hold_warning": 30.0, "min_size": 1}


async def with_sqlalchemy() -> None:
    engine = create_async_engine(
        "postgresql+asyncpg://app@localhost/shop",
        poolclass=CenotePool,
        pool_size=10,
        max_overflow=0,
        cenote_options=OPTIONS,
    )
    async with AsyncSession(engine) as session:
        await session.execute(text("select 1"))
    pool = engine.pool
    assert isinstance(pool, CenotePool)
    assert_type(pool.lane("batch", max_size=3, priority=-1), PoolLane)
    print(pool.status(), pool.pool.stats().idle, [each.line for each in pool.pool.holders()])
    await engine.dispose()


async def with_redis() -> None:
    pool = ConnectionPool.from_url("redis://localhost:6379", max_connections=20)
    client = Redis(connection_pool=pool)
    async with client.pipeline() as pipe:
        pipe.get("name")
        await pipe.execute()
    blocking = BlockingConnectionPool(max_connections=3, timeout=5, cenote_options=OPTIONS)
    with blocking.lane("batch", max_size=1) as lane:
        assert_type(lane, PoolLane)
        assert_type(lane.stats(), cenote.LaneStats)
    blocking.pool.retire()
    await blocking.aclose()


async def with_asyncpg() -> None:
    pool = await create_pool("postgresql://app@localhost/shop", min_size=2, max_size=10)
    assert_type(pool, Pool)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("select 1")
    rows: list[Any] = await pool.fetch("select 1")
    print(rows, pool.pool.holders())
    async with create_pool(reset="never", cenote_options={"max_waiting": 5}) as other:
        assert_type(other.get_max_size(), int)
    await pool.close()
