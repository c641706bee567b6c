"""`CenotePool` under engines of SQLAlchemy: options, counts, errors, events."""

import asyncio
import contextvars
import gc
import logging
import re
import sys
from inspect import signature
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa
from sqlalchemy import event, exc, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

import cenote
from cenote.adapters.sqlalchemy import CenotePool
from cenote.testing import check_ledger, settle
from tests.adapters.conftest import MakeEngine
from tests.support.servers import PostgresServer
from tests.support.waiting import eventually

HERE = __file__


def pool_of(engine: Any) -> CenotePool:
    assert isinstance(engine.pool, CenotePool)
    return engine.pool


def line() -> int:
    """The line of the call."""
    return sys._getframe(1).f_lineno


async def test_statements_run_on_every_driver(any_url: str, make_engine: MakeEngine) -> None:
    engine = make_engine(any_url, pool_size=2, max_overflow=0)
    async with engine.begin() as connection:
        assert await connection.scalar(text("select 40 + 2")) == 42
    async with AsyncSession(engine) as session:
        assert await session.scalar(text("select 1")) == 1
    pool = pool_of(engine).pool
    assert (pool.idle_count, pool.active_count, pool.stats().created) == (1, 0, 1)
    await engine.dispose()
    check_ledger(pool)


def test_the_pool_is_one_of_sqlalchemy_with_its_arguments(make_engine: MakeEngine) -> None:
    assert isinstance(make_engine().pool, AsyncAdaptedQueuePool)
    theirs, ours = signature(AsyncAdaptedQueuePool).parameters, signature(CenotePool).parameters
    assert set(ours) == {*theirs, "cenote_options"}
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default)


async def test_holder_names_the_line_of_the_program(make_engine: MakeEngine) -> None:
    engine = make_engine()
    async with engine.connect():
        where = line() - 1
        (holder,) = pool_of(engine).pool.holders()
        assert (holder.file, holder.line) == (HERE, where)
    async with AsyncSession(engine) as session:
        await session.execute(text("select 1"))
        where = line() - 1
        (holder,) = pool_of(engine).pool.holders()
        assert (holder.file, holder.line) == (HERE, where)
    await engine.dispose()


async def test_timeout_is_that_of_sqlalchemy_and_names_holders(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=0)
    async with engine.connect():
        where = line() - 1
        with pytest.raises(exc.TimeoutError, match="limit of size 1 overflow 0") as caught:
            await engine.connect()
        assert caught.value.code == "3o7r"
        assert isinstance(caught.value.__cause__, cenote.AcquireTimeoutError)
        assert f"{HERE}:{where}" in str(caught.value)
    await engine.dispose()


async def test_timeout_of_zero_connects_where_there_is_room(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=0)
    async with engine.connect() as connection:
        assert await connection.scalar(text("select 1")) == 1
    await engine.dispose()


async def test_task_that_waits_for_itself_is_a_deadlock(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=None)
    async with engine.connect():
        with pytest.raises(cenote.PoolDeadlockError):
            await engine.connect()
    await engine.dispose()


async def test_overflow_is_closed_when_it_comes_back(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=2, max_overflow=2)
    pool = pool_of(engine)
    connections = [await engine.connect() for _ in range(4)]
    assert (pool.checkedout(), pool.overflow(), pool.checkedin()) == (4, 2, 0)
    assert pool._overflow == 2
    for connection in connections:
        await connection.close()
    await eventually(lambda: pool.pool.occupied == 2)
    assert (pool.checkedout(), pool.overflow(), pool.checkedin()) == (0, 0, 2)
    assert pool.pool.stats().destroyed == {"worn_out": 2}
    await engine.dispose()


async def test_pool_without_a_limit_grows_as_needed(make_engine: MakeEngine) -> None:
    for options in ({"pool_size": 0}, {"pool_size": 1, "max_overflow": -1}):
        engine = make_engine(**options)
        connections = [await engine.connect() for _ in range(20)]
        assert pool_of(engine).checkedout() == 20
        for connection in connections:
            await connection.close()
        kept = 20 if options["pool_size"] == 0 else 1
        await eventually(lambda: pool_of(engine).pool.occupied == kept)  # noqa: B023
        await engine.dispose()


async def test_status_has_the_words_of_sqlalchemy(make_engine: MakeEngine) -> None:
    ours = make_engine(pool_size=3)
    theirs = make_engine(pool_size=3, poolclass=AsyncAdaptedQueuePool)
    async with ours.connect(), theirs.connect():
        assert ours.pool.status() == theirs.pool.status()
    assert ours.pool.status() == theirs.pool.status()
    await ours.dispose()
    await theirs.dispose()
    assert ours.pool.status() == theirs.pool.status()


@pytest.mark.parametrize("lifo", [False, True])
async def test_order_of_reuse_is_as_asked_for(make_engine: MakeEngine, lifo: bool) -> None:
    engine = make_engine(pool_size=2, pool_use_lifo=lifo)
    one, two = await engine.connect(), await engine.connect()
    first = (await one.get_raw_connection()).driver_connection
    last = (await two.get_raw_connection()).driver_connection
    await one.close()
    await two.close()
    async with engine.connect() as again:
        driver = (await again.get_raw_connection()).driver_connection
        assert driver is (last if lifo else first)
    await engine.dispose()


async def test_recycled_connection_is_made_anew_in_place(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, pool_recycle=60)
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        first, record = raw.driver_connection, raw._connection_record
    record.starttime -= 61
    async with engine.connect() as connection:
        assert (await connection.get_raw_connection()).driver_connection is not first
    assert pool_of(engine).pool.stats().created == 1
    await engine.dispose()


async def test_ping_replaces_what_died_while_idle(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, pool_pre_ping=True)
    async with engine.connect() as connection:
        first = (await connection.get_raw_connection()).driver_connection
    await first.close()
    async with engine.connect() as connection:
        assert await connection.scalar(text("select 1")) == 1
    await engine.dispose()


@pytest.mark.parametrize(("reset", "left"), [("rollback", 0), ("commit", 1), (None, 1)])
async def test_reset_on_return_is_as_asked_for(
    make_engine: MakeEngine, reset: str | None, left: int
) -> None:
    engine = make_engine(pool_size=1, pool_reset_on_return=reset)
    async with engine.begin() as connection:
        await connection.execute(text("create table t (x integer)"))

    def write() -> None:
        raw = engine.sync_engine.raw_connection()
        cursor = raw.cursor()
        cursor.execute("insert into t values (1)")
        cursor.close()
        raw.close()

    await sa.util.greenlet_spawn(write)
    async with engine.connect() as connection:
        assert await connection.scalar(text("select count(*) from t")) == left
    await engine.dispose()


async def test_events_come_as_from_its_own_pool(make_engine: MakeEngine) -> None:
    async def play(poolclass: Any) -> list[str]:
        engine = make_engine(pool_size=1, max_overflow=0, poolclass=poolclass)
        seen: list[str] = []
        for name in (
            "first_connect", "connect", "checkout", "checkin", "reset", "invalidate",
            "soft_invalidate", "close", "detach", "close_detached",
        ):  # fmt: skip

            def listener(*_: Any, name: str = name) -> None:
                seen.append(name)

            event.listen(engine.sync_engine, name, listener)
        for end in ("close", "invalidate", "detach", "close"):
            connection = await engine.connect()
            await connection.execute(text("select 1"))
            if end == "invalidate":
                await connection.invalidate()
            elif end == "detach":
                raw = await connection.get_raw_connection()
                raw.detach()
            await connection.close()
            await settle()
            seen.append("|")
        await engine.dispose()
        return seen

    assert await play(CenotePool) == await play(AsyncAdaptedQueuePool)


async def test_echo_logs_what_its_own_pool_logs(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(poolclass: Any, **options: Any) -> list[str]:
        engine = make_engine(poolclass=poolclass, pool_logging_name="shop", **options)
        caplog.clear()
        async with engine.connect():
            pass
        await engine.dispose()
        return [
            re.sub("<.*>", "", record.getMessage())
            for record in caplog.records
            if record.name.startswith("sqlalchemy.pool.") and record.name.endswith(".shop")
        ]

    theirs = await play(AsyncAdaptedQueuePool, echo_pool="debug")
    assert len(theirs) == 7
    assert await play(CenotePool, echo_pool="debug") == theirs
    with caplog.at_level(logging.DEBUG, "sqlalchemy.pool"):
        assert await play(CenotePool) == theirs


async def test_dispose_raises_what_a_listener_raised(make_engine: MakeEngine) -> None:
    engine = make_engine()
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection

    @event.listens_for(engine.sync_engine, "close")
    def fail(*_: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await engine.dispose()
    await driver.close()


async def test_invalidated_connection_frees_its_place(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=5)
    connection = await engine.connect()
    waiting = asyncio.create_task(engine.connect().start())
    await settle()
    await connection.invalidate()
    await connection.close()
    other = await waiting
    assert await other.scalar(text("select 1")) == 1
    await other.close()
    assert pool_of(engine).pool.stats().created == 2
    await engine.dispose()


async def test_connection_without_a_reference_frees_its_place(
    make_engine: MakeEngine, postgres_server: PostgresServer
) -> None:
    url = postgres_server.tcp_url().replace("postgresql://", "postgresql+asyncpg://")
    engine = make_engine(url, pool_size=1, max_overflow=0)
    kept: list[Any] = [await engine.connect()]
    with pytest.warns(exc.SAWarning, match="non-checked-in connection"):
        kept.clear()
    gc.collect()
    async with engine.connect() as connection:
        assert await connection.scalar(text("select 1")) == 1
    await engine.dispose()


async def test_error_of_the_database_opens_the_breaker(make_engine: MakeEngine) -> None:
    strategy = cenote.ConsecutiveFailures(2, recovery_timeout=60)
    engine = make_engine(
        "postgresql+asyncpg://app@127.0.0.1:1/app", cenote_options={"strategy": strategy}
    )
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await engine.connect()
    with pytest.raises(cenote.ServiceUnavailableError) as caught:
        await engine.connect()
    assert caught.value.retry_after is not None
    await engine.dispose()


async def test_statement_that_fails_keeps_the_connection(make_engine: MakeEngine) -> None:
    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=60)
    engine = make_engine(cenote_options={"strategy": strategy})
    async with engine.connect() as connection:
        with pytest.raises(exc.OperationalError):
            await connection.execute(text("select * from nothing"))
    assert pool_of(engine).pool.state is cenote.CircuitState.ACTIVE
    assert pool_of(engine).checkedin() == 1
    await engine.dispose()


async def test_minimum_is_filled_behind_the_first(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=3, cenote_options={"min_size": 3, "name": "shop"})
    async with engine.connect():
        await eventually(lambda: pool_of(engine).pool.count == 3)
    assert pool_of(engine).pool.name == "shop"
    await engine.dispose()


async def test_every_engine_has_a_pool_of_its_own(make_engine: MakeEngine) -> None:
    one, two = make_engine(pool_logging_name="one"), make_engine()
    async with one.connect(), two.connect():
        assert pool_of(one).pool is not pool_of(two).pool
    assert (pool_of(one).pool.name, pool_of(two).pool.name) == ("one", "sqlite+aiosqlite")
    await one.dispose()
    await two.dispose()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"max_size": 3}, TypeError, "give SQLAlchemy's pool_size and max_overflow"),
        ({"lifo": True}, TypeError, "give SQLAlchemy's pool_use_lifo"),
        ({"destructor": print}, TypeError, "cenote_options has no option 'destructor'"),
        ({"min_siz": 3}, TypeError, "min_size"),
        ({"min_size": 6}, ValueError, "min_size must be pool_size .5. at most, not 6"),
        ({"max_idle": -1}, ValueError, "max_idle must be 0 or more seconds"),
        ({"strategy": cenote.ConsecutiveFailures}, TypeError, "write strategy="),
        ("name", TypeError, "cenote_options must be a mapping"),
    ],
)
def test_wrong_options_are_refused_with_the_right_one(
    options: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        create_async_engine(
            "sqlite+aiosqlite:///x.db", poolclass=CenotePool, cenote_options=options
        )


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"pool_size": -1}, ValueError, "pool_size must be 0 or more, not -1"),
        ({"pool_size": "5"}, TypeError, "pool_size must be a whole number, not str"),
        ({"max_overflow": None}, TypeError, "max_overflow must be a whole number"),
        ({"pool_timeout": "5"}, TypeError, "pool_timeout must be a number, not str"),
    ],
)
def test_wrong_sizes_are_refused_with_the_engine(
    make_engine: MakeEngine, options: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make_engine(**options)


async def test_timeout_below_zero_never_queues(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=-1)
    async with engine.connect():
        with pytest.raises(exc.TimeoutError):
            await engine.connect()
    await engine.dispose()


def test_engines_without_asyncio_refuse_the_pool() -> None:
    with pytest.raises(exc.ArgumentError, match="CenotePool cannot be used with non-asyncio"):
        sa.create_engine("sqlite:///x.db", poolclass=CenotePool)


async def test_engine_does_not_connect_in_the_context_of_a_request(
    make_engine: MakeEngine,
) -> None:
    request = contextvars.ContextVar("request", default="none")
    seen = []
    engine = make_engine(pool_size=1)
    event.listen(engine.sync_engine, "connect", lambda *_: seen.append(request.get()))
    request.set("first")
    async with engine.connect():
        pass
    await engine.dispose()
    assert seen == ["none"]
