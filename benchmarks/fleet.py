"""`python -m benchmarks.fleet`: a thousand processes share one budget, in virtual time.

The pools and what they do in a fleet are real; the ledger is the reference in Python behind a line
of some milliseconds, as Redis would be. All processes are in one event loop, whose time passes as
fast as it can, so that the load of the machine has no part in the result: it follows from the seed.
Each process has tasks that take a resource, hold it for half a second on average, and so on.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.support.memory_ledger import AskingLedger

import cenote
from cenote.fleet.ledger import LedgerConfig, LedgerError, News
from cenote.fleet.loading import MODULES
from cenote.fleet.reference import ReferenceLedger
from cenote.fleet.shares import Demand, divide, turn_at
from cenote.testing import VirtualLoop, now

from .measure import Table
from .plots import LinePanel, Lines, Series, both

R = TypeVar("R")

TTL: Final = 10.0
MOST: Final = 20  # resources of one process
EACH: Final = 2  # of the budget, for each process
HOLD: Final = 0.5  # seconds, on average
LINE: Final = 0.0005, 0.002  # seconds of a message to the ledger: from, to
STEP: Final = 0.05  # seconds between two looks
CHANGES: Final = 10.0  # seconds after which a process has another number of tasks, on average
FEW: Final = 1, 1, 1, 1, 3  # tasks of a process, one of these: all need less than the budget
MANY: Final = 1, 1, 3, 3, 6  # likewise, more than the budget

MODULES["simulated"] = __name__
_processes: dict[str, Process] = {}  # by the URL of the fleet
_numbers = itertools.count(1)


def new_ledger(config: LedgerConfig) -> Line:
    """Called by the fleet of a process."""
    return Line(_processes[config.url])


class Site:
    """The ledger, the backend, and the processes."""

    def __init__(self, budget: int, seed: int) -> None:
        self.budget = budget
        self.random = random.Random(f"fleet {seed}")
        random.seed(f"jitter {seed}")  # of the beats
        self.reference = ReferenceLedger(TTL, TTL / 5)
        self.homes: dict[str, Line] = {}  # by member
        self.processes: list[Process] = []  # the living
        self.requests = 0
        self.open = self.most = 0  # at the backend: now, and at most
        self.in_use = 0

    def start(self, number: int, tasks: Sequence[int]) -> list[Process]:
        """New processes, each with one of these numbers of tasks."""
        new = [Process(self, self.random.choice(tasks)) for _ in range(number)]
        self.processes += new
        return new

    def possible(self) -> int:
        """How many could be in use."""
        return min(self.budget, sum(min(each.tasks, MOST) for each in self.processes))

    def note(self) -> None:
        """Add to what each process has in use what it has now, and to what it should have."""
        demands = [Demand.of(0, each.tasks, min(each.tasks, MOST)) for each in self.processes]
        parts = divide(demands, self.budget, turn_at(now())).parts
        for each, part in zip(self.processes, parts, strict=True):
            each.had += each.in_use
            each.due += part

    def fairness(self) -> float:
        """Jain's index of what each had, as a part of what it should have had: 1 is best."""
        had = [each.had / each.due for each in self.processes if each.due]
        return sum(had) ** 2 / (len(had) * sum(each * each for each in had))

    def send_news(self) -> None:
        loop = asyncio.get_running_loop()
        for news in self.reference.take_news():
            home = self.homes.get(news.member or "")
            if home is not None:
                loop.call_later(self.delay(), home.deliver, news)

    def delay(self) -> float:
        return self.random.uniform(*LINE)


class Line(AskingLedger):
    """The connection of one process to the ledger."""

    def __init__(self, process: Process) -> None:
        self.process, self.site = process, process.site
        self.news: Callable[[News], object] | None = None

    def deliver(self, news: News) -> None:
        if self.news is not None and not self.process.is_dead:
            self.news(news)

    async def open(self, news: Callable[[News], object]) -> None:
        self.news = news

    async def close(self) -> None:
        self.news = None

    def forsake(self) -> None:
        self.news = None

    async def _ask(self, operation: str, member: str, do: Callable[[ReferenceLedger], R]) -> R:
        await asyncio.sleep(self.site.delay())
        if self.process.is_dead:
            raise LedgerError("the process is dead")
        self.site.requests += 1
        self.site.homes[member] = self
        answer = do(self.site.reference)
        self.site.send_news()
        await asyncio.sleep(self.site.delay())
        return answer


class Process:
    """One process with one pool, and its tasks."""

    def __init__(self, site: Site, tasks: int) -> None:
        self.site = site
        self.tasks = 0
        self.in_use = 0
        self.had = self.due = 0.0  # see `Site.note`
        self.first: float | None = None  # when it had its first resource
        self.began = now()
        self.is_dead = False
        self._running: set[asyncio.Task[None]] = set()
        url = f"simulated://{next(_numbers)}"
        _processes[url] = self
        self._fleet = cenote.Fleet(url, budget=site.budget, ttl=TTL)
        self._pool = cenote.Pool(
            self._connect, destructor=self._disconnect, max_size=MOST, fleet=self._fleet
        )
        self.work(tasks)

    def work(self, tasks: int) -> None:
        """From now on it has so many tasks."""
        before, self.tasks = self.tasks, tasks
        for number in range(before, tasks):
            task = asyncio.create_task(self._use(number))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _use(self, number: int) -> None:
        while number < self.tasks:
            async with self._pool.acquire():
                if self.first is None:
                    self.first = now()
                self._count(1)
                try:
                    await asyncio.sleep(self.site.random.expovariate(1 / HOLD))
                finally:
                    self._count(-1)

    def _count(self, change: int) -> None:
        if not self.is_dead:
            self.in_use += change
            self.site.in_use += change

    def _connect(self) -> object:
        self.site.open += 1
        self.site.most = max(self.site.most, self.site.open)
        return object()

    def _disconnect(self, _: object) -> None:
        if not self.is_dead:
            self.site.open -= 1

    def kill(self) -> None:
        """The backend sees the end of its connections at once; nobody informs the ledger."""
        site = self.site
        site.in_use -= self.in_use
        site.open -= self._pool.occupied
        self.is_dead, self.tasks = True, 0
        site.processes.remove(self)
        for task in self._running:
            task.cancel()
        self._pool.terminate()

    async def end(self) -> None:
        """Close in proper form."""
        self.tasks = 0
        await self._pool.close(drain=100 * HOLD)
        self.site.processes.remove(self)


# -- what is played ------------------------------------------------------------------------------

Course = list[tuple[float, float]]  # seconds, and percent


async def watch(seconds: float, *looks: Callable[[], float]) -> list[Course]:
    """Look at these for so long."""
    began = now()
    courses: list[Course] = [[] for _ in looks]
    while (at := now() - began) < seconds:
        for course, look in zip(courses, looks, strict=True):
            course.append((at, look()))
        await asyncio.sleep(STEP)
    return courses


async def until(condition: Callable[[], bool], *, most: float = 6 * TTL) -> float:
    """The seconds until it is so, in steps of a millisecond."""
    began = now()
    while not condition():
        if now() - began > most:
            raise TimeoutError(f"not within {most:g} s")
        await asyncio.sleep(0.001)
    return now() - began


async def started(number: int, budget: int, seed: int, tasks: Sequence[int]) -> Site:
    """So many processes, whose ledger has learned who is there."""
    site = Site(budget, seed)
    site.start(number, tasks)
    await asyncio.sleep(2 * TTL / 5 + 2)
    return site


async def steady(site: Site, tasks: Sequence[int], seconds: float) -> list[str]:
    """Everybody works, and now and then one has more or less to do: a row of the table."""
    processes = site.processes
    used = possible = 0.0
    site.requests, began = 0, now()
    changing = began
    while now() - began < seconds:
        await asyncio.sleep(STEP)
        site.note()
        used += site.in_use
        possible += site.possible()
        while (changing := changing + site.random.expovariate(len(processes) / CHANGES)) < now():
            site.random.choice(processes).work(site.random.choice(tasks))
    rate = site.requests / (now() - began)
    return [
        f"{used / possible:.4f}", f"{site.fairness():.4f}", f"{rate:,.0f}",
        f"{rate / len(processes):.2f}", f"{site.most:,} of {site.budget:,}",
    ]  # fmt: skip


async def spike(site: Site) -> tuple[float, Course]:
    """One process has 20 times as much to do: the seconds until it has all, and its course."""
    one = site.processes[0]

    def has() -> float:
        return 100 * one.in_use / MOST

    async def rise() -> float:
        await asyncio.sleep(0.5)
        one.work(MOST)
        return await until(lambda: one.in_use == MOST)

    took, [course] = await asyncio.gather(rise(), watch(1.5, has))
    return took, course


async def deaths(site: Site, number: int) -> tuple[float, Course]:
    """So many are killed: the seconds until the others have all of the budget, and the course."""

    def use() -> float:
        return 100 * site.in_use / site.budget

    async def die() -> float:
        await asyncio.sleep(2)
        for each in site.processes[:number]:
            each.kill()
        return await until(lambda: site.in_use >= site.possible() * 0.999)

    took, [course] = await asyncio.gather(die(), watch(2 * TTL, use))
    return took, course


async def deploy(site: Site, tasks: Sequence[int]) -> tuple[float, list[Course]]:
    """As many new processes, and the old ones end: the longest until one has its first resource,
    and what the old, the new and all have in use."""
    old = [*site.processes]
    new: list[Process] = []

    def in_use(processes: Sequence[Process]) -> float:
        return 100 * sum(each.in_use for each in processes) / site.budget

    async def roll() -> None:
        await asyncio.sleep(2)
        new.extend(site.start(len(old), tasks))
        await asyncio.sleep(3)
        await asyncio.gather(*(end_soon(each) for each in old))

    async def end_soon(process: Process) -> None:
        await asyncio.sleep(site.random.uniform(0, 3))
        await process.end()

    looks = (lambda: in_use(old), lambda: in_use(new), lambda: in_use([*old, *new]))
    _, courses = await asyncio.gather(roll(), watch(12, *looks))
    return max(each.first - each.began for each in new if each.first is not None), courses


def play(scene: Coroutine[Any, Any, R]) -> R:
    """Play it in a loop of its own, and end its processes."""

    async def scene_and_end() -> R:
        try:
            return await scene
        finally:
            processes = [*_processes.values()]
            _processes.clear()
            await asyncio.gather(*(each.end() for each in processes if each in each.site.processes))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scene_and_end())


def simulate(number: int, seconds: float, seed: int) -> tuple[list[Table], Lines]:
    """Everything, with so many processes."""
    budget = EACH * number
    table = Table(
        f"{number:,} processes, steady",
        ["", "of the possible", "Jain", "requests/s", "each", "open at most"],
    )

    async def steadily(budget: int, tasks: Sequence[int], seconds: float) -> list[str]:
        return await steady(await started(number, budget, seed, tasks), tasks, seconds)

    table.rows += [
        ["enough for all", *play(steadily(budget, FEW, seconds))],
        ["not enough", *play(steadily(budget, MANY, seconds))],
        ["twice as many as resources", *play(steadily(number // 2, (1,), 4 * seconds))],
    ]

    async def spiked() -> tuple[float, Course]:
        return await spike(await started(number, budget, seed, (1,)))

    async def died() -> tuple[float, Course]:
        return await deaths(await started(number, budget, seed, MANY), number * 3 // 10)

    async def deployed() -> tuple[float, list[Course]]:
        return await deploy(await started(number // 2, budget, seed, (6,)), (6,))

    risen, rise = play(spiked())
    back, fall = play(died())
    first, courses = play(deployed())
    moments = Table(f"{number:,} processes, moments", ["", "seconds"])
    moments.rows += [
        [f"one process needs {MOST} instead of 1: it has them after", f"{risen:.3f}"],
        ["three of ten are killed: the others have all after", f"{back:.1f}"],
        [f"a deploy of {number // 2:,}: each new one has its first after", f"{first:.2f}"],
    ]
    names = ("old processes", "new processes", "all")
    panels = [
        LinePanel(
            "a deploy, percent of the budget",
            [Series(*each, each[0] == "all") for each in zip(names, courses, strict=True)],
        ),
        LinePanel("a spike, percent of what it needs", [Series("one process", rise, True)]),
        LinePanel("three of ten killed, ttl 10 s", [Series("the budget", fall, True)]),
    ]
    drawing = Lines(
        f"The budget of {number:,} processes", "In use, in percent, over seconds of virtual time; "
        "simulated on the reference ledger.",
        panels, "seconds", "{:g}%".format, width=1180, height=360, log=False, names=110,
    )  # fmt: skip
    return [table, moments], drawing


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--processes", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of virtual time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write the plot there")
    options = parser.parse_args(arguments)
    tables, drawing = simulate(options.processes, options.seconds, options.seed)
    print("\n\n".join(map(str, tables)))
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        for name, text in both("fleet", drawing).items():
            (options.output / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
