"""cenote: one pool for everything that only one task may use at a time."""

import os

from ._core import Acquire
from ._core import kind as core
from .breaker import CircuitBreakerStrategy, ConsecutiveFailures, FailureRate
from .errors import (
    AcquireTimeoutError,
    NotAcquiredError,
    PoolClosedError,
    PoolDeadlockError,
    PoolError,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from .observe import Holder, PoolEvent, Stats
from .pool import Pool
from .states import CircuitState

__version__ = "0.1.0"


def get_include() -> str:
    """The directory of `cenote.h`, for extensions that use the C API."""
    return os.path.join(os.path.dirname(__file__), "_core", "include")


__all__ = [
    "Acquire",
    "AcquireTimeoutError",
    "CircuitBreakerStrategy",
    "CircuitState",
    "ConsecutiveFailures",
    "FailureRate",
    "Holder",
    "NotAcquiredError",
    "Pool",
    "PoolClosedError",
    "PoolDeadlockError",
    "PoolError",
    "PoolEvent",
    "PoolOverloadedError",
    "ServiceUnavailableError",
    "Stats",
    "core",
    "get_include",
]
