"""The block of `db.connection()`: it pins the task's connection, and resets it at its end."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..caller import may_have_interrupted_use
from .admission import require_connection
from .driver import DriverConnection
from .guard import Guard, dismiss, stand_in
from .session import Session

if TYPE_CHECKING:
    from .database import Database
    from .scope import AnyTransaction


class ConnectionBlock:
    """A block that holds the driver's own connection; it counts as touched."""

    __slots__ = ("_database", "_guard", "_joined", "_session")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard: Guard | None = None
        self._joined: AnyTransaction | None = None
        self._session: Session | None = None

    async def __aenter__(self) -> Any:
        if self._session is not None:
            raise RuntimeError("this connection() was used before; call db.connection() for each")
        loop_db = self._database._loop_databases.here()
        session = await loop_db.bound_session()
        try:
            connection = require_connection(session)
            if connection.looks_dead() and session.pin_reason() is None:
                session.drop_connection(
                    ConnectionError("the connection was lost while it was idle")
                )
                connection = await session.renew()
            connection = await lend(session)
        except BaseException:
            session.hold_or_give_back()
            raise
        self._session = session
        self._joined = loop_db.joined_by(loop_db.current_task())
        session.blocks.append(self._joined)
        connection.touch(connection.touched or "connection()")
        self._guard = stand_in(connection, session, self._joined)
        session.hold_or_give_back()
        return self._guard

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session = self._session
        assert session is not None
        dismiss(self._guard)
        if session.connection is not None:
            await session.connection.take_back()
        await leave_block(session, error, self._joined)


async def lend(session: Session) -> DriverConnection:
    """Return the connection, after the driver was notified that it is given out. That comes in turn
    with the statements of other tasks. If it is cancelled, or the connection is lost meanwhile, it
    is destroyed."""
    turn = session.turn
    if turn.taken:
        await turn.wait()
    else:
        turn.taken = True
    try:
        connection = require_connection(session, in_turn=True)
        inside = session.is_inside(connection, in_turn=True)
        try:
            await connection.lend()
        except BaseException as error:
            is_error = isinstance(error, Exception)
            if not is_error:
                connection.interrupt()
            elif not (session.loop_db.driver.is_disconnect(error) or connection.is_dead):
                raise
            session.drop_connection(error if is_error else None)
            if inside:
                session.lose("rolled_back", "its connection was lost", error)
            raise
    finally:
        turn.give()
    return connection


async def leave_block(
    session: Session, error: BaseException | None, joined: AnyTransaction | None
) -> None:
    """Leave a connection() block; leaving the outermost resets and returns the connection."""
    if session.ended or (joined is not None and not joined.is_open):
        return  # the connection may be another task's
    session.blocks.remove(joined)
    connection = session.connection
    if connection is None:
        if not session.blocks and session.changes.kept is None:
            session.accept_session_loss()
        session.hold_or_give_back()
        return
    inside = session.refresh(connection)
    if error is not None and may_have_interrupted_use(error):
        connection.interrupt()
        session.drop_connection(None)
        if inside:
            session.lose("rolled_back", "a cancellation destroyed its connection", error)
    elif connection.is_dead:
        gone = ConnectionError("the connection was lost in a connection() block")
        session.drop_connection(error or gone)
        if inside:
            session.lose("rolled_back", "its connection was lost", error)
    elif session.transactions and not (
        session.turn.taken or connection.in_transaction or connection.is_stuck()
    ):
        session.lose("unknown", "something in a connection() block ended it", error)
    elif not session.turn.taken and session.pin_reason() is None:
        await session.give_back().wait()
        return
    session.hold_or_give_back()
