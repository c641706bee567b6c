"""A raw transaction that is shared by `child_tasks="join"`: what its task does while a child runs.

In mid-statement psycopg does not know whether a transaction is open.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cenote import PoolError, TransactionClosedError
from tests.support.backends import Backend
from tests.support.faults import across_connections
from tests.support.held import Gate, ids, in_task, loop_database_of, settled
from tests.support.waiting import WAIT, eventually

pytestmark = across_connections


class Shared:
    """A database, a table with what the raw transaction inserted into it, and a child in it."""

    def __init__(self, gate: Gate, db: Any, table: str) -> None:
        self.gate = gate
        self.db = db
        self.table = table
        self.insert = f"insert into {table} values (?, 'y')"
        self.child: asyncio.Task[Any] = asyncio.create_task(db.execute(gate.sql))

    async def runs(self) -> None:
        """Wait until the statement of the child has its turn, in which it waits for the gate."""
        session = loop_database_of(self.db).sessions[asyncio.current_task()]
        await eventually(lambda: session.turn.taken)

    async def seen(self) -> list[int]:
        """The rows that another connection sees, after the child."""
        self.gate.open()
        await asyncio.wait([self.child])
        return await ids(self.db, self.table)


@contextlib.asynccontextmanager
async def sharing(backend: Backend, **options: Any) -> AsyncIterator[Shared]:
    gate = Gate(backend)
    async with gate.database(child_tasks="join", **options) as (db, table), asyncio.timeout(WAIT):
        await db.execute(backend.raw_begin)
        await db.execute(f"insert into {table} values (7, 'y')")
        shared = Shared(gate, db, table)
        await shared.runs()
        yield shared
        gate.open()
        await asyncio.wait([shared.child])


async def test_the_transaction_is_seen_while_a_child_runs(backend: Backend) -> None:
    async with sharing(backend) as shared:
        db = shared.db
        assert db.in_transaction
        assert db.pin_reason == "in a transaction"
        with pytest.raises(PoolError, match="open already"):
            await db.begin()
        with pytest.raises(PoolError, match="inside a transaction"):
            await db.release()
        shared.gate.open()
        assert await shared.child == 1
        await db.rollback()
        assert await ids(db, shared.table) == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_its_end_waits_for_the_child(backend: Backend, end: str) -> None:
    async with sharing(backend) as shared:
        asyncio.get_running_loop().call_soon(shared.gate.open)
        await getattr(shared.db, end)()
        assert await shared.child == 1
        assert await ids(shared.db, shared.table) == ([7] if end == "commit" else [])
        assert not shared.db.in_transaction


async def test_a_block_in_it_is_a_savepoint(backend: Backend) -> None:
    async with sharing(backend) as shared:

        async def write() -> None:
            async with shared.db.transaction():
                await shared.db.execute(shared.insert, [8])

        writing = asyncio.create_task(write())
        shared.gate.open()
        await writing
        assert await shared.child == 1
        await shared.db.rollback()  # of everything
        assert await shared.seen() == []


async def test_a_block_that_comes_after_its_end_is_refused(backend: Backend) -> None:
    async with sharing(backend) as shared:
        committing = asyncio.create_task(shared.db.execute("commit"))
        await asyncio.sleep(0)  # it waits for its turn, as the savepoint does after it
        asyncio.get_running_loop().call_soon(shared.gate.open)
        with pytest.raises(TransactionClosedError):
            async with shared.db.transaction():
                pytest.fail("it is no savepoint of anything")
        await committing
        assert await shared.seen() == [7]


async def test_a_connection_block_is_left_while_a_child_runs(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database(child_tasks="join", max_size=1) as (db, table):
        async with db.connection():
            await db.execute(backend.raw_begin)
            await db.execute(f"insert into {table} values (7, 'y')")
            shared = Shared(gate, db, table)
            await shared.runs()
        assert db.pin_reason == "in a transaction"
        assert db.pool.active_count == 1
        gate.open()
        assert await shared.child == 1
        await db.rollback()
        await settled(db)
        assert await shared.seen() == []


async def test_a_connection_block_is_left_while_a_cancelled_child_ends(backend: Backend) -> None:
    gate = Gate(backend)
    async with gate.database(child_tasks="join", max_size=1) as (db, table):
        with contextlib.suppress(PoolError):
            async with db.connection():
                await db.execute(backend.raw_begin)
                await db.execute(f"insert into {table} values (7, 'y')")
                shared = Shared(gate, db, table)
                await shared.runs()
                shared.child.cancel()
                await asyncio.sleep(0)  # it has met its cancellation, and is perhaps not over
        gate.open()
        await asyncio.wait([shared.child])
        assert shared.child.cancelled()
        await db.rollback()
        await settled(db)
        assert await in_task(ids(db, table)) == []


async def test_a_connection_is_given_out_in_turn(backend: Backend) -> None:
    """With psycopg it is told to the server that the transaction begins, and a statement of another
    task comes meanwhile."""
    async with backend.database(max_size=1) as db, backend.table(db, "id {int}") as table:
        async with asyncio.timeout(WAIT), db.transaction() as tx:
            insert = asyncio.create_task(tx.execute(f"insert into {table} values (1)"))
            async with db.connection():
                assert await insert == 1
            assert db.in_transaction
        assert await db.fetch_val(f"select count(*) from {table}") == 1


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_a_statement_waits_for_one_of_the_driver(backend: Backend) -> None:
    """It is no sign that the transaction has ended."""
    async with backend.database(max_size=1) as db, backend.table(db, "id {int}") as table:
        async with asyncio.timeout(WAIT), db.transaction() as tx, db.connection() as c:
            raw = asyncio.create_task(c.execute("select pg_sleep(0.2)"))
            await eventually(lambda: c.info.transaction_status.name == "ACTIVE")
            async with db.connection():
                pass
            assert await tx.execute(f"insert into {table} values (1)") == 1
            await raw
            raw = asyncio.create_task(c.execute("select pg_sleep(0.2)"))
            await eventually(lambda: c.info.transaction_status.name == "ACTIVE")
            async with db.transaction():  # its savepoint is sent with the statement
                await db.execute(f"insert into {table} values (2)")
            await raw
        assert await db.fetch_val(f"select count(*) from {table}") == 2
