"""One function in a thread of its own, while the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

R = TypeVar("R")


async def in_thread(function: Callable[..., R], *arguments: Any) -> R:
    """Return what the function returns, or raise what it raises. It runs to its end in any case.

    The thread is a new one: those of the loop's executor are the program's, which may have all of
    them wait for the database.
    """
    outcome: Future[R] = Future()
    outcome.set_running_or_notify_cancel()  # from now on it cannot be cancelled

    def work() -> None:
        try:
            outcome.set_result(function(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    try:
        Thread(target=work, name="cenote analysis", daemon=True).start()
    except RuntimeError:  # the process has as many as it may have
        return function(*arguments)
    return await asyncio.wrap_future(outcome)
