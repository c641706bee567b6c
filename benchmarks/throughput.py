"""Many tasks share a few resources: every return is a hand-off."""

import asyncio
from time import perf_counter

from .measure import Case, Part, Scale, Table, compare, interleave, median, spread
from .pools import CENOTE, present
from .rivals import Rival

RESOURCES = 10


async def run(scale: Scale) -> Part:
    rivals = {name: make(RESOURCES) for name, make in present().items()}
    for rival in rivals.values():
        await rival.open()
    samples = await interleave(
        {name: contended(rival, scale.tasks) for name, rival in rivals.items()},
        rounds=scale.rounds,
        operations=scale.tasks * scale.turns,
    )
    for rival in rivals.values():
        await rival.close()
    table = Table(
        f"Contended: {scale.tasks:,} tasks over {RESOURCES} resources",
        ["", "hand-offs/s", "spread", "to cenote"],
    )
    versus = compare("contended hand-off", samples, CENOTE)
    for name, values in samples.items():
        rates = [1 / seconds for seconds in values]
        against = str(versus.get(name, "1"))
        table.rows.append([name, f"{median(rates):,.0f}", spread(rates), against])
    return Part([table], samples, versus=[*versus.values()])


def contended(rival: Rival, tasks: int) -> Case:
    async def work(turns: int) -> None:
        take, give = rival.take, rival.give
        for _ in range(turns):
            taken = await take()
            await asyncio.sleep(0)  # the others come and wait
            waiting = give(taken)
            if waiting is not None:
                await waiting

    async def case(operations: int) -> float:
        turns = max(1, operations // tasks)
        began = perf_counter()
        await asyncio.gather(*(work(turns) for _ in range(tasks)))
        return (perf_counter() - began) * operations / (turns * tasks)

    return case
