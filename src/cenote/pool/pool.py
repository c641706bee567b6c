"""`cenote.Pool`, the public face. What it does is in `engine.py` and its parts."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Generic, Never, Self, TypeVar, Unpack, overload

from .. import messages, options
from .._fast import FastPath, adopt
from ..breaker import CircuitBreakerStrategy
from ..errors import PoolError
from ..events import EventKind, Holder, PoolEvent, Stats
from ..hooks import Factory
from ..options import UNSET, PoolOptions, Settings, Unset
from ..states import CircuitState, Phase
from . import registry
from .engine import Engine
from .holders import holders_of
from .lanes import Lane
from .operation import Operation, raise_fatal
from .words import Words

T = TypeVar("T")


@adopt
class Pool(FastPath[T], Generic[T]):
    """A pool of resources of which each may be used by one task at a time.

    The constructor creates no resources and needs no event loop; `open()`, `async with` or the
    first `acquire()` opens the pool. All durations are in seconds. `docs/pool.md` says what you may
    rely on, and `docs/reference/options.md` when to change an option.

    Args:
        factory: Makes a resource. It may be sync or async, as all hooks.
        destructor: Called once for each resource, to close it.
        healthcheck: Called in the background with idle resources; False destroys one.
        before_acquire: Called with an idle resource before it is handed out; False destroys it.
        before_release: Called with a resource that comes back; False destroys it.
        min_size: Resources that are kept ready, even while none is needed.
        max_size: The most resources, with those being made and being destroyed.
        healthcheck_interval: How often idle resources are checked; 0 for never.
        acquire_timeout: The timeout of an `acquire()` that has none; None for no limit.
        create_timeout: How long the factory may take.
        hook_timeout: How long each of the three checks may take.
        destructor_timeout: How long a destructor may take before its slot is freed.
        max_waiting: The most acquires that wait; one more raises `PoolOverloadedError`.
        max_creating: The most factories that run at once.
        queue_target: During an overload, refuse tasks that have waited longer than twice this.
        queue_interval: It is an overload if all waits of this time exceed `queue_target`.
        max_lifetime: Replace a resource at this age, give or take 10 %.
        max_idle: Destroy what was idle for this long, above `min_size`.
        max_uses: Destroy a resource after it was acquired this often.
        hold_warning: Log a resource that is held for longer.
        lifo: Hand out the resource that was used last, instead of the one used first.
        strategy: The policy of the circuit breaker; None for no breaker.
        recovering_limit: Acquires that may pass at a time while the breaker recovers.
        reuse_after_cancel: Release what a cancelled block held, instead of destroying it.
        skip_frames: Modules that are never shown as the caller of an acquire.
        fleet: A `Fleet`, whose processes share one budget.
        name: The name in messages, logs and metrics.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option has a wrong value, or options contradict each other.

    Example:
        ```python
        async with cenote.Pool(connect, destructor=Connection.close, max_size=5) as pool:
            async with pool.acquire(timeout=2) as connection:
                await connection.ping()
        ```
    """

    # A pool keeps nothing in its __dict__: as long as there is none, the interpreter (3.13) finds
    # methods without a look into it. A program may still put something there.
    __slots__ = ("__dict__", "__orig_class__", "__weakref__")

    _engine: Engine[T]

    # An async factory first: type checkers take what it gives for the resource otherwise.
    @overload
    def __init__(
        self, factory: Callable[[], Awaitable[T]], **options: Unpack[PoolOptions[T]]
    ) -> None: ...

    @overload
    def __init__(self, factory: Factory[T], **options: Unpack[PoolOptions[T]]) -> None: ...

    def __init__(self, factory: Factory[T], **options: Any) -> None:
        if getattr(self, "_engine", None) is not None:
            raise RuntimeError(
                f"{messages.label(self.name)} was initialized before; make another Pool instead"
            )
        self._engine = Engine(self, Settings.check(factory, options))
        registry.watch(self)
        registry.announce(self)

    @property
    def closed(self) -> bool:
        """Whether the pool is closed; False while it drains."""
        return self._engine.core.phase is Phase.CLOSED

    # -- opening and closing -----------------------------------------------------------------------

    async def open(self) -> None:
        """Bind the pool to the running loop, and create `min_size` resources.

        Raises:
            PoolClosedError: The pool is closed.
            Exception: What the factory raised.
        """
        await self._engine.opening.open(0)

    async def close(self, *, drain: float | None = None) -> None:
        """Close the pool, and wait until the last resource is destroyed.

        New acquires are refused, the waiting ones fail, and idle resources are destroyed at once.
        What is in use is destroyed when it is released.

        Args:
            drain: Seconds in which acquires that already wait are still served, and busy resources
                may come back first. None: it does not wait for them.

        Raises:
            ExceptionGroup: What destructors raised.
            ValueError: `drain` is negative.
        """
        patience = 0.0 if drain is None else options.number("drain", drain)
        if patience < 0:
            raise ValueError(f"drain must be 0 or more seconds, or None, not {drain!r}")
        await self._engine.closing.close(patience)

    def terminate(self) -> None:
        """Close the pool without waiting; a plain method.

        Waiters fail, idle resources are destroyed, and busy ones when they are released. Async
        destructors continue in the background, and the errors of destructors are logged.
        """
        engine = self._engine
        engine.check_loop()
        if engine.core.busy and engine.loop is not None:
            engine.steps.defer(self.terminate)
        else:
            engine.step(engine.closing.terminate)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except BaseExceptionGroup:  # of destructors: logged, and sent as events
            if error is None:
                raise
            raise_fatal(self._engine.closing.operation)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # None: __init__ has failed
        if engine is None or engine.core.phase is Phase.NEW or engine.core.phase is Phase.CLOSED:
            return
        try:
            if engine.binding.is_own_thread():
                engine.destructions.destroy_abandoned(self)
        finally:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    # -- returning and resizing --------------------------------------------------------------------

    def discard(self, resource: T, error: BaseException | None = None) -> Operation:
        """Destroy an acquired resource instead of releasing it; await the result to wait for it.

        Args:
            resource: What `acquire()` gave.
            error: Why it cannot be used any more; it counts as a failure for the circuit breaker.

        Raises:
            NotAcquiredError: The resource is not acquired.
            TypeError: `error` is not an exception.
        """
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception or None, not {type(error).__name__}")
        return self._engine.returns.discard(resource, error)

    def evict(self, resource: T) -> Operation:
        """Destroy an idle resource. Await the result to wait for its destructor.

        Args:
            resource: One of `idle_resources()`.

        Raises:
            NotAcquiredError: The resource is not idle.
        """
        return self._engine.returns.evict(resource)

    def retire(self) -> Operation:
        """Destroy everything that exists now: the idle at once, the busy on release."""
        engine = self._engine
        engine.check_loop()
        if engine.core.busy and engine.loop is not None:
            return engine.steps.defer(self.retire)
        return engine.step(engine.retire)

    def resize(
        self,
        *,
        min_size: int | Unset = UNSET,
        max_size: int | Unset = UNSET,
        ceiling: int | Unset | None = UNSET,
    ) -> Operation:
        """Change the sizes. Await the result to wait until `min_size` resources are there.

        Surplus resources are destroyed when they are idle or come back; new room is used at once.
        With `max_size=0` every acquire waits.

        Args:
            min_size: Resources that are kept ready, even while none is needed.
            max_size: The most resources. In a pool with a `fleet`, the most that the fleet may
                lend.
            ceiling: For code that lends capacity: what `max_size` may be raised to later. While
                `max_size` is below it, no wait counts as a deadlock, and `min_size` may be above
                `max_size`. None: only the program changes `max_size`.

        Raises:
            ValueError: The sizes contradict each other.
        """
        engine = self._engine
        core = engine.core
        lending = engine.lending
        wished = lending.loan is not None and isinstance(ceiling, Unset)
        if isinstance(ceiling, Unset):
            limit = core.ceiling
        else:
            limit = options.optional_whole("ceiling", ceiling, least=0) or 0
        least = core.min_size if isinstance(min_size, Unset) else min_size
        most = core.max_size if isinstance(max_size, Unset) else max_size
        if wished and isinstance(max_size, Unset):
            most = lending.most
        least, most = options.sizes(least, most, least_max=0, ceiling=0 if wished else limit)
        engine.check_loop()
        if core.busy and engine.loop is not None:
            return engine.steps.defer(
                partial(self.resize, min_size=min_size, max_size=max_size, ceiling=ceiling)
            )
        if not wished:
            return engine.step(engine.resize, least, most, limit)
        operation = engine.step(engine.resize, least, min(most, core.max_size), most)
        engine.step(lending.wish, least, most)
        return operation

    async def probe(self) -> bool:
        """Create one resource with the factory, even while the breaker is open.

        The resource is idle then, or goes to a waiter. Return False if there is no room below
        `max_size`, or if `max_creating` factories run already.

        Raises:
            Exception: What the factory raised; it is reported as any failure of the factory.
        """
        return await self._engine.creations.probe()

    # -- lanes -------------------------------------------------------------------------------------

    def lane(self, name: str, *, max_size: int | None = None, priority: int = 0) -> Lane[T]:
        """Return a lane: a part of the acquires with a limit and a priority of its own.

        The same name and options give the same lane. `acquire()` without a lane has priority 0 and
        no limit but `max_size`.

        Args:
            name: The name of the lane, which messages and statistics show.
            max_size: The most resources that the lane has out at once; None for no limit.
            priority: Waiters of a higher priority are served first.

        Raises:
            ValueError: There is a lane of this name with other options.
        """
        return self._engine.lanes.open(self, name, max_size, priority)

    def lanes(self) -> list[Lane[T]]:
        """Every lane of this pool, the oldest first."""
        lanes = self._engine.lanes
        return [lanes.face(self, name) for name in [*lanes.records]]

    # -- seeing ------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The name of the pool, shown in `repr`, errors, logs and metrics."""
        return self._engine.name

    @property
    def min_size(self) -> int:
        """Resources kept alive even when idle; `resize()` changes it."""
        return self._engine.core.min_size

    @property
    def max_size(self) -> int:
        """The most resources at a time, those being made or destroyed included; `resize()`
        changes it."""
        return self._engine.core.max_size

    @property
    def occupied(self) -> int:
        """Resources that are being made, that are there, or that are being destroyed."""
        return self._engine.core.total

    def take_peak(self) -> int:
        """Return the highest sum of resources in use and waiters since the last call."""
        return self._engine.core.take_peak()

    def idle_resources(self) -> list[T]:
        """Return what is idle now, the next to be handed out first."""
        return [slot.resource for slot in self._engine.core.idle_slots()]

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Never:
        raise messages.not_copied("Pool")

    def __repr__(self) -> str:
        core = self._engine.core
        name = "" if self.name is None else f" {self.name!r}"
        return (
            f"<Pool{name} {core.phase.value}, breaker {core.circuit}: {core.active} active, "
            f"{core.idle_count} idle, {core.waiting} waiting, max {core.max_size}>"
        )

    def stats(self) -> Stats:
        """A frozen snapshot of the counts and totals."""
        return self._engine.totals.snapshot(self._engine.core)

    def holders(self) -> list[Holder[T]]:
        """Return a `Holder` for each resource in use, the longest held first."""
        return holders_of(self._engine.core, self._engine.time())

    def subscribe(
        self,
        callback: Callable[[PoolEvent], object],
        *,
        kinds: Iterable[EventKind | str] | None = None,
    ) -> Callable[[], None]:
        """Call a function with every event of the pool. A kind without subscribers costs nothing.

        Args:
            callback: A sync function, which gets the `PoolEvent`. What it raises is logged.
            kinds: The kinds of events that it gets; None for all of them.

        Returns:
            A function that ends the subscription.

        Raises:
            ValueError: There is no such kind.
        """
        callback = options.function("callback", callback)
        wanted = options.event_kinds("kinds", kinds)
        subscription = self._engine.signals.subscribe(callback, wanted)

        def unsubscribe() -> None:
            self._engine.signals.unsubscribe(lambda each: each is subscription)

        return unsubscribe

    # -- circuit breaker ---------------------------------------------------------------------------

    @property
    def state(self) -> CircuitState:
        """State of the circuit breaker."""
        return self._engine.core.circuit

    @property
    def strategy(self) -> CircuitBreakerStrategy | None:
        """The strategy of the circuit breaker. It may be set; None removes it."""
        strategy: CircuitBreakerStrategy | None = self._engine.strategy
        return strategy

    @strategy.setter
    def strategy(self, value: CircuitBreakerStrategy | None) -> None:
        self._engine.strategy = options.strategy("strategy", value)

    def activate(self) -> None:
        """Close the circuit breaker: every acquire passes."""
        self._engine.circuit.switch(CircuitState.ACTIVE)

    def deactivate(self) -> None:
        """Open the circuit breaker: every waiter and every new acquire fails at once."""
        self._engine.circuit.switch(CircuitState.INACTIVE)

    def recover(self) -> None:
        """Set the circuit breaker to RECOVERING: `recovering_limit` acquires pass at a time."""
        self._engine.circuit.switch(CircuitState.RECOVERING)

    # -- for the database layer, and for the registry ----------------------------------------------

    async def _open_with(self, least: int) -> None:
        """open(), with at least so many resources."""
        await self._engine.opening.open(least)

    def _word(self, words: Words) -> None:
        """Let messages call the hooks by these words."""
        self._engine.words = words

    def _word_create_timeout(self, word: Callable[[float], PoolError]) -> None:
        """Make the error of a factory that took longer than `create_timeout` by this function."""
        self._engine.creations.word_timeout = word

    def _count_marked(self, count: Callable[[str], Awaitable[int]]) -> None:
        """The backend knows what has a mark: this counts it, for whatever lends capacity."""
        self._engine.lending.count_marked = count

    def _mark(self) -> str | None:
        """The mark for what is made now; None for no mark."""
        loan = self._engine.lending.loan
        return None if loan is None else loan.mark

    def _skip_check_within(self, seconds: float) -> None:
        """Do not show to before_acquire what came back less than so many seconds ago."""
        self._engine.skip_check_within = seconds

    def _suspect_idle(self) -> None:
        """Show to before_acquire whatever is idle now, however short."""
        self._engine.suspect_before = self._engine.time()

    def _from_finalizer(self, step: Callable[[], object]) -> None:
        """Do this, asked for in any thread and at any moment, as soon as that is safe."""
        self._engine.binding.from_finalizer(step)

    def _bound_to(self) -> asyncio.AbstractEventLoop | None:
        """The loop in which it was opened; None before that, and in the child of a fork."""
        return self._engine.loop

    def _forsake(self) -> None:
        """Mark as closed without running destructors: the loop is gone."""
        self._engine.closing.forsake()

    def after_fork(self) -> object:
        """Start anew in the child of a fork; returns what must stay untouched there."""
        engine = self._engine
        self._engine = engine.in_child(self)
        return engine


def _show_options(init: Any) -> None:
    """Give `help()` and editors the options by name, with their defaults."""
    given = inspect.signature(init)
    required = [each for each in given.parameters.values() if each.kind is not each.VAR_KEYWORD]
    init.__signature__ = given.replace(parameters=[*required, *options.signature_of_options()])


_show_options(Pool.__init__)
