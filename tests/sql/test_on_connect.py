"""What is set for every connection: `on_connect` and the options of the driver."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.held import GREETINGS, greeting, in_task, settled
from tests.support.kit import outcome
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


# -- what is done to the driver's own connection -------------------------------------------------


async def asyncpg_codec(raw: Any) -> None:
    await raw.set_type_codec("json", encoder=str, decoder=len, schema="pg_catalog")


# -- what is set for every connection ------------------------------------------------------------


async def test_on_connect_is_heard_by_every_task(backend: Backend) -> None:
    greet, query, expected = greeting(backend)
    overwrite = GREETINGS[backend.name][0].replace("77", "88")
    async with backend.database(max_size=1, on_connect=greet) as db:
        for _ in range(3):
            assert await db.fetch_val(query) == expected
        assert db.pool.stats().created == 1  # what it sets is not touched
        for touch, _query in (*backend.touches, (overwrite, "")):
            await in_task(db.execute(touch))
            assert await db.fetch_val(query) == expected, touch
        async with db.connection():
            pass
        assert await db.fetch_val(query) == expected
        await db.pool.retire()
        assert await db.fetch_val(query) == expected


async def test_connect_options_stay_set(backend: Backend) -> None:
    more = {
        "sqlite": ("cache_size=77", {}, "pragma cache_size", 77),
        "asyncpg": (
            "application_name=a",
            {"server_settings": {"work_mem": "77kB", "search_path": "pg_catalog"}},
            "select current_setting('work_mem') || current_setting('search_path')",
            "77kBpg_catalog",
        ),
        "psycopg": (
            "options=-c%20work_mem%3D77kB%20-c%20search_path%3Dpg_catalog",
            {},
            "select current_setting('work_mem') || current_setting('search_path')",
            "77kBpg_catalog",
        ),
        "mysql": (
            "sql_mode=ANSI_QUOTES&charset=latin1",
            {"init_command": "set @mine = 77"},
            "select concat(@mine, @@sql_mode, @@character_set_client, @@collation_connection)",
            "77ANSI_QUOTESlatin1latin1_swedish_ci",
        ),
    }
    options, arguments, query, expected = more[backend.name]
    url = f"{backend.url}?{options}"
    async with backend.database(url, connect_args=arguments, max_size=1) as db:
        assert await db.fetch_val(query) == expected
        for touch, _query in backend.touches:
            await in_task(db.execute(touch))
            assert await db.fetch_val(query) == expected, touch


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_what_connect_is_given_stays_set(backend: Backend) -> None:
    import psycopg

    context = psycopg.adapt.AdaptersMap(psycopg.adapters)
    context.register_loader("int4", psycopg.types.numeric.FloatLoader)

    class Context:
        adapters = context
        connection = None

    arguments = {
        "context": Context(),
        "row_factory": psycopg.rows.dict_row,
        "prepare_threshold": 3,
        "cursor_factory": psycopg.AsyncClientCursor,
    }

    async def look(db: Any) -> Any:
        async with db.connection() as raw:
            row = await (await raw.execute("select 1 as a")).fetchone()
            return row, type(row["a"]), raw.prepare_threshold, raw.cursor_factory

    async with backend.database(connect_args=arguments, max_size=1) as db:
        for _ in range(3):
            assert await look(db) == ({"a": 1.0}, float, 3, psycopg.AsyncClientCursor)


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_codecs_of_on_connect_stay_set(backend: Backend) -> None:
    async with backend.database(max_size=1, on_connect=asyncpg_codec) as db:
        for touch, _query in (("select 1", ""), *backend.touches[:2]):
            assert await db.fetch_val("select '[1]'::json") == 3
            await in_task(db.execute(touch))


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_a_connection_class_of_the_users(backend: Backend) -> None:
    import asyncpg

    class Mine(asyncpg.Connection):  # type: ignore[misc]
        pass

    async with backend.database(connect_args={"connection_class": Mine}, max_size=1) as db:
        for touch, query in backend.touches:
            before = await db.fetch_val(query)
            await in_task(db.execute(touch))
            assert await db.fetch_val(query) == before, touch
        async with db.connection() as raw:
            assert type(raw.__wrapped__) is Mine
            assert isinstance(raw, Mine)


@pytest.mark.parametrize("style", ["sync", "async", "awaitable"])
async def test_when_on_connect_runs(backend: Backend, style: str) -> None:
    greeted: list[Any] = []

    async def slow(raw: Any) -> None:
        await asyncio.sleep(0)
        greeted.append(raw)

    hooks: dict[str, Any] = {"sync": greeted.append, "async": slow, "awaitable": lambda c: slow(c)}
    async with backend.database(max_size=1, on_connect=hooks[style]) as db:
        assert greeted == []
        for _ in range(3):
            await db.fetch_val("select 1")
        async with db.transaction():
            await db.fetch_val("select 1")
            assert greeted == [db.bound_connection]  # once, with the driver's own
        await in_task(db.execute(backend.touches[0][0]))
        await settled(db)
        await db.fetch_val("select 1")
        assert len(greeted) == 2  # after the reset, or on the new one
        assert (greeted[0] is greeted[1]) == ("reset" in db.capabilities)
        await db.pool.retire()
        await db.fetch_val("select 1")
        assert len(greeted) == 3


async def test_on_connect_leaves_no_transaction(backend: Backend) -> None:
    async def greet(raw: Any) -> None:
        if backend.name == "mysql":
            await raw.begin()
        else:
            await raw.execute("begin")

    async with backend.database(max_size=1, on_connect=greet) as db:
        await db.fetch_val("select 1")
        assert not db.in_transaction
        await in_task(db.execute(backend.touches[0][0]))
        await db.fetch_val("select 1")
        assert not db.in_transaction


@contextlib.asynccontextmanager
async def nothing_left(backend: Backend) -> AsyncIterator[str]:
    """A URL; at the end no connection that was made with it is open."""
    before = threading.active_count()
    if backend.embedded:
        yield backend.url
        await eventually(lambda: threading.active_count() <= before)
        return
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
        yield backend.url_through(proxy.host, proxy.port)
        assert proxy.connections
        await asyncio.to_thread(proxy.wait_for, lambda counts: counts.open == 0)


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_a_failing_on_connect_closes_the_connection(backend: Backend, style: str) -> None:
    def refuse(raw: Any) -> None:
        raise KeyError("not today")

    async def slowly(raw: Any) -> None:
        await asyncio.sleep(0)
        refuse(raw)

    async with nothing_left(backend) as url:
        hook = refuse if style == "sync" else slowly
        async with backend.database(url, on_connect=hook, max_size=1) as db:
            for use in (lambda: db.fetch_val("select 1"), db.begin):
                with pytest.raises(KeyError, match="not today"):
                    await use()
            assert db.pool.count == 0
            assert db.pool.stats().created == 0


async def test_an_on_connect_that_never_ends(backend: Backend) -> None:
    async def hang(raw: Any) -> None:
        await asyncio.Event().wait()

    async with (
        nothing_left(backend) as url,
        backend.database(url, on_connect=hang, create_timeout=0.2) as db,
    ):
        error = await outcome(db.fetch_val("select 1"))
        assert isinstance(error, TimeoutError)
        assert db.pool.count == 0


async def test_an_on_connect_that_fails_after_a_reset(backend: Backend) -> None:
    touch, query = backend.touches[1]
    greeted: list[Any] = []

    async def greet(raw: Any) -> None:
        greeted.append(raw)
        if len(greeted) == 2:
            raise KeyError("the second time")

    async with (
        nothing_left(backend) as url,
        backend.database(url, max_size=1, on_connect=greet) as db,
    ):
        before = await db.fetch_val(query)
        await in_task(db.execute(touch))
        await settled(db)
        if "reset" in db.capabilities:
            assert db.pool.count == 0
        else:
            with pytest.raises(KeyError, match="the second time"):
                await db.fetch_val("select 1")  # a new one is greeted, and that fails
        assert await db.fetch_val(query) == before
        assert len(greeted) == 3
        assert greeted[2] is not greeted[0]
