"""The history of a pool: what it remembers, always, so that it can be asked after an incident.

It costs one comparison each time the fast path reads the clock, and less than 100 kB. Nothing wakes
up for it: see `samples.py`. Events are recorded where they are emitted, the rare ones only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import AcquireTimeoutError
from ..events import EventKind, RefusalReason, task_name
from ..mask import explained, masked
from ..messages import describe, without_text
from ..states import CircuitState
from .journal import Journal
from .samples import Samples, Totals

if TYPE_CHECKING:
    import asyncio

    from .engine import Engine


class History:
    """Samples and journal of one pool."""

    __slots__ = ("_engine", "journal", "samples")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self.journal: Journal = Journal()
        self.samples: Samples = Samples(0.0)

    def begin(self, now: float) -> None:
        """Sample from now on, by the clock of the loop that the pool was bound to."""
        self.samples = Samples(now, self._totals())
        self._engine.sample_at = self.samples.due

    def catch_up(self) -> float:
        """Record the second that is over, if one is, and return the time.

        Whatever is about to change a count without an acquire or a return calls this first.
        """
        engine = self._engine
        now = engine.time()
        if now >= engine.sample_at:
            self.sample(now)
        return now

    def sample(self, now: float) -> None:
        """Record the second that is over; nothing has changed since the last thing that did."""
        engine = self._engine
        core = engine.core
        count = core.count
        self.samples.take(now, self._totals(), (core.waiting, count - core.idle_count, count))
        engine.sample_at = self.samples.due

    def note(
        self,
        kind: EventKind,
        task: asyncio.Task[Any] | None,
        duration: float | None,
        reason: str | None,
        error: BaseException | None,
    ) -> None:
        """Record an event: in the entry of its kind and reason that is open, or in a new one."""
        now = self._engine.time()
        if self.journal.grows(kind, reason, now):
            return
        name = None if task is None else task_name(task)
        said = _words(reason, error)
        if reason is CircuitState.INACTIVE and self._engine.circuit.cause is not None:
            said = f"{said} \u00b7 {self._engine.circuit.cause}"
        self.journal.add(kind, reason, now, name, said, duration)

    def _totals(self) -> Totals:
        engine = self._engine
        totals = engine.totals
        refused = sum(totals.refused.values())
        return engine.core.acquired, totals.timeouts, totals.failed, refused


def _words(reason: str | None, error: BaseException | None) -> str | None:
    """Return what the entry says: for a timeout, who was in the way."""
    if isinstance(error, AcquireTimeoutError) and error.holders:
        longest = error.holders[0]
        file = None if longest.file is None else _end_of(longest.file)
        reason = None if longest.reason is None else without_text(longest.reason)
        shown = replace(longest, file=file, reason=reason)
        return masked(f"longest holder: {describe(shown)}")
    if isinstance(reason, RefusalReason):
        return str(reason)  # the breaker's own entries say more
    if reason is not None and "/" in reason:  # file and line
        reason = _end_of(reason)
    said = [part for part in (reason, None if error is None else explained(error)) if part]
    return " \u00b7 ".join(said) or None


def _end_of(path: str) -> str:
    """Return the last three parts of a path: an entry has no room for all."""
    parts = path.replace("\\", "/").split("/")
    return path if len(parts) <= 3 else "/".join(parts[-3:])
