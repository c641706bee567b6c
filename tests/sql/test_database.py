"""The database layer, the same for every driver: statements, rows, parameters, pins."""

import asyncio
from typing import Any

import pytest

import cenote
from cenote.sql.streams import is_wide
from tests.support.backends import Backend
from tests.support.waiting import WAIT

pytestmark = pytest.mark.real_time("talks to real servers")


async def test_a_new_database_opens_no_connection(backend: Backend) -> None:
    async with backend.database() as db:
        assert db.pool.count == 0
        assert db.bound_connection is None
        assert db.pin_reason is None
        assert not db.in_transaction
        assert db.pool.count == 0


async def test_execute_gives_the_rows_that_matched(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        assert await db.execute(f"insert into {table} values (1, 'a'), (2, 'b'), (3, 'b')") == 3
        assert await db.execute(f"update {table} set name = 'b' where name = ?", ["b"]) == 2
        assert await db.execute(f"update {table} set name = 'x' where id = ?", [9]) == 0
        assert await db.execute(f"delete from {table} where id = :id", {"id": 1}) == 1
        assert await db.execute(f"select * from {table}") == 0
        assert await db.execute(f"create table {table}_2 (a int)") == 0
        assert await db.execute(f"drop table {table}_2") == 0


async def test_rows_by_position_and_by_name(backend: Backend) -> None:
    async with backend.database() as db:
        rows = await db.fetch_all("select 1 as one, 'b' as two union all select 3, 'd' order by 1")
        assert [tuple(row) for row in rows] == [(1, "b"), (3, "d")]
        row = rows[0]
        assert (row[0], row["one"], row[1], row["two"]) == (1, 1, "b", "b")
        assert list(row.keys()) == ["one", "two"]
        assert list(row.values()) == [1, "b"]
        assert dict(row.items()) == {"one": 1, "two": "b"}
        assert row.get("two") == "b"
        assert row.get("three", 9) == 9
        assert row[-1] == "b"
        assert len(row) == 2
        with pytest.raises(KeyError):
            row["three"]
        with pytest.raises(IndexError):
            row[2]
        one = await db.fetch_one("select 1 as one, 'b' as two")
        assert tuple(one) == (1, "b")
        assert one["two"] == "b"


async def test_queries_without_rows_return_nothing(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        assert await db.fetch_all(f"select * from {table}") == []
        assert await db.fetch_one(f"select * from {table}") is None
        assert await db.fetch_val(f"select * from {table}") is None
        assert [row async for row in db.iterate(f"select * from {table}")] == []


@pytest.mark.parametrize("value", [None, 0, -5, 2**40, "", "täxt ✓", "a'b\"c\\d%s ? :x --", 1.5])
async def test_values_arrive_as_they_were_sent(backend: Backend, value: Any) -> None:
    kind = {int: "bigint", float: "{float}"}.get(type(value), "{text}")
    async with backend.database() as db, backend.table(db, f"a {kind}") as table:
        await db.execute(f"insert into {table} values (?)", [value])
        await db.execute(f"insert into {table} values (:value)", {"value": value})
        assert await db.fetch_val(f"select a from {table}") == value
        assert [row[0] for row in await db.fetch_all(f"select a from {table}")] == [value, value]
        async for row in db.iterate(f"select a from {table}"):
            assert row["a"] == value


async def test_placeholders_in_strings_and_comments(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute(f"insert into {table} values (1, 'a?:b%')")
        sql = f"select name /* ? :x */ from {table} where name = 'a?:b%' and id = ? -- ? :y\n"
        assert await db.fetch_val(sql, [1]) == "a?:b%"
        sql = f"select name /* ? :x */ from {table} where name like 'a?:b%' and id = :id"
        assert await db.fetch_val(sql, {"id": 1}) == "a?:b%"
        assert await db.fetch_val(f"select name from {table} where name like 'a%'") == "a?:b%"


async def test_parameters_that_do_not_match_are_refused(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.raises(ValueError, match=r"2 placeholders.*1 parameter"):
            await db.fetch_val("select ?, ?", [1])
        with pytest.raises(ValueError, match=r"missing.*b"):
            await db.fetch_val("select :a, :b", {"a": 1})
        with pytest.raises(ValueError, match=r"left over.*c"):
            await db.fetch_val("select :a", {"a": 1, "c": 2})
        with pytest.raises(TypeError, match="parameters"):
            await db.fetch_val("select ?", "x")
        assert db.pool.count == 0  # found before a connection was taken


async def test_execute_many_is_all_or_nothing(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        await db.execute_many(insert, [[1, "a"], [2, "b"]])
        await db.execute_many(f"insert into {table} values (:i, :n)", [{"i": 3, "n": "c"}])
        await db.execute_many(insert, [])
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            await db.execute_many(insert, [[4, "d"], [1, "again"], [5, "e"]])
        assert await db.fetch_val(f"select count(*) from {table}") == 3
        assert not db.in_transaction
        assert db.pin_reason is None
        with pytest.raises(TypeError, match="execute_many"):
            await db.execute_many(insert, {"i": 1})


async def fail_half_way(db: Any, insert: str) -> None:
    async with db.transaction():
        await db.execute(insert, [3, "c"])
        await db.execute_many(insert, [[4, "d"], [1, "again"]])


async def test_execute_many_in_a_transaction(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        async with db.transaction():
            await db.execute_many(insert, [[1, "a"], [2, "b"]])
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            await fail_half_way(db, insert)
        assert await db.fetch_val(f"select count(*) from {table}") == 2


async def test_the_connection_returns_after_each_statement(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        for statement in (db.execute, db.fetch_all, db.fetch_one, db.fetch_val):
            await statement(f"select count(*) from {table}")
            assert db.pool.active_count == 0
            assert db.bound_connection is None
        with pytest.raises(Exception, match=r"(?i)syntax"):
            await db.execute("selct 1")
        assert db.pool.active_count == 0
        assert db.pool.stats().created == 1


async def test_a_raw_begin_pins(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute(backend.raw_begin)
        assert db.in_transaction
        assert db.pin_reason == "in a transaction"
        assert db.bound_connection is not None
        assert db.pool.active_count == 1
        assert [holder.reason for holder in db.pool.holders()] == ["in a transaction"]
        await db.execute(f"insert into {table} values (1, 'a')")
        await db.execute("ROLLBACK")
        assert not db.in_transaction
        assert db.pin_reason is None
        assert db.pool.active_count == 0
        await db.execute(backend.raw_begin)
        await db.execute(f"insert into {table} values (1, 'a')")
        await db.execute("COMMIT")
        assert db.pool.active_count == 0
        assert await db.fetch_val(f"select count(*) from {table}") == 1


async def test_begin_commit_and_rollback_span_statements(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.begin()
        assert db.in_transaction
        await db.execute(f"insert into {table} values (1, 'a')")
        await db.commit()
        assert not db.in_transaction
        assert db.pool.active_count == 0
        await db.begin()
        await db.execute(f"insert into {table} values (2, 'b')")
        await db.rollback()
        assert await db.fetch_val(f"select count(*) from {table}") == 1
        for end in (db.commit, db.rollback):
            with pytest.raises(cenote.PoolError, match="no transaction is open"):
                await end()
        await db.begin()
        with pytest.raises(cenote.PoolError, match="open already"):
            await db.begin()
        await db.rollback()


async def leave_by_an_error(db: Any, insert: str) -> None:
    async with db.transaction():
        await db.execute(insert, [2])
        async with db.transaction():
            await db.execute(insert, [3])
        raise KeyError


async def test_nested_blocks_are_savepoints(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'a')"
        async with db.transaction():
            await db.execute(insert, [1])
            with pytest.raises(KeyError):
                await leave_by_an_error(db, insert)
            async with db.transaction():
                await db.execute(insert, [4])
            with pytest.raises(ValueError, match="outermost"):
                async with db.transaction(read_only=True):
                    pass
        rows = await db.fetch_all(f"select id from {table} order by id")
        assert [row[0] for row in rows] == [1, 4]
        assert db.pool.active_count == 0


async def test_an_sql_error_in_a_savepoint_leaves_the_outer_usable(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        async with db.transaction():
            await db.execute(f"insert into {table} values (1, 'a')")
            with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
                async with db.transaction():
                    await db.execute(f"insert into {table} values (1, 'b')")
            await db.execute(f"insert into {table} values (2, 'b')")
        assert await db.fetch_val(f"select count(*) from {table}") == 2


async def test_isolation_and_read_only(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        for level in ("read committed", "repeatable_read", "SERIALIZABLE", "read uncommitted"):
            async with db.transaction(isolation=level):
                await db.execute(f"delete from {table}")
        with pytest.raises(Exception, match=r"(?i)read.?only"):
            async with db.transaction(read_only=True):
                await db.execute(f"insert into {table} values (1, 'a')")
        async with db.transaction(read_only=True):
            assert await db.fetch_val(f"select count(*) from {table}") == 0
        await db.execute(f"insert into {table} values (1, 'a')")  # read-only no more
        with pytest.raises(ValueError, match="isolation"):
            db.transaction(isolation="snapshot")
        with pytest.raises(TypeError, match="read_only"):
            db.transaction(read_only=1)


async def test_prepared_statements_run_with_many_parameters(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = await db.prepare(f"insert into {table} values (?, ?)")
        assert "statement is open" in db.pin_reason
        assert await insert.execute([1, "a"]) == 1
        await insert.execute_many([[2, "b"], [3, "c"]])
        await insert.close()
        assert db.pin_reason is None
        assert db.pool.active_count == 0
        async with await db.prepare(f"select * from {table} where id >= :id order by id") as select:
            assert [row["name"] for row in await select.fetch_all({"id": 2})] == ["b", "c"]
            assert (await select.fetch_one({"id": 2}))["name"] == "b"
            assert await select.fetch_val({"id": 3}) == 3
            assert [row["id"] async for row in select.iterate({"id": 1})] == [1, 2, 3]
            with pytest.raises(ValueError, match=r"missing"):
                await select.fetch_val({})
        with pytest.raises(cenote.PoolError, match="closed"):
            await select.fetch_val({"id": 1})
        await select.close()
        assert db.pool.active_count == 0


async def test_a_collected_statement_unpins(backend: Backend) -> None:
    async with backend.database() as db:
        statement = await db.prepare("select 1")
        assert await statement.fetch_val() == 1
        del statement
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert db.pin_reason is None
        assert db.pool.active_count == 0
        assert await db.fetch_val("select 2") == 2


async def test_streams_outside_a_transaction_have_their_own_connection(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        seen = []
        async for row in db.iterate(f"select id from {table} where id >= ? order by id", [3]):
            if row["id"] % 50 == 0:
                assert await db.fetch_val(f"select id from {table} where id = ?", [row[0]])
                assert db.pool.active_count == 1
            seen.append(row[0])
        assert seen == list(range(3, 250))
        assert db.pool.active_count == 0


async def test_a_stream_left_early(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        stream = db.iterate(f"select id from {table} order by id")
        async for row in stream:
            if row[0] == 120:
                break
        assert db.pool.active_count == 1
        assert "stream is open" in db.pool.holders()[0].reason
        await stream.aclose()
        assert db.pool.active_count == 0
        await stream.aclose()
        assert [row async for row in stream] == []
        assert await db.fetch_val(f"select count(*) from {table}") == 250


async def test_a_collected_stream_gives_its_connection_back(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        async for _row in db.iterate(f"select id from {table}"):
            break
        assert await db.fetch_val(f"select count(*) from {table}") == 250


@pytest.mark.parametrize("begin", ["block", "raw"])
async def test_a_stream_in_a_transaction_left_by_break(backend: Backend, begin: str) -> None:
    """It is collected in the same step in which the next statement begins."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'a')", [[i] for i in range(500)])
        if begin == "block":
            transaction = db.transaction()
            await transaction.__aenter__()
        else:
            await db.execute(backend.raw_begin)
        async for _ in db.iterate(f"select * from {table}"):
            break
        assert db.pin_reason == "in a transaction"
        assert await db.execute(f"update {table} set name = 'b' where id = 1") == 1
        async for _ in db.iterate(f"select * from {table}"):
            break
        if begin == "block":
            await transaction.__aexit__(None, None, None)
        else:
            await db.commit()
        assert await db.fetch_val(f"select name from {table} where id = 1") == "b"


@pytest.mark.parametrize("reset", ["auto", "never"])
async def test_a_stream_collected_at_the_end_of_a_block(backend: Backend, reset: str) -> None:
    """It is open on the connection still when that goes back."""
    async with backend.database(max_size=1, reset=reset) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'a')", [[i] for i in range(500)])
        select = f"select a.id, b.id from {table} a, {table} b"  # more than buffers hold
        for _ in range(2):
            async with db.connection():
                stream = db.iterate(select)
                await anext(stream)
                del stream
            assert await db.fetch_val("select 7") == 7
        assert db.pool.stats().rejected == 0


async def test_a_stream_that_touches_the_session_keeps_no_connection(backend: Backend) -> None:
    touching = {
        "sqlite": "pragma cache_size = 55",
        "mysql": "select @a := 1",
    }.get(backend.name, "select set_config('work_mem', '1MB', false)")
    async with backend.database(max_size=1, acquire_timeout=5) as db:
        for _ in range(3):
            async for _ in db.iterate(touching):
                pass
            assert db.pin_reason is None
            assert await db.fetch_val("select 1") == 1


async def test_streams_in_a_transaction_share_it(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        async with db.transaction():
            rows = [[i] for i in range(250)]
            await db.execute_many(f"insert into {table} values (?, 'x')", rows)
            count = 0
            stream = db.iterate(f"select id from {table}")
            async for _row in stream:
                count += 1
                if count == 120:
                    if backend.interleaves:
                        await db.execute(f"update {table} set name = 'y' where id = 5")
                    else:
                        with pytest.raises(cenote.PoolError, match=r"stream is open.*select id"):
                            await db.execute(f"update {table} set name = 'y' where id = 5")
            assert count == 250
            stream = db.iterate(f"select id from {table}")
            await anext(stream)
            await stream.aclose()
            assert await db.fetch_val(f"select count(*) from {table}") == 250
        assert db.pool.active_count == 0


async def test_more_at_once_than_a_message_may_be(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute(f"drop table {table}")
        kind = "longtext" if backend.name == "mysql" else "text"
        await db.execute(f"create table {table} (id int primary key, name {kind})")
        insert, wide = f"insert into {table} values (?, ?)", "x" * 1_000_000
        await db.execute_many(insert, [[i, wide] for i in range(20)])
        assert await db.fetch_val(f"select count(*) from {table}") == 20
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            await db.execute_many(insert, [[20, wide], [21, wide], [1, ""]])
        assert await db.fetch_val(f"select count(*) from {table}") == 20
        assert db.pool.stats().created == 1


async def test_observers_hear_of_the_wait_too(backend: Backend) -> None:
    """A full pool is seen where it hurts: in the statement that waits."""
    select, insert = "select * from nowhere", "insert into nowhere values (?)"
    async with backend.database(min_size=1, max_size=1, acquire_timeout=0.05) as db:
        heard: list[tuple[str, Any]] = []

        def observer(operation: str, text: str) -> Any:
            heard.append((operation, text))
            return lambda error: heard.append((operation, type(error)))

        unobserve = db.observe(observer)
        uses = {
            ("SELECT", select): lambda: db.fetch_all(select),
            ("SELECT", select + " "): lambda: anext(db.iterate(select + " ")),
            ("INSERT", insert): lambda: db.execute_many(insert, [[1], [2]]),
            ("BEGIN", "BEGIN"): lambda: db.transaction().__aenter__(),
        }
        async with db.pool.acquire(timeout=WAIT):
            for (operation, text), use in uses.items():
                heard.clear()
                with pytest.raises(cenote.AcquireTimeoutError):
                    await asyncio.create_task(use())
                assert heard == [(operation, text), (operation, cenote.AcquireTimeoutError)]
        unobserve()


async def test_connection_gives_the_drivers_own(backend: Backend) -> None:
    async with backend.database() as db:
        async with db.connection() as connection:
            assert db.bound_connection is connection.__wrapped__
            assert db.pin_reason == "inside connection()"
            async with db.connection() as again:
                assert again == connection
            assert await db.fetch_val("select 1") == 1
            assert db.bound_connection is connection.__wrapped__
            with pytest.raises(cenote.PoolError, match="leave the block"):
                await db.release()
        assert db.bound_connection is None
        assert db.pool.active_count == 0


async def test_driver_errors_come_through_unchanged(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute(f"insert into {table} values (1, 'a')")
        with pytest.raises(Exception, match=r"(?i)unique|duplicate") as caught:
            await db.execute(f"insert into {table} values (1, 'a')")
        assert type(caught.value).__name__ == backend.integrity_error
        assert not type(caught.value).__module__.startswith("cenote")
        state = cenote.sqlstate(caught.value)
        assert state is None if backend.embedded else state.startswith("23")
        assert cenote.sqlstate(ValueError()) is None


async def test_what_touches_the_session_pins_until_release(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        for touch, _query in backend.touches:
            await db.execute(touch)
            assert "session state touched" in db.pin_reason, touch
            await db.release()
            assert db.pin_reason is None
            assert db.pool.active_count == 0


async def test_nothing_of_a_task_is_seen_by_the_next(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        for touch, query in backend.touches:
            before = await db.fetch_val(query)
            await asyncio.create_task(db.execute(touch))
            assert await db.fetch_val(query) == before, touch
        assert db.pool.count == 1


async def test_release_inside_a_transaction(backend: Backend) -> None:
    async with backend.database() as db:
        await db.release()
        async with db.transaction():
            with pytest.raises(cenote.PoolError, match="commit or roll back first"):
                await db.release()
            assert db.in_transaction


async def test_a_closed_database_refuses_every_use(backend: Backend) -> None:
    async with backend.database() as db:
        assert await db.fetch_val("select 1") == 1
        stream = db.iterate("select 1")
        await db.close()
        for use in (db.execute, db.fetch_all, db.fetch_one, db.fetch_val, db.prepare):
            with pytest.raises(cenote.PoolClosedError):
                await use("select 1")
        for use in (db.begin, db.commit, db.rollback, db.release):
            with pytest.raises(cenote.PoolClosedError):
                await use()
        with pytest.raises(cenote.PoolClosedError):
            await anext(stream)
        with pytest.raises(cenote.PoolClosedError):
            async with db.transaction():
                pass
        with pytest.raises(cenote.PoolClosedError):
            async with db.connection():
                pass
        await db.close()


def test_what_a_value_says_of_its_length_breaks_no_stream() -> None:
    class Hostile:
        def __len__(self) -> int:
            raise TypeError("len() of unsized object")

    assert not is_wide((Hostile(), 1, None))
    assert is_wide((1, "x" * 2000))
