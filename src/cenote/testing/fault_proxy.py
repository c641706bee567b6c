"""A TCP proxy that breaks connections on demand.

It runs in a thread with a loop of its own: tests on any loop can use it, also while theirs is
blocked. Its methods may be called from any thread, and return when it is done. What clients and
servers did before a call, the proxy has seen before the call acts or answers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import errno
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from .. import options

if sys.platform == "linux":
    import fcntl

T = TypeVar("T")

WAIT = 60.0  # real seconds until what was asked for must have happened, on any machine
CHUNK = 65536  # bytes read at once
SIOCOUTQNSD = 0x894B  # of Linux: how much was written to a socket and not sent yet
UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)  # of a connect that does not block


@dataclass
class Counts:
    connections: int = 0  # accepted so far, those that were refused by a reset included
    open: int = 0  # whose client has not ended, and was not ended by the proxy
    client_bytes: int = 0  # read from clients, those swallowed included
    server_bytes: int = 0  # read from servers, those swallowed included
    client_chunks: int = 0  # reads from clients that gave something
    held: int = 0  # parts of replies since hold_replies(True) that were held back
    round_trips: int = 0  # requests: first bytes of a client, on a connection or after a reply


class FaultProxy:
    """A TCP proxy in front of any server, which breaks the connections that pass through it.

    `with FaultProxy(host, port) as proxy:` listens on `proxy.host`, `proxy.port` until the block is
    left; `async with` does the same. It runs in a thread of its own. Its methods may be called from
    any thread, and return when it is done.

    Args:
        host: The host of the server: a name, or an address of IPv4 or IPv6.
        port: The TCP port of the server.

    Raises:
        OSError: Entering the block: the name of the host is not known.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host: str = "127.0.0.1"  # where clients connect to
        self.port: int = 0  # chosen by the system when the block is entered
        if not isinstance(host, str):
            raise TypeError(f"host must be a string, not {type(host).__name__}")
        if not 0 < options.whole("port", port, least=1) < 65536:
            raise ValueError(f"port must be at most 65535, not {port}")
        self._server = (host, port)
        # All below belongs to the thread.
        self._counts = Counts()
        self._relays: set[_Relay] = set()
        self._waiting: list[tuple[Callable[[Counts], bool], concurrent.futures.Future[None]]] = []
        self._swallows = False
        self._holds_ends = False
        self._holds_replies = False
        self._refuses = False
        self._delay = 0.0  # seconds
        self._reply_budget: int | None = None  # bytes until a reset; None: no limit

    def __enter__(self) -> Self:
        self._family, self._address = resolved(*self._server)
        self._listener = socket.create_server((self.host, 0), backlog=1024)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.SelectorEventLoop()
        self._loop.add_reader(self._listener, self._accept)
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call(self._shut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        return self.counts().connections

    @property
    def open(self) -> int:
        """How many connections are open."""
        return self.counts().open

    @property
    def client_bytes(self) -> int:
        """How many bytes clients have sent."""
        return self.counts().client_bytes

    @property
    def server_bytes(self) -> int:
        """How many bytes the server has sent."""
        return self.counts().server_bytes

    @property
    def client_chunks(self) -> int:
        """How many reads from clients gave something."""
        return self.counts().client_chunks

    @property
    def round_trips(self) -> int:
        """How many requests clients have sent, each before an answer."""
        return self.counts().round_trips

    def counts(self) -> Counts:
        """Return all counts, of one moment."""
        return self._call(lambda: copy.copy(self._counts))

    def wait_for(self, condition: Callable[[Counts], bool], timeout: float = WAIT) -> None:
        """Wait until a condition is true.

        It blocks the thread; in a coroutine: `await asyncio.to_thread(proxy.wait_for, ...)`.

        Args:
            condition: Called with the counts; returns whether they are as wanted.
            timeout: The longest wait, in real seconds.

        Raises:
            TimeoutError: The condition was not true within `timeout` seconds.
        """
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def wait() -> None:
            if condition(self._counts):
                done.set_result(None)
            else:
                self._waiting.append((condition, done))

        self._call(wait)
        try:
            done.result(timeout)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"not within {timeout} s: {self.counts()}") from None

    def reset(self) -> None:
        """End all open connections, on both sides, with RST: "connection reset by peer"."""
        self._call(lambda: self._each(_Relay.reset))

    def cut(self) -> None:
        """End all open connections, on both sides, with FIN, as a server does that shuts down."""
        self._call(lambda: self._each(_Relay.close))

    def half_open(self) -> None:
        """End the server's side of all open connections; what their clients send is swallowed.

        So it is behind a firewall that has forgotten a connection.
        """
        self._call(lambda: self._each(_Relay.half_open))

    def black_hole(self, on: bool = True) -> None:
        """While on, let neither bytes nor ends pass, as without a cable; what was sent is lost.

        Afterwards the connections work again and ends are passed on, but connections made meanwhile
        have no server, and stay silent.

        Args:
            on: False ends it.
        """
        self._call(lambda: self._swallow(on))

    def hold_ends(self, on: bool = True) -> None:
        """While on, pass what the server sends, but not that it ended the connection.

        Args:
            on: False ends it.
        """

        def act() -> None:
            self._holds_ends = on
            if not on:
                self._each(_Relay.pass_ends)

        self._call(act)

    def hold_replies(self, on: bool = True) -> None:
        """While on, keep what the server sends; it is passed afterwards, in its order.

        Args:
            on: False ends it.
        """

        def act() -> None:
            self._holds_replies = on
            if on:
                self._counts.held = 0
            else:
                self._each(_Relay.pass_held)

        self._call(act)

    def refuse(self, on: bool = True) -> None:
        """While on, reset new connections at once; those that are open go on.

        Args:
            on: False ends it.
        """

        def act() -> None:
            self._refuses = on

        self._call(act)

    def slow(self, seconds: float) -> None:
        """Delay every reply from now on.

        Args:
            seconds: How much later it is passed; 0 ends it.
        """

        delay = options.duration("seconds", seconds)

        def act() -> None:
            self._delay = delay

        self._call(act)

    def cut_reply_after(self, n_bytes: int) -> None:
        """Reset the connection that gets the n-th byte of replies from now, counted over all.

        It happens once; the other connections stay.

        Args:
            n_bytes: How many bytes are passed before. With 0 the next reply is not passed at all.
        """

        budget = options.whole("n_bytes", n_bytes, least=0)

        def act() -> None:
            self._reply_budget = budget

        self._call(act)

    def _call(self, function: Callable[[], T]) -> T:
        if not self.port:
            raise RuntimeError("this proxy is not running yet: use it in `with FaultProxy(...):`")
        if self._loop.is_closed():
            return function()
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def act() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        # Not before the loop has looked at its sockets once more, and has handled what it saw.
        def defer() -> None:
            self._loop.call_soon(self._loop.call_soon, act)

        self._loop.call_soon_threadsafe(defer)
        return result.result(WAIT)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            relay = _Relay(self, client)
            self._relays.add(relay)
            self._counts.connections += 1
            self._counts.open += 1
            if self._refuses:
                relay.reset()
            elif self._swallows:
                relay.half_open()
            else:
                relay.connect(self._family, self._address)
            self._counted()

    def _counted(self) -> None:
        for item in [item for item in self._waiting if item[0](self._counts)]:
            self._waiting.remove(item)
            item[1].set_result(None)

    def _spend(self, chunk: bytes) -> bytes:
        """Return what of a reply is within the budget, which is None again once it is spent."""
        assert self._reply_budget is not None
        chunk = chunk[: self._reply_budget]
        self._reply_budget -= len(chunk)
        if self._reply_budget == 0:
            self._reply_budget = None
        return chunk

    def _each(self, act: Callable[[_Relay], None]) -> None:
        for relay in list(self._relays):
            act(relay)

    def _swallow(self, on: bool) -> None:
        self._swallows = on
        if not on:
            self._each(_Relay.pass_ends)

    def _shut(self) -> None:
        self._each(_Relay.reset)
        self._loop.remove_reader(self._listener)
        self._listener.close()


def resolved(host: str, port: int) -> tuple[int, Any]:
    """Return the family and the address of a server; IPv4 if it has both."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, address


class _Relay:
    """A client's connection and the one to the server."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self.proxy = proxy
        self.client = _End(self, client)
        self.server: _End | None = None  # None: what the client sends is swallowed
        self._answered = True  # the server sent last, or nobody has sent anything
        self._late: deque[tuple[_End, bytes]] = deque()  # replies that are delayed or held back
        self._due = 0.0  # the loop's time at which the last of them passes
        self._ended: list[_End] = []  # what has said so while nothing passed
        self._lost = False  # one side was reset while nothing passed
        self._counted_open = True

    def connect(self, family: int, address: Any) -> None:
        self.server = _End(self, socket.socket(family))
        if self.server.socket.connect_ex(address) not in UNDER_WAY:
            self.reset()
            return
        self.proxy._loop.add_writer(self.server.socket, self._connected)

    def half_open(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        self._late.clear()
        if self.client in self._ended or self.client.is_closed:
            self.close()
        else:
            self.client.read()

    def reset(self) -> None:
        for end in self._ends():
            end.reset()
        self._gone()

    def close(self) -> None:
        for end in self._ends():
            end.close()
        self._gone()

    def received(self, end: _End, chunk: bytes) -> None:
        """An empty one is the end of what that side sends."""
        self._count(end, chunk)
        if end is self.server and self.proxy._holds_replies:
            self.proxy._counts.held += 1
            self._late.append((end, chunk))
        elif end is self.server and (self.proxy._delay or self._late):
            loop = self.proxy._loop
            self._due = max(self._due, loop.time() + self.proxy._delay)
            self._late.append((end, chunk))
            loop.call_at(self._due, self._pass_late)
        else:
            self._pass(end, chunk)
        self.proxy._counted()

    def lost(self, end: _End) -> None:
        if end is self.client:
            self._client_left()
        if self.proxy._swallows and self.server is not None:
            end.close()
            self._lost = True
        else:
            self.reset()
        self.proxy._counted()

    def finished(self) -> None:
        """The end was passed to one side; the relay ends with the second."""
        if all(end.is_finished for end in self._ends()):
            self.close()

    def other(self, end: _End) -> _End | None:
        return self.server if end is self.client else self.client

    def pass_ends(self) -> None:
        if self._lost:
            self.reset()
            return
        ended, self._ended = self._ended, []
        for end in ended:
            self._pass(end, b"")

    def pass_held(self) -> None:
        while self._late:
            self._pass_late()

    def _connected(self) -> None:
        assert self.server is not None
        self.proxy._loop.remove_writer(self.server.socket)
        if self.server.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.reset()
            return
        self.server.read()
        self.client.read()

    def _pass_late(self) -> None:
        if self._late and not self.proxy._holds_replies:
            self._pass(*self._late.popleft())

    def _pass(self, end: _End, chunk: bytes) -> None:
        other = self.other(end)
        if other is None:
            if not chunk:
                self.close()
        elif self.proxy._swallows:
            if not chunk:
                self._ended.append(end)
        elif not chunk:
            if end is self.server and self.proxy._holds_ends:
                self._ended.append(end)
            else:
                other.finish()
        elif end is self.server and self.proxy._reply_budget is not None:
            self._pass_within_budget(end, chunk)
        else:
            other.write(chunk)

    def _pass_within_budget(self, server: _End, chunk: bytes) -> None:
        chunk = self.proxy._spend(chunk)
        if self.proxy._reply_budget is None:
            self._late.clear()
            server.pause()
            self.client.write(chunk, then=self._reset_when_sent)
        else:
            self.client.write(chunk)

    def _reset_when_sent(self) -> None:
        if not self.client.is_closed and self.client.unsent():
            self.proxy._loop.call_later(0.001, self._reset_when_sent)
        else:
            self.reset()

    def _count(self, end: _End, chunk: bytes) -> None:
        counts = self.proxy._counts
        if end is not self.client:
            counts.server_bytes += len(chunk)
            self._answered = self._answered or bool(chunk)
        elif not chunk:
            self._client_left()
        else:
            counts.client_bytes += len(chunk)
            counts.client_chunks += 1
            counts.round_trips += self._answered
            self._answered = False

    def _client_left(self) -> None:
        self.proxy._counts.open -= self._counted_open
        self._counted_open = False

    def _gone(self) -> None:
        self._late.clear()
        self.proxy._relays.discard(self)
        self._client_left()
        self.proxy._counted()

    def _ends(self) -> list[_End]:
        return [self.client] if self.server is None else [self.client, self.server]


class _End:
    """A socket of a relay. What it cannot take yet is kept, and its peer is not read meanwhile."""

    def __init__(self, relay: _Relay, sock: socket.socket) -> None:
        self.relay = relay
        self.socket = sock
        self._loop = relay.proxy._loop
        self.is_finished = False  # the end was said to it
        self._ended = False  # it said the end
        self._outbox = bytearray()
        self._then: Callable[[], None] | None = None  # when the outbox is empty
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def is_closed(self) -> bool:
        return self.socket.fileno() == -1

    def read(self) -> None:
        if not self.is_closed and not self._ended:
            self._loop.add_reader(self.socket, self._readable)

    def pause(self) -> None:
        if not self.is_closed:
            self._loop.remove_reader(self.socket)

    def write(self, chunk: bytes, then: Callable[[], None] | None = None) -> None:
        if not self.is_closed:
            self._outbox += chunk
            self._then = then
            self._flush()

    def unsent(self) -> int:
        """The bytes in its system's hands that a reset would discard; known on Linux."""
        if sys.platform != "linux":
            return 0
        return int(struct.unpack("i", fcntl.ioctl(self.socket, SIOCOUTQNSD, bytes(4)))[0])

    def finish(self) -> None:
        self.write(b"", then=self._shut)

    def close(self) -> None:
        if not self.is_closed:
            self._loop.remove_reader(self.socket)
            self._loop.remove_writer(self.socket)
            self.socket.close()

    def reset(self) -> None:
        if not self.is_closed:
            no_time = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_time)
            self.close()

    def _readable(self) -> None:
        try:
            chunk = self.socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self.relay.lost(self)
            return
        if not chunk:
            self._ended = True
            self.pause()
        self.relay.received(self, chunk)

    def _flush(self) -> None:
        peer = self.relay.other(self)
        try:
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox)]
        except BlockingIOError:
            self._loop.add_writer(self.socket, self._flush)
            if peer is not None:
                peer.pause()
            return
        except OSError:
            self.relay.lost(self)
            return
        if self._loop.remove_writer(self.socket) and peer is not None:
            peer.read()
        if self._then is not None:
            then, self._then = self._then, None
            then()

    def _shut(self) -> None:
        self.is_finished = True
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.relay.lost(self)
            return
        self.relay.finished()
