"""What a hand-off and a cancellation cost when few and when many are waiting.

A step is HANDS hand-offs, or cancellations in the middle of the queue, and the one turn of the
event loop in which the tasks concerned run to their end; the queue is filled up again outside of
the measurement.
"""

import asyncio
from collections import defaultdict, deque
from time import perf_counter
from typing import Any

from .measure import Samples, Scale, Table, median, quiet, spread, times
from .rivals import RIVALS, Rival

HANDS = 5
FLAT = 3.0  # how much the largest number of waiters may cost beside the smallest
REPEATS = 2  # each builds every queue anew


class Line:
    """A rival with everything taken, and a number of tasks that wait for it."""

    def __init__(self, rival: Rival) -> None:
        self._rival = rival
        self._held: list[Any] = []
        self._tasks: deque[asyncio.Task[None]] = deque()

    async def fill(self, waiters: int) -> None:
        for _ in range(HANDS):
            self._held.append(await self._rival.take())
        await self._add(waiters)

    async def hand_off(self) -> float:
        given, self._held = self._held, []
        rival = self._rival
        began = perf_counter()
        for item in given:
            rival.give(item)
        await asyncio.sleep(0)
        seconds = perf_counter() - began
        assert len(self._held) == HANDS
        for _ in range(HANDS):
            self._tasks.popleft()
        await self._add(HANDS)
        return seconds / HANDS

    async def cancel(self) -> float:
        middle = (len(self._tasks) - HANDS) // 2
        self._tasks.rotate(-middle)
        victims = [self._tasks.popleft() for _ in range(HANDS)]
        self._tasks.rotate(middle)
        began = perf_counter()
        for task in victims:
            task.cancel()
        await asyncio.sleep(0)
        seconds = perf_counter() - began
        assert all(task.cancelled() for task in victims)
        await self._add(HANDS)
        return seconds / HANDS

    async def empty(self) -> None:
        # From the front: only there is it quick for all of them.
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for item in self._held:
            self._rival.give(item)
        await self._rival.close()

    async def _wait(self) -> None:
        taken = await self._rival.take()
        self._held.append(taken)

    async def _add(self, number: int) -> None:
        for _ in range(number):
            self._tasks.append(asyncio.create_task(self._wait()))
        await asyncio.sleep(0)


async def run(scale: Scale) -> tuple[Table, Table, Samples]:
    samples: Samples = defaultdict(list)
    for _ in range(min(REPEATS, scale.rounds)):
        for waiters in scale.waiters:
            for name, make in RIVALS.items():
                line = Line(make(HANDS))
                await line.fill(waiters)
                with quiet():
                    hand_offs, cancels = await measure(line, scale)
                await line.empty()
                samples[f"hand-off: {name}, {waiters}"] += hand_offs
                samples[f"cancel: {name}, {waiters}"] += cancels
    return (
        table("Hand-off to the oldest of many waiters", "hand-off", samples, scale),
        table("Cancelling a waiter in the middle of many", "cancel", samples, scale),
        samples,
    )


async def measure(line: Line, scale: Scale) -> tuple[list[float], list[float]]:
    """Seconds for one hand-off and for one cancellation, round by round."""
    hand_offs, cancels = [], []
    await line.hand_off()
    await line.cancel()
    for _ in range(scale.rounds):
        hand_offs.append(median([await line.hand_off() for _ in range(scale.steps)]))
        cancels.append(median([await line.cancel() for _ in range(scale.steps)]))
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
    for name in RIVALS:
        found = {number: samples[f"{what}: {name}, {number}"] for number in scale.waiters}
        growth = median(found[many]) / median(found[few])
        result.rows.append(
            [
                name,
                *(f"{median(values) * 1e6:,.2f}" for values in found.values()),
                spread(found[many]),
                times(growth),
                "PASS" if growth <= FLAT else "over",
            ]
        )
    result.notes.append(f"PASS: flat within {FLAT:.0f}x. The spread is that of the last number.")
    return result
