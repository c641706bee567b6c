"""Opening a database: wrong settings, the first connection, cancellation."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import socket
import threading
from typing import Any

import pytest

import cenote
from cenote.extras.asgi import lifespan
from tests.support.backends import Backend, check_branch
from tests.support.held import loop_database_of
from tests.support.servers import PASSWORD
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


SIZES: list[dict[str, Any]] = [{"min_size": 2, "max_size": 4}, {}, {"pooled": False}]


@pytest.mark.parametrize("options", SIZES, ids=["two", "bare", "unpooled"])
async def test_open_shows_wrong_settings(backend: Backend, options: dict[str, Any]) -> None:
    if backend.embedded:
        url = "sqlite:////nowhere/at/all.db"
    else:
        url = backend.server.tcp_url(password="wr0ng-pass").replace(
            backend.server.tcp_url().split(":")[0], backend.url.split(":")[0], 1
        )
        url += "?sslmode=disable"  # cut off while it asks for TLS, asyncpg forgets a future
    await refused(url, **options)


@pytest.mark.parametrize("way", ["open", "block", "lifespan"])
async def test_open_again_with_the_right_password(backend: Backend, way: str) -> None:
    if backend.embedded:
        return
    given = ["wr0ng-pass"]
    async with backend.database(password=lambda: given[-1], url=without_password(backend)) as db:
        with pytest.raises(Exception, match=r"(?i)password|denied") as caught:
            if way == "open":
                await db.open()
            elif way == "block":
                await cenote.Database.__aenter__(db)
            else:
                other = cenote.Database(without_password(backend), password="wr0ng-pass")
                async with lifespan(other)(None):
                    pytest.fail("it has started")
        assert isinstance(caught.value, cenote.ConnectError)
        given.append(PASSWORD)
        await db.open()
        assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 1


def without_password(backend: Backend) -> str:
    scheme, rest = backend.url.split("://")
    who, place = rest.split("@")
    return f"{scheme}://{who.split(':')[0]}@{place}"


async def test_open_when_nobody_listens(backend: Backend, unused_port: int) -> None:
    if backend.embedded:
        return
    for options in SIZES:
        await refused(backend.url_through("127.0.0.1", unused_port), **options)


@pytest.fixture
def unused_port() -> Any:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        yield bound.getsockname()[1]


KEPT_OR_NOT = [
    {},
    {"min_size": 3},
    {"pooled": False},
    {"pooled": False, "persistent": True},
]


@pytest.mark.parametrize("options", KEPT_OR_NOT, ids=["bare", "three", "unpooled", "persistent"])
async def test_open_makes_a_connection(backend: Backend, options: dict[str, Any]) -> None:
    """Which is idle then, and serves the first statement."""
    async with backend.database(**options) as db:
        count = options.get("min_size", 1)
        await db.open()
        pool = loop_database_of(db).pool
        assert (pool.count, pool.idle_count) == (count, count)
        await db.open()
        assert await db.fetch_val("select 1") == 1
        assert pool.stats().created == count
    async with backend.database(**options) as db, db:
        assert loop_database_of(db).pool.idle_count == count


async def test_several_open_at_once_make_one_connection(backend: Backend) -> None:
    async with backend.database() as db:
        await asyncio.gather(*(db.open() for _ in range(5)))
        assert loop_database_of(db).pool.stats().created == 1


async def test_open_while_another_task_connects(backend: Backend) -> None:
    async with backend.database() as db:
        value, _ = await asyncio.gather(db.fetch_val("select 1"), db.open())
        assert value == 1
        assert db.pool.stats().created == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_cancelled_open_leaves_nothing_behind(backend: Backend, turns: int) -> None:
    """And may be called again; it is cancelled after so many turns of the loop."""
    # While it asks for TLS, asyncpg itself forgets a future that has failed.
    url = backend.url if backend.embedded else f"{backend.url}?sslmode=disable"
    async with backend.database(url) as db:
        task = asyncio.create_task(db.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            await eventually(lambda: not db.pool.count and not loop_database_of(db).connections)
        await db.open()
        assert db.pool.idle_count == 1


async def refused(url: str, **options: Any) -> None:
    threads = {*threading.enumerate()}
    db = cenote.Database(url, strategy=None, **options)
    for _ in range(2):
        with pytest.raises(Exception) as caught:
            await db.open()
        assert isinstance(caught.value, cenote.ConnectError)
        assert "wr0ng-pass" not in f"{caught.value} {caught.value!r}"
        assert loop_database_of(db).pool.count == 0
        assert not loop_database_of(db).connections
    with pytest.raises(type(caught.value)):
        await db.fetch_val("select 1")
    with pytest.raises(type(caught.value)):
        await db.open()
    loop_db = loop_database_of(db)
    await db.close()
    check_branch(loop_db)
    await eventually(lambda: {*threading.enumerate()} <= threads)
