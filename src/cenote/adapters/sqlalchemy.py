"""`CenotePool`: `cenote.Pool` as the pool of a SQLAlchemy engine for asyncio.

    engine = create_async_engine(url, poolclass=CenotePool, pool_size=10, max_overflow=0)

SQLAlchemy runs its own code in a greenlet beside the task. Connections are made and closed in tasks
of the pool, each with a greenlet of its own, so that no cancelled request cuts off a connect.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from typing import Any, Protocol, cast

try:
    import sqlalchemy
    from sqlalchemy import exc
    from sqlalchemy import util as sqlalchemy_util
    from sqlalchemy.pool import AsyncAdaptedQueuePool, ConnectionPoolEntry, PoolProxiedConnection
    from sqlalchemy.pool import Pool as SQLAlchemyPool
    from sqlalchemy.util import concurrency
except ImportError as _error:
    raise ImportError(
        "cenote.adapters.sqlalchemy needs SQLAlchemy with its asyncio extra: "
        "pip install 'cenote[sqlalchemy]'"
    ) from _error

from ..drivers.library import Library
from ..errors import AcquireTimeoutError, PoolClosedError, PoolOverloadedError
from ..hooks import RETIRE
from ..options import MOST, CommonOptions, number, whole
from ..pool import Pool
from .cenote_options import check_cenote_options, skipped
from .closing import close
from .lanes import PoolLane, PoolLanes

UNLIMITED = 2**31 - 1  # connections: what SQLAlchemy calls no limit

# What SQLAlchemy has an option of its own for, under its name.
SAID_BY_SQLALCHEMY = {
    "max_size": "pool_size and max_overflow",
    "acquire_timeout": "pool_timeout",
    "lifo": "pool_use_lifo",
}

# What is not public, and used here.
LIBRARY = Library("SQLAlchemy", sqlalchemy.__version__, ("2.0.57", "2.1.8"))
_base = LIBRARY.module("sqlalchemy.pool.base", "_ConnectionRecord")
LIBRARY.require(_base._ConnectionRecord, ["_checkin_failed", "invalidate", "close"])
LIBRARY.require(
    SQLAlchemyPool, ["_create_connection", "_do_get", "_do_return_conn", "_return_conn"]
)
LIBRARY.require_assigned(
    SQLAlchemyPool, ["_pre_ping", "_recycle", "_reset_on_return", "_orig_logging_name"]
)
LIBRARY.require(sqlalchemy_util, ["await_only", "greenlet_spawn"])
LIBRARY.require(concurrency, ["in_greenlet"])

await_only: Any = sqlalchemy_util.await_only
greenlet_spawn: Any = sqlalchemy_util.greenlet_spawn
in_greenlet: Any = concurrency.in_greenlet


class Record(Protocol):
    """What is known of a place in the pool, with its connection."""

    dbapi_connection: Any
    home: Pool[Any]
    loop: asyncio.AbstractEventLoop
    lost_by: BaseException | None
    owned: bool
    out: bool
    fit: bool

    def close(self) -> None: ...


class _Record(_base._ConnectionRecord):  # type: ignore[misc, name-defined]
    """A place in the pool, which remembers why its connection was given up."""

    home: Pool[Any]  # from which it was acquired
    loop: asyncio.AbstractEventLoop  # of that pool
    lost_by: BaseException | None = None
    owned: bool = False  # somebody will give it back, whatever happens; not yet while it is taken
    out: bool = False  # acquired, and not given back
    fit: bool = True  # for another use; not if the end of the last one failed

    def __init__(self, pool: CenotePool) -> None:
        super().__init__(pool)
        self.adapter = pool

    def checkin(self, *arguments: Any, **options: Any) -> None:
        try:
            super().checkin(*arguments, **options)
        except BaseException:
            # SQLAlchemy forgets a place if a listener raises, or if the task is cancelled while
            # the isolation level is reset.
            if self.out:
                self.fit = False
                self.adapter._return_conn(self)
            raise

    def invalidate(self, e: BaseException | None = None, soft: bool = False) -> None:
        if not soft:
            self.lost_by = e
        try:
            super().invalidate(e, soft)
        except BaseException:
            # SQLAlchemy forgets a place whose dead connection it was replacing.
            if not self.owned:
                self.checkin()
            raise

    def _checkin_failed(self, err: BaseException, _fairy_was_created: bool = True) -> None:
        self.lost_by = err
        self.owned = True
        super()._checkin_failed(err, _fairy_was_created)


class CenotePool(AsyncAdaptedQueuePool):
    """A pool of SQLAlchemy on `cenote.Pool`, for `create_async_engine(url, poolclass=CenotePool)`.

    It is an `AsyncAdaptedQueuePool` with its arguments, and one more. It is for the engines of
    asyncio alone.

    Args:
        creator: Makes a connection; given by the engine.
        pool_size: How many connections are kept; 0 means without limit.
        max_overflow: How many more may exist while they are in use; -1 means without limit.
        timeout: Seconds to wait for a connection while all are in use; connecting is not counted.
            None waits without a limit.
        use_lifo: Whether the connection that came back last is used next.
        cenote_options: Options of `cenote.Pool`, such as `name`, `strategy`, `hold_warning`,
            `queue_target` or `min_size`.
        **kw: What `sqlalchemy.pool.Pool` takes, such as `recycle` and `pre_ping`.

    Raises `sqlalchemy.exc.TimeoutError` if no connection was free in time; its `__cause__` is the
    `AcquireTimeoutError`, whose text names who holds the connections.
    """

    _sqla_logger_namespace = (
        "sqlalchemy.pool.CenotePool"  # of which `sqlalchemy.pool` is the parent
    )

    def __init__(
        self,
        creator: Any,
        pool_size: int = 5,
        max_overflow: int = 10,
        timeout: float | None = 30.0,
        use_lifo: bool = False,
        cenote_options: CommonOptions | None = None,
        **kw: Any,
    ) -> None:
        SQLAlchemyPool.__init__(self, creator, **kw)  # without the queue of the one between
        self._size = whole("pool_size", pool_size, least=0)
        overflow = whole("max_overflow", max_overflow, least=-MOST)
        self._max_overflow = overflow if self._size else -1
        self._timeout = cast(float, timeout)  # which SQLAlchemy does not declare to be None
        self._wait = None if timeout is None else max(0.0, number("pool_timeout", timeout))
        self._use_lifo = use_lifo
        self._cenote_options = check_cenote_options(
            cenote_options,
            SAID_BY_SQLALCHEMY,
            "SQLAlchemy's {}",
            limit=("pool_size", self._size or UNLIMITED),
        )
        self._current: Pool[Record] | None = None
        self._lanes: PoolLanes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it was last used
        self._replaced = False  # the engine has another pool by now: nothing is kept here
        # In which connections are made: not in that of the request that happens to be the first.
        self._context: Context = copy_context()

    @property
    def pool(self) -> Pool[Record]:
        """The `cenote.Pool` itself: for its statistics, holders, breaker, lanes and events."""
        if self._current is None:
            self._current = self._context.copy().run(self._new_pool)
        return self._current

    def lane(self, name: str, *, max_size: int | None = None, priority: int = 0) -> PoolLane:
        """Use a lane of the pool: `with engine.pool.lane("batch", max_size=3, priority=-1):`.

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

    def _new_pool(self) -> Pool[Record]:
        dialect: Any = self._dialect
        of_dialect = (getattr(dialect, "name", None), getattr(dialect, "driver", None))
        options: dict[str, Any] = {
            "max_size": UNLIMITED if self._max_overflow < 0 else self._size + self._max_overflow,
            "lifo": bool(self._use_lifo),
            "name": self._orig_logging_name or "+".join(filter(None, of_dialect)) or "sqlalchemy",
            **self._cenote_options,
        }
        options["skip_frames"] = skipped(options, "sqlalchemy", "sqlmodel")
        return Pool(
            self._connect, destructor=_close, before_release=self._keep_or_retire, **options
        )

    # -- the hooks of the pool -------------------------------------------------------------------

    async def _connect(self) -> Record:
        return cast(Record, await greenlet_spawn(self._create_connection))

    def _create_connection(self) -> ConnectionPoolEntry:
        record: ConnectionPoolEntry = _Record(self)
        return record

    def _keep_or_retire(self, record: Record) -> object:
        """Retire what is above `pool_size` when it comes back, unless somebody waits for it."""
        pool = record.home
        if pool.waiting_count:
            return True
        too_many = self._size and pool.idle_count >= self._size
        return RETIRE if too_many or self._replaced else True

    # -- what SQLAlchemy calls ---------------------------------------------------------------------

    def connect(self) -> PoolProxiedConnection:
        """Return a connection, which gives its place back when it is closed."""
        taken: Any = super().connect()
        taken._connection_record.owned = True
        return cast(PoolProxiedConnection, taken)

    def _do_get(self) -> ConnectionPoolEntry:
        record: ConnectionPoolEntry = await_only(self._acquire())
        return record

    async def _acquire(self) -> Record:
        loop = asyncio.get_running_loop()  # a system call before Python 3.12
        self._bind(loop)
        while True:
            pool = self.pool
            try:
                place = pool if self._lanes is None else self._lanes.entered()
                record = await place.acquire(wait_timeout=self._wait, scoped=True)
            except PoolClosedError:
                if pool is self._current:
                    raise
                continue  # dispose() has closed it while this task waited
            except (AcquireTimeoutError, PoolOverloadedError) as error:
                raise exc.TimeoutError(
                    f"CenotePool limit of size {self.size()} overflow {self._max_overflow} "
                    f"reached: {error}",
                    code="3o7r",
                ) from error
            record.home, record.loop = pool, loop
            record.owned, record.out = False, True
            return record

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew in another loop if the one before is closed, and its connections with it."""
        if self._loop is loop:
            return
        pool = self._current
        bound = None if pool is None else pool._bound_to()
        if pool is not None and bound is not None and bound.is_closed():
            pool._forsake()  # the drivers warn of what was left open
            self._current = bound = None
        if bound is None or bound is loop:  # of an open one, the cenote.Pool says so
            self._loop = loop

    def _return_conn(self, record: ConnectionPoolEntry) -> None:
        place = cast(Record, record)
        if _running_loop() is place.loop:
            self._give_back(place)
        else:
            self._do_return_conn(record)

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        """Return a record whose connection was detached, by the program or by the collector, which
        may run in any thread and in the middle of anything."""
        place = cast(Record, record)
        place.out = False
        if not place.loop.is_closed():
            place.loop.call_soon_threadsafe(self._give_back, place)

    def _give_back(self, record: Record) -> None:
        """Return a record to the pool it is from; without a connection its place is free again."""
        pool = record.home
        record.out = False
        if record.dbapi_connection is None or not record.fit:
            by = record.lost_by
            pool.discard(record, by if isinstance(by, Exception) else None)
        else:
            pool.release(record)
        if self._replaced and not pool.count and not pool.waiting_count:
            pool.terminate()  # the last one: it is not needed again

    def recreate(self) -> CenotePool:
        """Return a new pool with the same arguments; this one keeps no connection any more."""
        self.logger.info("Pool recreating")
        # In the context of the first one: not in that of the request that disposes of the engine.
        new = self._context.copy().run(
            self.__class__,
            self._creator,
            pool_size=self._size,
            max_overflow=self._max_overflow,
            timeout=self._timeout,
            use_lifo=self._use_lifo,
            cenote_options=cast(CommonOptions, self._cenote_options),
            pre_ping=self._pre_ping,
            recycle=self._recycle,
            echo=self.echo,
            logging_name=self._orig_logging_name,
            reset_on_return=cast(Any, self._reset_on_return),
            _dispatch=cast(Any, self.dispatch),
            dialect=self._dialect,
        )
        self._replaced = True
        if self._lanes is not None:
            new._adopt(self._lanes)
            self._lanes = None
        return new

    def _adopt(self, lanes: PoolLanes) -> None:
        """Take over the lanes of the pool before."""
        self._lanes = lanes
        lanes.adapter = self

    def dispose(self) -> None:
        """Close the idle connections; those in use are closed when they come back."""
        pool, self._current = self._current, None
        loop = None if pool is None else pool._bound_to()
        if pool is None or loop is None:  # nothing was ever made, or only by the parent of a fork
            pass
        elif loop is not _running_loop():
            if not loop.is_closed():
                loop.call_soon_threadsafe(pool.terminate)
        elif in_greenlet():
            await_only(close(pool))
        else:
            pool.terminate()
        self.logger.info("Pool disposed. %s", self.status())

    def status(self) -> str:
        """Return the counts, in the words of SQLAlchemy's own pools."""
        return (
            f"Pool size: {self.size()}  Connections in pool: {self.checkedin()} "
            f"Current Overflow: {self.overflow()} Current Checked out "
            f"connections: {self.checkedout()}"
        )

    def size(self) -> int:
        """Return how many connections are kept at most; 0 means without limit."""
        return self._size

    def timeout(self) -> float | None:  # type: ignore[override]
        """Return how many seconds a task waits for a connection."""
        return self._timeout

    def checkedin(self) -> int:
        """Return how many connections are idle."""
        return 0 if self._current is None else self._current.idle_count

    def checkedout(self) -> int:
        """Return how many connections are in use."""
        return 0 if self._current is None else self._current.active_count

    def overflow(self) -> int:
        """Return how many connections exist above `pool_size`; negative if there are fewer."""
        return self._overflow if self._size else 0

    # What SQLAlchemy's own tests of queues read.
    @property
    def _overflow(self) -> int:  # type: ignore[override]
        return self.checkedin() + self.checkedout() - self._size


async def _close(record: Record) -> None:
    """Close a connection; SQLAlchemy logs what goes wrong."""
    await greenlet_spawn(record.close)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
