"""Transactions whose connection is lost, in the block and during COMMIT."""

# ruff: noqa: PT012 -- whole blocks are what must raise

import asyncio
from typing import Any

import pytest

import cenote
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import (
    drivers_error,
    every_statement_is_refused,
    outcome,
    until,
    watching,
    with_server,
)
from tests.support.setting import Setting, setting
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

Lost = cenote.TransactionLostError


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
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
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
                proxy.slow(0)

            async def begin_cut() -> asyncio.Task[None]:
                if arrives:
                    proxy.slow(5)
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
