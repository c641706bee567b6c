"""A connection belongs to a task: what its end leaves behind, and which task is meant."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import gc
import os
import sys
from typing import Any

import pytest

import cenote
from cenote import TransactionClosedError, TransactionScopeWarning
from tests.support.backends import Backend
from tests.support.held import ENDINGS, leave, loop_database_of
from tests.support.waiting import WAIT, eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

TASKS = int(os.environ.get("CENOTE_TASKS", "20000"))


class Left:
    """What a task may leave open."""

    def __init__(self, backend: Backend, db: Any, table: str) -> None:
        self.backend, self.db, self.table = backend, db, table
        self.insert = f"insert into {table} values (1000, 'lost')"

    async def begin(self) -> None:
        await self.db.begin()
        await self.db.execute(self.insert)

    async def block(self) -> Any:
        transaction = self.db.transaction()
        await transaction.__aenter__()
        await self.db.execute(self.insert)
        return transaction

    async def savepoint(self) -> Any:
        await (await self.block()).execute(f"update {self.table} set name = 'x'")
        transaction = self.db.transaction()
        await transaction.__aenter__()
        return transaction

    async def raw_begin(self) -> None:
        await self.db.execute(self.backend.raw_begin)
        await self.db.execute(self.insert)

    async def touched(self) -> None:
        await self.db.execute(self.backend.touches[0][0])

    async def connection(self) -> None:
        await self.db.connection().__aenter__()

    async def statement(self) -> Any:
        statement = await self.db.prepare(f"select count(*) from {self.table} where id > ?")
        assert await statement.fetch_val([99]) >= 150
        return statement

    async def stream(self) -> Any:
        stream = self.db.iterate(f"select * from {self.table} order by id")
        assert (await anext(stream))["id"] == 0
        return stream

    async def stream_in_transaction(self) -> Any:
        await self.begin()
        return await self.stream()

    async def statement_and_stream(self) -> Any:
        await self.begin()
        return await self.statement(), await self.stream()


LEFT = [name for name in vars(Left) if not name.startswith("_")]


@pytest.mark.parametrize("what", LEFT)
async def test_the_end_of_a_task(backend: Backend, what: str) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        show = backend.touches[0][1]
        before = await db.fetch_val(show)
        left = getattr(Left(backend, db, table), what)
        for ending in ENDINGS:
            kept: list[Any] = []
            await leave(left, ending, kept)
            # There is one connection: this waits for it.
            assert await db.fetch_val(f"select count(*) from {table} where name = 'x'") == 250
            assert await db.fetch_val(f"select count(*) from {table}") == 250
            assert await db.fetch_val(show) == before
            assert db.pool.active_count == 0
            assert db.pool.idle_count == 1
            assert not loop_database_of(db).sessions
            assert not loop_database_of(db).private
        # Only what is in the middle of its rows has to be replaced.
        if "stream" not in what and backend.name != "sqlite":
            assert db.pool.stats().created == 1


async def test_a_transaction_ends_with_its_task_not_its_handle(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        for ending in ENDINGS:
            kept: list[Any] = []
            await leave(Left(backend, db, table).block, ending, kept)
            (transaction,) = kept
            await eventually(lambda: db.pool.active_count == 0)
            for use in (
                transaction.execute(f"insert into {table} values (1, 'a')"),
                transaction.fetch_val("select 1"),
                transaction.join().__aenter__(),
                anext(transaction.iterate("select 1")),
                transaction.__aexit__(None, None, None),
            ):
                with pytest.raises(TransactionClosedError, match="over"):
                    await use
        assert await db.fetch_val(f"select count(*) from {table}") == 0


async def test_a_statement_outlives_its_task(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        for ending in ENDINGS:
            kept: list[Any] = []
            await leave(Left(backend, db, table).statement, ending, kept)
            await eventually(lambda: db.pool.active_count == 0)
            statement = kept.pop()
            assert statement.closed
            for use in (
                statement.execute([1]),
                statement.fetch_all([1]),
                statement.fetch_one([1]),
                statement.fetch_val([1]),
                statement.execute_many([[1]]),
            ):
                with pytest.raises(cenote.PoolError, match=r"its task ended.*Prepare it again"):
                    await use
            with pytest.raises(cenote.PoolError, match="its task ended"):
                statement.iterate([1])
            await statement.close()
            await statement.close()
            assert "closed" in repr(statement)
            del statement
        assert db.pool.active_count == 0


async def test_a_statement_that_is_collected_after_its_task(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        kept: list[Any] = []
        await leave(Left(backend, db, table).statement, "return", kept)
        kept.clear()
        gc.collect()
        assert await db.fetch_val("select 1") == 1
        # Collected before the end of the task is noticed.
        await leave(Left(backend, db, table).statement, "return")
        assert await db.fetch_val("select 1") == 1
        assert db.pool.active_count == 0


async def test_a_statement_is_shared_by_tasks_while_its_own_lives(backend: Backend) -> None:
    async with backend.database() as db, await db.prepare("select ?") as statement:
        tasks = [asyncio.create_task(statement.fetch_val([str(i)])) for i in range(20)]
        assert await asyncio.gather(*tasks) == [str(i) for i in range(20)]


async def test_a_stream_outlives_its_task(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        for what, error in (
            ("stream", cenote.PoolError),
            ("stream_in_transaction", TransactionClosedError),
        ):
            kept: list[Any] = []
            await leave(getattr(Left(backend, db, table), what), "return", kept)
            await eventually(lambda: db.pool.active_count == 0)
            stream = kept.pop()
            seen = []
            with pytest.raises(error, match=r"cut off|is over") as caught:
                async for row in stream:
                    seen.append(row[0])
            assert type(caught.value) is error
            assert seen == list(range(1, len(seen) + 1))  # what had been read already
            assert len(seen) < 249
            await stream.aclose()


async def test_statements_of_dead_tasks_do_not_pile_up(backend: Backend) -> None:
    if backend.embedded:
        return
    async with backend.database(max_size=1, statement_cache_size=0) as db:
        kept: list[Any] = []

        async def prepare() -> None:
            kept.append(await db.prepare(f"select {len(kept)} + ?"))

        if backend.name == "mysql":
            count = (
                f"select variable_value from {backend.status}.global_status "
                f"where variable_name = 'PREPARED_STMT_COUNT'"
            )
        else:
            count = "select count(*) from pg_prepared_statements"
        before = int(await db.fetch_val(count))
        for _ in range(30):
            await asyncio.create_task(prepare())
            assert await db.fetch_val("select 1") == 1
        if backend.name == "asyncpg":
            kept.clear()  # asyncpg closes a statement when its object is collected
            await db.fetch_val("select 2")
        assert int(await db.fetch_val(count)) <= before + 1
        assert db.pool.stats().created == 1


async def test_release_with_something_open(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        await db.execute(backend.touches[0][0])
        statement = await db.prepare("select 1")
        stream = db.iterate("select 2")
        assert (await anext(stream))[0] == 2
        await db.release()
        assert db.pin_reason is None
        assert db.pool.active_count == 0
        with pytest.raises(cenote.PoolError, match="closed"):
            await statement.fetch_val()
        assert await db.fetch_val(f"select count(*) from {table}") == 250
        assert await asyncio.create_task(db.fetch_val(f"select count(*) from {table}")) == 250


async def test_a_stream_left_early_leaves_the_session_alone(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        await db.execute(f"create temporary table mine as select * from {table}")
        stream = db.iterate("select * from mine")
        await anext(stream)
        await stream.aclose()
        assert await db.fetch_val("select count(*) from mine") == 250
        async for _row in db.iterate("select * from mine"):
            break
        await asyncio.sleep(0)
        assert await db.fetch_val("select count(*) from mine") == 250
        assert "touched" in db.pin_reason
        await db.release()


async def test_streams_and_resets_are_no_failures_for_the_breaker(backend: Backend) -> None:
    breaker = cenote.ConsecutiveFailures(failure_threshold=1)
    async with backend.database(strategy=breaker) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        for what in LEFT:
            await leave(getattr(Left(backend, db, table), what), "cancellation")
            await eventually(lambda: db.pool.active_count == 0)
            assert db.pool.state is cenote.CircuitState.ACTIVE, what
        async for _row in db.iterate(f"select * from {table}"):
            break
        stream = db.iterate(f"select * from {table}")
        await anext(stream)
        await stream.aclose()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(db.fetch_val(backend.slow), 0.05)
        assert await db.fetch_val(f"select count(*) from {table}") == 250
        assert db.pool.state is cenote.CircuitState.ACTIVE


async def test_nothing_grows_with_the_number_of_tasks(tmp_path: Any) -> None:
    path = tmp_path / "many.db"
    async with cenote.Database(f"sqlite:///{path}", max_size=4) as db:
        await db.execute("create table t (a int)")
        await db.execute("insert into t values (0)")

        async def work(number: int) -> None:
            if number % 20 == 0:
                async with db.transaction(read_only=True):
                    await db.fetch_val("select a from t")
            elif number % 100 == 7:
                await db.begin(read_only=True)
            elif number % 500 == 9:
                await db.prepare("select a from t")
            elif number % 500 == 11:
                await anext(db.iterate("select a from t"))
            else:
                await db.fetch_val("select 1")

        async def run(first: int, last: int) -> int:
            for start in range(first, last, 100):
                await asyncio.gather(*(work(number) for number in range(start, start + 100)))
            await eventually(lambda: db.pool.active_count == 0)
            assert not loop_database_of(db).sessions
            assert not loop_database_of(db).private
            gc.collect()
            return len(gc.get_objects())

        before = await run(0, 2000)
        # Some hundreds come and go with a connection; one for each transaction would be more.
        assert abs(await run(2000, TASKS) - before) < TASKS // 25


async def test_wait_for_stays_inside(backend: Backend) -> None:
    """On every Python; warnings are errors here."""
    async with backend.database() as db, backend.table(db) as table:
        insert, count = f"insert into {table} values (?, 'a')", f"select count(*) from {table}"

        async def nested() -> None:
            await asyncio.wait_for(db.execute(insert, [3]), WAIT)
            await asyncio.wait_for(asyncio.wait_for(db.execute(insert, [4]), WAIT), WAIT)

        async def stream() -> list[int]:
            return [row[0] async for row in db.iterate(f"select id from {table} order by id")]

        async with db.transaction() as tx:
            connection = db.bound_connection
            await db.execute(insert, [1])
            assert await asyncio.wait_for(db.execute(insert, [2]), WAIT) == 1
            await asyncio.wait_for(nested(), WAIT)
            await asyncio.wait_for(db.execute_many(insert, [[5], [6]]), WAIT)
            assert await asyncio.wait_for(tx.fetch_val(count), WAIT) == 6
            assert await asyncio.wait_for(stream(), WAIT) == [1, 2, 3, 4, 5, 6]
            assert db.bound_connection is connection
            assert db.pool.active_count == 1
        assert await db.fetch_val(count) == 6
        assert db.pool.active_count == 0


async def test_wait_for_begin_and_for_whole_blocks(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert, count = f"insert into {table} values (?, 'a')", f"select count(*) from {table}"
        await asyncio.wait_for(db.begin(), WAIT)
        assert db.in_transaction
        await db.execute(insert, [1])
        with pytest.warns(TransactionScopeWarning):
            assert await asyncio.create_task(db.fetch_val(count)) == 0
        await asyncio.wait_for(db.commit(), WAIT)
        assert not db.in_transaction
        assert await asyncio.create_task(db.fetch_val(count)) == 1
        assert db.pool.active_count == 0

        async def block(first: int) -> None:
            async with db.transaction():
                await db.execute(insert, [first])
                await asyncio.wait_for(db.execute(insert, [first + 1]), WAIT)

        await asyncio.wait_for(block(10), WAIT)
        assert await db.fetch_val(count) == 3
        async with db.transaction():
            await asyncio.wait_for(block(20), WAIT)  # a savepoint
            await db.rollback()
        assert await db.fetch_val(count) == 3
        statement = await asyncio.wait_for(db.prepare(count), WAIT)
        assert await asyncio.wait_for(statement.fetch_val(), WAIT) == 3
        await asyncio.wait_for(statement.close(), WAIT)
        assert db.pool.active_count == 0


async def test_wait_for_awaits_a_task_with_its_own_transaction(
    backend: Backend,
) -> None:
    """Started before, and only later awaited so: it goes on in its own transaction."""
    async with backend.database() as db, backend.table(db) as table:
        insert, count = f"insert into {table} values (?, 'a')", f"select count(*) from {table}"
        started, go_on = asyncio.Event(), asyncio.Event()

        async def child() -> None:
            async with db.transaction():
                await db.execute(insert, [1])
                mine = db.bound_connection
                started.set()
                await go_on.wait()
                assert db.bound_connection is mine
                assert await db.fetch_val(count) == 1
                await db.execute(insert, [2])
            assert not db.in_transaction

        task = asyncio.create_task(child())
        await started.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
        await asyncio.wait_for(task, WAIT)
        assert await db.fetch_val(count) == 2
        assert db.pool.active_count == 0


async def test_a_task_given_to_wait_for_has_its_session(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        for touch, look in backend.touches:
            before = await asyncio.create_task(db.fetch_val(look))

            async def handle(look: str, touch: str | None) -> Any:
                if touch is not None:
                    await db.execute(touch)
                return await db.fetch_val(look)

            await asyncio.wait_for(asyncio.create_task(handle(look, touch)), WAIT)
            after = await asyncio.wait_for(asyncio.create_task(handle(look, None)), WAIT)
            assert after == before, touch
            assert db.pin_reason is None
            assert db.bound_connection is None


async def test_a_task_given_to_wait_for_leaves_no_transaction(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def dies() -> None:
            await db.execute(backend.raw_begin)
            await db.execute(f"insert into {table} values (1, 'half')")
            raise KeyError

        async def next_one() -> None:
            assert not db.in_transaction
            async with db.transaction():
                await db.execute(f"insert into {table} values (2, 'whole')")

        with pytest.raises(KeyError):
            await asyncio.wait_for(asyncio.create_task(dies()), WAIT)
        await asyncio.wait_for(asyncio.create_task(next_one()), WAIT)
        rows = await db.fetch_all(f"select id from {table}")
        assert [row[0] for row in rows] == [2]


async def test_a_task_that_is_given_to_wait_for_is_outside(backend: Backend) -> None:
    async with backend.database() as db:

        async def given() -> bool:
            with pytest.warns(TransactionScopeWarning):
                await db.fetch_val("select 1")
            return db.in_transaction

        async def started() -> bool:
            inside = await asyncio.wait_for(asyncio.create_task(given()), WAIT)
            assert not inside
            await db.fetch_val("select 1")
            return db.in_transaction

        async with db.transaction():
            for task in (asyncio.create_task(given()), asyncio.ensure_future(given())):
                assert not await asyncio.wait_for(task, WAIT)
            assert await asyncio.wait_for(started(), WAIT)


async def test_wait_for_that_times_out(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        with pytest.raises(TimeoutError):
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                await asyncio.wait_for(db.fetch_val(backend.slow), 0.05)
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        assert not db.in_transaction
        with pytest.raises(cenote.TransactionLostError):
            async with db.transaction():
                await db.execute(f"insert into {table} values (1, 'a')")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(db.fetch_val(backend.slow), 0.05)
                with pytest.raises(cenote.TransactionLostError):
                    await db.fetch_val("select 1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(db.fetch_val(backend.slow), 0.05)
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        await eventually(lambda: db.pool.active_count == 0)


async def test_timeout_in_and_around_a_transaction(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'a')"
        async with db.transaction(), asyncio.timeout(WAIT):
            await db.execute(insert, [1])
        async with asyncio.timeout(WAIT), db.transaction():
            await db.execute(insert, [2])
        with pytest.raises(TimeoutError):
            async with db.transaction(), asyncio.timeout(0.05):
                await db.execute(insert, [3])
                await db.fetch_val(backend.slow)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), db.transaction():
                await db.execute(insert, [4])
                await db.fetch_val(backend.slow)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), db.transaction():
                await db.execute(insert, [5])
                await asyncio.Event().wait()  # a quiet connection: simply rolled back
        assert not db.in_transaction
        assert db.pin_reason is None
        rows = await db.fetch_all(f"select id from {table} order by id")
        assert [row[0] for row in rows] == [1, 2]


async def test_a_begin_that_is_cancelled_leaves_the_task_outside(backend: Backend) -> None:
    async with backend.database(max_size=2) as db, backend.table(db) as table:
        loop = asyncio.get_running_loop()

        async def child(steps: int) -> None:
            task = asyncio.current_task()
            assert task is not None

            def cancel(left: int) -> None:
                if left:
                    loop.call_soon(cancel, left - 1)
                elif not done:
                    task.cancel()

            done = False
            cancel(steps)
            try:
                await db.begin()
            except asyncio.CancelledError:
                assert not db.in_transaction
            done = True
            if db.in_transaction:
                await db.rollback()
            await db.execute(f"insert into {table} values (?, 'a')", [steps])
            assert db.pin_reason is None

        # With psycopg begin() waits for nothing that is there, so it cannot be cancelled either.
        for steps in range(backend.name == "psycopg", 40):
            await asyncio.create_task(child(steps))
        assert await db.fetch_val(f"select count(*) from {table}") == 40 - (
            backend.name == "psycopg"
        )


async def test_shield_starts_a_task(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:

        async def work() -> int:
            return int(await db.fetch_val(f"select count(*) from {table}"))

        async with db.transaction() as tx:
            await db.execute(f"insert into {table} values (1, 'a')")
            with pytest.warns(TransactionScopeWarning):
                assert await asyncio.shield(work()) == 0
            # The way to shield a statement of the transaction is its handle.
            assert await asyncio.shield(tx.fetch_val(f"select count(*) from {table}")) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are of Python 3.12")
async def test_eager_tasks_have_their_own_sessions(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        count = f"select count(*) from {table}"
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        try:

            async def child() -> int:
                seen = await db.fetch_val(count)
                assert not db.in_transaction
                return int(seen)

            async def shared(tx: Any) -> int:
                async with tx.join():
                    return int(await db.fetch_val(count))

            async with db.transaction() as tx:
                await db.execute(f"insert into {table} values (1, 'a')")
                with pytest.warns(TransactionScopeWarning) as caught:
                    assert await asyncio.gather(child(), child()) == [0, 0]
                assert len(caught) == 2
                assert db.in_transaction
                assert await asyncio.create_task(shared(tx)) == 1
                assert await asyncio.create_task(tx.fetch_val(count)) == 1
                assert await asyncio.wait_for(db.fetch_val(count), WAIT) == 1
            assert await asyncio.create_task(child()) == 1
            await leave(db.begin, "return")
            await leave(db.begin, "exception")
            assert await db.fetch_val(count) == 1
            await eventually(lambda: db.pool.active_count == 0)
        finally:
            loop.set_task_factory(None)


async def test_a_callback_without_a_task_cannot_begin(backend: Backend) -> None:
    async with backend.database() as db:
        await db.fetch_val("select 1")
        loop = asyncio.get_running_loop()
        seen: list[Any] = []

        def ask() -> None:
            seen.append((db.in_transaction, db.bound_connection, db.pin_reason))
            with pytest.raises(RuntimeError, match="no task is running"):
                db.begin().send(None)
            seen.append("asked")

        loop.call_soon(ask)
        await eventually(lambda: seen)
        assert seen == [(False, None, None), "asked"]
