"""A free resource is taken and given back; nobody else wants it."""

import asyncio
import json
import os
import subprocess
import sys
from time import perf_counter
from typing import Any

import cenote

from .measure import (
    Case,
    Goal,
    Part,
    Samples,
    Scale,
    Table,
    interleave,
    median,
    ratio,
    ratios,
    spread,
)

EMPTY = "empty async context manager"
SEMAPHORE = "asyncio.Semaphore: async with"
QUEUE = "asyncio.Queue: get_nowait(), put_nowait()"
BLOCK = "cenote.Pool: async with acquire()"
AWAIT = "cenote.Pool: await acquire(), release()"
TRY = "cenote.Pool: try_acquire(), release()"
PURE = " [pure core]"


class Empty:
    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *error: object) -> None:
        return None


async def run(scale: Scale) -> Part:
    samples = await measure(scale.short_rounds, scale.operations)
    table = Table(
        "Uncontended: take and give back",
        ["operation", "ns", "spread", "to empty", "to Semaphore", "to Queue, no wait"],
    )
    table.rows += [row(name, name, samples) for name in samples]
    if cenote.core == "native":
        other = pure(scale)
        table.rows += [row(name + PURE, name, other) for name in (BLOCK, AWAIT, TRY)]
        table.notes.append("The pure core is in a process of its own, beside its own rivals.")
        samples |= {name + PURE: values for name, values in other.items()}
    block_ratio = median(ratios(samples[BLOCK], samples[EMPTY]))
    try_ratio = median(ratios(samples[TRY], samples[QUEUE]))
    goals = [
        Goal("async with acquire(), to an empty async context manager", 1.0, block_ratio),
        Goal("try_acquire(), release(), to asyncio.Queue without waiting", 0.5, try_ratio),
    ]
    return Part([table], samples, goals)


async def measure(rounds: int, operations: int) -> Samples:
    async with cenote.Pool(object, min_size=1, max_size=1) as pool:
        return await interleave(cases(pool), rounds=rounds, operations=operations)


def pure(scale: Scale) -> Samples:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.uncontended"),
            *(str(scale.short_rounds), str(scale.operations)),
        ],
        env={**os.environ, "CENOTE_PURE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    samples: Samples = json.loads(done.stdout)
    return samples


def row(label: str, name: str, samples: Samples) -> list[str]:
    values = samples[name]
    against = [ratio(values, samples[base]) for base in (EMPTY, SEMAPHORE, QUEUE)]
    return [label, f"{median(values) * 1e9:,.0f}", spread(values), *against]


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

    return {
        EMPTY: empty,
        SEMAPHORE: semaphore_block,
        "asyncio.Queue: await get(), put()": queue_await,
        QUEUE: queue_nowait,
        BLOCK: block(pool),
        AWAIT: await_and_release(pool),
        TRY: try_and_release(pool),
    }


def block(pool: Any) -> Case:
    """Of `cenote.Pool`, or of another one that has the same method."""

    async def case(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            async with pool.acquire():
                pass
        return perf_counter() - began

    return case


def await_and_release(pool: cenote.Pool[object]) -> Case:
    async def case(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            resource = await pool.acquire()
            pool.release(resource)
        return perf_counter() - began

    return case


def try_and_release(pool: cenote.Pool[object]) -> Case:
    async def case(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            resource = pool.try_acquire()
            pool.release(resource)
        return perf_counter() - began

    return case


if __name__ == "__main__":  # the other core, in its own process
    print(json.dumps(asyncio.run(measure(*map(int, sys.argv[1:])))))
