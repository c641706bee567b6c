"""Prepared statements that are kept, plans that go stale, PgBouncer, and streams in flat memory."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import cenote
from cenote.sql.driver import LONGEST_KEPT
from cenote.testing import FaultProxy
from tests.support.backends import Backend

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


@asynccontextmanager
async def two_databases(backend: Backend, *, max_size: int) -> AsyncIterator[tuple[Any, Any, str]]:
    """Two of the same, and a table with one row: one of them changes it behind the other."""
    async with (
        backend.database(max_size=max_size) as db,
        backend.database(max_size=1) as other,
        backend.table(other) as table,
    ):
        await other.execute(f"insert into {table} values (1, 'a')")
        yield db, other, table


def only_link(db: Any) -> Any:
    (link,) = db._loop_databases[asyncio.get_running_loop()].connections
    return link


async def kept(backend: Backend, db: Any) -> dict[str, str]:
    """What is prepared on the one connection, as the server knows it: by text, the name. Asked in
    a way that prepares nothing."""
    raw = only_link(db).raw
    ask = "select statement, name from pg_prepared_statements where not from_sql order by 2"
    if backend.name == "asyncpg":
        rows = await (await raw.prepare(ask, name="")).fetch()
    else:
        rows = await (await raw.execute(ask, prepare=False)).fetchall()
    return {row[0]: row[1] for row in rows}


async def count_kept(backend: Backend, db: Any) -> int:
    if backend.name != "mysql":
        return len(await kept(backend, db))
    return int(await db.fetch_val(
        f"select variable_value from {backend.status}.global_status "
        "where variable_name = 'PREPARED_STMT_COUNT'"
    ))  # fmt: skip


async def prepared_so_far(db: Any) -> int:
    """By this session of MySQL."""
    return int((await db.fetch_one("show session status like 'Com_stmt_prepare'"))[1])


@pytest.fixture
def server_backend(backend: Backend) -> Backend:
    """SQLite's module keeps its statements where nobody can see them."""
    if backend.embedded:
        pytest.skip("there is no server that could be asked")
    return backend


async def test_at_most_so_many_are_kept(server_backend: Backend) -> None:
    backend = server_backend
    for size in (1, 5):
        async with backend.database(max_size=1, statement_cache_size=size) as db:
            before = await count_kept(backend, db) if backend.name == "mysql" else 0
            for round_ in range(2):
                for i in range(12):
                    assert await db.fetch_val(f"select {i} + :x", {"x": round_}) == i + round_
                    await db.fetch_val("select 1")
            assert await count_kept(backend, db) - before <= size + (backend.name == "psycopg")
            assert await count_kept(backend, db) - before >= min(size, 2)
            assert db.pool.stats().created == 1


async def test_the_least_recently_used_is_dropped(server_backend: Backend) -> None:
    backend = server_backend
    async with backend.database(max_size=1, statement_cache_size=3) as db:

        async def use(*letters: str) -> None:
            for letter in letters:
                assert await db.fetch_val(f"select '{letter}' where 1 = ?", [1]) == letter

        if backend.name == "mysql":
            await use("a", "b", "c", "a", "d")
            prepared = await prepared_so_far(db)
            await use("a", "c", "d", "a")
            assert await prepared_so_far(db) == prepared
            await use("b")
            assert await prepared_so_far(db) == prepared + 1
        else:
            await use("a", "b", "c")
            before = await kept(backend, db)
            await use("a", "d", "a", "c")
            after = await kept(backend, db)
            assert sorted(text[8] for text in after) == ["a", "c", "d"]
            for text in after:
                assert "'d'" in text or after[text] == before[text]  # still the same


async def test_a_cache_of_no_size_keeps_nothing(server_backend: Backend) -> None:
    backend = server_backend
    async with backend.database(max_size=1, statement_cache_size=0) as db:
        before = await count_kept(backend, db) if backend.name == "mysql" else 0
        async with backend.table(db) as table:
            for i in range(5):
                await db.execute(f"insert into {table} values (?, 'a')", [i])
                assert await db.fetch_val(f"select count(*) from {table} where id >= ?", [0])
            await db.execute_many(f"insert into {table} values (?, 'a')", [[10], [11]])
            assert len([row async for row in db.iterate(f"select * from {table}")]) == 7
            async with db.transaction():
                assert await db.fetch_val(f"select count(*) from {table} where id > ?", [9]) == 2
            assert await count_kept(backend, db) - before == 0


async def test_every_driver_says_whether_it_keeps_them(backend: Backend) -> None:
    async with backend.database(statement_cache_size=2) as db:
        assert "statement_cache" in db.capabilities
        for i in range(10):
            assert await db.fetch_val(f"select {i} + ?", [1]) == i + 1


async def test_a_repeated_statement_is_prepared_once(server_backend: Backend) -> None:
    backend = server_backend
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
        url = backend.url_through(proxy.host, proxy.port)
        async with backend.database(url, max_size=1) as db, backend.table(db) as table:
            uses = [
                lambda i: db.execute(f"insert into {table} values (?, ?)", [i, "a"]),
                lambda i: db.fetch_all(f"select * from {table} where id = ?", [i]),
                lambda i: db.fetch_one(f"select * from {table} where id = ?", [i]),
                lambda i: db.fetch_val(f"select name from {table} where id = :id", {"id": i}),
            ]
            for use in uses:
                await use(1000)
            before = proxy.round_trips
            for i in range(10):
                for use in uses:
                    await use(i)
            assert proxy.round_trips - before == 40
            async with db.transaction():
                before = proxy.round_trips
                for use in uses[1:] * 5:
                    await use(3)
                assert proxy.round_trips - before == 15


# -- stale plans --------------------------------------------------------------------------------


def changes(backend: Backend, table: str) -> list[tuple[list[str], dict[str, Any]]]:
    """What another connection does to the table, and what the row is like then."""
    type_ = {
        "asyncpg": [f"alter table {table} alter column name type int using 5"],
        "psycopg": [f"alter table {table} alter column name type int using 5"],
        "mysql": [f"update {table} set name = '5'", f"alter table {table} modify name int"],
        "sqlite": [f"update {table} set name = 5"],
    }[backend.name]
    again = "create table {} (id {int}, born {text}, size {float})".format(table, **backend.types)
    return [
        ([f"alter table {table} add column more int default 7"], {"id": 1, "name": "a", "more": 7}),
        ([f"alter table {table} drop column more"], {"id": 1, "name": "a"}),
        ([f"alter table {table} add column x int default 8",
          f"alter table {table} add column y int default 9"],
         {"id": 1, "name": "a", "x": 8, "y": 9}),
        ([f"alter table {table} drop column x"], {"id": 1, "name": "a", "y": 9}),
        ([f"alter table {table} rename column y to z"], {"id": 1, "name": "a", "z": 9}),
        (type_, {"id": 1, "name": "5" if backend.embedded else 5, "z": 9}),
        ([f"drop table {table}", again, f"insert into {table} values (1, 'now', 1.5)"],
         {"id": 1, "born": "now", "size": 1.5}),
    ]  # fmt: skip


async def test_a_changed_table_is_not_noticed(backend: Backend) -> None:
    async with two_databases(backend, max_size=1) as (db, other, table):
        one, all_ = f"select * from {table} where id = ?", f"select * from {table} where id = :id"
        plain = f"select * from {table}"
        expected: dict[str, Any] = {"id": 1, "name": "a"}
        for statements, after in [([], expected), *changes(backend, table)]:
            for statement in statements:
                await other.execute(statement)
            expected = after
            for _ in range(3):
                assert dict((await db.fetch_one(one, [1])).items()) == expected
                rows = await db.fetch_all(all_, {"id": 1})
                assert [dict(row.items()) for row in rows] == [expected]
                assert dict((await db.fetch_one(plain)).items()) == expected
                rows = [row async for row in db.iterate(one, [1])]
                assert [dict(row.items()) for row in rows] == [expected]
                assert tuple(rows[0]) == tuple(expected.values())
                assert await db.fetch_val(one, [1]) == 1
        assert db.pool.stats().created == 1


async def test_a_changed_type_of_a_parameter_is_not_noticed(backend: Backend) -> None:
    async with (
        backend.database(max_size=1) as db,
        backend.database(max_size=1) as other,
        backend.table(other) as table,
    ):
        insert, update = (
            f"insert into {table} values (?, ?)",
            f"update {table} set name = ? where id = ?",
        )
        for _ in range(2):
            await db.execute(f"delete from {table}")
            await db.execute(insert, [1, "a"])
            assert await db.execute(update, ["5", 1]) == 1
        to_int = {
            "sqlite": "select 1",
            "mysql": f"alter table {table} modify name int",
        }.get(backend.name, f"alter table {table} alter column name type int using name::int")
        await other.execute(to_int)
        assert await db.execute(update, [6, 1]) == 1
        assert await db.execute(insert, [2, 7]) == 1
        await db.execute_many(insert, [[3, 8], [4, 9]])
        found = await db.fetch_all(f"select name from {table} order by id")
        assert [int(row[0]) for row in found] == [6, 7, 8, 9]
        # What is really wrong still comes through, once.
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            await db.execute(insert, [2, 7])


async def test_a_changed_table_in_a_transaction(backend: Backend) -> None:
    """PostgreSQL cannot go on with a stale plan inside a transaction: the error comes through,
    and after that everything is as before."""
    async with two_databases(backend, max_size=1) as (db, other, table):
        select = f"select * from {table} where id = ?"

        async def read() -> list[str]:
            async with db.transaction():
                return list((await db.fetch_one(select, [1])).keys())

        for i in range(3):
            assert await read() == ["id", "name", *(f"c{j}" for j in range(i))]
            await other.execute(f"alter table {table} add column c{i} int")
            if backend.name in ("asyncpg", "psycopg"):
                with pytest.raises(Exception, match="cached") as caught:
                    await read()
                assert not isinstance(caught.value, cenote.PoolError)
            assert not db.in_transaction
            assert db.pin_reason is None
        assert await read() == ["id", "name", "c0", "c1", "c2"]
        assert list((await db.fetch_one(select, [1])).keys()) == ["id", "name", "c0", "c1", "c2"]
        assert db.pool.stats().created == 1


async def test_what_was_prepared_again_is_there_in_a_transaction(backend: Backend) -> None:
    """After a change that nobody noticed it is not a statement in a transaction that pays."""
    async with two_databases(backend, max_size=1) as (db, other, table):
        select = f"select * from {table} where id = ?"
        insert = f"insert into {table} (id, name) values (?, ?)"
        for i in range(3):
            await db.fetch_one(select, [1])
            await other.execute(f"alter table {table} add column c{i} int")
            await db.fetch_one(select, [1])
            async with db.transaction():
                assert len(await db.fetch_one(select, [1])) == 3 + i
                await db.execute_many(insert, [[10 + i, "b"]])
            await db.execute_many(insert, [[20 + i, "c"]])
            async with db.transaction():
                assert len(await db.fetch_one(select, [1])) == 3 + i
        assert db.pool.stats().created == 1


async def test_an_open_statement_after_a_change(backend: Backend) -> None:
    async with two_databases(backend, max_size=2) as (db, other, table):
        one = await db.prepare(f"select * from {table} where id = ?")
        two = await db.prepare(f"select count(*) as n from {table} where id >= :id")
        for statements, expected in [([], {"id": 1, "name": "a"}), *changes(backend, table)]:
            for statement in statements:
                await other.execute(statement)
            for _ in range(2):
                assert dict((await one.fetch_one([1])).items()) == expected
                rows = await one.fetch_all([1])
                assert [dict(row.items()) for row in rows] == [expected]
                assert await one.fetch_val([1]) == 1
                assert await two.fetch_val({"id": 0}) == 1
                rows = [row async for row in one.iterate([1])]
                assert [dict(row.items()) for row in rows] == [expected]
        await one.close()
        await two.close()
        assert db.pool.active_count == 0
        assert db.pool.stats().created == 2


async def test_statements_after_a_reset(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute(f"insert into {table} values (1, 'a')")
        select = f"select name from {table} where id = ?"
        for touch, _query in backend.touches[:3]:
            assert await db.fetch_val(select, [1]) == "a"
            await db.execute(touch)
            await db.fetch_val("select ?", ["x"])
            await db.release()
            assert await db.fetch_val(select, [1]) == "a"
            assert await db.fetch_val("select ?", ["x"]) == "x"
            await db.execute(f"update {table} set name = ? where id = ?", ["a", 1])


@pytest.mark.parametrize("statement", ["deallocate all", "discard all"])
async def test_someone_throws_all_plans_away(server_backend: Backend, statement: str) -> None:
    backend = server_backend
    if backend.name == "mysql":
        pytest.skip("MySQL has no such statement")
    async with backend.database(max_size=1) as db:
        for _ in range(2):
            assert await db.fetch_val("select ?::int + 1", [1]) == 2
            await db.execute(statement)
            assert await db.fetch_val("select ?::int + 1", [1]) == 2
            await db.release()
            assert await db.fetch_val("select ?::int + 1", [1]) == 2
            await asyncio.create_task(db.execute(statement))
            assert await db.fetch_val("select ?::int + 1", [1]) == 2


async def test_the_same_text_with_other_types(backend: Backend) -> None:
    async with backend.database(max_size=1, statement_cache_size=4) as db:
        cast = {"mysql": "concat(?, '')", "sqlite": "cast(? as text)"}.get(
            backend.name, "cast(? as text)"
        )
        values: list[Any] = ["a", "7", "x" * 300]
        if backend.name != "asyncpg":  # which asks the server for the type, and then insists
            values += [7, 2**40, 7.5]
        for _ in range(2):
            for value in values:
                found = await db.fetch_val(f"select {cast}", [value])
                assert str(found) == str(value)


# -- PgBouncer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_lists_are_told_apart_through_pgbouncer(pgbouncer: Any, driver: str) -> None:
    """What the server says of a parameter is about this statement, and not about another task's."""
    pytest.importorskip(driver)
    url = pgbouncer.tcp_url().replace("postgresql://", f"postgresql+{driver}://")
    async with cenote.Database(url, statement_cache_size=0, max_size=20) as db:

        async def one(number: int) -> None:
            declared = ("jsonb", "int[]")[number % 2]
            for at in range(20):
                sql = f"select ?::{declared} as c{number}_{at}"
                assert await db.fetch_val(sql, [[number, at]]) == [number, at]

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(one(number))


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_the_cache_works_through_pgbouncer(
    pgbouncer: Any, postgres_server: Any, driver: str
) -> None:
    """In transaction mode: 3 connections to the server for 20 of ours."""
    pytest.importorskip(driver)
    url = pgbouncer.tcp_url().replace("postgresql://", f"postgresql+{driver}://")
    db = cenote.Database(url, statement_cache_size=0, max_size=20)
    table = f"t_{os.urandom(6).hex()}"
    try:
        await db.execute(f"create table {table} (id int primary key, name text)")

        async def one(number: int) -> None:
            text = f"number {number}"
            assert await db.fetch_val("select ?::int + 1", [number]) == number + 1
            assert await db.fetch_val("select ? || ?", [text, "!"]) == f"{text}!"
            row = await db.fetch_one("select ?::text as a, ?::int as b", [text, number])
            assert (row["a"], row["b"]) == (text, number)
            insert = f"insert into {table} values (?, ?)"
            await db.execute(insert, [number * 10, text])
            async with db.transaction():
                await db.execute(insert, [number * 10 + 1, text])
                assert await db.fetch_val(f"select count(*) from {table} where name = ?", [text])
            await db.execute_many(insert, [[number * 10 + i, text] for i in (2, 3, 4)])
            select = f"select id from {table} where name = :name order by id"
            ids = [row[0] async for row in db.iterate(select, {"name": text})]
            assert ids == [number * 10 + i for i in range(5)]
            with pytest.raises(Exception, match="duplicate"):
                await db.execute(insert, [number * 10, text])

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(one(number))
        assert await db.fetch_val(f"select count(*) from {table}") == 1000
        async with db.transaction(read_only=True):
            stream = db.iterate(f"select id from {table} order by id")
            assert (await anext(stream))[0] == 0
            assert await db.fetch_val(f"select count(*) from {table} where id > ?", [5]) == 999 - 4
            await stream.aclose()
        assert db.pool.active_count == 0
    finally:
        await db.close()
        direct = postgres_server.tcp_url().replace("postgresql://", f"postgresql+{driver}://")
        async with cenote.Database(direct) as cleaner:
            await cleaner.execute(f"drop table if exists {table}")


# -- streams ------------------------------------------------------------------------------------

ROWS = 200_000
WIDE = {
    "sqlite": "with recursive c(x) as (select 1 union all select x + 1 from c limit {n}) "
    "select x, hex(zeroblob(100)) from c where x > {start}",
    "asyncpg": "select x, repeat('x', 200) from generate_series(1, {n}) x where x > {start}",
    "psycopg": "select x, repeat('x', 200) from generate_series(1, {n}) x where x > {start}",
    "mysql": "select seq, repeat('x', 200) from seq_1_to_{n} where seq > {start}",
}


def resident() -> int:
    """Megabytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures memory as on Linux")
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "transaction"])
async def test_a_stream_takes_no_memory(backend: Backend, inside: bool) -> None:
    """All rows together are 60 MB; the reader is slow, and the server is not kept from sending."""
    sql = WIDE[backend.name].format(n=ROWS, start=0)

    async def read(db: Any) -> tuple[int, int]:
        before = most = resident()
        count = 0
        async for row in db.iterate(sql):
            count += 1
            if count % 20_000 == 0:
                assert row[0] == count
                for _ in range(100):
                    await asyncio.sleep(0)
                most = max(most, resident())
        assert count == ROWS
        return most - before, count

    async with backend.database() as db:
        await db.fetch_all(WIDE[backend.name].format(n=2000, start=0))  # warm
        if inside:
            async with db.transaction(read_only=True):
                grown, _ = await read(db)
        else:
            grown, _ = await read(db)
        assert grown < 20, f"{grown} MB"


async def test_a_reader_that_stops_makes_the_server_wait(server_backend: Backend) -> None:
    """What is on the wire when nobody reads is bounded."""
    backend = server_backend
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
        url = backend.url_through(proxy.host, proxy.port)
        async with backend.database(url) as db:
            stream = db.iterate(WIDE[backend.name].format(n=ROWS, start=0))
            assert (await anext(stream))[0] == 1
            before = resident()
            for _ in range(2000):
                await asyncio.sleep(0)
            assert resident() - before < 20
            assert (await anext(stream))[0] == 2
            await stream.aclose()
            assert await db.fetch_val("select 1") == 1


async def test_a_long_text_is_not_kept(server_backend: Backend) -> None:
    backend = server_backend
    long = f"/* {'x' * LONGEST_KEPT} */"
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        before = await count_kept(backend, db) if backend.name == "mysql" else 0
        assert await db.fetch_val(f"select 1 {long}") == 1
        await db.execute(f"set {'@mine' if backend.name == 'mysql' else 'my.own'} = 1 {long}")
        for i in range(2):
            insert = f"insert into {table} values (?, ?) {long}"
            await db.execute(insert, [i, "a"])
            await db.execute_many(insert, [[10 + i, "b"], [20 + i, "c"]])
            assert await db.fetch_val(f"select ? {long}", ["a"]) == "a"
            sql = f"select id from {table} where id < ? {long}"
            assert len([row async for row in db.iterate(sql, [2])]) == i + 1
        if backend.name == "mysql":
            unpreparable = f"show tables like ? {long}"
            assert await db.fetch_val(unpreparable, [table]) == table
        assert not [text for text in remembered(backend, db) if len(text) > LONGEST_KEPT]
        if backend.name == "mysql":
            assert await count_kept(backend, db) == before
        else:
            assert not [text for text in await kept(backend, db) if len(text) > LONGEST_KEPT]
        assert await db.fetch_val("select ?", ["a"]) == "a"
        assert any("select" in str(text) for text in remembered(backend, db))  # looked for well


def remembered(backend: Backend, db: Any) -> list[str | bytes]:
    """The texts that the one connection holds."""
    link = only_link(db)
    if backend.name == "mysql":
        kinds = [kind if isinstance(kind, str) else kind[0] for kind in link._plans]
        return [*kinds, *link._unpreparable]
    if backend.name == "psycopg":
        return [key[0] for key in (*link._keeper._names, *link._keeper._counts)]
    return [entry.query for entry in link.raw._stmt_cache.iter_statements()]
