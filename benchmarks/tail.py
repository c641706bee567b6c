"""Tail latency: how long a task waits for a resource when tasks arrive by the clock.

The arrivals are a schedule that is drawn once (exponential gaps, the same for every pool and round)
and kept whatever the pool does. A wait is counted from the moment at which its task should have
begun: if the pool holds up the event loop, the tasks that come late because of it have waited.
Measured from the call instead, as a loop of "take, give back, take again" does, such moments vanish
from the figures: coordinated omission, as Gil Tene calls it. Both are shown.
"""

import asyncio
import random
from time import perf_counter

from .measure import (
    Part,
    Samples,
    Scale,
    Table,
    compare,
    median,
    percentile,
    quiet,
    rotated,
    spread,
)
from .pools import CENOTE, present
from .rivals import Rival

RATE = 3_000  # arrivals a second
RESOURCES = 10
HOLD = 0.002  # seconds: on average six of the ten are out
PERCENTS = (50.0, 99.0, 99.9)
LATE, OMITTED = "from the schedule", "from the call"


async def run(scale: Scale) -> Part:
    samples: Samples = {}
    rivals = present()
    arrivals = schedule(RATE, scale.seconds)
    for number in range(scale.rounds):
        for name, make in rotated(rivals, number):
            async with make(RESOURCES) as rival:
                if number == 0:
                    await load(rival, arrivals[: len(arrivals) // 10])  # warm up
                with quiet():
                    late, omitted = await load(rival, arrivals)
            for kind, waits in ((LATE, late), (OMITTED, omitted)):
                for percent in PERCENTS:
                    key = f"p{percent:g} {kind}: {name}"
                    samples.setdefault(key, []).append(percentile(waits, percent))
    table = Table(
        f"Tail latency: {RATE:,} arrivals a second, {RESOURCES} resources held for "
        f"{HOLD * 1e3:.0f} ms each",
        [
            "wait in \N{MICRO SIGN}s",
            *(f"p{percent:g}" for percent in PERCENTS),
            "spread of p99.9",
            "p99, to cenote",
            "p99.9 if omitted",
        ],
    )
    p99 = {name: samples[f"p99 {LATE}: {name}"] for name in rivals}
    versus = compare("p99 of the wait", p99, CENOTE)
    for name in rivals:
        table.rows.append(
            [
                name,
                *(f"{median(samples[f'p{p:g} {LATE}: {name}']) * 1e6:,.0f}" for p in PERCENTS),
                spread(samples[f"p99.9 {LATE}: {name}"]),
                str(versus.get(name, "1")),
                f"{median(samples[f'p99.9 {OMITTED}: {name}']) * 1e6:,.0f}",
            ]
        )
    table.notes.append(
        "Counted from the scheduled start; the last column from the call, which hides what the "
        "pool itself delays."
    )
    return Part([table], samples, versus=[*versus.values()])


def schedule(rate: float, seconds: float) -> list[float]:
    """When each task should begin, in seconds from the start."""
    dice = random.Random(1)
    arrivals, now = [], 0.0
    while (now := now + dice.expovariate(rate)) < seconds:
        arrivals.append(now)
    return arrivals


async def load(rival: Rival, arrivals: list[float]) -> tuple[list[float], list[float]]:
    """The waits, from the schedule and from the call."""
    late: list[float] = []
    omitted: list[float] = []
    take, give = rival.take, rival.give

    async def work(due: float) -> None:
        called = perf_counter()
        taken = await take()
        served = perf_counter()
        late.append(served - due)
        omitted.append(served - called)
        await asyncio.sleep(HOLD)
        waiting = give(taken)
        if waiting is not None:
            await waiting

    tasks = []
    start = perf_counter()
    for arrival in arrivals:
        # Never asleep: the selector rounds up to milliseconds.
        while perf_counter() - start < arrival:  # noqa: ASYNC110
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(work(start + arrival)))
    await asyncio.gather(*tasks)
    return late, omitted
