"""A database in one event loop: its pool, the hooks of that pool, and the sessions of tasks."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Coroutine
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from logging import DEBUG, ERROR
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from .._fast import Acquire
from ..breaker import ConsecutiveFailures
from ..caller import user_stacklevel
from ..errors import PoolError, StatementTimeoutError, TransactionScopeWarning
from ..log import log
from ..loop_end import at_loop_end
from ..observe import task_name
from ..options import UNSET, Unset
from ..pool import Pool
from . import messages
from .connecting import connect_timeout, words_for
from .connection_hooks import ConnectionHooks
from .driver import Arguments, Driver, DriverConnection
from .fastpath import is_ready, run_statement
from .listen import Listening
from .losses import lost_by_closing
from .parsing.statements import ParsedStatement, without_rows
from .scope import acting_task, forget_scope, open_transactions, scope
from .session import Session
from .states import ConnectionState
from .time_limits import TimeLimit
from .verdict import judge_first, survives

if TYPE_CHECKING:
    from ..pool import Lane
    from .database import Database
    from .lanes import DatabaseLane
    from .scope import AnyTransaction
    from .transaction import Transaction

R = TypeVar("R")

GIVING_BACK = 0.5  # seconds after a drain, in which connections of tasks that were unbound return
LAST_MOMENTS = 2.0  # seconds for a proper end when the loop goes down

FIRST, LAST = "first", "last"  # attempts to run a statement


def breaker() -> ConsecutiveFailures:
    """Return the circuit breaker that a database has unless another one, or None, is given."""
    return ConsecutiveFailures(
        5, recovery_timeout=1.0, success_threshold=1, max_recovery_timeout=15.0
    )


class LoopDatabase:
    """What a `Database` is in one event loop.

    Args:
        database: The database.
        loop: The event loop.
        stand_in: What connects in place of the driver.
        sizes: `min_size` and `max_size`, if they are not those of the database.
    """

    def __init__(
        self,
        database: Database,
        loop: asyncio.AbstractEventLoop,
        stand_in: Driver | None = None,
        **sizes: int,
    ) -> None:
        self.database: Database = database
        self.label: str = database._label
        self.driver: Driver = stand_in or database._driver
        self.doubtful: Container[str] = self.driver.dialect.rules.doubtful
        self.loop: asyncio.AbstractEventLoop = loop
        self.sessions: dict[Any, Session] = {}  # task -> what it holds over several statements
        self.private: set[Session] = set()  # of streams
        self.joined: dict[Any, Transaction] = {}  # task -> the transaction of another
        self.orders: set[asyncio.Task[None]] = set()  # that tell the server to stop a statement
        self.refused: WeakSet[Any] = WeakSet()  # tasks whose commit() has failed
        # While observers are called at the beginning of a statement: whose connection it uses.
        self.observed_task: Any = None
        self.over: bool = False
        self.closed: bool = False  # by the program; over is also what ends with its loop
        self.disowned: bool = False  # this is a forked child, and all of it is the parent's
        self.hooks: ConnectionHooks = ConnectionHooks(self)
        self.time: Callable[[], float] = self.hooks.time
        self.reset_always: bool = self.hooks.reset_always
        self.listening: Listening = Listening(self)
        self._children_join = database._child_tasks == "join"
        self._guard: AsyncGenerator[None, None] | None = None
        pool_options: dict[str, Any] = {**database._pool_options, **sizes}
        if stand_in is not None:
            pool_options.pop("fleet", None)  # nothing is connected
        if "strategy" not in pool_options:
            fleet = pool_options.get("fleet")
            strategy = None if fleet is None else fleet.strategy()
            pool_options["strategy"] = breaker() if strategy is None else strategy
        self.pool: Pool[DriverConnection] = Pool(
            self.hooks.connect,
            destructor=self.hooks.disconnect,
            healthcheck=self.hooks.ping,
            before_acquire=self.hooks.before_acquire,
            before_release=self.hooks.before_release,
            **pool_options,
        )
        target = self.driver.config.target
        self.pool._word(words_for(target))
        self.pool._word_create_timeout(partial(connect_timeout, self.label, target))
        self.pool._skip_check_within(self.hooks.unchecked_for)
        if self.driver.marked_statement is not None:
            self.pool._count_marked(self.hooks.count_marked)
        # Bound once, for every statement.
        self.acquire: Callable[..., Acquire[DriverConnection]] = self.pool.acquire
        self._lanes: dict[str, Lane[DriverConnection]] = {}
        if database._lanes:
            self.use_lanes()
        self.release_clean: Callable[[DriverConnection], Any] = self.pool._release_clean

    @property
    def connections(self) -> set[DriverConnection]:
        """All that are open."""
        return self.hooks.connections

    # -- lanes -----------------------------------------------------------------------------------

    def use_lanes(self) -> None:
        """Look from now on whether a task that takes a connection is in a lane."""
        self.acquire = self._acquire_in_lane

    def lane(self, lane: DatabaseLane) -> Lane[DriverConnection]:
        """That lane in the pool of this loop."""
        known = self._lanes.get(lane.name)
        if known is None:
            known = self.pool.lane(lane.name, max_size=lane.max_size, priority=lane.priority)
            self._lanes[lane.name] = known
        return known

    def _acquire_in_lane(self, timeout: float | Unset | None = UNSET) -> Acquire[DriverConnection]:
        lane = self.database._lanes.entered()
        return (self.pool if lane is None else self.lane(lane)).acquire(timeout)

    # -- who holds what --------------------------------------------------------------------------

    def current_task(self) -> Any:
        task = acting_task(self)
        if task is None:
            raise RuntimeError("a Database can only be used in a task, and no task is running")
        return task

    def session(self) -> Session | None:
        """What the running task holds; complains about tasks started inside a transaction."""
        return self.session_of(acting_task(self))

    def session_of(self, task: Any) -> Session | None:
        """The same of this task, which is the acting one."""
        session = self.sessions.get(task)
        if session is not None:
            return session
        if self.joined and (transaction := self.joined.get(task)) is not None:
            return transaction._open_session()
        if scope.get() is not None:
            if (
                self.database._loop_databases.left_behind
                and (session := lost_by_closing(self, task)) is not None
            ):
                return session
            if self._children_join:
                started_in = self._started_in()
                return None if started_in is None else started_in._open_session()
            self._check_scope(task)
        return None

    def peek(self) -> Session | None:
        """The same, without complaining."""
        task = acting_task(self)
        session = self.sessions.get(task)
        if session is None and (transaction := self.joined_by(task)) is not None:
            return transaction._session if transaction.is_open else None
        return session

    def joined_by(self, task: Any) -> AnyTransaction | None:
        """The transaction of another task in which the statements of the running one take part: by
        `join()`, or because it was started inside, with `child_tasks="join"`."""
        joined = self.joined.get(task)
        if joined is None and self._children_join and task not in self.sessions:
            return self._started_in()
        return joined

    def _started_in(self) -> AnyTransaction | None:
        """The innermost transaction of this database that was open where the running task was
        started, and still is."""
        return next((each for each in open_transactions() if each.is_of(self)), None)

    def _check_scope(self, task: Any) -> None:
        transaction = self._started_in()
        if transaction is None:
            return
        text = (
            f"task {task_name(task)!r} was started inside the transaction of task "
            f"{transaction.task_name!r} and uses the database outside of it, on a connection "
            f"of its own. To share the transaction use its handle: tx.execute() or "
            f'async with tx.join(); or give the database child_tasks="join".'
        )
        if self.database._child_tasks == "error":
            raise TransactionScopeWarning(text)
        forget_scope(self)  # once for each task
        warnings.warn(TransactionScopeWarning(text), stacklevel=user_stacklevel(sys._getframe()))

    async def bound_session(
        self, *, private: bool = False, limit: TimeLimit | None = None
    ) -> Session:
        """The task's session, or a new one; a private one is always new."""
        if not private and (session := self.session()) is not None:
            return session
        return await self.new_session(private=private, limit=limit)

    async def new_session(
        self, *, private: bool = False, limit: TimeLimit | None = None
    ) -> Session:
        task = self.current_task()
        claim = self.acquire() if limit is None else self._acquire_within(limit)
        connection = await claim
        return self.bind(connection, claim, task, private=private)

    def _acquire_within(self, limit: TimeLimit) -> Acquire[DriverConnection]:
        timeout = self.database._pool_options["acquire_timeout"]
        return self.acquire(limit.left if timeout is None else min(limit.left, timeout))

    def bind(
        self, connection: DriverConnection | None, claim: Any, task: Any, *, private: bool = False
    ) -> Session:
        """Return a new session that holds this connection for a task; `private`: for a stream."""
        # Closed while the statement ran: it is not kept.
        session = Session(self, connection, claim, task, private=private, ended=self.over)
        if private:
            self.private.add(session)
        else:
            self.sessions[task] = session
        return session

    def unbind(self, session: Session) -> None:
        if session.private:
            self.private.discard(session)
        if self.sessions.get(session.task) is session:
            del self.sessions[session.task]

    # -- statements ------------------------------------------------------------------------------

    def run(
        self, method: str, parsed: ParsedStatement, parameters: Any
    ) -> Coroutine[Any, Any, Any]:
        """Return what runs one statement of the running task, which awaits it at once, by this
        method of a connection: that of its session, or one that is taken from the pool for it."""
        if self.sessions and parsed.only_data:
            session = self.sessions.get(acting_task(self))
            if (
                session is not None and (blocks := session.transactions)
                and blocks[-1].task is session.task and is_ready(session)
            ):  # fmt: skip
                return run_statement(session, method, parsed, parameters)
        return self._run(method, parsed, parameters)

    async def _run(self, method: str, parsed: ParsedStatement, parameters: Any) -> Any:
        """The same without the fast path.

        A connection that was dead when it was handed out is replaced once: nothing was sent on it.
        """
        if parameters is None:
            text, arguments = parsed.text, None
        else:
            text, arguments = parsed.bind(parameters)
        if self.sessions or self.joined or scope.get() is not None:
            session = self.session()
            if session is not None:
                return await self._run_in(session, method, parsed, text, arguments)
        for attempt in (FIRST, LAST):
            claim = self.acquire()
            connection: DriverConnection = await claim
            try:
                result = await getattr(connection, method)(text, arguments)
            except BaseException as error:
                self.failed(connection, claim, parsed, error)
                if parameters is None and not connection.broken:
                    parsed.note_missing(error)
                if attempt is LAST or not self.driver.is_unsent(error):
                    raise
            else:
                if parsed.touches is not None or self.reset_always or connection.in_transaction:
                    self.keep(connection, claim, parsed)
                else:
                    connection.last_heard = self.time()
                    self.release_clean(connection)
                return result
        raise AssertionError("the last attempt returns or raises")

    async def run_within(
        self, timeout: float, method: str, parsed: ParsedStatement, parameters: Any
    ) -> Any:
        """The same for a statement that has a timeout."""
        limit = TimeLimit(self, parsed, timeout)
        text, arguments = parsed.bind(parameters)
        session = await self.bound_session(limit=limit)
        return await limit.bound(
            self._run_in(session, method, parsed, text, arguments, limit=limit)
        )

    async def _run_in(
        self,
        session: Session,
        method: str,
        parsed: ParsedStatement,
        text: str,
        arguments: Arguments,
        *,
        limit: TimeLimit | None = None,
    ) -> Any:
        if session.lost is not None and parsed.control == "rollback":
            await self.database.rollback()
            return without_rows(method)
        call = parsed.call(method, text, arguments)
        try:
            return await session.run(call if limit is None else limit.guard(call), parsed)
        except Exception as error:
            if arguments is None and session.connection is not None:
                parsed.note_missing(error)
            raise

    def observed(
        self,
        operation: str,
        text: str,
        work: Coroutine[Any, Any, R],
        session: Session | None = None,
    ) -> Awaitable[R]:
        """The work, with the observers of statements notified, if there are any. `session`: in
        which it runs, if that is not the one of the running task."""
        return self._notify(operation, text, work, session) if self.database._observers else work

    async def _notify(
        self, operation: str, text: str, work: Awaitable[R], session: Session | None
    ) -> R:
        observers = [*self.database._observers]
        session = session or self.peek()
        held = None if session is None else session.claim
        self.observed_task = asyncio.current_task(self.loop) if held is None else held.task
        begun = [self._call_observer(each, operation, text) for each in observers]
        self.observed_task = None
        error: BaseException | None = None
        try:
            return await work
        except BaseException as raised:
            error = raised
            raise
        finally:
            for end in reversed(begun):
                if end is not None:
                    self._call_observer(end, error)
            del error  # no cycle through this frame

    def _call_observer(self, observer: Callable[..., Any], *what: Any) -> Any:
        try:
            return observer(*what)
        except Exception as error:
            log(ERROR, "%s: an observer of statements failed", self.label, error=error)

    def failed(
        self,
        connection: DriverConnection,
        claim: Any,
        parsed: ParsedStatement,
        error: BaseException,
    ) -> None:
        """After a statement that raised: destroy its connection if it is lost, else keep it."""
        if not survives(self, connection, error, reads_only=False):
            self.discard(connection, error)
        else:
            self.keep(connection, claim, parsed, failed=True)

    def keep(
        self,
        connection: DriverConnection,
        claim: Any,
        parsed: ParsedStatement,
        *,
        failed: bool = False,
    ) -> None:
        """Pinned, or given back."""
        session = self.bind(connection, claim, self.current_task())
        judge_first(session, connection, parsed, failed=failed)

    # -- giving back -----------------------------------------------------------------------------

    def give_back(self, connection: DriverConnection | None) -> Any:
        """Return a connection to the pool, or destroy it if no reset can make it like new."""
        if connection is None:
            return None
        if connection.is_stuck():
            connection.jam()
        reset = (connection.touched or self.reset_always) and self.database._reset != "never"
        if connection.broken or (reset and (connection.lasting or not connection.can_reset)):
            return self.pool.discard(connection)  # no failure: that is how it is with this one
        return self.pool.release(connection)

    def discard(self, connection: DriverConnection, error: BaseException | None) -> None:
        """Destroy it; a lost connection is a failure for the breaker, a cancellation is none."""
        connection.mark_broken()
        lost = (
            isinstance(error, Exception)
            and (not isinstance(error, PoolError) or isinstance(error, StatementTimeoutError))
            and connection.state is not ConnectionState.STUCK
        )
        if lost:
            self.hooks.suspect_idle()
        if isinstance(error, GeneratorExit):  # in any thread, at any moment
            self.pool._from_finalizer(partial(self.pool.discard, connection))
        else:
            self.pool.discard(connection, error if lost else None)

    def gone(self) -> PoolError:
        if self.closed:
            return messages.database_closed(self.label)
        return messages.transaction_over()

    def post(self, step: Callable[[], object]) -> None:
        """From a finalizer: in any thread, at any moment."""
        if not self.disowned and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(step)

    # -- the end ---------------------------------------------------------------------------------

    def end(self) -> None:
        """What `close()` begins with: nothing new is run, and every task is unbound."""
        self.over = self.closed = True
        self.end_sessions()

    def end_sessions(self) -> None:
        """Unbind every task: what is quiet goes back, the rest at the end of its statement."""
        for session in [*self.sessions.values(), *self.private]:
            session.end()
        for task, transaction in self.joined.items():
            if not task.done():
                self.database._loop_databases.leave_behind(task, transaction)
        self.joined.clear()
        self.listening.end()

    async def close(self, patience: float = 0.0) -> None:
        """Drain for so many seconds, then unbind every task and close the pool."""
        draining: asyncio.Task[None] | None = None
        try:
            if patience:
                self.listening.end()  # it would hold its connection to the end
                # Longer than it may take: at its end the tasks are unbound first.
                work = self.pool.close(drain=patience + GIVING_BACK)
                draining = asyncio.create_task(work)
                await asyncio.wait([draining], timeout=patience)
        finally:
            self.end()
            await self.listening.close()
            try:
                await self.pool.close()
            finally:
                if draining is not None:
                    await draining
                guard = self._guard
                if guard is not None and not self.connections:  # else it sees to the busy ones
                    await guard.aclose()

    def forsake(self) -> None:
        """The loop is gone, or does not run: close without waiting for anything."""
        self.over = self.closed = True
        self.sessions.clear()
        self.private.clear()
        self.joined.clear()
        self.pool._forsake()
        for connection in self.connections:
            connection.terminate()
            connection.mark_closed()
        self.connections.clear()

    def disown(self) -> object:
        """In a forked child: nothing of it is used, closed or finalized."""
        self.over = self.disowned = True
        kept = [session.disown() for session in [*self.sessions.values(), *self.private]]
        kept += [self.sessions, self.private, self.joined, self.hooks.disown(), self._guard, self]
        self.sessions, self.private, self.joined = {}, set(), {}
        return kept

    @property
    def watches_loop(self) -> bool:
        """Whether there is a last moment in which connections are closed when the loop ends."""
        return self._guard is not None

    async def watch_loop(self) -> None:
        """See to it that there is one."""
        if self._guard is None:
            self._guard = await at_loop_end(self._end_with_loop)

    async def _end_with_loop(self) -> None:
        if self.disowned:
            return
        if not self.over:
            self.over = True
            self.database._loop_databases.leave(self)
            self.end_sessions()
        try:
            async with asyncio.timeout(LAST_MOMENTS):
                self._guard = None
                await self.pool.close()
                await asyncio.gather(
                    *map(self.hooks.disconnect, self.connections - self.hooks.closing)
                )
                if self.connections:
                    await self.hooks.all_closed.wait()
        except Exception as error:
            log(DEBUG, "%s: not closed properly: %r", self.label, error)
        for connection in [*self.connections]:
            self.hooks.disconnected(connection)


def forget(task: asyncio.Task[None]) -> None:
    """It came too late for the last step of its loop: nobody is to be warned of that."""
    coroutine = task.get_coro()
    if isinstance(coroutine, CoroutineType) and getcoroutinestate(coroutine) == CORO_CREATED:
        coroutine.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as gather() does
