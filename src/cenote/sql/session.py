"""A task's session: its connection, held over several statements while something pins it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .. import errors
from ..caller import may_have_interrupted_use
from ..errors import PoolError
from ..observe import task_name
from .changes import SessionChanges
from .driver import DriverConnection
from .fifo_lock import FifoLock
from .losses import ENDED_BY, Lost, LostSession, Outcome, outcome_of_cut_off
from .outsiders import Outsiders
from .parsing.statements import ParsedStatement
from .pins import Pin, Pins
from .scope import RawTransaction, enter_scope, leave_scope
from .states import SESSION, ConnectionState, SessionState

if TYPE_CHECKING:
    from .per_loop import LoopDatabase
    from .transaction import Transaction

R = TypeVar("R")
Call = Callable[[DriverConnection], Awaitable[R]]

FREE, PINNED, ENDED = SessionState.FREE, SessionState.PINNED, SessionState.ENDED
IN_TRANSACTION = SessionState.IN_TRANSACTION
READY = ConnectionState.READY

TRANSACTION_REASON = "in a transaction"


class Session:
    """A connection that a task holds until nothing pins it any more, or until the task ends."""

    __slots__ = (
        "__weakref__", "blocks", "changes", "claim", "connection", "loop_db", "lost",
        "lost_session", "outsiders", "pins", "private", "raw", "state", "task", "transactions",
        "turn"
    )  # fmt: skip

    def __init__(
        self,
        loop_db: LoopDatabase,
        connection: DriverConnection | None,
        claim: Any,
        task: Any,
        *,
        private: bool = False,
        ended: bool = False,
    ) -> None:
        self.state: SessionState = ENDED if ended else FREE  # moved by _move() alone
        self.loop_db: LoopDatabase = loop_db
        # None once it was given back or destroyed.
        self.connection: DriverConnection | None = connection
        self.claim: Any = claim
        self.task: Any = task
        self.private: bool = private  # of a stream; the task's statements do not use it
        self.turn: FifoLock = FifoLock()  # a transaction may be shared by several tasks
        self.transactions: list[Transaction] = []  # blocks that are open, the outermost first
        # Statements that wait for the end of an inner block.
        self.outsiders: Outsiders = Outsiders()
        self.pins: Pins = Pins()
        # connection() blocks that are open: for each the transaction that its task has joined.
        self.blocks: list[Transaction | None] = []
        self.changes: SessionChanges = SessionChanges(loop_db.driver.dialect.rules.doubtful)
        self.lost: Lost | None = None  # how the transaction was lost, while state is LOST
        self.lost_session: LostSession | None = None  # what went with the connection
        self.raw: RawTransaction | None = None
        task.add_done_callback(self._task_done)

    @property
    def ended(self) -> bool:
        """Whether its task is over, the database closed, or its connection given back."""
        return self.state is ENDED

    def _move(self, event: str) -> None:
        self.state = SESSION[self.state, event]

    # -- why it is held --------------------------------------------------------------------------

    def pin_reason(self) -> str | None:
        """Why the connection is held now, or None."""
        connection = self.connection
        return None if connection is None else self._reason(self._is_inside(connection))

    @property
    def in_transaction(self) -> bool:
        connection = self.connection
        if connection is None:
            return False
        if self.transactions and self.turn.taken:
            return self.lost is None  # psycopg does not know in mid-statement
        return connection.in_transaction

    def hold_or_give_back(self) -> None:
        """Decide again why the connection is held; without a reason it goes back."""
        connection = self.connection
        if self.turn.taken:
            return  # it is decided at the end of the statement that is under way
        if (
            self.transactions and self.state is IN_TRANSACTION
            and connection is not None and connection.state is READY
        ):  # fmt: skip
            return
        if connection is not None and connection.broken:
            self.drop_connection(None)
            connection = None
        if connection is None:
            self._go_on_without_connection()
            return
        inside = self._is_inside(connection)
        if not inside:
            self.changes.keep()
        reason = None if self.state is ENDED else self._reason(inside)
        if reason is None and self.lost is None:
            self.give_back()
            return
        self.claim.reason = reason
        if self.lost is None:
            self._move("begin" if reason is TRANSACTION_REASON else "pin")

    def refresh(self, connection: DriverConnection) -> bool:
        """Learn whether it is in a transaction, or was when its connection died."""
        if self.transactions:
            return True
        inside = self._is_inside(connection)
        if not self.private:
            self._note_inside(inside)
        return inside

    def _is_inside(self, connection: DriverConnection) -> bool:
        if self.transactions or connection.in_transaction:
            return True
        return self.state is IN_TRANSACTION and connection.is_dead  # a dead driver forgets it

    def _note_inside(self, inside: bool) -> None:
        if inside and (self.state is FREE or self.state is PINNED):
            self._move("begin")
        elif not inside and self.state is IN_TRANSACTION:
            self._move("free")

    def _reason(self, inside: bool) -> str | None:
        if inside and not self.private:
            return TRANSACTION_REASON
        if self.pins and (reason := self.pins.reason()) is not None:
            return reason
        if self.blocks:
            return "inside connection()"
        if self.changes.touched is not None and not self.private:
            return f"session state touched by {self.changes.touched}"
        return None

    def _go_on_without_connection(self) -> None:
        if self.lost is not None:
            return  # until the block is left
        if self.lost_session is None:
            self.unbind()
        else:
            self._move("forget")

    # -- blocks and pins -------------------------------------------------------------------------

    def add_block(self, transaction: Transaction) -> None:
        """A transaction or savepoint has begun."""
        self.transactions.append(transaction)
        if self.state is FREE or self.state is PINNED:  # the next statement runs already
            self._move("begin")
        self.claim.reason = TRANSACTION_REASON

    def remove_block(self, transaction: Transaction) -> None:
        """It has ended, or its end is sent; the savepoints inside it end with it."""
        if transaction in self.transactions:
            self.cut_off_inside(transaction)
            self.transactions.remove(transaction)

    def cut_off_inside(self, transaction: Transaction) -> None:
        """Savepoints inside it, of other tasks, end with it."""
        if transaction in self.transactions and self.transactions[-1] is not transaction:
            first = self.transactions.index(transaction) + 1
            for inner in self.transactions[first:]:
                inner.cut_off()
            del self.transactions[first:]
            self.outsiders.wake()

    def inner_block(self) -> Transaction | None:
        """The savepoint in which alone statements run now: if it fails, nothing else is undone."""
        if len(self.transactions) > 1 and self.lost is None and self.state is not ENDED:
            return self.transactions[-1]
        return None

    def drop_pin(self, pin: Pin) -> None:
        """It was closed; harmless if it is gone already."""
        if pin in self.pins:
            del self.pins[pin]
            self.hold_or_give_back()

    def close_pin_later(self, pin: Pin) -> None:
        """It was collected without being closed, or could not be closed in turn."""
        if pin not in self.pins or self.connection is None:
            return
        if self.private:
            pin.source.abandon()
            self.connection.interrupt()
            self.drop_connection(None)
        elif pin.exclusive:
            self.connection.leftovers.append(pin.source)  # to be closed first
        else:
            self.connection.leftovers.insert(0, pin.source)
        self.drop_pin(pin)

    def error_of_closed(self, pin: Pin) -> PoolError:
        """Why this pin is not open any more."""
        if self.lost is not None:
            return self.lost.error()
        if pin.over or self.loop_db.database._closed:
            return self.loop_db.gone()
        return PoolError(
            f"{self.loop_db.label}: this was closed ({pin.reason}): close() was called, its task "
            f"ended, or its connection was lost"
        )

    # -- running statements ----------------------------------------------------------------------

    def run_observed(
        self,
        call: Call[R],
        parsed: ParsedStatement | None,
        *,
        verb: str | None = None,
        pin: Pin | None = None,
        transaction: Transaction | None = None,
        ending: Transaction | None = None,
    ) -> Awaitable[R]:
        """Run one statement in turn, and notify the observers. `verb`: what it is, if it has no
        text of its own; the rest as for `run()`."""
        work = self.run(call, parsed, pin=pin, transaction=transaction, ending=ending)
        if parsed is not None:
            return self.loop_db.observed(parsed.keyword, parsed.text, work)
        assert verb is not None
        return self.loop_db.observed(verb, verb, work)

    async def run(
        self,
        call: Call[R],
        parsed: ParsedStatement | None,
        *,
        pin: Pin | None = None,
        transaction: Transaction | None = None,
        ending: Transaction | None = None,
    ) -> R:
        """Run one statement in turn; observers are not notified. `pin`: of the statement or stream
        that runs it; `transaction`: which has to be open still; `ending`: which it ends."""
        try:
            if self.turn.taken or len(self.transactions) > 1:
                transaction = await self._queue(transaction, ending)
            else:
                self.turn.taken = True
            try:
                connection = self._admit(pin, transaction, ending)
                inside = self.refresh(connection)
                if parsed is not None and parsed.opaque and self.transactions:
                    call = watching_transaction(call)
                replaceable = not (inside or self.pins or self.blocks or self.changes.touched)
                while True:
                    if parsed is not None:
                        self.changes.expect(connection, parsed)
                    connection.underway = connection.restarted = False
                    try:
                        if connection.leftovers:
                            await self.loop_db.close_leftovers(connection)
                        result = await call(connection)
                        break
                    except BaseException as error:
                        await self._judge_failure(connection, parsed, error, inside)
                        if (
                            not replaceable or connection.underway
                            or not self.loop_db.driver.is_unsent(error)
                        ):  # fmt: skip
                            raise
                    connection = await self.renew()
                    replaceable = False
                self._judge_success(connection, parsed)
            finally:
                self.turn.give()
        finally:
            self.hold_or_give_back()
        return result

    async def _queue(
        self, transaction: Transaction | None, ending: Transaction | None
    ) -> Transaction | None:
        """Wait for the turn of this statement. Return the transaction that has to be open then:
        that of its handle, or the one that its task has joined."""
        task = self.loop_db.current_task()
        joined = self.loop_db.joined.get(task)
        while True:
            inner = self.inner_block()
            if inner is not None and not inner.admits(task, joined, transaction, ending):
                await self.outsiders.wait(task, inner)
                continue
            if not self.turn.taken:
                self.turn.taken = True
                break
            await self.turn.wait()
            inner = self.inner_block()
            if inner is None or inner.admits(task, joined, transaction, ending):
                break
            self.turn.give()
        return transaction or (joined if ending is None else None)

    def _admit(
        self, pin: Pin | None, transaction: Transaction | None, ending: Transaction | None
    ) -> DriverConnection:
        """The connection, if this statement may run on it now that it is its turn."""
        if ending is not None:
            ending.end_what_is_open(self)
        connection = self.require_connection(pin, in_turn=True)
        if transaction is not None and not transaction.is_open:
            raise errors.transaction_over()
        if pin is not None and pin not in self.pins:
            raise self.error_of_closed(pin)
        if ending is not None:
            ending.send_end(self)
        return connection

    def require_connection(
        self, pin: Pin | None = None, *, in_turn: bool = False
    ) -> DriverConnection:
        """The connection, if a statement may run on it; raises what the task has to know first.
        `in_turn`: no statement of another task is under way."""
        connection = self.connection
        if (
            self.transactions and connection is not None and (in_turn or not self.turn.taken)
            and not connection.in_transaction and not connection.is_dead
        ):  # fmt: skip
            self.lose("unknown", "something by the driver's own means ended it", None)
        if self.lost is not None:
            raise self.lost.error()
        if self.lost_session is not None:
            error = self.lost_session.error()
            if self.lost_session.once:
                self.accept_session_loss()
                self.hold_or_give_back()
            raise error
        if connection is None or self.state is ENDED:
            raise self.loop_db.gone()
        if self.pins:
            self.pins.admit(pin, connection, self.loop_db.label)
        return connection

    def require_alive(self) -> None:
        """Before a COMMIT: if it were sent on a dead connection, its outcome would be unknown."""
        if self.connection is not None and self.connection.is_dead:
            cause = ConnectionError("the connection was lost before COMMIT")
            self.drop_connection(cause)
            self.hold_or_give_back()
            raise errors.transaction_lost("rolled_back", "its connection was lost") from cause

    async def renew(self) -> DriverConnection:
        """Take another connection for one that was dead when it was handed out."""
        claim = self.loop_db.pool.acquire()
        connection = await claim
        if self.state is ENDED:
            self.loop_db.give_back(connection)
            raise self.loop_db.gone()
        self.connection, self.claim = connection, claim
        return connection

    # -- what a statement has done ---------------------------------------------------------------

    def adopt(self, connection: DriverConnection, parsed: ParsedStatement, *, failed: bool) -> None:
        """Its first statement has run on the connection before there was a session."""
        self.changes.expect(connection, parsed)
        inside = connection.in_transaction
        self._note_inside(inside)
        if parsed.control is not None:
            self._follow_raw_transaction(inside)
        if not failed:
            self.changes.record(parsed, inside=inside)
        self.hold_or_give_back()

    def _judge_success(self, connection: DriverConnection, parsed: ParsedStatement | None) -> None:
        inside = connection.in_transaction  # it has just answered, so the driver knows
        if not (self.private or self.transactions):
            self._note_inside(inside)
        if parsed is not None:
            if parsed.control is not None:
                self._follow_raw_transaction(inside)
                if parsed.ends is not None:
                    if connection.status == "ROLLBACK" and (
                        parsed.commits or parsed.ends == "rollback"
                    ):
                        self.changes.roll_back()
                    self.changes.keep()  # another one may have begun
            if parsed.touches is not None:
                self.changes.record(parsed, inside=inside)
        if self.transactions and not (inside and (parsed is None or parsed.ends is None)):
            ends = None if parsed is None else parsed.ends
            what = "this statement" if parsed is None else f"{parsed!r}"
            # COMMIT of an aborted transaction is answered with ROLLBACK.
            outcome = ENDED_BY.get("rollback" if connection.status == "ROLLBACK" else ends)
            self.lose(outcome or "committed", f"{what} ended it", None)
        elif self.transactions and connection.restarted:
            self.lose("unknown", f"{parsed!r} ended it and began another", None)

    def _follow_raw_transaction(self, inside: bool) -> None:
        """A raw BEGIN opens a scope for tasks that are started inside, and its end closes it."""
        if self.raw is not None and not inside:
            leave_scope(self.raw)
            self.raw = None
        elif self.raw is None and inside and not self.transactions:
            self.raw = RawTransaction(self)
            enter_scope(self.raw)

    async def _judge_failure(
        self,
        connection: DriverConnection,
        parsed: ParsedStatement | None,
        error: BaseException,
        inside: bool,
    ) -> None:
        """After a statement that raised: is the connection usable, is the transaction still there?
        `inside`: whether one was open before, raw ones included."""
        alive = self.loop_db.survives(connection, error, self._reads_only)
        if alive and connection.in_transaction:
            try:
                await connection.look_again()
            except BaseException as second:
                await self._judge_failure(connection, parsed, second, inside)
                raise
        inside = inside and not self.private
        if not alive:
            self.drop_connection(error)
            if inside:
                self.lose(*outcome_of_cut_off(parsed), error)
        elif inside and (connection.restarted or not connection.in_transaction):
            self._judge_end_by_error(parsed, error)

    def _judge_end_by_error(self, parsed: ParsedStatement | None, error: BaseException) -> None:
        """The connection lives, and its transaction is over."""
        if not self.transactions and parsed is not None and parsed.control is not None:
            return  # a raw end of a raw transaction, as far as it got
        if self.transactions and parsed is not None and parsed.opaque:
            self.lose("unknown", f"{parsed!r} failed, and had or has ended it", error)
        elif self.loop_db.driver.rolls_back(error):
            self.lose("rolled_back", "the server rolled it back", error)
        elif self.transactions:  # a raw one is over then, as after a statement that succeeds
            self.lose("committed", "a statement that failed had ended it before", error)

    @property
    def _reads_only(self) -> bool:
        return self.changes.read_only or bool(self.transactions and self.transactions[0].read_only)

    # -- losses ----------------------------------------------------------------------------------

    def lose(self, outcome: Outcome, why: str, cause: BaseException | None) -> None:
        """The transaction ended without its block knowing; the first reason counts."""
        if self.lost is None and self.state is not ENDED:
            self._move("lose")
            self.lost = Lost(outcome, why, cause)
            self.outsiders.wake()  # they get the error

    def accept_loss(self) -> None:
        """The task knows that its transaction was lost, and goes on without it."""
        if self.lost is not None:
            self._move("free")
            self.lost = None

    def accept_session_loss(self) -> None:
        """The task knows that its session was lost, and goes on with a new one."""
        self.lost_session = None

    # -- connection() blocks ---------------------------------------------------------------------

    def forget_ended_blocks(self) -> None:
        """Drop connection() blocks of tasks that had joined a transaction that is over."""
        if self.blocks:
            self.blocks = [each for each in self.blocks if each is None or each.is_open]

    async def leave_block(self, error: BaseException | None, joined: Transaction | None) -> None:
        """Leave a connection() block; leaving the outermost resets and returns the connection."""
        if self.state is ENDED or (joined is not None and not joined.is_open):
            return  # the connection may be another task's
        self.blocks.remove(joined)
        connection = self.connection
        if connection is None:
            if not self.blocks and self.changes.kept is None:
                self.accept_session_loss()
            self.hold_or_give_back()
            return
        inside = self.refresh(connection)
        if error is not None and may_have_interrupted_use(error):
            connection.interrupt()
            self.drop_connection(None)
            if inside:
                self.lose("rolled_back", "a cancellation destroyed its connection", error)
        elif connection.is_dead:
            gone = ConnectionError("the connection was lost in a connection() block")
            self.drop_connection(error or gone)
            if inside:
                self.lose("rolled_back", "its connection was lost", error)
        elif self.transactions and not connection.in_transaction:
            self.lose("unknown", "something in a connection() block ended it", error)
        elif self.pin_reason() is None:
            await self.give_back().wait()
            return
        self.hold_or_give_back()

    # -- the end ---------------------------------------------------------------------------------

    def end(self) -> None:
        """Its task is over, or the database is closed: further use raises."""
        self._cut_off()
        self.hold_or_give_back()

    def _task_done(self, task: Any) -> None:
        """Perhaps it was the last one, and its loop stops: nothing is begun in this very step."""
        self._cut_off()
        self.loop_db.loop.call_soon(self.hold_or_give_back)

    def _cut_off(self) -> None:
        self._move("end")
        self.lost = self.lost_session = None
        if self.transactions:
            self.pins.end_streams()
        for transaction in self.transactions:
            transaction.cut_off()
        self.transactions.clear()
        if self.connection is not None:
            self.pins.end_all(self.connection, private=self.private)
        self.blocks.clear()
        self.outsiders.wake()

    def disown(self) -> object:
        """In a forked child: all of it is the parent's. Return what must not be finalized."""
        kept = self.connection, self.claim, self.pins, self.outsiders
        self.connection, self.pins, self.outsiders = None, Pins(), Outsiders()
        self._cut_off()
        return kept

    def break_off(self) -> None:
        """The end of its transaction was cancelled: it is rolled back with its connection, and the
        task goes on with another one, also while another task's statement runs on this."""
        if self.connection is not None:
            self.connection.mark_broken()
        kept, task = self.changes.kept, self.task
        self.end()
        self.loop_db.unbind(self)
        if kept is not None and not task.done() and not self.loop_db.over:
            heir = self.loop_db.bind(None, self.claim, task)
            heir.lost_session = self.changes.lost(kept, None)
            heir.hold_or_give_back()

    def give_back(self) -> Any:
        """Return the connection to the pool, which cleans it and hands it on."""
        if self.connection is not None and self.pins:  # of what was collected and is open on it
            self.pins.end_all(self.connection, private=self.private)
        connection, self.connection = self.connection, None
        self.unbind()
        return self.loop_db.give_back(connection)

    def drop_connection(self, error: BaseException | None) -> None:
        """Destroy the connection; remember if the task relied on what it had changed in it."""
        connection, self.connection = self.connection, None
        if connection is not None:
            reason = self.changes.kept or ("connection()" if self.blocks else None)
            if reason is not None and not self.private and self.state is not ENDED:
                self.lost_session = self.changes.lost(reason, error)
            self.claim.reason = None
            self.changes.drop_pending()
            if self.pins:
                self.pins.abandon()
            self.loop_db.discard(connection, error)

    def unbind(self) -> None:
        """The task holds nothing by it any more."""
        self._move("end")
        self.claim.reason = None
        self.raw = None
        self.changes.forget()
        self.task.remove_done_callback(self._task_done)
        self.loop_db.unbind(self)

    def __repr__(self) -> str:
        return f"<Session of {task_name(self.task)}: {self.state.value}, {self.pin_reason()}>"


def watching_transaction(call: Call[R]) -> Call[R]:
    """The same call, while the connection looks whether it is still in the same transaction."""
    return lambda connection: connection.watch(call)
