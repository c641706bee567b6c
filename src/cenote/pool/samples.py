"""Samples: what a pool did in every second of the last 15 minutes, in 36 bytes a second.

Nothing wakes up to take one. Whatever happens in the pool looks at the clock anyway, and the first
thing that happens after the end of a second records that second, before it changes anything. So
everything counted since the sample before has happened within one second, and in the seconds
between that one and now nothing has happened at all: they need no row, and a reader fills them in.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

SECONDS: Final = 900  # that are kept
COUNTS: Final = 7  # numbers in a sample, beside its time
MOST: Final = 2**32 - 1  # that fits


class Sample(NamedTuple):
    """One second of a pool: four numbers of what happened in it, and three of its end."""

    time: float  # when the second ended, of the pool's clock
    acquired: int
    timeouts: int
    failed: int
    refused: int
    waiting: int
    active: int
    size: int  # idle and active


Totals = tuple[int, int, int, int]  # acquired, timeouts, failed, refused: since the beginning
Gauges = tuple[int, int, int]  # waiting, active, count


class Samples:
    """A ring of the last seconds; the times are of the pool's clock."""

    __slots__ = ("_before", "_counts", "_oldest", "_times", "due")

    def __init__(self, now: float, totals: Totals = (0, 0, 0, 0)) -> None:
        self.due: float = now + 1.0  # when the second under way ends
        self._before = totals  # at the sample before
        self._times = array("d")
        self._counts = array("I")
        self._oldest = 0  # where the oldest row is, once the ring is full

    def take(self, now: float, totals: Totals, gauges: Gauges) -> None:
        """Record the second that ended at `due`; the numbers are those of before this moment."""
        ended = self.due
        row = [
            min(max(0, total - before), MOST)
            for total, before in zip(totals, self._before, strict=True)
        ]
        row += [min(value, MOST) for value in gauges]
        # First the end of the next second: whatever else happens meanwhile is not sampled again.
        self.due = ended + int(now - ended) + 1.0
        self._before = totals
        at = self._oldest
        if len(self._times) < SECONDS:
            self._times.append(ended)
            self._counts.extend(row)
        else:
            self._times[at] = ended
            self._counts[at * COUNTS : (at + 1) * COUNTS] = array("I", row)
            self._oldest = (at + 1) % SECONDS

    def since(self, begin: float, now: float) -> Iterator[Sample]:
        """Return the seconds that ended after `begin`, the oldest first, up to now."""
        begin = max(begin, now - SECONDS)
        rows = len(self._times)
        for index in range(self._first_after(begin), rows):
            at = (self._oldest + index) % rows
            ended = self._times[at]
            counts = self._counts[at * COUNTS : (at + 1) * COUNTS]
            if ended > begin:
                yield Sample(ended, *counts)
            following = (
                self._times[(at + 1) % rows] if index + 1 < rows else self.due
            ) - 0.5  # rows are whole seconds apart
            quiet = max(1.0, float(int(begin - ended)))
            while ended + quiet < following:
                if ended + quiet > begin:
                    yield Sample(ended + quiet, 0, 0, 0, 0, *counts[4:])
                quiet += 1.0

    def _first_after(self, begin: float) -> int:
        """Return the index of the last row that ended before `begin`, or 0."""
        rows = len(self._times)
        index = rows - 1
        while index > 0 and self._times[(self._oldest + index) % rows] > begin:
            index -= 1
        return max(index, 0)
