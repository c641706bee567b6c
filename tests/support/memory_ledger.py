"""A ledger in memory: the reference behind the protocol, with faults that tests switch on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cenote.fleet.ledger import FleetCircuit, Grant, LedgerError, MemberRow, News, Sync
from cenote.fleet.reference import ReferenceLedger
from cenote.testing import now

T = TypeVar("T")


class AskingLedger(ABC):
    """The requests of a ledger, each put to the reference in the way of the subclass."""

    @abstractmethod
    def _ask(self, operation: str, member: str, do: Callable[[ReferenceLedger], T]) -> Awaitable[T]:
        """Return what the reference answers; raises `LedgerError` if it cannot be asked."""

    async def sync(self, request: Sync) -> Grant:
        return await self._ask("sync", request.member, lambda r: r.sync(request, now()))

    async def leave(self, member: str, seq: int) -> None:
        await self._ask("leave", member, lambda r: r.leave(member, seq, now()))

    async def rows(self) -> list[MemberRow]:
        return await self._ask("rows", "", lambda r: r.members(now()))

    async def settle(self, member: str, counted: int) -> None:
        await self._ask("settle", member, lambda r: r.settle(member, counted, now()))

    async def vote(self, member: str, epoch: int, *, down: bool) -> FleetCircuit:
        return await self._ask("vote", member, lambda r: r.vote(member, epoch, down, now()))

    async def judge(self) -> FleetCircuit:
        return await self._ask("judge", "", lambda r: r.judge(now()))

    async def claim(self, member: str, epoch: int) -> FleetCircuit:
        return await self._ask("claim", member, lambda r: r.claim(member, epoch, now()))

    async def verdict(self, member: str, epoch: int, *, up: bool) -> FleetCircuit:
        return await self._ask("verdict", member, lambda r: r.verdict(member, epoch, up, now()))


class MemoryStore:
    """What several `MemoryLedger`s share: one reference ledger, and who gets its news."""

    def __init__(self, *, ttl: float = 10.0, learns: bool = False) -> None:
        self.ttl = ttl
        self.learns = learns
        self.ledgers: list[MemoryLedger] = []
        self.calls: list[tuple[float, str, str]] = []  # time, operation, member
        self.forget()

    def forget(self) -> None:
        """Lose everything, as a server that was restarted without its data."""
        self.reference = ReferenceLedger(self.ttl, self.ttl / 5, self.learns)

    def connect(self) -> MemoryLedger:
        return MemoryLedger(self)

    def publish(self) -> None:
        loop = asyncio.get_running_loop()
        for news in self.reference.take_news():
            for ledger in self.ledgers:
                loop.call_later(ledger.delay, ledger.deliver, news)


class MemoryLedger(AskingLedger):
    """The connection of one member or more. `away`: it cannot be reached; `deaf`: news are lost;
    `delay`: seconds for each request to arrive, for its answer, and for news."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.away = False
        self.deaf = False
        self.delay = 0.001
        self.news: Callable[[News], object] | None = None

    def deliver(self, news: News) -> None:
        if self.news is not None and not self.deaf and not self.away:
            self.news(news)

    async def open(self, news: Callable[[News], object]) -> None:
        self.news = news
        self.store.ledgers.append(self)

    async def close(self) -> None:
        self.news = None
        self.store.ledgers.remove(self)

    def forsake(self) -> None:
        self.news = None

    async def _ask(self, operation: str, member: str, do: Callable[[ReferenceLedger], T]) -> T:
        await asyncio.sleep(self.delay)
        if self.away:
            raise LedgerError("the ledger is away")
        self.store.calls.append((now(), operation, member))
        answer = do(self.store.reference)
        self.store.publish()
        await asyncio.sleep(self.delay)
        if self.away:
            raise LedgerError("the answer was lost")
        return answer
