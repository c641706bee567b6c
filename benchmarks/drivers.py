"""The same three jobs through every way to a database: a statement, a transaction, a stream.

Each is done as the documentation of that way says, with its defaults, over the same number of
connections and with the same SQL; prepared statements are cached where that is the default.
"""

import asyncio
import importlib
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cenote

TEXT = "select 1"
PICK = "select value from bench where id = "  # and a placeholder
ALL = "select id, value from bench"
KEY = 7
SEVERAL = 10  # statements in one transaction

# Kinds of jobs that only cenote and the bare driver behind a queue do.
INSIDE = f"transactions of {SEVERAL} statements"
HANDLE = "the same by tx"
NESTED = "nested blocks"

CENOTE = "cenote.Database"
READ_ONLY = "cenote.Database, read_only"  # transactions of SQLite: the others lock nothing either
QUEUE = "bare driver behind an asyncio.Queue"
BARE = "bare driver"
ALCHEMY = "SQLAlchemy async engine"
DATABASES = "encode/databases"

Run = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Jobs:
    """What one task does, again and again."""

    statement: Run
    transaction: Run  # begin, two selects by key, commit
    stream: Run  # every row of a table, a piece at a time; gives their number
    more: Mapping[str, Run] = field(default_factory=dict)  # INSIDE, HANDLE, NESTED


Maker = Callable[[str, int], AbstractAsyncContextManager[Jobs]]  # url, connections


class Driver:
    """A driver without any pool. The connections commit each statement by themselves."""

    async def connect(self, url: str) -> Any:
        raise NotImplementedError

    async def close(self, connection: Any) -> None:
        await connection.close()

    async def statement(self, connection: Any) -> Any:
        raise NotImplementedError

    async def transaction(self, connection: Any) -> Any:
        raise NotImplementedError

    async def stream(self, connection: Any) -> int:
        raise NotImplementedError

    async def many(self, connection: Any, statements: int) -> None:
        """One transaction with so many selects by key."""
        raise NotImplementedError

    async def inner(self, connection: Any) -> None:
        """An empty transaction with an empty savepoint in it."""
        raise NotImplementedError

    async def nested(self, connection: Any) -> Any:
        """A transaction with a savepoint in it, and a select by key in that."""
        raise NotImplementedError


class Asyncpg(Driver):
    async def connect(self, url: str) -> Any:
        return await load("asyncpg").connect(url)

    async def statement(self, connection: Any) -> Any:
        return await connection.fetchval(TEXT)

    async def transaction(self, connection: Any) -> Any:
        async with connection.transaction():
            await connection.fetchval(PICK + "$1", KEY)
            return await connection.fetchval(PICK + "$1", KEY)

    async def stream(self, connection: Any) -> int:
        async with connection.transaction():
            return await count(connection.cursor(ALL))

    async def many(self, connection: Any, statements: int) -> None:
        async with connection.transaction():
            for _ in range(statements):
                await connection.fetchval(PICK + "$1", KEY)

    async def inner(self, connection: Any) -> None:
        async with connection.transaction(), connection.transaction():
            pass

    async def nested(self, connection: Any) -> Any:
        async with connection.transaction(), connection.transaction():
            return await connection.fetchval(PICK + "$1", KEY)


class Psycopg(Driver):
    async def connect(self, url: str) -> Any:
        return await load("psycopg").AsyncConnection.connect(plain(url), autocommit=True)

    async def statement(self, connection: Any) -> Any:
        cursor = await connection.execute(TEXT)
        return (await cursor.fetchone())[0]

    async def transaction(self, connection: Any) -> Any:
        async with connection.transaction():
            await (await connection.execute(PICK + "%s", [KEY])).fetchone()
            return (await (await connection.execute(PICK + "%s", [KEY])).fetchone())[0]

    async def stream(self, connection: Any) -> int:
        async with connection.transaction(), connection.cursor(name="stream") as cursor:
            await cursor.execute(ALL)
            return await count(cursor)

    async def many(self, connection: Any, statements: int) -> None:
        async with connection.transaction():
            for _ in range(statements):
                await (await connection.execute(PICK + "%s", [KEY])).fetchone()

    async def inner(self, connection: Any) -> None:
        async with connection.transaction(), connection.transaction():
            pass

    async def nested(self, connection: Any) -> Any:
        async with connection.transaction(), connection.transaction():
            return (await (await connection.execute(PICK + "%s", [KEY])).fetchone())[0]


class MySQL(Driver):
    """asyncmy and aiomysql are alike."""

    def __init__(self, name: str) -> None:
        self.module = name

    async def connect(self, url: str) -> Any:
        return await load(self.module).connect(autocommit=True, **mysql_options(url))

    async def close(self, connection: Any) -> None:
        await connection.ensure_closed()

    async def statement(self, connection: Any) -> Any:
        return await self.fetch(connection, TEXT)

    async def transaction(self, connection: Any) -> Any:
        await connection.begin()
        await self.fetch(connection, PICK + "%s", [KEY])
        value = await self.fetch(connection, PICK + "%s", [KEY])
        await connection.commit()
        return value

    async def stream(self, connection: Any) -> int:
        async with connection.cursor(load(f"{self.module}.cursors").SSCursor) as cursor:
            await cursor.execute(ALL)
            return await count(cursor)

    async def many(self, connection: Any, statements: int) -> None:
        await connection.begin()
        for _ in range(statements):
            await self.fetch(connection, PICK + "%s", [KEY])
        await connection.commit()

    async def inner(self, connection: Any) -> None:
        await connection.begin()
        async with connection.cursor() as cursor:
            await cursor.execute("SAVEPOINT inner_block")
            await cursor.execute("RELEASE SAVEPOINT inner_block")
        await connection.commit()

    async def nested(self, connection: Any) -> Any:
        await connection.begin()
        async with connection.cursor() as cursor:
            await cursor.execute("SAVEPOINT inner_block")
            await cursor.execute(PICK + "%s", [KEY])
            (value,) = await cursor.fetchone()
            await cursor.execute("RELEASE SAVEPOINT inner_block")
        await connection.commit()
        return value

    @staticmethod
    async def fetch(connection: Any, *statement: Any) -> Any:
        async with connection.cursor() as cursor:
            await cursor.execute(*statement)
            return (await cursor.fetchone())[0]


class SQLite(Driver):
    async def connect(self, url: str) -> Any:
        path = url.removeprefix("sqlite:///")
        return await load("aiosqlite").connect(path, isolation_level=None)

    async def statement(self, connection: Any) -> Any:
        return await self.fetch(connection, TEXT)

    async def transaction(self, connection: Any) -> Any:
        await connection.execute("begin")
        await self.fetch(connection, PICK + "?", [KEY])
        value = await self.fetch(connection, PICK + "?", [KEY])
        await connection.commit()
        return value

    async def stream(self, connection: Any) -> int:
        async with connection.execute(ALL) as cursor:
            return await count(cursor)

    async def many(self, connection: Any, statements: int) -> None:
        await connection.execute("begin")
        for _ in range(statements):
            await self.fetch(connection, PICK + "?", [KEY])
        await connection.commit()

    async def inner(self, connection: Any) -> None:
        await connection.execute("begin")
        await connection.execute("savepoint inner_block")
        await connection.execute("release savepoint inner_block")
        await connection.commit()

    async def nested(self, connection: Any) -> Any:
        await connection.execute("begin")
        await connection.execute("savepoint inner_block")
        value = await self.fetch(connection, PICK + "?", [KEY])
        await connection.execute("release savepoint inner_block")
        await connection.commit()
        return value

    @staticmethod
    async def fetch(connection: Any, *statement: Any) -> Any:
        async with connection.execute(*statement) as cursor:
            return (await cursor.fetchone())[0]


DRIVERS: dict[str, Driver] = {
    "asyncpg": Asyncpg(),
    "psycopg": Psycopg(),
    "asyncmy": MySQL("asyncmy"),
    "aiosqlite": SQLite(),
}


async def count(rows: Any) -> int:
    number = 0
    async for _ in rows:
        number += 1
    return number


# -- the ways to a database ----------------------------------------------------------------------


@asynccontextmanager
async def through_cenote(
    url: str, connections: int, read_only: bool = False
) -> AsyncIterator[Jobs]:
    async with cenote.Database(url, min_size=connections, max_size=connections) as db:

        async def transaction() -> Any:
            async with db.transaction(read_only=read_only):
                await db.fetch_val(PICK + "?", [KEY])
                return await db.fetch_val(PICK + "?", [KEY])

        async def inside() -> None:
            async with db.transaction():
                for _ in range(SEVERAL):
                    await db.fetch_val(PICK + "?", [KEY])

        async def handle() -> None:
            async with db.transaction() as tx:
                for _ in range(SEVERAL):
                    await tx.fetch_val(PICK + "?", [KEY])

        async def nested() -> None:
            async with db.transaction(), db.transaction():
                await db.fetch_val(PICK + "?", [KEY])

        more = {INSIDE: inside, HANDLE: handle, NESTED: nested}
        yield Jobs(lambda: db.fetch_val(TEXT), transaction, lambda: count(db.iterate(ALL)), more)


Borrow = Callable[[], AbstractAsyncContextManager[Any]]


def jobs_of(driver: Driver, borrow: Borrow) -> Jobs:
    """Each on a connection of its own, which is given back at the end."""

    async def statement() -> Any:
        async with borrow() as connection:
            return await driver.statement(connection)

    async def transaction() -> Any:
        async with borrow() as connection:
            return await driver.transaction(connection)

    async def stream() -> int:
        async with borrow() as connection:
            return await driver.stream(connection)

    return Jobs(statement, transaction, stream)


def through_queue(driver: Driver) -> Maker:
    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Jobs]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        made = [await driver.connect(url) for _ in range(connections)]
        for connection in made:
            queue.put_nowait(connection)

        # Written out: a context manager of Python would be most of what is measured.
        async def statement() -> Any:
            connection = await queue.get()
            try:
                return await driver.statement(connection)
            finally:
                queue.put_nowait(connection)

        async def transaction() -> Any:
            connection = await queue.get()
            try:
                return await driver.transaction(connection)
            finally:
                queue.put_nowait(connection)

        async def stream() -> int:
            connection = await queue.get()
            try:
                return await driver.stream(connection)
            finally:
                queue.put_nowait(connection)

        async def inside() -> None:
            connection = await queue.get()
            try:
                await driver.many(connection, SEVERAL)
            finally:
                queue.put_nowait(connection)

        async def nested() -> None:
            connection = await queue.get()
            try:
                await driver.nested(connection)
            finally:
                queue.put_nowait(connection)

        more = {INSIDE: inside, HANDLE: inside, NESTED: nested}
        try:
            yield Jobs(statement, transaction, stream, more)
        finally:
            for connection in made:
                await driver.close(connection)

    return make


def bare(driver: Driver) -> Maker:
    """One connection without any pool: the limit for one task."""

    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Jobs]:
        connection = await driver.connect(url)
        try:
            yield Jobs(
                lambda: driver.statement(connection),
                lambda: driver.transaction(connection),
                lambda: driver.stream(connection),
            )
        finally:
            await driver.close(connection)

    return make


@asynccontextmanager
async def asyncpg_pool(url: str, connections: int) -> AsyncIterator[Jobs]:
    pool = load("asyncpg").create_pool(url, min_size=connections, max_size=connections)
    async with pool:
        jobs = jobs_of(Asyncpg(), pool.acquire)
        yield Jobs(lambda: pool.fetchval(TEXT), jobs.transaction, jobs.stream)


@asynccontextmanager
async def psycopg_pool(url: str, connections: int, **options: Any) -> AsyncIterator[Jobs]:
    async with load("psycopg_pool").AsyncConnectionPool(
        plain(url),
        min_size=connections,
        max_size=connections,
        kwargs={"autocommit": True},
        open=False,
        **options,
    ) as pool:
        await pool.wait()
        yield jobs_of(Psycopg(), pool.connection)


def mysql_pool(module: str) -> Maker:
    """That of asyncmy is that of aiomysql, but for a few lines."""

    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Jobs]:
        async with load(module).create_pool(
            minsize=connections, maxsize=connections, autocommit=True, **mysql_options(url)
        ) as pool:
            yield jobs_of(MySQL(module), pool.acquire)

    return make


def through_alchemy(scheme: str, **options: Any) -> Maker:
    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Jobs]:
        text = load("sqlalchemy").text
        settings = {
            "poolclass": load("sqlalchemy.pool").AsyncAdaptedQueuePool,
            "pool_size": connections,
            "max_overflow": 0,
            **options,
        }
        create = load("sqlalchemy.ext.asyncio").create_async_engine
        address = f"{scheme}://{url.split('://')[1]}"
        plain = create(address, isolation_level="AUTOCOMMIT", **settings)
        engine = create(address, **settings)
        one, pick, everything = text(TEXT), text(PICK + ":id"), text(ALL)

        async def statement() -> Any:
            async with plain.connect() as connection:
                return await connection.scalar(one)

        async def transaction() -> Any:
            async with engine.begin() as connection:
                await connection.scalar(pick, {"id": KEY})
                return await connection.scalar(pick, {"id": KEY})

        async def stream() -> int:
            async with engine.connect() as connection:
                return await count(await connection.stream(everything))

        try:
            yield Jobs(statement, transaction, stream)
        finally:
            await plain.dispose()
            await engine.dispose()

    return make


def through_databases(scheme: str) -> Maker:
    @asynccontextmanager
    async def make(url: str, connections: int) -> AsyncIterator[Jobs]:
        sizes = {"min_size": connections, "max_size": connections}
        if scheme == "sqlite":
            sizes = {}  # has no pool
        address = f"{scheme}://{url.split('://')[1]}"
        async with load("databases").Database(address, **sizes) as database:

            async def transaction() -> Any:
                async with database.transaction():
                    await database.fetch_val(PICK + ":id", {"id": KEY})
                    return await database.fetch_val(PICK + ":id", {"id": KEY})

            yield Jobs(
                lambda: database.fetch_val(TEXT),
                transaction,
                lambda: count(database.iterate(ALL)),
            )

    return make


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


def plain(url: str) -> str:
    return url.replace("+psycopg", "")


def load(name: str) -> Any:
    """A module that may be missing, or have no types."""
    return importlib.import_module(name)


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def peers(driver: str) -> dict[str, Maker]:
    """Those that are installed, by name."""
    itself, own, scheme, simple = ROADS[driver]
    found: dict[str, Maker] = {CENOTE: through_cenote}
    if driver == "aiosqlite":
        found[READ_ONLY] = partial(through_cenote, read_only=True)
    found |= {QUEUE: through_queue(itself), **own}
    if installed("sqlalchemy"):
        found[ALCHEMY] = through_alchemy(scheme)
    if simple and installed("databases"):
        found[DATABASES] = through_databases(simple)
    return found | {BARE: bare(itself)}


# With a driver: how it is used bare, its own pool, its scheme for SQLAlchemy and for databases.
ROADS: dict[str, tuple[Driver, dict[str, Maker], str, str]] = {
    "aiosqlite": (SQLite(), {}, "sqlite+aiosqlite", "sqlite"),
    "asyncpg": (Asyncpg(), {"asyncpg.Pool": asyncpg_pool}, "postgresql+asyncpg", "postgresql"),
    "psycopg": (Psycopg(), {"psycopg_pool": psycopg_pool}, "postgresql+psycopg", ""),
    "asyncmy": (
        MySQL("asyncmy"),
        {"asyncmy.Pool": mysql_pool("asyncmy"), "aiomysql.Pool": mysql_pool("aiomysql")},
        "mysql+asyncmy",
        "mysql+aiomysql",
    ),
}


def missing(driver: str) -> str | None:
    """Why this driver cannot be measured at all."""
    for module in (driver, "aiomysql", "psycopg_pool"):
        if not installed(module):
            return f"{module} is not installed: pip install 'cenote[bench]'"
    return None


def absent() -> dict[str, str]:
    """With the name of each way that is not there for every driver, the reason."""
    found = {"encode/databases with psycopg": "it does not know that driver"}
    for name, module in ((ALCHEMY, "sqlalchemy"), (DATABASES, "databases")):
        if not installed(module):
            found[name] = f"{module} is not installed: pip install 'cenote[bench]'"
    return found
