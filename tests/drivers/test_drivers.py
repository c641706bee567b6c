"""What the drivers have to do alike, though what is beneath them differs."""

import asyncio
from collections.abc import Awaitable
from typing import Any
from urllib.parse import quote

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.servers import PASSWORD
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

MEMORY = "sqlite:///:memory:"
only_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
only_mysql = pytest.mark.parametrize("backend", ["mysql"], indirect=True)
postgres = pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)
cached = pytest.mark.parametrize("size", [0, 100])


async def in_task(awaitable: Awaitable[Any]) -> Any:
    """What it gives, in a task of its own."""

    async def run() -> Any:
        return await awaitable

    return await asyncio.create_task(run())


# -- capabilities --------------------------------------------------------------------------------


async def test_prepare_checks_a_statement_with_the_capability(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, db.connection():
        if "prepare" in db.capabilities:
            with pytest.raises(Exception, match="selec"):
                await db.prepare("selec 1")
            return
        statement = await db.prepare("selec 1")  # nothing is sent
        with pytest.raises(Exception, match="selec"):
            await statement.fetch_val()


# -- transactions that only read -----------------------------------------------------------------


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_what_comes_after_a_read_only_transaction_may_write(
    backend: Backend, end: str
) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def read() -> None:
            await db.begin(read_only=True)
            await db.fetch_all(f"select * from {table}")
            await db.execute(end)  # and nobody tidies up

        await in_task(read())
        await eventually(lambda: db.pool.active_count == 0)
        assert await db.execute(f"insert into {table} values (1, 'a')") == 1
        assert db.pool.stats().created == 1


@only_sqlite
async def test_what_on_connect_forbids_stays_forbidden(backend: Backend) -> None:
    async def forbid(raw: Any) -> None:
        await raw.execute("pragma query_only = 1")

    async with backend.database(max_size=1, on_connect=forbid) as db:
        async with db.transaction(read_only=True):
            assert await db.fetch_val("pragma query_only") == 1
        assert await db.fetch_val("pragma query_only") == 1


# -- execute_many --------------------------------------------------------------------------------

TWO = [(1, "a"), (2, "b")]
TWICE = [(1, "a"), (1, "b")]
# Statements, what they are run with, and what is in the table then.
SERIES = (
    ("insert into {t} values (?, ?)", TWO, TWO),
    ("/* first */ insert into {t} values (?, ?)", TWO, TWO),
    ("insert into {t} select {number}, ?", TWO, TWO),
    ("insert into {t} values (?, ?) returning id", TWO, TWO),
    ("insert into {t} values (?, (select ?))", TWO, TWO),
    ("insert into {t} values (?, ?) {upsert} name = '50%'", TWICE, [(1, "50%")]),
    ("insert into {t} values (?, '50%') {upsert} name = ?", TWICE, [(1, "b")]),
    ("insert into {t} values (?, ?) {upsert} name = ?", [(1, "a", "c"), (1, "b", "d")],
     [(1, "d")]),
    ("insert into {t} values (?, ?), (7, '%') {upsert} name = '%s'", TWO,
     [(1, "a"), (2, "b"), (7, "%s")]),
)  # fmt: skip
SERIES_OF_MYSQL = (
    ("call {t}_put(?, ?)", TWO, TWO),
    ("insert into {t} set id = ?, name = ?", TWO, TWO),
    ("insert ignore into {t} values (?, ?)", TWICE, [(1, "a")]),
    ("replace into {t} values (?, ?)", TWICE, [(1, "b")]),
    ("replace into {t} select ?, ?", TWICE, [(1, "b")]),
    ("insert into {t} (select ?, ?)", TWO, TWO),
    ("delete from {t} where id = ? and name = ? returning id", TWO, []),
    # Values of several types in a column cannot go together.
    ("insert into {t} values (?, ?) {upsert} name = '50%'", [(1, "a"), ("1", 2)], [(1, "50%")]),
    ("insert into {t} values (?, ?)", [(1, "a"), ("2", 2.5)], [(1, "a"), (2, "2.5")]),
    ("set @a = ?, @b = ?", TWO, []),
    ("do ?, ?", TWO, []),
    ("select ?, ?", TWO, []),
)


async def check_series(
    db: cenote.Database, table: str, sql: str, rows: list[Any], expected: list[Any]
) -> None:
    """By itself, in a transaction, and prepared."""

    async def check() -> None:
        found = await db.fetch_all(f"select id, name from {table} order by id")
        assert [tuple(row) for row in found] == expected
        await db.execute(f"delete from {table}")

    await db.execute_many(sql, rows)
    assert not db.in_transaction
    await check()
    async with db.transaction():
        await db.execute_many(sql, rows)
    await check()
    async with await db.prepare(sql) as statement:
        await statement.execute_many(rows)
    await check()


@cached
@pytest.mark.parametrize(("text", "rows", "expected"), SERIES)
async def test_whatever_runs_once_runs_many_times(
    backend: Backend, text: str, rows: list[Any], expected: list[Any], size: int
) -> None:
    if "returning" in text:
        backend.need_mariadb("RETURNING")
    mysql = backend.name == "mysql"
    words = {
        "upsert": "on duplicate key update" if mysql else "on conflict (id) do update set",
        "number": "cast(? as signed)" if mysql else "cast(? as int)",
    }
    async with backend.database(statement_cache_size=size) as db, backend.table(db) as table:
        await check_series(db, table, text.format(t=table, **words), rows, expected)


@only_mysql
@cached
@pytest.mark.parametrize(("text", "rows", "expected"), SERIES_OF_MYSQL)
async def test_whatever_mysql_runs_once_it_runs_many_times(
    backend: Backend, text: str, rows: list[Any], expected: list[Any], size: int
) -> None:
    if "returning" in text:
        backend.need_mariadb("RETURNING")
    async with backend.database(statement_cache_size=size) as db, backend.table(db) as table:
        sql = text.format(t=table, upsert="on duplicate key update")
        await db.execute(
            f"create procedure {table}_put(a int, b varchar(20)) insert into {table} values (a, b)"
        )
        try:
            await check_series(db, table, sql, rows, expected)
        finally:
            await db.execute(f"drop procedure {table}_put")


@cached
async def test_one_after_the_other_is_all_or_nothing_too(backend: Backend, size: int) -> None:
    backend.need_mariadb("RETURNING")
    async with backend.database(statement_cache_size=size) as db, backend.table(db) as table:
        sql = f"insert into {table} values (?, ?) returning id"
        with pytest.raises(Exception, match=r"(?i)unique|duplicate") as caught:
            await db.execute_many(sql, [(1, "a"), (2, "b"), (1, "c")])
        assert type(caught.value).__name__ == backend.integrity_error
        assert not db.in_transaction
        assert await db.fetch_val(f"select count(*) from {table}") == 0


@only_mysql
@cached
async def test_one_after_the_other_goes_back_to_a_savepoint(backend: Backend, size: int) -> None:
    async with backend.database(statement_cache_size=size) as db, backend.table(db) as table:
        async with db.transaction():
            await db.execute(f"insert into {table} values (5, 'e')")
            with pytest.raises(Exception, match="Duplicate"):
                await db.execute_many(f"insert into {table} select ?, ?", [(1, "a"), (5, "b")])
        assert [row[0] for row in await db.fetch_all(f"select id from {table}")] == [5]


# -- counts --------------------------------------------------------------------------------------


async def test_rows_are_counted_whatever_the_statement_begins_with(backend: Backend) -> None:
    backend.need_mariadb("RETURNING")
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (7, 'a'), (8, 'b') returning id"
        assert await db.execute(insert) == 2
        assert await db.execute(f"/* all */ delete from {table} returning name") == 2
        async with await db.prepare(insert) as statement:
            assert await statement.execute() == 2
        assert await db.execute(f"delete from {table} where id = ? returning id", [9]) == 0
        assert await db.execute(f"select * from {table}") == 0
        assert await db.execute(f"with c as (select 1 as x) select * from {table}, c") == 0
        if backend.name != "mysql":  # MariaDB knows no other statement with WITH
            with_c = "with c as (select 7 as x)"
            where = "where id in (select x from c)"
            assert await db.execute(f"{with_c} update {table} set name = 'c' {where}") == 1
            assert await db.execute(f"{with_c} delete from {table} {where} returning id") == 1
            assert await db.execute(f"{with_c} delete from {table} {where}") == 0


@only_sqlite
async def test_what_a_trigger_changes_is_not_counted(backend: Backend) -> None:
    def as_dict(cursor: Any, row: Any) -> Any:
        return {"a": row[0]}

    def greet(raw: Any) -> None:
        raw.row_factory = as_dict

    async with backend.database(on_connect=greet) as db, backend.table(db) as table:
        await db.execute(f"insert into {table} values (1, 'a'), (2, 'b')")
        await db.execute(
            f"create trigger more after delete on {table} when old.id = 1 "
            f"begin delete from {table}; end"
        )
        deleted = f"with c as (select 1 as x) delete from {table} where id in (select x from c)"
        assert await db.execute(deleted) == 1
        assert await db.fetch_all(f"select id from {table}") == []


@only_sqlite
async def test_what_ddl_deletes_by_itself_is_not_counted(backend: Backend) -> None:
    async with backend.database() as db:
        await db.execute("pragma foreign_keys = on")
        await db.execute("create table parent (id integer primary key)")
        await db.execute("create table child (id references parent)")
        await db.execute("insert into parent values (1), (2), (3)")
        assert await db.execute("drop table parent") == 0  # deletes its rows, for the foreign keys
        await db.execute("drop table child")


# -- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
async def test_a_stream_that_changes_rows_has_changed_all_of_them(
    backend: Backend, inside: bool
) -> None:
    backend.need_mariadb("RETURNING")
    async with backend.database() as db, backend.table(db) as table:
        sql = f"insert into {table} values (1, 'a'), (2, 'b') returning id"

        async def leave() -> None:
            if inside:
                await db.begin()
            async for row in db.iterate(sql):
                assert row["id"] == 1
                break
            if inside:
                await db.commit()

        await in_task(leave())
        await eventually(lambda: db.pool.active_count == 0)
        assert await db.fetch_val(f"select count(*) from {table}") == 2


async def test_a_database_in_memory_is_written_during_a_stream() -> None:
    async with cenote.Database(MEMORY) as db:
        await db.execute("create table t (a int)")
        await db.execute_many("insert into t values (?)", [[number] for number in range(1000)])
        seen = 0
        async for row in db.iterate("select a from t where a < ?", [500]):
            assert row["a"] == seen
            seen += 1
            if seen in (1, 300):
                await db.execute("insert into t values (7000)")
        assert seen == 500
        assert await db.fetch_val("select count(*) from t") == 1002


async def test_a_long_stream_in_memory_is_not_collected() -> None:
    numbers = "with recursive n(a) as (select 0 union all select a + 1 from n) select a from n"
    async with cenote.Database(MEMORY) as db:
        seen = 0
        async with db.iterate(numbers) as stream:  # it has no end
            async for row in stream:
                assert row[0] == seen
                seen += 1
                if seen == 25_000:
                    break
        assert await db.fetch_val("select 1") == 1


# -- what pins -----------------------------------------------------------------------------------


@only_sqlite
async def test_looking_for_temporary_tables_makes_none(backend: Backend) -> None:
    async with backend.database() as db:
        for table in ("sqlite_temp_master", "sqlite_temp_schema"):
            assert await db.fetch_val(f"select count(*) from {table}") == 0
            assert db.pin_reason is None


@only_mysql
@cached
async def test_without_autocommit_a_transaction_is_open_from_work_to_commit(
    backend: Backend, size: int
) -> None:
    async with (
        backend.database(max_size=1, statement_cache_size=size) as db,
        backend.table(db) as table,
    ):
        insert = f"insert into {table} values (?, 'a')"
        await db.execute("set autocommit = 0")
        assert db.pin_reason == "session state touched by SET"
        for number, end in ((1, db.commit), (2, db.rollback)):
            assert not db.in_transaction
            await db.execute(insert, [number])
            assert db.in_transaction
            with pytest.raises(cenote.PoolError, match="release\\(\\) inside a transaction"):
                await db.release()
            await end()
        await db.execute(insert, [3])
        await db.execute("commit")
        assert not db.in_transaction
        await db.execute_many(insert, [[4], [5]])
        assert db.in_transaction
        await db.rollback()
        async with db.transaction():
            await db.execute_many(insert, [[6], [7]])
        await db.release()
        assert await db.fetch_val("select @@autocommit") == 1
        found = await db.fetch_all(f"select id from {table} order by id")
        assert [row[0] for row in found] == [1, 3, 6, 7]
        assert db.pool.stats().created == 1


@only_mysql
async def test_a_deadlock_without_autocommit_is_a_loss(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, ?)", TWO)
        update = f"update {table} set name = 'c' where id = ?"
        ready = asyncio.Barrier(2)

        async def lock(first: int, second: int) -> str:
            await db.execute("set autocommit = 0")
            await db.execute(update, [first])
            await ready.wait()
            try:
                await db.execute(update, [second])
            except Exception as error:
                assert cenote.sqlstate(error) == "40001"  # noqa: PT017
                with pytest.raises(cenote.TransactionLostError) as caught:
                    await db.execute(update, [second])
                await db.rollback()
                return str(caught.value.outcome)
            await db.commit()
            return "done"

        outcomes = await asyncio.gather(lock(1, 2), lock(2, 1))
        assert sorted(outcomes) == ["done", "rolled_back"]


@only_mysql
@pytest.mark.parametrize("worked", [False, True])
async def test_nobody_gets_a_connection_without_autocommit(backend: Backend, worked: bool) -> None:
    async with backend.database(max_size=1, reset="never") as db, backend.table(db) as table:

        async def leave() -> None:
            await db.execute("set @mine = 1, autocommit = 0")
            if worked:
                await db.execute(f"insert into {table} values (1, 'a')")

        await in_task(leave())
        await in_task(db.execute(f"insert into {table} values (2, 'b')"))
        async with backend.database() as other:
            found = await other.fetch_all(f"select id from {table}")
        assert [row[0] for row in found] == [2]


# -- URLs ----------------------------------------------------------------------------------------


@postgres
async def test_user_and_password_as_options_of_the_url(backend: Backend) -> None:
    server = backend.server
    login = f"user=app&password={quote(PASSWORD, safe='')}"
    url = f"{backend.url.partition(':')[0]}://{server.host}:{server.port}/app?{login}"
    async with backend.database(url) as db:
        assert await db.fetch_val("select current_user::text") == "app"
        assert PASSWORD not in repr(db)
    wrong = url.replace(login, "user=app&password=hunter2")
    async with backend.database(wrong) as db:
        with pytest.raises(Exception, match=r"(?i)password") as caught:
            await db.fetch_val("select 1")
        assert "hunter2" not in repr(caught.value)
