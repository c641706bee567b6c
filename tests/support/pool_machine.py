"""A machine that does the same things to a real pool and to the naive one of `model.py`."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import cenote
from cenote.testing import VirtualLoop, advance, settle
from cenote.testing.ledger import ended
from tests.support.model import Model
from tests.support.model_records import Claim, Options, lane_of
from tests.support.pool_world import FactoryFailed, Resource, World

TICK = 2.0**-20  # seconds: no two deadlines are the same

OUTCOMES = {
    "AcquireTimeoutError": "timeout",
    "PoolClosedError": "closed",
    "PoolError": "pool error",
    "PoolOverloadedError": "overloaded",
    "ServiceUnavailableError": "unavailable",
}

steps_taken: Counter[str] = Counter()


Operation = Callable[[int, bool, bool], None]  # which one, and two choices
AT_ONCE = ["acquire", "try_acquire", "release", "release", "discard", "cancel", "cancel"]
AT_ONCE += ["cancel_holder", "create", "approve", "judge", "destroy"]
INDEX = st.integers(0, 5)
KINDS = st.sampled_from(["none", "sync", "async"])
LANE = st.tuples(st.sampled_from([None, 1, 1, 2]), st.sampled_from([-1, 0, 1]))
TIMEOUTS = st.sampled_from([None, None, 1.0, 3.0, 0.0])


class Machine(RuleBasedStateMachine):
    async_factory = False
    package: Any = cenote  # loaded on the core that is tried

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(lambda _, fault: self.loop_faults.append(str(fault)))
        self.loop_faults: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.doors: dict[str, asyncio.Future[None]] = {}  # out of the block
        self.got: dict[str, str] = {}  # name of the acquire -> what came of it
        self.resources: dict[str, Resource] = {}
        self.failed = False
        self.ready = False

    @initialize(
        before_acquire=KINDS,
        before_release=KINDS,
        destructor=KINDS,
        lifo=st.booleans(),
        min_size=st.sampled_from([0, 0, 0, 1, 2]),
        max_size=st.integers(1, 3),
        max_uses=st.sampled_from([None, None, 2]),
        max_waiting=st.sampled_from([None, None, 2]),
        max_creating=st.sampled_from([None, None, 1]),
        lanes=st.lists(LANE, max_size=2).map(tuple),
        queue_target=st.sampled_from([None, None, 0.75]),
        recovering_limit=st.integers(1, 2),
        reuse_after_cancel=st.booleans(),
        crowd=st.integers(0, 5),
    )
    def build(self, crowd: int, **drawn: Any) -> None:
        drawn["min_size"] = min(drawn["min_size"], drawn["max_size"])
        if drawn["before_acquire"] == drawn["destructor"] == "async":
            drawn["min_size"] = 0  # see the head of the model
        self.options = Options(async_factory=self.async_factory, **drawn)
        self.world = World(self.options, self.package)
        self.pool = self.world.pool
        self.model = Model(self.options, self.loop.time())
        self.ready = True
        if crowd:
            self.crowd(crowd, in_block=False)
        for _ in range(crowd // 2):
            self.step(lambda: self.do_create(0, True))

    def teardown(self) -> None:
        try:
            if self.ready and not self.failed:
                self.close()
        finally:
            self.abandon()

    # -- one thing at a time ---------------------------------------------------------------------

    @rule(timeout=TIMEOUTS, in_block=st.booleans())
    def acquire(self, timeout: float | None, in_block: bool) -> None:
        self.step(lambda: self.do_acquire(timeout, in_block))

    @rule(number=st.integers(2, 4), in_block=st.booleans())
    def crowd(self, number: int, in_block: bool) -> None:
        """Several tasks acquire, one after the other."""
        self.step(lambda: [self.do_acquire(None, in_block) for _ in range(number)])

    @rule()
    def try_acquire(self) -> None:
        self.step(self.do_try_acquire)

    @precondition(lambda self: self.holders())
    @rule(index=INDEX, accept=st.booleans(), inside=st.booleans())
    def release(self, index: int, accept: bool, inside: bool) -> None:
        self.step(lambda: self.do_release(index, accept, inside))

    @precondition(lambda self: self.holders())
    @rule(index=INDEX)
    def discard(self, index: int) -> None:
        self.step(lambda: self.do_discard(index))

    @precondition(lambda self: self.holders(in_block=True))
    @rule(index=INDEX, accept=st.booleans())
    def cancel_holder(self, index: int, accept: bool) -> None:
        self.step(lambda: self.do_cancel_holder(index, accept))

    @precondition(lambda self: self.pending())
    @rule(index=INDEX)
    def cancel_waiter(self, index: int) -> None:
        self.step(lambda: self.do_cancel(index))

    @precondition(lambda self: self.world.creations)
    @rule(index=INDEX, succeeds=st.sampled_from([True, True, False]))
    def factory_ends(self, index: int, succeeds: bool) -> None:
        self.step(lambda: self.do_create(index, succeeds))

    @precondition(lambda self: self.model.inspected)
    @rule(index=INDEX, accepts=st.booleans())
    def before_acquire_ends(self, index: int, accepts: bool) -> None:
        self.step(lambda: self.do_approve(index, accepts))

    @precondition(lambda self: self.model.examined)
    @rule(index=INDEX, accepts=st.booleans())
    def before_release_ends(self, index: int, accepts: bool) -> None:
        self.step(lambda: self.do_judge(index, accepts))

    @precondition(lambda self: self.model.destroying)
    @rule(index=INDEX, succeeds=st.booleans())
    def destructor_ends(self, index: int, succeeds: bool) -> None:
        self.step(lambda: self.do_destroy(index, succeeds))

    @precondition(lambda self: self.model.alive and self.options.before_acquire == "sync")
    @rule(index=INDEX)
    def spoil(self, index: int) -> None:
        """The next sync before_acquire will reject it."""
        label = pick(self.model.alive, index).label
        self.world.spoiled.add(label)
        self.model.spoiled.add(label)
        steps_taken[type(self).__name__] += 1

    @precondition(lambda self: not (self.async_factory or self.options.min_size))
    @rule(failing=st.sets(st.integers(0, 2)))
    def break_factory(self, failing: set[int]) -> None:
        self.world.failing = self.model.failing = failing
        steps_taken[type(self).__name__] += 1

    @precondition(lambda self: self.model.next_deadline() < inf or self.options.queue_target)
    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.step(lambda: self.model.pass_time(seconds), seconds)

    @precondition(lambda self: self.options.queue_target)
    @rule(index=INDEX, young=st.sampled_from([0.5, 1.0, 2.0]))
    def overload(self, index: int, young: float) -> None:
        """The pool is full, one waits for the interval, one for less, more or much more than the
        target; and then something comes back."""
        self.step(lambda: [self.do_acquire(None, False) for _ in range(self.model.max_size)])
        for seconds in (self.options.queue_interval, young):
            self.step(lambda: self.do_acquire(None, False))
            self.step(partial(self.model.pass_time, seconds), seconds)
        self.step(lambda: self.do_release(index, True, False))

    @precondition(lambda self: self.model.alive or self.model.creations)
    @rule()
    def retire(self) -> None:
        self.step(lambda: (self.pool.retire(), self.model.retire()))

    @precondition(lambda self: self.model.alive or self.model.creations)
    @rule(max_size=st.integers(0, 4))
    def resize(self, max_size: int) -> None:
        min_size = min(self.model.min_size, max_size)
        self.step(
            lambda: (
                self.pool.resize(min_size=min_size, max_size=max_size),
                self.model.resize(min_size, max_size),
            )
        )

    @rule(state=st.sampled_from(["ACTIVE", "ACTIVE", "RECOVERING", "INACTIVE"]))
    def switch(self, state: str) -> None:
        if state == "RECOVERING" and self.model.inspected:
            return
        to = {
            "ACTIVE": self.pool.activate,
            "RECOVERING": self.pool.recover,
            "INACTIVE": self.pool.deactivate,
        }
        self.step(lambda: (to[state](), self.model.switch(state)))

    # -- several at once: no task runs in between ------------------------------------------------

    @precondition(lambda self: self.holders() and self.model.waiters)
    @rule(index=INDEX, accept=st.booleans(), discard=st.booleans())
    def hand_over_and_cancel(self, index: int, accept: bool, discard: bool) -> None:
        """The oldest waiter is cancelled when it has been handed something and has not run."""

        def both() -> None:
            oldest = self.model.waiters[0]
            self.do_discard(index) if discard else self.do_release(index, accept, True)
            if oldest in self.pending():  # what became free may have shed it
                self.do_cancel(self.pending().index(oldest))

        self.step(both)

    @precondition(lambda self: self.holders() and self.model.waiters)
    @rule(index=INDEX)
    def hand_over_a_spoiled_one(self, index: int) -> None:
        label = self.resources[pick(self.holders(), index).name].label
        self.world.spoiled.add(label)
        self.model.spoiled.add(label)
        self.step(lambda: self.do_release(index, True, True))

    @rule(
        operations=st.lists(
            st.tuples(
                st.sampled_from(AT_ONCE),
                INDEX,
                st.booleans(),
                st.booleans(),
            ),
            min_size=2,
            max_size=4,
        )
    )
    def at_once(self, operations: list[tuple[str, int, bool, bool]]) -> None:
        def all_of_them() -> None:
            for name, *choices in operations:
                by_name[name](*choices)

        by_name: dict[str, Operation] = {
            "acquire": lambda index, a, b: self.do_acquire(3.0 if a else None, b),
            "try_acquire": lambda index, a, b: self.try_unless_it_raises(),
            "release": self.do_release,
            "discard": lambda index, a, b: self.do_discard(index),
            "cancel": lambda index, a, b: self.do_cancel(index),
            "cancel_holder": lambda index, a, b: self.do_cancel_holder(index, a),
            "create": lambda index, a, b: self.do_create(index, a),
            "approve": lambda index, a, b: self.do_approve(index, a),
            "judge": lambda index, a, b: self.do_judge(index, a),
            "destroy": lambda index, a, b: self.do_destroy(index, a),
        }
        self.step(all_of_them)

    # -- the same to both ------------------------------------------------------------------------

    def do_acquire(self, timeout: float | None, in_block: bool) -> None:
        name = f"task {len(self.model.claims)}"
        if timeout:
            timeout += len(self.model.claims) * TICK
        self.doors[name] = self.loop.create_future()
        self.tasks[name] = self.loop.create_task(self.use(name, timeout, in_block), name=name)
        self.model.acquire(name, timeout, in_block)

    def do_try_acquire(self) -> None:
        name = f"try {len(self.model.claims)}"
        self.world.trying = name
        with self.outcome(name):
            resource = self.source(name).try_acquire()
            if resource is None:
                self.got[name] = "none"
            else:
                self.take(name, resource)
        self.world.trying = ""
        self.model.try_acquire(name)

    def try_unless_it_raises(self) -> None:
        """What raises in the middle of a step wakes all who wait, and with that the order changes
        in which `min_size` and a newcomer create."""
        if self.options.before_acquire != "async":
            self.do_try_acquire()

    def do_release(self, index: int, accept: bool, inside: bool) -> None:
        """By the task itself, if it holds it in a block; `inside` the block: before its end."""
        if not self.holders():
            return
        claim = pick(self.holders(), index)
        resource = self.resources[claim.name]
        self.soil(resource, accept)
        claim.leaving = True
        if claim.in_block:
            self.doors[claim.name].set_result(None)
        if claim.in_block and not inside:
            self.model.soon(self.model.leave_block, claim, accept, False)
        else:
            self.pool.release(resource)
            self.model.release(claim, accept)

    def do_discard(self, index: int) -> None:
        if self.holders():
            claim = pick(self.holders(), index)
            claim.leaving = True
            self.pool.discard(self.resources[claim.name])
            if claim.in_block:
                self.doors[claim.name].set_result(None)
            self.model.discard(claim)

    def do_cancel_holder(self, index: int, accept: bool) -> None:
        if self.holders(in_block=True):
            claim = pick(self.holders(in_block=True), index)
            claim.leaving = True
            self.soil(self.resources[claim.name], accept)
            self.tasks[claim.name].cancel()
            self.model.soon(self.model.leave_block, claim, accept, True)

    def do_cancel(self, index: int) -> None:
        if self.pending():
            claim = pick(self.pending(), index)
            self.tasks[claim.name].cancel()
            self.model.cancel(claim)

    def do_create(self, index: int, succeeds: bool) -> None:
        succeeds = succeeds or self.options.min_size > 0
        waiting = [gate for gate in self.world.creations if not gate.done()]
        if waiting:
            gate = pick(waiting, index)
            self.model.soon(
                self.model.created, self.model.creations[self.world.creations.index(gate)], succeeds
            )
            gate.set_result(succeeds)

    def do_approve(self, index: int, accepts: bool) -> None:
        claims = {claim.thing.label: claim for claim in self.model.inspected if claim.thing}
        if (label := self.open_gate("before_acquire", claims, index, accepts)) is not None:
            self.model.soon(self.model.approved, claims[label], accepts)

    def do_judge(self, index: int, accepts: bool) -> None:
        pairs = {thing.label: (claim, thing) for claim, thing in self.model.examined}
        if (label := self.open_gate("before_release", pairs, index, accepts)) is not None:
            self.model.soon(self.model.returned, *pairs[label], accepts)

    def do_destroy(self, index: int, succeeds: bool) -> None:
        things = {thing.label: thing for thing in self.model.destroying}
        if (label := self.open_gate("destructor", things, index, succeeds)) is not None:
            self.model.soon(self.model.destroyed, things[label])

    def open_gate(self, hook: str, labels: Any, index: int, verdict: bool) -> str | None:
        """Let this hook of one of these resources go on; None: there is none."""
        gates = {label: self.world.gates.get((hook, label)) for label in labels}
        closed = [label for label, gate in gates.items() if gate and not gate.done()]
        if not closed:
            return None
        label = pick(closed, index)
        self.world.gates[hook, label].set_result(verdict)
        return label

    def soil(self, resource: Resource, accept: bool) -> None:
        if not accept:
            self.world.dirty.add(resource.label)

    # -- tasks -----------------------------------------------------------------------------------

    async def use(self, name: str, timeout: float | None, in_block: bool) -> None:
        with self.outcome(name):
            if in_block:
                async with self.source(name).acquire(timeout) as resource:
                    self.take(name, resource)
                    await self.doors[name]
            else:
                self.take(name, await self.source(name).acquire(timeout))

    def source(self, name: str) -> Any:
        """What this acquire goes through: the pool, or its lane."""
        number = lane_of(name, self.options)
        return self.pool if number is None else self.world.lanes[number]

    def take(self, name: str, resource: Resource) -> None:
        self.got[name] = f"resource of {resource.label}"
        self.resources[name] = resource

    @contextlib.contextmanager
    def outcome(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FactoryFailed, self.package.PoolError) as error:
            self.got.setdefault(name, OUTCOMES.get(type(error).__name__, "factory failed"))
        except ValueError:
            assert name in self.got  # what release raises: its destructor failed

    def holders(self, in_block: bool = False) -> list[Claim]:
        return [
            claim
            for claim in self.model.holding
            if not claim.leaving and (claim.in_block or not in_block)
        ]

    def pending(self) -> list[Claim]:
        """Whose task can be cancelled before it holds anything."""
        return [
            claim
            for claim in self.model.claims.values()
            if claim.state in ("new", "waiting", "granted", "inspected") and not claim.cancelled
        ]

    # -- steps -----------------------------------------------------------------------------------

    def step(self, change: Callable[[], object], seconds: float = 0.0) -> None:
        async def drive() -> None:
            change()
            await (advance(seconds) if seconds else settle())

        steps_taken[type(self).__name__] += 1
        self.failed = True  # until the invariants have been seen to hold
        self.loop.run_until_complete(self.loop.create_task(drive(), name="driver"))
        self.model.run()

    @invariant()
    def agree(self) -> None:
        if not self.ready:
            return
        self.failed = True
        self.world.look()
        assert self.seen() == self.expected()
        assert not self.world.faults
        assert not self.loop_faults
        assert len(self.world.creations) == len(self.model.creations)
        stats = self.pool.stats()
        assert stats.created - sum(stats.destroyed.values()) == stats.count + stats.destroying
        assert stats.begun == ended(stats) + self.under_way()
        for kind, seconds in self.model.times.items():
            assert getattr(stats, kind) == pytest.approx(seconds), kind
        self.failed = False

    def under_way(self) -> int:
        """How many acquires have begun, and are not over."""
        model = self.model
        return len(model.waiters) + len(model.parked) + len(model.inspected)

    def seen(self) -> dict[str, Any]:
        stats = self.pool.stats()
        cancelled = {name: "cancelled" for name, task in self.tasks.items() if task.cancelled()}
        return {
            "state": self.pool.state,
            "idle": (self.pool.idle_count, stats.idle),
            "active": (self.pool.active_count, stats.active),
            "waiting": (self.pool.waiting_count, stats.waiting),
            "lanes": [(lane.active_count, lane.waiting_count) for lane in self.world.lanes],
            "creating": stats.creating,
            "destroying": stats.destroying,
            "holders": sorted(
                (holder.task, holder.resource.label) for holder in self.pool.holders()
            ),
            "outcomes": cancelled | self.got,
            "created": stats.created,
            "destroyed": sum(stats.destroyed.values()),
            "acquired": stats.acquired,
            "released": stats.released,
            "timeouts": stats.timeouts,
            "cancelled": stats.cancelled,
            "begun": stats.begun,
            "failed": stats.failed,
            "refused": dict(stats.refused),
            "rejected": stats.rejected,
        }

    def expected(self) -> dict[str, Any]:
        model = self.model
        active = len(model.alive) - len(model.idle)
        waiting = len(model.waiters) + len(model.parked)
        totals = ("created", "destroyed", "acquired", "released", "timeouts", "cancelled")
        totals += ("rejected", "begun", "failed")
        return {
            "state": model.circuit,
            "idle": (len(model.idle), len(model.idle)),
            "active": (active, active),
            "waiting": (waiting, waiting),
            "lanes": [model.lane_counts(number) for number in range(len(self.options.lanes))],
            "creating": len(model.creations),
            "destroying": len(model.destroying),
            "holders": sorted(
                (claim.name if claim.name in self.tasks else "driver", claim.thing.label)
                for claim in (*model.holding, *model.inspected)
                if claim.thing is not None
            ),
            "outcomes": {
                claim.name: claim.outcome for claim in model.claims.values() if claim.outcome
            },
            **{name: model.totals[name] for name in totals},
            "refused": {reason: n for reason, n in model.refused.items() if n},
        }

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        closing: list[asyncio.Task[None]] = []

        def begin() -> None:
            closing.append(self.loop.create_task(self.pool.close()))
            self.model.soon(self.model.close)

        self.step(begin)
        self.agree()
        self.acquire(None, True)
        self.agree()
        while self.holders() or self.world.gates:
            for end in (partial(self.do_release, 0, True, False), partial(self.do_judge, 0, True)):
                self.step(end)
                self.agree()
            self.step(lambda: self.do_destroy(0, True))
            self.agree()
        assert closing[0].done()
        closing[0].result()
        stats = self.pool.stats()
        assert stats.created == sum(stats.destroyed.values()) == self.world.made
        assert stats.count == stats.creating == stats.destroying == stats.waiting == 0
        assert all(task.done() for task in self.tasks.values())

    def abandon(self) -> None:
        """Leave nothing behind, also after a failure, which no second error may hide."""

        async def clean() -> None:
            if self.ready and not self.pool.closed:
                closing = asyncio.ensure_future(self.pool.close())
                await settle()
                closing.cancel()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await settle()
            await asyncio.gather(*left, return_exceptions=True)

        self.loop.run_until_complete(clean())
        self.loop.close()


def pick(things: Any, index: int) -> Any:
    return things[index % len(things)]
