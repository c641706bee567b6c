"""Every pool of the process: who follows new ones, and what happens in the child of a fork.

The child starts with empty pools, and leaves alone what belongs to the parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from logging import ERROR
from typing import Any, Protocol

from ..log import log

_kept: list[object] = []


class Forkable(Protocol):
    def after_fork(self) -> object:
        """Start anew; returns whatever must stay untouched for the life of the process."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()  # pools
_others: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(thing: Forkable) -> None:
    _forkables.add(thing)


def watch_unlisted(thing: Forkable) -> None:
    """The same for what is not a pool."""
    _others.add(thing)


def watched() -> list[Forkable]:
    """All pools that live; from any thread."""
    while True:
        try:
            return list(_forkables)
        except RuntimeError:  # another thread has made one meanwhile
            continue


_followers: tuple[Callable[[Any], object], ...] = ()


def follow(callback: Callable[[Any], object]) -> Callable[[], None]:
    """Call this with every pool that is made from now on; returns the function that ends it."""
    global _followers
    _followers += (callback,)

    def unfollow() -> None:
        global _followers
        _followers = tuple(each for each in _followers if each is not callback)

    return unfollow


def announce(pool: Any) -> None:
    """Call what follows new pools with this one."""
    for callback in _followers:
        try:
            callback(pool)
        except Exception as error:
            log(
                ERROR,
                "%r: a follower of new pools failed",
                pool,
                error=error,
                fields={"pool": pool.name},
            )


def _in_child() -> None:
    for thing in [*_others, *_forkables]:
        _keep(thing.after_fork())


def _keep(thing: object) -> None:
    """Never finalized, not even when the interpreter ends: a connection that says good-bye in the
    child would end the parent's session."""
    _kept.append(thing)
    try:
        import ctypes  # here: only a forked child pays for it
    except ImportError:  # PyPy runs no finalizers at its end
        return
    if hasattr(ctypes, "pythonapi"):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
