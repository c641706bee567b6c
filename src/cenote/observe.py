"""What can be seen of a pool: events, statistics, holders. The only door for extras."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .pool import Pool

T = TypeVar("T")

logger = logging.getLogger("cenote")


@dataclass(frozen=True, slots=True)
class Holder(Generic[T]):
    """Who holds a resource, since when, and where in the program it was acquired."""

    resource: T = field(repr=False)
    task: str
    seconds: float
    file: str | None
    line: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One thing that happened in a pool. Which fields are set depends on `kind`."""

    kind: str
    pool: Pool[Any]
    time: float
    resource: Any = field(default=None, repr=False)
    task: str | None = None
    duration: float | None = None
    reason: str | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot: what is now, and what was in total. Times are seconds."""

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
    found = []
    # The longest first; of two since the same moment, the one that was handed out first.
    for lease in sorted(core.leases(), key=lambda lease: (lease.since, lease.number)):
        slot = lease.slot
        if slot is None:  # returned while another thread was reading
            continue
        found.append(
            Holder(
                resource=slot.resource,
                task=task_name(lease.task),
                seconds=max(0.0, now - lease.since),
                file=None if lease.code is None else lease.code.co_filename,
                line=line_of(lease.code, lease.instruction),
                reason=lease.reason,
            )
        )
    return found
