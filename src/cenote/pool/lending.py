"""What a pool has to do with its lender of capacity: see `lender.py`.

The lender sets `max_size` by `resize()`. The pool asks it before each factory, and says when it is
closed and has nothing left. An acquire asks nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..errors import Withheld
from ..lender import Lender, Loan

if TYPE_CHECKING:
    from .engine import Engine


class Lending:
    """The loan of a pool, if it has one."""

    __slots__ = ("_engine", "_leaving", "_lender", "count_marked", "least", "loan", "most")

    def __init__(self, engine: Engine[Any]) -> None:
        settings = engine.settings
        self._engine = engine
        self._lender: Lender | None = settings.fleet
        self._leaving: asyncio.Future[None] | None = None  # the end of the loan
        self.loan: Loan | None = None  # from the opening on
        # Counts at the backend what has a mark; None: it cannot do that.
        self.count_marked: Callable[[str], Awaitable[int]] | None = None
        self.least: int = settings.min_size  # the sizes that the program wants
        self.most: int = settings.max_size

    @property
    def factory(self) -> Callable[..., Any]:
        """What makes a resource: not before the lender was asked."""
        return self._engine.settings.factory if self.loan is None else self._make_if_lent

    def begin(self) -> None:
        """The pool was bound to its loop, and has made nothing yet."""
        engine = self._engine
        if self._lender is not None:
            self.least, self.most = engine.core.min_size, engine.core.max_size
            self.loan = engine.call_out(self._lender.opened, engine.pool)
            if self.count_marked is not None:
                making = engine.settings.max_creating
                engine.call_out(self.loan.audit_by, self.count_marked, making)

    def end(self) -> None:
        """The pool is closed, or was never opened after all, and nothing is left."""
        loan, self.loan = self.loan, None
        if loan is not None:
            core = self._engine.core
            core.max_size, core.ceiling = self.most, 0  # as before, if it is opened again
            self._leaving = self._engine.call_out(loan.closed)

    async def begun(self) -> None:
        """Wait until the lender has said what the pool may have."""
        if self.loan is not None:
            begun = self._engine.call_out(self.loan.begun)
            if not begun.done():
                await asyncio.wait([begun])

    async def ended(self) -> None:
        """Wait until the lender has taken back what it has lent."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            await asyncio.wait([leaving])

    def sentence(self) -> str:
        """What a timeout error says of the loan."""
        return "" if self.loan is None else self._engine.call_out(self.loan.sentence)

    def lacks(self) -> bool:
        """Whether less is lent than the pool may have."""
        core = self._engine.core
        return self.loan is not None and core.max_size < core.ceiling

    def withhold(self) -> None:
        """The lender has refused one more resource: there is no room until it resizes the pool."""
        core = self._engine.core
        core.max_size = min(core.max_size, core.total)

    def wish(self, least: int, most: int) -> None:
        """The program has resized the pool: what it wants at most is the lender's business."""
        self.least, self.most = least, most
        if self.loan is not None:
            self._engine.call_out(self.loan.resized, least, most)

    def take_over(self, parent: Lending) -> None:
        """In the child of a fork: the program wants the same sizes there."""
        core, theirs = self._engine.core, parent._engine.core
        self.count_marked = parent.count_marked
        core.min_size = theirs.min_size
        core.max_size = theirs.max_size if parent.loan is None else parent.most

    def _make_if_lent(self) -> Any:
        if self.loan is not None and not self.loan.may_open():
            raise Withheld()
        return self._engine.settings.factory()
