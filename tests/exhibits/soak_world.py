"""The hooks, pools and faults of the soak, and the scenarios that it draws from."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import cenote
from cenote import _core, _fast, states

STOCK = 64
ACCEPTS = ["accept", "accept", "accept", "slow"]
FAULTS = [*ACCEPTS, *ACCEPTS, "reject", "raise", "slow reject", "slow raise", "hang"]
MAKES = ["make", "make", "make", "slow"]
MAKE_FAULTS = [*MAKES, *MAKES, "none", "raise", "slow raise", "hang"]


class Planned(Exception):
    """What hooks raise on purpose."""


class Thing:
    """A resource."""


class Hook:
    """A hook that does what the present plan says, or one of several things."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name, self.dice = name, dice
        self.plan: list[str] = ["accept"]

    def __call__(self, resource: Any) -> Any:
        kind = self.plan[0] if len(self.plan) == 1 else self.dice.choice(self.plan)
        return self.act(kind, resource)

    def act(self, kind: str, resource: Any) -> Any:
        if kind == "hang":
            return asyncio.sleep(60)
        if kind.startswith("slow"):
            return self.slow(kind.removeprefix("slow").strip() or "accept", resource)
        if kind == "raise":
            raise Planned(self.name)
        return None if kind == "accept" else False

    async def slow(self, kind: str, resource: Any) -> Any:
        await asyncio.sleep(0)
        return self.act(kind, resource)


class Factory(Hook):
    """Hands out the stock, which the destructor fills again."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__("factory", dice)
        self.plan = ["make"]
        self.things = [Thing() for _ in range(STOCK)]
        self.stock = list(self.things)

    def __call__(self) -> Any:
        return super().__call__(None)

    def act(self, kind: str, resource: Any) -> Any:
        if kind in ("make", "accept"):
            return self.stock.pop()
        return None if kind == "none" else super().act(kind, resource)


class Destructor(Hook):
    def __init__(self, dice: random.Random, factory: Factory) -> None:
        super().__init__("destructor", dice)
        self.factory = factory

    def __call__(self, resource: Any) -> Any:
        self.factory.stock.append(resource)
        return super().__call__(resource)


class Same:
    """A factory of twins."""

    def __init__(self) -> None:
        self.thing = Thing()

    def __call__(self) -> Thing:
        return self.thing


class Strategy:
    """Raises now and then, as a strategy may."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.reports, self.fault = dice, 0, 0.0

    def _hear(self) -> None:
        self.reports += 1
        if self.fault and self.dice.random() < self.fault:
            raise Planned("strategy")

    def report_success(self, source: Any) -> None:
        self._hear()

    def report_failure(self, source: Any, error: BaseException) -> None:
        self._hear()

    def should_recover(self) -> bool:
        self._hear()
        return True


class Subscriber:
    def __init__(self, dice: random.Random) -> None:
        self.dice, self.heard, self.fault = dice, 0, 0.0

    def __call__(self, event: cenote.PoolEvent) -> None:
        self.heard += 1
        if self.fault and self.dice.random() < self.fault:
            raise Planned("subscriber")


Pool = cenote.Pool[Any]
Scenario = Callable[["Soak", Pool], Awaitable[int]]
SCENARIOS: list[tuple[int, Scenario]] = []


def scenario(weight: int) -> Callable[[Scenario], Scenario]:
    def add(function: Scenario) -> Scenario:
        SCENARIOS.append((weight, function))
        return function

    return add


@contextlib.contextmanager
def expected() -> Iterator[None]:
    """What a pool raises, and what hooks raise through it. No variable keeps the error."""
    try:
        yield
    except* (cenote.PoolError, Planned):
        pass


class Soak:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.factory = Factory(self.dice)
        self.destructor = Destructor(self.dice, self.factory)
        self.healthcheck = Hook("healthcheck", self.dice)
        self.before_acquire = Hook("before_acquire", self.dice)
        self.before_release = Hook("before_release", self.dice)
        self.strategy = Strategy(self.dice)
        self.subscriber = Subscriber(self.dice)
        self.same = Same()
        self.cycles = 0
        self.done: collections.Counter[str] = collections.Counter()

    def pool(self, **options: Any) -> Pool:
        return cenote.Pool(
            options.pop("factory", self.factory),
            destructor=self.destructor,
            before_acquire=self.before_acquire,
            before_release=self.before_release,
            hook_timeout=0.002,
            create_timeout=0.002,
            destructor_timeout=0.002,
            **options,
        )

    def young(self) -> Pool:
        """A pool with options of which none is the default for long."""
        choice, maybe = self.dice.choice, self.dice.random
        options: dict[str, Any] = {"max_size": choice([1, 2, 3, 5, 9])}
        options["min_size"] = choice([0, 0, 1])
        options["lifo"] = maybe() < 0.3
        options["strategy"] = choice([None, self.strategy])
        options["max_uses"] = choice([None, None, 3])
        options["max_lifetime"] = choice([None, None, 0.001, 50.0])
        options["max_idle"] = choice([None, None, 50.0])
        options["hold_warning"] = choice([None, None, 50.0])
        options["reuse_after_cancel"] = maybe() < 0.3
        options["max_waiting"] = choice([None, None, 4])
        if maybe() < 0.2:
            options |= {"healthcheck": self.healthcheck, "healthcheck_interval": 0.001}
        pool = self.pool(**options)
        if maybe() < 0.3:
            pool.subscribe(self.subscriber)
        return pool

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Errors in every hook, the strategy and the subscriber."""
        hooks = (self.before_acquire, self.before_release, self.healthcheck)
        for hook in hooks:
            hook.plan = FAULTS
        # An abandoned destructor may still run: it gave its thing back when it was called.
        self.destructor.plan = FAULTS
        self.factory.plan = MAKE_FAULTS
        self.strategy.fault = self.subscriber.fault = 0.1
        try:
            yield
        finally:
            for hook in (*hooks, self.destructor):
                hook.plan = ["accept"]
            self.factory.plan = ["make"]
            self.strategy.fault = self.subscriber.fault = 0.0

    async def run(self, cycles: int) -> None:
        """At least this many; afterwards no pool is left."""
        goal = self.cycles + cycles
        weights = [weight for weight, _ in SCENARIOS]
        old = self.pool(max_size=8)
        while self.cycles < goal:
            young = self.young()
            for _ in range(8):
                (act,) = self.dice.choices(SCENARIOS, weights)
                await self.play(act[1], self.dice.choice([old, young]))
            if self.dice.random() < 0.3:
                with self.faults():
                    await self.play(self.dice.choice(SCENARIOS)[1], young)
            await close(young)
        await close(old)
        for _ in range(5):  # what was abandoned ends
            await asyncio.sleep(0.002)

    async def play(self, act: Scenario, pool: Pool) -> None:
        cycles = await act(self, pool)
        self.done[act.__name__] += cycles  # type: ignore[attr-defined]
        self.cycles += cycles
        if pool.state is not cenote.CircuitState.ACTIVE:
            pool.activate()

    def watched(self) -> dict[str, Any]:
        """Objects that outlive everything: name -> object."""
        found: dict[str, Any] = {
            f"thing {index}": thing for index, thing in enumerate(self.factory.things)
        }
        found["same_resource"] = self.same.thing
        for hook in (self.factory, self.destructor, self.healthcheck, self.before_acquire):
            found[hook.name] = hook
        found["before_release"] = self.before_release
        found["strategy"], found["subscriber"], found["same"] = (
            self.strategy,
            self.subscriber,
            self.same,
        )
        for kind in (_core.Core, _core.Slot, _core.Claim, _fast.Acquire, cenote.Pool):
            found[f"type {kind.__name__}"] = kind
        for enumeration in (states.SlotState, states.ClaimState, states.Phase, states.CircuitState):
            found |= {f"{enumeration.__name__}.{each.name}": each for each in enumeration}
        found["done"] = cenote.pool.operation.DONE  # type: ignore[attr-defined]
        if cenote.core == "native":
            found["native done"] = sys.modules["cenote._core.native"].DONE
        return found


async def close(pool: Pool) -> None:
    with expected():
        await pool.close()
