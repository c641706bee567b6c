"""Whether a task waits for another one, as far as asyncio lets one see it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

OWN = "asyncio.tasks"  # callbacks of others may do anything, or nothing
WAIT_FOR = asyncio.wait_for.__code__


def waits_for(waiting: asyncio.Future[Any], awaited: asyncio.Future[Any]) -> bool:
    """Whether `waiting` cannot go on before `awaited` is done: it awaits it itself, or by way of
    gather(), wait(), wait_for(), shield(), a task group or other tasks. A wait that ends by itself
    and leaves `awaited` alone does not count."""
    seen: set[tuple[asyncio.Future[Any], bool]] = set()
    found = [(awaited, False)]
    while found:
        future, spared = step = found.pop()  # spared: a cancellation of it is not passed on
        if step in seen or (spared and _has_deadline(future)):
            continue
        if future is waiting:
            return True
        seen.add(step)
        for callback, _ in getattr(future, "_callbacks", None) or ():
            woken, spares = _woken_by(callback)
            if isinstance(woken, asyncio.Future):
                found.append((woken, spared or spares))
    return False


def _woken_by(callback: Any) -> tuple[Any, bool]:
    """The future that goes on when this callback of another one is called, if any, and whether its
    cancellation would spare the other one."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return (owner if callback.__name__.endswith("wakeup") else None), False
    if isinstance(owner, asyncio.TaskGroup):  # not its parent, if that does something else
        return getattr(owner, "_on_completed_fut", None), False
    if isinstance(callback, partial):  # of wait_for(), until 3.11
        own = getattr(callback.func, "__module__", None) == OWN
        return (callback.args[0] if own else None), False
    if getattr(callback, "__module__", None) != OWN:
        return None, False
    names = _variables(callback)
    if "return_when" in names:
        return (names.get("waiter") if _waits_for_all(names) else None), True
    return names.get("outer"), "shield" in callback.__qualname__


def _waits_for_all(names: dict[str, Any]) -> bool:
    """Of wait(), with the variables of its callback."""
    last = names["return_when"] == asyncio.ALL_COMPLETED or names.get("counter") == 1
    return last and names.get("timeout_handle") is None


def _has_deadline(future: asyncio.Future[Any]) -> bool:
    """Whether it is a task in a wait_for() with a timeout, which leaves alone what is shielded."""
    coroutine: Any = future.get_coro() if isinstance(future, asyncio.Task) else None
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        if frame.f_code is WAIT_FOR and frame.f_locals["timeout"] is not None:
            return True
        coroutine = coroutine.cr_await
    return False


def _variables(function: Any) -> dict[str, Any]:
    """Those of the functions around it."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    return dict(zip(names, map(_content, cells), strict=True))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet set
        return None
