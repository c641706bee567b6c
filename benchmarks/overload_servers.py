"""Overload of a real PostgreSQL: every pool that is installed, with callers that give up.

A request is a statement that takes its time on the server, and of which only as many run at once as
the pool has connections: so the capacity is known, and the server is never the bottleneck.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from tests.support.servers import PostgresServer

import cenote

from . import drivers
from .overload import BARE, INTERVAL, LOADS, SHEDDING, TARGET, Outcome, Serve, offer, outcome
from .recovery import silence

CONNECTIONS, SERVICE = 5, 0.05  # seconds that a statement takes
CAPACITY = CONNECTIONS / SERVICE  # requests a second
TEXT = f"select pg_sleep({SERVICE})"

Maker = Callable[[str], AbstractAsyncContextManager[Serve]]  # of a URL


@asynccontextmanager
async def through_cenote(url: str, **options: Any) -> AsyncIterator[Serve]:
    async with cenote.Database(
        url, min_size=CONNECTIONS, max_size=CONNECTIONS, **options
    ) as database:
        yield lambda: database.fetch_val(TEXT)


@asynccontextmanager
async def through_asyncpg(url: str) -> AsyncIterator[Serve]:
    create = drivers.load("asyncpg").create_pool
    async with create(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        yield lambda: pool.fetchval(TEXT)


@asynccontextmanager
async def through_psycopg(url: str) -> AsyncIterator[Serve]:
    kind = drivers.load("psycopg_pool").AsyncConnectionPool
    async with kind(url, min_size=CONNECTIONS, max_size=CONNECTIONS, open=False) as pool:

        async def serve() -> None:
            async with pool.connection() as connection:
                await connection.execute(TEXT)

        yield serve


@asynccontextmanager
async def through_alchemy(url: str) -> AsyncIterator[Serve]:
    text = drivers.load("sqlalchemy").text(TEXT)
    engine = drivers.load("sqlalchemy.ext.asyncio").create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://"),
        pool_size=CONNECTIONS,
        max_overflow=0,
    )

    async def serve() -> None:
        async with engine.connect() as connection:
            await connection.execute(text)

    try:
        yield serve
    finally:
        await engine.dispose()


def peers() -> dict[str, Maker]:
    """Those that are installed."""
    found: dict[str, Maker] = {
        BARE: through_cenote,
        SHEDDING: partial(through_cenote, queue_target=TARGET, queue_interval=INTERVAL),
    }
    others: dict[str, tuple[str, Maker]] = {
        "asyncpg.Pool": ("asyncpg", through_asyncpg),
        "psycopg_pool": ("psycopg_pool", through_psycopg),
        "SQLAlchemy": ("sqlalchemy", through_alchemy),
    }
    return found | {
        name: make for name, (module, make) in others.items() if drivers.installed(module)
    }


async def at_load(make: Maker, url: str, load: float, seconds: float) -> Outcome:
    """Offer `load` times the capacity for so long; the first third is not counted."""
    async with make(url) as serve:
        await serve()
        took = await offer(
            serve, load * CAPACITY, seconds=seconds, warm_up=seconds / 3, seed=f"overload {load}"
        )
    return outcome(took, CAPACITY * seconds * 2 / 3)


def measure(
    seconds: float, loads: Sequence[float] = LOADS, server: PostgresServer | None = None
) -> dict[str, dict[float, Outcome]]:
    """By name and load; on a server of its own unless one is given."""
    if server is None:
        with PostgresServer() as own:
            return measure(seconds, loads, own)
    url = server.tcp_url()
    with silence():
        return {
            name: {load: asyncio.run(at_load(make, url, load, seconds)) for load in loads}
            for name, make in peers().items()
        }
