"""Stops one function in the thread of a connection to SQLite, and not what comes after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from .statements import ask_number

STEPS = 10_000  # of SQLite's machine, after which it looks whether it is to stop
LATE = 0.05  # seconds that a lock is waited for past the time limit: the order to stop comes first


class Interruption:
    """Of one function. SQLite's own interrupt() knows only connections: it would also hit what runs
    next, and every cursor that is open."""

    __slots__ = ("_asked", "_lock", "_running")

    def __init__(self) -> None:
        self._lock = Lock()
        self._asked = False
        self._running: sqlite3.Connection | None = None

    @contextmanager
    def over(self, sqlite: sqlite3.Connection, patience: float, *, shared: bool) -> Iterator[None]:
        """For what runs in the thread. `patience`: how many seconds it may wait for locks, which
        no interruption ends; `shared`: cursors are open that it must not hit."""
        with shorter_wait(sqlite, patience + LATE):
            if shared:
                sqlite.set_progress_handler(self.is_asked, STEPS)
            else:
                self._running = sqlite
            try:
                yield
            finally:
                self.end()
                if shared:
                    sqlite.set_progress_handler(None, 0)

    def ask(self) -> None:
        """Stop it, if it has begun and has not ended."""
        with self._lock:
            self._asked = True
            if self._running is not None:
                self._running.interrupt()

    def is_asked(self) -> bool:
        return self._asked

    def end(self) -> None:
        """What comes now in the thread is not to be stopped."""
        with self._lock:
            self._running = None
            self._asked = False


@contextmanager
def shorter_wait(sqlite: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Wait for locks no longer than this."""
    most = int(seconds * 1000)
    before = ask_number(sqlite, "PRAGMA busy_timeout")
    if before <= most:
        yield
        return
    sqlite.execute(f"PRAGMA busy_timeout = {most}").close()
    try:
        yield
    finally:
        if ask_number(sqlite, "PRAGMA busy_timeout") == most:  # else the statement has set it
            sqlite.execute(f"PRAGMA busy_timeout = {before}").close()
