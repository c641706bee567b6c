"""The fast path in Python: acquire and release, as far as nothing has to be waited for.

`_native/` has the same two classes. What suspends, fails or is observed is in `pool/runtime.py`
and `pool/waiter.py`, which both share.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Generator
from math import inf
from types import CodeType, TracebackType
from typing import Any, Generic, TypeVar

from .._core.machine import Core
from .._core.records import Claim, Slot
from ..caller import caller
from ..hooks import is_awaitable
from ..options import UNSET, Unset, optional_duration
from ..states import ClaimState, Phase

T = TypeVar("T")
Kind = TypeVar("Kind", bound=type)


class Acquire(Claim, Generic[T]):
    """One acquire of a pool; it does nothing until it is awaited or entered, once."""

    __slots__ = ("_front", "_steps", "_used")

    def __init__(self, front: Any, timeout: float | None, code: CodeType, instruction: int) -> None:
        super().__init__()
        self.code = code
        self.instruction = instruction
        self.timeout = timeout
        self._front = front
        self._used: object = None  # by whom
        self._steps: Generator[Any, None, T] | None = None  # driven as a coroutine

    def __await__(self) -> Generator[Any, None, T]:
        front = self._front
        slow = front if front._engine is None else front._engine
        while front._core.busy:
            yield
        driver = object()
        try:
            ready, found, verdict = slow._step(self._begin, driver)
            if not ready:
                found = yield from slow._obtain(self, found, verdict).__await__()
        except BaseException as error:
            if self._used is driver:
                slow._lose(self, error)
            raise
        return found  # type: ignore[no-any-return]

    async def __aenter__(self) -> T:
        self.in_block = True
        return await self

    def send(self, value: Any) -> Any:
        """With throw and close: a coroutine to asyncio, so that create_task() takes it."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
            self._used = True  # it never began
        return self._steps.throw(*error)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
        self._used = True

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        front, slot = self._front, self.slot
        slow = front if front._engine is None else front._engine
        if self.state is not ClaimState.HOLDING or slot is None:
            return slow._done  # type: ignore[no-any-return]  # released inside the block
        if error is not None:
            return slow._leave(self, error)  # type: ignore[no-any-return]
        slow._check_loop()
        return front._return(slot)  # type: ignore[no-any-return]

    def _begin(self, driver: object) -> tuple[bool, Any, Any]:
        """True and the resource; or False, the slot that is in hand already, and its verdict."""
        front = self._front
        slow = front if front._engine is None else front._engine
        self._check_unused()
        slow._enter()
        self._check_unused()  # a subscriber has heard of the opening
        self._used = driver
        core = front._core
        now = self.began = front._time()
        self.task = slow._current_task()
        self.seen_idle = core.idle_seqs
        slow._admit_or_raise(self)
        slot: Slot | None = core.take()
        if slot is None or slot.expires_at <= now:
            return False, slot, None
        if front._before_acquire is not None and not slow._trusts(slot, now):
            try:
                verdict = slow._call_out(front._before_acquire, slot.resource)
            except BaseException as error:
                self._refused(slot, error)
                return False, None, None
            if verdict is False:
                self._refused(slot, None)
                return False, None, None
            if is_awaitable(verdict):
                return False, slot, verdict
            if core.phase is Phase.CLOSED:  # by the hook
                return False, slot, True
        resource = slot.resource  # a subscriber may discard it
        core.hold(self, slot, now, 0.0)
        if front._subscribers or front._hold_warning is not None:
            slow._held(self, slot)  # what it raises, __await__ sees to
        return True, resource, None

    def _check_unused(self) -> None:
        if self._used is not None:
            raise RuntimeError(
                "this acquire() was used before; call pool.acquire() for each resource"
            )

    def _refused(self, slot: Slot, error: BaseException | None) -> None:
        front = self._front
        slow = front if front._engine is None else front._engine
        try:
            slow._refuse(slot, error)
        except BaseException:
            front._core.dismiss(self)
            raise


class FastPath(Generic[T]):
    """The fast path of a pool: what needs no waiting."""

    __slots__ = (
        "_acquire_timeout", "_before_acquire", "_before_release", "_core",
        "_direct_clock", "_direct_future", "_doubted", "_doubtful", "_due_at", "_engine",
        "_hold_warning", "_loop",
        "_max_waiting", "_strategy", "_subscribers", "_thread", "_time", "_trust",
    )  # fmt: skip

    _core: Core

    def __init__(self) -> None:
        self._engine: Any = None  # has the methods of SlowPath; None: the pool itself has them
        self._loop: Any = None
        self._thread = 0  # in which the loop runs
        self._direct_clock = False  # for the native core: the loop's time is the monotonic clock
        self._direct_future = False  # likewise: its futures are asyncio's
        self._time: Any = None
        self._before_acquire: Any = None
        self._before_release: Any = None
        self._strategy: Any = None
        self._subscribers: tuple[Any, ...] = ()
        self._hold_warning: float | None = None
        self._acquire_timeout: float | None = None
        # A resource that came back less than `_trust` seconds ago, and after `_doubted`, is not
        # shown to before_acquire: it was in use until this moment.
        self._trust = 0.0
        self._doubted = 0.0
        self._due_at = inf  # when maintenance looks again
        self._doubtful = False  # a step was broken off: see steps.py
        self._max_waiting = -1  # no limit

    def acquire(self, timeout: float | Unset | None = UNSET) -> Acquire[T]:
        """`await` it, or use it as `async with`; by itself it does nothing.

        `timeout`: seconds for all of it, factory and hooks included; left out it is
        `acquire_timeout`, None waits for ever, 0 takes what is there at once. Raises
        `AcquireTimeoutError`, `PoolClosedError`, `ServiceUnavailableError`, `PoolOverloadedError`,
        `PoolDeadlockError`, or what the factory raised.
        """
        limit = (
            self._acquire_timeout
            if isinstance(timeout, Unset)
            else optional_duration("timeout", timeout)
        )
        return Acquire(self, limit, *caller(sys._getframe(1)))

    def try_acquire(self) -> T | None:
        """An idle resource, or a new one of a sync factory; None if that needs waiting."""
        if self._core.busy:
            return None  # in the middle of another step: that would need waiting
        slow: Any = self if self._engine is None else self._engine
        return slow._step(slow._try_acquire_slow)  # type: ignore[no-any-return]

    def release(self, resource: T) -> Any:
        """Give a resource back. Under way when this returns, and with sync hooks over; awaiting it
        waits for async ones. Raises `NotAcquiredError` if it is not out.
        """
        slow: Any = self if self._engine is None else self._engine
        slow._check_loop()
        slot = slow._leased(resource, "release")
        return slow._completed(self._return(slot))

    def _release_clean(self, resource: T) -> Any:
        """The same, of what before_release need not look at."""
        slow: Any = self if self._engine is None else self._engine
        slow._check_loop()
        slot = slow._leased(resource, "release")
        return slow._completed(self._return(slot, clean=True))

    def _return(self, slot: Slot, *, clean: bool = False) -> Any:
        """As a step, or put off to the end of the one that is under way."""
        slow: Any = self if self._engine is None else self._engine
        if self._core.busy:
            return slow._defer_return(slot, clean)
        return slow._step(self._give_back, slot, clean=clean)

    def _give_back(self, slot: Slot, *, clean: bool = False) -> Any:
        """The holder gives the slot back: an Operation that leads to the end."""
        slow: Any = self if self._engine is None else self._engine
        claim = self._core.reclaim(slot, self._time())
        if self._subscribers:
            slow._returned(claim, slot)
        if self._before_release is not None and not clean:
            try:
                verdict = slow._call_out(self._before_release, slot.resource)
            except BaseException as error:
                return slow._examine(slot, None, error)
            if verdict is False or is_awaitable(verdict):
                return slow._examine(slot, verdict, None)
        if self._strategy is not None:
            slow._report_success(slot.probe)
        return slow._settle(slot)

    def _give_back_clean(self, slot: Slot) -> Any:
        return self._give_back(slot, clean=True)

    @property
    def count(self) -> int:
        """Idle and active resources."""
        return self._core.count

    @property
    def idle_count(self) -> int:
        """Resources that nobody uses."""
        return self._core.idle_count

    @property
    def active_count(self) -> int:
        """Resources that are out, or in a hook."""
        return self._core.active

    @property
    def waiting_count(self) -> int:
        """Acquires that wait."""
        return self._core.waiting

    def __len__(self) -> int:
        return self._core.count


def adopt(kind: Kind) -> Kind:
    """For the native core, whose methods the interpreter calls faster if the class has its own."""
    return kind
