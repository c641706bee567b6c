"""`asyncpg.Pool` on `cenote.Pool`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from logging import WARNING
from typing import Any, Literal, Self, TypeAlias

from ...errors import NotAcquiredError, PoolClosedError
from ...log import log
from ...options import CommonOptions, nearest
from ...pool import Lane
from ...pool import Pool as CenotePool
from ...timer import Timer
from ..cenote_options import check_cenote_options, skipped
from ..lanes import PoolLane, PoolLanes
from . import private
from .holder import ConnectionHolder
from .private import BasePool, BasePoolAcquireContext, Proxy, asyncpg
from .session import is_clean, reset, watched

Reset: TypeAlias = Literal["auto", "always", "never"] | Callable[[Any], Awaitable[None]] | None

Place: TypeAlias = CenotePool[ConnectionHolder] | Lane[ConnectionHolder]

RESETS = ("auto", "always", "never")
HOUR = 3600.0  # create_timeout: asyncpg's own `timeout` bounds connecting, and nothing bounds init

# What asyncpg has an option of its own for, under its name.
SAID_BY_ASYNCPG = {
    "min_size": "min_size",
    "max_size": "max_size",
    "max_idle": "max_inactive_connection_lifetime",
}


class AcquireBlock(BasePoolAcquireContext):
    """What `Pool.acquire()` returns: it is awaited, or used as `async with`."""

    __slots__ = ("_acquire", "_place")

    connection: Any  # inside the block: what it has acquired

    def __init__(self, pool: Pool, timeout: float | None, place: Place, acquire: Any) -> None:
        super().__init__(pool, timeout)
        self._place = place
        self._acquire = acquire  # of that place

    async def __aenter__(self) -> Any:
        if self.connection is not None or self.done:
            raise asyncpg.InterfaceError("a connection is already acquired")
        # The block of this context is the one that releases it.
        self.connection = await self.pool.obtain(
            self._place, self._acquire, self.timeout, scoped=True
        )
        return self.connection

    async def __aexit__(self, *error: Any) -> None:
        try:
            await super().__aexit__(*error)
        except Exception as late:
            # What could not be reset is closed. A cancellation must arrive where it is waited for.
            if error[1] is None or isinstance(error[1], Exception):
                raise
            log(WARNING, "%r: the reset of a connection failed", self.pool.pool, error=late)

    def __await__(self) -> Any:
        acquire = self._acquire
        if self.done:  # awaited again, which gives another connection
            left = () if self.timeout is None else (max(0.0, self.timeout),)
            acquire = self._place.acquire(*left)
        self.done = True
        return self.pool.obtain(self._place, acquire, self.timeout, scoped=False).__await__()


class PlaceCount:
    """What `asyncpg.Pool` has a queue for: programs read its `qsize()`."""

    __slots__ = ("_pool",)

    def __init__(self, pool: CenotePool[Any]) -> None:
        self._pool = pool

    def qsize(self) -> int:
        """Return how many connections could be acquired without a wait."""
        return max(0, self._pool.max_size - self._pool.active_count)


class Pool(BasePool):
    """`asyncpg.Pool` whose queue, sizes and lifetimes are those of a `cenote.Pool`.

    Made by `create_pool()`. What is not defined here is asyncpg's own.
    """

    __slots__ = ("__weakref__", "_cenote", "_free", "_how", "_lanes", "_patience")

    def __init__(
        self,
        *connect_args: Any,
        reset: Reset = "auto",
        cenote_options: CommonOptions | None = None,
        **options: Any,
    ) -> None:
        how = _check_reset(reset)
        super().__init__(*connect_args, reset=reset if how == "call" else None, **options)
        self._how = how
        if how == "auto":
            self._connect = partial(_connect_watched, self._connect)
        self._lanes: PoolLanes | None = None
        self._free: list[ConnectionHolder] = []  # without a connection
        given = check_cenote_options(
            cenote_options, SAID_BY_ASYNCPG, "{}= itself", limit=("max_size", self._maxsize)
        )
        chosen: dict[str, Any] = {
            "lifo": True,
            "name": "asyncpg",
            "create_timeout": HOUR,
            "hook_timeout": 5.0,
            **given,
            "skip_frames": skipped(given, "asyncpg"),
        }
        # Seconds for what release() sends, unless acquire() or release() was given a timeout.
        self._patience: float = chosen["hook_timeout"]
        self._cenote: CenotePool[ConnectionHolder] = CenotePool(
            self._make,
            destructor=self._end,
            healthcheck=_ping,
            before_acquire=ConnectionHolder.is_alive,
            min_size=self._minsize,
            max_size=self._maxsize,
            max_idle=self._max_inactive_connection_lifetime or None,
            **chosen,
        )

    @property
    def pool(self) -> CenotePool[ConnectionHolder]:
        """The `cenote.Pool` itself: for its statistics, holders, breaker, lanes and events."""
        return self._cenote

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

    # -- acquiring and releasing -------------------------------------------------------------------

    def acquire(self, *, timeout: float | None = None) -> AcquireBlock:
        """Acquire a connection, as `asyncpg.Pool.acquire()` does.

        Args:
            timeout: Seconds for all of it; None for `acquire_timeout` of `cenote_options`.

        Raises:
            AcquireTimeoutError: There was no connection in time. It is a `TimeoutError` that names
                the holders.
        """
        place = self._cenote if self._lanes is None else self._lanes.entered()
        if timeout is None:
            return AcquireBlock(self, None, place, place.acquire())
        return AcquireBlock(self, timeout, place, place.acquire(max(0.0, timeout)))

    async def obtain(
        self, place: Place, acquire: Any, timeout: float | None, *, scoped: bool
    ) -> Any:
        """Return an acquired connection. `scoped`: the block of `acquire()` releases it."""
        if self._closing:
            raise asyncpg.InterfaceError("pool is closing")
        self._check_init()
        until = None if timeout is None else self._loop.time() + timeout
        while True:
            try:
                holder: ConnectionHolder = await (acquire.__aenter__() if scoped else acquire)
            except PoolClosedError as error:
                word = "closed" if self._closed else "closing"
                raise asyncpg.InterfaceError(f"pool is {word}") from error
            if holder.is_connected():
                break
            # It was closed on its way from the pool to this task.
            self._cenote.discard(holder)
            left = None if until is None else max(0.0, until - self._loop.time())
            acquire = place.acquire() if left is None else place.acquire(left)
        proxy = holder.lend(timeout)
        if self._setup is not None:
            await self._set_up(holder, proxy, until)
        holder.use()
        return proxy

    async def _set_up(self, holder: ConnectionHolder, proxy: Any, until: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._setup(proxy)
        except (Exception, asyncio.CancelledError):
            con = holder.connection
            if con is not None:
                await con.close()  # which gives back its place
            raise
        except BaseException:
            holder.terminate()
            raise
        if holder.session is not None:
            holder.session.codecs.clear()  # the next setup sets them again
        if not holder.is_connected():
            raise asyncpg.InterfaceError("connection was closed by the setup function")

    async def release(self, connection: Any, *, timeout: float | None = None) -> None:
        """Release a connection to the pool, as `asyncpg.Pool.release()` does.

        Args:
            connection: What `acquire()` gave.
            timeout: Seconds for its reset; None for that of `acquire()`.
        """
        if type(connection) is not Proxy or connection._holder._pool is not self:
            raise asyncpg.InterfaceError(
                f"Pool.release() received invalid connection: "
                f"{connection!r} is not a member of this pool"
            )
        con = connection._con
        if con is None:
            return  # released already
        self._check_init()
        private.on_release(con)
        holder: ConnectionHolder = connection._holder
        if self._is_done(con, holder):
            holder.detach()
            self._cenote.release(holder)
            return
        budget = holder.timeout if timeout is None else timeout
        # No cancellation keeps the connection from coming back.
        await asyncio.shield(self._clean(holder, con, budget))

    def _is_done(self, con: Any, holder: ConnectionHolder) -> bool:
        """Whether the connection can go back as it is."""
        return (
            self._how == "auto"
            and not con.is_closed()
            and private.query_count(con) < self._max_queries
            and is_clean(con, holder.session)
        )

    async def _clean(self, holder: ConnectionHolder, con: Any, timeout: float | None) -> None:
        """Undo what the program has done to the session, and give the connection back; or close
        it, which gives back its place."""
        session = holder.session
        if con.is_closed():
            con.terminate()
            return
        try:
            if private.is_cancelling(con):
                timeout = await self._await_cancellation(con, timeout)
            if holder.connection is not con:
                return
            if con.is_closed():
                con.terminate()
                return
            if private.query_count(con) >= self._max_queries or (session and session.lasting):
                await con.close(timeout=timeout)
                return
            if self._how == "always":
                await con.reset(timeout=timeout)
            else:
                if timeout is None and self._how != "call":
                    timeout = self._patience
                async with asyncio.timeout(timeout):
                    await self._reset_session(con, holder)
        except (Exception, asyncio.CancelledError) as error:
            if holder.connection is con:
                holder.terminate(error if isinstance(error, Exception) else None)
            raise
        holder.detach()
        self._cenote.release(holder)

    async def _await_cancellation(self, con: Any, timeout: float | None) -> float | None:
        """Wait until the server has confirmed that a statement was cancelled; return what is left
        of the timeout. Without one, the connection is closed after `hook_timeout`."""
        if timeout is not None:
            return await private.wait_for_cancellation(con, timeout)
        try:
            await private.wait_for_cancellation(con, self._patience)
        except TimeoutError:  # asyncpg has closed it
            log(
                WARNING,
                "%r: the server did not confirm within hook_timeout (%g s) that a statement was "
                "cancelled; its connection is closed",
                self._cenote,
                self._patience,
            )
        return None

    async def _reset_session(self, con: Any, holder: ConnectionHolder) -> None:
        if self._how == "call":
            await private.leave_transaction(con)
            await self._reset(con)
        elif self._how == "never":
            await private.leave_transaction(con)
        elif await reset(con, holder.session) and self._init is not None:
            await self._init(con)
            if holder.session is not None:
                holder.session.forget()

    def drop(self, holder: ConnectionHolder, error: BaseException | None, *, out: bool) -> None:
        """Give back the place of a connection that is closed; `out`: somebody had acquired it."""
        try:
            if out:
                self._cenote.discard(holder, error)
            else:
                self._cenote.evict(holder)
        except NotAcquiredError:
            pass  # on its way out, or to a task: obtain() looks at it

    # -- the hooks of the pool ---------------------------------------------------------------------

    async def _make(self) -> ConnectionHolder:
        holder = self._free.pop() if self._free else self._add_holder()
        try:
            con = await self._get_new_connection()
            if con.is_closed():
                raise asyncpg.ConnectionDoesNotExistError(
                    "connection was closed during pool initialization"
                )
            holder.attach(con)
        except BaseException:
            self._free.append(holder)
            raise
        if holder.session is not None:
            holder.session.forget()  # what init has set stays
        return holder

    def _end(self, holder: ConnectionHolder) -> Awaitable[None] | None:
        con = holder.take()
        if con is not None and not con.is_closed() and not self._closed:
            return self._close_connection(holder, con)
        if con is not None:
            con.terminate()
        self._free.append(holder)
        return None

    async def _close_connection(self, holder: ConnectionHolder, con: Any) -> None:
        try:
            await con.close()
        finally:
            self._free.append(holder)

    def _add_holder(self) -> ConnectionHolder:
        holder = ConnectionHolder(self)
        self._holders.append(holder)
        return holder

    # -- opening and closing -----------------------------------------------------------------------

    async def _initialize(self) -> None:
        self._queue = PlaceCount(self._cenote)
        while len(self._holders) < self._maxsize:
            self._free.append(self._add_holder())
        self._free.reverse()  # the first place is taken first
        try:
            await self._cenote._open_with(self._initsize)
        except BaseException:
            self._cenote.terminate()
            raise

    def _schedule_min_size_maintenance(self) -> None:
        """The `cenote.Pool` does it."""

    async def close(self) -> None:
        """Wait until every connection is released, and close them, as `asyncpg.Pool.close()`."""
        if self._closed:
            return
        self._check_init()
        self._closing = True
        warning = Timer()
        warning.start(self._loop, 60, self._warn_on_long_close)
        try:
            await self._cenote.close(drain=float("inf"))
        except (Exception, asyncio.CancelledError):
            self.terminate()
            raise
        finally:
            warning.stop()
            self._closed = True
            self._closing = False

    def terminate(self) -> None:
        """Close every connection at once, those in use included."""
        if self._closed:
            return
        self._check_init()
        self._closed = True
        self._cenote.terminate()
        for holder in self._holders:
            holder.terminate()

    async def expire_connections(self) -> None:
        """Replace every connection: the idle ones now, those in use when they come back."""
        self._generation += 1
        self._cenote.retire()

    async def __aenter__(self) -> Self:
        await self._async__init__()
        return self

    # -- sizes -------------------------------------------------------------------------------------

    def get_min_size(self) -> int:
        """Return how many connections are kept; `pool.resize()` changes it."""
        return self._cenote.min_size

    def get_max_size(self) -> int:
        """Return how many connections there are at most; `pool.resize()` changes it."""
        return self._cenote.max_size


def create_pool(
    dsn: str | None = None,
    *,
    init_size: int | None = None,
    min_size: int = 10,
    max_size: int = 10,
    max_queries: int = 50000,
    max_inactive_connection_lifetime: float = 300.0,
    connect: Callable[..., Awaitable[Any]] | None = None,
    setup: Callable[[Any], Awaitable[None]] | None = None,
    init: Callable[[Any], Awaitable[None]] | None = None,
    reset: Reset = "auto",
    loop: asyncio.AbstractEventLoop | None = None,
    connection_class: type[Any] = asyncpg.Connection,
    record_class: type[Any] = asyncpg.Record,
    cenote_options: CommonOptions | None = None,
    **connect_kwargs: Any,
) -> Pool:
    """Create a pool that has the interface of `asyncpg.Pool`; await it, or use it as `async with`.

    Takes the arguments of `asyncpg.create_pool()`, and these:

    Args:
        reset: What is done to a connection that comes back: "auto" resets the session if a
            statement has touched it; "always" as asyncpg does; "never"; or a coroutine function,
            as asyncpg's own `reset=`. None is "auto".
        cenote_options: Options of `cenote.Pool`, such as `name`, `strategy`, `hold_warning`,
            `queue_target`, `max_lifetime`.
    """
    return Pool(
        dsn,
        init_size=init_size,
        min_size=min_size,
        max_size=max_size,
        max_queries=max_queries,
        max_inactive_connection_lifetime=max_inactive_connection_lifetime,
        connect=connect,
        setup=setup,
        init=init,
        reset=reset,
        loop=loop,
        connection_class=connection_class,
        record_class=record_class,
        cenote_options=cenote_options,
        **connect_kwargs,
    )


def _connect_watched(connect: Any, *args: Any, connection_class: Any, **options: Any) -> Any:
    return connect(*args, connection_class=watched(connection_class), **options)


async def _ping(holder: ConnectionHolder) -> None:
    await holder.connection.fetchval("SELECT 1")


def _check_reset(value: Any) -> str:
    if value is None:
        return "auto"
    if callable(value):
        return "call"
    if not isinstance(value, str):
        raise TypeError(
            f"reset must be one of {', '.join(map(repr, RESETS))}, or a coroutine function, "
            f"not {type(value).__name__}"
        )
    if value not in RESETS:
        raise ValueError(
            f"reset must be one of {', '.join(map(repr, RESETS))}, or a coroutine function, "
            f"not {nearest(value, RESETS)}"
        )
    return value
