"""For Starlette, FastAPI and other ASGI frameworks: a lifespan, and whether the program is ready.

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
    """Open these, in this order, when the application starts; close them, the last one first, when
    it ends. `drain`: seconds for what is out to come back."""
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
    """An ASGI application that answers 200 or 503, for `Route(path, readiness(db))`.

    It never takes a connection. Not ready: closed or being closed, the breaker open, or more than
    `max_waiting` acquires waiting. The answer shows the counts of each, and its name if you gave it
    one; with `details=False` nothing but the verdict.
    """
    _check(targets)
    options.optional_whole("max_waiting", max_waiting, least=0)
    return Readiness(targets, max_waiting, options.flag("details", details))


class Readiness:
    """What `readiness()` returns."""

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
        """The status and what is shown, in the running loop."""
        reports = [self._report(target) for target in self._targets]
        ready = all(report["ready"] for report in reports)
        shown: dict[str, Any] = {"ready": ready}
        if self._details:
            shown["pools"] = reports
        return 200 if ready else 503, shown

    def _report(self, target: Target) -> dict[str, Any]:
        pool = _pool_of(target)
        if pool is None:  # a database that nobody has used here, or that is closed
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
    """An open breaker that would let the next acquire try counts as ready: it is asked only when
    an acquire comes, and none would come to a program that says it is not ready. So does one that
    does not tell when it would; `should_recover()` itself is for acquires alone."""
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
