"""Whether an error says that the connection was lost, whatever the driver."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..errors import ConnectError, PoolError, SessionLostError, TransactionLostError

if TYPE_CHECKING:
    from .driver import Driver

MARK = "_cenote_disconnect"  # on an error after which a connection was found dead
NETWORK = frozenset(
    {
        errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN,
        errno.ENETRESET, errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED,
    }
)  # fmt: skip
_drivers: WeakSet[Driver] = WeakSet()  # of the databases that were made


def know(driver: Driver) -> None:
    """Ask this driver, too, as long as its database is there."""
    _drivers.add(driver)


def mark(error: BaseException) -> None:
    """Remember that the connection was found dead after this error, which may not say so."""
    try:
        setattr(error, MARK, True)
    except AttributeError:  # a class with slots
        pass


def is_disconnect(error: BaseException) -> bool:
    """Return whether an error says that the connection to the database was lost, or not made.

    True for a statement that was interrupted, on every driver, for what was lost with a connection
    (`TransactionLostError`, `SessionLostError` with such a cause), and for `ConnectError`. False
    for errors of SQL, and for all other errors.

    Args:
        error: What was raised by a `Database`, or by its driver.
    """
    if isinstance(error, TransactionLostError | SessionLostError):
        cause = error.__cause__
        return cause is not None and is_disconnect(cause)
    if isinstance(error, PoolError):
        return isinstance(error, ConnectError)
    if getattr(error, MARK, False):
        return True
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError) or error.errno in NETWORK
    return any(driver.is_disconnect(error) for driver in list(_drivers))
