"""What a statement leaves behind: COPY, plans, frozen constants, and what no reset undoes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any
from uuid import uuid4

import pytest

import cenote
from cenote.drivers.postgresql import keeps
from tests.support.backends import Backend, eventually
from tests.support.faults import (
    drivers_error,
    no_slot_is_lost,
    outcome,
    watching,
    with_postgresql,
    with_server,
    with_sqlite,
)

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


async def in_task(work: Awaitable[Any]) -> Any:
    """By a task of its own, whose connection is clean and idle again afterwards."""

    async def run() -> Any:
        return await work

    return await asyncio.create_task(run())


async def session_of(backend: Backend, db: Any) -> int:
    return int(await db.fetch_val(backend.session))


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


# -- plans --------------------------------------------------------------------------------------


@with_postgresql
@pytest.mark.parametrize(
    "statement",
    [
        "discard all",
        "deallocate all",
        "do $$ begin execute 'deallocate all'; end $$",
    ],
)
@pytest.mark.parametrize("name", ["execute", "fetch_all"])
async def test_plans_that_a_task_throws_away(backend: Backend, statement: str, name: str) -> None:
    """The transaction of the next task uses one of them."""
    select = "select ?::int + 1"
    async with backend.database(max_size=1) as db:
        for _ in range(3):
            assert await in_task(db.fetch_val(select, [1])) == 2
            await in_task(getattr(db, name)(statement))
            async with db.transaction():
                assert await db.fetch_val(select, [1]) == 2
        assert db.pool.stats().created == 1


@with_postgresql
async def test_plans_that_are_thrown_away_in_mid_task(backend: Backend) -> None:
    select = "select ?::int + 1"
    async with backend.database(max_size=1) as db:
        statement = await db.prepare("select ?::int + 2")
        for _ in range(3):
            assert await db.fetch_val(select, [1]) == 2
            await db.execute("deallocate all")
            async with db.transaction():
                assert await db.fetch_val(select, [1]) == 2
                assert await statement.fetch_val([1]) == 3
        await statement.close()


@with_postgresql
async def test_statements_of_the_user_stay_prepared(backend: Backend) -> None:
    """Whatever makes the driver drop its own."""

    async def prepare(raw: Any) -> None:
        await raw.execute("prepare theirs as select 8")

    async with (
        backend.database(max_size=1, on_connect=prepare) as db,
        backend.table(db) as table,
    ):
        await db.execute("prepare mine as select 7")
        for i in range(3):
            assert await db.fetch_val("select ?::int", [1]) == 1
            with contextlib.suppress(ZeroDivisionError):
                async with db.transaction():
                    await db.fetch_val(f"select count(*) from {table} where id = ?", [1])
                    raise ZeroDivisionError
            await db.execute(f"create table {table}_{i} (a int)")
            await db.execute(f"drop table {table}_{i}")
            assert isinstance(await outcome(db.fetch_val("select nosuch(?)", [1])), Exception)
            assert await db.fetch_val("execute mine") == 7
            assert await db.fetch_val("execute theirs") == 8
        await db.release()
        assert await db.fetch_val("execute theirs") == 8
        with pytest.raises(Exception, match="mine"):
            await db.execute("execute mine")


# -- frozen constants ---------------------------------------------------------------------------


@with_postgresql
@pytest.mark.parametrize("name", ["fetch_val", "iterate"])
async def test_now_is_not_frozen(backend: Backend, name: str) -> None:
    texts = ["select 'now'::timestamptz", "select timestamptz ' NOW ' where 1 = 1"]
    async with backend.database(max_size=1) as db:

        async def ask(text: str) -> Any:
            if name == "iterate":
                (row,) = [row async for row in db.iterate(text)]
                return row[0]
            return await db.fetch_val(text)

        for text in texts:
            seen = {await in_task(ask(text)) for _ in range(8)}
            assert len(seen) == 8
        one = "select 'now'::timestamptz where 1 = ?"
        assert len({await in_task(db.fetch_val(one, [1])) for _ in range(8)}) == 8


@with_postgresql
async def test_a_literal_is_read_as_the_session_says(backend: Backend) -> None:
    day = "select (date '01/02/03')::text"
    moment = "select extract(epoch from timestamptz '1/2/2003 5:00')"
    async with backend.database(max_size=1) as db:

        async def ask(setting: str) -> list[Any]:
            await db.execute(setting)
            return [await db.fetch_val(day), await db.fetch_val(moment)]

        here, there = (
            "set datestyle = 'iso, dmy'; set time zone 'UTC'",
            "set datestyle = 'iso, mdy'; set time zone 'Asia/Tokyo'",
        )
        dmy, mdy = await ask(here), await ask(there)  # in one session
        assert [dmy[0], mdy[0]] == ["2003-02-01", "2003-01-02"]
        assert dmy[1] != mdy[1]
        assert await ask(here) == dmy
        await db.release()
        assert await in_task(ask(there)) == mdy
        assert await in_task(ask(here)) == dmy


@with_postgresql
async def test_plain_texts_are_kept(backend: Backend) -> None:
    """Those that nothing can freeze in: one round trip, prepared once."""
    async with backend.database(max_size=1) as db:
        for _ in range(3):
            assert await db.fetch_val("select 1") == 1
            assert await db.fetch_val("select count(*) from pg_class where relkind = 'x'") == 0
        kept = await db.fetch_all(
            "select statement from pg_prepared_statements where statement not like '%prepared%'"
        )
        assert len(kept) == 2


@pytest.mark.parametrize(
    "text",
    [
        "select 1",
        " -- a\n/* b */ ( SELECT $1 )",
        "insert into t values ('a', 'b')",
        "with a as (select now()) select 'x' from a",
        "select now(), 'a', today from t where b = 'c'",
        "show work_mem",
        "table t",
    ],
)
def test_what_is_kept(text: str) -> None:
    assert keeps(text)


@pytest.mark.parametrize(
    "text",
    [
        "call p($1)",
        "do $$ begin end $$",
        "execute p",
        "fetch 5 from c",
        "explain analyze select 1",
        "/* /* nested */ */ select 1",  # nobody reads so far
        "-- select\ncall p()",
        "select 'now'::date",
        "select 'it''s now'",
        "select ' Today 10 h'::timestamptz",
        "select timestamptz '20260131T050000'",
        "select date '31.1.2026'",
        "select date 'Jan 31, 26'",
        "select '5:00'::time, $1",
        "select $$now$$::date",
        "select '" + "x" * 20_000 + "'",
        "--" + " (" * 100 + "\n" + "-- \n" * 5000 + "x",
    ],
)
def test_what_is_not_kept(text: str) -> None:
    assert not keeps(text)


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
async def test_strings_with_backslashes(backend: Backend) -> None:
    """As they are read with standard_conforming_strings = off."""
    url = f"{backend.url}?options=-c%20standard_conforming_strings%3Doff"
    async with backend.database(url, max_size=1) as db:
        before = await db.fetch_val("show work_mem")
        await in_task(db.execute(r"select '\''; set work_mem = '3MB'; select '\''"))
        assert await in_task(db.fetch_val("show work_mem")) == before


@with_postgresql
async def test_the_seed_of_another_task(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        session = await session_of(backend, db)
        seen = set()
        for touch in (
            "select setseed(0.5)",
            "set seed = 0.5",
            "select set_config('seed', '0.5', false)",
        ):
            await in_task(db.execute(touch))
            seen.add(await in_task(db.fetch_val("select random()")))
        assert len(seen) == 3
        assert await session_of(backend, db) == session


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
        session = await session_of(backend, db)
        await in_task(db.fetch_val("select dblink_connect('other', ?)", [target]))
        assert await in_task(db.fetch_val("select dblink_get_connections()")) is None
        assert await session_of(backend, db) != session
        assert db.pool.stats().destroyed == {"discarded": 1}


@with_postgresql
async def test_a_library_that_was_loaded(backend: Backend) -> None:
    async with superuser(backend, "dblink") as db:
        session = await session_of(backend, db)
        await in_task(db.execute("load 'auto_explain'"))
        assert await session_of(backend, db) != session


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
        session = await session_of(backend, db)
        for _ in range(3):
            assert isinstance(await outcome(in_task(getattr(db, name)(text))), Exception)
        async with db.transaction():
            async with db.transaction():
                pass
            with pytest.raises(Exception, match=r"x|closed"):
                async with db.transaction():
                    await getattr(db, name)(text)
            assert await db.fetch_val("select 1") == 1
        assert await session_of(backend, db) == session
        assert db.pool.state is cenote.CircuitState.ACTIVE


@with_postgresql
async def test_another_server_that_is_away(backend: Backend) -> None:
    async with superuser(backend, "dblink") as db:
        db.pool.strategy = cenote.ConsecutiveFailures(1)
        session = await session_of(backend, db)
        for text in (
            "select dblink_exec('nosuch', 'select 1')",
            "select * from dblink('host=127.0.0.1 port=1 user=x password=y', 'select 1') t(a int)",
        ):
            error = await outcome(db.fetch_all(text))
            assert error.sqlstate.startswith("08")
        assert await session_of(backend, db) == session
        assert db.pool.state is cenote.CircuitState.ACTIVE


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_what_the_driver_cannot_decode(backend: Backend) -> None:
    async with superuser(backend, "dblink") as db:
        db.pool.strategy = cenote.ConsecutiveFailures(1)
        await db.execute("analyze pg_class")
        session = await session_of(backend, db)

        async def act() -> None:
            await db.execute("set role pg_read_all_stats")
            with pytest.raises(Exception, match="could not resolve"):
                await db.fetch_all(
                    "select most_common_vals from pg_stats where most_common_vals is not null"
                )
            assert await db.fetch_val("select current_user") == "pg_read_all_stats"

        await in_task(act())
        await eventually(lambda: db.pool.active_count == 0)
        assert await session_of(backend, db) == session
        assert db.pool.state is cenote.CircuitState.ACTIVE


# -- a session that is lost ---------------------------------------------------------------------


async def lose(backend: Backend, db: Any) -> None:
    """The connection of this task, with its session."""
    number = await session_of(backend, db)
    async with watching(backend) as watcher:
        await watcher.kill(number)
        await watcher.until_gone(number)


async def every_use_is_refused(db: Any) -> None:
    async def enter(block: Any) -> None:
        async with block:
            pass

    for use in (
        lambda: db.execute("select 1"),
        lambda: db.fetch_val("select ?", [1]),
        lambda: db.execute_many("select ?", [[1]]),
        lambda: anext(db.iterate("select 1")),
        lambda: db.prepare("select 1"),
        lambda: enter(db.transaction()),
        lambda: enter(db.connection()),
        lambda: db.begin(),
    ):
        with pytest.raises(cenote.SessionLostError) as caught:
            await use()
        assert caught.value.__cause__ is not None


@with_server
@pytest.mark.parametrize("end", ["release", "rollback"])
async def test_a_session_that_is_lost(backend: Backend, end: str) -> None:
    """What it had set is gone: nobody goes on without it, and without knowing."""
    async with backend.database(max_size=2) as db:
        touch, query = backend.touches[1]
        plain = await db.fetch_val(query)
        await db.execute(touch)
        touched = await db.fetch_val(query)
        assert touched != plain
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val(query)
        await every_use_is_refused(db)
        assert await in_task(db.fetch_val(query)) == plain  # of another task, which set nothing
        with pytest.raises(cenote.SessionLostError, match=r"what SET had changed.*release\(\)"):
            await db.execute(touch)
        await getattr(db, end)()
        assert await db.fetch_val(query) == plain
        await db.execute(touch)
        assert await db.fetch_val(query) == touched
        await db.release()
        await no_slot_is_lost(db)


@with_postgresql
async def test_a_worker_that_calls_in_a_loop_recovers(backend: Backend) -> None:
    """Nobody knows that the session was changed at all: it is told so once."""
    async with backend.database(max_size=1) as db:
        call = "do $$ begin null; end $$"
        await db.execute(call)
        await lose(backend, db)
        with drivers_error():
            await db.execute(call)
        with pytest.raises(cenote.SessionLostError, match="what DO had changed"):
            await db.execute(call)
        await db.execute(call)
        await db.execute("set time zone 'Asia/Tokyo'")
        await db.execute(call)  # which takes nothing away from it
        await lose(backend, db)
        with drivers_error():
            await db.execute(call)
        for _ in range(3):
            with pytest.raises(cenote.SessionLostError, match="what SET had changed"):
                await db.execute(call)
        await db.release()
        await no_slot_is_lost(db)


NOTHING_ASKED = {
    "mysql": [
        "select /*!40001 SQL_NO_CACHE */ 1",
        "create or replace procedure cenote_nothing() begin select 1; end",
        "begin not atomic select 1; end",
        "unlock tables",
        "select release_lock('x')",
    ],
    "postgresql": ["select pg_advisory_unlock_all()", "select pg_advisory_unlock(1)"],
}


@with_server
async def test_statements_that_ask_for_nothing_of_the_session(backend: Backend) -> None:
    """They may have changed it, and it is told once that it was lost."""
    async with backend.database(max_size=1) as db:
        for text in NOTHING_ASKED["mysql" if backend.name == "mysql" else "postgresql"]:
            await db.fetch_all(text)
            await lose(backend, db)
            with drivers_error():
                await db.fetch_val("select 1")
            with pytest.raises(cenote.SessionLostError):
                await db.fetch_val("select 1")
            assert await db.fetch_val("select 1") == 1, text


@with_server
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("text", ["set cenote_no_such_setting = 1", "set role cenote_nobody"])
async def test_a_setting_that_was_refused(backend: Backend, text: str, pinned: bool) -> None:
    async with backend.database(max_size=1) as db:
        statement = await db.prepare("select 1") if pinned else None
        with drivers_error():
            await db.execute(text)
        assert db.pin_reason is not None  # in doubt it is reset
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val("select 1")
        assert await db.fetch_val("select 1") == 1
        del statement


@with_server
@pytest.mark.parametrize("end", ["an error", "rollback()", "a statement", "of the end"])
async def test_what_was_set_in_a_transaction_that_is_rolled_back(
    backend: Backend, end: str
) -> None:
    """PostgreSQL undoes it, and MySQL does not."""
    touch, query = backend.touches[1]
    async with backend.database(max_size=1) as db:
        plain = await db.fetch_val(query)
        if end == "an error":
            with pytest.raises(KeyError):  # noqa: PT012
                async with db.transaction():
                    await db.execute(touch)
                    raise KeyError
        elif end == "of the end":
            async with db.transaction():
                await db.execute(touch)
                await db.rollback()
        else:
            await db.execute("begin")
            await db.execute(touch)
            await (db.rollback() if end == "rollback()" else db.execute("rollback"))
        stays = await db.fetch_val(query) != plain
        assert stays == (backend.name == "mysql")
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val("select 1")
        if stays:
            with pytest.raises(cenote.SessionLostError):
                await db.fetch_val("select 1")
            await db.release()
        assert await db.fetch_val(query) == plain


@with_postgresql
@pytest.mark.parametrize("end", ["commit and chain", "commit; begin"])
async def test_what_was_committed_before_a_transaction_that_is_rolled_back(
    backend: Backend, end: str
) -> None:
    async with backend.database(max_size=1) as db:
        for text in ("begin", backend.touches[1][0], end, "rollback"):
            await db.execute(text)
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val("select 1")
        with pytest.raises(cenote.SessionLostError, match="what SET had changed"):
            await db.fetch_val("select 1")
        await db.release()


@with_postgresql
async def test_a_lock_outlives_the_transaction_that_is_rolled_back(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        with pytest.raises(KeyError):  # noqa: PT012
            async with db.transaction():
                await db.execute("select pg_advisory_lock(1)")
                await db.execute(backend.touches[1][0])
                raise KeyError
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val("select 1")
        for _ in range(2):
            with pytest.raises(cenote.SessionLostError, match="pg_advisory_lock"):
                await db.fetch_val("select 1")
        await db.release()


@with_server
async def test_a_session_ends_with_its_task(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:

        async def work() -> None:
            await db.execute(backend.touches[0][0])
            await lose(backend, db)
            with drivers_error():
                await db.fetch_val("select 1")
            with pytest.raises(cenote.SessionLostError):
                await db.fetch_val("select 1")

        await in_task(work())
        assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)


@with_server
async def test_a_statement_that_is_cancelled_loses_the_session(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        await db.execute(backend.touches[1][0])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await db.execute(backend.slow)
        with pytest.raises(cenote.SessionLostError):
            await db.fetch_val("select 1")
        await db.release()
        assert await db.fetch_val("select 1") == 1


@with_server
async def test_what_touches_and_breaks_has_touched_nothing(backend: Backend) -> None:
    """The task knows that its statement has failed."""
    async with backend.database(max_size=1) as db:
        for pinned in (False, True):
            statement = await db.prepare("select 1") if pinned else None
            await lose(backend, db)
            with contextlib.suppress(Exception):
                await db.execute(backend.touches[1][0])
            await db.release()
            assert await db.fetch_val("select 1") == 1
            del statement


@with_server
async def test_a_transaction_is_lost_first_and_the_session_then(backend: Backend) -> None:
    touch, query = backend.touches[1]
    async with backend.database(max_size=1) as db:
        await db.execute(touch)
        with pytest.raises(cenote.TransactionLostError):  # noqa: PT012
            async with db.transaction():
                await lose(backend, db)
                with drivers_error():
                    await db.fetch_val("select 1")
                with pytest.raises(cenote.TransactionLostError):
                    await db.fetch_val("select 1")
        with pytest.raises(cenote.SessionLostError):
            await db.fetch_val(query)
        await db.release()
        assert await db.fetch_val("select 1") == 1


@with_postgresql
async def test_what_was_set_in_the_lost_transaction_is_undone_with_it(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        with pytest.raises(cenote.TransactionLostError):  # noqa: PT012
            async with db.transaction():
                await db.execute(backend.touches[1][0])
                await lose(backend, db)
                await outcome(db.fetch_val("select 1"))
        assert await db.fetch_val("select 1") == 1


@with_server
async def test_the_connection_of_a_block_that_is_lost(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with db.connection():
            await lose(backend, db)
            with drivers_error():
                await db.fetch_val("select 1")
            with pytest.raises(cenote.SessionLostError, match="Leave the block"):
                await db.fetch_val("select 1")
        assert await db.fetch_val("select 1") == 1
        await db.execute(backend.touches[1][0])
        async with db.connection():
            await lose(backend, db)
            await outcome(db.fetch_val("select 1"))
        with pytest.raises(cenote.SessionLostError):  # it was not the block that had set it
            await db.fetch_val("select 1")
        await db.release()
        await no_slot_is_lost(db)


@with_server
async def test_the_end_of_a_transaction_that_is_cancelled(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend.database(max_size=1) as db:
        await db.execute(backend.touches[1][0])
        await db.begin()
        (link,) = db._loop_databases[asyncio.get_running_loop()].connections

        async def hang(self: Any) -> bool:
            await asyncio.Event().wait()
            return True

        monkeypatch.setattr(type(link), "commit", hang)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await db.commit()
        monkeypatch.undo()
        with pytest.raises(cenote.SessionLostError):
            await db.fetch_val("select 1")
        await db.release()
        assert await db.fetch_val("select 1") == 1


@with_postgresql
async def test_a_statement_that_is_lost_is_no_session(backend: Backend) -> None:
    """Who only had it prepared goes on, and prepares it again."""
    async with backend.database(max_size=1) as db:
        statement = await db.prepare("select 1")
        await lose(backend, db)
        with drivers_error():
            await statement.fetch_val()
        assert await db.fetch_val("select 1") == 1
        with pytest.raises(cenote.PoolError, match="Prepare it again"):
            await statement.fetch_val()


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_copy_by_the_drivers_own_means_that_nobody_reads(backend: Backend) -> None:
    async with backend.database(max_size=1, strategy=cenote.ConsecutiveFailures(1)) as db:
        for _ in range(2):
            async with db.connection() as raw:
                await outcome(raw.execute("copy pg_class to stdout"))
            assert await db.fetch_val("select 1") == 1
        assert db.pool.state is cenote.CircuitState.ACTIVE


@with_postgresql
async def test_digits_with_blanks_between_them_are_read_as_the_session_says(
    backend: Backend,
) -> None:
    text = "select (date '08 01 99')::text"
    async with backend.database(max_size=1) as db, db.connection():
        seen = []
        for order in ("mdy", "dmy", "mdy"):
            await db.execute(f"set datestyle = 'iso, {order}'")
            seen.append(await db.fetch_val(text))
    assert seen == ["1999-08-01", "1999-01-08", "1999-08-01"]


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
@pytest.mark.parametrize("name", ["execute", "fetch_all", "fetch_one", "fetch_val"])
async def test_a_change_of_the_schema_is_noticed_however_it_is_made(
    backend: Backend, name: str
) -> None:
    function = "create function {0}(a {1}) returns text language sql as $$ select '{1}' $$"
    made, asked = f"f_{uuid4().hex[:12]}", f"d_{uuid4().hex[:12]}"
    async with backend.database(max_size=1) as db:
        change = getattr(db, name)
        await change(function.format(made, "bigint"))
        ask = f"select {made}(1)"
        assert await db.fetch_val(ask) == "bigint"
        await change(function.format(made, "int"))
        assert await db.fetch_val(ask) == "int"  # it fits better than the one that was planned

        await change(f"create domain {asked} as int default 3")
        await db.execute(f"create temporary table kept (a {asked}, b int)")
        insert = "insert into kept (b) values (1) returning a"
        assert await db.fetch_val(insert) == 3
        await change(f"alter domain {asked} set default 42")
        assert await db.fetch_val(insert) == 42
        async with db.transaction() as tx:
            await change(f"alter domain {asked} set default 5")
            assert await db.fetch_val(insert) == 5
            await tx.rollback()
        assert await db.fetch_val(insert) == 42
        await db.release()
        await db.execute(f"drop domain {asked}")
        await db.execute(f"drop function {made}(int)")
        await db.execute(f"drop function {made}(bigint)")


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_a_parameter_that_does_not_fit_costs_one_plan(backend: Backend) -> None:
    """Otherwise whoever can send a wrong type would keep the cache of plans empty."""
    async with backend.database(max_size=1) as db:
        for number in range(5):
            await db.fetch_val(f"select {number} + ?::int", [1])
        link = db.pool.try_acquire()
        assert link is not None
        db.pool.release(link)
        kept = len(link.raw._stmt_cache)
        assert kept >= 5
        for _ in range(3):
            with pytest.raises(Exception, match="invalid input for query argument"):
                await db.fetch_val("select 0 + ?::int", ["abc"])
        assert len(link.raw._stmt_cache) >= kept - 1
        assert await db.fetch_val("select 0 + ?::int", [1]) == 1
