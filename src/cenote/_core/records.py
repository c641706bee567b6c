"""What the core hands out and takes back: slots and claims. Objects, not numbers to remember."""

from __future__ import annotations

from math import inf
from types import CodeType
from typing import Any

from ..states import ClaimState, SlotState


class Slot:
    """One place in the pool, from the permit to create a resource until that resource is gone."""

    __slots__ = (
        "expires_at",
        "fresh",
        "generation",
        "holder",
        "idle_seq",
        "idle_since",
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
        self.told: bool = False  # its destructor is being called, or was
        self.holder: Claim | None = None  # who holds it, while LEASED
        self.same_resource: Slot | None = None  # next older leased slot with the identical resource


class Claim:
    """One acquire: it may wait, is granted a slot, and holds it until the return."""

    __slots__ = (
        "began",
        "code",
        "deadline",
        "error",
        "failures",
        "in_block",
        "instruction",
        "lease_seq",
        "next",
        "previous",
        "probe",
        "queue_seq",
        "reason",
        "seen_idle",
        "since",
        "slot",
        "state",
        "task",
        "timeout",
        "timer",
        "waiter",
        "warned",
    )

    over: bool = False  # of the native core: what drove it has ended by an exception

    def __init__(self) -> None:
        self.state: ClaimState = ClaimState.ASKING
        self.slot: Slot | None = None  # granted and not yet used, or held
        self.error: BaseException | None = None  # why it FAILED
        self.task: Any = None  # the task that awaits it
        self.timeout: float | None = None  # seconds for the whole; None: for ever
        self.deadline: float | None = None  # loop time; None: for ever
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
        self.reason: str | None = None  # why it is pinned, for holders
        self.probe: int = 0  # recovery whose place it took; 0: none
        self.queue_seq: int = 0  # place in the queue, for good; 0: never queued
        self.warned: bool = False  # held_long was said
        self.previous: Claim | None = None
        self.next: Claim | None = None
