"""Creations: the factory, called for a waiter in its own step, or in a task of the pool."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from functools import partial
from logging import DEBUG, WARNING
from math import inf
from typing import TYPE_CHECKING, Any, Final

from .. import messages
from .._core import Claim, Slot
from ..errors import BackendFullError, PoolError, Undone, Withheld
from ..events import DestroyReason, EventKind
from ..hooks import drop, is_awaitable
from ..states import Phase
from .hooks import HookTask
from .operation import raise_fatal

if TYPE_CHECKING:
    from .engine import Engine

LIFETIME_JITTER: Final = 0.1  # so that resources made together do not end together


class Creations:
    """What is being made, and the last failure of the factory."""

    __slots__ = (
        "_engine", "_failed_at", "failing", "full", "full_since", "is_sync", "last_error",
        "listeners", "tasks", "word_timeout",
    )  # fmt: skip

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self.tasks: dict[Slot, HookTask] = {}  # the creations in tasks of the pool
        self.listeners: list[list[BaseException]] = []  # the failures of each open() under way
        self.last_error: BaseException | None = None  # of the factory; see forget_failure
        self._failed_at = 0.0  # loop time of that error
        self.failing: bool = False  # the last creation that ended has failed
        self.is_sync: bool = (
            engine.core.sync_factory
        )  # while it is full, the core waits all the same
        # What the factory said when the backend had no room; None: it has, as far as is known.
        self.full: BackendFullError | None = None
        self.full_since: float = 0.0  # loop time of the first such error
        # Makes the error of a factory that took longer than so many seconds.
        self.word_timeout: Callable[[float], PoolError] = partial(
            messages.create_timeout, engine.name
        )

    def fill(self, least: int = 0) -> None:
        """Start what is missing to min_size, or to `least`, unless the backend is full."""
        core = self._engine.core
        # Counted once: with eager tasks a factory has perhaps failed when start() returns.
        for _ in range(max(core.shortage(), least - core.count - core.opening)):
            slot = None if self.full is not None else core.permit_for_pool()
            if slot is None:
                return
            self.start(slot)

    def start(
        self,
        slot: Slot,
        made: Any = None,
        context: Context | None = None,
        told: asyncio.Future[BaseException | None] | None = None,
    ) -> None:
        """Create in a task of the pool. `made`: the awaitable that the factory has returned;
        `told`: of a probe, which gets the error instead of a waiter."""
        engine = self._engine
        limit, began = engine.settings.create_timeout, engine.time()
        work = HookTask(
            engine.hooks,
            engine.lending.factory if made is None else None,
            awaitable=made,
            timeout=limit,
            overrun=lambda: self.word_timeout(limit),
            done=partial(self._created, slot, began, told),
            late=partial(self._destroy_late, began),
            slot=slot,
            context=engine.context.copy() if context is None else context,
            name=f"cenote factory of {messages.label(engine.name)}",
        )
        if not work.finished:
            self.tasks[slot] = work

    def make(self, slot: Slot, claim: Claim, *, start: bool) -> bool:
        """Create in this step. False: the factory is async; with `start` it goes on as a task."""
        engine = self._engine
        context = engine.context.copy()
        began = engine.time()
        try:
            made = engine.call_out(context.run, engine.lending.factory)
        except BackendFullError as error:
            self._refused(slot, error)
            return False
        except Withheld:
            self._withheld(slot)
            return False
        except BaseException as error:
            self._failed_here(slot, claim, error, began)
            raise
        if made is None:
            nothing = messages.made_nothing(engine.name)
            self._failed_here(slot, claim, nothing, began)
            raise nothing
        if not is_awaitable(made):
            self._opened(slot, made, began)
            if engine.settings.max_creating is not None:
                engine.advance()  # another one may be made
            return True
        engine.core.sync_factory = self.is_sync = False
        if start or not drop(made):
            self.start(slot, made, context)
        else:
            engine.core.fail_slot(slot)
        return False

    async def probe(self) -> bool:
        """Make one resource, also while the breaker is open. False: there is no room for one.

        Raises what the factory raises, which no waiter gets then.
        """
        engine = self._engine
        await engine.steps.turn()
        engine.step(engine.enter)
        told = asyncio.get_running_loop().create_future()
        if not engine.step(self._start_probe, told):
            return False
        error = await told
        if isinstance(error, Withheld):
            return False
        if error is not None:
            try:
                raise error
            finally:
                del error  # no cycle through this frame
        return True

    def _start_probe(self, told: asyncio.Future[BaseException | None]) -> bool:
        slot = self._engine.core.permit_for_pool()
        if slot is not None:
            self.start(slot, told=told)
        return slot is not None

    def forget_failure(self) -> bool:
        """Let go of the factory's last error, unless a claim waits that may time out because of it:
        its traceback has the variables of every frame that it has passed."""
        core = self._engine.core
        first = core.first
        if core.granted_count or (first is not None and first.began <= self._failed_at):
            return False
        if core.lanes and any(claim.began <= self._failed_at for claim in core.waiters()):
            return False  # with priorities the first is not the oldest
        self.last_error = None
        return True

    def _created(
        self,
        slot: Slot,
        began: float,
        told: asyncio.Future[BaseException | None] | None,
        made: Any,
        error: BaseException | None,
    ) -> None:
        """The task of a factory is done. `made` beside an error: it was cut off and came late."""
        self.tasks.pop(slot, None)
        if not self.tasks:
            self.tasks.clear()  # of the memory for all that were made at once
        if made is None and error is None:
            error = messages.made_nothing(self._engine.name)
        if told is not None and not told.done():
            undone = isinstance(error, Undone)
            told.set_result(self._engine.closing.error() if undone else error)
        if isinstance(error, Undone):
            self._undone(slot, began, made)
        elif isinstance(error, BackendFullError):
            self._refused(slot, error)
        elif isinstance(error, Withheld):
            self._withheld(slot)
        elif made is None:
            assert error is not None
            self._failed(slot, error, began, to_waiter=told is None)
        else:
            self._opened(slot, made, began)
            if error is None:
                self._engine.settle(slot)
            else:
                self._note_failure(error, began, to_waiter=told is None)
                self._engine.destructions.destroy(slot, DestroyReason.LATE)
        if self._engine.claims.outwaited:
            self._engine.claims.end_overtaken()

    def _undone(self, slot: Slot, began: float, made: Any) -> None:
        """close(), or an open() that failed, has cancelled this creation: not a failure."""
        engine = self._engine
        if made is None:
            engine.core.fail_slot(slot)
            engine.signals.changed()
            engine.advance()
            return
        self._opened(slot, made, began)
        if engine.core.phase is Phase.CLOSED:
            engine.closing.follow(engine.destructions.destroy(slot, DestroyReason.CLOSED))
        else:
            engine.destructions.destroy(slot, DestroyReason.OPEN_FAILED)

    def _refused(self, slot: Slot, error: BackendFullError) -> None:
        """The backend is full: nobody gets this error; it is tried again after a while."""
        engine = self._engine
        if self.full is None:
            self.full_since = engine.time()
        self.full = error
        engine.core.sync_factory = False  # what waits stays in the queue
        engine.core.fail_slot(slot)
        engine.maintenance.await_room(error)
        engine.claims.end_waits()
        engine.signals.changed()
        engine.advance()

    def _withheld(self, slot: Slot) -> None:
        """The capacity is not lent any more: nobody gets an error, and a resize brings more."""
        engine = self._engine
        engine.core.fail_slot(slot)
        engine.lending.withhold()
        engine.claims.end_waits()
        engine.signals.changed()
        engine.advance()

    def try_again(self) -> None:
        """Look with one creation whether the backend has room again, if somebody wants it."""
        core = self._engine.core
        wanted = core.demand() or core.shortage() or self.listeners
        slot = core.permit_for_pool() if wanted else None
        if slot is not None:
            self.start(slot)
        else:
            self.found_room()
            self._engine.advance()

    def found_room(self) -> None:
        """As far as is known the backend is not full (any more)."""
        self.full = None
        self._engine.core.sync_factory = self.is_sync

    def _opened(self, slot: Slot, made: Any, began: float) -> None:
        engine = self._engine
        if self.full is not None:
            self.found_room()
        self.failing = False
        now = engine.history.catch_up()
        lifetime = engine.settings.max_lifetime
        expires_at = inf
        if lifetime is not None:
            expires_at = now + lifetime * random.uniform(1 - LIFETIME_JITTER, 1 + LIFETIME_JITTER)
        engine.core.open_slot(slot, made, expires_at)
        engine.totals.created += 1
        engine.maintenance.created()
        engine.signals.note(EventKind.CREATED, made, duration=now - began)
        engine.signals.changed()

    def _failed_here(self, slot: Slot, claim: Claim, error: BaseException, began: float) -> None:
        """A factory failed in the step of this claim, which gives its place of its lane up before
        the slot is free: else a younger claim would overtake the one that waits for the place."""
        self._engine.lanes.note_time()
        self._engine.core.dismiss(claim)
        self._failed(slot, error, began, to_waiter=False)

    def _failed(self, slot: Slot, error: BaseException, began: float, *, to_waiter: bool) -> None:
        self._engine.core.fail_slot(slot)
        self._note_failure(error, began, to_waiter=to_waiter)
        self._engine.advance()

    def _note_failure(self, error: BaseException, began: float, *, to_waiter: bool) -> None:
        """A factory failed: first the oldest waiter gets the error, then the strategy."""
        engine = self._engine
        failed = isinstance(error, Exception)  # else it says nothing about the backend
        if failed:
            engine.factory_failures += 1
            self.failing = True
        for failures in self.listeners:
            failures.append(error)
        oldest = engine.core.first if to_waiter else None
        if oldest is not None:
            oldest.waiter.wake()
            engine.lanes.note_time()
            engine.core.fail(oldest, error)
        if failed:
            self.last_error, self._failed_at = error, engine.time()
            if not self.forget_failure():
                engine.maintenance.remember()
        delay = engine.maintenance.failed()
        if not isinstance(error, asyncio.CancelledError):
            # A waiter, or open(), raises the error anyway: no flood of warnings in an outage.
            raised = not to_waiter or oldest is not None or bool(self.listeners)
            level = DEBUG if raised else WARNING
            what = engine.words.of("factory", "the factory")
            if delay is not None and engine.core.shortage() and not self.listeners:
                engine.signals.explain(
                    level,
                    error,
                    "min_size is tried again in %s",
                    messages.seconds(delay),
                    what=what,
                )
            else:
                engine.signals.explain(level, error, what=what)
        took = engine.time() - began
        engine.signals.note(EventKind.CREATE_FAILED, duration=took, error=error)
        if oldest is not None:
            engine.accounts.ended(oldest, error)
        if failed:
            engine.circuit.report_failure(error, None)
        engine.signals.changed()

    def _destroy_late(self, began: float, made: Any) -> None:
        """A factory was left behind and has made something after all: it has no slot any more."""
        if made is None:
            return
        engine = self._engine
        what = engine.words.of("factory", "a factory")
        engine.signals.log(WARNING, "%s came to an end after it was given up", what)
        engine.totals.created += 1
        if engine.subscribers:
            took = asyncio.get_running_loop().time() - began
            engine.signals.emit(EventKind.CREATED, made, duration=took)
        raise_fatal(engine.destructions.call(made, DestroyReason.LATE))
