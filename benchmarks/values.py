"""`python -m benchmarks.values`: what it costs that values are the same on every driver.

Each row of a result is one operation. Plain columns are compared with `values="driver"`; columns of
JSON and UUIDs with the bare driver and codecs as a program would set them by itself. The time is
that of the processor in this process: what the server takes is the same for both.
"""

import asyncio
import json
import sqlite3
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Any

import cenote

from .measure import Case, Part, Samples, Scale, Table, compare, interleave, median
from .network import run_on_servers

SAME, DRIVER, CODECS = 'values="same"', 'values="driver"', "bare driver with codecs of its own"
SHAPES = ("plain", "json", "uuid")
COLUMNS = {"plain": "a integer, b varchar(40), c float", "json": "a json", "uuid": "a uuid"}
DOCUMENT = {"name": "lamp", "tags": ["red", "small"], "price": {"amount": 19.9, "currency": "EUR"}}

Fetch = Callable[[], Awaitable[Any]]


def row_of(shape: str, number: int) -> list[Any]:
    rows: dict[str, list[Any]] = {
        "plain": [number, f"name {number}", number / 7],
        "json": [{**DOCUMENT, "id": number}],
        "uuid": [uuid.UUID(int=number**7)],
    }
    return rows[shape]


async def fill(url: str, rows: int) -> None:
    async with cenote.Database(url, max_size=1) as db:
        for shape, columns in COLUMNS.items():
            await db.execute(f"drop table if exists values_{shape}")
            await db.execute(f"create table values_{shape} ({columns})")
            marks = ", ".join("?" * len(row_of(shape, 0)))
            every = [row_of(shape, number) for number in range(rows)]
            await db.execute_many(f"insert into values_{shape} values ({marks})", every)


@asynccontextmanager
async def asyncpg_codecs(url: str) -> AsyncIterator[Callable[[str], Fetch]]:
    import asyncpg

    raw = await asyncpg.connect(url)
    for name, encoder, decoder in (("json", json.dumps, json.loads), ("uuid", str, uuid.UUID)):
        await raw.set_type_codec(name, schema="pg_catalog", encoder=encoder, decoder=decoder)
    yield lambda sql: lambda: raw.fetch(sql)
    await raw.close()


@asynccontextmanager
async def psycopg_itself(url: str) -> AsyncIterator[Callable[[str], Fetch]]:
    import psycopg

    url = url.replace("postgresql+psycopg:", "postgresql:")
    raw = await psycopg.AsyncConnection.connect(url, autocommit=True)

    async def fetch(sql: Any) -> Any:
        return await (await raw.execute(sql, prepare=True)).fetchall()

    yield lambda sql: lambda: fetch(sql)
    await raw.close()


@asynccontextmanager
async def rows_by_hand(url: str) -> AsyncIterator[Callable[[str], Fetch]]:
    """A program that converts each row by itself."""
    async with cenote.Database(url, max_size=1, values="driver") as db:

        def by_hand(sql: str) -> Fetch:
            read: Callable[[Any], Any] = json.loads if sql.endswith("json") else uuid.UUID

            async def fetch() -> Any:
                return [(read(row[0]),) for row in await db.fetch_all(sql)]

            return fetch

        yield by_hand


BARE: Mapping[str, Any] = {
    "asyncpg": asyncpg_codecs,
    "psycopg": psycopg_itself,
    "asyncmy": rows_by_hand,
    "sqlite": rows_by_hand,
}


def case(fetch: Fetch, rows: int) -> Case:
    async def run(operations: int) -> float:
        turns = max(1, operations // rows)
        began = process_time()
        for _ in range(turns):
            await fetch()
        return (process_time() - began) * operations / (turns * rows)

    return run


def one_of(db: cenote.Database, sql: str) -> Fetch:
    return lambda: db.fetch_all(sql)


async def measure(scale: Scale, driver: str, url: str, shape: str, rows: int) -> Samples:
    """Seconds of the processor for one row."""
    sql = f"select * from values_{shape}" + (f" limit {rows}" if rows == 1 else "")
    async with AsyncExitStack() as stack:
        same = await stack.enter_async_context(cenote.Database(url, max_size=1))
        cases = {SAME: case(one_of(same, sql), rows)}
        if shape == "plain":
            other = cenote.Database(url, max_size=1, values="driver")
            bare = await stack.enter_async_context(other)
            cases[DRIVER] = case(one_of(bare, sql), rows)
        else:
            by = await stack.enter_async_context(BARE[driver](url))
            cases[CODECS] = case(by(sql), rows)
        operations = rows * (scale.operations // 10 if rows == 1 else 20)
        return await interleave(cases, rounds=scale.rounds * 2, operations=operations)


async def run(scale: Scale, urls: Mapping[str, str]) -> Part:
    """`urls`: by the name of the driver; SQLite needs none."""
    part = Part([], {})
    table = Table(
        "Values that are the same on every driver",
        ["", "rows", "a row, \N{MICRO SIGN}s", "the other, \N{MICRO SIGN}s", "the other costs"],
    )
    with tempfile.TemporaryDirectory(prefix="cenote-bench-") as directory:
        known = {"sqlite": f"sqlite:///{Path(directory) / 'values.db'}", **urls}
        for driver, url in known.items():
            await fill(url, scale.rows)
            for shape in SHAPES:
                for rows in (1, scale.rows) if shape == "plain" else (scale.rows,):
                    samples = await measure(scale, driver, url, shape, rows)
                    name = f"{driver}, {shape}, {rows:,}"
                    part.samples |= {f"{name}: {peer}": got for peer, got in samples.items()}
                    [(peer, versus)] = compare(name, samples, SAME).items()
                    part.versus.append(versus)
                    micros = [f"{1e6 * median(samples[each]):,.2f}" for each in (SAME, peer)]
                    label = f"{driver}, {shape}, beside {peer}"
                    table.rows.append([label, f"{rows:,}", *micros, str(versus)])
    table.notes.append(f"SQLite {sqlite3.sqlite_version}; JSON of about 100 characters.")
    part.tables.append(table)
    return part


if __name__ == "__main__":
    asyncio.run(run_on_servers(run))
