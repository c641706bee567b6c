"""asyncio around the core: the core decides, this file does what it decided.

Every step between two suspensions is synchronous, so there is no lock. Whatever frees capacity
ends in `_advance`, which serves the waiters, starts what must be created, and sees whether a drain
or a close has come to its end. Slow work (factories, hooks, destructors that are async) is a
`HookTask`: it belongs to the pool, and whoever asked for it may be gone when it is done.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from functools import partial
from logging import DEBUG, ERROR, WARNING
from math import inf
from typing import Any, TypeVar, cast

from .. import errors
from .._core import Claim, Slot
from ..caller import may_have_interrupted_use
from ..events import DestroyReason, EventKind, task_name
from ..hooks import drop, is_awaitable
from ..log import log
from ..states import CircuitState, ClaimState, Phase, SlotState
from .bound import Bound
from .hooks import HookTask
from .operation import DONE, Operation, raise_fatal
from .waiter import Waiter

T = TypeVar("T")

LIFETIME_JITTER = 0.1  # so that resources made together do not end together


class Runtime(Bound[T]):
    """What a pool does. `Pool` is its public face."""

    __slots__ = ()

    # -- serving ---------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Serve whoever can be served. Every path that frees capacity ends here.

        Not re-entrant: what happens meanwhile (eager tasks, subscribers) is looked at once more
        instead of deeper and deeper.
        """
        self._again = True
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._again:
                self._again = False
                self._advance_once()
        finally:
            self._advancing = False

    def _advance_once(self) -> None:
        core = self._core
        while (claim := core.grant()) is not None:
            claim.waiter.wake()
        while core.demand():
            slot = core.permit_for_pool()
            if slot is None:
                break
            self._start(slot)
        if core.min_size and core.shortage():
            self._maintenance.refill()
        if core.phase is Phase.DRAINING and not self._in_use():
            self._shut()
        if core.phase is Phase.CLOSED:
            self._finish_close()

    def _in_use(self) -> bool:
        """Whether anybody waits or holds something; a healthcheck is nobody."""
        core = self._core
        checked = self._maintenance.check is not None
        return bool(core.waiting or core.granted_count or core.active > checked)

    def _admit(self, claim: Claim) -> bool:
        core = self._core
        if core.admit(claim):
            return True
        if core.circuit is CircuitState.INACTIVE and self._should_recover():
            self._switch_to(CircuitState.RECOVERING)
            return core.admit(claim)
        return False

    def _admit_or_raise(self, claim: Claim) -> None:
        if not self._admit(claim):
            raise self._unavailable()

    def _held(self, claim: Claim, slot: Slot) -> None:
        """A claim holds a slot: tell those who want to know."""
        if self._hold_warning is not None:
            self._maintenance.expect(claim.since + self._hold_warning)
        if self._subscribers:
            waited = claim.since - claim.began
            self._emit(EventKind.ACQUIRED, slot.resource, claim.task, duration=waited)

    def _obtain(self, claim: Claim, slot: Slot | None, verdict: Any) -> Coroutine[Any, Any, T]:
        return Waiter(self, claim).obtain(slot, verdict)

    def _fail(self, claim: Claim, error: BaseException) -> None:
        """The claim ends with this error; what it was handed goes to the next."""
        claim.waiter.wake()  # first: if this is broken off, it is woken for nothing, and waits on
        self._core.fail(claim, error)
        self._pass_on(claim)

    def _pass_on(self, claim: Claim) -> None:
        """Whatever this claim was handed goes to the next waiter, or back to idle."""
        slot, claim.slot = claim.slot, None
        waiting = claim.waiter  # None: it was broken off
        if waiting is not None and waiting.inspection is not None:
            waiting.inspection.cut(asyncio.CancelledError())
        elif slot is not None:
            if slot.state is SlotState.OPENING:
                self._core.fail_slot(slot)
            else:
                self._settle(slot)
        self._advance()

    def _time_out(self, claim: Claim) -> None:
        """The deadline of a claim that waits, or is looked at, has passed."""
        error = self._timed_out(claim)
        # Unless a subscriber that heard of it has closed the pool, or opened the breaker.
        if claim.state is ClaimState.WAITING or claim.state is ClaimState.GRANTED:
            self._fail(claim, error)

    def _timed_out(self, claim: Claim) -> errors.AcquireTimeoutError:
        core = self._core
        timeout = 0.0 if claim.deadline is None else claim.deadline - claim.began
        error = errors.acquire_timeout(
            self._name,
            timeout,
            (core.active, core.idle_count, core.waiting),
            *self._deadlines.snapshot().but(claim),
            circle=bool(core.deadlock(claim, True)),
        )
        if self._factory_failures != claim.failures:
            error.__cause__ = self._factory_error
        self._totals.timeouts += 1
        if self._subscribers:
            waited = self._time() - claim.began
            self._emit(EventKind.TIMEOUT, task=claim.task, duration=waited, error=error)
        return error

    def _check_deadlock(self, claim: Claim) -> None:
        leases = sorted(self._core.deadlock(claim, False), key=lambda lease: lease.lease_seq)
        if leases:
            names = dict.fromkeys(task_name(lease.task) for lease in leases)
            raise errors.deadlock(self._name, list(names), len(leases))

    # -- creating --------------------------------------------------------------------------------

    def _fill(self, least: int = 0) -> None:
        """Start what is missing to min_size, or to `least`."""
        core = self._core
        while core.shortage() or core.count + core.opening < least:
            slot = core.permit_for_pool()
            if slot is None:
                return
            self._start(slot)

    def _start(self, slot: Slot, made: Any = None, context: Context | None = None) -> None:
        """Create in a task of the pool. `made`: what the factory has returned to be awaited."""
        assert self._loop is not None
        limit, began = self._settings.create_timeout, self._time()
        work = HookTask(
            self,
            self._loop,
            self._settings.factory if made is None else None,
            awaitable=made,
            timeout=limit,
            overrun=lambda: errors.create_timeout(self._name, limit),
            done=partial(self._created, slot, began),
            late=partial(self._destroy_late, began),
            slot=slot,
            context=self._context.copy() if context is None else context,
            name=f"cenote factory of {errors.label(self._name)}",
        )
        if not work.finished:
            self._creations[slot] = work

    def _make(self, slot: Slot, *, start: bool) -> bool:
        """Create in this step. False: the factory is async; with `start` it goes on as work."""
        context = self._context.copy()
        began = self._time()
        try:
            made = self._call_out(context.run, self._settings.factory)
        except BaseException as error:
            self._creation_failed(slot, error, to_waiter=False)
            raise
        if made is None:
            nothing = errors.made_nothing(self._name)
            self._creation_failed(slot, nothing, to_waiter=False)
            raise nothing
        if not is_awaitable(made):
            self._opened(slot, cast(T, made), began)
            return True
        self._core.sync_factory = False
        if start or not drop(made):
            self._start(slot, made, context)
        else:
            self._core.fail_slot(slot)
        return False

    def _created(self, slot: Slot, began: float, made: Any, error: BaseException | None) -> None:
        """The work of a factory is done. `made` beside an error: it was cut off and came late."""
        self._creations.pop(slot, None)
        if isinstance(error, errors.Undone):
            self._undone(slot, began, made)
        elif made is None:
            self._creation_failed(slot, error or errors.made_nothing(self._name), to_waiter=True)
        else:
            self._opened(slot, made, began)
            if error is None:
                self._settle(slot)
            else:
                self._note_failure(error, to_waiter=True)
                self._destroy(slot, DestroyReason.LATE)

    def _undone(self, slot: Slot, began: float, made: Any) -> None:
        """close(), or an open() that failed, has called this creation off: nobody's failure."""
        if made is None:
            self._core.fail_slot(slot)
            self._changed()
            self._advance()
            return
        self._opened(slot, made, began)
        if self._core.phase is Phase.CLOSED:
            self._shut_part(self._destroy(slot, DestroyReason.CLOSED))
        else:
            self._destroy(slot, DestroyReason.OPEN_FAILED)

    def _opened(self, slot: Slot, made: T, began: float) -> None:
        now = self._time()
        lifetime = self._settings.max_lifetime
        expires_at = inf
        if lifetime is not None:
            expires_at = now + lifetime * random.uniform(1 - LIFETIME_JITTER, 1 + LIFETIME_JITTER)
        self._core.open_slot(slot, made, expires_at)
        self._totals.created += 1
        self._maintenance.created()
        if self._subscribers:
            self._emit(EventKind.CREATED, made, duration=now - began)
        self._changed()

    def _creation_failed(self, slot: Slot, error: BaseException, *, to_waiter: bool) -> None:
        self._core.fail_slot(slot)
        self._note_failure(error, to_waiter=to_waiter)
        self._advance()

    def _note_failure(self, error: BaseException, *, to_waiter: bool) -> None:
        """A factory failed: first the oldest waiter hears of it, then the strategy."""
        failed = isinstance(error, Exception)  # else it says nothing about the backend
        if failed:
            self._factory_failures += 1
        for failures in self._openers:
            failures.append(error)
        oldest = self._core.first if to_waiter else None
        if oldest is not None:
            oldest.waiter.wake()
            self._core.fail(oldest, error)
        if failed:
            self._factory_error, self._factory_failed_at = error, self._time()
            if not self._forget_failure():
                self._maintenance.remember()
        if not isinstance(error, asyncio.CancelledError):
            # Who asked hears of it anyway: no flood of warnings in an outage.
            level = WARNING if to_waiter and oldest is None else DEBUG
            self._log(level, "the factory failed", error=error)
        self._maintenance.failed()
        if failed:
            self._report_failure(error, None)
        self._changed()

    # -- asking the hooks ------------------------------------------------------------------------

    def _start_hook(
        self,
        hook: str,
        slot: Slot,
        verdict: Any,
        done: Callable[[Any, BaseException | None], None],
        operation: Operation | None = None,
    ) -> HookTask:
        """Await in a task of the pool what a hook has returned."""
        assert self._loop is not None
        limit = self._settings.hook_timeout
        return HookTask(
            self,
            self._loop,
            awaitable=verdict,
            timeout=limit,
            overrun=lambda: errors.hook_timeout(self._name, hook, limit),
            done=done,
            slot=slot,
            operation=operation,
            context=self._context.copy() if hook == "healthcheck" else None,
            name=f"cenote {hook} of {errors.label(self._name)}",
        )

    def _trusts(self, slot: Slot, now: float) -> bool:
        return bool(now - slot.idle_since < self._trust and slot.idle_since > self._doubted)

    def _ask_before_acquire(self, slot: Slot) -> Any:
        """What the hook answers, or its awaitable."""
        if self._before_acquire is None or self._trusts(slot, self._time()):
            return True
        return self._call_out(self._before_acquire, slot.resource)

    def _refuse(self, slot: Slot, error: BaseException | None) -> None:
        """before_acquire has said no, or raised."""
        if error is None or isinstance(error, Exception):
            raise_fatal(self._reject(slot, "before_acquire", error))
        else:
            self._destroy(slot, DestroyReason.REJECTED)
            raise error

    def _reject(
        self, slot: Slot, hook: str, error: BaseException | None, *, report: bool = True
    ) -> Operation:
        """A before_* hook said no: destroyed."""
        reason = self._explain(hook, error)
        self._totals.rejected += 1
        if self._subscribers:
            self._emit(EventKind.REJECTED, slot.resource, reason=hook, error=reason)
        if hook == "before_release" and report:
            self._report_failure(reason, slot.probe)
        return self._destroy(slot, DestroyReason.REJECTED)

    def _fail_check(self, slot: Slot, error: BaseException | None) -> None:
        reason = self._explain("healthcheck", error)
        if self._subscribers:
            self._emit(EventKind.CHECK_FAILED, slot.resource, error=reason)
        self._destroy(slot, DestroyReason.CHECK_FAILED)

    def _explain(self, hook: str, error: BaseException | None) -> BaseException:
        if error is None:
            return errors.rejected(self._name, hook)
        self._log(WARNING, "%s failed; the resource is destroyed", hook, error=error)
        return error

    # -- returning -------------------------------------------------------------------------------

    def _leased(self, resource: T, verb: str) -> Slot:
        """The slot with this very resource that is out; of twins, the caller's own first."""
        core = self._core
        task = current_task() if core.is_shared(resource) else None
        slot = core.find(resource, task)
        if slot is None:
            raise errors.not_acquired(self._name, resource, verb)
        return slot

    def _completed(self, operation: Operation) -> Operation:
        """What everything has happened for raises at once."""
        if operation.done:
            operation.result()
        return operation

    def _reclaim(self, slot: Slot) -> None:
        """The holder has nothing to do with it any more."""
        claim = self._core.reclaim(slot, self._time())
        if self._subscribers:
            self._returned(claim, slot)

    def _returned(self, claim: Claim, slot: Slot) -> None:
        held = self._time() - claim.since
        self._emit(EventKind.RELEASED, slot.resource, claim.task, duration=held)

    def _examine(
        self,
        slot: Slot,
        verdict: Any,
        error: BaseException | None,
        *,
        report: bool = True,
    ) -> Operation:
        """before_release has raised, rejected, or returned something to be awaited."""
        if isinstance(error, Exception):
            return self._reject(slot, "before_release", error, report=report)
        if error is not None:
            self._destroy(slot, DestroyReason.REJECTED)
            raise error
        if not is_awaitable(verdict):
            if verdict is False:
                return self._reject(slot, "before_release", None, report=report)
            return self._accept(slot, report)
        operation = Operation()
        operation.begin()
        examined = partial(self._examined, slot, report, operation)
        self._start_hook("before_release", slot, verdict, examined, operation)
        return operation

    def _examined(
        self,
        slot: Slot,
        report: bool,
        operation: Operation,
        verdict: Any,
        error: BaseException | None,
    ) -> None:
        """An async before_release is done."""
        if error is not None and not isinstance(error, Exception):
            if not isinstance(error, asyncio.CancelledError):
                self._explain("before_release", error)
            inner = self._destroy(slot, DestroyReason.REJECTED)
            operation.errors.append(error)
        elif error is not None or verdict is False:
            inner = self._reject(slot, "before_release", error, report=report)
        else:
            inner = self._accept(slot, report)
        inner.then(operation)

    def _accept(self, slot: Slot, report: bool) -> Operation:
        if report:
            self._report_success(slot.probe)
        return self._settle(slot)

    async def _leave(self, claim: Claim, error: BaseException) -> None:
        """An `async with` is left by this exception, which goes on whatever happens here."""
        if isinstance(error, GeneratorExit):
            self._from_finalizer(partial(self._leave_block, claim, error))
        else:
            self._check_loop()
            await self._turn()
            operation = self._step(self._leave_block, claim, error)
            await operation.wait()
            raise_fatal(operation)

    def _leave_block(self, claim: Claim, error: BaseException) -> Operation:
        slot = claim.slot
        if claim.state is not ClaimState.HOLDING or slot is None:
            return DONE  # it took until now to get here
        if not may_have_interrupted_use(error):
            return self._give_back(slot)  # type: ignore[no-any-return]
        self._reclaim(slot)
        if not self._settings.reuse_after_cancel:
            self._maintenance.beware()
            return self._destroy(slot, DestroyReason.CANCELLED)
        hook = self._before_release
        if hook is None:
            return self._accept(slot, False)
        try:
            verdict = self._call_out(hook, slot.resource)
        except BaseException as raised:
            return self._examine(slot, None, raised, report=False)
        return self._examine(slot, verdict, None, report=False)

    def _settle(self, slot: Slot, *, looked_at: bool = False) -> Operation:
        """From the pool's hands to the oldest waiter, else to idle; retired if it is unfit."""
        now = self._time()
        core = self._core
        reason = core.put_back(slot, now) if looked_at else core.put(slot, now)
        if reason is not None:
            return self._destroy(slot, DestroyReason(reason))
        self._expect(slot)
        self._advance()
        if slot.state is SlotState.IDLE and not self._advancing:
            slot.fresh = False  # nobody waited for it
        return DONE

    def _expect(self, slot: Slot) -> None:
        """This one is idle now: maintenance must look at it in time."""
        idle = self._settings.max_idle
        if idle is not None or slot.expires_at != inf:
            idle_until = inf if idle is None else slot.idle_since + idle
            self._maintenance.expect(min(idle_until, slot.expires_at))

    # -- destroying ------------------------------------------------------------------------------

    def _destroy(self, slot: Slot, reason: DestroyReason) -> Operation:
        """Call the destructor, after which the slot is free. What it raises is in the operation."""
        self._core.retire(slot)
        return self._call_destructor(slot.resource, reason, slot)

    def _destroy_late(self, began: float, made: T | None) -> None:
        """A factory was left behind and has made something after all: it has no slot any more."""
        if made is None:
            return
        self._log(WARNING, "a factory came back after it was given up")
        self._totals.created += 1
        if self._subscribers:
            took = asyncio.get_running_loop().time() - began
            self._emit(EventKind.CREATED, made, duration=took)
        raise_fatal(self._call_destructor(made, DestroyReason.LATE))

    def _call_destructor(
        self, resource: T, reason: DestroyReason, slot: Slot | None = None
    ) -> Operation:
        if slot is not None:
            slot.told = True
        if self._destructor is None:
            return self._gone(resource, reason, slot)
        try:
            result = self._call_out(self._destructor, resource)
        except BaseException as error:
            return self._gone(resource, reason, slot, error)
        if not is_awaitable(result):
            return self._gone(resource, reason, slot)
        # The pool of a late one may be unbound by now.
        loop = asyncio.get_running_loop() if slot is None else self._loop
        assert loop is not None
        operation = Operation()
        operation.begin()
        limit = self._settings.destructor_timeout
        HookTask(
            self,
            loop,
            awaitable=result,
            timeout=limit,
            overrun=lambda: errors.hook_timeout(self._name, "destructor", limit),
            done=lambda _, error: self._destroyed(resource, reason, slot, operation, error),
            slot=slot,
            operation=operation,
            grace=0,
            context=self._context.copy(),
            name=f"cenote destructor of {errors.label(self._name)}",
        )
        return operation

    def _destroyed(
        self,
        resource: T,
        reason: DestroyReason,
        slot: Slot | None,
        operation: Operation,
        error: BaseException | None,
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._maintenance.beware()
        self._gone(resource, reason, slot, error)
        operation.end(None if isinstance(error, errors.HookTimeoutError) else error)

    def _gone(
        self,
        resource: T,
        reason: DestroyReason,
        slot: Slot | None,
        error: BaseException | None = None,
    ) -> Operation:
        if slot is not None:
            self._core.finish(slot)
        self._totals.count_destroyed(reason)
        if isinstance(error, errors.HookTimeoutError):
            about = {"pool": self._name}
            log(ERROR, "%s; its slot is free again", error, fields=about, loop=self._loop)
        elif isinstance(error, asyncio.CancelledError):
            self._log(DEBUG, "the destructor was cancelled")
        elif error is not None:
            self._log(ERROR, "the destructor failed", error=error)
        if self._subscribers:
            self._emit(EventKind.DESTROYED, resource, reason=reason, error=error)
        self._advance()
        if error is None:
            return DONE
        operation = Operation()
        operation.errors.append(error)
        return operation

    def _destroy_idle(self, reason: DestroyReason, slots: Iterable[Slot]) -> Operation:
        """Destroy these, all of them, whatever their destructors do."""
        operation = Operation()
        operation.begin()
        for slot in slots:
            if slot.state is not SlotState.IDLE:
                continue  # a destructor before it has used the pool
            self._core.take_this(slot)
            operation.begin()
            self._destroy(slot, reason).then(operation)
        operation.end()
        return operation

    def _destroy_idle_quietly(self, reason: DestroyReason, slots: Iterable[Slot]) -> Operation:
        """The same, for those who do not want to hear of destructors that failed."""
        operation = Operation()
        operation.begin()
        self._destroy_idle(reason, slots).then(operation, errors=False)
        return operation

    # -- work ------------------------------------------------------------------------------------

    def work_began(self, work: HookTask) -> None:
        self._works.add(work)

    def work_ended(self, work: HookTask) -> None:
        self._works.discard(work)
        if self._core.phase is Phase.CLOSED:
            self._finish_close()


def current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
