"""The life of a database: its event loops, opening and closing, and a connection without a pool."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import contextlib
import contextvars
import gc
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import cenote
from cenote.extras.asgi import lifespan
from tests.support.backends import WAIT, Backend, check_branch, eventually
from tests.support.held import Gate, loop_database_of, session, sessions_end
from tests.support.servers import PASSWORD

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


# -- event loops --------------------------------------------------------------------------------


def test_loops_one_after_the_other_without_closing(backend: Backend) -> None:
    seen: list[Any] = []
    pools = []
    db = cenote.Database(backend.url, max_size=3)

    async def use() -> None:
        pool = db.pool
        assert pool is not None
        assert pool.count == 0
        assert await db.fetch_val("select 1") == 1
        seen.append(await session(backend, db))
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
            seen.append(await session(backend, db))
            await db.execute(f"insert into {tables[0]} values (1000, 'y')")
            ready.set()
            await asyncio.Event().wait()

    async def slow(ready: asyncio.Event) -> None:
        async with db.transaction(read_only=True):
            seen.append(await session(backend, db))
            ready.set()
            await db.fetch_val(backend.slow)

    async def stubborn(ready: asyncio.Event) -> None:
        try:
            await db.execute(backend.touches[0][0])
            seen.append(await session(backend, db))
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
        seen.append(await session(backend, db))
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


def test_a_loop_that_ends_with_a_transaction_of_its_main_task(backend: Backend) -> None:
    seen: list[Any] = []
    db = cenote.Database(backend.url)

    async def begin() -> None:
        await db.begin()
        seen.append(await session(backend, db))

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
        seen.append(await session(backend, db))

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
        seen.append(await session(backend, db))

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
            seen.append(await session(backend, db))
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
                seen.append(await session(backend, db))
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
        seen.append(await session(backend, db))
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
        seen.append(await session(backend, db))
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
            await asyncio.wait_for(running(asyncio.Event()), 0.2)
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


# -- closing ------------------------------------------------------------------------------------


async def test_closing_with_busy_tasks(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database(max_size=5) as (db, table):
        closed = asyncio.Event()
        seen: list[Any] = []
        ready: list[str] = []

        async def in_transaction() -> None:
            with pytest.raises(cenote.PoolClosedError):
                async with db.transaction(read_only=backend.embedded) as tx:
                    if not backend.embedded:  # there is one writer at a time
                        await db.execute(f"insert into {table} values (2, 'b')")
                    seen.append(await session(backend, db))
                    ready.append("transaction")
                    await closed.wait()
                    assert db.bound_connection is None
                    assert db.pin_reason is None
                    for use in (
                        db.fetch_val("select 1"),
                        tx.fetch_val("select 1"),
                        tx.join().__aenter__(),
                        anext(tx.iterate("select 1")),
                    ):
                        with pytest.raises(cenote.PoolError):
                            await use

        async def with_begin() -> None:
            await db.begin(read_only=True)
            seen.append(await session(backend, db))
            ready.append("begin")
            await closed.wait()
            for end in (db.commit, db.rollback, db.release):
                with pytest.raises(cenote.PoolClosedError):
                    await end()

        async def with_statement() -> None:
            statement = await db.prepare("select 1")
            seen.append(await session(backend, db))
            ready.append("statement")
            await closed.wait()
            with pytest.raises(cenote.PoolClosedError):
                await statement.fetch_val()
            with pytest.raises(cenote.PoolClosedError):
                statement.iterate()
            await statement.close()

        async def with_stream() -> None:
            stream = db.iterate("select 1 union all select 2")
            await anext(stream)
            ready.append("stream")
            await closed.wait()
            with pytest.raises(cenote.PoolClosedError):
                [row async for row in stream]
            await stream.aclose()

        async def in_mid_statement() -> None:
            ready.append("mid")
            assert await db.execute(gate.sql) == 1
            with pytest.raises(cenote.PoolClosedError):
                await db.fetch_val("select 1")

        async def waiting() -> None:
            with pytest.raises(cenote.PoolClosedError):
                await db.fetch_val("select 1")

        tasks = []
        for work in (in_transaction, with_begin, with_statement, with_stream, in_mid_statement):
            tasks.append(asyncio.create_task(work()))
            count = len(tasks)
            await eventually(lambda count=count: len(ready) == count)
        pool = db.pool
        await eventually(lambda: pool.active_count == 5)
        tasks.append(asyncio.create_task(waiting()))
        await eventually(lambda: pool.waiting_count == 1)
        loop_db = loop_database_of(db)
        await db.close()
        assert not loop_db.private
        assert not loop_db.joined
        assert pool.waiting_count == 0
        await eventually(lambda: pool.active_count == 1)
        await sessions_end(backend, seen)
        gate.open()
        closed.set()
        await asyncio.gather(*tasks)
        await eventually(lambda: not loop_db.connections and not pool.stats().destroying)
        check_branch(loop_db)
        async with backend.database() as other:
            assert await other.fetch_val(f"select count(*) from {table}") == 1
            assert await other.fetch_val(f"select name from {table}") == "through"


async def test_closing_while_a_shared_transaction_is_in_mid_statement(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        with pytest.raises(cenote.PoolClosedError):
            async with db.transaction() as tx:
                await db.execute(f"insert into {table} values (2, 'b')")
                running = asyncio.create_task(tx.execute(gate.sql))
                await eventually(lambda: tx._session.turn.taken)
                waiting = asyncio.create_task(tx.execute(gate.sql))
                await asyncio.sleep(0)
                pool = db.pool
                await db.close()
                assert pool.active_count == 1
                gate.open()
                assert await running == 1
                with pytest.raises(cenote.PoolClosedError):
                    await waiting
                with pytest.raises(cenote.PoolError):
                    await tx.fetch_val("select 1")
        await eventually(lambda: pool.count == 0)
        async with backend.database() as other:
            rows = await other.fetch_all(f"select name from {table}")
            assert [row[0] for row in rows] == ["a"]


async def test_closing_twice_and_at_once(backend: Backend) -> None:
    async with backend.database() as db:
        await db.fetch_val("select 1")
        await asyncio.gather(db.close(), db.close())
        await db.close()
        assert db.closed
        assert "closed" in repr(db)
        with pytest.raises(cenote.PoolClosedError, match="Create a new Database"):
            await db.fetch_val("select 1")


async def test_closing_what_was_never_used(backend: Backend) -> None:
    db = cenote.Database(backend.url)
    await db.close()
    with pytest.raises(cenote.PoolClosedError):
        await db.open()
    assert not db.in_transaction
    assert db.bound_connection is None


async def test_a_database_as_a_block(backend: Backend) -> None:
    seen = []
    async with cenote.Database(backend.url, min_size=2) as db:
        assert isinstance(db, cenote.Database)
        assert db.pool is not None
        assert db.pool.idle_count == 2
        seen.append(await session(backend, db))
    assert db.closed
    await sessions_end(backend, seen)
    with pytest.raises(KeyError):
        async with cenote.Database(backend.url) as db:
            await db.begin()
            raise KeyError
    assert db.closed


async def test_a_block_keeps_its_exception_when_closing_fails(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Any) -> None:
        await close(self)
        raise OSError("not closed in order")

    async def leave(error: type[BaseException] | None) -> None:
        async with cenote.Database(backend.url) as db:
            await db.fetch_val("select 1")
            link = type(next(iter(loop_database_of(db).connections)))
            monkeypatch.setattr(link, "close", fail)
            if error is not None:
                raise error

    async with cenote.Database(backend.url) as db:
        await db.fetch_val("select 1")
        close = type(next(iter(loop_database_of(db).connections))).close
    for error in (KeyError, asyncio.CancelledError):
        with pytest.raises(error):
            await leave(error)
        monkeypatch.undo()
    with pytest.raises(ExceptionGroup):
        await leave(None)


# -- opening ------------------------------------------------------------------------------------


SIZES: list[dict[str, Any]] = [{"min_size": 2, "max_size": 4}, {}, {"pooled": False}]


@pytest.mark.parametrize("options", SIZES, ids=["two", "bare", "unpooled"])
async def test_open_shows_wrong_settings(backend: Backend, options: dict[str, Any]) -> None:
    if backend.embedded:
        url = "sqlite:////nowhere/at/all.db"
    else:
        url = backend.server.tcp_url(password="wr0ng-pass").replace(
            backend.server.tcp_url().split(":")[0], backend.url.split(":")[0], 1
        )
        url += "?sslmode=disable"  # cut off while it asks for TLS, asyncpg forgets a future
    await refused(url, **options)


@pytest.mark.parametrize("way", ["open", "block", "lifespan"])
async def test_open_again_with_the_right_password(backend: Backend, way: str) -> None:
    if backend.embedded:
        return
    given = ["wr0ng-pass"]
    async with backend.database(password=lambda: given[-1], url=without_password(backend)) as db:
        with pytest.raises(Exception, match=r"(?i)password|denied") as caught:
            if way == "open":
                await db.open()
            elif way == "block":
                await cenote.Database.__aenter__(db)
            else:
                other = cenote.Database(without_password(backend), password="wr0ng-pass")
                async with lifespan(other)(None):
                    pytest.fail("it has started")
        assert not isinstance(caught.value, cenote.PoolError)
        given.append(PASSWORD)
        await db.open()
        assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 1


def without_password(backend: Backend) -> str:
    scheme, rest = backend.url.split("://")
    who, place = rest.split("@")
    return f"{scheme}://{who.split(':')[0]}@{place}"


async def test_open_when_nobody_listens(backend: Backend, unused_port: int) -> None:
    if backend.embedded:
        return
    for options in SIZES:
        await refused(backend.url_through("127.0.0.1", unused_port), **options)


@pytest.fixture
def unused_port() -> Any:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        yield bound.getsockname()[1]


KEPT_OR_NOT = [
    {},
    {"min_size": 3},
    {"pooled": False},
    {"pooled": False, "persistent": True},
]


@pytest.mark.parametrize("options", KEPT_OR_NOT, ids=["bare", "three", "unpooled", "persistent"])
async def test_open_makes_a_connection(backend: Backend, options: dict[str, Any]) -> None:
    """Which is idle then, and serves the first statement."""
    async with backend.database(**options) as db:
        count = options.get("min_size", 1)
        await db.open()
        pool = loop_database_of(db).pool
        assert (pool.count, pool.idle_count) == (count, count)
        await db.open()
        assert await db.fetch_val("select 1") == 1
        assert pool.stats().created == count
    async with backend.database(**options) as db, db:
        assert loop_database_of(db).pool.idle_count == count


async def test_several_open_at_once_make_one_connection(backend: Backend) -> None:
    async with backend.database() as db:
        await asyncio.gather(*(db.open() for _ in range(5)))
        assert loop_database_of(db).pool.stats().created == 1


async def test_open_while_another_task_connects(backend: Backend) -> None:
    async with backend.database() as db:
        value, _ = await asyncio.gather(db.fetch_val("select 1"), db.open())
        assert value == 1
        assert db.pool.stats().created == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_cancelled_open_leaves_nothing_behind(backend: Backend, turns: int) -> None:
    """And may be called again; it is cancelled after so many turns of the loop."""
    # While it asks for TLS, asyncpg itself forgets a future that has failed.
    url = backend.url if backend.embedded else f"{backend.url}?sslmode=disable"
    async with backend.database(url) as db:
        task = asyncio.create_task(db.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            await eventually(lambda: not db.pool.count and not loop_database_of(db).connections)
        await db.open()
        assert db.pool.idle_count == 1


async def refused(url: str, **options: Any) -> None:
    threads = {*threading.enumerate()}
    db = cenote.Database(url, **options)
    for _ in range(2):
        with pytest.raises(Exception) as caught:
            await db.open()
        assert not isinstance(caught.value, cenote.PoolError)
        assert "wr0ng-pass" not in f"{caught.value} {caught.value!r}"
        assert loop_database_of(db).pool.count == 0
        assert not loop_database_of(db).connections
    with pytest.raises(type(caught.value)):
        await db.fetch_val("select 1")
    with pytest.raises(type(caught.value)):
        await db.open()
    loop_db = loop_database_of(db)
    await db.close()
    check_branch(loop_db)
    await eventually(lambda: {*threading.enumerate()} <= threads)


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


# -- without a pool -----------------------------------------------------------------------------


async def connection_of(db: Any) -> Any:
    async with db.connection() as connection:
        return connection.__wrapped__


async def test_a_connection_for_each_use(backend: Backend) -> None:
    async with backend.database(pooled=False) as db, backend.table(db) as table:
        assert db.pool is None
        assert await connection_of(db) is not await connection_of(db)
        if backend.session:
            one, two = await db.fetch_val(backend.session), await db.fetch_val(backend.session)
            assert one != two
            await sessions_end(backend, [one, two])
        assert not loop_database_of(db).connections
        await db.execute(f"insert into {table} values (1, 'a')")
        async with db.transaction():
            connection = db.bound_connection
            await db.execute(f"insert into {table} values (2, 'b')")
            async with db.transaction():
                await db.execute(f"insert into {table} values (3, 'c')")
            assert db.bound_connection is connection
        with pytest.raises(KeyError):
            async with db.transaction():
                await db.execute(f"insert into {table} values (4, 'd')")
                raise KeyError
        await db.execute_many(f"insert into {table} values (?, 'x')", [[5], [6]])
        statement = await db.prepare(f"select count(*) from {table}")
        assert await statement.fetch_val() == 5
        assert await db.fetch_val("select 1") == 1
        await statement.close()
        assert db.pool is None
        await eventually(lambda: not loop_database_of(db).connections)


async def test_one_task_at_a_time(backend: Backend) -> None:
    async with backend.database(pooled=False) as db, backend.table(db) as table:
        order: list[str] = []

        async def one(number: int) -> None:
            async with db.transaction():
                order.append(f"begin {number}")
                await db.execute(f"insert into {table} values (?, 'a')", [number])
                await asyncio.sleep(0)
                order.append(f"end {number}")

        await asyncio.gather(*(one(number) for number in range(5)))
        assert [word.split()[0] for word in order] == ["begin", "end"] * 5
        assert await db.fetch_val(f"select count(*) from {table}") == 5
        results = await asyncio.gather(*(db.fetch_val("select ?", [str(i)]) for i in range(20)))
        assert results == [str(i) for i in range(20)]


async def test_waiting_for_the_one_connection_has_an_end(backend: Backend) -> None:
    async with backend.database(pooled=False, acquire_timeout=1) as db:  # it has to connect, too
        await db.begin()
        with pytest.raises(cenote.AcquireTimeoutError, match="in a transaction"):
            await in_a_clean_context(db)
        await db.rollback()
        assert await db.fetch_val("select 1") == 1


async def in_a_clean_context(db: Any) -> Any:
    """In a task that was not started in a transaction, as far as anybody can see."""
    task = asyncio.get_running_loop().create_task(
        db.fetch_val("select 1"), context=contextvars.Context()
    )
    return await task


@pytest.mark.parametrize("options", [{"pooled": False}, {"pooled": False, "persistent": True}, {}])
async def test_a_stream_beside_other_statements_on_one_connection(
    backend: Backend, options: dict[str, Any]
) -> None:
    """With a pool: in a session with settings of its own. All outside of a transaction."""
    async with backend.database(**options) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        if not options:
            await db.execute("create temporary table mine (id int)")
        seen = []
        async for row in db.iterate(f"select id from {table} where id >= ? order by id", [0]):
            if row[0] in (50, 150):
                assert not db.in_transaction
                if not backend.interleaves:
                    with pytest.raises(cenote.PoolError, match=r"stream is open.*select id"):
                        await db.fetch_val("select 1")
                else:
                    if not options:
                        assert await db.fetch_val("select count(*) from mine") == 0
                    insert = f"insert into {table} values (?, 'y')"
                    await db.execute(insert, [1000 + row[0]])
                    # It is committed by itself: this one does not take it away,
                    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
                        await db.execute(insert, [0])
                    # and it can be seen from outside.
                    async with backend.database() as other:
                        count = f"select count(*) from {table} where id = ?"
                        assert await other.fetch_val(count, [1000 + row[0]]) == 1
                    async with db.transaction():
                        await db.execute(insert, [2000 + row[0]])
            if row[0] < 1000:
                seen.append(row[0])
        assert seen == list(range(250))
        assert not db.in_transaction
        if not options:
            assert "touched" in db.pin_reason
            await db.release()
        assert db.pin_reason is None
        found = await db.fetch_all(f"select id from {table} where name = 'y' order by id")
        ids = [1050, 1150, 2050, 2150] if backend.interleaves else []
        assert [row[0] for row in found] == ids


async def test_a_persistent_connection_stays_open(backend: Backend) -> None:
    async with backend.database(pooled=False, persistent=True) as db, backend.table(db) as table:
        assert db.pool is None
        connection = await connection_of(db)
        number = await session(backend, db)
        assert await asyncio.create_task(session(backend, db)) == number
        async with db.transaction():
            await db.execute(f"insert into {table} values (1, 'a')")
            assert await session(backend, db) == number
        assert len(loop_database_of(db).connections) == 1
        if not backend.embedded:  # which cannot be reset after connection()
            assert await connection_of(db) is connection
            assert await session(backend, db) == number
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(db.fetch_val(backend.slow), 0.05)
        assert await db.fetch_val(f"select count(*) from {table}") == 1  # on a new one
        assert backend.embedded or await session(backend, db) != number


async def test_pool_options_that_need_a_pool() -> None:
    with pytest.raises(ValueError, match="persistent"):
        cenote.Database("sqlite:///:memory:", persistent=True)
    for option in ("min_size", "max_size", "max_uses"):
        with pytest.raises(ValueError, match=option):
            cenote.Database("sqlite:///:memory:", pooled=False, **{option: 1})


# -- options of the pool ------------------------------------------------------------------------


async def test_max_uses(backend: Backend) -> None:
    async with backend.database(max_size=1, max_uses=2) as db:
        raws = []
        for _ in range(3):
            for _ in range(2):
                async with db.transaction(read_only=True):
                    raws.append(db.bound_connection)
        assert [raws[i] is raws[i + 1] for i in range(5)] == [True, False, True, False, True]
        await eventually(lambda: db.pool.stats().destroyed.get("max_uses") == 3)


@pytest.mark.parametrize("option", ["max_lifetime", "max_idle"])
async def test_old_and_idle_connections_are_replaced(backend: Backend, option: str) -> None:
    async with backend.database(**{option: 0.05}) as db:
        number = await session(backend, db)
        await db.fetch_val("select 1")
        await eventually(lambda: option in db.pool.stats().destroyed)
        assert db.pool.count == 0
        await sessions_end(backend, [number])
        async with db.transaction(read_only=True):  # never in use
            connection = db.bound_connection
            await asyncio.sleep(0.15)
            assert db.bound_connection is connection
            assert await db.fetch_val("select 1") == 1


def here() -> int:
    return sys._getframe(1).f_lineno


async def test_a_timeout_names_those_who_hold(backend: Backend) -> None:
    async with backend.database(min_size=3, max_size=3, acquire_timeout=0.05) as db:
        await db.open()
        lines: dict[str, int] = {}
        over = asyncio.Event()

        async def transaction() -> None:
            async with db.transaction(read_only=True):
                lines["transaction"] = here() - 1
                await over.wait()

        async def touched() -> None:
            await db.execute(backend.touches[0][0])
            lines["touched"] = here() - 1
            await over.wait()

        async def statement() -> None:
            kept = await db.prepare("select 1")
            lines["statement"] = here() - 1
            await over.wait()
            await kept.close()

        tasks = []
        for work in (transaction, touched, statement):
            tasks.append(asyncio.create_task(work(), name=work.__name__))
            count = len(tasks)
            await eventually(lambda count=count: len(lines) == count)
        with pytest.raises(cenote.AcquireTimeoutError) as caught:
            await db.fetch_val("select 1")
        holders = {holder.task: holder for holder in caught.value.holders}
        reasons = {
            "transaction": "in a transaction",
            "touched": "session state touched by ",
            "statement": "statement is open (select 1)",
        }
        for name, reason in reasons.items():
            holder = holders[name]
            assert holder.reason is not None
            assert holder.reason.startswith(reason)
            assert (holder.file, holder.line) == (__file__, lines[name])
            assert f"{name}" in str(caught.value)
            assert reason in str(caught.value)
        assert isinstance(caught.value, TimeoutError)
        over.set()
        await asyncio.gather(*tasks)
        assert await db.fetch_val("select 1") == 1


async def test_a_task_that_waits_for_itself(backend: Backend) -> None:
    async with backend.database(min_size=1, max_size=1, acquire_timeout=0.05) as db:
        await db.open()
        async with db.transaction(read_only=True):
            assert [row[0] async for row in db.iterate("select 1")] == [1]
        statement = await db.prepare("select 1")
        with pytest.raises(cenote.AcquireTimeoutError, match=r"task 'test'.*statement is open"):
            [row async for row in db.iterate("select 1")]
        assert await statement.fetch_val() == 1
        await statement.close()
        stream = db.iterate("select 1 union all select 2")
        await anext(stream)
        with pytest.raises(cenote.AcquireTimeoutError, match="stream is open"):
            await db.fetch_val("select 1")
        assert [row[0] async for row in stream] == [2]
        assert await db.fetch_val("select 1") == 1


async def test_what_is_touched_while_the_database_closes_is_not_kept(backend: Backend) -> None:
    """The statement began before close() and ends after it: its task holds nothing."""
    slow = {"sqlite": "create temp table late as " + backend.slow.replace("300000000", "300000")}
    touch = slow.get(backend.name) or {
        "mysql": "do sleep(0.3)",
    }.get(backend.name, "do $$ begin perform pg_sleep(0.3); end $$")
    async with backend.database() as db:
        await db.execute("select 1")
        pool = db.pool
        task = asyncio.create_task(linger(db.execute(touch)))
        await eventually(lambda: pool.active_count == 1)
        await db.close()
        await eventually(lambda: pool.count == pool.stats().destroying == 0)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


async def linger(statement: Any) -> None:
    await statement
    await asyncio.Event().wait()


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
            slow = asyncio.create_task(db.fetch_all(backend.slow))
            await asyncio.sleep(0.1)  # it was sent
            before = loop.turns
            await asyncio.sleep(0.2)
            turns = loop.turns - before
            slow.cancel()
            await asyncio.wait([slow])
        return turns

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(work()) < 10
