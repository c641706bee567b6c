"""Connecting that is cancelled at any moment, as `create_timeout` does: nothing stays behind."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cenote
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import (
    FACTOR,
    RAW,
    across_connections,
    marked,
    outcome,
    until,
    watching,
    with_server,
)
from tests.support.held import greeting, loop_database_of
from tests.support.waiting import WAIT, eventually
from tests.support.wire import through

pytestmark = across_connections

MOMENTS = 60  # turns of the loop, of which connecting by TCP takes some
SPREAD_MOMENTS = 20 * FACTOR
FORGOTTEN = "never retrieved: unexpected connection_lost() call"


@pytest.fixture
def complaints(backend: Backend) -> Iterator[list[str]]:
    """What is reported to the event loop; none at the end."""
    found: list[str] = []
    yield found
    if backend.name == "asyncpg":  # which forgets a future of its own, in one of these moments
        found = [each for each in found if FORGOTTEN not in each]
    assert found == []


def listen_to_loop(found: list[str]) -> None:
    def complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        found.append(f"{context['message']}: {context.get('exception')}")

    asyncio.get_running_loop().set_exception_handler(complain)


@with_server
async def test_connecting_may_be_cancelled_at_any_moment(
    backend: Backend, proxy: FaultProxy, complaints: list[str]
) -> None:
    """The server accepts, and says nothing."""
    listen_to_loop(complaints)
    async with through(backend, proxy, max_size=1) as db:
        proxy.black_hole(True)
        for turns in range(MOMENTS):
            task = asyncio.create_task(db._driver.connect(db._password))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            async with asyncio.timeout(WAIT):
                await asyncio.wait([task])
            assert task.cancelled(), turns
            del task
            gc.collect()
        await eventually(lambda: proxy.open == 0)


def files_open(path: Path) -> int:
    """How often this process has opened a file of the database."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(link).startswith(str(path))
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def threads_of(path: Path) -> int:
    return sum(path.name in each.name for each in threading.enumerate())


async def count_others(backend: Backend) -> int:
    """How many sessions the server has of others, such as a pooler's, with the one that asks."""
    if backend.embedded:
        return 0
    async with backend.database(max_size=1) as watcher:
        return int(await watcher.fetch_val(backend.sessions))


async def only_ours_are_open(backend: Backend, ours: int, others: int) -> None:
    """Wait until the server has so many sessions; SQLite: so many threads, and no files without."""
    if backend.embedded:
        path = Path(backend.url.removeprefix("sqlite:///"))
        await eventually(lambda: threads_of(path) == ours)
        await eventually(lambda: ours or not files_open(path))
        return
    async with backend.database(max_size=1) as watcher:

        async def look() -> bool:
            return bool(await watcher.fetch_val(backend.sessions) <= ours + others)

        await until(look)


async def time_to_connect(hooks: Any) -> float:
    """Seconds that connecting takes here, about."""
    begun = time.monotonic()
    await hooks.disconnect(await hooks.connect())
    return time.monotonic() - begun


def spread(seconds: float, count: int) -> list[float]:
    """Moments at even distances, the first of them at once: that one is always early enough."""
    return [seconds * at / count for at in range(count)]


async def test_a_server_that_answers_keeps_no_session(
    backend: Backend, complaints: list[str]
) -> None:
    """Cancelled at many moments, from the first step to the last, on_connect included."""
    listen_to_loop(complaints)
    others = await count_others(backend)
    greet, _, _ = greeting(backend)
    cancelled = 0
    async with backend.database(max_size=1, on_connect=greet) as db:
        await db.open()
        hooks = loop_database_of(db).hooks
        usual = await time_to_connect(hooks)
        for moment in spread(usual, SPREAD_MOMENTS):
            task = asyncio.create_task(hooks.connect())
            await asyncio.sleep(moment)
            task.cancel()
            async with asyncio.timeout(WAIT):
                await asyncio.wait([task])
            if task.cancelled():
                cancelled += 1
            else:
                await hooks.disconnect(task.result())
            del task
            gc.collect()
        assert len(hooks.connections) == 1
        await only_ours_are_open(backend, 1, others)
    await only_ours_are_open(backend, 0, others)
    assert cancelled


async def test_the_create_timeout_leaves_no_session(
    backend: Backend, complaints: list[str]
) -> None:
    """It is over at many moments; who waited for a connection gets one, or the error."""
    listen_to_loop(complaints)
    others = await count_others(backend)
    async with backend.database(max_size=1) as db:
        await db.open()
        usual = await time_to_connect(loop_database_of(db).hooks)
    refused = 0
    for moment in spread(usual, SPREAD_MOMENTS // 2):
        options = {"create_timeout": moment or 1e-6, "strategy": None}
        async with backend.database(max_size=2, **options) as db:
            answer = await outcome(db.fetch_val("select 1"))
            refused += isinstance(answer, cenote.ConnectError)
            assert answer == 1 or "create_timeout" in str(answer), answer
        gc.collect()
    await only_ours_are_open(backend, 0, others)
    assert refused


@with_server
async def test_what_on_connect_was_doing_is_stopped(
    backend: Backend, complaints: list[str]
) -> None:
    listen_to_loop(complaints)
    others = await count_others(backend)
    slow, nonce = marked(backend.slow)

    async def greet(raw: Any) -> None:
        await RAW[backend.name](raw, slow)

    async with (
        watching(backend) as watcher,
        backend.database(on_connect=greet, create_timeout=60.0, strategy=None) as db,
    ):
        work = asyncio.create_task(db.execute("select 1"))
        await watcher.until_running(nonce)
        (cut,) = loop_database_of(db).pool._engine.creations.tasks.values()
        cut.cut(TimeoutError("as create_timeout does"))
        with pytest.raises(TimeoutError):
            await work
        await watcher.until_stopped(nonce)
    await only_ours_are_open(backend, 0, others)


@with_server
async def test_an_on_connect_that_gets_no_answer(
    backend: Backend, proxy: FaultProxy, complaints: list[str]
) -> None:
    listen_to_loop(complaints)

    async def greet(raw: Any) -> None:
        proxy.black_hole(True)
        await RAW[backend.name](raw, "select 1")

    options: dict[str, Any] = {"create_timeout": 0.2, "destructor_timeout": 0.2, "strategy": None}
    async with through(backend, proxy, on_connect=greet, **options) as db:
        async with asyncio.timeout(WAIT):
            with pytest.raises(cenote.ConnectError, match="create_timeout"):
                await db.execute("select 1")
            hooks = loop_database_of(db).hooks
            await db.close()
        await eventually(lambda: not hooks.connections)
    await eventually(lambda: proxy.open == 0)
