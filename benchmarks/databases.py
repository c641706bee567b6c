"""The pools of two database drivers, with a real PostgreSQL behind them; the blocks are empty."""

import importlib.util
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any

from tests.support.servers import PostgresServer

import cenote

from . import uncontended
from .measure import (
    Case,
    Goal,
    Part,
    Samples,
    Scale,
    Table,
    interleave,
    median,
    ratio,
    ratios,
    spread,
)
from .pools import reset_nothing

POOL = "cenote.Pool: async with acquire()"
PSYCOPG = "psycopg_pool: async with connection()"
ASYNCPG = "asyncpg: async with acquire(), no reset"
RESET = "asyncpg: async with acquire(), as it is"
CHEAPER = 20.0


def missing() -> str | None:
    """Why this cannot be measured."""
    for module in ("psycopg", "psycopg_pool", "asyncpg"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install 'cenote[bench]'"
    return PostgresServer.missing()


async def run(scale: Scale, url: str) -> Part:
    async with AsyncExitStack() as stack:
        cases: dict[str, Case] = {
            POOL: uncontended.block(await stack.enter_async_context(cenote_pool(url))),
            PSYCOPG: psycopg_block(await stack.enter_async_context(psycopg_pool(url))),
            ASYNCPG: uncontended.block(
                await stack.enter_async_context(asyncpg_pool(url, reset=reset_nothing))
            ),
            RESET: uncontended.block(await stack.enter_async_context(asyncpg_pool(url))),
        }
        samples = await interleave(
            cases, rounds=scale.short_rounds, operations=scale.operations // 4
        )
    table = Table(
        "Uncontended, beside database pools: take a connection and give it back",
        ["operation", "ns", "spread", "to cenote"],
    )
    for name, values in samples.items():
        against = ratio(values, samples[POOL])
        table.rows.append([name, f"{median(values) * 1e9:,.0f}", spread(values), against])
    table.notes.append(
        "Each has one connection to a local PostgreSQL, and nothing is sent: cenote has no hooks, "
        "psycopg_pool finds no\ntransaction to end, asyncpg has a `reset` that does nothing. In "
        "the last row it has its own, which is a\nround trip to the server for each return."
    )
    return Part([table], samples, goals(samples))


def goals(samples: Samples | None) -> list[Goal]:
    """Without samples: they were skipped."""
    result = []
    for name in (PSYCOPG, ASYNCPG):
        cheaper = None if samples is None else median(ratios(samples[name], samples[POOL]))
        result.append(Goal(f"{name}, to cenote.Pool", CHEAPER, cheaper, at_least=True))
    return result


@asynccontextmanager
async def cenote_pool(url: str) -> AsyncIterator[cenote.Pool[Any]]:
    import psycopg

    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(url)

    async with cenote.Pool(
        connect, destructor=lambda connection: connection.close(), min_size=1, max_size=1
    ) as pool:
        yield pool


@asynccontextmanager
async def psycopg_pool(url: str) -> AsyncIterator[Any]:
    from psycopg_pool import AsyncConnectionPool

    async with AsyncConnectionPool(url, min_size=1, max_size=1, open=False) as pool:
        await pool.wait()
        yield pool


@asynccontextmanager
async def asyncpg_pool(url: str, **options: Any) -> AsyncIterator[Any]:
    import asyncpg

    async with asyncpg.create_pool(url, min_size=1, max_size=1, **options) as pool:
        yield pool


def psycopg_block(pool: Any) -> Case:
    async def case(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            async with pool.connection():
                pass
        return perf_counter() - began

    return case
