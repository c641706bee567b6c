"""Every exception of cenote; their texts are in `messages` and `sql.messages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from .events import Holder

# What became of a transaction that was lost.
Outcome: TypeAlias = Literal["rolled_back", "committed", "unknown"]


class PoolError(Exception):
    """The base class of all errors that a pool raises."""


class PoolClosedError(PoolError):
    """The pool is closed or draining."""


class ServiceUnavailableError(PoolError):
    """The circuit breaker is open, so the backend is not called.

    Attributes:
        retry_after: Seconds until the strategy would let an acquire pass as a probe; None if that
            is not known, or never by itself.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after: float | None = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.retry_after)


class PoolOverloadedError(PoolError):
    """The pool is overloaded: do not try again at once.

    Attributes:
        retry_after: Seconds after which another try may succeed; None if that is not known.
        reason: `"overloaded"` if `max_waiting` acquires are waiting already, `"shed"` if this one
            has waited too long for `queue_target`.
    """

    def __init__(
        self, message: str, retry_after: float | None = None, reason: str = "overloaded"
    ) -> None:
        super().__init__(message)
        self.retry_after: float | None = retry_after
        self.reason: str = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.retry_after, self.reason)


class PoolDeadlockError(PoolError):
    """A deadlock was found.

    Either every resource is held by a task that itself waits for the pool, or an inner block of
    a shared transaction waits for a task that waits for the end of that block.
    """


class BackendFullError(PoolError):
    """A factory raises it when the backend has no room for another resource at the moment.

    This is not a failure: no acquire gets the error, and the circuit breaker is not informed. The
    acquires wait for a resource that comes back, and the factory is tried again with backoff.
    """


class NotAcquiredError(PoolError, ValueError):
    """The resource is not held: it is foreign, or it was released before.

    It is also raised by the use of a connection after the `Database.connection()` block has ended.
    """


class CreateTimeoutError(PoolError, TimeoutError):
    """The factory took longer than `create_timeout`. `acquire()` raises it."""


class HookTimeoutError(PoolError, TimeoutError):
    """A hook took longer than `hook_timeout`, or the destructor than `destructor_timeout`.

    It is reported to the strategy and to subscribers.
    """


class ConnectError(PoolError, ConnectionError):
    """A `Database` could not make a connection.

    `__cause__` is the error of the driver, or of the function that was asked for the password. The
    text names the database, the host and the remedy, and never a password.
    """


class ConnectTimeoutError(ConnectError, CreateTimeoutError):
    """A connection took longer than `create_timeout`, or than the time limit of the driver."""


class AcquireTimeoutError(PoolError, TimeoutError):
    """No resource became available within the timeout.

    `__cause__` is the last error of the factory during the wait, if there was one. The error can
    always be pickled; a pickle does not contain the resources of the holders.

    Attributes:
        holders: The holders of the resources, the longest first.
        retry_after: Seconds after which another try may succeed; None if that is not known.
    """

    def __init__(
        self,
        message: str,
        holders: Sequence[Holder[Any]] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.holders: tuple[Holder[Any], ...] = tuple(holders)
        self.retry_after: float | None = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.holders, self.retry_after)


class StatementTimeoutError(PoolError, TimeoutError):
    """A statement took longer than its `timeout`.

    The server was told to stop it. `__cause__` is the error by which the server has confirmed that,
    if it has.

    Attributes:
        statement: The beginning of its text, without parameters.
        timeout: The time that it was given, in seconds.
        connection_kept: Whether the task still has its connection, or the pool; if not, it was
            replaced.
    """

    def __init__(
        self,
        message: str,
        statement: str = "",
        timeout: float = 0.0,
        *,
        connection_kept: bool = True,
    ) -> None:
        super().__init__(message)
        self.statement: str = statement
        self.timeout: float = timeout
        self.connection_kept: bool = connection_kept

    def __reduce__(self) -> tuple[Any, ...]:
        rest = {"connection_kept": self.connection_kept}
        return type(self), (self.args[0], self.statement, self.timeout), rest


class TransactionLostError(PoolError):
    """A transaction ended before its block did, for example because the connection was lost.

    Attributes:
        outcome: `"rolled_back"`, `"committed"`, or `"unknown"` if it cannot be known.
    """

    def __init__(self, message: str, outcome: Outcome = "unknown") -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.outcome)


class SessionLostError(PoolError):
    """The task lost the connection whose session it had changed.

    Attributes:
        reason: What had changed the session, such as `"SET"`.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.reason)


class TransactionClosedError(PoolError):
    """The transaction of this handle has ended."""


class TransactionScopeWarning(UserWarning):
    """A task that was started inside a transaction uses the database outside it."""


class Undone(PoolError):
    """The pool cancelled a creation. It never leaves the package."""


class Withheld(PoolError):
    """The lender of the capacity has refused one more resource. It never leaves the package."""


class IllegalTransition(RuntimeError):
    """An event that is not possible in the current state: a bug in cenote, or a misuse of its core.

    Attributes:
        machine: The state machine, such as `"slot"`.
        state: Its current state.
        event: The event.
    """

    def __init__(self, machine: str, state: object, event: str) -> None:
        super().__init__(f"{machine}: {event!r} is not possible in state {state}")
        self.machine: str = machine
        self.state: object = state
        self.event: str = event
