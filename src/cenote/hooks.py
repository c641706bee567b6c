"""The types of the five hooks, sync or async, and what they return."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from types import CoroutineType, GeneratorType
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

Factory: TypeAlias = Callable[[], T | Awaitable[T]]
Verdict: TypeAlias = object  # exactly False rejects; anything else, None included, accepts
Hook: TypeAlias = Callable[[T], Verdict | Awaitable[Verdict]]


class Retire(Enum):
    """The type of `RETIRE`."""

    RETIRE = "retire"

    def __repr__(self) -> str:
        return "cenote.RETIRE"


RETIRE: Final = Retire.RETIRE  # of before_release: the resource is worn out, and not broken


def is_async(function: Callable[..., Any] | None) -> bool:
    """Return whether a call is sure to give an awaitable; a plain function may still give one."""
    while isinstance(function, partial):
        function = function.func
    if function is None:
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__  # of an instance; calling a class makes an instance
    )


def is_awaitable(value: object) -> bool:
    """Return what `inspect.isawaitable` does, at a lower cost in the common case."""
    if hasattr(type(value), "__await__"):
        return True
    return isinstance(value, GeneratorType) and inspect.isawaitable(value)


def drop(awaitable: object) -> bool:
    """Close a coroutine that was never started; return False for any other awaitable."""
    if isinstance(awaitable, CoroutineType):
        awaitable.close()
        return True
    return False
