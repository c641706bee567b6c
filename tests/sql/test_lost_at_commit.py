"""A commit whose session was lost: `TransactionLostError` with an honest outcome, and the loss of
what had been changed in the session is not forgotten over it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cenote
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import MANY_ROWS, across_connections, outcome, with_server
from tests.support.held import connections_of
from tests.support.setting import Setting, setting
from tests.support.waiting import eventually

pytestmark = across_connections

STYLES = ("block", "begin", "raw begin")
Cut = Callable[[], Awaitable[None]]


async def commit(at: Setting, style: str, cut: Cut) -> BaseException:
    """Begin, insert a row, lose the connection, commit; return what was raised."""

    async def work() -> None:
        if style == "block":
            async with at.db.transaction():
                await at.insert(1)
                await cut()
            return
        await (at.db.begin() if style == "begin" else at.db.execute("begin"))
        await at.insert(1)
        await cut()
        await at.db.commit()

    error: BaseException = await outcome(work())
    return error


async def knows_of_the_session(at: Setting) -> None:
    """The task gets to know that its session is gone, and then goes on with another one."""
    with contextlib.suppress(cenote.PoolError):
        await at.db.rollback()  # as programs do after a commit() that raised
    for _ in range(2):
        with pytest.raises(cenote.SessionLostError):
            await at.db.fetch_val("select 1")
    await at.db.release()
    assert await at.db.fetch_val("select 1") == 1


def connection_of(at: Setting) -> Any:
    raw = at.db.bound_connection
    return next(each for each in connections_of(at.db) if each.raw is raw)


def cut_next_reply(proxy: FaultProxy) -> asyncio.Task[None]:
    """The next reply is held back, and the connection reset when it has come."""

    async def cut() -> None:
        await asyncio.to_thread(proxy.wait_for, lambda counts: counts.held > 0)
        proxy.reset()
        proxy.hold_replies(False)

    proxy.hold_replies(True)
    return asyncio.create_task(cut())


@with_server
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("noticed", ["killed before", "cut before", "in mid-commit"])
async def test_a_commit_of_a_lost_session(
    backend: Backend, proxy: FaultProxy, style: str, noticed: str
) -> None:
    async with setting(backend, backend.url_through(proxy.host, proxy.port)) as at:
        await at.db.execute(backend.touches[1][0])

        async def cut() -> None:
            connection = connection_of(at)
            if noticed == "killed before":
                await at.lose_connection()
            elif noticed == "cut before":
                proxy.reset()
                await eventually(lambda: connection.is_dead)
            else:
                cutting.append(cut_next_reply(proxy))

        cutting: list[asyncio.Task[None]] = []
        error = await commit(at, style, cut)
        await asyncio.gather(*cutting)
        assert isinstance(error, cenote.TransactionLostError), repr(error)
        in_doubt = noticed == "in mid-commit"
        assert error.outcome == ("unknown" if in_doubt else "rolled_back")
        assert error.__cause__ is not None
        assert await at.rows() == ([1] if in_doubt else [])
        await knows_of_the_session(at)


@pytest.mark.parametrize("backend", ["psycopg", "mysql"], indirect=True)  # asyncpg sends nothing
async def test_a_commit_that_was_not_sent(backend: Backend, proxy: FaultProxy) -> None:
    """The connection is lost when a stream is closed that was left open in the block."""
    async with setting(backend, backend.url_through(proxy.host, proxy.port)) as at:

        async def work() -> None:
            async with at.db.transaction() as tx:
                await at.insert(1)
                stream = tx.iterate(MANY_ROWS[backend.name])
                await anext(stream)
                kept.append(stream)
                cutting.append(cut_next_reply(proxy))

        kept: list[Any] = []
        cutting: list[asyncio.Task[None]] = []
        error = await outcome(work())
        await asyncio.gather(*cutting)
        assert isinstance(error, cenote.TransactionLostError), repr(error)
        assert error.outcome == "rolled_back"
        assert await at.rows() == []
