"""`python -m benchmarks.guard`: what the guard of `db.connection()` costs.

Processor time of this process for `select 1` by the driver's own method, through the guard and on
the bare object, on the same connection. The larger a statement is, the less it is.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from time import process_time
from typing import Any

import cenote

from .measure import Case, Part, Scale, Table, compare, interleave, median
from .network import run_on_servers

GUARDED, BARE = "through the guard", "on the bare object"


async def by_asyncpg(connection: Any) -> None:
    await connection.fetchval("select 1")


async def by_cursor(connection: Any) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute("select 1")
        await cursor.fetchone()


async def by_sqlite(connection: Any) -> None:
    await connection.execute_fetchall("select 1")


ASK: Mapping[str, Callable[[Any], Awaitable[None]]] = {
    "asyncpg": by_asyncpg,
    "psycopg": by_cursor,
    "asyncmy": by_cursor,
    "sqlite": by_sqlite,
}


def case(ask: Callable[[Any], Awaitable[None]], connection: Any) -> Case:
    async def run(operations: int) -> float:
        began = process_time()
        for _ in range(operations):
            await ask(connection)
        return process_time() - began

    return run


async def run(scale: Scale, urls: Mapping[str, str]) -> Part:
    """`urls`: by the name of the driver; SQLite needs none."""
    part = Part([], {})
    micros = "\N{MICRO SIGN}s"
    table = Table(
        "The guard of connection()", ["", f"{GUARDED}, {micros}", f"{BARE}, {micros}", "it costs"]
    )
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="cenote-bench-"))
        known = {"sqlite": f"sqlite:///{Path(directory) / 'guard.db'}", **urls}
        for driver, url in known.items():
            db = await stack.enter_async_context(cenote.Database(url, max_size=1))
            async with db.connection() as guarded:
                ask = ASK[driver]
                cases = {GUARDED: case(ask, guarded), BARE: case(ask, guarded.__wrapped__)}
                rounds, operations = scale.rounds * 2, scale.operations // 4
                samples = await interleave(cases, rounds=rounds, operations=operations)
            part.samples |= {f"{driver}: {name}": got for name, got in samples.items()}
            versus = compare(driver, samples, BARE)[GUARDED]
            part.versus.append(versus)
            times = [f"{1e6 * median(samples[each]):,.1f}" for each in (GUARDED, BARE)]
            table.rows.append([driver, *times, str(versus)])
    part.tables.append(table)
    return part


if __name__ == "__main__":
    asyncio.run(run_on_servers(run))
