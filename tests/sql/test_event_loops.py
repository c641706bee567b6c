"""A database and its event loops: one after the other, in threads, at the end of a program."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import contextlib
import gc
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend, check_branch
from tests.support.faults import marked, watching
from tests.support.held import loop_database_of, session_number, sessions_end
from tests.support.waiting import WAIT, eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

SOURCE = str(Path(cenote.__file__).parent.parent)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), WAIT))


@contextlib.contextmanager
def nothing_left(backend: Backend, seen: list[Any]) -> Any:
    """No thread, and none of the sessions of the server that were seen. What is collected with
    a socket or a connection that is open warns, and warnings are errors here."""
    threads = {*threading.enumerate()}
    yield
    gc.collect()
    for thread in {*threading.enumerate()} - threads:
        thread.join(WAIT)
        assert not thread.is_alive(), thread
    run(lambda: sessions_end(backend, seen))


def test_loops_one_after_the_other_without_closing(backend: Backend) -> None:
    seen: list[Any] = []
    pools = []
    db = cenote.Database(backend.url, max_size=3)

    async def use() -> None:
        pool = db.pool
        assert pool is not None
        assert pool.count == 0
        assert await db.fetch_val("select 1") == 1
        seen.append(await session_number(backend, db))
        pools.append(pool)
        assert db.pool is pool
        assert pool.count == 1
        assert list(db._loop_databases) == [asyncio.get_running_loop()]

    with nothing_left(backend, seen):
        for _ in range(3):
            run(use)
            assert not db._loop_databases
    assert len(set(map(id, pools))) == 3
    assert all(pool.closed for pool in pools)
    run(db.close)
    with pytest.raises(cenote.PoolClosedError):
        run(use)


def test_a_loop_that_goes_down_rolls_back(backend: Backend) -> None:
    """With tasks that hold and run all kinds of things."""
    seen: list[Any] = []
    db = cenote.Database(backend.url, max_size=8)
    tables = []

    async def prepare() -> None:
        tables.append(f"t_{os.urandom(6).hex()}")
        columns = "id {int} primary key, name {text}".format(**backend.types)
        await db.execute(f"create table {tables[0]} ({columns})")
        rows = [[i] for i in range(250)]
        await db.execute_many(f"insert into {tables[0]} values (?, 'x')", rows)

    async def quiet(ready: asyncio.Event) -> None:
        async with db.transaction():
            seen.append(await session_number(backend, db))
            await db.execute(f"insert into {tables[0]} values (1000, 'y')")
            ready.set()
            await asyncio.Event().wait()

    async def slow(ready: asyncio.Event) -> None:
        async with db.transaction(read_only=True):
            seen.append(await session_number(backend, db))
            ready.set()
            await db.fetch_val(backend.slow)

    async def stubborn(ready: asyncio.Event) -> None:
        try:
            await db.execute(backend.touches[0][0])
            seen.append(await session_number(backend, db))
            ready.set()
            await asyncio.Event().wait()
        finally:
            await db.fetch_val("select 1")  # still works, for it goes down in order

    async def stream(ready: asyncio.Event) -> None:
        async for _row in db.iterate(f"select * from {tables[0]}"):
            ready.set()
            await asyncio.Event().wait()

    async def statement(ready: asyncio.Event) -> None:
        kept = await db.prepare("select 1")
        seen.append(await session_number(backend, db))
        ready.set()
        await asyncio.Event().wait()
        del kept

    async def leave() -> None:
        kept = []
        for work in (quiet, slow, stubborn, stream, statement):
            ready = asyncio.Event()
            kept.append(asyncio.create_task(work(ready)))
            await ready.wait()
        assert db.pool is not None
        assert db.pool.active_count == 5
        left.append(loop_database_of(db))

    async def check() -> None:
        assert await db.fetch_val(f"select count(*) from {tables[0]}") == 250
        await db.execute(f"insert into {tables[0]} values (1000, 'z')")  # not locked
        await db.execute(f"drop table {tables[0]}")
        await db.close()

    left: list[Any] = []
    with nothing_left(backend, seen):
        run(prepare)
        run(leave)
        check_branch(left[0])
        run(check)


def test_a_transaction_of_the_main_task_ends_with_its_loop(backend: Backend) -> None:
    seen: list[Any] = []
    db = cenote.Database(backend.url)

    async def begin() -> None:
        await db.begin()
        seen.append(await session_number(backend, db))

    async def fail() -> None:
        await begin()
        raise KeyError

    with nothing_left(backend, seen):
        asyncio.run(begin())
        with pytest.raises(KeyError):
            asyncio.run(fail())
        assert not db._loop_databases
    run(db.close)


def test_a_loop_that_is_closed_without_ceremony(backend: Backend) -> None:
    """Without shutdown_asyncgens(): its pool is purged when another loop is seen."""
    seen: list[Any] = []
    db = cenote.Database(backend.url)

    async def use() -> None:
        await db.begin()
        seen.append(await session_number(backend, db))

    async def purge() -> None:
        await db.fetch_val("select 1")
        assert list(db._loop_databases) == [asyncio.get_running_loop()]
        await sessions_end(backend, seen)
        await db.close()

    with nothing_left(backend, seen):
        for _ in range(2):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(use())
            loop.close()
        assert len(db._loop_databases) == 1
        run(purge)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_closing_with_pools_of_loops_that_do_not_run(backend: Backend, closed: bool) -> None:
    seen: list[Any] = []
    db = cenote.Database(backend.url)

    async def use() -> None:
        await db.begin()
        seen.append(await session_number(backend, db))

    with nothing_left(backend, seen):
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(use())
            if closed:
                loop.close()
            run(db.close)
            run(lambda: sessions_end(backend, seen))
            assert not db._loop_databases
            if not closed:
                loop.run_until_complete(asyncio.sleep(0))  # what is left of its transports
        finally:
            loop.close()


def test_loops_in_threads_at_the_same_time(backend: Backend) -> None:
    """Each with a pool of max_size of its own."""
    db = cenote.Database(backend.url, max_size=2)
    everyone = threading.Barrier(6)  # two tasks in each of three threads
    pools: list[Any] = []
    seen: list[Any] = []
    errors: list[BaseException] = []

    async def hold(both: asyncio.Barrier) -> None:
        async with db.transaction(read_only=True):
            await db.fetch_val("select 1")
            seen.append(await session_number(backend, db))
            await both.wait()
            await asyncio.to_thread(everyone.wait, WAIT)
            await both.wait()

    async def use() -> None:
        both = asyncio.Barrier(2)
        await asyncio.gather(hold(both), hold(both))
        assert db.pool is not None
        assert db.pool.count == 2
        pools.append(db.pool)
        for i in range(50):
            assert await db.fetch_val("select ?", [str(i)]) == str(i)

    def work() -> None:
        try:
            run(use)
        except BaseException as error:
            errors.append(error)
            everyone.abort()

    with nothing_left(backend, seen):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert not db._loop_databases
    assert len({id(pool) for pool in pools}) == 3
    assert backend.embedded or len(set(seen)) == 6
    run(db.close)


def test_closing_the_pools_of_other_running_loops(backend: Backend) -> None:
    seen: list[Any] = []
    db = cenote.Database(backend.url)
    ready, closed = threading.Event(), threading.Event()
    outcomes: list[Any] = []

    async def quiet() -> None:
        with pytest.raises(cenote.PoolClosedError):
            async with db.transaction():
                seen.append(await session_number(backend, db))
                ready.set()
                await asyncio.to_thread(closed.wait, WAIT)
                with pytest.raises(cenote.PoolClosedError):
                    await db.fetch_val("select 1")
        assert db.bound_connection is None
        outcomes.append("left")

    def work() -> None:
        run(quiet)

    async def close() -> None:
        await db.fetch_val("select 1")
        seen.append(await session_number(backend, db))
        await db.close()
        await sessions_end(backend, seen)

    with nothing_left(backend, seen):
        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(WAIT)
        run(close)
        closed.set()
        thread.join()
    assert outcomes == ["left"]


@pytest.mark.parametrize("ending", ["run", "bare"])
def test_closing_does_not_wait_for_a_loop_that_ends_meanwhile(
    backend: Backend, ending: str
) -> None:
    db = cenote.Database(backend.url)
    seen: list[Any] = []

    async def use() -> None:
        seen.append(await session_number(backend, db))
        await db.fetch_val("select 1")

    async def block() -> None:
        ready.set()
        over.wait(WAIT)  # its loop cannot hear of it any more

    async def both() -> None:
        await use()
        await block()

    def work() -> None:
        if ending == "run":
            asyncio.run(both())
        else:  # the last step of this loop begins what none is left to go on with
            loop = asyncio.new_event_loop()
            loop.run_until_complete(use())
            loop.run_until_complete(block())
            loop.close()

    async def close() -> None:
        closing = asyncio.create_task(db.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        over.set()
        await closing

    ready, over = threading.Event(), threading.Event()
    with nothing_left(backend, seen):
        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(WAIT)
        run(close)
        thread.join()
    gc.collect()


SLOW_STEP = re.compile(r"Executing <.* took [\d.]+ seconds$")  # of a busy machine

SCRIPT = """
import asyncio, sys
import cenote

url, slow, insert, session, scenario = sys.argv[1:]
db = cenote.Database(url)

async def quiet(ready):
    async with db.transaction():
        await db.execute(insert)
        if session:
            print(await db.fetch_val(session))
        ready.set()
        await asyncio.Event().wait()

async def running(ready):
    if session:
        await db.begin()
        print(await db.fetch_val(session))
    ready.set()
    await db.fetch_val(slow)

async def start(work):
    ready = asyncio.Event()
    task = asyncio.create_task(work(ready))
    await ready.wait()
    return task

async def main():
    tasks = [await start(quiet), await start(running)]
    if scenario == "timeout":
        try:
            await asyncio.wait_for(await start(running), 0.2)
        except TimeoutError:
            return
    stream = db.iterate("select 1 union all select 2")
    await anext(stream)
    statement = await db.prepare("select 1")
    await asyncio.sleep(0)
    if scenario == "closed":
        await db.close()
        kept.append((tasks, stream, statement))
    elif scenario == "kept":
        kept.append((tasks, stream, statement))
    elif scenario == "exit":
        raise SystemExit(0)

kept = []
asyncio.run(main())
"""


@pytest.mark.parametrize("scenario", ["dropped", "kept", "closed", "exit", "timeout"])
async def test_a_program_ends_promptly_and_without_noise(backend: Backend, scenario: str) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (1, 'a')"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT,
            backend.url, backend.slow, insert, backend.session, scenario,
            env={**os.environ, "PYTHONPATH": SOURCE},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(WAIT):
            out, err = await process.communicate()
        if (backend.name, scenario) != ("asyncpg", "timeout"):
            # asyncpg tells the server in a task of its own, and drops a future when that ends.
            lines = err.decode().splitlines()
            assert [line for line in lines if not SLOW_STEP.match(line)] == []
        assert process.returncode == 0
        numbers = [int(line) for line in out.split()]
        assert len(numbers) == (0 if backend.embedded else 3 if scenario == "timeout" else 2)
        await sessions_end(backend, numbers)
        assert await db.execute(insert) == 1


def test_a_program_that_never_ran_a_loop_to_its_end(backend: Backend) -> None:
    """Nor closed anything: what Python says of that is its own affair, but it ends."""
    script = (
        "import asyncio, sys, cenote\n"
        "db = cenote.Database(sys.argv[1])\n"
        "loop = asyncio.new_event_loop()\n"
        "loop.run_until_complete(db.begin())\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, backend.url],
        env={**os.environ, "PYTHONPATH": SOURCE},
        timeout=WAIT,
        check=True,
        capture_output=True,
    )


def test_a_thread_of_sqlite_outlives_its_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It opens a connection for who was cancelled meanwhile: the connection is closed, and nothing
    is reported to a loop that is closed."""
    begun, go_on, opened, died = threading.Event(), threading.Event(), [], []
    connect = sqlite3.connect

    def slow(*arguments: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(WAIT)
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", slow)
    monkeypatch.setattr(threading, "excepthook", died.append)
    db = cenote.Database(f"sqlite:///{tmp_path / 'slow.db'}")
    before = {*threading.enumerate()}
    left: list[threading.Thread] = []

    async def main() -> None:
        task = asyncio.create_task(db.open())
        await eventually(begun.is_set)
        left.extend({*threading.enumerate()} - before)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await db.close()

    asyncio.run(main())
    go_on.set()
    for thread in left:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert left
    assert died == []
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("select 1")


class CountingLoop(asyncio.SelectorEventLoop):
    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


def test_nothing_spins_while_a_statement_waits_for_the_server(backend: Backend) -> None:
    async def work() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        async with backend.database(max_size=1) as db:
            await db.fetch_val("select 1")
            text, nonce = marked(backend.slow)
            slow = asyncio.create_task(db.fetch_all(text))
            if backend.embedded:
                await eventually(lambda: db.pool.active_count == 1)
            else:
                async with watching(backend) as watcher:
                    await watcher.until_running(nonce)
            before = loop.turns
            await asyncio.sleep(0.2)
            turns = loop.turns - before
            slow.cancel()
            await asyncio.wait([slow])
        return turns

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(work()) < 10
