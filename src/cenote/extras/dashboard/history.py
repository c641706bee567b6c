"""What one pool did while a page was open. It is used in the pool's own loop and thread."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from typing import Any, Final, NamedTuple

from ...observe import EventKind, PoolEvent, SlotView, Stats, WaiterView, look
from ...pool import Pool
from . import text

BOUNDS: Final = [10 ** (step / 4) for step in range(-20, 9)]  # seconds: 10 us to 100 s
WINDOW: Final = 30.0  # seconds that one part of a distribution covers
WINDOWS: Final = 10  # parts that are kept
EVENTS: Final = 100  # kept of each pool
WAITERS: Final = 50  # shown, the oldest first
DRIFT: Final = 0.5  # seconds by which wall clock and loop may part before they are aligned again

Event = list[Any]  # ms, kind, task, text, seconds: as it is sent


class Distribution:
    """A histogram of the durations of the last minutes."""

    def __init__(self) -> None:
        self._present = [0] * (len(BOUNDS) + 1)
        self._past: deque[list[int]] = deque(maxlen=WINDOWS - 1)

    def add(self, seconds: float) -> None:
        self._present[bisect_right(BOUNDS, seconds)] += 1

    def turn(self) -> None:
        """Begin the next window."""
        self._past.append(self._present)
        self._present = [0] * (len(BOUNDS) + 1)

    def counts(self) -> list[int]:
        return [sum(column) for column in zip(self._present, *self._past, strict=True)]


class Report(NamedTuple):
    """The state of a pool at one moment, as plain data that may go to another thread."""

    stats: Stats
    min_size: int
    max_size: int
    phase: str
    circuit: str
    circuit_since: int | None  # ms of the wall clock
    strategy: str | None
    failure: str | None
    recovering_limit: int
    hooked: int
    thread: int
    waits: list[int]
    holds: list[int]
    events: list[Event]  # since the last report
    waiters: list[list[Any]]  # task, place, since and deadline in ms
    slots: list[SlotView] | None  # None: not asked for
    offset: float  # from the pool's clock to the wall clock


class History:
    """Distributions and events of one pool."""

    def __init__(self) -> None:
        self._waits = Distribution()
        self._holds = Distribution()
        self._events: deque[Event] = deque(maxlen=EVENTS)  # not yet reported
        self._offset = 0.0  # from the pool's clock to the wall clock, seconds
        self._turn_at = 0.0  # of the pool's clock: the window ends

    def note(self, event: PoolEvent) -> None:
        """Record an event of the pool."""
        kind = event.kind
        if kind == EventKind.ACQUIRED:
            self._waits.add(event.duration or 0.0)
        elif kind == EventKind.RELEASED:
            self._holds.add(event.duration or 0.0)
        elif kind != EventKind.WAITING:
            self._events.append(self._written(event))

    def report(self, pool: Pool[Any], *, slots: bool) -> Report:
        """Return the state of the pool and the events since the last report."""
        view = look(pool, slots=slots, waiters=WAITERS if slots else 0)
        self.align(view.now)
        self._turn(view.now)
        events, self._events = list(self._events), deque(maxlen=EVENTS)
        return Report(
            stats=pool.stats(),
            min_size=pool.min_size,
            max_size=pool.max_size,
            phase=view.phase,
            circuit=view.circuit,
            circuit_since=None if view.circuit_since is None else self._ms(view.circuit_since),
            strategy=None if view.strategy is None else type(view.strategy).__name__,
            failure=None if view.failure is None else text.clean(view.failure),
            recovering_limit=view.recovering_limit,
            hooked=view.hooked,
            thread=view.thread,
            waits=self._waits.counts(),
            holds=self._holds.counts(),
            events=events,
            waiters=[self._waiter(waiter) for waiter in view.waiters],
            slots=view.slots if slots else None,
            offset=self._offset,
        )

    def _turn(self, now: float) -> None:
        """End the windows that are over: several, if no page was open for a while."""
        left = self._turn_at - now
        if 0 < left <= WINDOW:
            return
        over = 1 if left > 0 else 1 - left // WINDOW  # left > WINDOW: the clock is another one
        for _ in range(int(min(over, WINDOWS))):
            self._waits.turn()
            self._holds.turn()
        self._turn_at = now + WINDOW

    def align(self, now: float) -> None:
        """Update the offset of the clocks if they drift; else a moment would change its number."""
        offset = time.time() - now
        if abs(offset - self._offset) > DRIFT:
            self._offset = offset

    def _ms(self, moment: float) -> int:
        return round((moment + self._offset) * 1000)

    def _waiter(self, waiter: WaiterView) -> list[Any]:
        return [
            text.clean(waiter.task),
            text.place(waiter.code, waiter.instruction),
            self._ms(waiter.since),
            None if waiter.deadline is None else self._ms(waiter.deadline),
        ]

    def _written(self, event: PoolEvent) -> Event:
        self.align(event.time)
        reason = event.reason
        if reason is not None:
            reason = (
                text.short(reason) if event.kind == EventKind.HELD_LONG else text.clean(str(reason))
            )
        said = [part for part in (reason, text.of_error(event.error)) if part]
        return [
            self._ms(event.time),
            str(event.kind),
            None if event.task is None else text.clean(event.task),
            " \u00b7 ".join(said) or None,
            event.duration,
        ]
