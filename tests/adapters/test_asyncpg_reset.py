"""What a task leaves in its session, and what the next one finds, through `create_pool()`."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("asyncpg")

import asyncpg

from cenote.adapters.asyncpg import create_pool

Made = Callable[..., Any]


@pytest.fixture
def pool_of(make_asyncpg_pool: Made) -> Made:
    """Makes a pool with one connection."""
    return partial(make_asyncpg_pool, max_size=1)


class CountingConnection(asyncpg.Connection):  # type: ignore[misc]
    """Counts the plain statements, of which a reset is one."""

    sent: int = 0

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        self.sent += 1
        return await super().execute(query, *args, timeout=timeout)


# What touches, and a query that gives its value back as in a fresh session.
TOUCHES = {
    "SET": ("set application_name = 'mine'", "select current_setting('application_name')"),
    "role": ("set role pg_monitor", "select current_user::text"),
    "temporary": (
        "create temporary table mine (id int)",
        "select to_regclass('pg_temp.mine')::text",
    ),
    "function": (
        "select set_config('my.tenant', '7', false)",
        "select coalesce(current_setting('my.tenant', true), '')",
    ),
    "advisory lock": (
        "select pg_advisory_lock(42)",
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
    ),
    "prepared": (
        "prepare mine as select 1",
        "select count(*) from pg_prepared_statements where name = 'mine'",
    ),
    "cursor": (
        "begin; declare mine cursor with hold for select 1; commit",
        "select count(*) from pg_cursors where name = 'mine'",
    ),
    "listening": ("listen mine", "select count(*) from pg_listening_channels()"),
    "open transaction": ("begin", "select pg_current_xact_id_if_assigned()::text"),
}


@pytest.mark.parametrize(("touch", "query"), TOUCHES.values(), ids=TOUCHES)
async def test_next_task_finds_a_clean_session(pool_of: Made, touch: str, query: str) -> None:
    async with pool_of() as pool:
        fresh = await pool.fetchval(query)
        pid = await pool.fetchval("select pg_backend_pid()")
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # asyncpg reports it
        await pool.execute(touch)
        assert await pool.fetchval(query) == fresh
        assert await pool.fetchval("select pg_backend_pid()") == pid


@pytest.mark.parametrize("way", ["fetch", "prepare", "cursor", "copy", "raw", "own method", "many"])
async def test_every_way_to_send_is_seen(pool_of: Made, way: str) -> None:
    class Own(asyncpg.Connection):  # type: ignore[misc]
        async def set_tenant(self) -> None:
            await self.execute("set my.tenant = 'x'")

    text = "select set_config('my.tenant', 'x', false)"
    async with pool_of(connection_class=Own) as pool:
        async with pool.acquire() as connection:
            if way == "fetch":
                await connection.fetch(text)
            elif way == "prepare":
                await (await connection.prepare(text)).fetchval()
            elif way == "cursor":
                async with connection.transaction():
                    assert [row async for row in connection.cursor(text)]
            elif way == "copy":
                await connection.copy_from_query(text, output=_nowhere)
            elif way == "raw":
                await connection._con.execute(text)
            elif way == "many":
                await connection.executemany("select set_config($1, 'x', false)", [["my.tenant"]])
            else:
                await connection.set_tenant()
            assert await connection.fetchval("select current_setting('my.tenant')") == "x"
        assert not await pool.fetchval("select current_setting('my.tenant', true)")


async def _nowhere(data: bytes) -> None:
    pass


async def test_untouched_sessions_cost_no_round_trip(pool_of: Made) -> None:
    async with pool_of(connection_class=CountingConnection) as pool:
        for _ in range(3):
            async with pool.acquire() as connection:
                assert await connection.fetchval("select 1") == 1
                async with connection.transaction():
                    await connection.fetch("set local application_name = 'mine'")
        raw = pool._holders[0]._con
        assert raw.sent == 6  # BEGIN and COMMIT
        await pool.execute("set application_name = 'mine'")
        assert raw.sent == 8


async def test_reset_always_runs_what_asyncpg_runs(pool_of: Made) -> None:
    async with pool_of(connection_class=CountingConnection, reset="always") as pool:
        assert await pool.fetchval("select 1") == 1
        assert pool._holders[0]._con.sent == 1
        await pool.execute("set application_name = 'mine'")
        assert await pool.fetchval("show application_name") == ""


async def test_reset_never_only_ends_the_transaction(pool_of: Made) -> None:
    async with pool_of(reset="never") as pool:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await pool.execute("set application_name = 'mine'")
        await pool.execute("begin")
        async with pool.acquire() as connection:
            assert not connection.is_in_transaction()
        assert await pool.fetchval("show application_name") == "mine"


async def test_a_reset_function_is_called_each_time(pool_of: Made) -> None:
    seen: list[Any] = []

    async def reset(connection: Any) -> None:
        seen.append(type(connection))
        await connection.execute("reset all")

    async with pool_of(reset=reset) as pool:
        await pool.execute("set application_name = 'mine'")
        assert await pool.fetchval("show application_name") == ""
    assert seen == [asyncpg.Connection] * 2


async def test_the_reset_of_an_own_class_is_used(pool_of: Made) -> None:
    class Own(asyncpg.Connection):  # type: ignore[misc]
        def get_reset_query(self) -> str:
            return "set application_name = 'was reset'"

    async with pool_of(connection_class=Own) as pool:
        await pool.execute("set application_name = 'mine'")
        assert await pool.fetchval("show application_name") == "was reset"


async def test_what_init_sets_stays_after_a_reset(pool_of: Made) -> None:
    async def init(connection: Any) -> None:
        await connection.execute("set application_name = 'by init'")
        await connection.set_type_codec(
            "int4", schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>"
        )

    async with pool_of(init=init) as pool:
        assert await pool.fetchval("show application_name") == "by init"
        async with pool.acquire() as connection:
            await connection.execute("set application_name = 'mine'")
            await connection.reset_type_codec("int4", schema="pg_catalog")
            assert await connection.fetchval("select 1") == 1
        assert await pool.fetchval("show application_name") == "by init"
        assert await pool.fetchval("select 1") == "<1>"
        assert pool.pool.stats().created == 1


async def test_codecs_of_a_task_end_with_it(pool_of: Made) -> None:
    async with pool_of() as pool:
        async with pool.acquire() as connection:
            await connection.set_type_codec(
                "int4", schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>"
            )
            assert await connection.fetchval("select 1") == "<1>"
        assert await pool.fetchval("select 1") == 1
        assert pool.pool.stats().created == 1


async def test_codecs_of_setup_cost_no_reset(pool_of: Made) -> None:
    async def setup(connection: Any) -> None:
        await connection.set_type_codec(
            "int4", schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>"
        )

    async with pool_of(setup=setup, connection_class=CountingConnection) as pool:
        assert await pool.fetchval("select 1") == "<1>"
        assert await pool.fetchval("select 1") == "<1>"
        assert pool._holders[0]._con.sent == 0


async def test_listeners_that_are_left_are_warned_of(pool_of: Made) -> None:
    heard: list[Any] = []
    async with pool_of() as pool:
        with pytest.warns(asyncpg.InterfaceWarning, match="active notification listener"):
            async with pool.acquire() as connection:
                await connection.add_listener("mine", lambda *note: heard.append(note))
        with pytest.warns(asyncpg.InterfaceWarning, match="active log listener"):
            async with pool.acquire() as connection:
                connection.add_log_listener(lambda *note: heard.append(note))
        await pool.execute("notify mine")
        await pool.execute("do $$ begin raise notice 'hello'; end $$")
        assert await pool.fetchval("select count(*) from pg_listening_channels()") == 0
    assert heard == []


async def test_what_no_reset_undoes_replaces_the_connection(pool_of: Made) -> None:
    async with pool_of() as pool:
        pid = await pool.fetchval("select pg_backend_pid()")
        await pool.execute("load 'plpgsql'")
        assert await pool.fetchval("select pg_backend_pid()") != pid


async def test_a_connection_that_is_not_watched_is_reset(pool_of: Made) -> None:
    async def connect(*args: Any, connection_class: Any, **options: Any) -> Any:
        return await asyncpg.connect(*args, **options)

    async with pool_of(connect=connect) as pool:
        await pool.execute("set application_name = 'mine'")
        assert await pool.fetchval("show application_name") == ""


async def test_a_statement_under_way_is_not_handed_on(pool_of: Made) -> None:
    async with pool_of() as pool:
        connection = await pool.acquire()
        sleeping = asyncio.create_task(connection.execute("select pg_sleep(60)"))
        await asyncio.sleep(0)
        with pytest.raises(asyncpg.InterfaceError, match="another operation is in progress"):
            await pool.release(connection)
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await sleeping
        assert await pool.fetchval("select 1") == 1


@pytest.mark.parametrize(("value", "error"), [("sometimes", ValueError), (7, TypeError)])
def test_a_bad_reset_is_refused_at_once(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="reset must be one of 'auto', 'always', 'never', or a"):
        create_pool("postgresql://localhost/shop", reset=value)


LOCKS = """
    select count(*) from pg_locks l join pg_class c on c.oid = l.relation where c.relname = $1
"""


async def test_nothing_is_locked_by_a_connection_in_the_pool(make_asyncpg_pool: Made) -> None:
    """asyncpg ends the message of a preparation with the first run, which may never come."""
    async with make_asyncpg_pool(max_size=1) as pool, make_asyncpg_pool(max_size=1) as other:
        await other.execute("create table locked (id int)")
        try:
            async with pool.acquire() as connection:
                await connection.prepare("select * from locked")
            assert await other.fetchval(LOCKS, "locked") == 0
            for insert in (pool.execute, pool.fetch, pool.fetchval):
                with pytest.raises(asyncpg.DataError):
                    await insert("insert into locked values ($1)", "x")
                assert await other.fetchval(LOCKS, "locked") == 0
            async with pool.acquire() as connection:
                with pytest.raises(asyncpg.DataError):
                    await connection.fetch("select * from locked where id = $1", "x")
            assert await other.fetchval(LOCKS, "locked") == 0
        finally:
            await pool.expire_connections()
            await other.execute("drop table locked")
