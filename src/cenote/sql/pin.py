"""What is open on a connection, and pins it to its task."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ..errors import TransactionClosedError
from .driver import DriverConnection

if TYPE_CHECKING:
    from .session import Session
    from .transaction import Transaction


class Pin:
    """An open statement or stream. The session holds this one, and not the statement itself, which
    may be collected: then its finalizer drops the pin."""

    __slots__ = ("collected", "exclusive", "over", "reason", "rows", "source", "transaction")

    def __init__(
        self,
        reason: str,
        source: Any,
        *,
        exclusive: bool = False,
        rows: list[Any] | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        self.collected = False  # the statement or stream was, in any thread
        self.reason = reason
        self.source = source  # what has to be closed on the connection
        self.exclusive = exclusive  # a stream beside which nothing else can run
        self.rows = [] if rows is None else rows  # of a stream, read and not yet given
        self.transaction = transaction  # with which it ends; streams end with any
        self.over = False  # it has ended with a transaction

    def cut(self) -> None:
        """Its transaction is over."""
        self.over = True
        self.rows.clear()


async def close_pin(session: Session, pin: Pin) -> None:
    """When it is its turn; if it does not come to that, it is closed before the next statement."""
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
            session.drop_pin(pin)
        else:
            session.forget_pin(pin)
