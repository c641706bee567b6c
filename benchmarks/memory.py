"""Bytes for an idle resource and for a waiting task."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

from .measure import Goal, Part, Samples, Scale, Table, Versus, times
from .pools import CENOTE, present
from .rivals import Rival, settle

BARE = "a task on a bare future"
ONCE = 100  # objects that are made and freed before any is counted
MOST = 150.0  # bytes for an idle resource
NEEDLESS = ("asyncio.Semaphore",)  # it has no resources


async def run(scale: Scale) -> Part:
    number = scale.objects
    idle: Samples = {}
    waiting: Samples = {BARE: [await traced(number, waiting_for(bare))]}
    for name, make in present().items():
        if name not in NEEDLESS:
            idle[name] = [await idle_in(make, number)]
        async with make(1) as rival:
            taken = await rival.take()
            waiting[name] = [await traced(number, waiting_for(rival.take))]
            await settle(rival.give(taken))

    resources = Table(
        "Memory of an idle resource, without the resource itself", ["", "bytes each", "to cenote"]
    )
    waiters = Table(
        "Memory of a waiting task", ["", "bytes each", "beyond a bare future", "to cenote"]
    )
    versus = []
    for name, [value] in idle.items():
        ratio = value / idle[CENOTE][0]
        resources.rows.append([name, f"{value:,.0f}", times(ratio)])
        if name != CENOTE:
            versus.append(Versus("memory of an idle resource", name, ratio, ratio, ratio))
    for name, [value] in waiting.items():
        ratio = value / waiting[CENOTE][0]
        more = f"{value - waiting[BARE][0]:+,.0f}"
        waiters.rows.append([name, f"{value:,.0f}", more, times(ratio)])
        if name not in (CENOTE, BARE):
            versus.append(Versus("memory of a waiter", name, ratio, ratio, ratio))
    resources.notes.append(
        "After all of them have been taken at once and given back: what a pool keeps for those "
        "that are out is included."
    )
    samples = {f"idle: {name}": values for name, values in idle.items()}
    samples |= {f"waiting: {name}": values for name, values in waiting.items()}
    goal = Goal("memory of an idle resource", MOST, idle[CENOTE][0], unit=" bytes")
    return Part([resources, waiters], samples, [goal], versus)


# Makes so many of something, and gives back the function that ends them.
Build = Callable[[int], Awaitable[Callable[[], Awaitable[object]]]]


async def traced(
    number: int, build: Build, prepare: Callable[[int], object] = lambda number: None
) -> float:
    """Bytes for each. What `prepare` makes is not counted."""
    prepare(ONCE)
    end = await build(ONCE)  # what is allocated once is not counted, such as free lists
    await end()
    prepare(number)
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


async def idle_in(make: type[Rival], number: int) -> float:
    """The size of a resource itself is not counted, nor is that of an empty pool."""
    stock: list[Any] = []
    made: list[Rival] = []

    def prepare(number: int) -> None:
        stock[:] = [make.resource() for _ in range(number)]
        made.append(make(number, stock.pop))

    async def build(number: int) -> Callable[[], Awaitable[object]]:
        rival = made.pop()
        await rival.open()
        taken = [await rival.take() for _ in range(number)]
        while taken:
            await settle(rival.give(taken.pop()))
        for _ in range(3):
            await asyncio.sleep(0)
        return rival.close

    return await traced(number, build, prepare)


async def bare() -> None:
    await asyncio.get_running_loop().create_future()


def waiting_for(take: Callable[[], Awaitable[Any]]) -> Build:
    async def wait() -> None:
        await take()

    async def build(number: int) -> Callable[[], Awaitable[object]]:
        tasks = [asyncio.create_task(wait()) for _ in range(number)]
        for _ in range(3):
            await asyncio.sleep(0)

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        return end

    return build
