"""The circuit breaker that a database has unless another one, or none, is given."""

import asyncio
import socket
from itertools import count
from typing import Any

import pytest

import cenote
from tests.support import backends
from tests.support.backends import Backend
from tests.support.faults import no_slot_is_lost, outcome, with_server
from tests.support.kit import recorded
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_a_database_has_a_breaker_by_itself(backend: Backend) -> None:
    for options in ({}, {"pooled": False}):
        async with backend.database(**options) as db:
            await db.open()
            strategy = db._loop_databases[asyncio.get_running_loop()].pool.strategy
            assert isinstance(strategy, cenote.ConsecutiveFailures)
            assert strategy.failure_threshold == 5
            assert strategy.recovery_timeout == 1.0
            assert strategy.success_threshold == 1
            assert strategy.max_recovery_timeout == 15.0


async def test_another_strategy_or_none_is_kept(backend: Backend) -> None:
    mine = cenote.FailureRate()
    async with backend.database(strategy=mine) as db:
        assert db.pool.strategy is mine
    async with backend.database(strategy=None) as db:
        assert db.pool.strategy is None


@pytest.mark.parametrize("given", [True, False])
def test_every_loop_has_a_breaker_of_its_own(given: bool) -> None:
    mine = cenote.ConsecutiveFailures()
    options: dict[str, Any] = {"strategy": mine} if given else {}
    db = cenote.Database("sqlite:///:memory:", **options)

    async def strategy() -> object:
        assert db.pool is not None
        return db.pool.strategy

    first, second = asyncio.run(strategy()), asyncio.run(strategy())
    assert (first is second) == given
    assert (first is mine) == given
    asyncio.run(db.close())


@with_server
async def test_it_opens_after_five_failures(backend: Backend) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = backend.url_through("127.0.0.1", bound.getsockname()[1])
        async with backend.database(url, name="shop") as db:
            for _ in range(5):
                assert isinstance(await outcome(db.execute("select 1")), cenote.ConnectError)
            error = await outcome(db.execute("select 1"))
            assert isinstance(error, cenote.ServiceUnavailableError)
            assert "last failure: ConnectError: database shop: cannot connect to" in str(error)
            assert "Start the server, or correct host and port in the URL" in str(error)


@with_server
async def test_a_wrong_password_opens_it_and_is_named(backend: Backend) -> None:
    async with backend.database(password="wr0ng-pass") as db:
        for _ in range(5):
            assert isinstance(await outcome(db.execute("select 1")), cenote.ConnectError)
        error = await outcome(db.execute("select 1"))
        assert isinstance(error, cenote.ServiceUnavailableError)
        assert "user 'app' is refused. Check the user, the password" in str(error)
        assert "wr0ng-pass" not in str(error)


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "mysql"])
async def test_it_recovers_from_a_restart_under_load(
    name: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("asyncmy" if name == "mysql" else name)
    server = request.getfixturevalue("own_mariadb" if name == "mysql" else "own_postgres")
    own: Backend = getattr(backends, name)(server)
    async with own.database(max_size=4) as db:
        events = recorded(db.pool)
        over = False
        failures: list[BaseException] = []
        numbers = count()

        async def work() -> None:
            while not over:
                number = next(numbers)
                result = await outcome(db.fetch_val(f"select {number}"))
                if result != number:
                    failures.append(result)
                    await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(work()) for _ in range(10)]
        await eventually(lambda: db.pool.stats().released > 100)
        await asyncio.to_thread(server.kill)
        await eventually(lambda: db.pool.state is cenote.CircuitState.INACTIVE)
        await asyncio.to_thread(server.start)
        await eventually(lambda: db.pool.state is cenote.CircuitState.ACTIVE)
        released = db.pool.stats().released
        await eventually(lambda: db.pool.stats().released > released + 100)
        over = True
        await asyncio.gather(*tasks)
        await no_slot_is_lost(db)
    for error in failures:
        assert cenote.is_disconnect(error) or isinstance(error, cenote.ServiceUnavailableError)
    states = [str(event.reason) for event in events if event.kind == "state_changed"]
    assert states[:2] == ["INACTIVE", "RECOVERING"]
    assert states[-1] == "ACTIVE"


async def test_after_an_outage_connections_are_made_four_at_a_time(backend: Backend) -> None:
    down, doors, most, served = True, asyncio.Event(), 0, 0
    under_way: set[object] = set()

    async def on_connect(connection: object) -> None:
        nonlocal most
        if down:
            raise RuntimeError("not yet")
        under_way.add(connection)
        most = max(most, len(under_way))
        await doors.wait()
        under_way.remove(connection)

    async def hold() -> None:
        nonlocal served
        async with db.transaction(read_only=True):
            served += 1
            await eventually(lambda: served == 9)

    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=0.0, success_threshold=1)
    async with backend.database(max_size=10, strategy=strategy, on_connect=on_connect) as db:
        assert isinstance(await outcome(db.fetch_val("select 1")), RuntimeError)
        assert db.pool.state is cenote.CircuitState.INACTIVE
        down = False
        doors.set()
        assert await db.fetch_val("select 1") == 1  # the probe
        assert db.pool.state is cenote.CircuitState.ACTIVE
        doors.clear()
        tasks = [asyncio.create_task(hold()) for _ in range(9)]
        try:
            await eventually(lambda: len(under_way) >= 4 and served)
            assert (db.pool.stats().creating, db.pool.waiting_count, served) == (4, 8, 1)
        finally:
            doors.set()
        await asyncio.gather(*tasks)
        assert (most, db.pool.stats().created) == (4, 9)
