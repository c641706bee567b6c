"""terminate(): a close that waits for nothing."""

import asyncio

import pytest

from cenote import PoolClosedError
from cenote.testing import settle
from tests.support.kit import STYLES, Gate, Thing, acquiring, outcome, styled


async def test_terminate_closes_in_a_plain_call(make_pool):
    gone = []
    pool = make_pool(Thing, destructor=gone.append, max_size=2)
    out, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    pool.terminate()
    assert pool.closed
    assert gone == [idle]
    with pytest.raises(PoolClosedError):
        await pool.acquire()
    pool.release(out)
    assert gone == [idle, out]
    pool.terminate()  # once more does nothing


async def test_terminate_fails_waiters_and_cancels_creations(make_pool):
    factory = Gate()
    pool = make_pool(factory)
    waiter = acquiring(pool)
    await settle()
    pool.terminate()
    assert isinstance(await outcome(waiter), PoolClosedError)
    await settle()
    assert factory.calls[0].cancelled()


async def test_async_destructors_go_on_after_terminate(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor)
    pool.release(await pool.acquire())
    pool.terminate()
    await settle()
    assert pool.occupied == 1
    closing = asyncio.ensure_future(pool.close())  # waits for them
    await settle()
    assert not closing.done()
    destructor.open()
    await closing


async def test_terminate_ends_a_drain(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = asyncio.ensure_future(pool.close(drain=60))
    await settle()
    pool.terminate()
    await closing
    pool.release(thing)


def test_a_pool_that_was_never_opened_terminates(make_pool):
    pool = make_pool(Thing)
    pool.terminate()
    assert pool.closed


async def test_errors_of_destructors_are_logged_by_terminate(make_pool, caplog):
    def destroy(thing):
        raise OSError("stuck")

    pool = make_pool(Thing, destructor=destroy)
    pool.release(await pool.acquire())
    pool.terminate()
    assert pool.closed
    assert "the destructor failed" in caplog.text


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("plain", [True, False])
async def test_a_close_inside_a_factory_lets_it_end(make_pool, style, plain):
    made, gone = [], []

    def make():
        pool.terminate()
        made.append(Thing())
        return made[0]

    async def make_and_close():
        await pool.close()
        await asyncio.sleep(1)
        made.append(Thing())
        return made[0]

    factory = styled(style, make) if plain else make_and_close
    pool = make_pool(factory, destructor=gone.append)
    assert isinstance(await outcome(acquiring(pool)), PoolClosedError)
    await asyncio.sleep(2)
    assert gone == made
    assert len(made) == 1
