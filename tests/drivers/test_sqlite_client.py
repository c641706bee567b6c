"""The asynchronous face of `sqlite3`, and the thread behind each of its connections."""

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from cenote.drivers.sqlite import ConnectionClosedError, connect
from cenote.drivers.sqlite.worker import Worker
from tests.support.kit import outcome
from tests.support.waiting import WAIT, eventually

pytestmark = [pytest.mark.real_time("a thread does the work"), pytest.mark.driver]

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"


def raise_stop_iteration() -> None:
    raise StopIteration(5)


async def joined(thread: threading.Thread) -> bool:
    await asyncio.to_thread(thread.join, WAIT)
    return not thread.is_alive()


# -- the thread ----------------------------------------------------------------------------------


async def test_jobs_run_in_the_order_of_their_calls() -> None:
    worker, seen = Worker("test"), list[int]()
    await asyncio.gather(*(worker.call(seen.append, number) for number in range(100)))
    assert seen == list(range(100))
    worker.stop()
    assert await joined(worker.thread)


async def test_a_worker_that_is_collected_ends_its_thread() -> None:
    worker = Worker("test")
    assert await worker.call(int, "5") == 5
    thread = worker.thread
    del worker
    gc.collect()
    assert await joined(thread)


async def test_a_waiting_thread_keeps_no_result_alive() -> None:
    class Thing:
        pass

    worker = Worker("test")
    thing = weakref.ref(await worker.call(Thing))
    await worker.call(int)  # the thread is done with everything before
    gc.collect()
    assert thing() is None
    worker.stop()
    assert await joined(worker.thread)


def test_a_thread_outlives_the_loop_that_asked_it() -> None:
    begun, go = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop()
    worker = loop.run_until_complete(start_blocked(begun, go))
    assert begun.wait(WAIT)
    loop.close()
    go.set()
    assert asyncio.run(in_another_loop(worker)) == 5
    worker.stop()
    worker.thread.join(WAIT)
    assert not worker.thread.is_alive()


async def start_blocked(begun: threading.Event, go: threading.Event) -> Worker:
    worker = Worker("test")

    def block() -> None:
        begun.set()
        assert go.wait(WAIT)

    worker.call(block)
    return worker


async def in_another_loop(worker: Worker) -> int:
    return await worker.call(int, "5")


async def test_a_stop_iteration_in_the_thread_is_a_runtime_error() -> None:
    worker = Worker("test")
    error = await outcome(worker.call(raise_stop_iteration))
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, StopIteration)
    worker.stop()
    assert await joined(worker.thread)


def test_an_open_connection_does_not_keep_the_program_alive() -> None:
    program = """
import asyncio, threading
from cenote.drivers.sqlite import connect

kept = []

async def main():
    kept.append(await connect(":memory:"))
    kept[0].post(threading.Event().wait)  # for ever

asyncio.run(main())
print("over")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT, check=True
    )
    assert ended.stdout == "over\n"


class Asked(sqlite3.Connection):
    """Notes which thread asks for its transaction."""

    threads: set[int]

    @property
    def in_transaction(self) -> bool:  # type: ignore[override]
        self.threads.add(threading.get_ident())
        return super().in_transaction


async def test_only_its_thread_asks_for_the_transaction(tmp_path: Path) -> None:
    """SQLite 3.53 answers another thread only when the statement that runs is over."""
    Asked.threads = set()
    async with await connect(tmp_path / "a.db", isolation_level=None, factory=Asked) as c:
        assert not c.in_transaction
        await c.execute("begin")
        assert c.in_transaction
        running = asyncio.ensure_future(c.execute_fetchall(ENDLESS))
        assert c.in_transaction
        while not running.done():  # an interruption before its first step is lost
            await c.interrupt()
            await asyncio.wait([running], timeout=0.01)
        assert isinstance(running.exception(), sqlite3.OperationalError)
        assert c.in_transaction
        await c.rollback()
        assert not c.in_transaction
        assert Asked.threads == {c.thread.ident}


# -- the connection ------------------------------------------------------------------------------


async def test_close_waits_for_what_was_started_before() -> None:
    connection = await connect(":memory:")
    go = threading.Event()
    blocked = connection.post(go.wait, WAIT)
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    assert blocked.done()
    assert connection.closed
    assert await joined(connection.thread)
    await connection.close()


@pytest.mark.parametrize("end", ["close", "terminate"])
async def test_a_closed_connection_refuses_every_use(end: str) -> None:
    connection = await connect(":memory:")
    cursor = await connection.execute("select 1")
    ended: Any = getattr(connection, end)()
    if ended is not None:
        await ended
    for use in (
        connection.commit,
        cursor.fetchone,
        lambda: connection.execute("select 1"),
        lambda: connection.run(int),
    ):
        assert isinstance(await outcome(use()), ConnectionClosedError)
    with pytest.raises(ConnectionClosedError, match="the connection to SQLite is closed"):
        assert connection.in_transaction
    assert await joined(connection.thread)


async def test_terminate_interrupts_a_statement_without_waiting() -> None:
    connection = await connect(":memory:")
    begun = threading.Event()
    await connection.create_function("begun", 0, begun.set)
    running = asyncio.ensure_future(connection.execute_fetchall(f"select begun(), ({ENDLESS})"))
    await asyncio.to_thread(begun.wait, WAIT)
    connection.terminate()
    assert not running.done()
    error = await outcome(running)
    assert isinstance(error, sqlite3.OperationalError)
    assert "interrupted" in str(error)
    assert await joined(connection.thread)


async def test_a_connection_opened_for_a_cancelled_task_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, made = threading.Event(), threading.Event(), list[sqlite3.Connection]()
    original = sqlite3.connect

    def late(*arguments: Any, **options: Any) -> sqlite3.Connection:
        begun.set()
        assert go.wait(WAIT)
        made.append(original(*arguments, **options))
        return made[0]

    monkeypatch.setattr(sqlite3, "connect", late)
    before = threading.active_count()
    task = asyncio.create_task(connect(tmp_path / "a.db", check_same_thread=False))
    await asyncio.to_thread(begun.wait, WAIT)
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    threads = threading.active_count()
    go.set()
    await eventually(lambda: threading.active_count() < max(threads, before + 1))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("select 1")


async def test_an_unclosed_connection_warns_and_ends_its_thread() -> None:
    connections = [await connect(":memory:")]
    thread = connections[0].thread
    with pytest.warns(ResourceWarning, match="unclosed <cenote.drivers.sqlite.client.Connection"):
        connections.clear()
    assert await joined(thread)


async def test_rows_are_read_in_the_ways_of_aiosqlite() -> None:
    async with await connect(":memory:", isolation_level=None, iter_chunk_size=2) as connection:
        await connection.executescript("create table t (id integer primary key, name text)")
        async with connection.executemany(
            "insert into t (name) values (?)", [["a"], ["b"]]
        ) as many:
            assert many.rowcount == 2
        assert await connection.execute_insert("insert into t (name) values ('c')") == (3,)
        cursor = await connection.execute("select name from t order by id")
        assert [column[0] for column in cursor.description] == ["name"]
        assert await cursor.fetchone() == ("a",)
        assert await cursor.fetchmany() == [("b",)]
        assert await cursor.fetchall() == [("c",)]
        async with connection.execute("select id from t order by id") as cursor:
            assert [row async for row in cursor] == [(1,), (2,), (3,)]
        with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
            await cursor.fetchone()
        task = asyncio.create_task(connection.execute_fetchall("select count(*) from t"))
        assert await task == [(3,)]


async def test_a_backup_into_a_plain_connection_copies_everything() -> None:
    target = sqlite3.connect(":memory:", check_same_thread=False)
    async with await connect(":memory:") as connection:
        await connection.executescript("create table t (id); insert into t values (7)")
        await connection.backup(target)
    assert target.execute("select id from t").fetchall() == [(7,)]
    target.close()
