"""Who should have how much of a budget: pure functions of what everybody needs.

The parts are max-min fair: nobody gets more by taking it from one who has less. Three cases:

- crowded: the floors alone are more than the budget. Everybody gets the same, at most the floor;
  what is left goes round, so that with more members than resources they take turns.
- scarce: the needs are more than the budget. Everybody gets the floor at least, and no more than
  the need; what is left goes round.
- ample: everybody gets what is needed, and what nobody needs is lent in advance.

The parts are never more than the budget together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

TURN: Final = 5.0  # seconds for which one member keeps the resource that cannot be divided


@dataclass(frozen=True, slots=True)
class Demand:
    """What one member wants, checked: `floor` <= `need` <= `ceiling`.

    Attributes:
        floor: What it always gets: `max(1, min_size)`.
        need: The most it had in use and waited for at once, lately.
        ceiling: What it can use at most: its `max_size`.
        members: For how many it stands, if this is the sum of several: a level is for each of them.
        busy: How many of those need more than their floor.
    """

    floor: int
    need: int
    ceiling: int
    members: int = 1
    busy: int = 1

    @classmethod
    @lru_cache(maxsize=1024)  # of many members few differ
    def of(cls, floor: int, need: int, ceiling: int, members: int = 1, busy: int = 1) -> Demand:
        """A demand with the numbers brought into order; the ceiling wins."""
        least, many = min(floor, ceiling), max(1, members)
        return cls(least, min(max(least, need), ceiling), ceiling, many, min(max(1, busy), many))

    def crowded(self, level: int) -> int:
        """Its part where the floors alone are too much."""
        return min(self.floor, level * self.members)

    def scarce(self, level: int) -> int:
        """Its part where the needs are too much: those that are not busy have their floor."""
        quiet = self.floor * (self.members - self.busy) // self.members
        return max(self.floor, min(self.need, quiet + level * self.busy))

    def ample(self, level: int) -> int:
        """Its part where the needs are met."""
        return max(self.need, min(self.ceiling, level * self.members))


@dataclass(frozen=True, slots=True)
class Division:
    """What `divide` has found out.

    Attributes:
        case: "crowded", "scarce" or "ample".
        level: The largest level that fits: what each gets between its bounds.
        rest: How many resources are left after that, and go round.
        parts: The part of each member, in the order of the demands.
    """

    case: str
    level: int
    rest: int
    parts: tuple[int, ...]


def divide(demands: Sequence[Demand], budget: int, turn: int = 0) -> Division:
    """Divide a budget. `demands`: the oldest member first; `turn`: the number of the present turn,
    which says where the rest begins to go round."""
    case, part = _case(demands, budget)
    level = _largest_level(demands, budget, part)
    parts = [part(each, level) for each in demands]
    rest = max(0, budget - sum(parts))
    most = [part(each, level + 1) for each in demands]
    eligible = [i for i, each in enumerate(parts) if most[i] > each]
    if not eligible:
        return Division(case, level, 0, tuple(parts))
    rest = min(rest, sum([most[i] - parts[i] for i in eligible]))
    at = 0 if case == "ample" else turn * rest % len(eligible)
    left = rest
    while left:
        i = eligible[at % len(eligible)]
        if parts[i] < most[i]:
            parts[i] += 1
            left -= 1
        at += 1
    return Division(case, level, rest, tuple(parts))


def equal_parts(demands: Sequence[Demand], budget: int) -> tuple[int, ...]:
    """What each may have without asking anybody: the division if everybody needed everything."""
    every = [Demand(e.floor, e.ceiling, e.ceiling, e.members, e.members) for e in demands]
    return divide(every, budget).parts


def _case(demands: Sequence[Demand], budget: int) -> tuple[str, Callable[[Demand, int], int]]:
    if sum(each.floor for each in demands) > budget:
        return "crowded", Demand.crowded
    if sum(each.need for each in demands) > budget:
        return "scarce", Demand.scarce
    return "ample", Demand.ample


def _largest_level(
    demands: Sequence[Demand], budget: int, part: Callable[[Demand, int], int]
) -> int:
    """The largest level whose parts fit into the budget; no larger than the largest ceiling."""
    low, high = 0, max((each.ceiling for each in demands), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(part(each, middle) for each in demands) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def turn_at(now: float) -> int:
    """The number of the turn at this time of the ledger's clock."""
    return int(now // TURN)
