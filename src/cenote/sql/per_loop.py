"""A database in one event loop: its pool, the hooks of that pool, and the sessions of tasks."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial
from logging import DEBUG, ERROR
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from .. import errors
from .._fast import Acquire
from ..caller import user_stacklevel
from ..errors import PoolError, TransactionScopeWarning
from ..hooks import is_awaitable
from ..log import log
from ..observe import task_name
from ..pool import Pool
from ..pool.hooks import was_cut
from ..pool.loop import is_monotonic
from .driver import Arguments, Driver, DriverConnection
from .notes import note, note_connect
from .parsing.statements import ParsedStatement, without_rows
from .scope import acting_task, forget_scope, open_transactions, scope
from .session import Session
from .states import ConnectionState
from .url import without_frames

if TYPE_CHECKING:
    from .database import Database
    from .transaction import Transaction

R = TypeVar("R")

LAST_MOMENTS = 2.0  # seconds for a proper end when the loop goes down
JUST_NOW = 0.001  # seconds since the last answer: as long it is alive without looking

FIRST, LAST = "first", "last"  # attempts to run a statement


class LoopDatabase:
    """What a `Database` is in one event loop."""

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self.database: Database = database
        self.label: str = database._label
        self.driver: Driver = database._driver
        self.loop: asyncio.AbstractEventLoop = loop
        self.sessions: dict[Any, Session] = {}  # task -> what it holds over several statements
        self.private: set[Session] = set()  # of streams
        self.joined: dict[Any, Transaction] = {}  # task -> the transaction of another
        self.connections: set[DriverConnection] = set()  # all that are open
        # Counted up when a connection is lost: the others are suspect.
        self.suspicion_epoch: int = 0
        self.refused: WeakSet[Any] = WeakSet()  # tasks whose commit() has failed
        self.over: bool = False
        self.disowned: bool = False  # this is a forked child, and all of it is the parent's
        self._closing: set[DriverConnection] = set()  # that end in proper form just now
        self._all_closed = asyncio.Event()  # after the end
        self.time: Callable[[], float] = monotonic if is_monotonic(loop) else loop.time
        self._ping_after_idle = database._ping_after_idle
        self.reset_always: bool = database._reset == "always"
        self._guard: AsyncGenerator[None, None] | None = None
        self.pool: Pool[DriverConnection] = Pool(
            self._connect,
            destructor=self._disconnect,
            healthcheck=self._ping,
            before_acquire=self._before_acquire,
            before_release=self._before_release,
            **database._pool_options,
        )
        self.pool._skip_check_within(min(JUST_NOW, self._ping_after_idle))
        # Bound once, for every statement.
        self.acquire: Callable[[], Acquire[DriverConnection]] = self.pool.acquire
        self.release_clean: Callable[[DriverConnection], Any] = self.pool._release_clean

    # -- the hooks of the pool -------------------------------------------------------------------

    async def _connect(self) -> DriverConnection:
        database = self.database
        if self._guard is None:
            self._guard = self._watch_loop()
            await anext(self._guard)
        database._connected = True
        password = await database._get_password()
        try:
            connection = await self.driver.connect(password)
        except BaseException as error:
            note_connect(error, self.driver.config.target)
            if password is not None:
                without_frames(error)
            raise
        self.connections.add(connection)
        try:
            await self._greet(connection)
        except BaseException:
            await self._disconnect(connection)
            raise
        connection.suspicion_epoch = self.suspicion_epoch
        connection.last_heard = self.loop.time()
        return connection

    async def _greet(self, connection: DriverConnection) -> None:
        """on_connect; what it sets is not touched."""
        on_connect = self.database._on_connect
        if on_connect is not None:
            answer = on_connect(connection.raw)
            if is_awaitable(answer):
                await answer
            if connection.in_transaction:
                await connection.rollback()
            connection.greeted()
        connection.mark_greeted()

    async def _disconnect(self, connection: DriverConnection) -> None:
        self._closing.add(connection)
        try:
            await connection.close()
        except asyncio.CancelledError:
            if self._guard is not None and not was_cut():
                self._closing.discard(
                    connection
                )  # the loop goes down: there is a last moment for it
                return
        except BaseException:
            self._disconnected(connection)
            raise
        self._disconnected(connection)

    def _disconnected(self, connection: DriverConnection) -> None:
        connection.terminate()
        connection.mark_closed()
        self.connections.discard(connection)
        self._closing.discard(connection)
        while connection.leftovers:
            connection.leftovers.pop().abandon()
        if self.over and not self.connections:
            self._all_closed.set()

    async def _ping(self, connection: DriverConnection) -> bool:
        try:
            await connection.ping()
        except BaseException as error:
            connection.mark_broken()
            if not isinstance(error, Exception):
                raise  # it took too long, or nobody waits for it any more
            log(DEBUG, "%s: ping failed: %r", self.label, error)
            self.suspect_idle()
            return False
        connection.suspicion_epoch = self.suspicion_epoch
        connection.last_heard = self.loop.time()
        return True

    def _before_acquire(self, connection: DriverConnection) -> Any:
        if connection.broken:
            return False
        idle = self.time() - connection.last_heard
        has_unread_bytes = idle > JUST_NOW and connection.has_unread_bytes()
        if connection.looks_dead() or (has_unread_bytes and connection.peer_closed()):
            connection.mark_broken()
            self.suspect_idle()
            return False
        if (
            has_unread_bytes
            or connection.suspicion_epoch != self.suspicion_epoch
            or idle >= self._ping_after_idle
        ):
            return self._ping(connection)
        return True

    def _before_release(self, connection: DriverConnection) -> Any:
        if connection.broken or connection.looks_dead():
            return False
        connection.returned()
        always = self.reset_always
        if not (connection.touched or connection.leftovers or always or connection.in_transaction):
            connection.last_heard = self.time()
            return True
        return self._clean(connection, always)

    async def _clean(self, connection: DriverConnection, always: bool) -> bool:
        """Nothing of the last task is left; False: this connection cannot do it."""
        await self.close_leftovers(connection)
        if connection.in_transaction:
            await connection.rollback()
        if (connection.touched or always) and self.database._reset != "never":
            if not await connection.reset():
                return False
            await self._greet(connection)
        connection.touched = None
        connection.last_heard = self.loop.time()
        return not connection.in_transaction  # SET autocommit = 0 and reset="never"

    async def close_leftovers(self, connection: DriverConnection) -> None:
        """Close the statements and streams of a connection that were never closed."""
        while connection.leftovers:
            await connection.leftovers.pop().close()

    def suspect_idle(self) -> None:
        """A connection was lost: the others are looked at before they are used again."""
        self.suspicion_epoch += 1
        self.pool._suspect_idle()

    # -- who holds what --------------------------------------------------------------------------

    def current_task(self) -> Any:
        task = acting_task(self)
        if task is None:
            raise RuntimeError("a database is used from tasks; there is no running task")
        return task

    def session(self) -> Session | None:
        """What the running task holds; complains about tasks started inside a transaction."""
        task = acting_task(self)
        session = self.sessions.get(task)
        if session is not None:
            return session
        if self.joined and (transaction := self.joined.get(task)) is not None:
            return transaction._open_session()
        if scope.get() is not None:
            self._check_scope(task)
        return None

    def peek(self) -> Session | None:
        """The same, without complaining."""
        task = acting_task(self)
        session = self.sessions.get(task)
        if session is None and (transaction := self.joined.get(task)) is not None:
            return transaction._session if transaction.is_open else None
        return session

    def _check_scope(self, task: Any) -> None:
        for transaction in open_transactions():
            if not transaction.is_of(self):
                continue
            text = (
                f"task {task_name(task)!r} was started inside the transaction of task "
                f"{transaction.task_name!r} and uses the database outside of it, on a connection "
                f"of its own. To share the transaction use its handle: tx.execute() or "
                f"async with tx.join()."
            )
            if self.database._child_tasks == "error":
                raise TransactionScopeWarning(text)
            forget_scope(self)  # once for each task
            warnings.warn(
                TransactionScopeWarning(text), stacklevel=user_stacklevel(sys._getframe())
            )
            return

    async def bound_session(self, *, private: bool = False) -> Session:
        """The task's session, or a new one; a private one is always new."""
        if not private and (session := self.session()) is not None:
            return session
        return await self.new_session(private=private)

    async def new_session(self, *, private: bool = False) -> Session:
        task = self.current_task()
        claim = self.pool.acquire()
        connection = await claim
        return self.bind(connection, claim, task, private=private)

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
        self.private.discard(session)
        if self.sessions.get(session.task) is session:
            del self.sessions[session.task]

    # -- statements ------------------------------------------------------------------------------

    async def run(self, method: str, parsed: ParsedStatement, parameters: Any) -> Any:
        """Run one statement of the running task by this method of a connection: that of its
        session, or one that is taken from the pool for it alone.

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

    async def _run_in(
        self,
        session: Session,
        method: str,
        parsed: ParsedStatement,
        text: str,
        arguments: Arguments,
    ) -> Any:
        if session.lost is not None and parsed.control == "rollback":
            await self.database.rollback()
            return without_rows(method)
        try:
            return await session.run(parsed.call(method, text, arguments), parsed)
        except Exception as error:
            if arguments is None and session.connection is not None:
                parsed.note_missing(error)
            raise

    def observed(self, operation: str, text: str, work: Coroutine[Any, Any, R]) -> Awaitable[R]:
        """The work, with the observers of statements notified, if there are any."""
        return self._notify(operation, text, work) if self.database._observers else work

    async def _notify(self, operation: str, text: str, work: Awaitable[R]) -> R:
        begun = [self._tell(each, operation, text) for each in self.database._observers]
        error: BaseException | None = None
        try:
            return await work
        except BaseException as raised:
            error = raised
            raise
        finally:
            for end in reversed(begun):
                if end is not None:
                    self._tell(end, error)
            del error  # no cycle through this frame

    def _tell(self, observer: Callable[..., Any], *what: Any) -> Any:
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
        if not self.survives(connection, error, False):
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
        session.adopt(connection, parsed, failed=failed)

    def survives(
        self, connection: DriverConnection, error: BaseException, reads_only: bool
    ) -> bool:
        """Whether the connection is as good as before, after a statement that raised."""
        if not isinstance(error, Exception):
            connection.interrupt()
            return False
        if isinstance(error, PoolError):
            return True
        if (hint := self.driver.hint(error)) is not None:
            note(error, hint)
        if self.driver.is_disconnect(error) or connection.is_dead:
            if isinstance(error, TimeoutError):
                connection.interrupt()
            else:
                connection.mark_broken()
            return False
        if connection.is_stuck():
            connection.jam()
            return False
        if self.driver.is_demoted(error) and not reads_only:
            self.pool.retire()
        return True

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
            and not isinstance(error, PoolError)
            and connection.state is not ConnectionState.STUCK
        )
        if lost:
            self.suspect_idle()
        if isinstance(error, GeneratorExit):  # in any thread, at any moment
            self.pool._from_finalizer(partial(self.pool.discard, connection))
        else:
            self.pool.discard(connection, error if lost else None)

    def gone(self) -> PoolError:
        if self.database._closed:
            return errors.database_closed(self.label)
        return errors.transaction_over()

    def post(self, step: Callable[[], object]) -> None:
        """From a finalizer: in any thread, at any moment."""
        if not self.disowned and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(step)

    # -- the end ---------------------------------------------------------------------------------

    def end_sessions(self) -> None:
        """Unbind every task: what is quiet goes back, the rest at the end of its statement."""
        for session in [*self.sessions.values(), *self.private]:
            session.end()
        self.joined.clear()

    async def close(self) -> None:
        self.over = True
        self.end_sessions()
        try:
            await self.pool.close()
        finally:
            guard = self._guard
            if guard is not None and not self.connections:  # else it sees to those that are busy
                await guard.aclose()

    def forsake(self) -> None:
        """The loop is gone, or does not run: close without waiting for anything."""
        self.over = True
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
        kept += [self.sessions, self.private, self.joined, self.connections, self._guard, self]
        self.sessions, self.private, self.joined, self.connections = {}, set(), {}, set()
        return kept

    async def _watch_loop(self) -> AsyncGenerator[None, None]:
        """asyncio.run() closes async generators when everything else is cancelled: the last moment
        in which something can be awaited."""
        try:
            yield
        finally:
            if not self.disowned:
                await self._end_with_loop()

    async def _end_with_loop(self) -> None:
        if not self.over:
            self.over = True
            self.database._leave(self)
            self.end_sessions()
        try:
            async with asyncio.timeout(LAST_MOMENTS):
                self._guard = None
                await self.pool.close()
                await asyncio.gather(*map(self._disconnect, self.connections - self._closing))
                if self.connections:
                    await self._all_closed.wait()
        except Exception as error:
            log(DEBUG, "%s: not closed properly: %r", self.label, error)
        for connection in [*self.connections]:
            self._disconnected(connection)
