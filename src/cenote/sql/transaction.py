"""Transactions: blocks, savepoints, and the handle by which several tasks share one."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Container
from logging import DEBUG
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .. import errors
from ..errors import PoolError
from ..log import log
from ..observe import task_name
from .dialects import ISOLATIONS, Isolation
from .driver import Arguments, DriverConnection
from .parsing.statements import ParsedStatement
from .pin import Pin
from .prepared import Statement, prepare
from .scope import enter_scope, leave_scope
from .session import Session
from .streams import Stream
from .verbs import TextVerbs

if TYPE_CHECKING:
    from .database import Database
    from .per_loop import LoopDatabase


class Transaction(TextVerbs):
    """`async with db.transaction() as tx:`; inside another one it is a savepoint.

    The methods of the handle may be called from any task: they run inside this transaction, one
    at a time.
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_cut",
        "_database",
        "_entered",
        "_isolation",
        "_older",
        "_savepoint",
        "_session",
        "_unused",
        "is_open",
        "read_only",
        "task",
    )

    def __init__(self, database: Database, isolation: Any, read_only: Any) -> None:
        self._database = database
        self._isolation = check_isolation(isolation)
        if not isinstance(read_only, bool):
            raise TypeError(f"read_only must be True or False, not {read_only!r}")
        self.read_only = read_only
        self._unused = True  # nobody has entered it
        self._session: Session | None = None
        self._savepoint: str | None = None
        self._older: Container[Pin] = ()  # what was open before it
        self._entered = False
        self._block = False  # of `async with`, not of begin()
        self._cut = False  # ended by the end of its task, or by closing the database
        self.is_open = False
        self.task: Any = None  # that entered it

    def __del__(self) -> None:
        if getattr(self, "_unused", False):  # also of one that could not be made
            text = "db.transaction() was never entered: write `async with db.transaction():`"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)

    @property
    def task_name(self) -> str:
        return "?" if self.task is None else task_name(self.task)

    def is_of(self, loop_db: object) -> bool:
        return self._session is not None and self._session.loop_db is loop_db

    # -- begin and end ---------------------------------------------------------------------------

    async def start(self) -> None:
        self._unused = False
        if self._entered:
            raise RuntimeError("this transaction was used before; call db.transaction() for each")
        loop_db = self._database._loop_database()
        session = loop_db.session()
        if session is not None and (session.transactions or session.check().in_transaction):
            await self._set_savepoint(session)
        else:
            await loop_db.observed("BEGIN", "BEGIN", self._begin(loop_db, session))

    async def _begin(self, loop_db: LoopDatabase, session: Session | None) -> None:
        if session is None:
            session = await loop_db.new_session()
        try:
            self._enter(session)
            await session.run(
                lambda connection: connection.begin(self._isolation, self.read_only), None
            )
            if session.ended:
                raise loop_db.gone()
            if session.connection is None:
                raise errors.transaction_lost("rolled_back", "its connection was lost")
        except BaseException:
            session.settle()
            raise
        self._entered_in(session)

    async def _set_savepoint(self, session: Session) -> None:
        if self._isolation is not None or self.read_only:
            raise ValueError(
                "a transaction inside another is a savepoint: isolation and read_only belong to "
                "the outermost one"
            )
        self._enter(session)

        def set_it(connection: DriverConnection) -> Awaitable[object]:
            self._older = {*session.pins}
            self._savepoint = f"cenote_{len(session.transactions) + 1}"
            return connection.savepoint(self._savepoint)

        await session.run(set_it, None)
        self._entered_in(session)
        if self.task is not session.task:
            self.task.add_done_callback(self._task_done)

    def _enter(self, session: Session) -> None:
        self._entered = True
        self._session = session
        session.check()
        self._older = {*session.pins}

    def _entered_in(self, session: Session) -> None:
        self.is_open = True
        self.task = session.loop_db.current_task()
        session.transactions.append(self)
        session.settle()
        enter_scope(self)

    def _task_done(self, task: Any) -> None:
        """Of a savepoint: its task is over, and nobody will end it."""
        session = self._session
        if session is not None and self in session.transactions:
            if session.connection is not None:
                session.connection.mark_broken()
            session.lose(
                "rolled_back", f"task {task_name(task)!r} ended in a savepoint of it", None
            )
            session.settle()

    def admits(self, task: Any, *blocks: Transaction | None) -> bool:
        """Whether statements of this task, or by the handle of one of these blocks, are inside."""
        return self.task is task or self in blocks

    async def commit(self) -> None:
        session = self._open_session()
        try:
            await self._inner_blocks_over(session)
            if (lost := session.lost) is not None:
                if self._savepoint is None:
                    await self._roll_back_all(
                        session
                    )  # what goes on in its place, if anything does
                raise lost.error()
            self.is_open = False
            if self._savepoint is None:
                await self._commit(session)
            else:
                await self._release_savepoint(session)
        except BaseException as error:
            self._broken_off(session, error)
            raise
        finally:
            self._over(session)

    async def _inner_blocks_over(self, session: Session) -> None:
        """Blocks of other tasks inside this one end first."""
        task = session.loop_db.current_task()
        try:
            while (inner := session.inner_block()) is not None and inner is not self:
                if inner.task is task:
                    raise PoolError(
                        "another savepoint was begun inside this one and is still open: "
                        "leave blocks in the reverse order"
                    )
                await session.outside(task, inner)
        except PoolError:
            await (self._roll_back_all(session) if self._savepoint is None else self._undo(session))
            raise
        if not self.is_open:
            raise session.loop_db.gone()

    async def _commit(self, session: Session) -> None:
        session.check_alive()
        connection = session.connection
        try:
            committed = await session.run_observed(
                lambda connection: connection.commit(), None, verb="COMMIT", ending=self
            )
        except Exception as error:
            if self in session.transactions:  # it was not begun
                await self._roll_back_all(session)
                raise
            session.lost = None
            if session.connection is None and not isinstance(error, PoolError):
                raise errors.transaction_lost(
                    "unknown", "its connection was lost during COMMIT"
                ) from error
            if (
                connection is not None
                and connection is session.connection
                and connection.in_transaction
            ):  # refused
                await self._roll_back_quietly(session)
            raise
        if not committed:
            raise errors.transaction_lost(
                "rolled_back", "a statement in it had failed, so the server rolled back"
            )

    async def _release_savepoint(self, session: Session) -> None:
        name = self._savepoint or ""
        try:
            await session.run(
                lambda connection: connection.release_savepoint(name), None, ending=self
            )
        except Exception:
            if session.connection is not None and session.lost is None:
                await self._undo(session)
            raise

    def cut_streams(self, session: Session) -> None:
        """It is about to end, and it is the turn of that: what is open in it ends first."""
        self.is_open = False
        session.cut_streams(self._older)

    def begin_to_end(self, session: Session) -> None:
        """The statement that ends all of it is sent: its end is no loss."""
        if self._savepoint is None and self in session.transactions:
            session.transactions.remove(self)

    async def rollback(self) -> None:
        """The whole of it, or back to its savepoint."""
        session = self._open_session()
        try:
            if session.connection is not None and self._savepoint is None:
                await self._roll_back_all(session)
            elif session.connection is not None and session.lost is None:
                await self._undo(session)
        except BaseException as error:
            self._broken_off(session, error)
            raise
        finally:
            self._over(session)

    async def _undo(self, session: Session) -> None:
        """Back to its savepoint."""
        name = self._savepoint or ""
        self.is_open = False
        self._cut_inner(session)

        async def undo(connection: DriverConnection) -> None:
            await connection.rollback_to_savepoint(name)
            await connection.release_savepoint(name)

        try:
            await session.run(undo, None, ending=self)
        except Exception as error:
            if session.connection is not None:  # what must not stay in it is still there
                session.connection.mark_broken()
                session.lose("rolled_back", "a savepoint in it could not be rolled back", error)
            raise

    async def _roll_back_all(self, session: Session) -> None:
        self._cut_inner(session)
        await self._roll_back_quietly(session)

    async def _roll_back_quietly(self, session: Session) -> None:
        """A connection that breaks now is rolled back by its server."""
        if self in session.transactions:
            session.transactions.remove(self)
        session.lost = None
        session.rolls_back()
        self.is_open = False
        try:
            await session.run_observed(
                lambda connection: connection.rollback(), None, verb="ROLLBACK", ending=self
            )
        except Exception as error:
            log(DEBUG, "%s: rollback failed: %r", session.loop_db.label, error)
            session.drop(error)
            session.lost = None

    def _broken_off(self, session: Session, error: BaseException) -> None:
        """Cancelled, perhaps before it was its turn: then it is open on the server."""
        if isinstance(error, Exception):
            return
        if self._savepoint is None:
            session.break_off()
        elif session.connection is not None:
            session.connection.mark_broken()
            session.lose("rolled_back", "the end of a savepoint in it was cancelled", error)

    def _over(self, session: Session) -> None:
        self.is_open = False
        leave_scope(self)
        self.task.remove_done_callback(self._task_done)
        if self in session.transactions:
            self._cut_inner(session)
            session.transactions.remove(self)
        session.let_in()
        session.end_blocks()
        if not session.transactions:
            session.lost = None
        session.settle()

    def _cut_inner(self, session: Session) -> None:
        """Savepoints inside this one, of other tasks: they end with it."""
        if self in session.transactions:
            first = session.transactions.index(self) + 1
            for inner in session.transactions[first:]:
                inner.cut_off()
            del session.transactions[first:]
            session.let_in()

    def unjoin(self, task: Any) -> None:
        if self._session is not None:
            self._session.loop_db.joined.pop(task, None)

    def rolled_back_by(self, task: Any) -> None:
        """By db.rollback(); its own task knows of it."""
        self.is_open = False
        self._cut = self.task is not task

    def cut_off(self) -> None:
        """Its task or the outer one is over, or the database is closed."""
        self.is_open = False
        self._cut = True

    async def __aenter__(self) -> Self:
        self._block = True
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_open:
            if self._cut and error is None and self._session is not None:
                raise self._session.loop_db.gone()  # nobody may think that it was committed
            return  # rolled back inside
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except Exception as raised:  # the one that leaves the block goes on
            log(DEBUG, "the transaction was not rolled back in order", error=raised)

    # -- sharing ---------------------------------------------------------------------------------

    def join(self) -> Join:
        """`async with tx.join():` puts this task's plain statements into the transaction."""
        return Join(self)

    async def prepare(self, sql: str) -> Statement:
        """A statement that stays prepared on the connection until it is closed."""
        return await prepare(self._open_session(), self._database._parse(sql), self)

    def _parse(self, sql: str) -> ParsedStatement:
        return self._database._parse(sql)

    async def _run(self, method: str, sql: str, parameters: Any) -> Any:
        parsed = self._database._parse(sql)
        call = parsed.call(method, *parsed.bind(parameters))
        session = self._open_session()
        try:
            return await session.run_observed(call, parsed, transaction=self)
        except Exception as error:
            if parameters is None and session.connection is not None:
                parsed.note_missing(error)
            raise

    async def _run_many(self, parsed: ParsedStatement, text: str, rows: list[Any]) -> None:
        session = self._open_session()
        session.check()  # also without rows: the transaction may be lost
        if rows:
            await session.run_observed(
                lambda connection: connection.execute_many(text, rows), parsed, transaction=self
            )

    def _stream(
        self, parsed: ParsedStatement, text: str, arguments: Arguments, into: Any
    ) -> Stream[Any]:
        return Stream(self._database, parsed, text, arguments, self, into)

    def _open_session(self) -> Session:
        session = self._session
        if session is None or not self.is_open:
            self._unused = False  # whoever tries to use it is told
            raise errors.transaction_over()
        return session


class Join:
    """Inside of it the task's plain statements run in the transaction of another task."""

    __slots__ = ("_session", "_task", "_transaction")

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._session: Session | None = None
        self._task: Any = None

    async def __aenter__(self) -> Transaction:
        session = self._transaction._open_session()
        loop_db = session.loop_db
        task = loop_db.current_task()
        joined = loop_db.joined.get(task)
        present = loop_db.sessions.get(task) if joined is None else joined._session
        if present is session:
            return self._transaction  # it is inside already
        if present is not None:
            held = present.pin_reason() if joined is None else "it joined another transaction"
            raise PoolError(
                f"task {task_name(task)!r} has a connection already ({held}); "
                f"end that before join()"
            )
        self._session, self._task = session, task
        loop_db.joined[task] = self._transaction
        task.add_done_callback(self._leave)
        enter_scope(self._transaction)
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._task.remove_done_callback(self._leave)
            self._leave(self._task)
            leave_scope(self._transaction)

    def _leave(self, task: Any) -> None:
        self._transaction.unjoin(task)


def check_isolation(value: Any) -> Isolation | None:
    if value is None:
        return None
    if isinstance(value, str):
        name = value.lower().replace("_", " ")
        if name in ISOLATIONS:
            return name
    raise ValueError(f"isolation must be one of {', '.join(map(repr, ISOLATIONS))}, not {value!r}")
