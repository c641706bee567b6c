"""A server is stopped and started again: how soon do all tasks work, and what do they see?

One pool after the other lives through a restart, and then all of them through the next. Each has
two sets of tasks: one that goes on working all the time, and one over connections that are idle
until the server is back. A task whose statement fails tries again a little later, as a user would.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from . import drivers
from .drivers import Maker, Run
from .measure import Part, Samples, Scale, Table, Versus, compare, median, rotated, short

CONNECTIONS, TASKS = 5, 20  # of each set
PAUSE = 0.05  # seconds from an error to the next try
DOWN = 1.0  # seconds that the server is away, beside what its own stop and start take
PATIENCE = 10.0  # seconds after which tasks that do not work are given up
LEAST = 0.01  # seconds: what is less is not told apart

POSTGRESQL, MARIADB = "PostgreSQL", "MariaDB"
BASES = {POSTGRESQL: "cenote.Database, asyncpg", MARIADB: "cenote.Database, asyncmy"}
BACK, MEANWHILE, AFTER = "seconds", "errors while it is away", "errors after it is back"
IDLE_BACK, IDLE_ERRORS = "idle: seconds", "idle: errors"
FIGURES = (BACK, MEANWHILE, AFTER, IDLE_BACK, IDLE_ERRORS)


def peers(server: str) -> dict[str, Maker]:
    """Those that are installed; with and without a setting that is there for restarts."""
    found: dict[str, Maker] = {}
    if server == POSTGRESQL:
        psycopg = drivers.load("psycopg_pool").AsyncConnectionPool
        found["cenote.Database, asyncpg"] = drivers.through_cenote
        found["cenote.Database, psycopg"] = through_cenote_with_psycopg
        found["asyncpg.Pool"] = drivers.asyncpg_pool
        found["psycopg_pool"] = drivers.psycopg_pool
        found["psycopg_pool, check"] = partial(drivers.psycopg_pool, check=psycopg.check_connection)
        schemes = ("postgresql+asyncpg", "postgresql")
    else:
        found["cenote.Database, asyncmy"] = drivers.through_cenote
        found |= drivers.ROADS["asyncmy"][1]
        schemes = ("mysql+asyncmy", "mysql+aiomysql")
    if drivers.installed("sqlalchemy"):
        found["SQLAlchemy"] = drivers.through_alchemy(schemes[0])
        found["SQLAlchemy, pool_pre_ping"] = drivers.through_alchemy(schemes[0], pool_pre_ping=True)
    if drivers.installed("databases"):
        found["encode/databases"] = drivers.through_databases(schemes[1])
    return found


def through_cenote_with_psycopg(url: str, connections: int) -> Any:
    return drivers.through_cenote(
        url.replace("postgresql://", "postgresql+psycopg://"), connections
    )


async def run(scale: Scale, servers: dict[str, Any]) -> Part:
    """`servers`: that run, by name."""
    part = Part([], {})
    for name, server in servers.items():
        samples: Samples = {}
        for number in range(scale.restarts):
            for peer, make in rotated(peers(name), number):
                with silence():
                    figures = await restart(server, make)
                for what, value in figures.items():
                    samples.setdefault(f"{what}: {peer}", []).append(value)
        back = {peer: samples[f"{BACK}: {peer}"] for peer in peers(name)}
        at_least = {peer: [max(LEAST, value) for value in got] for peer, got in back.items()}
        versus = compare(f"{name}: recovery", at_least, BASES[name])
        part.tables.append(table(name, samples, versus))
        part.versus += versus.values()
        part.samples |= {f"{name}, {key}": values for key, values in samples.items()}
    return part


class Users:
    """The tasks of one pool, and what they see."""

    def __init__(self, statement: Run) -> None:
        self._statement = statement
        self._tasks: list[asyncio.Task[None]] = []
        self._works: dict[int, float] = {}  # task -> its first success after the stop
        self.stopped: float | None = None  # when the server was gone
        self.failures: list[float] = []  # when
        self.all_work = asyncio.Event()
        self._over = False

    async def warm_up(self) -> None:
        await asyncio.gather(*(self._statement() for _ in range(TASKS)))

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(TASKS)]

    async def stop(self) -> None:
        self._over = True  # a cancellation alone may be lost on its way, in wait_for() of 3.11
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def back(self, since: float) -> float:
        """Seconds until the last of them worked; if one never did, all that there were."""
        if len(self._works) < TASKS:
            return PATIENCE
        return max(0.0, max(self._works.values()) - since)

    async def _work(self, number: int) -> None:
        while not self._over:
            began = perf_counter()
            try:
                await self._statement()
            except Exception:
                self.failures.append(perf_counter())
                await asyncio.sleep(PAUSE)
                continue
            if self.stopped is not None and began > self.stopped:
                self._works.setdefault(number, perf_counter())
                if len(self._works) == TASKS:
                    self.all_work.set()
            await asyncio.sleep(0.001)


async def restart(server: Any, make: Maker) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        users = []
        for _ in range(2):
            jobs = await stack.enter_async_context(make(server.tcp_url(), CONNECTIONS))
            users.append(Users(jobs.statement))
            await users[-1].warm_up()
        busy, idle = users
        busy.start()
        await asyncio.sleep(0.3)
        down = perf_counter()
        await asyncio.to_thread(server.stop)
        busy.stopped = idle.stopped = perf_counter()
        await asyncio.sleep(DOWN)
        await asyncio.to_thread(server.start)
        up = perf_counter()
        idle.start()
        waiting = [asyncio.create_task(each.all_work.wait()) for each in users]
        await asyncio.wait(waiting, timeout=PATIENCE)
        for task in waiting:
            task.cancel()
        for each in users:
            await each.stop()
    return {
        BACK: busy.back(up),
        MEANWHILE: sum(down <= when < up for when in busy.failures),
        AFTER: sum(when >= up for when in busy.failures),
        IDLE_BACK: idle.back(up),
        IDLE_ERRORS: len(idle.failures),
    }


@contextmanager
def silence() -> Iterator[None]:
    """What the drivers and pools log about their dead connections."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def table(server: str, samples: Samples, versus: dict[str, Versus]) -> Table:
    result = Table(
        f"Recovery from a restart of {server}: {TASKS} tasks over {CONNECTIONS} connections",
        [
            "",
            "seconds until all work",
            "from, to",
            "to cenote",
            "errors while away",
            "errors once back",
            "idle pool: seconds",
            "idle pool: errors",
        ],
    )
    for name in peers(server):
        found = {what: samples[f"{what}: {name}"] for what in FIGURES}
        seconds = found[BACK]
        result.rows.append(
            [
                name,
                late(median(seconds)),
                f"{short(min(seconds))} {short(max(seconds))}",
                str(versus.get(name, "1")),
                *(f"{median(found[what]):,.0f}" for what in (MEANWHILE, AFTER)),
                late(median(found[IDLE_BACK])),
                f"{median(found[IDLE_ERRORS]):,.0f}",
            ]
        )
    result.notes.append(
        f"From the moment at which the server answers again, after {DOWN:.0f} s away; medians of "
        f"{len(samples[f'{BACK}: {BASES[server]}'])} restarts. A task tries again "
        f"{PAUSE * 1e3:.0f} ms after an error. Ratios are of seconds, of which less than "
        f"{LEAST * 1e3:.0f} ms are not told apart."
    )
    return result


def late(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < PATIENCE else f"not in {PATIENCE:.0f}"
