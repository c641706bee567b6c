"""Connections that were idle are pinged before they are used."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import with_server, with_sqlite
from tests.support.waiting import eventually
from tests.support.wire import on_the_wire

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


async def idle_before(awaitable: Awaitable[Any]) -> Any:
    """A moment later, also by a clock that counts milliseconds."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    await eventually(lambda: loop.time() > now)
    return await awaitable


@with_server
async def test_an_idle_connection_is_pinged_first(backend: Backend) -> None:
    async def first(**options: Any) -> int:
        async with on_the_wire(backend, **options) as (db, trips):
            return int(await trips(db.fetch_val("select 1")))

    fresh = await first()
    assert await first(ping_after_idle=0) == fresh  # what was made this moment is not pinged
    async with on_the_wire(backend, ping_after_idle=0) as (db, trips):
        await trips(db.fetch_val("select 1"))
        assert await trips(*(idle_before(db.fetch_val("select 1")) for _ in range(10))) == 20

        async def transaction() -> None:
            async with db.transaction():
                for _ in range(3):
                    await db.fetch_val("select 1")

        # One ping before the first, none in between; with psycopg BEGIN travels with the first.
        assert await trips(idle_before(transaction())) == 6 - (backend.name == "psycopg")
    async with on_the_wire(backend, ping_after_idle=3600) as (db, trips):
        await trips(db.fetch_val("select 1"))
        assert await trips(*(db.fetch_val("select 1") for _ in range(10))) == 10


@with_sqlite
async def test_an_idle_file_is_pinged_too(backend: Backend) -> None:
    heard: list[str] = []

    async def greet(raw: Any) -> None:
        await raw.set_trace_callback(heard.append)

    for patience, expected in ((0, 2), (3600, 1)):
        async with backend.database(max_size=1, ping_after_idle=patience, on_connect=greet) as db:
            await db.fetch_val("select 2")
            assert heard[-1:] == ["select 2"]
            heard.clear()
            await idle_before(db.fetch_val("select 2"))
            assert len(heard) == expected
            heard.clear()


@with_server
async def test_a_ping_without_an_answer(backend: Backend) -> None:
    async with on_the_wire(backend, ping_after_idle=0, hook_timeout=0.2) as (db, trips):
        session = await db.fetch_val(backend.session)
        trips.proxy.half_open()
        assert await idle_before(db.fetch_val(backend.session)) != session
        assert db.pool.stats().created == 2


@with_server
async def test_the_health_check_pings(backend: Backend) -> None:
    async with on_the_wire(backend, healthcheck_interval=0.01) as (db, trips):
        proxy: FaultProxy = trips.proxy
        await db.fetch_val("select 1")
        before = proxy.round_trips
        await asyncio.to_thread(proxy.wait_for, lambda counts: counts.round_trips > before + 3)
        assert db.pool.stats().created == 1
        async with db.transaction():  # what is in use is not pinged
            before = proxy.round_trips
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert proxy.round_trips == before
        proxy.half_open()
        await eventually(lambda: db.pool.stats().destroyed.get("check_failed"))
        assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 2
