"""Transactions that the program ends behind the back of their block, or in the wrong order."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import (
    RAW,
    drivers_error,
    every_statement_is_refused,
    outcome,
    with_postgresql,
    with_server,
)
from tests.support.setting import setting

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

Lost = cenote.TransactionLostError


# -- the program ends it -------------------------------------------------------------------------


RAW_ENDS: list[tuple[str, str]] = [("COMMIT", "committed"), ("ROLLBACK", "rolled_back")]


@pytest.mark.parametrize(("sql", "expected"), RAW_ENDS)
@pytest.mark.parametrize("style", ["block", "begin", "nested", "fetch_all"])
async def test_a_raw_end_loses_the_transaction(
    backend: Backend, sql: str, expected: str, style: str
) -> None:
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
