"""What the server does behind the back of a block or of a session, on MySQL and MariaDB."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

MARIADB = pytest.mark.parametrize("mysql", ["mariadb"], indirect=True)


@asynccontextmanager
async def procedure(db: Any, body: str) -> AsyncIterator[str]:
    name = "p_cenote"
    await db.execute(f"drop procedure if exists {name}")
    await db.execute(f"create procedure {name}() begin {body}; end")
    await db.release()
    try:
        yield name
    finally:
        await db.execute(f"drop procedure {name}")


async def ids(backend: Backend, table: str) -> list[int]:
    """What others see."""
    async with backend.database() as other:
        return [row[0] for row in await other.fetch_all(f"select id from {table} order by id")]


# -- hidden commits that begin the next transaction ----------------------------------------------


async def check_lost(mysql: Backend, db: Any, table: str, *statements: str, way: str) -> None:
    """The first insert is committed by one of the statements, and nothing after it is."""
    with pytest.raises(cenote.TransactionLostError) as caught:  # noqa: PT012
        async with db.transaction():
            await db.execute(f"insert into {table} values (1, 'a')")
            for sql in statements:
                if way == "fetch":
                    await db.fetch_all(sql)
                elif way == "stream":
                    async for _ in db.iterate(sql):
                        pass
                else:
                    await db.execute(sql)
            await db.execute(f"insert into {table} values (2, 'b')")
    assert caught.value.outcome in ("unknown", "committed")
    assert not db.in_transaction
    assert await ids(mysql, table) == [1]


@pytest.mark.parametrize("way", ["execute", "fetch", "stream"])
@pytest.mark.parametrize(
    "body",
    [
        "commit; start transaction",
        "commit; start transaction; insert into {0} values (3, 'c')",
        "create table if not exists made_cenote (a int); start transaction",
        "commit and chain",
    ],
)
async def test_a_procedure_that_commits_and_begins(mysql: Backend, body: str, way: str) -> None:
    async with mysql.database() as db, mysql.table(db) as table:
        async with procedure(db, body.format(table)) as name:
            await check_lost(mysql, db, table, f"call {name}()", way=way)
        await db.execute("drop table if exists made_cenote")


@pytest.mark.parametrize(
    "statements",
    [
        ["prepare s from 'commit and chain'", "execute s"],
        ["set autocommit = 0; create table made_cenote (a int); select * from {0}"],
        ["/*! commit and chain */"],
        ["/*!50000 commit and chain */"],
    ],
)
async def test_other_statements_that_commit_and_begin(
    mysql: Backend, statements: list[str]
) -> None:
    async with mysql.database() as db, mysql.table(db) as table:
        texts = [text.format(table) for text in statements]
        await check_lost(mysql, db, table, *texts, way="execute")
        await db.release()
        await db.execute("drop table if exists made_cenote")


@MARIADB
@pytest.mark.parametrize(
    "statements",
    [
        ["execute immediate 'commit and chain'"],
        ["prepare s from 'begin'", "execute s"],
        ["begin not atomic commit; start transaction; end"],
        ["if 1 then commit; start transaction; end if"],
        ["set statement max_statement_time = 10 for commit and chain"],
        ["/*M! begin */"],
    ],
)
async def test_statements_of_mariadb_that_commit_and_begin(
    mysql: Backend, statements: list[str]
) -> None:
    async with mysql.database() as db, mysql.table(db) as table:
        await check_lost(mysql, db, table, *statements, way="execute")


async def test_a_procedure_that_commits_and_begins_and_fails(mysql: Backend) -> None:
    body = "commit; start transaction; signal sqlstate '45000' set message_text = 'mine'"
    async with (
        mysql.database() as db,
        mysql.table(db) as table,
        procedure(db, body) as name,
    ):
        with pytest.raises(cenote.TransactionLostError) as caught:  # noqa: PT012
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                with pytest.raises(Exception, match="mine"):
                    await db.execute(f"call {name}()")
                await db.execute(f"insert into {table} values (2, 'b')")
        assert caught.value.outcome == "unknown"
        assert await ids(mysql, table) == [1]


async def test_a_prepared_call_that_commits_and_begins(mysql: Backend) -> None:
    async with (
        mysql.database() as db,
        mysql.table(db) as table,
        procedure(db, "commit; start transaction") as name,
    ):
        with pytest.raises(cenote.TransactionLostError):  # noqa: PT012
            async with db.transaction() as tx:
                await tx.execute(f"insert into {table} values (1, 'a')")
                async with await tx.prepare(f"call {name}()") as statement:
                    await statement.execute()
                await tx.execute(f"insert into {table} values (2, 'b')")
        assert await ids(mysql, table) == [1]


async def test_a_procedure_that_only_works_stays_in_the_transaction(mysql: Backend) -> None:
    body = (
        "savepoint own; insert into {0} values (2, 'b'); rollback to own; "
        "insert into {0} values (3, 'c')"
    )
    async with mysql.database() as db, mysql.table(db) as table:
        async with procedure(db, body.format(table)) as name:
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                async with db.transaction():
                    await db.execute(f"call {name}()")
                with pytest.raises(Exception, match="Duplicate"):
                    await db.execute(f"call {name}()")
                await db.execute("create temporary table mine (a int)")
                await db.execute("drop temporary table mine")
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with db.transaction():
                    await db.execute(f"delete from {table}")
                    await db.execute(f"call {name}()")
                    raise ZeroDivisionError
        assert await ids(mysql, table) == [1, 3]


async def test_a_block_that_is_closed_in_mid_call(mysql: Backend) -> None:
    async with mysql.database() as db:

        async def work() -> None:
            async with db.transaction():
                await db.execute("call p_cenote()")

        async with procedure(db, "do sleep(100)"):
            coroutine = work()
            task = asyncio.create_task(coroutine)
            sleeping = (
                "select count(*) from information_schema.processlist where info like 'do sleep%'"
            )
            async with asyncio.timeout(WAIT), mysql.database() as other:
                while not await other.fetch_val(sleeping):
                    pass
            coroutine.close()
            task.cancel()
            with pytest.raises(RuntimeError, match="already awaited"):
                await task


async def test_plain_statements_in_a_block_pay_nothing(mysql: Backend) -> None:
    async with mysql.database() as db, mysql.table(db) as table:

        async def questions() -> int:
            row = await db.fetch_one("show session status like 'Questions'")
            return int(row[1])

        async with db.transaction():
            before = await questions()
            await db.execute(f"insert into {table} values (1, 'a')")
            await db.fetch_all(f"select * from {table}")
            await db.execute(f"update {table} set name = 'b'")
            await db.execute(f"delete from {table}")
            assert await questions() == before + 5


async def test_the_id_of_a_row_is_known_in_transactions(mysql: Backend) -> None:
    async with mysql.database() as db:
        columns = "id int primary key auto_increment, name varchar(9)"
        async with mysql.table(db, columns) as table:

            async def insert() -> tuple[int, str]:
                name = asyncio.current_task().get_name()[-9:]  # type: ignore[union-attr]
                async with db.transaction():
                    await db.execute(f"insert into {table} (name) values (?)", [name])
                    return await db.fetch_val("select last_insert_id()"), name

            made = await asyncio.gather(*(asyncio.create_task(insert()) for _ in range(20)))
            rows = await db.fetch_all(f"select id, name from {table}")
            assert sorted(made) == sorted(map(tuple, rows))


# -- errors that are no lost connections ---------------------------------------------------------


@pytest.mark.parametrize("number", [1053, 1927, 2006, 2013, 2014, 4031])
@pytest.mark.parametrize("inside", [False, True])
async def test_a_signal_is_no_lost_connection(mysql: Backend, number: int, inside: bool) -> None:
    body = f"signal sqlstate '45000' set mysql_errno = {number}, message_text = 'mine'"
    async with (
        mysql.database(max_size=1) as db,
        mysql.table(db) as table,
        procedure(db, body) as name,
    ):
        session = await db.fetch_val("select connection_id()")
        if inside:
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                with pytest.raises(Exception, match="mine"):
                    await db.execute(f"call {name}()")
                await db.execute(f"insert into {table} values (2, 'b')")
            assert await ids(mysql, table) == [1, 2]
        else:
            await db.execute("set @mine = 5")
            with pytest.raises(Exception, match="mine"):
                await db.execute(f"call {name}()")
            assert await db.fetch_val("select @mine") == 5
            await db.release()
        assert await db.fetch_val("select connection_id()") == session
        assert db.pool.stats().destroyed == {}


async def test_a_procedure_that_committed_is_not_run_again(mysql: Backend) -> None:
    """2006 of asyncmy itself says that nothing was sent."""
    body = (
        "insert into {0} values (1, 'a'); commit; "
        "signal sqlstate '45000' set mysql_errno = 2006, message_text = 'mine'"
    )
    async with mysql.database() as db, mysql.table(db, "id int, name varchar(9)") as table:
        async with procedure(db, body.format(table)) as name:
            for call in (db.execute, db.fetch_all):
                with pytest.raises(Exception, match="mine"):
                    await call(f"call {name}()")
        assert await ids(mysql, table) == [1, 1]


@pytest.mark.parametrize("after", ["", "xa end 'mine'"])
async def test_an_open_xa_transaction_is_no_failure(
    mysql: Backend, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Any] = []

    class Strategy:
        def report_success(self, source: Any) -> None: ...

        def report_failure(self, source: Any, error: Any) -> None:
            failures.append(error)

    async with mysql.database(max_size=1, strategy=Strategy()) as db, mysql.table(db) as table:

        async def leave() -> None:
            await db.execute("xa start 'mine'")
            await db.execute(f"insert into {table} values (1, 'a')")
            await db.execute(after or "set @mine = 5")

        with caplog.at_level(logging.WARNING):
            await asyncio.create_task(leave())
            assert await db.fetch_val("select 1") == 1
        assert failures == []
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert await ids(mysql, table) == []


@MARIADB
async def test_the_next_task_does_not_see_a_profile(mysql: Backend) -> None:
    async with mysql.database(max_size=1) as db:

        async def leave() -> None:
            await db.execute("set @@session.profiling = 1")
            await db.execute("set @secret = 'hunter2'")

        await asyncio.create_task(leave())
        assert await db.fetch_all("show profiles") == []


async def test_a_function_in_a_prepared_select_changes_the_session(mysql: Backend) -> None:
    """Also when asyncmy knows the columns of the answer, and skips what comes behind the rows."""
    text = "select f_cenote(?)"
    async with mysql.database(max_size=1) as db:
        await db.execute("drop function if exists f_cenote")
        await db.execute(
            "create function f_cenote(zone varchar(10)) returns int "
            "begin if zone <> '' then set time_zone = zone; end if; return 1; end"
        )
        try:
            async with db.connection() as connection:
                for zone in ("+01:00", "+02:00"):
                    for given in ("", "", zone):
                        assert await db.fetch_val(text, [given]) == 1
                    assert await db.fetch_val("select @@time_zone") == zone
                    assert connection.__wrapped__.variables["time_zone"] == zone
        finally:
            await db.execute("drop function f_cenote")


async def test_the_columns_of_a_statement_that_is_kept_change(mysql: Backend) -> None:
    async with mysql.database(max_size=1) as db, mysql.table(db) as table:
        await db.execute(f"insert into {table} values (1, 'a')")
        text = f"select * from {table} where id = ?"

        async def row() -> dict[str, Any]:
            found = [await db.fetch_one(text, [1]) for _ in range(3)]
            assert found[0] is not None
            assert found == [found[0]] * 3
            return dict(found[0])

        assert await row() == {"id": 1, "name": "a"}
        for change, expected in (
            ("add number int default 7", {"id": 1, "name": "a", "number": 7}),
            ("modify number varchar(10)", {"id": 1, "name": "a", "number": "7"}),
            ("drop name", {"id": 1, "number": "7"}),
        ):
            async with mysql.database(max_size=1) as other:
                await other.execute(f"alter table {table} {change}")
            assert await row() == expected


async def test_a_kept_statement_follows_the_charset(mysql: Backend) -> None:
    async with mysql.database(max_size=1) as db, mysql.table(db) as table:
        await db.execute(f"insert into {table} values (1, ?)", ["é"])
        async with db.connection():
            statement = await db.prepare(f"select name from {table} where id = ?")
            for charset in ("utf8mb4", "latin1", "utf8mb4", "utf8mb4", "latin1"):
                await db.execute(f"set names {charset}")
                assert [await statement.fetch_val([1]) for _ in range(3)] == ["é"] * 3
            await statement.close()
