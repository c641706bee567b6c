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
from contextvars import Context
from functools import partial
from logging import ERROR, WARNING
from math import inf
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from .._core import Slot, expired, next_expiry
from ..events import DestroyReason, EventKind, line_of, task_name
from ..hooks import is_awaitable
from ..states import SlotState
from .hooks import LONGEST, HookTask

if TYPE_CHECKING:
    from .runtime import Runtime

FIRST_RETRY: Final = 0.5  # seconds before min_size is tried again after a failed factory; doubles
LAST_RETRY: Final = 30.0
RETRY_JITTER: Final = 0.5  # a retry comes up to this part earlier
MEMORY: Final = 1.0  # seconds between two looks whether a failure can be forgotten


class Maintenance:
    def __init__(
        self,
        pool: Runtime[Any],
        *,
        healthcheck: Callable[[Any], Any] | None,
        interval: float,
        hold_warning: float | None,
    ) -> None:
        self._pool = weakref.ref(pool)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._healthcheck = healthcheck
        self._interval = interval if healthcheck is not None else 0.0
        self.hold_warning = hold_warning
        self.paused = False  # no refill: a failed open is being undone
        self._due: asyncio.Handle | None = None  # the next lifetime, idle time or warning
        self._due_at = 0.0  # its loop time; uvloop's handle of what is due now does not tell
        self._check: asyncio.TimerHandle | None = None  # the next round of health checks
        self._fill: asyncio.Handle | None = None  # the next attempt to restore min_size
        self._round: deque[Slot] = deque()  # what this round has still to check
        self._checking = False
        self._next: asyncio.Handle | None = None  # the next of this round
        self.check: HookTask | None = None  # the async healthcheck under way
        self._failures = 0  # of the factory, in a row
        self._backs_off = False  # that attempt waits because of them
        self._memory: asyncio.TimerHandle | None = None  # the next look whether to forget the last
        self._wary = False  # look whether the loop is going down before creating anything

    def anew(self) -> Maintenance:
        """For the child of a fork: the same work, not begun."""
        pool = self._pool()
        assert pool is not None
        return Maintenance(
            pool,
            healthcheck=self._healthcheck,
            interval=self._interval,
            hold_warning=self.hold_warning,
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._interval > 0:
            self._check = self._later(self._interval, Maintenance._start_round)

    def stop(self) -> None:
        for handle in (self._due, self._check, self._fill, self._memory):
            if handle is not None:
                handle.cancel()
        self._due = self._check = self._fill = self._memory = None
        self._tell(inf)
        self._round.clear()
        self._loop = None

    # -- min_size --------------------------------------------------------------------------------

    def refill(self) -> None:
        """Restore min_size soon; after a failure only when its backoff is over."""
        if self._fill is None and self._loop is not None and not self.paused:
            self._fill = self._loop.call_soon(
                _run, weakref.ref(self), Maintenance._refill, context=Context()
            )

    def _refill(self, pool: Runtime[Any]) -> None:
        self._fill = None
        self._backs_off = False
        if self.paused:
            return
        if self._wary and not any(not task.cancelling() for task in asyncio.all_tasks(self._loop)):
            # Whatever is started now in a loop that goes down is never finished. If it is still
            # there after a while, it does not.
            self._wary = False
            self._fill = self._later(FIRST_RETRY, Maintenance._refill)
            return
        self._wary = False
        pool._fill()

    def beware(self) -> None:
        """Something was destroyed because a task was cancelled: the loop may be going down."""
        self._wary = True

    def created(self) -> None:
        """A creation has succeeded, whoever wanted it: the backoff is over."""
        self._failures = 0
        if self._backs_off and self._fill is not None:
            self._fill.cancel()
            self._fill = None
            self._backs_off = False
            self.refill()

    def failed(self) -> None:
        """The factory failed: back off."""
        if self._loop is None:
            return
        delay = min(FIRST_RETRY * 2 ** min(self._failures, 30), LAST_RETRY)
        self._failures += 1
        if self._fill is not None:
            self._fill.cancel()
        self._fill = self._later(delay * random.uniform(1 - RETRY_JITTER, 1), Maintenance._refill)
        self._backs_off = True

    def remember(self) -> None:
        """The pool keeps the error of its factory for those who wait: see that it lets go of it."""
        if self._memory is None and self._loop is not None:
            self._memory = self._later(MEMORY, Maintenance._forget)

    def _forget(self, pool: Runtime[Any]) -> None:
        self._memory = None
        if not pool._forget_failure():
            self.remember()

    # -- lifetimes, idle times, hold warnings ----------------------------------------------------

    def expect(self, when: float) -> None:
        """Something may be due at that time."""
        if self._loop is None or when == inf:
            return
        if self._due is None or when < self._due_at:
            if self._due is not None:
                self._due.cancel()
            when = min(when, self._loop.time() + LONGEST)
            self._due_at = when
            self._tell(when)
            self._due = self._loop.call_at(
                when, _run, weakref.ref(self), Maintenance._sweep, context=Context()
            )

    def _tell(self, when: float) -> None:
        """The pool need not speak of what is due later than that."""
        pool = self._pool()
        if pool is not None:
            pool._due_at = when

    def _sweep(self, pool: Runtime[Any]) -> None:
        assert self._due is not None
        # A timer may come a clock tick early: what it came for is due all the same.
        now = max(pool._time(), self._due_at)
        self._due = None
        self._tell(inf)
        core = pool._core
        for slot, reason in expired(core, now):
            if slot.state is SlotState.IDLE:
                core.take_this(slot)
                pool._destroy(slot, reason)
        when = next_expiry(core)
        if self.hold_warning is not None:
            when = min(when, self._warn_of_long_holds(pool, now))
        self.expect(when)

    def _warn_of_long_holds(self, pool: Runtime[Any], now: float) -> float:
        """Say once for each lease what was held too long; when the next one will be."""
        assert self.hold_warning is not None
        upcoming = inf
        for lease in sorted(pool._core.holders(), key=lambda lease: lease.lease_seq):
            if lease.warned or lease.slot is None:
                continue
            when = lease.since + self.hold_warning
            if when > now:
                upcoming = min(upcoming, when)
                continue
            lease.warned = True
            where = "unknown"
            if lease.code is not None:
                where = f"{lease.code.co_filename}:{line_of(lease.code, lease.instruction)}"
            held = now - lease.since
            task = task_name(lease.task)
            pool._log(
                WARNING, "a resource is held for %s by task %r (%s), hold_warning is %s",
                errors.seconds(held), task, where, errors.seconds(self.hold_warning),
                event=EventKind.HELD_LONG, task=task, seconds=held, reason=where,
            )  # fmt: skip
            if pool._subscribers:
                pool._emit(
                    EventKind.HELD_LONG,
                    lease.slot.resource,
                    lease.task,
                    duration=held,
                    reason=where,
                )
        return upcoming

    # -- health checks ---------------------------------------------------------------------------

    def _start_round(self, pool: Runtime[Any]) -> None:
        self._check = self._later(self._interval, Maintenance._start_round)
        if not self._checking:
            self._checking = True
            self._round.extend(pool._core.idle_slots())
            self._check_next(pool)

    def _check_next(self, pool: Runtime[Any]) -> None:
        """One resource at a time, so that the others stay available."""
        self._next = None
        while self._round:
            slot = self._round.popleft()
            if slot.state is SlotState.IDLE:
                self._check_one(pool, slot)
                return
        self._checking = False

    def _check_one(self, pool: Runtime[Any], slot: Slot) -> None:
        assert self._healthcheck is not None
        pool._core.take_this(slot)
        try:
            context = pool._context.copy()
            verdict = pool._call_out(context.run, self._healthcheck, slot.resource)
        except Exception as error:
            self._checked(slot, None, error)
        except BaseException:
            pool._destroy(slot, DestroyReason.CHECK_FAILED)
            self._go_on()
            raise
        else:
            if is_awaitable(verdict):
                checked = partial(self._checked, slot)
                work = pool._start_hook("healthcheck", slot, verdict, checked)
                self.check = None if work.finished else work
            else:
                self._checked(slot, verdict, None)

    def _checked(self, slot: Slot, verdict: Any, error: BaseException | None) -> None:
        self.check = None
        pool = self._pool()
        if pool is None:
            return
        try:
            if isinstance(error, errors.Undone):  # by close()
                pool._shut_part(pool._settle(slot, looked_at=True))
            elif error is not None or verdict is False:
                pool._fail_check(slot, error)
            else:
                pool._settle(slot, looked_at=True)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        if self._loop is None:
            self._round.clear()
            self._checking = False
        else:
            self._next = self._loop.call_soon(
                _run, weakref.ref(self), Maintenance._check_next, context=Context()
            )

    def go_on(self, pool: Runtime[Any]) -> None:
        """A step was broken off: whatever it has not come to is done."""
        if self._loop is None:
            return
        self.expect(pool._time())
        if self._checking and self.check is None and self._next is None:
            self._go_on()

    def _later(self, delay: float, step: Step) -> asyncio.TimerHandle:
        assert self._loop is not None
        # An empty context: one that is full of somebody's values would keep them alive.
        return self._loop.call_later(
            min(delay, LONGEST), _run, weakref.ref(self), step, context=Context()
        )


Step = Callable[[Maintenance, Any], None]


def _run(reference: weakref.ref[Maintenance], step: Step) -> None:
    maintenance = reference()
    pool = None if maintenance is None else maintenance._pool()
    if maintenance is None or pool is None:
        return
    try:
        pool._step(step, maintenance, pool)
    except Exception as error:
        pool._log(ERROR, "maintenance failed, and goes on", error=error)
