"""`cenote.Fleet`: one budget, one circuit breaker and one view for the pools of many processes."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Never

from .. import options
from ..breaker import ConsecutiveFailures
from ..messages import not_copied
from ..states import CircuitState
from .board import FleetHolder, longest_holders
from .breaker import FleetBreaker
from .ledger import LedgerConfig, LedgerError, MemberRow
from .loading import MODULES, new_ledger, scheme_of
from .loop_fleet import FleetConfig, LoopFleet

if TYPE_CHECKING:
    from ..breaker import CircuitBreakerStrategy
    from ..lender import Loan
    from ..pool import Pool

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NOTICES_DEATH: Final = {"cenote.fleet.local", "cenote.fleet.postgresql"}  # ledgers that do
SHORTEST: Final = 0.1  # seconds of ttl
WORST: Final = [str(each) for each in (CircuitState.INACTIVE, CircuitState.RECOVERING)]


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a fleet.

    Attributes:
        host: The name of its machine.
        process: The id of the process there.
        pools: The names of its pools that take part, the oldest first.
        held: How many resources they may have now, together.
        need: The most they had in use and waited for at once, lately.
        breaker: The worst state of their circuit breakers; None if they take no part in that of
            the fleet.
        since: When the first of them was opened, as `time.time()` of its machine.
        silent: Whether it has sent nothing for longer than the ttl of the fleet; what it had is
            kept back until somebody has counted it.
    """

    host: str
    process: int
    pools: tuple[str, ...]
    held: int
    need: int
    breaker: str | None
    since: float
    silent: bool = False


class Fleet:
    """One budget for the pools of many processes: give it to each `Pool` or `Database`.

    All of them together never have more than `budget` resources. Each always gets
    `max(1, min_size)`, and up to its `max_size` as it needs them. Nothing is connected here, and no
    event loop is needed; one object serves all pools, loops and threads of a process, and works in
    forked children. See `docs/fleet.md` for what you may rely on.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        budget: int,
        name: str = "default",
        ttl: float = 10.0,
        strict: bool = False,
        audit: bool = True,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Describe a fleet.

        Args:
            url: Where the budget is kept: `redis://...` for Redis or Valkey, `postgresql://...` for
                the database itself. None: a file, for the processes of this host.
            budget: How many resources all pools have together, at most: 1 or more.
            name: Fleets of different names have nothing to do with each other.
            ttl: Seconds until a process that sends nothing any more has lost what it had, and for
                which everybody goes on if the budget cannot be reached.
            strict: Whether a process that cannot reach the budget has one resource at most, and not
                its equal part.
            audit: Whether what a silent process has is counted at the server before it is given to
                others, where the driver can.
            path: The file of this host, instead of the usual one.

        Raises:
            TypeError, ValueError: An argument is wrong; the message names it and the remedy.
            ImportError: What the URL needs is not installed; the message names it.
        """
        if url is not None and not isinstance(url, str):
            raise TypeError(f"url must be a string or None, not {type(url).__name__}")
        if url is not None and path is not None:
            raise ValueError("path is for a fleet of one host: give no url, or no path")
        scheme = scheme_of(url or "")
        span = options.duration("ttl", ttl)
        if span < SHORTEST:
            raise ValueError(f"ttl must be {SHORTEST:g} or more seconds, not {ttl!r}")
        ledger = LedgerConfig(url or "", _checked_name(name), span, _checked_path(path))
        new_ledger(ledger)  # checks the URL
        self._config = FleetConfig(
            ledger,
            options.whole("budget", budget, least=1),
            socket.gethostname(),
            options.flag("strict", strict),
            options.flag("audit", audit) and MODULES[scheme] not in NOTICES_DEATH,
        )
        self._loops: dict[asyncio.AbstractEventLoop, LoopFleet] = {}
        self._lock = threading.Lock()  # of these
        _fleets.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, budget {self.budget}>"

    def __reduce__(self) -> Never:
        raise not_copied("Fleet")

    @property
    def name(self) -> str:
        """The name of the fleet, the same in all of its processes."""
        return self._config.name

    @property
    def budget(self) -> int:
        """The budget of this process; if another process has a smaller one, that one counts."""
        return self._config.budget

    def breaker(self, strategy: CircuitBreakerStrategy | None = None) -> FleetBreaker:
        """Return the circuit breaker of this fleet, as the `strategy` of one pool or database.

        The strategy of the pool decides first, alone and at once. When it has opened the breaker of
        its pool, all others look once whether they reach the backend; the breaker opens for all by
        a quorum of hosts. Then one probe a second looks for its return, whatever the size of the
        fleet. A host that is cut off alone stays open alone, and without the ledger each pool has
        its own strategy.

        Args:
            strategy: The strategy of each pool. None: that of a `Database`, `ConsecutiveFailures(5,
                recovery_timeout=1.0, success_threshold=1, max_recovery_timeout=15.0)`.

        Raises:
            TypeError: It is no strategy.
        """
        local = options.strategy("strategy", strategy) or ConsecutiveFailures(
            5, recovery_timeout=1.0, success_threshold=1, max_recovery_timeout=15.0
        )
        return FleetBreaker(local)

    async def members(self) -> list[Member]:
        """Return every process of the fleet, the oldest first. Raises `LedgerError` if the budget
        cannot be reached within a second."""
        rows, _ = await self.look()
        return members_of(rows)

    # -- for exporters: see `view.py` --------------------------------------------------------------

    @property
    def ledger(self) -> LedgerConfig:
        """Where the budget is kept."""
        return self._config.ledger

    @property
    def is_used(self) -> bool:
        """Whether a pool of this process takes part."""
        return bool(self._loops)

    async def look(self) -> tuple[list[MemberRow], list[FleetHolder]]:
        """Return every pool of the fleet, the oldest first, and the longest holders of any process,
        where the ledger has a board. Raises `LedgerError`, as `members()` does."""
        loop = asyncio.get_running_loop()
        with self._lock:
            known = self._loops.get(loop)
        fleet = known or LoopFleet(self._config, loop, _ignore)
        try:
            async with asyncio.timeout(1.0):
                rows = await fleet.rows()
            return rows, longest_holders(getattr(fleet.ledger, "board", None), rows)
        except TimeoutError:
            said: str = getattr(fleet.ledger, "said", "")
            raise LedgerError(said or f"fleet {self.name!r}: no answer within 1 s") from None
        finally:
            if known is None:
                await fleet.close_if_empty()

    # -- for pools: see `Lender` -------------------------------------------------------------------

    def check(self, least: int, most: int) -> None:
        """Raise `ValueError` if a pool needs more than the budget."""
        if least > self.budget:
            raise ValueError(
                f"min_size ({least}) must not be more than the budget of fleet {self.name!r} "
                f"({self.budget}): lower min_size, or raise the budget"
            )

    def opened(self, pool: Pool[Any]) -> Loan:
        """Make a pool a member, in its event loop, which runs."""
        loop = asyncio.get_running_loop()
        with self._lock:
            gone = [each for each in self._loops if each.is_closed()]
            abandoned = [self._loops.pop(each) for each in gone]
            fleet = self._loops.get(loop)
            if fleet is None:
                fleet = self._loops[loop] = LoopFleet(self._config, loop, self._forget)
        for each in abandoned:
            each.forsake()
        return fleet.lend(pool)

    def strategy(self) -> CircuitBreakerStrategy | None:
        """Return the circuit breaker of a database in this fleet, unless it is given another."""
        return self.breaker()

    # -- inner -------------------------------------------------------------------------------------

    def _forget(self, fleet: LoopFleet) -> None:
        """It has no members any more."""
        with self._lock:
            if self._loops.get(fleet.loop) is fleet:
                del self._loops[fleet.loop]

    def _after_fork(self) -> None:
        """In the child: everything that is connected belongs to the parent."""
        self._lock = threading.Lock()
        loops, self._loops = self._loops, {}
        _kept.append(loops)
        for fleet in loops.values():
            fleet.forsake()


def living() -> list[Fleet]:
    """Return the fleets in which a pool of this process takes part, one for each ledger, in no
    order; from any thread."""
    while True:
        try:
            fleets = [*_fleets]
            break
        except RuntimeError:  # another thread has made one meanwhile
            continue
    found = {fleet.ledger: fleet for fleet in fleets if fleet.is_used}
    return [*found.values()]


def members_of(rows: Iterable[MemberRow]) -> list[Member]:
    """Return the processes to which these rows belong, in their order."""
    processes: dict[tuple[str, int], list[MemberRow]] = {}
    for row in rows:
        processes.setdefault((row.host, row.process), []).append(row)
    return [
        Member(
            host=host,
            process=process,
            pools=tuple(each.pool for each in those),
            held=sum(each.held for each in those),
            need=sum(each.need for each in those),
            breaker=_worst([each.breaker for each in those if each.breaker is not None]),
            since=min(each.since for each in those),
            silent=all(each.silent for each in those),
        )
        for (host, process), those in processes.items()
    ]


def _worst(states: list[str]) -> str | None:
    return next((each for each in WORST if each in states), states[0] if states else None)


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, not {type(name).__name__}")
    if not NAME.fullmatch(name):
        raise ValueError(
            f"name must be 1 to 64 letters, digits, dots, hyphens or underscores, not {name!r}"
        )
    return name


def _checked_path(path: object) -> str | None:
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a path or None, not {type(path).__name__}")
    return os.fsdecode(path)


def _ignore(_: object) -> None:
    pass


_fleets: weakref.WeakSet[Fleet] = weakref.WeakSet()
_kept: list[object] = []  # of parents: never finalized


def _in_child() -> None:
    for fleet in [*_fleets]:
        fleet._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
