"""The deadlines of all who wait for one pool: one timer of the loop, however many they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

FEW = 64  # entries that are not worth a clean-up

_numbers = count()


class Deadlines:
    """A heap of entries; an entry that is taken out stays as a husk until half of them are."""

    __slots__ = ("_entries", "_husks", "_timer", "_when", "expiring", "shared")

    def __init__(self) -> None:
        self._entries: list[list[Any]] = []  # [deadline, number, what to call]
        self._husks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0  # loop time of the timer
        self.expiring = False  # in the step in which deadlines pass,
        self.shared: Any = None  # and what those who are called in it share

    def add(
        self, loop: asyncio.AbstractEventLoop, deadline: float, expire: Callable[[], None]
    ) -> list[Any]:
        """The entry, to be given to `remove` if the deadline is of no interest any more."""
        entry = [deadline, next(_numbers), expire]
        heappush(self._entries, entry)
        if self._timer is None or deadline < self._when:
            self._set(loop)
        return entry

    def remove(self, entry: list[Any]) -> None:
        if entry[2] is None:
            return  # it has expired
        entry[2] = None
        self._husks += 1
        if self._husks > FEW and self._husks * 2 > len(self._entries):
            self._entries = [each for each in self._entries if each[2] is not None]
            heapify(self._entries)
            self._husks = 0
        if self._husks == len(self._entries):
            self.clear()

    def look(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that there is a timer if there must be one."""
        if self._entries:
            self._set(loop)

    def clear(self) -> None:
        self._entries.clear()
        self._husks = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        """The timer for the earliest that still counts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries = self._entries
        while entries and entries[0][2] is None:
            heappop(entries)
            self._husks -= 1
        if entries:
            self._when = entries[0][0]
            # In an empty context: a cancelled timer lives on in the loop, and its context with it.
            self._timer = loop.call_at(self._when, self._expire, loop, context=Context())

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self.expiring = True
        due = max(loop.time(), self._when)  # a timer may come a clock tick early
        try:
            while self._entries and self._entries[0][0] <= due:
                expire = self._entries[0][2]
                self._entries[0][2] = None
                heappop(self._entries)
                if expire is None:
                    self._husks -= 1
                else:
                    expire()
        finally:
            self.forget()
            self._set(loop)

    def forget(self) -> None:
        """The step is over."""
        self.expiring, self.shared = False, None
