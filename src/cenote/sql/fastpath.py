"""The fast path of a transaction: its BEGIN, its statements and its COMMIT in a few calls.

It is for the ordinary case: the transaction is the innermost one, it is nobody else's turn, and
nothing else is open. `is_ready()` says so without waiting, and everything that it does not let
pass goes by `Session.run()`. What follows a statement is judged in the same way on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .states import ConnectionState, SessionState
from .verdict import judge_failure, judge_success

if TYPE_CHECKING:
    from .driver import DriverConnection
    from .parsing.statements import ParsedStatement
    from .per_loop import LoopDatabase
    from .session import Session
    from .transaction import Transaction

IN_TRANSACTION, READY = SessionState.IN_TRANSACTION, ConnectionState.READY


def is_ready(session: Session) -> bool:
    """Whether a statement may run at once in the transaction that is open."""
    connection = session.connection
    return (
        session.state is IN_TRANSACTION
        and connection is not None
        and not (session.turn.taken or session.pins or connection.leftovers)
        and connection.state is READY
        and connection.in_transaction
    )


def end_turn(session: Session, connection: DriverConnection | None) -> None:
    """The next in line, and the connection if nothing holds it any more."""
    turn = session.turn
    if turn.waiters:
        turn.give()
    else:
        turn.taken = False
    if (
        session.state is not IN_TRANSACTION or connection is None
        or connection.state is not READY
    ):  # fmt: skip
        session.hold_or_give_back()


async def run_statement(
    session: Session, method: str, parsed: ParsedStatement, parameters: Any
) -> Any:
    """Run one statement that changes nothing but data, in a session that is ready."""
    if parameters is None:
        text, arguments = parsed.text, None
    else:
        text, arguments = parsed.bind(parameters)
    connection: Any = session.connection
    turn = session.turn
    turn.taken = True
    try:
        try:
            result = await getattr(connection, method)(text, arguments)
        except BaseException as error:
            await judge_failure(session, connection, parsed, error, True)
            if arguments is None and session.connection and isinstance(error, Exception):
                parsed.note_missing(error)
            raise
        if not (connection.in_transaction and session.transactions):
            judge_success(session, connection, parsed)
    finally:
        if (
            session.state is IN_TRANSACTION and connection.state is READY and not turn.waiters
        ):  # fmt: skip
            turn.taken = False
        else:
            end_turn(session, connection)
    return result


async def run_inside(session: Session, method: str, name: str) -> None:
    """Set or release a savepoint, by this method of the connection."""
    connection = session.connection
    assert connection is not None
    session.turn.taken = True
    try:
        try:
            await getattr(connection, method)(name)
        except BaseException as error:
            await judge_failure(session, connection, None, error, True)
            raise
        judge_success(session, connection, None)
    finally:
        end_turn(session, connection)


async def begin(block: Transaction, loop_db: LoopDatabase, task: Any) -> None:
    """Begin a transaction on a connection of its own. One that was dead when it was handed out is
    replaced once: nothing was sent on it."""
    claim = loop_db.acquire()
    connection = await claim
    session = loop_db.bind(connection, claim, task)
    block._use(session)
    replaced = False
    session.turn.taken = True
    try:
        while True:
            connection.underway = connection.restarted = False
            try:
                await connection.begin(block._isolation, block.read_only)
                break
            except BaseException as error:
                await judge_failure(session, connection, None, error, False)
                if replaced or connection.underway or not loop_db.driver.is_unsent(error):
                    raise
            connection = await session.renew()
            replaced = True
        session.note_inside(connection.in_transaction)
    finally:
        end_turn(session, connection)
    if session.state is IN_TRANSACTION:
        block._open(session, task)
    else:
        block._begun(session, task)


async def commit(session: Session, connection: DriverConnection) -> bool:
    """Send the COMMIT of the only transaction of a session that is ready, which it leaves; return
    False if the server rolled back instead."""
    turn = session.turn
    session.transactions.clear()
    turn.taken = True
    committed: bool | None = None
    try:
        try:
            committed = answer = await connection.commit()
        except BaseException as error:
            await judge_failure(session, connection, None, error, True)
            raise
    finally:
        if turn.waiters:
            turn.give()
        else:
            turn.taken = False
        if not session.give_back_clean():
            if committed is not None and connection.in_transaction:  # refused
                judge_success(session, connection, None)
            session.hold_or_give_back()
    return answer
