"""A free resource is taken and given back; nobody else wants it."""

import asyncio
from time import perf_counter

import cenote

from .measure import Case, Samples, Scale, Table, interleave, median, ratio, spread

EMPTY = "empty async context manager"
SEMAPHORE = "asyncio.Semaphore: async with"
POOL = "cenote.Pool: async with acquire()"


class Empty:
    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *error: object) -> None:
        return None


async def run(scale: Scale) -> tuple[Table, Samples]:
    async with cenote.Pool(object, min_size=1, max_size=1) as pool:
        samples = await interleave(
            cases(pool), rounds=scale.short_rounds, operations=scale.operations
        )
    table = Table(
        "Uncontended: take and give back",
        ["operation", "ns", "spread", "to empty", "to Semaphore"],
    )
    for name, values in samples.items():
        table.rows.append(
            [
                name,
                f"{median(values) * 1e9:,.0f}",
                spread(values),
                ratio(values, samples[EMPTY]),
                ratio(values, samples[SEMAPHORE]),
            ]
        )
    return table, samples


def cases(pool: cenote.Pool[object]) -> dict[str, Case]:
    semaphore = asyncio.Semaphore(1)
    queue: asyncio.Queue[object] = asyncio.Queue()
    queue.put_nowait(object())

    async def empty(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            async with Empty():
                pass
        return perf_counter() - began

    async def semaphore_block(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            async with semaphore:
                pass
        return perf_counter() - began

    async def queue_await(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            item = await queue.get()
            await queue.put(item)
        return perf_counter() - began

    async def queue_nowait(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            item = queue.get_nowait()
            queue.put_nowait(item)
        return perf_counter() - began

    async def pool_block(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            async with pool.acquire():
                pass
        return perf_counter() - began

    async def pool_await(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            resource = await pool.acquire()
            pool.release(resource)
        return perf_counter() - began

    async def pool_try(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            resource = pool.try_acquire()
            pool.release(resource)
        return perf_counter() - began

    return {
        EMPTY: empty,
        SEMAPHORE: semaphore_block,
        "asyncio.Queue: await get(), put()": queue_await,
        "asyncio.Queue: get_nowait(), put_nowait()": queue_nowait,
        POOL: pool_block,
        "cenote.Pool: await acquire(), release()": pool_await,
        "cenote.Pool: try_acquire(), release()": pool_try,
    }
