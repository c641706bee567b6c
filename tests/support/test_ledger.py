"""What `check_ledger()` says of a pool."""

import pytest

import cenote
from cenote.testing import check_ledger


async def test_a_pool_that_gave_all_back_is_even() -> None:
    pool = cenote.Pool(object)
    async with pool, pool.acquire():
        pass
    check_ledger(pool)


async def test_a_pool_that_is_open_is_refused() -> None:
    async with cenote.Pool(object, name="shop") as pool:
        with pytest.raises(AssertionError, match=r"'shop'.* is not closed: close it before"):
            check_ledger(pool)


async def test_what_is_still_out_is_named() -> None:
    pool = cenote.Pool(object)
    resource = await pool.acquire()
    await pool.close()
    with pytest.raises(AssertionError, match="1 created, 0 destroyed") as error:
        check_ledger(pool)
    assert "held by task 'test' (" in str(error.value)
    assert "test_ledger.py:" in str(error.value)
    await pool.release(resource)
    check_ledger(pool)


async def test_a_lost_place_of_a_lane_is_named() -> None:
    pool = cenote.Pool(object)
    lane = pool.lane("batch", max_size=1)
    pool.release(await lane.acquire())
    lost = lane.acquire()
    assert pool._engine.core.enter(lost)  # a claim that is never driven to its end
    await pool.close()
    with pytest.raises(AssertionError, match=r"left: \{\"active in lane 'batch'\": 1\}"):
        check_ledger(pool)
    pool._engine.core.dismiss(lost)
    check_ledger(pool)


def test_something_else_than_a_pool_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a Pool, not Database: pass its pool, db\.pool$"):
        check_ledger(cenote.Database("sqlite:///:memory:"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes a Pool, not int$"):
        check_ledger(5)  # type: ignore[arg-type]
