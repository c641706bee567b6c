"""Strategies and subscribers that write down what a pool reports."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import cenote


class RecordingStrategy:
    """A strategy that writes down each report: "success", or the error of a failure.

    After a failure it calls `on_failure` with the pool, if that was given.
    """

    def __init__(self, on_failure: Callable[[Any], None] | None = None) -> None:
        self.reports: list[Any] = []
        self.sources: list[Any] = []  # the pool of each report
        self.on_failure = on_failure

    def report_success(self, source: Any) -> None:
        self.reports.append("success")
        self.sources.append(source)

    def report_failure(self, source: Any, error: BaseException) -> None:
        self.reports.append(error)
        self.sources.append(source)
        if self.on_failure is not None:
            self.on_failure(source)


class Tripwire(RecordingStrategy):
    """A strategy that deactivates the pool on every failure, and recovers when `ready`."""

    ready = False
    asked = 0

    def __init__(self) -> None:
        super().__init__(on_failure=lambda source: source.deactivate())

    def should_recover(self) -> bool:
        self.asked += 1
        return self.ready


class RaisingStrategy:
    """A strategy of which one method raises, a `RuntimeError` unless an error is given."""

    def __init__(self, method: str, error: BaseException | None = None) -> None:
        self.method = method
        self.error = error or RuntimeError(f"{method} is broken")

    def report_success(self, source: Any) -> None:
        self._act("report_success")

    def report_failure(self, source: Any, error: BaseException) -> None:
        self._act("report_failure")

    def should_recover(self) -> bool:
        self._act("should_recover")
        return False

    def _act(self, method: str) -> None:
        if method == self.method:
            raise self.error


def recorded(pool: cenote.Pool[Any]) -> list[cenote.PoolEvent]:
    """The list into which all events go from now on."""
    events: list[cenote.PoolEvent] = []
    pool.subscribe(events.append)
    return events


def kinds(events: Iterable[cenote.PoolEvent]) -> list[str]:
    return [event.kind for event in events]


def counts(pool: cenote.Pool[Any]) -> tuple[int, int, int, int]:
    """count, idle, active, waiting; and every way to ask for them agrees."""
    stats = pool.stats()
    assert len(pool) == pool.count == stats.count
    assert pool.idle_count == stats.idle
    assert pool.active_count == stats.active
    assert pool.waiting_count == stats.waiting
    assert pool.count == pool.idle_count + pool.active_count
    return pool.count, pool.idle_count, pool.active_count, pool.waiting_count


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno
