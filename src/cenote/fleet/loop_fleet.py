"""A fleet in one event loop: the connection to its ledger, and the members that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from logging import WARNING
from typing import TYPE_CHECKING, Any, Final

from ..log import log
from .ledger import Grant, Ledger, LedgerConfig, LedgerError, MemberRow, News
from .loading import new_ledger
from .loan import MemberLoan

if TYPE_CHECKING:
    from ..pool import Pool

CLOSING: Final = 1.0  # seconds for the end of a connection to the ledger


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """What a fleet was made with, checked.

    Attributes:
        ledger: Where the ledger is.
        budget: How many resources all members have together, at most.
        host: The name of this machine.
        strict: Whether one resource, and not the equal part, is what a member has alone.
        audits: Whether what silent members have is counted at the server, where the driver can.
    """

    ledger: LedgerConfig
    budget: int
    host: str
    strict: bool = False
    audits: bool = True

    @property
    def name(self) -> str:
        """The name of the fleet."""
        return self.ledger.name

    @property
    def ttl(self) -> float:
        """Seconds until a silent member has lost what it had."""
        return self.ledger.ttl


class LoopFleet:
    """What a `Fleet` is in one event loop. It lives as long as it has members."""

    def __init__(
        self,
        config: FleetConfig,
        loop: asyncio.AbstractEventLoop,
        emptied: Callable[[LoopFleet], object],
    ) -> None:
        """Make one; `emptied` is called when the last member has gone."""
        self.config: FleetConfig = config
        self.loop: asyncio.AbstractEventLoop = loop
        self.ledger: Ledger = new_ledger(config.ledger)
        self.is_open: bool = False
        self._emptied = emptied
        self._members: dict[str, MemberLoan] = {}
        self._opening = asyncio.Lock()
        self._warned = False  # of another budget

    def lend(self, pool: Pool[Any]) -> MemberLoan:
        """Make a pool a member."""
        loan = MemberLoan(self, pool)
        self._members[loan.member] = loan
        return loan

    async def ready(self) -> None:
        """Connect, if that was not done. Raises `LedgerError`."""
        if self.is_open:
            return
        async with self._opening:
            if not self.is_open:
                await self.ledger.open(self._take_news)
                self.is_open = True

    async def rows(self) -> list[MemberRow]:
        """Every member of the fleet. Raises `LedgerError`."""
        await self.ready()
        return await self.ledger.rows()

    def answered(self, grant: Grant) -> None:
        """A member was granted something: look whether all agree on the budget."""
        if grant.budget != self.config.budget and not self._warned:
            self._warned = True
            log(
                WARNING, "fleet %r: this process has budget=%d, another one %d; the smallest "
                "counts. Give all of them the same", self.config.name, self.config.budget,
                grant.budget,
                fields={"fleet": self.config.name}, loop=self.loop,
            )  # fmt: skip

    # -- the end -----------------------------------------------------------------------------------

    def remove(self, loan: MemberLoan) -> None:
        """A member is no more. After the last one a new one gets a connection of its own."""
        self._members.pop(loan.member, None)
        if not self._members:
            self._emptied(self)

    async def close_if_empty(self) -> None:
        """Disconnect, unless there are members."""
        if self._members or not self.is_open:
            return
        self.is_open = False
        with suppress(LedgerError, TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self.ledger.close()

    def abandon(self) -> None:
        """The loop is gone: let go of the connection, without a word, unless there are members."""
        if not self._members:
            self.is_open = False
            self.ledger.forsake()

    def forsake(self) -> None:
        """In the child of a fork: let go of what is the parent's."""
        for loan in self._members.values():
            loan.forsake()
        self.ledger.forsake()

    # -- news --------------------------------------------------------------------------------------

    def _take_news(self, news: News) -> None:
        if news.member is not None:
            loan = self._members.get(news.member)
            if loan is not None:
                loan.woken()
        if news.circuit is not None:
            for loan in [*self._members.values()]:
                loan.heard(news.circuit)
