"""The fast path in Python: acquire and release, as far as nothing has to be waited for.

`_native/` has the same classes. What suspends, fails or is observed is in `pool/`, which both use:
the fast path calls what `contract.SlowPath` names.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from math import inf
from types import CodeType, TracebackType
from typing import Any, Generic, TypeVar

from .._core.machine import Core
from .._core.records import Claim, Slot
from ..caller import caller, internal
from ..hooks import RETIRE, is_awaitable
from ..options import UNSET, Unset, optional_duration
from ..states import ACQUIRE, AcquireState, CircuitState, ClaimState, Handover, Phase

T = TypeVar("T")
Kind = TypeVar("Kind", bound=type)

# Looked up for every acquire.
ACTIVE, HOLDING, CLOSED, OPEN = (
    CircuitState.ACTIVE, ClaimState.HOLDING, Phase.CLOSED, Phase.OPEN
)  # fmt: skip
FRESH, OVER = AcquireState.FRESH, AcquireState.OVER
running_loop = asyncio._get_running_loop


class Acquire(Claim, Generic[T]):
    """One acquire of a pool; it does nothing until it is awaited or entered, once."""

    __slots__ = ("_driver", "_pool", "_steps", "stage")

    began: float  # these of the claim are set here
    in_block: bool
    seen_idle: int
    task: Any
    uncounted: bool
    wait_timeout: float | None

    def __init__(self, pool: Any, timeout: float | None, code: CodeType, instruction: int) -> None:
        super().__init__()
        self.code: CodeType | None = code
        self.instruction: int = instruction
        self.timeout: float | None = timeout
        self._pool = pool
        self.stage: AcquireState = FRESH
        self._driver: object = None  # whose __await__() drives it, from BEGUN on
        self._steps: Generator[Any, None, T] | None = None  # driven as a coroutine

    def __await__(self) -> Generator[Any, None, T]:
        engine = self._pool._engine
        while engine.core.busy:
            yield
        driver = object()
        try:
            at, found, answer = engine.step(self._begin, engine, driver)
            if at is not None:
                self.stage = ACQUIRE[self.stage, "delegate"]
                found = yield from engine.obtain(self, at, found, answer).__await__()
            self.stage = ACQUIRE[self.stage, "end"]
        except BaseException as error:
            if self._driver is driver:
                try:
                    self._end()
                    engine.lose(self, error)
                except BaseException:  # broken off in turn: that goes on, but no end is uncounted
                    engine.lose(self, error)
                    raise
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
            self._never_begin()
        return self._steps.throw(*error)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
        self._never_begin()

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        engine, slot = self._pool._engine, self.slot
        if self.state is not HOLDING or slot is None:
            return engine.done  # type: ignore[no-any-return]  # released inside the block
        if error is not None:
            return engine.leave(self, error)  # type: ignore[no-any-return]
        if running_loop() is not engine.loop:
            engine.check_loop()
        if engine.core.busy:
            return engine.defer_return(slot, False)  # type: ignore[no-any-return]
        return engine.step(give_back, engine, slot)  # type: ignore[no-any-return]

    def _begin(self, engine: Any, driver: object) -> tuple[Handover | None, Any, Any]:
        """None and the resource; or where to go on, the slot in hand, and the hook's answer."""
        core = engine.core
        if self.stage is not FRESH:
            raise used_before()
        if core.phase is not OPEN or running_loop() is not engine.loop:
            engine.begin(self)
            if self.stage is not FRESH:  # a subscriber to the opening has driven it
                raise used_before()
        self.stage = ACQUIRE[self.stage, "begin"]
        self._driver, self.uncounted = driver, True
        core.begun += 1
        now = self.began = engine.time()
        if now >= engine.sample_at:
            engine.sample(now)
        self.task = asyncio.current_task(engine.loop)
        self.seen_idle = core.idle_seqs
        if core.circuit is not ACTIVE:
            engine.admit_or_raise(self)
        slot: Slot | None = core.take() if self.lane is None or core.enter(self) else None
        if slot is None:
            return Handover.SEEKING, None, None
        if slot.expires_at <= now:
            return Handover.SHOWING, slot, None
        if engine.before_acquire is not None and not engine.skips_check(slot, now):
            verdict = self._ask(engine, slot)
            if verdict is False:
                return Handover.SEEKING, None, None
            if is_awaitable(verdict):
                return Handover.INSPECTING, slot, verdict
            if core.phase is CLOSED:  # by the hook
                return Handover.ACCEPTED, slot, None
        resource = slot.resource  # a subscriber may discard it
        core.hold(self, slot, now, 0.0)
        self.stage = ACQUIRE[self.stage, "serve"]
        if engine.on_acquired or engine.hold_warning is not None:
            engine.held(self, slot)  # __await__ handles what it raises
        return None, resource, None

    def _never_begin(self) -> None:
        if self.stage is FRESH:
            self._end()

    def _end(self) -> None:
        if self.stage is not OVER:
            self.stage = ACQUIRE[self.stage, "end"]

    def _ask(self, engine: Any, slot: Slot) -> Any:
        """The answer of before_acquire; after False the slot is destroyed."""
        try:
            verdict, error = engine.call_out(engine.before_acquire, slot.resource), None
        except BaseException as raised:
            verdict, error = False, raised
        if verdict is False:
            try:
                engine.refuse(slot, error)
            except BaseException:
                engine.core.dismiss(self)
                raise
            finally:
                del error  # no cycle through this frame
        return verdict


def used_before() -> RuntimeError:
    """The error of an acquire() that is awaited or entered again."""
    return RuntimeError("this acquire() was used before; call pool.acquire() for each resource")


def give_back(engine: Any, slot: Slot, clean: bool = False) -> Any:
    """The holder gives the slot back: an operation that leads to the end. `clean`: before_release
    need not look at it."""
    core, now = engine.core, engine.time()
    if now >= engine.sample_at:
        engine.sample(now)
    claim = core.reclaim(slot, now)
    if engine.on_released:
        engine.returned(claim, slot)
    if engine.before_release is not None and not clean:
        try:
            verdict = engine.call_out(engine.before_release, slot.resource)
        except BaseException as error:
            return engine.examine(slot, None, error)
        if verdict is False or verdict is RETIRE or is_awaitable(verdict):
            return engine.examine(slot, verdict, None)
    if engine.strategy is not None:
        engine.report_success(slot.probe)
    if core.put(slot, now) is not None:
        return engine.settle(slot)
    until = slot.expires_at if core.max_idle is None else min(now + core.max_idle, slot.expires_at)
    if until < engine.next_sweep:
        engine.expect(slot)
    if core.queued or core.parked or core.min_size or core.phase is not OPEN:
        engine.advance()
    return engine.done


class EngineBase:
    """What the fast path reads of an engine, and the engine writes: the base of `pool.Engine`."""

    __slots__ = (
        "acquire_timeout", "before_acquire", "before_release", "core", "direct_clock",
        "direct_future", "factory_failures", "find_caller", "hold_warning", "loop", "max_waiting",
        "must_tidy", "next_sweep", "on_acquired", "on_released", "on_waiting", "pool_ref",
        "sample_at", "skip_check_within", "strategy", "suspect_before", "thread", "time",
    )  # fmt: skip

    core: Core

    def __init__(self) -> None:
        self.pool_ref: Callable[[], Any] = none  # a weak reference
        # Who has called acquire(), in a pool with skip_frames; None: as caller() says.
        self.find_caller: Callable[[Any], tuple[CodeType, int]] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: int = 0  # in which the loop runs
        self.time: Callable[[], float] = none  # the clock of the loop
        # For the native core: the loop's time is the monotonic clock.
        self.direct_clock: bool = False
        self.direct_future: bool = False  # likewise: its futures are asyncio's
        self.before_acquire: Any = None
        self.before_release: Any = None
        self.strategy: Any = None
        # Who wants these events.
        self.on_acquired: tuple[Any, ...] = ()
        self.on_released: tuple[Any, ...] = ()
        self.on_waiting: tuple[Any, ...] = ()
        self.hold_warning: float | None = None
        self.acquire_timeout: float | None = None
        # A resource that came back less than `skip_check_within` seconds ago, and after
        # `suspect_before`, is not shown to before_acquire: it was in use until this moment.
        self.skip_check_within: float = 0.0
        self.suspect_before: float = 0.0
        self.next_sweep: float = inf  # loop time at which maintenance looks again
        # When the second under way ends: what happens then records it first. See pool/samples.py.
        self.sample_at: float = inf
        self.must_tidy: bool = False  # a step was broken off: see pool/steps.py
        self.max_waiting: int = -1  # no limit
        self.factory_failures: int = 0  # in total

    @property
    def pool(self) -> Any:
        """The pool, or None if it is gone."""
        return self.pool_ref()

    def skips_check(self, slot: Slot, now: float) -> bool:
        """Whether before_acquire need not look at this slot."""
        since = slot.idle_since
        return now - since < self.skip_check_within and since > self.suspect_before


def none() -> Any:
    """Nothing, before it is set."""


class FastPath(Generic[T]):
    """The face of a pool, as far as it needs no waiting."""

    __slots__ = ("_engine",)

    _engine: Any

    def acquire(
        self,
        timeout: float | Unset | None = UNSET,
        *,
        wait_timeout: float | None = None,
        scoped: bool = False,
    ) -> Acquire[T]:
        """Acquire a resource: `async with pool.acquire() as resource:`, or `await pool.acquire()`.

        The call by itself does nothing. After `await`, pass the resource to `release()` yourself;
        the `async with` block does that at its end.

        Args:
            timeout: Seconds for all of it, factory and hooks included. The default is
                `acquire_timeout`; None waits without a limit; 0 does not wait.
            wait_timeout: Seconds in the queue alone; with 0 it does not queue, but a factory may
                run.
            scoped: The resource belongs to a block of this task, which releases it at its end, as
                `async with` does; so deadlocks are detected.

        Raises:
            AcquireTimeoutError: There was no resource in time; the message names the holders.
            PoolClosedError: The pool is closed.
            ServiceUnavailableError: The circuit breaker is open.
            PoolOverloadedError: Too many acquires wait already.
            PoolDeadlockError: The resources are held by tasks that wait for more.
            Exception: What the factory raised.
        """
        limit = (
            self._engine.acquire_timeout
            if timeout is UNSET
            else optional_duration("timeout", timeout)
        )
        frame = sys._getframe(1)
        if wait_timeout is not None or scoped or self._engine.find_caller is not None:
            find = self._engine.find_caller or caller
            code, instruction = find(frame)
            acquire: Acquire[T] = Acquire(self, limit, code, instruction)
            acquire.wait_timeout = optional_duration("wait_timeout", wait_timeout)
            acquire.in_block = bool(scoped)
            return acquire
        if internal.get(frame.f_code.co_filename) is False:
            return Acquire(self, limit, frame.f_code, frame.f_lasti)
        return Acquire(self, limit, *caller(frame))

    def try_acquire(self) -> T | None:
        """Return an idle resource, or a new one of a sync factory; None if that needs waiting."""
        engine = self._engine
        if engine.core.busy:
            return None  # in the middle of another step: that would need waiting
        return engine.step(engine.try_acquire_slow)  # type: ignore[no-any-return]

    def release(self, resource: T) -> Any:
        """Release a resource; await the result to wait for async hooks.

        Args:
            resource: What `acquire()` gave.

        Raises:
            NotAcquiredError: The resource is not acquired.
        """
        return self._release(resource, False)

    def _release_clean(self, resource: T) -> Any:
        """The same, of what before_release need not look at."""
        return self._release(resource, True)

    def _release(self, resource: T, clean: bool) -> Any:
        engine = self._engine
        engine.check_loop()
        slot = engine.leased(resource, "release")
        if engine.core.busy:
            return engine.completed(engine.defer_return(slot, clean))
        return engine.completed(engine.step(give_back, engine, slot, clean))

    @property
    def count(self) -> int:
        """Idle and active resources."""
        return self._engine.core.count  # type: ignore[no-any-return]

    @property
    def idle_count(self) -> int:
        """Resources that nobody uses."""
        return self._engine.core.idle_count  # type: ignore[no-any-return]

    @property
    def active_count(self) -> int:
        """Resources leased, or being examined by a hook."""
        return self._engine.core.active  # type: ignore[no-any-return]

    @property
    def waiting_count(self) -> int:
        """Acquires waiting for a resource."""
        return self._engine.core.waiting  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self._engine.core.count  # type: ignore[no-any-return]


def adopt(kind: Kind) -> Kind:
    """For the native core, whose methods the interpreter calls faster if the class has its own."""
    return kind
