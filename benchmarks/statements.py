"""Statements through a database: many tasks over a few connections, and one task alone."""

import asyncio
import importlib.util
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import cenote

from .measure import Case, Goal, Samples, Scale, Table, interleave, median, ratio, ratios, spread

TASKS, CONNECTIONS = 100, 10
TEXT = "select 1"

CENOTE = "cenote.Database.fetch_val()"
BARE = "bare driver behind an asyncio.Queue"
ALCHEMY = "SQLAlchemy async engine"
DATABASES = "encode/databases"

Run = Callable[[], Awaitable[Any]]
Maker = Callable[[str, int], Any]  # url, connections -> async context manager of a Run


async def run(scale: Scale, urls: dict[str, str]) -> tuple[list[Table], list[Goal], Samples]:
    """`urls`: by the name of the driver; those of servers may be missing."""
    tables, goals, everything = [], [], Samples()
    with tempfile.TemporaryDirectory(prefix="cenote-bench-") as directory:
        known = {"aiosqlite": f"sqlite:///{Path(directory) / 'bench.db'}", **urls}
        for driver, url in known.items():
            samples = await contended(scale, PEERS[driver], url)
            tables.append(contended_table(driver, samples))
            alone = await single(scale, PEERS[driver], url)
            tables.append(single_table(driver, alone))
            everything |= {f"{driver}, {name}": values for name, values in samples.items()}
            everything |= {f"{driver}, alone, {name}": values for name, values in alone.items()}
            if driver == "asyncpg":
                goals = goals_of(samples, alone)
    return tables, goals or goals_of(None, None), everything


def goals_of(samples: Samples | None, alone: Samples | None) -> list[Goal]:
    faster = slower = above = None
    if samples is not None and alone is not None:
        faster = median(ratios(samples["asyncpg.Pool.fetchval()"], samples[CENOTE]))
        slower = median(ratios(samples[BARE], samples[CENOTE]))
        above = 1e6 * (median(alone[CENOTE]) - median(alone["bare driver"]))
    return [
        Goal("fetch_val() a second, to asyncpg.Pool.fetchval()", 2.2, faster, at_least=True),
        Goal("fetch_val() a second, to asyncpg behind a Queue", 0.9, slower, at_least=True),
        Goal("fetch_val() of one task, above bare asyncpg", 5.0, above, unit=" us"),
    ]


async def contended(scale: Scale, peers: dict[str, Maker], url: str) -> Samples:
    async with AsyncExitStack() as stack:
        cases: dict[str, Case] = {}
        for name, make in peers.items():
            if name != "bare driver":
                cases[name] = many(await stack.enter_async_context(make(url, CONNECTIONS)))
        rounds = scale.rounds * 2
        return await interleave(cases, rounds=rounds, operations=TASKS * scale.turns)


async def single(scale: Scale, peers: dict[str, Maker], url: str) -> Samples:
    async with AsyncExitStack() as stack:
        cases = {
            name: one(await stack.enter_async_context(make(url, 1)))
            for name, make in peers.items()
            if name in (CENOTE, "bare driver")
        }
        rounds = scale.short_rounds
        return await interleave(cases, rounds=rounds, operations=scale.operations // 8)


def many(run: Run) -> Case:
    async def case(operations: int) -> float:
        async def work(turns: int) -> None:
            for _ in range(turns):
                await run()

        began = perf_counter()
        await asyncio.gather(*(work(max(1, operations // TASKS)) for _ in range(TASKS)))
        return perf_counter() - began

    return case


def one(run: Run) -> Case:
    async def case(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            await run()
        return perf_counter() - began

    return case


def contended_table(driver: str, samples: Samples) -> Table:
    table = Table(
        f"Statements with {driver}: {TASKS} tasks over {CONNECTIONS} connections",
        ["", "a second", "spread", "cenote to it"],
    )
    for name, values in samples.items():
        a_second = f"{1 / median(values):,.0f}"
        table.rows.append([name, a_second, spread(values), ratio(values, samples[CENOTE])])
    return table


def single_table(driver: str, samples: Samples) -> Table:
    table = Table(
        f"Statements with {driver}: one task alone", ["", "us", "spread", "above the bare driver"]
    )
    bare = median(samples["bare driver"])
    for name, values in samples.items():
        above = f"{1e6 * (median(values) - bare):+.1f} us"
        table.rows.append([name, f"{1e6 * median(values):.1f}", spread(values), above])
    return table


def missing(driver: str) -> str | None:
    """Why this driver cannot be measured."""
    for module in (driver, "aiomysql", "psycopg_pool"):
        if not installed(module):
            return f"{module} is not installed: pip install 'cenote[bench]'"
    return None


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# -- the peers -----------------------------------------------------------------------------------


@asynccontextmanager
async def through_cenote(url: str, connections: int) -> AsyncIterator[Run]:
    async with cenote.Database(url, min_size=connections, max_size=connections) as db:
        yield lambda: db.fetch_val(TEXT)


def through_queue(
    connect: Callable[[str], Awaitable[Any]],
    fetch: Callable[[Any], Awaitable[Any]],
    close: Callable[[Any], Awaitable[Any]],
) -> Maker:
    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Run]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        made = [await connect(url) for _ in range(connections)]
        for connection in made:
            queue.put_nowait(connection)

        async def run() -> Any:
            connection = await queue.get()
            try:
                return await fetch(connection)
            finally:
                queue.put_nowait(connection)

        try:
            yield run
        finally:
            for connection in made:
                await close(connection)

    return make


def bare(
    connect: Callable[[str], Awaitable[Any]],
    fetch: Callable[[Any], Awaitable[Any]],
    close: Callable[[Any], Awaitable[Any]],
) -> Maker:
    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Run]:
        connection = await connect(url)
        try:
            yield lambda: fetch(connection)
        finally:
            await close(connection)

    return make


def through_alchemy(scheme: str) -> Maker:
    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Run]:
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import create_async_engine
        from sqlalchemy.pool import AsyncAdaptedQueuePool

        engine = create_async_engine(
            f"{scheme}://{url.split('://')[1]}",
            poolclass=AsyncAdaptedQueuePool,
            pool_size=connections,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
        )
        statement = text(TEXT)

        async def run() -> Any:
            async with engine.connect() as connection:
                return await connection.scalar(statement)

        try:
            yield run
        finally:
            await engine.dispose()

    return make


def through_databases(scheme: str) -> Maker:
    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Run]:
        import databases

        sizes: dict[str, Any] = {"min_size": connections, "max_size": connections}
        if scheme == "sqlite":
            sizes = {}  # has no pool
        async with databases.Database(f"{scheme}://{url.split('://')[1]}", **sizes) as database:
            yield lambda: database.fetch_val(TEXT)

    return make


@asynccontextmanager
async def asyncpg_pool(url: str, connections: int) -> AsyncIterator[Run]:
    import asyncpg

    async with asyncpg.create_pool(url, min_size=connections, max_size=connections) as pool:
        yield lambda: pool.fetchval(TEXT)


@asynccontextmanager
async def psycopg_pool(url: str, connections: int) -> AsyncIterator[Run]:
    from psycopg_pool import AsyncConnectionPool

    plain = url.replace("+psycopg", "")
    options = {"autocommit": True, "prepare_threshold": 0}
    async with AsyncConnectionPool(
        plain, min_size=connections, max_size=connections, kwargs=options, open=False
    ) as pool:

        async def run() -> Any:
            async with pool.connection() as connection:
                return await fetch_by_cursor(connection)

        yield run


@asynccontextmanager
async def aiomysql_pool(url: str, connections: int) -> AsyncIterator[Run]:
    import aiomysql

    options = {**mysql_options(url), "autocommit": True}
    async with aiomysql.create_pool(minsize=connections, maxsize=connections, **options) as pool:

        async def run() -> Any:
            async with pool.acquire() as connection, connection.cursor() as cursor:
                await cursor.execute(TEXT)
                return (await cursor.fetchone())[0]

        yield run


async def fetch_by_cursor(connection: Any) -> Any:
    cursor = await connection.execute(TEXT)
    return (await cursor.fetchone())[0]


async def fetch_with_asyncmy(connection: Any) -> Any:
    cursor = connection.cursor()
    await cursor.execute(TEXT)
    return (await cursor.fetchone())[0]


async def connect_asyncpg(url: str) -> Any:
    import asyncpg

    return await asyncpg.connect(url)


async def connect_psycopg(url: str) -> Any:
    import psycopg

    plain = url.replace("+psycopg", "")
    return await psycopg.AsyncConnection.connect(plain, autocommit=True, prepare_threshold=0)


async def connect_asyncmy(url: str) -> Any:
    import asyncmy

    return await asyncmy.connect(autocommit=True, **mysql_options(url))


async def connect_aiosqlite(url: str) -> Any:
    import aiosqlite

    return await aiosqlite.connect(url.removeprefix("sqlite:///"), isolation_level=None)


async def close(connection: Any) -> None:
    await connection.close()


async def close_asyncmy(connection: Any) -> None:
    await connection.ensure_closed()


def mysql_options(url: str) -> dict[str, Any]:
    from cenote.sql.url import parse

    target = parse(url)
    (host, port), *_ = target.hosts
    assert target.password is not None
    return {
        "host": host,
        "port": port,
        "user": target.user,
        "password": target.password.reveal(),
        "db": target.database,
    }


def peers(driver: str) -> dict[str, Maker]:
    connect, fetch, end = {
        "aiosqlite": (connect_aiosqlite, fetch_by_cursor, close),
        "asyncpg": (connect_asyncpg, lambda connection: connection.fetchval(TEXT), close),
        "psycopg": (connect_psycopg, fetch_by_cursor, close),
        "asyncmy": (connect_asyncmy, fetch_with_asyncmy, close_asyncmy),
    }[driver]
    own: dict[str, Any] = {
        "asyncpg": {"asyncpg.Pool.fetchval()": asyncpg_pool},
        "psycopg": {"psycopg_pool: connection(), execute()": psycopg_pool},
        "asyncmy": {"aiomysql.Pool: acquire(), execute()": aiomysql_pool},
    }.get(driver, {})
    scheme, plain = {
        "aiosqlite": ("sqlite+aiosqlite", "sqlite"),
        "asyncpg": ("postgresql+asyncpg", "postgresql"),
        "psycopg": ("postgresql+psycopg", ""),
        "asyncmy": ("mysql+asyncmy", "mysql+aiomysql"),
    }[driver]
    found: dict[str, Maker] = {CENOTE: through_cenote, BARE: through_queue(connect, fetch, end)}
    found |= own
    if installed("sqlalchemy"):
        found[ALCHEMY] = through_alchemy(scheme)
    if plain and installed("databases"):
        found[DATABASES] = through_databases(plain)
    found["bare driver"] = bare(connect, fetch, end)
    return found


PEERS = {driver: peers(driver) for driver in ("aiosqlite", "asyncpg", "psycopg", "asyncmy")}
