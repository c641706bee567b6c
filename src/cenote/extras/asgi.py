"""A lifespan and a readiness check for Starlette, FastAPI and other ASGI frameworks.

app = Starlette(lifespan=lifespan(db, drain=5), routes=[Route("/ready", readiness(db))])
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from logging import ERROR
from typing import Any

from .. import options
from ..log import log
from ..observe import phase_of
from ..pool import Pool
from ..sql.database import Database
from ..sql.view import given_name, pool_here
from ..states import CircuitState, Phase
from .tracking import Target

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def lifespan(
    *targets: Target, drain: float | None = None
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan that opens pools and databases and closes them in reverse order.

    Args:
        targets: The pools and databases, in the order in which they are opened.
        drain: Seconds that holders have to return what they hold; None does not wait.

    Raises:
        TypeError: A target is neither a pool nor a database.
    """
    _check(targets)
    options.optional_duration("drain", drain)

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for target in targets:
                stack.push_async_callback(_close, target, drain)
                await target.open()
            yield

    return run


async def _close(target: Target, drain: float | None) -> None:
    try:
        pool = _pool_of(target)
        if drain is not None and pool is not None and not target.closed:
            await pool.close(drain=drain)
    finally:
        await target.close()


def readiness(*targets: Target, max_waiting: int | None = None, details: bool = True) -> Readiness:
    """Return an ASGI application that answers 200 or 503, for `Route(path, readiness(db))`.

    A target is not ready if it is closed or draining, if its breaker is open, or if more than
    `max_waiting` acquires are waiting. The check never acquires a connection.

    Args:
        targets: The pools and databases to check.
        max_waiting: The largest number of waiting acquires; None for no limit.
        details: Whether the answer has the counts of each target, and its name if you gave it one.

    Raises:
        TypeError: A target is neither a pool nor a database.
    """
    _check(targets)
    options.optional_whole("max_waiting", max_waiting, least=0)
    return Readiness(targets, max_waiting, options.flag("details", details))


class Readiness:
    """The ASGI application that `readiness()` returns."""

    def __init__(self, targets: tuple[Target, ...], max_waiting: int | None, details: bool) -> None:
        self._targets = targets
        self._max_waiting = max_waiting
        self._details = details

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"readiness answers HTTP requests, not {scope['type']!r}")
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            await _answer(send, 405, {"error": "GET or HEAD"}, (b"allow", b"GET, HEAD"))
            return
        status, body = self.look()
        await _answer(send, status, body, head=method == "HEAD")

    def look(self) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status and the body, for the running loop."""
        reports = [self._report(target) for target in self._targets]
        ready = all(report["ready"] for report in reports)
        shown: dict[str, Any] = {"ready": ready}
        if self._details:
            shown["pools"] = reports
        return 200 if ready else 503, shown

    def _report(self, target: Target) -> dict[str, Any]:
        pool = _pool_of(target)
        if pool is None:  # a database that was not used in this loop, or is closed
            phase_here = "closed" if target.closed else "new"
            return {"name": _name_of(target), "ready": not target.closed, "phase": phase_here}
        phase = phase_of(pool)
        stats = pool.stats()
        ready = (
            phase in (Phase.NEW, Phase.OPEN)
            and not target.closed
            and _lets_pass(pool)
            and (self._max_waiting is None or stats.waiting <= self._max_waiting)
        )
        return {
            "name": _name_of(target),
            "ready": ready,
            "phase": phase.value,
            "breaker": str(pool.state),
            "idle": stats.idle,
            "active": stats.active,
            "waiting": stats.waiting,
            "max_size": pool.max_size,
        }


def _pool_of(target: Target) -> Pool[Any] | None:
    if isinstance(target, Pool):
        return target
    return pool_here(target)


def _lets_pass(pool: Pool[Any]) -> bool:
    """Return whether the breaker would let the next acquire pass.

    An open breaker counts as ready once it would probe: it does so only when an acquire comes,
    and none comes to a program that is not ready. A strategy without `retry_after()` counts as
    ready, too, because only acquires may call `should_recover()`.
    """
    if pool.state is not CircuitState.INACTIVE:
        return True
    ask = getattr(pool.strategy, "retry_after", None)
    if ask is None:
        return hasattr(pool.strategy, "should_recover")
    try:
        seconds = ask()
        return seconds is not None and seconds <= 0
    except Exception as error:
        text = "%r: the strategy failed in retry_after()"
        log(ERROR, text, pool, error=error, fields={"pool": pool.name})
        return False


def _name_of(target: Target) -> str | None:
    """Return the name that the user gave: the address of a database is not public."""
    return target.name if isinstance(target, Pool) else given_name(target)


def _check(targets: tuple[Target, ...]) -> None:
    for target in targets:
        if not isinstance(target, Pool | Database):
            raise TypeError(f"only pools and databases are opened and looked at, not {target!r}")


async def _answer(
    send: Send, status: int, body: object, *headers: tuple[bytes, bytes], head: bool = False
) -> None:
    content = json.dumps(body).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(content)).encode()),
                (b"cache-control", b"no-store"),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": b"" if head else content})
