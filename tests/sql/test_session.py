"""What a statement leaves behind that no reset undoes, and errors that are no lost connection."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import (
    no_slot_is_lost,
    outcome,
    with_postgresql,
    with_sqlite,
)
from tests.support.held import in_task, session_number
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


# -- COPY ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
@pytest.mark.parametrize(
    "text",
    ["copy {t} to stdout", "copy {t} from stdin", "select 1; copy {t} to stdout; select 2"],
)
async def test_copy_is_refused_and_harms_nobody(backend: Backend, text: str) -> None:
    strategy = cenote.ConsecutiveFailures(1)
    async with (
        backend.database(max_size=1, strategy=strategy) as db,
        backend.table(db) as table,
    ):
        await db.execute(f"insert into {table} select i, 'x' from generate_series(1, 1000) i")
        for name in ("execute", "fetch_all", "fetch_one", "fetch_val"):
            error = await outcome(in_task(getattr(db, name)(text.format(t=table))))
            assert type(error).__name__ == "ProgrammingError"
            assert any("db.connection()" in note for note in error.__notes__)
            assert await in_task(db.fetch_val("select 1")) == 1
        with pytest.raises(cenote.TransactionLostError):  # noqa: PT012
            async with db.transaction():
                await db.execute(f"insert into {table} values (0, 'lost')")
                await outcome(db.execute(text.format(t=table)))
        assert await db.fetch_val(f"select count(*) from {table}") == 1000
        assert db.pool.state is cenote.CircuitState.ACTIVE
        await no_slot_is_lost(db)


# -- what is not seen, and what is not undone ---------------------------------------------------


@with_postgresql
async def test_an_update_of_the_settings(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        before = await db.fetch_val("show work_mem")
        update = "update pg_settings set setting = '3072' where name = 'work_mem'"
        for run in (db.execute, db.fetch_all):
            await in_task(run(update))
            assert await in_task(db.fetch_val("show work_mem")) == before


@with_postgresql
async def test_strings_with_backslashes_hide_no_setting(backend: Backend) -> None:
    """As they are read with standard_conforming_strings = off."""
    url = f"{backend.url}?options=-c%20standard_conforming_strings%3Doff"
    async with backend.database(url, max_size=1) as db:
        before = await db.fetch_val("show work_mem")
        await in_task(db.execute(r"select '\''; set work_mem = '3MB'; select '\''"))
        assert await in_task(db.fetch_val("show work_mem")) == before


@with_postgresql
async def test_the_seed_of_another_task(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        session = await session_number(backend, db)
        seen = set()
        for touch in (
            "select setseed(0.5)",
            "set seed = 0.5",
            "select set_config('seed', '0.5', false)",
        ):
            await in_task(db.execute(touch))
            seen.add(await in_task(db.fetch_val("select random()")))
        assert len(seen) == 3
        assert await session_number(backend, db) == session


@contextlib.asynccontextmanager
async def superuser(backend: Backend, extension: str) -> AsyncIterator[Any]:
    """By the socket, as postgres, with an extension."""
    driver = "postgresql+psycopg" if backend.name == "psycopg" else "postgresql"
    url = backend.server.url.replace("postgresql", driver, 1)
    async with backend.database(url, max_size=1) as db:
        await db.execute(f"create extension if not exists {extension}")
        yield db


@with_postgresql
async def test_a_connection_of_dblink(backend: Backend) -> None:
    """The next task could use it, with the rights of this one."""
    async with superuser(backend, "dblink") as db:
        target = f"host={backend.server.directory} port={backend.server.port} user=postgres"
        session = await session_number(backend, db)
        await in_task(db.fetch_val("select dblink_connect('other', ?)", [target]))
        assert await in_task(db.fetch_val("select dblink_get_connections()")) is None
        assert await session_number(backend, db) != session
        assert db.pool.stats().destroyed == {"discarded": 1}


@with_postgresql
async def test_a_library_that_was_loaded(backend: Backend) -> None:
    async with superuser(backend, "dblink") as db:
        session = await session_number(backend, db)
        await in_task(db.execute("load 'auto_explain'"))
        assert await session_number(backend, db) != session


@with_sqlite
async def test_a_text_that_begins_with_a_byte_order_mark(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        await in_task(db.execute("\ufeffpragma query_only = 1"))
        assert await db.fetch_val("pragma query_only") == 0
        await in_task(db.execute("\ufeffcreate temp table secret (a)"))
        assert await db.fetch_val("select count(*) from temp.sqlite_master") == 0


@with_sqlite
async def test_a_pragma_that_is_only_prepared(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        statement = await db.prepare("pragma query_only = 1")
        await statement.close()
        assert await db.fetch_val("pragma query_only") == 0
        async with await db.prepare("pragma query_only = 1") as statement:
            await statement.execute()
            assert db.pin_reason is not None
        await db.release()
        assert await db.fetch_val("pragma query_only") == 0


# -- errors of SQL are no lost connections ------------------------------------------------------


@with_sqlite
async def test_a_module_that_finds_its_table_corrupt(backend: Backend) -> None:
    async with backend.database(max_size=1, strategy=cenote.ConsecutiveFailures(1)) as db:
        await db.execute("create virtual table f using fts5(a)")
        await db.execute("insert into f values ('word')")
        await db.execute("delete from f_content")
        with pytest.raises(Exception, match="malformed"):
            await db.execute("insert into f(f) values ('integrity-check')")
        assert db.pool.state is cenote.CircuitState.ACTIVE
        assert db.pool.stats().created == 1


RAISED = [
    "do $$ begin raise exception 'x' using errcode = '57P01'; end $$",
    "do $$ begin raise exception 'x' using errcode = '08006'; end $$",
    "do $$ begin raise exception 'x' using errcode = '25P03'; end $$",
    "do $$ begin raise exception 'the connection is closed' using errcode = '08003'; end $$",
]


@with_postgresql
@pytest.mark.parametrize("text", RAISED)
@pytest.mark.parametrize("name", ["execute", "fetch_all"])
async def test_codes_of_a_lost_connection_by_raise(backend: Backend, text: str, name: str) -> None:
    async with backend.database(max_size=1, strategy=cenote.ConsecutiveFailures(1)) as db:
        session = await session_number(backend, db)
        for _ in range(3):
            assert isinstance(await outcome(in_task(getattr(db, name)(text))), Exception)
        async with db.transaction():
            async with db.transaction():
                pass
            with pytest.raises(Exception, match=r"x|closed"):
                async with db.transaction():
                    await getattr(db, name)(text)
            assert await db.fetch_val("select 1") == 1
        assert await session_number(backend, db) == session
        assert db.pool.state is cenote.CircuitState.ACTIVE


@with_postgresql
async def test_another_server_that_is_away(backend: Backend) -> None:
    async with superuser(backend, "dblink") as db:
        db.pool.strategy = cenote.ConsecutiveFailures(1)
        session = await session_number(backend, db)
        for text in (
            "select dblink_exec('nosuch', 'select 1')",
            "select * from dblink('host=127.0.0.1 port=1 user=x password=y', 'select 1') t(a int)",
        ):
            error = await outcome(db.fetch_all(text))
            assert error.sqlstate.startswith("08")
        assert await session_number(backend, db) == session
        assert db.pool.state is cenote.CircuitState.ACTIVE


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_what_the_driver_cannot_decode(backend: Backend) -> None:
    async with superuser(backend, "dblink") as db:
        db.pool.strategy = cenote.ConsecutiveFailures(1)
        await db.execute("analyze pg_class")
        session = await session_number(backend, db)

        async def act() -> None:
            await db.execute("set role pg_read_all_stats")
            with pytest.raises(Exception, match="could not resolve"):
                await db.fetch_all(
                    "select most_common_vals from pg_stats where most_common_vals is not null"
                )
            assert await db.fetch_val("select current_user") == "pg_read_all_stats"

        await in_task(act())
        await eventually(lambda: db.pool.active_count == 0)
        assert await session_number(backend, db) == session
        assert db.pool.state is cenote.CircuitState.ACTIVE


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_copy_by_the_drivers_own_means_that_nobody_reads(backend: Backend) -> None:
    async with backend.database(max_size=1, strategy=cenote.ConsecutiveFailures(1)) as db:
        for _ in range(2):
            async with db.connection() as raw:
                await outcome(raw.execute("copy pg_class to stdout"))
            assert await db.fetch_val("select 1") == 1
        assert db.pool.state is cenote.CircuitState.ACTIVE
