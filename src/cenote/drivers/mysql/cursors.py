"""Cursors of asyncmy for the guard of `connection()`, which end with its block."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import iscoroutinefunction
from typing import Any


@lru_cache(maxsize=64)
def checked(kind: type[Any]) -> type[Any]:
    """Return a class of the same cursors that ask their `guard` before they do anything.

    A cursor works with the bare connection, because asyncmy accesses its fields in C. What its user
    sees as its connection is the guard.
    """
    members: dict[str, Any] = {"guard": None, "connection": _connection(kind)}
    for name in dir(kind):
        method = getattr(kind, name)
        if name == "mogrify":
            members[name] = _function(method)
        elif not name.startswith("_") and name != "close" and iscoroutinefunction(method):
            members[name] = _coroutine(method)
    return type(kind.__name__, (kind,), members)


def check(guard: Any) -> None:
    """Raise NotAcquiredError if the block of the guard is over."""
    _ = guard.cursor


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        check(self.guard)
        return method(self, *arguments, **options)

    return call


def _coroutine(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, *arguments: Any, **options: Any) -> Any:
        check(self.guard)
        return await method(self, *arguments, **options)

    return call


def _connection(kind: type[Any]) -> property:
    bare: Any = kind.connection

    def get(self: Any) -> Any:
        return None if bare.__get__(self) is None else self.guard

    def put(self: Any, value: Any) -> None:
        bare.__set__(self, value)

    return property(get, put)
