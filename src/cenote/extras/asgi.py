"""A lifespan, a readiness check and an exception handler for Starlette, FastAPI and other ASGI.

app = FastAPI(lifespan=lifespan(db, drain=5))
app.add_route("/ready", readiness(db))
app.add_exception_handler(cenote.PoolError, unavailable)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from logging import DEBUG, ERROR
from math import ceil, inf
from typing import Any, overload
from weakref import WeakKeyDictionary

from .. import options
from ..errors import (
    AcquireTimeoutError,
    ConnectError,
    PoolClosedError,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from ..log import log
from ..observe import last_attempt_failed, phase_of
from ..pool import Pool
from ..sql.database import Database
from ..sql.view import given_name, is_disconnect, pool_here
from ..states import CircuitState, Phase
from .tracking import Target

# What says that no connection is to be had now.
AWAY = (
    ConnectError, ServiceUnavailableError, AcquireTimeoutError, PoolOverloadedError,
    PoolClosedError,
)  # fmt: skip
TRY_LATER = "The database is unavailable at the moment. Try again later."
TRY_AGAIN = 1.0  # seconds between two attempts to connect, for a target that is not ready
LONGEST_TRY = 10.0  # seconds of one

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
                stack.push_async_callback(target.close, drain=drain)
                await target.open()
            yield

    return run


def readiness(*targets: Target, max_waiting: int | None = None, details: bool = True) -> Readiness:
    """Return an ASGI application that answers 200 or 503, for `Route(path, readiness(db))`.

    A target is not ready if it is closed or draining, if its breaker is open, if the last attempt
    to connect has failed, or if more than `max_waiting` acquires are waiting. The check does not
    wait for a connection. While the last attempt is one that failed, each check sees to it that
    another one is made in the background, at most one a second: a program that is not ready gets
    no requests, by which it could find out.

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
        # The last attempt to connect of each, and when it began.
        self._attempts: WeakKeyDictionary[Pool[Any], tuple[asyncio.Task[None] | None, float]]
        self._attempts = WeakKeyDictionary()

    @overload
    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None: ...

    # What Starlette declares for `add_route()`; it calls what is not a function as an application.
    @overload
    async def __call__(self, scope: Any, /) -> Any: ...

    async def __call__(self, scope: Any, receive: Any = None, send: Any = None) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"readiness answers HTTP requests, not {scope['type']!r}")
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            await _answer(send, 405, {"error": "GET or HEAD"}, (b"allow", b"GET, HEAD"))
            return
        status, body = self.look()
        for target in self._targets:
            self._try_again(target)
        await _answer(send, status, body, head=method == "HEAD")

    def _try_again(self, target: Target) -> None:
        """Connect in the background, if the last attempt failed and another one may be made."""
        pool = _pool_of(target)
        if pool is None or phase_of(pool) not in (Phase.NEW, Phase.OPEN):
            return
        if not last_attempt_failed(pool) or not _lets_pass(pool):
            return
        loop = asyncio.get_running_loop()
        running, begun = self._attempts.get(pool, (None, -inf))
        if (running is None or running.done()) and loop.time() - begun >= TRY_AGAIN:
            self._attempts[pool] = loop.create_task(_connect(pool)), loop.time()

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
            and not last_attempt_failed(pool)
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


async def unavailable(request: Any, error: Exception) -> Any:
    """Answer 503 with Retry-After while the database is away: an exception handler.

    It is for `app.add_exception_handler(cenote.PoolError, unavailable)` of FastAPI and Starlette.
    It answers `ConnectError`, `ServiceUnavailableError`, `AcquireTimeoutError`,
    `PoolOverloadedError`, `PoolClosedError`, and errors of lost connections, as `is_disconnect()`
    knows them; every other error is raised again. Retry-After is the `retry_after` of the error,
    rounded up, or 1. A websocket is closed with code 1013, "try again later".

    Args:
        request: The request, of which only the scope is read.
        error: The error.

    Returns the response, an ASGI application.
    """
    if not (isinstance(error, AWAY) or is_disconnect(error)):
        raise error
    if request.scope["type"] == "websocket":
        await request.close(code=1013)
        return None
    return Unavailable(getattr(error, "retry_after", None))


class Unavailable:
    """The ASGI application that `unavailable()` returns."""

    def __init__(self, retry_after: float | None) -> None:
        self.status_code: int = 503  # as logging middleware reads it from a response
        self._seconds = 1 if retry_after is None else max(1, ceil(retry_after))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        seconds = str(self._seconds).encode()
        head = scope["method"] == "HEAD"
        await _answer(send, 503, {"detail": TRY_LATER}, (b"retry-after", seconds), head=head)


async def _connect(pool: Pool[Any]) -> None:
    try:
        async with pool.acquire(timeout=LONGEST_TRY):
            pass
    except Exception as error:
        log(DEBUG, "%r: tried to connect for the readiness check: %r", pool, error)


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
            raise TypeError(f"expected pools and databases, not {target!r}")


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
