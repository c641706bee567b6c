"""The machine that decides: who gets which slot, who waits, what must be created or destroyed.

Rules of this file:

- It is synchronous and calls nobody: no hook, no logging, no clock, no event loop. `now` comes in
  as an argument, what has to be done goes out as an answer, and the caller does it.
- It is consistent whenever a method returns, by whatever exception. A signal handler or a finalizer
  can run, and raise, only where something is called: a method calls first, and then changes, by
  plain assignments, without a call between the first change and the last.
- What finalizers ask of the pool in the middle of a step comes after it: see `busy`, and
  `Stepping` in `pool/steps.py`.
- What must not be forgotten is an object, not a number: a `Slot` handed out comes back as `put`,
  `retire` or `fail_slot`; a `Claim` ends in `hold`, `fail` or `leave`.

Capacity is `opening + count + closing <= max_size`, and `count` is idle + active; whatever is
neither idle nor leased is RESERVED, in the caller's hands, and counts as active.

Waiters stand in the queue of `queue.py`, lanes beside it. A claim that was granted something
unusable waits again with its old turn, hence in front. With a `queue_target` the queue sheds.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

from ..errors import IllegalTransition
from ..events import DestroyReason
from ..states import CLAIM, POOL, SLOT, CircuitState, ClaimState, Phase, SlotState
from .queue import Queue
from .records import Claim, Lane, Slot, newer_twin

__all__ = ["Claim", "Core", "Slot"]

IN_HAND = {SlotState.OPENING, SlotState.RESERVED, SlotState.CLOSING}


class Core(Queue):
    """The state of one pool. See the head of this file for its rules."""

    def __init__(
        self,
        *,
        min_size: int,
        max_size: int,
        max_uses: int | None,
        max_idle: float | None,
        lifo: bool,
        recovering_limit: int,
        sync_factory: bool,
    ) -> None:
        super().__init__()
        self.min_size = min_size
        self.max_size = max_size
        self.max_creating: int | None = None  # permits out at once; None: as there is room
        self.ceiling = 0  # what max_size may be raised to by itself; below it, it does not count
        self.max_uses = max_uses
        self.max_idle = max_idle
        self.lifo = lifo
        self.recovering_limit = recovering_limit
        self.sync_factory = sync_factory  # waiters create in their own task; else the pool does
        self._reset()
        self.circuit: CircuitState = CircuitState.ACTIVE
        self.recovery: int = 0  # number of the latest recovery
        self.phase: Phase = Phase.NEW

    def _reset(self) -> None:
        self.busy = 0  # depth of the steps under way; 0 while a hook runs
        self.slots: dict[Slot, None] = {}  # all that are not GONE
        self.idle: deque[Slot] = deque()
        self.leased: dict[int, Slot] = {}  # id(resource) -> newest leased slot with it
        self._granted: dict[Claim, None] = {}
        self.generation = 0
        self.count: int = 0  # idle + active
        self.opening: int = 0
        self.closing: int = 0
        self.out: int = 0  # leased slots
        self.probes_in_use: int = 0  # places of the present recovery that are taken
        self.waiters_without_probe: int = 0  # from before the present recovery
        self.idle_seqs: int = 0  # times a slot became idle
        self.begun: int = 0  # acquires, in total
        self.acquired: int = 0  # in total
        self.released: int = 0  # in total
        self.peak: int = 0  # most active and waiting since the last look
        self.reset_times()
        self.phase = Phase.NEW

    # -- reading ---------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        return self.count - len(self.idle)

    @property
    def total(self) -> int:
        return self.opening + self.count + self.closing

    def room(self) -> int:
        """How many more slots may be made now: the one place that knows. Below 0 after a resize."""
        if self.max_creating is None:
            return self._left()
        return min(self._left(), self.max_creating - self.opening)

    def wanted(self) -> int:
        return self.count - len(self.idle) + self.queued

    def take_peak(self) -> int:
        """The most that was in use or waited for since the last call."""
        peak, self.peak = max(self.peak, self.wanted()), self.wanted()
        return peak

    @property
    def idle_count(self) -> int:
        return len(self.idle)

    @property
    def granted_count(self) -> int:
        return len(self._granted)

    def idle_slots(self) -> list[Slot]:
        """Oldest first."""
        return list(self.idle)

    def in_hand(self) -> list[Slot]:
        """Every slot that is neither idle nor leased nor gone; newest first."""
        return [slot for slot in reversed(self.slots) if slot.state in IN_HAND]

    def holders(self) -> list[Claim]:
        """The claims that hold a slot, in no order."""
        found = []
        for slot in list(self.leased.values()):
            twin: Slot | None = slot
            while twin is not None:
                if twin.holder is not None:
                    found.append(twin.holder)
                twin = twin.same_resource
        return found

    def granted(self) -> list[Claim]:
        """Every claim that is granted something and does not hold it yet, oldest first."""
        return list(self._granted)

    def pending(self) -> list[Claim]:
        """Every claim that is granted or waits, in the order of the queue, the parked ones last."""
        return [*self._granted, *self.waiters()]

    def find(self, resource: object, task: Any) -> Slot | None:
        """The leased slot with this very resource: the task's own newest, which is that of its
        innermost block; else the oldest."""
        slot = self.leased.get(id(resource))
        while slot is not None and slot.same_resource is not None:
            if task is not None and slot.holder is not None and slot.holder.task is task:
                break
            slot = slot.same_resource
        return slot

    def is_shared(self, resource: object) -> bool:
        """Whether several leased slots have this very resource."""
        slot = self.leased.get(id(resource))
        return slot is not None and slot.same_resource is not None

    # -- slots -----------------------------------------------------------------------------------

    def take(self, before: float = inf) -> Slot | None:
        """An idle slot that no waiter is owed, if it became idle before that order: RESERVED."""
        if len(self.idle) <= self.queued:
            return None
        end = -1 if self.lifo else 0
        slot = self.idle[end]
        if slot.idle_seq > before:
            return None
        state = SLOT[slot.state, "take"]
        del self.idle[end]
        slot.state = state
        return slot

    def take_this(self, slot: Slot) -> None:
        """Reserve one idle slot out of order."""
        state = SLOT[slot.state, "take"]
        at = self.idle.index(slot)
        del self.idle[at]
        slot.state = state

    def permit(self) -> Slot | None:
        """The right to create one more, if there is room that no waiter is owed."""
        if len(self.idle) + self.room() <= self.queued:
            return None
        return self.permit_for_pool()

    def permit_for_pool(self) -> Slot | None:
        """The right to create one more, for any claim that gets it in the end."""
        slot = Slot(self.generation)
        if self.room() <= 0:
            return None
        self.slots[slot] = None
        self.opening += 1
        return slot

    def open_slot(self, slot: Slot, resource: object, expires_at: float = inf) -> None:
        """The factory has made the resource: OPENING -> RESERVED."""
        slot.state = SLOT[slot.state, "open"]
        slot.resource = resource
        slot.expires_at = expires_at
        slot.fresh = True
        self.opening -= 1
        self.count += 1

    def fail_slot(self, slot: Slot) -> None:
        """A permit comes back unused, or its factory failed."""
        slot.state = SLOT[slot.state, "fail"]
        self.opening -= 1
        del self.slots[slot]

    def put(self, slot: Slot, now: float) -> str | None:
        """RESERVED -> IDLE, or else the reason for which it must be retired."""
        reason = self.unfit(slot, now)
        if reason is not None:
            return reason
        state = SLOT[slot.state, "put"]
        if slot.probe:
            self._release_probe(slot)
        if slot.lane is not None:
            self.now: float = now
            self._leave_lane(slot)
        slot.idle_since = now
        self.idle_seqs += 1
        slot.idle_seq = self.idle_seqs
        slot.state = state
        self.idle.append(slot)
        return None

    def put_back(self, slot: Slot, now: float) -> str | None:
        """`put` for a slot that was only looked at: its idle time goes on."""
        since = slot.idle_since
        reason = self.put(slot, now)
        slot.idle_since = since
        return reason

    def untake(self, slot: Slot) -> None:
        """Undo `take` exactly: same end of the queue, same idle time."""
        slot.state = SLOT[slot.state, "put"]
        if self.lifo:
            self.idle.append(slot)
        else:
            self.idle.appendleft(slot)

    def unfit(self, slot: Slot, now: float) -> str | None:
        """Why this slot may not be handed out again, if so."""
        if self.phase is Phase.CLOSED:
            return DestroyReason.CLOSED
        if slot.generation != self.generation:
            return DestroyReason.RETIRED
        if self._excess() > 0:
            return DestroyReason.RESIZED
        if slot.expires_at <= now:
            return DestroyReason.MAX_LIFETIME
        if self.max_uses is not None and slot.uses >= self.max_uses:
            return DestroyReason.MAX_USES
        return None

    def retire(self, slot: Slot) -> None:
        """RESERVED -> CLOSING: its destructor is about to be called."""
        state = SLOT[slot.state, "retire"]
        self._release_probe(slot)
        self._leave_lane(slot)
        slot.state = state
        self.count -= 1
        self.closing += 1

    def finish(self, slot: Slot) -> None:
        """The destructor is done: the slot is free again."""
        slot.state = SLOT[slot.state, "finish"]
        self.closing -= 1
        del self.slots[slot]
        slot.resource = None  # last: what was in it may run any code when it goes

    # -- claims ----------------------------------------------------------------------------------

    def admit(self, claim: Claim) -> bool:
        """Whether the breaker lets this claim in; while RECOVERING it takes a place."""
        if self.circuit is CircuitState.ACTIVE:
            return True
        if self.circuit is CircuitState.INACTIVE:
            return False
        if (
            self.probes_in_use + self.waiters_without_probe
            >= self.recovering_limit - self._granted_without_probe()
        ):
            return False
        self.probes_in_use += 1
        claim.probe = self.recovery
        return True

    def dismiss(self, claim: Claim) -> None:
        """A claim ends without a slot and without having waited: its place is free again."""
        self._release_probe(claim)
        self._vacate(claim)
        self.remove_deadline(claim)

    def reserve(self, claim: Claim, slot: Slot) -> None:
        """A newcomer took this slot and a hook looks at it: it may be failed meanwhile."""
        state = CLAIM[claim.state, "grant"]
        if claim.state is not ClaimState.ASKING:  # one that waits is granted by grant() only
            raise IllegalTransition("claim", claim.state, "grant")
        claim.state = state
        claim.slot = slot
        self._granted[claim] = None

    def ask_again(self, claim: Claim) -> None:
        """A newcomer's slot was rejected: it looks for another one."""
        claim.state = CLAIM[claim.state, "ask"]
        claim.slot = None
        if claim in self._granted:
            del self._granted[claim]

    def wait(self, claim: Claim, now: float | None = None) -> None:
        """Into the queue: at the end, or where it was if it has had its turn. Without a place of
        its lane it is parked, and gives up its place in a recovery. `now`: if it is not what it was
        when the claim began."""
        state = CLAIM[claim.state, "wait"]
        new, turn = claim.queue_seq == 0, claim.queue_seq or self.queue_seqs + 1
        lane, task = claim.lane, id(claim.task)
        since = claim.began if now is None else now
        if new:
            claim.queued_at = since
        # In a list first: from then on nothing is called that could be broken off.
        if lane is None or self.enter(claim):
            self._stand(claim, turn, since)
        else:
            self._release_probe(claim)
            self._park(claim, lane)
        claim.state = state
        claim.slot = None
        if claim in self._granted:
            del self._granted[claim]
        if new:
            self.queue_seqs = claim.queue_seq = turn
        if claim.task is not None:
            self.waiting_tasks[task] = claim
        self.peak = max(self.peak, self.wanted())

    def grant(self, now: float = 0.0) -> Claim | None:
        """Hand the next free thing to the next waiter; None: nothing free, or nobody waits.

        A claim that still waits is not to be served: it is to be failed, because of an overload.
        """
        claim = self.first
        if claim is None or self._refusing():
            return None
        without_probe = self._without_probe(claim)
        if without_probe and self.probes_in_use >= self.recovering_limit:
            return None
        granted = CLAIM[claim.state, "grant"]
        end = -1 if self.lifo else 0
        if self.idle:
            slot = self.idle[end]
            state = SLOT[slot.state, "take"]
        elif self.sync_factory and self.room() > 0:
            slot = Slot(self.generation)
            state = slot.state
        else:
            return None
        if self.queue_target is not None and self._sheds(claim, now, self.queue_target):
            return claim
        self._dequeue(claim)
        if state is SlotState.OPENING:
            self.slots[slot] = None
            self.opening += 1
        else:
            del self.idle[end]
            slot.state = state
        if without_probe:
            claim.probe = self.recovery
            self.probes_in_use += 1
        claim.state = granted
        claim.slot = slot
        self._granted[claim] = None
        return claim

    def hold(self, claim: Claim, slot: Slot, now: float, waited: float = 0.0) -> None:
        """The claim holds the slot from now on: RESERVED -> LEASED."""
        state = SLOT[slot.state, "lease"]
        holding = CLAIM[claim.state, "hold"]
        key = id(slot.resource)
        twin = self.leased.get(key)
        self.note_wait(waited)
        peak = max(self.peak, self.wanted())
        if claim in self._granted:
            del self._granted[claim]
        claim.state = holding
        slot.state = state
        claim.slot = slot
        claim.since = now
        slot.holder = claim
        slot.uses += 1
        slot.fresh = False
        slot.same_resource = twin
        self.leased[key] = slot
        self.out += 1
        self.acquired += 1
        self.peak = peak
        claim.lease_seq = self.acquired
        lane = claim.lane
        if lane is not None:
            lane.acquired += 1
            lane.wait_time += waited
            lane.max_wait_time = max(lane.max_wait_time, waited)
        if claim.timer is not None:
            self.remove_deadline(claim)  # last: a deadline that stays behind does nothing

    def reclaim(self, slot: Slot, now: float = 0.0) -> Claim:
        """The holder gives it back, or loses it: LEASED -> RESERVED."""
        state = SLOT[slot.state, "reclaim"]
        claim = slot.holder
        assert claim is not None
        ended = CLAIM[claim.state, "end"]
        held = now - claim.since
        self.note_hold(held)
        key = id(slot.resource)
        newest = self.leased[key]
        newer = None if newest is slot else newer_twin(newest, slot)
        if newer is not None:
            newer.same_resource = slot.same_resource
        elif slot.same_resource is not None:
            self.leased[key] = slot.same_resource
        else:
            del self.leased[key]
        slot.same_resource = None
        claim.state = ended
        slot.state = state
        slot.holder = None
        slot.probe = claim.probe
        if claim.placed:
            self.now = now
            slot.lane = claim.lane
            claim.placed = False
        claim.slot = None
        self.out -= 1
        self.released += 1
        return claim

    def fail(self, claim: Claim, error: BaseException) -> None:
        """It gets this error instead. What it was granted stays in `claim.slot`."""
        self._end(claim, "fail")
        claim.error = error

    def leave(self, claim: Claim) -> None:
        """It no longer wants anything. What it was granted stays in `claim.slot`."""
        self._end(claim, "leave")

    def deadlock(self, claim: Claim, deadlines: bool) -> list[Claim]:
        """The leases, if all of them belong to blocks of tasks that wait here: a deadlock.

        `claim` counts as waiting. `deadlines`: whether waiters with a deadline count, too.
        """
        if self.opening or self.closing or self.out == 0 or self.out != self.count:
            return []
        if self.room() > 0 or self.ceiling > self.total:
            return []  # there is room, or may be: it waits for that, or for the breaker
        leases = []
        for lease in self.holders():
            if not lease.in_block or lease.task is None:
                return []
            if lease.task is not claim.task:
                waiter = self.waiting_tasks.get(id(lease.task))
                if waiter is None or (waiter.deadline is not None and not deadlines):
                    return []
            leases.append(lease)
        return leases

    # -- what to do next -------------------------------------------------------------------------

    def demand(self) -> int:
        """How many creations the pool must start now for the claims that wait."""
        if self.sync_factory or not self.queued or self._refusing():
            return 0
        wanted = self.queued
        if self.circuit is CircuitState.RECOVERING:
            free = max(0, self.recovering_limit - self.probes_in_use)
            wanted += min(self.waiters_without_probe, free) - self.waiters_without_probe
        return max(0, min(wanted - len(self.idle) - self.opening, self.room()))

    def shortage(self) -> int:
        """How many are missing to `min_size`."""
        if self.phase is not Phase.OPEN or self.circuit is CircuitState.INACTIVE:
            return 0
        missing = self.min_size - self.count - self.opening
        return max(0, min(missing, self.room()))

    def surplus(self) -> int:
        """How many idle slots are too many after a resize."""
        return max(0, min(self._excess(), len(self.idle)))

    # -- the whole -------------------------------------------------------------------------------

    def move(self, event: str) -> None:
        """open, unopen, drain, close."""
        self.phase = POOL[self.phase, event]

    def set_circuit(self, state: CircuitState) -> None:
        self.circuit = state
        self.probes_in_use = 0
        self.waiters_without_probe = 0
        if state is CircuitState.RECOVERING:
            self.recovery += 1
            self.waiters_without_probe = self.queued

    def disown(self) -> None:
        """After a fork: forget the claims that held or waited in the parent."""
        for lease in self.holders():
            lease.state = ClaimState.ENDED
        for claim in self.pending():
            claim.state = ClaimState.ABANDONED

    def reports(self, probe: int) -> bool:
        """Whether an outcome with this probe number concerns the breaker."""
        return self.circuit is not CircuitState.RECOVERING or probe == self.recovery

    # -- inner -----------------------------------------------------------------------------------

    def _excess(self) -> int:
        """How many there are too many; those that are being destroyed are on their way out."""
        return self.count + self.opening - self.max_size

    def _left(self) -> int:
        """How many slots there may be beside those that there are."""
        return self.max_size - self.opening - self.count - self.closing

    def _end(self, claim: Claim, event: str) -> None:
        state = CLAIM[claim.state, event]
        has_probe, near = self._has_probe(claim), claim.next
        if claim.state is ClaimState.WAITING:
            self._dequeue(claim)
        elif claim in self._granted:
            del self._granted[claim]
        claim.state = state
        self.probes_in_use -= has_probe
        claim.probe = 0
        self._vacate(claim, near)
        self.remove_deadline(claim)  # last: a deadline that stays behind does nothing

    def _has_probe(self, owner: Claim | Slot) -> bool:
        return self.circuit is CircuitState.RECOVERING and owner.probe == self.recovery

    def _release_probe(self, owner: Claim | Slot) -> None:
        if owner.probe and owner.probe == self.recovery and self.circuit is CircuitState.RECOVERING:
            self.probes_in_use -= 1
        owner.probe = 0

    def _refusing(self) -> bool:
        """The claims that still wait and are about to be failed."""
        return self.circuit is CircuitState.INACTIVE or self.phase is Phase.CLOSED

    def _granted_without_probe(self) -> int:
        """Granted before this recovery: if that is of no use they wait again, before newcomers."""
        return sum(claim.probe != self.recovery for claim in self._granted)

    def _without_probe(self, claim: Claim) -> bool:
        return self.circuit is CircuitState.RECOVERING and claim.probe != self.recovery

    def _stand(self, claim: Claim, turn: int, since: float, near: Claim | None = None) -> None:
        """Into the queue, in which it stands since that time. `near`: see `_enqueue`."""
        without_probe = self._without_probe(claim)
        self._note_standing(since)
        if self.queued < self.opening and not self.sync_factory:
            claim.chosen = True  # more factories run than claims wait
        self._enqueue(claim, turn, near)
        self.waiters_without_probe += without_probe

    def _vacate(self, claim: Claim, near: Claim | None = None) -> None:
        """The claim gives up its place of its lane, if it has one."""
        if claim.placed and claim.lane is not None:
            claim.placed = False
            self._free_place(claim.lane, near)

    def _leave_lane(self, slot: Slot) -> None:
        """The same for a slot, which had it from its holder."""
        lane = slot.lane
        if lane is not None:
            slot.lane = None
            self._free_place(lane)

    def _free_place(self, lane: Lane, near: Claim | None = None) -> None:
        """One place less is taken: the oldest that waits for one has it, and is in the queue."""
        lane.used -= 1
        claim = lane.first
        if claim is not None and self.enter(claim):
            self._unlink(claim)
            claim.queued_at = self.now
            self._stand(claim, claim.queue_seq, self.now, near)

    def _dequeue(self, claim: Claim) -> None:
        task = id(claim.task)
        known = self.waiting_tasks.get(task)
        without_probe = self._without_probe(claim) and not claim.parked
        self._unlink(claim)
        if known is claim:
            del self.waiting_tasks[task]
        self.waiters_without_probe -= without_probe
