"""Bytes for an idle resource and for a waiting task."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import cenote

from .measure import Samples, Scale, Table
from .rivals import RIVALS

BARE = "a task on a bare future"


async def run(scale: Scale) -> tuple[Table, Table, Samples]:
    number = scale.objects
    idle = {
        "cenote.Pool": [await traced(number, idle_in_pool)],
        "asyncio.Queue": [await traced(number, idle_in_queue)],
    }
    waiting = {BARE: [await traced(number, waiting_for(Bare()))]}
    for name, make in RIVALS.items():
        rival = make(1)
        taken = await rival.take()
        waiting[name] = [await traced(number, waiting_for(rival))]
        rival.give(taken)
        await rival.close()

    resources = Table("Memory of an idle resource, without the resource itself", ["", "bytes each"])
    resources.rows += [[name, f"{value:,.0f}"] for name, [value] in idle.items()]
    waiters = Table("Memory of a waiting task", ["", "bytes each", "beyond a bare future"])
    waiters.rows += [
        [name, f"{value:,.0f}", f"{value - waiting[BARE][0]:+,.0f}"]
        for name, [value] in waiting.items()
    ]
    samples = {f"idle: {name}": values for name, values in idle.items()}
    samples |= {f"waiting: {name}": values for name, values in waiting.items()}
    return resources, waiters, samples


# Makes so many of something, and gives back the function that ends them.
Build = Callable[[int], Awaitable[Callable[[], Awaitable[object]]]]


async def traced(number: int, build: Build) -> float:
    """Bytes for each."""
    end = await build(10)  # what is allocated once is not counted
    await end()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        end = await build(number)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await end()
    return (after - before) / number


async def idle_in_pool(number: int) -> Callable[[], Awaitable[object]]:
    resource = object()  # always the same: its own size is not counted
    pool = cenote.Pool(lambda: resource, max_size=number)
    for _ in range(number):
        pool.try_acquire()
    for _ in range(number):
        pool.release(resource)
    assert pool.idle_count == number
    return pool.close


async def idle_in_queue(number: int) -> Callable[[], Awaitable[object]]:
    resource = object()
    queue: asyncio.Queue[object] = asyncio.Queue()
    for _ in range(number):
        queue.put_nowait(resource)

    async def end() -> None:
        while not queue.empty():
            queue.get_nowait()

    return end


class Bare:
    async def take(self) -> Any:
        return await asyncio.get_running_loop().create_future()


def waiting_for(source: Any) -> Build:
    async def build(number: int) -> Callable[[], Awaitable[object]]:
        tasks = [asyncio.create_task(source.take()) for _ in range(number)]
        await asyncio.sleep(0)

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        return end

    return build
