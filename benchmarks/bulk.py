"""execute_many() of many rows, beside the driver's own; and the memory that a generator takes."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any

import cenote

from .drivers import BARE, CENOTE, load, mysql_options, plain
from .measure import Case, Goal, Part, Samples, Scale, Table, compare, interleave, median, spread
from .statements import database

GENERATOR = "cenote.Database, a generator"
TABLE = "bulk"
TEXT = f"insert into {TABLE} values (?, ?, ?)"
LONGER = 4  # times as many rows, of which a generator should not need more memory
MOST = 1.25  # times the memory
LEAST = 1.0  # times as many rows a second as the driver's own

Load = Callable[[int], Awaitable[object]]  # of so many rows, in one transaction


async def run(scale: Scale, urls: dict[str, str]) -> Part:
    """`urls`: by the name of the driver; those of servers may be missing."""
    part = Part([], {})
    rows = scale.series
    result = Table(
        f"execute_many() of {rows:,} rows of three columns, in one transaction",
        ["", "rows a second", "spread", "to cenote", "memory at its peak, kB",
         f"of {LONGER} times as many rows"],
    )  # fmt: skip
    with database() as (_, sqlite):
        for driver, url in {"aiosqlite": sqlite, **urls}.items():
            samples, peaks = await measure(scale, driver, url)
            versus = compare(f"{driver}: execute_many", samples, CENOTE)
            part.versus += [each for name, each in versus.items() if name == BARE]
            what = f"{driver}: execute_many of {rows:,} rows, to the driver's own"
            part.goals.append(Goal(what, LEAST, versus[BARE].ratio, at_least=True))
            for name, values in samples.items():
                part.samples[f"{driver}: {name}"] = values
                part.samples[f"{driver}, memory: {name}"] = peaks[name]
                few, many = peaks[name]
                result.rows.append(
                    [f"{driver}: {name}", f"{rows / median(values):,.0f}", spread(values),
                     str(versus.get(name, "1")), f"{few / 1e3:,.0f}", f"{many / 1e3:,.0f}"]
                )  # fmt: skip
            few, many = peaks[GENERATOR]
            what = f"{driver}: memory of a generator of {LONGER} times as many rows"
            part.goals.append(Goal(what, MOST, many / few))
    result.notes.append(
        "The peak of what Python allocates (tracemalloc), the rows included. The bare drivers get "
        "a list, and so does the first line of cenote."
    )
    part.tables.append(result)
    return part


async def measure(scale: Scale, driver: str, url: str) -> tuple[Samples, Samples]:
    """Seconds for all rows, round by round; and bytes at the peak, of few and of many rows."""
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(cenote.Database(url, max_size=1))
        bare = await stack.enter_async_context(LOADERS[driver](url))
        await db.execute(f"drop table if exists {TABLE}")
        await db.execute(f"create table {TABLE} (id integer, name varchar(50), number integer)")
        loads: dict[str, Load] = {
            CENOTE: lambda number: db.execute_many(TEXT, [*rows(number)]),
            GENERATOR: lambda number: db.execute_many(TEXT, rows(number)),
            BARE: bare,
        }
        samples = await interleave(
            {name: case(db, each) for name, each in loads.items()},
            rounds=scale.rounds,
            operations=scale.series,
        )
        samples = {
            name: [value * scale.series for value in found] for name, found in samples.items()
        }
        peaks = {
            name: [float(await peak(db, each, scale.series * factor)) for factor in (1, LONGER)]
            for name, each in loads.items()
        }
        await db.execute(f"drop table {TABLE}")
    return samples, peaks


def rows(number: int) -> Iterator[tuple[int, str, int]]:
    for at in range(number):
        yield at, f"the name of row {at}", at * 3


def case(db: cenote.Database, send: Load) -> Case:
    async def timed(operations: int) -> float:
        await db.execute(f"delete from {TABLE}")
        began = perf_counter()
        await send(operations)
        seconds = perf_counter() - began
        assert await db.fetch_val(f"select count(*) from {TABLE}") == operations
        return seconds

    return timed


async def peak(db: cenote.Database, send: Load, number: int) -> int:
    """Bytes."""
    await db.execute(f"delete from {TABLE}")
    tracemalloc.start()
    try:
        await send(number)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- the drivers ---------------------------------------------------------------------------------


@asynccontextmanager
async def asyncpg(url: str) -> AsyncIterator[Load]:
    connection = await load("asyncpg").connect(url)
    text = f"insert into {TABLE} values ($1, $2, $3)"
    try:
        yield lambda number: connection.executemany(text, [*rows(number)])
    finally:
        await connection.close()


@asynccontextmanager
async def psycopg(url: str) -> AsyncIterator[Load]:
    connection = await load("psycopg").AsyncConnection.connect(plain(url), autocommit=True)

    async def send(number: int) -> None:
        async with connection.transaction(), connection.cursor() as cursor:
            await cursor.executemany(TEXT.replace("?", "%s"), [*rows(number)])

    try:
        yield send
    finally:
        await connection.close()


@asynccontextmanager
async def asyncmy(url: str) -> AsyncIterator[Load]:
    connection = await load("asyncmy").connect(autocommit=True, **mysql_options(url))

    async def send(number: int) -> None:
        await connection.begin()
        async with connection.cursor() as cursor:
            await cursor.executemany(TEXT.replace("?", "%s"), [*rows(number)])
        await connection.commit()

    try:
        yield send
    finally:
        await connection.ensure_closed()


@asynccontextmanager
async def aiosqlite(url: str) -> AsyncIterator[Load]:
    path = url.removeprefix("sqlite:///")
    connection = await load("aiosqlite").connect(path, isolation_level=None)

    async def send(number: int) -> None:
        await connection.execute("begin immediate")
        await connection.executemany(TEXT, [*rows(number)])
        await connection.commit()

    try:
        yield send
    finally:
        await connection.close()


LOADERS: dict[str, Callable[[str], Any]] = {
    "aiosqlite": aiosqlite,
    "asyncpg": asyncpg,
    "psycopg": psycopg,
    "asyncmy": asyncmy,
}

if __name__ == "__main__":
    from .network import run_on_servers

    asyncio.run(run_on_servers(run))
