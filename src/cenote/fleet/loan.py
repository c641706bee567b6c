"""A pool in a fleet: its requests to the ledger, its timers, and what it is allowed in between.

`lease.py` decides, this acts: one request at a time, every beat or when something happens. An
acquire waits for none of it. The pool is known only weakly.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import weakref
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from logging import DEBUG, ERROR, INFO, WARNING
from math import isinf
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from ..events import EventKind, PoolEvent
from ..log import log
from ..mask import explained
from ..observe import unsubscribe
from ..pool import Pool
from ..timer import Timer
from .board import Notice
from .lease import LeaseState, MemberLease
from .ledger import FleetCircuit, Ledger, LedgerError, Sync

if TYPE_CHECKING:
    from .loop_fleet import FleetConfig, LoopFleet

MEMORY: Final = 0.25  # seconds: what was needed is remembered for once to twice as long
FAREWELL: Final = 0.5  # seconds for which leaving waits for the request under way, and for its own
LINGERING: Final = 10.0  # seconds for which what a destructor has abandoned still counts
JITTER: Final = 0.1  # a beat comes up to this part earlier
LATE: Final = 0.02  # of a beat that a timeout may come late, unless the process was paused
START: Final = 2.0  # seconds for the first answer, unless half of the ttl is less
RETRY: Final = 4  # this part of a beat after a request that failed comes the next
EVENTS: Final = (EventKind.WAITING, EventKind.DESTROYED, EventKind.CREATE_FAILED, EventKind.CLOSED)


class CircuitMember(Protocol):
    """The part that a member takes in the circuit breaker of its fleet: see `breaker.py`."""

    @property
    def state(self) -> str:
        """What is reported to the ledger of the state of its circuit breaker."""
        ...

    @property
    def epoch(self) -> int:
        """The newest epoch that it knows."""
        ...

    def heard(self, circuit: FleetCircuit) -> None:
        """What the ledger has said of the circuit breaker."""

    def lost(self) -> None:
        """The ledger cannot be reached."""

    def end(self) -> None:
        """The member is no more."""

    def forsake(self) -> None:
        """The same in the child of a fork, where everything else is the parent's."""


def mark_of(member: str) -> str:
    """Return the mark of what was made for a member."""
    return f"cenote:{member}"


class MemberLoan:
    """What a fleet has lent to one pool: the `Loan` of the pool, and a member of the fleet."""

    def __init__(self, fleet: LoopFleet, pool: Pool[Any]) -> None:
        config = fleet.config
        self.member: str = uuid4().hex[:16]
        self.lease: MemberLease = MemberLease(
            budget=config.budget,
            ceiling=min(pool.max_size, config.budget),
            ttl=config.ttl,
            strict=config.strict,
        )
        self._fleet = fleet
        self._ledger: Ledger = fleet.ledger
        self._loop = fleet.loop
        self._pool = weakref.ref(pool, self._dropped)
        self._name = pool.name or "pool"
        self._floor = max(1, pool.min_size)
        self._since = time.time()
        self._beat_every = config.ttl / 5
        self._longest = config.ttl / 2  # seconds for an answer, at most,
        # and now: at the start of a program everything takes longer.
        self._patience = max(self._beat_every, min(START, self._longest))
        self._joins_until = fleet.loop.time() + self._patience  # if the ledger is only slow
        self._beat = Timer()  # the next request
        self._begun: asyncio.Future[None] = fleet.loop.create_future()
        self._waits = Timer()  # the end of the wait for the first resource
        self._soon = Timer()  # likewise, in the next turn of the loop
        self._alarm = Timer()  # the end of the lease
        self._look = Timer()  # at what is needed
        self._notice = Notice(self.member)  # who holds what, for others to see
        self._peaks = 0, 0  # what was needed in the last two spans of MEMORY
        self._lingering: list[float] = []  # until when what was abandoned counts
        self._task: asyncio.Task[None] | None = None  # the request under way
        self._audit: asyncio.Task[None] | None = None  # the audit under way
        self._count_marked: Callable[[str], Awaitable[int]] | None = None
        self._making = 0  # how many are made at once at most: nobody can count them
        self._again = False  # after that one follows another
        self._paused = False  # the last one was too late because of this process
        self._warned = False  # that the ledger cannot be reached
        self._over = False
        self._ceiling = self.lease.ceiling  # as the pool knows it
        self._strategy: Any = None  # with which it takes part in the circuit breaker
        self._circuit: CircuitMember | None = None
        pool.subscribe(self._happened, kinds=EVENTS)
        pool.resize(max_size=0, ceiling=self.lease.ceiling)
        self._join_circuit(pool)
        self._sync_soon()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.member} of pool {self._name!r}, {self.lease.state}>"

    # -- for the pool ------------------------------------------------------------------------------

    def may_open(self) -> bool:
        """See `Loan`."""
        return self.lease.may_open(self._loop.time())

    def begun(self) -> asyncio.Future[None]:
        """See `Loan`."""
        return self._begun

    def sentence(self) -> str:
        """See `Loan`."""
        lease, grant = self.lease, self.lease.grant
        fleet = f"the fleet {self._fleet.config.name!r}"
        if lease.state is LeaseState.JOINING:
            return f"{fleet} has not answered yet"
        if lease.state is LeaseState.ALONE:
            part = "as much as one alone" if grant is None else "its equal part at most"
            return f"{fleet} cannot be reached; this process has {lease.size}, {part}"
        if grant is None or lease.state is LeaseState.ENDED:
            return f"{fleet} has not answered for too long; nothing new is made until it does"
        processes = "1 process" if grant.processes == 1 else f"{grant.processes} processes"
        rest = "its part" if grant.held >= grant.target else f"and will have {grant.target}"
        return (
            f"{fleet} uses {grant.used} of {grant.budget} in {processes}; "
            f"this one has {grant.held}, {rest}"
        )

    def resized(self, least: int, most: int) -> None:
        """See `Loan`."""
        self._floor = max(1, least)
        self.lease.limit(min(most, self._fleet.config.budget))
        self._apply()
        self._again = self._task is not None  # the request under way has the old sizes
        self._sync_soon()

    @property
    def mark(self) -> str | None:
        """See `Loan`."""
        return mark_of(self.member) if self._count_marked is not None else None

    def audit_by(self, count: Callable[[str], Awaitable[int]], making: int | None) -> None:
        """See `Loan`."""
        if self._fleet.config.audits:
            self._count_marked = count
            self._making = self._fleet.config.budget if making is None else making

    def closed(self) -> asyncio.Future[None] | None:
        """See `Loan`."""
        if not self._end():
            return None
        if self._is_here():
            return self._leave_soon()
        self._leave_from_elsewhere()
        return None

    # -- for the fleet -----------------------------------------------------------------------------

    @property
    def config(self) -> FleetConfig:
        """What the fleet was made with."""
        return self._fleet.config

    def woken(self) -> None:
        """The ledger has news for this member."""
        self._again = self._task is not None  # what it answers may be older
        self._sync_soon()

    def heard(self, circuit: FleetCircuit) -> None:
        """The ledger has said something of the circuit breaker."""
        if self._circuit is not None and not self._over:
            self._circuit.heard(circuit)

    def forsake(self) -> None:
        """In the child of a fork: this is the parent's."""
        self._over = True
        if self._circuit is not None:
            self._circuit.forsake()

    # -- what happens in the pool ------------------------------------------------------------------

    def _happened(self, event: PoolEvent) -> None:
        if event.abandoned:
            self._lingering.append(self._loop.time() + LINGERING)
            self._apply()
        if event.kind is EventKind.CLOSED:
            self.lease.limit(0)  # what comes back is given back
        if self._task is None and not self._soon.is_set and self._has_to_tell():
            self._sync_soon()

    def _has_to_tell(self) -> bool:
        pool = self._pool()
        return pool is not None and self.lease.must_tell(
            self._occupied(pool), pool.active_count + pool.waiting_count
        )

    def _occupied(self, pool: Pool[Any]) -> int:
        """What it has, with what may still be there although its destructor was abandoned."""
        return pool.occupied + self._count_lingering()

    def _count_lingering(self) -> int:
        if self._lingering:
            now = self._loop.time()
            self._lingering = [each for each in self._lingering if each > now]
        return len(self._lingering)

    def _need(self, pool: Pool[Any]) -> int:
        """The most that was needed lately; remembered, for taking the peak forgets it."""
        self._peaks = max(self._peaks[0], pool.take_peak()), self._peaks[1]
        return max(self._peaks)

    def _look_back(self) -> None:
        """A span of MEMORY is over: is less needed now than the ledger knows?"""
        pool = self._pool()
        if pool is None or self._over:
            return
        self._peaks = pool.take_peak(), self._peaks[0]
        lease = self.lease
        if self._has_to_tell() or lease.must_tell_drop(max(self._peaks)):
            self._sync_soon()
        self._watch_need(pool)

    def _watch_need(self, pool: Pool[Any]) -> None:
        if self._look.is_set:
            return
        if self.lease.told > self._floor or max(self._peaks) or pool.closed:
            self._look.start(self._loop, MEMORY, self._look_back)

    # -- what the lease says -----------------------------------------------------------------------

    def _apply(self) -> None:
        """Let the pool have what the lease says, and no more."""
        pool = self._pool()
        if pool is None or pool.closed or self._over:
            return
        size = max(0, self.lease.size - self._count_lingering())
        if pool.max_size != size or self._ceiling != self.lease.ceiling:
            self._ceiling = self.lease.ceiling
            pool.resize(max_size=size, ceiling=self._ceiling)
        if not self._begun.done() and self.lease.state is not LeaseState.JOINING:
            self._begin_or_wait()

    def _begin_or_wait(self) -> None:
        """The first answer has come, or is not waited for any more. If it is nothing, others give
        something back soon, unless all of it is in use."""
        lease = self.lease
        if lease.size or not lease.ceiling or lease.state is not LeaseState.LEASED:
            self._ready()
        elif not self._waits.is_set:
            self._waits.start(self._loop, self._beat_every, self._ready)

    def _ready(self) -> None:
        self._waits.stop()
        if not self._begun.done():
            self._begun.set_result(None)

    def _set_alarm(self) -> None:
        when = self.lease.alarm
        if isinf(when):
            self._alarm.stop()
        elif not self._alarm.is_set or self._alarm.when != when:
            self._alarm.start_at(self._loop, when, self._ring)

    def _ring(self) -> None:
        pool = self._pool()
        if pool is None or self._over:
            return
        before = self.lease.state
        self.lease.pass_time(self._alarm.now(self._loop.time()), self._occupied(pool))
        self._changed(before)
        self._apply()
        self._set_alarm()
        self._sync_soon()

    def _changed(self, before: LeaseState) -> None:
        """Say what has become of the lease."""
        state, size = self.lease.state, self.lease.size
        if state is before:
            return
        if state is LeaseState.ALONE:
            if before is not LeaseState.JOINING:
                self._log(WARNING, "without the fleet, it has at most its equal part, %d", size)
            if self._circuit is not None:
                self._circuit.lost()
        elif state is LeaseState.ENDED:
            self._log(INFO, "the lease has ended; nothing new is made until the fleet answers")
        elif before is not LeaseState.JOINING:
            self._log(INFO, "the fleet has answered again; this process has %d", size)

    def _log(self, level: int, text: str, *arguments: object) -> None:
        name = self._fleet.config.name
        fields = {"fleet": name, "pool": self._name}
        text = f"fleet %r, pool %r: {text}"
        log(level, text, name, self._name, *arguments, fields=fields, loop=self._loop)

    # -- the circuit breaker -----------------------------------------------------------------------

    def _join_circuit(self, pool: Pool[Any]) -> None:
        """Take part in the circuit breaker of the fleet, if the strategy of the pool does."""
        strategy = pool.strategy
        if strategy is self._strategy:
            return
        if self._circuit is not None:
            self._circuit.end()
        join: Callable[..., CircuitMember] | None = getattr(strategy, "join", None)
        self._strategy = strategy
        self._circuit = None if join is None else join(pool, self.member, self._ledger)

    # -- requests ----------------------------------------------------------------------------------

    def _sync_soon(self) -> None:
        if not self._over and not self._soon.is_set and self._task is None:
            self._soon.start_soon(self._loop, self._begin)

    def _begin(self) -> None:
        """Start a request, unless one is under way: what it does not say the next one will."""
        if self._over or self._task is not None:
            return
        self._soon.stop()
        self._beat.stop()
        self._again = False
        name = f"cenote sync of fleet {self._fleet.config.name!r}"
        self._task = self._loop.create_task(self._sync(), name=name, context=Context())
        ended = partial(self._synced, self._loop.time())
        self._task.add_done_callback(ended, context=Context())

    async def _sync(self) -> None:
        """One request, and what follows from its answer."""
        began = self._loop.time()
        try:
            async with asyncio.timeout(self._patience):
                await self._fleet.ready()
                await self._ask()
            took = self._loop.time() - began
            self._patience = max(self._beat_every, min(2 * took, self._longest))
        except LedgerError as error:
            slow = isinstance(error.__cause__, TimeoutError)
            if slow and self._may_join_later():
                return
            self._failed(began, error, slow=slow)
        except TimeoutError:
            if self._was_paused(began):
                self._again = True
                return
            late = LedgerError(f"no answer within {self._patience:g} s")
            self._patience = min(2 * self._patience, self._longest)  # perhaps it is only slow
            self._failed(began, late, slow=True)
        except Exception as error:
            self._log(ERROR, "a request failed unexpectedly: %s", explained(error))
            self._failed(began, error)

    def _may_join_later(self) -> bool:
        """Whether it is asked once more at the start, for a ledger waits less long than this."""
        return self.lease.state is LeaseState.JOINING and self._loop.time() < self._joins_until

    def _was_paused(self, began: float) -> bool:
        """Whether it is this process that took too long, and not the ledger; not twice in a row."""
        paused = self._loop.time() > began + (1 + LATE) * self._patience
        self._paused = paused and not self._paused
        return self._paused

    def _synced(self, began: float, _: object) -> None:
        """A request has ended, however it did."""
        self._task = None
        if self._over:
            return
        pause = self._beat_every * random.uniform(1 - JITTER, 1)
        if self.lease.failing_since is not None or self.lease.state is LeaseState.JOINING:
            pause /= RETRY
        self._beat.start_at(self._loop, began + pause, self._begin)
        if self._again or self._has_to_tell():
            self._sync_soon()

    async def _ask(self) -> None:
        pool = self._pool()
        if pool is None or self._over:
            return
        self._join_circuit(pool)
        config, lease, circuit = self._fleet.config, self.lease, self._circuit
        sent = self._loop.time()
        need = self._need(pool)
        request = Sync(
            member=self.member,
            keep=lease.ask(self._occupied(pool), need),
            seq=lease.seq,
            need=min(need, lease.ceiling),
            floor=min(self._floor, lease.ceiling),
            ceiling=lease.ceiling,
            budget=config.budget,
            host=config.host,
            process=os.getpid(),
            pool=self._name,
            since=self._since,
            audit=self._count_marked is not None,
            breaker=None if circuit is None else circuit.state,
            epoch=0 if circuit is None else circuit.epoch,
            making=min(self._making, lease.ceiling),
        )
        del pool  # it may be dropped meanwhile
        grant = await self._ledger.sync(request)
        pool = self._pool()
        if pool is None or self._over:
            return
        before = lease.state
        if not lease.take(grant, sent, self._loop.time(), self._occupied(pool)):
            raise TimeoutError("the answer came too late")
        self._warned = False
        self._changed(before)
        self._apply()
        self._set_alarm()
        self._watch_need(pool)
        self._fleet.answered(grant)
        self._audit_silent(grant.silent)
        self.heard(grant.circuit)
        self._notice.renew(self._ledger, pool, self._loop.time())

    def _failed(self, began: float, error: Exception, *, slow: bool = False) -> None:
        pool = self._pool()
        if pool is None or self._over:
            return
        lease, before, now = self.lease, self.lease.state, self._loop.time()
        lease.fail(began, now, self._occupied(pool), floor=self._floor, slow=slow)
        why = explained(error)
        if before is LeaseState.JOINING:
            self._log(
                WARNING, "the fleet cannot be reached (%s); until it can, this process has %d, as "
                "much as one alone", why, lease.size,
            )  # fmt: skip
        elif lease.state is LeaseState.LEASED and not self._warned and self._fails_for_long(now):
            self._warned = True
            self._log(
                WARNING, "the fleet cannot be reached (%s); for %.1f s this process keeps "
                "%d, then has %d at most", why, lease.ends - now, lease.size, lease.part,
            )  # fmt: skip
        else:
            self._log(DEBUG, "the fleet cannot be reached: %s", why)
        self._changed(before)
        self._apply()
        self._set_alarm()
        self._watch_need(pool)

    def _fails_for_long(self, now: float) -> bool:
        """Whether more than one request has failed."""
        since = self.lease.failing_since
        return since is not None and now - since > self._beat_every

    # -- the audit ---------------------------------------------------------------------------------

    def _audit_silent(self, members: tuple[str, ...]) -> None:
        """Count in a task what these have, and say so to the ledger, which asks again if not."""
        if members and self._audit is None:
            work = self._settle(members)
            name = f"cenote audit of fleet {self._fleet.config.name!r}"
            self._audit = self._loop.create_task(work, name=name, context=Context())
            self._audit.add_done_callback(self._audited, context=Context())

    async def _settle(self, members: tuple[str, ...]) -> None:
        count = self._count_marked
        assert count is not None
        try:
            for member in members:
                counted = await count(mark_of(member))
                async with asyncio.timeout(self._beat_every):
                    await self._ledger.settle(member, counted)
                self._log(INFO, "silent member %s has %d by the server's count", member, counted)
        except Exception as error:
            self._log(INFO, "what silent members have was not counted: %s", explained(error))

    def _audited(self, _: object) -> None:
        self._audit = None

    # -- the end -----------------------------------------------------------------------------------

    def _end(self) -> bool:
        """Stop everything but the request under way. False: it has ended before."""
        if self._over:
            return False
        self._over = True
        self._fleet.remove(self)
        pool = self._pool()
        if pool is not None:
            unsubscribe(pool, self._happened)
        if self._loop.is_closed():
            if self._circuit is not None:
                self._circuit.forsake()
            return True
        for timer in (self._beat, self._soon, self._alarm, self._look):
            timer.stop()
        self._ready()
        if self._audit is not None:
            self._audit.cancel()
        if self._circuit is not None:
            self._circuit.end()
        return True

    def _is_here(self) -> bool:
        """Whether the loop of the pool runs, and this is in it."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _leave_soon(self) -> asyncio.Task[None]:
        name = f"cenote leaving of fleet {self._fleet.config.name!r}"
        return self._loop.create_task(self._leave(), name=name, context=Context())

    def _leave_from_elsewhere(self) -> None:
        """Leave when the loop runs again; if it does not, the ledger will notice."""
        if self._loop.is_closed():
            self._fleet.abandon()
        else:
            self._loop.call_soon_threadsafe(self._leave_soon, context=Context())

    async def _leave(self) -> None:
        """Report it to the ledger, and close that if this was the last member here."""
        try:
            if self._task is not None:  # else it could come after, and make a new row
                await asyncio.wait([self._task], timeout=FAREWELL)
            if self._task is not None:
                self._task.cancel()
            self.lease.seq += 1
            if self._fleet.is_open:
                self._notice.remove(self._ledger)
                async with asyncio.timeout(FAREWELL):
                    await self._ledger.leave(self.member, self.lease.seq)
        except (LedgerError, TimeoutError) as error:
            self._log(DEBUG, "left without a word: %s", explained(error))
        await self._fleet.close_if_empty()

    def _dropped(self, _: object) -> None:
        """The pool was collected unclosed, in whatever thread."""
        if not self._over:
            self._over = True
            if self._loop.is_closed():
                self._fleet.remove(self)
                self._fleet.abandon()
            else:
                self._loop.call_soon_threadsafe(self._end_dropped, context=Context())

    def _end_dropped(self) -> None:
        self._over = False
        if self._end():
            self._leave_soon()
