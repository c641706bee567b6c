"""The socket below a driver: the system learns of the end before the event loop reads it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

END = getattr(select, "POLLRDHUP", getattr(select, "POLLHUP", 0))
DATA = getattr(select, "POLLIN", 0)


class Wire:
    """Only for a socket that is open on this side."""

    __slots__ = ("_poll",)

    def __init__(self, descriptor: int) -> None:
        self._poll = None
        if END:  # not on Windows
            poll = select.poll()
            poll.register(descriptor, END | DATA)
            self._poll = poll.poll

    def has_unread_bytes(self) -> bool:
        """Whether something is there to read, if only the end."""
        return self._poll is not None and bool(self._poll(0))

    def peer_closed(self) -> bool:
        """Whether the other side has closed it."""
        if self._poll is None:
            return False
        found = self._poll(0)
        return bool(found) and any(event & ~DATA for _, event in found)


def hang_up(transport: Any, abort: Callable[[], None]) -> None:
    """Close it now, also if its loop is closed or does not run, and would not do it any more."""
    wire = transport.get_extra_info("socket")
    try:
        abort()
    except RuntimeError:  # the loop is closed
        if hasattr(transport, "_sock"):
            transport._sock = None  # or it would complain when it is collected
        if wire is not None:
            wire._sock.close()
        return
    try:
        wire.shutdown(socket.SHUT_RDWR)
    except (AttributeError, OSError, TypeError):
        pass  # closed already; or uvloop's, which cannot
