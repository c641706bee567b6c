"""The short version of `make chaos`."""

import asyncio
import subprocess
import sys

import pytest

import cenote
from cenote import breaker
from cenote.testing import FaultProxy
from tests.exhibits import chaos, poison
from tests.support.servers import MariaDBServer, PostgresServer, RedisServer

pytestmark = pytest.mark.once

SECONDS = 8


@pytest.mark.exhibit
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "mysql"])
def test_everything_breaks_and_both_ledgers_agree(driver: str) -> None:
    kind = MariaDBServer if driver == "mysql" else PostgresServer
    if reason := kind.missing():
        pytest.skip(reason)
    pytest.importorskip("asyncmy" if driver == "mysql" else driver)
    # In a process of its own: what is left behind there is counted.
    done = subprocess.run(
        [sys.executable, "-m", "tests.exhibits.chaos", "--driver", driver,
         "--seconds", str(SECONDS), "--tasks", "200"],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert " operations" in done.stdout
    assert "committed" in done.stdout


@pytest.mark.exhibit
def test_a_dead_server_is_left_alone_by_the_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("asyncpg")
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    seconds = 0.0
    monkeypatch.setattr(breaker, "now", lambda: seconds)

    async def ask(url: str, proxy: FaultProxy) -> None:
        nonlocal seconds
        db = cenote.Database(url, max_size=20)
        assert await chaos.asked_in_vain(db, proxy) == 100
        await db.close()
        strategy = cenote.ConsecutiveFailures(5, recovery_timeout=30.0)
        db = cenote.Database(url, max_size=20, strategy=strategy)
        assert 5 <= await chaos.asked_in_vain(db, proxy) <= 5 + 20  # some were under way
        assert await chaos.asked_in_vain(db, proxy) == 0
        for _ in range(2):
            seconds += 1000.0  # longer than any recovery takes
            assert await chaos.asked_in_vain(db, proxy) == 1  # a probe
            assert await chaos.asked_in_vain(db, proxy) == 0
        await db.close()

    with chaos.dead_server() as (url, proxy):
        asyncio.run(ask(url, proxy))


@pytest.mark.real_time("talks to a real server")
async def test_no_answer_to_the_question_of_another(redis_server: RedisServer) -> None:
    counts = await poison.poison(
        redis_server.host, redis_server.port, operations=5_000, tasks=50, connections=5, seed=1
    )
    assert counts["wrong"] == counts["slots lost"] == 0
    assert counts["right"] + counts["cancelled"] == 5_000
    assert counts["right"] > 2_000
    assert counts["cancelled"] > 200


@pytest.mark.real_time("talks to a real server")
async def test_a_poisoned_connection_would_be_seen(redis_server: RedisServer) -> None:
    """Only if the test can fail does it prove something: here cancelled connections are reused."""
    counts = await poison.poison(
        redis_server.host,
        redis_server.port,
        operations=2_000,
        tasks=20,
        connections=5,
        seed=1,
        reuse_after_cancel=True,
    )
    assert counts["wrong"] > 0
