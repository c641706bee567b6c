"""Rounds, medians and tables: what all benchmarks share."""

import gc
import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
MISSED = "MISSED"  # the mark of a goal
Samples = dict[str, list[float]]  # case -> one number for each round
Case = Callable[[int], Awaitable[float]]  # number of operations -> seconds for all of them


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int
    short_rounds: int  # of the uncontended cases, which are quick
    operations: int  # of one case in one round, uncontended
    waiters: tuple[int, ...]
    steps: int  # measured at each number of waiters in each round
    objects: int  # in the memory benchmark
    tasks: int  # in the contended benchmark
    turns: int  # of each of those tasks
    seconds: float  # of arrivals in one round of the tail latency
    rows: int  # of a stream
    restarts: int  # of each server
    apart: float = 0.4  # seconds of a job in a process of its own
    series: int = 20_000  # rows of execute_many()


FULL = Scale(7, 35, 4_000, (10, 100, 1_000, 10_000, 100_000), 20, 2_000, 1_000, 10, 1.5, 2_000, 3)
QUICK = Scale(2, 3, 500, (10, 100, 1_000), 5, 200, 100, 5, 0.1, 200, 1, 0.05, 4_000)


@dataclass(slots=True)
class Table:
    title: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        cells = [self.header, *self.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.header))]
        rule = [("-" * width) if column == 0 else "-" * (width - 1) + ":"
                for column, width in enumerate(widths)]  # fmt: skip
        lines = [self._line(row, widths) for row in (self.header, rule, *self.rows)]
        return "\n".join([f"## {self.title}", "", *lines, *(f"\n{note}" for note in self.notes)])

    @staticmethod
    def _line(row: Sequence[str], widths: Sequence[int]) -> str:
        first, *rest = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"


@dataclass(frozen=True, slots=True)
class Versus:
    """How many times as much a rival costs as cenote; below 1 cenote loses."""

    what: str
    rival: str
    ratio: float  # the median of the rounds
    low: float  # the quartiles around it
    high: float

    def __str__(self) -> str:
        return f"{times(self.ratio)} ({short(self.low)} to {short(self.high)})"

    @property
    def lost(self) -> bool:
        """Beyond the spread: three rounds of four."""
        return round(self.high, 2) < 1


@dataclass(slots=True)
class Part:
    """What one benchmark found."""

    tables: list[Table]
    samples: Samples
    goals: "list[Goal]" = field(default_factory=list)
    versus: list[Versus] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a ratio should be. `measured` is None where it could not be measured."""

    what: str
    limit: float
    measured: float | None
    at_least: bool = False
    unit: str = "x"

    @property
    def mark(self) -> str:
        if self.measured is None:
            return "skipped"
        kept = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "PASS" if kept else MISSED

    def show(self, value: float) -> str:
        return times(value) if self.unit == "x" else f"{value:.1f}{self.unit}"

    @staticmethod
    def table(goals: "Sequence[Goal]") -> Table:
        result = Table("Goals", ["", "measured", "goal", ""])
        for goal in goals:
            measured = "-" if goal.measured is None else goal.show(goal.measured)
            limit = f"{'at least' if goal.at_least else 'at most'} {goal.show(goal.limit)}"
            result.rows.append([goal.what, measured, limit, goal.mark])
        return result


async def interleave(cases: Mapping[str, Case], *, rounds: int, operations: int) -> Samples:
    """Seconds for one operation. Every round runs every case, so that a slow moment hits all.

    Each round begins with another case: to be the first, or behind a certain one, is nobody's lot.
    """
    samples: Samples = {name: [] for name in cases}
    for case in cases.values():
        await case(max(1, operations // 10))  # warm up
    for number in range(rounds):
        with quiet():
            for name, case in rotated(cases, number):
                samples[name].append(await case(operations) / operations)
    return samples


def rotated(cases: Mapping[str, T], number: int) -> list[tuple[str, T]]:
    """All of them, beginning with the one of that number."""
    items = list(cases.items())
    start = number % len(items)
    return items[start:] + items[:start]


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection in between, and none of what existed before."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """How far the rounds are apart, in percent of the median."""
    low, high = min(values) / median(values) - 1, max(values) / median(values) - 1
    return f"{low:+.0%} {high:+.0%}"


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Round by round, so that a slow round of both does not count."""
    return [one / other for one, other in zip(values, base, strict=True)]


def ratio(values: Sequence[float], base: Sequence[float]) -> str:
    return times(median(ratios(values, base)))


def compare(
    what: str, samples: Samples, base: str, *, more_is_better: bool = False
) -> dict[str, Versus]:
    """Every other case beside the base, round by round."""
    found = {}
    for name, values in samples.items():
        if name != base:
            pair = (samples[base], values) if more_is_better else (values, samples[base])
            each = ratios(*pair)
            found[name] = Versus(
                what, name, median(each), percentile(each, 25), percentile(each, 75)
            )
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Between two values it lies on the line that joins them."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def times(value: float) -> str:
    return f"{short(value)}x"


def short(value: float) -> str:
    return f"{value:.2f}" if value < 9.95 else f"{value:,.0f}"
