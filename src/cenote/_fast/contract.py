"""The contract between the fast path, in C or in Python, and everything around it.

`fastpath.py` and `_native/` call what is named here, and nothing else, by name. Both sides are
checked when the package is imported: `provides` checks the class that implements `SlowPath`, and
`adopt` of the native core compares the names that C uses with this file. A missing name is an error
there, not in the middle of an acquire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from ..states import Handover

Kind = TypeVar("Kind", bound=type)


class _Empty(Protocol):
    """Names that every protocol has."""


class SlowPath(Protocol):
    """What the fast path leaves to the engine: whatever suspends, fails, or is rare."""

    done: Any  # the operation of what has already happened

    # -- entering ----------------------------------------------------------------------------------

    def begin(self, claim: Any) -> None: ...
    def check_loop(self) -> None: ...
    def current_task(self) -> Any: ...
    def admit_or_raise(self, claim: Any) -> None: ...
    def check_deadlock(self, claim: Any) -> None: ...
    def try_acquire_slow(self, lane: Any = None) -> Any: ...
    def obtain(self, claim: Any, at: Handover, slot: Any, answer: Any) -> Awaitable[Any]: ...
    def start_ticket(self, acquire: Any, ticket: Any) -> Any: ...

    # -- before_acquire, and the hand-out ----------------------------------------------------------

    def refuse(self, slot: Any, error: BaseException | None) -> None: ...
    def held(self, claim: Any, slot: Any) -> None: ...

    # -- returning ---------------------------------------------------------------------------------

    def leased(self, resource: Any, verb: str) -> Any: ...
    def leave(self, claim: Any, error: BaseException) -> Any: ...
    def returned(self, claim: Any, slot: Any) -> None: ...
    def examine(self, slot: Any, verdict: Any, error: BaseException | None) -> Any: ...
    def report_success(self, probe: int) -> None: ...
    def settle(self, slot: Any) -> Any: ...
    def expect(self, slot: Any) -> None: ...
    def completed(self, operation: Any) -> Any: ...
    def defer_return(self, slot: Any, clean: bool) -> Any: ...
    def advance(self) -> None: ...

    # -- steps, watchers and deadlines -------------------------------------------------------------

    def step(self, function: Callable[..., Any], *args: Any) -> Any: ...
    def call_out(self, function: Callable[..., Any], *args: Any) -> Any: ...
    def contain(self, error: BaseException, what: str) -> None: ...
    def set_alarm(self, when: float) -> None: ...
    def sample(self, now: float) -> None: ...
    def interrupted(self, claim: Any, finalizing: bool) -> None: ...
    def broken_off(self) -> None: ...
    def lose(self, claim: Any, error: BaseException) -> None: ...
    def ended(self, claim: Any, error: BaseException) -> None: ...


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
