"""Cancellation at given moments: the next task gets a clean connection."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import cenote
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import (
    MANY_ROWS,
    RAW,
    across_connections,
    let_be_cancelled,
    marked,
    no_slot_is_lost,
    outcome,
    watching,
    with_postgresql,
    with_server,
)
from tests.support.held import Gate, within
from tests.support.waiting import eventually, timeout_at
from tests.support.wire import reply_is_held, through

pytestmark = across_connections


async def cancel_when_sent(proxy: FaultProxy, task: "asyncio.Task[Any]") -> None:
    """In the middle of a round trip: the request was sent, the reply is on its way."""
    proxy.hold_replies(True)
    try:
        await reply_is_held(proxy)
        task.cancel()
    finally:
        proxy.hold_replies(False)
    assert isinstance(await within(task), asyncio.CancelledError)


@with_server
async def test_a_cancelled_connect_leaves_no_connection(
    backend: Backend, proxy: FaultProxy
) -> None:
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


# psycopg sends BEGIN with the first statement: see test_deferred_begin.py.
@pytest.mark.parametrize("backend", ["asyncpg", "mysql"], indirect=True)
@pytest.mark.parametrize("style", ["block", "begin"])
async def test_a_cancelled_begin_opens_no_transaction(
    backend: Backend, proxy: FaultProxy, style: str
) -> None:
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
            proxy.hold_replies(True)
            with pytest.raises(TimeoutError):
                async with timeout_at(lambda: reply_is_held(proxy)):
                    await work()
            proxy.hold_replies(False)
            assert not db.in_transaction
            assert db.pin_reason is None
            assert await db.fetch_val("select 2") == 2

        await cancel_when_sent(proxy, asyncio.create_task(work()))
        assert db.pool.active_count == 0
        await db.fetch_val("select 1")
        await asyncio.create_task(swallowed())
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("style", ["block", "begin"])
async def test_a_cancelled_commit_is_all_or_nothing(
    backend: Backend, proxy: FaultProxy, style: str
) -> None:
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
async def test_a_cancelled_rollback_still_rolls_back(backend: Backend, proxy: FaultProxy) -> None:
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
async def test_cancelled_during_a_savepoint(backend: Backend, proxy: FaultProxy) -> None:
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
                        async with timeout_at(lambda: reply_is_held(proxy)):
                            if moment == "begin":
                                proxy.hold_replies(True)
                            async with db.transaction():
                                if backend.name == "psycopg":  # which sends SAVEPOINT with it
                                    await db.fetch_val("select 1")
                                proxy.hold_replies(True)
                    proxy.hold_replies(False)
                    with pytest.raises(cenote.TransactionLostError):
                        await db.execute(f"insert into {table} values (2, 'a')")
            assert await watcher.rows(table) == []
        await no_slot_is_lost(db)


@with_server
@pytest.mark.parametrize("how", ["release", "leaving connection()", "end of the task"])
async def test_a_cancelled_reset_still_cleans_the_connection(
    backend: Backend, proxy: FaultProxy, how: str
) -> None:
    """It goes on without who waited for it, and what it cleaned is used again."""
    touch, query = backend.touches[0]
    async with through(backend, proxy, max_size=1) as db:
        before = await db.fetch_val(query)
        ready, go = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            if how == "leaving connection()":
                async with db.connection() as raw:
                    await RAW[backend.name](raw, touch)
                    ready.set()
                    await go.wait()
                return
            await db.execute(touch)
            ready.set()
            await go.wait()
            if how == "release":
                await db.release()

        task = asyncio.create_task(work())
        await ready.wait()
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
async def test_cancelled_during_a_fetch(backend: Backend, proxy: FaultProxy, inside: bool) -> None:
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
            async with timeout_at(lambda: watcher.until_running(nonce)):
                await work()
        await no_slot_is_lost(db)


@with_server
async def test_cancelled_while_another_uses_the_same_transaction(backend: Backend) -> None:
    """Whoever is cancelled while it waits for its turn disturbs nobody."""
    gate = Gate(backend)
    async with watching(backend) as watcher, gate.database(max_size=1) as (db, table):
        async with db.transaction() as tx:
            busy, nonce = marked(gate.sql)
            first = asyncio.create_task(tx.execute(busy))
            await watcher.until_running(nonce)
            second = asyncio.create_task(tx.execute(f"insert into {table} values (2, 'a')"))
            await asyncio.sleep(0)
            await let_be_cancelled(second)
            gate.open()
            assert await within(first) == 1
            await tx.execute(f"insert into {table} values (3, 'a')")
        assert await watcher.rows(table) == [1, 3]
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
        raw.prompt = True
        task = asyncio.create_task(raw.wait(waited))
        await asyncio.sleep(0)
        await let_be_cancelled(task)
        assert inspect.getgeneratorstate(waited) == inspect.GEN_CLOSED
        raw.prompt, raw.left = False, None
