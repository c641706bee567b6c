"""Cancellation at random moments and in mid-query: the next task gets its own answer."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import (
    FACTOR,
    RAW,
    across_connections,
    all_at_once,
    let_be_cancelled,
    marked,
    no_slot_is_lost,
    outcome,
    watching,
    with_server,
)
from tests.support.waiting import eventually

pytestmark = across_connections

CANCELLATIONS = 60 * FACTOR
SEED = 4711


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


@pytest.mark.timeout(120 + 2 * CANCELLATIONS)
async def test_cancelled_at_random_moments(backend: Backend) -> None:
    chance = random.Random(SEED)
    numbers = count(1000)
    asking: dict[str, asyncio.Task[Any]] = {}
    cancelled = answered = 0  # the first: only those that had a connection
    threads = threading.active_count()
    loop = asyncio.get_running_loop()

    def cancel_soon(event: cenote.PoolEvent) -> None:
        """From the moment it has a connection; at once, in the middle, too late, or not at all."""
        if event.kind == "acquired" and (task := asking.pop(str(event.task), None)) is not None:
            delay = chance.random() ** 2 * 0.004
            if chance.random() < 0.9:  # a slow machine would answer none of them
                loop.call_later(delay, task.cancel)

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
