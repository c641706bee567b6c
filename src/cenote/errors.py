"""Every exception of cenote, and the functions that word its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .mask import masked

if TYPE_CHECKING:
    from .events import Holder

HOLDERS_SHOWN = 10  # how many holders a message lists; error.holders has them all


class PoolError(Exception):
    """The base class of all errors that a pool raises."""


class PoolClosedError(PoolError):
    """The pool is closed or draining."""


class ServiceUnavailableError(PoolError):
    """The circuit breaker is open, so the backend is not called."""


class PoolOverloadedError(PoolError):
    """`max_waiting` acquires are waiting already."""


class PoolDeadlockError(PoolError):
    """A deadlock was found.

    Either every resource is held by a task that itself waits for the pool, or an inner block of
    a shared transaction waits for a task that waits for the end of that block.
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


class AcquireTimeoutError(PoolError, TimeoutError):
    """No resource became available within the timeout.

    `__cause__` is the last error of the factory during the wait, if there was one. The error can
    always be pickled; a pickle does not contain the resources of the holders.

    Attributes:
        holders: The holders of the resources, the longest first.
    """

    def __init__(self, message: str, holders: Sequence[Holder[Any]] = ()) -> None:
        super().__init__(message)
        self.holders: tuple[Holder[Any], ...] = tuple(holders)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.holders)


class TransactionLostError(PoolError):
    """A transaction ended before its block did, for example because the connection was lost.

    Attributes:
        outcome: `"rolled_back"`, `"committed"`, or `"unknown"` if it cannot be known.
    """

    def __init__(self, message: str, outcome: str = "unknown") -> None:
        super().__init__(message)
        self.outcome = outcome

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


def label(name: str | None) -> str:
    """Return how messages call a pool of this name."""
    return "pool" if name is None else f"pool {name!r}"


def seconds(value: float) -> str:
    """Return a duration for people: `0.09 ms`, `2.5 ms`, `0.25 s`, `5.0 s`, `42 s`."""
    if value >= 10:
        return f"{value:.0f} s"
    if value >= 1 or value <= 0:
        return f"{value:.1f} s"
    if value >= 0.01:
        return f"{value:.2g} s"
    return f"{value * 1000:.1f} ms" if value >= 0.001 else f"{value * 1000:.2f} ms"


def describe(holder: Holder[Any]) -> str:
    """Return task, time, place and reason of a holder, in words."""
    where = "" if holder.file is None else f" ({holder.file}:{holder.line})"
    why = "" if holder.reason is None else f", {holder.reason}"
    return f"task {holder.task!r} for {seconds(holder.seconds)}{where}{why}"


def held_by(holders: Sequence[Holder[Any]]) -> str:
    """Return the part of a message that names the longest holders; empty if there are none."""
    if not holders:
        return ""
    shown = "; ".join(describe(holder) for holder in holders[:HOLDERS_SHOWN])
    rest = len(holders) - HOLDERS_SHOWN
    return f"; held by {masked(shown)}" + (f"; and {rest} more" if rest > 0 else "")


def acquire_timeout(
    name: str | None,
    timeout: float,
    counts: tuple[int, int, int],
    holders: tuple[Holder[Any], ...],
    held: str,
    *,
    circle: bool,
) -> AcquireTimeoutError:
    """Return the error of an acquire; `held` is the result of `held_by` for the holders."""
    active, idle, waiting = counts
    text = (
        f"{label(name)}: no resource within {seconds(timeout)} "
        f"({active} active, {idle} idle, {waiting} waiting){held}"
    )
    if circle:
        text += (
            ". Deadlock: every resource is held by a task that itself waits for this pool. "
            "Release before acquiring again, or raise max_size."
        )
    else:
        text += ". Raise max_size, or hold resources for a shorter time."
    return AcquireTimeoutError(text, holders)


def deadlock(name: str | None, tasks: Sequence[str], size: int) -> PoolDeadlockError:
    who = masked(", ".join(repr(task) for task in tasks))
    resources = "the only resource is" if size == 1 else f"all {size} resources are"
    return PoolDeadlockError(
        f"{label(name)}: deadlock: {resources} held by tasks that themselves wait for this pool "
        f"without a deadline: {who}. Release before acquiring again, raise max_size, "
        f"or give acquire() a timeout."
    )


def overloaded(name: str | None, waiting: int, limit: int) -> PoolOverloadedError:
    return PoolOverloadedError(
        f"{label(name)}: {waiting} waiting already, max_waiting is {limit}. "
        f"Shed this request, or raise max_waiting or max_size."
    )


def closed(name: str | None, *, draining: bool = False) -> PoolClosedError:
    what = "is draining and takes no new acquires" if draining else "is closed"
    return PoolClosedError(f"{label(name)} {what}. Create a new Pool to go on.")


def unavailable(
    name: str | None,
    state: str,
    since: float | None,
    last: str | None,
    limit: int,
) -> ServiceUnavailableError:
    if state == "RECOVERING":
        what = f"RECOVERING, and its {limit} trial acquire{'s are' if limit > 1 else ' is'} taken"
    else:
        what = state if since is None else f"{state} for {seconds(since)}"
    text = f"{label(name)}: the service is unavailable (circuit breaker {what})"
    if last is not None:
        text += f"; last failure: {last}"
    return ServiceUnavailableError(
        f"{text}. Try again later; pool.recover() or pool.activate() lets acquires pass at once."
    )


def not_acquired(name: str | None, resource: object, verb: str) -> NotAcquiredError:
    return NotAcquiredError(
        f"{label(name)}: cannot {verb} {_short(resource)}: it is not out. "
        f"It came from elsewhere, or was released or discarded before."
    )


def elsewhere(name: str | None, *, other_thread: bool, loop_closed: bool) -> RuntimeError:
    what = "another thread" if other_thread else "another event loop"
    state = ", which is closed by now" if loop_closed else ""
    remedy = (
        "go through asyncio.run_coroutine_threadsafe()"
        if other_thread and not loop_closed
        else "make a pool for each event loop"
    )
    return RuntimeError(
        f"{label(name)} belongs to the event loop in which it was opened{state}; "
        f"this call comes from {what}. Remedy: {remedy}."
    )


def rejected(name: str | None, hook: str) -> PoolError:
    return PoolError(f"{label(name)}: {hook} rejected the resource (it returned False)")


def hook_timeout(name: str | None, hook: str, limit: float) -> HookTimeoutError:
    option = "destructor_timeout" if hook == "destructor" else "hook_timeout"
    return HookTimeoutError(
        f"{label(name)}: {hook} took longer than {option} ({seconds(limit)}) and was cut off"
    )


def create_timeout(name: str | None, limit: float) -> CreateTimeoutError:
    return CreateTimeoutError(
        f"{label(name)}: the factory took longer than create_timeout ({seconds(limit)}) "
        f"and was cancelled"
    )


def made_nothing(name: str | None) -> PoolError:
    return PoolError(
        f"{label(name)}: the factory returned None. Return the resource; None stands for 'nothing'."
    )


def async_hook(name: str | None) -> PoolError:
    return PoolError(
        f"{label(name)}: try_acquire() cannot run an async before_acquire. "
        f"Use `await pool.acquire(timeout=0)`."
    )


def _short(resource: object) -> str:
    """Return type and identity, not the repr, which may show a password."""
    return f"<{type(resource).__qualname__} at {id(resource):#x}>"


def transaction_lost(outcome: str, why: str) -> TransactionLostError:
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


def database_closed(label: str) -> PoolClosedError:
    return PoolClosedError(f"database {label} is closed. Create a new Database to go on.")
