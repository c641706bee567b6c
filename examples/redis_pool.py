"""100 tasks read over 20 connections to a real Redis server.

    python examples/redis_pool.py redis://127.0.0.1:6379

The resource is a client with one connection of its own: the pool is cenote's.
"""

import asyncio
import os
import sys
import time

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

import cenote

TASKS = 100
READS = 50  # of each task
CONNECTIONS = 20
KEY = "cenote:example:{}"


async def read(pool: cenote.Pool[Redis], first: int) -> int:
    right = 0
    for number in range(first, first + READS):
        async with pool.acquire(timeout=10) as client:
            value = await client.get(KEY.format(number % TASKS))
        right += value == str(number % TASKS).encode()
    return right


async def main(url: str) -> None:
    async def connect() -> Redis:
        # Without retries: a connection that breaks is the pool's business.
        client = Redis.from_url(
            url, single_connection_client=True, retry=Retry(NoBackoff(), retries=0)
        )
        return await client.initialize()

    pool: cenote.Pool[Redis] = cenote.Pool(
        connect,
        destructor=Redis.aclose,
        healthcheck=Redis.ping,
        healthcheck_interval=10,
        max_size=CONNECTIONS,
        name="redis",
    )
    async with pool:
        async with pool.acquire(timeout=5) as client:
            await client.mset({KEY.format(number): number for number in range(TASKS)})

        began = time.perf_counter()
        right = sum(await asyncio.gather(*(read(pool, number) for number in range(TASKS))))
        seconds = time.perf_counter() - began

        async with pool.acquire(timeout=5) as client:
            await client.delete(*(KEY.format(number) for number in range(TASKS)))
        print(f"{TASKS} tasks read {right} values, all right: {right == TASKS * READS}")
        print(f"{right / seconds:,.0f} reads/s over {pool.count} connections")

    stats = pool.stats()
    print(f"connections opened: {stats.created}, closed: {sum(stats.destroyed.values())}")
    print(f"longest wait for a connection: {stats.max_wait_time * 1e3:.1f} ms")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("REDIS_URL")
    if address is None:
        sys.exit("which server? give redis://host:port as the argument, or in REDIS_URL")
    asyncio.run(main(address))
