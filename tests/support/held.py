"""For the tests of the database layer: statements that wait, and sessions that must be gone."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from tests.support.backends import Backend
from tests.support.kit import outcome
from tests.support.waiting import WAIT, eventually

ENDINGS = ("return", "exception", "cancellation")  # of a task

_ALIVE = {
    "asyncpg": "select count(*) from pg_stat_activity where pid = ?",
    "psycopg": "select count(*) from pg_stat_activity where pid = ?",
    "mysql": "select count(*) from information_schema.processlist where id = ?",
}


class Gate:
    """`sql` is a statement on row 1 that waits until `open()` is called, from any thread."""

    def __init__(self, backend: Backend) -> None:
        self.sql = ""
        self._backend = backend
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    @contextlib.asynccontextmanager
    async def database(self, **options: Any) -> AsyncIterator[tuple[Any, str]]:
        """A database, and the name of a table with row 1."""
        backend = self._backend
        async with backend.database(**options) as db, backend.database() as other:
            if backend.embedded:
                db.create_function("gate", 0, lambda: self._event.wait(WAIT))
            async with backend.table(other) as table:
                await other.execute(f"insert into {table} values (1, 'a')")
                self.sql = f"update {table} set name = 'through' where id = 1"
                async with self._closed(other):
                    yield db, table

    @contextlib.asynccontextmanager
    async def _closed(self, other: Any) -> AsyncIterator[None]:
        if self._backend.embedded:
            self.sql += " and gate()"
            yield
            return
        held = asyncio.Event()
        holder = asyncio.create_task(self._hold(other, held))
        await held.wait()
        try:
            yield
        finally:
            self.open()
            await holder

    async def _hold(self, other: Any, held: asyncio.Event) -> None:
        """The lock on the row for which the statement waits."""
        await other.begin()
        await other.execute(self.sql)
        held.set()
        await eventually(self._event.is_set)
        await other.rollback()


async def session_number(backend: Backend, db: Any) -> Any:
    """The number of the server's session that the task uses, or None if there are none."""
    return await db.fetch_val(backend.session) if backend.session else None


async def sessions_end(backend: Backend, numbers: Iterable[Any]) -> None:
    """Wait until the server has none of them any more."""
    if backend.embedded:
        return
    async with backend.database(max_size=1) as db, asyncio.timeout(WAIT):
        for number in numbers:
            while await db.fetch_val(_ALIVE[backend.name], [number]):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def loop_database_of(db: Any) -> Any:
    return db._loop_databases[asyncio.get_running_loop()]


def connections_of(db: Any) -> list[Any]:
    """The connections that the database has in this loop."""
    return list(loop_database_of(db).connections)


async def in_task(awaitable: Awaitable[Any]) -> Any:
    """Await it in a task of its own, which returns its connection to the pool at its end."""

    async def run() -> Any:
        return await awaitable

    return await asyncio.create_task(run())


async def settled(db: Any) -> None:
    """Wait until the connections of tasks that ended are idle or destroyed."""
    await eventually(lambda: db.pool.active_count == 0 and db.pool.stats().destroying == 0)


async def _end(task: asyncio.Task[Any], ready: asyncio.Event, ending: str) -> None:
    """Wait until it is over; `ready` is set when there is something to leave behind."""
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    if ending == "cancellation":
        task.cancel()
    waiting.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == (ending == "cancellation")
    if ending != "cancellation":
        assert (type(task.exception()) is KeyError) == (ending == "exception"), task.exception()


async def leave(
    what: Callable[[], Awaitable[Any]], ending: str, kept: list[Any] | None = None
) -> None:
    """Do this in a task that ends so; what it gives outlives the task in `kept`."""
    ready = asyncio.Event()

    async def work() -> None:
        result = await what()
        if kept is not None:
            kept.append(result)
        del result
        ready.set()
        if ending == "exception":
            raise KeyError
        if ending == "cancellation":
            await asyncio.Event().wait()

    await _end(asyncio.create_task(work()), ready, ending)


async def linger(statement: Any) -> None:
    await statement
    await asyncio.Event().wait()


async def ids(db: Any, table: str, name: str = "y") -> list[int]:
    rows = await db.fetch_all(f"select id from {table} where name = ? order by id", [name])
    return [row[0] for row in rows]


async def within(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(WAIT):
        return await outcome(awaitable)


def is_quiet(db: Any) -> bool:
    loop_db = loop_database_of(db)
    return db.pool.active_count == 0 and not (loop_db.sessions or loop_db.joined or loop_db.private)


GREETINGS = {
    "sqlite": ("pragma cache_size = 77", "pragma cache_size", 77),
    "asyncpg": ("set work_mem = '77kB'", "select current_setting('work_mem')", "77kB"),
    "psycopg": ("set work_mem = '77kB'", "select current_setting('work_mem')", "77kB"),
    "mysql": ("set @greeting = 77", "select @greeting", 77),
}


def greeting(backend: Backend) -> tuple[Callable[[Any], Awaitable[Any]], str, Any]:
    """An on_connect, a query, and what it gives then."""
    statement, query, expected = GREETINGS[backend.name]

    async def greet(raw: Any) -> None:
        if backend.name == "mysql":
            await raw.query(statement)
        else:
            await raw.execute(statement)

    return greet, query, expected
