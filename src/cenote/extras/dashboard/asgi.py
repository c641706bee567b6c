"""The dashboard as an ASGI application, written by hand: three routes need no framework."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from ... import options
from ...observe import post
from .collector import Collector, Viewer
from .guard import Guard
from .page import page
from .text import of_error

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VIEWERS: Final = 64  # at once
LONGEST_BODY: Final = 4096  # bytes of a POST
SEND_TIMEOUT: Final = 20.0  # seconds that a browser has to take one message
END_TIMEOUT: Final = 1.0  # seconds that the end of a stream may take when the server stops
LOOP_TIMEOUT: Final = 5.0  # seconds that a pool's loop has to do what a button says
STREAM: Final = 10.0  # seconds of one stream: a server that stops waits no longer for its end
HEARTBEAT: Final = 2.0  # seconds after which a page hears something, even if there is no news
RETRY: Final = b"retry: 1000\n\n"
AGAIN: Final = b"event: again\ndata:\n\n"  # the page asks for the next stream at once
UVICORN_STOPS: Final = "Task cancelled, timeout graceful shutdown exceeded"
METHODS: Final = {
    "": ("GET", "HEAD"),
    "/": ("GET", "HEAD"),
    "/events": ("GET",),
    "/control": ("POST",),
}
ACTIONS: Final = ("activate", "deactivate", "recover")
ANOTHER: Final = (
    "another process of this program answered; nothing was done. "
    "Press again, or give the dashboard of each process a port of its own."
)
SAFE: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Refusal(Exception):
    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class Dashboard:
    """An ASGI app that shows the pools of this process; `app()` makes one with other options."""

    def __init__(
        self,
        *,
        control_token: str | None = None,
        hosts: Iterable[str] = (),
        interval: float = 0.25,
    ) -> None:
        self._guard = Guard(control_token=control_token, hosts=hosts)
        self._interval = options.duration("interval", interval)
        if not 0.05 <= self._interval <= 10:
            raise ValueError(f"interval must be between 0.05 and 10 seconds, not {interval!r}")
        self._collectors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Collector] = (
            weakref.WeakKeyDictionary()
        )

    @staticmethod
    def app(
        *,
        control_token: str | None = None,
        hosts: Iterable[str] = (),
        interval: float = 0.25,
    ) -> Dashboard:
        """The dashboard as an ASGI app.

        `control_token`: enables the buttons for whoever knows it. `hosts`: names by which it may
        be called, beside those of the loopback; "*" is any. `interval`: seconds between two
        updates, 0.05 to 10.
        """
        return Dashboard(control_token=control_token, hosts=hosts, interval=interval)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
            except Refusal as refusal:
                await _reply(send, refusal.status, {"error": refusal.message}, refusal.headers)
        else:  # a websocket
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        server = scope.get("server")
        if reason := self._guard.refuses_host(headers, None if server is None else server[0]):
            raise Refusal(403, reason)
        path, method = _path(scope), scope["method"]
        wanted = METHODS.get(path)
        if wanted is None:
            raise Refusal(404, "There is nothing here.")
        if method not in wanted:
            raise Refusal(405, f"Only {wanted[0]} is possible here.", allow=", ".join(wanted))
        if path == "":
            await _redirect(send, f"{scope.get('root_path', '')}/")
        elif path == "/":
            await _send_page(send, body=method == "GET")
        elif path == "/events":
            await self._stream(scope, receive, send)
        else:
            await self._control(headers, receive, send)

    # -- watching --------------------------------------------------------------------------------

    def _collector(self) -> Collector:
        loop = asyncio.get_running_loop()
        collector = self._collectors.get(loop)
        if collector is None:
            collector = self._collectors[loop] = Collector(self._interval)
        return collector

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        collector = self._collector()
        if collector.viewers >= VIEWERS:
            raise Refusal(503, f"{VIEWERS} pages are open already, which is the limit.")
        viewer = _viewer(scope)
        collector.join(viewer)
        gone = asyncio.ensure_future(_disconnected(receive))
        news = asyncio.ensure_future(self._feed(collector, viewer, send))
        stopped = None
        try:
            await asyncio.wait((gone, news), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            if not _server_stops(error):
                raise
            stopped = asyncio.current_task()
        finally:
            collector.leave(viewer)
            gone.cancel()
            news.cancel()
            await asyncio.gather(gone, news, return_exceptions=True)
        if stopped is not None:  # what the cancellation wants: this response ends now
            stopped.uncancel()
            if viewer.started and not viewer.comes_back:
                with suppress(TimeoutError):  # of a browser that does not read
                    async with asyncio.timeout(END_TIMEOUT):
                        await _send_body(send, b"")

    async def _feed(self, collector: Collector, viewer: Viewer, send: Send) -> None:
        headers = {**SAFE, "content-type": "text/event-stream", "x-accel-buffering": "no"}
        more = partial(_send_body, send, more=True)
        now = asyncio.get_running_loop().time
        async with asyncio.timeout(SEND_TIMEOUT):
            await _send_head(send, 200, headers)
            viewer.started = True
            await more(RETRY)
        end = now() + STREAM
        beat = now() + HEARTBEAT
        while now() < end:
            viewer.news.clear()
            message = collector.news_for(viewer, control=self._guard.controls)
            if message is None and now() >= beat:
                message = "{}"
            if message is not None:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await more(f"id: {collector.bookmark(viewer)}\ndata: {message}\n\n".encode())
                beat = now() + HEARTBEAT
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(beat, end)):
                    await viewer.news.wait()
        viewer.comes_back = True
        async with asyncio.timeout(SEND_TIMEOUT):
            await _send_body(send, AGAIN)

    # -- the buttons -----------------------------------------------------------------------------

    async def _control(self, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        guard = self._guard
        reason = guard.refuses_origin(headers) or guard.refuses_token(headers)
        if reason:
            raise Refusal(403, reason)
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refusal(415, "The body must be application/json.")
        process, pool, action = _order(await _body(receive))
        if action != "check":  # of the token, which it has passed
            if process != self._collector().process:
                raise Refusal(409, ANOTHER)
            await self._do(pool, action)
        await _reply(send, 200, {"done": action})

    async def _do(self, number: int, action: str) -> None:
        pool = self._collector().find(number)
        if pool is None:
            raise Refusal(404, "That pool is gone.")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str | None] = loop.create_future()

        def step() -> None:
            told = None
            try:
                getattr(pool, action)()
            except Exception as error:
                told = of_error(error)
            loop.call_soon_threadsafe(_resolve, done, told)

        post(pool, step)
        try:
            async with asyncio.timeout(LOOP_TIMEOUT):
                failure = await done
        except TimeoutError:
            raise Refusal(503, "The event loop of that pool does not answer.") from None
        if failure is not None:
            raise Refusal(409, failure)


dashboard = Dashboard()


def _viewer(scope: Scope) -> Viewer:
    try:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=8)
    except ValueError:
        raise Refusal(400, "The address has too many fields.") from None
    number, name = query.get("pool", [""])[0], query.get("name", [None])[0]
    after = query.get("after", [None])[0]
    return Viewer(int(number) if number.isdecimal() and len(number) < 10 else None, name, after)


def _server_stops(error: asyncio.CancelledError) -> bool:
    """Whether uvicorn ends this request because it has waited long enough. Whatever else cancels
    (a timeout, a task group, the end of the loop) must see its cancellation come back."""
    return error.args == (UVICORN_STOPS,)


def _path(scope: Scope) -> str:
    """Below the place where it is mounted; some servers give the whole path, some the rest."""
    path: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path


def _headers(scope: Scope) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def _order(body: bytes) -> tuple[str, int, str]:
    try:
        order = json.loads(body)
        process, pool, action = order.get("process"), order.get("pool"), order.get("action")
    except (ValueError, AttributeError, RecursionError):
        raise Refusal(400, "The body must be a JSON object.") from None
    if action == "check":
        return "", 0, "check"
    if action not in ACTIONS:
        raise Refusal(400, f"action must be one of {', '.join(ACTIONS)}.")
    if not isinstance(pool, int) or isinstance(pool, bool):
        raise Refusal(400, "pool must be the number of a pool.")
    if not isinstance(process, str):
        raise Refusal(400, "process must be what the events say it is.")
    return process, pool, action


def _resolve(done: asyncio.Future[str | None], told: str | None) -> None:
    if not done.done():
        done.set_result(told)


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "The request broke off.")
        body += message.get("body", b"")
        if len(body) > LONGEST_BODY:
            raise Refusal(413, f"The body must not be longer than {LONGEST_BODY} bytes.")
        if not message.get("more_body", False):
            return bytes(body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        stage = (await receive())["type"]
        await send({"type": f"{stage}.complete"})
        if stage == "lifespan.shutdown":
            return


# -- answering -----------------------------------------------------------------------------------


async def _send_page(send: Send, *, body: bool) -> None:
    shown = page()
    headers = {
        **SAFE,
        "content-type": "text/html; charset=utf-8",
        "content-length": str(len(shown.body)),
        "content-security-policy": shown.policy,
        "cross-origin-opener-policy": "same-origin",
        "x-frame-options": "DENY",
    }
    await _send_head(send, 200, headers)
    await _send_body(send, shown.body if body else b"")


async def _redirect(send: Send, target: str) -> None:
    await _send_head(send, 307, {**SAFE, "location": target, "content-length": "0"})
    await _send_body(send, b"")


async def _reply(
    send: Send, status: int, content: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> None:
    body = json.dumps(content).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    await _send_head(send, status, {**SAFE, **headers, **(more or {})})
    await _send_body(send, body)


async def _send_head(send: Send, status: int, headers: Mapping[str, str]) -> None:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
