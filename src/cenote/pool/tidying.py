"""After a step that was broken off: what is nobody's goes back to the pool.

Steps are synchronous, so in a turn of the loop of its own no step is under way. Then whatever is
neither idle nor leased is in the hands of a claim (granted, not yet run) or of a work (a hook under
way); a slot of which that is not true was in the hands of a step that a KeyboardInterrupt, a
RecursionError or a MemoryError has ended. What is left on its wire is unknown: it is destroyed.
"""

from __future__ import annotations

import weakref
from typing import Any

from .._core import Claim, Slot
from ..events import DestroyReason
from ..states import CircuitState, ClaimState, Phase, SlotState

REASON = DestroyReason.CANCELLED  # of what is destroyed here


def tidy(reference: weakref.ref[Any]) -> None:
    """The callback of the loop; it keeps nothing alive."""
    pool = reference()
    if pool is not None:
        pool._tidying = None
        pool._doubtful = False
        pool._core.busy = 0
        pool._advancing = False
        pool._step(_tidy, pool)


def _tidy(pool: Any) -> None:
    core = pool._core
    for work in [*pool._works]:
        if work.stillborn or work.finished:
            work.bury()
            pool._works.discard(work)
    for claim in core.pending():
        if claim.waiter is None or claim.waiter.over or claim.over:
            pool._give_up(claim)
        elif claim.state is ClaimState.GRANTED and _has_nothing(claim):
            claim.waiter.look_further()
    _time_out(pool)
    owned = {claim.slot for claim in core.granted()} | {work.slot for work in pool._works}
    for slot in core.in_hand():
        if slot not in owned:
            _free(pool, slot)
    for claim in core.granted():  # in case that it was granted something, and not woken
        claim.waiter.wake()
    if core.circuit is CircuitState.INACTIVE:
        pool._refuse_all()
    if core.phase is Phase.CLOSED and pool._closing is not None and not pool._shut_over:
        pool._shut_rest()
    pool._deadlines.set_again()
    pool._maintenance.go_on(pool)
    pool._changed()
    pool._advance()


def _has_nothing(claim: Claim) -> bool:
    """Of one that was granted something: its hook has ended, and nobody has heard the answer."""
    waiting = claim.waiter
    if claim.slot is not None or waiting is claim:  # the native core keeps it until it holds it
        return False
    return waiting.inspection is None or waiting.inspection.finished


def _time_out(pool: Any) -> None:
    """Those whose timer has rung in vain."""
    now = pool._time()
    for claim in pool._core.pending():
        if claim.deadline is not None and claim.deadline <= now:
            waits = claim.state is ClaimState.WAITING
            if waits or (claim.waiter is not None and claim.waiter.inspection is not None):
                pool._time_out(claim)


def _free(pool: Any, slot: Slot) -> None:
    if slot.state is SlotState.OPENING:
        pool._creations.pop(slot, None)
        pool._core.fail_slot(slot)
    elif slot.state is SlotState.RESERVED:
        pool._destroy(slot, REASON)
    elif slot.state is SlotState.CLOSING and slot.told:
        pool._gone(slot.resource, REASON, slot)
    elif slot.state is SlotState.CLOSING:
        pool._call_destructor(slot.resource, REASON, slot)
