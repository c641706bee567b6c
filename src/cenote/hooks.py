"""What a resource is: the five hooks, sync or async, and their verdicts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import CoroutineType, GeneratorType
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Factory: TypeAlias = Callable[[], T | Awaitable[T]]
Verdict: TypeAlias = object  # exactly False rejects; anything else, None included, accepts
Hook: TypeAlias = Callable[[T], Verdict | Awaitable[Verdict]]


def is_async(function: Callable[..., Any] | None) -> bool:
    """Whether calling this surely gives an awaitable. A plain function may still return one."""
    while isinstance(function, partial):
        function = function.func
    if function is None:
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__  # of an instance: a class makes one, whatever calling that does
    )


def is_awaitable(value: object) -> bool:
    """`inspect.isawaitable`, without its price for the common case."""
    if hasattr(type(value), "__await__"):
        return True
    return isinstance(value, GeneratorType) and inspect.isawaitable(value)


def drop(awaitable: object) -> bool:
    """Give up an awaitable that was never started; False if that cannot be done."""
    if isinstance(awaitable, CoroutineType):
        awaitable.close()
        return True
    return False
