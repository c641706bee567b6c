"""The dashboard as an ASGI application, without a framework."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from ... import options
from ...observe import post
from .answers import (
    SAFE,
    Refusal,
    Send,
    redirect,
    reply,
    send_body,
    send_head,
    send_page,
)
from .collector import Collector, Viewer
from .guard import Authorize, Guard, Scope
from .page import closed_page, login_page, page
from .requests import (
    FORM,
    Receive,
    body_of,
    content_type,
    fields_of,
    headers_of,
    order_of,
    path_of,
    root_of,
    viewer_of,
)
from .statements import StatementLog
from .text import of_error

VIEWERS: Final = 64  # at once
SEND_TIMEOUT: Final = 20.0  # seconds that a browser has to take one message
END_TIMEOUT: Final = 1.0  # seconds that the end of a stream may take when the server stops
LOOP_TIMEOUT: Final = 5.0  # seconds that a pool's loop has to do what a button says
STREAM: Final = 10.0  # seconds of one stream: a server that stops waits no longer for its end
HEARTBEAT: Final = 2.0  # seconds after which a page gets a message, even if nothing changed
RETRY: Final = b"retry: 1000\n\n"
AGAIN: Final = b"event: again\ndata:\n\n"  # the page asks for the next stream at once
UVICORN_STOPS: Final = "Task cancelled, timeout graceful shutdown exceeded"
METHODS: Final[dict[str, tuple[str, ...]]] = {
    "": ("GET", "HEAD"),
    "/": ("GET", "HEAD"),
    "/events": ("GET",),
    "/control": ("POST",),
    "/login": ("GET", "HEAD", "POST"),
    "/logout": ("POST",),
}
LINKED: Final = ("", "/", "/login")  # a page of another site may have a link to these
ANOTHER: Final = (
    "another process of this program answered; nothing was done. "
    "Press again, or give the dashboard of each process a port of its own."
)


class Dashboard:
    """An ASGI app that shows the pools of this process; `app()` makes one with other options."""

    def __init__(
        self,
        *,
        token: str | None = None,
        authorize: Authorize | None = None,
        public: bool = False,
        control_token: str | None = None,
        hosts: Iterable[str] = (),
        interval: float = 0.25,
        statements: bool = True,
    ) -> None:
        self._guard = Guard(
            token=token,
            authorize=authorize,
            public=public,
            control_token=control_token,
            hosts=hosts,
        )
        self._interval = options.duration("interval", interval)
        if not 0.05 <= self._interval <= 10:
            raise ValueError(f"interval must be between 0.05 and 10 seconds, not {interval!r}")
        self._shows_statements = options.flag("statements", statements)
        self._statements = StatementLog()
        weakref.finalize(self, self._statements.stop).atexit = False
        self._collectors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Collector] = (
            weakref.WeakKeyDictionary()
        )

    @staticmethod
    def app(
        *,
        token: str | None = None,
        authorize: Authorize | None = None,
        public: bool = False,
        control_token: str | None = None,
        hosts: Iterable[str] = (),
        interval: float = 0.25,
        statements: bool = True,
    ) -> Dashboard:
        """Make an ASGI app that shows the pools of this process.

        Without `token`, `authorize` and `public` it answers only clients on this machine, and no
        request that came through a proxy or a Unix socket.

        Args:
            token: Gives access, by a login or by `Authorization: Bearer ...`; 16 visible ASCII
                characters or more.
            authorize: Called with the ASGI scope of a request, sync or async; it returns whether
                the request is let in.
            public: Whether everybody is let in.
            control_token: Gives access to the buttons; as `token`.
            hosts: Host names it answers to, besides `localhost` and IP addresses; "*" is any.
            interval: Seconds between two updates, 0.05 to 10.
            statements: Whether the statements of databases are shown: their text without
                parameters and literals.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option has a wrong value, such as a token that is too short.
        """
        made = Dashboard(
            token=token,
            authorize=authorize,
            public=public,
            control_token=control_token,
            hosts=hosts,
            interval=interval,
            statements=statements,
        )
        made.start()
        return made

    def start(self) -> None:
        """Begin to observe the statements of databases, unless that is switched off."""
        if self._shows_statements:
            self._statements.start()

    def stop(self) -> None:
        """End that."""
        self._statements.stop()

    @property
    def is_open(self) -> bool:
        """Whether clients on other machines may be let in."""
        return self._guard.is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.start()  # `cenote.dashboard` itself is made before anybody wants it
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
            except Refusal as refusal:
                await self._refuse(scope, send, refusal)
        else:  # a websocket
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        if reason := self._guard.refuses_host(headers):
            raise Refusal(403, reason)
        path, method = path_of(scope), scope["method"]
        wanted = METHODS.get(path)
        if wanted is None:
            raise Refusal(404, "There is nothing here.")
        if method not in wanted:
            raise Refusal(405, f"Only {wanted[0]} is possible here.", allow=", ".join(wanted))
        if path == "":
            await redirect(send, 307, root_of(scope))
            return
        linked = path in LINKED and method != "POST"
        if not linked and (reason := self._guard.refuses_origin(headers)):
            raise Refusal(403, reason)
        if path == "/login":
            await self._login(scope, headers, receive, send)
            return
        await self._let_in(scope, headers)
        if path == "/":
            await send_page(send, page(), body=method == "GET")
        elif path == "/events":
            await self._stream(scope, receive, send)
        elif path == "/logout":
            await self._logout(scope, send)
        else:
            await self._control(headers, receive, send)

    # -- the door --------------------------------------------------------------------------------

    async def _let_in(self, scope: Scope, headers: Mapping[str, str]) -> None:
        try:
            reason = await self._guard.refuses(scope, headers)
        except TimeoutError:
            raise Refusal(503, "The application's authorize function took too long.") from None
        if reason is not None and self._guard.sessions is not None:
            raise Refusal(401, reason, www_authenticate='Bearer realm="cenote"')
        if reason is not None:
            raise Refusal(403, reason)

    async def _refuse(self, scope: Scope, send: Send, refusal: Refusal) -> None:
        """Answer with a page if a browser wants one, else with JSON."""
        accepted = [value for name, value in scope["headers"] if name.lower() == b"accept"]
        if path_of(scope) not in LINKED or b"text/html" not in b",".join(accepted):
            await reply(send, refusal.status, {"error": refusal.message}, refusal.headers)
            return
        shown = closed_page(refusal.message)
        headers = refusal.headers
        if refusal.status == 401:
            shown = login_page(refusal.message if scope["method"] == "POST" else None)
            # Else the browser would not send the origin of the form.
            headers = {**headers, "referrer-policy": "same-origin"}
        await send_page(
            send, shown, status=refusal.status, body=scope["method"] != "HEAD", more=headers
        )

    async def _login(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        sessions = self._guard.sessions
        if scope["method"] != "POST" or sessions is None:
            await redirect(send, 303, "./")
            return
        if content_type(headers) != FORM:
            raise Refusal(415, f"The body must be {FORM}.")
        fields = fields_of(await body_of(receive), "form")
        if not self._guard.is_token(fields.get("token", [""])[0]):
            raise Refusal(401, "That token is wrong.", www_authenticate='Bearer realm="cenote"')
        cookie = sessions.begin(time.time(), secure=scope.get("scheme") == "https")
        await redirect(send, 303, "./", set_cookie=cookie)

    async def _logout(self, scope: Scope, send: Send) -> None:
        sessions = self._guard.sessions
        if sessions is None:
            raise Refusal(404, "There is no login here: no token is set.")
        cookie = sessions.end(secure=scope.get("scheme") == "https")
        await reply(send, 200, {"done": "logout"}, {"set-cookie": cookie})

    # -- watching --------------------------------------------------------------------------------

    def _collector(self) -> Collector:
        loop = asyncio.get_running_loop()
        collector = self._collectors.get(loop)
        if collector is None:
            collector = self._collectors[loop] = Collector(self._interval, self._statements)
        return collector

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        collector = self._collector()
        if collector.viewers >= VIEWERS:
            raise Refusal(503, f"{VIEWERS} pages are open already, which is the limit.")
        viewer = viewer_of(scope)
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
                        await send_body(send, b"")

    async def _feed(self, collector: Collector, viewer: Viewer, send: Send) -> None:
        headers = {**SAFE, "content-type": "text/event-stream", "x-accel-buffering": "no"}
        more = partial(send_body, send, more=True)
        guard = self._guard
        now = asyncio.get_running_loop().time
        async with asyncio.timeout(SEND_TIMEOUT):
            await send_head(send, 200, headers)
            viewer.started = True
            await more(RETRY)
        end = now() + STREAM
        beat = now() + HEARTBEAT
        while now() < end:
            viewer.news.clear()
            message = collector.news_for(
                viewer, control=guard.controls, session=guard.sessions is not None
            )
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
            await send_body(send, AGAIN)

    # -- the buttons -----------------------------------------------------------------------------

    async def _control(self, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        if reason := self._guard.refuses_control(headers):
            raise Refusal(403, reason)
        if content_type(headers) != "application/json":
            raise Refusal(415, "The body must be application/json.")
        process, pool, action = order_of(await body_of(receive))
        if action != "check":  # of the token, which it has passed
            if process != self._collector().process:
                raise Refusal(409, ANOTHER)
            await self._do(pool, action)
        await reply(send, 200, {"done": action})

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


dashboard: Dashboard = Dashboard()


def _server_stops(error: asyncio.CancelledError) -> bool:
    """Return whether uvicorn cancelled this request because its shutdown timeout is over.

    Any other cancellation (a timeout, a task group, the end of the loop) must be raised again.
    """
    return error.args == (UVICORN_STOPS,)


def _resolve(done: asyncio.Future[str | None], told: str | None) -> None:
    if not done.done():
        done.set_result(told)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        stage = (await receive())["type"]
        await send({"type": f"{stage}.complete"})
        if stage == "lifespan.shutdown":
            return
