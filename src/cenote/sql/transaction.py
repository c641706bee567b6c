"""Transactions: blocks, savepoints, and the handle by which several tasks share one."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Container, Coroutine
from logging import DEBUG
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import Outcome, PoolError
from ..log import log
from ..observe import task_name
from . import fastpath, messages
from .admission import require_alive, require_connection
from .batches import Batches, series
from .checks import check_isolation
from .dialects import Isolation
from .driver import DriverConnection
from .join import Join
from .losses import leave_lost_block, lose_block
from .parsing.statements import ParsedStatement, is_long
from .pins import Pin
from .prepared import Statement, prepare
from .scope import acting_task, enter_scope, leave_scope
from .session import Session
from .states import TRANSACTION, SessionState, TransactionState
from .streams import Stream
from .time_limits import limit_of, observed_within
from .verbs import TextVerbs

if TYPE_CHECKING:
    from .database import Database
    from .per_loop import LoopDatabase
    from .scope import AnyTransaction


NEW, OPEN, ENDING = TransactionState.NEW, TransactionState.OPEN, TransactionState.ENDING
ENDED = SessionState.ENDED
OUTCOMES: dict[TransactionState, Outcome] = {
    TransactionState.COMMITTED: "committed",
    TransactionState.ROLLED_BACK: "rolled_back",
    TransactionState.CUT_OFF: "rolled_back",
}
ABORTED = "a statement in it had failed, so the server rolled back"


class Transaction(TextVerbs):
    """`async with db.transaction() as tx:`; inside another one it is a savepoint.

    The methods of the handle may be called from any task: they run inside this transaction, one
    at a time.
    """

    __slots__ = (
        "__weakref__",
        "_database",
        "_ended",
        "_is_block",
        "_isolation",
        "_older",
        "_savepoint",
        "_session",
        "read_only",
        "state",
        "task",
    )

    def __init__(self, database: Database, isolation: Any, read_only: Any) -> None:
        self._database = database
        self._isolation: Isolation | None = (
            None if isolation is None else check_isolation(isolation)
        )
        if not isinstance(read_only, bool):
            raise TypeError(f"read_only must be True or False, not {read_only!r}")
        self.read_only: bool = read_only
        self._session: Session | None = None
        self._savepoint: str | None = None  # its name, if it is inside another one
        self._older: Container[Pin] = ()  # what was open before it
        self._ended: asyncio.Event | None = None  # its owner waits for its end by another task
        self._is_block = False  # of `async with`, not of begin()
        self.state: TransactionState = NEW  # moved by _move() alone
        self.task: Any = None  # that entered it

    def __del__(self) -> None:
        # One that could not be made has no state.
        if getattr(self, "state", None) is NEW:
            text = "db.transaction() was never entered: write `async with db.transaction():`"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)

    @property
    def is_open(self) -> bool:
        """Whether statements may run in it; also of one that is lost, until its block is left."""
        return self.state is OPEN

    @property
    def task_name(self) -> str:
        return "?" if self.task is None else task_name(self.task)

    @property
    def is_block(self) -> bool:
        """Whether it is an `async with` block, and not of `begin()`."""
        return self._is_block

    def is_of(self, loop_db: object) -> bool:
        return self._session is not None and self._session.loop_db is loop_db

    def admits(self, task: Any, *blocks: AnyTransaction | None) -> bool:
        """Whether statements of this task, or by the handle of one of these blocks, are inside."""
        return self.task is task or self in blocks

    def _move(self, event: str) -> None:
        self.state = TRANSACTION[self.state, event]

    # -- begin -----------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Begin it: a transaction, or a savepoint if the task is in one."""
        if self._session is not None:
            raise RuntimeError("this transaction was used before; call db.transaction() for each")
        self.state = TRANSACTION[self.state, "enter"]
        try:
            loop_db = self._database._loop_databases.here()
            task = acting_task(loop_db) or loop_db.current_task()
            session = loop_db.session_of(task)
            if session is None and not self._database._observers:
                await fastpath.begin(self, loop_db, task)
            elif session is not None and session.is_inside(require_connection(session)):
                await self._set_savepoint(session)
            else:
                await loop_db.observed("BEGIN", "BEGIN", self._begin(loop_db, session))
        except BaseException:
            self._move("refuse" if self._session is None else "fail")
            raise
        return self

    async def _begin(self, loop_db: LoopDatabase, session: Session | None) -> None:
        if session is None:
            await fastpath.begin(self, loop_db, loop_db.current_task())
            return
        self._session = session
        self._older = {*session.pins}
        try:
            await session.run(
                lambda connection: connection.begin(self._isolation, self.read_only), None
            )
        except BaseException:
            session.hold_or_give_back()
            raise
        self._begun(session, loop_db.current_task())

    def _use(self, session: Session) -> None:
        """It is about to begin in this session."""
        self._session = session

    def _begun(self, session: Session, task: Any) -> None:
        """Its BEGIN was answered, unless the session has ended meanwhile."""
        if session.state is ENDED:
            raise session.loop_db.gone()
        if session.connection is None:
            session.hold_or_give_back()
            raise messages.transaction_lost("rolled_back", "its connection was lost")
        self._open(session, task)

    async def _set_savepoint(self, session: Session) -> None:
        if self._isolation is not None or self.read_only:
            raise ValueError(
                "a transaction inside another is a savepoint: isolation and read_only belong to "
                "the outermost one"
            )
        self._session = session
        if (
            session.transactions and fastpath.is_ready(session)
            and session.transactions[-1].task is session.task is session.loop_db.current_task()
        ):  # fmt: skip
            self._savepoint = f"cenote_{len(session.transactions) + 1}"
            await fastpath.run_inside(session, "savepoint", self._savepoint)
            self._open(session, session.task)
            return

        def send(connection: DriverConnection) -> Awaitable[object]:
            if not session.is_inside(connection, in_turn=True):
                raise messages.transaction_over()  # a raw one, which another task has ended
            self._older = {*session.pins}
            self._savepoint = f"cenote_{len(session.transactions) + 1}"
            return connection.savepoint(self._savepoint)

        await session.run(send, None)
        self._open(session, session.loop_db.current_task())
        if self.task is not session.task:
            self.task.add_done_callback(self._task_done)

    def _open(self, session: Session, task: Any) -> None:
        """It has begun."""
        self.state = TRANSACTION[self.state, "open"]
        self.task = task
        session.add_block(self)
        enter_scope(self)

    # -- end -------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit it, or release its savepoint; raises `TransactionLostError` if it was lost."""
        session = self._session
        if session is None or self.state is not OPEN:
            session = self._open_session()
        connection = session.connection
        at_once = (
            session.transactions and session.transactions[-1] is self
            and not self._database._observers and fastpath.is_ready(session)
        )  # fmt: skip
        try:
            if not at_once:
                await self._wait_for_inner_blocks(session)
            elif self._savepoint is None:
                require_alive(session)
            if (lost := session.lost) is not None:
                if self._savepoint is None:
                    await self._roll_back_all(session)  # what goes on in its place, if it does
                raise lost.error()
            self.state = TRANSACTION[self.state, "end"]
            if self._savepoint is not None:
                await self._release_savepoint(session, at_once=bool(at_once))
            elif not at_once or connection is None:
                await self._commit(session)
            else:
                try:
                    committed = await fastpath.commit(session, connection)
                except Exception as error:
                    await self._commit_failed(session, connection, error, sent=True)
                    raise
                if not committed:
                    raise messages.transaction_lost("rolled_back", ABORTED)
            self.state = TRANSACTION[self.state, "commit"]
        except BaseException as error:
            self._end_was_cut_off(session, error)
            raise
        finally:
            self._leave(session)

    async def rollback(self) -> None:
        """Roll back the whole of it, or back to its savepoint."""
        session = self._open_session()
        try:
            if session.connection is not None and self._savepoint is None:
                await self._roll_back_all(session)
            elif session.connection is not None and session.lost is None:
                await self._roll_back_to_savepoint(session)
            else:
                self._move("roll_back")  # nothing is left to be rolled back
        except BaseException as error:
            self._end_was_cut_off(session, error)
            raise
        finally:
            self._leave(session)

    def end_what_is_open(self, session: Session) -> None:
        """Its end is next in turn: streams and statements that are open in it end first."""
        self._move("end")
        if session.pins:
            session.pins.end_with(self._older, session.connection)

    def send_end(self, session: Session) -> None:
        """The statement that ends all of it is about to be sent: its end is not a loss."""
        if self._savepoint is None:
            session.remove_block(self)

    def cut_off(self) -> None:
        """Its task or the outer block is over, or the database is closed."""
        self._move("cut_off")
        if self._session is not None:
            lose_block(self, self._session, "rolled_back")

    def rolled_back_by(self, task: Any) -> None:
        """db.rollback() of this task has undone it; a block of another task gets an error."""
        if self.task is task:
            self._move("roll_back")
        else:
            self.cut_off()

    async def _wait_for_inner_blocks(self, session: Session) -> None:
        """Blocks of other tasks inside this one end first."""
        task = session.loop_db.current_task()
        try:
            while (inner := session.inner_block()) is not None and inner is not self:
                if inner.task is task:
                    raise PoolError(
                        "another savepoint was begun inside this one and is still open: "
                        "leave blocks in the reverse order"
                    )
                await session.outsiders.wait(task, inner)
        except PoolError:
            if self._savepoint is None:
                await self._roll_back_all(session)
            else:
                await self._roll_back_to_savepoint(session)
            raise
        if self.state is not OPEN:
            raise session.loop_db.gone()

    async def _commit(self, session: Session) -> None:
        require_alive(session)
        connection = session.connection
        sent = False

        def send(connection: DriverConnection) -> Awaitable[bool]:
            nonlocal sent
            sent = True
            return connection.commit()

        try:
            committed = await session.run_observed(send, None, verb="COMMIT", ending=self)
        except Exception as error:
            if self in session.transactions:  # it was not begun
                await self._roll_back_all(session)
                raise
            await self._commit_failed(session, connection, error, sent=sent)
            raise
        if not committed:
            raise messages.transaction_lost("rolled_back", ABORTED)

    async def _commit_failed(
        self,
        session: Session,
        connection: DriverConnection | None,
        error: Exception,
        *,
        sent: bool,
    ) -> None:
        """Its end was begun, and this came of it."""
        session.accept_loss()
        if session.connection is None and not isinstance(error, PoolError):
            if not sent:
                raise messages.transaction_lost(
                    "rolled_back", "its connection was lost before COMMIT"
                ) from error
            raise messages.transaction_lost(
                "unknown", "its connection was lost during COMMIT"
            ) from error
        if (
            connection is not None
            and connection is session.connection
            and connection.in_transaction
        ):  # refused
            await self._send_rollback(session)

    async def _release_savepoint(self, session: Session, *, at_once: bool = False) -> None:
        name = self._savepoint or ""
        try:
            if at_once:
                await fastpath.run_inside(session, "release_savepoint", name)
                return
            await session.run(
                lambda connection: connection.release_savepoint(name), None, ending=self
            )
        except Exception:
            if session.connection is not None and session.lost is None:
                await self._roll_back_to_savepoint(session)
            raise

    async def _roll_back_to_savepoint(self, session: Session) -> None:
        name = self._savepoint or ""
        self._move("end")
        session.cut_off_inside(self)

        async def send(connection: DriverConnection) -> None:
            await connection.rollback_to_savepoint(name)
            await connection.release_savepoint(name)

        try:
            await session.run(send, None, ending=self)
        except Exception as error:
            if session.connection is not None:  # what must not stay in it is still there
                session.connection.mark_broken()
                session.lose("rolled_back", "a savepoint in it could not be rolled back", error)
            raise
        self._move("roll_back")

    async def _roll_back_all(self, session: Session) -> None:
        session.cut_off_inside(self)
        await self._send_rollback(session)

    async def _send_rollback(self, session: Session) -> None:
        """Roll back; a connection that breaks now is rolled back by its server."""
        session.remove_block(self)
        session.accept_loss()
        session.changes.roll_back()
        self._move("end")
        if session.connection is None:  # nothing is left to be rolled back
            self._move("roll_back")
            return
        try:
            await session.run_observed(
                lambda connection: connection.rollback(), None, verb="ROLLBACK", ending=self
            )
        except Exception as error:
            log(DEBUG, "%s: rollback failed: %r", session.loop_db.label, error)
            session.drop_connection(error)
            session.accept_loss()
        self._move("roll_back")

    def _end_was_cut_off(self, session: Session, error: BaseException) -> None:
        """If it was cancelled, perhaps before it was its turn, it is open on the server."""
        if isinstance(error, Exception):
            return
        if self._savepoint is None:
            session.break_off()
        elif session.connection is not None:
            session.connection.mark_broken()
            session.lose("rolled_back", "the end of a savepoint in it was cancelled", error)

    def _leave(self, session: Session) -> None:
        """It is over, in whichever way."""
        if self.state is OPEN:
            self._move("end")
        if self.state is ENDING:
            self._move("fail")
        leave_scope(self)
        if self._ended is not None:
            self._ended.set()
        if self._savepoint is not None:
            self.task.remove_done_callback(self._task_done)
        elif (
            session.state is ENDED and session.connection is None
            and not session.outsiders
        ):  # fmt: skip
            self._tell_its_task(session)
            return  # its connection went back with the COMMIT
        session.remove_block(self)
        session.outsiders.wake()
        session.forget_ended_blocks()
        if not session.transactions:
            session.accept_loss()
        session.hold_or_give_back()
        if self._savepoint is None:
            self._tell_its_task(session)

    def _tell_its_task(self, session: Session) -> None:
        """If another task has ended it: what its own task runs is not committed by itself."""
        loop_db = session.loop_db
        if acting_task(loop_db) is not self.task:
            lose_block(self, session, OUTCOMES.get(self.state, "unknown"))
        elif self.task in loop_db.sessions:
            leave_lost_block(self, session, self.task)

    def _task_done(self, task: Any) -> None:
        """The task of a savepoint is over, and nobody will end it."""
        session = self._session
        if session is not None and self in session.transactions:
            if session.connection is not None:
                session.connection.mark_broken()
            session.lose(
                "rolled_back", f"task {task_name(task)!r} ended in a savepoint of it", None
            )
            session.hold_or_give_back()

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        self._is_block = True
        return self.start()

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        if error is None and self.state is OPEN:
            return self.commit()
        return self._leave_block(error)

    async def _leave_block(self, error: BaseException | None) -> None:
        ends = self.state is ENDING and not isinstance(error, GeneratorExit)
        if ends:
            await self._wait_for_end()
        if self.state is not OPEN:
            session = self._session
            lost = session is not None and leave_lost_block(self, session, self.task)
            if error is None and session is not None and (
                self.state is TransactionState.CUT_OFF
                or ((ends or lost) and self.state is not TransactionState.COMMITTED)
            ):  # fmt: skip
                raise session.loop_db.gone()  # nobody may think that it was committed
            return  # rolled back inside
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except Exception as raised:  # the one that leaves the block goes on
            log(DEBUG, "the transaction was not rolled back in order", error=raised)

    async def _wait_for_end(self) -> None:
        """Another task is ending it."""
        self._ended = self._ended or asyncio.Event()
        await self._ended.wait()

    # -- sharing ---------------------------------------------------------------------------------

    def join(self) -> Join:
        """`async with tx.join():` puts this task's plain statements into the transaction."""
        return Join(self)

    async def prepare(self, sql: str, *, timeout: float | None = None) -> Statement:
        """Prepare a statement, which stays prepared on the connection until it is closed.

        Args:
            sql: The statement, with `?` or `:name` where parameters belong.
            timeout: How long the preparation may take, in seconds; it does not bound the statement.

        Raises:
            StatementTimeoutError: The preparation took longer than `timeout`.
            Exception: The driver's own error, if the database refused the statement.
        """
        self._open_session()
        parsed = await self._analyse(sql, {})
        session = self._open_session()
        limit = limit_of(session.loop_db, parsed, timeout, gives="statement")
        return await prepare(session, parsed, self, limit)

    def _parse(self, sql: str) -> ParsedStatement:
        return self._database._parse(sql)

    def _analyse(self, sql: str, parameters: Any) -> Awaitable[ParsedStatement]:
        return self._database._analyse(sql, parameters)

    def _run(self, method: str, sql: str, parameters: Any, timeout: float | None) -> Awaitable[Any]:
        parsed = self._database._known(sql)
        if parsed is None:
            if is_long(sql):
                return self._run_long(method, sql, parameters, timeout)
            parsed = self._database._parse(sql)
        session = self._session
        if (
            timeout is None and session is not None and self.state is OPEN and parsed.only_data
            and session.transactions and session.transactions[-1] is self
            and fastpath.is_ready(session)
        ):  # fmt: skip
            work = fastpath.run_statement(session, method, parsed, parameters)
            return session.loop_db.observed(parsed.keyword, parsed.text, work, session)
        return self._run_in_turn(method, parsed, parameters, timeout)

    async def _run_long(self, method: str, sql: str, parameters: Any, timeout: float | None) -> Any:
        parsed = await self._analyse(sql, parameters)
        return await self._run_in_turn(method, parsed, parameters, timeout)

    async def _run_in_turn(
        self, method: str, parsed: ParsedStatement, parameters: Any, timeout: float | None
    ) -> Any:
        call = parsed.call(method, *parsed.bind(parameters))
        session = self._open_session()
        limit = limit_of(session.loop_db, parsed, timeout)
        try:
            return await observed_within(limit, session, call, parsed, transaction=self)
        except Exception as error:
            if parameters is None and session.connection is not None:
                parsed.note_missing(error)
            raise

    async def _run_many(
        self, parsed: ParsedStatement, text: str, rows: list[Any] | Batches, timeout: float | None
    ) -> None:
        session = self._open_session()
        require_connection(session)  # also without rows: the transaction may be lost
        limit = limit_of(session.loop_db, parsed, timeout)
        if rows:
            call = series(text, rows)
            await observed_within(limit, session, call, parsed, transaction=self)

    def _stream(
        self,
        parsed: ParsedStatement | None,
        text: str,
        arguments: Any,
        into: Any,
        timeout: float | None,
    ) -> Stream[Any]:
        return Stream(self._database, parsed, text, arguments, self, into, timeout)

    def _open_session(self) -> Session:
        session = self._session
        if session is None or self.state is not OPEN:
            if self.state is NEW:
                self._move("refuse")  # the error says it: no warning that it was never entered
            raise messages.transaction_over()
        return session

    def unjoin(self, task: Any) -> None:
        """The task leaves the transaction that it had joined."""
        if self._session is not None:
            self._session.loop_db.joined.pop(task, None)
            if self._session.loop_db.over:
                leave_lost_block(self, self._session, task)
