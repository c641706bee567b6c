"""What can be seen of a pool: events, statistics, holders. The only door for extras."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from logging import ERROR
from math import inf
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from . import errors
from .log import log
from .mask import explained
from .states import ClaimState, SlotState

if TYPE_CHECKING:
    from .pool import Pool

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Holder(Generic[T]):
    """Who holds a resource, since when, and where in the program it was acquired.

    Attributes:
        resource: What is held; not in the repr, and None in a pickle or a copy.
        task: The name of the task that acquired it.
        seconds: How long it has been out.
        file: Where `acquire()` was called; None if that is not known.
        line: The line there.
        reason: Of a database: why the connection is pinned, such as `in a transaction`.
    """

    resource: T = field(repr=False)
    task: str
    seconds: float
    file: str | None
    line: int | None
    reason: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the resource: it belongs to another task, may have secrets, and is of no use in
        another process."""
        return type(self), (None, self.task, self.seconds, self.file, self.line, self.reason)


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One thing that happened in a pool. Which fields are set depends on `kind`.

    Attributes:
        kind: created, destroyed, acquired, released, waiting, timeout, cancelled, rejected,
            check_failed, held_long, state_changed, opened or closed.
        pool: Where it happened.
        time: On the clock of the pool's event loop, in seconds.
        resource: Which one; not in the repr.
        task: The name of the task.
        duration: Seconds: the wait of acquired, the hold of released, the factory's of created.
        reason: The cause of destroyed, the hook of rejected, the new state of state_changed,
            `file:line` of held_long.
        error: What was raised, if something was.
    """

    kind: str
    pool: Pool[Any]
    time: float
    resource: Any = field(default=None, repr=False)
    task: str | None = None
    duration: float | None = None
    reason: str | None = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        parts = [f"kind={self.kind!r}", f"pool={self.pool!r}", f"time={self.time!r}"]
        for name in ("task", "duration", "reason"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}={value!r}")
        if self.error is not None:
            parts.append(f"error=<{explained(self.error)}>")
        return f"PoolEvent({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot: what is now, and what was in total. Times are seconds.

    Attributes:
        count: Idle and active.
        idle: That nobody uses.
        active: That are out, or in a hook.
        waiting: Acquires in the line.
        creating: Factories under way.
        destroying: Destructors under way.
        created: Made in total.
        destroyed: Gone in total, by reason.
        acquired: Handed out in total.
        released: Come back in total, discarded ones included.
        timeouts: Acquires that got nothing in time.
        cancelled: Acquires cancelled while they waited.
        rejected: Refused by `before_acquire` or `before_release`.
        wait_time: Of all that were served, together.
        max_wait_time: The longest of them.
        hold_time: Of all that came back, together.
        max_hold_time: The longest of them.
    """

    count: int
    idle: int
    active: int
    waiting: int
    creating: int
    destroying: int
    created: int
    destroyed: Mapping[str, int]
    acquired: int
    released: int
    timeouts: int
    cancelled: int
    rejected: int
    wait_time: float
    max_wait_time: float
    hold_time: float
    max_hold_time: float


@dataclass(slots=True)
class Totals:
    """The running sums behind `Stats` that are not the core's."""

    created: int = 0
    destroyed: dict[str, int] = field(default_factory=dict)
    timeouts: int = 0
    cancelled: int = 0
    rejected: int = 0

    def gone(self, reason: str) -> None:
        self.destroyed[reason] = self.destroyed.get(reason, 0) + 1

    def snapshot(self, core: Any) -> Stats:
        # Counts first, in one breath: another thread may be reading.
        count, idle = core.count, core.idle_count
        return Stats(
            count=count,
            idle=idle,
            active=count - idle,
            waiting=core.waiting,
            creating=core.opening,
            destroying=core.closing,
            created=self.created,
            destroyed=MappingProxyType(dict(self.destroyed)),
            acquired=core.acquired,
            released=core.released,
            timeouts=self.timeouts,
            cancelled=self.cancelled,
            rejected=self.rejected,
            wait_time=core.wait_time,
            max_wait_time=core.max_wait_time,
            hold_time=core.hold_time,
            max_hold_time=core.max_hold_time,
        )


class Subscription:
    """Gives each subscribe() an identity: the same callback may be subscribed twice."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[PoolEvent], object]) -> None:
        self.callback = callback


def task_name(task: Any) -> str:
    return "no task" if task is None else str(task.get_name())


def line_of(code: CodeType | None, instruction: int) -> int | None:
    """The line of an instruction: worked out when asked, not when acquired."""
    if code is None:
        return None
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line
    return code.co_firstlineno


def holders_of(core: Any, now: float) -> list[Holder[Any]]:
    """Whoever holds a resource, or was handed one and has not run since; the longest first."""
    return [holder for _, holder in holdings(core, now)]


def holdings(core: Any, now: float) -> list[tuple[Any, Holder[Any]]]:
    """The same, each with its claim."""
    # The longest first; of two since the same moment, the one that was handed out first.
    held = [
        (lease.since, lease.lease_seq, lease, lease.slot)
        for lease in core.holders()
        if lease.slot is not None  # else it was returned while another thread was reading
    ]
    for claim in core.granted():
        slot = claim.slot
        if slot is None:  # before_acquire looks at it, or it is over: this may be another thread
            waiter = claim.waiter
            slot = None if waiter is None else waiter.inspected
        if slot is not None and slot.state is SlotState.RESERVED:
            held.append((max(claim.began, slot.idle_since), inf, claim, slot))
    return [
        (
            claim,
            Holder(
                resource=slot.resource,
                task=task_name(claim.task),
                seconds=max(0.0, now - since),
                file=None if claim.code is None else claim.code.co_filename,
                line=line_of(claim.code, claim.instruction),
                reason=claim.reason,
            ),
        )
        for since, _, claim, slot in sorted(held, key=lambda found: found[:2])
    ]


class Snapshot:
    """Who holds what at one moment: made once for all the timeouts of a step, not for each."""

    __slots__ = ("_claims", "_holders", "_text", "version")

    def __init__(self, version: object, held: list[tuple[Any, Holder[Any]]]) -> None:
        self.version = version  # of the leases: another one, and this is out of date
        self._claims = [claim for claim, _ in held]
        self._holders = tuple(holder for _, holder in held)
        self._text = errors.held_by(self._holders)

    def but(self, claim: Any) -> tuple[tuple[Holder[Any], ...], str]:
        """The holders beside this claim, and the words for them."""
        if claim.state is not ClaimState.GRANTED:
            return self._holders, self._text
        others = tuple(
            holder
            for each, holder in zip(self._claims, self._holders, strict=True)
            if each is not claim
        )
        return others, errors.held_by(others)


# -- for extras ----------------------------------------------------------------------------------


class SlotView(NamedTuple):
    """One slot at one moment. What is in a hook or being destroyed is only counted."""

    key: int  # the same as long as the slot lives
    state: str  # "idle", "active" or "creating"
    since: float | None  # of the pool's clock; None: not known
    uses: int
    task: str | None = None
    code: CodeType | None = None  # with the instruction: the caller of acquire(), see line_of()
    instruction: int = 0
    reason: str | None = None  # why it is pinned


class WaiterView(NamedTuple):
    """One acquire that waits. Times are of the pool's clock."""

    task: str
    since: float
    deadline: float | None
    code: CodeType | None
    instruction: int


class View(NamedTuple):
    """A pool at one moment; `look()` makes it."""

    now: float  # of the pool's clock
    phase: str
    circuit: str
    circuit_since: float | None  # None: since the beginning
    strategy: object
    failure: str | None  # the last one that was reported to the breaker, in masked words
    recovering_limit: int
    hooked: int  # resources in the pool's own hands: mostly in a hook
    thread: int  # in which its loop runs; 0: it has none
    slots: list[SlotView]
    waiters: list[WaiterView]  # the oldest first


def pools() -> list[Pool[Any]]:
    """Every pool of the process that lives, in no order; from any thread."""
    from .pool import registry  # here: the pool imports this file

    return cast("list[Pool[Any]]", registry.watched())


_followers: tuple[Callable[[Pool[Any]], object], ...] = ()


def follow(callback: Callable[[Pool[Any]], object]) -> Callable[[], None]:
    """Call this with every pool that is made from now on; returns the function that ends it."""
    global _followers
    _followers += (callback,)

    def unfollow() -> None:
        global _followers
        _followers = tuple(each for each in _followers if each is not callback)

    return unfollow


def made(pool: Pool[Any]) -> None:
    """Tell those who follow."""
    for callback in _followers:
        try:
            callback(pool)
        except Exception as error:
            log(
                ERROR,
                "%r: a follower of new pools failed",
                pool,
                error=error,
                fields={"pool": pool._name},
            )


def unsubscribe(pool: Pool[Any], callback: Callable[[PoolEvent], object]) -> None:
    """For those who must not keep the pool alive, as what subscribe() returns does."""
    pool._subscribers = tuple(each for each in pool._subscribers if each.callback != callback)


def post(pool: Pool[Any], step: Callable[[], object]) -> None:
    """Do this in the pool's own loop: at once if that runs here, is gone, or was never there."""
    loop = pool._loop
    if loop is not None and loop is not asyncio._get_running_loop():
        try:
            loop.call_soon_threadsafe(step, context=Context())
        except RuntimeError:  # closed
            pass
        else:
            return
    step()


def look(pool: Pool[Any], *, slots: bool = True, waiters: int = 0) -> View:
    """The pool as it is now, with so many waiters at most; to be called by way of `post()`."""
    core, since = pool._core, pool._circuit_since
    return View(
        now=pool._time(),
        phase=core.phase.value,
        circuit=str(core.circuit),
        circuit_since=since,
        strategy=pool._strategy,
        failure=pool._failure,
        recovering_limit=core.recovering_limit,
        hooked=core.count - core.idle_count - core.out,
        thread=pool._thread,
        slots=_slots_of(pool) if slots else [],
        waiters=_waiters_of(core, waiters),
    )


def _slots_of(pool: Pool[Any]) -> list[SlotView]:
    core = pool._core
    found = [SlotView(id(slot), "idle", slot.idle_since, slot.uses) for slot in core.idle_slots()]
    for lease in core.holders():
        slot = lease.slot
        if slot is not None:
            found.append(
                SlotView(
                    id(slot),
                    "active",
                    lease.since,
                    slot.uses,
                    task_name(lease.task),
                    lease.code,
                    lease.instruction,
                    lease.reason,
                )
            )
    found += [SlotView(id(slot), "creating", None, 0) for slot in pool._creations]
    return found


def _waiters_of(core: Any, limit: int) -> list[WaiterView]:
    found: list[WaiterView] = []
    claim = core.first
    while claim is not None and len(found) < limit:
        found.append(
            WaiterView(
                task_name(claim.task), claim.began, claim.deadline, claim.code, claim.instruction
            )
        )
        claim = claim.next
    return found
