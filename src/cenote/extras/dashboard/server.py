"""A small HTTP/1.1 server for the dashboard, with one request per connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from logging import ERROR, INFO, WARNING
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

from ... import options
from ...log import log
from ...loop_end import at_loop_end
from .answers import Message
from .asgi import SEND_TIMEOUT, Dashboard
from .guard import Authorize, Scope, is_loopback
from .head import LONGEST_HEAD, BadRequest, parse
from .requests import LONGEST_BODY

READ_TIMEOUT: Final = 10.0  # seconds that a request may take to arrive
CONNECTIONS: Final = 128  # at once
TURNS: Final = 4  # of the loop, from the acceptance of a connection to its callback
LINGER_TIMEOUT: Final = 1.0  # seconds in which one that was refused may still be sending,
LINGER_BYTES: Final = 256 * 1024  # and how much: else it would lose the answer


class DashboardServer:
    """A dashboard that is served in the background until `close()` or the end of the loop."""

    def __init__(self, app: Dashboard, host: str) -> None:
        self.host = host
        self.port: int = 0  # once it listens
        self._app = app
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._guard: AsyncGenerator[None, None] | None = None

    @property
    def url(self) -> str:
        """The address of the page."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"

    @property
    def _bound(self) -> str:
        """The addresses it listens on, such as `0.0.0.0:8765`."""
        sockets = () if self._server is None else self._server.sockets
        names = [each.getsockname()[:2] for each in sockets]
        return ", ".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in names
        )

    def __repr__(self) -> str:
        state = "closed" if self._server is None else "at"
        return f"<DashboardServer {state} {self.url}>"

    async def close(self) -> None:
        """Stop listening and close every connection."""
        guard, self._guard = self._guard, None
        if guard is not None:
            await guard.aclose()
        self._app.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _listen(self, port: int) -> None:
        self._server = await asyncio.start_server(
            self._accept, self.host or None, port, limit=LONGEST_HEAD
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._guard = await at_loop_end(self._stop)

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await _stop_accepting(server)
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if server is not None:
            await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self._app, reader, writer)
        if self._server is None:
            connection.abort()
            return
        if len(self._tasks) >= CONNECTIONS:
            connection.turn_away()
            return
        task = asyncio.get_running_loop().create_task(
            connection.serve(), name="cenote dashboard connection"
        )
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, connection))

    def _ended(self, connection: Connection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        connection.abort()  # one that was cancelled before its first step


class Connection:
    """One request and its response, translated to ASGI."""

    def __init__(
        self, app: Dashboard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._app = app
        self._reader = reader
        self._writer = writer
        self._body: bytes | None = b""  # not yet given to the app
        self._rest = b""  # what was read after the head
        self._method = ""  # once it is read
        self._began = False  # something has arrived
        self._answered = False  # the head of the answer is on its way
        # No buffer: a message is sent when the system has taken the one before.
        writer.transport.set_write_buffer_limits(high=0)

    def abort(self) -> None:
        self._writer.transport.abort()

    def turn_away(self) -> None:
        """Answer 503 without a task, because there are too many."""
        self._write_refusal(503, [(b"retry-after", b"1")])
        self._writer.close()

    async def serve(self) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):  # gone, or too slow
            try:
                await self._serve()
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                raise
            except Exception as error:
                log(ERROR, "the dashboard failed", error=error)
                if self._answered:
                    return
                self._write_refusal(500)
            await self._flush()
            self._writer.close()
            await self._writer.wait_closed()

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                scope = await self._read_head()
                self._body = await self._read_body(scope)
        except BadRequest as bad:
            await self._refuse(bad.status)
        except TimeoutError:
            if not self._began:  # a browser opens connections in advance
                raise
            await self._refuse(408)
        else:
            await self._app(scope, self._receive, self._send)

    # -- reading ---------------------------------------------------------------------------------

    async def _read_head(self) -> Scope:
        method, target, version, headers = parse(await self._read_until_empty_line())
        self._method = method
        names = [name for name, _ in headers]
        # A proxy may read a request with two of these, or none, in another way.
        if names.count(b"host") != 1 or names.count(b"content-length") > 1:
            raise BadRequest(400)
        if b"transfer-encoding" in names:
            raise BadRequest(501)
        raw_path, _, query = target.partition(b"?")
        transport = self._writer.transport
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": method,
            "scheme": "http",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
        }

    async def _read_until_empty_line(self) -> bytes:
        """Return the head and keep what came after it; each byte is searched once."""
        read = bytearray()
        while True:
            part = await self._reader.read(LONGEST_HEAD)
            if not part:
                raise asyncio.IncompleteReadError(bytes(read), None)
            self._began = True
            seen = max(0, len(read) - 3)  # the end may be in two parts
            read += part
            end = read.find(b"\r\n\r\n", seen)
            if (len(read) if end < 0 else end) > LONGEST_HEAD:
                raise BadRequest(431)
            if end >= 0:
                self._rest = bytes(read[end + 4 :])
                return bytes(read[:end])

    async def _read_body(self, scope: Scope) -> bytes:
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 9:
            raise BadRequest(400)
        wanted = int(length)
        if wanted > LONGEST_BODY:
            raise BadRequest(413)
        missing = wanted - len(self._rest)
        if missing > 0:
            self._rest += await self._reader.readexactly(missing)
        return self._rest[:wanted]

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        # Skip a second request: a connection serves one.
        await self._skip(LONGEST_HEAD)
        return {"type": "http.disconnect"}

    async def _skip(self, most: int) -> None:
        """Read and drop everything, or up to `most` bytes."""
        while most > 0 and (part := await self._reader.read(4096)):
            most -= len(part)

    # -- writing ---------------------------------------------------------------------------------

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._write_head(message["status"], message["headers"])
        elif message.get("body") and self._method != "HEAD":
            self._writer.write(message["body"])
        await self._flush()

    async def _refuse(self, status: int) -> None:
        self._write_refusal(status)
        await self._flush()
        # A connection that is closed with unread data is reset, and the answer is lost.
        self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_TIMEOUT):
                await self._skip(LINGER_BYTES)

    def _write_refusal(self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        body = json.dumps({"error": f"{HTTPStatus(status).phrase}."}).encode()
        length = (b"content-length", str(len(body)).encode())
        self._write_head(status, [(b"content-type", b"application/json"), length, *headers])
        self._writer.write(body)

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await self._writer.drain()
        except BaseException:
            self._writer.transport.abort()  # else it would wait for its reader without end
            raise

    def _write_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._answered = True
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
        lines += [name + b": " + value for name, value in headers]
        self._writer.write(b"\r\n".join([*lines, b"connection: close", b"", b""]))


async def serve_dashboard(
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    authorize: Authorize | None = None,
    public: bool = False,
    control_token: str | None = None,
    hosts: Iterable[str] = (),
    interval: float = 0.25,
    statements: bool = True,
) -> DashboardServer:
    """Serve the dashboard in the running loop, and return when it listens.

    Args:
        host: The address to listen on. Any address but the loopback is open to other machines, and
            needs `token`, `authorize` or `public`.
        port: The port to listen on; 0 is any free port.
        token: Gives access, by a login or by `Authorization: Bearer ...`; 16 visible ASCII
            characters or more.
        authorize: Called with the ASGI scope of a request, sync or async; it returns whether the
            request is let in.
        public: Whether everybody is let in.
        control_token: Gives access to the buttons; as `token`.
        hosts: Host names it answers to, besides `localhost` and IP addresses; "*" is any.
        interval: Seconds between two updates, 0.05 to 10.
        statements: Whether the statements of databases are shown: their text without parameters
            and literals.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option has a wrong value, or `host` is open to other machines and nothing
            says who may look.
        OSError: The address cannot be used, because another program listens there.
    """
    if not isinstance(host, str):
        raise TypeError(f"host must be a string, not {type(host).__name__}")
    if options.whole("port", port, least=0) > 65535:
        raise ValueError(f"port must be 65535 at most, not {port!r}")
    app = Dashboard(
        token=token,
        authorize=authorize,
        public=public,
        control_token=control_token,
        hosts=hosts,
        interval=interval,
        statements=statements,
    )
    if not (is_loopback(host) or app.is_open):
        raise ValueError(
            f"host {host!r} is open to other machines: say who may look, by token=... (for example "
            f"secrets.token_urlsafe()), authorize=... or public=True, or listen on 127.0.0.1"
        )
    server = DashboardServer(app, host)
    await server._listen(port)
    app.start()
    if is_loopback(host):
        log(INFO, "the dashboard is at %s", server.url)
    else:
        log(WARNING, "the dashboard listens on %s, open to other machines", server._bound)
    return server


def _address(name: Any) -> tuple[str, int] | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None


async def _stop_accepting(server: asyncio.Server) -> None:
    """Wait for connections that were accepted a moment ago, which asyncio loses on close."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        with suppress(NotImplementedError):  # Windows
            loop.remove_reader(listening)
    for _ in range(TURNS):
        await asyncio.sleep(0)
