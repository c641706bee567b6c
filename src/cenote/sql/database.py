"""`cenote.Database`: one object that all tasks share; each task has a connection of its own."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from inspect import CORO_CREATED, getcoroutinestate, signature
from logging import WARNING
from types import CoroutineType, TracebackType
from typing import Any, Literal, Self, TypeVar, TypeVarTuple, Unpack

from .. import errors, options
from ..errors import PoolError
from ..hooks import is_awaitable
from ..log import log
from ..options import CommonOptions, Settings
from ..pool import Pool, registry
from .dialects import Isolation
from .driver import Arguments, ConnectConfig, DriverConnection
from .guard import ConnectionBlock
from .loading import fresh, load
from .parsing.statements import ParsedStatement, StatementCache
from .per_loop import LoopDatabase
from .prepared import Statement, prepare
from .session import Session
from .streams import Stream
from .transact import transact
from .transaction import Transaction
from .url import Secret, is_text, parse
from .verbs import TextVerbs

HOOKS = ("factory", "destructor", "healthcheck", "before_acquire", "before_release")
POOL_OPTIONS = CommonOptions.__optional_keys__
ACQUIRE_TIMEOUT = 30.0  # seconds, unless given
LOOK_AGAIN = 0.1  # seconds after which the loop of another thread may have ended

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop

Observer = Callable[[str, str], Callable[[BaseException | None], object] | None]


class Database(TextVerbs):
    """A template of connections and the pool of them, for every task of the program.

    Constructing it opens nothing. See `docs/database.md` for what you may rely on,
    `docs/reference/options.md` for every option; those of `Pool` but its hooks work as well.
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
        child_tasks: Literal["isolated", "error"] = "isolated",
        pooled: bool = True,
        persistent: bool = False,
        **pool_options: Unpack[CommonOptions],
    ) -> None:
        target = parse(url)
        self._on_connect = options.optional_function("on_connect", on_connect)
        self._password = _check_password(password, target.password)
        self._reset = _one_of("reset", reset, ("auto", "always", "never"))
        self._ping_after_idle = options.number("ping_after_idle", ping_after_idle)
        if self._ping_after_idle < 0:
            raise ValueError(f"ping_after_idle must be 0 or more seconds, not {ping_after_idle!r}")
        self._child_tasks = _one_of("child_tasks", child_tasks, ("isolated", "error"))
        self._pooled = options.flag("pooled", pooled)
        self._pool_options = _check_pool_options(
            {**pool_options},
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
                fresh(_check_connect_args(connect_args)),
                options.whole("statement_cache_size", statement_cache_size, least=0),
            )
        )
        for name in getattr(self._driver, "reserved", ()):
            if name in self._driver.config.connect_args:
                raise ValueError(f"connect_args cannot have {name!r}: cenote needs it for itself")
        self._driver.ask_password = self._get_password
        self._forget_statements()
        self._loop_databases: dict[asyncio.AbstractEventLoop, LoopDatabase] = {}
        self._observers: tuple[Observer, ...] = ()
        self._connected = False  # a first connection was made
        self._closed = False
        registry.watch_unlisted(self)

    def __repr__(self) -> str:
        return f"<Database {self._masked}{' closed' if self._closed else ''}>"

    # -- statements ------------------------------------------------------------------------------

    async def prepare(self, sql: str) -> Statement:
        """Prepare a statement on the task's connection, which is pinned until it is closed."""
        parsed = self._parse(sql)
        return await prepare(await self._loop_database().bound_session(), parsed)

    def _parse(self, sql: str) -> ParsedStatement:
        return self._statement_cache[sql]  # analyses what is new

    def _run(self, method: str, sql: str, parameters: Any) -> Awaitable[Any]:
        loop_db = self._loop_databases.get(running_loop())  # type: ignore[arg-type]
        if loop_db is None or self._closed:
            loop_db = self._loop_database()
        parsed = self._statement_cache[sql]
        work = loop_db.run(method, parsed, parameters)
        return loop_db.observed(parsed.keyword, parsed.text, work) if self._observers else work

    async def _run_many(self, parsed: ParsedStatement, text: str, rows: list[Any]) -> None:
        loop_db = self._loop_database()
        if rows:
            work = self._run_rows(loop_db, parsed, text, rows)
            await loop_db.observed(parsed.keyword, parsed.text, work)
        elif (session := loop_db.session()) is not None:
            session.require_connection()  # with nothing to run, too: the transaction may be lost

    async def _run_rows(
        self, loop_db: LoopDatabase, parsed: ParsedStatement, text: str, rows: list[Any]
    ) -> None:
        session = await loop_db.bound_session()
        await session.run(lambda connection: connection.execute_many(text, rows), parsed)

    def _stream(
        self, parsed: ParsedStatement, text: str, arguments: Arguments, into: Any
    ) -> Stream[Any]:
        return Stream(self, parsed, text, arguments, None, into)

    # -- transactions ----------------------------------------------------------------------------

    def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False
    ) -> Transaction:
        """`async with db.transaction() as tx:`; inside another one it is a savepoint."""
        return Transaction(self, isolation, read_only)

    async def transact(
        self,
        function: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        attempts: int = 5,
        isolation: Isolation | None = None,
        read_only: bool = False,
    ) -> R:
        """Run a coroutine function in a transaction, and again after a conflict.

        A conflict is a serialization failure, a deadlock or a lock that was not to be had: the
        transaction was rolled back because of another one. The function is called with `args` for
        each attempt, after a pause that grows and is drawn at random; it should do nothing that
        must not be done twice outside the database. Nothing is run again if it is not known whether
        the transaction was committed.

        Args:
            attempts: How often it is tried, at most.

        Returns what the function returned. Raises what it raised, or the last conflict.
        """
        return await transact(
            self, self._driver, function, args,
            attempts=attempts, isolation=isolation, read_only=read_only,
        )  # fmt: skip

    async def begin(self, *, isolation: Isolation | None = None, read_only: bool = False) -> None:
        """Begin a transaction that ends with commit() or rollback(), or with the task."""
        loop_db = self._loop_database()
        session = loop_db.session()
        if session is not None and session.lost is None and self.in_transaction:
            raise PoolError(
                "a transaction is open already: commit() or rollback() it first, "
                "or use `async with db.transaction()` for a savepoint"
            )
        loop_db.refused.discard(loop_db.current_task())
        await Transaction(self, isolation, read_only).start()

    async def commit(self) -> None:
        """Of the transaction that `begin()` began."""
        session = self._session_in_transaction("commit")
        if session.lost is not None:
            raise session.lost.error()  # and so on, until rollback() or the end of the block
        transaction = session.transactions[-1] if session.transactions else None
        if transaction is not None and transaction.is_block:
            raise PoolError("inside a transaction() block: leave the block to commit")
        try:
            if transaction is not None:
                await transaction.commit()
            else:
                session.require_alive()
                parsed = self._parse("COMMIT")
                if not await self._commit_raw(session, parsed):
                    raise errors.transaction_lost(
                        "rolled_back", "a statement in it had failed, so the server rolled back"
                    )
        except Exception:
            session.loop_db.refused.add(session.task)
            raise

    async def _commit_raw(self, session: Session, parsed: ParsedStatement) -> bool:
        try:
            return await session.run_observed(lambda connection: connection.commit(), parsed)
        except Exception as error:
            lost = session.lost
            if lost is None or lost.cause is not error:
                raise
            session.accept_loss()  # it is over: the task goes on with another connection
            session.hold_or_give_back()
            raise lost.error() from error

    async def rollback(self) -> None:
        """Of everything, also inside of nested blocks; the task goes on outside a transaction.
        After a commit() that raised there is nothing to do, and that is no error. After a
        `SessionLostError` the task goes on with a new session, as after `release()`."""
        refused, task = self._loop_database().refused, self._loop_database().current_task()
        held = self._loop_database().session()
        if held is not None and held.lost_session is not None and held.lost is None:
            held.accept_session_loss()
            held.hold_or_give_back()
            return
        try:
            session = self._session_in_transaction("roll back")
        except PoolError:
            if task not in refused:
                raise
            refused.discard(task)
            return
        if session.transactions:
            outermost, *inner = session.transactions
            del session.transactions[1:]
            for each in inner:
                each.rolled_back_by(task)
            try:
                await outermost.rollback()
            finally:
                outermost.rolled_back_by(task)
            return
        lost = session.lost
        session.accept_loss()
        if (
            session.connection is not None and session.connection.is_dead
        ):  # its server has rolled it back
            session.drop_connection(ConnectionError("the connection was lost before ROLLBACK"))
        if session.connection is None:
            session.hold_or_give_back()
        elif lost is None or session.connection.in_transaction:
            session.changes.roll_back()
            await session.run_observed(
                lambda connection: connection.rollback(), None, verb="ROLLBACK"
            )

    def _session_in_transaction(self, verb: str) -> Session:
        session = self._loop_database().session()
        if session is not None and (
            session.transactions
            or session.lost is not None
            or (session.connection is not None and session.refresh(session.connection))
        ):
            return session
        raise PoolError(f"no transaction is open in this task: there is nothing to {verb}")

    # -- the connection --------------------------------------------------------------------------

    def connection(self) -> ConnectionBlock:
        """`async with db.connection() as c:` gives the driver's own connection, behind a guard:
        after the block any use of it raises `NotAcquiredError`. The bare object, for what checks
        types in C, is `c.__wrapped__`."""
        return ConnectionBlock(self)

    async def release(self) -> None:
        """Reset and return the task's connection early. After a `SessionLostError` the task goes on
        with a new session."""
        session = self._loop_database().session()
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
    def pool(self) -> Pool[DriverConnection] | None:
        """The pool of the running loop; None if `pooled=False`."""
        if not self._pooled:
            return None
        loop = asyncio._get_running_loop()
        if loop is None:
            raise RuntimeError(
                f"database {self._label}: db.pool is the pool of the running event loop, and none "
                f"is running here. Read it in a coroutine, such as the one given to asyncio.run()."
            )
        loop_db = self._loop_databases.get(loop)
        return (self._loop_database() if loop_db is None else loop_db).pool

    @property
    def capabilities(self) -> frozenset[str]:
        """What the driver can do, such as `reset`, `prepare` and `cancel`."""
        return self._driver.capabilities

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call this when a statement begins, with its operation (such as SELECT) and its text; what
        it returns, if anything, is called at the end, with the error or None. Returns the function
        that ends it."""
        options.function("observer", observer)
        self._observers += (observer,)

        reference = weakref.ref(self)

        def unobserve() -> None:
            database = reference()
            if database is not None:
                before = database._observers
                database._observers = tuple(each for each in before if each is not observer)

        return unobserve

    # -- opening and closing ---------------------------------------------------------------------

    async def open(self) -> None:
        """Connect `min_size` connections now, at least one: wrong settings show at the start.

        Raises what connecting raised; then nothing is left behind, and it may be opened again.
        """
        await self._loop_database().pool._open_with(1)

    async def close(self) -> None:
        """Close the pools of all event loops, for good."""
        self._closed = True
        here = asyncio.get_running_loop()
        elsewhere = []
        for loop, loop_db in [*self._loop_databases.items()]:
            if loop is here:
                continue
            del self._loop_databases[loop]
            elsewhere.append(self._close_elsewhere(loop, loop_db))
        loop_db_here = self._loop_databases.get(here)
        try:
            if loop_db_here is not None:
                await loop_db_here.close()
        finally:
            for outcome in await asyncio.gather(*elsewhere, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    log(WARNING, "%s: closing in another loop failed: %r", self._label, outcome)
            self._driver.close()
            self._statement_cache.forget()  # something may keep this object for a while

    async def _close_elsewhere(
        self, loop: asyncio.AbstractEventLoop, loop_db: LoopDatabase
    ) -> None:
        """In its own loop; if that has ended, or ends before it comes to it, from here."""
        done: Future[None] = Future()
        closing: list[asyncio.Task[None]] = []

        def begin() -> None:
            closing.append(loop.create_task(loop_db.close()))
            closing[0].add_done_callback(lambda _: done.set_result(None))

        stopped = 0  # at how many looks: between the steps of its end it does not run, either
        try:
            loop.call_soon_threadsafe(begin)
            while stopped < 2 and not done.done() and not loop.is_closed():
                await asyncio.wait([asyncio.wrap_future(done)], timeout=LOOK_AGAIN)
                stopped = 0 if loop.is_running() else stopped + 1
        except RuntimeError:
            pass  # it is closed
        if not done.done():
            loop_db.forsake()
            for task in closing:
                if loop.is_closed():
                    _forget(task)

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
        loop_databases, self._loop_databases = self._loop_databases, {}
        self._forget_statements()  # another thread may have been in the middle of them
        return (
            loop_databases,
            [each.disown() for each in loop_databases.values()],
            self._driver.after_fork(),
        )

    def _forget_statements(self) -> None:
        self._statement_cache = StatementCache(self._driver)

    def _loop_database(self) -> LoopDatabase:
        if self._closed:
            raise errors.database_closed(self._label)
        loop = asyncio._get_running_loop()
        loop_db = self._loop_databases.get(loop)  # type: ignore[arg-type]
        return self._new_loop_database() if loop_db is None else loop_db

    def _new_loop_database(self) -> LoopDatabase:
        loop = asyncio.get_running_loop()
        for other, loop_db in [*self._loop_databases.items()]:
            if other.is_closed():
                self._loop_databases.pop(other, None)
                loop_db.forsake()
        loop_db = self._loop_databases[loop] = LoopDatabase(self, loop)
        return loop_db

    def _leave(self, loop_db: LoopDatabase) -> None:
        """Its loop goes down."""
        if self._loop_databases.get(loop_db.loop) is loop_db:
            del self._loop_databases[loop_db.loop]

    async def _get_password(self) -> Secret | None:
        password = self._password
        if password is None or not callable(password.reveal()):
            return password
        value = password.reveal()()
        if is_awaitable(value):
            value = await value
        if not isinstance(value, str):
            raise TypeError(f"password() must return a string, not {type(value).__name__}")
        return _sendable(value)

    # -- functions of an embedded database -------------------------------------------------------

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        """As in `sqlite3`, on every connection."""
        self._register("create_function", name, narg, func, deterministic=deterministic)

    def create_aggregate(self, name: str, n_arg: int, aggregate_class: type | None) -> None:
        """As in `sqlite3`, on every connection."""
        self._register("create_aggregate", name, n_arg, aggregate_class)

    def create_collation(self, name: str, callable: Callable[[str, str], int] | None) -> None:
        """As in `sqlite3`, on every connection."""
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


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")
    return str(value)


def _check_password(password: Any, of_url: Secret | None) -> Secret | None:
    if password is None:
        return of_url
    if not isinstance(password, str) and not callable(password):
        raise TypeError("password must be a string or a callable that returns one")
    return _sendable(password) if isinstance(password, str) else Secret(password)


def _sendable(password: str) -> Secret:
    if not is_text(password):
        raise ValueError("password has a null or half a character, which no server takes")
    return Secret(password)


def _check_connect_args(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError("connect_args must be a mapping from names to values")
    return dict(given)


def _check_pool_options(
    given: dict[str, Any], *, pooled: bool, persistent: bool, name: str
) -> dict[str, Any]:
    hooks = [hook for hook in HOOKS if hook in given]
    if hooks:
        raise TypeError(
            f"Database() has hooks of its own and does not take {', '.join(hooks)}; "
            f"on_connect runs on each new connection"
        )
    if persistent and pooled:
        raise ValueError("persistent=True is for pooled=False: a pool keeps its connections open")
    if not pooled:
        sizes = [size for size in ("min_size", "max_size", "max_uses") if size in given]
        if sizes:
            raise ValueError(f"{', '.join(sizes)} cannot be given with pooled=False")
        given["max_size"] = 1
        if not persistent:
            given["max_uses"] = 1
    complete = {"acquire_timeout": ACQUIRE_TIMEOUT, **given, "name": given.get("name") or name}
    unknown = [option for option in complete if option not in POOL_OPTIONS]
    if unknown:
        known = POOL_OPTIONS.union(signature(Database).parameters) - {"url", "pool_options"}
        raise options.unknown("Database()", unknown, known)
    Settings.check(object, complete)  # each event loop gets a pool of its own
    return complete


def _forget(task: asyncio.Task[None]) -> None:
    """It came too late for the last step of its loop: nobody is to be warned of that."""
    coroutine = task.get_coro()
    if isinstance(coroutine, CoroutineType) and getcoroutinestate(coroutine) == CORO_CREATED:
        coroutine.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as gather() does
