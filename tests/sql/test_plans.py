"""Plans and prepared statements: what is kept, thrown away, and read as the session says."""

import contextlib
from typing import Any
from uuid import uuid4

import pytest

from cenote.drivers.postgresql import keeps
from tests.support.backends import Backend
from tests.support.faults import (
    outcome,
    with_postgresql,
)
from tests.support.held import in_task

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


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
def test_plans_of_plain_texts_are_kept(text: str) -> None:
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


@with_postgresql
async def test_separated_digits_are_read_as_the_session_says(
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
async def test_any_change_of_the_schema_is_noticed(backend: Backend, name: str) -> None:
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


LOCKS = (
    "select count(*) from pg_locks l join pg_class c on c.oid = l.relation "
    "where c.relname = ? and l.pid <> pg_backend_pid()"
)


@pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)
@pytest.mark.parametrize("kept", [False, True])
async def test_nothing_is_locked_by_what_was_prepared_only(backend: Backend, kept: bool) -> None:
    """asyncpg ends the message of a preparation with the first run, which may never come."""
    async with (
        backend.database(max_size=1) as db,
        backend.database(max_size=1) as other,
        backend.table(other) as table,
    ):
        text = f"insert into {table} values (? + 0, ?)"
        if kept:
            await db.execute(text, [1, "a"])

        async def bad_value() -> None:
            for run in (db.execute, db.fetch_all, db.fetch_one, db.fetch_val):
                with pytest.raises(Exception, match=r"invalid input|cannot adapt"):
                    await run(text, [2, object()])
                assert await other.fetch_val(LOCKS, [table]) == 0
            with pytest.raises(Exception, match=r"invalid input|cannot adapt"):
                await db.execute_many(text, [[object(), "b"]])

        await bad_value()
        assert await other.fetch_val(LOCKS, [table]) == 0
        query = f"select id from {table} where id > ?"
        async with await db.prepare(query) as statement:
            assert await other.fetch_val(LOCKS, [table]) == 0
            with pytest.raises(Exception, match=r"invalid input|cannot adapt"):
                await statement.fetch_all([object()])
            assert await other.fetch_val(LOCKS, [table]) == 0
        assert await other.fetch_val(LOCKS, [table]) == 0
        assert await db.fetch_val(f"select count(*) from {table}") == int(kept)
