"""The circuit breaker: what a strategy is, and the two that are built in."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import Any, Protocol, runtime_checkable

from .options import duration, number, whole
from .states import CircuitState

JITTER = 0.1  # a recovery comes up to this part earlier, so that many processes do not come at once
BUCKETS = 60  # parts of a window; an outcome is forgotten at most one part early


@runtime_checkable
class CircuitBreakerStrategy(Protocol):
    """Hears of successes and failures, and switches the pool by `source.deactivate()` and so on.

    It may also have `should_recover() -> bool`, asked when an acquire meets INACTIVE; without it
    recovery is manual. And it may have `retry_after() -> float | None`, which is asked at any time
    and changes nothing: the seconds until `should_recover()` would say yes, None if it never would
    by itself.
    """

    def report_success(self, source: Any, /) -> object:
        """A resource of this pool was accepted on release."""

    def report_failure(self, source: Any, error: BaseException, /) -> object:
        """One was rejected on release or discarded with an error, or the factory failed."""


class Recovery:
    """When to try again, and when to trust again: the part that the built-in strategies share."""

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
        self._timeout = self.recovery_timeout  # of the present outage; doubles
        self._retry_at: float | None = None  # None: not opened by this strategy
        self._successes = 0  # in the present recovery

    def should_recover(self) -> bool:
        """Whether the recovery timeout is over. Never, if somebody else deactivated the pool."""
        return self._retry_at is not None and now() >= self._retry_at

    def retry_after(self) -> float | None:
        """Seconds until the recovery timeout is over; None if this strategy did not open."""
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

    def _count_success(self) -> bool:
        """Note a success; True: too many have failed all the same."""
        raise NotImplementedError

    def _count_failure(self) -> bool:
        """Note a failure; True: that is one too many."""
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError


class ConsecutiveFailures(Recovery):
    """Opens after so many failures in a row; tries again after `recovery_timeout`, which doubles
    with every failed recovery."""

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


class FailureRate(Recovery):
    """Opens when too large a part of the calls in a sliding window failed: looked at after every
    call, failed or not, once there are `minimum_calls`. Tries again after `recovery_timeout`, which
    doubles with every failed recovery."""

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
        """The bucket of this moment; those that left the window are dropped on the way."""
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
    __slots__ = ("failures", "index", "successes")

    def __init__(self, index: float) -> None:
        self.index = index
        self.successes = 0
        self.failures = 0


def now() -> float:
    """The clock of the running loop, so that tests can move it; without a loop the plain one."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


def check_strategy(value: Any) -> CircuitBreakerStrategy | None:
    if isinstance(value, type):
        raise TypeError(
            f"strategy must be an object, not the class {value.__name__}: "
            f"write strategy={value.__name__}(...)"
        )
    if value is not None:
        for method in ("report_success", "report_failure"):
            if not callable(getattr(value, method, None)):
                raise TypeError(
                    f"strategy must have report_success(source) and report_failure(source, error), "
                    f"{type(value).__name__} has no {method}()"
                )
    return value  # type: ignore[no-any-return]
