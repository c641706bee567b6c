"""The texts of the errors of a database: each function makes one error."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import (
    BackendFullError,
    ConnectError,
    ConnectTimeoutError,
    NotAcquiredError,
    Outcome,
    PoolClosedError,
    PoolDeadlockError,
    PoolError,
    SessionLostError,
    StatementTimeoutError,
    TransactionClosedError,
    TransactionLostError,
)
from ..messages import seconds


def listener_too_slow(channels: Sequence[str], limit: int) -> PoolError:
    names = ", ".join(map(repr, channels))
    return PoolError(
        f"the listener on {names} has ended: {limit} notifications were not read, and one more has "
        f"come. Read them faster, hand them on to a queue of your own, or raise `limit`."
    )


def transaction_lost(outcome: Outcome, why: str) -> TransactionLostError:
    ended = {
        "rolled_back": "it was rolled back",
        "committed": "what came before is committed",
        "unknown": "whether it was committed is not known",
    }[outcome]
    return TransactionLostError(
        f"the transaction is lost: {why}; {ended}. Leave its block or call rollback(), "
        f"then begin again.",
        outcome,
    )


def statement_timeout(
    statement: str, timeout: float, fate: str, *, sent: bool = True, kept: bool = True
) -> StatementTimeoutError:
    """Return the error of a statement that took too long; `fate` says what became of it."""
    if sent:
        text = (
            f"{statement!r} took longer than its timeout of {seconds(timeout)}: {fate}. "
            f"Raise timeout=, or make the statement faster."
        )
    else:
        text = (
            f"{statement!r} was not sent: its timeout of {seconds(timeout)} ended {fate}. "
            f"Raise timeout=, or let less run beside it."
        )
    return StatementTimeoutError(text, statement, timeout, connection_kept=kept)


def connection_over(label: str, attribute: str) -> NotAcquiredError:
    return NotAcquiredError(
        f"database {label}: cannot use {attribute!r} of this connection: the block of connection() "
        f"that gave it is over, and it may be another task's by now. Use it inside of "
        f"`async with db.connection() as c:`, in a task that ends before the block does."
    )


def session_lost(reason: str) -> SessionLostError:
    if reason == "connection()":
        return SessionLostError(
            "the session is lost: the connection of this connection() block broke. "
            "Leave the block, then begin again.",
            reason,
        )
    return SessionLostError(
        f"the session is lost: its connection broke, and with it what {reason} had changed. "
        f"Call db.release(), then set it up again: on another connection this task would run with "
        f"other settings, roles or locks than it has asked for.",
        reason,
    )


def transaction_over() -> TransactionClosedError:
    return TransactionClosedError(
        "this transaction is over: its statements must end before its block does"
    )


def waits_for_inner(task: str, inner: str) -> PoolDeadlockError:
    return PoolDeadlockError(
        f"task {task!r} would wait for the end of the inner transaction() block of task {inner!r}, "
        f"which waits for it. Tasks that an inner block awaits have to use the handle of that "
        f"block: `async with db.transaction() as inner`, inner.execute() or inner.join()."
    )


def cannot_connect(label: str, place: str, why: str, *, timeout: bool) -> ConnectError:
    kind = ConnectTimeoutError if timeout else ConnectError
    return kind(f"database {label}: cannot connect to {place}: {why}")


def server_full(label: str, said: str) -> BackendFullError:
    return BackendFullError(f"database {label}: the server takes no more connections ({said})")


def rolled_back_elsewhere(label: str) -> PoolError:
    return PoolError(
        f"database {label}: rolled_back() was entered in another event loop, and what this one "
        f"does would not be undone. Enter it in this loop, too: docs/testing.md shows how."
    )


def database_closed(label: str) -> PoolClosedError:
    return PoolClosedError(f"database {label} is closed. Call open() to use it again.")
