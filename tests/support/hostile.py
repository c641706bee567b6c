"""Hostile use of the C API: programs of random steps on everything that the table offers.

A program is a list of steps, each a tuple of plain values, so that one that fails can be shortened
and pasted into a test. `play()` runs one, and raises AssertionError if any promise of
`docs/c-api.md` was broken: on the way, at the end, and after everything was dropped.
"""

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import cenote
from cenote import _core
from cenote.testing import advance, imbalance, settle
from tests.support.hostile_steps import CALLBACKS, Steps, forget_errors, holders, is_single

# (where, name, number, number), ("react", callback, name, number, number), or what the loop does
Step = tuple[Any, ...]

WHERE = ["task", "task", "task", "task", "callback", "new task", "thread"]
WAIT = 100.0  # virtual seconds at the end: longer than any timeout that is not for ever


class World(Steps):
    """Runs a program, and looks at what it leaves."""

    def live(self, steps: list[Step]) -> None:
        rest = iter(steps)

        async def drive() -> None:
            for step in rest:
                if step[0] == "close the loop":
                    return
                await self.step(step)
                with collector(0):  # what is looked at stays as it is meanwhile
                    self.check()

        self.run(drive())
        closed = next(rest, None)
        if closed is not None:
            self.loop.close()
            for step in (closed, *rest):
                if step[0] not in ("settle", "advance", "react", "close the loop"):
                    self.act(*step[1:])

    async def step(self, step: Step) -> None:
        where, *what = step
        if where == "settle":
            await settle()
        elif where == "advance":
            await (settle() if self.stock else advance(what[0]))
        elif where == "react":
            self.reactions.append(tuple(what))
        elif where == "task":
            self.act(*what)
        elif where == "callback":
            self.loop.call_soon(self.act, *what)
            await asyncio.sleep(0)
        elif where == "new task":
            self.tasks.append(asyncio.create_task(self.act_in_task(what)))
            await asyncio.sleep(0)
        elif where == "thread":
            thread = threading.Thread(target=self.act, args=what)
            thread.start()
            thread.join()

    async def act_in_task(self, what: list[Any]) -> None:
        self.act(*what)

    def run(self, work: Any) -> None:
        """Whatever ends the loop on purpose, the work goes on."""
        task = self.loop.create_task(work)
        while not task.done():
            try:
                self.loop.run_until_complete(task)
            except (KeyboardInterrupt, SystemExit) as error:
                self.judge(error, "the loop")
            except RuntimeError as error:  # stopped by what ended just before one of those
                if "before Future completed" not in str(error):
                    raise
        task.result()

    def check(self) -> None:
        """What is true at every moment."""
        probe = self.probe
        for each in self.pools:
            pool, stats = each.pool, each.pool.stats()
            count, idle = probe.count(pool), probe.idle_count(pool)
            active, waiting = probe.active_count(pool), probe.waiting_count(pool)
            if count != idle + active or min(idle, active, waiting) < 0:
                self.fault(f"counts of {pool!r}: {count}, {idle}, {active}, {waiting}")
            if stats.creating + count + stats.destroying > pool.max_size:
                self.fault(f"more than max_size: {stats}")
            held = [id(h.resource) for h in pool.holders() if is_single(h.resource)]
            if len(held) != len(set(held)):
                self.fault("two hold the same")
            if any(is_single(h.resource) and h.resource.destroyed for h in pool.holders()):
                self.fault("somebody holds what was destroyed")
            if len(pool.holders()) > active:
                self.fault(f"{len(pool.holders())} hold something in {pool!r}")

    async def end(self) -> None:
        """Everything behaves from now on: all must come to its end."""
        self.reactions.clear()
        self.made = 0
        for acquire in self.acquires:  # that were driven by hand: nobody else ends them
            with contextlib.suppress(Exception):
                acquire.close()
        self.acquires.clear()
        for plan in self.plans:
            for name in [*CALLBACKS[:5], "completion", "listener", "success", "failure", "recover"]:
                setattr(plan, name, self.probe.MAKE if name == "factory" else self.probe.WELL)
        await settle()
        for task in self.tasks:
            task.cancel()
        await settle()
        for made in self.pools:
            pool = made.pool
            if pool.state is not cenote.CircuitState.ACTIVE:
                pool.activate()
            for _ in range(len(self.asked) + pool.max_size + 2):
                for holder in holders(pool):
                    self.probe.release(pool, holder.resource)
                await settle()
        if not self.stock:
            await advance(WAIT)
        for made in self.pools:
            core = made.pool._engine.core
            if core.active or core.waiting or core.granted_count or core.probes_in_use:
                self.fault(f"a slot was lost: {made.pool!r}, {core.granted_count} granted")
        for made in self.pools:
            with contextlib.suppress(BaseExceptionGroup):
                await made.pool.close()
        await settle()
        self.check()
        for made in self.pools:
            if wrong := imbalance(made.pool):
                self.fault(wrong)
        for asked in self.asked:
            known = any(asked.pool() is made.pool for made in self.pools)
            if known and len(asked.ends) != 1:
                self.fault(f"a completion was called {len(asked.ends)} times")

    def check_answers(self) -> None:
        for asked in self.asked:
            if len(asked.ends) > 1:
                self.fault(f"a completion was called {len(asked.ends)} times")
            for end in asked.ends:
                if asked.cancelled and not isinstance(end, asyncio.CancelledError):
                    self.fault(f"cancelled, and told {end!r}")
            asked.ends.clear()

    def drop(self) -> list[Any]:
        """The plans, and nothing else is referred to any more."""
        for plan in self.plans:
            forget_errors(plan)
            plan.call = None
        self.pools.clear()
        self.asked.clear()
        self.subscriptions.clear()
        self.tasks.clear()
        self.acquires.clear()
        return self.plans


NATIVE = (_core.Core, _core.Slot, _core.Claim, cenote.Pool)


def natives() -> int:
    return sum(
        isinstance(each, NATIVE) or type(each).__name__ == "Ticket" for each in gc.get_objects()
    )


@contextlib.contextmanager
def collector(threshold: int) -> Iterator[None]:
    """0: a program that failed fails again, as it is collected where a step says so. Else the
    collector runs after so many allocations, which before 3.12 is in the middle of anything."""
    was_enabled, before = gc.isenabled(), gc.get_threshold()
    gc.disable()
    if threshold:
        gc.set_threshold(threshold, 5, 1000)
        gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        (gc.enable if was_enabled else gc.disable)()


@contextlib.contextmanager
def watched(world: World) -> Iterator[None]:
    """Whatever goes wrong where nobody can raise it is heard."""

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                world.judge(record.exc_info[1], f"log: {record.getMessage()}")

    def unraisable(report: Any) -> None:
        world.judge(report.exc_value, f"unraisable: {report.err_msg} {report.object!r}")

    def reported(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("exception") is not None:
            world.judge(context["exception"], f"loop: {context['message']}")
        elif not (world.collected or world.loop.is_closed()):
            world.fault(f"loop: {context['message']}")

    log, handler, hook = logging.getLogger("cenote"), Heard(), sys.unraisablehook
    level, propagate = log.level, log.propagate
    world.loop.set_exception_handler(reported)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    sys.unraisablehook = unraisable
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unclosed pools, coroutines that nobody awaits
            yield
    finally:
        sys.unraisablehook = hook
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


def play(probe: Any, steps: list[Step], *, stock: bool = False, threshold: int = 0) -> Counter[str]:
    """Run the program; what it did, by kind. `threshold`: see collector()."""
    gc.collect()
    before = natives()
    world = World(probe, stock)
    world.littering = threshold > 0
    with collector(0), watched(world):
        with collector(threshold):
            world.live(steps)
            world.littering = False
        if not world.loop.is_closed():
            world.run(world.end())
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                world.loop.run_until_complete(world.loop.shutdown_asyncgens())
        world.check_answers()
        closed, world.loop = world.loop, None  # type: ignore[assignment]
        closed.close()
        world.loop = closed
        del closed
        world.drop()
        gc.collect()
        world.reactions.clear()
        plans = world.drop()  # what was made while the rest was freed
        for _ in range(3):
            gc.collect()
        for plan in plans:
            if plan.freed != 1:
                world.fault(f"user data was freed {plan.freed} times in the end")
            plan.at_free = plan.given = plan.error = None
        if left := sum(thing() is not None for thing in world.things):
            world.fault(f"{left} resources are still referred to")
        if (left := natives() - before) > 0:
            world.fault(f"{left} native objects are left")
    assert not world.faults, "\n".join(dict.fromkeys(world.faults))
    return world.done
