"""A database that was closed is opened again: in one loop, in others, in threads; drains."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cenote
from cenote.extras.asgi import lifespan
from cenote.testing import settle
from tests.support.backends import Backend
from tests.support.kit import outcome, start
from tests.support.waiting import WAIT, eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_it_serves_again_after_each_open(backend: Backend) -> None:
    db = cenote.Database(backend.url)
    for _ in range(3):
        await db.open()
        assert not db.closed
        assert await db.fetch_val("select 1") == 1
        pool = db.pool
        await db.close()
        assert db.closed
        assert pool.closed
        for use in (db.execute, db.fetch_val, db.prepare):
            with pytest.raises(cenote.PoolClosedError, match=r"Call open\(\)"):
                await use("select 1")


async def test_blocks_and_lifespans_open_it_again(backend: Backend) -> None:
    db = cenote.Database(backend.url)
    for _ in range(2):
        async with db:
            assert await db.fetch_val("select 1") == 1
        async with lifespan(db, drain=5)(None):
            assert await db.fetch_val("select 1") == 1
        assert db.closed


@pytest.mark.own_loop
@pytest.mark.parametrize("in_thread", [False, True])
def test_each_start_may_have_another_loop(backend: Backend, in_thread: bool) -> None:
    db = cenote.Database(backend.url)

    async def program() -> None:
        async with db:
            assert await db.fetch_val("select 1") == 1
            async with db.transaction():
                assert await db.fetch_val("select 2") == 2

    for _ in range(3):
        run(program, in_thread)
    assert db.closed
    run(db.open, in_thread)
    assert not db.closed
    run(db.close, in_thread)


def run(work: Callable[[], Awaitable[Any]], in_thread: bool) -> None:
    async def main() -> None:
        await work()

    if not in_thread:
        asyncio.run(main())
        return
    errors: list[BaseException] = []

    def target() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert errors == []


@pytest.mark.own_loop
def test_one_that_runs_elsewhere_can_be_used_again(backend: Backend) -> None:
    """Closed in one loop, opened in another: both serve again."""
    db = cenote.Database(backend.url)
    orders: dict[str, threading.Event] = {
        name: threading.Event() for name in ("used", "reopened", "done")
    }
    seen: list[Any] = []

    async def other() -> None:
        seen.append(await db.fetch_val("select 1"))
        orders["used"].set()
        await asyncio.to_thread(orders["reopened"].wait, WAIT)
        seen.append(await db.fetch_val("select 2"))
        orders["done"].set()

    async def main() -> None:
        await db.open()
        await asyncio.to_thread(orders["used"].wait, WAIT)
        await db.close()
        assert isinstance(await outcome(db.execute("select 1")), cenote.PoolClosedError)
        await db.open()
        orders["reopened"].set()
        assert await asyncio.to_thread(orders["done"].wait, WAIT)
        await db.close()

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    thread.start()
    asyncio.run(main())
    thread.join(WAIT)
    assert seen == [1, 2]


async def test_a_failed_open_leaves_it_closed(backend: Backend) -> None:
    if backend.embedded:
        pytest.skip("SQLite has no password")
    given = ["", "wr0ng"]
    password = cenote.Database(backend.url)._password
    assert password is not None
    given[0] = password.reveal()
    async with backend.database(password=lambda: given[0]) as db:
        await db.open()
        await db.close()
        given.reverse()
        with pytest.raises(cenote.ConnectError):
            await db.open()
        assert db.closed
        with pytest.raises(cenote.PoolClosedError):
            await db.fetch_val("select 1")
        given.reverse()
        await db.open()
        assert await db.fetch_val("select 1") == 1


async def test_open_waits_for_the_end_of_closing(backend: Backend) -> None:
    async with backend.database() as db:
        await db.open()
        before = db.pool
        await asyncio.gather(db.close(), db.open())
        assert db.pool is not before
        assert before.closed
        assert before.count == 0
        assert await db.fetch_val("select 1") == 1


async def test_a_task_of_before_gets_the_closed_error(backend: Backend) -> None:
    async with backend.database() as db:
        closed = asyncio.Event()
        begun = asyncio.Event()

        async def work() -> None:
            async with db.transaction(read_only=True):
                await db.fetch_val("select 1")
                begun.set()
                await closed.wait()
                await db.fetch_val("select 1")

        task = asyncio.create_task(work())
        await begun.wait()
        await db.close()
        await db.open()
        closed.set()
        assert isinstance(await outcome(task), cenote.PoolError)
        assert await db.fetch_val("select 1") == 1


async def test_memory_is_empty_when_opened_again() -> None:
    db = cenote.Database("sqlite:///:memory:")
    for _ in range(2):
        async with db:
            await db.execute("create table t (a int)")
            assert await db.fetch_val("select count(*) from t") == 0


# -- close(drain=) -------------------------------------------------------------------------------


async def test_a_drain_lets_transactions_end(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        going, go_on = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                going.set()
                await go_on.wait()
                await db.execute(f"insert into {table} values (2, 'b')")

        task = start(work())
        await going.wait()
        pool = db.pool
        closing = asyncio.create_task(db.close(drain=WAIT))
        await eventually(lambda: repr(pool).find("draining") > 0)
        assert not db.closed
        remedy = r"is draining .* Call open\(\) of the Database to use it again\.$"
        with pytest.raises(cenote.PoolClosedError, match=remedy):
            await asyncio.create_task(db.fetch_val("select 1"))
        go_on.set()
        await task
        await closing
        assert db.closed
        assert pool.count == 0
        await db.open()
        assert await db.fetch_val(f"select count(*) from {table}") == 2


@pytest.mark.parametrize("patience", [0, 0.05])
async def test_a_drain_ends_after_its_time(backend: Backend, patience: float) -> None:
    async with backend.database() as db:
        begun = asyncio.Event()

        async def hold() -> None:
            async with db.connection():
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await begun.wait()
        await db.close(drain=patience)
        assert db.closed
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.own_loop
def test_a_drain_goes_on_in_several_loops(backend: Backend) -> None:
    db = cenote.Database(backend.url)
    begun, draining = threading.Event(), threading.Event()
    seen: list[Any] = []

    async def other() -> None:
        async with db.transaction(read_only=True):
            seen.append(await db.fetch_val("select 1"))
            begun.set()
            await asyncio.to_thread(draining.wait, WAIT)
            seen.append(await db.fetch_val("select 2"))
        await asyncio.sleep(0.1)

    async def main() -> None:
        await db.open()
        await asyncio.to_thread(begun.wait, WAIT)
        pools = [each.pool for each in db._loop_databases.values()]
        closing = asyncio.create_task(db.close(drain=WAIT))
        await eventually(lambda: any("draining" in repr(pool) for pool in pools))
        draining.set()
        await closing
        assert all(pool.closed for pool in pools)

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    thread.start()
    asyncio.run(main())
    thread.join(WAIT)
    assert seen == [1, 2]
    assert db.closed


@pytest.mark.parametrize(("drain", "error"), [(-1, ValueError), ("5", TypeError)])
async def test_a_bad_drain_is_refused(drain: Any, error: type[Exception]) -> None:
    db = cenote.Database("sqlite:///:memory:")
    with pytest.raises(error, match="drain"):
        await db.close(drain=drain)
    await settle()
    assert not db.closed
    await db.close()
