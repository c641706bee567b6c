"""What a task has lost: its transaction, or the session that it had changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import Outcome, SessionLostError, TransactionLostError
from . import messages
from .scope import acting_task
from .states import SessionState

if TYPE_CHECKING:
    from .parsing.statements import ParsedStatement
    from .per_loop import LoopDatabase
    from .session import Session
    from .transaction import Transaction

ENDED_BY: dict[str | None, Outcome] = {
    "commit": "committed",
    "prepare": "unknown",
    "rollback": "rolled_back",
}


HOLDS_NOTHING = (SessionState.FREE, SessionState.PINNED)  # no transaction


class Lost:
    """A transaction that ended behind the back of its block."""

    __slots__ = ("block", "cause", "outcome", "why")

    def __init__(self, outcome: Outcome, why: str, cause: BaseException | None) -> None:
        self.outcome: Outcome = outcome
        self.why: str = why
        self.cause: BaseException | None = cause
        self.block: Transaction | None = None  # that another task has ended

    def error(self) -> TransactionLostError:
        error = messages.transaction_lost(self.outcome, self.why)
        error.__cause__ = self.cause
        return error


class LostSession:
    """A connection that was lost, and with it what its task had changed in the session."""

    __slots__ = ("cause", "once", "reason", "told")

    def __init__(self, reason: str, cause: BaseException | None, *, once: bool) -> None:
        self.reason: str = reason
        self.cause: BaseException | None = cause
        self.once: bool = once  # the change is doubtful: it suffices to raise the error once
        self.told: bool = False  # the error was raised

    def error(self) -> SessionLostError:
        """Return the error, which is raised then."""
        self.told = True
        error = messages.session_lost(self.reason)
        error.__cause__ = self.cause
        return error


def lose_block(block: Transaction, session: Session, outcome: Outcome) -> None:
    """Another task has ended this block: what its own task runs until it leaves the block, or rolls
    back, raises, and is not committed by itself."""
    loop_db, task = session.loop_db, block.task
    if task.done() or acting_task(loop_db) is task:
        return
    if loop_db.over:
        loop_db.database._loop_databases.leave_behind(task, block)
    elif block.is_block and task not in loop_db.joined:
        held = loop_db.sessions.get(task) or loop_db.bind(None, session.claim, task)
        if held.state in HOLDS_NOTHING and held.lost is None and not held.transactions:
            held.lose_block(block, outcome, "another task has ended it")


def lost_by_closing(loop_db: LoopDatabase, task: Any) -> Session | None:
    """Return what a task holds that is in a block which was over when the database was closed, and
    that goes on now that it was opened again."""
    block = loop_db.database._loop_databases.left_behind.pop(task, None)
    if block is None:
        return None
    held = loop_db.bind(None, loop_db.acquire(), task)
    held.lose_block(block, "rolled_back", "the database was closed")
    return held


def leave_lost_block(block: Transaction, session: Session, task: Any) -> bool:
    """The task leaves it. Return whether the loss was the end by another task."""
    loop_databases = session.loop_db.database._loop_databases
    if loop_databases.left_behind.get(task) is block:
        del loop_databases.left_behind[task]
    loop_db = loop_databases.get(session.loop_db.loop, session.loop_db)
    held = loop_db.sessions.get(task)
    if held is None or held.lost is None or held.lost.block is not block:
        return False
    held.accept_loss()
    held.hold_or_give_back()
    return True


def outcome_of_cut_off(parsed: ParsedStatement | None) -> tuple[Outcome, str]:
    """What became of a transaction whose connection was lost during this statement, and why."""
    if parsed is not None and parsed.ends in ("commit", "prepare"):
        return "unknown", "its connection was lost during COMMIT"
    if parsed is not None and parsed.opaque:
        return "unknown", f"its connection was lost during {parsed!r}"
    return "rolled_back", "its connection was lost"
