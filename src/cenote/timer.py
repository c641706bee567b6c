"""A timer of an event loop, as everything in the package uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

LONGEST: Final = 1e8  # seconds; longer timers overflow in some event loops


class Timer:
    """One callback to be called later; starting the timer again replaces it.

    The callback runs in an empty context: a cancelled handle lives on in the loop until its time,
    and would keep every value of a context alive.
    """

    __slots__ = ("_handle", "when")

    def __init__(self) -> None:
        self._handle: asyncio.Handle | None = None
        self.when: float = 0.0  # loop time of the last start

    @property
    def is_set(self) -> bool:
        """Whether the callback is still to be called."""
        return self._handle is not None

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
    ) -> None:
        """Call this in so many seconds."""
        self.stop()
        self.when = loop.time() + min(delay, LONGEST)
        self._handle = loop.call_at(self.when, self._call, callback, args, context=Context())

    def start_at(
        self,
        loop: asyncio.AbstractEventLoop,
        when: float,
        callback: Callable[..., object],
        *args: Any,
    ) -> None:
        """Call this at that time of the loop."""
        self.stop()
        self.when = min(when, loop.time() + LONGEST)
        self._handle = loop.call_at(self.when, self._call, callback, args, context=Context())

    def start_soon(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any
    ) -> None:
        """Call this in the next turn of the loop."""
        self.stop()
        self.when = loop.time()
        self._handle = loop.call_soon(self._call, callback, args, context=Context())

    def stop(self) -> None:
        """Do not call it. Nothing happens if the timer is not set."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def now(self, time: float) -> float:
        """The time to be believed in the callback: a timer may come a clock tick early, and what it
        came for is due all the same."""
        return max(time, self.when)

    def _call(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._handle = None
        callback(*args)
