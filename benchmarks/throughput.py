"""Many tasks share a few resources: every return is a hand-off."""

import asyncio
from time import perf_counter

from .measure import Case, Samples, Scale, Table, interleave, median, ratio, spread
from .rivals import RIVALS, Rival

RESOURCES = 10
POOL = "cenote.Pool"


async def run(scale: Scale) -> tuple[Table, Samples]:
    samples = await interleave(
        {name: contended(make(RESOURCES), scale.tasks) for name, make in RIVALS.items()},
        rounds=scale.rounds,
        operations=scale.tasks * scale.turns,
    )
    table = Table(
        f"Contended: {scale.tasks:,} tasks over {RESOURCES} resources",
        ["", "hand-offs/s", "spread", "to cenote"],
    )
    for name, values in samples.items():
        rates = [1 / seconds for seconds in values]
        table.rows.append(
            [name, f"{median(rates):,.0f}", spread(rates), ratio(samples[POOL], values)]
        )
    return table, samples


def contended(rival: Rival, tasks: int) -> Case:
    async def work(turns: int) -> None:
        for _ in range(turns):
            taken = await rival.take()
            await asyncio.sleep(0)  # the others come and wait
            rival.give(taken)

    async def case(operations: int) -> float:
        turns = max(1, operations // tasks)
        began = perf_counter()
        await asyncio.gather(*(work(turns) for _ in range(tasks)))
        return (perf_counter() - began) * operations / (turns * tasks)

    return case
