"""The timeout of a statement when the server does not answer, and what is told of it."""

import asyncio
import pickle
import sqlite3
from typing import Any

import pytest

import cenote
from cenote.sql import time_limits
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import (
    across_connections,
    watching,
    with_server,
    with_sqlite,
)
from tests.support.waiting import WAIT, eventually

pytestmark = across_connections

SHORT = 0.2  # seconds, after which every slow statement is stopped


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is not waited for so long."""
    monkeypatch.setattr(time_limits, "STOP_WITHIN", 0.3)


# -- black hole ----------------------------------------------------------------------------------


@with_server
@pytest.mark.usefixtures("soon")
async def test_black_hole_costs_the_connection(backend: Backend, proxy: FaultProxy) -> None:
    url = backend.url_through(proxy.host, proxy.port)
    strategy = cenote.ConsecutiveFailures(failure_threshold=1, recovery_timeout=0.0)
    async with backend.database(
        url, min_size=1, max_size=1, destructor_timeout=0.1, strategy=strategy
    ) as db:
        await db.open()
        session = await db.fetch_val(backend.session)
        proxy.black_hole(True)
        with pytest.raises(cenote.StatementTimeoutError, match="connection was replaced") as caught:
            await db.fetch_val("select 1", timeout=SHORT)
        assert not caught.value.connection_kept
        assert db.pool.state is cenote.CircuitState.INACTIVE  # a lost connection is a failure
        proxy.black_hole(False)
        assert await db.fetch_val(backend.session) != session


@with_server
@pytest.mark.usefixtures("soon")
async def test_black_hole_loses_the_transaction(backend: Backend, proxy: FaultProxy) -> None:
    url = backend.url_through(proxy.host, proxy.port)
    async with backend.database(url, max_size=2, destructor_timeout=0.1, strategy=None) as db:
        with pytest.raises(cenote.TransactionLostError):  # noqa: PT012
            async with db.transaction() as tx:
                await tx.execute("select 1")
                proxy.black_hole(True)
                with pytest.raises(cenote.StatementTimeoutError, match="transaction is lost"):
                    await tx.execute("select 2", timeout=SHORT)
                proxy.black_hole(False)
                await tx.execute("select 3")
        assert await db.fetch_val("select 4") == 4


@with_server
async def test_server_that_cannot_be_told(backend: Backend, proxy: FaultProxy) -> None:
    url = backend.url_through(proxy.host, proxy.port)
    async with backend.database(url, min_size=1, max_size=1, strategy=None) as db:
        await db.open()
        proxy.refuse(True)
        try:
            with pytest.raises(cenote.StatementTimeoutError, match="could not be told") as caught:
                await db.fetch_val(backend.slow, timeout=SHORT)
        finally:
            proxy.refuse(False)
        assert caught.value.__cause__ is not None
        assert not caught.value.connection_kept
        assert await db.fetch_val("select 1") == 1


@with_server
@pytest.mark.usefixtures("soon")
async def test_server_that_dies_meanwhile_is_a_lost_connection(
    backend: Backend, proxy: FaultProxy
) -> None:
    url = backend.url_through(proxy.host, proxy.port)
    async with (
        watching(backend) as watcher,
        backend.database(url, min_size=1, max_size=1, strategy=None) as db,
    ):
        await db.open()
        slow = f"{backend.slow} /* nonce_8 */"
        task = asyncio.create_task(db.fetch_val(slow, timeout=WAIT))
        await watcher.until_running("nonce_8")
        proxy.reset()
        with pytest.raises(Exception) as caught:
            await task
        assert not isinstance(caught.value, cenote.StatementTimeoutError)
        assert await db.fetch_val("select 1") == 1


# -- the pool, the breaker, observers ------------------------------------------------------------


async def test_breaker_and_pool_take_no_notice(backend: Backend) -> None:
    strategy = cenote.ConsecutiveFailures(failure_threshold=1)
    async with backend.database(min_size=1, max_size=1, strategy=strategy) as db:
        await db.open()
        with pytest.raises(cenote.StatementTimeoutError):
            await db.fetch_val(backend.slow, timeout=SHORT)
        assert db.pool.state is cenote.CircuitState.ACTIVE
        assert not db.pool.stats().destroyed


async def test_observers_see_the_error(backend: Backend) -> None:
    seen: list[tuple[str, str, BaseException | None]] = []
    async with backend.database(min_size=1, max_size=1) as db:
        await db.open()
        db.observe(lambda word, text: lambda error: seen.append((word, text, error)))
        with pytest.raises(cenote.StatementTimeoutError) as caught:
            await db.fetch_val(backend.slow, timeout=SHORT)
        with pytest.raises(cenote.StatementTimeoutError) as second:
            async with db.transaction() as tx:
                await tx.execute(backend.slow, timeout=SHORT)
    errors = [error for *_, error in seen if error is not None]
    assert errors == [caught.value, second.value]


async def test_wait_for_a_connection_is_bounded(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, db.transaction():

        async def other() -> None:
            with pytest.raises(cenote.AcquireTimeoutError, match=r"within 0\.2 s") as caught:
                await db.fetch_val("select 1", timeout=SHORT)
            assert caught.value.holders

        await asyncio.create_task(other())


async def test_acquire_timeout_holds_if_it_is_shorter(backend: Backend) -> None:
    async with backend.database(max_size=1, acquire_timeout=SHORT) as db, db.transaction():

        async def other() -> None:
            with pytest.raises(cenote.AcquireTimeoutError, match=r"within 0\.2 s"):
                await db.fetch_val("select 1", timeout=WAIT)

        await asyncio.create_task(other())


# -- cancellation --------------------------------------------------------------------------------


async def test_asyncio_timeout_comes_first(backend: Backend) -> None:
    async with backend.database(min_size=1, max_size=1) as db:
        await db.open()
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(SHORT):
                await db.fetch_val(backend.slow, timeout=WAIT)
        assert not isinstance(caught.value, cenote.PoolError)
        assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().destroyed


async def test_asyncio_timeout_that_comes_later_is_not_touched(backend: Backend) -> None:
    async with backend.database(min_size=1, max_size=1) as db:
        await db.open()
        async with asyncio.timeout(WAIT) as outer:
            with pytest.raises(cenote.StatementTimeoutError):
                await db.fetch_val(backend.slow, timeout=SHORT)
        assert not outer.expired()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        assert await db.fetch_val("select 1") == 1


@with_server
async def test_cancelled_while_the_server_is_told(backend: Backend, proxy: FaultProxy) -> None:
    url = backend.url_through(proxy.host, proxy.port)
    async with backend.database(
        url, min_size=1, max_size=1, destructor_timeout=0.1, strategy=None
    ) as db:
        await db.open()
        proxy.black_hole(True)
        task = asyncio.create_task(db.fetch_val("select 1", timeout=SHORT))
        loop_db = db._loop_databases[asyncio.get_running_loop()]
        await eventually(lambda: loop_db.orders)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.black_hole(False)
        assert await db.fetch_val("select 2") == 2


# -- SQLite --------------------------------------------------------------------------------------


@with_sqlite
async def test_wait_for_a_lock_of_sqlite_is_bounded(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db, "id {int}") as table:
        other = sqlite3.connect(backend.url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            other.execute("begin immediate")
            with pytest.raises(cenote.StatementTimeoutError) as caught:
                await db.execute(f"insert into {table} values (1)", timeout=SHORT)
            assert caught.value.connection_kept
            other.execute("rollback")
        finally:
            other.close()
        assert await db.execute(f"insert into {table} values (1)") == 1
        assert await db.fetch_val("pragma busy_timeout") == 5000


async def test_stream_is_stopped_before_its_first_rows(backend: Backend) -> None:
    """Its time ends between the start of the statement and the first wait for rows."""
    loop = asyncio.get_running_loop()
    async with backend.database(max_size=1) as db:

        def end(error: BaseException | None) -> None:
            while loop.time() < over:  # nothing else runs in this loop meanwhile
                pass

        unobserve = db.observe(lambda operation, text: end)
        over = loop.time() + SHORT + 0.05
        with pytest.raises(cenote.StatementTimeoutError, match="the server has stopped it"):
            await db.iterate(backend.slow, timeout=SHORT).start()
        unobserve()
        assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 1


@with_sqlite
async def test_open_stream_of_sqlite_is_not_hit(backend: Backend) -> None:
    count = "with recursive c(x) as (select 1 union all select x + 1 from c limit 500) select x"
    async with backend.database() as db, db.transaction(read_only=True) as tx:
        rows = []
        async for row in tx.iterate(f"{count} from c"):
            if not rows:
                with pytest.raises(cenote.StatementTimeoutError):
                    await tx.fetch_val(backend.slow, timeout=SHORT)
                assert await tx.fetch_val("select 2") == 2
            rows.append(row[0])
        assert rows == [*range(1, 501)]


# -- arguments and texts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, ValueError), (float("nan"), ValueError), (float("inf"), ValueError), ("1", TypeError),
     (True, TypeError)],
)  # fmt: skip
async def test_bad_timeouts_are_refused_by_name(value: Any, error: type[Exception]) -> None:
    async with cenote.Database("sqlite:///:memory:") as db, db.transaction() as tx:
        statement = await db.prepare("select 1")
        for each in (db, tx):
            for verb in ("execute", "fetch_all", "fetch_one", "fetch_val", "prepare"):
                with pytest.raises(error, match="timeout"):
                    await getattr(each, verb)("select 1", timeout=value)
            with pytest.raises(error, match="timeout"):
                await each.execute_many("select ?", [], timeout=value)
            with pytest.raises(error, match="timeout"):
                each.iterate("select 1", timeout=value)
        for verb in ("execute", "fetch_all", "fetch_one", "fetch_val"):
            with pytest.raises(error, match="timeout"):
                await getattr(statement, verb)(timeout=value)
        with pytest.raises(error, match="timeout"):
            await statement.execute_many([], timeout=value)
        with pytest.raises(error, match="timeout"):
            statement.iterate(timeout=value)


async def test_nothing_is_sent_without_any_time() -> None:
    async with cenote.Database("sqlite:///:memory:") as db:
        await db.execute("create table t (id int)")
        with pytest.raises(cenote.StatementTimeoutError, match="was not sent"):
            await db.execute("insert into t values (1)", timeout=0)
        assert await db.fetch_val("select count(*) from t") == 0


async def test_error_says_what_and_what_now(backend: Backend) -> None:
    async with backend.database(min_size=1, max_size=1) as db:
        await db.open()
        with pytest.raises(cenote.StatementTimeoutError) as caught:
            await db.fetch_val(f"{backend.slow}   /* {'long' * 30} */", timeout=SHORT)
    error = caught.value
    assert error.statement.startswith(backend.slow[:40])
    assert len(error.statement) == 60
    assert error.timeout == SHORT
    assert str(error) == (
        f"{error.statement!r} took longer than its timeout of 0.2 s: the server has stopped it, "
        f"and the connection was kept. Raise timeout=, or make the statement faster."
    )
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.statement, again.timeout, again.connection_kept) == (error.statement, SHORT, True)


async def test_parameters_are_not_in_the_error(backend: Backend) -> None:
    async with backend.database(min_size=1, max_size=1) as db:
        await db.open()
        slow = f"{backend.slow.replace('select', 'select ? as secret,', 1)}"
        if backend.name == "sqlite":
            slow = f"{backend.slow} where x <> ?"
        parameter = "999999999"
        with pytest.raises(cenote.StatementTimeoutError) as caught:
            await db.fetch_all(f"/* p */ {slow}", [parameter], timeout=SHORT)
    assert parameter not in str(caught.value)
