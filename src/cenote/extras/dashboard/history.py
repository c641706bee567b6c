"""One look at a pool: its state, and what its history has that the page does not know yet.

It is used in the pool's own loop and thread.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from typing import Any, Final, NamedTuple

from ...observe import (
    Entry,
    EventKind,
    LaneStats,
    PoolEvent,
    Sample,
    SlotView,
    Stats,
    View,
    WaiterView,
    entries_of,
    lanes_of,
    look,
    samples_of,
)
from ...pool import Pool
from ...states import CircuitState
from . import text
from .statements import Running, Totals

BOUNDS: Final = [10 ** (step / 4) for step in range(-20, 9)]  # seconds: 10 us to 100 s
WINDOW: Final = 30.0  # seconds that one part of a distribution covers
WINDOWS: Final = 10  # parts that are kept
RECENT: Final = 3.0  # seconds for which a refusal is of now
TOP: Final = 3  # holders that are named if nothing is free
WAITERS: Final = 50  # shown, the oldest first
DRIFT: Final = 0.5  # seconds by which wall clock and loop may part before they are aligned again

Event = list[Any]  # ms, kind, task, text, seconds, times, ms of the last, number: as it is sent
# As it is sent: ms, acquired, waiting, active, failed or timed out, refused, timed out.
Row = list[int]


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
    circuit_broken: int | None  # likewise; since when it has not been closed
    strategy: str | None
    failure: str | None
    failed: int | None  # ms of the wall clock: when that was
    retry: int | None  # ms of the wall clock: when an open breaker lets a probe pass
    recovering_limit: int
    hooked: int
    thread: int
    waits: list[int]
    holds: list[int]
    events: list[Event]  # that are new or have grown since the last report
    switched: dict[int, int]  # number of an event about the breaker -> the place of its last switch
    samples: list[Row]  # since the last report
    saturated: int | None  # ms since when acquires have waited without a break
    top: list[list[Any]]  # the longest holders, if it is saturated: task, place, since in ms
    waiters: list[list[Any]]  # task, place, since and deadline in ms, lane
    slots: list[SlotView] | None  # None: not asked for
    offset: float  # from the pool's clock to the wall clock
    running: dict[int, Running]  # what a database runs now, by the id of the task
    denied: list[str]  # why acquires were refused in the last seconds
    lanes: list[list[Any]]  # see _lane()
    slowest: list[list[Any]]  # see Totals.slowest()


class Reader:
    """Reads the history of one pool, and counts its durations while a page is open."""

    def __init__(self) -> None:
        self._waits = Distribution()
        self._holds = Distribution()
        self._known = 0  # of the journal: everything up to this was reported
        self._sampled = 0.0  # of the pool's clock: likewise
        self._refused: dict[str, float] = {}  # reason -> when last, of the pool's clock
        self._saturated: float | None = None  # of the pool's clock: since when acquires wait
        self._offset = 0.0  # from the pool's clock to the wall clock, seconds
        self._turn_at: float | None = None  # of the pool's clock: the window ends

    def note(self, event: PoolEvent) -> None:
        """Count the durations of acquires and returns."""
        kind = event.kind
        if kind == EventKind.ACQUIRED:
            self._waits.add(event.duration or 0.0)
        elif kind == EventKind.RELEASED:
            self._holds.add(event.duration or 0.0)

    def report(self, pool: Pool[Any], *, slots: bool, statements: Totals | None = None) -> Report:
        """Return the state of the pool, and its history since the last report."""
        stats = pool.stats()
        view = look(pool, slots=slots or stats.waiting > 0, waiters=WAITERS if slots else 0)
        self.align(view.now)
        if view.thread:  # until it is opened, a pool reads another clock than its loop's
            self._turn(view.now)
        samples = samples_of(pool, self._sampled)
        if samples:
            self._sampled = samples[-1].time
        entries = entries_of(pool, self._known)
        self._known = max((entry.changed for entry in entries), default=self._known)
        self._notice(stats, samples)
        return Report(
            stats=stats,
            min_size=pool.min_size,
            max_size=pool.max_size,
            phase=view.phase,
            circuit=view.circuit,
            circuit_since=None if view.circuit_since is None else self._ms(view.circuit_since),
            circuit_broken=None if view.circuit_broken is None else self._ms(view.circuit_broken),
            strategy=None if view.strategy is None else type(view.strategy).__name__,
            failure=None if view.failure is None else text.clean(view.failure),
            failed=None if view.failed is None else self._ms(view.failed),
            retry=self._retry(view),
            recovering_limit=view.recovering_limit,
            hooked=view.hooked,
            thread=view.thread,
            waits=self._waits.counts(),
            holds=self._holds.counts(),
            events=[self._written(entry) for entry in entries],
            switched={
                entry.number: entry.changed
                for entry in entries
                if entry.kind is EventKind.STATE_CHANGED
            },
            samples=[self._row(sample) for sample in samples],
            saturated=None if self._saturated is None else self._ms(self._saturated),
            top=[] if self._saturated is None else self._top(view),
            waiters=[self._waiter(waiter) for waiter in view.waiters],
            slots=view.slots if slots else None,
            offset=self._offset,
            running={} if statements is None else statements.running(),
            denied=self._denied(entries, view.now),
            lanes=[_lane(lane) for lane in lanes_of(pool)] if slots else [],
            slowest=[] if statements is None or not slots else statements.slowest(),
        )

    def _turn(self, now: float) -> None:
        """End the windows that are over: several, if no page was open for a while."""
        if self._turn_at is not None:
            left = self._turn_at - now
            if 0 < left <= WINDOW:
                return
            over = 1 - left // WINDOW  # negative if the pool was opened again in another loop
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
            None if waiter.lane is None else text.clean(waiter.lane),
        ]

    def _denied(self, entries: list[Entry], now: float) -> list[str]:
        """Return the reasons of the refusals of the last seconds."""
        for entry in entries:
            if entry.kind is EventKind.REFUSED and entry.text is not None:
                self._refused[entry.text] = entry.last
        return sorted(reason for reason, last in self._refused.items() if now - last < RECENT)

    def _retry(self, view: View) -> int | None:
        """Return when the next probe is due, to 0.1 s: it must not seem to change all the time."""
        ask = getattr(view.strategy, "retry_after", None)
        if view.circuit != CircuitState.INACTIVE or ask is None:
            return None
        try:
            seconds = ask()
        except Exception:  # a strategy of the program
            return None
        return None if seconds is None else round((view.now + seconds + self._offset) * 10) * 100

    def _written(self, entry: Entry) -> Event:
        return [
            self._ms(entry.first),
            str(entry.kind),
            None if entry.task is None else text.clean(entry.task),
            None if entry.text is None else text.clean(entry.text),
            entry.duration,
            entry.times,
            self._ms(entry.last),
            entry.number,
        ]

    def _row(self, sample: Sample) -> Row:
        return [
            self._ms(sample.time),
            sample.acquired,
            sample.waiting,
            sample.active,
            sample.failed + sample.timeouts,
            sample.refused,
            sample.timeouts,
        ]

    def _notice(self, stats: Stats, samples: list[Sample]) -> None:
        """See since when acquires wait without a break, at the end of every second."""
        for sample in samples:
            if not sample.waiting:
                self._saturated = None
            elif self._saturated is None:
                self._saturated = sample.time
        if not stats.waiting:
            self._saturated = None

    def _top(self, view: View) -> list[list[Any]]:
        held = [slot for slot in view.slots if slot.state == "active" and slot.since is not None]
        held.sort(key=lambda slot: slot.since or 0.0)
        return [
            [
                text.clean(slot.task or "no task"),
                text.place(slot.code, slot.instruction),
                self._ms(slot.since or 0.0),
            ]
            for slot in held[:TOP]
        ]


def _lane(lane: LaneStats) -> list[Any]:
    """Return name, priority, limit, in use, waiting, acquired, refused, failed or timed out, and
    how long the oldest has waited, in seconds."""
    return [
        text.clean(lane.name),
        lane.priority,
        lane.max_size,
        lane.active,
        lane.waiting,
        lane.acquired,
        sum(lane.refused.values()),
        lane.failed + lane.timeouts,
        round(lane.oldest_wait, 1),
    ]
