"""Transactions that the server ends behind the back of their block."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import (
    drivers_error,
    every_statement_is_refused,
    outcome,
    with_mysql,
    with_postgresql,
    with_sqlite,
)
from tests.support.setting import setting

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

Lost = cenote.TransactionLostError
DEADLOCK = 1213


@with_mysql
@pytest.mark.parametrize("by", ["execute", "execute_many", "statement", "savepoint"])
@pytest.mark.parametrize("style", ["block", "begin", "raw"])
async def test_a_deadlock_loses_the_transaction(backend: Backend, by: str, style: str) -> None:
    async with setting(backend) as at:
        await at.insert(1)
        await at.insert(2)
        change = f"update {at.table} set name = ? where id = ?"
        ready = asyncio.Barrier(2)

        async def update(name: str, number: int) -> None:
            if by == "execute_many":
                await at.db.execute_many(change, [[name, number]])
            elif by == "statement":
                async with await at.db.prepare(change) as statement:
                    await statement.execute([name, number])
            elif by == "savepoint" and style != "raw":
                async with at.db.transaction():
                    await at.db.execute(change, [name, number])
            else:
                await at.db.execute(change, [name, number])

        async def cross(name: str, first: int, second: int) -> str:
            await at.db.execute(change, [name, first])
            await ready.wait()
            result = await outcome(update(name, second))
            if result is None:
                return "won"
            assert result.args[0] == DEADLOCK, repr(result)
            with pytest.raises(Lost) as caught:
                await at.insert(10 + first)  # must not survive
            assert caught.value.outcome == "rolled_back"
            await every_statement_is_refused(at.db, "rolled_back")
            return "lost"

        async def in_block(*arguments: Any) -> str:
            answers: list[str] = []

            async def block() -> None:
                async with at.db.transaction():
                    answers.append(await cross(*arguments))

            result = await outcome(block())
            assert isinstance(result, Lost) == (answers == ["lost"]), result
            return answers[0]

        async def with_begin(*arguments: Any) -> str:
            await (at.db.begin() if style == "begin" else at.db.execute("BEGIN"))
            answer = await cross(*arguments)
            if answer == "won":
                await at.db.commit()
            else:
                await at.db.rollback()
            return answer

        run: Any = in_block if style == "block" else with_begin

        async def whole(*arguments: Any) -> tuple[str, str]:
            answer = await run(*arguments)
            await at.insert(20 + arguments[1])  # the task simply goes on
            return answer, arguments[0]

        answers = dict(await asyncio.gather(whole("x", 1, 2), whole("y", 2, 1)))
        assert sorted(answers) == ["lost", "won"]
        assert await at.rows() == [1, 2, 21, 22]
        names = await at.watcher.db.fetch_all(f"select name from {at.table} where id < 3")
        assert {row[0] for row in names} == {answers["won"]}


@with_mysql
async def test_a_deadlock_outside_a_transaction_loses_nothing(backend: Backend) -> None:
    async with setting(backend) as at:
        await at.db.execute_many(
            f"insert into {at.table} values (?, 'a')", [[i] for i in range(1, 3)]
        )
        ready = asyncio.Event()

        async def other() -> None:
            async with at.db.transaction():
                await at.db.execute(f"update {at.table} set name = 'o' where id = 2")
                for i in range(10, 40):  # the heavier one wins
                    await at.insert(i)
                ready.set()
                await at.watcher.until_running("cenote victim")
                await at.db.execute(f"update {at.table} set name = 'o' where id = 1")

        await at.db.execute("set @mine = 1")  # a connection that is kept, without a transaction
        task = asyncio.create_task(other())
        await ready.wait()
        with pytest.raises(Exception) as caught:
            # Locks 1, then waits for 2.
            await at.db.execute(
                f"update {at.table} set name = 'v' where id < 3 order by id /* cenote victim */"
            )
        assert caught.value.args[0] == DEADLOCK
        await task
        assert await at.db.fetch_val("select @mine") == 1
        await at.db.release()


@with_mysql
async def test_a_lock_timeout_leaves_the_transaction(backend: Backend) -> None:
    async with setting(backend) as at:
        await at.insert(1)
        async with at.watcher.db.transaction():
            await at.watcher.db.execute(f"update {at.table} set name = 'o' where id = 1")
            async with at.db.transaction():
                await at.insert(2)
                with pytest.raises(Exception) as caught:
                    await at.db.fetch_all(
                        f"select * from {at.table} where id = 1 for update nowait"
                    )
                assert caught.value.args[0] in (1205, 3572)  # MariaDB, MySQL
                await at.insert(3)
        assert await at.rows() == [1, 2, 3]


@with_mysql
async def test_a_changed_record_under_snapshot_isolation(backend: Backend) -> None:
    backend.need_mariadb("innodb_snapshot_isolation")
    async with setting(
        backend, connect_args={"init_command": "set innodb_snapshot_isolation=1"}
    ) as at:
        await at.insert(1)
        with pytest.raises(Lost) as caught:
            async with at.db.transaction(isolation="repeatable read"):
                await at.insert(2)
                await at.db.fetch_all(f"select * from {at.table}")
                await at.watcher.db.execute(f"update {at.table} set name = 'o' where id = 1")
                with drivers_error():
                    await at.db.execute(f"update {at.table} set name = 'x' where id = 1")
                await at.insert(3)
        assert caught.value.outcome == "rolled_back"
        assert await at.rows() == [1]


@with_mysql
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
@pytest.mark.parametrize("style", ["block", "begin"])
async def test_an_implicit_commit_loses_the_transaction(
    backend: Backend, style: str, fails: bool
) -> None:
    async with setting(backend) as at:
        created = at.table if fails else f"{at.table}_2"

        async def change() -> None:
            await at.insert(1)
            result = await outcome(at.db.execute(f"create table {created} (a int)"))
            assert isinstance(result, Exception) == fails
            await every_statement_is_refused(at.db, "committed")
            with pytest.raises(Lost):
                await at.insert(2)

        try:
            with pytest.raises(Lost) as caught:
                if style == "block":
                    async with at.db.transaction():
                        await change()
                else:
                    await at.db.begin()
                    await change()
                    await at.db.commit()
            assert caught.value.outcome == "committed"
            if style == "begin":
                await at.db.rollback()
            await at.insert(3)
            assert await at.rows() == [1, 3]
        finally:
            await at.watcher.db.execute(f"drop table if exists {at.table}_2")


@with_sqlite
@pytest.mark.parametrize("style", ["block", "begin", "raw"])
async def test_an_automatic_rollback_loses_the_transaction(backend: Backend, style: str) -> None:
    async with setting(backend) as at:
        await at.insert(1)

        async def change() -> None:
            await at.insert(2)
            with drivers_error():
                await at.db.execute(f"insert or rollback into {at.table} values (1, 'b')")
            await every_statement_is_refused(at.db, "rolled_back")
            with pytest.raises(Lost):
                await at.insert(3)

        if style == "block":
            with pytest.raises(Lost) as caught:
                async with at.db.transaction():
                    await change()
            assert caught.value.outcome == "rolled_back"
        else:
            await (at.db.begin() if style == "begin" else at.db.execute("BEGIN IMMEDIATE"))
            await change()
            await at.db.rollback()
        await at.insert(4)
        assert await at.rows() == [1, 4]


@with_postgresql
@pytest.mark.parametrize("style", ["block", "begin"])
async def test_commit_of_an_aborted_transaction(backend: Backend, style: str) -> None:
    async with setting(backend) as at:
        await at.insert(1)
        with pytest.raises(Lost) as caught:
            if style == "block":
                async with at.db.transaction():
                    await at.insert(2)
                    with drivers_error():
                        await at.insert(1)
            else:
                await at.db.begin()
                await at.insert(2)
                with drivers_error():
                    await at.insert(1)
                await at.db.commit()
        assert caught.value.outcome == "rolled_back"
        await at.insert(3)
        assert await at.rows() == [1, 3]


@with_postgresql
@pytest.mark.parametrize("name", ["execute", "fetch_all", "fetch_one", "fetch_val"])
@pytest.mark.parametrize("of", ["database", "handle", "statement"])
async def test_a_raw_commit_of_an_aborted_transaction(backend: Backend, name: str, of: str) -> None:
    async with setting(backend) as at:
        await at.insert(1)
        with pytest.raises(Lost) as caught:
            async with at.db.transaction() as tx:
                await at.insert(2)
                statement = await at.db.prepare("COMMIT")
                with drivers_error():
                    await at.insert(1)
                if of == "statement":
                    answer = await getattr(statement, name)()
                else:
                    answer = await getattr(at.db if of == "database" else tx, name)("COMMIT")
                assert answer == {"execute": 0, "fetch_all": []}.get(name)
                await statement.close()
        assert caught.value.outcome == "rolled_back"
        assert await at.rows() == [1]


@pytest.mark.parametrize("name", ["execute", "fetch_all", "fetch_one", "fetch_val"])
async def test_a_rollback_after_a_loss_returns_as_usual(backend: Backend, name: str) -> None:
    async with setting(backend) as at:
        await at.db.begin()
        await at.insert(1)
        await at.db.execute("COMMIT")
        with pytest.raises(Lost):
            await at.insert(2)
        answer = await getattr(at.db, name)("rollback")
        assert answer == {"execute": 0, "fetch_all": []}.get(name)
        await at.insert(3)
        assert await at.rows() == [1, 3]


@with_postgresql
async def test_prepare_transaction_loses_the_transaction(backend: Backend) -> None:
    """It is neither committed nor rolled back."""
    async with setting(backend) as at:
        if not int(await at.watcher.db.fetch_val("show max_prepared_transactions")):
            pytest.fail("the server must allow prepared transactions")
        name = f"p_{at.table}"
        try:
            with pytest.raises(Lost) as caught:
                async with at.db.transaction():
                    await at.insert(1)
                    await at.db.execute(f"prepare transaction '{name}'")
                    await every_statement_is_refused(at.db, "unknown")
            assert caught.value.outcome == "unknown"
            assert await at.rows() == []
        finally:
            await at.watcher.db.execute(f"commit prepared '{name}'")
        assert await at.rows() == [1]
        # An aborted one is rolled back instead.
        with pytest.raises(Lost) as caught:
            async with at.db.transaction():
                with drivers_error():
                    await at.insert(1)
                await at.db.fetch_all(f"prepare transaction '{name}'")
        assert caught.value.outcome == "rolled_back"


@with_mysql
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
async def test_a_raw_transaction_that_a_statement_commits(backend: Backend, fails: bool) -> None:
    """It is over, as the server says, whether the statement succeeds or not: nothing is lost."""
    async with setting(backend) as at:
        created = at.table if fails else f"{at.table}_2"
        try:
            await at.db.execute(backend.raw_begin)
            await at.insert(1)
            result = await outcome(at.db.execute(f"create table {created} (a int)"))
            assert isinstance(result, Exception) == fails
            assert not at.db.in_transaction
            await at.insert(2)
            await at.db.execute(backend.raw_begin)
            await at.insert(3)
            await at.db.execute("ROLLBACK")
            assert await at.rows() == [1, 2]
        finally:
            await at.watcher.db.execute(f"drop table if exists {at.table}_2")


@with_postgresql
async def test_a_constraint_that_fails_at_commit(backend: Backend) -> None:
    async with setting(backend) as at:
        columns = "id int primary key, name text unique deferrable initially deferred"
        async with backend.table(at.watcher.db, columns) as table:
            at.table = table
            with drivers_error():
                async with at.db.transaction():
                    await at.insert(1)
                    await at.insert(2)  # the same name
            await at.insert(3)
            assert await at.rows() == [3]
