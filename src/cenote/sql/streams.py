"""Streams: results that are read piece by piece, which pin their connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from weakref import ref

from ..errors import PoolError, StatementTimeoutError
from ..options import duration
from .admission import require_connection
from .fifo_lock import FifoLock
from .into import check_into, convert_all
from .parsing.statements import ParsedStatement
from .pins import Pin, close_pin, close_pin_later, drop_pin
from .session import Session
from .time_limits import TimeLimit, within

if TYPE_CHECKING:
    from .database import Database
    from .per_loop import LoopDatabase
    from .scope import AnyTransaction

T = TypeVar("T")

FIRST_CHUNK, LAST_CHUNK = 100, 1000  # rows that a stream reads at a time: first, and at most
WIDE = 1000  # characters, bytes or elements in a row; of such rows no more are read than at first


class Stream(Generic[T]):
    """An async iterator over rows, with `aclose()`.

    Nothing happens before `start()`, or before the first row is asked for. Outside a transaction it
    has a connection of its own, inside one it shares that. Several tasks may read one stream: each
    row goes to one of them.
    """

    __slots__ = (
        "_arguments",
        "_chunk",
        "_database",
        "_failed_in",
        "_into",
        "_over",
        "_owner",
        "_parsed",
        "_pin",
        "_rows",
        "_session",
        "_text",
        "_timeout",
        "_turn",
    )  # fmt: skip

    def __init__(
        self,
        database: Database,
        parsed: ParsedStatement | None,
        text: str,
        arguments: Any,
        owner: AnyTransaction | None = None,
        into: Callable[..., T] | None = None,
        timeout: float | None = None,
    ) -> None:
        self._session: Session | None = None  # first: one that is refused below is finalized, too
        self._pin: Pin | None = None
        if into is not None:
            check_into(into)
        if timeout is not None:
            duration("timeout", timeout)
        self._database = database
        self._into = into
        # None: it is a long text, which is analysed when the stream starts.
        self._parsed: Any = parsed
        self._text = text
        self._arguments = arguments
        self._owner = owner
        self._timeout = timeout  # of each wait for rows
        self._rows: list[Any] = []  # read and not yet given, the last one first
        self._chunk = FIRST_CHUNK
        self._over = False
        self._turn = FifoLock()  # several tasks may read it
        self._failed_in: ref[Any] | None = None  # the task in which it has failed

    def __aiter__(self) -> Self:
        return self

    async def start(self) -> Self:
        """Run the statement and fetch the first rows, if that has not happened yet.

        An HTTP handler awaits it before it answers 200, so that whatever goes wrong is raised while
        the answer can still be an error.
        """
        if self._over and self._failed_in is not None:
            raise PoolError(f"the stream of {self._parsed!r} has failed: call iterate() again")
        if self._pin is None and not self._over:
            await self._read()
        return self

    async def __anext__(self) -> T:
        rows = self._rows  # the same list from the beginning to the end
        if rows or (not self._over and await self._read()):
            return rows.pop()  # type: ignore[no-any-return]
        if self._failed_in is not None and self._failed_in() is not asyncio.current_task():
            raise PoolError(f"the stream of {self._parsed!r} has failed in another task")
        raise StopAsyncIteration

    async def _read(self) -> bool:
        """Fetch the next rows, unless a task before this one has; return whether there are any."""
        turn = self._turn
        if turn.taken:
            await turn.wait()
        else:
            turn.taken = True
        try:
            return bool(self._rows) or (not self._over and await self._fetch())
        except (Exception, asyncio.CancelledError):
            task = asyncio.current_task()
            self._failed_in = None if task is None else ref(task)
            raise
        finally:
            turn.give()

    async def _fetch(self) -> bool:
        """Fetch the next rows; return whether there were any, and close the stream if not."""
        if self._parsed is None:
            self._parsed = await self._analyse()
        parsed: ParsedStatement = self._parsed
        limit = None
        if self._timeout is not None:
            limit = TimeLimit(
                self._database._loop_databases.here(), parsed, self._timeout, gives="rows"
            )
        if self._pin is None:
            await self._open(limit)
        session, pin = self._session, self._pin
        assert session is not None
        assert pin is not None
        if pin not in session.pins:
            self._over = True
            raise self._cut_off(session)
        try:
            rows = await within(
                limit, session, lambda connection: pin.source.fetch(self._chunk), None,
                pin=pin, transaction=pin.transaction,
            )  # fmt: skip
            if pin.over:  # with the task of the transaction, meanwhile
                raise self._cut_off(session)
            given = rows if self._into is None else convert_all(rows, self._into)
        except BaseException as error:
            self._over = True
            self._let_go(session, pin, error)
            raise
        if not rows:
            await self.aclose()
            return False
        if self._chunk < LAST_CHUNK and not is_wide(rows[-1]):
            self._chunk = min(2 * self._chunk, LAST_CHUNK)
        self._rows += given
        self._rows.reverse()
        return True

    async def _analyse(self) -> ParsedStatement:
        try:
            parsed = await self._database._analyse(self._text, self._arguments)
            self._text, self._arguments = parsed.bind(self._arguments)
        except BaseException:
            self._over = True
            raise
        return parsed

    async def aclose(self) -> None:
        """The end, reached or not; the connection goes back."""
        self._over = True
        self._rows.clear()
        session, pin = self._session, self._pin
        if session is None or pin is None or pin not in session.pins or session.connection is None:
            return
        if session.lost is not None:
            drop_pin(session, pin)
            return
        await close_pin(session, pin)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        session, pin = self._session, self._pin
        if session is not None and pin is not None and pin in session.pins:
            pin.collected = True
            session.loop_db.post(lambda: close_pin_later(session, pin))

    async def _open(self, limit: TimeLimit | None) -> None:
        loop_db, parsed = self._database._loop_databases.here(), self._parsed
        try:
            work = self._open_on(loop_db, limit)
            shared = None if self._owner is None else self._owner._session
            await loop_db.observed(parsed.keyword, parsed.text, work, shared)
        except BaseException as error:
            self._over = True
            if self._pin is not None and self._session is not None:
                self._let_go(self._session, self._pin, error)  # it was opened too late
            if self._arguments is None and not loop_db.driver.is_disconnect(error):
                parsed.note_missing(error)
            raise

    async def _open_on(self, loop_db: LoopDatabase, limit: TimeLimit | None) -> None:
        session = self._session = await self._find_session(loop_db, limit)
        reason = f"stream is open ({self._parsed!r})"
        await within(
            limit, session, lambda connection: self._start(session, reason), self._parsed,
            transaction=self._owner,
        )  # fmt: skip

    async def _start(self, session: Session, reason: str) -> None:
        """Pinned in the very step in which it is open."""
        connection = require_connection(session)
        source = await connection.stream(
            self._text, self._arguments, self._parsed.keyword, alone=session.private
        )
        pin = Pin(
            reason,
            source,
            exclusive=not connection.interleaves,
            rows=self._rows,
            transaction=self._owner,
        )
        session.pins[pin] = None
        self._pin = pin

    async def _find_session(self, loop_db: LoopDatabase, limit: TimeLimit | None) -> Session:
        if self._owner is not None:
            return self._owner._open_session()
        session = loop_db.session()
        if session is not None and (
            session.lost is not None or session.transactions or session.blocks
            or session.changes.touched or session.connection is None
            or session.is_inside(session.connection)
        ):  # fmt: skip
            return session
        if session is None and not self._database._pooled:
            return await loop_db.bound_session(limit=limit)
        if session is not None and not self._database._pooled:
            return session
        return await loop_db.bound_session(private=True, limit=limit)

    def _let_go(self, session: Session, pin: Pin, error: BaseException) -> None:
        """After an error in mid-stream; a timeout that the server has confirmed does no harm."""
        if pin in session.pins:
            if session.connection is not None:
                stopped = isinstance(error, StatementTimeoutError)
                if session.private and (pin.source.has_unread_rows or not stopped):
                    pin.source.abandon()
                    session.connection.mark_broken()
                else:
                    session.connection.leftovers.append(pin.source)
            drop_pin(session, pin)

    def _cut_off(self, session: Session) -> PoolError:
        assert self._pin is not None
        if session.lost is not None and not self._pin.over:
            return session.lost.error()
        if self._pin.over or session.loop_db.closed:
            return session.loop_db.gone()
        return PoolError(
            f"the stream of {self._parsed!r} was cut off: its task or its transaction ended, "
            f"or its connection was lost"
        )


def is_wide(row: Iterable[Any]) -> bool:
    """Whether there is so much in it that many of them would be a burden."""
    sized = (value for value in row if isinstance(value, str | bytes | list | tuple | dict))
    return sum(map(len, sized)) > WIDE
