"""A server that takes no more connections: statements wait, and no breaker opens."""

import asyncio
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import outcome, with_mysql, with_postgresql, with_server
from tests.support.kit import RecordingStrategy
from tests.support.limited import LIMIT, limited
from tests.support.servers import PASSWORD
from tests.support.waiting import WAIT, eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


@with_server
async def test_statements_wait_for_connections_that_come_back(backend: Backend) -> None:
    strategy = RecordingStrategy()
    async with (
        limited(backend) as url,
        backend.database(url, max_size=10, strategy=strategy) as db,
    ):
        held = asyncio.Event()

        async def hold() -> None:
            async with db.connection():
                await held.wait()

        holders = [asyncio.create_task(hold()) for _ in range(LIMIT)]
        await eventually(lambda: db.pool.active_count == LIMIT)
        others = [asyncio.create_task(db.fetch_val(f"select {n}")) for n in range(5)]
        await eventually(lambda: db.pool.stats().waiting == 5 and not db.pool.stats().creating)
        held.set()
        assert await asyncio.gather(*others) == [*range(5)]
        await asyncio.gather(*holders)
        assert db.pool.count <= LIMIT
        assert [each for each in strategy.reports if each != "success"] == []


@with_server
async def test_the_timeout_names_the_limit(backend: Backend) -> None:
    async with (
        limited(backend) as url,
        backend.database(url, max_size=LIMIT) as first,
        backend.database(url, name="shop") as second,
    ):
        async with first.connection():
            other = asyncio.create_task(in_a_block(first))
            await eventually(lambda: first.pool.active_count == LIMIT)
            for patience in (0.3, 3.0, WAIT):  # until the server's answer has come in time
                error = await outcome(second.pool.acquire(timeout=patience))
                assert isinstance(error, cenote.AcquireTimeoutError)
                if error.__cause__ is not None:
                    break
            assert "the backend is full (BackendFullError: database shop: the server" in str(error)
            assert isinstance(error.__cause__, cenote.BackendFullError)
            assert error.__cause__.__cause__ is not None  # the driver's own
            assert PASSWORD not in str(error)
            assert second.pool.state is cenote.CircuitState.ACTIVE
        other.cancel()
        await asyncio.wait([other])
        await first.close()
        second.pool.release(await second.pool.acquire(timeout=WAIT))


async def in_a_block(db: Any) -> None:
    async with db.connection():
        await asyncio.Event().wait()


@with_mysql
async def test_the_numbers_of_a_full_mysql(backend: Backend) -> None:
    from asyncmy.errors import OperationalError

    driver = cenote.Database(backend.url)._driver
    assert driver.is_full(OperationalError(1040, "Too many connections"))
    assert driver.is_full(OperationalError(1203, "User app already has more than ..."))
    assert not driver.is_full(OperationalError(1226, "... the 'max_queries_per_hour' resource"))
    assert not driver.is_full(OperationalError(1045, "Access denied"))


@with_postgresql
async def test_the_texts_of_a_full_postgresql(backend: Backend) -> None:
    driver = cenote.Database(backend.url)._driver
    for text in (
        "FATAL:  sorry, too many clients already",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "no more connections allowed (max_client_conn)",
    ):
        assert driver.is_full(OSError(text))
    assert not driver.is_full(OSError("password authentication failed"))
