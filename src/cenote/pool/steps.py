"""Steps: how a pool stays whole whatever calls in, or breaks off, in the middle of what it does.

A step is everything between a call from outside (the program's, the loop's) and its return. Three
rules hold for all of them:

- **One at a time.** Finalizers, clocks and log handlers may run at any moment, and use the pool.
  While a step is under way `core.busy` is above 0, and what calls in is put off: an acquire comes
  back in the next turn of the loop, `try_acquire()` gives None, and whatever returns an operation
  is done as soon as the step is over.
- **Hooks are not in the middle.** Around the hooks, subscribers and strategies that a step calls
  itself `busy` is 0 (`_call_out`): these may do what they like, and the step looks again after.
- **What is in hand has an owner**: a claim, a work, or the step under way. If a step is broken off
  (KeyboardInterrupt, RecursionError, MemoryError, a log handler that raises), the next turn of the
  loop, in which no step is under way, finds what nobody owns: see `tidying.py`.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextvars import Context
from functools import partial
from logging import ERROR
from typing import Any, Generic, ParamSpec, TypeVar

from .. import errors
from .._core import Claim, Slot
from .._fast import FastPath
from ..log import raise_later
from ..states import ClaimState
from .operation import DONE, Operation
from .tidying import tidy

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

ANYWHERE = RecursionError, MemoryError  # what may be raised at any point of a step
PENDING = ClaimState.WAITING, ClaimState.GRANTED


class Stepping(FastPath[T], Generic[T]):
    """The ground rule of a pool: what it does, it does in steps."""

    __slots__ = ("_tidying",)

    _done = DONE  # the operation of what has happened already

    _name: str | None
    _tidying: asyncio.Handle | None  # the turn of the loop in which it looks for what is nobody's

    def _step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do this as a step, or as a part of the one that is under way."""
        core = self._core
        if self._doubtful:
            self._broken_off()
        core.busy += 1
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, ANYWHERE) or self._unsettled():
                self._doubtful = True
                self._broken_off()
            raise
        finally:
            core.busy -= 1

    def _call_out(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call this from inside a step; it may use the pool."""
        core = self._core
        busy, core.busy = core.busy, 0
        try:
            return function(*args, **kwargs)
        finally:
            core.busy = busy

    def _unsettled(self) -> bool:
        """Whether something is in hand, or somebody waits beside something free. Otherwise a step
        that has failed, as it may (a timeout, an overload), has left nothing: in a long queue that
        is a great difference."""
        core = self._core
        in_hand = core.active - core.out + core.opening + core.closing + core.granted_count
        return bool(in_hand or (core.waiting and (core.idle_count or core.room() > 0)))

    def _broken_off(self) -> None:
        """A step has ended by an exception: look for what it has left, when none is under way."""
        loop = self._loop
        if loop is None or loop.is_closed() or threading.get_ident() != self._thread:
            return
        if self._tidying is None:
            self._tidying = loop.call_soon(tidy, weakref.ref(self), context=Context())

    def _lose(self, claim: Claim, error: BaseException) -> None:
        """An acquire has ended by an exception: a resource that it held by then has nobody, and
        nobody drives it any more. One that is collected was seen to, where that is safe."""
        if claim.state is ClaimState.ASKING:
            self._core.dismiss(claim)
        elif claim.state is ClaimState.HOLDING and claim.slot is not None:
            self._core.reclaim(claim.slot, claim.since)
            self._broken_off()
        elif claim.state in PENDING and not isinstance(error, GeneratorExit):
            if claim.waiter is not None:
                claim.waiter.over = True
            self._doubtful = True
            self._broken_off()

    async def _turn(self) -> None:
        """Wait until no step is under way."""
        while self._core.busy:  # noqa: ASYNC110 - one turn of the loop is enough
            await asyncio.sleep(0)

    # -- what comes in the middle of a step --------------------------------------------------------

    def _defer(self, function: Callable[[], Any]) -> Operation:
        """Do this as soon as the step is over that is under way; what it returns is followed."""
        operation = Operation()
        operation.begin()
        assert self._loop is not None
        self._loop.call_soon(partial(self._deferred, function, operation))
        return operation

    def _deferred(self, function: Callable[[], Any], operation: Operation) -> None:
        try:
            inner = function()
        except BaseException as error:
            runtime: Any = self
            runtime._log(ERROR, "what was put off to the end of a step failed", error=error)
            ends = isinstance(error, KeyboardInterrupt | SystemExit)
            operation.end(None if ends else error)
            if ends:  # it ends the program, by the loop: once is enough
                raise_later(error, self._loop)
            return
        if isinstance(inner, Operation):
            inner.then(operation)
        else:
            operation.end()

    def _defer_return(self, slot: Slot, clean: bool) -> Operation:
        return self._defer(partial(self._return_later, slot, slot.holder, clean))

    def _return_later(self, slot: Slot, claim: Claim | None, clean: bool) -> Any:
        if claim is None or slot.holder is not claim:  # somebody else was faster
            raise errors.not_acquired(self._name, slot.resource, "release")
        # This very slot, not its resource: of twins that may be another task's.
        return self._step(self._give_back_clean if clean else self._give_back, slot)
