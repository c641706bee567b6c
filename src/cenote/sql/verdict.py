"""The verdict on a statement that has run: is its connection usable, is the transaction around it
still there, and what has it changed in the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import PoolError, StatementTimeoutError
from .disconnects import mark
from .driver import DriverConnection
from .losses import ENDED_BY, outcome_of_cut_off
from .notes import explain
from .parsing.statements import ParsedStatement
from .scope import RawTransaction, enter_scope, leave_scope

if TYPE_CHECKING:
    from .per_loop import LoopDatabase
    from .session import Session


def judge_first(
    session: Session, connection: DriverConnection, parsed: ParsedStatement, *, failed: bool
) -> None:
    """Judge the first statement of a session, which ran before there was the session.

    `failed`: whether it raised.
    """
    session.changes.expect(connection, parsed)
    inside = connection.in_transaction
    session.note_inside(inside)
    if parsed.control is not None:
        _follow_raw_transaction(session, inside)
    if not failed:
        session.changes.record(parsed, inside=inside)
    session.hold_or_give_back()


def judge_success(
    session: Session, connection: DriverConnection, parsed: ParsedStatement | None
) -> None:
    """Judge a statement that has succeeded: a raw transaction may have begun or ended with it."""
    inside = connection.in_transaction  # it has just answered, so the driver knows
    if session.transactions and not inside:  # unless another task runs something by connection()
        inside = connection.is_stuck()
    if not (session.private or session.transactions):
        session.note_inside(inside)
    if parsed is not None:
        if parsed.control is not None:
            _follow_raw_transaction(session, inside)
            if parsed.ends is not None:
                if connection.status == "ROLLBACK" and (
                    parsed.commits or parsed.ends == "rollback"
                ):
                    session.changes.roll_back()
                session.changes.keep()  # another one may have begun
        if parsed.touches is not None:
            session.changes.record(parsed, inside=inside)
    if session.transactions and not (inside and (parsed is None or parsed.ends is None)):
        ends = None if parsed is None else parsed.ends
        what = "this statement" if parsed is None else f"{parsed!r}"
        # COMMIT of an aborted transaction is answered with ROLLBACK.
        outcome = ENDED_BY.get("rollback" if connection.status == "ROLLBACK" else ends)
        session.lose(outcome or "committed", f"{what} ended it", None)
    elif session.transactions and connection.restarted:
        session.lose("unknown", f"{parsed!r} ended it and began another", None)


def _follow_raw_transaction(session: Session, inside: bool) -> None:
    """Open a scope for the tasks that are started in a raw transaction, or close it at its end."""
    if session.raw is not None and not inside:
        leave_scope(session.raw)
        session.raw = None
    elif session.raw is None and inside and not session.transactions:
        session.raw = RawTransaction(session)
        enter_scope(session.raw)


async def judge_failure(
    session: Session,
    connection: DriverConnection,
    parsed: ParsedStatement | None,
    error: BaseException,
    inside: bool,
) -> None:
    """Judge a statement that has raised: drop the connection if it is not usable any more, and
    record the loss of the transaction.

    `inside`: whether one was open before, raw ones included.
    """
    alive = survives(session.loop_db, connection, error, reads_only=_reads_only(session))
    if alive and connection.in_transaction:
        try:
            await connection.look_again()
        except BaseException as second:
            await judge_failure(session, connection, parsed, second, inside)
            raise
    inside = inside and not session.private
    if not alive:
        session.drop_connection(error)
        if inside:
            session.lose(*outcome_of_cut_off(parsed), error)
    elif inside and (connection.restarted or not connection.in_transaction):
        _judge_end_by_error(session, parsed, error)


def _judge_end_by_error(
    session: Session, parsed: ParsedStatement | None, error: BaseException
) -> None:
    """Record how the transaction ended, which is over although the connection lives."""
    if not session.transactions and parsed is not None and parsed.control is not None:
        return  # a raw end of a raw transaction, as far as it got
    if session.transactions and parsed is not None and parsed.opaque:
        session.lose("unknown", f"{parsed!r} failed, and had or has ended it", error)
    elif session.loop_db.driver.rolls_back(error):
        session.lose("rolled_back", "the server rolled it back", error)
    elif session.transactions:  # a raw one is over then, as after a statement that succeeds
        session.lose("committed", "a statement that failed had ended it before", error)


def _reads_only(session: Session) -> bool:
    return session.changes.read_only or bool(
        session.transactions and session.transactions[0].read_only
    )


def survives(
    loop_db: LoopDatabase, connection: DriverConnection, error: BaseException, *, reads_only: bool
) -> bool:
    """Return whether a connection is as good as before, after a statement that raised; else mark it
    with what is wrong."""
    if not isinstance(error, Exception):
        connection.interrupt()
        return False
    if isinstance(error, PoolError):  # one of a stream may be raised when it was lost before
        return not (isinstance(error, StatementTimeoutError) and connection.broken)
    if (hint := loop_db.driver.hint(error)) is not None:
        explain(error, hint)
    if loop_db.driver.is_disconnect(error) or connection.is_dead:
        if isinstance(error, TimeoutError):
            connection.interrupt()
        else:
            connection.mark_broken()
            mark(error)
        return False
    if connection.is_stuck():
        connection.jam()
        return False
    if loop_db.driver.is_demoted(error) and not reads_only:
        loop_db.pool.retire()
    return True
