"""Whether a task waits for another one, as far as asyncio lets one see it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any


def waits_for(waiting: asyncio.Future[Any], awaited: asyncio.Future[Any]) -> bool:
    """Whether `waiting` cannot go on before `awaited` is done: it awaits it itself, or by way of
    gather(), wait(), wait_for(), shield(), a task group or other tasks."""
    seen: set[asyncio.Future[Any]] = set()
    found = [awaited]
    while found:
        future = found.pop()
        if future is waiting:
            return True
        if future not in seen:
            seen.add(future)
            for callback, _ in getattr(future, "_callbacks", None) or ():
                found += _woken_by(callback)
    return False


def _woken_by(callback: Any) -> Iterator[asyncio.Future[Any]]:
    """The futures that go on when this callback of another one is called."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.TaskGroup):  # not its parent, if that does something else
        owner = getattr(owner, "_on_completed_fut", None)
    cells = getattr(callback, "__closure__", None) or ()
    for each in (owner, *getattr(callback, "args", ()), *map(_content, cells)):
        if isinstance(each, asyncio.Future):
            yield each


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet set
        return None
