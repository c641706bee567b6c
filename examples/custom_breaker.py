"""A circuit breaker of one's own: it opens when the backend is slow, before anything fails.

A strategy is notified of successes and failures, and switches the pool itself. This one listens to
the pool's events, because they say how long each resource was in use.
"""

import asyncio
import logging
import math
import time
from collections import Counter, deque
from typing import Any

import cenote


class LatencyBreaker:
    """Opens when the 99th percentile of the last uses is above a limit, or on too many errors."""

    def __init__(
        self, *, limit: float, window: int = 50, errors_allowed: int = 5, cooldown: float = 30.0
    ) -> None:
        self.limit = limit  # seconds
        self.errors_allowed = errors_allowed  # in the window
        self.cooldown = cooldown  # seconds before the next try
        self._uses: deque[float] = deque(maxlen=window)  # seconds each; a failure is infinite
        self._retry_at = math.inf

    def hear(self, event: cenote.PoolEvent) -> None:
        """`released` comes just before the report that belongs to it."""
        if event.kind == "released" and event.duration is not None:
            self._uses.append(event.duration)

    def report_success(self, source: cenote.Pool[Any]) -> None:
        if source.state is cenote.CircuitState.RECOVERING:
            if self._uses[-1] <= self.limit:
                self._uses.clear()
                source.activate()
            else:
                self._open(source)
        elif self._is_too_slow():
            self._open(source)

    def report_failure(self, source: cenote.Pool[Any], error: BaseException) -> None:
        self._uses.append(math.inf)
        errors = sum(map(math.isinf, self._uses))
        if source.state is cenote.CircuitState.RECOVERING or errors > self.errors_allowed:
            self._open(source)

    def should_recover(self) -> bool:
        """Asked when an acquire meets the open breaker; after True that acquire is the trial."""
        return time.monotonic() >= self._retry_at

    def p99(self) -> float:
        ordered = sorted(self._uses)
        return ordered[math.ceil(len(ordered) * 0.99) - 1] if ordered else 0.0

    def _is_too_slow(self) -> bool:
        return len(self._uses) == self._uses.maxlen and self.p99() > self.limit

    def _open(self, source: cenote.Pool[Any]) -> None:
        self._uses.clear()
        self._retry_at = time.monotonic() + self.cooldown
        source.deactivate()


class Backend:
    """Answers in 5 ms; while it is overloaded, in 150 ms."""

    overloaded = False

    async def call(self) -> None:
        await asyncio.sleep(0.15 if self.overloaded else 0.005)


async def client(pool: cenote.Pool[Backend], results: Counter[str]) -> None:
    while True:
        try:
            async with pool.acquire() as backend:
                await backend.call()
            results["answered"] += 1
        except cenote.ServiceUnavailableError:
            results["refused at once"] += 1
            await asyncio.sleep(0.02)


async def main() -> None:
    backend = Backend()
    strategy = LatencyBreaker(limit=0.1, window=20, cooldown=0.2)
    pool = cenote.Pool(lambda: backend, max_size=4, strategy=strategy, name="backend")
    pool.subscribe(strategy.hear)

    logging.getLogger("cenote").setLevel(logging.ERROR)  # show() says the same
    began = time.monotonic()
    states: list[str] = []
    switched = asyncio.Event()

    def show(event: cenote.PoolEvent) -> None:
        if event.kind == "state_changed" and event.reason is not None:
            states.append(event.reason)
            switched.set()
            print(f"{time.monotonic() - began:5.2f} s  breaker {event.reason}")

    async def until(state: cenote.CircuitState) -> None:
        while pool.state is not state:
            switched.clear()
            await switched.wait()

    pool.subscribe(show)
    results: Counter[str] = Counter()
    async with pool:
        clients = [asyncio.create_task(client(pool, results)) for _ in range(8)]
        for overloaded in (False, True, False):
            backend.overloaded = overloaded
            what = "overloaded" if overloaded else "quick"
            print(f"{time.monotonic() - began:5.2f} s  the backend is {what}")
            if overloaded:
                await until(cenote.CircuitState.INACTIVE)
            await asyncio.sleep(0.8)
        await until(cenote.CircuitState.ACTIVE)
        for task in clients:
            task.cancel()
        await asyncio.wait(clients)
        print(f"in the end the breaker is {pool.state}")

    for what, number in sorted(results.items()):
        print(f"{what}: {number}")
    print(f"tries to recover: {states.count('RECOVERING')}")


if __name__ == "__main__":
    asyncio.run(main())
