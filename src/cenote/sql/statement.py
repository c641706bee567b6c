"""Prepared statements and streams: what is open on a connection, and pins it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import PoolError, TransactionClosedError
from .driver import Arguments, DriverConnection, Prepared
from .notes import bind_rows, note_operator, note_rows
from .parsing.statements import ParsedStatement
from .pin import Pin
from .session import Session

if TYPE_CHECKING:
    from .database import Database
    from .per_loop import LoopDatabase
    from .transaction import Transaction

FIRST_CHUNK, LAST_CHUNK = 100, 1000  # rows that a stream reads at a time: first, and at most
WIDE = 1000  # characters, bytes or elements in a row; of such rows no more are read than at first


class Statement:
    """A prepared statement; its connection is pinned until it is closed or collected."""

    __slots__ = ("_parsed", "_pin", "_session")

    def __init__(self, session: Session, pin: Pin, parsed: ParsedStatement) -> None:
        self._session = session
        self._pin = pin
        self._parsed = parsed

    @property
    def sql(self) -> str:
        """The text, as given."""
        return self._parsed.text

    @property
    def closed(self) -> bool:
        """Closed, or its task or connection is gone."""
        return self._pin not in self._session.pins

    async def execute(self, parameters: Any = None) -> int:
        """Run it; the number of rows that it matched."""
        return await self._run("execute", parameters)  # type: ignore[no-any-return]

    async def execute_many(self, parameters: Iterable[Any]) -> None:
        """Run it once for each element of `parameters`: all of it or nothing."""
        rows = bind_rows(self._bind, parameters)
        if not rows:
            return
        prepared = self._prepared()
        try:
            await self._session.run(
                lambda connection: prepared.execute_many(rows),
                self._parsed,
                pin=self._pin,
                transaction=self._pin.transaction,
            )
        except Exception as error:
            note_rows(error, len(rows))
            raise

    async def fetch_all(self, parameters: Any = None) -> list[Any]:
        """All rows."""
        return await self._run("fetch_all", parameters)  # type: ignore[no-any-return]

    async def fetch_one(self, parameters: Any = None) -> Any:
        """The first row, or None."""
        return await self._run("fetch_one", parameters)

    async def fetch_val(self, parameters: Any = None) -> Any:
        """The first value of the first row, or None."""
        return await self._run("fetch_val", parameters)

    def iterate(self, parameters: Any = None) -> Stream:
        """An async iterator over the rows; it has `aclose()`."""
        self._prepared()
        text, arguments = self._bound(parameters)
        database, owner = self._session.loop_db.database, self._pin.transaction
        return Stream(database, self._parsed, text, arguments, owner)

    async def close(self) -> None:
        """Harmless when it is closed, or its connection gone."""
        session, pin = self._session, self._pin
        if pin in session.pins and session.connection is not None and session.lost is None:
            await close_pin(session, pin)
        elif pin in session.pins:
            del session.pins[pin]
            if (
                session.connection is not None
            ):  # in a transaction that is lost: closed when that is over
                session.connection.leftovers.append(pin.source)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        session, pin = self._session, self._pin
        if pin in session.pins:
            pin.collected = True
            session.loop_db.post(lambda: session.forget_pin(pin))

    def __repr__(self) -> str:
        return f"<Statement {self._parsed!r}{' closed' if self.closed else ''}>"

    async def _run(self, name: str, parameters: Any) -> Any:
        arguments = self._bind(parameters)
        prepared = self._prepared()
        if self._parsed.commits:
            call = self._parsed.commit_by(name, prepared.text, arguments)
        else:
            call = lambda connection: getattr(prepared, name)(arguments)  # noqa: E731
        try:
            return await self._session.run(
                call,
                self._parsed,
                pin=self._pin,
                transaction=self._pin.transaction,
            )
        except Exception as error:
            if arguments:
                note_operator(error)
            raise

    def _bind(self, parameters: Any) -> Arguments:
        return self._bound(parameters)[1]

    def _bound(self, parameters: Any) -> tuple[str, Arguments]:
        """The text was converted when it was prepared, so that it has placeholders to count."""
        parsed = self._parsed
        return parsed.bind(parsed.nothing() if parameters is None else parameters)

    def _prepared(self) -> Prepared:
        session = self._session
        if session.lost is not None and not self._pin.over:
            raise session.lost.error()
        if self._pin not in session.pins or session.connection is None:
            if self._pin.over or session.loop_db.database._closed:
                raise session.loop_db.gone()
            raise PoolError(
                f"the statement {self._parsed!r} is closed: close() was called, its task ended, or "
                f"its connection was lost. Prepare it again."
            )
        return self._pin.source  # type: ignore[no-any-return]


async def prepare(
    session: Session, parsed: ParsedStatement, transaction: Transaction | None = None
) -> Statement:
    """`transaction`: of the handle that prepares it; one of a task that has joined a transaction
    ends with that as well."""
    of = transaction or session.loop_db.joined.get(session.loop_db.current_task())

    async def ready(connection: DriverConnection) -> Statement:
        """Pinned in the very step in which it is prepared."""
        named = parsed.template({})
        template = named if named.names else parsed.template(())
        try:
            source = await connection.prepare(template, parsed.text)
        except Exception as error:
            if template.count:
                note_operator(error)
            raise
        pin = Pin(f"statement is open ({parsed!r})", source, transaction=of)
        session.pins[pin] = None
        return Statement(session, pin, parsed)

    return await session.run_unobserved(ready, None, transaction=transaction)


async def close_pin(session: Session, pin: Pin) -> None:
    """When it is its turn; if it does not come to that, it is closed before the next statement."""
    begun = False

    def close(connection: DriverConnection) -> Awaitable[object]:
        nonlocal begun
        begun = True
        return pin.source.close()  # type: ignore[no-any-return]

    try:
        await session.run(close, None, pin=pin, transaction=pin.transaction)
    except TransactionClosedError:
        if begun:
            raise
    finally:
        if begun:
            session.drop_pin(pin)
        else:
            session.forget_pin(pin)


class Stream:
    """An async iterator over rows, with aclose(); nothing happens before the first is asked for.

    Outside a transaction it has a connection of its own, inside one it shares that.
    """

    __slots__ = (
        "_arguments",
        "_chunk",
        "_database",
        "_over",
        "_owner",
        "_parsed",
        "_pin",
        "_rows",
        "_session",
        "_text",
    )  # fmt: skip

    def __init__(
        self,
        database: Database,
        parsed: ParsedStatement,
        text: str,
        arguments: Arguments,
        owner: Transaction | None = None,
    ) -> None:
        self._database = database
        self._parsed = parsed
        self._text = text
        self._arguments = arguments
        self._owner = owner
        self._session: Session | None = None
        self._pin: Pin | None = None
        self._rows: list[Any] = []  # read and not yet given, the last one first
        self._chunk = FIRST_CHUNK
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._rows:
            return self._rows.pop()
        if self._over:
            raise StopAsyncIteration
        if self._pin is None:
            await self._open()
        session, pin = self._session, self._pin
        assert session is not None
        assert pin is not None
        if pin not in session.pins:
            self._over = True
            raise self._cut_off(session)
        try:
            rows = await session.run(
                lambda connection: pin.source.fetch(self._chunk),
                None,
                pin=pin,
                transaction=pin.transaction,
            )
            if pin.over:  # with the task of the transaction, meanwhile
                raise self._cut_off(session)
        except BaseException:
            self._over = True
            self._let_go(session, pin)
            raise
        if not rows:
            await self.aclose()
            raise StopAsyncIteration
        if self._chunk < LAST_CHUNK and not is_wide(rows[-1]):
            self._chunk = min(2 * self._chunk, LAST_CHUNK)
        self._rows += rows
        self._rows.reverse()
        return self._rows.pop()

    async def aclose(self) -> None:
        """The end, reached or not; the connection goes back."""
        self._over = True
        self._rows.clear()
        session, pin = self._session, self._pin
        if session is None or pin is None or pin not in session.pins or session.connection is None:
            return
        if session.lost is not None:
            session.drop_pin(pin)
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
            session.loop_db.post(lambda: session.forget_pin(pin))

    async def _open(self) -> None:
        loop_db, parsed = self._database._loop_database(), self._parsed
        try:
            self._pin = await loop_db.watched(parsed.keyword, parsed.text, self._open_on(loop_db))
        except BaseException as error:
            self._over = True
            if self._arguments is None:
                parsed.note_missing(error)
            raise

    async def _open_on(self, loop_db: LoopDatabase) -> Pin:
        session = self._session = await self._find_session(loop_db)
        reason = f"stream is open ({self._parsed!r})"
        return await session.run_unobserved(
            lambda connection: self._start(session, reason), self._parsed, transaction=self._owner
        )

    async def _start(self, session: Session, reason: str) -> Pin:
        """Pinned in the very step in which it is open."""
        connection = session.check()
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
        return pin

    async def _find_session(self, loop_db: LoopDatabase) -> Session:
        if self._owner is not None:
            return self._owner._open_session()
        session = loop_db.session()
        if session is not None and (
            session.lost is not None or session.transactions or session.touched or session.blocks
            or session.connection is None or session.connection.in_transaction
        ):  # fmt: skip
            return session
        if session is None and not self._database._pooled:
            return await loop_db.bound_session()
        if session is not None and not self._database._pooled:
            return session
        return await loop_db.bound_session(private=True)

    def _let_go(self, session: Session, pin: Pin) -> None:
        """After an error in mid-stream."""
        if pin in session.pins:
            if session.connection is not None:
                if session.private:
                    pin.source.abandon()
                    session.connection.mark_broken()
                else:
                    session.connection.leftovers.append(pin.source)
            session.drop_pin(pin)

    def _cut_off(self, session: Session) -> PoolError:
        assert self._pin is not None
        if session.lost is not None and not self._pin.over:
            return session.lost.error()
        if self._pin.over or session.loop_db.database._closed:
            return session.loop_db.gone()
        return PoolError(
            f"the stream of {self._parsed!r} was cut off: its task or its transaction ended, "
            f"or its connection was lost"
        )


def is_wide(row: Iterable[Any]) -> bool:
    """Whether there is so much in it that many of them would be a burden."""
    sized = (value for value in row if isinstance(value, str | bytes | list | tuple | dict))
    return sum(map(len, sized)) > WIDE
