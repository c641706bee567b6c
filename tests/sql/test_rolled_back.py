"""`rolled_back()`: what any task does inside of it is undone, and looks as it always does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import cenote
from cenote.errors import PoolError, StatementTimeoutError, TransactionLostError
from cenote.sql.states import ConnectionState
from cenote.testing import rolled_back, shared_transaction
from tests.support.backends import Backend
from tests.support.faults import (
    RAW,
    across_connections,
    drivers_error,
    marked,
    outcome,
    watching,
    with_mysql,
    with_postgresql,
    with_server,
    with_sqlite,
)
from tests.support.held import loop_database_of
from tests.support.setting import Setting, setting
from tests.support.waiting import WAIT, eventually

pytestmark = across_connections

SHORT = 0.2  # seconds, after which every slow statement is stopped


@contextlib.asynccontextmanager
async def undone(backend: Backend, **options: Any) -> AsyncIterator[Setting]:
    """A table inside of rolled_back(), of which nothing is seen outside, nor left afterwards."""
    async with setting(backend, **options) as place:
        async with rolled_back(place.db) as db:
            assert db is place.db
            yield place
            if backend.name != "sqlite":  # whose other connections see nothing while one writes
                assert await place.rows() == []
        assert await place.rows() == []
        assert await mine(place) == []


async def mine(place: Setting) -> list[int]:
    """What the program itself sees."""
    return [row[0] for row in await place.db.fetch_all(f"select id from {place.table} order by id")]


async def undo_after(block: Any, place: Setting, number: int) -> None:
    """Insert a row in a block that is left by an exception."""
    async with block:
        await place.insert(number)
        raise ZeroDivisionError


async def fill(place: Setting, number: int) -> None:
    """Insert a row in a transaction in which another statement has failed."""
    async with place.db.transaction():
        await place.insert(number)
        with drivers_error():
            await place.insert(1)


async def test_something_else_than_a_database_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^rolled_back\(\) takes a Database, not NoneType"):
        async with rolled_back(None):  # type: ignore[arg-type]
            pass


async def test_statements_are_undone_at_the_end(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        await place.db.execute_many(f"insert into {place.table} values (?, 'a')", [[2], [3]])
        assert await mine(place) == [1, 2, 3]


async def test_an_exception_leaves_the_block_and_undoes_all(backend: Backend) -> None:
    async with setting(backend) as place:
        with pytest.raises(ZeroDivisionError):
            await undo_after(rolled_back(place.db), place, 1)
        assert await place.rows() == []


async def test_a_commit_inside_is_undone_as_well(backend: Backend) -> None:
    async with undone(backend) as place:
        async with place.db.transaction():
            await place.insert(1)
            assert place.db.in_transaction
        assert not place.db.in_transaction
        await place.db.begin()
        await place.insert(2)
        await place.db.commit()
        await place.db.transact(place.insert, 3)
        assert await mine(place) == [1, 2, 3]


async def test_a_rollback_inside_undoes_its_own_transaction(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        with pytest.raises(ZeroDivisionError):
            await undo_after(place.db.transaction(), place, 2)
        await place.db.begin()
        await place.insert(3)
        await place.db.rollback()
        async with place.db.transaction():
            await place.insert(4)
            with pytest.raises(ZeroDivisionError):
                await undo_after(place.db.transaction(), place, 5)
        assert await mine(place) == [1, 4]


async def test_options_of_a_transaction_are_accepted_inside(backend: Backend) -> None:
    async with (
        undone(backend) as place,
        place.db.transaction(isolation="serializable", read_only=True),
    ):
        assert await mine(place) == []


async def test_a_failing_statement_leaves_the_others_alone(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        with drivers_error():
            await place.insert(1)
        with drivers_error():
            await place.db.execute_many(f"insert into {place.table} values (?, 'a')", [[2], [1]])
        if "prepare" in place.db.capabilities:
            with drivers_error():
                await place.db.prepare("select nonsense from nowhere")
        assert await mine(place) == [1]


@with_postgresql
async def test_a_failed_transaction_is_not_committed_inside(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        with pytest.raises(TransactionLostError):
            await fill(place, 2)
        assert await mine(place) == [1]


async def test_raw_begin_and_commit_are_savepoints(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.db.execute(backend.raw_begin)
        assert place.db.in_transaction
        await place.insert(1)
        await place.db.execute("commit")
        assert not place.db.in_transaction
        await place.db.execute(backend.raw_begin)
        await place.insert(2)
        await place.db.execute("rollback")
        assert await mine(place) == [1]
        with pytest.raises(PoolError, match="together with something else"):
            await place.db.execute(f"insert into {place.table} values (3, 'a'); commit")


async def test_fixture_and_test_may_be_different_tasks(backend: Backend) -> None:
    async with setting(backend) as place:
        block = rolled_back(place.db)
        await asyncio.create_task(block.__aenter__())
        await asyncio.create_task(place.insert(1))
        await asyncio.create_task(place.insert(2))
        assert await mine(place) == [1, 2]
        await asyncio.create_task(block.__aexit__(None, None, None))
        assert await place.rows() == []


async def test_tasks_wait_for_one_another(backend: Backend) -> None:
    async with undone(backend) as place:
        seen = []

        async def add(number: int) -> None:
            async with place.db.transaction():
                await place.insert(number)
                await asyncio.sleep(0)
                seen.append(len(await mine(place)))

        async with asyncio.TaskGroup() as group:
            for number in range(1, 6):
                group.create_task(add(number))
        assert seen == [1, 2, 3, 4, 5]  # each alone, none inside another's


async def test_a_child_task_shares_the_transaction_by_join(backend: Backend) -> None:
    async with undone(backend) as place:
        async with place.db.transaction() as tx:

            async def child() -> None:
                async with tx.join():
                    await place.insert(1)

            await asyncio.gather(child(), tx.execute(f"insert into {place.table} values (2, 'a')"))
        assert await mine(place) == [1, 2]


async def test_waiting_for_each_other_names_both_tasks(backend: Backend) -> None:
    async with undone(backend) as place:

        async def outer() -> None:
            async with place.db.transaction():
                await place.insert(1)
                await asyncio.create_task(place.insert(2), name="inner")

        with pytest.raises(PoolError, match=r"'inner' waits .* 'outer', which waits for it"):
            await asyncio.create_task(outer(), name="outer")
        assert await mine(place) == []


async def test_waiting_too_long_names_who_has_it(backend: Backend) -> None:
    async with undone(backend, acquire_timeout=2.0) as place:  # in which it also connects
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def holder() -> None:
            async with place.db.transaction():
                begun.set()
                await go_on.wait()

        task = asyncio.create_task(holder(), name="holder")
        await begun.wait()
        with pytest.raises(PoolError, match=r"within 2 s.* 'holder' has it"):
            await place.insert(1)
        go_on.set()
        await task


async def test_a_stream_lets_statements_run_beside(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        await place.insert(2)
        async for row in place.db.iterate(f"select id from {place.table}"):
            await place.insert(row[0] + 10)
        assert await mine(place) == [1, 2, 11, 12]


async def test_a_prepared_statement_runs_inside(backend: Backend) -> None:
    async with undone(backend) as place:
        async with await place.db.prepare(f"insert into {place.table} values (?, 'a')") as add:
            await add.execute([1])
            with drivers_error():
                await add.execute([1])
            await asyncio.create_task(place.insert(2))
            await add.execute_many([[3], [4]])
        assert await mine(place) == [1, 2, 3, 4]


async def test_the_raw_connection_is_lent_to_one_task(backend: Backend) -> None:
    async with undone(backend) as place:
        run = RAW[backend.name]
        async with place.db.connection() as raw:
            waiting = asyncio.create_task(place.insert(2))
            await run(raw, f"insert into {place.table} values (1, 'a')")
            assert await mine(place) == [1]
            with drivers_error():
                await place.insert(1)
        await waiting
        await place.db.release()
        assert await mine(place) == [1, 2]
        with drivers_error():
            async with place.db.connection() as raw:
                await run(raw, f"insert into {place.table} values (1, 'a')")
        assert await mine(place) == [1, 2]


async def test_a_cancelled_statement_is_undone_alone(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        for number in range(2, 30):
            task = asyncio.create_task(place.insert(number))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert (await mine(place))[0] == 1
        await place.insert(100)


async def test_a_cancelled_statement_is_stopped_at_once(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT):
                await place.db.fetch_val(backend.slow)
        assert await mine(place) == [1]  # of the same task, which goes on
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with asyncio.timeout(SHORT), place.db.transaction():
                await place.insert(2)
                await place.db.fetch_val(backend.slow)
        assert await mine(place) == [1]


async def test_a_timeout_stops_its_statement_alone(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        for _ in range(2):
            with pytest.raises(StatementTimeoutError, match="the connection was kept"):
                await place.db.fetch_val(backend.slow, timeout=SHORT)
        assert await mine(place) == [1]
        async with place.db.transaction():
            await place.insert(2)
            with pytest.raises(StatementTimeoutError, match="the connection was kept"):  # noqa: PT012
                async with place.db.transaction():
                    await place.insert(3)
                    await place.db.fetch_val(backend.slow, timeout=SHORT)
        assert await mine(place) == [1, 2]


@with_sqlite
async def test_a_change_of_sqlite_is_undone_and_not_stopped(backend: Backend) -> None:
    count = "with recursive c(x) as (select 1 union all select x + 1 from c limit 3000000)"
    async with undone(backend) as place:
        await place.insert(1)
        with pytest.raises(StatementTimeoutError):
            await place.db.execute(
                f"insert into {place.table} {count} select count(*), 'a' from c", timeout=0.01
            )
        assert await mine(place) == [1]


async def test_a_cancelled_transaction_is_undone_alone(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)

        async def add(number: int) -> None:
            async with place.db.transaction():
                await place.insert(number)
                await place.insert(number + 1000)

        done = [1]
        for number in range(2, 30):
            task = asyncio.create_task(add(number))
            for _ in range(3 * number):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                done += [number, number + 1000]
        found = await mine(place)
        assert set(done) <= set(found)
        assert all(number + 1000 in found for number in found if 1 < number < 1000)


async def test_a_transaction_lost_by_another_task_is_undone_alone(backend: Backend) -> None:
    """The task that has begun it goes on at once, and waits until it is undone."""
    async with undone(backend) as place:
        await place.insert(1)
        with pytest.raises(TransactionLostError):  # noqa: PT012
            async with place.db.transaction() as tx:
                await place.insert(2)
                child = asyncio.create_task(tx.fetch_val(backend.slow))
                session = loop_database_of(place.db).sessions[asyncio.current_task()]
                await eventually(lambda: session.turn.taken)
                child.cancel()
                await asyncio.wait([child])
        assert await mine(place) == [1]


async def cancel_to_the_end(task: asyncio.Task[None]) -> None:
    """Again and again, as the cancel scopes of anyio do it."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        task.result()


async def test_the_end_comes_to_its_end_though_it_is_cancelled(backend: Backend) -> None:
    async with setting(backend) as place:
        inside = asyncio.Event()

        async def block() -> None:
            async with rolled_back(place.db):
                await place.insert(1)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await inside.wait()
        await cancel_to_the_end(task)
        async with asyncio.timeout(WAIT):
            await place.insert(1)  # nothing is locked
        assert await mine(place) == [1]


async def test_a_beginning_that_is_cancelled_leaves_no_connection(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with setting(backend) as place:
        kind: Any = place.db._driver.connection_class  # type: ignore[attr-defined]
        begin, begun = kind.begin, []
        inside = asyncio.Event()

        async def begin_slowly(self: Any, *arguments: Any) -> None:
            await begin(self, *arguments)
            begun.append(self)
            inside.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(kind, "begin", begin_slowly)
        task = asyncio.create_task(rolled_back(place.db).__aenter__())
        await inside.wait()
        monkeypatch.undo()
        await cancel_to_the_end(task)  # type: ignore[arg-type]
        await eventually(lambda: begun[0].state is ConnectionState.CLOSED)
        await place.insert(1)


async def test_blocks_inside_one_another_undo_their_own(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        async with rolled_back(place.db):
            await place.insert(2)
            async with place.db.transaction():
                await place.insert(3)
            assert await mine(place) == [1, 2, 3]
        assert await mine(place) == [1]


async def test_several_databases_are_rolled_back_together(backend: Backend) -> None:
    async with backend.database() as other, undone(backend) as place:
        if backend.name == "sqlite":
            assert await other.fetch_val("select 1") == 1
            return
        async with rolled_back(other):
            await place.insert(1)
            await place.insert(2, other)
            assert await mine(place) == [1]
        await place.insert(3)


async def test_a_database_may_be_unpooled(backend: Backend) -> None:
    async with undone(backend, max_size=1) as place:
        async with place.db.transaction():
            await place.insert(1)
        assert await mine(place) == [1]
    async with (
        backend.database(pooled=False) as db,
        backend.table(db) as table,
    ):
        async with rolled_back(db):
            await db.execute(f"insert into {table} values (1, 'a')")
        assert await db.fetch_val(f"select count(*) from {table}") == 0


async def test_a_block_makes_one_connection(backend: Backend, tmp_path: Path) -> None:
    """Whatever the sizes of the pool, and however small the budget of its fleet."""
    seen: list[Any] = []
    fleet = cenote.Fleet(budget=1, path=tmp_path / "fleet")
    for options in ({"min_size": 3}, {"fleet": fleet}, {"fleet": fleet, "strategy": None}):
        async with (
            backend.database(**options, on_connect=seen.append, acquire_timeout=WAIT) as db,
            rolled_back(db),
        ):
            for _ in range(20):
                await asyncio.gather(*(db.fetch_val("select 1") for _ in range(3)))
            assert db.pool.count == 3
        assert len(seen) == 1
        seen.clear()


async def test_on_connect_runs_once_for_the_block(backend: Backend) -> None:
    seen: list[Any] = []
    async with undone(backend, on_connect=seen.append) as place:
        before = len(seen)
        await asyncio.gather(*(mine(place) for _ in range(3)))
        assert len(seen) == before


async def test_entering_inside_a_transaction_is_refused(backend: Backend) -> None:
    async with setting(backend) as place:
        async with place.db.transaction():
            with pytest.raises(PoolError, match=r"while task .* is in a transaction"):
                await rolled_back(place.db).__aenter__()
        async with rolled_back(place.db):
            pass


async def test_another_event_loop_gets_a_clear_error(backend: Backend) -> None:
    async with undone(backend) as place:
        with pytest.raises(PoolError, match="entered in another event loop"):
            await asyncio.to_thread(asyncio.run, mine(place))
        if not backend.embedded:  # one at a time writes in the file
            await asyncio.to_thread(asyncio.run, elsewhere(place))


async def elsewhere(place: Setting) -> None:
    """In another loop and thread."""
    async with rolled_back(place.db):
        await place.insert(1)
        assert await mine(place) == [1]


@with_server
async def test_a_lost_connection_is_a_clear_error(backend: Backend) -> None:
    async with watching(backend) as watcher, setting(backend) as place:
        async with rolled_back(place.db):
            await place.insert(1)
            session = await place.db.fetch_val(backend.session)
            await watcher.kill(session)
            await watcher.until_gone(session)
            with drivers_error():
                await place.insert(2)
            with pytest.raises(PoolError, match=r"rolled_back\(\) is over, because its conn"):
                await place.insert(3)
        assert await place.rows() == []
        await place.insert(4)


@with_mysql
async def test_statements_that_commit_by_themselves_are_refused(backend: Backend) -> None:
    async with undone(backend) as place:
        await place.insert(1)
        for text in (
            "create table never (a int)",
            f"truncate {place.table}",
            "rename table a to b",
        ):
            with pytest.raises(PoolError, match="commits before and after it"):
                await place.db.execute(text)
        await place.db.execute("create temporary table passing (a int)")
        await place.db.execute("drop temporary table passing")
        assert await mine(place) == [1]


@with_sqlite
async def test_a_commit_by_the_drivers_own_means_is_an_error(backend: Backend) -> None:
    async with setting(backend) as place:
        block = rolled_back(place.db)
        await block.__aenter__()
        lent = place.db.connection()
        await (await lent.__aenter__()).execute("commit")
        with pytest.raises(PoolError, match="ended it by the driver's own means"):
            await lent.__aexit__(None, None, None)
        with pytest.raises(PoolError, match="nothing more can be run"):
            await place.insert(1)
        with pytest.raises(PoolError, match="ended it by the driver's own means"):
            await block.__aexit__(None, None, None)
        await place.insert(1)


async def test_schema_changes_are_undone_where_they_can(backend: Backend) -> None:
    if backend.name == "mysql":
        return  # refused, by the test above
    async with backend.database() as db, backend.table(db) as table:
        async with rolled_back(db):
            await db.execute(f"create table {table}_more (a int)")
            await db.execute(f"alter table {table} add more int")
            await db.execute(f"insert into {table} values (1, 'a', 2)")
        with drivers_error():
            await db.fetch_all(f"select more from {table}")
        with drivers_error():
            await db.fetch_all(f"select * from {table}_more")


async def test_the_database_may_close_and_open_inside(backend: Backend) -> None:
    async with setting(backend) as place:
        table = place.table
        async with backend.database() as db:
            async with rolled_back(db):
                await db.execute(f"insert into {table} values (1, 'a')")
                await db.close()
                async with db:  # as an application does that is started once more
                    await db.execute(f"insert into {table} values (2, 'a')")
                    assert await db.fetch_val(f"select count(*) from {table}") == 2
            assert db.closed
            async with rolled_back(db):  # opens it
                await db.execute(f"insert into {table} values (3, 'a')")
            assert await db.fetch_val(f"select count(*) from {table}") == 0
        assert await place.rows() == []


@with_postgresql
async def test_a_listener_inside_gets_nothing(backend: Backend) -> None:
    async with undone(backend) as place:
        async with place.db.listen("news") as listener:
            await listener.start()
            await place.db.execute("notify news, 'here it is'")
            await place.insert(1)
        assert await mine(place) == [1]


@with_server
async def test_what_outlasts_the_block_is_cancelled(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_transaction, "LAST_WORDS", 0.0)
    sql, nonce = marked(backend.slow)
    async with setting(backend) as place:
        async with rolled_back(place.db):
            task = asyncio.create_task(place.db.fetch_val(sql))
            await place.watcher.until_running(nonce)
        async with asyncio.timeout(WAIT):
            assert isinstance(await outcome(task), asyncio.CancelledError)
            await place.watcher.until_stopped(nonce)
