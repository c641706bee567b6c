"""Prepared statements and streams: what is open on a connection, and pins it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import PoolError, TransactionClosedError
from .binding import Lease
from .driver import Arguments, Link, Prepared
from .notes import bind_rows, note_operator, note_rows
from .pin import Pin
from .query import Query

if TYPE_CHECKING:
    from .branch import Branch
    from .database import Database
    from .transaction import Transaction

FIRST_CHUNK, LAST_CHUNK = 100, 1000  # rows that a stream reads at a time: first, and at most
WIDE = 1000  # characters, bytes or elements in a row; of such rows no more are read than at first


class Statement:
    """A prepared statement; its connection is pinned until it is closed or collected."""

    __slots__ = ("_lease", "_pin", "_query")

    def __init__(self, lease: Lease, pin: Pin, query: Query) -> None:
        self._lease = lease
        self._pin = pin
        self._query = query

    @property
    def sql(self) -> str:
        """The text, as given."""
        return self._query.text

    @property
    def closed(self) -> bool:
        """Closed, or its task or connection is gone."""
        return self._pin not in self._lease.pins

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
            await self._lease.run(
                lambda link: prepared.execute_many(rows),
                self._query,
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
        database, owner = self._lease.branch.database, self._pin.transaction
        return Stream(database, self._query, text, arguments, owner)

    async def close(self) -> None:
        """Harmless when it is closed, or its connection gone."""
        lease, pin = self._lease, self._pin
        if pin in lease.pins and lease.link is not None and lease.lost is None:
            await close_pin(lease, pin)
        elif pin in lease.pins:
            del lease.pins[pin]
            if lease.link is not None:  # in a transaction that is lost: closed when that is over
                lease.link.leftovers.append(pin.source)

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
        lease, pin = self._lease, self._pin
        if pin in lease.pins:
            pin.collected = True
            lease.branch.post(lambda: lease.forget_pin(pin))

    def __repr__(self) -> str:
        return f"<Statement {self._query!r}{' closed' if self.closed else ''}>"

    async def _run(self, name: str, parameters: Any) -> Any:
        arguments = self._bind(parameters)
        prepared = self._prepared()
        if self._query.commits:
            call = self._query.commit_by(name, prepared.text, arguments)
        else:
            call = lambda link: getattr(prepared, name)(arguments)  # noqa: E731
        try:
            return await self._lease.run(
                call,
                self._query,
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
        query = self._query
        return query.bind(query.nothing() if parameters is None else parameters)

    def _prepared(self) -> Prepared:
        lease = self._lease
        if lease.lost is not None and not self._pin.over:
            raise lease.lost.error()
        if self._pin not in lease.pins or lease.link is None:
            if self._pin.over or lease.branch.database._closed:
                raise lease.branch.gone()
            raise PoolError(
                f"the statement {self._query!r} is closed: close() was called, its task ended, or "
                f"its connection was lost. Prepare it again."
            )
        return self._pin.source  # type: ignore[no-any-return]


async def prepare(lease: Lease, query: Query, transaction: Transaction | None = None) -> Statement:
    """`transaction`: of the handle that prepares it; one of a task that has joined a transaction
    ends with that as well."""
    of = transaction or lease.branch.joined.get(lease.branch.current_task())

    async def ready(link: Link) -> Statement:
        """Pinned in the very step in which it is prepared."""
        named = query.template({})
        template = named if named.names else query.template(())
        try:
            source = await link.prepare(template, query.text)
        except Exception as error:
            if template.count:
                note_operator(error)
            raise
        pin = Pin(f"statement is open ({query!r})", source, transaction=of)
        lease.pins[pin] = None
        return Statement(lease, pin, query)

    return await lease.run_alone(ready, None, transaction=transaction)


async def close_pin(lease: Lease, pin: Pin) -> None:
    """When it is its turn; if it does not come to that, it is closed before the next statement."""
    begun = False

    def close(link: Link) -> Awaitable[object]:
        nonlocal begun
        begun = True
        return pin.source.close()  # type: ignore[no-any-return]

    try:
        await lease.run(close, None, pin=pin, transaction=pin.transaction)
    except TransactionClosedError:
        if begun:
            raise
    finally:
        if begun:
            lease.drop_pin(pin)
        else:
            lease.forget_pin(pin)


class Stream:
    """An async iterator over rows, with aclose(); nothing happens before the first is asked for.

    Outside a transaction it has a connection of its own, inside one it shares that.
    """

    __slots__ = ("_arguments", "_chunk", "_database", "_lease", "_over", "_owner", "_pin",
                 "_query", "_rows", "_text")  # fmt: skip

    def __init__(
        self,
        database: Database,
        query: Query,
        text: str,
        arguments: Arguments,
        owner: Transaction | None = None,
    ) -> None:
        self._database = database
        self._query = query
        self._text = text
        self._arguments = arguments
        self._owner = owner
        self._lease: Lease | None = None
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
        lease, pin = self._lease, self._pin
        assert lease is not None
        assert pin is not None
        if pin not in lease.pins:
            self._over = True
            raise self._cut_off(lease)
        try:
            rows = await lease.run(
                lambda link: pin.source.fetch(self._chunk),
                None,
                pin=pin,
                transaction=pin.transaction,
            )
            if pin.over:  # with the task of the transaction, meanwhile
                raise self._cut_off(lease)
        except BaseException:
            self._over = True
            self._let_go(lease, pin)
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
        lease, pin = self._lease, self._pin
        if lease is None or pin is None or pin not in lease.pins or lease.link is None:
            return
        if lease.lost is not None:
            lease.drop_pin(pin)
            return
        await close_pin(lease, pin)

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
        lease, pin = self._lease, self._pin
        if lease is not None and pin is not None and pin in lease.pins:
            pin.collected = True
            lease.branch.post(lambda: lease.forget_pin(pin))

    async def _open(self) -> None:
        branch, query = self._database._branch(), self._query
        try:
            self._pin = await branch.watched(query.keyword, query.text, self._open_on(branch))
        except BaseException as error:
            self._over = True
            if self._arguments is None:
                query.note_missing(error)
            raise

    async def _open_on(self, branch: Branch) -> Pin:
        lease = self._lease = await self._find_lease(branch)
        reason = f"stream is open ({self._query!r})"
        return await lease.run_alone(
            lambda link: self._start(lease, reason), self._query, transaction=self._owner
        )

    async def _start(self, lease: Lease, reason: str) -> Pin:
        """Pinned in the very step in which it is open."""
        link = lease.check()
        source = await link.stream(
            self._text, self._arguments, self._query.keyword, alone=lease.private
        )
        pin = Pin(
            reason,
            source,
            exclusive=not link.interleaves,
            rows=self._rows,
            transaction=self._owner,
        )
        lease.pins[pin] = None
        return pin

    async def _find_lease(self, branch: Branch) -> Lease:
        if self._owner is not None:
            return self._owner._open_lease()
        lease = branch.lease()
        if lease is not None and (
            lease.lost is not None or lease.transactions or lease.touched or lease.blocks
            or lease.link is None or lease.link.in_transaction
        ):  # fmt: skip
            return lease
        if lease is None and not self._database._pooled:
            return await branch.bound_lease()
        if lease is not None and not self._database._pooled:
            return lease
        return await branch.bound_lease(private=True)

    def _let_go(self, lease: Lease, pin: Pin) -> None:
        """After an error in mid-stream."""
        if pin in lease.pins:
            if lease.link is not None:
                if lease.private:
                    pin.source.abandon()
                    lease.link.broken = True
                else:
                    lease.link.leftovers.append(pin.source)
            lease.drop_pin(pin)

    def _cut_off(self, lease: Lease) -> PoolError:
        assert self._pin is not None
        if lease.lost is not None and not self._pin.over:
            return lease.lost.error()
        if self._pin.over or lease.branch.database._closed:
            return lease.branch.gone()
        return PoolError(
            f"the stream of {self._query!r} was cut off: its task or its transaction ended, "
            f"or its connection was lost"
        )


def is_wide(row: Iterable[Any]) -> bool:
    """Whether there is so much in it that many of them would be a burden."""
    sized = (value for value in row if isinstance(value, str | bytes | list | tuple | dict))
    return sum(map(len, sized)) > WIDE
