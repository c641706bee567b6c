"""What a task has lost: its transaction, or the session that it had changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..errors import SessionLostError, TransactionLostError
from . import messages

if TYPE_CHECKING:
    from .parsing.statements import ParsedStatement

Outcome = Literal["rolled_back", "committed", "unknown"]
ENDED_BY: dict[str | None, Outcome] = {
    "commit": "committed",
    "prepare": "unknown",
    "rollback": "rolled_back",
}


class Lost:
    """A transaction that ended behind the back of its block."""

    __slots__ = ("cause", "outcome", "why")

    def __init__(self, outcome: Outcome, why: str, cause: BaseException | None) -> None:
        self.outcome: Outcome = outcome
        self.why: str = why
        self.cause: BaseException | None = cause

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


def outcome_of_cut_off(parsed: ParsedStatement | None) -> tuple[Outcome, str]:
    """What became of a transaction whose connection was lost during this statement, and why."""
    if parsed is not None and parsed.ends in ("commit", "prepare"):
        return "unknown", "its connection was lost during COMMIT"
    if parsed is not None and parsed.opaque:
        return "unknown", f"its connection was lost during {parsed!r}"
    return "rolled_back", "its connection was lost"
