"""The interface of a driver: a `Driver` makes connections, each a `DriverConnection`.

The database layer does not depend on the name of a driver. What only some drivers can do is read
from the class of their connections: the optional methods that it defines, and its traits.
`capabilities` is computed from that. How the driver of a URL is found is in `loading`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from logging import DEBUG
from typing import Any, ClassVar, TypeVar

from ..errors import PoolError
from ..log import log
from .connection_state import StatefulConnection
from .dialects import Dialect, Isolation
from .parsing.placeholders import Style, Template
from .url import Secret, Target

T = TypeVar("T")
Arguments = Sequence[Any] | Mapping[str, Any] | None
Received = Callable[[str, str, int], None]  # channel, payload, process of the server

# Characters of the longest text that a driver keeps prepared, as in asyncpg: a longer one is
# hardly ever sent again.
LONGEST_KEPT = 15_000
MANY = "cenote_many"  # the savepoint of atomically()


@dataclass(frozen=True, slots=True)
class ConnectConfig:
    """Where and how the connections of a database are made."""

    target: Target
    connect_args: Mapping[str, Any]
    statement_cache_size: int
    same_values: bool = True  # those that the driver would give are made the same as on all others
    # For a driver that connects by itself, to stop a statement.
    ask_password: Callable[[], Awaitable[Secret | None]] | None = field(default=None, repr=False)


class RowCursor(ABC):
    """The open result of a statement, which is read in parts."""

    @abstractmethod
    async def fetch(self, count: int) -> Sequence[Any]:
        """Return the next rows, at most `count`; an empty sequence at the end."""

    @abstractmethod
    async def close(self) -> None:
        """Close the result, also before its end; the connection is usable afterwards."""

    @property
    def has_unread_rows(self) -> bool:
        """Whether the server has sent rows, or will, that stand in the way of other statements."""
        return False

    def abandon(self) -> None:  # noqa: B027
        """Give up the result without I/O, because its connection is destroyed."""


class Collected(RowCursor):
    """A cursor over rows that were all fetched before."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows: Sequence[Any] = rows
        self.next: int = 0

    async def fetch(self, count: int) -> Sequence[Any]:
        start, self.next = self.next, self.next + count
        return self.rows[start : self.next]

    async def close(self) -> None:
        self.rows = ()


class DriverConnection(StatefulConnection, ABC):
    """One connection. A driver defines the methods; the database layer keeps the state.

    A statement is sent once. The exception is a statement that the driver has kept prepared: if
    the server refuses its plan before it executes anything, and outside a transaction, the driver
    may prepare it and send it again.
    """

    __slots__ = ()

    dialect: ClassVar[Dialect]  # of the statements that the connection takes
    aborts: ClassVar[bool] = False  # after an error in a transaction only its end can run
    interleaves: ClassVar[bool] = True  # other statements run while a RowCursor is open
    cancels: ClassVar[bool] = False  # close() stops a statement if `interrupted` is set
    caches_statements: ClassVar[bool] = False  # keeps statements prepared that were run
    gives_sqlstate: ClassVar[bool] = False  # errors of the server have a SQLSTATE
    keeping: ClassVar[frozenset[str]] = frozenset()  # methods of `raw` whose result keeps it
    finalizers: ClassVar[frozenset[str]] = (
        frozenset()
    )  # methods that what it keeps calls at its end
    guard_bases: ClassVar[tuple[type, ...]] = ()  # base classes that the library checks for
    touched: str | None  # these of the base are set here as well
    lasting: bool
    replans: bool
    underway: bool

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as the library knows it without a round trip."""

    @abstractmethod
    def execute(self, text: str, arguments: Arguments) -> Any:
        """Return an awaitable of the number of rows that matched."""

    @abstractmethod
    def fetch_all(self, text: str, arguments: Arguments) -> Any:
        """Return an awaitable of the list of rows."""

    @abstractmethod
    def fetch_one(self, text: str, arguments: Arguments) -> Any:
        """Return an awaitable of the first row, or None."""

    @abstractmethod
    def fetch_val(self, text: str, arguments: Arguments) -> Any:
        """Return an awaitable of the first value of the first row, or None."""

    @abstractmethod
    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        """Run a statement once for each element of `arguments`: all of them, or none."""

    @abstractmethod
    async def stream(
        self, text: str, arguments: Arguments, keyword: str, *, alone: bool
    ) -> RowCursor:
        """Run a statement, and return a cursor for its rows.

        `alone` says that nothing else runs on the connection until the cursor is closed, so that
        the driver may open a transaction for it. Otherwise it must not: the other statements
        would be in that transaction too.
        """

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        """Begin a transaction; without `isolation` at the default level of the server."""
        for text in self.dialect.begin(isolation, read_only):
            await self.execute(text, None)

    async def commit(self) -> bool:
        """Commit the open transaction; return False if the server rolled it back instead."""
        await self.execute(self.dialect.commit(), None)
        return True

    async def rollback(self) -> None:
        """Roll the open transaction back."""
        await self.execute(self.dialect.rollback(), None)

    @abstractmethod
    async def close(self) -> None:
        """Close the connection; if `interrupted`, stop the statement that runs on the server."""

    @abstractmethod
    def terminate(self) -> None:
        """Close the connection at once, without I/O that waits; harmless after close()."""

    async def stop(self) -> None:
        """Tell the server to stop the statement that runs now; return when the order is sent.

        It is called while the statement runs, and repeatedly if that does not end. After it has
        returned, and after `absorb()`, it must not stop any other statement.
        """
        raise PoolError("this driver cannot stop a statement without closing its connection")

    async def absorb(self) -> None:
        """Run a harmless statement, which a late order to stop may hit."""
        await self.ping()

    def is_spoiled(self, keyword: str) -> bool:
        """Whether the answer to a statement with this first word may be wrong, because the server
        was told to stop it and has not said that it did."""
        return False

    async def savepoint(self, name: str) -> None:
        """Set a savepoint in the open transaction."""
        await self.execute(self.dialect.savepoint(name), None)

    async def release_savepoint(self, name: str) -> None:
        """Remove a savepoint, if the database has a statement for that."""
        text = self.dialect.release_savepoint(name)
        if text is not None:
            await self.execute(text, None)

    async def rollback_to_savepoint(self, name: str) -> None:
        """Undo everything since a savepoint, and keep the savepoint."""
        await self.execute(self.dialect.rollback_to_savepoint(name), None)

    def looks_dead(self) -> bool:
        """Whether the library knows that the connection is closed; no round trip."""
        return False

    def peer_closed(self) -> bool:
        """Whether the server has closed the connection, which the library may not have read yet.
        Only asked of a connection that does not look dead."""
        return False

    def has_unread_bytes(self) -> bool:
        """Whether the server sent something unasked: most likely that it ends the session."""
        return False

    def is_stuck(self) -> bool:
        """Whether the library is in the middle of an operation, so that nothing else can run."""
        return False

    @property
    def is_dead(self) -> bool:
        """Whether the connection is closed, as far as this machine knows."""
        return self.looks_dead() or self.peer_closed()

    @abstractmethod
    async def ping(self) -> None:
        """Ask the server for an answer; raise if there is none."""

    async def watch(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Run a statement that may end the open transaction and begin another one.

        A driver whose library does not notice this finds out, and sets `restarted`.
        """
        return await call(self)

    async def look_again(self) -> None:
        """After an error in a transaction, update `in_transaction` if that needs a round trip."""

    @property
    def can_reset(self) -> bool:
        """Whether reset() can undo changes of the session; if not, the connection is replaced."""
        return type(self).reset is not DriverConnection.reset

    async def reset(self) -> bool:
        """Make the session like a new one; return False if the connection must be replaced."""
        return False

    async def prepare(self, template: Template, text: str) -> Prepared:
        """Prepare a statement, of which `text` is the text as the user wrote it.

        A driver that defines this raises here what is wrong with the statement. This one sends
        nothing: the statement is prepared when it is run, by a driver that caches statements.
        """
        return Prepared(self, template.text)

    async def listen(self, channel: str) -> None:
        """Have the server send what is notified on a channel.

        A driver that defines this defines `unlisten` and `on_notification`, too.
        """
        raise NotImplementedError

    async def unlisten(self, channel: str) -> None:
        """End `listen()` for a channel."""
        raise NotImplementedError

    def on_notification(self, received: Received, lost: Callable[[], None]) -> None:
        """Call `received` with channel, payload and process of each notification from now on, also
        while no statement runs, and `lost` when the connection is closed."""
        raise NotImplementedError

    def cancel_promptly(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Return an awaitable that ends at once when it is cancelled; then the connection is
        destroyed, so that the library need not put it in order."""
        return awaitable

    def touch(self, reason: str, *, lasting: bool = False, replans: bool = False) -> None:
        """Note that a statement changes the session, with the reason that messages show."""
        self.touched = reason
        if lasting:
            self.lasting = True
        if replans:
            self.replans = True
            self.forget_plans()

    def returned(self) -> None:
        """The connection is about to go back to the pool."""

    async def lend(self) -> None:
        """The connection of the library is about to be given out, for a connection() block."""

    async def take_back(self) -> None:
        """The block is over."""

    def greeted(self) -> None:
        """The function on_connect has run: what it did is part of every new connection."""

    def forget_plans(self) -> None:
        """Drop the statements that are kept prepared, because they may not be valid any more."""

    async def atomically(self, work: Callable[[], Awaitable[object]], name: str = MANY) -> None:
        """Await `work()` in a transaction, or behind a savepoint of this name in the open one; all
        or none."""
        dialect = self.dialect
        end: str | None
        if self.in_transaction:
            undo, end = dialect.rollback_to_savepoint(name), dialect.release_savepoint(name)
            await self.savepoint(name)
        else:
            undo, end = dialect.rollback(), dialect.commit()
            await self.begin(None, False)
        self.underway = True
        try:
            await work()
            if end is not None:
                await self.execute(end, None)
        except Exception:
            settled = self.time_limit is None or await self.time_limit.settle()
            if settled and self.in_transaction:
                try:
                    await self.execute(undo, None)
                except Exception as error:  # the first error has the cause
                    log(DEBUG, "%s failed", undo, error=error)
            raise


@cache
def capabilities_of(kind: type[DriverConnection]) -> frozenset[str]:
    """Return what a class of connections can do: the methods that it defines, and its traits."""
    found = {name for name in OPTIONAL if getattr(kind, name) is not OPTIONAL[name]}
    found.update(name for trait, name in TRAITS.items() if getattr(kind, trait))
    return frozenset(found)


OPTIONAL = {
    name: getattr(DriverConnection, name)
    for name in ("ping", "reset", "prepare", "looks_dead", "listen")
}
TRAITS = {
    "cancels": "cancel",
    "caches_statements": "statement_cache",
    "gives_sqlstate": "sqlstate",
    "interleaves": "interleave",
}


class Prepared:
    """A statement that was prepared on one connection. This one only keeps the text."""

    __slots__ = ("connection", "text")

    def __init__(self, connection: DriverConnection, text: str) -> None:
        self.connection: DriverConnection = connection
        self.text: str = text

    def execute(self, arguments: Arguments) -> Any:
        return self.connection.execute(self.text, arguments)

    def fetch_all(self, arguments: Arguments) -> Any:
        return self.connection.fetch_all(self.text, arguments)

    def fetch_one(self, arguments: Arguments) -> Any:
        return self.connection.fetch_one(self.text, arguments)

    def fetch_val(self, arguments: Arguments) -> Any:
        return self.connection.fetch_val(self.text, arguments)

    async def execute_many(self, arguments: Sequence[Any]) -> None:
        await self.connection.execute_many(self.text, arguments)

    async def close(self) -> None:
        """Close the statement on the server; here there is nothing to close."""

    def abandon(self) -> None:
        """Give up the statement without I/O, because its connection is destroyed."""


class Driver(ABC):
    """Makes the connections of one database, and says what errors of its library mean."""

    connection_class: ClassVar[type[DriverConnection]]  # of what connect() returns
    style: ClassVar[Style]  # of the placeholders that the connections take
    # Counts the sessions whose mark its one parameter ends with; None: the server knows no marks.
    marked_statement: ClassVar[str | None] = None

    def __init__(self, config: ConnectConfig) -> None:
        self.config = config

    @property
    def dialect(self) -> Dialect:
        """The dialect of the connections."""
        return self.connection_class.dialect

    @property
    def capabilities(self) -> frozenset[str]:
        """What the connections can do, by `capabilities_of` their class."""
        return capabilities_of(self.connection_class)

    @property
    def system_name(self) -> str:
        """The name of the database system in traces, by the conventions of OpenTelemetry."""
        return "other_sql"

    @abstractmethod
    async def connect(self, password: Secret | None) -> DriverConnection:
        """Open a connection, with copies of `connect_args`."""

    async def connect_marked(self, password: Secret | None, mark: str) -> DriverConnection:
        """Open one that the server knows by this mark, as `marked_statement` says."""
        return await self.connect(password)

    def is_disconnect(self, error: BaseException) -> bool:
        """Whether the connection cannot be used after this error."""
        return isinstance(error, OSError)

    def hint(self, error: BaseException) -> str | None:
        """Return a note that explains an error of a statement, or None."""
        return None

    def is_stopped(self, error: BaseException) -> bool:
        """Whether this error may be the answer to `stop()`."""
        return False

    def is_unsent(self, error: BaseException) -> bool:
        """Whether this error says that the connection was closed before anything was sent."""
        return False

    def rolls_back(self, error: BaseException) -> bool:
        """Whether an error that ended a transaction has rolled it back, and not committed it."""
        return True

    def is_conflict(self, error: BaseException) -> bool:
        """Whether a transaction failed because of another one, and may succeed if run again."""
        return False

    def is_demoted(self, error: BaseException) -> bool:
        """Whether this error says that the server has become read-only."""
        return False

    def is_full(self, error: BaseException) -> bool:
        """Whether the server refused a connection because it has as many as it allows."""
        return False

    def close(self) -> None:  # noqa: B027
        """Release what the driver itself holds; the database is closed."""

    def after_fork(self) -> object:
        """Start again in a forked child; return the objects that must not be finalized there."""
        return None
