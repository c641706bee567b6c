"""Steps: how a pool stays whole whatever calls in, or breaks off, in the middle of what it does.

A step is everything between a call from outside (the program's, the loop's) and its return. Three
rules hold for all of them:

- **One at a time.** Finalizers, clocks and log handlers may run at any moment, and use the pool.
  While a step is under way `core.busy` is above 0, and what calls in is put off: an acquire comes
  back in the next turn of the loop, `try_acquire()` gives None, and whatever returns an operation
  is done as soon as the step is over.
- **Hooks are not in the middle.** Around the hooks, subscribers and strategies that a step calls
  itself `busy` is 0 (`call_out`): these may do what they like, and the step looks again after.
- **What is in hand has an owner**: a claim, a hook task, or the step under way. If a step is broken
  off (KeyboardInterrupt, RecursionError, MemoryError, a log handler that raises), the next turn of
  the loop, in which no step is under way, finds what has no owner: see `tidying.py`.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from functools import partial
from logging import ERROR
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from .. import messages
from .._core import Claim, Slot
from .._fast import give_back
from ..log import raise_later
from ..states import ClaimState
from ..timer import Timer
from .operation import Operation
from .tidying import tidy

if TYPE_CHECKING:
    from .engine import Engine

P = ParamSpec("P")
R = TypeVar("R")

ANYWHERE = RecursionError, MemoryError  # what may be raised at any point of a step
PENDING = ClaimState.WAITING, ClaimState.GRANTED


class Call(Protocol):
    """Type of `step` and `call_out`: call a function with these arguments, return its result."""

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...


class Steps:
    """The ground rule of a pool: what it does, it does in steps."""

    __slots__ = ("_engine", "_tidying")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._tidying = Timer()  # the turn of the loop in which it looks for what has no owner

    def step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do this as a step, or as a part of the one that is under way."""
        engine = self._engine
        core = engine.core
        if engine.must_tidy:
            self.broken_off()
        core.busy += 1
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, ANYWHERE) or self._unsettled():
                engine.must_tidy = True
                self.broken_off()
            raise
        finally:
            core.busy -= 1

    def call_out(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call this from inside a step; it may use the pool."""
        core = self._engine.core
        busy, core.busy = core.busy, 0
        try:
            return function(*args, **kwargs)
        finally:
            core.busy = busy

    async def turn(self) -> None:
        """Wait until no step is under way."""
        while self._engine.core.busy:  # noqa: ASYNC110 - one turn of the loop is enough
            await asyncio.sleep(0)

    # -- a step that was broken off ----------------------------------------------------------------

    def broken_off(self) -> None:
        """Look for what a step has left that ended by an exception, when none is under way."""
        engine = self._engine
        loop = engine.loop
        if loop is None or loop.is_closed() or threading.get_ident() != engine.thread:
            return
        if not self._tidying.is_set:
            self._tidying.start_soon(loop, tidy, weakref.ref(engine))

    def lose(self, claim: Claim, error: BaseException) -> None:
        """Take care of an acquire that has ended by an exception: a resource that it held by then
        has no holder, and the acquire is not driven any more. One that is collected was given up
        before, where that is safe."""
        engine = self._engine
        engine.accounts.ended(claim, error)
        if claim.state is ClaimState.ASKING:
            placed = claim.placed
            engine.lanes.note_time()
            engine.core.dismiss(claim)
            if placed:  # somebody may have waited for its place of the lane
                engine.step(engine.advance)
        elif claim.state is ClaimState.HOLDING and claim.slot is not None:
            engine.core.reclaim(claim.slot, claim.since)
            self.broken_off()
        elif claim.state in PENDING and not isinstance(error, GeneratorExit):
            if claim.waiter is not None:
                claim.waiter.over = True
            engine.must_tidy = True
            self.broken_off()

    def _unsettled(self) -> bool:
        """Whether something is in hand, or somebody waits beside something free. Otherwise a step
        that has failed, as it may (a timeout, an overload), has left nothing: in a long queue that
        is a great difference."""
        core = self._engine.core
        in_hand = core.active - core.out + core.opening + core.closing + core.granted_count
        return bool(in_hand or (core.first is not None and (core.idle_count or core.room() > 0)))

    # -- what comes in the middle of a step --------------------------------------------------------

    def defer(self, function: Callable[[], Any]) -> Operation:
        """Do this as soon as the step under way is over; the operation follows what it returns."""
        operation = Operation()
        operation.begin()
        engine = self._engine
        assert engine.loop is not None
        engine.loop.call_soon(self._run_deferred, function, operation, engine.pool)
        return operation

    def defer_return(self, slot: Slot, clean: bool) -> Operation:
        """Give the slot back as soon as the step under way is over."""
        return self.defer(partial(self._return_later, slot, slot.holder, clean))

    def _run_deferred(self, function: Callable[[], Any], operation: Operation, pool: Any) -> None:
        """`pool` is only kept alive until now."""
        engine = self._engine
        try:
            inner = function()
        except BaseException as error:
            engine.signals.log(ERROR, "what was put off to the end of a step failed", error=error)
            ends = isinstance(error, KeyboardInterrupt | SystemExit)
            operation.end(None if ends else error)
            if ends:  # it ends the program, by the loop: once is enough
                raise_later(error, engine.loop)
            return
        if isinstance(inner, Operation):
            inner.then(operation)
        else:
            operation.end()

    def _return_later(self, slot: Slot, claim: Claim | None, clean: bool) -> Any:
        engine = self._engine
        if claim is None or slot.holder is not claim:  # somebody else was faster
            raise messages.not_acquired(engine.name, slot.resource, "release")
        # This very slot, not its resource: of twins that may be another task's.
        return self.step(give_back, engine, slot, clean)
