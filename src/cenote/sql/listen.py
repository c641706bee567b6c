"""`db.listen()`: notifications of PostgreSQL, by one connection for all listeners of a loop."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable
from contextvars import Context
from dataclasses import dataclass
from logging import DEBUG, WARNING
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakSet

from .. import options
from ..errors import PoolError
from ..log import log
from ..timer import LONGEST
from . import messages
from .driver import DriverConnection

if TYPE_CHECKING:
    from .database import Database
    from .per_loop import LoopDatabase

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two attempts to connect again, at most
LONGEST_NAME = 63  # bytes of the name of a channel; the server cuts off the rest of an identifier
LIMIT = 10_000  # notifications that wait for one listener


@dataclass(frozen=True, slots=True)
class Notification:
    """What `db.listen()` gives: a notification, or a note that some may have been missed."""

    kind: Literal["notification", "reconnected"]
    """`"reconnected"` after the connection was lost and made again: what was sent meanwhile is
    lost."""
    channel: str
    """On which it was sent; empty if `kind` is `"reconnected"`, which concerns all channels."""
    payload: str
    """The text that was sent with it, or an empty one."""
    pid: int
    """The process of the server that sent it; 0 if `kind` is `"reconnected"`."""


RECONNECTED = Notification("reconnected", "", "", 0)


class Listener:
    """An async iterator over the notifications on some channels, with `aclose()`.

    Nothing happens before `start()`, or before the first notification is asked for.
    """

    __slots__ = (
        "__weakref__", "_channels", "_database", "_error", "_limit", "_listening", "_notes",
        "_over", "_started", "_waiter",
    )  # fmt: skip

    def __init__(self, database: Database, channels: tuple[str, ...], limit: int) -> None:
        if not channels:
            raise TypeError("listen() takes the name of at least one channel")
        self._channels = frozenset(map(check_channel, channels))
        self._database = database
        self._limit = options.whole("limit", limit, least=1)
        self._listening: Listening | None = None
        self._notes: deque[Notification] = deque()
        self._started = False  # the server has confirmed all channels
        self._over = False
        self._error: BaseException | None = None  # why it is over; raised once
        self._waiter: asyncio.Future[None] | None = None

    @property
    def channels(self) -> frozenset[str]:
        """The names of the channels."""
        return self._channels

    @property
    def started(self) -> bool:
        """Whether the server has confirmed that it sends what is notified on these channels."""
        return self._started

    def __aiter__(self) -> Self:
        return self

    async def start(self) -> Self:
        """Listen: when this returns, no notification that is sent from now on is missed.

        Raises what making the connection raised, or the server's error; and a `PoolError` if it has
        ended.
        """
        await self._begin()
        if self._over and not self._notes:
            self._database._loop_databases.here()  # raises if the database is closed
            channels = ", ".join(sorted(self._channels))
            raise PoolError(f"the listener on {channels} has ended: call db.listen() again")
        return self

    async def __anext__(self) -> Notification:
        await self._begin()
        while not self._notes:
            if self._over:
                self._raise_error()
                raise StopAsyncIteration
            await self._wait()
        return self._notes.popleft()

    async def aclose(self) -> None:
        """End it; what was not read is dropped."""
        self.end(None)
        self._notes.clear()
        self._error = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        listening = getattr(self, "_listening", None)
        if listening is not None and not self._over:
            listening.post_change()

    def __repr__(self) -> str:
        state = "over" if self._over else "started" if self._started else "new"
        return f"<Listener on {', '.join(sorted(self._channels))}: {state}>"

    def confirm(self) -> None:
        """All of its channels are listened to."""
        self._started = True
        self._wake()

    def put(self, note: Notification) -> None:
        """Keep it until it is asked for; one that is too many ends the listener."""
        if len(self._notes) >= self._limit:
            self.end(messages.listener_too_slow(sorted(self._channels), self._limit))
            return
        self._notes.append(note)
        self._wake()

    def end(self, error: BaseException | None) -> None:
        """Nothing comes any more; what is kept can still be read, then the error is raised."""
        if not self._over:
            self._over = True
            self._error = error
            if self._listening is not None:
                self._listening.remove(self)
            self._wake()

    async def _begin(self) -> None:
        if self._listening is None and not self._over:
            self._listening = self._database._loop_databases.here().listening
            self._listening.add(self)
        while not (self._started or self._over):
            await self._wait()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._over and not self._notes and self._error is not None:
            error, self._error = self._error, None
            raise error

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError(f"{self!r} is read by two tasks at once; give each one its own")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Listening:
    """The connection on which the listeners of one event loop listen, and the task that keeps it.

    It is one of the pool's, held as long as there is a listener, and it is made again when it is
    lost.
    """

    def __init__(self, loop_db: LoopDatabase) -> None:
        self._loop_db = loop_db
        # Weak: a listener that nobody reads any more has ended.
        self._listeners: WeakSet[Listener] = WeakSet()
        self._changed = asyncio.Event()  # the listeners, or the connection
        self._task: asyncio.Task[None] | None = None
        self._attempts = 0  # that failed since there was a connection
        self._quiet = False  # it only waits for a change
        self._served = False  # the connection has worked: listeners were confirmed on it
        self._over = False

    def add(self, listener: Listener) -> None:
        """It begins to listen."""
        if self._over:
            raise self._loop_db.gone()
        self._listeners.add(listener)
        self._changed.set()
        if self._task is None:
            name = f"cenote listens for {self._loop_db.label}"
            self._task = self._loop_db.loop.create_task(self._run(), name=name, context=Context())

    def remove(self, listener: Listener) -> None:
        """It has ended."""
        self._listeners.discard(listener)
        self._changed.set()

    def post_change(self) -> None:
        """A listener was collected, in any thread."""
        self._loop_db.post(self._changed.set)

    def end(self) -> None:
        """The database is closed, or its loop ends: the listeners end after what they have."""
        self._over = True
        for listener in [*self._listeners]:
            listener.end(None)

    async def close(self) -> None:
        """After `end()`: wait until the connection is given up."""
        if self._task is not None:
            if not self._quiet:
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._listeners:
                try:
                    await self._listen_once()
                except Exception as error:
                    if not (self._served and self._loop_db.driver.is_disconnect(error)):
                        self._fail_new(error)  # else it is their first try on a new connection
                    if self._listeners:
                        self._attempts += 1
                        level = WARNING if self._attempts == 1 else DEBUG
                        log(level, "%s: listening failed: %r", self._loop_db.label, error)
                        await self._pause()
        finally:
            self._task = None

    async def _listen_once(self) -> None:
        """On one connection, until it is lost or nobody listens any more."""
        loop_db = self._loop_db
        self._served = False
        claim = loop_db.pool.acquire()
        connection = await claim
        try:
            self._explain(claim)
            await self._serve(connection, claim)
        except BaseException as error:
            if not isinstance(error, Exception):
                connection.interrupt()
            lost = isinstance(error, Exception) and loop_db.driver.is_disconnect(error)
            loop_db.discard(connection, error if lost else None)
            raise
        await loop_db.pool.discard(connection)  # rather than to make it like new

    async def _serve(self, connection: DriverConnection, claim: Any) -> None:
        connection.on_notification(self._received, self._changed.set)
        reconnected = True
        listened: set[str] = set()
        while self._listeners:
            self._changed.clear()
            wanted = self._wanted()
            for channel in sorted(wanted - listened):
                await self._ask(connection.listen(channel))
                listened.add(channel)
            for channel in sorted(listened - wanted):
                await self._ask(connection.unlisten(channel))
                listened.discard(channel)
            self._confirm(listened, reconnected=reconnected)
            reconnected = False
            self._served = True
            self._attempts = 0
            self._explain(claim)
            await self._wait_for_change(connection)

    def _confirm(self, listened: set[str], *, reconnected: bool) -> None:
        for listener in [*self._listeners]:
            if not listener.started and listener.channels <= listened:
                listener.confirm()
            elif listener.started and reconnected:
                listener.put(RECONNECTED)

    async def _wait_for_change(self, connection: DriverConnection) -> None:
        idle = self._loop_db.hooks.ping_after_idle
        try:
            async with asyncio.timeout(min(max(idle, 1.0), LONGEST)):
                self._quiet = True
                await self._changed.wait()
        except TimeoutError:
            self._quiet = False
            await self._ask(connection.ping())
        finally:
            self._quiet = False
        if connection.is_dead:
            raise ConnectionError("the connection was lost")

    async def _ask(self, work: Awaitable[object]) -> None:
        """Await the answer of the server. One that went away without a word shows only so."""
        try:
            async with asyncio.timeout(self._loop_db.hooks.hook_timeout):
                await work
        except TimeoutError:
            raise ConnectionError("the server does not answer") from None

    async def _pause(self) -> None:
        """Until the next attempt; a new listener does not wait for that."""
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._attempts, 10))
        try:
            async with asyncio.timeout(random.uniform(longest / 2, longest)):
                while self._listeners and all(each.started for each in self._listeners):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass

    def _received(self, channel: str, payload: str, pid: int) -> None:
        note = Notification("notification", channel, payload, pid)
        for listener in [*self._listeners]:
            if channel in listener.channels:
                listener.put(note)

    def _wanted(self) -> set[str]:
        return {channel for each in self._listeners for channel in each.channels}

    def _fail_new(self, error: Exception) -> None:
        """Those that did not listen yet get the error; the others wait for a new connection."""
        for listener in [*self._listeners]:
            if not listener.started:
                listener.end(error)

    def _explain(self, claim: Any) -> None:
        claim.pin(f"listening on {', '.join(sorted(self._wanted()))}")


def check_channel(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a channel must be a string, not {type(name).__name__}")
    if not name or "\0" in name or len(name.encode("utf-8", "replace")) > LONGEST_NAME:
        raise ValueError(
            f"the name of a channel must have 1 to {LONGEST_NAME} bytes and no null character: "
            f"{name!r}"
        )
    return name


def new_listener(database: Database, channels: tuple[str, ...], limit: int) -> Listener:
    """Check that the driver can listen, and make a listener."""
    if "listen" not in database.capabilities:
        raise PoolError(
            f"{database._label}: listen() is for PostgreSQL; {database._driver.system_name} has no "
            f"notifications"
        )
    if not database._pooled:
        raise PoolError(
            f"{database._label}: listen() holds a connection, and with pooled=False there is only "
            f"one: use a separate Database for it"
        )
    return Listener(database, channels, limit)
