"""Background work: health checks, lifetimes, idle times, hold warnings, and min_size.

It is made of timers that know the pool only weakly: they keep neither the pool nor the loop alive,
and an error in one run does not stop the next.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from logging import DEBUG, ERROR, WARNING
from math import inf
from typing import TYPE_CHECKING, Any, Final

from .. import messages
from .._core import Slot, expired, next_expiry
from ..errors import BackendFullError, Undone
from ..events import DestroyReason, EventKind, lane_name, line_of, task_name
from ..hooks import is_awaitable
from ..mask import explained
from ..states import SlotState
from ..timer import Timer
from .hooks import HookTask

if TYPE_CHECKING:
    from .engine import Engine

FIRST_RETRY: Final = 0.5  # seconds before min_size is tried again after a failed factory; doubles
LAST_RETRY: Final = 30.0
RETRY_JITTER: Final = 0.5  # a retry comes up to this part earlier
FIRST_LOOK: Final = 0.1  # seconds until a backend that is full is tried again; doubles
LAST_LOOK: Final = 2.0
MEMORY: Final = 1.0  # seconds between two looks whether a failure can be forgotten


class Maintenance:
    """Timers that know the engine only weakly; each runs a step of this object."""

    __slots__ = (
        "__weakref__",
        "_backs_off",
        "_checking",
        "_due",
        "_engine",
        "_failures",
        "_fill",
        "_interval",
        "_looks",
        "_loop",
        "_memory",
        "_next",
        "_next_round",
        "_room",
        "_round",
        "_wary",
        "check",
        "paused",
    )  # fmt: skip

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        settings = engine.settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interval = 0.0 if settings.healthcheck is None else settings.healthcheck_interval
        self.paused: bool = False  # no refill: a failed open is being undone
        self._due = Timer()  # the next lifetime, idle time or warning
        self._next_round = Timer()  # of health checks
        self._fill = Timer()  # the next attempt to restore min_size
        self._room = Timer()  # the next attempt on a backend that is full
        self._looks = 0  # at it, in a row
        self._memory = Timer()  # the next look whether to forget the last error of the factory
        self._next = Timer()  # the next health check of this round
        self._round: deque[Slot] = deque()  # what this round has still to check
        self._checking = False
        self.check: HookTask | None = None  # the async healthcheck under way
        self._failures = 0  # of the factory, in a row
        self._backs_off = False  # that attempt waits because of them
        self._wary = False  # look whether the loop is going down before creating anything

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """The pool is bound to this loop."""
        self._loop = loop
        if self._interval > 0:
            self._later(self._next_round, self._interval, Maintenance._start_round)

    def stop(self) -> None:
        """The pool is closed, or not bound any more."""
        for timer in (self._due, self._next_round, self._fill, self._room, self._memory):
            timer.stop()
        self._engine.creations.found_room()  # nothing looks any more whether it has
        self._engine.next_sweep = inf
        self._round.clear()
        self._loop = None

    # -- min_size ----------------------------------------------------------------------------------

    def refill(self) -> None:
        """Restore min_size soon; after a failure only when its backoff is over."""
        if not self._fill.is_set and self._loop is not None and not self.paused:
            self._soon(self._fill, Maintenance._refill)

    def _refill(self) -> None:
        self._backs_off = False
        if self.paused:
            return
        if self._wary and not any(not task.cancelling() for task in asyncio.all_tasks(self._loop)):
            # Whatever is started now in a loop that goes down is never finished. If it is still
            # there after a while, it does not.
            self._wary = False
            self._later(self._fill, FIRST_RETRY, Maintenance._refill)
            return
        self._wary = False
        self._engine.creations.fill()

    def suspect_shutdown(self) -> None:
        """A cancellation has destroyed something: the loop may be shutting down."""
        self._wary = True

    def created(self) -> None:
        """A creation has succeeded, for whatever purpose: the backoff is over."""
        self._failures = self._looks = 0
        self._room.stop()
        if self._backs_off and self._fill.is_set:
            self._fill.stop()
            self._backs_off = False
            self.refill()

    def failed(self) -> float | None:
        """The factory failed: back off. Returns for how many seconds; None: it is not tried."""
        if self._loop is None:
            return None
        delay: float = min(FIRST_RETRY * 2 ** min(self._failures, 30), LAST_RETRY)
        self._failures += 1
        delay *= random.uniform(1 - RETRY_JITTER, 1)
        self._later(self._fill, delay, Maintenance._refill)
        self._backs_off = True
        return delay

    def await_room(self, error: BackendFullError) -> None:
        """The backend is full: try again after a while."""
        if self._loop is None or self._room.is_set:
            return
        delay = min(FIRST_LOOK * 2 ** min(self._looks, 30), LAST_LOOK)
        delay *= random.uniform(1 - RETRY_JITTER, 1)
        level = DEBUG if self._looks else WARNING
        self._engine.signals.log(
            level, "the backend is full; acquires wait, and it is tried again in %s: %s",
            messages.seconds(delay), explained(error),
        )  # fmt: skip
        self._looks += 1
        self._later(self._room, delay, Maintenance._try_again)

    def _try_again(self) -> None:
        self._engine.creations.try_again()

    def remember(self) -> None:
        """The factory's last error is kept for claims that wait: see that it is let go of."""
        if not self._memory.is_set and self._loop is not None:
            self._later(self._memory, MEMORY, Maintenance._forget)

    def _forget(self) -> None:
        if not self._engine.creations.forget_failure():
            self.remember()

    # -- lifetimes, idle times, hold warnings ------------------------------------------------------

    def expect(self, when: float) -> None:
        """Something may be due at that time."""
        if self._loop is None or when == inf:
            return
        if not self._due.is_set or when < self._due.when:
            self._due.start_at(self._loop, when, _run, weakref.ref(self), Maintenance._sweep)
            # Published, so that the fast path can skip useless calls of expect().
            self._engine.next_sweep = self._due.when

    def _sweep(self) -> None:
        engine = self._engine
        now = self._due.now(engine.time())
        engine.next_sweep = inf
        core = engine.core
        for slot, reason in expired(core, now):
            if slot.state is SlotState.IDLE:
                core.take_this(slot)
                engine.destructions.destroy(slot, reason)
        when = next_expiry(core)
        if engine.hold_warning is not None:
            when = min(when, self._warn_of_long_holds(engine.hold_warning, now))
        self.expect(when)

    def _warn_of_long_holds(self, limit: float, now: float) -> float:
        """Warn once of each lease that was held too long; returns when the next one will be."""
        engine = self._engine
        upcoming = inf
        for lease in sorted(engine.core.holders(), key=lambda lease: lease.lease_seq):
            if lease.warned or lease.slot is None:
                continue
            when = lease.since + limit
            if when > now:
                upcoming = min(upcoming, when)
                continue
            lease.warned = True
            where = "unknown"
            if lease.code is not None:
                where = f"{lease.code.co_filename}:{line_of(lease.code, lease.instruction)}"
            held = now - lease.since
            task = task_name(lease.task)
            engine.signals.log(
                WARNING, "a %s is held for %s by task %r (%s), hold_warning is %s",
                engine.words.resource, messages.seconds(held), task, where, messages.seconds(limit),
                event=EventKind.HELD_LONG, task=task, seconds=held, reason=where,
            )  # fmt: skip
            engine.signals.note(
                EventKind.HELD_LONG,
                lease.slot.resource,
                lease.task,
                lane=lane_name(lease),
                duration=held,
                reason=where,
            )
        return upcoming

    # -- health checks -----------------------------------------------------------------------------

    def _start_round(self) -> None:
        self._later(self._next_round, self._interval, Maintenance._start_round)
        if not self._checking:
            self._checking = True
            self._round.extend(self._engine.core.idle_slots())
            self._check_next()

    def _check_next(self) -> None:
        """One resource at a time, so that the others stay available."""
        while self._round:
            slot = self._round.popleft()
            if slot.state is SlotState.IDLE:
                self._check_one(slot)
                return
        self._checking = False

    def _check_one(self, slot: Slot) -> None:
        engine = self._engine
        healthcheck = engine.settings.healthcheck
        assert healthcheck is not None
        engine.core.take_this(slot)
        try:
            context = engine.context.copy()
            verdict = engine.call_out(context.run, healthcheck, slot.resource)
        except Exception as error:
            self._checked(slot, None, error)
        except BaseException:
            engine.destructions.destroy(slot, DestroyReason.CHECK_FAILED)
            self._go_on()
            raise
        else:
            if is_awaitable(verdict):
                checked = partial(self._checked, slot)
                work = engine.hooks.start("healthcheck", slot, verdict, checked)
                self.check = None if work.finished else work
            else:
                self._checked(slot, verdict, None)

    def _checked(self, slot: Slot, verdict: Any, error: BaseException | None) -> None:
        self.check = None
        engine = self._engine
        try:
            if isinstance(error, Undone):  # by close()
                engine.closing.follow(engine.returns.settle(slot, looked_at=True))
            elif error is not None or verdict is False:
                engine.hooks.fail_check(slot, error)
            else:
                engine.returns.settle(slot, looked_at=True)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        if self._loop is None:
            self._round.clear()
            self._checking = False
        else:
            self._soon(self._next, Maintenance._check_next)

    def resume(self) -> None:
        """A step was broken off: do what it has not come to."""
        if self._loop is None:
            return
        self.expect(self._engine.time())
        if self._checking and self.check is None and not self._next.is_set:
            self._go_on()

    # -- timers ------------------------------------------------------------------------------------

    def run(self, step: Step) -> None:
        """Do this as a step; an error in it does not stop the next."""
        engine = self._engine
        pool = engine.pool  # kept alive for the time of the step
        if pool is None:
            return
        try:
            engine.step(step, self)
        except Exception as error:
            engine.signals.log(ERROR, "maintenance failed, and continues", error=error)

    def _later(self, timer: Timer, delay: float, step: Step) -> None:
        assert self._loop is not None
        timer.start(self._loop, delay, _run, weakref.ref(self), step)

    def _soon(self, timer: Timer, step: Step) -> None:
        assert self._loop is not None
        timer.start_soon(self._loop, _run, weakref.ref(self), step)


Step = Callable[[Maintenance], None]


def _run(reference: weakref.ref[Maintenance], step: Step) -> None:
    """The callback of the timers: it keeps nothing alive."""
    maintenance = reference()
    if maintenance is not None:
        maintenance.run(step)
