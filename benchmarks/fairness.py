"""Greedy tasks share a few resources: each gives back and asks again at once. Are all served?

A round ends after so many turns altogether. A wait that is not over by then counts as long as it
has lasted, so that a task which is never served is not forgotten.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from .measure import (
    Part,
    Samples,
    Scale,
    Table,
    Versus,
    compare,
    median,
    percentile,
    quiet,
    rotated,
)
from .pools import CENOTE, present

TASKS, RESOURCES = 100, 10
TURNS = 50  # of each task, if all are served alike
HOLD = 3  # turns of the event loop

FEWEST, MOST, LONGEST, MIDDLE, OVERTOOK = "fewest", "most", "longest", "median", "overtook"


class Competitor(Protocol):
    """What is taken and given back."""

    @property
    def take(self) -> Callable[[], Awaitable[Any]]: ...

    @property
    def give(self) -> Callable[[Any], Awaitable[object] | None]: ...


@dataclass(slots=True)
class Tally:
    turns: list[int]
    waits: list[float] = field(default_factory=list)  # seconds
    overtook: int = 0  # how often one was served while an older one waited


async def run(scale: Scale) -> Part:
    rounds, turns = scale.rounds, TASKS * min(TURNS, scale.turns * 5)
    samples: Samples = {}
    rivals = present()
    for number in range(rounds):
        for name, make in rotated(rivals, number):
            async with make(RESOURCES) as rival:
                with quiet():
                    tally = await compete(rival, turns)
            for what, value in figures(tally, turns).items():
                samples.setdefault(f"{what}: {name}", []).append(value)
    longest = {name: samples[f"{LONGEST}: {name}"] for name in rivals}
    versus = compare("longest wait", longest, CENOTE)
    return Part([table(samples, versus)], samples, versus=[*versus.values()])


def figures(tally: Tally, turns: int) -> dict[str, float]:
    even = turns / TASKS
    return {
        FEWEST: min(tally.turns) / even,
        MOST: max(tally.turns) / even,
        MIDDLE: percentile(tally.waits, 50),
        LONGEST: max(tally.waits),
        OVERTOOK: tally.overtook / turns,
    }


async def compete(rival: Competitor, turns: int) -> Tally:
    """All tasks, until `turns` have been served; then each has one more, which does not count."""
    tally = Tally([0] * TASKS)
    line = Queue()
    since: dict[int, float] = {}  # of the tasks that wait now: when they asked
    over = False

    async def work(number: int) -> None:
        nonlocal over
        while not over:
            ticket = line.ask()
            since[number] = began = perf_counter()
            taken = await rival.take()
            if not over:
                tally.waits.append(perf_counter() - began)
                tally.turns[number] += 1
                tally.overtook += not line.serve(ticket)
                del since[number]
            if not over and len(tally.waits) == turns:
                over = True
                now = perf_counter()
                tally.waits += [now - began for began in since.values()]
            for _ in range(HOLD):
                await asyncio.sleep(0)
            waiting = rival.give(taken)
            if waiting is not None:
                await waiting

    await asyncio.gather(*(work(number) for number in range(TASKS)))
    return tally


class Queue:
    """Who asked, the oldest first."""

    def __init__(self) -> None:
        self._tickets: deque[int] = deque()
        self._served: set[int] = set()  # though not at the head
        self._next = 0

    def ask(self) -> int:
        self._tickets.append(self._next)
        self._next += 1
        return self._tickets[-1]

    def serve(self, ticket: int) -> bool:
        """Whether it was the turn of this one."""
        while self._tickets[0] in self._served:
            self._served.discard(self._tickets.popleft())
        if self._tickets[0] == ticket:
            self._tickets.popleft()
            return True
        self._served.add(ticket)
        return False


def table(samples: Samples, versus: dict[str, Versus]) -> Table:
    result = Table(
        f"Fairness: {TASKS} greedy tasks over {RESOURCES} resources",
        [
            "",
            "fewest turns",
            "most turns",
            "median wait, \N{MICRO SIGN}s",
            "longest wait, \N{MICRO SIGN}s",
            "longest, to cenote",
            "overtook an older one",
        ],
    )
    for name in present():
        found = {
            what: median(samples[f"{what}: {name}"])
            for what in (FEWEST, MOST, MIDDLE, LONGEST, OVERTOOK)
        }
        result.rows.append(
            [
                name,
                f"{found[FEWEST]:.0%}",
                f"{found[MOST]:.0%}",
                f"{found[MIDDLE] * 1e6:,.0f}",
                f"{found[LONGEST] * 1e6:,.0f}",
                str(versus.get(name, "1")),
                f"{found[OVERTOOK]:.1%}",
            ]
        )
    result.notes.append(
        "Turns of the task that got the fewest and the most, in percent of an even share. Each "
        "task holds the resource\nfor a few turns of the event loop, gives it back and asks again "
        "at once."
    )
    return result
