"""Options of the pool that a database passes on."""

import asyncio
import sys

import pytest

import cenote
from cenote import observe
from tests.support.backends import Backend
from tests.support.held import session_number, sessions_end
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_max_uses_replaces_a_used_connection(backend: Backend) -> None:
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
        number = await session_number(backend, db)
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


def test_making_a_database_announces_no_pool() -> None:
    seen: list[object] = []
    unfollow = observe.follow(seen.append)
    try:
        cenote.Database("sqlite:///:memory:", max_size=3)
    finally:
        unfollow()
    assert seen == []


@pytest.mark.parametrize(("options", "most"), [({}, 4), ({"max_creating": 9}, 9)])
def test_a_database_makes_four_connections_at_once(options: dict[str, int], most: int) -> None:
    assert cenote.Database("sqlite:///x.db", **options)._pool_options["max_creating"] == most
