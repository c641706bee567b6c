"""The notifications of one psycopg connection, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...sql.driver import Received
from .private import ConnStatus, psycopg


class Inbox:
    """Reads notifications while no statement runs; what comes with an answer psycopg hands on.

    psycopg's own `notifies()` would keep the lock of the connection, so that it had to be ended
    before anything else can be sent.
    """

    def __init__(self, raw: Any, received: Received, lost: Callable[[], None]) -> None:
        self._raw = raw
        self._received = received
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = None  # that is watched
        raw.add_notify_handler(lambda note: received(note.channel, note.payload, note.pid))

    def open(self) -> None:
        """Read from now on; also after a statement, at whose end psycopg gives up the socket."""
        self._descriptor = descriptor = self._raw.pgconn.socket
        self._loop.add_reader(descriptor, self._read)
        self._take()  # what has come with an answer

    def close(self) -> None:
        """Leave the socket alone, before it is closed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor)

    def _read(self) -> None:
        pgconn = self._raw.pgconn
        try:
            pgconn.consume_input()
        except psycopg.Error:
            pass  # its status says so
        self._take()
        if pgconn.status == ConnStatus.BAD:
            self.close()
            self._lost()

    def _take(self) -> None:
        pgconn, encoding = self._raw.pgconn, self._raw.info.encoding
        while (note := pgconn.notifies()) is not None:
            self._received(note.relname.decode(encoding), note.extra.decode(encoding), note.be_pid)
