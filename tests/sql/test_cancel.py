"""Cancellation at any moment: the next task gets a clean connection and its own answer."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import inspect
import os
import random
import sqlite3
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest

import cenote
from cenote.drivers import sqlite
from tests.support.backends import WAIT, Backend, eventually
from tests.support.faults import (
    MANY_ROWS,
    RAW,
    all_at_once,
    let_be_cancelled,
    marked,
    no_slot_is_lost,
    outcome,
    watching,
    with_postgresql,
    with_server,
    with_sqlite,
)
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

CANCELLATIONS = int(os.environ.get("CENOTE_CANCELLATIONS", "500"))
SEED = 4711


@pytest.fixture
def proxy(backend: Backend) -> Iterator[Proxy]:
    with Proxy(backend.server.host, backend.server.port) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def allow_child_tasks() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cenote.TransactionScopeWarning)
        yield


def through(backend: Backend, proxy: Proxy, **options: Any) -> Any:
    return backend.database(backend.url_through(proxy.host, proxy.port), **options)


# -- at random moments ---------------------------------------------------------------------------

Ask = Callable[[Any, int], Awaitable[Any]]


async def ask_plainly(db: Any, number: int) -> Any:
    return await db.fetch_val(f"select {number}")


async def ask_with_parameter(db: Any, number: int) -> Any:
    return await db.fetch_val("select 1 + ?", [number]) - 1


async def ask_for_all(db: Any, number: int) -> Any:
    ((answer, _),) = await db.fetch_all(f"select {number}, 'x'")
    return answer


async def ask_in_transaction(db: Any, number: int) -> Any:
    async with db.transaction(read_only=True):
        first = await db.fetch_val(f"select {number}")
        assert await db.fetch_val("select 1 + ?", [number]) == first + 1
    return first


async def ask_by_stream(db: Any, number: int) -> Any:
    rows = [row[0] async for row in db.iterate(f"select {number} union all select {number}")]
    assert rows == [number] * 2
    return rows[0]


async def ask_by_statement(db: Any, number: int) -> Any:
    async with await db.prepare("select 1 + ?") as statement:
        return await statement.fetch_val([number]) - 1


async def ask_with_touched_session(db: Any, number: int) -> Any:
    async with db.connection():
        return await db.fetch_val(f"select {number}")


ASKS: list[Ask] = [
    ask_plainly,
    ask_with_parameter,
    ask_for_all,
    ask_in_transaction,
    ask_by_stream,
    ask_by_statement,
    ask_with_touched_session,
]


@pytest.mark.timeout(1800 if CANCELLATIONS > 500 else 120)
async def test_cancelled_at_random_moments(backend: Backend) -> None:
    chance = random.Random(SEED)
    numbers = count(1000)
    asking: dict[str, asyncio.Task[Any]] = {}
    cancelled = answered = 0  # the first: only those that had a connection
    threads = threading.active_count()
    loop = asyncio.get_running_loop()

    def cancel_soon(event: cenote.PoolEvent) -> None:
        """From the moment it has a connection; at once, in the middle, or too late."""
        if event.kind == "acquired" and (task := asking.pop(str(event.task), None)) is not None:
            loop.call_later(chance.random() ** 2 * 0.004, task.cancel)

    async with backend.database(max_size=3) as db:
        db.pool.subscribe(cancel_soon)

        async def one() -> None:
            nonlocal cancelled, answered
            number = next(numbers)
            name = f"asks {number}"
            task = asyncio.create_task(chance.choice(ASKS)(db, number), name=name)
            asking[name] = task
            if chance.random() < 0.1:  # at any other moment
                loop.call_later(chance.random() * 0.01, task.cancel)
            result = await outcome(task)
            if isinstance(result, asyncio.CancelledError):
                cancelled += name not in asking
            else:
                assert result == number
                answered += 1
            asking.pop(name, None)

        async def work() -> None:
            while cancelled < CANCELLATIONS:
                await one()
                number = next(numbers)  # and what comes after it has its own answer
                assert await chance.choice(ASKS)(db, number) == number

        await asyncio.gather(*(work() for _ in range(10)))
        assert answered > 0
        assert sum(db.pool.stats().destroyed.values()) > CANCELLATIONS / 2
        await no_slot_is_lost(db)
    await eventually(lambda: threading.active_count() <= threads)


# -- in mid-query --------------------------------------------------------------------------------


async def run_plainly(backend: Backend, db: Any, sql: str) -> None:
    await db.execute(sql)


async def run_in_transaction(backend: Backend, db: Any, sql: str) -> None:
    async with db.transaction():
        await db.fetch_val("select 1")
        await db.fetch_all(sql)


async def run_raw(backend: Backend, db: Any, sql: str) -> None:
    async with db.connection() as raw:
        await RAW[backend.name](raw, sql)


async def run_statement(backend: Backend, db: Any, sql: str) -> None:
    async with await db.prepare(sql) as statement:
        await statement.fetch_all()


async def run_stream(backend: Backend, db: Any, sql: str) -> None:
    async with db.iterate(sql) as stream:
        async for _ in stream:
            pass


async def run_shared(backend: Backend, db: Any, sql: str) -> None:
    async with db.transaction() as tx:
        await asyncio.create_task(tx.execute(sql))


# MariaDB's sleep() itself notices after a while that nobody waits for it.
HARD_WORK = {"mysql": "select sum(a.seq * b.seq) from seq_1_to_50000 a, seq_1_to_50000 b"}

RUNS = [run_plainly, run_in_transaction, run_raw, run_statement, run_stream, run_shared]


@with_server
@pytest.mark.parametrize("run", RUNS)
async def test_the_server_stops_what_was_cancelled(backend: Backend, run: Any) -> None:
    async with watching(backend) as watcher, backend.database(max_size=2) as db:
        slow, nonce = marked(HARD_WORK.get(backend.name, backend.slow))
        task = asyncio.create_task(run(backend, db, slow))
        session = await watcher.until_running(nonce)
        await let_be_cancelled(task)
        assert db.pool.active_count == 0
        assert await db.fetch_val(backend.session) != session
        await watcher.until_stopped(nonce)
        await watcher.until_gone(session)
        await no_slot_is_lost(db)


@with_server
async def test_a_timeout_is_a_cancellation(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=1) as db:
        slow, nonce = marked(backend.slow)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await db.execute(slow)
        assert await db.fetch_val("select 1") == 1  # of the same task
        await watcher.until_stopped(nonce)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(db.execute(slow), 0.1)
        assert await db.fetch_val("select 1") == 1
        await watcher.until_stopped(nonce)


@with_server
async def test_a_cancelled_insert_is_not_seen(backend: Backend) -> None:
    async with (
        watching(backend) as watcher,
        backend.database(max_size=2) as db,
        backend.table(watcher.db) as table,
    ):

        async def work() -> None:
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                await db.execute(slow)

        slow, nonce = marked(backend.slow)
        task = asyncio.create_task(work())
        await watcher.until_running(nonce)
        await let_be_cancelled(task)
        await watcher.until_stopped(nonce)
        await eventually(lambda: db.pool.stats().destroying == 0)
        assert await watcher.rows(table) == []


# -- at given moments ----------------------------------------------------------------------------


async def cancel_when_sent(proxy: Proxy, task: "asyncio.Task[Any]") -> None:
    """In the middle of a round trip: the request was sent, the reply is on its way."""
    sent = proxy.client_chunks
    proxy.delay(0.3)
    try:
        await asyncio.to_thread(proxy.wait_for, lambda counts: counts.client_chunks > sent)
        await let_be_cancelled(task)
    finally:
        proxy.delay(0)


@with_server
async def test_cancelled_while_connecting(backend: Backend, proxy: Proxy) -> None:
    async with through(backend, proxy, max_size=1) as db:
        task = asyncio.create_task(db.fetch_val("select 1"))
        await cancel_when_sent(proxy, task)
        # The connection is made all the same, and is there for the next.
        assert await db.fetch_val("select 2") == 2
        assert db.pool.stats().created == 1
        await no_slot_is_lost(db)
        await eventually(lambda: proxy.open == 1)


async def test_cancelled_while_waiting_for_a_connection(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with db.connection():
            tasks = [asyncio.create_task(db.fetch_val("select 1")) for _ in range(5)]
            others = [asyncio.create_task(db.fetch_val("select 2")) for _ in range(5)]
            await eventually(lambda: db.pool.waiting_count == 10)
            for task in tasks:
                await let_be_cancelled(task)
            assert db.pool.waiting_count == 5
        assert await asyncio.gather(*others) == [2] * 5
        await no_slot_is_lost(db)


async def test_cancelled_when_just_handed_a_connection(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        for _ in range(5):
            async with db.connection():
                task = asyncio.create_task(db.fetch_val("select 1"))
                other = asyncio.create_task(db.fetch_val("select 2"))
                await eventually(lambda: db.pool.waiting_count == 2)
            await asyncio.sleep(0)
            task.cancel()
            assert isinstance(await outcome(task), asyncio.CancelledError | int)
            assert await other == 2
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("style", ["block", "begin"])
async def test_cancelled_during_begin(backend: Backend, proxy: Proxy, style: str) -> None:
    async with through(backend, proxy, max_size=1) as db:
        await db.fetch_val("select 1")

        async def work() -> None:
            if style == "begin":
                await db.begin()
            else:
                async with db.transaction():
                    pytest.fail("entered")

        async def swallowed() -> None:
            """The task goes on, and is in no transaction."""
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await work()
            assert not db.in_transaction
            assert db.pin_reason is None
            assert await db.fetch_val("select 2") == 2

        await cancel_when_sent(proxy, asyncio.create_task(work()))
        assert db.pool.active_count == 0
        await db.fetch_val("select 1")
        proxy.delay(0.3)
        task = asyncio.create_task(swallowed())
        await eventually(lambda: db.pool.active_count == 1)
        await eventually(lambda: db.pool.active_count == 0)
        proxy.delay(0)
        await task
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("style", ["block", "begin"])
async def test_cancelled_during_commit(backend: Backend, proxy: Proxy, style: str) -> None:
    async with (
        watching(backend) as watcher,
        through(backend, proxy, max_size=1) as db,
        backend.table(watcher.db) as table,
    ):
        ready, go = asyncio.Event(), asyncio.Event()

        async def fill() -> None:
            for number in (1, 2):
                await db.execute(f"insert into {table} values ({number}, 'a')")
            ready.set()
            await go.wait()

        async def work() -> None:
            if style == "begin":
                await db.begin()
                await fill()
                await db.commit()
            else:
                async with db.transaction():
                    await fill()

        task = asyncio.create_task(work())
        await ready.wait()
        go.set()
        await cancel_when_sent(proxy, task)
        await eventually(lambda: db.pool.stats().destroying == 0)
        assert await watcher.rows(table) in ([], [1, 2])
        await no_slot_is_lost(db)


@with_server
async def test_cancelled_during_rollback(backend: Backend, proxy: Proxy) -> None:
    async with (
        watching(backend) as watcher,
        through(backend, proxy, max_size=1) as db,
        backend.table(watcher.db) as table,
    ):
        ready, go = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                ready.set()
                await go.wait()
                raise KeyError

        task = asyncio.create_task(work())
        await ready.wait()
        go.set()
        await cancel_when_sent(proxy, task)
        await eventually(lambda: db.pool.stats().destroying == 0)
        assert await watcher.rows(table) == []
        await no_slot_is_lost(db)


@with_server
async def test_cancelled_during_a_savepoint(backend: Backend, proxy: Proxy) -> None:
    async with (
        watching(backend) as watcher,
        through(backend, proxy, max_size=1) as db,
        backend.table(watcher.db) as table,
    ):
        for moment in ("begin", "end"):
            with pytest.raises(cenote.TransactionLostError):
                async with db.transaction():
                    await db.execute(f"insert into {table} values (1, 'a')")
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.1):
                            if moment == "begin":
                                proxy.delay(0.3)
                            async with db.transaction():
                                proxy.delay(0.3)
                    proxy.delay(0)
                    with pytest.raises(cenote.TransactionLostError):
                        await db.execute(f"insert into {table} values (2, 'a')")
            assert await watcher.rows(table) == []
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("how", ["release", "leaving connection()", "end of the task"])
async def test_cancelled_during_reset(backend: Backend, proxy: Proxy, how: str) -> None:
    """It goes on without who waited for it, and what it cleaned is used again."""
    touch, query = backend.touches[0]
    async with through(backend, proxy, max_size=1) as db:
        before = await db.fetch_val(query)
        go = asyncio.Event()

        async def work() -> None:
            if how == "leaving connection()":
                async with db.connection() as raw:
                    await RAW[backend.name](raw, touch)
                    await go.wait()
                return
            await db.execute(touch)
            await go.wait()
            if how == "release":
                await db.release()

        task = asyncio.create_task(work())
        await eventually(lambda: db.pool.active_count == 1)
        assert await outcome(asyncio.wait_for(asyncio.shield(task), 0.05)) is not None
        if how == "end of the task":
            await let_be_cancelled(task)  # in go.wait(): the rest is the supervisor's
        else:
            go.set()
            await cancel_when_sent(proxy, task)
        assert await db.fetch_val(query) == before
        assert db.pool.stats().created == 1
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("inside", [False, True], ids=["own connection", "in a transaction"])
async def test_cancelled_during_a_fetch(backend: Backend, proxy: Proxy, inside: bool) -> None:
    options = {"max_size": 2, "destructor_timeout": 0.3}  # what was swallowed never comes
    async with watching(backend) as watcher, through(backend, proxy, **options) as db:
        rows, nonce = marked(MANY_ROWS[backend.name])
        started = asyncio.Event()

        async def read() -> None:
            async with db.iterate(rows) as stream:
                await anext(stream)
                started.set()
                proxy.black_hole(True)
                async for _ in stream:
                    pass

        async def work() -> None:
            if inside:
                async with db.transaction():
                    await read()
            else:
                await read()

        task = asyncio.create_task(work())
        await started.wait()
        await eventually(lambda: task.done() or blocked(task))
        assert not task.done()
        proxy.black_hole(False)
        await let_be_cancelled(task)
        assert db.pool.active_count == 0
        await watcher.until_stopped(nonce)
        await no_slot_is_lost(db)


def blocked(task: "asyncio.Task[Any]") -> bool:
    """In something that did not come in the last turns of the loop."""
    frames = task.get_stack(limit=1)
    return bool(frames) and task._fut_waiter is not None  # type: ignore[attr-defined]


@with_server
async def test_cancelled_in_many_rows(backend: Backend) -> None:
    async with watching(backend) as watcher, backend.database(max_size=2) as db:
        rows, nonce = marked(MANY_ROWS[backend.name])
        seen = 0

        async def read() -> None:
            nonlocal seen
            async for _ in db.iterate(rows):
                seen += 1
                if seen % 100 == 0:
                    await asyncio.sleep(0)

        for goal in (1, 150, 1000):
            seen = 0
            task = asyncio.create_task(read())
            while seen < goal:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await let_be_cancelled(task)
            assert db.pool.active_count == 0
            assert await db.fetch_val("select 5") == 5
        await watcher.until_stopped(nonce)
        await no_slot_is_lost(db)


@with_postgresql
@pytest.mark.parametrize("inside", [False, True])
async def test_cancelled_in_a_series(backend: Backend, inside: bool) -> None:
    """psycopg runs it in a pipeline, which it wants to end in order."""
    async with watching(backend) as watcher, backend.database(max_size=2) as db:
        series, nonce = marked("select pg_sleep(?)")

        async def work() -> None:
            if inside:
                async with db.transaction():
                    await db.execute_many(series, [[30.0], [30.0]])
            else:
                await db.execute_many(series, [[30.0], [30.0]])

        task = asyncio.create_task(work())
        await watcher.until_running(nonce)
        await let_be_cancelled(task)
        assert await db.fetch_val("select 5") == 5
        await watcher.until_stopped(nonce)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await work()
        await no_slot_is_lost(db)


@with_server
async def test_cancelled_while_another_uses_the_same_transaction(backend: Backend) -> None:
    """Whoever is cancelled while it waits for its turn disturbs nobody."""
    async with (
        watching(backend) as watcher,
        backend.database(max_size=1) as db,
        backend.table(watcher.db) as table,
    ):
        async with db.transaction() as tx:
            busy, nonce = marked(backend.slow.replace("30", "0.3"))
            first = asyncio.create_task(tx.fetch_all(busy))
            await watcher.until_running(nonce)
            second = asyncio.create_task(tx.execute(f"insert into {table} values (1, 'a')"))
            await asyncio.sleep(0)
            await let_be_cancelled(second)
            assert len(await first) == 1
            await tx.execute(f"insert into {table} values (2, 'a')")
        assert await watcher.rows(table) == [2]
        await no_slot_is_lost(db)


# -- SQLite --------------------------------------------------------------------------------------


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

    execute = sqlite._execute
    monkeypatch.setattr(sqlite, "_execute", late)
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


async def test_all_connections_cancelled_at_once(backend: Backend) -> None:
    async with backend.database(max_size=4) as db:
        await all_at_once(db, 4)
        for _ in range(3):
            tasks = [asyncio.create_task(db.execute(backend.slow)) for _ in range(4)]
            await eventually(lambda: db.pool.active_count == 4)
            for task in tasks:
                task.cancel()
            for task in tasks:
                assert isinstance(await outcome(task), asyncio.CancelledError)
            assert db.pool.active_count == 0
        await no_slot_is_lost(db)


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
@pytest.mark.parametrize("ends", [[], [1], [1, 1], [ValueError("over")]])
async def test_what_psycopg_waits_for_is_closed_when_it_is_left(
    backend: Backend, ends: list[Any]
) -> None:
    """Its pipelines end in order: they wait again, or fail if the connection is gone by then."""

    def steps() -> Iterator[int]:
        try:
            yield 1  # wait until something can be read
        finally:
            for end in ends:
                if isinstance(end, Exception):
                    raise end
                yield end

    async with backend.database() as db, db.connection() as c:
        raw, waited = c.__wrapped__, steps()
        raw.hurried = True
        task = asyncio.create_task(raw.wait(waited))
        await asyncio.sleep(0)
        await let_be_cancelled(task)
        assert inspect.getgeneratorstate(waited) == inspect.GEN_CLOSED
        raw.hurried, raw.left = False, None
