"""The states, and the table of their transitions.

Three machines run in the core, one on the fast path, one in the breaker, and one when a pool is
closed:

- A *slot* is one place in the pool. It begins as the permit to create a resource (OPENING) and
  ends when that resource is gone; `max_size` bounds the number of slots.
- A *claim* is one acquire: it may wait for a slot, then it holds one.
- An *acquire* is what drives a claim: the awaitable that `pool.acquire()` returns.
- The *pool* itself opens, may drain, and closes.
- The *circuit* lets acquires pass, refuses them, or lets a few pass as probes.
- *Closing* is how far the work of a close() has come.

`TRANSITIONS` is complete: an event that is not listed for a state raises `IllegalTransition` and
changes nothing. The diagrams in `docs/` are drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

from .errors import IllegalTransition


class State(Enum):
    """An enum that hashes its members by identity: Enum does it by name, in Python code."""

    if not TYPE_CHECKING:  # the same signature, without a call in between
        __hash__ = object.__hash__


class SlotState(State):
    """The states of a slot."""

    OPENING = "opening"  # the factory runs, or may run: a permit
    RESERVED = "reserved"  # between two owners, or in a hook
    IDLE = "idle"
    LEASED = "leased"
    CLOSING = "closing"  # the destructor runs
    GONE = "gone"


class ClaimState(State):
    """The states of a claim."""

    ASKING = "asking"
    WAITING = "waiting"
    GRANTED = "granted"  # a slot is reserved for it, and its task has not run since
    HOLDING = "holding"
    ENDED = "ended"
    FAILED = "failed"
    ABANDONED = "abandoned"


class AcquireState(State):
    """The states of the awaitable that `pool.acquire()` returns."""

    FRESH = "fresh"  # nothing has driven it
    BEGUN = "begun"  # its first step is under way
    READY = "ready"  # it holds the resource, and has to hand it over
    PAUSED = "paused"  # it waits in the native core
    SLOW = "slow"  # `pool/waiter.py` drives it
    OVER = "over"


class Handover(State):
    """Where the fast path hands an acquire over to `pool/waiter.py`."""

    SEEKING = "seeking"  # nothing is in hand: what the claim was granted, or else what there is
    SHOWING = "showing"  # a slot is in hand, which before_acquire has not seen
    INSPECTING = "inspecting"  # before_acquire has returned an awaitable
    ACCEPTED = "accepted"  # before_acquire has accepted the slot, and the pool changed meanwhile
    REFUSED = "refused"  # before_acquire has refused the slot, or raised


class Phase(State):
    """The states of a pool."""

    NEW = "new"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class ClosingState(State):
    OPEN = "open"  # or new: not closed
    DRAINING = "draining"  # holders may still give back
    SHUTTING = "shutting"  # waiters are failed, what is idle is handed to the destructor
    CLOSED = "closed"  # hooks are under way, perhaps
    ANNOUNCED = "announced"  # nothing is left, and subscribers know


class CircuitState(StrEnum):
    """The states of the circuit breaker.

    Attributes:
        ACTIVE: Every acquire passes (the breaker is closed).
        INACTIVE: Every acquire fails immediately (the breaker is open).
        RECOVERING: A few acquires pass as probes (the breaker is half-open).
    """

    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    RECOVERING = "RECOVERING"


Transitions = Mapping[tuple[Enum, str], Enum]


class Law(dict[tuple[Any, str], Any]):
    """The transitions of one machine: `law[state, event]` is the next state, or raises."""

    def __init__(self, machine: str, transitions: Transitions) -> None:
        super().__init__(transitions)
        self.machine = machine

    def __missing__(self, step: tuple[Any, str]) -> Any:
        raise IllegalTransition(self.machine, *step)


SLOT = Law(
    "slot",
    {
        (SlotState.OPENING, "open"): SlotState.RESERVED,
        (SlotState.OPENING, "fail"): SlotState.GONE,
        (SlotState.IDLE, "take"): SlotState.RESERVED,
        (SlotState.RESERVED, "put"): SlotState.IDLE,
        (SlotState.RESERVED, "lease"): SlotState.LEASED,
        (SlotState.RESERVED, "retire"): SlotState.CLOSING,
        (SlotState.LEASED, "reclaim"): SlotState.RESERVED,
        (SlotState.CLOSING, "finish"): SlotState.GONE,
    },
)

CLAIM = Law(
    "claim",
    {
        (ClaimState.ASKING, "wait"): ClaimState.WAITING,
        (ClaimState.ASKING, "grant"): ClaimState.GRANTED,
        (ClaimState.ASKING, "hold"): ClaimState.HOLDING,
        (ClaimState.WAITING, "grant"): ClaimState.GRANTED,
        (ClaimState.WAITING, "fail"): ClaimState.FAILED,
        (ClaimState.WAITING, "leave"): ClaimState.ABANDONED,
        (ClaimState.GRANTED, "ask"): ClaimState.ASKING,
        (ClaimState.GRANTED, "wait"): ClaimState.WAITING,
        (ClaimState.GRANTED, "hold"): ClaimState.HOLDING,
        (ClaimState.GRANTED, "fail"): ClaimState.FAILED,
        (ClaimState.GRANTED, "leave"): ClaimState.ABANDONED,
        (ClaimState.HOLDING, "end"): ClaimState.ENDED,
    },
)

ACQUIRE = Law(
    "acquire",
    {
        (AcquireState.FRESH, "begin"): AcquireState.BEGUN,
        (AcquireState.FRESH, "end"): AcquireState.OVER,
        (AcquireState.BEGUN, "serve"): AcquireState.READY,
        (AcquireState.BEGUN, "pause"): AcquireState.PAUSED,
        (AcquireState.BEGUN, "delegate"): AcquireState.SLOW,
        (AcquireState.BEGUN, "end"): AcquireState.OVER,
        (AcquireState.PAUSED, "serve"): AcquireState.READY,
        (AcquireState.PAUSED, "delegate"): AcquireState.SLOW,
        (AcquireState.PAUSED, "end"): AcquireState.OVER,
        (AcquireState.SLOW, "end"): AcquireState.OVER,
        (AcquireState.READY, "end"): AcquireState.OVER,
    },
)

POOL = Law(
    "pool",
    {
        (Phase.NEW, "open"): Phase.OPEN,
        (Phase.NEW, "close"): Phase.CLOSED,
        (Phase.OPEN, "unopen"): Phase.NEW,
        (Phase.OPEN, "drain"): Phase.DRAINING,
        (Phase.OPEN, "close"): Phase.CLOSED,
        (Phase.DRAINING, "close"): Phase.CLOSED,
    },
)

CLOSING = Law(
    "closing",
    {
        (ClosingState.OPEN, "drain"): ClosingState.DRAINING,
        (ClosingState.OPEN, "shut"): ClosingState.SHUTTING,
        (ClosingState.OPEN, "forsake"): ClosingState.ANNOUNCED,
        (ClosingState.DRAINING, "shut"): ClosingState.SHUTTING,
        (ClosingState.DRAINING, "forsake"): ClosingState.ANNOUNCED,
        (ClosingState.SHUTTING, "empty"): ClosingState.CLOSED,
        (ClosingState.CLOSED, "announce"): ClosingState.ANNOUNCED,
    },
)

CIRCUIT = Law(
    "circuit",
    {
        (state, event): target
        for state in CircuitState
        for event, target in (
            ("activate", CircuitState.ACTIVE),
            ("deactivate", CircuitState.INACTIVE),
            ("recover", CircuitState.RECOVERING),
        )
    },
)

TRANSITIONS: Mapping[str, Transitions] = {
    "slot": SLOT,
    "claim": CLAIM,
    "acquire": ACQUIRE,
    "pool": POOL,
    "circuit": CIRCUIT,
    "closing": CLOSING,
}
