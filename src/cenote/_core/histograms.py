"""How long the acquires of a pool wait, and how long what they got is held, in buckets.

A histogram is made by an exporter, with bounds of its own, and read when somebody asks; a core
without any pays one look at an empty tuple. The totals are always counted: `records.Times`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histograms:
    """Waits and holds in buckets: for each its count, and the sum of its seconds.

    `bounds` are the upper bounds, rising; what is above the last one has a bucket, too.
    """

    __slots__ = ("_bounds", "_holds", "_waits")

    def __init__(self, bounds: Sequence[float]) -> None:
        if not bounds:
            raise ValueError("bounds must not be empty")
        self._bounds = [float(bound) for bound in bounds]
        self._waits = [(0, 0.0)] * (len(bounds) + 1)
        self._holds = self._waits.copy()

    @property
    def waits(self) -> list[tuple[int, float]]:
        return self._waits.copy()

    @property
    def holds(self) -> list[tuple[int, float]]:
        return self._holds.copy()

    def waited(self, seconds: float) -> None:
        self._add(self._waits, seconds)

    def held(self, seconds: float) -> None:
        self._add(self._holds, seconds)

    def _add(self, buckets: list[tuple[int, float]], seconds: float) -> None:
        place = bisect_left(self._bounds, seconds)
        count, total = buckets[place]
        buckets[place] = count + 1, total + seconds  # one step for a reader in another thread
