"""Who holds what: read from the core when somebody asks, in any thread."""

from __future__ import annotations

from math import inf
from typing import Any

from ..events import Holder, lane_name, line_of, task_name
from ..messages import held_by
from ..states import ClaimState, SlotState


def holders_of(core: Any, now: float) -> list[Holder[Any]]:
    """Tasks that hold a resource, or were handed one and have not run since; longest first."""
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
                lane=lane_name(claim),
            ),
        )
        for since, _, claim, slot in sorted(held, key=lambda found: found[:2])
    ]


class Snapshot:
    """Who holds what at one moment: made once for all the timeouts of a step, not for each."""

    __slots__ = ("_claims", "_holders", "_text", "version")

    def __init__(self, version: object, held: list[tuple[Any, Holder[Any]]]) -> None:
        self.version: object = version  # of the leases: another one, and this is out of date
        self._claims = [claim for claim, _ in held]
        self._holders = tuple(holder for _, holder in held)
        self._text = held_by(self._holders)

    def but(self, claim: Any) -> tuple[tuple[Holder[Any], ...], str]:
        """The holders beside this claim, and the words for them."""
        if claim.state is not ClaimState.GRANTED:
            return self._holders, self._text
        others = tuple(
            holder
            for each, holder in zip(self._claims, self._holders, strict=True)
            if each is not claim
        )
        return others, held_by(others)
