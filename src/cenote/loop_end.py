"""The last moment of an event loop in which something can be awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable


async def at_loop_end(last: Callable[[], Awaitable[object]]) -> AsyncGenerator[None, None]:
    """Return a generator that awaits `last()` when it is closed, as long as it is kept.

    `asyncio.run()` closes async generators after it has cancelled all tasks.
    """
    guard = _until_closed(last)
    await anext(guard)
    return guard


async def _until_closed(last: Callable[[], Awaitable[object]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await last()
