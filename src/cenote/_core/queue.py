"""Who waits, and in which order: one queue, and lanes, which bound how many of a kind stand in it.

A claim of a lane takes a place of it before it takes a slot or stands in the queue, and gives the
place back with the slot. A claim that finds no place is parked in its lane, beside the queue: it
holds up nobody, and the oldest of a lane moves into the queue when a place is free. The queue is
ordered by priority, and by turns within a priority. Hence a pool without lanes has a plain queue,
and serving it means looking at the first only.

The lists are intrusive: append, pop-oldest and remove are O(1) for any number of priorities.
"""

from __future__ import annotations

from collections.abc import Iterator

from .deadlines import Deadlines
from .records import Claim, Lane, Level


class Queue(Deadlines):
    """The queue of one core. See the head of this file for its rules."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: list[Lane] = []
        self.normal: Level = Level(0, None, None)  # of those without a lane
        self.first: Claim | None = None  # who is next
        self.last: Claim | None = None
        self.queued: int = 0  # claims in the queue
        self.parked: int = 0  # claims that wait for a place of their lane
        self.queue_seqs: int = 0  # turns given out
        self.waiting_tasks: dict[int, Claim] = {}  # id of a task -> its claim that waits
        self.queue_target: float | None = None  # seconds of waiting that are well; None: any
        self.queue_interval: float = 1.0  # seconds without anybody served so soon: overloaded
        self.overloaded: bool = False
        self.standing_since: float = 0.0  # loop time since which nobody was served so soon

    @property
    def waiting(self) -> int:
        """All claims that wait, in the queue or for a place of their lane."""
        return self.queued + self.parked

    def add_lane(self, name: str, max_size: int | None, priority: int) -> Lane:
        """A new lane, whose claims take so many places at most."""
        lane = Lane(name, max_size, priority, self._level(priority))
        self.lanes.append(lane)
        return lane

    def enter(self, claim: Claim) -> bool:
        """Whether the claim has a place of its lane, or may have one now. Without a lane: yes."""
        lane = claim.lane
        if lane is None or claim.placed:
            return True
        if lane.max_size is not None and lane.used >= lane.max_size:
            return False
        lane.used += 1
        claim.placed = True
        return True

    def waiters(self) -> Iterator[Claim]:
        """Every claim that waits: the queue in its order, then the parked ones of each lane."""
        for first in (self.first, *(lane.first for lane in self.lanes)):
            claim = first
            while claim is not None:
                yield claim
                claim = claim.next

    # -- controlled delay --------------------------------------------------------------------------

    def choose(self, now: float) -> Claim | None:
        """A factory is about to be started for a claim that waits: the claim, if it is to be failed
        instead, because of an overload."""
        claim = self.first
        while claim is not None and claim.chosen:
            claim = claim.next
        if claim is None or self.queue_target is None:
            return None
        return claim if self._sheds(claim, now, self.queue_target) else None

    def _sheds(self, claim: Claim, now: float, target: float) -> bool:
        """Whether a claim is refused now that its turn has come: something is free for it, or a
        factory is about to be started for it. Each is judged once.

        A queue is good as long as it is empty now and then, or somebody is served soon. If that was
        not so over a whole interval, what stands in it is older than anybody waits for.
        """
        self.now = now
        if claim.chosen:
            return False
        waited = now - claim.queued_at
        if waited < target:
            self.overloaded = False
            self.standing_since = now
        elif now - self.standing_since >= self.queue_interval:
            self.overloaded = True
        claim.chosen = not (self.overloaded and waited > 2 * target)
        return not claim.chosen

    def _note_standing(self, since: float) -> None:
        """A claim is about to stand in the queue: in an empty one, what is judged begins."""
        if self.queued == 0:
            self.overloaded = False
            self.standing_since = since

    # -- for the core ------------------------------------------------------------------------------

    def _level(self, priority: int) -> Level:
        """That of this priority; the levels are a list, the highest first."""
        higher: Level | None = None
        level: Level | None = self._highest()
        while level is not None and level.priority > priority:
            higher, level = level, level.lower
        if level is not None and level.priority == priority:
            return level
        new = Level(priority, higher, level)
        if higher is not None:
            higher.lower = new
        if level is not None:
            level.higher = new
        return new

    def _highest(self) -> Level:
        level = self.normal
        while level.higher is not None:
            level = level.higher
        return level

    def _enqueue(self, claim: Claim, turn: int, near: Claim | None = None) -> None:
        """Enqueue it behind claims of its priority, or a higher one, with an earlier turn.

        `near`: where a claim stood that has just left the queue. The search begins there if it can,
        so that it costs the same to cancel one of a lane, however many others are ahead of it.
        """
        lane, level = claim.lane, self._of(claim)
        after, above = level.last, level.higher
        while above is not None and above.last is None:
            above = above.higher
        before_level = None if above is None else above.last
        if after is None:
            after = before_level
        elif after.queue_seq > turn:
            # It is an old turn: near the front, behind others of the kind at most.
            before = self.first if before_level is None else before_level.next
            if near is not None and near.previous is not before_level:
                earlier = near.previous
                if earlier is not None and self._of(near) is level and earlier.queue_seq < turn:
                    before = near
            assert before is not None
            while before.queue_seq < turn:
                before = before.next
                assert before is not None
            after = before.previous
        following = self.first if after is None else after.next
        newest = level.last is None or after is level.last
        claim.previous, claim.next = after, following
        if after is None:
            self.first = claim
        else:
            after.next = claim
        if following is None:
            self.last = claim
        else:
            following.previous = claim
        if newest:
            level.last = claim
        if lane is not None:
            lane.queued += 1
        self.queued += 1

    def _of(self, claim: Claim) -> Level:
        """The level of its priority."""
        return self.normal if claim.lane is None else claim.lane.level

    def _park(self, claim: Claim, lane: Lane) -> None:
        """Behind the last that waits for a place of this lane."""
        claim.previous = lane.last
        if lane.last is None:
            lane.first = claim
        else:
            lane.last.next = claim
        lane.last = claim
        claim.parked = True
        lane.parked += 1
        self.parked += 1

    def _unlink(self, claim: Claim) -> None:
        """Out of the queue, or out of the parked ones of its lane.

        It makes no call: what is broken off in the middle would leave half a list.
        """
        lane, before, after = claim.lane, claim.previous, claim.next
        if before is not None:
            before.next = after
        if after is not None:
            after.previous = before
        if claim.parked and lane is not None:
            if before is None:
                lane.first = after
            if after is None:
                lane.last = before
            claim.parked = False
            lane.parked -= 1
            self.parked -= 1
        else:
            if before is None:
                self.first = after
            if after is None:
                self.last = before
            level = self.normal if lane is None else lane.level
            if level.last is claim:
                above = None if before is None else before.lane
                of = self.normal if above is None else above.level
                level.last = before if of is level else None
            if lane is not None:
                lane.queued -= 1
            self.queued -= 1
        claim.previous = claim.next = None
