"""What happens in a pool and what is counted: kinds, reasons, events, statistics, holders.

`EventKind` and `DestroyReason` are the only lists of their kind. Their members are strings, so that
programs may compare them with plain ones, and logs, JSON and metrics show nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
    REJECTED = "rejected"  # by before_acquire or before_release
    CHECK_FAILED = "check_failed"
    CANCELLED = "cancelled"  # its use, or a step of the pool, was interrupted
    LATE = "late"  # made by a factory after its time was over
    OPEN_FAILED = "open_failed"  # made by an open() that failed


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One thing that happened in a pool. Which fields are set depends on `kind`.

    Attributes:
        kind: What happened; a string, too, such as "acquired".
        pool: Where it happened.
        time: On the clock of the pool's event loop, in seconds.
        resource: Which one; not in the repr.
        task: The name of the task.
        duration: Seconds: the wait of acquired, the hold of released, the factory's of created.
        reason: The `DestroyReason` of destroyed, the hook of rejected, the new state of
            state_changed, `file:line` of held_long.
        error: What was raised, if something was.
    """

    kind: EventKind
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


@dataclass(slots=True)
class Totals:
    """The running sums behind `Stats` that are not the core's."""

    created: int = 0
    destroyed: dict[DestroyReason, int] = field(default_factory=dict)
    timeouts: int = 0
    cancelled: int = 0
    rejected: int = 0

    def count_destroyed(self, reason: DestroyReason) -> None:
        self.destroyed[reason] = self.destroyed.get(reason, 0) + 1

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
            destroyed=MappingProxyType({str(why): n for why, n in self.destroyed.items()}),
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
        self.callback: Callable[[PoolEvent], object] = callback


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
