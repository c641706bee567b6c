"""Rounds, medians and tables: what all benchmarks share."""

import gc
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

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


FULL = Scale(7, 35, 4_000, (10, 1_000, 100_000), 20, 10_000, 1_000, 20)
QUICK = Scale(2, 2, 500, (10, 100, 1_000), 5, 500, 100, 5)


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
        return "PASS" if kept else "under" if self.at_least else "over"

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
    """Seconds for one operation. Every round runs every case, so that a slow moment hits all."""
    samples: Samples = {name: [] for name in cases}
    for case in cases.values():
        await case(max(1, operations // 10))  # warm up
    for _ in range(rounds):
        with quiet():
            for name, case in cases.items():
                samples[name].append(await case(operations) / operations)
    return samples


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


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 9.95 else f"{value:,.0f}x"
