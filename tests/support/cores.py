"""Both cores side by side, and the states of slots and claims that their tests begin with."""

from collections import deque
from enum import Enum
from math import inf
from typing import Any

from cenote import _core
from cenote._core import Claim, Slot, machine, records
from cenote.states import ClaimState, Phase

NOW = 100.0
A, B, C, STRANGER = "task A", "task B", "task C", "a stranger"  # a core only compares tasks

CORES = [machine.Core]
CLAIMS: dict[type, type] = {machine.Core: records.Claim}
if _core.kind == "native":
    CORES.insert(0, _core.Core)
    CLAIMS[_core.Core] = _core.Claim
NAMES = ["native", "pure"][-len(CORES) :]

PHASES = {
    Phase.NEW: [],
    Phase.OPEN: ["open"],
    Phase.DRAINING: ["open", "drain"],
    Phase.CLOSED: ["open", "close"],
}


SETTABLE = {"max_creating"}  # of a core that exists


def new_core(core_class: Any, **options: Any) -> Any:
    """A core of this class, open, with room for ten unless the options say otherwise."""
    defaults: dict[str, Any] = {
        "min_size": 0,
        "max_size": 10,
        "max_uses": None,
        "max_idle": None,
        "lifo": False,
        "recovering_limit": 1,
        "sync_factory": True,
    }
    settable = {name: options.pop(name) for name in SETTABLE & options.keys()}
    core = core_class(**defaults | options)
    for name, value in settable.items():
        setattr(core, name, value)
    core.move("open")
    return core


def new_claim(core: Any) -> Claim:
    """A claim of the kind that this core takes."""
    claim: Claim = CLAIMS[type(core)]()
    return claim


def reserved(core: Any, resource: object = None, expires_at: float = inf) -> Slot:
    slot: Slot = core.permit_for_pool()
    core.open_slot(slot, resource or object(), expires_at)
    return slot


def idle(core: Any, number: int = 1, now: float = NOW) -> list[Slot]:
    slots = [reserved(core) for _ in range(number)]
    for slot in slots:
        assert core.put(slot, now) is None
    return slots


def leased(core: Any, claim: Claim | None = None, resource: object = None) -> Slot:
    slot = reserved(core, resource)
    core.hold(claim or new_claim(core), slot, NOW)
    return slot


def waiting(core: Any, number: int = 1) -> list[Claim]:
    claims = [new_claim(core) for _ in range(number)]
    for claim in claims:
        core.wait(claim)
    return claims


def holder(core: Any, task: object, *, in_block: bool = True) -> Claim:
    claim = new_claim(core)
    claim.task, claim.in_block = task, in_block
    return claim


def waiter(core: Any, task: object, deadline: float | None = None) -> Claim:
    claim = new_claim(core)
    claim.task, claim.deadline = task, deadline
    return claim


def granted_in(core: Any) -> list[Claim]:
    return [claim for claim in core.pending() if claim.state is ClaimState.GRANTED]


def queue(core: Any) -> list[Claim]:
    """The waiting claims, oldest first; the links must agree with one another."""
    forward, claim = [], core.first
    while claim is not None:
        forward.append(claim)
        claim = claim.next
    backward, claim = [], core.last
    while claim is not None:
        backward.append(claim)
        claim = claim.previous
    assert forward == backward[::-1]
    assert len(forward) == core.waiting
    turns = [claim.queue_seq for claim in forward]
    assert turns == sorted(set(turns))
    assert all(claim.state is ClaimState.WAITING for claim in forward)
    return forward


def snapshot(*things: Any) -> list[dict[str, Any]]:
    """Every attribute of a core, of slots, of claims; other objects by their identity."""
    return [
        {
            name: frozen(value)
            for name in dir(thing)
            if not name.startswith("_") and not callable(value := getattr(thing, name))
        }
        for thing in things
    ]


def frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return [(frozen(key), frozen(item)) for key, item in value.items()]
    if isinstance(value, deque | list | tuple):
        return [frozen(item) for item in value]
    return value if isinstance(value, int | float | str | Enum | None) else id(value)
