"""What a pool knows of its lender of capacity, such as a `cenote.Fleet`."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .breaker import CircuitBreakerStrategy
    from .pool import Pool


class Loan(Protocol):
    """What was agreed with one pool, from its opening to its end.

    The lender calls `pool.resize(max_size=..., ceiling=...)`; a `resize()` without `ceiling` is the
    program's.
    """

    def may_open(self) -> bool:
        """Whether one more resource may be made now; asked before each factory. False: the lease
        has ended, and acquires wait until `resize()` gives new room."""
        ...

    def begun(self) -> Future[None]:
        """What `open()` waits for: it is done when the lender has said what the pool may have, or
        that it cannot say so now. It must be done soon, with whatever lender."""
        ...

    def sentence(self) -> str:
        """What a timeout error says of the capacity that was lent; empty for nothing."""
        ...

    @property
    def mark(self) -> str | None:
        """A word by which the backend is to know what is made for this loan, where it can."""
        ...

    def audit_by(self, count: Callable[[str], Awaitable[int]], making: int | None) -> None:
        """This pool can count at the backend what has a mark, that of another loan as well, but for
        what is being made: of that this pool never has more than `making` at once, if not None."""

    def resized(self, least: int, most: int) -> None:
        """The program has resized the pool: `most` is what it may have at most from now on. If it
        had more lent, it is `max_size` already."""

    def closed(self) -> Future[None] | None:
        """The pool is closed and has nothing left; called once, in its event loop if that lives.
        `close()` waits for what is returned, such as a task: it must end soon."""
        ...


class Lender(Protocol):
    """Lends capacity to pools, by their `resize()`."""

    def check(self, least: int, most: int) -> None:
        """Raise `ValueError` if a pool of these sizes cannot be served."""

    def opened(self, pool: Pool[Any]) -> Loan:
        """A pool was bound to its event loop, which runs; it has made nothing yet. Its `max_size`
        is what it may have at most; the lender may lower it by `resize()` at once."""
        ...

    def strategy(self) -> CircuitBreakerStrategy | None:
        """The default strategy for a database; None for its own."""
        ...
