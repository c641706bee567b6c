"""Which row of `executemany()` has failed: the server says it by the number of its answers."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from ...sql.notes import note_row, of_values
from . import private

HEAD = 5  # bytes of a message: its kind, and how long the rest is
DONE, FAILED, READY = b"CEZ"  # CommandComplete, ErrorResponse, ReadyForQuery
MOST = 1 << 20  # bytes of answers that are kept before they are looked at


class Replies(asyncio.Protocol):
    """While `executemany()` runs it stands between the transport and asyncpg, which gets everything
    as it comes. The answers are read only when there was an error, or too many of them."""

    def __init__(self, raw: Any, count: int) -> None:
        self._count = count  # of rows that are sent
        self._transport, self._protocol = private.ends(raw)
        self._kept: list[bytes] = []
        self._size = 0  # of what is kept
        self._skipped = 0  # bytes of a message that are still to come
        self._done = 0  # rows, since the server was last ready
        self._failed: int | None = None  # the row that did, if one has

    def __enter__(self) -> None:
        if isinstance(self._protocol, asyncio.Protocol):
            self._transport.set_protocol(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._transport is not None and self._transport.get_protocol() is self:
            self._transport.set_protocol(self._protocol)
        if error is not None and of_values(error):
            self._read()
            if self._failed is not None and self._failed < self._count:
                note_row(error, self._failed)

    # -- what the transport calls ----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._kept.append(data)
        self._size += len(data)
        if self._size > MOST:
            self._read()
        self._protocol.data_received(data)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def eof_received(self) -> Any:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    # -- what has come ---------------------------------------------------------------------------

    def _read(self) -> None:
        received = b"".join(self._kept)
        at, end = self._skipped, len(received)
        while at + HEAD <= end:
            kind = received[at]
            if kind == DONE:
                self._done += 1
            elif kind == FAILED:
                self._failed = self._done
            elif kind == READY:
                self._done = 0
            at += 1 + int.from_bytes(received[at + 1 : at + HEAD])
        self._kept = [received[at:]]
        self._size = len(self._kept[0])
        self._skipped = max(at - end, 0)
