"""A fleet in virtual time: many processes in one loop, a ledger behind a line that can be cut.

The ledger is the reference. A `World` looks at the invariants after everything that happens: I1 and
I2 of `ledger.py`, and that the backend never has more than the budget.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import cenote
from cenote.fleet.fleet import Fleet
from cenote.fleet.lease import LeaseState
from cenote.fleet.ledger import (
    LedgerConfig,
    LedgerError,
    News,
)
from cenote.fleet.loading import MODULES
from cenote.fleet.reference import ReferenceLedger
from cenote.testing import now
from tests.support.memory_ledger import AskingLedger

R = TypeVar("R")

MODULES["world"] = __name__
_worlds: dict[str, World] = {}
_numbers = itertools.count(1)


def new_ledger(config: LedgerConfig) -> WorldLedger:
    """Called by the fleet: the URL says which world and which host."""
    world, _, host = config.url.removeprefix("world://").partition("/")
    return WorldLedger(_worlds[world], host)


class Backend:
    """What the pools open: it counts, and refuses nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.there: set[object] = set()  # opening, open and closing
        self.marks: dict[object, str | None] = {}
        self.most = 0
        self.slow = 0.0  # seconds for opening and for closing
        self.down = False  # it refuses everybody

    async def open(self) -> object:
        if self.down:
            raise OSError("down")
        resource = object()
        self.there.add(resource)
        self.most = max(self.most, len(self.there))
        self.world.check()
        if self.slow:
            try:
                await asyncio.sleep(self.slow)
            except BaseException:
                self.there.discard(resource)
                raise
        return resource

    async def count(self, mark: str) -> int:
        if self.down:
            raise OSError("down")
        return sum(self.marks.get(each) == mark for each in self.there)

    async def close(self, resource: object) -> None:
        if self.slow:
            try:
                await asyncio.sleep(self.slow)
            except asyncio.CancelledError:  # left behind: it is there for a while
                asyncio.get_running_loop().call_later(8, self.there.discard, resource)
                raise
        self.there.discard(resource)


class Process:
    """One process: a fleet object of its own, and pools."""

    def __init__(self, world: World, host: str, **options: Any) -> None:
        self.world, self.host, self.number = world, host, next(_numbers)
        self.fleet = Fleet(f"world://{world.name}/{self.number}", **options)
        self.fleet._config = replace(self.fleet._config, host=host)
        self.pools: list[cenote.Pool[Any]] = []
        self.away = False  # the ledger cannot be reached from here
        self.deaf = False  # no news comes here
        self.frozen: asyncio.Event | None = None
        world.processes[str(self.number)] = self

    def pool(self, *, marks: bool = False, **options: Any) -> cenote.Pool[Any]:
        """`marks`: the backend knows whose resources are whose, and counts them, but for those that
        are being opened: two at most."""
        if marks:
            options["max_creating"] = 2
        backend = self.world.backend

        async def connect() -> object:
            resource = await backend.open()
            backend.marks[resource] = pool._mark()
            return resource

        pool = cenote.Pool(connect, destructor=backend.close, fleet=self.fleet, **options)
        if marks:
            pool._count_marked(backend.count)
        self.pools.append(pool)
        return pool

    @property
    def loans(self) -> list[Any]:
        return [each for fleet in self.fleet._loops.values() for each in fleet._members.values()]


class World:
    """Processes, one ledger and one backend. `async with` it: all pools are closed at the end."""

    def __init__(
        self, budget: int, *, ttl: float = 10.0, learns: bool = False, seed: int = 1
    ) -> None:
        self.name = f"w{next(_numbers)}"
        self.budget, self.ttl, self.learns = budget, ttl, learns
        self.random = random.Random(seed)
        self.processes: dict[str, Process] = {}
        self.ledgers: list[WorldLedger] = []
        self.backend = Backend(self)
        self.away = False  # the ledger cannot be reached from anywhere
        self.delay: Callable[[], float] = lambda: 0.001  # seconds of each message
        self.loses: Callable[[], bool] = lambda: False  # whether a message is lost
        self.repeats: Callable[[], bool] = lambda: False  # whether a request comes twice
        self.log: list[tuple[float, str, str]] = []  # time, operation, member
        self.checks = True
        self.debts = False  # whether it may charge more than the budget, having lost something
        self.tasks: set[asyncio.Task[Any]] = set()
        self.forget()
        _worlds[self.name] = self

    def forget(self) -> None:
        """The ledger loses all it knows."""
        self.reference = ReferenceLedger(self.ttl, self.ttl / 5, self.learns)

    def process(self, host: str | None = None, **options: Any) -> Process:
        """A new process, on a host of its own unless that is named."""
        host = host or f"host{len(self.processes) + 1}"
        options = {"budget": self.budget, "ttl": self.ttl, "name": "shop", **options}
        return Process(self, host, **options)

    def check(self) -> None:
        if not self.checks:
            return
        assert self.debts or self.reference.used <= self.budget, self.reference.rows
        assert len(self.backend.there) <= self.budget
        for process in self.processes.values():
            for loan in process.loans:
                pool = loan._pool()
                row = self.reference.rows.get(loan.member)
                if loan.lease.state is LeaseState.ALONE:
                    continue  # it has no lease, and the ledger may know nothing of it
                if pool is not None and (row is not None or pool.occupied):
                    charge = 0 if row is None else row.charge
                    assert pool.occupied <= charge, (loan, pool, charge)
                    assert pool.closed or pool.max_size <= charge, (loan, pool, charge)

    def send_news(self) -> None:
        for news in self.reference.take_news():
            for ledger in self.ledgers:
                if not self.loses():
                    self.later(ledger.deliver, news)

    def later(self, function: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_later(self.delay(), function, *args)

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self.away, self.delay = False, lambda: 0.001
        self.loses = self.repeats = lambda: False
        for process in self.processes.values():
            process.away = False
            for pool in process.pools:
                await pool.close()
        for task in self.tasks:
            task.cancel()
        _worlds.pop(self.name, None)


class WorldLedger(AskingLedger):
    """The connection of one process. Every message takes its time, may be lost, or come twice; an
    answer that nobody waits for any more changes nothing, but its request does."""

    def __init__(self, world: World, host: str) -> None:
        self.world, self.host = world, host
        self.news: Callable[[News], object] | None = None

    @property
    def process(self) -> Process:
        return self.world.processes[self.host]

    @property
    def is_away(self) -> bool:
        return self.world.away or self.process.away

    def deliver(self, news: News) -> None:
        if self.news is not None and not self.process.deaf and not self.is_away:
            self.news(news)

    async def open(self, news: Callable[[News], object]) -> None:
        if self.is_away:
            raise LedgerError("refused")
        self.news = news
        self.world.ledgers.append(self)

    async def close(self) -> None:
        self.forsake()

    def forsake(self) -> None:
        self.news = None
        if self in self.world.ledgers:
            self.world.ledgers.remove(self)

    def _ask(self, operation: str, member: str, do: Callable[[ReferenceLedger], R]) -> Awaitable[R]:
        world = self.world
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        if self.is_away:
            answer.set_exception(LedgerError("refused"))
            return answer

        def arrive() -> None:
            if self.is_away:
                return
            world.log.append((now(), operation, member))
            result = do(world.reference)
            world.send_news()
            world.check()
            if not world.loses():
                world.later(come_back, result)

        def come_back(result: R) -> None:
            if not answer.done() and not self.is_away:
                answer.set_result(result)

        if not world.loses():
            world.later(arrive)
            if world.repeats():
                world.later(arrive)
        return answer
