"""After a step that was broken off: what has no owner goes back to the pool.

Steps are synchronous, so in a turn of the loop of its own no step is under way. Then whatever is
neither idle nor leased is in the hands of a claim (granted, not yet run) or of a hook task; a slot
of which that is not true was in the hands of a step that a KeyboardInterrupt, a RecursionError or a
MemoryError has ended. What is left on its wire is unknown: it is destroyed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .._core import Claim, Slot
from ..events import DestroyReason
from ..states import CircuitState, ClaimState, SlotState

if TYPE_CHECKING:
    from .engine import Engine

REASON = DestroyReason.CANCELLED  # of what is destroyed here


def tidy(reference: weakref.ref[Engine[Any]]) -> None:
    """The callback of the loop; it keeps nothing alive."""
    engine = reference()
    pool = None if engine is None else engine.pool
    if engine is not None and pool is not None:
        engine.must_tidy = False
        engine.core.busy = 0
        engine.advancing = False
        engine.step(_tidy, engine)


def _tidy(engine: Engine[Any]) -> None:
    core = engine.core
    for work in [*engine.hooks.tasks]:
        if work.stillborn or work.finished:
            work.bury()
            engine.hooks.tasks.discard(work)
    for claim in core.pending():
        if claim.waiter is None or claim.waiter.over or claim.over:
            engine.claims.give_up(claim)
            engine.accounts.cancelled(claim)
        elif claim.state is ClaimState.GRANTED and _has_nothing(claim):
            claim.waiter.look_further()
    _time_out(engine)
    owned = {claim.slot for claim in core.granted()} | {work.slot for work in engine.hooks.tasks}
    for slot in core.in_hand():
        if slot not in owned:
            _free(engine, slot)
    for claim in core.granted():  # in case that it was granted something, and not woken
        claim.waiter.wake()
    if core.circuit is CircuitState.INACTIVE:
        engine.circuit.refuse_all()
    engine.closing.resume()
    engine.deadlines.set_again()
    engine.maintenance.resume()
    engine.signals.changed()
    engine.advance()


def _has_nothing(claim: Claim) -> bool:
    """Whether the hook of a claim that was granted something has ended, and its answer is lost."""
    waiter = claim.waiter
    if claim.slot is not None or waiter is claim:  # the native core keeps it until it holds it
        return False
    return waiter.inspection is None or waiter.inspection.finished


def _time_out(engine: Engine[Any]) -> None:
    """Time out the claims whose timer came in the step that was broken off."""
    now = engine.time()
    for claim in engine.core.pending():
        if claim.deadline is not None and claim.deadline <= now:
            waits = claim.state is ClaimState.WAITING
            if waits or (claim.waiter is not None and claim.waiter.inspection is not None):
                engine.claims.time_out(claim)


def _free(engine: Engine[Any], slot: Slot) -> None:
    if slot.state is SlotState.OPENING:
        engine.creations.tasks.pop(slot, None)
        engine.core.fail_slot(slot)
    elif slot.state is SlotState.RESERVED:
        engine.destructions.destroy(slot, REASON)
    elif slot.state is SlotState.CLOSING and slot.told:
        engine.destructions.finish(slot.resource, REASON, slot)
    elif slot.state is SlotState.CLOSING:
        engine.destructions.call(slot.resource, REASON, slot)
