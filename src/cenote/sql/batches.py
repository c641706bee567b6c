"""The rows of `execute_many()`: all at once, or piece by piece from an iterator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import PoolError
from .notes import ROW, note, note_rows, shift_rows

if TYPE_CHECKING:
    from .driver import DriverConnection, Prepared

    Run: TypeAlias = Callable[[DriverConnection, list[Any]], Awaitable[None]]
    Send: TypeAlias = Callable[[DriverConnection], Awaitable[None]]

# Binds one row of parameters; gives the text for the driver and its arguments.
Bind: TypeAlias = Callable[[Any], tuple[str, Any]]

PIECE = 1_000  # rows of an iterator that are bound and sent together, at most
WIDE = 1_000_000  # characters and bytes in such a piece, about
SERIES = "cenote_series"  # the savepoint around the pieces


class Batches:
    """The rows of an iterator, of which one piece is in memory at a time.

    All pieces are sent in one transaction, or behind one savepoint of the open one.
    """

    __slots__ = ("_binder", "_over", "_rows", "failure", "piece", "sent")

    def __init__(self, bind: Bind, rows: Iterable[Any]) -> None:
        self._binder = Binder(bind)
        self._rows = iter(rows)
        self._over = False
        self.sent: int = 0  # rows that the database has taken
        self.failure: Exception | None = None  # of the iterator, or of a row that does not fit
        self.piece: list[Any] = []  # the rows that are sent next
        self._fill()

    @property
    def text(self) -> str:
        """The text of the driver; empty if there is no row."""
        return self._binder.text

    @property
    def is_one(self) -> bool:
        """Whether there is no more than this piece."""
        return self._over and not self.sent

    def sending(self, run: Run) -> Send:
        """Return what sends every piece on a connection, by this function."""

        async def send(connection: DriverConnection) -> None:
            if not connection.in_transaction:
                connection.forget_plans()  # in a transaction no plan that is stale is made again
            await connection.atomically(lambda: self._send(connection, run), SERIES)

        return send

    async def _send(self, connection: DriverConnection, run: Run) -> None:
        while self.piece:
            try:
                await run(connection, self.piece)
            except Exception as error:
                note_rows(error, len(self.piece))
                shift_rows(error, self.sent)
                raise
            self.sent += len(self.piece)
            self._binder.sent = True
            try:
                self._fill()
            except Exception as error:
                self.failure = error  # not one of the connection, whatever it is
                raise PoolError("the rows of execute_many() have failed") from error

    def _fill(self) -> None:
        self.piece = []
        wide = 0
        while not self._over and len(self.piece) < PIECE and wide < WIDE:
            try:
                row = next(self._rows)
            except StopIteration:
                self._over = True
                return
            arguments = self._binder.bind(row)
            self.piece.append(arguments)
            wide += sum(len(value) for value in arguments if isinstance(value, str | bytes))
        if not self._over and not self.sent:  # is there more than the first piece?
            for row in self._rows:
                self._rows = chain([row], self._rows)
                return
            self._over = True


class Binder:
    """Binds the rows of execute_many(), one after the other."""

    __slots__ = ("_bind", "_count", "sent", "text")

    def __init__(self, bind: Bind) -> None:
        self._bind = bind
        self._count = 0  # rows that were bound
        self.text: str = ""  # for the driver: that of the first row
        self.sent: bool = False  # some of them to the database

    def bind(self, row: Any) -> Any:
        """Return the values of a row; one that does not fit is named in a note on the error."""
        try:
            text, arguments = self._bind(() if row is None else row)
            if self._count and text != self.text:
                raise TypeError(
                    "parameters of execute_many() must be all sequences or all mappings"
                )
        except (TypeError, ValueError) as error:
            end = "none is kept" if self.sent else "nothing was sent"
            note(error, f"{ROW}row {self._count} (counted from 0) does not fit; {end}")
            raise
        self.text = text
        self._count += 1
        return arguments or ()


async def run_many(
    bind: Bind,
    parameters: Iterable[Any],
    run: Callable[[str, list[Any] | Batches], Awaitable[None]],
) -> None:
    """Bind every row, then run; an error gets a note that names the row, if that is known."""
    if isinstance(parameters, str | bytes | Mapping) or not is_iterable(parameters):
        collect = hasattr(parameters, "__aiter__")
        raise TypeError(
            f"parameters of execute_many() must be an iterable of parameters, one for each "
            f"run, not {type(parameters).__name__}"
            f"{': collect them first, [row async for row in ...]' if collect else ''}"
        )
    if not hasattr(parameters, "__len__"):
        batches = Batches(bind, parameters)
        if not batches.is_one:
            await _run_batches(batches, run)
            return
        text, rows = batches.text, batches.piece
    else:
        binder = Binder(bind)
        rows = [*map(binder.bind, parameters)]
        text = binder.text
    try:
        await run(text, rows)
    except Exception as error:
        if rows:
            note_rows(error, len(rows))
        raise


async def _run_batches(
    batches: Batches, run: Callable[[str, list[Any] | Batches], Awaitable[None]]
) -> None:
    try:
        await run(batches.text, batches)
    except PoolError:
        if batches.failure is None:
            raise
        raise batches.failure from None


def series(text: str, rows: list[Any] | Batches) -> Send:
    """Return what runs this text of the driver for all rows, on a connection."""
    return sending(lambda connection, piece: connection.execute_many(text, piece), rows)


def series_prepared(prepared: Prepared, rows: list[Any] | Batches) -> Send:
    """The same for a prepared statement."""
    return sending(lambda connection, piece: prepared.execute_many(piece), rows)


def sending(run: Run, rows: list[Any] | Batches) -> Send:
    """Return what runs this for all rows, on a connection: once, or for each piece."""
    if isinstance(rows, Batches):
        return rows.sending(run)
    return lambda connection: run(connection, rows)


def first_of(rows: Iterable[Any]) -> Any:
    """One row of parameters, which shows of what kind they are; () if it cannot be seen yet."""
    return rows[0] if isinstance(rows, list | tuple) and rows else ()


def is_iterable(value: object) -> bool:
    return hasattr(value, "__iter__") or hasattr(value, "__getitem__")
