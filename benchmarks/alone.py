"""Every pool alone: a free resource is taken and given back, and nobody else wants it."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any

from .measure import Case, Part, Scale, Table, compare, interleave, median, spread
from .pools import CENOTE, absent, present
from .rivals import Rival

TRY = "try: "


async def run(scale: Scale) -> Part:
    cases: dict[str, Case] = {}
    async with AsyncExitStack() as stack:
        for name, make in present().items():
            rival = await stack.enter_async_context(make(1))
            cases[name] = cycle(rival)
            if rival.try_take is not None:
                cases[TRY + name] = try_cycle(rival.try_take, rival)
        samples = await interleave(
            cases, rounds=scale.short_rounds, operations=scale.operations // 4
        )
    waiting = {name: values for name, values in samples.items() if not name.startswith(TRY)}
    versus = compare("uncontended cycle", waiting, CENOTE)
    table = Table(
        "Every pool alone: take and give back",
        ["", "ns", "spread", "to cenote", "without waiting, ns"],
    )
    for name, values in waiting.items():
        tried = samples.get(TRY + name)
        table.rows.append(
            [
                name,
                f"{median(values) * 1e9:,.0f}",
                spread(values),
                str(versus.get(name, "1")),
                "-" if tried is None else f"{median(tried) * 1e9:,.0f}",
            ]
        )
    table.notes.append(
        "The resource of each does nothing: only the pool is measured. `-`: it has no such method."
    )
    table.notes += [f"Skipped: {name}, because {reason}." for name, reason in absent().items()]
    return Part([table], samples, versus=[*versus.values()])


def cycle(rival: Rival) -> Case:
    async def case(operations: int) -> float:
        take, give = rival.take, rival.give
        began = perf_counter()
        for _ in range(operations):
            taken = await take()
            waiting = give(taken)
            if waiting is not None:
                await waiting
        return perf_counter() - began

    return case


def try_cycle(try_take: Callable[[], Any], rival: Rival) -> Case:
    async def case(operations: int) -> float:
        give = rival.give
        began = perf_counter()
        for _ in range(operations):
            give(try_take())
        return perf_counter() - began

    return case
