"""What happens in a pool and what is counted: kinds, reasons, events, statistics, holders.

`EventKind` and `DestroyReason` are the only lists of their kind. Their members are strings, so that
programs may compare them with plain ones, and logs, JSON and metrics show nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import CodeType
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar

from .errors import HookTimeoutError
from .mask import explained

if TYPE_CHECKING:
    from .pool import Pool

T = TypeVar("T")


class Word(StrEnum):
    """A string with a name in the code; `repr()` shows the string."""

    def __repr__(self) -> str:
        return repr(str(self))


class EventKind(Word):
    """What an event is about."""

    OPENED = "opened"
    CLOSED = "closed"
    CREATED = "created"
    DESTROYED = "destroyed"
    WAITING = "waiting"
    ACQUIRED = "acquired"
    RELEASED = "released"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    FAILED = "failed"  # an acquire, by an error of the factory
    REFUSED = "refused"  # an acquire; see RefusalReason
    CREATE_FAILED = "create_failed"  # a factory, whether or not an acquire waited for it
    REJECTED = "rejected"  # by before_acquire or before_release
    CHECK_FAILED = "check_failed"
    HELD_LONG = "held_long"
    STATE_CHANGED = "state_changed"  # of the circuit breaker


class DestroyReason(Word):
    """Why a resource was destroyed."""

    CLOSED = "closed"  # with its pool
    RETIRED = "retired"  # by retire()
    RESIZED = "resized"  # it was too many after a resize()
    MAX_LIFETIME = "max_lifetime"
    MAX_IDLE = "max_idle"
    MAX_USES = "max_uses"
    DISCARDED = "discarded"  # by discard()
    EVICTED = "evicted"  # by evict()
    WORN_OUT = "worn_out"  # before_release returned RETIRE
    REJECTED = "rejected"  # by before_acquire or before_release
    CHECK_FAILED = "check_failed"
    CANCELLED = "cancelled"  # its use, or a step of the pool, was interrupted
    LATE = "late"  # made by a factory after its time was over
    OPEN_FAILED = "open_failed"  # made by an open() that failed


class RefusalReason(Word):
    """Why an acquire was refused."""

    CIRCUIT = "circuit"  # the breaker is open
    OVERLOADED = "overloaded"  # `max_waiting` acquires wait already
    SHED = "shed"  # it has waited too long in an overloaded pool
    CLOSED = "closed"
    DEADLOCK = "deadlock"


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One thing that happened in a pool. Which fields are set depends on `kind`.

    Attributes:
        kind: What happened; also a string, such as "acquired".
        pool: The pool in which it happened.
        time: When it happened, by the clock of the pool's event loop, in seconds.
        resource: The resource; not in the repr.
        task: The name of the task.
        duration: Seconds: the wait of acquired, timeout, cancelled, failed and refused, the hold
            of released, the factory's of created and create_failed.
        reason: The `DestroyReason` of destroyed, the `RefusalReason` of refused, the hook of
            rejected, the new state of state_changed, `file:line` of held_long.
        error: The exception, if there was one.
        lane: The name of the lane; None outside of lanes.
    """

    kind: EventKind
    pool: Pool[Any]
    time: float
    resource: Any = field(default=None, repr=False)
    task: str | None = None
    duration: float | None = None
    reason: str | None = None
    error: BaseException | None = None
    lane: str | None = None

    @property
    def abandoned(self) -> bool:
        """Whether, of `destroyed`, the destructor took too long and was left behind: the backend
        may still have what it was to end."""
        return self.kind is EventKind.DESTROYED and isinstance(self.error, HookTimeoutError)

    def __repr__(self) -> str:
        parts = [f"kind={self.kind!r}", f"pool={self.pool!r}", f"time={self.time!r}"]
        for name in ("task", "lane", "duration", "reason"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}={value!r}")
        if self.error is not None:
            parts.append(f"error=<{explained(self.error)}>")
        return f"PoolEvent({', '.join(parts)})"


def _refuse_change(self: Counts, *args: Any, **kwargs: Any) -> Never:
    raise TypeError("a snapshot of a pool cannot be changed; copy it with dict()")


class Counts(dict[str, int]):
    """How often each reason occurred, read-only; one that did not counts 0.

    A dict, so that `dataclasses.asdict()`, pickle and json take the snapshot that it is part of.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # a snapshot shows it as a Mapping, which has none of these
        __setitem__ = __delitem__ = __ior__ = _refuse_change
        clear = pop = popitem = setdefault = update = _refuse_change

    def __missing__(self, reason: str) -> int:
        return 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of the counts of a pool, and of its totals. Times are in seconds.

    Attributes:
        count: Idle and active resources.
        idle: Resources that are ready to be acquired.
        active: Resources that are acquired, or being examined by a hook.
        waiting: Acquires in the queue.
        creating: Factories that are running.
        destroying: Destructors that are running.
        created: Resources made in total.
        destroyed: Resources destroyed in total, by reason.
        begun: Acquires that were awaited or entered, in total. When none is under way, it is the
            sum of `acquired`, `timeouts`, `cancelled`, `failed` and all of `refused`.
        acquired: Resources handed out in total.
        released: Resources that came back in total, discarded ones included.
        timeouts: Acquires that timed out.
        cancelled: Acquires cancelled while they waited.
        failed: Acquires that ended with an error of the factory.
        refused: Acquires that were refused, by reason; a reason that did not occur counts 0.
        rejected: Resources rejected by `before_acquire` or `before_release`.
        wait_time: The sum of the waits of all acquires that were served.
        max_wait_time: The longest of these waits.
        hold_time: The sum of the times that released resources were held.
        max_hold_time: The longest of these times.
    """

    count: int
    idle: int
    active: int
    waiting: int
    creating: int
    destroying: int
    created: int
    destroyed: Mapping[str, int]
    begun: int
    acquired: int
    released: int
    timeouts: int
    cancelled: int
    failed: int
    refused: Mapping[str, int]
    rejected: int
    wait_time: float
    max_wait_time: float
    hold_time: float
    max_hold_time: float


@dataclass(frozen=True, slots=True)
class LaneStats:
    """A snapshot of the counts of a lane, and of its totals. Times are in seconds.

    Attributes:
        name: As given to `lane()`.
        max_size: The most resources that it leases at a time; None for no limit.
        priority: Its priority: waiters of a higher one are served first; 0 outside of any lane.
        active: Resources that are acquired through it, or being examined by a hook.
        waiting: Acquires in the queue.
        oldest_wait: How long the first of them has waited; 0.0 if the queue is empty.
        begun: Acquires that have begun in total, as in `Stats`.
        acquired: Resources handed out in total.
        timeouts: Acquires that timed out.
        cancelled: Acquires cancelled while they waited.
        failed: Acquires that ended with an error of the factory.
        refused: Acquires that were refused, by reason; a reason that did not occur counts 0.
        wait_time: The sum of the waits of all acquires that were served.
        max_wait_time: The longest of these waits.
    """

    name: str
    max_size: int | None
    priority: int
    active: int
    waiting: int
    oldest_wait: float
    begun: int
    acquired: int
    timeouts: int
    cancelled: int
    failed: int
    refused: Mapping[str, int]
    wait_time: float
    max_wait_time: float


@dataclass(frozen=True, slots=True)
class Holder(Generic[T]):
    """A resource in use: which task holds it, for how long, and where it was acquired.

    Attributes:
        resource: The resource; not in the repr, and None in a pickle or a copy.
        task: The name of the task that acquired it.
        seconds: How long it has been held.
        file: The file in which `acquire()` was called; None if that is not known.
        line: The line of that call.
        reason: With a database, why the connection is pinned, such as `in a transaction`.
        lane: The name of the lane through which it was acquired; None if through none.
    """

    resource: T = field(repr=False)
    task: str
    seconds: float
    file: str | None
    line: int | None
    reason: str | None = None
    lane: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the resource: it belongs to another task, may have secrets, and is of no use in
        another process."""
        return type(self), (
            None, self.task, self.seconds, self.file, self.line, self.reason, self.lane,
        )  # fmt: skip


@dataclass(slots=True)
class Totals:
    """The running sums behind `Stats` that are not the core's."""

    created: int = 0
    destroyed: dict[DestroyReason, int] = field(default_factory=dict)
    timeouts: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: dict[RefusalReason, int] = field(default_factory=dict)
    rejected: int = 0

    def refused_by_reason(self) -> Mapping[str, int]:
        """How many acquires were refused, read-only; a reason that did not occur counts 0."""
        return Counts({str(why): n for why, n in self.refused.items()})

    def snapshot(self, core: Any) -> Stats:
        # The counts first, together: another thread may be the reader.
        count, idle = core.count, core.idle_count
        return Stats(
            count=count,
            idle=idle,
            active=count - idle,
            waiting=core.waiting,
            creating=core.opening,
            destroying=core.closing,
            created=self.created,
            # Plain strings as keys: some serializers refuse a subclass of str.
            destroyed=Counts({str(why): n for why, n in self.destroyed.items()}),
            begun=core.begun,
            acquired=core.acquired,
            released=core.released,
            timeouts=self.timeouts,
            cancelled=self.cancelled,
            failed=self.failed,
            refused=self.refused_by_reason(),
            rejected=self.rejected,
            wait_time=core.wait_time,
            max_wait_time=core.max_wait_time,
            hold_time=core.hold_time,
            max_hold_time=core.max_hold_time,
        )


class Subscription:
    """Gives each subscribe() an identity: the same callback may be subscribed twice."""

    __slots__ = ("callback", "kinds")

    def __init__(
        self, callback: Callable[[PoolEvent], object], kinds: frozenset[EventKind] | None = None
    ) -> None:
        self.callback: Callable[[PoolEvent], object] = callback
        self.kinds: frozenset[EventKind] | None = kinds  # None: every kind

    def wants(self, kind: EventKind) -> bool:
        """Return whether this is one of its kinds."""
        return self.kinds is None or kind in self.kinds


def task_name(task: Any) -> str:
    return "no task" if task is None else str(task.get_name())


def lane_name(claim: Any) -> str | None:
    """The name of the lane through which a claim goes, or None."""
    return None if claim.lane is None else str(claim.lane.name)


def line_of(code: CodeType | None, instruction: int) -> int | None:
    """The line of an instruction: worked out when asked, not when acquired."""
    if code is None:
        return None
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line
    return code.co_firstlineno
