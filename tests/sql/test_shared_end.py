"""What ends with a transaction that several tasks share: connections, streams, statements."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
import contextlib
from typing import Any

import pytest

from cenote import NotAcquiredError, TransactionClosedError
from tests.support.backends import Backend
from tests.support.faults import MANY_ROWS, across_connections, outcome
from tests.support.held import Gate, ids, is_quiet, within
from tests.support.waiting import eventually

pytestmark = across_connections

ROWS = 2500


@contextlib.asynccontextmanager
async def rows_of(backend: Backend, **options: Any) -> Any:
    async with backend.database(**options) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(ROWS)])
        yield db, table


# -- the end of connection() ---------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "rollback", "inner commit", "inner rollback"])
@pytest.mark.parametrize("leaves", [True, False], ids=["left later", "left by an error"])
async def test_a_connection_ends_with_the_transaction(
    backend: Backend, end: str, leaves: bool
) -> None:
    """Of a task that joined it: what it does afterwards would be committed by itself."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        inside, over = asyncio.Event(), asyncio.Event()

        async def use(c: Any, number: int) -> None:
            sql = f"insert into {table} values ({number}, 'y')"
            if hasattr(c, "execute"):
                await c.execute(sql)
            else:
                async with c.cursor() as cursor:
                    await cursor.execute(sql)

        async def child(tx: Any) -> Any:
            async with tx.join(), db.connection() as c:
                await use(c, 1)
                inside.set()
                await over.wait()
                if not leaves:
                    await use(c, 2)
                return await outcome(use(c, 2))

        async with contextlib.AsyncExitStack() as outer:
            if end.startswith("inner"):
                await outer.enter_async_context(db.transaction())
            with contextlib.suppress(KeyError):
                async with db.transaction() as tx:
                    task = asyncio.create_task(child(tx))
                    await inside.wait()
                    if end.endswith("rollback"):
                        raise KeyError
            pinned = "in a transaction" if end.startswith("inner") else None
            assert db.pin_reason == pinned
            if not pinned:
                await db.execute("select 1")  # on the only connection
            over.set()
            # With the outermost block the session has ended, too.
            kind = TransactionClosedError if end.startswith("inner") else NotAcquiredError
            assert isinstance(await within(task), kind)
            assert db.pin_reason == pinned
        assert await ids(db, table) == ([1] if end.endswith("commit") else [])
        await eventually(lambda: is_quiet(db))


# -- the end of streams and statements -----------------------------------------------------------

ENDS = ["commit", "rollback", "inner commit", "inner rollback"]


@contextlib.asynccontextmanager
async def block(db: Any, end: str) -> Any:
    """A shared block that ends so, perhaps an inner one."""
    async with contextlib.AsyncExitStack() as stack:
        if end.startswith("inner"):
            await stack.enter_async_context(db.transaction())
        with contextlib.suppress(KeyError):
            async with db.transaction() as tx:
                yield tx
                if end.endswith("rollback"):
                    raise KeyError


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", ["handle", "join"])
async def test_a_stream_ends_with_the_transaction(backend: Backend, end: str, way: str) -> None:
    """Between two of its rows, which it has read already."""
    async with rows_of(backend, max_size=1) as (db, table):
        first, over = asyncio.Event(), asyncio.Event()

        async def read(stream: Any) -> list[int]:
            seen = []
            async for row in stream:
                seen.append(row[0])
                first.set()
                await over.wait()
            return seen

        async def child(tx: Any) -> list[int]:
            text = f"select id from {table} order by id"
            if way == "handle":
                return await read(tx.iterate(text))
            async with tx.join():
                return await read(db.iterate(text))

        async with block(db, end) as tx:
            await tx.execute(f"insert into {table} values (5000, 'y')")
            task = asyncio.create_task(child(tx))
            await first.wait()
        over.set()
        assert isinstance(await within(task), TransactionClosedError)
        assert await ids(db, table) == ([5000] if end.endswith("commit") else [])
        assert is_quiet(db)
        assert db.pool.stats().created == 1


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_in_mid_fetch_ends_with_the_transaction(backend: Backend, end: str) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        reading = asyncio.Event()

        async def child(tx: Any) -> int:
            count = 0
            async for _ in tx.iterate(MANY_ROWS[backend.name]):
                reading.set()
                count += 1
            return count

        async with block(db, end) as tx:
            await tx.execute(f"insert into {table} values (1, 'y')")
            task = asyncio.create_task(child(tx))
            await reading.wait()
            await eventually(lambda: tx._session.turn.taken)
        assert isinstance(await within(task), TransactionClosedError)
        assert await ids(db, table) == ([1] if end.endswith("commit") else [])
        assert is_quiet(db)


@pytest.mark.parametrize("backend", ["sqlite", "asyncpg", "psycopg"], indirect=True)
async def test_a_stream_waiting_in_turn_ends_with_the_transaction(
    backend: Backend,
) -> None:
    """Where other statements run beside it: its turn comes before that of the COMMIT."""
    gate = Gate(backend)
    async with gate.database() as (db, table):
        await db.execute_many(f"insert into {table} values (?, 'x')", [[i] for i in range(2, 500)])

        async def rest(stream: Any) -> list[Any]:
            return [row async for row in stream]

        async with db.transaction() as tx:
            streams = [tx.iterate(f"select id from {table}") for _ in range(2)]
            await anext(streams[0])
            await tx.execute(f"insert into {table} values (5000, 'y')")
            running = asyncio.create_task(tx.execute(gate.sql))
            await eventually(lambda: tx._session.turn.taken)
            streams[0]._rows.clear()  # so that it fetches the next ones
            tasks = [asyncio.create_task(rest(stream)) for stream in streams]
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(gate.open)
        assert await within(running) == 1
        for task in tasks:
            assert isinstance(await within(task), TransactionClosedError)
        assert await ids(db, table) == [5000]
        assert is_quiet(db)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", ["handle", "join"])
async def test_a_statement_ends_with_the_transaction(backend: Backend, end: str, way: str) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, 'y')"
        ready, over = asyncio.Event(), asyncio.Event()

        async def use(statement: Any) -> None:
            await statement.execute([1])
            ready.set()
            await over.wait()
            for use in (
                lambda: statement.execute([2]),
                lambda: statement.execute_many([[3]]),
                lambda: statement.fetch_all([4]),
                lambda: statement.fetch_one([5]),
                lambda: statement.fetch_val([6]),
            ):
                with pytest.raises(TransactionClosedError):
                    await use()
            with pytest.raises(TransactionClosedError):
                await anext(statement.iterate([7]))
            assert statement.closed
            await statement.close()

        async def child(tx: Any) -> None:
            if way == "handle":
                await use(await tx.prepare(insert))
                return
            async with tx.join():
                await use(await db.prepare(insert))

        async with block(db, end) as tx:
            task = asyncio.create_task(child(tx))
            await ready.wait()
        over.set()
        assert await within(task) is None
        assert await ids(db, table) == ([1] if end.endswith("commit") else [])
        assert is_quiet(db)


async def test_a_statement_waiting_in_turn_writes_nothing_after_the_end(
    backend: Backend,
) -> None:
    gate = Gate(backend)
    async with gate.database() as (db, table):
        insert = f"insert into {table} values (?, 'y')"

        async def joined(tx: Any) -> None:
            async with tx.join():
                await db.execute(insert, [8])

        with pytest.raises(KeyError):
            async with db.transaction() as tx:
                statement = await tx.prepare(insert)
                running = asyncio.create_task(tx.execute(gate.sql))
                await eventually(lambda: tx._session.turn.taken)
                waiting = [
                    asyncio.create_task(statement.execute([7])),
                    asyncio.create_task(joined(tx)),
                    asyncio.create_task(statement.close()),
                ]
                await asyncio.sleep(0)
                asyncio.get_running_loop().call_soon(gate.open)
                raise KeyError
        await within(running)
        for task in waiting[:2]:
            assert isinstance(await within(task), TransactionClosedError)
        assert await within(waiting[2]) is None
        assert await ids(db, table) == []
        assert is_quiet(db)


async def test_a_statement_of_the_owner_outlives_its_transaction(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        async with db.transaction():
            mine = await db.prepare(f"insert into {table} values (?, 'y')")
            await mine.execute([1])
        await mine.execute([2])
        await mine.close()
        assert await ids(db, table) == [1, 2]


async def test_a_stream_of_a_statement_is_where_its_transaction_is(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def child(statement: Any) -> list[int]:
            return [row[0] async for row in statement.iterate([0])]

        async with db.transaction() as tx:
            await tx.execute(f"insert into {table} values (1, 'y')")
            statement = await tx.prepare(f"select id from {table} where id > ?")
            assert await within(asyncio.create_task(child(statement))) == [1]


# -- the end by another task ---------------------------------------------------------------------


@pytest.mark.parametrize("way", ["db.rollback()", "tx.rollback()", "tx.commit()"])
async def test_a_block_is_left_after_its_end_by_another_task(backend: Backend, way: str) -> None:
    """The end waits for its turn when the owner leaves: nothing is committed behind its back."""
    gate = Gate(backend)
    async with gate.database() as (db, table):

        async def end(tx: Any) -> None:
            async with tx.join():
                if way == "db.rollback()":
                    await db.rollback()
                elif way == "tx.rollback()":
                    await tx.rollback()
                else:
                    await tx.commit()

        async def owner() -> None:
            async with db.transaction() as tx:
                slow = asyncio.create_task(tx.execute(gate.sql))
                await asyncio.sleep(0)
                ending.append(asyncio.create_task(end(tx)))
                while tx.is_open:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                asyncio.get_running_loop().call_soon(gate.open)
                slow.add_done_callback(lambda _: left.append("statement"))
            left.append("block")

        ending: list[asyncio.Task[None]] = []
        left: list[str] = []
        raised = await within(owner())
        await within(ending[0])
        if way == "tx.commit()":
            assert raised is None
            assert left == ["statement", "block"]
            assert await db.fetch_val(f"select name from {table}") == "through"
        else:
            assert isinstance(raised, TransactionClosedError)
            assert left == ["statement"]
            assert await db.fetch_val(f"select name from {table}") == "a"
        await eventually(lambda: is_quiet(db))


async def test_a_connection_block_is_left_during_a_statement(backend: Backend) -> None:
    """Of another task: psycopg says meanwhile that it is in no transaction."""
    gate = Gate(backend)
    async with gate.database() as (db, table):
        async with db.transaction() as tx:
            async with db.connection():
                slow = asyncio.create_task(tx.execute(gate.sql))
                await asyncio.sleep(0)
                assert not slow.done()
            gate.open()
            assert await within(slow) == 1
        assert await db.fetch_val(f"select name from {table}") == "through"
