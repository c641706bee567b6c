"""`cenote.Database`: one object that all tasks share; each task has a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import signature
from logging import WARNING
from types import TracebackType
from typing import Any, Literal, Never, Self, TypeVar, TypeVarTuple, Unpack

from .. import options
from ..errors import PoolError
from ..log import log
from ..messages import not_copied
from ..options import CommonOptions
from ..pool import Pool, registry
from . import task_transaction
from .admission import require_connection
from .batches import Batches
from .checks import ask_password, check_connect_args, check_password, check_pool_options, one_of
from .connection_block import ConnectionBlock
from .dialects import Isolation
from .disconnects import know
from .driver import ConnectConfig, DriverConnection
from .lanes import DatabaseLane, DatabaseLanes
from .listen import Listener, new_listener
from .loading import fresh, load
from .loop_databases import LoopDatabases
from .parsing.statements import ParsedStatement, StatementCache, is_long
from .per_loop import LoopDatabase
from .prepared import Statement, prepare
from .session import Session
from .streams import Stream
from .time_limits import limit_of, run_rows
from .transact import transact
from .transaction import Transaction
from .url import Secret, parse
from .verbs import TextVerbs

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop

Observer = Callable[[str, str], Callable[[BaseException | None], object] | None]


class Database(TextVerbs):
    """A database client with a built-in connection pool, shared by every task in the program.

    Constructing it opens nothing. Each task gets a connection while it needs one.
    `docs/database.md` says what you may rely on, and `docs/reference/options.md` when to change an
    option.

    Args:
        url: `scheme://user:password@host:port/database?option=value`; the scheme chooses the
            driver: `sqlite`, `postgresql`, `postgresql+psycopg`, `mysql`, `mariadb`.
        on_connect: Called with the driver's connection: with each new one, and after each reset.
        password: Replaces that of the URL. A function, also async, is called for each connection.
        statement_cache_size: Prepared statements that each connection keeps; 0 for none.
        reset: What happens to the session's state when a connection comes back: "auto" resets what
            was touched, "always" always resets, "never" only rolls back.
        ping_after_idle: Ping a connection that was idle for longer before it is used.
        connect_args: Further arguments of the driver's `connect()`.
        child_tasks: What happens if a task that was started inside a transaction uses the database:
            "isolated" warns, "error" raises, "join" runs it inside the transaction.
        pooled: False for one connection, which is opened for each use.
        persistent: With `pooled=False`: keep that connection open between uses.
        values: "same" gives the same types on every driver, "driver" what the driver gives.
        pool_options: Options of `Pool`, except for its hooks.

    Raises:
        ImportError: The driver is not installed, or its version does not fit.
        TypeError: An option has the wrong type, or is unknown.
        ValueError: The URL or an option has a wrong value.

    Example:
        ```python
        async with cenote.Database("sqlite:///shop.db") as db:
            async with db.transaction():
                await db.execute("update stock set count = count - 1 where item = ?", ["lamp"])
        ```
    """

    def __init__(
        self,
        url: str,
        *,
        on_connect: Callable[[Any], Any] | None = None,
        password: str | Callable[[], Any] | None = None,
        statement_cache_size: int = 100,
        reset: Literal["auto", "always", "never"] = "auto",
        ping_after_idle: float = 30.0,
        connect_args: Mapping[str, Any] | None = None,
        child_tasks: Literal["isolated", "error", "join"] = "isolated",
        pooled: bool = True,
        persistent: bool = False,
        values: Literal["same", "driver"] = "same",
        **pool_options: Unpack[CommonOptions],
    ) -> None:
        target = parse(url)
        self._on_connect = options.optional_function("on_connect", on_connect)
        self._password = check_password(password, target.password)
        self._reset = one_of("reset", reset, ("auto", "always", "never"))
        self._ping_after_idle = options.number("ping_after_idle", ping_after_idle)
        if self._ping_after_idle < 0:
            raise ValueError(f"ping_after_idle must be 0 or more seconds, not {ping_after_idle!r}")
        self._child_tasks = one_of("child_tasks", child_tasks, ("isolated", "error", "join"))
        self._pooled = options.flag("pooled", pooled)
        self._pool_options = check_pool_options(
            {**pool_options},
            signature(Database).parameters,
            pooled=self._pooled,
            persistent=options.flag("persistent", persistent),
            name=target.label,
        )
        self._masked = target.masked
        self._label = self._pool_options["name"]
        self._named = bool(pool_options.get("name"))  # by the user; else the label is the address
        self._driver = load(
            ConnectConfig(
                target,
                fresh(check_connect_args(connect_args)),
                options.whole("statement_cache_size", statement_cache_size, least=0),
                same_values=one_of("values", values, ("same", "driver")) == "same",
                ask_password=self._get_password,
            )
        )
        know(self._driver)
        for name in getattr(self._driver, "reserved", ()):
            if name in self._driver.config.connect_args:
                raise ValueError(f"connect_args cannot have {name!r}: cenote needs it for itself")
        self._forget_statements()
        self._loop_databases = LoopDatabases(
            self._label, partial(LoopDatabase, self), self._release
        )
        self._observers: list[Observer] = []
        self._lanes = DatabaseLanes(self)
        self._connected = False  # a first connection was made
        registry.watch_unlisted(self)

    def __repr__(self) -> str:
        return f"<Database {self._masked}{' closed' if self._loop_databases.closed else ''}>"

    def __reduce__(self) -> Never:
        raise not_copied("Database")

    # -- statements ------------------------------------------------------------------------------

    async def prepare(self, sql: str, *, timeout: float | None = None) -> Statement:
        """Prepare a statement on the task's connection, which is pinned until it is closed.

        Args:
            sql: The statement, with `?` or `:name` where parameters belong.
            timeout: How long the preparation may take, in seconds; it does not bound the statement.

        Raises:
            StatementTimeoutError: The preparation took longer than `timeout`.
            Exception: The driver's own error, if the database refused the statement.
        """
        parsed, loop_db = await self._analyse(sql, {}), self._loop_databases.here()
        limit = limit_of(loop_db, parsed, timeout, gives="statement")
        return await prepare(await loop_db.bound_session(limit=limit), parsed, limit=limit)

    def _parse(self, sql: str) -> ParsedStatement:
        return self._statement_cache[sql]  # analyses what is new

    def _analyse(self, sql: str, parameters: Any) -> Awaitable[ParsedStatement]:
        return self._statement_cache.analyse(sql, parameters)

    def _run(self, method: str, sql: str, parameters: Any, timeout: float | None) -> Awaitable[Any]:
        loop_databases = self._loop_databases
        loop_db = loop_databases.get(running_loop())  # type: ignore[arg-type]
        if loop_db is None or loop_databases.closed:
            loop_db = loop_databases.here()
        parsed = self._known(sql)
        if parsed is None:
            if is_long(sql):
                return self._run_long(method, sql, parameters, timeout)
            parsed = self._statement_cache[sql]
        if timeout is None:
            work = loop_db.run(method, parsed, parameters)
        else:
            work = loop_db.run_within(timeout, method, parsed, parameters)
        return loop_db.observed(parsed.keyword, parsed.text, work) if self._observers else work

    async def _run_long(self, method: str, sql: str, parameters: Any, timeout: float | None) -> Any:
        parsed, loop_db = await self._analyse(sql, parameters), self._loop_databases.here()
        if timeout is None:
            work = loop_db.run(method, parsed, parameters)
        else:
            work = loop_db.run_within(timeout, method, parsed, parameters)
        return await loop_db.observed(parsed.keyword, parsed.text, work)

    async def _run_many(
        self, parsed: ParsedStatement, text: str, rows: list[Any] | Batches, timeout: float | None
    ) -> None:
        loop_db = self._loop_databases.here()
        limit = limit_of(loop_db, parsed, timeout)
        if rows:
            work = run_rows(limit, loop_db, parsed, text, rows)
            await loop_db.observed(parsed.keyword, parsed.text, work)
        elif (session := loop_db.session()) is not None:
            require_connection(session)  # with nothing to run, too: the transaction may be lost

    def _stream(
        self,
        parsed: ParsedStatement | None,
        text: str,
        arguments: Any,
        into: Any,
        timeout: float | None,
    ) -> Stream[Any]:
        return Stream(self, parsed, text, arguments, None, into, timeout)

    # -- transactions ----------------------------------------------------------------------------

    def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False
    ) -> Transaction:
        """Return a transaction: `async with db.transaction() as tx:`.

        It commits at the end of the block, and rolls back if the block raises. Inside another
        transaction of the task it is a savepoint.

        Args:
            isolation: "read uncommitted", "read committed", "repeatable read" or "serializable";
                None is the default of the server.
            read_only: True for a transaction that may only read.

        Raises:
            ValueError: There is no such level, or a savepoint was given `isolation` or `read_only`.
        """
        return Transaction(self, isolation, read_only)

    async def transact(
        self,
        function: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        attempts: int = 5,
        isolation: Isolation | None = None,
        read_only: bool = False,
    ) -> R:
        """Run a coroutine function in a transaction, and run it again after a conflict.

        A conflict is a serialization failure, a deadlock, or a lock that was not available: the
        transaction was rolled back because of another one. Before each further attempt there is a
        random pause, which grows. The function should do nothing outside the database that must not
        be done twice. Nothing is run again if the transaction, or a part of it, may have been
        committed.

        Args:
            function: Called with `args` for each attempt.
            args: Its arguments.
            attempts: How often it is tried, at most.
            isolation: As in `transaction()`.
            read_only: As in `transaction()`.

        Returns:
            What the function returned.

        Raises:
            Exception: What the function raised, or the conflict of the last attempt.
        """
        return await transact(
            self, self._driver, function, args,
            attempts=attempts, isolation=isolation, read_only=read_only,
        )  # fmt: skip

    async def begin(self, *, isolation: Isolation | None = None, read_only: bool = False) -> None:
        """Begin a transaction, which ends with `commit()` or `rollback()`, or with the task.

        Args:
            isolation: As in `transaction()`.
            read_only: As in `transaction()`.

        Raises:
            ConnectError: There is no connection, and none can be made.
        """
        await task_transaction.begin(self._loop_databases.here(), isolation, read_only)

    async def commit(self) -> None:
        """Commit the transaction that `begin()` began."""
        await task_transaction.commit(self._loop_databases.here())

    async def rollback(self) -> None:
        """Roll back everything, nested blocks too; the task goes on outside a transaction.
        After a commit() that raised there is nothing to do, and that is no error. After a
        `SessionLostError` the task goes on with a new session, as after `release()`."""
        await task_transaction.rollback(self._loop_databases.here())

    def lane(self, name: str, *, max_size: int | None = None, priority: int = 0) -> DatabaseLane:
        """Use a lane of the pool: `with db.lane("batch", max_size=3, priority=-1):`.

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
        return self._lanes.get(name, max_size, priority)

    def lanes(self) -> list[DatabaseLane]:
        """Every lane of this database, the oldest first."""
        return self._lanes.all()

    # -- notifications ---------------------------------------------------------------------------

    def listen(self, *channels: str, limit: int = 10_000) -> Listener:
        """Return an async iterator over the notifications on these channels (PostgreSQL).

        It survives a lost connection: after a new one is made, there is a notification of the kind
        `"reconnected"`, since some may have been missed. All listeners of an event loop share one
        connection of the pool.

        Args:
            channels: The names of the channels, at least one.
            limit: How many notifications are kept for a program that does not read them. With one
                more the iterator ends with a `PoolError`.

        Raises:
            TypeError: No channel is given.
            PoolError: The database has no notifications.
        """
        return new_listener(self, channels, limit)

    # -- the connection --------------------------------------------------------------------------

    def connection(self) -> ConnectionBlock:
        """`async with db.connection() as c:` gives the driver's own connection, behind a guard:
        after the block any use of it raises `NotAcquiredError`. The bare object, for what checks
        types in C, is `c.__wrapped__`."""
        return ConnectionBlock(self)

    async def release(self) -> None:
        """Reset the task's connection and return it to the pool now, before the task ends.

        After a `SessionLostError` the task goes on with a new session.

        Raises:
            PoolError: A transaction is open, or the connection is pinned otherwise.
        """
        session = self._loop_databases.here().session()
        if session is None:
            return
        if self.in_transaction or session.transactions or session.lost is not None:
            raise PoolError("release() inside a transaction: commit or roll back first")
        if session.blocks:
            raise PoolError("release() inside a connection() block: leave the block first")
        session.accept_session_loss()
        if session.turn.taken:
            await session.turn.wait()
            session.turn.give()
        if session.connection is not None:
            session.pins.end_all(session.connection, private=False)
        operation = session.give_back()
        if operation is not None:
            await operation.wait()

    @property
    def in_transaction(self) -> bool:
        """Whether the task is in a transaction; takes no connection and asks no server."""
        session = self._peek_session()
        return session is not None and session.in_transaction

    @property
    def bound_connection(self) -> Any:
        """The driver's own connection that the task holds, or None; takes none."""
        connection = self._peek()
        return None if connection is None else connection.raw

    @property
    def pin_reason(self) -> str | None:
        """Why the task's connection is pinned, or None."""
        session = self._peek_session()
        return None if session is None else session.pin_reason()

    def _peek(self) -> DriverConnection | None:
        session = self._peek_session()
        return None if session is None else session.connection

    def _peek_session(self) -> Session | None:
        loop = asyncio._get_running_loop()
        loop_db = None if loop is None else self._loop_databases.get(loop)
        return None if loop_db is None else loop_db.peek()

    @property
    def pool(self) -> Pool[DriverConnection] | Any:
        """The pool of the running event loop; None with `pooled=False`.

        Its declared type has `Any` in the place of None, so that programs with a pool need no
        check.

        Raises:
            RuntimeError: No event loop runs.
        """
        if not self._pooled:
            return None
        loop = asyncio._get_running_loop()
        if loop is None:
            raise RuntimeError(
                f"database {self._label}: db.pool is the pool of the running event loop, and none "
                f"is running here. Read it in a coroutine, such as the one given to asyncio.run()."
            )
        loop_db = self._loop_databases.get(loop)
        return (self._loop_databases.here() if loop_db is None else loop_db).pool

    @property
    def capabilities(self) -> frozenset[str]:
        """What the driver can do, such as `reset`, `prepare` and `cancel`."""
        return self._driver.capabilities

    @property
    def closed(self) -> bool:
        """Whether it was closed, and not opened again; while it drains it is not yet."""
        return self._loop_databases.closed

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call a function when a statement begins.

        Args:
            observer: Called with the operation, such as `SELECT`, and the text of the statement. If
                it returns a function, that is called at the end, with the error or None.

        Returns:
            A function that removes the observer.
        """
        options.function("observer", observer)
        observers = self._observers
        observers.append(observer)

        def unobserve() -> None:
            observers[:] = [each for each in observers if each is not observer]

        return unobserve

    # -- opening and closing ---------------------------------------------------------------------

    async def open(self) -> None:
        """Make `min_size` connections now, at least one, so that wrong settings show at the start.

        A database that was closed is open again, in this and in all other event loops; a close that
        is under way is waited for first. Raises `ConnectError`, or what else was raised instead of
        a connection; then nothing is left behind, and it may be opened again.
        """
        await self._loop_databases.open()

    async def close(self, *, drain: float | None = None) -> None:
        """Close the pools of all event loops; later use raises `PoolClosedError`, until `open()`.

        Args:
            drain: Seconds in which what is under way may come to its end: tasks go on with the
                connections that they hold, those that wait are served, and new acquires raise
                `PoolClosedError`. None does not wait.
        """
        patience = 0.0 if drain is None else options.duration("drain", drain)
        await self._loop_databases.close(patience)

    def _release(self) -> None:
        """All loops are closed: let go of what they shared."""
        self._driver.close()
        self._statement_cache.forget()  # something may keep this object for a while

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except (Exception, BaseExceptionGroup) as raised:
            if error is None:
                raise
            log(WARNING, "%s: not closed in order", self._label, error=raised)

    def after_fork(self) -> object:
        """In the child: the connections stay the parent's, and are left alone."""
        loop_databases, self._loop_databases = self._loop_databases, self._loop_databases.heir()
        self._forget_statements()  # another thread may have been in the middle of them
        return (
            loop_databases,
            [each.disown() for each in loop_databases.values()],
            self._driver.after_fork(),
        )

    def _forget_statements(self) -> None:
        self._statement_cache = StatementCache(self._driver)
        # What is known of a text that was analysed before, or None.
        self._known: Callable[[str], ParsedStatement | None] = self._statement_cache.get

    def _note_connection(self) -> None:
        """A first connection is made: it is too late to register functions."""
        self._connected = True

    async def _get_password(self) -> Secret | None:
        return await ask_password(self._password)

    # -- functions of an embedded database -------------------------------------------------------

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        """Add a function to every connection, as `create_function()` of `sqlite3` does.

        Args:
            name: What SQL calls it.
            narg: The number of its arguments; -1 for any.
            func: What is called; None removes it.
            deterministic: True if the same arguments always give the same result.

        Raises:
            PoolError: The database is not SQLite.
        """
        self._register("create_function", name, narg, func, deterministic=deterministic)

    def create_aggregate(self, name: str, n_arg: int, aggregate_class: type | None) -> None:
        """Add an aggregate to every connection, as `create_aggregate()` of `sqlite3` does.

        Args:
            name: What SQL calls it.
            n_arg: The number of its arguments; -1 for any.
            aggregate_class: A class with `step()` and `finalize()`; None removes it.

        Raises:
            PoolError: The database is not SQLite.
        """
        self._register("create_aggregate", name, n_arg, aggregate_class)

    def create_collation(self, name: str, callable: Callable[[str, str], int] | None) -> None:
        """Add a collation to every connection, as `create_collation()` of `sqlite3` does.

        Args:
            name: What SQL calls it.
            callable: Compares two strings: negative, 0 or positive; None removes it.

        Raises:
            PoolError: The database is not SQLite.
        """
        self._register("create_collation", name, callable)

    def _register(self, method: str, *arguments: Any, **more: Any) -> None:
        register = getattr(self._driver, "register", None)
        if register is None:
            raise PoolError(f"{method}() is for SQLite: this database runs its functions itself")
        if self._connected:
            raise RuntimeError(
                f"{method}() must be called before the first connection is made, "
                f"so that every connection has it"
            )
        register(method, arguments, more)
