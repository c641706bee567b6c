"""Cancellation of statements that run in a thread of SQLite."""

import asyncio
import sqlite3
import threading
from typing import Any

import pytest

from cenote.drivers.sqlite import statements
from tests.support.backends import Backend
from tests.support.faults import (
    across_connections,
    let_be_cancelled,
    no_slot_is_lost,
    with_sqlite,
)
from tests.support.waiting import WAIT, eventually

pytestmark = across_connections


@with_sqlite
@pytest.mark.parametrize("style", ["plain", "transaction", "connection", "stream", "many"])
async def test_the_statement_is_over_when_the_task_is(backend: Backend, style: str) -> None:
    path = backend.url.removeprefix("sqlite:///")
    threads = threading.active_count()
    endless = backend.slow.removesuffix("select count(*) from c") + "select x, 'a' from c"
    async with backend.database(max_size=2) as db, backend.table(db) as table:
        fill = endless.replace("with", f"insert into {table} with", 1)
        many = [(number,) for number in range(1_000_000)]

        async def work() -> None:
            if style == "transaction":
                async with db.transaction():
                    await db.execute(fill)
            elif style == "connection":
                async with db.connection():
                    await db.execute(fill)
            elif style == "stream":
                await anext(db.iterate(fill))
            elif style == "many":
                await db.execute_many(f"insert into {table} values (?, 'a')", many)
            else:
                await db.execute(fill)

        def locked() -> bool:
            other = sqlite3.connect(path, timeout=0, isolation_level=None)
            try:
                other.execute("begin immediate")
                other.execute("rollback")
            except sqlite3.OperationalError:
                return True
            finally:
                other.close()
            return False

        task = asyncio.create_task(work())
        await eventually(locked)
        assert not task.done()
        await let_be_cancelled(task)
        if style == "transaction":
            await eventually(lambda: not locked())  # its connection is closed behind its back
        assert not locked()
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        await no_slot_is_lost(db)
    await eventually(lambda: threading.active_count() <= threads)


@with_sqlite
async def test_a_cancellation_just_before_the_statement_begins(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite forgets an interruption that comes while nothing runs."""
    begun, go = threading.Event(), threading.Event()

    def late(*arguments: Any) -> Any:
        begun.set()
        assert go.wait(WAIT)
        return execute(*arguments)

    execute = statements.execute
    monkeypatch.setattr(statements, "execute", late)
    async with backend.database(max_size=1) as db:
        task = asyncio.create_task(db.execute(backend.slow))
        await eventually(begun.is_set)
        asyncio.get_running_loop().call_later(0.1, go.set)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=WAIT)
        assert done
        monkeypatch.undo()
        await no_slot_is_lost(db)


@with_sqlite
async def test_a_cancelled_statement_that_waits_for_a_lock(backend: Backend) -> None:
    """SQLite does not heed an interruption while it waits: its busy timeout bounds it."""
    url = f"{backend.url}?timeout=0.3"
    async with backend.database(url, max_size=2) as db, backend.table(db) as table:
        async with db.transaction():
            await db.execute(f"insert into {table} values (1, 'a')")
            task = asyncio.create_task(db.execute(f"insert into {table} values (2, 'a')"))
            await eventually(lambda: db.pool.active_count == 2)
            await let_be_cancelled(task)
        assert await db.fetch_val(f"select count(*) from {table}") == 1
        await no_slot_is_lost(db)


@with_sqlite
@pytest.mark.parametrize("style", ["stream", "cursor"])
@pytest.mark.parametrize("way", ["in a statement", "between two"])
async def test_rows_that_nobody_reads_any_more_hold_no_lock(
    backend: Backend, style: str, way: str
) -> None:
    """The cancelled transaction is over, although its stream is still referred to."""
    async with (
        backend.database(f"{backend.url}?timeout=0", max_size=2) as db,
        backend.table(db, "id {int}") as table,
    ):
        query = f"select id from {table}"
        await db.execute_many(f"insert into {table} values (?)", [[i] for i in range(1000)])
        kept: list[Any] = []
        reading = asyncio.Event()

        async def wait() -> None:
            reading.set()
            if way == "in a statement":
                await db.fetch_val(backend.slow)
            await asyncio.Event().wait()

        async def work() -> None:
            async with db.transaction():
                await db.execute(f"insert into {table} values (-1)")
                if style == "stream":
                    kept.append(await db.iterate(query).start())
                else:
                    async with db.connection() as c:
                        kept.append(await c.execute(query))
                        await kept[0].fetchone()
                        await wait()
                await wait()

        task = asyncio.create_task(work())
        async with asyncio.timeout(WAIT):
            await reading.wait()
        task.cancel()
        await asyncio.wait([task])
        await eventually(lambda: not db.pool.stats().destroying)
        await db.execute(f"insert into {table} values (-2)")
        assert await db.fetch_val(f"select count(*) from {table}") == 1001
        assert await db.fetch_val(f"select min(id) from {table}") == -2
        assert kept
