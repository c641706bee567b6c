"""What a blip of a real server costs with the breaker that a database has, and without one.

In virtual time it is `tests/sql/test_blip.py`; here a real server is out of reach for two seconds,
for both databases at the same time, so that what the server and this machine take is the same.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import cenote
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import with_server
from tests.support.kit import outcome
from tests.support.waiting import WAIT
from tests.support.wire import through

pytestmark = [
    pytest.mark.real_time("a server is away for two seconds"),
    pytest.mark.driver,
]

AWAY = 2.0  # seconds of the blip
ALLOWED = 1.5  # seconds that it may cost more than without a breaker
TRIES = 3  # of which the best counts: what else runs on the machine only makes it longer
CLIENTS, PAUSE = 5, 0.05


class Service:
    """Clients that ask a database again and again."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.refused = 0
        self.over = False
        self.served = asyncio.Event()
        self.served_at = 0.0

    async def client(self) -> None:
        while not self.over:
            answer = await outcome(self.db.fetch_val("select 1"))
            if answer == 1 and not self.served.is_set():
                self.served_at = asyncio.get_running_loop().time()
                self.served.set()
            self.refused += isinstance(answer, cenote.ServiceUnavailableError)
            await asyncio.sleep(PAUSE)


async def blip(backend: Backend, proxy: FaultProxy) -> tuple[float, int]:
    """How much later a request is served with the breaker, in seconds; how many it refused."""
    async with (
        through(backend, proxy, max_size=4, strategy=None) as without,
        through(backend, proxy, max_size=4) as with_it,
        asyncio.timeout(WAIT),
    ):
        services = [Service(without), Service(with_it)]
        clients = [asyncio.create_task(each.client()) for each in services for _ in range(CLIENTS)]
        for each in services:
            await each.served.wait()
        proxy.refuse(True)
        proxy.reset()
        await asyncio.sleep(AWAY)
        for each in services:
            each.served.clear()
        proxy.refuse(False)
        for each in services:
            await each.served.wait()
        for each in services:
            each.over = True
        await asyncio.gather(*clients)
        assert with_it.pool.state is cenote.CircuitState.ACTIVE
        return services[1].served_at - services[0].served_at, services[1].refused


@pytest.fixture
def proxy(backend: Backend) -> Iterator[FaultProxy]:
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
        yield proxy


@with_server
async def test_what_a_blip_costs_on_a_real_server(backend: Backend, proxy: FaultProxy) -> None:
    costs = []
    for _ in range(TRIES):
        cost, refused = await blip(backend, proxy)
        assert refused  # the breaker has opened
        costs.append(cost)
    print(f"{backend.name}: {', '.join(f'{each:.2f}' for each in costs)} s later")
    assert min(costs) <= ALLOWED, costs
