"""How long the acquires of a pool wait, and how long what they got is held: totals and histograms.

The totals are always counted. A histogram is made by an exporter, with bounds of its own, and read
when somebody asks; a core without any pays one look at an empty tuple.
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


class Times:
    """The part of the core that counts waits and holds."""

    def __init__(self) -> None:
        self.histograms: tuple[Histograms, ...] = ()
        self.reset_times()

    def reset_times(self) -> None:
        self.wait_time: float = 0.0  # seconds, of those that were served
        self.max_wait_time: float = 0.0
        self.hold_time: float = 0.0  # seconds, of those that came back
        self.max_hold_time: float = 0.0

    def note_wait(self, seconds: float) -> None:
        """A claim is served after so many seconds."""
        self.wait_time += seconds
        self.max_wait_time = max(self.max_wait_time, seconds)
        for histograms in self.histograms:
            histograms.waited(seconds)

    def note_hold(self, seconds: float) -> None:
        """What a claim held comes back after so many seconds."""
        self.hold_time += seconds
        self.max_hold_time = max(self.max_hold_time, seconds)
        for histograms in self.histograms:
            histograms.held(seconds)
