"""Prepared statements, which pin their connection."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import PoolError
from .batches import Batches, series_prepared
from .driver import Arguments, DriverConnection, Prepared
from .notes import note_operator
from .parsing.statements import ParsedStatement
from .pins import Pin, close_pin, close_pin_later
from .session import Session
from .streams import Stream
from .time_limits import TimeLimit, limit_of, observed_within, within
from .verbs import PreparedVerbs

if TYPE_CHECKING:
    from .transaction import Transaction


class Statement(PreparedVerbs):
    """A prepared statement; its connection is pinned until it is closed or collected."""

    __slots__ = ("_parsed", "_pin", "_session")

    def __init__(self, session: Session, pin: Pin, parsed: ParsedStatement) -> None:
        self._session = session
        self._pin = pin
        self._parsed = parsed

    @property
    def sql(self) -> str:
        """The text of the statement, as it was given to `prepare()`."""
        return self._parsed.text

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its task or connection is gone."""
        return self._pin not in self._session.pins

    async def close(self) -> None:
        """Close it. Does nothing if it is closed already, or its connection is gone."""
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
            session.loop_db.post(lambda: close_pin_later(session, pin))

    def __repr__(self) -> str:
        return f"<Statement {self._parsed!r}{' closed' if self.closed else ''}>"

    def _bind(self, parameters: Any) -> tuple[str, Arguments]:
        """The text was converted when it was prepared, so that it has placeholders to count."""
        parsed = self._parsed
        return parsed.bind(parsed.nothing() if parameters is None else parameters)

    async def _run(self, method: str, parameters: Any, timeout: float | None) -> Any:
        _, arguments = self._bind(parameters)
        prepared = self._prepared()
        if self._parsed.commits:
            call = self._parsed.commit_by(method, prepared.text, arguments)
        else:
            call = lambda connection: getattr(prepared, method)(arguments)  # noqa: E731
        try:
            return await self._run_here(call, timeout)
        except Exception as error:
            if arguments:
                note_operator(error)
            raise

    async def _run_many(self, rows: list[Any] | Batches, timeout: float | None) -> None:
        if rows:
            prepared = self._prepared()
            await self._run_here(series_prepared(prepared, rows), timeout)
        else:
            limit_of(self._session.loop_db, self._parsed, timeout)

    def _run_here(self, call: Callable[[DriverConnection], Any], timeout: float | None) -> Any:
        """An awaitable: on the session that has prepared it, in the transaction with which it
        ends."""
        pin, session = self._pin, self._session
        limit = limit_of(session.loop_db, self._parsed, timeout)
        return observed_within(
            limit, session, call, self._parsed, pin=pin, transaction=pin.transaction
        )

    def _stream(
        self, text: str, arguments: Arguments, into: Any, timeout: float | None
    ) -> Stream[Any]:
        self._prepared()
        database, owner = self._session.loop_db.database, self._pin.transaction
        return Stream(database, self._parsed, text, arguments, owner, into, timeout)

    def _prepared(self) -> Prepared:
        session = self._session
        if session.lost is not None and not self._pin.over:
            raise session.lost.error()
        if self._pin not in session.pins or session.connection is None:
            if self._pin.over or session.loop_db.closed:
                raise session.loop_db.gone()
            raise PoolError(
                f"the statement {self._parsed!r} is closed: close() was called, its task ended, or "
                f"its connection was lost. Prepare it again."
            )
        return self._pin.source  # type: ignore[no-any-return]


async def prepare(
    session: Session,
    parsed: ParsedStatement,
    transaction: Transaction | None = None,
    limit: TimeLimit | None = None,
) -> Statement:
    """`transaction`: of the handle that prepares it; one of a task that has joined a transaction
    ends with that as well."""
    of = transaction or session.loop_db.joined_by(session.loop_db.current_task())

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

    return await within(limit, session, ready, None, transaction=transaction)
