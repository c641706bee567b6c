"""Admission of a statement to a session: its turn, and what its task has to learn first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import messages
from .driver import DriverConnection
from .pins import Pin, error_of_closed
from .states import SessionState

if TYPE_CHECKING:
    from .scope import AnyTransaction
    from .session import Session
    from .transaction import Transaction

ENDED = SessionState.ENDED


async def queue(
    session: Session, transaction: AnyTransaction | None, ending: Transaction | None
) -> AnyTransaction | None:
    """Wait for the turn of this statement. Return the transaction that has to be open then:
    that of its handle, or the one that its task has joined."""
    task = session.loop_db.current_task()
    joined = None if session.private else session.loop_db.joined_by(task)
    while True:
        inner = session.inner_block()
        if inner is not None and not inner.admits(task, joined, transaction, ending):
            await session.outsiders.wait(task, inner)
            continue
        if not session.turn.taken:
            session.turn.taken = True
            break
        await session.turn.wait()
        inner = session.inner_block()
        if inner is None or inner.admits(task, joined, transaction, ending):
            break
        session.turn.give()
    return transaction or (joined if ending is None else None)


def admit(
    session: Session,
    pin: Pin | None,
    transaction: AnyTransaction | None,
    ending: Transaction | None,
) -> DriverConnection:
    """Return the connection, if this statement may run on it now that it is its turn."""
    if ending is not None:
        ending.end_what_is_open(session)
    connection = require_connection(session, pin, in_turn=True)
    if transaction is not None and not transaction.is_open:
        raise messages.transaction_over()
    if pin is not None and pin not in session.pins:
        raise error_of_closed(session, pin)
    if ending is not None:
        ending.send_end(session)
    return connection


def require_connection(
    session: Session, pin: Pin | None = None, *, in_turn: bool = False
) -> DriverConnection:
    """Return the connection, if a statement may run on it; else raise what the task has to know.

    `in_turn`: no statement of another task is under way.
    """
    connection = session.connection
    if (
        session.transactions and connection is not None and (in_turn or not session.turn.taken)
        and not connection.in_transaction and not connection.is_dead and not connection.is_stuck()
    ):  # fmt: skip
        session.lose("unknown", "something by the driver's own means ended it", None)
    if session.lost is not None:
        raise session.lost.error()
    if session.lost_session is not None:
        error = session.lost_session.error()
        if session.lost_session.once:
            session.accept_session_loss()
            session.hold_or_give_back()
        raise error
    if connection is None or session.state is ENDED:
        raise session.loop_db.gone()
    if session.pins:
        session.pins.admit(pin, connection, session.loop_db.label)
    return connection


def require_alive(session: Session) -> None:
    """Raise before a COMMIT whose outcome would be unknown, because the connection is dead."""
    if session.connection is not None and session.connection.is_dead:
        cause = ConnectionError("the connection was lost before COMMIT")
        session.drop_connection(cause)
        session.hold_or_give_back()
        raise messages.transaction_lost("rolled_back", "its connection was lost") from cause
