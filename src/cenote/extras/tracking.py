"""The pools that an exporter watches: given ones, those of databases, or all of the process."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from threading import RLock
from typing import Any, Final, Generic, Protocol, TypeVar

from .. import observe
from ..observe import LaneStats, RefusalReason, Stats
from ..pool import Pool
from ..sql.database import Database
from ..sql.view import database_of

W = TypeVar("W")
Target = Pool[Any] | Database
# How an acquire ends, unless it is refused.
ENDS: Final = "begun", "acquired", "timeouts", "cancelled", "failed"


class PoolTracker(Generic[W]):
    """Keeps one watch for each pool, including pools that a database makes later.

    It may be used from any thread.

    Args:
        targets: Pools and databases; all pools of the process if there are none.
        attach: Called with a pool and its name, returns the watch, which must not refer to the
            pool.

    Raises:
        TypeError: A target is neither a pool nor a database.
    """

    def __init__(self, targets: tuple[Target, ...], attach: Callable[[Pool[Any], str], W]) -> None:
        for target in targets:
            if not isinstance(target, Pool | Database):
                raise TypeError(f"only pools and databases can be watched, not {target!r}")
        self._attach = attach
        self._databases = weakref.WeakSet(each for each in targets if isinstance(each, Database))
        self._all = not targets
        self._lock = RLock()  # reentrant: a finalizer may make a pool while it is held
        self._watches: dict[weakref.ref[Pool[Any]], W] = {}
        self._numbers = count(1)
        self._unfollow: Callable[[], None] | None = None
        if self._all or self._databases:
            self._unfollow = observe.follow(self._made)
            for pool in observe.pools():
                self._made(pool)
        for target in targets:
            if isinstance(target, Pool):
                self._add(target)

    def living(self) -> list[tuple[Pool[Any], W]]:
        """Return the pools that are neither closed nor collected, each with its watch."""
        with self._lock:
            found = []
            for reference, watch in [*self._watches.items()]:
                pool = reference()
                if pool is None or pool.closed:
                    del self._watches[reference]
                else:
                    found.append((pool, watch))
            return found

    def close(self) -> list[tuple[Pool[Any], W]]:
        """Stop tracking; return the pools that were tracked, each with its watch."""
        if self._unfollow is not None:
            self._unfollow()
        last = self.living()
        with self._lock:
            self._watches.clear()
        return last

    def _made(self, pool: Pool[Any]) -> None:
        if self._all or database_of(pool) in self._databases:
            self._add(pool)

    def _add(self, pool: Pool[Any]) -> None:
        reference = weakref.ref(pool)
        with self._lock:
            if reference not in self._watches and not pool.closed:
                name = f"pool-{next(self._numbers)}" if pool.name is None else pool.name
                self._watches[reference] = self._attach(pool, name)


class Ends:
    """How the acquires of one pool ended, outside of its lanes and in each of them.

    What is outside is a difference of numbers that are not read at the same instant, so it may
    come out too small by what has just happened. A counter must never fall: the last value holds.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: dict[str, int] = {}

    def of(self, stats: Stats | LaneStats) -> dict[str, int]:
        """Return the ends by name, the reasons of refusals among them, of a pool or a lane."""
        found = {name: getattr(stats, name) for name in ENDS}
        return found | {str(reason): stats.refused.get(reason, 0) for reason in RefusalReason}

    def rest(self, stats: Stats, lanes: list[LaneStats]) -> dict[str, int]:
        """Return the same for what is in no lane."""
        found = self.of(stats)
        for lane in lanes:
            for name, number in self.of(lane).items():
                found[name] -= number
        for name, number in found.items():
            found[name] = self._rest[name] = max(number, self._rest.get(name, 0))
        return found


class Watch(Protocol):
    """What an exporter knows of a pool: here only its name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Watch)
K = TypeVar("K")


class Sums(Generic[N, K]):
    """Counters of pools by name. They do not fall if one of several pools of a name is gone: what
    it had counted when it was last read stays, as long as another one of that name lives."""

    __slots__ = ("_last", "_lock", "_past")

    def __init__(self) -> None:
        self._lock = RLock()  # reentrant: a finalizer may close a pool while it is held
        self._last: dict[N, Counter[K]] = {}  # of the pools that lived at the last reading
        self._past: dict[str, Counter[K]] = {}  # of those that are gone, by name

    def read(self, count: Callable[[], Iterable[tuple[N, Counter[K]]]]) -> dict[str, Counter[K]]:
        """Return the counters of each name; `count` returns those of every pool that lives."""
        with self._lock:
            before, self._last = self._last, dict(count())
            found: dict[str, Counter[K]] = {}
            for watch, numbers in self._last.items():
                found.setdefault(watch.name, Counter()).update(numbers)
            for watch in before.keys() - self._last.keys():
                self._past.setdefault(watch.name, Counter()).update(before[watch])
            self._past = {name: past for name, past in self._past.items() if name in found}
            for name, past in self._past.items():
                found[name].update(past)
            return found
