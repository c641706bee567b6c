"""The contract between the fast path, in C or in Python, and everything around it.

`fastpath.py` and `_native/` call what is named here, and nothing else, by name. Both sides are
checked when the package is imported: `provides` checks the class that implements `SlowPath`, and
`adopt` of the native core compares the names that C uses with this file. A missing name is an error
there, not in the middle of an acquire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

Kind = TypeVar("Kind", bound=type)


class _Empty(Protocol):
    """Names that every protocol has."""


class SlowPath(Protocol):
    """What the fast path leaves to the pool: whatever suspends, fails, or is rare."""

    _done: Any  # the operation of what has already happened

    @property
    def _factory_failures(self) -> int:
        """Failures of the factory, in total."""

    # -- entering ----------------------------------------------------------------------------------

    def _enter(self) -> None: ...
    def _check_loop(self) -> None: ...
    def _current_task(self) -> Any: ...
    def _admit_or_raise(self, claim: Any) -> None: ...
    def _check_deadlock(self, claim: Any) -> None: ...
    def _try_acquire_slow(self) -> Any: ...
    def _obtain(self, claim: Any, slot: Any, verdict: Any) -> Awaitable[Any]: ...
    def _start_ticket(self, acquire: Any, ticket: Any) -> Any: ...

    # -- before_acquire, and the hand-out ----------------------------------------------------------

    def _trusts(self, slot: Any, now: float) -> bool: ...
    def _refuse(self, slot: Any, error: BaseException | None) -> None: ...
    def _held(self, claim: Any, slot: Any) -> None: ...

    # -- returning ---------------------------------------------------------------------------------

    def _leased(self, resource: Any, verb: str) -> Any: ...
    def _leave(self, claim: Any, error: BaseException) -> Any: ...
    def _returned(self, claim: Any, slot: Any) -> None: ...
    def _examine(self, slot: Any, verdict: Any, error: BaseException | None) -> Any: ...
    def _report_success(self, probe: int) -> None: ...
    def _settle(self, slot: Any) -> Any: ...
    def _expect(self, slot: Any) -> None: ...
    def _completed(self, operation: Any) -> Any: ...
    def _defer_return(self, slot: Any, clean: bool) -> Any: ...
    def _advance(self) -> None: ...

    # -- steps, watchers and deadlines -------------------------------------------------------------

    def _step(self, function: Callable[..., Any], *args: Any) -> Any: ...
    def _call_out(self, function: Callable[..., Any], *args: Any) -> Any: ...
    def _contain(self, error: BaseException, what: str) -> None: ...
    def _set_alarm(self, when: float) -> None: ...
    def _interrupted(self, claim: Any, finalizing: bool) -> None: ...
    def _broken_off(self) -> None: ...
    def _lose(self, claim: Any, error: BaseException) -> None: ...


class Waiter(Protocol):
    """`claim.waiter`: the suspended part of an acquire. A claim that waits in C is its own."""

    over: bool  # it has ended by an exception
    inspection: Any  # the async before_acquire that looks at its slot, or None
    inspected: Any  # the slot at which that looks, or None

    def wake(self) -> None: ...


class Loop(Protocol):
    """What C uses of the event loop."""

    def create_future(self) -> Any: ...


class Task(Protocol):
    """What C uses of a task."""

    def get_name(self) -> str: ...


class Future(Protocol):
    """What C uses of a future."""

    def done(self) -> bool: ...
    def set_result(self, result: Any) -> None: ...


PROTOCOLS = SlowPath, Waiter, Loop, Task, Future


def names(protocol: type) -> frozenset[str]:
    """The names that a protocol lists."""
    own = {*vars(protocol), *protocol.__annotations__} - {*vars(_Empty)}
    return frozenset(name for name in own if not name.startswith("__"))


def provides(protocol: type) -> Callable[[Kind], Kind]:
    """Class decorator: raise TypeError if the class lacks a name of the protocol."""

    def check(kind: Kind) -> Kind:
        missing = sorted(name for name in names(protocol) if not hasattr(kind, name))
        if missing:
            raise TypeError(f"{kind.__name__} lacks {', '.join(missing)} of {protocol.__name__}")
        return kind

    return check
