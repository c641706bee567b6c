"""A task's connection: held over several statements for as long as something pins it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import TYPE_CHECKING, Any, TypeVar

from .. import errors
from ..caller import may_have_interrupted_use
from ..errors import PoolError
from ..observe import task_name
from .circle import waits_for
from .driver import DriverConnection, RowCursor
from .fifo_lock import FifoLock
from .losses import Lost, LostSession, Outcome
from .parsing.statements import ParsedStatement
from .pin import Pin
from .scope import RawTransaction, enter_scope, leave_scope

if TYPE_CHECKING:
    from .per_loop import LoopDatabase
    from .transaction import Transaction

R = TypeVar("R")

IN_TRANSACTION = "in a transaction"
LOOK_AGAIN = 1.0  # seconds after which a task that waits may have closed a circle
ENDED_BY: dict[str | None, Outcome] = {
    "commit": "committed",
    "prepare": "unknown",
    "rollback": "rolled_back",
}


class Session:
    """A connection that a task holds until nothing pins it any more, or until the task ends."""

    __slots__ = (
        "__weakref__", "blocks", "claim", "connection", "ended", "holds", "inside",
        "loop_db", "lost", "lost_session", "outsiders", "pending", "pins", "private", "raw",
        "read_only", "task", "touched", "transactions", "turn"
    )  # fmt: skip

    def __init__(
        self,
        loop_db: LoopDatabase,
        connection: DriverConnection | None,
        claim: Any,
        task: Any,
        *,
        private: bool,
    ) -> None:
        self.loop_db = loop_db
        self.connection = connection  # None once it was given back or destroyed
        self.claim = claim
        self.task = task
        self.private = private  # of a stream; the task's statements do not use it
        self.turn = FifoLock()  # a transaction may be shared by several tasks
        self.transactions: list[Transaction] = []  # the outermost first
        self.outsiders: list[asyncio.Future[None]] = []  # that wait for the end of an inner one
        self.pins: dict[Pin, None] = {}
        # Of connection(), that are open: the transaction that its task has joined, for each.
        self.blocks: list[Transaction | None] = []
        self.touched: str | None = None  # by a statement
        self.holds: str | None = None  # by one that succeeded, and no transaction can undo it
        self.pending: dict[str, bool] | None = (
            None  # the same in this one; True: ROLLBACK undoes it
        )
        self.lost: Lost | None = None
        self.lost_session: LostSession | None = None
        self.inside = False  # a transaction, when last looked at: dead drivers forget it
        self.raw: RawTransaction | None = None
        self.read_only = False  # asked for by a raw statement
        self.ended = False  # its task is over, or the database is closed
        task.add_done_callback(self.task_done)

    # -- what pins it ----------------------------------------------------------------------------

    def pin_reason(self) -> str | None:
        connection = self.connection
        if connection is None:
            return None
        if not self.private and (
            self.transactions or connection.in_transaction or (self.inside and connection.is_dead)
        ):
            return IN_TRANSACTION
        for pin in self.pins:
            if not pin.collected:
                return pin.reason
        if self.blocks:
            return "inside connection()"
        if self.touched is not None and not self.private:
            return f"session state touched by {self.touched}"
        return None

    @property
    def in_transaction(self) -> bool:
        connection = self.connection
        if connection is None:
            return False
        if self.transactions and self.turn.taken:
            return self.lost is None  # psycopg does not know in mid-statement
        return connection.in_transaction

    def settle(self) -> None:
        """Look again at what pins it; nothing: it goes back."""
        if self.turn.taken:
            return  # at the end of the statement that is under way
        if (
            self.transactions and self.connection is not None
            and not (self.connection.broken or self.ended or self.private)
        ):  # fmt: skip
            self.inside = True
            self.claim.reason = IN_TRANSACTION
            return
        if self.ended:
            self.lost = self.lost_session = None
        if self.connection is not None and self.connection.broken:
            self.drop(None)
        if self.connection is None:
            if self.lost is None and self.lost_session is None:
                self.unbind()
            return
        if not self.look(self.connection) and self.pending is not None:
            self.keep_changes()
        reason = None if self.ended else self.pin_reason()
        self.claim.reason = reason
        if reason is None and self.lost is None:
            self.give_back()

    def look(self, connection: DriverConnection) -> bool:
        """Whether it is in a transaction, or was when its connection died."""
        if self.transactions or connection.in_transaction:
            self.inside = True
        elif self.inside and not connection.is_dead:
            self.inside = False
        return self.inside

    def drop_pin(self, pin: Pin) -> None:
        """It was closed; harmless if it is gone already."""
        if pin in self.pins:
            del self.pins[pin]
            self.settle()

    def forget_pin(self, pin: Pin) -> None:
        """It was collected without being closed."""
        if pin not in self.pins or self.connection is None:
            return
        if self.private:
            pin.source.abandon()
            self.connection.interrupt()
            self.drop(None)
        elif pin.exclusive:
            self.connection.leftovers.append(pin.source)  # to be closed first
        else:
            self.connection.leftovers.insert(0, pin.source)
        self.drop_pin(pin)

    def cut_streams(self, older: Container[Pin]) -> None:
        """Streams end with the transaction or savepoint in which they were opened, those that are
        not `older`, and statements with the one of which they are: they are closed before the next
        statement."""
        for pin in [*self.pins]:
            if (isinstance(pin.source, RowCursor) and pin not in older) or (
                pin.transaction is not None and not pin.transaction.is_open
            ):
                del self.pins[pin]
                pin.cut()
                if self.connection is not None:
                    self.connection.leftovers.append(pin.source)

    def cut_pins(self, connection: DriverConnection) -> None:
        """All of them: the connection goes back, or is destroyed if it is in the middle of rows."""
        for pin in self.pins:
            if pin.transaction is not None:
                pin.cut()
            if pin.exclusive or (self.private and isinstance(pin.source, RowCursor)):
                pin.source.abandon()
                connection.interrupt()
            else:
                connection.leftovers.append(pin.source)
        self.pins.clear()

    # -- running statements ----------------------------------------------------------------------

    def run_observed(
        self,
        call: Callable[[DriverConnection], Awaitable[R]],
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
        call: Callable[[DriverConnection], Awaitable[R]],
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
                transaction = await self.queue_up(transaction, ending)
            else:
                self.turn.taken = True
            try:
                if ending is not None:
                    ending.cut_streams(self)
                connection = self.check(pin, turn=True)
                if transaction is not None and not transaction.is_open:
                    raise errors.transaction_over()
                if pin is not None and pin not in self.pins:
                    raise self.cut_off(pin)
                if ending is not None:
                    ending.begin_to_end(self)
                inside = self.look(connection)
                if parsed is not None and parsed.opaque and self.transactions:
                    call = watched(call)
                replaceable = not (inside or self.pins or self.blocks or self.touched)
                while True:
                    if parsed is not None:
                        self.note(connection, parsed)
                    connection.expect_statement()
                    try:
                        if connection.leftovers:
                            await self.loop_db.close_leftovers(connection)
                        try:
                            result = await call(connection)
                        except Exception as error:
                            if connection.in_transaction and not self.loop_db.driver.is_disconnect(
                                error
                            ):
                                await connection.look_again()
                            raise
                        break
                    except BaseException as error:
                        self.failed(connection, parsed, error, inside)
                        if (
                            not replaceable or connection.underway
                            or not self.loop_db.driver.is_unsent(error)
                        ):  # fmt: skip
                            raise
                    connection = await self.renew()
                    replaceable = False
                self.succeeded(connection, parsed)
            finally:
                self.turn.give()
        finally:
            self.settle()
        return result

    async def queue_up(
        self, transaction: Transaction | None, ending: Transaction | None
    ) -> Transaction | None:
        """Until it is the turn of this statement. Gives the transaction that has to be open then:
        that of its handle, or the one that its task has joined."""
        task = self.loop_db.current_task()
        joined = self.loop_db.joined.get(task)
        while True:
            inner = self.inner_block()
            if inner is not None and not inner.admits(task, joined, transaction, ending):
                await self.outside(task, inner)
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

    def inner_block(self) -> Transaction | None:
        """The savepoint in which alone statements run now: if it fails, nothing else is undone."""
        if len(self.transactions) > 1 and self.lost is None and not self.ended:
            return self.transactions[-1]
        return None

    async def outside(self, task: Any, inner: Transaction) -> None:
        """Wait until an inner block of another task is over."""
        future: asyncio.Future[None] = self.loop_db.loop.create_future()
        self.outsiders.append(future)
        try:
            while not future.done():
                if waits_for(inner.task, task):
                    raise errors.waits_for_inner(task_name(task), task_name(inner.task))
                await asyncio.wait([future], timeout=LOOK_AGAIN)
        finally:
            if future in self.outsiders:
                self.outsiders.remove(future)

    def let_in(self) -> None:
        """An inner block is over, or everything."""
        futures, self.outsiders = self.outsiders, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    def cut_off(self, pin: Pin) -> PoolError:
        """Why this one is not open any more."""
        if self.lost is not None:
            return self.lost.error()
        if pin.over or self.loop_db.database._closed:
            return self.loop_db.gone()
        return PoolError(
            f"{self.loop_db.label}: this was closed ({pin.reason}): close() was called, its task "
            f"ended, or its connection was lost"
        )

    async def renew(self) -> DriverConnection:
        """Another connection for one that was dead when it was handed out."""
        claim = self.loop_db.pool.acquire()
        connection = await claim
        if self.ended:
            self.loop_db.give_back(connection)
            raise self.loop_db.gone()
        self.connection, self.claim = connection, claim
        return connection

    def note(self, connection: DriverConnection, parsed: ParsedStatement) -> None:
        """What the statement is going to do to the session."""
        if parsed.touches is not None:
            self.touched = parsed.touches
            connection.touch(parsed.touches, lasting=parsed.lasting, replans=parsed.replans)
        if parsed.control is not None:
            connection.status = None
            asked = self.read_only and self.touched is not None  # for the whole session
            self.read_only = asked or parsed.read_only
        elif parsed.read_only:
            self.read_only = True

    def changed(self, parsed: ParsedStatement) -> None:
        """What it was going to do to the session is done."""
        reason = parsed.touches
        if reason is None:
            return
        if self.inside:
            pending = self.pending = self.pending or {}
            pending[reason] = parsed.undone and pending.get(reason, True)
        else:
            self.hold(reason)

    def hold(self, reason: str) -> None:
        if self.holds is None or self.is_doubtful(self.holds):
            self.holds = reason

    def is_doubtful(self, reason: str) -> bool:
        """Whether a statement with this reason may have changed nothing."""
        return reason in self.loop_db.driver.dialect.rules.doubtful

    def keep_changes(self) -> None:
        """The transaction in which they were made is over."""
        for each in self.pending or ():
            self.hold(each)
        self.pending = None

    def rolls_back(self) -> None:
        """The whole transaction, with what is undone by that."""
        if self.pending is not None:
            self.pending = {each: undone for each, undone in self.pending.items() if not undone}

    def check(self, pin: Pin | None = None, *, turn: bool = False) -> DriverConnection:
        """The connection, if a statement may run on it now; `turn`: it is the caller's."""
        connection = self.connection
        if (
            connection is not None and self.transactions and not connection.in_transaction
            and not connection.is_dead and (turn or not self.turn.taken)
        ):  # fmt: skip
            self.lose("unknown", "something by the driver's own means ended it", None)
        if self.lost is not None:
            raise self.lost.error()
        if self.lost_session is not None:
            error = self.lost_session.error()
            if self.lost_session.once:
                self.lost_session = None
                self.settle()
            raise error
        if connection is None or self.ended:
            raise self.loop_db.gone()
        for each in [*self.pins] if self.pins else ():
            if each.exclusive and each.collected:
                del self.pins[each]
                connection.leftovers.append(each.source)  # to be closed first
            elif each.exclusive and each is not pin:
                raise PoolError(
                    f"{self.loop_db.label}: this driver cannot run another statement on the same "
                    f"connection while a {each.reason}. Read it to its end or aclose() it first."
                )
        return connection

    def check_alive(self) -> None:
        """Before a COMMIT: sent on a dead connection, nobody could tell what became of it."""
        if self.connection is not None and self.connection.is_dead:
            cause = ConnectionError("the connection was lost before COMMIT")
            self.drop(cause)
            self.settle()
            raise errors.transaction_lost("rolled_back", "its connection was lost") from cause

    def succeeded(self, connection: DriverConnection, parsed: ParsedStatement | None) -> None:
        self.inside = connection.in_transaction  # it has just answered, so the driver knows
        if parsed is not None:
            if parsed.control is not None:
                self.controlled()
                if parsed.ends is not None:
                    if connection.status == "ROLLBACK" and (
                        parsed.commits or parsed.ends == "rollback"
                    ):
                        self.rolls_back()
                    self.keep_changes()  # another one may have begun
            self.changed(parsed)
        if self.transactions and not (self.inside and (parsed is None or parsed.ends is None)):
            ends = None if parsed is None else parsed.ends
            what = "this statement" if parsed is None else f"{parsed!r}"
            # COMMIT of an aborted transaction is answered with ROLLBACK.
            outcome = ENDED_BY.get("rollback" if connection.status == "ROLLBACK" else ends)
            self.lose(outcome or "committed", f"{what} ended it", None)
        elif self.transactions and connection.restarted:
            self.lose("unknown", f"{parsed!r} ended it and began another", None)

    def controlled(self) -> None:
        """A raw BEGIN opens a transaction for those who look for one, too, and its end ends it."""
        if self.raw is not None and not self.inside:
            leave_scope(self.raw)
            self.raw = None
        elif self.raw is None and self.inside and not self.transactions:
            self.raw = RawTransaction(self)
            enter_scope(self.raw)

    def failed(
        self,
        connection: DriverConnection,
        parsed: ParsedStatement | None,
        error: BaseException,
        inside: bool,
    ) -> None:
        """After a statement that raised: is the connection usable, is the transaction still there?
        `inside`: of one that was open before, raw ones included."""
        alive = self.loop_db.survives(connection, error, self.reads_only)
        if not alive:
            self.drop(error)
            if inside and not self.private:
                if parsed is not None and parsed.ends in ("commit", "prepare"):
                    self.lose("unknown", "its connection was lost during COMMIT", error)
                if parsed is not None and parsed.opaque:
                    self.lose("unknown", f"its connection was lost during {parsed!r}", error)
                self.lose("rolled_back", "its connection was lost", error)
        elif (
            inside and not self.private and (connection.restarted or not connection.in_transaction)
        ):
            if not self.transactions and parsed is not None and parsed.control is not None:
                return  # a raw end of a raw transaction, as far as it got
            if self.transactions and parsed is not None and parsed.opaque:
                self.lose("unknown", f"{parsed!r} failed, and had or has ended it", error)
            elif self.loop_db.driver.rolls_back(error):
                self.lose("rolled_back", "the server rolled it back", error)
            elif self.transactions:  # a raw one is over then, as after a statement that succeeds
                self.lose("committed", "a statement that failed had ended it before", error)

    @property
    def reads_only(self) -> bool:
        return self.read_only or bool(self.transactions and self.transactions[0].read_only)

    def lose(self, outcome: Outcome, why: str, cause: BaseException | None) -> None:
        if self.lost is None:
            self.lost = Lost(outcome, why, cause)
            self.let_in()  # they learn of it

    def end_blocks(self) -> None:
        """Of connection(), of tasks that had joined a transaction that is over."""
        self.blocks = [each for each in self.blocks if each is None or each.is_open]

    async def leave_block(self, error: BaseException | None, joined: Transaction | None) -> None:
        """Of connection(): leaving the outermost one resets and returns the connection."""
        if self.ended or (joined is not None and not joined.is_open):
            return  # the connection may be another task's
        self.blocks.remove(joined)
        connection = self.connection
        if connection is None:
            if not self.blocks and self.holds is None:
                self.lost_session = None
            self.settle()
            return
        inside = self.look(connection)
        if error is not None and may_have_interrupted_use(error):
            connection.interrupt()
            self.drop(None)
            if inside:
                self.lose("rolled_back", "a cancellation destroyed its connection", error)
        elif connection.is_dead:
            self.drop(error or ConnectionError("the connection was lost in a connection() block"))
            if inside:
                self.lose("rolled_back", "its connection was lost", error)
        elif self.transactions and not connection.in_transaction:
            self.lose("unknown", "something in a connection() block ended it", error)
        elif self.pin_reason() is None:
            await self.give_back().wait()
            return
        self.settle()

    # -- the end ---------------------------------------------------------------------------------

    def task_done(self, task: Any) -> None:
        """Perhaps it was the last one, and its loop stops: nothing is begun in this very step."""
        self.cut()
        self.loop_db.loop.call_soon(self.settle)

    def end(self) -> None:
        """Its task is over, or the database is closed: whoever still uses it learns so."""
        self.cut()
        self.settle()

    def cut(self) -> None:
        self.ended = True
        self.lost = self.lost_session = None
        if self.transactions:
            for pin in self.pins:
                if isinstance(pin.source, RowCursor):
                    pin.cut()
        for transaction in self.transactions:
            transaction.cut_off()
        self.transactions.clear()
        if self.connection is not None:
            self.cut_pins(self.connection)
        self.blocks.clear()
        self.let_in()

    def disown(self) -> object:
        """In a forked child: all of it is the parent's. Gives what must not be finalized."""
        kept = self.connection, self.claim, self.pins, self.outsiders
        self.connection, self.pins, self.outsiders = None, {}, []
        self.cut()
        return kept

    def break_off(self) -> None:
        """The end of its transaction was cancelled: it is rolled back with its connection, and the
        task goes on with another one, also while somebody's statement still runs on this."""
        if self.connection is not None:
            self.connection.mark_broken()
        holds, task = self.holds, self.task
        self.end()
        self.loop_db.unbind(self)
        if holds is not None and not task.done():
            heir = Session(self.loop_db, None, self.claim, task, private=False)
            heir.lost_session = LostSession(holds, None, once=self.is_doubtful(holds))
            self.loop_db.sessions[task] = heir

    def give_back(self) -> Any:
        """To the pool, which cleans it and hands it on."""
        if self.connection is not None and self.pins:
            self.cut_pins(self.connection)  # of what was collected, and is open on it still
        connection, self.connection = self.connection, None
        self.unbind()
        return self.loop_db.give_back(connection)

    def drop(self, error: BaseException | None) -> None:
        """Destroy the connection."""
        connection, self.connection = self.connection, None
        if connection is not None:
            reason = self.holds or ("connection()" if self.blocks else None)
            if reason is not None and not (self.private or self.ended):
                self.lost_session = LostSession(reason, error, once=self.is_doubtful(reason))
            self.claim.reason = self.pending = None
            for pin in self.pins:
                pin.source.abandon()
            self.loop_db.discard(connection, error)

    def unbind(self) -> None:
        self.claim.reason = None
        self.raw = self.touched = self.holds = self.pending = None
        self.task.remove_done_callback(self.task_done)
        self.loop_db.unbind(self)

    def __repr__(self) -> str:
        return f"<Session of {task_name(self.task)}: {self.pin_reason()}>"


def watched(
    call: Callable[[DriverConnection], Awaitable[R]],
) -> Callable[[DriverConnection], Awaitable[R]]:
    """The same, while the connection looks whether it is still in the same transaction."""
    return lambda connection: connection.watch(call)
