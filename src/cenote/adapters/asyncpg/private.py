"""The private names of asyncpg's pool and connections that the adapter needs, checked at import."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Self

from ...drivers.library import Library
from ...drivers.wire import Wire

try:
    import asyncpg
except ModuleNotFoundError as _error:
    if _error.name != "asyncpg":
        raise
    raise ImportError(
        "cenote.adapters.asyncpg needs asyncpg: pip install 'cenote[postgresql]'", name="asyncpg"
    ) from None

__all__ = ["BasePool", "BasePoolAcquireContext", "Proxy", "asyncpg"]

TESTED = ("0.32.0", "0.32.0")  # oldest and newest

library: Library = Library("asyncpg", asyncpg.__version__, TESTED)
pools: Any = library.module(
    "asyncpg.pool", "Pool", "PoolAcquireContext", "PoolConnectionProxy", "create_pool"
)
protocols: Any = library.module(
    "asyncpg.protocol.protocol", "BaseProtocol", "PreparedStatementState"
)
library.require(
    pools.Pool,
    [
        "_async__init__", "_check_init", "_closed", "_closing", "_connect", "_drop_statement_cache",
        "_drop_type_cache", "_generation", "_get_new_connection", "_holders", "_init",
        "_initialize", "_initialized", "_initsize", "_max_inactive_connection_lifetime",
        "_max_queries", "_maxsize", "_minsize", "_queue", "_reset",
        "_schedule_min_size_maintenance", "_setup", "_warn_on_long_close",
    ],
)  # fmt: skip
library.require(pools.PoolAcquireContext, ["connection", "done", "pool", "timeout"])
library.require(pools.PoolConnectionProxy, ["_con", "_detach", "_holder"])
library.require(
    asyncpg.Connection,
    [
        "_aborted", "_copy_in", "_copy_out", "_do_execute", "_drop_local_statement_cache",
        "_execute", "_executemany", "_listeners", "_log_listeners", "_on_release", "_pool_holder",
        "_prepare", "_protocol", "_reset", "_server_caps", "_stmt_cache", "_top_xact",
        "_transport", "get_reset_query",
    ],
)  # fmt: skip
library.require(
    protocols.BaseProtocol,
    [
        "_is_cancelling", "_wait_for_cancellation", "close_statement", "is_connected",
        "is_in_transaction", "queries_count",
    ],
)  # fmt: skip
library.require(protocols.PreparedStatementState, ["attach"])

Proxy: Any = pools.PoolConnectionProxy

if TYPE_CHECKING:
    from ...drivers.library import Untyped

    class BasePool(Untyped):
        """What type checkers see of `asyncpg.Pool`."""

        _closed: bool
        _closing: bool
        _connect: Any
        _generation: int
        _holders: list[Any]
        _loop: Any

        def __await__(self) -> Generator[Any, None, Self]: ...
        async def __aexit__(self, *error: Any) -> None: ...

    class BasePoolAcquireContext(Untyped):
        """What type checkers see of what `asyncpg.Pool.acquire()` returns."""

        connection: Any
        done: bool
        pool: Any
        timeout: float | None

        async def __aexit__(self, *error: Any) -> None: ...

else:
    BasePool = pools.Pool
    BasePoolAcquireContext = pools.PoolAcquireContext


def set_holder(raw: Any, holder: Any) -> None:
    """Let asyncpg report the end of the connection: `holder` is a weak reference to what has
    `_con` and `_release_on_close()`."""
    raw._pool_holder = holder


def wire(raw: Any) -> Wire:
    """Return the socket of an open connection."""
    return Wire(raw._transport.get_extra_info("socket").fileno())


def on_release(raw: Any) -> None:
    """End what the last user of the connection has left open, and warn of its listeners."""
    raw._on_release()


def query_count(raw: Any) -> int:
    """Return how many queries have run on the connection."""
    return int(raw._protocol.queries_count)


def is_cancelling(raw: Any) -> bool:
    """Return whether a cancelled statement has not ended on the server."""
    return bool(raw._protocol._is_cancelling())


async def wait_for_cancellation(raw: Any, timeout: float | None) -> float | None:
    """Wait until the server has confirmed; return what is left of the timeout."""
    left: float | None = await raw._protocol._wait_for_cancellation(timeout)
    return left


def in_transaction(raw: Any) -> bool:
    """Return whether a transaction is open, or asyncpg takes it for open."""
    return bool(raw._protocol.is_in_transaction()) or raw._top_xact is not None


def has_listeners(raw: Any) -> bool:
    """Return whether somebody listens for notifications or log messages."""
    return bool(raw._listeners or raw._log_listeners)


def make_probe(raw: Any) -> Any:
    """Return a statement for `is_busy()`: one that asyncpg takes for used."""
    probe = protocols.PreparedStatementState("", "", raw._protocol, asyncpg.Record, False)
    probe.attach()
    return probe


def is_busy(raw: Any, probe: Any) -> bool:
    """Return whether another task is in the middle of an operation; nothing is sent.

    asyncpg shows this only by refusing another operation. It refuses to close a statement that is
    used as well, but looks for an operation first.
    """
    attempt = raw._protocol.close_statement(probe, None)
    try:
        attempt.send(None)
    except asyncpg.InternalClientError:
        return False
    except asyncpg.InterfaceError:
        return True
    attempt.close()
    return True


async def leave_transaction(raw: Any) -> None:
    """Drop listeners and roll back an open transaction, as asyncpg does for a `reset=` function."""
    await raw._reset()


def reset_text(raw: Any, thorough: str) -> str:
    """Return what resets the session: `thorough`, unless the class of the connection has a reset
    of its own, or the server has not all that PostgreSQL has."""
    own = type(raw).get_reset_query is not asyncpg.Connection.get_reset_query
    if own or not all(raw._server_caps[:5]):
        return str(raw.get_reset_query())
    return thorough


def kept_statements(raw: Any) -> int:
    """Return how many prepared statements are in the cache of asyncpg."""
    return len(raw._stmt_cache)


async def end_preparation(raw: Any) -> None:
    """After a preparation that nothing has followed: asyncpg does not end it, and until then the
    server keeps its locks, and is in a transaction that nobody sees."""
    await raw._protocol.query("SELECT 1", None)


def drop_statements(raw: Any) -> None:
    """Empty the cache of prepared statements."""
    raw._drop_local_statement_cache()


def watched(base: Any, note: Callable[[Any, Any], None], make: Callable[[], Any]) -> Any:
    """Return a subclass of a class of connections that calls `note(session, text)` before it sends
    a text. `cenote_session` of its instances is what `make()` has made.

    Everything that a program or a class of its own calls comes along here, transactions and
    prepared statements included; only what is done by way of the protocol does not.
    """

    class Watched(base):  # type: ignore[misc]
        __slots__ = ("cenote_session",)
        __doc__ = base.__doc__

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.cenote_session = make()

        # Plain functions that return the coroutine of the base, which costs the least.
        def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
            if not args:  # or _execute() is next
                note(self.cenote_session, query)
            return super().execute(query, *args, timeout=timeout)

        def _execute(self, query: Any, *args: Any, **options: Any) -> Any:
            note(self.cenote_session, query)
            return super()._execute(query, *args, **options)

        def _executemany(self, query: Any, *args: Any, **options: Any) -> Any:
            note(self.cenote_session, query)
            return super()._executemany(query, *args, **options)

        def _prepare(self, query: Any, **options: Any) -> Any:
            note(self.cenote_session, query)
            self.cenote_session.unended = True
            return super()._prepare(query, **options)

        async def _do_execute(self, *arguments: Any, **options: Any) -> Any:
            try:
                return await super()._do_execute(*arguments, **options)
            except Exception as error:
                if getattr(error, "severity", None) is None:  # not of the server
                    self.cenote_session.unended = True
                raise

        def cursor(self, query: Any, *args: Any, **options: Any) -> Any:
            note(self.cenote_session, query)
            return super().cursor(query, *args, **options)

        def _copy_out(self, copy_stmt: Any, *args: Any) -> Any:
            note(self.cenote_session, copy_stmt)
            return super()._copy_out(copy_stmt, *args)

        def _copy_in(self, copy_stmt: Any, *args: Any) -> Any:
            note(self.cenote_session, copy_stmt)
            return super()._copy_in(copy_stmt, *args)

        async def set_type_codec(self, typename: str, **options: Any) -> None:
            await super().set_type_codec(typename, **options)
            self.cenote_session.note_codec(typename, options)

        async def set_builtin_type_codec(self, typename: str, **options: Any) -> None:
            await super().set_builtin_type_codec(typename, **options)
            self.cenote_session.note_codec(typename, options)

        async def reset_type_codec(self, typename: str, **options: Any) -> None:
            await super().reset_type_codec(typename, **options)
            self.cenote_session.note_codec(typename, options)

        async def close(self, **options: Any) -> None:
            self.cenote_session.ending = True
            await super().close(**options)

        def terminate(self) -> None:
            self.cenote_session.ending = True
            super().terminate()

    for name in ("__module__", "__name__", "__qualname__"):
        setattr(Watched, name, getattr(base, name))
    return Watched
