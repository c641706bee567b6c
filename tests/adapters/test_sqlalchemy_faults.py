"""Cancellation at every suspension, connections that die, and servers that go away, below engines
with `CenotePool`."""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from sqlalchemy import event, exc, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession

import cenote
from cenote.testing import FaultProxy, check_ledger
from tests.adapters.conftest import MakeEngine
from tests.support.cancelling import cancelled_at
from tests.support.servers import PostgresServer
from tests.support.waiting import WAIT, eventually

pytestmark = pytest.mark.real_time("talks to real servers")

LOST = (exc.DBAPIError, OSError, cenote.PoolError)


async def write_two(engine: Any, number: int) -> None:
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text("insert into faults values (:n)"), {"n": number})
        await session.execute(text("insert into faults values (:n)"), {"n": number})


async def interrupted(number: int, work: Coroutine[Any, Any, None]) -> bool:
    """Cancel it at its nth suspension; return whether it came so far."""
    task = asyncio.create_task(cancelled_at(number, work))
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError | bool), outcome
    return outcome is not False


@asynccontextmanager
async def table(engine: Any) -> Any:
    async with engine.begin() as connection:
        await connection.execute(text("drop table if exists faults"))
        await connection.execute(text("create table faults (n integer)"))
    yield
    async with engine.begin() as connection:
        await connection.execute(text("drop table faults"))


@pytest.mark.parametrize("warm", [True, False])
async def test_cancelled_at_every_suspension_nothing_is_left(
    any_url: str, make_engine: MakeEngine, warm: bool
) -> None:
    engine = make_engine(any_url, pool_size=1, max_overflow=0, pool_timeout=WAIT)
    async with table(engine):
        for number in range(1, 1000):
            if not warm:
                await engine.dispose()
            goes_on = await interrupted(number, write_two(engine, number))
            async with engine.connect() as connection:
                query = text("select count(*) from faults where n = :n")
                assert await connection.scalar(query, {"n": number}) in (0, 2)
            assert engine.pool.pool.active_count == 0
            if not goes_on:
                break
    assert number > 3
    inner = engine.pool.pool
    await engine.dispose()
    check_ledger(inner)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_cancelled_replacement_of_the_dead_frees_its_place(
    make_engine: MakeEngine, postgres_server: PostgresServer, driver: str
) -> None:
    async def ask() -> None:
        async with engine.connect() as connection:
            await connection.scalar(text("select 1"))

    expect_fault("unexpected connection_lost() call")
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        url = through(postgres_server, proxy, driver)
        engine = make_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True)
        number, goes_on = 0, True
        while goes_on:
            async with asyncio.timeout(WAIT):
                await ask()
            proxy.reset()
            number += 1
            goes_on = await interrupted(number, ask())
            assert engine.pool.pool.active_count == 0
        assert number > 3
        inner = engine.pool.pool
        await engine.dispose()
        check_ledger(inner)


async def test_raising_listener_of_invalidate_frees_the_place(
    make_engine: MakeEngine, postgres_server: PostgresServer
) -> None:
    def listener(*_: Any) -> None:
        raise ValueError("listener")

    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        url = through(postgres_server, proxy)
        engine = make_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True)
        event.listen(engine.sync_engine, "invalidate", listener)
        async with engine.connect():
            pass
        proxy.reset()
        with pytest.raises(ValueError, match="listener"):
            await engine.connect()
        assert engine.pool.pool.active_count == 0
        async with asyncio.timeout(WAIT), engine.connect() as connection:
            assert await connection.scalar(text("select 1")) == 1
        await engine.dispose()


async def test_raising_listener_of_checkin_frees_the_place(make_engine: MakeEngine) -> None:
    def listener(*_: Any) -> None:
        raise ValueError("listener")

    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=WAIT)
    event.listen(engine.sync_engine, "checkin", listener)
    for _ in range(2):
        connection = await engine.connect()
        with pytest.raises(ValueError, match="listener"):
            await connection.close()
        assert engine.pool.pool.active_count == 0
    event.remove(engine.sync_engine, "checkin", listener)
    inner = engine.pool.pool
    await engine.dispose()
    check_ledger(inner)


async def test_cancelled_reset_of_the_isolation_level_frees_the_place(
    any_url: str, make_engine: MakeEngine
) -> None:
    async def ask() -> None:
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="SERIALIZABLE")
            await connection.scalar(text("select 1"))

    engine = make_engine(any_url, pool_size=1, max_overflow=0, pool_timeout=WAIT)
    number, goes_on = 0, True
    async with engine.connect() as connection:
        usual = await connection.get_isolation_level()
    while goes_on:
        number += 1
        goes_on = await interrupted(number, ask())
        assert engine.pool.pool.active_count == 0
        async with engine.connect() as connection:
            assert await connection.get_isolation_level() == usual
    assert number > 3
    inner = engine.pool.pool
    await engine.dispose()
    check_ledger(inner)


async def test_cancelled_connect_goes_on_for_the_next(
    make_engine: MakeEngine, postgres_server: PostgresServer
) -> None:
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        engine = make_engine(through(postgres_server, proxy), pool_size=1, max_overflow=0)
        proxy.hold_replies()
        task = asyncio.create_task(engine.connect().start())
        await eventually(lambda: proxy.client_bytes)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.pool.pool.stats().creating == 1
        proxy.hold_replies(False)
        async with engine.connect() as connection:
            assert await connection.scalar(text("select 1")) == 1
        assert engine.pool.pool.stats().created == 1
        await engine.dispose()


async def test_connection_lost_in_use_is_a_failure_and_replaced(
    make_engine: MakeEngine, postgres_server: PostgresServer
) -> None:
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        strategy = cenote.ConsecutiveFailures(1, recovery_timeout=60)
        options = {"strategy": strategy}
        engine = make_engine(through(postgres_server, proxy), cenote_options=options)
        async with engine.connect() as connection:
            await connection.scalar(text("select 1"))
            proxy.reset()
            with pytest.raises(exc.DBAPIError) as caught:
                await connection.scalar(text("select 1"))
            assert caught.value.connection_invalidated
        assert engine.pool.pool.state is cenote.CircuitState.INACTIVE
        engine.pool.pool.activate()
        async with engine.connect() as connection:
            assert await connection.scalar(text("select 1")) == 1
        await engine.dispose()


async def test_service_goes_on_when_the_server_is_back(make_engine: MakeEngine) -> None:
    strategy = cenote.ConsecutiveFailures(3, recovery_timeout=0.05, success_threshold=1)
    with PostgresServer() as server:
        url = server.tcp_url().replace("postgresql://", "postgresql+asyncpg://")
        engine = make_engine(
            url, pool_size=3, max_overflow=0, pool_pre_ping=True,
            cenote_options={"strategy": strategy, "min_size": 2},
        )  # fmt: skip

        async def ask() -> Any:
            async with engine.connect() as connection:
                return await connection.scalar(text("select 1"))

        assert await ask() == 1
        server.kill()
        error: Exception = exc.DBAPIError("", (), Exception())
        while not isinstance(error, cenote.ServiceUnavailableError):
            with pytest.raises(LOST) as caught:
                await ask()
            error = caught.value
        server.start()
        async with asyncio.timeout(WAIT):
            while True:
                try:
                    assert await ask() == 1
                    break
                except LOST:
                    await asyncio.sleep(0.01)
        await eventually(lambda: engine.pool.pool.count >= 2)
        inner = engine.pool.pool
        await engine.dispose()
        check_ledger(inner)


async def test_many_tasks_leave_each_other_alone(any_url: str, make_engine: MakeEngine) -> None:
    chance = random.Random(7)
    engine = make_engine(any_url, pool_size=3, max_overflow=2, pool_timeout=WAIT)

    async def work(number: int) -> None:
        try:
            async with (
                asyncio.timeout(chance.choice([0.0, 0.005, 0.02, WAIT, WAIT])),
                AsyncSession(engine) as session,
                session.begin(),
            ):
                assert not session.in_nested_transaction()
                assert await session.scalar(text(f"select {number}")) == number
                if chance.random() < 0.2:
                    raise ZeroDivisionError
        except (TimeoutError, ZeroDivisionError):
            pass

    async with asyncio.timeout(WAIT):
        await asyncio.gather(*map(work, range(100)))
    pool = engine.pool.pool
    assert pool.active_count == 0
    await engine.dispose()
    check_ledger(pool)


def test_engine_of_a_module_works_in_loop_after_loop(
    make_engine: MakeEngine, postgres_server: PostgresServer
) -> None:
    url = postgres_server.tcp_url().replace("postgresql://", "postgresql+asyncpg://")
    engine = make_engine(url)

    async def use() -> None:
        async with engine.connect() as connection:
            assert await connection.scalar(text("select 1")) == 1
        await engine.dispose()

    for _ in range(3):
        asyncio.run(use())


def expect_fault(text: str) -> None:
    """Let the loop report this: asyncpg leaves it behind when SQLAlchemy cuts off its close."""
    loop = asyncio.get_running_loop()
    report: Any = loop.get_exception_handler()

    def note(loop: asyncio.AbstractEventLoop, fault: dict[str, Any]) -> None:
        if str(fault.get("exception")) != text:
            report(loop, fault)

    loop.set_exception_handler(note)


def through(server: PostgresServer, proxy: FaultProxy, driver: str = "asyncpg") -> str:
    url = make_url(server.tcp_url()).set(
        drivername=f"postgresql+{driver}", host=proxy.host, port=proxy.port
    )
    return url.render_as_string(hide_password=False)
