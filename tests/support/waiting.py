"""How a test waits: for an event, within a limit that only a hang reaches."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from cenote.testing.fault_proxy import WAIT as WAIT  # real seconds, on a very busy machine too


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until the condition is true; raises TimeoutError after `WAIT`."""
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def let_pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the real clock ahead, and with it stock event loops: their timers come sooner."""
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + seconds)


@contextlib.asynccontextmanager
async def timeout_at(event: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """An `asyncio.timeout` that expires as soon as what `event` returns has been awaited.

    A test says with it during what the time of a block runs out, however slow the machine is.
    """

    async def expire() -> None:
        await event()
        limit.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(WAIT) as limit:
        watching = asyncio.create_task(expire())
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
