"""`cenote.Pool`, the public face. What it does is in `runtime.py`, what it decides in `_core`."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from .. import errors, options
from .._core import Claim, Slot, next_expiry
from .._fast import SlowPath, adopt, provides
from ..breaker import CircuitBreakerStrategy
from ..caller import caller
from ..events import DestroyReason, Holder, PoolEvent, Stats, Subscription
from ..hooks import Factory, drop, is_async, is_awaitable
from ..options import UNSET, PoolOptions, Settings, Unset
from ..states import CircuitState, Phase
from .holders import holders_of
from .lifecycle import Lifecycle
from .operation import Operation, raise_fatal
from .runtime import current_task

T = TypeVar("T")


@adopt
@provides(SlowPath)
class Pool(Lifecycle[T]):
    """A pool of resources of which each may be used by one task at a time.

    Nothing is created here, and no event loop is needed: `open()`, `async with` or the first
    `acquire()` does both. All durations are seconds. See `docs/pool.md` for what you may rely on,
    `docs/reference/options.md` for every option.
    """

    __slots__ = ()

    # An async factory first: type checkers take what it gives for the resource otherwise.
    @overload
    def __init__(
        self, factory: Callable[[], Awaitable[T]], **options: Unpack[PoolOptions[T]]
    ) -> None: ...

    @overload
    def __init__(self, factory: Factory[T], **options: Unpack[PoolOptions[T]]) -> None: ...

    def __init__(self, factory: Factory[T], **options: Any) -> None:
        settings = Settings.check(factory, options)
        super().__init__(settings, settings.strategy)

    @property
    def closed(self) -> bool:
        """Whether it is closed, for good; while it drains it is not yet."""
        return self._core.phase is Phase.CLOSED

    # -- acquiring and returning -----------------------------------------------------------------

    def _try_acquire_slow(self) -> T | None:
        core = self._core
        if core.phase is Phase.CLOSED or core.phase is Phase.DRAINING:
            return None
        self._enter()
        claim = Claim()
        claim.code, claim.instruction = caller(sys._getframe(1))
        claim.task = self._current_task()
        claim.began = self._time()
        if not self._admit(claim):
            return None
        slot = None
        try:
            slot = self._take_now()
        finally:
            if slot is None:
                core.dismiss(claim)
                self._advance()
        if slot is None:
            return None
        resource: T = slot.resource  # a subscriber may discard it
        now = self._time()
        try:
            core.hold(claim, slot, now, 0.0)
            self._held(claim, slot)
        except BaseException as error:
            self._lose(claim, error)
            raise
        return resource

    def _take_now(self) -> Slot | None:
        core = self._core
        if is_async(self._before_acquire):
            raise errors.async_hook(self._name)
        before, now = core.idle_seqs, self._time()
        while (slot := core.take(before)) is not None:
            if slot.expires_at <= now:
                raise_fatal(self._destroy(slot, DestroyReason.MAX_LIFETIME))
                continue
            try:
                verdict = self._ask_before_acquire(slot)
            except BaseException as error:
                self._refuse(slot, error)
                continue
            if is_awaitable(verdict):
                drop(verdict)
                core.untake(slot)
                raise errors.async_hook(self._name)
            if verdict is False:
                self._refuse(slot, None)
            elif core.phase is Phase.CLOSED:  # by the hook
                self._settle(slot)
            else:
                return slot
        if core.phase is not Phase.OPEN:  # closed by a hook
            return None
        slot = core.permit() if core.sync_factory else None
        if slot is None or not self._make(slot, start=False):
            return None
        return slot

    def discard(self, resource: T, error: BaseException | None = None) -> Operation:
        """Destroy a resource instead of giving it back; an error is reported to the strategy."""
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception or None, not {type(error).__name__}")
        self._check_loop()
        slot = self._leased(resource, "discard")
        if self._core.busy:
            return self._defer(partial(self._discard_later, slot, slot.holder, error))
        return self._completed(self._step(self._discard, slot, error))

    def _discard(self, slot: Slot, error: BaseException | None) -> Operation:
        self._reclaim(slot)
        if error is not None:
            self._report_failure(error, slot.probe)
        return self._destroy(slot, DestroyReason.DISCARDED)

    def _discard_later(
        self, slot: Slot, claim: Claim | None, error: BaseException | None
    ) -> Operation:
        if claim is None or slot.holder is not claim:  # somebody else was faster
            raise errors.not_acquired(self._name, slot.resource, "discard")
        return self._step(self._discard, slot, error)

    def retire(self) -> Operation:
        """Destroy everything that exists now: the idle at once, the busy on release."""
        self._check_loop()
        if self._core.busy and self._loop is not None:
            return self._defer(self.retire)
        return self._step(self._retire)

    def _retire(self) -> Operation:
        self._core.generation += 1
        return self._destroy_idle_quietly(DestroyReason.RETIRED, self._core.idle_slots())

    def resize(self, *, min_size: int | Unset = UNSET, max_size: int | Unset = UNSET) -> Operation:
        """Change the sizes: surplus goes when idle or on return, new room is used at once."""
        core = self._core
        least, most = options.sizes(
            core.min_size if isinstance(min_size, Unset) else min_size,
            core.max_size if isinstance(max_size, Unset) else max_size,
        )
        self._check_loop()
        if core.busy and self._loop is not None:
            return self._defer(partial(self.resize, min_size=min_size, max_size=max_size))
        return self._step(self._resize, least, most)

    def _resize(self, least: int, most: int) -> Operation:
        core = self._core
        core.min_size, core.max_size = least, most
        operation = self._destroy_idle_quietly(
            DestroyReason.RESIZED, core.idle_slots()[: core.surplus()]
        )
        self._maintenance.expect(next_expiry(core))
        self._changed()
        self._advance()
        return operation

    # -- seeing ----------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """As given; shown in `repr`, errors, logs and metrics."""
        return self._name

    @property
    def min_size(self) -> int:
        """So many are kept, also if nobody needs them; `resize()` changes it."""
        return self._core.min_size

    @property
    def max_size(self) -> int:
        """Never more than this, those being made and being destroyed included; `resize()` changes
        it."""
        return self._core.max_size

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        core = self._core
        name = "" if self._name is None else f" {self._name!r}"
        return (
            f"<Pool{name} {core.phase.value} {core.circuit}: {core.active} active, "
            f"{core.idle_count} idle, {core.waiting} waiting, max {core.max_size}>"
        )

    def stats(self) -> Stats:
        """A frozen snapshot of the counts and totals."""
        return self._totals.snapshot(self._core)

    def holders(self) -> list[Holder[T]]:
        """Who holds what, longest first."""
        return holders_of(self._core, self._time())

    def subscribe(self, callback: Callable[[PoolEvent], object]) -> Callable[[], None]:
        """Call this with every event; returns the function that ends it."""
        subscription = Subscription(options.function("callback", callback))
        self._subscribers += (subscription,)

        def unsubscribe() -> None:
            self._subscribers = tuple(
                each for each in self._subscribers if each is not subscription
            )

        return unsubscribe

    # -- circuit breaker -------------------------------------------------------------------------

    @property
    def state(self) -> CircuitState:
        """Of the circuit breaker."""
        return self._core.circuit

    @property
    def strategy(self) -> CircuitBreakerStrategy | None:
        """The judgement of the circuit breaker; may be set, None removes it."""
        return self._strategy

    @strategy.setter
    def strategy(self, value: CircuitBreakerStrategy | None) -> None:
        self._strategy = options.strategy("strategy", value)

    def activate(self) -> None:
        """Let every acquire pass."""
        self._switch(CircuitState.ACTIVE)

    def deactivate(self) -> None:
        """Let no acquire pass; every waiter fails at once."""
        self._switch(CircuitState.INACTIVE)

    def recover(self) -> None:
        """Let `recovering_limit` acquires pass at a time."""
        self._switch(CircuitState.RECOVERING)

    # -- for the C API -----------------------------------------------------------------------------

    def _start_ticket(self, acquire: Any, ticket: Any) -> asyncio.Task[None]:
        """Not loop.create_task: an eager task would call back at once."""
        loop = asyncio.get_running_loop()
        task = asyncio.Task(self._drive(acquire, ticket), loop=loop)
        # Cancelled before its first step, the coroutine never runs.
        task.add_done_callback(lambda _: ticket.complete(None, asyncio.CancelledError()))
        return task

    async def _drive(self, acquire: Any, ticket: Any) -> None:
        """An acquire whose end is told to a ticket."""
        task = current_task()
        try:
            resource = await acquire
            if task is not None and task.cancelling():  # by a sync hook: too late to be thrown in
                if acquire.slot is not None:  # a subscriber may have released it
                    self._step(self._give_back, acquire.slot)
                raise asyncio.CancelledError
        except BaseException as error:
            if isinstance(error, GeneratorExit) and current_task() is not task:
                raise  # collected: the loop is gone
            told = error
            if (
                task is not None
                and task.cancelling()
                and not isinstance(error, asyncio.CancelledError)
            ):
                told = asyncio.CancelledError()  # as ticket_cancel has promised
                told.__cause__ = error
            ticket.complete(None, told)
            if not isinstance(error, Exception):
                raise
        else:
            ticket.complete(resource, None)


def _show_options(init: Any) -> None:
    """Give `help()` and editors the options by name, with their defaults."""
    given = inspect.signature(init)
    required = [each for each in given.parameters.values() if each.kind is not each.VAR_KEYWORD]
    init.__signature__ = given.replace(parameters=[*required, *options.signature_of_options()])


_show_options(Pool.__init__)
