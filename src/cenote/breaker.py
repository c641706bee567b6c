"""The circuit breaker: the protocol of strategies, and the two built-in ones."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Protocol, runtime_checkable

from .options import duration, number, whole
from .states import CircuitState

JITTER = 0.1  # fraction by which a recovery may start early, so that processes do not align
BUCKETS = 60  # parts of a window; an outcome expires at most one part early


@runtime_checkable
class CircuitBreakerStrategy(Protocol):
    """A policy that receives successes and failures and switches the pool it is called with.

    It switches by `source.activate()`, `source.deactivate()` and `source.recover()`. It may also
    have `should_recover() -> bool`, which is called when an acquire finds the breaker INACTIVE;
    without it recovery is manual. And it may have `retry_after() -> float | None`, which must
    have no side effects: the seconds until `should_recover()` returns True, or None if it never
    will by itself. All of them are plain methods: one that is `async` is refused.
    """

    def report_success(self, source: Any, /) -> object:
        """Record that a resource of this pool was accepted on release.

        Args:
            source: The pool.
        """

    def report_failure(self, source: Any, error: BaseException, /) -> object:
        """Record that a resource was rejected or discarded with an error, or the factory failed.

        Args:
            source: The pool.
            error: What was raised, or why the resource was rejected.
        """


class Recovery(ABC):
    """The recovery that both built-in strategies share: when to probe, and when to close again.

    What they count, and when that is too much, is their own.
    """

    def __init__(
        self,
        *,
        recovery_timeout: float,
        success_threshold: int,
        max_recovery_timeout: float,
    ) -> None:
        self.recovery_timeout: float = duration("recovery_timeout", recovery_timeout)
        self.success_threshold: int = whole("success_threshold", success_threshold, least=1)
        self.max_recovery_timeout: float = duration("max_recovery_timeout", max_recovery_timeout)
        if self.max_recovery_timeout < self.recovery_timeout:
            raise ValueError(
                f"max_recovery_timeout ({max_recovery_timeout}) must not be less than "
                f"recovery_timeout ({recovery_timeout})"
            )
        self._timeout = (
            self.recovery_timeout
        )  # of the current outage; doubles with every failed recovery
        self._retry_at: float | None = None  # None: not opened by this strategy
        self._successes = 0  # in the current recovery

    def should_recover(self) -> bool:
        """Return whether the recovery timeout is over; False if the breaker was opened by hand."""
        return self._retry_at is not None and now() >= self._retry_at

    def retry_after(self) -> float | None:
        """Return the seconds until the recovery timeout is over; None if this did not open."""
        return None if self._retry_at is None else max(0.0, self._retry_at - now())

    def report_success(self, source: Any, /) -> None:
        if source.state is CircuitState.RECOVERING:
            self._successes += 1
            if self._successes >= self.success_threshold:
                self._retry_at = None
                self._timeout = self.recovery_timeout
                self._successes = 0
                self._forget()
                source.activate()
        elif source.state is CircuitState.ACTIVE:
            self._retry_at = None
            if self._count_success():
                self._open(source, self.recovery_timeout)

    def report_failure(self, source: Any, error: BaseException, /) -> None:
        if source.state is CircuitState.RECOVERING:
            self._open(source, min(self._timeout * 2, self.max_recovery_timeout))
        elif source.state is CircuitState.ACTIVE and self._count_failure():
            self._open(source, self.recovery_timeout)

    def _open(self, source: Any, timeout: float) -> None:
        self._timeout = timeout
        self._successes = 0
        self._forget()
        self._retry_at = now() + self._timeout * random.uniform(1 - JITTER, 1)
        source.deactivate()

    @abstractmethod
    def _count_success(self) -> bool:
        """Count a success; return True if the failure rate is still too high."""

    @abstractmethod
    def _count_failure(self) -> bool:
        """Count a failure; return True if the breaker has to open."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget everything that was counted."""


class ConsecutiveFailures(Recovery):
    """A strategy that opens after `failure_threshold` failures in a row.

    It probes again after `recovery_timeout` seconds. Every failed recovery doubles that time, up
    to `max_recovery_timeout`; `success_threshold` successes in a row close the breaker.
    """

    def __init__(
        self,
        failure_threshold: int = 5,
        recovery_timeout: float = 30.0,
        success_threshold: int = 3,
        *,
        max_recovery_timeout: float = 300.0,
    ) -> None:
        super().__init__(
            recovery_timeout=recovery_timeout,
            success_threshold=success_threshold,
            max_recovery_timeout=max_recovery_timeout,
        )
        self.failure_threshold: int = whole("failure_threshold", failure_threshold, least=1)
        self._failures = 0  # since the last success

    def _count_success(self) -> bool:
        self._failures = 0
        return False

    def _count_failure(self) -> bool:
        self._failures += 1
        return self._failures >= self.failure_threshold

    def _forget(self) -> None:
        self._failures = 0


def is_settled(strategy: object) -> bool:
    """Return whether this is a built-in strategy that another success, while the breaker is closed,
    would not change."""
    return (
        type(strategy) is ConsecutiveFailures
        and strategy._failures == 0
        and strategy._retry_at is None
    )


class FailureRate(Recovery):
    """A strategy that opens when `threshold` of the calls in a sliding window failed.

    The rate is computed after every call, once the last `window` seconds have `minimum_calls`. It
    probes again after `recovery_timeout` seconds. Every failed recovery doubles that time, up to
    `max_recovery_timeout`; `success_threshold` successes in a row close the breaker.
    """

    def __init__(
        self,
        threshold: float = 0.5,
        window: float = 60.0,
        minimum_calls: int = 20,
        recovery_timeout: float = 30.0,
        success_threshold: int = 3,
        *,
        max_recovery_timeout: float = 300.0,
    ) -> None:
        super().__init__(
            recovery_timeout=recovery_timeout,
            success_threshold=success_threshold,
            max_recovery_timeout=max_recovery_timeout,
        )
        self.threshold: float = number("threshold", threshold)
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be above 0 and at most 1, not {threshold!r}")
        self.window: float = duration("window", window)
        if self.window == 0:
            raise ValueError("window must be above 0")
        self.minimum_calls: int = whole("minimum_calls", minimum_calls, least=1)
        self._buckets: deque[_Bucket] = deque()  # oldest first; at most BUCKETS + 1
        self._calls = 0
        self._failures = 0

    def _count_success(self) -> bool:
        self._bucket().successes += 1
        self._calls += 1
        return self._too_many()

    def _count_failure(self) -> bool:
        self._bucket().failures += 1
        self._calls += 1
        self._failures += 1
        return self._too_many()

    def _too_many(self) -> bool:
        return self._calls >= self.minimum_calls and self._failures >= self.threshold * self._calls

    def _bucket(self) -> _Bucket:
        """Return the bucket of the current time, and drop those that have left the window."""
        moment = now()
        width = self.window / BUCKETS
        oldest = (moment - self.window) // width
        while self._buckets and self._buckets[0].index <= oldest:
            gone = self._buckets.popleft()
            self._calls -= gone.successes + gone.failures
            self._failures -= gone.failures
        index = moment // width
        if not self._buckets or self._buckets[-1].index != index:
            self._buckets.append(_Bucket(index))
        return self._buckets[-1]

    def _forget(self) -> None:
        self._buckets.clear()
        self._calls = self._failures = 0


class _Bucket:
    """The outcomes of one part of the window."""

    __slots__ = ("failures", "index", "successes")

    def __init__(self, index: float) -> None:
        self.index = index
        self.successes = 0
        self.failures = 0


def now() -> float:
    """Return the time of the running loop, which tests can move; without a loop, monotonic time."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
