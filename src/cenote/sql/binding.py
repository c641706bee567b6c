"""A task's connection: held over several statements for as long as something pins it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .. import errors
from ..caller import poisons
from ..errors import PoolError, TransactionLostError
from ..observe import task_name
from .driver import Link
from .query import Query

if TYPE_CHECKING:
    from .branch import Branch
    from .transaction import Transaction

R = TypeVar("R")
Outcome = Literal["rolled_back", "committed", "unknown"]

ENDED_BY: dict[str | None, Outcome] = {"commit": "committed", "rollback": "rolled_back"}


class Lost:
    """A transaction that ended behind the back of its block."""

    __slots__ = ("cause", "outcome", "why")

    def __init__(self, outcome: Outcome, why: str, cause: BaseException | None) -> None:
        self.outcome = outcome
        self.why = why
        self.cause = cause

    def error(self) -> TransactionLostError:
        error = errors.transaction_lost(self.outcome, self.why)
        error.__cause__ = self.cause
        return error


class Pin:
    """An open statement or stream. The lease holds this one, and not the statement itself, which
    may be collected: then its finalizer drops the pin."""

    __slots__ = ("exclusive", "reason", "source")

    def __init__(self, reason: str, source: Any, *, exclusive: bool = False) -> None:
        self.reason = reason
        self.source = source  # what has to be closed on the link
        self.exclusive = exclusive  # a stream beside which nothing else can run


class Lease:
    """A link that a task holds until nothing pins it any more, or until the task ends."""

    __slots__ = (
        "__weakref__",
        "blocks",
        "branch",
        "claim",
        "ended",
        "link",
        "lock",
        "lost",
        "pins",
        "private",
        "task",
        "touched",
        "transactions",
    )

    def __init__(self, branch: Branch, link: Link, claim: Any, task: Any, *, private: bool) -> None:
        self.branch = branch
        self.link: Link | None = link  # None once it was given back or destroyed
        self.claim = claim
        self.task = task
        self.private = private  # of a stream; the task's statements do not use it
        self.lock = asyncio.Lock()  # a transaction may be shared by several tasks
        self.transactions: list[Transaction] = []  # the outermost first
        self.pins: dict[Pin, None] = {}
        self.blocks = 0  # of connection(), nested
        self.touched: str | None = None  # by a statement
        self.lost: Lost | None = None
        self.ended = False  # its task is over, or the database is closed
        task.add_done_callback(self.task_done)

    # -- what pins it ----------------------------------------------------------------------------

    def pin_reason(self) -> str | None:
        link = self.link
        if link is None:
            return None
        if not self.private and (self.transactions or link.in_transaction):
            return "in a transaction"
        for pin in self.pins:
            return pin.reason
        if self.blocks:
            return "inside connection()"
        if self.touched is not None:
            return f"session state touched by {self.touched}"
        return None

    def settle(self) -> None:
        """Look again at what pins it; nothing: it goes back."""
        if self.lock.locked():
            return  # at the end of the statement that is under way
        if self.ended:
            self.lost = None
        if self.link is None:
            if self.lost is None:
                self.unbind()
            return
        reason = None if self.ended else self.pin_reason()
        self.claim.reason = reason
        if reason is None and self.lost is None:
            self.give_back()

    def add_pin(self, pin: Pin) -> None:
        self.pins[pin] = None
        self.settle()

    def drop_pin(self, pin: Pin) -> None:
        """It was closed; harmless if it is gone already."""
        if pin in self.pins:
            del self.pins[pin]
            self.settle()

    def forget_pin(self, pin: Pin) -> None:
        """It was collected without being closed."""
        if pin not in self.pins or self.link is None:
            return
        if self.private:
            pin.source.abandon()
            self.link.busy = True
            self.drop(None)
        else:
            self.link.leftovers.append(pin.source)
        self.drop_pin(pin)

    # -- running statements ----------------------------------------------------------------------

    async def run(
        self,
        call: Callable[[Link], Awaitable[R]],
        query: Query | None,
        *,
        pin: Pin | None = None,
        transaction: Transaction | None = None,
    ) -> R:
        """One statement, when it is its turn. `pin`: of the statement or stream that runs it;
        `transaction`: which has to be open still."""
        try:
            async with self.lock:
                link = self.check(pin)
                if transaction is not None and not transaction.is_open:
                    raise errors.transaction_over()
                if query is not None and query.touches is not None:
                    link.touched = self.touched = query.touches
                try:
                    if link.leftovers:
                        await self.branch.close_leftovers(link)
                    result = await self.branch.attempt(link, call)
                except BaseException as error:
                    self.failed(link, error)
                    raise
                self.succeeded(link, query)
        finally:
            self.settle()
        return result

    def check(self, pin: Pin | None = None) -> Link:
        """The link, if a statement may run on it now."""
        if self.lost is not None:
            raise self.lost.error()
        if self.link is None or self.ended:
            raise self.branch.gone()
        for each in self.pins:
            if each.exclusive and each is not pin:
                raise PoolError(
                    f"{self.branch.label}: this driver cannot run another statement on the same "
                    f"connection while a {each.reason}. Read it to its end or aclose() it first."
                )
        return self.link

    def succeeded(self, link: Link, query: Query | None) -> None:
        if self.transactions and not link.in_transaction:
            control = None if query is None else query.control
            what = "this statement" if query is None else f"{query!r}"
            self.lose(ENDED_BY.get(control, "committed"), f"{what} ended it", None)

    def failed(self, link: Link, error: BaseException) -> None:
        """After a statement that raised: is the link usable, is the transaction still there?"""
        inside = bool(self.transactions) or link.in_transaction
        alive = self.branch.survives(link, error, self.reads_only)
        if not alive:
            self.drop(error)
            if inside and not self.private:
                self.lose("rolled_back", "its connection was lost", error)
        elif self.branch.driver.ends_transaction(error) or (
            self.transactions and not link.in_transaction
        ):
            self.lose("rolled_back", "the server rolled it back", error)

    @property
    def reads_only(self) -> bool:
        return bool(self.transactions) and self.transactions[0].read_only

    def lose(self, outcome: Outcome, why: str, cause: BaseException | None) -> None:
        if self.lost is None:
            self.lost = Lost(outcome, why, cause)

    async def leave_block(self, error: BaseException | None) -> None:
        """Of connection(): leaving the outermost one resets and returns the link."""
        if self.ended:
            return
        self.blocks -= 1
        link = self.link
        if link is None:
            self.settle()
            return
        inside = bool(self.transactions) or link.in_transaction
        if (error is not None and poisons(error)) or link.looks_dead():
            link.busy = error is not None and not link.looks_dead()
            self.drop(error)
            if inside:
                self.lose("rolled_back", "its connection was lost", error)
        elif self.transactions and not link.in_transaction:
            self.lose("unknown", "something in a connection() block ended it", error)
        elif self.pin_reason() is None:
            await self.give_back().wait()
            return
        self.settle()

    # -- the end ---------------------------------------------------------------------------------

    def task_done(self, task: Any) -> None:
        self.end()

    def end(self) -> None:
        """Its task is over, or the database is closed: whoever still uses it learns so."""
        self.ended = True
        self.lost = None
        for transaction in self.transactions:
            transaction.is_open = False
        self.transactions.clear()
        if self.private and self.pins and self.link is not None:
            self.link.busy = self.link.broken = True  # in the middle of its rows
            for pin in self.pins:
                pin.source.abandon()
        self.pins.clear()
        self.blocks = 0
        if self.lock.locked():
            return  # in mid-statement: settle() comes at its end
        if self.link is not None:
            self.give_back()
        self.unbind()

    def give_back(self) -> Any:
        """To the pool, which cleans it and hands it on."""
        link, self.link = self.link, None
        self.unbind()
        return self.branch.give_back(link)

    def drop(self, error: BaseException | None) -> None:
        """Destroy the link."""
        link, self.link = self.link, None
        if link is not None:
            self.claim.reason = None
            self.branch.discard(link, error)

    def unbind(self) -> None:
        self.claim.reason = None
        self.touched = None
        self.task.remove_done_callback(self.task_done)
        self.branch.unbind(self)

    def __repr__(self) -> str:
        return f"<Lease of {task_name(self.task)}: {self.pin_reason()}>"
