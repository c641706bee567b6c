"""The adapters beside the pools whose place they take, in one run.

A task takes a connection, asks the server for a value and gives the connection back: 100 tasks over
10 connections, and one task alone. Client CPU beside the time that passed: on a busy machine it is
steadier. A pool that lets tasks overtake looks faster here, because who runs already need not be
woken; so fairness is beside it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

from tests.support.servers import RedisServer

from . import fairness
from .measure import Goal, Part, Samples, Scale, Table, compare, interleave, median, quiet
from .pools import reset_nothing
from .rivals import LONG

TASKS, CONNECTIONS = 100, 10
CONTENDED, ALONE = f"{TASKS} tasks, {CONNECTIONS} connections", "alone"
PASSED, CPU = "passed", "CPU of the client"
SPEED = 1.0  # at least, beyond the spread
SPEED_OF_AUTO = 2.0  # where a reset is left out, which is a round trip

Turn = Callable[[], Awaitable[object]]  # take, ask, give back
Opened = AbstractAsyncContextManager["Contestant"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """An open pool, or a client on it."""

    turn: Turn
    take: Callable[[], Awaitable[Any]]
    give: Callable[[Any], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Interface:
    """A library whose pool is measured; `pools[own]` is the library's."""

    title: str
    own: str
    pools: Mapping[str, Callable[[str, int], Opened]]  # by name: of a URL and a number
    goals: Mapping[str, float]  # how fast each adapter shall be, beside the library's


# -- asyncpg ---------------------------------------------------------------------------------------


def asyncpg_pool(adapted: bool, **options: Any) -> Callable[[str, int], Opened]:
    @asynccontextmanager
    async def opened(url: str, size: int) -> AsyncIterator[Contestant]:
        import asyncpg

        from cenote.adapters import asyncpg as adapter

        make: Any = adapter.create_pool if adapted else asyncpg.create_pool
        async with make(url, min_size=size, max_size=size, **options) as pool:

            async def turn() -> None:
                async with pool.acquire() as connection:
                    await connection.fetchval("select 1")

            yield Contestant(turn, pool.acquire, pool.release)

    return opened


ASYNCPG = Interface(
    "asyncpg: acquire, fetchval, release",
    "asyncpg.Pool",
    {
        "asyncpg.Pool": asyncpg_pool(False),
        "asyncpg.Pool, reset that does nothing": asyncpg_pool(False, reset=reset_nothing),
        'adapter, reset="auto"': asyncpg_pool(True, reset="auto"),
        'adapter, reset="always"': asyncpg_pool(True, reset="always"),
    },
    {'adapter, reset="auto"': SPEED_OF_AUTO, 'adapter, reset="always"': SPEED},
)

# -- SQLAlchemy ------------------------------------------------------------------------------------


def engine(adapted: bool) -> Callable[[str, int], Opened]:
    @asynccontextmanager
    async def opened(url: str, size: int) -> AsyncIterator[Contestant]:
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import create_async_engine

        from cenote.adapters.sqlalchemy import CenotePool

        options: dict[str, Any] = {"poolclass": CenotePool} if adapted else {}
        url = url.replace("postgresql://", "postgresql+asyncpg://")
        made = create_async_engine(
            url, pool_size=size, max_overflow=0, pool_timeout=LONG, **options
        )
        statement = text("select 1")

        async def turn() -> None:
            async with made.connect() as connection:
                await connection.execute(statement)

        async def take() -> Any:
            return await made.connect()

        try:
            yield Contestant(turn, take, lambda connection: connection.close())
        finally:
            await made.dispose()

    return opened


SQLALCHEMY = Interface(
    "SQLAlchemy: connect, execute, close",
    "AsyncAdaptedQueuePool",
    {"AsyncAdaptedQueuePool": engine(False), "adapter": engine(True)},
    {"adapter": SPEED},
)

# -- redis-py --------------------------------------------------------------------------------------


def redis_pool(adapted: bool) -> Callable[[str, int], Opened]:
    @asynccontextmanager
    async def opened(url: str, size: int) -> AsyncIterator[Contestant]:
        import redis.asyncio

        from cenote.adapters import redis as adapter

        kind: Any = (adapter if adapted else redis.asyncio).BlockingConnectionPool
        pool = kind.from_url(url, max_connections=size, timeout=LONG)
        client = redis.asyncio.Redis(connection_pool=pool)
        try:
            yield Contestant(lambda: client.get("name"), pool.get_connection, pool.release)
        finally:
            await client.aclose()
            await pool.aclose()

    return opened


REDIS = Interface(
    "redis-py: GET",
    "BlockingConnectionPool",
    {"BlockingConnectionPool": redis_pool(False), "adapter": redis_pool(True)},
    {"adapter": SPEED},
)

# -- measuring -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Meter:
    """Runs the turns of one contestant, and keeps the CPU time beside the time that passed."""

    contestant: Contestant
    tasks: int
    cpu: list[float] = field(default_factory=list)  # seconds of one turn; first the warming up

    async def run(self, operations: int) -> float:
        turns = max(1, operations // self.tasks)

        async def work() -> None:
            for _ in range(turns):
                await self.contestant.turn()

        began, spent = perf_counter(), process_time()
        await asyncio.gather(*(work() for _ in range(self.tasks)))
        passed = perf_counter() - began
        done = turns * self.tasks
        self.cpu.append((process_time() - spent) / done)
        return passed * operations / done


async def run(scale: Scale, url: str) -> Part:
    """All of them; `url`: of a PostgreSQL server. Redis is left out where there is no server."""
    part = Part([], {})
    await measure(part, scale, ASYNCPG, url)
    await measure(part, scale, SQLALCHEMY, url)
    if RedisServer.missing() is None:
        with RedisServer() as server:
            await measure(part, scale, REDIS, server.url)
    return part


async def measure(part: Part, scale: Scale, interface: Interface, url: str) -> None:
    table = Table(
        f"Adapters: {interface.title}",
        ["", "pool", "a turn, \N{MICRO SIGN}s", f"speed, to {interface.own}"],
    )
    for label, tasks, size in ((CONTENDED, TASKS, CONNECTIONS), (ALONE, 1, 1)):
        for unit, samples in (await turns(scale, interface, url, tasks, size)).items():
            what = f"{interface.title}, {label}, {unit}"
            for name, values in samples.items():
                part.samples[f"{what}: {name}"] = values
                speed = "1"
                if name != interface.own:
                    pair = {name: values, interface.own: samples[interface.own]}
                    [versus] = compare(f"{what}: {name}", pair, name).values()
                    speed = str(versus)
                    if (least := interface.goals.get(name)) is not None:
                        part.versus.append(versus)
                        # Beyond the spread: the upper quartile is below it.
                        goal = f"{what}, {name}, upper quartile"
                        part.goals.append(Goal(goal, least, versus.high, at_least=True))
                row = [f"{label}, {unit}", name, f"{1e6 * median(values):,.0f}", speed]
                table.rows.append(row)
    part.tables += [table, await shares(part, scale, interface, url)]


async def turns(
    scale: Scale, interface: Interface, url: str, tasks: int, size: int
) -> dict[str, Samples]:
    """By unit and pool."""
    async with AsyncExitStack() as stack:
        meters = {
            name: Meter(await stack.enter_async_context(opened(url, size)), tasks)
            for name, opened in interface.pools.items()
        }
        passed = await interleave(
            {name: meter.run for name, meter in meters.items()},
            rounds=scale.rounds * 2,
            operations=max(tasks, scale.operations // 4),
        )
    return {PASSED: passed, CPU: {name: meter.cpu[1:] for name, meter in meters.items()}}


async def shares(part: Part, scale: Scale, interface: Interface, url: str) -> Table:
    """How evenly greedy tasks are served."""
    wanted = fairness.TASKS * min(fairness.TURNS, scale.turns)
    found: Samples = {}
    for name, opened in interface.pools.items():
        async with opened(url, fairness.RESOURCES) as contestant:
            with quiet():
                tally = await fairness.compete(contestant, wanted)
        for what, value in fairness.figures(tally, wanted).items():
            found[f"{what}: {name}"] = [value]
    part.samples |= {f"{interface.title}, {what}": value for what, value in found.items()}
    table = Table(
        f"Adapters: fairness of {interface.title.partition(':')[0]}, {fairness.TASKS} greedy "
        f"tasks over {fairness.RESOURCES} connections",
        ["pool", "fewest turns", "most turns", "longest wait, ms", "overtook an older one"],
    )
    for name in interface.pools:
        few, most, longest, overtook = (
            median(found[f"{what}: {name}"])
            for what in (fairness.FEWEST, fairness.MOST, fairness.LONGEST, fairness.OVERTOOK)
        )
        cells = (f"{few:.0%}", f"{most:.0%}", f"{longest * 1e3:,.1f}", f"{overtook:.1%}")
        table.rows.append([name, *cells])
    return table
