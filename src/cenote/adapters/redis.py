"""`ConnectionPool` and its kin: `cenote.Pool` as the connection pool of `redis.asyncio`.

    client = Redis(connection_pool=ConnectionPool.from_url(url, max_connections=20))

redis-py connects one object over and over again. Here the resource is such an object while it is
connected; without a connection it is spare, and is connected again before another one is made.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from ..caller import may_have_interrupted_use
from ..drivers.library import Library
from ..errors import (
    AcquireTimeoutError,
    PoolClosedError,
    PoolError,
    PoolOverloadedError,
)
from ..options import CommonOptions, number
from ..pool import Pool
from .cenote_options import check_cenote_options, skipped
from .closing import close
from .lanes import PoolLane, PoolLanes

try:
    import redis
    from redis.asyncio.connection import AbstractConnection
    from redis.asyncio.connection import BlockingConnectionPool as RedisBlockingConnectionPool
    from redis.asyncio.connection import ConnectionPool as RedisConnectionPool
    from redis.asyncio.sentinel import SentinelConnectionPool as RedisSentinelConnectionPool
    from redis.exceptions import ConnectionError, MaxConnectionsError, TimeoutError
except ImportError as _error:
    raise ImportError(
        "cenote.adapters.redis needs redis-py 5.0.1 or later: pip install 'cenote[redis]'"
    ) from _error

__all__ = ["BlockingConnectionPool", "ConnectionPool", "SentinelConnectionPool"]

# -- what is used of redis-py beyond its documentation ---------------------------------------------

REDIS: Final = Library("redis-py", redis.__version__, ("5.0.1", "8.1.0"))
REDIS.require(
    RedisConnectionPool, ("make_connection", "ensure_connection", "can_get_connection", "reset")
)
REDIS.require_assigned(RedisConnectionPool, ("_available_connections", "_in_use_connections"))
REDIS.require_assigned(RedisBlockingConnectionPool, ("timeout",))
REDIS.require_assigned(AbstractConnection, ("_reader", "is_connected", "disconnect", "connect"))

library: Final = REDIS.module("redis.asyncio.connection")
_RELEASED: Final = getattr(library, "AsyncAfterConnectionReleasedEvent", None)  # since 5.3
_RECORDS: Final = hasattr(library, "record_connection_count")  # for OpenTelemetry, since 7.2
# Whether anything is there to read: of an idle connection, its end or the rest of an answer.
_CAN_READ: Final = "can_read" if hasattr(AbstractConnection, "can_read") else "can_read_destructive"

_observability: Final = (
    REDIS.module("redis.observability.providers", "get_observability_instance")
    if _RECORDS
    else None
)

# What says something about the server, and not about the command or the program.
_FAILURES: Final = (ConnectionError, TimeoutError, OSError)

# What redis-py has an option of its own for, under its name.
_SAID_BY_REDIS: Final = {"max_size": "max_connections", "acquire_timeout": "timeout"}

# In the child of a fork: the connections that its parent has in use.
_PARENTS: Final[list[object]] = []


class ConnectionPool(RedisConnectionPool):
    """The connection pool of `redis.asyncio` on `cenote.Pool`; a full one raises at once.

    Takes the arguments of redis-py's own `ConnectionPool`, and one more.

    Args:
        cenote_options: Options of `cenote.Pool`, such as `name`, `strategy`, `hold_warning`,
            `max_idle`, `min_size`. `max_size` is redis-py's `max_connections`.

    Raises redis-py's own errors: `MaxConnectionsError` if every connection is in use, and
    `ConnectionError` while the circuit breaker is open. The `__cause__` is cenote's error, whose
    text names who holds the connections.
    """

    timeout: float | None = 0.0  # seconds in the queue; 0: it never queues
    _full: tuple[type[ConnectionError], str] = (MaxConnectionsError, "Too many connections:")

    # Where each is from, and the error that the program was dealing with when it got it.
    _lent: dict[AbstractConnection, tuple[Pool[AbstractConnection], BaseException | None]]

    def __init__(
        self, *args: Any, cenote_options: CommonOptions | None = None, **kwargs: Any
    ) -> None:
        self._current: Pool[AbstractConnection] | None = None
        self._used_in: asyncio.AbstractEventLoop | None = None  # the loop of the current pool
        self._lanes: PoolLanes | None = None
        self._connecting: set[AbstractConnection] = set()
        self._process = os.getpid()
        self._unauthenticated: set[AbstractConnection] = set()  # idle ones, for a newer token
        super().__init__(*args, **kwargs)
        if self.timeout is not None:
            number("timeout", self.timeout)
        self._cenote_options = check_cenote_options(
            cenote_options,
            _SAID_BY_REDIS,
            "redis-py's {}",
            limit=("max_connections", self.max_connections),
        )

    @property
    def pool(self) -> Pool[AbstractConnection]:
        """The `cenote.Pool` itself: for its statistics, holders, breaker, lanes and events.

        After `aclose()` it is another one.
        """
        if self._current is None:
            self._current = self._new_pool()
        return self._current

    def lane(self, name: str, *, max_size: int | None = None, priority: int = 0) -> PoolLane:
        """Use a lane of the pool: `with pool.lane("batch", max_size=3, priority=-1):`.

        Everything inside the block, also in tasks that are started there, goes through the lane.
        Tasks with a higher priority are served first; outside of lanes the priority is 0. The same
        name and options give the same lane.

        Args:
            name: The name of the lane, which messages and statistics show.
            max_size: The most connections that the lane has in use at once; None for no limit.
            priority: Higher is served first.

        Raises:
            ValueError: There is a lane of this name with other options.
        """
        if self._lanes is None:
            self._lanes = PoolLanes(self)
        return self._lanes.get(name, max_size, priority)

    def _new_pool(self) -> Pool[AbstractConnection]:
        connect, destroy = _weak(self)
        options: dict[str, Any] = {
            "max_size": self._max_connections,
            "lifo": True,  # as redis-py does it
            "name": f"redis {self._address()}",
            **self._cenote_options,
        }
        options["skip_frames"] = skipped(options, "redis")
        return Pool(connect, destructor=destroy, healthcheck=_ping, **options)

    def _address(self) -> str:
        kwargs: Mapping[str, Any] = self.connection_kwargs
        service = getattr(self, "service_name", None)  # of Sentinel
        if service is not None:
            return f"{service} (Sentinel)"
        host, port = kwargs.get("host", "localhost"), kwargs.get("port", 6379)
        return f"{kwargs.get('path') or f'{host}:{port}'}/{kwargs.get('db') or 0}"

    def _here(self) -> Pool[AbstractConnection]:
        """The pool of the running loop; what belonged to a loop that is closed is forgotten."""
        loop = asyncio.get_running_loop()
        if self._used_in is not loop:
            self._enter(loop)
        return self.pool

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew if the loop before is closed, or if this is the child of a fork."""
        self._leave_to_parent()
        bound = None if self._current is None else self._current._bound_to()
        if bound is not None and bound.is_closed():
            self.reset()
            bound = None
        if bound is None or bound is loop:  # of an open one, the cenote.Pool says so
            self._used_in = loop

    def _leave_to_parent(self) -> None:
        """In the child of a fork, forget what is in use, and never close or finalize it: the loop
        of the parent would get no more events of these connections."""
        if self._process != os.getpid():
            self._process = os.getpid()
            _PARENTS.append((self._lent, self._connecting))
            self._lent, self._connecting = {}, set()

    # -- the hooks of the pool ---------------------------------------------------------------------

    async def _connect(self) -> AbstractConnection:
        """Connect a spare object, or a new one."""
        began = time.monotonic()
        if self._spare:
            connection, is_new = self._spare.pop(), False
        else:
            make: Callable[[], AbstractConnection] = self.make_connection
            connection, is_new = make(), True
            await self._record(IDLE=1)
        self._connecting.add(connection)
        try:
            await self.ensure_connection(connection)
            if _RECORDS and is_new:
                await library.record_connection_create_time(
                    connection_pool=self, duration_seconds=time.monotonic() - began
                )
        except BaseException:
            # Cut off between two steps of the handshake it would be taken for connected.
            if connection.is_connected:
                await connection.disconnect()
            self._spare.append(connection)
            raise
        finally:
            self._connecting.discard(connection)
        return connection

    def _destroy(self, connection: AbstractConnection) -> Awaitable[None] | None:
        self._unauthenticated.discard(connection)
        if connection.is_connected:
            return self._disconnect(connection)
        self._spare.append(connection)
        return None

    async def _disconnect(self, connection: AbstractConnection) -> None:
        try:
            await connection.disconnect()
        finally:
            if not connection.is_connected:
                self._spare.append(connection)

    # -- what redis-py calls -----------------------------------------------------------------------

    async def get_connection(
        self, command_name: Any = None, *keys: Any, **options: Any
    ) -> AbstractConnection:
        """Return a connection that is connected, and has nothing unread.

        Args:
            command_name: What redis-py gave its pools before 5.3; nothing depends on it.
            keys: The same.
            options: The same.

        Raises:
            MaxConnectionsError: Every connection is in use.
            ConnectionError: The server cannot be reached, or the circuit breaker is open.
        """
        began = time.monotonic()
        wait = self.timeout
        if wait is not None and wait < 0.0:
            wait = 0.0
        while True:
            pool = self._here()
            try:
                from_ = pool if self._lanes is None else self._lanes.entered()
                connection = await from_.acquire(wait_timeout=wait, scoped=True)
                break
            except PoolError as error:
                if isinstance(error, PoolClosedError) and pool is not self._current:
                    continue  # aclose() was called while this task waited
                raise self._translate(error) from error
        # An error that the program is dealing with already has not interrupted this use.
        self._lent[connection] = pool, sys.exception()
        try:
            if _is_observed():
                await self._record(IDLE=-1, USED=1)
            await self.ensure_connection(connection)
            if _RECORDS and isinstance(self, RedisBlockingConnectionPool):
                await library.record_connection_wait_time(
                    pool_name=library.get_pool_name(self),
                    duration_seconds=time.monotonic() - began,
                )
        except BaseException as error:
            del self._lent[connection]
            pool.discard(connection, error if isinstance(error, _FAILURES) else None)
            await self._record(USED=-1, IDLE=1)
            raise
        return connection

    def _translate(self, error: PoolError) -> Exception:
        """Return the error of redis-py for one of cenote."""
        if isinstance(error, AcquireTimeoutError | PoolOverloadedError):
            kind, text = self._full
            return kind(f"{text} {error}")
        if isinstance(error, OSError):  # of a timeout, such as create_timeout
            return TimeoutError(f"Timeout connecting to server: {error}")
        return ConnectionError(str(error))

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Connect a connection that is not connected, that has something unread, or that has ended.

        Args:
            connection: One of this pool.

        Raises:
            ConnectionError: The server cannot be reached.
        """
        if connection.is_connected:
            if await self._is_fit(connection):
                return
            await connection.disconnect()
        await super().ensure_connection(connection)

    async def _is_fit(self, connection: AbstractConnection) -> bool:
        # can_read() does not see a reset, nor, while there may be notices of a maintenance, an end.
        reader = getattr(connection, "_reader", None)
        if reader is not None and (reader.at_eof() or reader.exception() is not None):
            return False
        try:
            if self._unauthenticated and connection in self._unauthenticated:
                self._unauthenticated.discard(connection)
                await connection.re_auth()
            return not await getattr(connection, _CAN_READ)() or bool(_maintained(self))
        except _FAILURES:
            return False

    def get_available_connection(self) -> AbstractConnection:
        """Return an idle connection, without a look at it. Raises `ConnectionError` without one."""
        pool = self._here()
        connection = pool.try_acquire()
        if connection is None:
            raise ConnectionError(
                f"No idle connection: get_connection() makes one if there is room ({pool!r})"
            )
        self._lent[connection] = pool, sys.exception()
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        """Take a connection back; one that was interrupted is closed.

        Args:
            connection: What `get_connection()` gave.

        Raises:
            KeyError: The connection is not in use.
        """
        try:
            pool, amid = self._lent.pop(connection)
        except KeyError:
            raise KeyError(f"{connection!r} is not in use, or not of {self!r}") from None
        error = sys.exception()
        if error is amid:
            error = None
        try:
            if _RELEASED is not None:
                if connection.should_reconnect():
                    await connection.disconnect()
                # Before anybody else can have it: what listens may send a command.
                dispatcher: Any = self._event_dispatcher
                await dispatcher.dispatch_async(_RELEASED(connection))
        except BaseException as late:
            error = late
            raise
        finally:
            if not connection.is_connected or (
                error is not None and may_have_interrupted_use(error)
            ):
                pool.discard(connection, error if isinstance(error, _FAILURES) else None)
            else:
                pool.release(connection)
        if _is_observed():
            await self._record(USED=-1, IDLE=1)

    def can_get_connection(self) -> bool:
        """Return whether there is an idle connection, or room for another one."""
        pool = self._current
        return pool is None or bool(pool.idle_count) or pool.occupied < pool.max_size

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the idle connections, and those in use, which their users may connect again.

        Args:
            inuse_connections: False leaves those in use open.
        """
        self._leave_to_parent()
        pool = self._current
        ends: list[Awaitable[None]] = []
        if pool is not None and pool._bound_to() is asyncio.get_running_loop():
            ends += map(pool.evict, pool.idle_resources())
        if inuse_connections:
            ends += [connection.disconnect() for connection in [*self._lent]]
        results = await asyncio.gather(*ends, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def aclose(self) -> None:
        """Close every connection and the `cenote.Pool`; the next command opens another one."""
        if hasattr(self, "_on_close"):
            await self._on_close()
        self._enter(asyncio.get_running_loop())
        pool, self._current = self._current, None
        try:
            await self.disconnect()
        finally:
            if pool is not None:
                await close(pool)

    def reset(self) -> None:
        """Forget every connection; the idle ones are closed if their loop is the running one."""
        self._leave_to_parent()
        pool, self._current = self._current, None
        self._used_in = None
        if pool is not None:
            loop = pool._bound_to()
            if loop is not None and loop is _running_loop():
                pool.terminate()
            else:
                pool._forsake()
        base: Any = super()
        base.reset()

    def __del__(self) -> None:
        # As of redis-py's own pool, the warning for connections that were left open is theirs.
        if hasattr(self, "_process"):
            self._leave_to_parent()
        pool = getattr(self, "_current", None)
        if pool is not None:
            pool._forsake()
        base: Any = super()
        if hasattr(base, "__del__"):
            base.__del__()

    def __repr__(self) -> str:
        base: Any = super()
        own: str = base.__repr__()
        return own if self._current is None else f"{own.removesuffix('>')} on {self._current!r}>"

    # -- credentials that change -------------------------------------------------------------------

    async def re_auth_callback(self, token: Any) -> None:
        """Have every connection send this token: before its next use, or when it comes back.

        Args:
            token: A token of redis-py's credential providers.
        """
        idle = [] if self._current is None else self._current.idle_resources()
        self._unauthenticated.update(idle)
        for connection in chain(idle, self._connecting, self._lent):
            connection.set_re_auth_token(token)

    # -- what redis-py's own methods read ----------------------------------------------------------

    @property
    def max_connections(self) -> int:
        """How many connections there may be; may be set."""
        return self._max_connections

    @max_connections.setter
    def max_connections(self, value: int) -> None:
        self._max_connections = value
        if self._current is not None:
            self._current.resize(max_size=value)

    def _get_available(self) -> list[AbstractConnection]:
        idle = [] if self._current is None else self._current.idle_resources()
        return [*self._spare, *idle]

    def _set_available(self, value: Iterable[AbstractConnection]) -> None:
        self._spare = [*value]

    def _get_in_use(self) -> set[AbstractConnection]:
        return {*self._lent, *self._connecting}

    def _set_in_use(self, value: Collection[AbstractConnection]) -> None:
        self._lent = {}

    _available_connections: Any = property(_get_available, _set_available)
    _in_use_connections: Any = property(_get_in_use, _set_in_use)

    async def _record(self, **changes: int) -> None:
        """Record changes of the connection counts, if redis-py's metrics are switched on."""
        if _is_observed():
            for state, change in changes.items():
                await library.record_connection_count(
                    pool_name=library.get_pool_name(self),
                    connection_state=library.ConnectionState[state],
                    counter=change,
                )


class BlockingConnectionPool(ConnectionPool, RedisBlockingConnectionPool):
    """The blocking connection pool of `redis.asyncio` on `cenote.Pool`: first come, first served.

    Takes the arguments of redis-py's own `BlockingConnectionPool`, with `timeout` in seconds, and
    `cenote_options`. Raises `ConnectionError` if no connection was free in time.
    """

    _full = (ConnectionError, "No connection available.")


class SentinelConnectionPool(ConnectionPool, RedisSentinelConnectionPool):
    """The pool of `redis.asyncio.Sentinel` on `cenote.Pool`.

    `sentinel.master_for(name, connection_pool_class=SentinelConnectionPool)`
    """


def _weak(
    owner: ConnectionPool,
) -> tuple[
    Callable[[], Awaitable[AbstractConnection]],
    Callable[[AbstractConnection], Awaitable[None] | None],
]:
    """Return factory and destructor, which do not keep the owner alive."""
    reference = weakref.ref(owner)

    async def connect() -> AbstractConnection:
        found = reference()
        if found is None:
            raise PoolClosedError("the connection pool of redis-py is gone")
        return await found._connect()

    def destroy(connection: AbstractConnection) -> Awaitable[None] | None:
        found = reference()
        return connection.disconnect() if found is None else found._destroy(connection)

    return connect, destroy


async def _ping(connection: AbstractConnection) -> None:
    """Raise unless the server answers."""
    await connection.send_command("PING", check_health=False)
    await connection.read_response()


def _maintained(pool: RedisConnectionPool) -> object:
    """Return whether the server may announce a maintenance on any connection."""
    asked = getattr(pool, "maint_notifications_enabled", None)  # since 8.0
    return asked is not None and asked()


def _is_observed() -> bool:
    return (
        _observability is not None
        and _observability.get_observability_instance().get_provider_manager() is not None
    )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
