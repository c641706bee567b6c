"""A session that is lost: what was set in it is not silently forgotten."""

import asyncio
import contextlib
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.faults import (
    drivers_error,
    no_slot_is_lost,
    outcome,
    uses_of,
    watching,
    with_postgresql,
    with_server,
)
from tests.support.held import in_task, session_number

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


async def session_is_lost_until_released(db: Any) -> None:
    with pytest.raises(cenote.SessionLostError):
        await db.fetch_val("select 1")
    await db.release()
    assert await db.fetch_val("select 1") == 1


async def lose(backend: Backend, db: Any) -> None:
    """The connection of this task, with its session."""
    number = await session_number(backend, db)
    async with watching(backend) as watcher:
        await watcher.kill(number)
        await watcher.until_gone(number)


async def every_use_is_refused(db: Any) -> None:
    for use in uses_of(db):
        with pytest.raises(cenote.SessionLostError) as caught:
            await use()
        assert caught.value.__cause__ is not None


@with_server
@pytest.mark.parametrize("end", ["release", "rollback"])
async def test_a_session_that_is_lost(backend: Backend, end: str) -> None:
    """What it had set is gone: nobody goes on without it, and without knowing."""
    async with backend.database(max_size=2) as db:
        touch, query = backend.touches[1]
        plain = await db.fetch_val(query)
        await db.execute(touch)
        touched = await db.fetch_val(query)
        assert touched != plain
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val(query)
        await every_use_is_refused(db)
        assert await in_task(db.fetch_val(query)) == plain  # of another task, which set nothing
        with pytest.raises(cenote.SessionLostError, match=r"what SET had changed.*release\(\)"):
            await db.execute(touch)
        await getattr(db, end)()
        assert await db.fetch_val(query) == plain
        await db.execute(touch)
        assert await db.fetch_val(query) == touched
        await db.release()
        await no_slot_is_lost(db)


@with_postgresql
async def test_a_worker_that_calls_in_a_loop_recovers(backend: Backend) -> None:
    """Nobody knows that the session was changed at all: it is told so once."""
    async with backend.database(max_size=1) as db:
        call = "do $$ begin null; end $$"
        await db.execute(call)
        await lose(backend, db)
        with drivers_error():
            await db.execute(call)
        with pytest.raises(cenote.SessionLostError, match="what DO had changed"):
            await db.execute(call)
        await db.execute(call)
        await db.execute("set time zone 'Asia/Tokyo'")
        await db.execute(call)  # which takes nothing away from it
        await lose(backend, db)
        with drivers_error():
            await db.execute(call)
        for _ in range(3):
            with pytest.raises(cenote.SessionLostError, match="what SET had changed"):
                await db.execute(call)
        await db.release()
        await no_slot_is_lost(db)


@with_postgresql
@pytest.mark.parametrize("way", ["commit()", "block"])
async def test_the_commit_of_a_lost_transaction_keeps_it(backend: Backend, way: str) -> None:
    """The loss of the session is raised once: not to the rollback inside of commit()."""
    async with backend.database(max_size=1) as db:
        await db.execute("do $$ begin null; end $$")

        async def lose_it() -> None:
            await lose(backend, db)
            with drivers_error():
                await db.execute("select 1")

        async def by_commit() -> None:
            await db.begin()
            await lose_it()
            try:
                await db.commit()
            finally:
                await db.rollback()

        async def by_block() -> None:
            async with db.transaction():
                await lose_it()

        with pytest.raises(cenote.TransactionLostError):
            await (by_commit() if way == "commit()" else by_block())
        with pytest.raises(cenote.SessionLostError, match="what DO had changed"):
            await db.execute("select 1")
        assert await db.fetch_val("select 1") == 1


NOTHING_ASKED = {
    "mysql": [
        "select /*!40001 SQL_NO_CACHE */ 1",
        "unlock tables",
        "select release_lock('x')",
    ],
    "mariadb": [
        "create or replace procedure cenote_nothing() begin select 1; end",
        "begin not atomic select 1; end",
    ],
    "postgresql": ["select pg_advisory_unlock_all()", "select pg_advisory_unlock(1)"],
}


@with_server
async def test_statements_that_ask_for_nothing_of_the_session(backend: Backend) -> None:
    """They may have changed it, and it is told once that it was lost."""
    async with backend.database(max_size=1) as db:
        texts = NOTHING_ASKED["mysql" if backend.name == "mysql" else "postgresql"]
        if backend.is_mariadb:
            texts = [*texts, *NOTHING_ASKED["mariadb"]]
        for text in texts:
            await db.fetch_all(text)
            await lose(backend, db)
            with drivers_error():
                await db.fetch_val("select 1")
            with pytest.raises(cenote.SessionLostError):
                await db.fetch_val("select 1")
            assert await db.fetch_val("select 1") == 1, text


@with_server
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("text", ["set cenote_no_such_setting = 1", "set role cenote_nobody"])
async def test_a_setting_that_was_refused(backend: Backend, text: str, pinned: bool) -> None:
    async with backend.database(max_size=1) as db:
        statement = await db.prepare("select 1") if pinned else None
        with drivers_error():
            await db.execute(text)
        assert db.pin_reason is not None  # in doubt it is reset
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val("select 1")
        assert await db.fetch_val("select 1") == 1
        del statement


@with_server
@pytest.mark.parametrize("end", ["an error", "rollback()", "a statement", "of the end"])
async def test_what_was_set_in_a_transaction_that_is_rolled_back(
    backend: Backend, end: str
) -> None:
    """PostgreSQL undoes it, and MySQL does not."""
    touch, query = backend.touches[1]
    async with backend.database(max_size=1) as db:
        plain = await db.fetch_val(query)
        if end == "an error":
            with pytest.raises(KeyError):  # noqa: PT012
                async with db.transaction():
                    await db.execute(touch)
                    raise KeyError
        elif end == "of the end":
            async with db.transaction():
                await db.execute(touch)
                await db.rollback()
        else:
            await db.execute("begin")
            await db.execute(touch)
            await (db.rollback() if end == "rollback()" else db.execute("rollback"))
        stays = await db.fetch_val(query) != plain
        assert stays == (backend.name == "mysql")
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val("select 1")
        if stays:
            with pytest.raises(cenote.SessionLostError):
                await db.fetch_val("select 1")
            await db.release()
        assert await db.fetch_val(query) == plain


@with_postgresql
@pytest.mark.parametrize("end", ["commit and chain", "commit; begin"])
async def test_what_was_committed_before_a_transaction_that_is_rolled_back(
    backend: Backend, end: str
) -> None:
    async with backend.database(max_size=1) as db:
        for text in ("begin", backend.touches[1][0], end, "rollback"):
            await db.execute(text)
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val("select 1")
        with pytest.raises(cenote.SessionLostError, match="what SET had changed"):
            await db.fetch_val("select 1")
        await db.release()


@with_postgresql
async def test_a_lock_outlives_the_transaction_that_is_rolled_back(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        with pytest.raises(KeyError):  # noqa: PT012
            async with db.transaction():
                await db.execute("select pg_advisory_lock(1)")
                await db.execute(backend.touches[1][0])
                raise KeyError
        await lose(backend, db)
        with drivers_error():
            await db.fetch_val("select 1")
        for _ in range(2):
            with pytest.raises(cenote.SessionLostError, match="pg_advisory_lock"):
                await db.fetch_val("select 1")
        await db.release()


@with_server
async def test_a_session_ends_with_its_task(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:

        async def work() -> None:
            await db.execute(backend.touches[0][0])
            await lose(backend, db)
            with drivers_error():
                await db.fetch_val("select 1")
            with pytest.raises(cenote.SessionLostError):
                await db.fetch_val("select 1")

        await in_task(work())
        assert await db.fetch_val("select 1") == 1
        await no_slot_is_lost(db)


@with_server
async def test_a_statement_that_is_cancelled_loses_the_session(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        await db.execute(backend.touches[1][0])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await db.execute(backend.slow)
        await session_is_lost_until_released(db)


@with_server
async def test_what_touches_and_breaks_has_touched_nothing(backend: Backend) -> None:
    """The task knows that its statement has failed."""
    async with backend.database(max_size=1) as db:
        for pinned in (False, True):
            statement = await db.prepare("select 1") if pinned else None
            await lose(backend, db)
            with contextlib.suppress(Exception):
                await db.execute(backend.touches[1][0])
            await db.release()
            assert await db.fetch_val("select 1") == 1
            del statement


@with_server
async def test_a_transaction_is_lost_first_and_the_session_then(backend: Backend) -> None:
    touch, query = backend.touches[1]
    async with backend.database(max_size=1) as db:
        await db.execute(touch)
        with pytest.raises(cenote.TransactionLostError):  # noqa: PT012
            async with db.transaction():
                await lose(backend, db)
                with drivers_error():
                    await db.fetch_val("select 1")
                with pytest.raises(cenote.TransactionLostError):
                    await db.fetch_val("select 1")
        with pytest.raises(cenote.SessionLostError):
            await db.fetch_val(query)
        await db.release()
        assert await db.fetch_val("select 1") == 1


@with_postgresql
async def test_settings_of_a_lost_transaction_are_undone_with_it(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        with pytest.raises(cenote.TransactionLostError):  # noqa: PT012
            async with db.transaction():
                await db.execute(backend.touches[1][0])
                await lose(backend, db)
                await outcome(db.fetch_val("select 1"))
        assert await db.fetch_val("select 1") == 1


@with_server
async def test_the_connection_of_a_block_that_is_lost(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with db.connection():
            await lose(backend, db)
            with drivers_error():
                await db.fetch_val("select 1")
            with pytest.raises(cenote.SessionLostError, match="Leave the block"):
                await db.fetch_val("select 1")
        assert await db.fetch_val("select 1") == 1
        await db.execute(backend.touches[1][0])
        async with db.connection():
            await lose(backend, db)
            await outcome(db.fetch_val("select 1"))
        with pytest.raises(cenote.SessionLostError):  # it was not the block that had set it
            await db.fetch_val("select 1")
        await db.release()
        await no_slot_is_lost(db)


@with_server
async def test_the_end_of_a_transaction_that_is_cancelled(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend.database(max_size=1) as db:
        await db.execute(backend.touches[1][0])
        await db.begin()
        (link,) = db._loop_databases[asyncio.get_running_loop()].connections

        async def hang(self: Any) -> bool:
            await asyncio.Event().wait()
            return True

        monkeypatch.setattr(type(link), "commit", hang)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await db.commit()
        monkeypatch.undo()
        await session_is_lost_until_released(db)


@with_postgresql
async def test_a_statement_that_is_lost_is_no_session(backend: Backend) -> None:
    """Who only had it prepared goes on, and prepares it again."""
    async with backend.database(max_size=1) as db:
        statement = await db.prepare("select 1")
        await lose(backend, db)
        with drivers_error():
            await statement.fetch_val()
        assert await db.fetch_val("select 1") == 1
        with pytest.raises(cenote.PoolError, match="Prepare it again"):
            await statement.fetch_val()
