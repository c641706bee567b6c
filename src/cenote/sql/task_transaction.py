"""The transaction of a task without a block: begin(), commit() and rollback() of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import PoolError
from . import messages
from .admission import require_alive
from .dialects import Isolation
from .session import Session
from .transaction import Transaction

if TYPE_CHECKING:
    from .per_loop import LoopDatabase


async def begin(loop_db: LoopDatabase, isolation: Isolation | None, read_only: bool) -> None:
    """Begin a transaction of the running task."""
    session = loop_db.session()
    if session is not None and session.lost is None and session.in_transaction:
        raise PoolError(
            "a transaction is open already: commit() or rollback() it first, "
            "or use `async with db.transaction()` for a savepoint"
        )
    loop_db.refused.discard(loop_db.current_task())
    await Transaction(loop_db.database, isolation, read_only).start()


async def commit(loop_db: LoopDatabase) -> None:
    """Commit the transaction of the running task, unless it is that of a block."""
    session = session_in_transaction(loop_db, "commit")
    if session.lost is not None:
        raise session.lost.error()  # and so on, until rollback() or the end of the block
    transaction = session.transactions[-1] if session.transactions else None
    if transaction is not None and transaction.is_block:
        raise PoolError("inside a transaction() block: leave the block to commit")
    try:
        if transaction is not None:
            await transaction.commit()
        else:
            require_alive(session)
            await commit_raw(session)
    except Exception:
        loop_db.refused.add(session.task)
        raise


async def commit_raw(session: Session) -> None:
    """Commit what a statement of the task has begun."""
    parsed = session.loop_db.database._parse("COMMIT")
    try:
        committed = await session.run_observed(lambda connection: connection.commit(), parsed)
    except Exception as error:
        lost = session.lost
        if lost is None or lost.cause is not error:
            raise
        session.accept_loss()  # it is over: the task goes on with another connection
        session.hold_or_give_back()
        raise lost.error() from error
    if not committed:
        raise messages.transaction_lost(
            "rolled_back", "a statement in it had failed, so the server rolled back"
        )


async def rollback(loop_db: LoopDatabase) -> None:
    """Roll back all of the running task's transaction, or accept the loss of its session."""
    refused, task = loop_db.refused, loop_db.current_task()
    held = loop_db.session()
    if held is not None and held.lost_session is not None and held.lost is None:
        if not held.lost_session.told:
            if task not in refused:
                raise held.lost_session.error()
            refused.discard(task)  # it knows that the transaction was lost, and no more
            return
        refused.discard(task)
        held.accept_session_loss()
        held.hold_or_give_back()
        return
    try:
        session = session_in_transaction(loop_db, "roll back")
    except PoolError:
        if task not in refused:
            raise
        refused.discard(task)
        return
    if not session.transactions:
        await roll_back_raw(session)
        return
    outermost, *inner = session.transactions
    del session.transactions[1:]
    for each in inner:
        each.rolled_back_by(task)
    try:
        await outermost.rollback()
    finally:
        outermost.rolled_back_by(task)


async def roll_back_raw(session: Session) -> None:
    """Roll back what a statement of the task has begun; nothing is sent if it was lost."""
    lost = session.lost
    session.accept_loss()
    if session.connection is not None and session.connection.is_dead:
        # Its server has rolled it back.
        session.drop_connection(ConnectionError("the connection was lost before ROLLBACK"))
    if session.connection is None:
        session.hold_or_give_back()
    elif lost is None or session.connection.in_transaction:
        session.changes.roll_back()
        await session.run_observed(lambda connection: connection.rollback(), None, verb="ROLLBACK")


def session_in_transaction(loop_db: LoopDatabase, verb: str) -> Session:
    """The session of the running task; raises `PoolError` if it is in no transaction."""
    session = loop_db.session()
    if session is not None and (
        session.transactions
        or session.lost is not None
        or (session.connection is not None and session.refresh(session.connection))
    ):
        return session
    raise PoolError(f"no transaction is open in this task: there is nothing to {verb}")
