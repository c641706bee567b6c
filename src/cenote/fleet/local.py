"""The ledger of one host: a file that every process changes in turn, by the rules of the reference.

Each event loop has a seat, which is a lock on the file that ends with the process. A decision
first clears the seats of the dead. News is a line in the FIFO of a seat, which says no more than
where to look. Each seat also holds the FIFOs of the next two open for writing: the kernel says at
once when nobody reads them any more.

Nothing here waits in the event loop: a call that finds the mutex locked tries again later, and
gives up after `PATIENCE`, for the process that has it may be paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ..timer import Timer
from .board import LocalBoard
from .ledger import (
    FleetCircuit,
    Grant,
    LedgerConfig,
    LedgerError,
    MemberRow,
    News,
    Sync,
)
from .ledger_file import LedgerFile
from .local_state import LocalState, Seat
from .reference import ReferenceLedger

PATIENCE: Final = 2.0  # seconds for which the mutex is waited for
FAREWELL: Final = 0.5  # the same, when the ledger is closed
PAUSES: Final = (0.0, 0.001, 0.001, 0.002, 0.004)  # seconds between two tries; the last one for all
NEIGHBOURS: Final = 2  # so many seats are watched
LOOKS: Final = 9  # at the lock of one who seems to have died: the FIFO may end before it
_LOOK: Final = b"null\n"  # news: the circuit breaker, or who is there, has changed

T = TypeVar("T")


def new_ledger(config: LedgerConfig) -> LocalLedger:
    """Make the ledger of this host; nothing is opened yet."""
    return LocalLedger(config)


@dataclass(slots=True, eq=False)
class Place:
    """What a ledger has open. It closes itself when nobody knows it any more, such as after the end
    of a loop in which nothing was closed: a seat must not outlive its members."""

    file: LedgerFile
    loop: asyncio.AbstractEventLoop
    seat: int = -1  # none yet
    mailbox: int = -1
    watched: dict[int, tuple[Seat, int]] = field(default_factory=dict)  # with the descriptor
    state: LocalState | None = None  # as of this generation
    generation: int = 0
    closed: bool = False

    def close(self) -> None:
        """Close the descriptors, without a word to the loop."""
        if self.closed:
            return
        self.closed = True
        for descriptor in (self.mailbox, *(each for _, each in self.watched.values())):
            if descriptor >= 0:
                os.close(descriptor)
        self.file.close()

    def __del__(self) -> None:
        self.close()


class LocalLedger:
    """The connection of one event loop to the ledger of its host."""

    def __init__(
        self, config: LedgerConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make one; `open` opens it. `clock`: must be the same for all processes of the host."""
        self._config = config
        self._clock = clock
        self._news: Callable[[News], object] | None = None
        self._place: Place | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._epoch = -1  # the newest of which news was given
        _ledgers.add(self)

    @property
    def board(self) -> LocalBoard | None:
        """Where the members show who holds what; None before the first request."""
        place = self._place
        return None if place is None else LocalBoard(place.file.board)

    async def open(self, news: Callable[[News], object]) -> None:
        """See `Ledger`."""
        self._news = news
        try:
            await self._decide(lambda ledger, now: None)
        except BaseException:
            self._news = None
            self._let_go()
            raise

    async def close(self) -> None:
        """See `Ledger`."""
        try:
            if self._place is not None and self._place.seat >= 0:
                await self._decide(lambda ledger, now: None, patience=FAREWELL, leaves=True)
        except LedgerError:
            pass  # the lock ends all the same, and the others clear the seat
        finally:
            self._news = None
            clearing = self._clearing
            self._let_go()
            if clearing is not None:
                await asyncio.wait([clearing])

    def forsake(self) -> None:
        """See `Ledger`."""
        place, self._place, self._news, self._clearing = self._place, None, None, None
        if place is not None:
            place.close()  # the selector of the loop is still the parent's, too

    async def sync(self, request: Sync) -> Grant:
        """See `Ledger`."""
        return await self._decide(lambda ledger, now: ledger.sync(request, now), request.member)

    async def leave(self, member: str, seq: int) -> None:
        """See `Ledger`."""
        await self._decide(lambda ledger, now: ledger.leave(member, seq, now))

    async def rows(self) -> list[MemberRow]:
        """See `Ledger`."""
        return await self._decide(lambda ledger, now: ledger.members(now))

    async def settle(self, member: str, counted: int) -> None:
        """See `Ledger`. Nobody is ever silent here."""
        await self._decide(lambda ledger, now: ledger.settle(member, counted, now))

    async def vote(self, member: str, epoch: int, *, down: bool) -> FleetCircuit:
        """See `Ledger`."""
        return await self._decide(lambda ledger, now: ledger.vote(member, epoch, down, now))

    async def judge(self) -> FleetCircuit:
        """See `Ledger`."""
        return await self._decide(lambda ledger, now: ledger.judge(now))

    async def claim(self, member: str, epoch: int) -> FleetCircuit:
        """See `Ledger`."""
        return await self._decide(lambda ledger, now: ledger.claim(member, epoch, now))

    async def verdict(self, member: str, epoch: int, *, up: bool) -> FleetCircuit:
        """See `Ledger`."""
        return await self._decide(lambda ledger, now: ledger.verdict(member, epoch, up, now))

    # -- deciding ----------------------------------------------------------------------------------

    async def _decide(
        self,
        operation: Callable[[ReferenceLedger, float], T],
        member: str | None = None,
        *,
        patience: float = PATIENCE,
        leaves: bool = False,
    ) -> T:
        """Run an operation on the state in the file, alone. `member`: whose row it makes."""
        try:
            place = await self._lock(patience)
            try:
                state = self._load(place)
                now = self._clock()
                dead = [
                    at for at in state.seats if at != place.seat and not place.file.is_alive(at)
                ]
                state.clear(dead, now)
                self._prepare(place, state, now, leaves=leaves)
                result = operation(state.ledger, now)
                if member is not None:
                    state.homes[member] = place.seat
                if leaves:
                    state.clear([place.seat], now)
                    place.file.remove_mailbox(place.seat)
                for at in dead:
                    place.file.remove_mailbox(at)
                news = state.ledger.take_news()
                self._save(place, state)
            except BaseException:
                place.state = None
                raise
            finally:
                place.file.unlock()
            self._send(place, state, news)
            if not leaves:
                self._watch(place, state)
        except OSError as error:
            raise LedgerError(f"{self._where()} cannot be used: {error}") from error
        return result

    def _prepare(self, place: Place, state: LocalState, now: float, *, leaves: bool) -> None:
        """Called before every operation, for ledgers that are made of this one."""

    async def _lock(self, patience: float) -> Place:
        """Lock the mutex of the file, which is opened, or opened again, if need be."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        tries = 0
        while True:
            if self._news is None:
                raise LedgerError(f"{self._where()} is closed")
            if self._place is not None and self._place.file.is_replaced():
                self._let_go()
            if self._place is None:
                file = LedgerFile(self._config.path, self._config.name)
                self._place = Place(file, loop)
            if self._place.file.try_lock():
                return self._place
            if loop.time() >= end:
                raise LedgerError(
                    f"{self._where()} was locked for {patience:g} s: a process that was deciding "
                    f"is paused, or this host is overloaded (`lsof` of the file names them)"
                )
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _load(self, place: Place) -> LocalState:
        """The state, with a seat for us."""
        beat = self._config.beat
        if place.seat < 0:
            place.file.prepare()
        state = place.state
        if state is None or place.file.generation() != place.generation:
            place.generation, text = place.file.read()
            state = LocalState.decode(text, beat) if text else LocalState.new(beat)
        if place.seat < 0:
            if not place.file.has_others():  # of another time, perhaps before this host was started
                state = LocalState.new(beat, state.ledger.ballot.epoch)
            self._sit(place, state)
            self._epoch = max(self._epoch, state.ledger.ballot.epoch)
        if place.seat not in state.seats:  # new, or the last attempt to write this has failed
            state.seat(place.seat, os.getpid())
            for at in state.before(place.seat, NEIGHBOURS):
                self._post(place, at, _LOOK)
        return state

    def _sit(self, place: Place, state: LocalState) -> None:
        seat = 0
        while not place.file.try_seat(seat):
            seat += 1
        place.mailbox = place.file.make_mailbox(seat)
        place.seat = seat
        state.clear([seat], self._clock())
        place.loop.add_reader(place.mailbox, self._read, place)

    def _save(self, place: Place, state: LocalState) -> None:
        for member in state.homes.keys() - state.ledger.rows.keys():
            del state.homes[member]
        place.file.write(state.encode(), place.generation + 1)
        place.generation += 1
        place.state = state

    # -- news --------------------------------------------------------------------------------------

    def _send(self, place: Place, state: LocalState, news: Iterable[News]) -> None:
        for each in news:
            if each.member is None:
                self._give(place, each)
                for at in state.seats:
                    if at != place.seat:
                        self._post(place, at, _LOOK)
            elif (home := state.homes.get(each.member)) == place.seat:
                self._give(place, each)
            elif home is not None:  # else it has gone meanwhile
                self._post(place, home, json.dumps(each.member).encode() + b"\n")

    def _give(self, place: Place, news: News) -> None:
        """To our own members, and not in the middle of a decision."""
        if news.circuit is not None:
            self._epoch = max(self._epoch, news.circuit.epoch)
        place.loop.call_soon(self._announce, place, news)

    def _announce(self, place: Place, news: News) -> None:
        if self._place is place and self._news is not None:
            self._news(news)

    def _post(self, place: Place, seat: int, line: bytes) -> None:
        """Write to the FIFO of another seat. One that is full, or that nobody reads, gets nothing:
        the beat brings it."""
        descriptor = place.file.open_mailbox(seat)
        if descriptor is None:
            return
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(descriptor, line)
        os.close(descriptor)

    def _read(self, place: Place) -> None:
        """Something is in our own FIFO."""
        with contextlib.suppress(BlockingIOError):
            lines = set(os.read(place.mailbox, 1 << 16).splitlines(keepends=True))
            for line in lines - {_LOOK}:
                if line.endswith(b"\n"):  # else the FIFO was full of old news
                    self._announce(place, News(json.loads(line)))
            if _LOOK in lines:
                self._look(place)

    def _look(self, place: Place) -> None:
        """See what has changed, without the mutex."""
        if self._place is not place:
            return
        state = self._peek(place)
        if state is None:
            return
        circuit = state.ledger.ballot.seen(self._clock())
        if circuit.epoch > self._epoch:
            self._epoch = circuit.epoch
            self._announce(place, News(circuit=circuit))
        self._watch(place, state)

    def _peek(self, place: Place) -> LocalState | None:
        if place.state is not None and place.file.generation() == place.generation:
            return place.state
        place.state = None
        place.generation, text = place.file.read()
        if text:
            place.state = LocalState.decode(text, self._config.beat)
        return place.state

    # -- the next seats ----------------------------------------------------------------------------

    def _watch(self, place: Place, state: LocalState) -> None:
        """Watch the seats that follow ours, and no others."""
        wanted = {at: state.seats[at] for at in state.after(place.seat, NEIGHBOURS)}
        for at, (seat, _) in [*place.watched.items()]:
            if wanted.get(at) != seat:
                self._unwatch(place, at)
        for at, seat in wanted.items():
            if at in place.watched:
                continue
            descriptor = place.file.open_mailbox(at)
            if descriptor is None:
                self._suspect(place, at, seat)
                continue
            place.watched[at] = seat, descriptor
            place.loop.add_reader(descriptor, self._ended, place, at)

    def _unwatch(self, place: Place, at: int) -> None:
        _, descriptor = place.watched.pop(at)
        place.loop.remove_reader(descriptor)
        os.close(descriptor)

    def _ended(self, place: Place, at: int) -> None:
        """Nobody reads the FIFO of this seat any more."""
        seat, _ = place.watched[at]
        self._unwatch(place, at)
        self._suspect(place, at, seat)

    def _suspect(self, place: Place, at: int, seat: Seat, looks: int = 0) -> None:
        """Clear a seat as soon as its lock is free."""
        if self._place is not place:
            return
        state = self._peek(place)
        if state is None or state.seats.get(at) != seat:
            if state is not None and not looks:
                self._watch(place, state)
        elif not place.file.is_alive(at):
            if self._clearing is None or self._clearing.done():
                self._clearing = place.loop.create_task(self._clear(), name="cenote fleet: clear")
        elif looks < LOOKS:
            delay = 0.001 * 2**looks
            Timer().start(place.loop, delay, self._suspect, place, at, seat, looks + 1)

    async def _clear(self) -> None:
        try:
            await self._decide(lambda ledger, now: None)
        except LedgerError:
            pass  # the next beat of anybody does it

    # -- the end -----------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Close what is open; the lock of the seat ends with it."""
        place, self._place = self._place, None
        clearing, self._clearing = self._clearing, None
        if clearing is not None and clearing is not asyncio.current_task():
            clearing.cancel()
        if place is None:
            return
        for at in [*place.watched]:
            self._unwatch(place, at)
        if place.mailbox >= 0:
            place.loop.remove_reader(place.mailbox)
        place.close()

    def _where(self) -> str:
        path = self._place.file.path if self._place is not None else self._config.path
        return f"the ledger of the fleet {self._config.name!r} in {path or 'its file'}"


_ledgers: weakref.WeakSet[LocalLedger] = weakref.WeakSet()


def _in_child() -> None:
    """A child that kept the locks would keep alive what the parent had."""
    for ledger in [*_ledgers]:
        ledger.forsake()


os.register_at_fork(after_in_child=_in_child)
