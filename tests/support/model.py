"""A naive pool: what the contract says, with lists, for `test_model.py` to compare with a real one.

Nothing suspends here. What a task of the real pool would do as soon as it runs is a call in `todo`,
and the calls are made in the order in which they were put there.

Left out, because it would make the model as large as the pool: health checks, `max_lifetime`,
`max_idle`, `hold_warning`; the timeouts of hooks and factories; `open()`, and closing with a drain;
deadlocks (every task acquires once); strategies and events; a `min_size` whose factory fails (its
backoff is random); `recover()` while an async `before_acquire` is running; whether `min_size` or a
newcomer whose resource was rejected is first to create, while its async destructor still runs.
"""

from collections import Counter, deque
from collections.abc import Callable
from math import inf
from typing import Any

from tests.support.model_records import (
    Claim,
    Creation,
    Options,
    Rest,
    Thing,
    lane_of,
    unlucky,
)


class Model:
    def __init__(self, options: Options, now: float) -> None:
        self.options = options
        self.now = now
        self.min_size, self.max_size = options.min_size, options.max_size
        self.circuit = "ACTIVE"
        self.opened = self.closed = False
        self.generation = 0
        self.alive: list[Thing] = []  # made, and not given to the destructor
        self.idle: list[Rest] = []  # longest first
        self.examined: list[tuple[Claim, Thing]] = []  # an async before_release looks at it
        self.creations: list[Creation] = []
        self.destroying: list[Thing] = []
        self.permits = 0  # handed out to create, and not used yet
        self.claims: dict[str, Claim] = {}
        self.waiters: list[Claim] = []
        self.parked: list[Claim] = []  # that wait for a place of their lane
        self.lane_used = [0, 0]
        self.overloaded, self.standing_since = False, 0.0
        self.inspected: list[Claim] = []  # an async before_acquire looks at its thing
        self.holding: list[Claim] = []
        self.places: list[Claim] = []  # who counts for recovering_limit
        self.failing: set[int] = set()  # for which acquires a sync factory fails: see `unlucky`
        self.spoiled: set[str] = set()  # what a sync before_acquire rejects
        self.made = 0  # by creations of the pool
        self.turns = 0
        self.filling = False
        self.totals: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.times = {
            "wait_time": 0.0,
            "max_wait_time": 0.0,
            "hold_time": 0.0,
            "max_hold_time": 0.0,
        }
        self.orphans: dict[str, Thing] = {}  # of acquires that left while a hook looked at them
        self.todo: deque[Callable[[], None]] = deque()

    # -- what a user does ------------------------------------------------------------------------

    def acquire(self, name: str, timeout: float | None, in_block: bool) -> None:
        claim = self.claims[name] = Claim(name, timeout, in_block)
        claim.lane = lane_of(name, self.options)
        self.soon(self.begin, claim)

    def try_acquire(self, name: str) -> None:
        claim = self.claims[name] = Claim(name, 0, False, trying=True)
        claim.lane = lane_of(name, self.options)
        if self.closed:
            self.finish(claim, "none")
            return
        self.open()
        claim.began = self.now
        if not self.admitted(claim):
            self.finish(claim, "none")
        elif self.options.before_acquire == "async":
            self.finish(claim, "pool error")
            self.serve()
        else:
            claim.seen = list(self.idle)
            self.look(claim, otherwise="none")

    def cancel(self, claim: Claim) -> None:
        claim.cancelled = True
        if claim.state in ("waiting", "inspected"):
            self.soon(self.leave, claim)

    def release(self, claim: Claim, accept: bool) -> None:
        thing = self.take_back(claim)
        if self.options.before_release == "async":
            self.examined.append((claim, thing))
        else:
            self.judge(claim, thing, accept or self.options.before_release == "none")

    def discard(self, claim: Claim) -> None:
        thing = self.take_back(claim)
        self.give_place(claim)
        self.destroy(thing)

    def leave_block(self, claim: Claim, accept: bool, cancelled: bool) -> None:
        if cancelled and not self.options.reuse_after_cancel:
            self.discard(claim)
        else:
            self.release(claim, accept)

    def retire(self) -> None:
        self.generation += 1
        self.destroy_idle(list(self.idle))

    def resize(self, min_size: int, max_size: int) -> None:
        self.min_size, self.max_size = min_size, max_size
        self.destroy_idle(self.idle[: max(0, self.wanted_room() - max_size)])
        self.serve()

    def switch(self, circuit: str) -> None:
        if self.circuit == circuit:
            return
        self.circuit = circuit
        self.places.clear()
        if circuit == "INACTIVE":
            self.drop_all("unavailable", "circuit")
        self.serve()

    def close(self) -> None:
        self.closed = True
        self.drop_all("closed", "closed")
        self.creations.clear()
        self.destroy_idle(list(self.idle))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.next_deadline() <= end:
            pending = [*self.waiters, *self.parked, *self.inspected]
            claim = min(pending, key=lambda claim: claim.deadline)
            self.now = claim.deadline
            self.totals["timeouts"] += 1
            self.drop(claim, "timeout")
            self.serve()
            self.run()
        self.now = end

    # -- what a hook does ------------------------------------------------------------------------

    def created(self, creation: Creation, succeeds: bool) -> None:
        self.creations.remove(creation)
        if succeeds:
            self.made += 1
            self.put(self.make(creation.generation, f"creation {self.made}"))
            return
        if self.waiters:
            self.totals["failed"] += 1
            self.drop(self.waiters[0], "factory failed")
        self.serve()

    def approved(self, claim: Claim, accept: bool) -> None:
        """An async before_acquire is done."""
        if claim not in self.inspected:
            self.interrupted(claim)  # it sees that now, having an answer already
            return
        self.inspected.remove(claim)
        claim.state = "granted"
        if accept:
            claim.approved = True
            self.soon(self.go_on, claim)
        else:
            self.reject(claim)
            if not claim.turn:
                self.soon(self.ask_again, claim)

    def returned(self, claim: Claim, thing: Thing, accept: bool) -> None:
        """An async before_release is done."""
        self.examined.remove((claim, thing))
        self.judge(claim, thing, accept)

    def judge(self, claim: Claim, thing: Thing, accept: bool) -> None:
        self.give_place(claim)
        if accept:
            self.put(thing)
        else:
            self.totals["rejected"] += 1
            self.destroy(thing)

    def destroyed(self, thing: Thing) -> None:
        """The destructor is done."""
        self.destroying.remove(thing)
        self.totals["destroyed"] += 1
        self.serve()

    # -- the way of a claim ----------------------------------------------------------------------

    def begin(self, claim: Claim) -> None:
        if claim.cancelled:
            self.finish(claim, "cancelled")  # the pool never heard of it
            return
        claim.began = self.now
        self.totals["begun"] += 1
        if self.closed:
            self.refused["closed"] += 1
            self.finish(claim, "closed")
            return
        self.open()
        if not self.admitted(claim):
            self.refused["circuit"] += 1
            self.finish(claim, "unavailable")
            return
        claim.seen = list(self.idle)
        self.look(claim, otherwise="wait")

    def look(self, claim: Claim, otherwise: str) -> None:
        """A newcomer: something idle, or room, that no waiter is owed; or else it waits."""
        enters = self.enters(claim)
        owed = len(self.waiters)
        while enters and len(self.idle) > owed and self.next_idle() in claim.seen:
            rest = self.next_idle()
            self.idle.remove(rest)
            if self.options.before_acquire == "async":
                self.inspect(claim, rest.thing)
                return
            if self.accepts(rest.thing):
                self.hold(claim, rest.thing)
                return
            self.totals["rejected"] += 1
            self.destroy(rest.thing)
            owed = len(self.waiters)
        room = self.room()
        owed = len(self.waiters) - len(self.idle)
        if enters and not self.options.async_factory and room > max(0, owed):
            self.create_for(claim)
        elif otherwise == "none":
            self.finish(claim, "none")
            self.serve()
        elif claim.timeout == 0:
            self.totals["timeouts"] += 1
            self.finish(claim, "timeout")
            self.serve()
        elif len(self.waiters) + len(self.parked) >= self.most_waiting():
            self.refused["overloaded"] += 1
            self.finish(claim, "overloaded")
            self.serve()
        else:
            self.turns += 1
            claim.turn = self.turns
            claim.queued_at = self.now
            self.queue(claim)
            self.serve()

    def ask_again(self, claim: Claim) -> None:
        if claim.cancelled:
            self.leave(claim)
        elif claim.state == "granted":
            claim.state = "new"
            self.look(claim, otherwise="wait")

    def go_on(self, claim: Claim) -> None:
        """A claim that was granted something runs."""
        if claim.cancelled:
            self.leave(claim)
        if claim.state != "granted":
            return
        if claim.permit:
            claim.permit = False
            self.permits -= 1
            self.create_for(claim)
            return
        assert claim.thing is not None
        if claim.approved:
            self.hold(claim, claim.thing)
        elif self.options.before_acquire == "async":
            self.inspect(claim, claim.thing)
        elif self.accepts(claim.thing):
            self.hold(claim, claim.thing)
        else:
            self.reject(claim)

    def create_for(self, claim: Claim) -> None:
        """A sync factory, called by the task that acquires."""
        if unlucky(claim.name, self.failing):
            self.totals["begun"] += claim.trying
            self.totals["failed"] += 1
            self.finish(claim, "factory failed")
            self.serve()
        else:
            thing = self.make(self.generation, claim.name)
            self.serve()  # another one may be made
            self.hold(claim, thing)

    def inspect(self, claim: Claim, thing: Thing) -> None:
        claim.state, claim.thing = "inspected", thing
        self.inspected.append(claim)

    def reject(self, claim: Claim) -> None:
        """before_acquire said no: a waiter keeps its turn, and the slot just freed is its own."""
        thing, claim.thing = claim.thing, None
        assert thing is not None
        self.totals["rejected"] += 1
        if claim.turn:
            self.queue(claim)
            self.destroy(thing)
            self.serve()
        else:
            self.destroy(thing)

    def hold(self, claim: Claim, thing: Thing) -> None:
        thing.uses += 1
        claim.state, claim.thing, claim.since = "holding", thing, self.now
        claim.outcome = f"resource of {thing.label}"
        self.holding.append(claim)
        self.totals["begun"] += claim.trying
        self.totals["acquired"] += 1
        self.add_time("wait_time", self.now - claim.began)

    def take_back(self, claim: Claim) -> Thing:
        thing, claim.thing = claim.thing, None
        assert thing is not None
        claim.state = "over"
        self.holding.remove(claim)
        self.totals["released"] += 1
        self.add_time("hold_time", self.now - claim.since)
        return thing

    def leave(self, claim: Claim) -> None:
        """Its task was cancelled, and runs."""
        if claim.state in ("waiting", "granted", "inspected"):
            self.totals["cancelled"] += 1
            self.drop(claim, "cancelled")
            self.serve()

    def drop(self, claim: Claim, outcome: str) -> None:
        """It ends before it holds anything; what it was handed is passed on."""
        state, thing = claim.state, claim.thing
        self.finish(claim, outcome)
        if state == "waiting":
            (self.parked if claim in self.parked else self.waiters).remove(claim)
        elif state == "inspected":
            self.inspected.remove(claim)
            assert thing is not None
            self.orphans[claim.name] = thing
            self.soon(self.interrupted, claim)  # as soon as the hook sees that it is interrupted
        elif claim.permit:
            self.permits -= 1
        elif thing is not None:
            self.put(thing)

    def interrupted(self, claim: Claim) -> None:
        """A before_acquire was cut off: what it looked at is destroyed."""
        thing = self.orphans.pop(claim.name, None)
        if thing is not None:
            self.destroy(thing)

    def drop_all(self, outcome: str, reason: str) -> None:
        waiters, self.waiters, self.parked = [*self.waiters, *self.parked], [], []
        self.refused[reason] += len(waiters) + len(self.inspected)
        for claim in waiters:
            self.finish(claim, outcome)
        for claim in list(self.inspected):
            self.drop(claim, outcome)

    def finish(self, claim: Claim, outcome: str) -> None:
        # A task that was cancelled sees only that.
        claim.state, claim.outcome = "over", "cancelled" if claim.cancelled else outcome
        self.give_place(claim)

    # -- the pool --------------------------------------------------------------------------------

    def serve(self) -> None:
        """Whatever is free goes to the oldest waiter. Then what is missing is created."""
        while self.waiters:
            claim = self.waiters[0]
            needs_place = self.circuit == "RECOVERING" and claim not in self.places
            if needs_place and len(self.places) >= self.options.recovering_limit:
                break
            permit = not self.options.async_factory and self.room() > 0
            if (self.idle or permit) and self.sheds(claim):
                self.refused["shed"] += 1
                self.drop(claim, "overloaded")
                continue
            if self.idle:
                rest = self.next_idle()
                self.idle.remove(rest)
                claim.thing, claim.approved = rest.thing, not rest.thing.rested
            elif permit:
                claim.permit = True
                self.permits += 1
            else:
                break
            if needs_place:
                self.places.append(claim)
            self.waiters.remove(claim)
            claim.state = "granted"
            self.soon(self.go_on, claim)
        while self.options.async_factory and self.room() > 0 and self.lacking() > 0:
            unchosen = [claim for claim in self.waiters if not claim.chosen]
            if unchosen and self.sheds(unchosen[0]):
                self.refused["shed"] += 1
                self.drop(unchosen[0], "overloaded")
            else:
                self.create(1)
        if not self.filling and self.missing() > 0:
            self.filling = True
            self.soon(self.fill)

    def fill(self) -> None:
        self.filling = False
        for creation in self.create(self.missing()):
            if not self.options.async_factory:
                self.soon(self.created, creation, True)

    def create(self, number: int) -> list[Creation]:
        number = max(0, min(number, self.room()))
        started = [Creation(self.generation) for _ in range(number)]
        self.creations += started
        return started

    def make(self, generation: int, label: str) -> Thing:
        self.totals["created"] += 1
        thing = Thing(label, generation)
        self.alive.append(thing)
        return thing

    def put(self, thing: Thing) -> None:
        most = self.options.max_uses
        if (
            self.closed
            or thing.generation != self.generation
            or self.wanted_room() > self.max_size
            or (most is not None and thing.uses >= most)
        ):
            self.destroy(thing)
        else:
            thing.rested = thing.rested or thing.uses > 0
            rest = Rest(thing)
            self.idle.append(rest)
            self.serve()
            thing.rested = thing.rested or rest in self.idle

    def destroy(self, thing: Thing) -> None:
        self.alive.remove(thing)
        self.destroying.append(thing)
        if self.options.destructor == "async":
            self.serve()  # its place in a recovery is free, and what was made for a waiter is gone
        else:
            self.destroyed(thing)

    def destroy_idle(self, rests: list[Rest]) -> None:
        for rest in rests:
            self.idle.remove(rest)
            self.destroy(rest.thing)

    def open(self) -> None:
        if not self.opened:
            self.opened = True
            self.serve()

    # -- questions -------------------------------------------------------------------------------

    def total(self) -> int:
        return self.wanted_room() + len(self.destroying)

    def room(self) -> int:
        """How many may be made now."""
        most, creating = self.options.max_creating, self.permits + len(self.creations)
        left = self.max_size - self.total()
        return left if most is None else min(left, most - creating)

    def wanted_room(self) -> int:
        return len(self.alive) + self.permits + len(self.creations)

    def missing(self) -> int:
        """To min_size."""
        if not self.opened or self.closed or self.circuit == "INACTIVE":
            return 0
        return min(self.min_size - self.wanted_room(), self.room())

    def servable(self) -> int:
        """How many waiters the breaker would let have something now."""
        if self.circuit != "RECOVERING":
            return len(self.waiters)
        placed = sum(claim in self.places for claim in self.waiters)
        free = max(0, self.options.recovering_limit - len(self.places))
        return placed + min(free, len(self.waiters) - placed)

    def admitted(self, claim: Claim) -> bool:
        """Whether the breaker lets a newcomer in; while RECOVERING it takes a place."""
        if self.circuit == "RECOVERING":
            owed = sum(waiter not in self.places for waiter in self.waiters)
            if len(self.places) + owed >= self.options.recovering_limit:
                return False
            self.places.append(claim)
        return self.circuit != "INACTIVE"

    def give_place(self, claim: Claim) -> None:
        """Of a recovery, and of the lane."""
        self.give_probe(claim)
        if claim.has_lane_place:
            claim.has_lane_place = False
            assert claim.lane is not None
            self.lane_used[claim.lane] -= 1
            first = next((parked for parked in self.parked if parked.lane == claim.lane), None)
            if first is not None and self.enters(first):
                self.parked.remove(first)
                first.queued_at = self.now
                self.queue(first)

    def give_probe(self, claim: Claim) -> None:
        if claim in self.places:
            self.places.remove(claim)

    def enters(self, claim: Claim) -> bool:
        """Whether it has a place of its lane, if it goes through one, or takes one."""
        if claim.lane is not None and not claim.has_lane_place:
            if self.lane_used[claim.lane] >= (self.options.lanes[claim.lane][0] or inf):
                return False
            self.lane_used[claim.lane] += 1
            claim.has_lane_place = True
        return True

    def sheds(self, claim: Claim) -> bool:
        """Whether a waiter whose turn has come is refused: after twice the target."""
        target = self.options.queue_target
        if target is None or claim.chosen:
            return False
        waited = self.now - claim.queued_at
        if waited < target:
            self.overloaded, self.standing_since = False, self.now
        elif self.now - self.standing_since >= self.options.queue_interval:
            self.overloaded = True
        claim.chosen = not (self.overloaded and waited > 2 * target)
        return not claim.chosen

    def lacking(self) -> int:
        """How many more must be made for the waiters."""
        return self.servable() - len(self.idle) - len(self.creations)

    def lane_counts(self, number: int) -> tuple[int, int]:
        """Active and waiting."""
        queued = sum(claim.lane == number for claim in self.waiters)
        parked = sum(claim.lane == number for claim in self.parked)
        return self.lane_used[number] - queued, parked + queued

    def next_deadline(self) -> float:
        pending = [*self.waiters, *self.parked, *self.inspected]
        return min((claim.deadline for claim in pending), default=inf)

    def most_waiting(self) -> float:
        return inf if self.options.max_waiting is None else self.options.max_waiting

    def next_idle(self) -> Rest:
        return self.idle[-1 if self.options.lifo else 0]

    def queue(self, claim: Claim) -> None:
        claim.state = "waiting"
        if not self.enters(claim):
            self.parked.append(claim)
            self.give_probe(claim)
            return
        if not self.waiters:
            self.overloaded, self.standing_since = False, self.now
        if self.options.async_factory and len(self.waiters) < len(self.creations):
            claim.chosen = True
        self.waiters.append(claim)
        self.waiters.sort(key=lambda claim: (-self.priority(claim), claim.turn))

    def priority(self, claim: Claim) -> int:
        return 0 if claim.lane is None else self.options.lanes[claim.lane][1]

    def accepts(self, thing: Thing) -> bool:
        return self.options.before_acquire == "none" or thing.label not in self.spoiled

    def add_time(self, kind: str, seconds: float) -> None:
        self.times[kind] += seconds
        self.times[f"max_{kind}"] = max(self.times[f"max_{kind}"], seconds)

    # -- time ------------------------------------------------------------------------------------

    def soon(self, step: Callable[..., None], *args: Any) -> None:
        self.todo.append(lambda: step(*args))

    def run(self) -> None:
        while self.todo:
            self.todo.popleft()()
