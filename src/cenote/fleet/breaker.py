"""The circuit breaker of a fleet, as a strategy of each pool.

The local strategy decides first, alone and at once. When it has opened the breaker of its pool, the
member votes. From then on the ledger says what follows (`ballot.py` has the rules):

- SUSPECT: every member looks once, and votes. A success on return is enough, else it makes a probe.
- INACTIVE: open for all. One member at a time claims the probe, every second.
- ACTIVE again: all activate, within `SPREAD_BACK` seconds of each other.

A member whose host alone is cut off stays open by its local strategy, which probes for itself. If
the ledger cannot be reached, the local strategy goes on from where the pool is.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..breaker import CircuitBreakerStrategy
from ..events import PoolEvent
from ..pool import Pool
from ..states import CircuitState
from ..timer import Timer
from .ballot import PROBE_EVERY
from .ledger import FleetCircuit, FleetState, Ledger, LedgerError
from .probes import PoolProbes

JUST_NOW: Final = 0.05  # seconds in which a success makes a probe of a suspicion superfluous
LOOK_FOR: Final = 1.0  # seconds for the probe of a suspicion
PROBE_FOR: Final = 2.5  # seconds for the probe of all; less than its lease, PROBE_LEASE
SPREAD_CLAIM: Final = 0.1  # seconds by which claims are spread: most learn of the first one in time
SPREAD_BACK: Final = 0.3  # seconds by which activations are spread
ASK_AGAIN: Final = 1.0  # seconds after which a ledger that could not be reached is asked again


class FleetBreaker:
    """The strategy of a pool in a fleet, around a local strategy; `Fleet.breaker()` makes it.

    Without a member, so without a fleet that runs, it does what the local strategy does.
    """

    def __init__(self, local: CircuitBreakerStrategy) -> None:
        self.local: CircuitBreakerStrategy = local
        # The local strategy's own method, as long as nobody wants to know: it is called for every
        # release.
        self.report_success: Callable[[Any], object] = local.report_success
        # Weak: a pool that is dropped is gone at once, with its warning.
        self._members: WeakKeyDictionary[Pool[Any], MemberBreaker] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self.local!r}>"

    def join(self, pool: Pool[Any], member: str, ledger: Ledger) -> MemberBreaker:
        """Let a pool take part in the circuit breaker of its fleet, as this member."""
        joined = self._members[pool] = MemberBreaker(self, pool, member, ledger)
        return joined

    def report_failure(self, source: Any, error: BaseException, /) -> None:
        """Let the local strategy judge."""
        member = self._members.get(source)
        if member is not None:
            member.before_report()
        self.local.report_failure(source, error)

    def should_recover(self) -> bool:
        """Return what the local strategy says; False as long as the breaker is open for all."""
        member = self._member()
        if member is not None and member.is_governed:
            return False
        ask = getattr(self.local, "should_recover", None)
        return False if ask is None else bool(ask())

    def retry_after(self) -> float | None:
        """Return the seconds until the next probe of the fleet may succeed, or until the local
        strategy makes one; None if it never will by itself."""
        member = self._member()
        if member is not None and member.is_governed:
            return member.retry_after()
        ask = getattr(self.local, "retry_after", None)
        answer: float | None = None if ask is None else ask()
        return answer

    def watch_successes(self) -> None:
        """Report successes to members that want them; call it when one begins or ends to."""
        wanted = any(each.wants_successes for each in [*self._members.values()])
        self.report_success = self._report_success if wanted else self.local.report_success

    def _report_success(self, source: Any, /) -> object:
        member = self._members.get(source)
        if member is not None:
            member.note_success()
        return self.local.report_success(source)

    def forget(self, pool: Pool[Any]) -> None:
        """This pool takes no part any more."""
        self._members.pop(pool, None)
        self.watch_successes()

    def _member(self) -> MemberBreaker | None:
        """The member that is asked: one strategy may serve a pool in each of several loops."""
        members = [*self._members.values()]
        if len(members) < 2:
            return members[0] if members else None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        return next((each for each in members if each.loop is loop), None)


class MemberBreaker:
    """The part of one member in the circuit breaker of its fleet.

    The code that syncs this member gives every `FleetCircuit` to `heard()`, and the ledger `state`
    and `epoch`. The pool is known only weakly.
    """

    def __init__(self, breaker: FleetBreaker, pool: Pool[Any], member: str, ledger: Ledger) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.circuit: FleetCircuit = FleetCircuit()  # the newest that is known
        self.wants_successes: bool = False
        self._heard_at = self.loop.time()
        self._breaker, self._member, self._ledger = breaker, member, ledger
        self._pool = weakref.ref(pool)
        self._probes = PoolProbes(pool)
        self._before = pool.state  # before the last switch
        self._switching = False  # this class switches the pool
        self._reporting = False  # a failure was reported in this turn of the loop
        self._opened_here = False  # by the local strategy
        self._opened_by_fleet = False
        self._accuses = False  # opened here, and the ledger does not know
        self._alone = False  # INACTIVE, and the ledger cannot be reached
        self._succeeded = False  # since the look has begun
        self._is_prober = False  # this member has found out that the backend works again
        self._pausing: asyncio.Future[None] | None = None  # ends the pause of the driver
        self._stirred = False  # something has changed since the last pause
        self._driver: asyncio.Task[None] | None = None  # as long as the circuit is not ACTIVE
        self._closing = Timer()  # activates the pool
        self._pause_over = Timer()
        self._ended = False
        self._unsubscribe = pool.subscribe(self._switched, kinds=["state_changed"])

    # -- for the code that syncs with the ledger ---------------------------------------------------

    @property
    def state(self) -> str:
        """The state of the pool's circuit breaker, for the ledger."""
        return str(self._pool_state())

    @property
    def epoch(self) -> int:
        """The newest epoch that is known, for the ledger."""
        return self.circuit.epoch

    def heard(self, circuit: FleetCircuit) -> None:
        """Take an answer of the ledger, or its news. What is of an older epoch is ignored."""
        known = self.circuit
        if self._ended or circuit.epoch < known.epoch:
            return
        self.circuit, self._heard_at = circuit, self.loop.time()
        if circuit.state is FleetState.INACTIVE:
            if known.state is not FleetState.INACTIVE or self._alone:
                self._open()
        elif known.state is FleetState.INACTIVE:
            self._close_soon()
        self._alone = False
        if circuit.epoch != known.epoch:
            self._stir()
        self._drive_on()

    def lost(self) -> None:
        """The ledger cannot be reached: from now on the local strategy decides alone."""
        if not self._is_open_for_all() or self._alone:
            return
        self._alone = True
        if self._opened_by_fleet and not self._opened_here:
            recovers = getattr(self._breaker.local, "should_recover", None) is not None
            self._switch(CircuitState.RECOVERING if recovers else CircuitState.ACTIVE)
        self._opened_by_fleet = False

    def end(self) -> None:
        """Take no part any more; the local strategy goes on from where the pool is."""
        if self._ended:
            return
        if not self._is_over():
            if self._closing.is_set:
                self._activate()
            self.lost()
        self.forsake()
        for task in [self._driver, *self._probes.cancel()]:
            if task is not None:
                task.cancel()

    def forsake(self) -> None:
        """In the child of a fork: let go, without touching what belongs to the parent's loop."""
        self._ended = True
        self.wants_successes = False
        self._unsubscribe()
        self._closing.stop()
        pool = self._pool()
        if pool is not None:
            self._breaker.forget(pool)

    # -- for the strategy --------------------------------------------------------------------------

    @property
    def is_governed(self) -> bool:
        """Whether the fleet, and not the local strategy, says when the pool opens again."""
        return self._closing.is_set or (self._is_open_for_all() and not self._alone)

    def retry_after(self) -> float:
        """Return the seconds until the next probe, or until this pool is activated."""
        if self._closing.is_set:
            return max(0.0, self._closing.when - self.loop.time())
        return min(self._next_in(), PROBE_EVERY)

    def before_report(self) -> None:
        """A failure is going to be reported: what is switched now is the strategy's judgement."""
        if not self._reporting:
            self._reporting = True
            self.loop.call_soon(self._after_report, context=Context())

    def note_success(self) -> None:
        """A resource came back without complaint."""
        self._succeeded = True
        self._stir()

    def _after_report(self) -> None:
        self._reporting = False

    def _switched(self, event: PoolEvent) -> None:
        """The breaker of the pool was switched, by anything."""
        state = CircuitState(str(event.reason))
        before, self._before = self._before, state
        if self._switching or self._ended:
            return
        if state is CircuitState.ACTIVE:
            self._opened_here = self._accuses = False
        elif state is CircuitState.INACTIVE and self._has_judged():
            self._opened_here = True
            # A recovery that has failed is not news to the fleet, which has looked before.
            self._accuses = self._accuses or before is CircuitState.ACTIVE
        self._stir()
        self._drive_on()

    def _has_judged(self) -> bool:
        """Whether the local strategy has opened the breaker, and not somebody by hand."""
        ask = getattr(self._breaker.local, "retry_after", None)
        return self._reporting if ask is None else ask() is not None

    # -- switching ---------------------------------------------------------------------------------

    def _is_open_for_all(self) -> bool:
        return self.circuit.state is FleetState.INACTIVE

    def _is_over(self) -> bool:
        pool = self._pool()
        return self._ended or pool is None or pool.closed

    def _pool_state(self) -> CircuitState:
        pool = self._pool()
        return CircuitState.ACTIVE if pool is None else pool.state

    def _switch(self, state: CircuitState) -> None:
        pool = self._pool()
        if pool is None or pool.closed or pool.state is state:
            return
        switches = {
            CircuitState.ACTIVE: pool.activate,
            CircuitState.INACTIVE: pool.deactivate,
            CircuitState.RECOVERING: pool.recover,
        }
        self._switching = True
        try:
            switches[state]()
        finally:
            self._switching = False

    def _open(self) -> None:
        """The breaker is open for all."""
        self._closing.stop()
        if self._alone and self._pool_state() is CircuitState.ACTIVE:
            return  # it works here, as the next probe will find
        if self._pool_state() is not CircuitState.INACTIVE:
            self._switch(CircuitState.INACTIVE)
            self._opened_by_fleet = True
        elif self._opened_here:
            self._opened_by_fleet = True  # else by hand, and it stays so

    def _close_soon(self) -> None:
        """The breaker is not open for all any more."""
        delay = 0.0 if self._is_prober else random.uniform(0, SPREAD_BACK)
        self._is_prober = False
        if self._opened_by_fleet or self._opened_here:
            self._closing.start(self.loop, delay, self._activate)

    def _activate(self) -> None:
        self._closing.stop()
        self._opened_by_fleet = self._opened_here = self._accuses = False
        self._switch(CircuitState.ACTIVE)

    # -- driving -----------------------------------------------------------------------------------

    def _drive_on(self) -> None:
        """Have a task as long as there is something to do."""
        idle = self._driver is None or self._driver.done()
        if idle and self._has_work() and not self._is_over():
            self._driver = self.loop.create_task(
                self._drive(), name=f"cenote fleet breaker of {self._member}", context=Context()
            )

    def _has_work(self) -> bool:
        return self.circuit.state is not FleetState.ACTIVE or self._accuses

    async def _drive(self) -> None:
        while self._has_work() and not self._is_over():
            if self._is_open_for_all():
                await self._seek_probe()
            elif self.circuit.state is FleetState.SUSPECT:
                await self._testify()
            else:
                await self._accuse()

    async def _accuse(self) -> None:
        """Say that the backend is down here, until the ledger knows it."""
        epoch = self.circuit.epoch
        told = await self._tell(self._ledger.vote(self._member, epoch, down=True))
        if not told or self.circuit.epoch == epoch:  # the ledger does not count this member yet
            await self._pause(ASK_AGAIN)

    async def _testify(self) -> None:
        """Look, vote, and count the votes when that may be worth it."""
        epoch = self.circuit.epoch
        works = await self._look()
        voted: bool | None = None
        while self.circuit.epoch == epoch and self.circuit.state is FleetState.SUSPECT:
            if self._is_open_here():
                works = False
            if works is not None and works is not voted:
                self._accuses = self._accuses and works
                if await self._tell(self._ledger.vote(self._member, epoch, down=not works)):
                    voted = works
                else:
                    await self._pause(ASK_AGAIN)
            elif await self._pause(self._next_in() + random.uniform(0, SPREAD_CLAIM)):
                continue  # something has changed
            elif not await self._tell(self._ledger.judge()):
                await self._pause(ASK_AGAIN)

    async def _look(self) -> bool | None:
        """Return whether the backend works, for the vote of this suspicion; None: cannot say."""
        epoch = self.circuit.epoch
        self._succeeded, self.wants_successes = False, True
        self._breaker.watch_successes()
        probe: asyncio.Future[bool | None] | None = None
        try:
            ends_at = self.loop.time() + JUST_NOW
            while not self._succeeded and not self._is_open_here():
                if self.circuit.epoch != epoch:
                    return None
                if probe is None and self.loop.time() >= ends_at:
                    ends_at += 2 * LOOK_FOR  # nobody's room may come back
                    probe = asyncio.ensure_future(self._probes.ask(LOOK_FOR))
                    probe.add_done_callback(lambda _: self._stir())
                elif probe is not None and probe.done() and probe.result() is not None:
                    return probe.result()
                elif self.loop.time() >= ends_at:
                    return None
                await self._pause(ends_at - self.loop.time())
            return self._succeeded
        finally:
            if probe is not None:
                probe.cancel()
            self.wants_successes = False
            self._breaker.watch_successes()

    def _is_open_here(self) -> bool:
        return self._opened_here and self._pool_state() is not CircuitState.ACTIVE

    async def _seek_probe(self) -> None:
        """Claim the probe of all when it is time, and make it."""
        delay = self._next_in() + random.uniform(0, SPREAD_CLAIM)
        if await self._pause(delay):
            return
        epoch = self.circuit.epoch
        if not self._probes.can_ask():
            await self._pause(PROBE_EVERY)
            return
        if not await self._tell(self._ledger.claim(self._member, epoch)):
            await self._pause(ASK_AGAIN)
            return
        if self.circuit.prober != self._member or not self._is_open_for_all():
            return
        epoch = self.circuit.epoch
        works = await self._probes.ask(PROBE_FOR)
        if self.circuit.epoch == epoch:
            self._is_prober = works is True
            await self._tell(self._ledger.verdict(self._member, epoch, up=works is True))
        self._is_prober = False

    async def _tell(self, request: Awaitable[FleetCircuit]) -> bool:
        """Return whether the ledger has answered."""
        epoch = self.circuit.epoch
        try:
            answer = await request
        except LedgerError:
            if self.circuit.epoch == epoch:  # else another member knows of it by now
                self.lost()
            return False
        self.heard(answer)
        return answer.epoch >= epoch

    def _next_in(self) -> float:
        """Seconds until what the ledger has said is due."""
        return max(0.0, self._heard_at + self.circuit.next_in - self.loop.time())

    async def _pause(self, seconds: float) -> bool:
        """Wait. Returns whether something has changed meanwhile."""
        if not self._stirred:
            self._pausing = self.loop.create_future()
            self._pause_over.start(self.loop, seconds, _finish, self._pausing)
            try:
                await self._pausing
            finally:
                self._pause_over.stop()
                self._pausing = None
        stirred, self._stirred = self._stirred, False
        return stirred

    def _stir(self) -> None:
        self._stirred = True
        if self._pausing is not None:
            _finish(self._pausing)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
