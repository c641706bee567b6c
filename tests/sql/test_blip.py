"""What a blip of the server costs with the breaker of a database, in virtual time."""

import asyncio
import random
from typing import Any

import pytest

import cenote
from cenote.sql.per_loop import breaker
from cenote.testing import advance, now
from tests.support.kit import Thing

pytestmark = pytest.mark.virtual_time

AWAY = 2.0  # seconds of the blip
ALLOWED = 1.5  # seconds that it may cost more than without a breaker


class Server:
    """A server that is away for a while; requests of many tasks go to it."""

    def __init__(self, pool_options: dict[str, Any], make_pool: Any) -> None:
        self.up = True
        self.pool = make_pool(self.connect, max_size=4, **pool_options)
        self.served: list[float] = []

    async def connect(self) -> Thing:
        await asyncio.sleep(0.001)
        self.answer()
        return Thing()

    def answer(self) -> None:
        if not self.up:
            raise ConnectionRefusedError

    async def request(self) -> None:
        try:
            thing = await self.pool.acquire()
        except (cenote.PoolError, OSError):
            return
        await asyncio.sleep(0.002)
        try:
            self.answer()
        except OSError as error:
            self.pool.discard(thing, error)
        else:
            self.pool.release(thing)
            self.served.append(now())

    async def first_after_the_blip(self, pause: float) -> float:
        """When the first request is served after the blip, in seconds from its end."""
        over = asyncio.Event()

        async def client() -> None:
            while not over.is_set():
                await self.request()
                await asyncio.sleep(pause)

        clients = [asyncio.create_task(client()) for _ in range(10)]
        await advance(1)
        assert self.served
        self.up = False
        await advance(AWAY)
        self.up, end = True, now()
        self.served.clear()
        while not self.served:
            await advance(0.01)
        first = self.served[0] - end
        over.set()
        await advance(1)
        await asyncio.gather(*clients)
        return first


@pytest.mark.parametrize("pause", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(5))
async def test_what_a_blip_costs_in_virtual_time(make_pool: Any, pause: float, seed: int) -> None:
    random.seed(seed)
    without = await Server({}, make_pool).first_after_the_blip(pause)
    with_it = await Server({"strategy": breaker()}, make_pool).first_after_the_blip(pause)
    assert with_it <= without + ALLOWED
