"""execute_many() with an iterator: one piece of the rows at a time, and all of them or none."""

# ruff: noqa: PT012 - the blocks are what is tested

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import cenote
from cenote.sql import batches
from cenote.testing import rolled_back
from tests.support.backends import Backend

pytestmark = pytest.mark.real_time("talks to real servers")

PIECE = 4


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PIECE", PIECE)


def rows(count: int, first: int = 0) -> Iterator[list[Any]]:
    for number in range(first, first + count):
        yield [number, f"row {number}"]


async def ids(db: Any, table: str) -> list[int]:
    return [row[0] for row in await db.fetch_all(f"select id from {table} order by id")]


@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 2])
async def test_every_row_arrives_once(backend: Backend, count: int) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        await db.execute_many(insert, rows(count))
        assert await ids(db, table) == [*range(count)]
        async with db.transaction() as tx:
            await tx.execute_many(insert, rows(count, 100))
            async with await tx.prepare(insert) as statement:
                await statement.execute_many(rows(count, 200))
            await db.execute_many(insert, rows(count, 300))
        assert len(await ids(db, table)) == 4 * count
        assert not db.in_transaction
        assert db.pin_reason is None


async def test_mappings_and_wide_rows_arrive(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "WIDE", 100)
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (:id, :name)"
        await db.execute_many(insert, ({"id": at, "name": "x" * 80} for at in range(5)))
        assert await ids(db, table) == [*range(5)]


@pytest.mark.parametrize("inside", [False, True])
async def test_a_row_of_a_later_piece_undoes_all(backend: Backend, inside: bool) -> None:
    """A row that exists, one that does not fit, an iterator that fails: nothing is kept, what was
    done before in the transaction is, and the note counts from the beginning of the iterator."""

    def twice() -> Iterator[list[Any]]:
        yield from rows(PIECE + 2)
        yield [0, "again"]

    def broken() -> Iterator[list[Any]]:
        yield from rows(PIECE + 2)
        raise OSError("the file is gone")

    def unfit() -> Iterator[list[Any]]:
        yield from rows(PIECE + 2)
        yield [1]

    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        await db.execute(insert, [77, "before"])
        for source, kind, number in ((twice, Exception, PIECE + 2), (unfit, ValueError, PIECE + 2),
                                     (broken, OSError, None)):  # fmt: skip
            with pytest.raises(kind) as caught:
                if inside:
                    async with db.transaction():
                        await db.execute(insert, [78, "in the same transaction"])
                        try:
                            await db.execute_many(insert, source())
                        except Exception:
                            assert await ids(db, table) == [77, 78]
                            raise
                else:
                    await db.execute_many(insert, source())
            assert await ids(db, table) == [77]
            notes = "".join(getattr(caught.value, "__notes__", ()))
            if number is not None and (source is unfit or "row " in notes):
                known = f"row {number} " in notes or f"rows {PIECE} to {number} " in notes
                assert known, notes
                assert "none is kept" in notes
        assert db.pool.stats().destroyed == {}


async def test_kinds_may_not_change_later(backend: Backend) -> None:
    def mixed() -> Iterator[Any]:
        yield from rows(PIECE + 1)
        yield {"id": 50, "name": "a mapping"}

    async with backend.database(max_size=1) as db, backend.table(db) as table:
        with pytest.raises((TypeError, ValueError)):
            await db.execute_many(f"insert into {table} values (?, ?)", mixed())
        assert await ids(db, table) == []


async def test_only_a_piece_is_in_memory(backend: Backend) -> None:
    class Text(str):
        __slots__ = ("__weakref__",)

    alive: weakref.WeakSet[Text] = weakref.WeakSet()
    most = 0

    def texts() -> Iterator[list[Any]]:
        nonlocal most
        for number in range(10 * PIECE):
            gc.collect(0)
            text = Text(f"text {number}")
            alive.add(text)
            most = max(most, len(alive))
            yield [number, text]

    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, ?)", texts())
        assert len(await ids(db, table)) == 10 * PIECE
    assert most <= 3 * PIECE


async def test_a_cancellation_between_two_pieces_undoes_all(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        begun = asyncio.current_task()
        assert begun is not None
        task: asyncio.Task[None]

        def stopping() -> Iterator[list[Any]]:
            yield from rows(2 * PIECE + 1)
            task.cancel()
            yield from rows(20 * PIECE, 1000)

        task = asyncio.create_task(
            db.execute_many(f"insert into {table} values (?, ?)", stopping())
        )
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await ids(db, table) == []


async def test_a_plan_that_is_stale_is_made_again(backend: Backend) -> None:
    """Outside a transaction nobody notices, as with a list."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        for first in (0, 100):
            await db.execute_many(insert, rows(PIECE + 1, first))
            await db.execute_many(insert, [*rows(10, first + 50)])
            async with backend.database(max_size=1) as other:
                kind = "varchar(90)" if first == 0 else "varchar(95)"
                if not backend.embedded:
                    word = "modify name" if backend.name == "mysql" else "alter name type"
                    await other.execute(f"alter table {table} {word} {kind}")
        await db.execute_many(insert, rows(PIECE + 1, 300))
        assert len(await ids(db, table)) == 3 * (PIECE + 1) + 20


async def test_pieces_inside_of_rolled_back(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        async with rolled_back(db):
            await db.execute_many(insert, rows(2 * PIECE + 1))
            with pytest.raises(Exception):  # noqa: B017 - of the driver
                await db.execute_many(insert, rows(2 * PIECE + 1, 2 * PIECE))
            assert await ids(db, table) == [*range(2 * PIECE + 1)]
        assert await ids(db, table) == []


async def test_the_pieces_are_one_statement_for_observers_and_limits(backend: Backend) -> None:
    seen: list[str] = []

    def observer(operation: str, text: str) -> None:
        seen.append(operation)

    async with backend.database(max_size=1) as db, backend.table(db) as table:
        db.observe(observer)
        await db.execute_many(f"insert into {table} values (?, ?)", rows(3 * PIECE), timeout=30)
        assert seen == ["INSERT"]


async def test_a_timeout_in_a_later_piece_undoes_all(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db, "id {int}") as table:
        if backend.embedded:  # its rows are all slow
            slow, values = backend.slow.replace("count(*)", "count(*) + ?"), [[1]] * (PIECE + 1)
        else:
            slow, values = backend.slow.replace("30", "?"), [*[[0]] * PIECE, [30]]
        into = f"insert into {table} select 1 from ({slow}) as each_row"
        with pytest.raises(cenote.StatementTimeoutError) as caught:
            await db.execute_many(into, iter(values), timeout=0.5)
        assert caught.value.connection_kept, str(caught.value)
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        assert not db.in_transaction
        assert db.pool.stats().created == 1


async def test_a_failing_iterator_spares_a_statement(backend: Backend) -> None:
    def never() -> Iterator[list[Any]]:
        raise ConnectionResetError("of the iterator, not of the connection")
        yield []

    async with backend.database(max_size=1) as db, backend.table(db) as table:
        before = db.pool.stats().acquired
        with pytest.raises(ConnectionResetError):
            await db.execute_many(f"insert into {table} values (?, ?)", never())
        assert db.pool.stats().acquired == before
        assert isinstance(db, cenote.Database)


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_rows_of_a_pipeline_seldom_wait_for_the_loop(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg asks for each row whether it may write, which it may nearly always."""
    from cenote.drivers.psycopg import private

    waits = 0

    def counted(future: asyncio.Future[int], state: int) -> None:
        nonlocal waits
        waits += 1
        if not future.done():
            future.set_result(state)

    monkeypatch.setattr(private, "set_ready", counted)
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, ?)", [*rows(2_000)])
        assert len(await ids(db, table)) == 2_000
    assert waits < 1_000


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_rows_of_a_pipeline_leave_the_loop_to_others(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cenote.drivers.psycopg import private

    monkeypatch.setattr(private, "LONGEST_BUSY", -1.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with backend.database(max_size=1) as db, backend.table(db) as table:
        task = asyncio.create_task(others())
        await db.execute_many(f"insert into {table} values (?, ?)", [*rows(300)])
        task.cancel()
    assert turns > 300
