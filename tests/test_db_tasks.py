"""A connection belongs to a task: what its end leaves behind, what its children see, what is shared."""

import asyncio
import contextlib
import gc
import os
import sys
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import cenote
from backends import Backend, eventually
from cenote import TransactionClosedError, TransactionScopeWarning
from held import Gate

pytestmark = pytest.mark.real_time("talks to real servers")

ENDINGS = ("return", "exception", "cancellation")
TASKS = int(os.environ.get("CENOTE_TASKS", "20000"))


def branch_of(db: Any) -> Any:
    return db._branches[asyncio.get_running_loop()]


async def end(task: asyncio.Task[Any], ready: asyncio.Event, ending: str) -> None:
    """Wait until it is over; `ready` is set when there is something to leave behind."""
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    if ending == "cancellation":
        task.cancel()
    waiting.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == (ending == "cancellation")
    if ending != "cancellation":
        assert (type(task.exception()) is KeyError) == (ending == "exception"), task.exception()


async def leave(
    what: Callable[[], Awaitable[Any]], ending: str, kept: list[Any] | None = None
) -> None:
    """Do this in a task that ends so; what it gives outlives the task in `kept`."""
    ready = asyncio.Event()

    async def work() -> None:
        result = await what()
        if kept is not None:
            kept.append(result)
        del result
        ready.set()
        if ending == "exception":
            raise KeyError
        if ending == "cancellation":
            await asyncio.Event().wait()

    await end(asyncio.create_task(work()), ready, ending)


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
            assert not branch_of(db).leases
            assert not branch_of(db).private
        # Only what is in the middle of its rows has to be replaced.
        if "stream" not in what and backend.name != "sqlite":
            assert db.pool.stats().created == 1


async def test_a_transaction_ends_with_its_task_and_not_with_its_handle(backend: Backend) -> None:
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
                with pytest.raises(cenote.PoolError, match="its task ended.*Prepare it again"):
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
    async with backend.database() as db:
        async with await db.prepare("select ?") as statement:
            tasks = [asyncio.create_task(statement.fetch_val([str(i)])) for i in range(20)]
            assert await asyncio.gather(*tasks) == [str(i) for i in range(20)]


async def test_a_stream_outlives_its_task(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        for what in ("stream", "stream_in_transaction"):
            kept: list[Any] = []
            await leave(getattr(Left(backend, db, table), what), "return", kept)
            await eventually(lambda: db.pool.active_count == 0)
            stream = kept.pop()
            seen = []
            with pytest.raises(cenote.PoolError, match="cut off"):
                async for row in stream:
                    seen.append(row[0])
            assert seen == list(range(1, len(seen) + 1))  # what had been read already
            assert len(seen) < 249
            await stream.aclose()


async def test_statements_of_dead_tasks_do_not_pile_up_on_the_server(backend: Backend) -> None:
    if backend.embedded:
        return
    async with backend.database(max_size=1, statement_cache_size=0) as db:
        kept: list[Any] = []

        async def prepare() -> None:
            kept.append(await db.prepare(f"select {len(kept)} + ?"))

        if backend.name == "mysql":
            count = "select variable_value from information_schema.global_status where variable_name = 'PREPARED_STMT_COUNT'"  # noqa: E501
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


async def test_nothing_grows_with_the_number_of_tasks(tmp_path: Any) -> None:
    path = tmp_path / "many.db"
    async with cenote_database(f"sqlite:///{path}", max_size=4) as db:
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
            assert not branch_of(db).leases
            assert not branch_of(db).private
            gc.collect()
            return len(gc.get_objects())

        before = await run(0, 2000)
        assert abs(await run(2000, TASKS) - before) < 300


@contextlib.asynccontextmanager
async def cenote_database(url: str, **options: Any) -> AsyncIterator[Any]:
    db = cenote.Database(url, **options)
    try:
        yield db
    finally:
        await db.close()


# -- child tasks --------------------------------------------------------------------------------


async def by_create_task(work: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.create_task(work())  # type: ignore[arg-type]


async def by_gather(work: Callable[[], Awaitable[Any]]) -> Any:
    return (await asyncio.gather(work()))[0]


async def by_task_group(work: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())  # type: ignore[arg-type]
    return task.result()


async def by_shield(work: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.shield(work())


WAYS = [by_create_task, by_gather, by_task_group, by_shield]


@pytest.mark.parametrize("way", WAYS)
async def test_a_child_is_outside_of_the_transaction(backend: Backend, way: Any) -> None:
    async with backend.database() as db, backend.table(db) as table:
        count = f"select count(*) from {table}"

        async def child() -> tuple[int, bool, Any, Any]:
            seen = await db.fetch_val(count)
            return seen, db.in_transaction, db.bound_connection, db.pin_reason

        async with db.transaction():
            await db.execute(f"insert into {table} values (1, 'a')")
            with pytest.warns(TransactionScopeWarning):
                assert await way(child) == (0, False, None, None)
            assert await db.fetch_val(count) == 1
            assert db.in_transaction
        assert await way(child) == (1, False, None, None)


async def test_children_have_transactions_of_their_own(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        both = asyncio.Barrier(2)

        async def child(number: int) -> Any:
            async with db.transaction(read_only=True):
                await both.wait()
                mine = db.bound_connection
                assert db.in_transaction
                await db.fetch_val(f"select count(*) from {table}")
                await both.wait()
                assert db.bound_connection is mine
                return mine

        one, two = await asyncio.gather(child(1), child(2))
        assert one is not two
        assert db.pool.active_count == 0


async def test_the_warning_names_both_tasks_and_the_line(backend: Backend) -> None:
    async with backend.database() as db:

        async def child() -> int:
            await db.fetch_val("select 1"); return line()  # fmt: skip # noqa: E702

        def line() -> int:
            return sys._getframe(1).f_lineno

        asyncio.current_task().set_name("the parent")  # type: ignore[union-attr]
        async with db.transaction():
            with pytest.warns(TransactionScopeWarning) as caught:
                expected = await asyncio.create_task(child(), name="the child")
        (warning,) = caught
        assert str(warning.message) == (
            "task 'the child' was started inside the transaction of task 'the parent' and uses the "
            "database outside of it, on a connection of its own. To share the transaction use its "
            "handle: tx.execute() or async with tx.join()."
        )
        assert (warning.filename, warning.lineno) == (__file__, expected)


def uses(db: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    async def transaction() -> None:
        async with db.transaction(read_only=True):
            pass

    async def connection() -> None:
        async with db.connection():
            pass

    async def iterate() -> None:
        async for _ in db.iterate("select 1"):
            pass

    async def prepare() -> None:
        await (await db.prepare("select 1")).close()

    async def begin() -> None:
        await db.begin(read_only=True)
        await db.rollback()

    return {
        "execute": lambda: db.execute("select 1"),
        "fetch_all": lambda: db.fetch_all("select 1"),
        "fetch_one": lambda: db.fetch_one("select 1"),
        "fetch_val": lambda: db.fetch_val("select 1"),
        "transaction": transaction,
        "connection": connection,
        "iterate": iterate,
        "prepare": prepare,
        "begin": begin,
    }


async def test_each_use_warns_once_in_each_child(backend: Backend) -> None:
    async with backend.database() as db:

        async def child(use: Callable[[], Awaitable[Any]]) -> None:
            await use()
            await asyncio.wait_for(use(), 20)
            await db.fetch_val("select 2")

        async def patient(use: Callable[[], Awaitable[Any]]) -> None:
            await asyncio.wait_for(use(), 20)
            await use()
            await asyncio.wait_for(use(), 20)

        for name, use in uses(db).items():
            async with db.transaction(read_only=True):
                with pytest.warns(TransactionScopeWarning) as caught:
                    await asyncio.create_task(child(use))
                    await asyncio.create_task(child(use))
            assert len(caught) == 2, name
            assert {each.filename for each in caught} == {__file__}, name
            async with db.transaction(read_only=True):
                with pytest.warns(TransactionScopeWarning) as caught:
                    await asyncio.create_task(patient(use))
            assert len(caught) == 1, name


async def test_child_tasks_error_raises(backend: Backend) -> None:
    async with backend.database(child_tasks="error", max_size=2) as db:

        async def child(use: Callable[[], Awaitable[Any]]) -> None:
            for _ in range(2):
                with pytest.raises(TransactionScopeWarning, match="was started inside"):
                    await use()

        for use in uses(db).values():
            async with db.transaction(read_only=True):
                await asyncio.create_task(child(use))
                assert db.pool.active_count == 1
            await asyncio.create_task(use())  # type: ignore[arg-type]
        assert db.pool.active_count == 0


async def test_no_warning_outside_of_the_time_of_the_transaction(backend: Backend) -> None:
    """Warnings are errors here."""
    async with backend.database() as db:
        started, over = asyncio.Event(), asyncio.Event()

        async def early() -> None:
            await started.wait()
            assert await db.fetch_val("select 1") == 1

        async def late() -> None:
            await over.wait()
            assert await db.fetch_val("select 1") == 1

        before = asyncio.create_task(early())
        async with db.transaction():
            started.set()
            await before
            for use in uses(db).values():
                if use.__name__ not in ("begin",):
                    with contextlib.suppress(ValueError):  # read_only of a savepoint
                        await use()
            assert await db.fetch_val("select 1") == 1
            inside = asyncio.create_task(late())
        await asyncio.create_task(db.fetch_val("select 1"))
        over.set()
        await inside
        for start, stop in ((db.begin, db.commit), (db.begin, db.rollback)):
            over.clear()
            await start()
            inside = asyncio.create_task(late())
            await stop()
            # In another transaction of the parent the child of the first is no child of it.
            async with db.transaction():
                over.set()
                await inside
        await db.begin()
        with pytest.warns(TransactionScopeWarning):
            await asyncio.create_task(db.fetch_val("select 1"))
        await db.rollback()


async def test_a_grandchild_and_a_nested_block_warn(backend: Backend) -> None:
    async with backend.database() as db:

        async def child() -> None:
            await asyncio.create_task(db.fetch_val("select 1"))

        async with db.transaction():
            async with db.transaction():
                with pytest.warns(TransactionScopeWarning):
                    await asyncio.create_task(child())
            with pytest.warns(TransactionScopeWarning):
                await asyncio.create_task(child())


async def test_a_raw_transaction_does_not_warn_but_is_not_shared_either(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        await db.execute(backend.raw_begin)
        await db.execute(f"insert into {table} values (1, 'a')")
        child = asyncio.create_task(db.fetch_val(f"select count(*) from {table}"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TransactionScopeWarning)
            assert await child == 0
        await db.execute("ROLLBACK")


async def test_two_databases_are_not_confused(backend: Backend) -> None:
    async with backend.database() as one, backend.database() as two:
        async with one.transaction():
            assert not two.in_transaction
            assert two.bound_connection is None
            assert await asyncio.create_task(two.fetch_val("select 1")) == 1
            async with two.transaction(read_only=True):
                assert one.bound_connection is not two.bound_connection

                async def child() -> list[str]:
                    with pytest.warns(TransactionScopeWarning) as first:
                        await one.fetch_val("select 1")
                    with pytest.warns(TransactionScopeWarning) as second:
                        await two.fetch_val("select 1")
                    await one.fetch_val("select 1")
                    await two.fetch_val("select 1")
                    return [len(first), len(second)]

                assert await asyncio.create_task(child()) == [1, 1]
            assert await asyncio.create_task(two.fetch_val("select 1")) == 1


async def test_the_context_keeps_nothing_alive(backend: Backend) -> None:
    async with backend.database() as db:
        stop = asyncio.Event()

        async def background() -> None:
            await stop.wait()

        async def start() -> tuple[asyncio.Task[None], list[weakref.ref[Any]]]:
            async with db.transaction() as outer, db.transaction() as tx:
                watched = [weakref.ref(tx), weakref.ref(outer), weakref.ref(tx._lease)]
                task = asyncio.create_task(background())
                asyncio.get_running_loop().call_later(60, stop.set)
            return task, watched

        task, watched = await start()
        gc.collect()
        assert [ref() for ref in watched] == [None, None, None]
        # Nor does a task that was left by its transaction.
        await db.begin()
        lease = weakref.ref(branch_of(db).lease())
        other = asyncio.create_task(background())
        await db.rollback()
        gc.collect()
        assert lease() is None
        stop.set()
        await asyncio.gather(task, other)


# -- sharing ------------------------------------------------------------------------------------


async def test_the_handle_is_shared_by_tasks(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"

        async def child(tx: Any, number: int) -> None:
            first = number * 10
            assert await tx.execute(insert, [first, "a"]) == 1
            await tx.execute_many(insert, [[first + i, "b"] for i in range(1, 5)])
            mine = "id between :low and :high"
            where = {"low": first, "high": first + 9}
            rows = await tx.fetch_all(f"select id from {table} where {mine} order by id", where)
            assert [row["id"] for row in rows] == list(range(first, first + 5))
            assert (await tx.fetch_one(f"select name from {table} where id = ?", [first]))[0] == "a"
            assert await tx.fetch_val(f"select name from {table} where id = ?", [first + 1]) == "b"
            assert not db.in_transaction

        async with db.transaction() as tx:
            async with asyncio.TaskGroup() as group:
                for number in range(10):
                    group.create_task(child(tx, number))
            assert await tx.fetch_val(f"select count(*) from {table}") == 50
            assert db.pool.active_count == 1
        assert await db.fetch_val(f"select count(*) from {table}") == 50
        with pytest.raises(KeyError):
            async with db.transaction() as tx:
                async with asyncio.TaskGroup() as group:
                    for number in range(10, 15):
                        group.create_task(child(tx, number))
                raise KeyError
        assert await db.fetch_val(f"select count(*) from {table}") == 50


async def test_streams_of_a_shared_transaction(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(350)])

        async def child(tx: Any) -> list[int]:
            return [row[0] async for row in tx.iterate(f"select id from {table} order by id")]

        async with db.transaction() as tx:
            await db.execute(f"delete from {table} where id >= 300")
            if backend.interleaves:
                for ids in await asyncio.gather(child(tx), child(tx)):
                    assert ids == list(range(300))
            else:
                assert await asyncio.create_task(child(tx)) == list(range(300))
            stream = tx.iterate(f"select id from {table} order by id")
            await anext(stream)
        with pytest.raises(TransactionClosedError):
            [row async for row in stream]
        late = tx.iterate("select 1")
        with pytest.raises(TransactionClosedError):
            await anext(late)
        assert db.pool.active_count == 0


async def test_a_handle_after_the_end(backend: Backend) -> None:
    assert issubclass(TransactionClosedError, cenote.PoolError)
    async with backend.database() as db:

        async def check(tx: Any) -> None:
            for use in (
                tx.execute("select 1"),
                tx.fetch_all("select 1"),
                tx.fetch_one("select 1"),
                tx.fetch_val("select 1"),
                tx.execute_many("select ?", [[1]]),
                anext(tx.iterate("select 1")),
                tx.join().__aenter__(),
            ):
                with pytest.raises(TransactionClosedError, match="over"):
                    await use

        unused = db.transaction()
        await check(unused)
        async with db.transaction() as tx:
            async with db.transaction() as inner:
                pass
            await check(inner)
            assert await tx.fetch_val("select 1") == 1
        await check(tx)
        with pytest.raises(KeyError):
            async with db.transaction() as tx:
                raise KeyError
        await check(tx)
        async with db.transaction() as tx:
            await db.rollback()
            await check(tx)
        with pytest.raises(RuntimeError, match="used before"):
            async with tx:
                pass


async def under_way(tx: Any) -> None:
    await eventually(lambda: tx._lease.lock.locked())


async def test_those_that_wait_for_their_turn_learn_of_the_end(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        async with db.transaction() as tx:
            running = asyncio.create_task(tx.execute(gate.sql))
            await under_way(tx)
            waiting = [
                asyncio.create_task(use)
                for use in (tx.execute(f"delete from {table}"), tx.fetch_val("select 1"))
            ]
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(gate.open)
        # Before the COMMIT it was their turn, and it was over already.
        assert await running == 1
        for task in waiting:
            with pytest.raises(TransactionClosedError):
                await task
        assert await db.fetch_val(f"select name from {table}") == "through"


@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_owner_ends_while_another_is_in_mid_statement(
    backend: Backend, ending: str
) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        kept: list[Any] = []

        async def own() -> Any:
            tx = db.transaction()
            await tx.__aenter__()
            kept.append(asyncio.create_task(tx.execute(gate.sql)))
            await under_way(tx)
            kept.append(asyncio.create_task(tx.execute(f"delete from {table}")))
            await asyncio.sleep(0)
            return tx

        await leave(own, ending, kept)
        running, waiting, tx = kept
        assert not tx.is_open
        assert db.pool.active_count == 1
        gate.open()
        assert await running == 1
        with pytest.raises(TransactionClosedError):
            await waiting
        await eventually(lambda: db.pool.active_count == 0)
        assert not branch_of(db).leases
        assert await db.fetch_val(f"select name from {table}") == "a"


async def test_a_commit_that_is_cancelled_while_it_waits_for_its_turn(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):

        async def own() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    async with db.transaction() as tx:
                        await db.execute(f"insert into {table} values (2, 'b')")
                        kept.append(asyncio.create_task(tx.execute(gate.sql)))
                        await under_way(tx)
                        patience.reschedule(0)
            # It goes on outside of that transaction.
            assert not db.in_transaction
            assert await db.fetch_val(f"select count(*) from {table}") == 1
            gate.open()
            await asyncio.wait(kept)
            await db.execute(f"insert into {table} values (3, 'c')")

        kept: list[Any] = []
        await asyncio.create_task(own())
        with contextlib.suppress(Exception):
            await kept[0]
        rows = await db.fetch_all(f"select id, name from {table} order by id")
        assert [tuple(row) for row in rows] == [(1, "a"), (3, "c")]


async def test_the_end_of_a_savepoint_that_is_cancelled_loses_the_transaction(
    backend: Backend,
) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        with pytest.raises(cenote.TransactionLostError, match="savepoint"):
            async with db.transaction() as tx:
                await db.execute(f"insert into {table} values (2, 'b')")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(None) as patience, db.transaction():
                        await db.execute(f"insert into {table} values (3, 'c')")
                        running = asyncio.create_task(tx.execute(gate.sql))
                        await under_way(tx)
                        patience.reschedule(0)
                gate.open()
                await asyncio.wait([running])
        assert running.exception() is None
        assert await db.fetch_val(f"select count(*) from {table}") == 1


@pytest.mark.parametrize("inner", [False, True], ids=["block", "savepoint"])
async def test_a_block_that_is_left_with_an_open_stream(backend: Backend, inner: bool) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(250)])
        kept = []

        async def block(number: int, error: Exception | None) -> None:
            async with db.transaction() as tx:
                await db.execute(f"insert into {table} values (?, 'y')", [number])
                kept.append(tx.iterate(f"select id from {table} order by id"))
                assert (await anext(kept[-1]))[0] == 0
                if error is not None:
                    raise error

        async def both() -> None:
            await block(1000, None)
            assert not db.in_transaction or inner
            with pytest.raises(KeyError):
                await block(2000, KeyError())
            await block(3000, None)

        if inner:
            async with db.transaction():
                await both()
        else:
            await both()
        assert not db.in_transaction
        assert db.pin_reason is None
        assert db.pool.active_count == 0
        for stream in kept:
            with pytest.raises(cenote.PoolError):
                [row async for row in stream]
        found = await db.fetch_all(f"select id from {table} where name = 'y' order by id")
        assert [row[0] for row in found] == [1000, 3000]
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


async def test_a_cancelled_statement_loses_the_shared_transaction(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        with pytest.raises(cenote.TransactionLostError) as caught:
            async with db.transaction() as tx:
                await db.execute(f"insert into {table} values (1, 'a')")
                slow = asyncio.create_task(tx.fetch_val(backend.slow))
                await under_way(tx)
                slow.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await slow
                for use in (tx.fetch_val("select 1"), db.fetch_val("select 1")):
                    with pytest.raises(cenote.TransactionLostError):
                        await use
        assert caught.value.outcome == "rolled_back"
        assert await db.fetch_val(f"select count(*) from {table}") == 0


async def test_join(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'a')"

        async def child(tx: Any, number: int) -> None:
            async with tx.join() as joined:
                assert joined is tx
                assert db.in_transaction
                assert db.bound_connection is not None
                assert db.pin_reason == "in a transaction"
                await db.execute(insert, [number])
                await db.execute_many(insert, [[number + 1], [number + 2]])
                assert await db.fetch_val(f"select count(*) from {table} where id = ?", [number])
                async with db.transaction():
                    await db.execute(insert, [number + 3])
                async with tx.join() as again:
                    assert again is tx
                    await db.execute(insert, [number + 4])
                await db.execute(insert, [number + 5])
                statement = await db.prepare(f"select count(*) from {table}")
                assert await statement.fetch_val() > 0
                await statement.close()
            assert not db.in_transaction
            assert db.bound_connection is None

        async with db.transaction() as tx:
            await asyncio.create_task(child(tx, 10))
            await asyncio.create_task(child(tx, 20))
            async with tx.join():  # its own task
                await db.execute(insert, [1])
            async with db.transaction() as inner, inner.join():
                await db.execute(insert, [2])
            assert db.pool.active_count == 1
            assert not branch_of(db).joined
        assert await db.fetch_val(f"select count(*) from {table}") == 14
        with pytest.raises(KeyError):
            async with db.transaction() as tx:
                await asyncio.create_task(child(tx, 30))
                raise KeyError
        assert await db.fetch_val(f"select count(*) from {table}") == 14


async def test_join_several_at_once(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def child(tx: Any, number: int) -> None:
            async with tx.join():
                for i in range(5):
                    await db.execute(f"insert into {table} values (?, 'a')", [number * 10 + i])

        async with db.transaction() as tx, asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(child(tx, number))
        assert await db.fetch_val(f"select count(*) from {table}") == 50


async def test_join_streams_where_the_transaction_is(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def child(tx: Any) -> list[int]:
            async with tx.join():
                return [row[0] async for row in db.iterate(f"select id from {table}")]

        async with db.transaction() as tx:
            await db.execute(f"insert into {table} values (7, 'a')")
            assert await asyncio.create_task(child(tx)) == [7]


async def test_join_in_a_task_that_has_a_connection(backend: Backend) -> None:
    async with backend.database() as db:

        async def child(tx: Any) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TransactionScopeWarning)
                async with db.transaction(read_only=True):
                    with pytest.raises(cenote.PoolError, match="'busy'.*in a transaction.*join"):
                        async with tx.join():
                            pass
                    assert db.in_transaction
            assert not db.in_transaction
            async with tx.join():
                assert db.in_transaction

        async with db.transaction() as tx:
            await asyncio.create_task(child(tx), name="busy")

        async def of_two(one: Any, two: Any) -> None:
            async with one.join():
                with pytest.raises(cenote.PoolError, match="join"):
                    async with two.join():
                        pass
                assert db.in_transaction
                await db.fetch_val("select 1")

        other = db.transaction(read_only=True)
        ready, done = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with other:
                ready.set()
                await done.wait()

        holder = asyncio.create_task(hold())
        await ready.wait()
        async with db.transaction(read_only=True) as tx:
            await asyncio.create_task(of_two(tx, other))
        done.set()
        await holder


async def test_join_after_the_end(backend: Backend) -> None:
    async with backend.database() as db:
        over = asyncio.Event()
        joined = asyncio.Event()

        async def child(tx: Any) -> None:
            async with tx.join():
                joined.set()
                await over.wait()
                assert not db.in_transaction
                assert db.pin_reason is None
                for use in uses(db).values():
                    with pytest.raises(TransactionClosedError):
                        await use()
            assert await db.fetch_val("select 1") == 1

        async with db.transaction() as tx:
            task = asyncio.create_task(child(tx))
            await joined.wait()
        over.set()
        await task
        with pytest.raises(TransactionClosedError):
            async with tx.join():
                pass
        assert not branch_of(db).joined


async def test_a_join_that_is_never_left_ends_with_its_task(backend: Backend) -> None:
    async with backend.database() as db:
        async with db.transaction() as tx:
            for ending in ENDINGS:
                await leave(lambda: tx.join().__aenter__(), ending)
            await asyncio.sleep(0)
            assert not branch_of(db).joined
            assert await tx.fetch_val("select 1") == 1


async def test_children_of_a_joined_task_are_outside(backend: Backend) -> None:
    async with backend.database() as db:
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def early() -> None:
            async with (await ready).join():
                with pytest.warns(TransactionScopeWarning):
                    await asyncio.create_task(db.fetch_val("select 1"))
            assert await asyncio.create_task(db.fetch_val("select 1")) == 1

        task = asyncio.create_task(early())
        async with db.transaction() as tx:
            ready.set_result(tx)
            await task


# -- wait_for and its like ----------------------------------------------------------------------


async def test_wait_for_stays_inside(backend: Backend) -> None:
    """On every Python; warnings are errors here."""
    async with backend.database() as db, backend.table(db) as table:
        insert, count = f"insert into {table} values (?, 'a')", f"select count(*) from {table}"

        async def nested() -> None:
            await asyncio.wait_for(db.execute(insert, [3]), 20)
            await asyncio.wait_for(asyncio.wait_for(db.execute(insert, [4]), 20), 20)

        async def stream() -> list[int]:
            return [row[0] async for row in db.iterate(f"select id from {table} order by id")]

        async with db.transaction() as tx:
            connection = db.bound_connection
            await db.execute(insert, [1])
            assert await asyncio.wait_for(db.execute(insert, [2]), 20) == 1
            await asyncio.wait_for(nested(), 20)
            await asyncio.wait_for(db.execute_many(insert, [[5], [6]]), 20)
            assert await asyncio.wait_for(tx.fetch_val(count), 20) == 6
            assert await asyncio.wait_for(stream(), 20) == [1, 2, 3, 4, 5, 6]
            assert db.bound_connection is connection
            assert db.pool.active_count == 1
        assert await db.fetch_val(count) == 6
        assert db.pool.active_count == 0


async def test_wait_for_begin_and_for_whole_blocks(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert, count = f"insert into {table} values (?, 'a')", f"select count(*) from {table}"
        await asyncio.wait_for(db.begin(), 20)
        assert db.in_transaction
        await db.execute(insert, [1])
        with pytest.warns(TransactionScopeWarning):
            assert await asyncio.create_task(db.fetch_val(count)) == 0
        await asyncio.wait_for(db.commit(), 20)
        assert not db.in_transaction
        assert await asyncio.create_task(db.fetch_val(count)) == 1
        assert db.pool.active_count == 0

        async def block(first: int) -> None:
            async with db.transaction():
                await db.execute(insert, [first])
                await asyncio.wait_for(db.execute(insert, [first + 1]), 20)

        await asyncio.wait_for(block(10), 20)
        assert await db.fetch_val(count) == 3
        async with db.transaction():
            await asyncio.wait_for(block(20), 20)  # a savepoint
            await db.rollback()
        assert await db.fetch_val(count) == 3
        statement = await asyncio.wait_for(db.prepare(count), 20)
        assert await asyncio.wait_for(statement.fetch_val(), 20) == 3
        await asyncio.wait_for(statement.close(), 20)
        assert db.pool.active_count == 0


async def test_a_task_with_its_own_transaction_that_is_awaited_in_wait_for(
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
        await asyncio.wait_for(task, 20)
        assert await db.fetch_val(count) == 2
        assert db.pool.active_count == 0


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
        async with db.transaction(), asyncio.timeout(20):
            await db.execute(insert, [1])
        async with asyncio.timeout(20), db.transaction():
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

        for steps in range(40):
            await asyncio.create_task(child(steps))
        assert await db.fetch_val(f"select count(*) from {table}") == 40


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
async def test_eager_tasks(backend: Backend) -> None:
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
                assert await asyncio.wait_for(db.fetch_val(count), 20) == 1
            assert await asyncio.create_task(child()) == 1
            await leave(db.begin, "return")
            await leave(db.begin, "exception")
            assert await db.fetch_val(count) == 1
            await eventually(lambda: db.pool.active_count == 0)
        finally:
            loop.set_task_factory(None)


async def test_without_a_task(backend: Backend) -> None:
    async with backend.database() as db:
        await db.fetch_val("select 1")
        loop = asyncio.get_running_loop()
        seen: list[Any] = []

        def ask() -> None:
            seen.append((db.in_transaction, db.bound_connection, db.pin_reason))
            with pytest.raises(RuntimeError, match="no running task"):
                db.begin().send(None)
            seen.append("asked")

        loop.call_soon(ask)
        await eventually(lambda: seen)
        assert seen == [(False, None, None), "asked"]
