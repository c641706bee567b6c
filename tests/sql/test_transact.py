"""`db.transact()`: transactions that are run again after a conflict."""

import asyncio

import pytest

import cenote
from cenote.sql import messages
from cenote.sql import transact as module
from tests.support.backends import Backend

pytestmark = [
    pytest.mark.real_time("talks to real servers"), pytest.mark.driver,
    pytest.mark.usefixtures("pauses"),
]  # fmt: skip

PAUSE_AFTER = module.pause_after  # the fixture replaces it


async def test_transact_commits_and_returns_the_result(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:

        async def insert(number: int, name: str) -> str:
            assert db.in_transaction
            await db.execute(f"insert into {table} values (?, ?)", [number, name])
            return name.upper()

        assert await db.transact(insert, 1, "a") == "A"
        assert await db.fetch_val(f"select count(*) from {table}") == 1
        assert db.pool.active_count == 0


async def test_transact_rolls_back_other_errors_at_once(
    backend: Backend, pauses: list[int]
) -> None:
    async with backend.database() as db, backend.table(db) as table:

        async def fail() -> None:
            await db.execute(f"insert into {table} values (1, 'a')")
            raise LookupError

        with pytest.raises(LookupError):
            await db.transact(fail)
        with pytest.raises(Exception, match="nosuch"):
            await db.transact(db.execute, "select * from nosuch")
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        assert pauses == []


async def test_transact_repeats_what_lost_a_conflict(backend: Backend, pauses: list[int]) -> None:
    """Two tasks lock two rows in opposite order."""
    async with backend.database(max_size=4) as db, backend.table(db) as table:
        await db.execute(f"insert into {table} values (1, '0')")
        await db.execute(f"insert into {table} values (2, '0')")
        both = asyncio.Barrier(2)
        tries = {1: 0, 2: 0}

        async def swap(first: int, second: int) -> None:
            tries[first] += 1
            await db.execute(f"update {table} set name = 'begun' where id = ?", [first])
            if tries[first] == 1 and backend.name != "sqlite":  # which lets one write at a time
                async with asyncio.timeout(60):
                    await both.wait()
            await db.execute(f"update {table} set name = 'done' where id = ?", [second])

        # Without pauses the loser may meet the winner again, any number of times.
        await asyncio.gather(
            db.transact(swap, 1, 2, attempts=1000), db.transact(swap, 2, 1, attempts=1000)
        )
        if backend.name != "sqlite":
            assert len(pauses) == sum(tries.values()) - 2 >= 1
        assert db.pool.active_count == 0


async def test_transact_gives_up_after_the_last_attempt(
    backend: Backend, pauses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend.database() as db:
        monkeypatch.setattr(db._driver, "is_conflict", lambda error: isinstance(error, KeyError))
        tries = []

        async def conflict() -> None:
            tries.append(await db.fetch_val("select 1"))
            raise KeyError(len(tries))

        with pytest.raises(KeyError, match="3"):
            await db.transact(conflict, attempts=3)
        assert (tries, pauses) == ([1, 1, 1], [1, 2])


@pytest.mark.parametrize(
    ("outcome", "tries"), [("unknown", 1), ("committed", 1), ("rolled_back", 2)]
)
async def test_only_transactions_that_were_rolled_back_are_repeated(
    backend: Backend, outcome: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend.database() as db:
        monkeypatch.setattr(db._driver, "is_conflict", lambda error: isinstance(error, KeyError))
        seen = []

        async def lose() -> None:
            seen.append(1)
            raise messages.transaction_lost(outcome, "a test") from KeyError()

        with pytest.raises(cenote.TransactionLostError):
            await db.transact(lose, attempts=2)
        assert len(seen) == tries


async def test_transact_inside_a_transaction_is_refused(backend: Backend) -> None:
    async with backend.database() as db:

        async def nothing() -> None:
            raise AssertionError

        async with db.transaction():
            with pytest.raises(cenote.PoolError, match="inside a transaction"):
                await db.transact(nothing)
            assert await db.fetch_val("select 1") == 1


async def test_bad_arguments_of_transact_are_named(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.raises(TypeError, match="function must be callable"):
            await db.transact(None)
        with pytest.raises(ValueError, match="attempts must be 1 or more"):
            await db.transact(db.fetch_val, "select 1", attempts=0)
        with pytest.raises(TypeError, match="takes a coroutine function"):
            await db.transact(lambda: 7)
        assert db.pool.active_count == 0


def test_pauses_grow_up_to_a_limit() -> None:
    for attempt in range(1, 40):
        assert 0 <= PAUSE_AFTER(attempt) <= module.LONGEST_PAUSE
    assert max(PAUSE_AFTER(1) for _ in range(100)) <= 2 * module.FIRST_PAUSE
