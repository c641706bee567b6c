"""The ledger in PostgreSQL, by advisory locks: the ledger of each host, with a budget of its own.

The members of a host use its file, as without a server. One of them is the agent: it has the one
session of the host, and in it a lock for each resource that the host may have. There is a row in
the file for the other hosts. Its `budget` is what this host may have, so that the file never lends
more; and what the agent wants to give back is what this row needs, so that the members make room
as they do for each other.

The row lives where the agent does. When the agent dies, the process that decides next makes it anew
with what its members have as the budget, and is the agent from then on. The locks of the dead one
are free by then; other hosts leave them alone for `ORPHANED` seconds, so that they can be taken
again.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from logging import ERROR, WARNING
from typing import Any, Final, TypeVar

from ..log import log
from .host_session import HostLook, HostSession, driver_for
from .hosts import HostPlan, HostRow, plan
from .ledger import (
    Grant,
    LedgerConfig,
    LedgerConfigError,
    LedgerError,
    MemberRow,
    News,
    Sync,
)
from .local import LocalLedger, Place
from .local_state import LocalState
from .reference import LedgerRow, ReferenceLedger
from .shares import equal_parts

OTHERS: Final = "other hosts"  # the member that stands for them in the file of a host
ORPHANED: Final = 1.0  # seconds for which the locks of a dead session are left to its host
SOON: Final = 0.2  # seconds until a host may be woken again
LOOKING: Final = 0.02  # seconds between two looks whether the first answer has come
PATIENT_BEATS: Final = 2.0  # beats without a session, after which members get an error
NEVER: Final = -1.0

T = TypeVar("T")


def new_ledger(config: LedgerConfig) -> PostgresLedger:
    """Make the ledger for a URL of PostgreSQL; nothing is connected yet."""
    return PostgresLedger(config)


@dataclass(slots=True)
class HostNotes:
    """What the agent leaves in the file for the other processes of its host.

    Attributes:
        share: What the host may have without the server: its equal part.
        elsewhere: Of each other host: name, processes, held, need, since.
        error: Why it will not work by itself; empty if nothing is known.
        lost: Since when there is no session, on the clock of the host; 0 as long as there is one.
    """

    share: int = 0
    elsewhere: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    error: str = ""
    lost: float = 0.0

    def encode(self) -> str:
        """This as text."""
        return json.dumps(
            [self.share, self.elsewhere, self.error, self.lost], separators=(",", ":")
        )

    @classmethod
    def decode(cls, text: str) -> HostNotes:
        """What `encode` has made of it."""
        share, elsewhere, error, lost = json.loads(text)
        return cls(share, [tuple(each) for each in elsewhere], error, lost)


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """What the members of a host need together; `held`: what they may have."""

    held: int
    budget: int = 0
    need: int = 0
    floor: int = 0
    ceiling: int = 0
    processes: int = 0
    since: int = 0
    host: str = ""
    busy: int = 0


class PostgresLedger(LocalLedger):
    """The connection of one event loop to a ledger in PostgreSQL, by the file of its host."""

    def __init__(self, config: LedgerConfig, **options: Any) -> None:
        """Make one. Raises `ValueError` for a wrong URL, `ImportError` without a driver."""
        self._driver = driver_for(config.url)
        target = self._driver.config.target
        place = ",".join(f"{name}:{port or 5432}" for name, port in target.hosts if name)
        if not place:  # a socket
            place = f"{target.options.get('host', '')}:{target.options.get('port', 5432)}"
        super().__init__(
            replace(config, name=f"{config.name} at {place}/{target.database}"), **options
        )
        self._fleet = config.name
        self._agent: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._woken = False  # from elsewhere
        self._session: HostSession | None = None
        self.said: str = ""  # why there is no session, as it was logged

    async def open(self, news: Callable[[News], object]) -> None:
        """See `Ledger`. Returns when the agent of this host has had an answer."""
        await super().open(news)
        try:
            async with asyncio.timeout(0.8 * self._config.beat):
                while (others := await self._others()).last.since < 0:
                    if error := HostNotes.decode(others.last.pool).error:
                        raise LedgerConfigError(error)
                    await asyncio.sleep(LOOKING)
        except TimeoutError as error:
            said = self.said
            await self.close()
            if said:
                raise LedgerError(said) from None
            raise LedgerError(f"{self._where()}: no answer") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """See `Ledger`."""
        agent, self._agent = self._agent, None
        try:
            await super().close()
        finally:
            if agent is not None:
                agent.cancel()
                await asyncio.wait([agent])

    def forsake(self) -> None:
        """See `Ledger`."""
        super().forsake()
        if self._agent is not None:
            _kept.append((self._agent, self._session))
        self._agent = self._session = None

    async def sync(self, request: Sync) -> Grant:
        """See `Ledger`."""

        def ask(ledger: ReferenceLedger, now: float) -> tuple[LedgerRow, Grant]:
            grant = ledger.sync(request, now)
            return ledger.rows[OTHERS], self._grant(ledger, request.member, grant)

        others, grant = await self._decide(ask, request.member)
        self._check(others)
        least = max(request.need, min(request.floor, request.ceiling))
        if min(grant.held, grant.target) < least:
            self._poke()
        return grant

    async def rows(self) -> list[MemberRow]:
        """See `Ledger`. Of another host there is one row for all of its processes."""

        def ask(ledger: ReferenceLedger, now: float) -> tuple[LedgerRow, list[MemberRow]]:
            return ledger.rows[OTHERS], ledger.members(now)

        others, rows = await self._decide(ask)
        elsewhere = [
            MemberRow(host, host, 0, f"{count} processes", held, need, float(since), None)
            for host, count, held, need, since in HostNotes.decode(others.last.pool).elsewhere
            if count
        ]
        here = [each for each in rows if each.member != OTHERS]
        return sorted([*here, *elsewhere], key=lambda each: each.since)

    # -- the row of the other hosts ----------------------------------------------------------------

    def _prepare(self, place: Place, state: LocalState, now: float, *, leaves: bool) -> None:
        ledger = state.ledger
        if OTHERS not in ledger.rows and not leaves:
            used = ledger.used
            row = Sync(
                OTHERS, 1, 0, 0, 0, 0, used, "", 0, HostNotes(used, lost=now).encode(),
                since=now if used else NEVER,
            )  # fmt: skip
            ledger.rows[OTHERS] = LedgerRow(row, 0, 0, math.inf, 0)
            state.homes[OTHERS] = place.seat
        elif leaves and state.homes.get(OTHERS) == place.seat:
            for at in state.before(place.seat, 1):  # it sees at once that we have left
                state.homes[OTHERS] = at

    def _check(self, others: LedgerRow) -> None:
        """Raise `LedgerError` if this host has had no session for too long. An agent that is only
        paused has one, and what it has locked can be shared on as before."""
        notes = HostNotes.decode(others.last.pool)
        if notes.error:
            raise LedgerConfigError(notes.error)
        silence = self._clock() - notes.lost if notes.lost else 0.0
        said = self.said or f"{self._where()}: no session at the server for {silence:.0f} s"
        if others.last.since < 0:
            raise LedgerError(said)
        if silence > PATIENT_BEATS * self._config.beat:
            raise LedgerError(said) from TimeoutError()  # who joins now is not the only one here

    def _grant(self, ledger: ReferenceLedger, member: str, grant: Grant) -> Grant:
        """A grant of the file, as that of the whole fleet."""
        others = ledger.rows[OTHERS]
        notes = HostNotes.decode(others.last.pool)
        rows = sorted(
            (each for each in ledger.rows.values() if each is not others),
            key=lambda each: each.line,
        )
        shares = equal_parts([each.demand for each in rows], notes.share)
        share = {each.last.member: part for each, part in zip(rows, shares, strict=True)}
        return replace(
            grant,
            share=share[member],
            lasts=self._config.ttl,
            used=grant.used - others.charge + sum(held for _, _, held, _, _ in notes.elsewhere),
            budget=min(each.last.budget for each in rows),
            processes=grant.processes - 1 + sum(count for _, count, *_ in notes.elsewhere),
        )

    async def _others(self) -> LedgerRow:
        return await self._decide(lambda ledger, now: ledger.rows[OTHERS])

    # -- who is the agent --------------------------------------------------------------------------

    def _watch(self, place: Place, state: LocalState) -> None:
        super()._watch(place, state)
        is_mine = state.homes.get(OTHERS) == place.seat
        if is_mine and self._news is not None and (self._agent is None or self._agent.done()):
            self._agent = place.loop.create_task(
                self._serve(), name=f"cenote fleet: session of {self._where()}", context=Context()
            )

    def _look(self, place: Place) -> None:
        super()._look(place)
        self._stirred.set()  # perhaps a member has found that there is not enough

    def _announce(self, place: Place, news: News) -> None:
        if news.member == OTHERS:
            self._stirred.set()
        else:
            super()._announce(place, news)

    def _poke(self) -> None:
        """A member is short: let the agent look."""
        place = self._place
        if place is None or place.state is None:
            return
        home = place.state.homes.get(OTHERS)
        if home == place.seat:
            self._stirred.set()
        elif home is not None:
            self._post(place, home, b"null\n")

    def _wake(self) -> None:
        """Another host has something to say, or the session is lost."""
        self._woken = True
        self._stirred.set()

    # -- the agent ---------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Have the session of this host, and make another one when it has ended: at once, since
        after `ORPHANED` seconds others take what it had locked."""
        beat, loop = self._config.beat, asyncio.get_running_loop()
        while True:
            began = math.inf  # when the session was made
            rounds = AgentRounds(self)
            try:
                session = self._session = await HostSession.connect(
                    self._driver, self._fleet, max(1.0, beat), self._wake
                )
                began = loop.time()
                try:
                    while True:
                        self._stirred.clear()
                        woken, self._woken = self._woken, False
                        if await rounds.run(session, woken=woken):
                            continue
                        with suppress(TimeoutError):
                            async with asyncio.timeout(rounds.pause()):
                                await self._stirred.wait()
                finally:
                    self._session = None
                    session.end()
            except LedgerConfigError as error:
                self._say(error)
                await self._note_loss(str(error))
            except LedgerError as error:
                self._say(error)
                await self._note_loss()
            except Exception as error:
                await self._note_loss()
                log(ERROR, "fleet %r: the session of this host failed, and is made again",
                    self._fleet, error=error, fields={"fleet": self._fleet})  # fmt: skip
            if loop.time() < began + beat:  # it cannot be made, or does not work for long
                await asyncio.sleep(random.uniform(0.5, 1.0) * beat / 4)

    def _say(self, error: LedgerError) -> None:
        if self._news is None:  # it was closed meanwhile
            return
        said, self.said = self.said, str(error)
        if said != self.said:
            log(WARNING, "fleet %r: %s", self._fleet, error, fields={"fleet": self._fleet})

    async def _note_loss(self, error: str = "") -> None:
        """Write into the file that there is no session now, and perhaps why."""

        def note(ledger: ReferenceLedger, now: float) -> None:
            row = ledger.rows[OTHERS]
            notes = HostNotes.decode(row.last.pool)
            notes = replace(notes, lost=notes.lost or now, error=error)
            row.last = replace(row.last, pool=notes.encode())

        with suppress(LedgerError):
            await self._decide(note)

    def answered(self) -> None:
        """The server has answered: what was logged before is over."""
        self.said = ""

    @property
    def beat(self) -> float:
        """Seconds between two rounds of the agent when nothing happens."""
        return self._config.beat

    async def decide(self, operation: Callable[[ReferenceLedger, float], T]) -> T:
        """Run an operation on the file."""
        return await self._decide(operation)


class AgentRounds:
    """What the agent does, again and again, in one session."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._seen: set[int] = set()  # the hosts that had something, as of the last look
        self._woken_at: dict[int, float] = {}  # hosts that were woken, and when
        self._timeout = max(1.0, ledger.beat)
        # Until then it takes the floor at most: neither does a new session know what has ended.
        self._grows_at = self._loop.time() + ORPHANED
        self._needs: HostNeeds | None = None  # as of the last round
        self._asked_at = -math.inf

    async def run(self, session: HostSession, *, woken: bool) -> bool:
        """Bring the file and the locks together. Returns whether there is more to do at once.
        `woken`: by another host; without that nothing is asked again too soon for the same."""
        limit = self._timeout
        needs = await self._ledger.decide(_collect)
        now = self._loop.time()
        if not woken and needs == self._needs and now < self._asked_at + SOON:
            return False
        self._needs, self._asked_at = needs, now
        await session.give(sorted(session.tokens)[needs.held :], limit)
        me = HostRow(
            session.key, needs.host, needs.budget, needs.need, needs.floor, needs.ceiling,
            needs.held, needs.processes, needs.since, busy=needs.busy,
        )  # fmt: skip
        look = await session.look(me, limit)
        self._notice_ends(look)
        me = replace(me, tokens=frozenset(session.tokens))
        if needs.processes:
            found = plan(me, look.others, self._ledger.beat, look.now)
            await session.take(self._wanted(me, look, found), limit)
            if len(session.tokens) > len(me.tokens):
                me = replace(me, held=max(me.held, len(session.tokens)))
                look = await session.look(me, limit)  # it shows what we have now
            await session.tell(self._to_tell(found), limit)
        else:
            found = None
        await session.listen_on(limit)
        self._ledger.answered()
        settle = _Settling(found, len(session.tokens), look)
        return await self._ledger.decide(settle)

    def pause(self) -> float:
        """Seconds until the next round, if nothing happens."""
        now = self._loop.time()
        beat = self._ledger.beat * random.uniform(0.9, 1.0)
        return min(beat, self._grows_at - now + 0.01) if now < self._grows_at else beat

    def _notice_ends(self, look: HostLook) -> None:
        """A session that has ended may have had more than was seen of it: what is free may belong
        to its host, which takes it again in another session."""
        seen, self._seen = self._seen, {each.key for each in look.others if each.charge}
        if seen - {each.key for each in look.others}:
            self._grows_at = self._loop.time() + ORPHANED

    def _wanted(self, me: HostRow, look: HostLook, found: HostPlan) -> list[int]:
        """The tokens to lock: what its members have already, and what it may have beyond that."""
        taken = me.tokens.union(*(each.tokens for each in look.others))
        highest = max(found.grant.budget, me.held, *(each.budget for each in look.others), 0)
        free = [token for token in range(1, highest + 1) if token not in taken]
        most = found.grant.held
        if self._loop.time() < self._grows_at:
            most = min(most, me.floor)
        return free[: max(0, max(most, me.held) - len(me.tokens))]

    def _to_tell(self, found: HostPlan) -> list[int]:
        now = self._loop.time()
        keys = [each for each in found.told if now >= self._woken_at.get(each, -math.inf) + SOON]
        self._woken_at = {key: at for key, at in self._woken_at.items() if now < at + SOON}
        self._woken_at.update(dict.fromkeys(keys, now))
        return keys


def _collect(ledger: ReferenceLedger, now: float) -> HostNeeds:
    """Take over what was given back, and add up what the members need."""
    row = ledger.rows[OTHERS]
    given, row.charge = row.charge, 0
    members = [each for each in ledger.rows.values() if each is not row]
    left = row.last.budget - given if members else 0
    row.last = replace(
        row.last, keep=0, budget=left,
        need=max(0, row.last.need - given), floor=max(0, row.last.floor - given),
        ceiling=max(0, row.last.ceiling - given),
    )  # fmt: skip
    if not members:
        return HostNeeds(0)
    return HostNeeds(
        left,
        min(each.last.budget for each in members),
        sum(each.demand.need for each in members),
        sum(each.demand.floor for each in members),
        sum(each.demand.ceiling for each in members),
        len({each.last.process for each in members}),
        int(min(each.last.since for each in members)),
        members[0].last.host,
        sum(each.demand.need > each.demand.floor for each in members),
    )


@dataclass(frozen=True, slots=True)
class _Settling:
    """Writes into the file what a round has found."""

    found: HostPlan | None
    tokens: int
    look: HostLook

    def __call__(self, ledger: ReferenceLedger, now: float) -> bool:
        row = ledger.rows[OTHERS]
        held = row.last.budget
        lost = max(0, held - self.tokens)  # they have this without a lock: it has to go
        held = max(held, self.tokens)
        wanted = max(lost, 0 if self.found is None else self.found.surplus)
        lent = 0
        if self.found is not None and self.found.grant.lend:
            lent = max(0, held - max(self.found.grant.target, wanted))
        notes = HostNotes(
            0 if self.found is None else self.found.grant.share,
            [
                (each.host, each.processes, each.charge, each.need, each.since)
                for each in self.look.others
            ],
        )
        request = replace(
            row.last, seq=row.last.seq + 1, keep=row.charge, budget=held, floor=wanted,
            need=wanted, ceiling=max(wanted, lent), pool=notes.encode(), since=now,
        )  # fmt: skip
        ledger.sync(request, now)
        return row.charge > 0


_kept: list[object] = []  # in the child of a fork: what is the parent's, never finalized
