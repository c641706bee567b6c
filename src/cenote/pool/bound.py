"""The ground under a pool: loop, thread, clock, events, breaker, and what happens on fork."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from logging import ERROR, INFO, WARNING
from typing import Any, Generic, TypeVar, cast

from .. import errors
from .._core import Claim, Core, Slot
from ..breaker import CircuitBreakerStrategy
from ..events import EventKind, PoolEvent, Subscription, Totals, task_name
from ..hooks import is_async
from ..log import log, raise_later
from ..mask import explained
from ..options import Settings
from ..states import CircuitState, ClaimState, Phase
from . import registry
from .deadlines import DeadlineTimer
from .hooks import HookTask
from .maintenance import Maintenance
from .operation import Operation
from .steps import Stepping

T = TypeVar("T")


class Bound(Stepping[T], Generic[T]):
    """The ground that a pool stands on: its loop, thread and clock, its events and its breaker."""

    # A pool keeps nothing in its __dict__: as long as there is none, the interpreter (3.13) finds
    # methods without a look into it. Whoever wants may still put something there.
    __slots__ = (
        "__dict__", "__orig_class__", "__weakref__", "_advancing", "_again", "_changes",
        "_circuit_since", "_closed_sent", "_closers", "_closing", "_context", "_creations",
        "_deadlines", "_destructor", "_drain_timer", "_factory_error", "_factory_failed_at",
        "_factory_failures", "_failure", "_maintenance", "_name", "_openers", "_settings",
        "_shut_over", "_totals", "_undoing", "_works",
    )  # fmt: skip

    def __init__(self, settings: Settings, strategy: CircuitBreakerStrategy | None) -> None:
        if hasattr(self, "_settings"):
            raise RuntimeError(
                f"{errors.label(self._name)} was initialized before; make another Pool instead"
            )
        super().__init__()
        self._settings = settings
        self._tidying = None
        self._strategy: CircuitBreakerStrategy | None = strategy
        self._name = settings.name
        self._before_acquire = settings.before_acquire
        self._before_release = settings.before_release
        self._destructor = settings.destructor
        self._core = self._new_core()
        self._maintenance = Maintenance(
            cast(Any, self),
            healthcheck=settings.healthcheck,
            interval=settings.healthcheck_interval,
            hold_warning=settings.hold_warning,
        )
        self._context = copy_context()  # of the constructor: factories run in copies of it
        self._subscribers: tuple[Subscription, ...] = ()
        self._deadlines = DeadlineTimer(self)  # for the deadlines in the core
        self._max_waiting = -1 if settings.max_waiting is None else settings.max_waiting
        self._acquire_timeout = settings.acquire_timeout
        self._hold_warning = settings.hold_warning
        self._totals = Totals()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # in which the loop runs
        self._time: Callable[[], float] = time.monotonic  # the loop's clock, once bound
        self._works: set[HookTask] = set()
        self._creations: dict[Slot, HookTask] = {}
        self._openers: list[list[BaseException]] = []  # what each open() under way has heard of
        self._changes: list[asyncio.Future[None]] = []  # of those who wait in open()
        self._failure: str | None = None  # the last one that was reported, in words
        self._factory_error: BaseException | None = None  # the last one; see _forget_failure
        self._factory_failed_at = 0.0  # when that was
        self._factory_failures = 0  # in total
        self._circuit_since: float | None = None  # when the breaker last changed
        self._closing: Operation | None = None  # from the first close() on
        self._advancing = self._again = False  # see _advance
        self._undoing: Operation | None = None  # a failed open() is being undone
        self._shut_over = False  # everything idle is being destroyed, or is gone
        self._closed_sent = False  # subscribers have heard of it
        self._closers: list[Any] = []  # the close() calls that wait
        self._drain_timer: asyncio.TimerHandle | None = None
        registry.watch(self)
        registry.announce(cast(Any, self))

    def _new_core(self) -> Core:
        settings = self._settings
        return Core(
            min_size=settings.min_size,
            max_size=settings.max_size,
            max_uses=settings.max_uses,
            max_idle=settings.max_idle,
            lifo=settings.lifo,
            recovering_limit=settings.recovering_limit,
            sync_factory=not is_async(settings.factory),
        )

    # -- the loop and the thread -----------------------------------------------------------------

    def _enter(self) -> None:
        """At the head of what needs an open pool: opens a new one, refuses a closed one."""
        phase = self._core.phase
        if phase is Phase.OPEN and asyncio._get_running_loop() is self._loop:
            return
        if phase is Phase.CLOSED or phase is Phase.DRAINING:
            raise errors.closed(self._name, draining=phase is Phase.DRAINING)
        if phase is Phase.NEW:
            self._bind()
        else:
            self._check_loop()

    def _check_loop(self) -> None:
        loop = self._loop
        running = asyncio._get_running_loop()
        if running is loop or loop is None:
            return
        if running is None and self._in_own_thread():
            return  # plain code, between two runs of the loop
        raise errors.elsewhere(
            self._name,
            other_thread=threading.get_ident() != self._thread,
            loop_closed=loop.is_closed(),
        )

    def _in_own_thread(self) -> bool:
        loop = self._loop
        return loop is None or (threading.get_ident() == self._thread and not loop.is_closed())

    def _current_task(self) -> asyncio.Task[Any] | None:
        return None if self._loop is None else asyncio.current_task(self._loop)

    def _bind(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._time = loop.time
        self._direct_clock = is_monotonic(loop)
        self._direct_future = is_plain(loop)
        self._core.move("open")
        self._maintenance.start(loop)
        if self._subscribers:
            self._emit(EventKind.OPENED)
        self._advance()

    def _unbind(self) -> None:
        self._maintenance.stop()
        self._deadlines.stop()
        self._loop = None
        self._thread = 0
        self._time = time.monotonic
        self._direct_clock = True

    def _from_finalizer(self, step: Callable[[], object]) -> None:
        """Do this now if this is the loop's own thread and no step is under way; else later."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if threading.get_ident() == self._thread and not self._core.busy:
            self._step(step)
        else:
            loop.call_soon_threadsafe(self._step, step)

    def after_fork(self) -> object:
        core = self._core
        kept = (
            core,
            self._works,
            self._creations,
            self._loop,
            self._changes,
            self._drain_timer,
            self._deadlines,
            self._tidying,
        )
        core.disown()
        self._core = self._new_core()
        self._core.set_circuit(core.circuit)
        self._core.min_size, self._core.max_size = core.min_size, core.max_size
        self._core.sync_factory = core.sync_factory
        if core.phase is Phase.CLOSED or core.phase is Phase.DRAINING:
            self._core.move("close")
        self._works, self._creations, self._changes = set(), {}, []
        self._deadlines = DeadlineTimer(self)
        self._totals = Totals()
        self._closing, self._shut_over, self._closed_sent = None, False, False
        self._openers, self._closers = [], []
        self._factory_error = None
        self._drain_timer = self._tidying = None
        self._doubtful = self._advancing = False
        maintenance, self._maintenance = self._maintenance, self._maintenance.anew()
        self._loop, self._thread, self._time = None, 0, time.monotonic
        return kept, maintenance

    def _advance(self) -> None:
        """Serve whoever can be served."""
        raise NotImplementedError

    def _time_out(self, claim: Claim) -> None:
        """The deadline of a claim that waits has passed."""
        raise NotImplementedError

    def _pass_on(self, claim: Claim) -> None:
        """Whatever this claim was handed goes to the next."""
        raise NotImplementedError

    def _fail(self, claim: Claim, error: BaseException) -> None:
        raise NotImplementedError

    def _shut(self) -> None:
        """Close in one step."""
        raise NotImplementedError

    def _shut_part(self, operation: Operation) -> None:
        """What goes wrong in this one is raised from close()."""
        raise NotImplementedError

    def _finish_close(self) -> None:
        """See who need not wait any longer."""
        raise NotImplementedError

    # -- a wait that was broken off ----------------------------------------------------------------

    def _interrupted(self, claim: Claim, finalizing: bool) -> None:
        """Its task was cancelled, or dropped: everything is passed on."""
        if finalizing or self._core.busy:
            self._from_finalizer(partial(self._cancelled, claim))
        else:
            self._step(self._cancelled, claim)

    def _cancelled(self, claim: Claim) -> None:
        if claim.state not in (ClaimState.ASKING, ClaimState.WAITING, ClaimState.GRANTED):
            return  # it has failed, and the cancellation only hides that
        self._totals.cancelled += 1
        self._give_up(claim)
        if self._subscribers:
            self._emit(EventKind.CANCELLED, task=claim.task, duration=self._time() - claim.began)

    def _give_up(self, claim: Claim) -> None:
        if claim.state is ClaimState.ASKING:
            self._core.dismiss(claim)
            self._advance()
        elif claim.state in (ClaimState.WAITING, ClaimState.GRANTED):
            self._core.leave(claim)
            self._pass_on(claim)

    # -- deadlines -------------------------------------------------------------------------------

    def _set_alarm(self, when: float) -> None:
        self._deadlines.set(when)

    def _forget_failure(self) -> bool:
        """Let go of the factory's last error, unless somebody waits who may time out because of it:
        its traceback has the variables of every frame that it has passed."""
        core = self._core
        first = core.first
        if core.granted_count or (first is not None and first.began <= self._factory_failed_at):
            return False
        self._factory_error = None
        return True

    # -- events ----------------------------------------------------------------------------------

    def _emit(
        self,
        kind: EventKind,
        resource: T | None = None,
        task: asyncio.Task[Any] | None = None,
        *,
        duration: float | None = None,
        reason: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        event = PoolEvent(
            kind=kind,
            pool=cast(Any, self),
            time=self._time(),
            resource=resource,
            task=None if task is None else task_name(task),
            duration=duration,
            reason=reason,
            error=error,
        )
        for subscription in self._subscribers:
            try:
                self._call_out(subscription.callback, event)
            except BaseException as raised:
                self._contain(raised, f"a subscriber failed on {kind!r}")

    def _log(
        self, level: int, text: str, *arguments: object,
        error: BaseException | None = None, **fields: object,
    ) -> None:  # fmt: skip
        """Log a line about this pool, whose repr comes first in it. Nothing is raised."""
        fields["pool"] = self._name
        log(level, f"%r: {text}", self, *arguments,
            error=error, fields=fields, loop=self._loop, stacklevel=2)  # fmt: skip

    def _changed(self) -> None:
        """Wake those who wait in open()."""
        changes, self._changes = self._changes, []
        for future in changes:
            if not future.done():
                future.set_result(None)

    async def _next_change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._changes.append(future)
        await future

    # -- circuit breaker -------------------------------------------------------------------------

    def _switch(self, state: CircuitState) -> None:
        self._check_loop()
        if self._core.busy and self._loop is not None:
            self._defer(partial(self._switch, state))
        else:
            self._step(self._switch_to, state)

    def _switch_to(self, state: CircuitState) -> None:
        core = self._core
        if core.circuit is state:
            return
        before = core.circuit
        core.set_circuit(state)
        self._circuit_since = self._time()
        self._log(
            WARNING if state is CircuitState.INACTIVE else INFO,
            "circuit breaker %s -> %s", before, state,
            event=EventKind.STATE_CHANGED, reason=str(state),
        )  # fmt: skip
        if state is CircuitState.INACTIVE:
            self._refuse_all()
        if self._subscribers:
            self._emit(EventKind.STATE_CHANGED, reason=state)
        self._changed()
        self._advance()

    def _refuse_all(self) -> None:
        for claim in self._core.pending():
            if claim.state is ClaimState.WAITING or claim.state is ClaimState.GRANTED:
                self._fail(claim, self._unavailable())

    def _should_recover(self) -> bool:
        ask = getattr(self._strategy, "should_recover", None)
        if ask is None:
            return False
        try:
            return bool(self._call_out(ask))
        except BaseException as raised:
            self._contain(raised, "the strategy failed in should_recover()")
            return False

    def _contain(self, error: BaseException, what: str) -> None:
        """Watchers and strategies are called in the middle of a step, which goes on. What would
        end the program (KeyboardInterrupt, SystemExit) ends it, in a step of its own."""
        self._log(ERROR, "%s", what, error=error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise_later(error, self._loop)

    def _report_success(self, probe: int) -> None:
        strategy = self._strategy
        if strategy is None or not self._core.reports(probe):
            return
        try:
            self._call_out(strategy.report_success, self)
        except BaseException as raised:
            self._contain(raised, "the strategy failed in report_success()")

    def _report_failure(self, error: BaseException, probe: int | None) -> None:
        """`probe`: of the lease that failed; None: no lease, it counts in any case."""
        if not isinstance(error, Exception):
            return  # a cancellation says nothing about the backend
        if probe is not None and not self._core.reports(probe):
            return
        self._failure = explained(error)  # not itself: its traceback has everybody's variables
        strategy = self._strategy
        if strategy is None:
            return
        try:
            self._call_out(strategy.report_failure, self, error)
        except BaseException as raised:
            self._contain(raised, "the strategy failed in report_failure()")

    def _unavailable(self) -> errors.ServiceUnavailableError:
        since = None if self._circuit_since is None else self._time() - self._circuit_since
        core = self._core
        return errors.unavailable(
            self._name, core.circuit, since, self._failure, core.recovering_limit
        )


def is_plain(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop makes its futures as asyncio does."""
    stock = asyncio.BaseEventLoop.create_future
    return type(loop).create_future is stock and "create_future" not in vars(loop)


def is_monotonic(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop's time is the monotonic clock, which C may then read by itself."""
    return type(loop).time is asyncio.BaseEventLoop.time and "time" not in vars(loop)
