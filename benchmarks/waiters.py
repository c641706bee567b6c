"""What a hand-off and a cancellation cost when few and when many are waiting.

A step is HANDS hand-offs, or cancellations in the middle of the queue, and the turns of the event
loop in which the tasks concerned run to their end; the queue is filled up again outside of the
measurement.
"""

import asyncio
from collections import defaultdict
from time import perf_counter
from typing import Any

from .measure import (
    Goal,
    Part,
    Samples,
    Scale,
    Table,
    compare,
    median,
    quiet,
    ratios,
    spread,
    times,
)
from .pools import CENOTE, present
from .rivals import Rival, settle

HANDS = 5
ASYNCIO = ("asyncio.Queue", "asyncio.Semaphore")
FLAT = 3.0  # how much the largest number of waiters may cost beside the smallest
REPEATS = 2  # each builds every queue anew
LONG = 50_000  # such queues are built only once, and measured for longer
LIMIT = 150.0  # seconds for one queue; a rival that would need more is not given it


class Line:
    """A rival with everything taken, and a number of tasks that wait for it."""

    def __init__(self, rival: Rival) -> None:
        self._rival = rival
        self._held: list[Any] = []
        self._tasks: dict[asyncio.Task[None], None] = {}  # as they came

    async def fill(self, waiters: int) -> None:
        await self._rival.open()
        for _ in range(HANDS):
            self._held.append(await self._rival.take())
        await self._add(waiters)

    async def hand_off(self) -> float:
        given, self._held = self._held, []
        give, held = self._rival.give, self._held
        began = perf_counter()
        for item in given:
            waiting = give(item)
            if waiting is not None:
                await waiting
        while len(held) < HANDS:  # noqa: ASYNC110 - turns of the loop, not an event, are counted
            await asyncio.sleep(0)
        seconds = perf_counter() - began
        await self._add(HANDS)
        return seconds / HANDS

    async def cancel(self) -> float:
        tasks = list(self._tasks)
        middle = (len(tasks) - HANDS) // 2
        victims = tasks[middle : middle + HANDS]
        del tasks
        began = perf_counter()
        for task in victims:
            task.cancel()
        while not all(task.done() for task in victims):  # noqa: ASYNC110
            await asyncio.sleep(0)
        seconds = perf_counter() - began
        assert all(task.cancelled() for task in victims)
        for task in victims:
            del self._tasks[task]
        await self._add(HANDS)
        return seconds / HANDS

    async def empty(self) -> None:
        # From the front: only there is it quick for all of them.
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for item in self._held:
            await settle(self._rival.give(item))
        await self._rival.close()

    async def _wait(self) -> None:
        taken = await self._rival.take()
        self._held.append(taken)
        task = asyncio.current_task()
        assert task is not None
        del self._tasks[task]

    async def _add(self, number: int) -> None:
        for _ in range(number):
            self._tasks[asyncio.create_task(self._wait())] = None
        for _ in range(3):  # turns until the last of them waits, whatever it is that it awaits
            await asyncio.sleep(0)


async def run(scale: Scale) -> Part:
    samples: Samples = defaultdict(list)
    rivals = present()
    slow: set[str] = set()
    for repeat in range(REPEATS):
        for waiters in scale.waiters:
            if waiters >= LONG and repeat > 0:
                continue
            rounds = scale.rounds * (REPEATS if waiters >= LONG else 1)
            for name, make in rivals.items():
                if waiters >= LONG and name in slow:
                    continue
                began = perf_counter()
                with quiet():
                    line = Line(make(HANDS))
                    await line.fill(waiters)
                    hand_offs, cancels = await measure(line, rounds, scale.steps)
                    await line.empty()
                samples[f"hand-off: {name}, {waiters}"] += hand_offs
                samples[f"cancel: {name}, {waiters}"] += cancels
                if perf_counter() - began > LIMIT / 10:  # the next queue is ten times as long
                    slow.add(name)
    part = Part([], samples)
    for title, what in (
        ("Hand-off to the oldest of many waiters", "hand-off"),
        ("Cancelling a waiter in the middle of many", "cancel"),
    ):
        part.tables.append(table(title, what, samples, scale))
        for waiters in (scale.waiters[0], scale.waiters[-1]):
            found = {name: samples.get(f"{what}: {name}, {waiters}", []) for name in rivals}
            found = {name: values for name, values in found.items() if values}
            part.versus += compare(f"{what}, {waiters:,} waiting", found, CENOTE).values()
    part.goals.append(goal_of(samples, scale.waiters[0]))
    return part


def goal_of(samples: Samples, waiters: int) -> Goal:
    """Cancelling one of a few, beside the cheaper of those of asyncio."""
    ours = samples[f"cancel: {CENOTE}, {waiters}"]
    beside = [median(ratios(ours, samples[f"cancel: {name}, {waiters}"])) for name in ASYNCIO]
    return Goal(f"cancelling one of {waiters} waiters, to asyncio's own", 1.0, max(beside))


async def measure(line: Line, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds for one hand-off and for one cancellation, round by round."""
    hand_offs, cancels = [], []
    await line.hand_off()
    await line.cancel()
    for _ in range(rounds):
        hand_offs.append(median([await line.hand_off() for _ in range(steps)]))
        cancels.append(median([await line.cancel() for _ in range(steps)]))
    return hand_offs, cancels


def table(title: str, what: str, samples: Samples, scale: Scale) -> Table:
    few, many = scale.waiters[0], scale.waiters[-1]
    result = Table(
        f"{title}, \N{MICRO SIGN}s each",
        [
            "",
            *(f"{number:,} waiting" for number in scale.waiters),
            "spread",
            "largest/smallest",
            "",
        ],
    )
    for name in present():
        found = {number: samples.get(f"{what}: {name}, {number}", []) for number in scale.waiters}
        cells = [f"{median(values) * 1e6:,.2f}" if values else "-" for values in found.values()]
        if found[many]:
            growth = median(found[many]) / median(found[few])
            end = [spread(found[many]), times(growth), "PASS" if growth <= FLAT else "MISSED"]
        else:
            end = ["-", "-", "too slow"]
        result.rows.append([name, *cells, *end])
    result.notes.append(
        f"PASS: flat within {FLAT:.0f}x. The spread is that of the last number. `-`: not tried, "
        f"because a queue a tenth as long took more than {LIMIT / 10:.0f} s."
    )
    return result
