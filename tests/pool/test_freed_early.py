"""What an async destructor does not keep from waiters while it runs."""

import asyncio

import pytest

from tests.support.clock import settle
from tests.support.kit import Thing


class Gate:
    """An async destructor that waits until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, thing):
        await self.open.wait()


@pytest.mark.virtual_time
async def test_discarded_probe_frees_its_place_at_once(make_pool):
    gate = Gate()
    pool = make_pool(Thing, max_size=2, recovering_limit=1, destructor=gate)
    held = [await pool.acquire(), await pool.acquire()]
    waiters = [asyncio.ensure_future(pool.acquire()) for _ in held]
    await settle()
    pool.recover()
    pool.release(held[0])  # to the first waiter, which takes the only place
    probe = await waiters[0]
    pool.release(held[1])  # idle: the second has no place
    await settle()
    assert not waiters[1].done()
    gone = pool.discard(probe)
    await settle()
    assert waiters[1].done()  # although the destructor runs
    gate.open.set()
    await gone
    await pool.release(waiters[1].result())


@pytest.mark.virtual_time
async def test_retired_creation_is_replaced_at_once(make_pool):
    gate, doors = Gate(), []

    async def connect():
        doors.append(asyncio.Event())
        await doors[-1].wait()
        return Thing()

    pool = make_pool(connect, max_size=2, destructor=gate)
    waiter = asyncio.ensure_future(pool.acquire())
    await settle()
    pool.retire()
    doors[0].set()  # of the generation before: it is destroyed
    await settle()
    assert len(doors) == 2
    doors[1].set()
    await settle()
    assert waiter.done()
    gate.open.set()
    await pool.release(waiter.result())
