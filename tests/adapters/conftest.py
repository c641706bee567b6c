"""Engines of SQLAlchemy with `CenotePool`, on every database; and a pool of each adapter."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cenote.testing import check_ledger
from tests.support.servers import PostgresServer
from tests.support.waiting import WAIT

MakeEngine = Callable[..., Any]  # an AsyncEngine of SQLAlchemy, which may not be installed


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    sqlite3.connect(tmp_path / "app.db").close()
    return f"sqlite+aiosqlite:///{tmp_path}/app.db"


@pytest.fixture(params=["sqlite", "asyncpg", "psycopg", "asyncmy"])
def any_url(request: pytest.FixtureRequest) -> str:
    """The URL of each database in turn, with the driver of SQLAlchemy."""
    match request.param:
        case "sqlite":
            return str(request.getfixturevalue("sqlite_url"))
        case "asyncmy":
            url = str(request.getfixturevalue("mariadb_server").url)
            return url.replace("mysql://", "mysql+asyncmy://")
        case driver:
            url = str(request.getfixturevalue("postgres_server").tcp_url())
            return url.replace("postgresql://", f"postgresql+{driver}://")


@pytest.fixture
def make_engine(sqlite_url: str) -> MakeEngine:
    """Makes an engine, on SQLite unless given a URL; the test disposes of it."""
    from sqlalchemy.ext.asyncio import create_async_engine

    from cenote.adapters.sqlalchemy import CenotePool

    def make(url: str = sqlite_url, **options: Any) -> Any:
        return create_async_engine(url, **{"poolclass": CenotePool, **options})

    return make


@pytest.fixture
def make_asyncpg_pool(postgres_server: PostgresServer) -> Callable[..., Any]:
    """Makes a pool, by default for two connections, whose ledger is even at its end."""
    from cenote.adapters.asyncpg import Pool, create_pool

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[Pool]:
        options = {"min_size": 0, "max_size": 2, **options}
        pool = create_pool(postgres_server.url, **options)
        async with asyncio.timeout(WAIT), pool:
            yield pool
        check_ledger(pool.pool)

    return make


@dataclass
class Subject:
    """A pool with room for three connections, and how a connection is taken from it."""

    pool: Any  # of the other library
    take: Callable[[], AbstractAsyncContextManager[Any]]
    acquire: Callable[[], Awaitable[Any]]
    release: Callable[[Any], Awaitable[Any]]


@asynccontextmanager
async def on_sqlalchemy(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    make: MakeEngine = request.getfixturevalue("make_engine")
    engine = make(pool_size=3, max_overflow=0)
    yield Subject(
        engine.pool, engine.connect, engine.connect, lambda connection: connection.close()
    )
    await engine.dispose()


@asynccontextmanager
async def on_redis(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    from cenote.adapters.redis import BlockingConnectionPool

    url = request.getfixturevalue("redis_server").url
    pool = BlockingConnectionPool.from_url(url, max_connections=3, timeout=None)

    @asynccontextmanager
    async def take() -> AsyncIterator[None]:
        connection = await pool.get_connection()
        try:
            yield
        finally:
            await pool.release(connection)

    yield Subject(pool, take, pool.get_connection, pool.release)
    await pool.aclose()


@asynccontextmanager
async def on_asyncpg(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    from cenote.adapters.asyncpg import create_pool

    url = request.getfixturevalue("postgres_server").url
    async with create_pool(url, min_size=0, max_size=3) as pool:
        yield Subject(pool, pool.acquire, pool.acquire, pool.release)


@pytest.fixture(params=[on_sqlalchemy, on_redis, on_asyncpg])
def open_subject(request: pytest.FixtureRequest) -> Callable[[], Any]:
    pytest.importorskip(request.param.__name__.removeprefix("on_"))

    @asynccontextmanager
    async def opened() -> AsyncIterator[Subject]:
        async with request.param(request) as subject:
            inner = subject.pool.pool
            yield subject
        check_ledger(inner)

    return opened
