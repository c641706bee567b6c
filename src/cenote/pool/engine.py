"""The engine of a pool: it is made of parts, and serves whatever waits after any change.

The core decides, the parts do what it decided. Every step between two suspensions is synchronous,
so there is no lock. Whatever frees capacity ends in `advance`, which serves the waiters, starts
what must be created, and sees whether a drain or a close has come to its end. Slow work (factories,
hooks and destructors that are async) is a `HookTask`: it belongs to the pool, and the task that
asked for it may be gone when it is done.
"""

from __future__ import annotations

import sys
import time
import weakref
from asyncio import Task
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from math import inf
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .. import messages
from .._core import Claim, Core, Slot, next_expiry
from .._fast import EngineBase, SlowPath, provides
from ..caller import caller
from ..events import DestroyReason, Subscription, Totals
from ..hooks import drop, is_async, is_awaitable
from ..options import Settings
from ..states import ClaimState, Handover, Phase
from .accounts import Accounts
from .circuit import Circuit
from .claims import Claims
from .closing import Closing
from .creations import Creations
from .deadlines import DeadlineTimer
from .destructions import Destructions
from .history import History
from .hooks import Hooks
from .lanes import Lanes
from .lending import Lending
from .loop import LoopBinding
from .maintenance import Maintenance
from .opening import Opening
from .operation import DONE, Operation, raise_fatal
from .returns import Returns
from .signals import Signals
from .steps import Call, Steps
from .tickets import Tickets
from .words import PLAIN, Words

if TYPE_CHECKING:
    from .pool import Pool

T = TypeVar("T")

PARTS = (
    "accounts", "binding", "circuit", "claims", "closing", "creations", "deadlines",
    "destructions", "history", "hooks", "lanes", "lending", "maintenance", "opening", "returns",
    "signals", "steps", "tickets",
)  # fmt: skip
# Methods of the parts that the fast path calls: bound once, so that a call takes no detour.
CALLS = (
    "admit_or_raise", "begin", "broken_off", "call_out", "check_deadlock", "check_loop",
    "completed", "contain", "current_task", "defer_return", "ended", "enter", "examine", "expect",
    "held", "interrupted", "leased", "leave", "lose", "obtain", "refuse", "report_success",
    "returned", "sample", "set_alarm", "settle", "start_ticket", "step",
)  # fmt: skip


@provides(SlowPath)
class Engine(EngineBase, Generic[T]):
    """What a pool does. It knows its pool only weakly: a pool that is dropped is gone at once."""

    __slots__ = (
        *PARTS, *CALLS, "__weakref__", "_again", "advancing", "context", "name",
        "settings", "subscribers", "totals", "words",
    )  # fmt: skip

    done: ClassVar[Operation] = DONE  # the operation of what has already happened

    admit_or_raise: Callable[[Claim], None]
    begin: Callable[[Claim], None]
    broken_off: Callable[[], None]
    call_out: Call
    check_deadlock: Callable[[Claim], None]
    check_loop: Callable[[], None]
    completed: Callable[[Operation], Operation]
    contain: Callable[[BaseException, str], None]
    current_task: Callable[[], Task[Any] | None]
    defer_return: Callable[[Slot, bool], Operation]
    ended: Callable[[Claim, BaseException], None]
    enter: Callable[[], None]
    examine: Callable[[Slot, Any, BaseException | None], Operation]
    expect: Callable[[Slot], None]
    held: Callable[[Claim, Slot], None]
    interrupted: Callable[[Claim, bool], None]
    leased: Callable[[Any, str], Slot]
    leave: Callable[[Claim, BaseException], Coroutine[Any, Any, None]]
    lose: Callable[[Claim, BaseException], None]
    obtain: Callable[[Claim, Handover, Slot | None, Any], Coroutine[Any, Any, Any]]
    refuse: Callable[[Slot, BaseException | None], None]
    report_success: Callable[[int], None]
    returned: Callable[[Claim, Slot], None]
    sample: Callable[[float], None]
    set_alarm: Callable[[float], None]
    settle: Callable[[Slot], Operation]
    start_ticket: Callable[[Any, Any], Task[None]]
    step: Call

    def __init__(
        self,
        pool: Pool[T],
        settings: Settings,
        *,
        context: Context | None = None,
        closed: bool = False,
    ) -> None:
        super().__init__()
        self.pool_ref: Callable[[], Any] = weakref.ref(pool, self._dissolve)
        self.settings: Settings = settings
        self.name: str | None = settings.name
        self.context: Context = copy_context() if context is None else context  # of factories
        self.words: Words = PLAIN
        self.totals: Totals = Totals()
        self.subscribers: tuple[Subscription, ...] = ()  # to every kind of events
        self.core: Core = Core(
            min_size=settings.min_size,
            max_size=settings.max_size,
            max_uses=settings.max_uses,
            max_idle=settings.max_idle,
            lifo=settings.lifo,
            recovering_limit=settings.recovering_limit,
            sync_factory=not is_async(settings.factory),
        )
        self.core.max_creating = settings.max_creating
        self.core.queue_target = settings.queue_target
        self.core.queue_interval = settings.queue_interval
        self.time: Callable[[], float] = time.monotonic  # the loop's clock, once bound
        self.strategy: Any = settings.strategy
        self.before_acquire: Any = settings.before_acquire
        self.before_release: Any = settings.before_release
        self.max_waiting: int = -1 if settings.max_waiting is None else settings.max_waiting
        self.acquire_timeout: float | None = settings.acquire_timeout
        self.hold_warning: float | None = settings.hold_warning
        if settings.skip_frames:
            skip = settings.skip_frames
            self.find_caller: Callable[[Any], tuple[CodeType, int]] | None = partial(
                caller, skip=skip
            )
        self.advancing: bool = False  # see advance
        self._again = False
        self._make_parts(closed)

    def _make_parts(self, closed: bool) -> None:
        steps = Steps(self)
        self.steps: Steps = steps
        self.step, self.call_out = steps.step, steps.call_out
        binding = LoopBinding(self)
        self.binding: LoopBinding = binding
        self.signals: Signals = Signals(self)
        history = History(self)
        self.history: History = history
        self.sample = history.sample
        accounts = Accounts(self)
        self.accounts: Accounts = accounts
        self.lanes: Lanes = Lanes(self)
        self.lending: Lending = Lending(self)
        circuit = Circuit(self)
        self.circuit: Circuit = circuit
        self.hooks: Hooks = Hooks(self)
        self.creations: Creations = Creations(self)
        self.destructions: Destructions = Destructions(self)
        returns = Returns(self)
        self.returns: Returns = returns
        claims = Claims(self)
        self.claims: Claims = claims
        self.deadlines: DeadlineTimer = DeadlineTimer(self)
        self.maintenance: Maintenance = Maintenance(self)
        self.opening: Opening = Opening(self)
        self.closing: Closing = Closing(self, closed=closed)
        self.tickets: Tickets = Tickets(self)
        self.broken_off, self.lose = steps.broken_off, steps.lose
        self.defer_return = steps.defer_return
        self.enter, self.check_loop = binding.enter, binding.check
        self.current_task = binding.current_task
        self.begin, self.ended = accounts.begin, accounts.ended
        self.contain = self.signals.contain
        self.admit_or_raise, self.report_success = circuit.admit_or_raise, circuit.report_success
        self.refuse = self.hooks.refuse
        self.leased, self.leave, self.returned = returns.leased, returns.leave, returns.returned
        self.examine, self.completed = returns.examine, returns.completed
        self.settle, self.expect = returns.settle, returns.expect
        self.obtain, self.held = claims.obtain, claims.held
        self.interrupted, self.check_deadlock = claims.interrupted, claims.check_deadlock
        self.set_alarm = self.deadlines.set
        self.start_ticket = self.tickets.start

    def in_child(self, pool: Pool[T]) -> Engine[T]:
        """A new engine for the child of a fork. This one must stay untouched there."""
        core = self.core
        core.disown()
        self.pool_ref = weakref.ref(pool)  # it is not dissolved with the pool
        closed = core.phase is Phase.CLOSED or core.phase is Phase.DRAINING
        child = Engine(pool, self.settings, context=self.context, closed=closed)
        child.strategy, child.words = self.strategy, self.words
        child.core.set_circuit(core.circuit)
        if self.settings.fleet is None:
            child.core.min_size, child.core.max_size = core.min_size, core.max_size
        else:  # what it may have is lent to it anew
            child.lending.take_over(self.lending)
        child.core.sync_factory = child.creations.is_sync = self.creations.is_sync
        child.core.ceiling = core.ceiling
        child.lanes.take_over(self.lanes)
        child.core.histograms = core.histograms
        if closed:
            child.core.move("close")
        child.circuit.since, child.circuit.broken = self.circuit.since, self.circuit.broken
        child.circuit.failure, child.circuit.failed = self.circuit.failure, self.circuit.failed
        child.signals.set(self.subscribers)
        child.skip_check_within, child.suspect_before = self.skip_check_within, self.suspect_before
        return child

    def _dissolve(self, _: object) -> None:
        """The pool is gone: drop the parts, which know each other, so that neither they nor the
        resources wait for the collector."""
        self.sample_at = inf
        for name in (*PARTS, *CALLS):
            delattr(self, name)

    # -- serving -----------------------------------------------------------------------------------

    def advance(self) -> None:
        """Serve what can be served. Every path that frees capacity ends here.

        Not re-entrant: what happens meanwhile (eager tasks, subscribers) is looked at once more
        instead of deeper and deeper.
        """
        self._again = True
        if self.advancing:
            return
        self.advancing = True
        try:
            while self._again:
                self._again = False
                self._advance_once()
        finally:
            self.advancing = False

    def _advance_once(self) -> None:
        core = self.core
        now = 0.0 if core.queue_target is None else self.time()
        while (claim := core.grant(now)) is not None:
            if claim.state is ClaimState.WAITING:
                self.claims.shed(claim)
            else:
                claim.waiter.wake()
        while self.creations.full is None and core.demand():
            if core.queue_target is not None and (claim := core.choose(now)) is not None:
                self.claims.shed(claim)
                continue
            slot = core.permit_for_pool()
            if slot is None:
                break
            self.creations.start(slot)
        if core.min_size and core.shortage():
            self.maintenance.refill()
        if core.phase is Phase.DRAINING and not self._in_use():
            self.closing.shut()
        if core.phase is Phase.CLOSED:
            self.closing.finish()

    def _in_use(self) -> bool:
        """Whether a claim waits or holds something; a healthcheck does not count."""
        core = self.core
        checked = self.maintenance.check is not None
        return bool(core.waiting or core.granted_count or core.active > checked)

    # -- acquiring without waiting -----------------------------------------------------------------

    def try_acquire_slow(self, lane: Any = None) -> T | None:
        """try_acquire(), where the fast path cannot do it."""
        core = self.core
        if core.phase is Phase.CLOSED or core.phase is Phase.DRAINING:
            return None
        self.enter()
        claim = Claim()
        claim.code, claim.instruction = (self.find_caller or caller)(sys._getframe(1))
        claim.task = self.current_task()
        claim.began = self.time()
        claim.lane = lane
        if not self.circuit.admit(claim):
            return None
        slot = None
        try:
            slot = self._take_now(claim)
        finally:
            if slot is None:
                self.lanes.note_time()
                core.dismiss(claim)
                self.advance()
        if slot is None:
            return None
        resource: T = slot.resource  # a subscriber may discard it
        now = self.time()
        try:
            core.hold(claim, slot, now, 0.0)
            core.begun += 1  # a try that gives nothing has not begun
            self.held(claim, slot)
        except BaseException as error:
            self.lose(claim, error)
            raise
        return resource

    def _take_now(self, claim: Claim) -> Slot | None:
        core = self.core
        if is_async(self.before_acquire):
            raise messages.async_hook(self.name)
        if not core.enter(claim):
            return None  # its lane is at its limit
        before, now = core.idle_seqs, self.time()
        while (slot := core.take(before)) is not None:
            if slot.expires_at <= now:
                raise_fatal(self.destructions.destroy(slot, DestroyReason.MAX_LIFETIME))
                continue
            try:
                verdict = self.hooks.ask_before_acquire(slot)
            except BaseException as error:
                self.refuse(slot, error)
                continue
            if is_awaitable(verdict):
                drop(verdict)
                core.untake(slot)
                raise messages.async_hook(self.name)
            if verdict is False:
                self.refuse(slot, None)
            elif core.phase is Phase.CLOSED:  # by the hook
                self.settle(slot)
            else:
                return slot
        if core.phase is not Phase.OPEN:  # closed by a hook
            return None
        slot = core.permit() if core.sync_factory else None
        return slot if slot is not None and self._make_now(claim, slot) else None

    def _make_now(self, claim: Claim, slot: Slot) -> bool:
        try:
            return self.creations.make(slot, claim, start=False)
        except Exception as error:
            self.accounts.open(claim)
            self.accounts.ended(claim, error)
            raise

    # -- retire and resize -------------------------------------------------------------------------

    def retire(self) -> Operation:
        """In a step: destroy the idle now, the busy on their return."""
        self.core.generation += 1
        slots = self.core.idle_slots()
        return self.destructions.destroy_idle_quietly(DestroyReason.RETIRED, slots)

    def resize(self, least: int, most: int, ceiling: int) -> Operation:
        """In a step: change the sizes; surplus goes, new room is used."""
        core = self.core
        core.ceiling = ceiling
        core.min_size, core.max_size = least, most
        surplus = core.idle_slots()[: core.surplus()]
        operation = self.destructions.destroy_idle_quietly(DestroyReason.RESIZED, surplus)
        self.maintenance.expect(next_expiry(core))
        self.signals.changed()
        self.advance()
        return operation
