"""With `child_tasks="join"` child tasks are inside the transaction in which they were started."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from cenote import PoolDeadlockError, PoolError, TransactionClosedError, TransactionLostError
from tests.support.backends import Backend
from tests.support.faults import uses
from tests.support.held import Gate, ids, loop_database_of, settled, within

pytestmark = [
    pytest.mark.real_time("talks to real servers"),
    pytest.mark.driver,
    pytest.mark.filterwarnings("error::cenote.TransactionScopeWarning"),
]


@contextlib.asynccontextmanager
async def joining(backend: Backend, **options: Any) -> AsyncIterator[tuple[Any, str]]:
    """A database whose child tasks join, and a table."""
    async with (
        backend.database(child_tasks="join", **options) as db,
        backend.table(db) as table,
    ):
        yield db, f"insert into {table} values (?, 'y')"


def table_of(insert: str) -> str:
    return insert.split()[2]


async def test_children_are_rolled_back_with_their_parent(backend: Backend) -> None:
    async with joining(backend, max_size=1) as (db, insert):

        async def child(number: int) -> None:
            assert db.in_transaction
            assert db.pin_reason == "in a transaction"
            await db.execute(insert, [number])
            assert db.bound_connection is not None
            await asyncio.create_task(db.execute(insert, [number + 1]))

        for error in (None, KeyError("undone")):
            with contextlib.suppress(KeyError):
                async with db.transaction():
                    await asyncio.gather(child(1), child(3))
                    async with asyncio.TaskGroup() as group:
                        group.create_task(child(5))
                        group.create_task(child(7))
                    await asyncio.wait_for(child(9), 30)
                    await asyncio.wait_for(asyncio.create_task(child(11)), 30)
                    await asyncio.shield(child(13))
                    assert db.pool.active_count == 1
                    if error is not None:
                        raise error
            expected = [*range(1, 15)] if error is None else []
            assert await ids(db, table_of(insert)) == expected
            await db.execute(f"delete from {table_of(insert)}")
        assert not loop_database_of(db).joined


async def test_every_use_of_a_child_is_inside(backend: Backend) -> None:
    async with joining(backend) as (db, insert), db.transaction():
        await db.execute(insert, [1])
        for use in uses(db).values():
            with contextlib.suppress(PoolError, ValueError):  # begin(), a read-only savepoint
                await asyncio.create_task(use())
            assert db.pool.active_count == 1
        assert await db.fetch_val(f"select count(*) from {table_of(insert)}") == 1


@pytest.mark.parametrize("way", ["begin()", "raw BEGIN"])
async def test_children_join_transactions_without_a_block(backend: Backend, way: str) -> None:
    async with joining(backend, max_size=1) as (db, insert):
        await (db.begin() if way == "begin()" else db.execute(backend.raw_begin))
        await asyncio.gather(*(db.execute(insert, [number]) for number in range(3)))
        await asyncio.create_task(db.fetch_val("select 1"))
        await db.rollback()
        assert await ids(db, table_of(insert)) == []
        await asyncio.create_task(db.execute(insert, [1]))
        assert await ids(db, table_of(insert)) == [1]


async def test_statements_of_a_child_run_while_the_parent_only_awaits(backend: Backend) -> None:
    """Also in an inner block of either, and one at a time."""
    async with joining(backend, max_size=1) as (db, insert):

        async def child(number: int) -> None:
            async with db.transaction():
                await db.execute(insert, [number])
                await asyncio.create_task(db.execute(insert, [number + 1]))

        async with asyncio.timeout(30), db.transaction():
            await asyncio.create_task(child(1))
            async with db.transaction():
                await asyncio.gather(child(3), child(5))
            with contextlib.suppress(KeyError):
                async with db.transaction():
                    await asyncio.create_task(child(7))
                    raise KeyError
        assert await ids(db, table_of(insert)) == [1, 2, 3, 4, 5, 6]


async def test_a_circle_through_an_inner_block_is_told(backend: Backend) -> None:
    async with joining(backend) as (db, insert), asyncio.timeout(30):
        inside = asyncio.Event()

        async def child() -> None:
            await inside.wait()
            await db.execute(insert, [1])

        async def parent() -> None:
            async with db.transaction():
                task = asyncio.create_task(child())  # of the outer block
                async with db.transaction():
                    inside.set()
                    await task

        with pytest.raises(PoolDeadlockError, match="inner"):
            await parent()
        assert await ids(db, table_of(insert)) == []


async def test_a_child_of_an_ended_block_is_in_the_outer(backend: Backend) -> None:
    async with joining(backend, max_size=1) as (db, insert):
        go_on = asyncio.Event()

        async def child() -> None:
            await go_on.wait()
            assert db.in_transaction
            await db.execute(insert, [1])

        with contextlib.suppress(KeyError):
            async with db.transaction():
                async with db.transaction():
                    task = asyncio.create_task(child())
                go_on.set()
                await task
                raise KeyError
        assert await ids(db, table_of(insert)) == []


async def test_a_child_that_outlives_the_transaction_goes_on_alone(backend: Backend) -> None:
    async with joining(backend) as (db, insert):
        inserted, over = asyncio.Event(), asyncio.Event()

        async def child() -> None:
            await db.execute(insert, [1])
            inserted.set()
            await over.wait()
            assert not db.in_transaction
            assert db.bound_connection is None
            await db.execute(insert, [2])
            async with db.transaction():
                await db.execute(insert, [3])

        with contextlib.suppress(KeyError):
            async with db.transaction():
                task = asyncio.create_task(child())
                await inserted.wait()
                assert await db.fetch_val(f"select count(*) from {table_of(insert)}") == 1
                raise KeyError
        over.set()
        await task
        assert await ids(db, table_of(insert)) == [2, 3]


async def test_a_statement_that_waits_when_it_ends_is_refused(backend: Backend) -> None:
    """It was meant for the transaction, so it must not be committed by itself."""
    gate = Gate(backend)
    async with gate.database(child_tasks="join") as (db, table):
        started = asyncio.Event()

        async def late() -> None:
            started.set()
            await db.execute(f"insert into {table} values (9, 'y')")

        await db.begin()
        slow = asyncio.create_task(db.execute(gate.sql))
        await asyncio.sleep(0)
        task = asyncio.create_task(late())
        await started.wait()
        end = asyncio.create_task(db.rollback())
        await asyncio.sleep(0)
        gate.open()
        await asyncio.wait([slow, end, task])
        assert isinstance(task.exception(), TransactionClosedError)
        assert await slow == 1
        await end
        assert await ids(db, table) == []


async def test_children_of_a_lost_transaction_get_the_error(backend: Backend) -> None:
    async with joining(backend) as (db, insert):
        for begin in (db.begin, lambda: db.execute(backend.raw_begin)):
            await begin()
            await db.execute(insert, [1])
            loop_database_of(db).session().lose("rolled_back", "a test", None)
            with pytest.raises(TransactionLostError):
                await asyncio.create_task(db.execute(insert, [2]))
            await db.rollback()
        assert await ids(db, table_of(insert)) == []


async def test_children_of_another_database_are_isolated(backend: Backend) -> None:
    async with joining(backend) as (db, insert), backend.database() as other:
        await db.begin()
        assert not await asyncio.create_task(in_transaction(other))
        assert await asyncio.create_task(in_transaction(db))
        await db.execute(insert, [1])
        await db.commit()


async def in_transaction(db: Any) -> bool:
    await db.fetch_val("select 1")
    return bool(db.in_transaction)


@pytest.mark.parametrize("answer", ["commit", "roll back"])
async def test_a_starlette_middleware_holds_the_transaction(backend: Backend, answer: str) -> None:
    """BaseHTTPMiddleware runs the endpoint in a task of its own."""
    async with joining(backend) as (db, insert):
        sizes = []

        async def endpoint(request: Request) -> Response:
            await db.execute(insert, [1])
            await asyncio.gather(db.execute(insert, [2]), db.execute(insert, [3]))
            sizes.append(db.pool.active_count)
            return PlainTextResponse(answer, background=BackgroundTask(after))

        async def after() -> None:
            assert not db.in_transaction
            await db.execute(insert, [10])

        async def in_one_transaction(request: Request, call_next: Any) -> Response:
            async with db.transaction():
                response: Response = await call_next(request)
                if answer == "roll back":
                    await db.rollback()
            return response

        app = Starlette(
            routes=[Route("/", endpoint)],
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=in_one_transaction)],
        )
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await within(asyncio.create_task(client.get("/")))
        assert response.text == answer
        assert sizes == [1]
        await settled(db)
        assert await ids(db, table_of(insert)) == ([1, 2, 3, 10] if answer == "commit" else [10])
