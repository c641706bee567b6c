"""With psycopg BEGIN and SAVEPOINT travel with the statement that follows them."""

# ruff: noqa: PT012 - the blocks are what is tested

import asyncio
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import outcome
from tests.support.waiting import eventually
from tests.support.wire import on_the_wire, reply_is_held

with_psycopg = pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
pytestmark = [pytest.mark.real_time("talks to real servers"), with_psycopg]


async def is_inside(db: Any) -> bool:
    """Whether two statements see the same transaction."""
    first = await db.fetch_val("select txid_current()")
    return bool(first == await db.fetch_val("select txid_current()"))


async def rows(backend: Backend, table: str) -> list[Any]:
    async with backend.database(max_size=1) as other:
        return [row[0] for row in await other.fetch_all(f"select id from {table} order by id")]


async def test_a_transaction_is_one_round_trip_less(backend: Backend) -> None:
    async with on_the_wire(backend) as (db, trips), backend.table(db) as table:
        pick = f"select name from {table} where id = ?"

        async def transaction(statements: int) -> None:
            async with db.transaction() as tx:
                for at in range(statements):
                    await (tx if at % 2 else db).fetch_val(pick, [1])

        await transaction(2)  # prepared
        assert await trips(transaction(0)) == 0
        assert await trips(transaction(1)) == 2
        assert await trips(transaction(2)) == 3
        assert await trips(transaction(5)) == 6


async def test_a_statement_is_prepared_behind_begin(backend: Backend) -> None:
    async with on_the_wire(backend) as (db, trips), backend.table(db) as table:
        await db.execute(f"insert into {table} values (1, 'a')")

        async def transaction() -> None:
            async with db.transaction():
                assert await db.fetch_val(f"select name from {table} where id = ?", [1]) == "a"

        assert [await trips(transaction()) for _ in range(3)] == [2, 2, 2]
        assert await db.fetch_val("select count(*) from pg_prepared_statements") >= 1


async def test_a_savepoint_travels_with_its_first_statement(backend: Backend) -> None:
    async with on_the_wire(backend) as (db, trips), backend.table(db) as table:

        async def nested(*, empty: bool = False) -> None:
            async with db.transaction():
                async with db.transaction():
                    if not empty:
                        await db.execute(f"insert into {table} values (?, 'a')", [1])
                        await db.execute(f"delete from {table}")
                await db.fetch_val("select 1")

        await nested()
        assert await trips(nested(empty=True)) == 2  # BEGIN and select; COMMIT
        assert await trips(nested()) == 5  # with RELEASE


async def test_the_isolation_level_comes_along(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with db.transaction(isolation="serializable", read_only=True):
            assert await db.fetch_val("show transaction_isolation") == "serializable"
            assert await db.fetch_val("show transaction_read_only") == "on"
        async with backend.table(db) as table:
            with pytest.raises(Exception) as raised:
                async with db.transaction(read_only=True):
                    await db.execute(f"insert into {table} values (1, 'a')")
            assert cenote.sqlstate(raised.value) == "25006"
        assert await db.fetch_val("show transaction_read_only") == "off"


@pytest.mark.parametrize("text", ["select 1/0", "select * from no_such_table", "selec"])
async def test_an_error_of_the_first_statement_aborts(backend: Backend, text: str) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        for _ in range(3):  # also when it is kept prepared
            with pytest.raises(Exception) as raised:
                async with db.transaction():
                    expected = await outcome(db.execute(text))
                    assert cenote.sqlstate(expected) in ("22012", "42P01", "42601")
                    assert db.in_transaction
                    await db.execute(f"insert into {table} values (1, 'a')")
            assert cenote.sqlstate(raised.value) == "25P02"  # in failed sql transaction
            assert not db.in_transaction
            assert db.bound_connection is None
        assert await rows(backend, table) == []


async def test_an_error_of_the_client_sends_nothing(backend: Backend) -> None:
    async with on_the_wire(backend) as (db, trips), backend.table(db) as table:
        before = trips.proxy.round_trips
        async with db.transaction():
            for arguments in ([object()], [1, 2]):
                text = f"insert into {table} (id) values (?)"
                assert isinstance(await outcome(db.execute(text, arguments)), Exception)
            assert trips.proxy.round_trips == before
            assert db.in_transaction
            await db.execute(f"insert into {table} values (1, 'a')")
        assert trips.proxy.round_trips == before + 2
        assert await rows(backend, table) == [1]


async def test_rolling_back_what_was_not_sent(backend: Backend) -> None:
    async with on_the_wire(backend) as (db, trips), backend.table(db) as table:
        before = trips.proxy.round_trips
        with pytest.raises(KeyError):
            async with db.transaction():
                raise KeyError
        await db.begin()
        await db.rollback()
        await db.begin()
        await db.commit()
        assert trips.proxy.round_trips == before
        async with db.transaction():
            with pytest.raises(KeyError):
                async with db.transaction():
                    raise KeyError
            await db.execute(f"insert into {table} values (1, 'a')")
            with pytest.raises(KeyError):
                async with db.transaction(), db.transaction():
                    raise KeyError
            with pytest.raises(KeyError):
                async with db.transaction():
                    async with db.transaction():
                        await db.execute(f"insert into {table} values (2, 'a')")
                    raise KeyError
            async with db.transaction():
                await db.execute(f"insert into {table} values (3, 'a')")
        assert await rows(backend, table) == [1, 3]


FIRSTS = {
    "several": lambda db, table: db.execute("select 1; select 2"),
    "no query": lambda db, table: db.execute(f"lock table {table} in share mode"),
    "many": lambda db, table: db.execute_many(f"insert into {table} values (?, 'a')", [[8], [9]]),
    "a list": lambda db, table: db.fetch_val("select cardinality(?::int[])", [[1, 2]]),
    "a stream": lambda db, table: db.iterate(f"select * from {table}").start(),
    "a setting": lambda db, table: db.execute("set local work_mem = '64kB'"),
    "a savepoint": lambda db, table: db.execute("savepoint mine"),
    "a statement": lambda db, table: db.prepare("select 1"),
}


@pytest.mark.parametrize("first", FIRSTS)
async def test_whatever_comes_first_is_inside(backend: Backend, first: str) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        with pytest.raises(KeyError):
            async with db.transaction(), db.transaction():
                kept = await FIRSTS[first](db, table)
                await db.execute(f"insert into {table} values (1, 'a')")
                assert await is_inside(db)
                if hasattr(kept, "aclose"):
                    await kept.aclose()
                raise KeyError
        assert await rows(backend, table) == []
        assert not db.in_transaction


async def test_a_copy_is_refused_in_order(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        with pytest.raises(Exception, match=r"COPY|closed|lost"):
            async with db.transaction():
                await db.execute(f"copy {table} from stdin")
        async with db.transaction():
            await db.execute(f"insert into {table} values (1, 'a')")
        assert await rows(backend, table) == [1]


async def test_the_bare_connection_is_inside(backend: Backend) -> None:
    """Whoever has it, and however it was come by."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (%s, 'a')"
        with pytest.raises(KeyError):
            async with db.transaction():
                raw: Any = db.bound_connection
                await raw.execute(insert, [1])
                assert await is_inside(db)
                raise KeyError
        with pytest.raises(KeyError):
            async with db.transaction():
                async with db.bound_connection.transaction():
                    await db.bound_connection.execute(insert, [2])
                raise KeyError
        with pytest.raises(KeyError):
            async with db.transaction(), db.connection() as connection:
                assert connection.info.transaction_status.name == "INTRANS"
                await connection.execute(insert, [3])
                raise KeyError
        with pytest.raises(KeyError):
            async with db.connection() as connection, db.transaction():
                assert connection.info.transaction_status.name == "INTRANS"
                await connection.execute(insert, [4])
                raise KeyError
        assert await rows(backend, table) == []


async def test_cancelling_the_first_statement(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        begun: list[Any] = []

        async def work() -> None:
            async with db.transaction() as tx:
                begun.append(tx)
                await db.execute(f"insert into {table} select 1, 'a' from pg_sleep(60)")

        task = asyncio.create_task(work())
        await eventually(lambda: begun and begun[0]._session.turn.taken)
        task.cancel()
        assert isinstance(await outcome(task), asyncio.CancelledError)
        assert await db.fetch_val("select 1") == 1
        assert await rows(backend, table) == []


async def test_a_connection_that_dies_under_begin(backend: Backend) -> None:
    async with on_the_wire(backend) as (db, trips), backend.table(db) as table:
        await db.fetch_val("select 1")
        with pytest.raises(cenote.TransactionLostError) as raised:
            async with db.transaction():
                trips.proxy.reset()
                error = await outcome(db.execute(f"insert into {table} values (1, 'a')"))
                assert isinstance(error, Exception)
                assert not isinstance(error, cenote.TransactionLostError)
                await db.execute(f"insert into {table} values (2, 'a')")
        assert raised.value.outcome == "rolled_back"
        async with db.transaction():
            await db.execute(f"insert into {table} values (3, 'a')")
        assert await rows(backend, table) == [3]


async def test_a_first_statement_that_times_out(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with db.transaction() as tx:
            with pytest.raises(cenote.StatementTimeoutError):
                async with db.transaction():
                    await db.execute("select pg_sleep(60)", timeout=0.05)
            assert await tx.fetch_val("select 1") == 1
        assert await db.fetch_val("select 2") == 2


async def test_cancelled_while_begin_goes_before_a_connection_block(backend: Backend) -> None:
    """The connection is in mid-statement then, though the block was not entered."""
    async with on_the_wire(backend) as (db, trips), backend.table(db) as table:
        proxy = trips.proxy  # type: ignore[attr-defined]

        async def work() -> None:
            async with db.transaction(), db.connection():
                pytest.fail("it was not entered")

        await db.execute(f"insert into {table} values (1, 'a')")
        created = db.pool.stats().created
        proxy.hold_replies(True)
        task = asyncio.create_task(work())
        await reply_is_held(proxy)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await eventually(lambda: db.pool.active_count == 0)
        proxy.hold_replies(False)
        assert await db.fetch_val(f"select count(*) from {table}") == 1
        assert db.pool.stats().created == created + 1  # it was replaced


async def test_a_task_goes_on_after_a_cancelled_connection_block(backend: Backend) -> None:
    async with on_the_wire(backend) as (db, trips):
        proxy = trips.proxy  # type: ignore[attr-defined]

        async def work() -> None:
            await db.begin()
            with pytest.raises(asyncio.CancelledError):
                async with db.connection():
                    pytest.fail("it was not entered")
            with pytest.raises(cenote.TransactionLostError) as caught:
                await db.fetch_val("select 1")
            assert caught.value.outcome == "rolled_back"
            await db.rollback()
            assert await db.fetch_val("select 7") == 7

        await db.fetch_val("select 1")
        proxy.hold_replies(True)
        task = asyncio.create_task(work())
        await reply_is_held(proxy)
        task.cancel()
        await asyncio.sleep(0)
        proxy.hold_replies(False)
        await task
