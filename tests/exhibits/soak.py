"""Mixed cycles for a long time, and what must not have grown afterwards.

`python -m tests.exhibits.soak --cycles 1000000` runs by itself and says PASS or FAIL;
`test_soak.py` runs a short one. A cycle is one attempt to acquire, however it ends. Resources and
hooks live as long as the run, so that their reference counts can be compared before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import gc
import logging
import os
import random
import sys
import time
import tracemalloc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
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


# -- the cycles ------------------------------------------------------------------------------------


@scenario(30)
async def hits(soak: Soak, pool: Pool) -> int:
    for _ in range(50):
        with expected():
            async with pool.acquire():
                pass
    return 50


@scenario(10)
async def hits_by_hand(soak: Soak, pool: Pool) -> int:
    for _ in range(20):
        with expected():
            thing = await pool.acquire(timeout=soak.dice.choice([None, 0, 0.5]))
            await pool.release(thing)
    return 20


@scenario(10)
async def tries(soak: Soak, pool: Pool) -> int:
    for _ in range(30):
        with expected():
            thing = pool.try_acquire()
            if thing is not None:
                await pool.release(thing)
    return 30


async def holding(pool: Pool, turns: int = 1, **options: Any) -> None:
    with expected():
        async with pool.acquire(**options):
            for _ in range(turns):
                await asyncio.sleep(0)


@scenario(10)
async def waits(soak: Soak, pool: Pool) -> int:
    await asyncio.gather(*(holding(pool, turns % 3) for turns in range(24)))
    return 24


@scenario(10)
async def cancellations(soak: Soak, pool: Pool) -> int:
    tasks = [asyncio.create_task(holding(pool, 2)) for _ in range(24)]
    for _ in range(4):
        await asyncio.sleep(0)
        for task in soak.dice.sample(tasks, 4):
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return 24


@scenario(4)
async def timeouts(soak: Soak, pool: Pool) -> int:
    holders = [asyncio.create_task(holding(pool, 40)) for _ in range(pool.max_size)]
    waiters = [holding(pool, timeout=soak.dice.choice([0, 0.0001, 0.0005])) for _ in range(20)]
    await asyncio.gather(*holders, *waiters)
    return 20 + len(holders)


@scenario(4)
async def nested_timeouts(soak: Soak, pool: Pool) -> int:
    for _ in range(5):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0005):
                await asyncio.gather(*(holding(pool, 200) for _ in range(4)))
    return 20


@scenario(6)
async def faults(soak: Soak, pool: Pool) -> int:
    with soak.faults():
        for _ in range(20):
            with expected():
                async with pool.acquire(timeout=0.01):
                    pass
        await asyncio.gather(*(holding(pool, timeout=0.01) for _ in range(10)))
    return 30


@scenario(4)
async def one_fault(soak: Soak, pool: Pool) -> int:
    """The same error twenty times, without another to hide it."""
    hook = soak.dice.choice(
        [soak.before_acquire, soak.before_release, soak.destructor, soak.factory]
    )
    kept, hook.plan = hook.plan, [soak.dice.choice(["raise", "reject", "slow raise"])]
    if hook is soak.factory and hook.plan == ["reject"]:
        hook.plan = ["none"]
    try:
        for _ in range(20):
            with expected():
                thing = await pool.acquire(timeout=0.01)
                await pool.release(thing)
    finally:
        hook.plan = kept
    return 20


@scenario(4)
async def errors_in_the_block(soak: Soak, pool: Pool) -> int:
    for kind in [Planned, asyncio.CancelledError, KeyError, GeneratorExit] * 3:
        with expected(), contextlib.suppress(asyncio.CancelledError, KeyError, GeneratorExit):
            async with pool.acquire(timeout=0.01):
                raise kind
    return 12


@scenario(4)
async def discards(soak: Soak, pool: Pool) -> int:
    for _ in range(20):
        with expected():
            async with pool.acquire(timeout=0.01) as thing:
                error = soak.dice.choice([None, Planned("discarded")])
                await pool.discard(thing, error)
                del error
    return 20


@scenario(4)
async def misuse(soak: Soak, pool: Pool) -> int:
    for _ in range(5):
        with expected():
            async with pool.acquire(timeout=0.01) as thing:
                await pool.release(thing)
                with contextlib.suppress(cenote.NotAcquiredError):
                    pool.release(thing)
                for wrong in (None, soak, pool):
                    with contextlib.suppress(cenote.NotAcquiredError):
                        pool.discard(wrong)
                with contextlib.suppress(TypeError, ValueError):
                    pool.acquire(timeout=soak.dice.choice([-1, "1", float("nan")]))
        pool.acquire()  # and nothing more
        twice = pool.acquire(timeout=0.01)
        with expected():
            await pool.release(await twice)
        with expected(), contextlib.suppress(RuntimeError):
            await twice
    return 15


@scenario(4)
async def driven(soak: Soak, pool: Pool) -> int:
    """Acquires as coroutines of tasks, some thrown at or closed before they began."""
    for _ in range(10):
        with expected():
            thing = await asyncio.create_task(pool.acquire(timeout=0.01))
            await pool.release(thing)
    for _ in range(5):
        with contextlib.suppress(Planned):
            pool.acquire().throw(Planned())
        pool.acquire().close()
        task = asyncio.create_task(pool.acquire())
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            with expected():
                await pool.release(task.result())
    return 25


@scenario(3)
async def twins(soak: Soak, pool: Pool) -> int:
    cycles = 0
    async with cenote.Pool(
        soak.same, before_release=soak.before_release, hook_timeout=0.002, max_size=20
    ) as twin_pool:

        async def hold(turns: int) -> None:
            async with twin_pool.acquire() as thing:
                for _ in range(turns):
                    await asyncio.sleep(0)
                if turns == 2:
                    await twin_pool.discard(thing)

        for _ in range(3):
            await asyncio.gather(*(hold(turns % 4) for turns in range(24)))
            cycles += 24
    return cycles


@scenario(3)
async def closes(soak: Soak, pool: Pool) -> int:
    """Small pools, closed with everything under way."""
    for size in (1, 2, 3):
        small = soak.pool(max_size=size)
        with expected():
            held = await small.acquire(timeout=0.01)
            waiters = [asyncio.create_task(holding(small)) for _ in range(4)]
            for _ in range(soak.dice.randrange(3)):
                await asyncio.sleep(0)
            await close(small)
            with expected():
                await small.release(held)
            await asyncio.gather(*waiters)
        await close(small)
    return 15


@scenario(3)
async def breaker(soak: Soak, pool: Pool) -> int:
    pool.strategy = soak.strategy
    waiters = [asyncio.create_task(holding(pool, 3)) for _ in range(12)]
    for switch in (pool.deactivate, pool.recover, pool.activate):
        await asyncio.sleep(0)
        switch()
        with expected():
            async with pool.acquire(timeout=0.01):
                pass
        with expected():
            pool.try_acquire()
        for holder in pool.holders():
            with expected():
                await pool.release(holder.resource)
    await asyncio.gather(*waiters)
    pool.strategy = None
    return 18


@scenario(3)
async def deadlocks(soak: Soak, pool: Pool) -> int:
    size = pool.max_size

    async def hoard() -> None:
        with expected():
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(size + 1):
                    await stack.enter_async_context(pool.acquire())

    await asyncio.gather(hoard(), hoard())
    return size * 2


@scenario(3)
async def looks(soak: Soak, pool: Pool) -> int:
    unsubscribe = pool.subscribe(soak.subscriber)
    for _ in range(10):
        with expected():
            async with pool.acquire(timeout=0.01):
                pool.stats(), pool.holders(), repr(pool), len(pool)
    unsubscribe()
    return 10


@scenario(2)
async def sizes(soak: Soak, pool: Pool) -> int:
    size = pool.max_size
    users = [asyncio.create_task(holding(pool, 2)) for _ in range(12)]
    await asyncio.sleep(0)
    with expected():
        pool.resize(min_size=0, max_size=1)
        await pool.retire()
        pool.resize(max_size=20)
        await asyncio.sleep(0)
        await pool.resize(max_size=size)
    await asyncio.gather(*users)
    return 12


@scenario(2)
async def forgotten(soak: Soak, pool: Pool) -> int:
    """Pools that nobody closes, in cycles with their resources, hooks and subscribers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(3):
            lost = cenote.Pool(Thing, max_size=4)
            lost.subscribe(lambda event, lost=lost: None)
            lost.strategy = Strategy(soak.dice)
            lost.strategy.pool = lost  # type: ignore[attr-defined]
            first, second = await lost.acquire(), await lost.acquire()
            first.pool = second.pool = lost
            await lost.release(first)
            del first, second, lost
        gc.collect(1)
    return 6


# -- what must not grow ----------------------------------------------------------------------------


@dataclass
class Reading:
    cycles: int
    references: dict[str, int]
    kinds: collections.Counter[str]
    objects: int
    blocks: int
    resident: int  # bytes; 0 where it is not known
    traced: int  # bytes; 0 if not traced


def read(soak: Soak) -> Reading:
    """Of a quiet moment: no pool is left."""
    for _ in range(4):
        gc.collect()
    watched = soak.watched()
    references = {name: sys.getrefcount(thing) for name, thing in watched.items()}
    del watched
    objects = gc.get_objects()
    kinds = collections.Counter(type(each).__name__ for each in objects)
    count = len(objects)
    del objects
    gc.collect()
    resident = 0
    # Another allocator is that of a sanitizer, which keeps for long what was freed.
    if not os.environ.get("PYTHONMALLOC"):
        with contextlib.suppress(OSError):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
                "SC_PAGE_SIZE"
            )
    traced = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
    return Reading(
        soak.cycles, references, kinds, count, sys.getallocatedblocks(), resident, traced
    )


# Caches of the interpreter breathe; a leak of one in a hundred cycles is far beyond all of these.
MOST_REFERENCES = 2
MOST_TYPE_REFERENCES = 80  # acquire objects that are kept for reuse keep their type
MOST_OBJECTS = 150
MOST_BLOCKS = 600
MOST_RESIDENT = 6 << 20
MOST_TRACED = 100_000


def growth(before: Reading, after: Reading) -> list[str]:
    """What has grown, or shrunk where it must not, in words."""
    complaints = []
    for name, count in after.references.items():
        change = count - before.references[name]
        if abs(change) > (MOST_TYPE_REFERENCES if name.startswith("type ") else MOST_REFERENCES):
            complaints.append(f"references to {name}: {before.references[name]} -> {count}")
    if after.objects - before.objects > MOST_OBJECTS:
        top = ", ".join(f"{kind} +{n}" for kind, n in (after.kinds - before.kinds).most_common(5))
        complaints.append(f"objects: {before.objects} -> {after.objects} ({top})")
    if after.blocks - before.blocks > MOST_BLOCKS:
        complaints.append(f"allocated blocks: {before.blocks} -> {after.blocks}")
    if after.resident - before.resident > MOST_RESIDENT:
        complaints.append(f"resident bytes: {before.resident} -> {after.resident}")
    if before.traced and after.traced - before.traced > MOST_TRACED:
        complaints.append(f"traced bytes: {before.traced} -> {after.traced}")
    return complaints


@dataclass
class Outcome:
    before: Reading
    after: Reading
    complaints: list[str]
    soak: Soak


def run(cycles: int, *, seed: int, warm_up: int, trace: bool, kind: type[Soak] = Soak) -> Outcome:
    """Complaints about whatever grew from the end of the warm-up to the end."""
    log = logging.getLogger("cenote")
    disabled, log.disabled = log.disabled, True
    soak = kind(seed)
    tracing = trace and not tracemalloc.is_tracing()
    try:
        with asyncio.Runner() as runner:
            runner.run(soak.run(warm_up))
            if tracing:
                tracemalloc.start(1)
                runner.run(soak.run(warm_up))
            before = read(soak)
            before = read(soak)  # the first one fills what it counts itself
            runner.run(soak.run(cycles))
            after = read(soak)
    finally:
        if tracing:
            tracemalloc.stop()
        log.disabled = disabled
    complaints = growth(before, after)
    if len(soak.factory.stock) != STOCK:
        complaints.append(f"{STOCK - len(soak.factory.stock)} resources were never destroyed")
    return Outcome(before, after, complaints, soak)


def report(title: str, outcome: Outcome, seconds: float) -> None:
    before, after = outcome.before, outcome.after
    cycles = after.cycles - before.cycles
    moved = {
        name: count - before.references[name]
        for name, count in after.references.items()
        if count != before.references[name]
    }
    print(f"{title}: {cycles:,} cycles in {seconds:.1f} s", flush=True)
    print(f"  objects          {before.objects:>12,} -> {after.objects:,}")
    print(f"  allocated blocks {before.blocks:>12,} -> {after.blocks:,}")
    print(f"  resident bytes   {before.resident:>12,} -> {after.resident:,}")
    if before.traced:
        print(f"  traced bytes     {before.traced:>12,} -> {after.traced:,}")
    print(f"  references       {len(after.references)} objects watched, changed: {moved or 'none'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"cenote {cenote.__version__}, {cenote.core} core, Python {version}", end=", ")
    print(f"seed {arguments.seed}", flush=True)
    complaints: list[str] = []
    # Traced memory is exact, and slow: a tenth of the cycles has to do.
    for title, cycles, trace in (
        ("plain", arguments.cycles, False),
        ("traced", arguments.cycles // 10, True),
    ):
        began = time.perf_counter()
        outcome = run(cycles, seed=arguments.seed, warm_up=max(2_000, cycles // 20), trace=trace)
        report(title, outcome, time.perf_counter() - began)
        complaints += [f"{title}: {each}" for each in outcome.complaints]
        if not trace:
            counts = ", ".join(f"{name} {n:,}" for name, n in outcome.soak.done.most_common())
            print(f"  cycles: {counts}")
    for each in complaints:
        print(f"GROWN {each}")
    print("FAIL" if complaints else "PASS")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
