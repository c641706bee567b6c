"""cenote: one pool for everything that only one task may use at a time."""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from ._core import kind as core
from ._fast import Acquire
from .breaker import CircuitBreakerStrategy, ConsecutiveFailures, FailureRate
from .errors import (
    AcquireTimeoutError,
    BackendFullError,
    ConnectError,
    CreateTimeoutError,
    HookTimeoutError,
    NotAcquiredError,
    PoolClosedError,
    PoolDeadlockError,
    PoolError,
    PoolOverloadedError,
    ServiceUnavailableError,
    SessionLostError,
    StatementTimeoutError,
    TransactionClosedError,
    TransactionLostError,
    TransactionScopeWarning,
)
from .events import Holder, LaneStats, PoolEvent, Stats
from .fleet.fleet import Fleet, Member
from .hooks import RETIRE
from .pool import Lane, Pool
from .sql.database import Database
from .sql.disconnects import is_disconnect
from .sql.listen import Listener, Notification
from .sql.prepared import Statement
from .sql.rows import Row
from .sql.transaction import Transaction
from .states import CircuitState

if TYPE_CHECKING:
    from .extras.dashboard import dashboard, serve_dashboard

__version__ = "0.2.0"


def get_include() -> str:
    """Return the directory of `cenote.h`, for extensions that use the C API."""
    return os.path.join(os.path.dirname(__file__), "include")


def sqlstate(error: BaseException) -> str | None:
    """Return the five-character SQLSTATE of a driver's error, or None if it has none.

    The code of a `PoolError`, such as `ConnectError`, is that of the driver's error that caused it.

    Args:
        error: What was raised by a `Database`, or by its driver.
    """
    while isinstance(error, PoolError) and error.__cause__ is not None:
        error = error.__cause__
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) and len(state) == 5 else None


def __getattr__(name: str) -> object:
    """Import the dashboard lazily, on first access."""
    if name in ("dashboard", "serve_dashboard"):
        found: object = getattr(import_module(".extras.dashboard", __name__), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "RETIRE",
    "Acquire",
    "AcquireTimeoutError",
    "BackendFullError",
    "CircuitBreakerStrategy",
    "CircuitState",
    "ConnectError",
    "ConsecutiveFailures",
    "CreateTimeoutError",
    "Database",
    "FailureRate",
    "Fleet",
    "Holder",
    "HookTimeoutError",
    "Lane",
    "LaneStats",
    "Listener",
    "Member",
    "NotAcquiredError",
    "Notification",
    "Pool",
    "PoolClosedError",
    "PoolDeadlockError",
    "PoolError",
    "PoolEvent",
    "PoolOverloadedError",
    "Row",
    "ServiceUnavailableError",
    "SessionLostError",
    "Statement",
    "StatementTimeoutError",
    "Stats",
    "Transaction",
    "TransactionClosedError",
    "TransactionLostError",
    "TransactionScopeWarning",
    "core",
    "dashboard",
    "get_include",
    "is_disconnect",
    "serve_dashboard",
    "sqlstate",
]
