"""What a task has lost: its transaction, or the session that it had changed."""

from __future__ import annotations

from typing import Literal

from .. import errors
from ..errors import SessionLostError, TransactionLostError

Outcome = Literal["rolled_back", "committed", "unknown"]

# They may have changed the session, or not: nobody has asked for a setting, a role or a lock.
DOUBTFUL = frozenset(
    {"CALL", "DEALLOCATE", "DISCARD", "DO", "EXECUTE", "LOAD", "RESET", "UNLISTEN",
     "pg_advisory_unlock()", "pg_advisory_unlock_all()", "pg_advisory_unlock_shared()",
     "BINLOG", "DROP PREPARE", "DROP TEMPORARY", "FLUSH", "GET", "RELEASE_ALL_LOCKS()",
     "RELEASE_LOCK()", "UNLOCK TABLE", "UNLOCK TABLES", "version comment",
     "ALTER EVENT", "CREATE EVENT", "CREATE FUNCTION", "CREATE PACKAGE", "CREATE PROCEDURE",
     "CREATE TRIGGER",
     "BEGIN NOT ATOMIC", "CASE", "FOR", "IF", "LOOP", "REPEAT", "WHILE"}
)  # fmt: skip

# ROLLBACK undoes these on PostgreSQL; locks, plans and libraries stay.
UNDONE = frozenset({"CREATE TEMPORARY", "DECLARE WITH HOLD", "LISTEN", "RESET", "SET", "UNLISTEN"})


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


class LostSession:
    """A connection that was lost, and with it what its task had changed in the session."""

    __slots__ = ("cause", "once", "reason")

    def __init__(self, reason: str, cause: BaseException | None) -> None:
        self.reason = reason
        self.cause = cause
        self.once = reason in DOUBTFUL  # to be told so is enough

    def error(self) -> SessionLostError:
        error = errors.session_lost(self.reason)
        error.__cause__ = self.cause
        return error
