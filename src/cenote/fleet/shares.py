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
    """

    floor: int
    need: int
    ceiling: int

    @classmethod
    @lru_cache(maxsize=1024)  # of many members few differ
    def of(cls, floor: int, need: int, ceiling: int) -> Demand:
        """A demand with the three numbers brought into order; the ceiling wins."""
        least = min(floor, ceiling)
        return cls(least, min(max(least, need), ceiling), ceiling)


@dataclass(frozen=True, slots=True)
class Division:
    """What `divide` has found out.

    Attributes:
        case: "crowded", "scarce" or "ample".
        level: The largest level that fits: what each gets between its bounds.
        rest: How many resources are left after that, and go to one member each.
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
    eligible = [i for i, each in enumerate(demands) if part(each, level + 1) > parts[i]]
    if not eligible:
        return Division(case, level, 0, tuple(parts))
    rest = min(rest, len(eligible))
    first = 0 if case == "ample" else turn * rest % len(eligible)
    for i in range(rest):
        parts[eligible[(first + i) % len(eligible)]] += 1
    return Division(case, level, rest, tuple(parts))


def equal_parts(demands: Sequence[Demand], budget: int) -> tuple[int, ...]:
    """What each may have without asking anybody: the division if everybody needed everything."""
    return divide([Demand(e.floor, e.ceiling, e.ceiling) for e in demands], budget).parts


def _case(demands: Sequence[Demand], budget: int) -> tuple[str, Callable[[Demand, int], int]]:
    if sum(each.floor for each in demands) > budget:
        return "crowded", lambda each, level: min(each.floor, level)
    if sum(each.need for each in demands) > budget:
        return "scarce", lambda each, level: max(each.floor, min(each.need, level))
    return "ample", lambda each, level: max(each.need, min(each.ceiling, level))


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
