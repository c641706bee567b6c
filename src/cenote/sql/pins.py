"""What is open on a connection and pins it to its task: prepared statements and streams."""

from __future__ import annotations

from collections.abc import Awaitable, Container
from typing import TYPE_CHECKING, Any

from ..errors import PoolError, TransactionClosedError
from .driver import DriverConnection, RowCursor

if TYPE_CHECKING:
    from .scope import AnyTransaction
    from .session import Session


class Pin:
    """An open statement or stream. The session holds the pin and not the statement itself, which
    may be garbage-collected: then its finalizer drops the pin."""

    __slots__ = ("collected", "exclusive", "over", "reason", "rows", "source", "transaction")

    def __init__(
        self,
        reason: str,
        source: Any,
        *,
        exclusive: bool = False,
        rows: list[Any] | None = None,
        transaction: AnyTransaction | None = None,
    ) -> None:
        self.collected: bool = False  # the statement or stream was, in any thread
        self.reason: str = reason
        self.source: Any = source  # what has to be closed on the connection
        self.exclusive: bool = exclusive  # a stream beside which nothing else can run
        self.rows: list[Any] = [] if rows is None else rows  # of a stream, read and not yet given
        # With which it ends; streams end with any.
        self.transaction: AnyTransaction | None = transaction
        self.over: bool = False  # it has ended with a transaction

    def end(self) -> None:
        """Its transaction is over: reading from it raises."""
        self.over = True
        self.rows.clear()


class Pins(dict[Pin, None]):
    """The pins of one session, the oldest first."""

    __slots__ = ()

    def reason(self) -> str | None:
        """Why the first of them pins the connection, or None."""
        for pin in self:
            if not pin.collected:
                return pin.reason
        return None

    def end_with(self, older: Container[Pin], connection: DriverConnection | None) -> None:
        """A transaction or savepoint is about to end: streams that are not `older` end with it, and
        statements of its handle. They are closed before the next statement."""
        for pin in [*self]:
            if (isinstance(pin.source, RowCursor) and pin not in older) or (
                pin.transaction is not None and not pin.transaction.is_open
            ):
                del self[pin]
                pin.end()
                if connection is not None:
                    connection.leftovers.append(pin.source)

    def end_streams(self) -> None:
        """The transaction in which they were opened is cut off."""
        for pin in self:
            if isinstance(pin.source, RowCursor):
                pin.end()

    def end_all(self, connection: DriverConnection, *, private: bool) -> None:
        """The connection goes back; it is destroyed instead if it is in the middle of rows."""
        for pin in self:
            if pin.transaction is not None:
                pin.end()
            if pin.exclusive or (private and isinstance(pin.source, RowCursor)):
                pin.source.abandon()
                connection.interrupt()
            else:
                connection.leftovers.append(pin.source)
        self.clear()

    def abandon(self) -> None:
        """The connection is destroyed: nothing has to be closed on it."""
        for pin in self:
            pin.source.abandon()

    def admit(self, own: Pin | None, connection: DriverConnection, label: str) -> None:
        """Raise if a stream, other than the caller's own, allows no statement beside it."""
        for pin in [*self]:
            if pin.exclusive and pin.collected:
                del self[pin]
                connection.leftovers.append(pin.source)  # to be closed first
            elif pin.exclusive and pin is not own:
                raise PoolError(
                    f"{label}: this driver cannot run another statement on the same "
                    f"connection while a {pin.reason}. Read it to its end or aclose() it first."
                )


async def close_pin(session: Session, pin: Pin) -> None:
    """Close it in turn; if it does not come to that, it is closed before the next statement."""
    begun = False

    def close(connection: DriverConnection) -> Awaitable[object]:
        nonlocal begun
        begun = True
        return pin.source.close()  # type: ignore[no-any-return]

    try:
        await session.run(close, None, pin=pin, transaction=pin.transaction)
    except TransactionClosedError:
        if begun:
            raise
    finally:
        if begun:
            drop_pin(session, pin)
        else:
            close_pin_later(session, pin)


def drop_pin(session: Session, pin: Pin) -> None:
    """Remove the pin of something that was closed; harmless if it is gone already."""
    if pin in session.pins:
        del session.pins[pin]
        session.hold_or_give_back()


def close_pin_later(session: Session, pin: Pin) -> None:
    """Close what was collected without being closed, or could not be closed in turn."""
    if pin not in session.pins or session.connection is None:
        return
    if session.private:
        pin.source.abandon()
        session.connection.interrupt()
        session.drop_connection(None)
    elif pin.exclusive:
        session.connection.leftovers.append(pin.source)  # to be closed first
    else:
        session.connection.leftovers.insert(0, pin.source)
    drop_pin(session, pin)


def error_of_closed(session: Session, pin: Pin) -> PoolError:
    """Return the error that says why this pin is not open any more."""
    if session.lost is not None:
        return session.lost.error()
    if pin.over or session.loop_db.closed:
        return session.loop_db.gone()
    return PoolError(
        f"{session.loop_db.label}: this was closed ({pin.reason}): close() was called, its task "
        f"ended, or its connection was lost"
    )
