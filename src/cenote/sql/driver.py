"""The interface of a driver: a `Driver` makes connections, each a `DriverConnection`.

The database layer asks no driver's name. What only some drivers can do is found in the class of
their connections: the optional methods that it defines, and its traits. `capabilities` is computed
from that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import Parameter, signature
from logging import DEBUG
from typing import Any, ClassVar, TypeVar

from ..log import log
from ..options import nearest
from .dialects import Dialect, Isolation
from .parsing.placeholders import Style, Template
from .states import ConnectionState, after
from .url import Secret, Target

T = TypeVar("T")
Arguments = Sequence[Any] | Mapping[str, Any] | None

BUILT_IN = {
    "sqlite": "cenote.drivers.sqlite.driver",
    "postgresql": "cenote.drivers.asyncpg.driver",
    "postgres": "cenote.drivers.asyncpg.driver",
    "postgresql+asyncpg": "cenote.drivers.asyncpg.driver",
    "postgresql+psycopg": "cenote.drivers.psycopg.driver",
    "mysql": "cenote.drivers.mysql.driver",
    "mariadb": "cenote.drivers.mysql.driver",
}
# Characters of a text that is kept prepared on a connection, as in asyncpg: what is longer is
# hardly ever sent again.
LONGEST_KEPT = 15_000
USABLE = (ConnectionState.READY, ConnectionState.FRESH)
INTERRUPTED = (ConnectionState.INTERRUPTED, ConnectionState.STUCK)
MANY = "cenote_many"  # the savepoint of atomically()
GROUP = "cenote.drivers"  # entry points of other packages: scheme = "package.module"


@dataclass(frozen=True, slots=True)
class ConnectConfig:
    """How every connection of a database is made."""

    target: Target
    connect_args: Mapping[str, Any]
    statement_cache_size: int


class RowCursor(ABC):
    """An open result, read piece by piece."""

    @abstractmethod
    async def fetch(self, count: int) -> Sequence[Any]:
        """The next rows, at most `count`; none at the end."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of it, read to its end or not; the connection is usable afterwards."""

    def abandon(self) -> None:  # noqa: B027
        """Its connection is destroyed: nothing to close any more."""


class Collected(RowCursor):
    """Rows that are all there already."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows
        self.next = 0

    async def fetch(self, count: int) -> Sequence[Any]:
        start, self.next = self.next, self.next + count
        return self.rows[start : self.next]

    async def close(self) -> None:
        self.rows = ()


class DriverConnection(ABC):
    """One connection. The drivers fill in the methods, the database layer keeps the notes.

    Statements are run once. Only a driver knows what it has kept prepared on a connection, so that
    only a driver may prepare and run it again: if the server refused the plan before it executed
    anything, and outside a transaction.
    """

    __slots__ = (
        "last_heard",
        "lasting",
        "leftovers",
        "raw",
        "replans",
        "restarted",
        "state",
        "status",
        "suspicion_epoch",
        "touched",
        "underway",
    )  # fmt: skip

    dialect: ClassVar[Dialect]  # of the statements that it takes
    interleaves: ClassVar[bool] = True  # other statements run while a RowCursor is open
    cancels: ClassVar[bool] = False  # close() stops a statement that was interrupted on the server
    caches_statements: ClassVar[bool] = False  # keeps `statement_cache_size` of them prepared
    gives_sqlstate: ClassVar[bool] = False  # the errors of the server have one
    keeping: ClassVar[frozenset[str]] = frozenset()  # methods of `raw` whose result refers to it
    guard_bases: ClassVar[tuple[type, ...]] = ()  # that the driver's own isinstance() asks for

    def __init__(self, raw: Any) -> None:
        self.raw = raw  # the driver's own connection
        self.touched: str | None = None  # session state to reset, and what touched it
        self.lasting = False  # touched in a way that no reset undoes: it is replaced
        self.replans = False  # what was prepared in this session does not hold after it
        self.restarted = False  # what watch() ran has ended the transaction and begun another
        self.state = ConnectionState.FRESH  # moved by the verbs below alone
        self.suspicion_epoch = 0  # of the loop_db when it was last known to be alive
        self.last_heard = 0.0  # loop time of the last sign of life
        self.underway = False  # of a series of statements at least one was sent
        self.leftovers: list[Any] = []  # statements and streams that nobody closed
        self.status: str | None = None  # what the server answered to the last execute(), if it says

    # -- its states ------------------------------------------------------------------------------

    def mark_greeted(self) -> None:
        """on_connect has run, if there is one: what it set is not touched."""
        self._move("greet")
        self.touched = None

    def mark_broken(self) -> None:
        """It is lost, or must not be handed out again for another reason."""
        self._move("mark_broken")

    def interrupt(self) -> None:
        """A statement was broken off: it is not used again, and close() stops the server."""
        self._move("interrupt")

    def jam(self) -> None:
        """Its driver is in mid-operation: it is not used again, though it is not lost."""
        self._move("jam")

    def mark_closed(self) -> None:
        """It was closed or terminated."""
        self._move("close")

    @property
    def broken(self) -> bool:
        """Whether it must not be used again."""
        return self.state not in USABLE

    @property
    def interrupted(self) -> bool:
        """Whether the server may still run a statement of it, which close() has to stop."""
        return self.state in INTERRUPTED

    def _move(self, event: str) -> None:
        self.state = after("connection", self.state, event)

    def expect_statement(self) -> None:
        """A statement is about to be sent; what is noted in its course starts anew."""
        self.underway = self.restarted = False

    # -- what a driver fills in ------------------------------------------------------------------

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """As the driver knows it, without a round trip."""

    @abstractmethod
    def execute(self, text: str, arguments: Arguments) -> Any:
        """Awaitable: the number of rows that matched."""

    @abstractmethod
    def fetch_all(self, text: str, arguments: Arguments) -> Any:
        """Awaitable: the list of rows."""

    @abstractmethod
    def fetch_one(self, text: str, arguments: Arguments) -> Any:
        """Awaitable: the first row, or None."""

    @abstractmethod
    def fetch_val(self, text: str, arguments: Arguments) -> Any:
        """Awaitable: the first value of the first row, or None."""

    @abstractmethod
    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        """All or nothing."""

    @abstractmethod
    async def stream(
        self, text: str, arguments: Arguments, keyword: str, *, alone: bool
    ) -> RowCursor:
        """`alone`: nothing else is done on the connection. If not, and outside a transaction, the
        other statements stay outside of one too, and the session stays as it is."""

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        """Begin a transaction; `isolation` None is the default level of the server."""
        for text in self.dialect.begin(isolation, read_only):
            await self.execute(text, None)

    async def commit(self) -> bool:
        """Commit the open transaction; False if the server rolled back instead."""
        await self.execute(self.dialect.commit(), None)
        return True

    async def rollback(self) -> None:
        """End the open transaction, and undo it."""
        await self.execute(self.dialect.rollback(), None)

    @abstractmethod
    async def close(self) -> None:
        """A proper end; what runs on the server is told to stop."""

    @abstractmethod
    def terminate(self) -> None:
        """Close at once, without waiting for anything; harmless after close()."""

    async def savepoint(self, name: str) -> None:
        """Set a savepoint in the open transaction."""
        await self.execute(self.dialect.savepoint(name), None)

    async def release_savepoint(self, name: str) -> None:
        """Remove a savepoint, if the database has a statement for that."""
        text = self.dialect.release_savepoint(name)
        if text is not None:
            await self.execute(text, None)

    async def rollback_to_savepoint(self, name: str) -> None:
        """Undo everything since a savepoint, which stays."""
        await self.execute(self.dialect.rollback_to_savepoint(name), None)

    def looks_dead(self) -> bool:
        """Whether the driver knows that it is over; no round trip."""
        return False

    def peer_closed(self) -> bool:
        """Whether the news of its death has reached this machine, though not yet the driver."""
        return False

    def has_unread_bytes(self) -> bool:
        """Whether something came that nobody has asked for: the news of its death, most likely."""
        return False

    def is_stuck(self) -> bool:
        """Whether the driver is in the middle of something, so that nothing else can be done."""
        return False

    @property
    def is_dead(self) -> bool:
        return self.looks_dead() or self.peer_closed()

    @abstractmethod
    async def ping(self) -> None:
        """Raises if the server does not answer."""

    async def watch(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Run something in a transaction that may end it and begin another; if the driver would not
        know of it, find out, and note it in `restarted`."""
        return await call(self)

    async def look_again(self) -> None:  # noqa: B027
        """After an error in a transaction: learn whether it is still open, if only asking tells."""

    @property
    def can_reset(self) -> bool:
        """Whether reset() can do it; a connection that cannot is replaced."""
        return "reset" in capabilities_of(type(self))

    async def reset(self) -> bool:
        """Back to what a new connection is; False: it has to be replaced."""
        return False

    async def prepare(self, template: Template, text: str) -> Prepared:
        """A statement that stays ready on the server, if the driver can; `text`: as given."""
        return Prepared(self, template.text)

    def touch(self, reason: str, *, lasting: bool = False, replans: bool = False) -> None:
        """Note that a statement changes the session, and what undoes it."""
        self.touched = reason
        if lasting:
            self.lasting = True
        if replans:
            self.replans = True
            self.forget_plans()

    def returned(self) -> None:  # noqa: B027
        """It is on its way back to the pool."""

    def greeted(self) -> None:  # noqa: B027
        """on_connect has run: what it did belongs to every connection."""

    def forget_plans(self) -> None:  # noqa: B027
        """Prepare everything anew: what was prepared before does not hold any more."""

    async def atomically(self, work: Callable[[], Awaitable[object]]) -> None:
        """All of it or nothing: in a transaction of its own, or behind a savepoint."""
        dialect = self.dialect
        end: str | None
        if self.in_transaction:
            undo, end = dialect.rollback_to_savepoint(MANY), dialect.release_savepoint(MANY)
            await self.savepoint(MANY)
        else:
            undo, end = dialect.rollback(), dialect.commit()
            await self.begin(None, False)
        self.underway = True
        try:
            await work()
            if end is not None:
                await self.execute(end, None)
        except Exception:
            if self.in_transaction:
                try:
                    await self.execute(undo, None)
                except Exception as error:  # the first error says why
                    log(DEBUG, "%s failed", undo, error=error)
            raise


@cache
def capabilities_of(kind: type[DriverConnection]) -> frozenset[str]:
    """What a class of connections can do: the optional methods that it defines, and its traits."""
    found = {name for name in OPTIONAL if getattr(kind, name) is not OPTIONAL[name]}
    found.update(name for trait, name in TRAITS.items() if getattr(kind, trait))
    if kind.caches_statements:
        found.add("prepare")  # what runs is kept ready, whether prepare() adds to that or not
    return frozenset(found)


OPTIONAL = {
    name: getattr(DriverConnection, name) for name in ("ping", "reset", "prepare", "looks_dead")
}
TRAITS = {
    "cancels": "cancel",
    "caches_statements": "statement_cache",
    "gives_sqlstate": "sqlstate",
    "interleaves": "interleave",
}


class Prepared:
    """A statement that was prepared on one connection; here it is only its text."""

    __slots__ = ("connection", "text")

    def __init__(self, connection: DriverConnection, text: str) -> None:
        self.connection = connection
        self.text = text

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
        """Nothing is left on the server."""

    def abandon(self) -> None:
        """Its connection is destroyed: nothing to close any more."""


class Driver(ABC):
    """Makes the connections of one database, and knows what its errors mean."""

    connection_class: ClassVar[type[DriverConnection]]  # that connect() gives
    style: ClassVar[Style]  # which placeholders the connections take

    def __init__(self, config: ConnectConfig) -> None:
        self.config = config
        self.ask_password: Callable[[], Awaitable[Secret | None]] | None = None  # for one more

    @property
    def dialect(self) -> Dialect:
        """How statements are written, and what they do to a session."""
        return self.connection_class.dialect

    @property
    def capabilities(self) -> frozenset[str]:
        """What the connections can do, as found in their class."""
        return capabilities_of(self.connection_class)

    @property
    def system_name(self) -> str:
        """The database system by the names that OpenTelemetry has for them."""
        return "other_sql"

    @abstractmethod
    async def connect(self, password: Secret | None) -> DriverConnection:
        """A new connection, with copies of the connect arguments."""

    def is_disconnect(self, error: BaseException) -> bool:
        """Whether the connection is gone after this error."""
        return isinstance(error, OSError)

    def hint(self, error: BaseException) -> str | None:
        """What an error of a statement leaves unsaid, to be added to it as a note."""
        return None

    def is_unsent(self, error: BaseException) -> bool:
        """Of a connection that was dead when it was handed out: whether nothing was sent on it."""
        return False

    def rolls_back(self, error: BaseException) -> bool:
        """Of an error after which the transaction is over: whether it was rolled back."""
        return True

    def is_demoted(self, error: BaseException) -> bool:
        """Whether the server has become a read-only one."""
        return False

    def close(self) -> None:  # noqa: B027
        """The database is closed for good."""

    def after_fork(self) -> object:
        """Start anew in a forked child; returns what must never be finalized there."""
        return None


def load(config: ConnectConfig) -> Driver:
    """The driver for a URL, made for it."""
    scheme = config.target.scheme
    module = BUILT_IN.get(scheme)
    if module is not None:
        make: Callable[[ConnectConfig], Driver] = import_module(module).driver
        return make(config)
    for point in entry_points(group=GROUP, name=scheme):
        make = point.load()
        return make(config)
    known = ", ".join(sorted(BUILT_IN))
    raise ValueError(f"url has the unknown scheme {scheme!r}; known are {known}")


def missing(package: str, extra: str) -> ImportError:
    """The driver of a scheme is not installed."""
    return ImportError(
        f"the driver {package} is not installed: pip install 'cenote[{extra}]'", name=package
    )


def reject_unknown(options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Strictly: an option of the URL that nobody reads would be a setting that is not set."""
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(
            f"url has the unknown option {', '.join(map(repr, unknown))}; "
            f"known are {', '.join(sorted(known))}. "
            f"Arguments of the driver's connect() go into connect_args."
        )


def check_connect_args(given: Mapping[str, Any], connect: Callable[..., Any], *more: str) -> None:
    """ValueError for what the driver's `connect` would refuse with the first connection, and so for
    every one; `more`: what it takes besides the arguments that its signature names."""
    try:
        parameters = signature(connect).parameters.values()
    except (TypeError, ValueError):
        return  # written in C, and silent about it
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    named = {each.name for each in parameters if each.kind in kinds}
    known = named.union(more)
    for name in given if named else ():  # else it takes whatever is given
        if name not in known:
            raise ValueError(
                f"connect_args has the unknown argument {nearest(name, known)}; the driver's "
                f"connect() takes {', '.join(sorted(known))}"
            )


def fresh(value: Any) -> Any:
    """A copy of dicts, lists and sets, all the way down; what is in them is shared."""
    if type(value) is dict:
        return {key: fresh(each) for key, each in value.items()}
    if type(value) in (list, set, tuple):
        return type(value)(fresh(each) for each in value)
    return value
