"""A database whose connections go through the proxy, and the round trips they make."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.held import settled


def through(backend: Backend, proxy: FaultProxy, **options: Any) -> Any:
    """A database of the backend whose connections go through the proxy."""
    return backend.database(backend.url_through(proxy.host, proxy.port), **options)


async def reply_is_held(proxy: FaultProxy) -> None:
    """Wait until the proxy, which holds replies, has got one: the request was served."""
    await asyncio.to_thread(proxy.wait_for, lambda counts: counts.held > 0)


@contextlib.asynccontextmanager
async def on_the_wire(backend: Backend, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A database with one connection, and its round trips: `trips(awaitable)` counts them."""
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
        async with through(backend, proxy, max_size=1, **options) as db:

            async def trips(*awaitables: Awaitable[Any]) -> int:
                before = proxy.round_trips
                for each in awaitables:
                    await each
                await settled(db)
                return proxy.round_trips - before

            trips.proxy = proxy  # type: ignore[attr-defined]
            yield db, trips
