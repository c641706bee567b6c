"""What the tests of broken, cancelled and lost work share: who runs what on a server."""

import asyncio
import contextlib
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

import cenote
from cenote.sql.connection_hooks import JUST_NOW
from tests.support.backends import Backend
from tests.support.kit import outcome as outcome
from tests.support.waiting import WAIT

# How often a test repeats what depends on chance: more in `make check` and at night.
FACTOR = int(os.environ.get("CENOTE_FACTOR", "1"))

# SQLite has no server: nothing there can be killed, reset or demoted.
with_server = pytest.mark.parametrize("backend", ["asyncpg", "psycopg", "mysql"], indirect=True)
with_postgresql = pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)
with_mysql = pytest.mark.parametrize("backend", ["mysql"], indirect=True)
with_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)

# The marks of files in which some tests use other connections while one is in a transaction.
across_connections = [
    pytest.mark.real_time("talks to real servers"),
    pytest.mark.driver,
    pytest.mark.filterwarnings("ignore::cenote.TransactionScopeWarning"),
]

_PG_RUNNING = (
    "select pid from pg_stat_activity "
    "where state = 'active' and query like '%{}%' and pid <> pg_backend_pid()"
)
RUNNING = {
    "asyncpg": _PG_RUNNING,
    # Of a server-side cursor only FETCH is seen.
    "psycopg": _PG_RUNNING.replace("query like '%{}%'", "query ~ '{}|FETCH FORWARD'"),
    "mysql": "select id from information_schema.processlist "
    "where info like '%{}%' and id <> connection_id()",
}

# More than sockets and drivers take in before anybody reads: the server is in the middle of it.
MANY_ROWS = {
    "sqlite": "with recursive c(x) as (select 1 union all select x + 1 from c limit 5000) "
    "select x, printf('%10000d', x) from c",
    "asyncpg": "select i, repeat('x', 10000) from generate_series(1, 5000) i",
    "psycopg": "select i, repeat('x', 10000) from generate_series(1, 5000) i",
    "mysql": "select seq, repeat('x', 10000) from seq_1_to_5000",
}

# A statement by the driver's own means.
RAW: dict[str, Callable[[Any, str], Awaitable[Any]]] = {
    "sqlite": lambda raw, sql: raw.execute(sql),
    "asyncpg": lambda raw, sql: raw.execute(sql),
    "psycopg": lambda raw, sql: raw.execute(sql),
    "mysql": lambda raw, sql: raw.query(sql),
}

MODULES = ("asyncpg", "psycopg", "asyncmy", "sqlite3")


def is_drivers_own(error: BaseException) -> bool:
    name = type(error).__module__.split(".")[0]
    return name in MODULES or (isinstance(error, OSError) and not isinstance(error, TimeoutError))


@contextlib.contextmanager
def drivers_error() -> Any:
    """The block raises an error of the driver."""
    with pytest.raises(Exception) as caught:
        yield caught
    assert is_drivers_own(caught.value), repr(caught.value)


class Watcher:
    """Sees and ends what runs on the server, by a connection of its own."""

    def __init__(self, backend: Backend, db: Any) -> None:
        self.backend = backend
        self.db = db

    async def running(self, nonce: str) -> list[int]:
        rows = await self.db.fetch_all(RUNNING[self.backend.name].format(nonce))
        return [row[0] for row in rows]

    async def until_running(self, nonce: str) -> int:
        """The session in which it runs."""
        found: list[int] = []

        async def look() -> bool:
            found[:] = await self.running(nonce)
            return bool(found)

        await until(look)
        return found[0]

    async def until_stopped(self, nonce: str) -> None:
        async def look() -> bool:
            return not await self.running(nonce)

        await until(look)

    async def kill(self, *sessions: int) -> None:
        for session in sessions:
            await self.db.execute(self.backend.kill.format(session))

    async def until_gone(self, session: int) -> None:
        """Of a killed session the server has forgotten everything."""
        name = self.backend.name
        table, column = (
            ("information_schema.processlist", "id")
            if name == "mysql"
            else ("pg_stat_activity", "pid")
        )

        async def look() -> bool:
            count = f"select count(*) from {table} where {column} = {session}"
            return bool(await self.db.fetch_val(count) == 0)

        await until(look)
        await asyncio.sleep(2 * JUST_NOW)  # until then it is taken for alive without a look

    async def rows(self, table: str) -> list[int]:
        """What everybody can see."""
        rows = await self.db.fetch_all(f"select id from {table} order by id")
        return [row[0] for row in rows]


@contextlib.asynccontextmanager
async def watching(backend: Backend) -> AsyncIterator[Watcher]:
    async with backend.database(max_size=1) as db:
        yield Watcher(backend, db)


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(WAIT):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def marked(sql: str) -> tuple[str, str]:
    """The statement with a mark by which it is found on the server, and the mark."""
    nonce = f"n{uuid4().hex}"
    return f"{sql} /* {nonce} */", nonce


async def all_at_once(db: Any, count: int, sql: str = "select 1") -> list[Any]:
    """Run it on so many connections at the same time; afterwards they are idle."""
    barrier = asyncio.Barrier(count)

    async def one() -> Any:
        async with db.transaction(read_only=True):
            value = await db.fetch_val(sql)
            await barrier.wait()
        return value

    async with asyncio.timeout(WAIT):
        return list(await asyncio.gather(*(one() for _ in range(count))))


async def no_slot_is_lost(db: Any) -> None:
    """All connections can be out at once, and each gives its own answer."""
    size = db.pool.max_size
    assert await all_at_once(db, size, "select 4711") == [4711] * size
    assert db.pool.count == size
    assert db.pool.active_count == 0


async def let_be_cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    async with asyncio.timeout(WAIT):
        assert isinstance(await outcome(task), asyncio.CancelledError)


def uses_of(db: Any) -> list[Callable[[], Awaitable[Any]]]:
    """Every way to use the connection of a task."""

    async def enter(block: Any) -> None:
        async with block:
            pass

    return [
        lambda: db.execute("select 1"),
        lambda: db.fetch_all("select 1"),
        lambda: db.fetch_one("select 1"),
        lambda: db.fetch_val("select ?", [1]),
        lambda: db.execute_many("select ?", [[1]]),
        lambda: anext(db.iterate("select 1")),
        lambda: db.prepare("select 1"),
        lambda: enter(db.transaction()),
        lambda: enter(db.connection()),
        lambda: db.begin(),
    ]


async def every_statement_is_refused(db: Any, outcome: str) -> None:
    """Of a task whose transaction is lost."""
    for use in [*uses_of(db), lambda: db.execute("COMMIT")]:
        with pytest.raises(cenote.TransactionLostError) as caught:
            await use()
        assert caught.value.outcome == outcome


async def sessions(backend: Backend, db: Any, count: int) -> set[int]:
    """Of so many connections, idle afterwards."""
    return set(await all_at_once(db, count, backend.session))


def told(error: BaseException | None) -> str:
    """All that an error says, together with those behind it, as text and as a traceback."""
    texts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        texts += [str(error), repr(error), *traceback.format_exception(error)]
        texts += [repr(vars(error)), *getattr(error, "__notes__", ())]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def uses(db: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    async def transaction() -> None:
        async with db.transaction(read_only=True):
            pass

    async def connection() -> None:
        async with db.connection():
            pass

    async def iterate() -> None:
        async for _ in db.iterate("select 1"):
            pass

    async def prepare() -> None:
        await (await db.prepare("select 1")).close()

    async def begin() -> None:
        await db.begin(read_only=True)
        await db.rollback()

    return {
        "execute": lambda: db.execute("select 1"),
        "fetch_all": lambda: db.fetch_all("select 1"),
        "fetch_one": lambda: db.fetch_one("select 1"),
        "fetch_val": lambda: db.fetch_val("select 1"),
        "transaction": transaction,
        "connection": connection,
        "iterate": iterate,
        "prepare": prepare,
        "begin": begin,
    }
