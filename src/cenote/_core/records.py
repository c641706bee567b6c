"""What the core hands out, takes back and counts: slots, claims, lanes and times."""

from __future__ import annotations

from math import inf
from types import CodeType
from typing import Any

from ..states import ClaimState, SlotState
from .histograms import Histograms


class Slot:
    """One place in the pool, from the permit to create a resource until that resource is gone."""

    __slots__ = (
        "expires_at",
        "fresh",
        "generation",
        "holder",
        "idle_seq",
        "idle_since",
        "lane",
        "probe",
        "resource",
        "same_resource",
        "state",
        "told",
        "uses",
    )

    def __init__(self, generation: int) -> None:
        self.state: SlotState = SlotState.OPENING
        self.resource: Any = None
        self.generation: int = generation  # of the pool when its creation began
        self.expires_at: float = inf  # loop time; inf: no max_lifetime
        self.idle_since: float = 0.0  # loop time of the last return
        self.idle_seq: int = 0  # when it last became idle, counted, not timed
        self.uses: int = 0  # how often it was handed out
        self.fresh: bool = False  # just made, not idle since: before_acquire does not look at it
        self.probe: int = 0  # recovery in which it was handed out; 0: outside of any
        self.lane: Lane | None = None  # of which it has a place, on its way back from a holder
        self.told: bool = False  # its destructor is being called, or was
        self.holder: Claim | None = None  # who holds it, while LEASED
        self.same_resource: Slot | None = None  # next older leased slot with the identical resource


class Claim:
    """One acquire: it may wait, is granted a slot, and holds it until the return."""

    __slots__ = (
        "began",
        "chosen",
        "code",
        "deadline",
        "error",
        "failures",
        "in_block",
        "instruction",
        "lane",
        "lease_seq",
        "next",
        "parked",
        "placed",
        "previous",
        "probe",
        "queue_seq",
        "queued_at",
        "reason",
        "seen_idle",
        "since",
        "slot",
        "state",
        "task",
        "timeout",
        "timer",
        "uncounted",
        "wait_timeout",
        "waiter",
        "warned",
    )

    over: bool = False  # of the native core: what drove it has ended by an exception

    def __init__(self) -> None:
        self.state: ClaimState = ClaimState.ASKING
        self.slot: Slot | None = None  # granted and not yet used, or held
        self.error: BaseException | None = None  # why it FAILED
        self.task: Any = None  # the task that awaits it
        self.timeout: float | None = None  # seconds for the whole; None: no limit
        self.wait_timeout: float | None = None  # seconds in the queue; None: no limit
        self.deadline: float | None = None  # loop time; None: no limit
        self.timer: Any = None  # its entry among the deadlines of the core
        self.began: float = 0.0  # loop time of the asking
        self.seen_idle: int = 0  # only what became idle before this order is taken without waiting
        self.failures: int = 0  # of the factory, in total, before this wait
        self.waiter: Any = None  # the slow part of an acquire that could not be served at once
        self.since: float = 0.0  # loop time of the hand-out
        self.lease_seq: int = 0  # of that hand-out: of two at the same time, which was first
        self.code: CodeType | None = None  # the caller of acquire()
        self.instruction: int = 0  # its offset there; the line is worked out when asked
        self.in_block: bool = False  # held by `async with`
        self.reason: str | None = None  # why it is pinned, for holders; set by pin() alone
        self.probe: int = 0  # recovery whose place it took; 0: none
        self.queue_seq: int = 0  # place in the queue, for good; 0: never queued
        self.queued_at: float = 0.0  # loop time since which it could have been served
        self.lane: Lane | None = None  # through which it goes; None: through none
        self.placed: bool = False  # it has a place of its lane
        self.parked: bool = False  # it waits for a place of its lane, beside the queue
        self.chosen: bool = False  # its turn has come, or a factory runs for it: it is not shed
        self.warned: bool = False  # held_long was said
        self.uncounted: bool = False  # it has begun, and how it ends is not counted yet
        self.previous: Claim | None = None
        self.next: Claim | None = None

    def pin(self, reason: str | None) -> None:
        """Note why its holder keeps what it holds; None if nothing pins it."""
        self.reason = reason


class Level:
    """One priority in the queue."""

    __slots__ = ("higher", "last", "lower", "priority")

    def __init__(self, priority: int, higher: Level | None, lower: Level | None) -> None:
        self.priority: int = priority
        self.higher: Level | None = higher  # the next one
        self.lower: Level | None = lower
        self.last: Claim | None = None  # of this priority in the queue


class Lane:
    """A part of the acquires of a pool: so many of them at most are in the queue or hold a slot."""

    __slots__ = (
        "acquired",
        "first",
        "last",
        "level",
        "max_size",
        "max_wait_time",
        "name",
        "parked",
        "priority",
        "queued",
        "used",
        "wait_time",
    )

    def __init__(self, name: str, max_size: int | None, priority: int, level: Level) -> None:
        self.name: str = name
        self.max_size: int | None = max_size  # places; None: no limit
        self.priority: int = priority
        self.level: Level = level
        self.used: int = 0  # places that are taken
        self.first: Claim | None = None  # of those that wait for a place, the oldest
        self.last: Claim | None = None
        self.parked: int = 0  # how many wait for a place
        self.queued: int = 0  # how many have one and stand in the queue
        self.acquired: int = 0  # in total
        self.wait_time: float = 0.0  # seconds, of those that were served
        self.max_wait_time: float = 0.0


class Times:
    """The part of the core that counts waits and holds."""

    def __init__(self) -> None:
        self.histograms: tuple[Histograms, ...] = ()
        self.reset_times()

    def reset_times(self) -> None:
        self.wait_time: float = 0.0  # seconds, of those that were served
        self.max_wait_time: float = 0.0
        self.hold_time: float = 0.0  # seconds, of those that came back
        self.max_hold_time: float = 0.0

    def note_wait(self, seconds: float) -> None:
        """A claim is served after so many seconds."""
        self.wait_time += seconds
        self.max_wait_time = max(self.max_wait_time, seconds)
        for histograms in self.histograms:
            histograms.waited(seconds)

    def note_hold(self, seconds: float) -> None:
        """What a claim held comes back after so many seconds."""
        self.hold_time += seconds
        self.max_hold_time = max(self.max_hold_time, seconds)
        for histograms in self.histograms:
            histograms.held(seconds)


def newer_twin(newest: Slot, slot: Slot) -> Slot | None:
    """Of leased slots with one resource, of which this is the newest, the next newer one."""
    newer: Slot | None = None if newest is slot else newest
    while newer is not None and newer.same_resource is not slot:
        newer = newer.same_resource
    return newer
