"""Many processes of a fleet in virtual time, each with an event loop of its own.

A process can be paused, killed and cut off, and its clock may run fast or slow; a message to the
ledger takes its time, is lost, or comes twice. Everything follows from the seed. The ledger is the
reference; the pools are real. `Simulation.check` looks at the invariants of `fleet/ledger.py`
whenever the backend has to open something, and after every message.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import cenote
from cenote.fleet.fleet import Fleet
from cenote.fleet.lease import LeaseState
from cenote.fleet.ledger import (
    FleetCircuit,
    Grant,
    LedgerConfig,
    LedgerError,
    MemberRow,
    News,
    Sync,
)
from cenote.fleet.loading import MODULES
from cenote.fleet.reference import ReferenceLedger

R = TypeVar("R")

MODULES["simulation"] = __name__
_simulations: dict[str, Simulation] = {}
_numbers = itertools.count(1)


def new_ledger(config: LedgerConfig) -> SimulatedLedger:
    """Called by the fleet: the URL says which simulation and which process."""
    name, _, number = config.url.removeprefix("simulation://").partition("/")
    return SimulatedLedger(_simulations[name].processes[int(number)])


class Violation(AssertionError):
    """An invariant does not hold."""


class Simulation:
    """Time, the ledger, the backend and the line between them."""

    def __init__(self, seed: int, budget: int, *, ttl: float = 10.0, learns: bool = True) -> None:
        self.name = f"s{next(_numbers)}"
        self.random = random.Random(seed)
        self.budget, self.ttl, self.learns = budget, ttl, learns
        self.now = 1000.0
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.processes: dict[int, SimulatedProcess] = {}
        self.there: dict[object, SimulatedProcess] = {}  # at the backend, with whose it is
        self.over = 0  # most at the backend beyond the budget
        self.allowance = 0  # of that, by the faults of this history
        self.debts = False  # whether the ledger may charge more than the budget, having lost data
        self.away = False
        self.delay = 0.001, 0.002  # seconds of a message: from, to
        self.loss = self.repetition = 0.0  # how probable for a message
        self.requests = 0
        self.errors: list[str] = []
        self.violation: Violation | None = None
        self.forget()
        _simulations[self.name] = self

    def forget(self) -> None:
        """The ledger comes back without its data."""
        self.reference = ReferenceLedger(self.ttl, self.ttl / 5, self.learns)

    # -- time --------------------------------------------------------------------------------------

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(_numbers), function))

    def run(self, seconds: float) -> None:
        """Let that much time pass."""
        until = self.now + seconds
        while True:
            when, process = min(
                ((p.loop.due(), n) for n, p in self.processes.items() if p.runs),
                default=(float("inf"), 0),
            )
            event = self.events[0][0] if self.events else float("inf")
            if min(when, event) > until:
                break
            if event <= when:
                self.now = max(self.now, event)
                heapq.heappop(self.events)[2]()
            else:
                self.now = max(self.now, when)
                self.processes[process].loop.turn()
            if self.violation is not None:
                raise self.violation
        self.now = until

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """Remember the first thing that is wrong: `run` raises it, for nobody else may take it."""
        try:
            self._check()
        except Violation as violation:
            self.violation = self.violation or violation

    def _check(self) -> None:
        over = len(self.there) - self.budget
        self.over = max(self.over, over)
        if over > self.allowance:
            raise Violation(f"{over} over, {self.allowance} allowed")
        if not self.debts and self.reference.used > self.budget + self.allowance:
            raise Violation(f"I1: {self.reference.used} charged, {self.reference.rows}")
        for process in self.processes.values():
            if process.runs:
                process.check()

    def close(self) -> None:
        for process in self.processes.values():
            process.loop.close()
            process.pool._forsake()  # of a process that was killed
        del _simulations[self.name]

    # -- the line ----------------------------------------------------------------------------------

    def send(self, function: Callable[[], object]) -> None:
        """A message: it may be lost."""
        if self.random.random() >= self.loss:
            self.after(self.random.uniform(*self.delay), function)

    def send_news(self) -> None:
        for news in self.reference.take_news():
            for process in self.processes.values():
                if process.hears is not None and not process.is_cut_off:
                    self.send(lambda p=process, n=news: p.hear(n))


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one process; its clock runs at `rate`."""

    def __init__(self, simulation: Simulation, rate: float) -> None:
        super().__init__()
        self._selector = self
        self.simulation, self.rate = simulation, rate
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self.simulation.now * self.rate

    def due(self) -> float:
        """When it has something to do, on the clock of the simulation."""
        if self._ready:
            return self.simulation.now
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        return self._scheduled[0].when() / self.rate if self._scheduled else float("inf")

    def turn(self) -> None:
        """One turn."""
        self.call_soon(self.stop)
        self.run_forever()

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _note(self, _: object, context: dict[str, Any]) -> None:
        self.simulation.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


class SimulatedProcess:
    """One process with one pool and tasks that use it."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        min_size: int = 0,
        max_size: int = 10,
        rate: float = 1.0,
        slow: float = 0.0,
        **options: Any,
    ) -> None:
        self.simulation, self.number = simulation, len(simulation.processes) + 1
        self.host = f"host{self.number}"
        self.loop = SimulatedLoop(simulation, rate)
        self.runs = True  # neither paused nor dead
        self.is_dead = False
        self.away = False  # cut off from the ledger
        self.hears: Callable[[News], object] | None = None
        self.slow = slow  # seconds at most for opening and closing
        self.load = 0  # tasks that use the pool
        self.hold = 0.05  # seconds for which each holds a resource
        self.served = 0
        self._tasks = 0
        simulation.processes[self.number] = self
        options = {"budget": simulation.budget, "ttl": simulation.ttl, "name": "shop", **options}
        self.fleet = Fleet(f"simulation://{simulation.name}/{self.number}", **options)
        self.fleet._config = replace(self.fleet._config, host=self.host)
        self.pool: cenote.Pool[Any] = cenote.Pool(
            self._open,
            destructor=self._close,
            min_size=min_size,
            max_size=max_size,
            fleet=self.fleet,
            name=self.host,
        )
        self.start(self.pool.open())

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, cenote.PoolClosedError):
            self.simulation.errors.append(f"{self.host}: {error!r}")

    @property
    def part(self) -> int:
        """What it may have without the ledger."""
        return max((loan.lease.part for loan in self.loans), default=0)

    @property
    def is_cut_off(self) -> bool:
        return self.away or self.simulation.away or self.is_dead

    @property
    def loans(self) -> list[Any]:
        return [each for fleet in self.fleet._loops.values() for each in fleet._members.values()]

    def check(self) -> None:
        for loan in self.loans:
            row = self.simulation.reference.rows.get(loan.member)
            if loan.lease.state is LeaseState.LEASED and not self.simulation.debts:
                if self.loop.time() >= loan.lease.ends:
                    continue  # the gate is shut
                charge = 0 if row is None else row.charge
                if max(self.pool.occupied, 0 if self.pool.closed else self.pool.max_size) > charge:
                    raise Violation(f"I2, I3: {self.pool} has a lease, and is charged {charge}")

    # -- the program -------------------------------------------------------------------------------

    def work(self, load: int, hold: float) -> None:
        """From now on so many tasks use the pool, each for so long at a time."""
        self.load, self.hold = load, hold
        while self._tasks < load:
            self._tasks += 1
            self.start(self._use(self._tasks))

    async def _use(self, number: int) -> None:
        try:
            while number <= self.load and not self.pool.closed:
                async with self.pool.acquire():
                    await asyncio.sleep(self.simulation.random.uniform(0.2, 1.8) * self.hold)
                    self.served += 1
        finally:
            self._tasks -= 1

    async def _open(self) -> object:
        resource = object()
        self.simulation.there[resource] = self
        self.simulation.check()
        try:
            await asyncio.sleep(self.simulation.random.uniform(0, self.slow))
        except BaseException:
            self.simulation.there.pop(resource, None)
            raise
        return resource

    async def _close(self, resource: object) -> None:
        await asyncio.sleep(self.simulation.random.uniform(0, self.slow))
        self.simulation.there.pop(resource, None)

    # -- what happens to it ------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        self.runs = False
        self.simulation.after(seconds, self.go_on)

    def go_on(self) -> None:
        self.runs = not self.is_dead

    def end(self) -> None:
        """Close in proper form."""
        self.load = 0
        self.start(self.pool.close(drain=1.0))

    def kill(self) -> None:
        """The kernel closes what it had at once."""
        self.is_dead, self.runs, self.hears = True, False, None
        there = self.simulation.there
        for resource in [each for each, whose in there.items() if whose is self]:
            del there[resource]

    def hear(self, news: News) -> None:
        """News have arrived; a process that is paused takes them later."""

        def take() -> None:
            if self.hears is not None:
                self.hears(news)

        if not self.is_dead:
            self.loop.call_soon(take)


class SimulatedLedger:
    """The connection of one process. A request that nobody waits for any more still arrives."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.process, self.simulation = process, process.simulation

    async def open(self, news: Callable[[News], object]) -> None:
        if self.process.is_cut_off:
            raise LedgerError("refused")
        self.process.hears = news

    async def close(self) -> None:
        self.process.hears = None

    def forsake(self) -> None:
        self.process.hears = None

    async def sync(self, request: Sync) -> Grant:
        return await self._ask(lambda r, now: r.sync(request, now))

    async def leave(self, member: str, seq: int) -> None:
        await self._ask(lambda r, now: r.leave(member, seq, now))

    async def rows(self) -> list[MemberRow]:
        return await self._ask(lambda r, now: r.members(now))

    async def settle(self, member: str, counted: int) -> None:
        await self._ask(lambda r, now: r.settle(member, counted, now))

    async def vote(self, member: str, epoch: int, *, down: bool) -> FleetCircuit:
        return await self._ask(lambda r, now: r.vote(member, epoch, down, now))

    async def judge(self) -> FleetCircuit:
        return await self._ask(lambda r, now: r.judge(now))

    async def claim(self, member: str, epoch: int) -> FleetCircuit:
        return await self._ask(lambda r, now: r.claim(member, epoch, now))

    async def verdict(self, member: str, epoch: int, *, up: bool) -> FleetCircuit:
        return await self._ask(lambda r, now: r.verdict(member, epoch, up, now))

    async def _ask(self, do: Callable[[ReferenceLedger, float], R]) -> R:
        simulation, process = self.simulation, self.process
        if process.is_cut_off:
            raise LedgerError("refused")
        answer: asyncio.Future[R] = process.loop.create_future()

        def arrive() -> None:
            if process.away or simulation.away:
                return
            simulation.requests += 1
            result = do(simulation.reference, simulation.now)
            simulation.send_news()
            simulation.check()
            simulation.send(lambda: come_back(result))

        def come_back(result: R) -> None:
            if not process.is_cut_off:
                process.loop.call_soon(take, result)

        def take(result: R) -> None:
            if not answer.done():
                answer.set_result(result)

        simulation.send(arrive)
        if simulation.random.random() < simulation.repetition:
            simulation.send(arrive)
        return await answer
