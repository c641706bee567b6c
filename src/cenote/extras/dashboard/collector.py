"""Samples every pool a few times a second while a page is open, and sends what has changed.

Nothing is queued for a viewer: each remembers the tick up to which it has seen everything, and
gets what changed after it. A slow viewer gets updates less often, and costs no memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...messages import without_text
from ...observe import SECONDS, pools, post, unsubscribe
from ...pool import Pool
from ...states import CircuitState
from ...timer import Timer
from . import text
from .fleets import Fleets
from .history import BOUNDS, Reader, Report
from .statements import StatementLog
from .tiles import Tiles

EVENTS: Final = 200  # kept of each pool
STALLED: Final = 2.0  # seconds without an answer of a pool's loop until the page shows it
FAREWELL: Final = 30.0  # seconds for which a pool that was closed is still shown
LINGER: Final = 2.0  # seconds in which a page comes back, and misses nothing
CHANGES: Final = 50  # of the breaker that are remembered
FAILED_PROBE: Final = [CircuitState.INACTIVE, CircuitState.RECOVERING, CircuitState.INACTIVE]
TROUBLE: Final = ("since", "failure", "retry", "denied", "saturated", "top")  # of a summary
VERSION: Final = 2  # of the messages

# Of the breaker: ms, state, and whether it is only known to have been so by then.
Change = tuple[int, str, bool]


class Viewer:
    """One open page."""

    def __init__(self, pool: int | None, name: str | None, after: str | None = None) -> None:
        self.pool = pool  # whose details it wants; None: of the first
        self.name = name  # by which that pool is found after a restart
        self.after = after  # the bookmark up to which the stream before has sent everything
        self.started = False  # the head of the answer is out
        self.comes_back = False  # it was asked to: the next stream follows
        self.seen = 0  # tick up to which it knows everything
        self.shown: int | None = None  # whose details were sent
        self.news: asyncio.Event = asyncio.Event()


class Watch:
    """One pool as the collector sees it; `_attach`, `_detach` and `_report` run in its loop."""

    def __init__(self, number: int, pool: Pool[Any], statements: StatementLog) -> None:
        self.number = number
        self.name: str = f"pool {number}" if pool.name is None else text.clean(pool.name)
        self.summary: dict[str, Any] = {}
        self.summary_changed: int = 0  # ticks, as everything named so
        self.tiles: Tiles = Tiles()
        self.waiters: list[Any] = []
        self.waiters_changed: int = 0
        self.waits: list[int] = []
        self.holds: list[int] = []
        self.distributions_changed: int = 0
        self.breaker: dict[str, Any] = {}
        self.changes: list[Change] = []
        self.breaker_changed: int = 0
        self.events: dict[int, tuple[int, list[Any]]] = {}  # number -> tick, event
        self.samples: deque[tuple[int, list[int]]] = deque(maxlen=SECONDS)  # tick, sample
        self.farewell: float | None = None  # when it is no longer shown
        self.slowest: list[list[Any]] = []  # statements of a database
        self.slowest_changed: int = 0
        self.lanes: list[list[Any]] = []
        self.lanes_changed: int = 0
        self._statements = statements
        self._pool = weakref.ref(pool)
        self._reader = Reader()
        self._attached = False
        self._asked: float | None = None  # when, if there is no answer yet
        self._answer: Report | None = None

    @property
    def pool(self) -> Pool[Any] | None:
        return self._pool()

    def attach(self) -> None:
        self._post(self._attach)

    def detach(self) -> None:
        self._post(self._detach)

    def look(self, tick: int, *, details: bool) -> None:
        """Take the last answer of the pool and ask again; a pool of this loop answers at once."""
        self._take_answer(tick)
        if self._asked is None:
            self._asked = time.monotonic()
            self._post(lambda: self._report(details))
            self._take_answer(tick)
        if not self.summary or self._waiting_for_answer() is not None:
            self._summarize(tick, None)

    def ended(self) -> bool:
        """Return whether the pool is closed and empty, and was shown for long enough."""
        pool = self.pool
        return pool is None or (
            pool.closed
            and not pool.count
            and self.farewell is not None
            and time.monotonic() > self.farewell
        )

    def _post(self, step: Callable[[], None]) -> None:
        pool = self.pool
        if pool is not None:
            post(pool, step)

    def _attach(self) -> None:
        pool = self.pool
        if pool is not None and not self._attached:
            self._attached = True
            pool.subscribe(self._reader.note)

    def _detach(self) -> None:
        pool = self.pool
        if pool is not None and self._attached:
            self._attached = False
            unsubscribe(pool, self._reader.note)

    def _report(self, details: bool) -> None:
        pool = self.pool
        if pool is not None:
            self._answer = self._reader.report(
                pool, slots=details, statements=self._statements.of(pool)
            )

    # -- taking in -------------------------------------------------------------------------------

    def _take_answer(self, tick: int) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._asked = None
            self._absorb(answer, tick)

    def _waiting_for_answer(self) -> float | None:
        waited = 0.0 if self._asked is None else time.monotonic() - self._asked
        return round(waited, 1) if waited > STALLED else None

    def _absorb(self, report: Report, tick: int) -> None:
        for _, change in sorted(self._switches(report)):
            self.changes.append(change)
            self.breaker_changed = tick
        for event in report.events:
            self.events.pop(event[-1], None)
            self.events[event[-1]] = (tick, event)
            if len(self.events) > EVENTS:
                del self.events[next(iter(self.events))]
        self.samples.extend((tick, sample) for sample in report.samples)
        if not self.changes or self.changes[-1][1] != report.circuit:
            since = report.circuit_since or now_ms()
            first = not self.changes and report.circuit_since is None
            self.changes.append((since, report.circuit, first))
            self.breaker_changed = tick
        shorten(self.changes)
        breaker = {
            "strategy": report.strategy,
            "failure": report.failure,
            "failed": report.failed,
            "limit": report.recovering_limit,
        }
        if breaker != self.breaker:
            self.breaker, self.breaker_changed = breaker, tick
        if (report.waits, report.holds) != (self.waits, self.holds):
            self.waits, self.holds = report.waits, report.holds
            self.distributions_changed = tick
        self._summarize(tick, report)
        if report.slots is None:
            return
        if report.waiters != self.waiters:
            self.waiters, self.waiters_changed = report.waiters, tick
        self.tiles.update(
            report.slots,
            tick=tick,
            now=now_ms(),
            offset=report.offset,
            creating=report.stats.creating,
            hooked=report.hooked,
            destroying=report.stats.destroying,
            running=report.running,
            explain=self._explain(),
        )
        if report.lanes != self.lanes:
            self.lanes, self.lanes_changed = report.lanes, tick
        if report.slowest != self.slowest:
            self.slowest, self.slowest_changed = report.slowest, tick

    def _summarize(self, tick: int, report: Report | None) -> None:
        """Update the summary; without a report, from what may be read in any thread."""
        pool = self.pool
        if pool is None:
            return
        stats = pool.stats() if report is None else report.stats
        summary = {
            "id": self.number,
            "name": self.name,
            "phase": self.summary.get("phase", "open") if report is None else report.phase,
            "state": str(pool.state),
            "min": pool.min_size,
            "max": pool.max_size,
            "idle": stats.idle,
            "active": stats.active,
            "hook": 0 if report is None else report.hooked,
            "creating": stats.creating,
            "destroying": stats.destroying,
            "waiting": stats.waiting,
            "acquired": stats.acquired,
            "created": stats.created,
            "destroyed": dict(stats.destroyed),
            "timeouts": stats.timeouts,
            "cancelled": stats.cancelled,
            "rejected": stats.rejected,
            "failed": stats.failed,
            "refused": dict(stats.refused),
            **self._trouble(report),
            "thread": "" if report is None else thread_name(report.thread),
            "stalled": self._waiting_for_answer() if report is None else None,
        }
        if summary["phase"] == "closed" and self.farewell is None:
            self.farewell = time.monotonic() + FAREWELL
        if summary != self.summary:
            self.summary, self.summary_changed = summary, tick

    def _explain(self) -> Callable[[str], str]:
        """Return what is shown of the reason of a pin: of a statement its shape, if at all."""
        pool = self.pool
        totals = None if pool is None else self._statements.of(pool)
        return without_text if totals is None else totals.reason

    def _trouble(self, report: Report | None) -> dict[str, Any]:
        """Return what the page says on top; without a report, what it said before."""
        if report is None:
            return {name: self.summary.get(name) for name in TROUBLE}
        return {
            "since": report.circuit_broken,
            "failure": report.failure,
            "retry": report.retry,
            "denied": report.denied,
            "saturated": report.saturated,
            "top": report.top,
        }

    def _switches(self, report: Report) -> Iterator[tuple[int, Change]]:
        """Yield the switches of the breaker that are in the events of a report, each with its place
        in their order: several may be in one millisecond.

        All switches of an outage are two events with a count, of which a page that is opened later
        knows the first and the last time only. Then the breaker counts as open in between: probes
        are short.
        """
        for first, _, _, said, _, times, last, number in report.events:
            if number in report.switched:
                state = said.partition(" ")[0]
                if number not in self.events and (times == 1 or state != CircuitState.RECOVERING):
                    yield number, (first, state, False)
                if times > 1:
                    yield report.switched[number], (last, state, False)


def shorten(changes: list[Change]) -> None:
    """Keep CHANGES of them: the oldest failed probes are left out first, since an outage that is
    longer must keep its beginning. The breaker counts as open in between: probes are short."""
    while len(changes) > CHANGES:
        states = [state for _, state, _ in changes]
        for index in range(1, len(changes) - 2):
            if states[index - 1 : index + 2] == FAILED_PROBE:
                del changes[index : index + 2]
                break
        else:
            del changes[0]


class Collector:
    """Samples all pools for the viewers of one event loop."""

    def __init__(self, interval: float, statements: StatementLog) -> None:
        # Numbers of pools are valid in this process only, so a command names the process.
        self.process: str = secrets.token_hex(8)
        self._interval = interval
        self._statements = statements
        self._watches: weakref.WeakKeyDictionary[Pool[Any], Watch] = weakref.WeakKeyDictionary()
        self._shown: list[Watch] = []
        self._shown_changed = 0
        self._numbers = 0
        self._viewers: set[Viewer] = set()
        self._tick = 0
        self._fleets = Fleets()
        self._timer = Timer()  # the next round, while somebody watches

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def join(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)
        if not self._timer.is_set:
            for watch in self._watches.values():
                watch.attach()
        else:
            self._timer.stop()
        self._resume(viewer)
        self._round()

    def bookmark(self, viewer: Viewer) -> str:
        """Return the position at which the next stream of this page continues."""
        return f"{self.process}-{viewer.seen}"

    def _resume(self, viewer: Viewer) -> None:
        process, _, tick = (viewer.after or "").partition("-")
        if process == self.process and tick.isdecimal() and len(tick) < 16:
            viewer.seen = min(int(tick), self._tick)
            viewer.shown = viewer.pool

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if viewer.comes_back:
            Timer().start(asyncio.get_running_loop(), LINGER, self._stop)
        else:
            self._stop()

    def _stop(self) -> None:
        if not self._viewers and self._timer.is_set:
            self._timer.stop()
            self._fleets.stop()
            for watch in self._watches.values():
                watch.detach()

    def find(self, number: int) -> Pool[Any] | None:
        """Return the watched pool that has this number, or None."""
        for watch in self._watches.values():
            if watch.number == number:
                return watch.pool
        return None

    def news_for(self, viewer: Viewer, **more: Any) -> str | None:
        """Return what changed since the last call for this viewer, as JSON, or None."""
        seen, viewer.seen = viewer.seen, self._tick
        first = seen == 0
        message: dict[str, Any] = {}
        if first:
            message.update(v=VERSION, full=True, pid=os.getpid(), process=self.process)
            message.update(bounds=BOUNDS, **more)
        if self._shown_changed > seen or first:
            message["ids"] = [watch.number for watch in self._shown]
        if self._fleets.changed > seen or (first and self._fleets.shown):
            message["fleets"] = self._fleets.shown
        changed = [watch.summary for watch in self._shown if watch.summary_changed > seen]
        if changed:
            message["pools"] = changed
        samples = {
            watch.number: fresh
            for watch in self._shown
            if (fresh := [sample for tick, sample in watch.samples if tick > seen])
        }
        if samples:
            message["samples"] = samples
        chosen = self._chosen(viewer)
        if chosen is not None:
            details = self._details(chosen, seen if chosen.number == viewer.shown else 0)
            viewer.shown = chosen.number
            if details:
                message["details"] = {"id": chosen.number, **details}
        if not message:
            return None
        message["now"] = now_ms()
        return json.dumps(message, separators=(",", ":"))

    def _details(self, watch: Watch, seen: int) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if watch.tiles.changed > seen or not seen:
            details["tiles"] = watch.tiles.since(seen)
            details["places"] = len(watch.tiles)
        if watch.waiters_changed > seen:
            details["waiters"] = watch.waiters
        if watch.distributions_changed > seen:
            details["waits"], details["holds"] = watch.waits, watch.holds
        if watch.slowest_changed > seen:
            details["slowest"] = watch.slowest
        if watch.lanes_changed > seen:
            details["lanes"] = watch.lanes
        if watch.breaker_changed > seen:
            details["breaker"] = {**watch.breaker, "changes": list(watch.changes)}
        events = [event for tick, event in watch.events.values() if tick > seen]
        if events:
            details["events"] = events
        return details

    def _chosen(self, viewer: Viewer) -> Watch | None:
        """Return the pool that the viewer looks at: by number and name, by name, or the first."""
        found = None
        for watch in self._shown:
            if watch.number == viewer.pool and viewer.name in (None, watch.name):
                return watch
            if found is None and viewer.name == watch.name:
                found = watch
        return found or (self._shown[0] if self._shown else None)

    # -- the rounds ------------------------------------------------------------------------------

    def _round(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer.start(loop, self._interval, self._round)
        self._tick += 1
        shown = list(self._present())
        if shown != self._shown:
            self._shown, self._shown_changed = shown, self._tick
        self._fleets.look(self._tick)
        wanted = {self._chosen(viewer) for viewer in self._viewers}
        for watch in shown:
            watch.look(self._tick, details=watch in wanted)
        for viewer in self._viewers:
            viewer.news.set()

    def _present(self) -> Iterator[Watch]:
        """Return the watches of living pools, in the order in which they were first seen."""
        unseen = [pool for pool in pools() if pool not in self._watches]
        for pool in sorted(unseen, key=lambda pool: pool.name or ""):
            if pool.closed and not pool.count:
                continue
            self._numbers += 1
            watch = self._watches[pool] = Watch(self._numbers, pool, self._statements)
            watch.attach()
        watches = sorted(self._watches.values(), key=lambda watch: watch.number)
        return (watch for watch in watches if not watch.ended())


def now_ms() -> int:
    return round(time.time() * 1000)


def thread_name(ident: int) -> str:
    for thread in threading.enumerate():
        if thread.ident == ident:
            return text.clean(thread.name)
    return ""
