"""Transactions that end behind the back of their block: nothing of them is half-committed."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend, eventually
from tests.support.faults import (
    RAW,
    Watcher,
    drivers_error,
    every_statement_is_refused,
    no_slot_is_lost,
    outcome,
    until,
    watching,
    with_mysql,
    with_postgresql,
    with_server,
    with_sqlite,
)
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

Lost = cenote.TransactionLostError
DEADLOCK = 1213


class Setting:
    """A database with a table, and somebody else who looks at it."""

    def __init__(self, db: Any, table: str, watcher: Watcher) -> None:
        self.db = db
        self.table = table
        self.watcher = watcher

    async def insert(self, number: int, on: Any = None) -> None:
        await (on or self.db).execute(f"insert into {self.table} values ({number}, 'a')")

    async def rows(self) -> list[int]:
        return await self.watcher.rows(self.table)

    async def lose_connection(self) -> None:
        """The session of this task is killed, and the machine has heard of it."""
        session = await self.db.fetch_val(self.watcher.backend.session)
        raw = self.db.bound_connection
        (link,) = (link for link in self.db._loop_databases[here()].connections if link.raw is raw)
        await self.watcher.kill(session)
        await eventually(lambda: link.is_dead)


def here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@asynccontextmanager
async def setting(
    backend: Backend, url: str | None = None, **options: Any
) -> AsyncIterator[Setting]:
    async with (
        watching(backend) as watcher,
        backend.database(url, **{"max_size": 3, **options}) as db,
        backend.table(watcher.db) as table,
    ):
        yield Setting(db, table, watcher)
        assert not db.in_transaction
        assert db.pin_reason is None
        await no_slot_is_lost(db)


# -- the connection is lost ----------------------------------------------------------------------


@with_server
async def test_a_killed_session_in_a_block(backend: Backend) -> None:
    async with setting(backend) as at:
        with pytest.raises(Lost) as caught:
            async with at.db.transaction():
                await at.insert(1)
                await at.lose_connection()
                with drivers_error():
                    await at.insert(2)
                await every_statement_is_refused(at.db, "rolled_back")
                with pytest.raises(Lost):
                    await at.insert(3)
        assert caught.value.outcome == "rolled_back"
        assert caught.value.__cause__ is not None
        await at.insert(4)
        assert await at.rows() == [4]


@with_server
async def test_a_killed_session_noticed_by_commit(backend: Backend) -> None:
    async with setting(backend) as at:
        with pytest.raises(Lost) as caught:
            async with at.db.transaction():
                await at.insert(1)
                await at.lose_connection()
        assert caught.value.outcome == "rolled_back"
        await at.db.begin()
        await at.insert(2)
        await at.lose_connection()
        with pytest.raises(Lost) as caught:
            await at.db.commit()
        assert caught.value.outcome == "rolled_back"
        await at.insert(3)
        assert await at.rows() == [3]


@with_server
async def test_an_exception_passes_a_lost_block(backend: Backend) -> None:
    async with setting(backend) as at:
        with pytest.raises(KeyError):
            async with at.db.transaction():
                await at.insert(1)
                await at.lose_connection()
                raise KeyError
        with drivers_error():
            async with at.db.transaction():
                await at.insert(2)
                await at.lose_connection()
                await at.insert(3)
        await at.insert(4)
        assert await at.rows() == [4]


@with_server
@pytest.mark.parametrize("end", ["rollback", "raw rollback", "commit"])
async def test_begin_and_a_killed_session(backend: Backend, end: str) -> None:
    async with setting(backend) as at:
        await at.db.begin()
        await at.insert(1)
        await at.lose_connection()
        with drivers_error():
            await at.insert(2)
        await every_statement_is_refused(at.db, "rolled_back")
        if end == "rollback":
            await at.db.rollback()
        elif end == "raw rollback":
            await at.db.execute("ROLLBACK")
        else:
            with pytest.raises(Lost):
                await at.db.commit()
            await every_statement_is_refused(at.db, "rolled_back")  # it is no end
            await at.db.rollback()
        await at.insert(3)
        assert await at.rows() == [3]


@with_server
@pytest.mark.parametrize("noticed", ["idle", "in mid-statement"])
async def test_a_raw_begin_and_a_killed_session(backend: Backend, noticed: str) -> None:
    async with setting(backend) as at:
        await at.db.execute(backend.raw_begin)
        await at.insert(1)
        if noticed == "idle":
            await at.lose_connection()
        else:
            session = await at.db.fetch_val(backend.session)
            slow = asyncio.create_task(at.watcher.until_running("cenote slow"))
            slow.add_done_callback(lambda _: kills.append(asyncio.create_task(kill())))
            kills: list[asyncio.Task[None]] = []

            async def kill() -> None:
                await at.watcher.kill(session)

            with drivers_error():
                await at.db.execute(f"{backend.slow} /* cenote slow */")
            await kills[0]
        if noticed == "idle":
            with drivers_error():
                await at.insert(2)
        await every_statement_is_refused(at.db, "rolled_back")
        await at.db.execute("ROLLBACK")
        await at.insert(3)
        assert await at.rows() == [3]


@with_server
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_raw_begin_whose_connection_died_before_its_end(backend: Backend, end: str) -> None:
    async with setting(backend) as at:
        await at.db.execute(backend.raw_begin)
        await at.insert(1)
        await at.lose_connection()
        if end == "commit":
            with pytest.raises(Lost) as lost:
                await at.db.commit()
            assert lost.value.outcome == "rolled_back"
        else:
            await at.db.rollback()
        assert not at.db.in_transaction
        await at.insert(2)
        assert await at.rows() == [2]


@with_server
async def test_a_raw_begin_whose_dead_connection_is_unpinned(backend: Backend) -> None:
    async with setting(backend) as at:
        await at.db.execute(backend.raw_begin)
        await at.insert(1)
        statement = await at.db.prepare("select 1")
        await at.lose_connection()
        await outcome(statement.close())
        result = await outcome(at.insert(2))
        assert isinstance(result, Exception), "committed on another connection"
        await at.db.rollback()
        assert await at.rows() == []


@with_server
async def test_nested_blocks_of_a_lost_connection(backend: Backend) -> None:
    async with setting(backend) as at:
        with pytest.raises(Lost) as outer:
            async with at.db.transaction():
                await at.insert(1)
                with pytest.raises(Lost) as inner:
                    async with at.db.transaction():
                        await at.insert(2)
                        await at.lose_connection()
                        with drivers_error():
                            await at.insert(3)
                await every_statement_is_refused(at.db, "rolled_back")
                with pytest.raises(KeyError):
                    async with at.db.connection():
                        pass
                    raise KeyError
        assert inner.value.outcome == outer.value.outcome == "rolled_back"
        await at.insert(4)
        assert await at.rows() == [4]


@with_server
async def test_rollback_in_a_nested_block_ends_the_loss(backend: Backend) -> None:
    async with setting(backend) as at:
        async with at.db.transaction(), at.db.transaction():
            await at.insert(1)
            await at.lose_connection()
            with drivers_error():
                await at.insert(2)
            with pytest.raises(Lost):
                await at.insert(2)
            await at.db.rollback()
            await at.insert(3)
        assert await at.rows() == [3]


@with_server
async def test_the_shared_handle_of_a_lost_transaction(backend: Backend) -> None:
    async with setting(backend) as at:

        async def joined(tx: Any) -> None:
            async with tx.join():
                await at.insert(7)

        with pytest.raises(Lost):
            async with at.db.transaction() as tx:
                await asyncio.create_task(at.insert(1, tx))
                await at.lose_connection()
                with drivers_error():
                    await asyncio.create_task(at.insert(2, tx))
                for use in (at.insert(3, tx), joined(tx), tx.fetch_all("select 1")):
                    assert isinstance(await outcome(asyncio.create_task(use)), Lost)
                with pytest.raises(Lost):
                    await asyncio.create_task(tx.execute_many("select ?", [[1]]))
                with pytest.raises(Lost):
                    await anext(tx.iterate("select 1"))
        with pytest.raises(cenote.TransactionClosedError):
            await at.insert(4, tx)
        assert await at.rows() == []


@with_server
async def test_an_open_statement_of_a_lost_transaction(backend: Backend) -> None:
    async with setting(backend) as at:
        with pytest.raises(Lost):
            async with at.db.transaction():
                statement = await at.db.prepare(f"insert into {at.table} values (?, 'a')")
                await statement.execute([1])
                await at.lose_connection()
                with drivers_error():
                    await statement.execute([2])
                with pytest.raises(Lost):
                    await statement.execute([3])
        with pytest.raises(cenote.PoolError, match="Prepare it again"):
            await statement.execute([4])
        await statement.close()
        assert await at.rows() == []


@with_server
async def test_a_timeout_in_a_block_loses_it(backend: Backend) -> None:
    async with setting(backend) as at:
        with pytest.raises(Lost) as caught:
            async with at.db.transaction():
                await at.insert(1)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await at.db.execute(backend.slow)
                await every_statement_is_refused(at.db, "rolled_back")
        assert caught.value.outcome == "rolled_back"
        await at.insert(2)
        assert await at.rows() == [2]


async def test_a_task_that_ends_in_a_block(backend: Backend) -> None:
    async with setting(backend) as at:

        async def work(style: str) -> None:
            await (at.db.begin() if style == "begin" else at.db.execute(backend.raw_begin))
            await at.insert(1)

        for style in ("begin", "raw"):
            await asyncio.create_task(work(style))
            await eventually(lambda: at.db.pool.active_count == 0)
            assert await at.rows() == []


@pytest.mark.parametrize("style", ["block", "begin"])
async def test_the_database_is_closed_in_a_transaction(backend: Backend, style: str) -> None:
    async with (
        watching(backend) as watcher,
        backend.table(watcher.db) as table,
        backend.database() as db,
    ):
        at = Setting(db, table, watcher)
        if style == "begin":
            await db.begin()
            await at.insert(1)
            await asyncio.create_task(db.close())
            with pytest.raises(cenote.PoolError):
                await db.commit()
        else:
            with pytest.raises(cenote.PoolError):  # silence would say: committed
                async with db.transaction():
                    await at.insert(1)
                    await asyncio.create_task(db.close())
        assert await at.rows() == []


# -- lost during COMMIT --------------------------------------------------------------------------


@with_server
@pytest.mark.parametrize("style", ["block", "begin", "raw", "raw begin"])
@pytest.mark.parametrize("arrives", [False, True], ids=["swallowed", "committed"])
async def test_a_connection_lost_during_commit(backend: Backend, style: str, arrives: bool) -> None:
    with Proxy(backend.server.host, backend.server.port) as proxy:
        async with setting(backend, backend.url_through(proxy.host, proxy.port)) as at:

            async def both() -> bool:
                return await at.rows() == [1, 2]

            async def cut() -> None:
                """While the answer to COMMIT is on its way."""
                sent = proxy.client_chunks
                going.set()
                await asyncio.to_thread(proxy.wait_for, lambda counts: counts.client_chunks > sent)
                if arrives:
                    await until(both)
                proxy.reset()
                proxy.black_hole(False)
                proxy.delay(0)

            async def begin_cut() -> asyncio.Task[None]:
                if arrives:
                    proxy.delay(5)
                else:
                    proxy.black_hole(True)
                task = asyncio.create_task(cut())
                await going.wait()
                return task

            going = asyncio.Event()
            if style in ("begin", "raw begin"):
                await (at.db.begin() if style == "begin" else at.db.execute(backend.raw_begin))
                await at.insert(1)
                await at.insert(2)
                task = await begin_cut()
                with pytest.raises(Lost) as caught:
                    await at.db.commit()
                await at.db.rollback()  # there is nothing to do, which is no error
            elif style == "raw":
                await at.db.execute(backend.raw_begin)
                await at.insert(1)
                await at.insert(2)
                task = await begin_cut()
                with drivers_error():
                    await at.db.execute("commit")
                with pytest.raises(Lost) as caught:
                    await at.db.fetch_val("select 1")
                await at.db.rollback()
            else:
                with pytest.raises(Lost) as caught:
                    async with at.db.transaction():
                        await at.insert(1)
                        await at.insert(2)
                        task = await begin_cut()
            await task
            assert caught.value.outcome == "unknown"
            assert caught.value.__cause__ is not None
            assert await at.rows() == ([1, 2] if arrives else [])
            await at.insert(3)


# -- the server ends it --------------------------------------------------------------------------


@with_mysql
@pytest.mark.parametrize("by", ["execute", "execute_many", "statement", "savepoint"])
@pytest.mark.parametrize("style", ["block", "begin", "raw"])
async def test_a_deadlock(backend: Backend, by: str, style: str) -> None:
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
async def test_an_implicit_commit(backend: Backend, style: str, fails: bool) -> None:
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
async def test_an_automatic_rollback(backend: Backend, style: str) -> None:
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
async def test_a_rollback_of_what_is_lost_gives_what_its_method_gives(
    backend: Backend, name: str
) -> None:
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
async def test_prepare_transaction(backend: Backend) -> None:
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


# -- the program ends it -------------------------------------------------------------------------


RAW_ENDS: list[tuple[str, str]] = [("COMMIT", "committed"), ("ROLLBACK", "rolled_back")]


@pytest.mark.parametrize(("sql", "expected"), RAW_ENDS)
@pytest.mark.parametrize("style", ["block", "begin", "nested", "fetch_all"])
async def test_a_raw_end(backend: Backend, sql: str, expected: str, style: str) -> None:
    async with setting(backend) as at:
        kept = [1] if sql == "COMMIT" else []

        async def change() -> None:
            await at.insert(1)
            await (at.db.fetch_all(sql) if style == "fetch_all" else at.db.execute(sql))
            await every_statement_is_refused(at.db, expected)
            with pytest.raises(Lost):
                await at.insert(2)

        with pytest.raises(Lost) as caught:
            if style == "begin":
                await at.db.begin()
                await change()
                await at.db.commit()
            elif style == "nested":
                async with at.db.transaction():
                    with pytest.raises(Lost):
                        async with at.db.transaction():
                            await change()
                    with pytest.raises(Lost):
                        await at.insert(3)
            else:
                async with at.db.transaction():
                    await change()
        assert caught.value.outcome == expected
        if style == "begin":
            await every_statement_is_refused(at.db, expected)
            await at.db.rollback()
        await at.insert(4)
        assert await at.rows() == [*kept, 4]


ENDED_AND_BEGUN = {
    "asyncpg": ["COMMIT; BEGIN", "COMMIT AND CHAIN", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"],
    "mysql": ["BEGIN", "START TRANSACTION", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN"],
}
ENDED_AND_BEGUN["psycopg"] = ENDED_AND_BEGUN["asyncpg"]


@with_server
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("leaving", ["normally", "by an exception"])
async def test_a_transaction_that_another_one_follows(
    backend: Backend, number: int, leaving: str
) -> None:
    """What comes after it would be another transaction, and the block half of both."""
    sql = ENDED_AND_BEGUN[backend.name][number]
    undone = sql.startswith("ROLLBACK")
    async with setting(backend) as at:
        with pytest.raises((Lost, KeyError)) as caught:
            async with at.db.transaction():
                await at.insert(1)
                await at.db.execute(sql)
                await every_statement_is_refused(at.db, "rolled_back" if undone else "committed")
                if leaving == "by an exception":
                    raise KeyError
        assert isinstance(caught.value, Lost) == (leaving == "normally")
        assert not at.db.in_transaction
        assert at.db.pin_reason is None
        await at.insert(4)
        assert await at.rows() == ([4] if undone else [1, 4])


async def test_a_commit_of_what_is_lost_is_no_end(backend: Backend) -> None:
    async with setting(backend) as at:
        with pytest.raises(Lost):
            async with at.db.transaction():
                await at.insert(1)
                await at.db.execute("COMMIT")
                with pytest.raises(Lost):
                    await at.db.commit()
                await every_statement_is_refused(at.db, "committed")
                with pytest.raises(Lost):
                    await at.db.execute_many(f"insert into {at.table} values (?, ?)", [])
        await at.insert(4)
        assert await at.rows() == [1, 4]


@with_postgresql
async def test_commit_of_a_raw_transaction_that_has_failed(backend: Backend) -> None:
    async with setting(backend) as at:
        await at.db.execute("begin")
        await at.insert(1)
        with drivers_error():
            await at.db.execute("select 1 / 0")
        with pytest.raises(Lost) as caught:
            await at.db.commit()
        assert caught.value.outcome == "rolled_back"
        assert not at.db.in_transaction
        await at.db.rollback()
        await at.insert(2)
        assert await at.rows() == [2]


@with_postgresql
@pytest.mark.parametrize("begin", ["begin", "raw"])
async def test_rollback_after_a_commit_that_was_refused(backend: Backend, begin: str) -> None:
    """The usual way to write it must not hide the error of the server."""
    async with setting(backend) as at:
        await at.db.execute(
            f"alter table {at.table} add constraint later_{at.table} unique (name) "
            f"deferrable initially deferred"
        )
        await (at.db.begin() if begin == "begin" else at.db.execute("begin"))
        await at.insert(1)
        await at.insert(2)
        with drivers_error():
            try:
                await at.db.commit()
            except BaseException:
                await at.db.rollback()
                raise
        with pytest.raises(cenote.PoolError, match="nothing to roll back"):
            await at.db.rollback()
        await at.insert(3)
        assert await at.rows() == [3]


@pytest.mark.parametrize(("sql", "expected"), RAW_ENDS)
async def test_a_raw_end_and_an_exception(backend: Backend, sql: str, expected: str) -> None:
    async with setting(backend) as at:
        with pytest.raises(KeyError):
            async with at.db.transaction():
                await at.insert(1)
                await at.db.execute(sql)
                raise KeyError
        assert await at.rows() == ([1] if sql == "COMMIT" else [])
        await at.insert(4)


@pytest.mark.parametrize(("sql", "expected"), RAW_ENDS)
@pytest.mark.parametrize("where", ["inside connection()", "after it"])
async def test_an_end_by_the_drivers_own_means(
    backend: Backend, sql: str, expected: str, where: str
) -> None:
    async with setting(backend) as at:
        with pytest.raises(Lost) as caught:
            async with at.db.transaction():
                await at.insert(1)
                async with at.db.connection() as raw:
                    await RAW[backend.name](raw, sql)
                    if where == "inside connection()":
                        with pytest.raises(Lost):
                            await at.insert(2)
                with pytest.raises(Lost):
                    await at.insert(3)
        assert caught.value.outcome == "unknown"
        assert await at.rows() == ([1] if sql == "COMMIT" else [])


async def test_an_end_by_the_drivers_own_means_before_commit(backend: Backend) -> None:
    async with setting(backend) as at, at.db.connection() as raw:
        await at.db.begin()
        await at.insert(1)
        await RAW[backend.name](raw, "ROLLBACK")
        with pytest.raises(Lost) as caught:
            await at.db.commit()
        assert caught.value.outcome == "unknown"
        assert await at.rows() == []


# -- leaving in the wrong order ------------------------------------------------------------------


async def test_a_block_left_with_an_open_stream(backend: Backend) -> None:
    """Committed or not, nothing of it goes on afterwards."""
    async with setting(backend) as at:
        await at.db.execute_many(
            f"insert into {at.table} values (?, 'a')", [[i] for i in range(10, 400)]
        )
        stream = at.db.iterate(f"select id from {at.table}")
        try:
            async with at.db.transaction():
                await at.insert(1)
                stream = at.db.iterate(f"select id from {at.table}")
                await anext(stream)
        except cenote.PoolError:
            committed = False
        else:
            committed = True
        await outcome(stream.aclose())
        assert not at.db.in_transaction
        await at.insert(2)
        assert [i for i in await at.rows() if i < 10] == ([1, 2] if committed else [2])


async def test_an_outer_block_left_before_the_inner_one(backend: Backend) -> None:
    async with setting(backend) as at:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def inner(tx: Any) -> None:
            async with tx.join(), at.db.transaction():
                await at.insert(2)
                entered.set()
                await leave.wait()

        with pytest.raises(KeyError):
            async with at.db.transaction() as tx:
                await at.insert(1)
                task = asyncio.create_task(inner(tx))
                await entered.wait()
                raise KeyError
        assert not at.db.in_transaction
        leave.set()
        assert isinstance(await outcome(task), cenote.PoolError)
        await at.insert(3)
        assert await at.rows() == [3]
