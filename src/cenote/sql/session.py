"""A task's session: its connection, held over several statements while something pins it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import Outcome
from ..observe import task_name
from .admission import admit, queue
from .changes import SessionChanges
from .driver import DriverConnection
from .fifo_lock import FifoLock
from .losses import Lost, LostSession
from .outsiders import Outsiders
from .parsing.statements import ParsedStatement
from .pins import Pin, Pins
from .scope import RawTransaction
from .states import SESSION, ConnectionState, SessionState
from .verdict import judge_failure, judge_success

if TYPE_CHECKING:
    from .per_loop import LoopDatabase
    from .scope import AnyTransaction
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
        self.blocks: list[AnyTransaction | None] = []
        self.changes: SessionChanges = SessionChanges(loop_db.doubtful)
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
        return None if connection is None else self._reason(self.is_inside(connection))

    @property
    def in_transaction(self) -> bool:
        connection = self.connection
        if connection is None:
            return False
        if self.turn.taken:
            return self.state is IN_TRANSACTION
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
        inside = self.is_inside(connection)
        if not inside:
            self.changes.keep()
        reason = None if self.state is ENDED else self._reason(inside)
        if reason is None and self.lost is None:
            self.give_back()
            return
        self.claim.pin(reason)
        if self.lost is None:
            self._move("begin" if reason is TRANSACTION_REASON else "pin")

    def refresh(self, connection: DriverConnection, *, in_turn: bool = False) -> bool:
        """Learn whether it is in a transaction, or was when its connection died. `in_turn`: nothing
        runs on the connection."""
        if self.transactions:
            return True
        inside = self.is_inside(connection, in_turn=in_turn)
        if not self.private:
            self.note_inside(inside)
        return inside

    def is_inside(self, connection: DriverConnection, *, in_turn: bool = False) -> bool:
        """Whether it is in a transaction, or was when its connection died. While a statement of
        another task runs, also one by way of connection(), psycopg does not know: then it is as it
        was before that statement."""
        if self.transactions:
            return True
        if self.turn.taken and not in_turn:
            return self.state is IN_TRANSACTION
        if connection.in_transaction:
            return True
        if self.state is not IN_TRANSACTION:
            return False
        return connection.is_dead or connection.is_stuck()  # a dead driver forgets it

    def note_inside(self, inside: bool) -> None:
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
        if self.state is not IN_TRANSACTION and self.state in (FREE, PINNED):
            self._move("begin")  # the next statement runs already
        self.claim.pin(TRANSACTION_REASON)

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

    # -- running statements ----------------------------------------------------------------------

    def run_observed(
        self,
        call: Call[R],
        parsed: ParsedStatement | None,
        *,
        verb: str | None = None,
        pin: Pin | None = None,
        transaction: AnyTransaction | None = None,
        ending: Transaction | None = None,
    ) -> Awaitable[R]:
        """Run one statement in turn, and notify the observers. `verb`: what it is, if it has no
        text of its own; the rest as for `run()`."""
        work = self.run(call, parsed, pin=pin, transaction=transaction, ending=ending)
        if parsed is not None:
            return self.loop_db.observed(parsed.keyword, parsed.text, work, self)
        assert verb is not None
        return self.loop_db.observed(verb, verb, work, self)

    async def run(
        self,
        call: Call[R],
        parsed: ParsedStatement | None,
        *,
        pin: Pin | None = None,
        transaction: AnyTransaction | None = None,
        ending: Transaction | None = None,
    ) -> R:
        """Run one statement in turn; observers are not notified. `pin`: of the statement or stream
        that runs it; `transaction`: which has to be open still; `ending`: which it ends."""
        try:
            if self.turn.taken or len(self.transactions) > 1:
                transaction = await queue(self, transaction, ending)
            else:
                self.turn.taken = True
            try:
                connection = admit(self, pin, transaction, ending)
                inside = self.refresh(connection, in_turn=True)
                if parsed is not None and parsed.opaque and self.transactions:
                    call = watching_transaction(call)
                replaceable = not (inside or self.pins or self.blocks or self.changes.touched)
                while True:
                    if parsed is not None:
                        self.changes.expect(connection, parsed)
                    connection.underway = connection.restarted = False
                    try:
                        if connection.leftovers:
                            await connection.close_leftovers()
                        result = await call(connection)
                        break
                    except BaseException as error:
                        await judge_failure(self, connection, parsed, error, inside)
                        if (
                            not replaceable or connection.underway
                            or not self.loop_db.driver.is_unsent(error)
                        ):  # fmt: skip
                            raise
                    connection = await self.renew()
                    replaceable = False
                judge_success(self, connection, parsed)
            finally:
                self.turn.give()
        finally:
            self.hold_or_give_back()
        return result

    async def renew(self) -> DriverConnection:
        """Take another connection for one that was dead when it was handed out."""
        claim = self.loop_db.acquire()
        connection = await claim
        if self.state is ENDED:
            self.loop_db.give_back(connection)
            raise self.loop_db.gone()
        self.connection, self.claim = connection, claim
        return connection

    # -- losses ----------------------------------------------------------------------------------

    def lose(self, outcome: Outcome, why: str, cause: BaseException | None) -> None:
        """The transaction ended without its block knowing; the first reason counts."""
        if self.lost is None and self.state is not ENDED:
            self._move("lose")
            self.lost = Lost(outcome, why, cause)
            self.outsiders.wake()  # they get the error

    def lose_block(self, block: Transaction, outcome: Outcome, why: str) -> None:
        """Another task has ended this block of the task, which is still in it."""
        self._move("begin")
        self.lose(outcome, why, None)
        if self.lost is not None:
            self.lost.block = block

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
            self.claim.pin(None)
            self.changes.drop_pending()
            if self.pins:
                self.pins.abandon()
            self.loop_db.discard(connection, error)

    def give_back_clean(self) -> bool:
        """Return the connection at once after a COMMIT, if there is nothing to be undone on it or
        closed; else return False."""
        connection, loop_db, task = self.connection, self.loop_db, self.task
        if (
            connection is None or self.state is not IN_TRANSACTION or self.turn.taken
            or self.transactions or self.pins or self.blocks or self.changes.touched is not None
            or connection.touched or connection.leftovers or connection.state is not READY
            or loop_db.reset_always or loop_db.sessions.get(task) is not self
        ):  # fmt: skip
            return False
        connection.returned()
        if connection.in_transaction:
            return False
        self.connection = self.raw = None
        self.state = SESSION[IN_TRANSACTION, "end"]
        self.claim.pin(None)
        task.remove_done_callback(self._task_done)
        del loop_db.sessions[task]
        connection.last_heard = loop_db.time()
        loop_db.release_clean(connection)
        return True

    def unbind(self) -> None:
        """The task holds nothing by it any more."""
        self._move("end")
        self.claim.pin(None)
        self.raw = None
        self.changes.forget()
        self.task.remove_done_callback(self._task_done)
        self.loop_db.unbind(self)

    def __repr__(self) -> str:
        return f"<Session of {task_name(self.task)}: {self.state.value}, {self.pin_reason()}>"


def watching_transaction(call: Call[R]) -> Call[R]:
    """The same call, while the connection looks whether it is still in the same transaction."""
    return lambda connection: connection.watch(call)
