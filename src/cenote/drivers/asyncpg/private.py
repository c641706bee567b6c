"""The private names of asyncpg: they are used here only, and checked when this is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from logging import DEBUG
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...log import log
from ...sql.loading import missing
from ..library import Library
from ..postgresql import RESET, is_refusal, is_schema_change, keeps
from ..wire import Wire, hang_up
from .values import CODECS, Codec

try:
    import asyncpg
except ModuleNotFoundError as _error:
    if _error.name != "asyncpg":
        raise
    raise missing("asyncpg", "postgresql") from None

__all__ = ["PROXY", "Connection", "asyncpg"]

TESTED = ("0.32.0", "0.32.0")  # oldest and newest

library: Library = Library("asyncpg", asyncpg.__version__, TESTED)
connect_utils: Any = library.module("asyncpg.connect_utils", "_cancel")
connection: Any = library.module(
    "asyncpg.connection",
    "_Atomic",
    "_ConnectionProxy",
    "_StatementCache",
    "_StatementCacheEntry",
)
cursors: Any = library.module("asyncpg.cursor", "BaseCursor", "CursorFactory")
library.require(cursors.BaseCursor, ["_check_ready"])
if "is_in_transaction" not in cursors.BaseCursor._check_ready.__code__.co_names:
    # Before 0.32 a cursor was refused in a transaction that was begun by a plain BEGIN.
    raise library.unfit("cursors in every transaction")
protocol: Any = library.module("asyncpg.protocol.protocol", "BaseProtocol", "ConnectionSettings")
library.require(protocol.ConnectionSettings, ["add_python_codec"])
library.require(
    asyncpg.Connection,
    [
        "_aborted", "_addr", "_do_execute", "_drop_local_statement_cache", "_get_statement",
        "_listeners", "_log_listeners", "_loop", "_maybe_gc_stmt", "_params",
        "_pool_release_ctr", "_prepare", "_protocol", "_query_loggers", "_stmt_cache",
        "_stmt_exclusive_section", "_termination_listeners", "_top_xact", "_transport",
        "get_reset_query",
    ],
)  # fmt: skip
library.require(connection._StatementCache, ["__len__", "_entries", "get", "has"])
library.require(connection._StatementCacheEntry, ["_statement"])
library.require(connection._Atomic, ["_acquired"])
library.require(
    protocol.BaseProtocol,
    [
        "_is_cancelling", "backend_pid", "backend_secret", "bind_execute", "get_record_class",
        "get_settings", "is_connected", "is_in_transaction", "query",
    ],
)  # fmt: skip

# What of the answer to a statement is wanted.
ROWS, ROW, VALUE, STATUS = range(4)
LIMITS = (0, 1, 1, 0)  # rows that the server is asked for; 0: all

OURS = frozenset(each.name for each in CODECS)  # the types whose values are made the same
PROXY: type = connection._ConnectionProxy  # what asyncpg's isinstance() takes for a connection
# Methods of a connection whose results keep it, and what asyncpg's objects call when collected.
KEEPING = frozenset({"_prepare", "cursor", "prepare", "transaction"})
FINALIZERS = frozenset({"_maybe_gc_stmt"})

# An argument that does not fit the type of its parameter, found before anything is sent: of a
# series only in its first element.
UNFIT = re.compile(
    r"invalid input for query argument \$\d+(?: in element #0 of executemany\(\) sequence)?:"
)


if TYPE_CHECKING:
    from ..library import Untyped

    class Base(Untyped):
        """What is called of the class that asyncpg itself has."""

        async def set_type_codec(self, *arguments: Any, **options: Any) -> Any: ...
        async def set_builtin_type_codec(self, *arguments: Any, **options: Any) -> Any: ...

else:
    Base = asyncpg.Connection


class Connection(Base):
    """An asyncpg connection that knows what a thorough reset is, what may be kept prepared, and
    what may be run again."""

    __slots__ = ("alters", "codecs", "plans", "takes_enums")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # A transaction has changed the schema, if that is not rolled back.
        self.alters: bool = False
        self.codecs: bool = False  # set by its user: they outlast every reset
        # A codec of its user's may want members of an Enum, and not their values.
        self.takes_enums: bool = False
        self.plans: int = 0  # counted up when they are forgotten

    def get_reset_query(self) -> str:
        return RESET

    async def set_type_codec(self, *arguments: Any, **options: Any) -> Any:
        self.codecs = True
        name = arguments[0] if arguments else options.get("typename")
        self.takes_enums = self.takes_enums or name not in OURS
        return await super().set_type_codec(*arguments, **options)

    async def set_builtin_type_codec(self, *arguments: Any, **options: Any) -> Any:
        self.codecs = True
        return await super().set_builtin_type_codec(*arguments, **options)

    async def run(self, query: str, arguments: Any, want: int) -> Any:
        """What `fetch()`, `fetchrow()`, `fetchval()` and `execute()` do, in one call if the
        statement is kept prepared: theirs go through six functions and as many coroutines."""
        protocol, section = self._protocol, self._stmt_exclusive_section
        if protocol is None or section._acquired or self._query_loggers or self._aborted:
            return await self._run_slowly(query, arguments, want)
        key = (query, protocol.get_record_class(), False)
        entries = self._stmt_cache._entries
        kept = entries.get(key)
        if kept is None or not protocol.is_connected() or (statement := kept._statement).closed:
            return await self._run_slowly(query, arguments, want)
        entries.move_to_end(key)
        extra, limit = want == STATUS, LIMITS[want]
        section._acquired = 1
        refused = False
        found: Any = None
        try:
            try:
                found = await protocol.bind_execute(statement, arguments, "", limit, extra, None)
            except asyncpg.OutdatedSchemaCacheError:
                await self.reload_schema_state()
                raise
            except Exception as error:
                refused = self.refused(error, key)
                if not refused or in_transaction(self):
                    raise
            if refused:
                statement = await self._get_statement(query, None)
                try:
                    found = await protocol.bind_execute(
                        statement, arguments, "", limit, extra, None
                    )
                except Exception as error:
                    await self.sync_after(error)
                    raise
        finally:
            section._acquired = 0
        if limit:
            if not found:
                return None
            row = found[0]
            if want == ROW:
                return row
            return row[0] if row else None  # SELECT without columns
        return found[1].decode() if extra else found

    def _run_slowly(self, query: str, arguments: Any, want: int) -> Any:
        method = (self.fetch, self.fetchrow, self.fetchval, self.execute)[want]
        return method(query, *arguments)

    async def _do_execute(
        self,
        query: str,
        executor: Callable[[Any, float | None], Any],
        timeout: float | None,
        retry: bool = True,
        *,
        ignore_custom_codec: bool = False,
        record_class: Any = None,
    ) -> tuple[Any, Any]:
        """Everything but explicit statements and cursors comes along here. asyncpg itself would
        run a statement again that was not kept, and one whose function has failed."""
        key = (query, record_class or self._protocol.get_record_class(), ignore_custom_codec)
        statement = self._stmt_cache.get(key)
        kept = statement is not None
        changes = False
        if not kept:
            begun = monotonic()
            keep = keeps(query)
            changes = not keep and is_schema_change(query)
            statement = await self._get_statement(
                query, timeout, use_cache=keep,
                ignore_custom_codec=ignore_custom_codec, record_class=record_class,
            )  # fmt: skip
            if timeout is not None:
                timeout -= monotonic() - begun
        try:
            result = await executor(statement, timeout)
            if changes:
                self.alters = in_transaction(self)
                self.forget_plans()
            return result, statement
        except asyncpg.OutdatedSchemaCacheError:
            await self.reload_schema_state()
            raise
        except Exception as error:
            if not kept:
                await self.sync_after(error)
                raise
            if not self.refused(error, key) or in_transaction(self):
                raise
        statement = await self._get_statement(
            query, timeout, ignore_custom_codec=ignore_custom_codec, record_class=record_class
        )
        try:
            return await executor(statement, timeout), statement
        except Exception as error:
            await self.sync_after(error)
            raise

    async def sync_after(self, error: Exception) -> None:
        """End what the preparation of a statement has begun, if asyncpg itself has refused to send
        the rest, such as an argument that does not fit."""
        if getattr(error, "severity", None) is None:  # not of the server
            await sync(self)

    def refused(self, error: Exception, key: Any = None) -> bool:
        """Of a statement that was kept: whether its plan was refused, and nothing of it executed.
        Then all plans are forgotten; but only the one of this `key` if a parameter did not fit it,
        which is the mistake of a caller as a rule."""
        if type(error) is asyncpg.DataError:
            refused = UNFIT.match(str(error)) is not None
        else:
            fields: Any = error  # asyncpg sets them when it makes the error
            refused = isinstance(error, asyncpg.PostgresError) and is_refusal(
                fields.sqlstate, fields.server_source_function, fields.context, fields.position
            )
            key = None
        if refused and key is not None:
            entry = self._stmt_cache._entries.pop(key, None)
            if entry is not None:
                self._maybe_gc_stmt(entry._statement)
        elif refused:
            self.forget_plans()
        return refused

    def forget_plans(self) -> None:
        self.plans += 1
        forget_plans(self)


# -- of any asyncpg connection, also of a class of the user's ------------------------------------


def in_transaction(raw: Any) -> bool:
    """As asyncpg knows it, without a round trip; False once it is closed."""
    protocol = raw._protocol
    return protocol is not None and protocol.is_in_transaction()


def is_in_transaction(connection: Any) -> bool:
    """The same of what has the connection as its `raw`."""
    protocol = connection.raw._protocol
    return protocol is not None and protocol.is_in_transaction()


def ends(raw: Any) -> tuple[Any, Any]:
    """The transport and asyncpg's protocol; None and None once it is closed."""
    return (None, None) if is_dead(raw) else (raw._transport, raw._protocol)


def command(raw: Any, text: str) -> Any:
    """Run a text without parameters; gives what the server answered to the last of it."""
    protocol = raw._protocol
    if (
        protocol is None or type(raw) is not Connection or raw._query_loggers
        or raw._aborted or not protocol.is_connected()
    ):  # fmt: skip
        return raw.execute(text)
    return protocol.query(text, None)


async def sync(raw: Any) -> None:
    """After a preparation that nothing has followed: asyncpg does not end it, and until then the
    server keeps its locks, and is in a transaction that nobody sees."""
    if not is_dead(raw) and not in_transaction(raw):
        try:
            await raw._protocol.query("SELECT 1", None)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            log(DEBUG, "the preparation of a statement was not ended: %r", error)


def is_dead(raw: Any) -> bool:
    """Whether asyncpg knows that the connection is over."""
    protocol = raw._protocol
    return protocol is None or raw._aborted or not protocol.is_connected()


def is_cancelling(raw: Any) -> bool:
    """Whether asyncpg waits for the server to confirm that a statement was cancelled."""
    return raw._protocol is not None and bool(raw._protocol._is_cancelling())


def wire(raw: Any) -> Wire:
    """The socket of an open connection."""
    return Wire(raw._transport.get_extra_info("socket").fileno())


def terminate(raw: Any) -> None:
    """Close at once, also if the loop does not run any more."""
    if not raw.is_closed():
        hang_up(raw._transport, raw.terminate)


def place(raw: Any) -> Mapping[str, Any]:
    """What is needed to cancel what runs in this session, also after the connection is closed."""
    return {
        "loop": raw._loop,
        "addr": raw._addr,
        "params": raw._params,
        "backend_pid": raw._protocol.backend_pid,
        "backend_secret": raw._protocol.backend_secret,
    }


async def cancel(place: Mapping[str, Any]) -> None:
    """Ask the server to stop what runs in that session. asyncpg does it too, in a task that a loop
    cancels at its end."""
    await connect_utils._cancel(**place)


def set_codecs(raw: Any, codecs: Iterable[Codec]) -> None:
    """Set codecs for types of pg_catalog, of which nothing has to be asked: no round trip."""
    settings = raw._protocol.get_settings()
    for each in codecs:
        settings.add_python_codec(
            each.oid, each.name, "pg_catalog", [], "scalar", each.encode, each.decode, "binary"
        )


def keeps_prepared(raw: Any, text: str) -> bool:
    """Whether asyncpg has a prepared statement for this text in its cache."""
    return bool(raw._stmt_cache.has((text, raw._protocol.get_record_class(), False)))


def count_prepared(raw: Any) -> int:
    """How many prepared statements are in the cache of asyncpg."""
    return len(raw._stmt_cache)


async def open_cursor(raw: Any, text: str, arguments: Any, *, use_cache: bool) -> Any:
    """A portal: bound, and nothing of it executed."""
    statement = await raw._get_statement(text, None, named=True, use_cache=use_cache)
    return await cursors.CursorFactory(raw, text, statement, arguments, None, None, None)


def forget_session(raw: Any) -> None:
    """Drop what asyncpg remembers of a session that is reset: transaction and listeners."""
    raw._top_xact = None  # its transaction was rolled back
    raw._listeners.clear()
    raw._log_listeners.clear()
    raw._query_loggers.clear()
    raw._termination_listeners.clear()


def forget_plans(raw: Any) -> None:
    """Empty the cache of prepared statements."""
    raw._drop_local_statement_cache()


def end_leftovers(raw: Any) -> None:
    """Make everything that this connection has made raise when it is used."""
    raw._pool_release_ctr += 1
