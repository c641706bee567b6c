"""The steps of hostile programs (see hostile.py): each misuses one function of the C API.

Two numbers choose among what there is at that moment: the right things first, wrong ones behind.
"""

import asyncio
import gc
import re
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import cenote
from cenote import errors
from cenote.testing import VirtualLoop

CALLBACKS = ["factory", "destructor", "healthcheck", "before_acquire", "before_release",
             "resource", "error", "event", "success", "failure", "recover", "free"]  # fmt: skip
TIMEOUTS = [-1.0, inf, 0.0, 0.5, 5.0, 1e-9, -inf, 1e308, -0.0, nan]
DEEPEST = 3  # steps inside of callbacks inside of steps

ALLOWED_RUNTIME = re.compile(
    "[Ee]vent loop|another thread|belongs to|not initialized|garbage-collected|was used before"
    "|raised Stop|already (being )?awaited|already executing|cannot reuse|await wasn't used"
)
ALLOWED_SYSTEM = re.compile(r"^the C [a-z_ ]+ of a cenote pool failed without an exception$")


class Boom(Exception):
    """What callbacks raise on purpose."""


class BaseBoom(BaseException):
    """The same, where an Exception would be caught."""


PLANNED: list[type[BaseException]] = [
    Boom, BaseBoom, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit,
    StopIteration, StopAsyncIteration, MemoryError,
]  # fmt: skip


class Thing:
    """A resource. `once`: there is only one like it, so it is lent to one and destroyed once."""

    def __init__(self, once: bool = True) -> None:
        self.once = once
        self.destroyed = False


class Garbage:
    """What only the collector finds, wherever that runs; then it takes a step of the program."""

    def __init__(self, steps: "Steps") -> None:
        self.me = self
        self.steps = steps

    def __del__(self) -> None:
        self.steps.finalized()


class Made:
    """A pool and what belongs to it."""

    def __init__(self, pool: Any, plan: Any) -> None:
        self.pool, self.plan = pool, plan


class Asked:
    """An acquire_call."""

    def __init__(self, plan: Any, pool: Any) -> None:
        self.plan, self.ticket, self.pool = plan, None, weakref.ref(pool)
        self.ends: list[BaseException | None] = []
        self.cancelled = False  # it was told that it will hear CancelledError


class Steps:
    """What a program works on, and what its steps do."""

    def __init__(self, probe: Any, stock: bool) -> None:
        self.probe = probe
        self.loop = asyncio.SelectorEventLoop() if stock else VirtualLoop()
        self.stock = stock
        self.pools: list[Made] = []
        self.asked: list[Asked] = []
        self.subscriptions: list[Any] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.acquires: list[Any] = []
        self.plans: list[Any] = []
        self.things: list[weakref.ref[Thing]] = []
        self.twin = Thing(once=False)
        self.made = 0  # what the factories make
        self.reactions: list[tuple[str, str, int, int]] = []
        self.depth = 0
        self.more = 0
        self.littering = False  # every step leaves some for the collector
        self.collected = False  # a pool may have been collected with those who waited in it
        self.faults: list[str] = []
        self.done: Counter[str] = Counter()

    def fault(self, text: str) -> None:
        self.faults.append(text)

    # -- what the callbacks do ---------------------------------------------------------------------

    def plan(self, kind: str) -> Any:
        plan = self.probe.Plan()
        plan.factory, plan.given = self.probe.MAKE, self.make
        plan.at_free = self.freed
        plan.error = PLANNED[self.more % len(PLANNED)]
        if kind != "ticket":
            plan.call = lambda name, argument: self.called(plan, name, argument)
        self.plans.append(plan)
        return plan

    def make(self) -> Any:
        kind, self.made = self.made % 16, self.made // 16
        if kind < 8:
            thing = Thing()
            self.things.append(weakref.ref(thing))
            return thing
        if kind == 13:
            return self.later()
        if kind == 14 and self.pools:
            return self.pools[0].pool
        others = [self.twin, self.twin, ("a", "tuple"), StopIteration(3), None]
        return others[(kind - 8) % len(others)]

    async def later(self) -> Any:
        await asyncio.sleep(0)
        return self.make()

    def called(self, plan: Any, name: str, argument: Any) -> None:
        plan.log.clear()  # it keeps what it lists
        if name == "destructor" and isinstance(argument, Thing) and argument.once:
            if argument.destroyed:
                self.fault("a resource was destroyed twice")
            argument.destroyed = True
        self.react(name)

    def freed(self, plan: Any) -> None:
        if plan.freed != 1:
            self.fault(f"user data was freed {plan.freed} times")
        self.react("free")

    def completed(self, asked: Asked, name: str, argument: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.fault("a completion was called in another thread")
        asked.ends.append(argument if name == "error" else None)
        self.react(name)

    def react(self, name: str) -> None:
        for reaction in [*self.reactions]:
            if reaction[0] == name and self.depth < DEEPEST:
                if reaction not in self.reactions:
                    continue  # a finalizer was faster
                self.reactions.remove(reaction)
                self.done[f"in {name}"] += 1
                self.act(*reaction[1:])
                return

    def finalized(self) -> None:
        """In the middle of whatever the collector has interrupted."""
        if self.reactions and self.depth < DEEPEST:
            _, *step = self.reactions.pop(0)
            self.done["in finalizer"] += 1
            self.act(*step)

    # -- steps -------------------------------------------------------------------------------------

    def act(self, name: str, one: int, two: int) -> None:
        odd: list[str] = []  # arguments that are wrong on purpose
        self.done[name] += 1
        self.depth += 1
        if self.littering:
            Garbage(self)
        self.more = (one >> 4) * 16 + (two >> 4)  # for whoever has more to choose
        try:
            getattr(self, f"do_{name}")(one & 15, two & 15, odd)
        except BaseException as error:
            self.judge(error, name, odd)
        finally:
            self.depth -= 1

    def judge(
        self, error: BaseException, where: str, odd: list[str] | tuple[str, ...] = ()
    ) -> None:
        """Whether this may happen."""
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                self.judge(each, where, odd)
            return
        text = str(error)
        fine = isinstance(error, cenote.PoolError) or type(error) in PLANNED
        if isinstance(error, RuntimeError) and not isinstance(error, errors.IllegalTransition):
            fine = fine or bool(ALLOWED_RUNTIME.search(text))
        if type(error) is ValueError and text == "coroutine already executing":
            fine = True
        if isinstance(error, SystemError):
            fine = bool(ALLOWED_SYSTEM.search(text))
        if odd and isinstance(error, TypeError | ValueError):
            fine = bool(text)
        if not fine:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = ", ".join(f"{Path(each.filename).name}:{each.lineno}" for each in frames)
            self.fault(f"{where} {odd}: {type(error).__name__}: {text} ({places})")

    def pick_pool(self, number: int, odd: list[str]) -> Any:
        if number < 13 and self.pools:
            return self.pools[number % len(self.pools)].pool
        odd.append("pool")
        probe = self.probe
        wrong = [probe.NULL, None, cenote.Pool.__new__(cenote.Pool), cenote.Pool, self.twin, 3]
        return wrong[number % len(wrong)]

    def pick_resource(self, pool: Any, number: int) -> Any:
        held = holders(pool)
        if number < 10 and held:
            return held[number % len(held)].resource
        others = [each.pool for each in self.pools if each.pool is not pool]
        elsewhere = [holder.resource for other in others for holder in holders(other)]
        known = [thing for each in self.things if (thing := each()) is not None]
        wrong = [*elsewhere[:2], *known[:4], self.twin, None, self.probe.NULL, 3, pool]
        return wrong[number % len(wrong)]

    def do_new(self, one: int, two: int, odd: list[str]) -> None:
        names = " ".join(
            name
            for bit, name in enumerate(CALLBACKS[1:5])
            if one >> bit & 1 or name == "destructor"
        )
        options: Any = {
            "max_size": two % 3 + 1,
            "min_size": int(two == 7),
            "lifo": bool(two & 1),
            "name": "hostile",
            "healthcheck_interval": 0.5,
        }
        if two & 8:
            more = [{"max_uses": 2}, {"max_idle": 1.0}, {"hold_warning": 1.0}, {"max_waiting": 1},
                    {"acquire_timeout": 1.0}, {"reuse_after_cancel": True},
                    {"recovering_limit": 2}]  # fmt: skip
            options |= more[one % len(more)]
        self.keep_new(self.plan("pool"), f"factory {names}", options)

    def keep_new(self, plan: Any, names: str | None, options: Any) -> None:
        pool = self.probe.pool_new_c(plan, names, options)
        self.pools.append(Made(pool, plan))

    def do_new_wrongly(self, one: int, two: int, odd: list[str]) -> None:
        odd.append("all of it")
        wrong = [3, [], {"max_size": 0}, {"colour": 1}, {"destructor": 3}, {"max_size": nan},
                 {3: 4}, {"factory": 3}, {"name": 3},
                 {"min_size": 1 << 80, "max_size": 1 << 80}]  # fmt: skip
        options = wrong[two % len(wrong)]
        if one < 6:
            self.keep_new(self.plan("pool"), "factory", options)
        elif one < 9:
            self.keep_new(self.plan("pool"), None if one == 6 else "destructor", {})
        else:
            self.probe.pool_new([self.probe.NULL, None, 3, Thing][one % 4], options)

    def do_new_of_python(self, one: int, two: int, odd: list[str]) -> None:
        """With async hooks, in every mixture."""

        async def accept(thing: Thing) -> bool:
            await asyncio.sleep(0)
            return not two & 4

        options: dict[str, Any] = {"max_size": two % 3 + 1}
        for bit, name in enumerate(["destructor", "before_acquire", "before_release"]):
            if one >> bit & 1:
                options[name] = accept
        pool = self.probe.pool_new(self.later if one & 8 else self.make, options)
        self.pools.append(Made(pool, None))

    def do_acquire_call(self, one: int, two: int, odd: list[str]) -> None:
        pool = self.pick_pool(one, odd)
        timeout = self.timeout(two, odd)
        plan = self.plan("ticket")
        if odd:
            self.probe.acquire_call(pool, timeout, plan)
            self.fault(f"acquire_call has accepted {odd}")
            return
        asked = Asked(plan, pool)
        plan.call = lambda name, argument: self.completed(asked, name, argument)
        plan.completion, plan.value = self.mode(self.more), two - 8
        if two == 15:
            odd.append("callback")
        asked.ticket = self.probe.acquire_call(pool, timeout, plan, two != 15)
        self.asked.append(asked)

    def timeout(self, number: int, odd: list[str]) -> float:
        timeout = TIMEOUTS[number % len(TIMEOUTS)]
        if timeout != timeout:
            odd.append("timeout")
        if self.stock and 0 < timeout < 1e6:
            return inf  # nothing here waits for real time
        return timeout

    def mode(self, number: int) -> int:
        probe = self.probe
        bad = [probe.RAISE, probe.SILENT, probe.CONTRADICT, probe.WILD]
        modes = [probe.WELL] * 6 + [probe.NO] * 2 + bad * 2
        mode: int = modes[number % len(modes)]
        return mode

    def do_cancel(self, one: int, two: int, odd: list[str]) -> None:
        if one == 15 or not self.asked:
            odd.append("ticket")
            wrong = [self.probe.NULL, None, 3, self.twin]
            self.probe.ticket_cancel(wrong[two % len(wrong)])
            return
        asked = self.asked[one % len(self.asked)]
        if asked.ticket is None:
            return
        ended = bool(asked.ends)
        answer = self.probe.ticket_cancel(asked.ticket)
        if answer not in (0, 1) or (ended and answer):
            self.fault(f"ticket_cancel gave {answer} after {len(asked.ends)} ends")
        asked.cancelled = asked.cancelled or answer == 1

    def do_acquire(self, one: int, two: int, odd: list[str]) -> None:
        acquire = self.probe.acquire(self.pick_pool(one, odd), self.timeout(two, odd))
        self.spawn(self.keeping(acquire))

    def do_block(self, one: int, two: int, odd: list[str]) -> None:
        acquire = self.probe.acquire(self.pick_pool(one, odd), self.timeout(two, odd))
        self.spawn(self.visiting(acquire, two))

    async def keeping(self, acquire: Any) -> None:
        if await acquire is None:
            self.fault("an acquire has ended with nothing")

    async def visiting(self, acquire: Any, number: int) -> None:
        async with acquire:
            await asyncio.sleep(0)
            if number > 12:
                raise PLANNED[number % len(PLANNED)]("inside")

    def spawn(self, work: Any) -> None:
        try:
            asyncio.get_running_loop()
            self.tasks.append(asyncio.create_task(self.guarded(work)))
        except RuntimeError:  # here is none
            work.close()

    async def guarded(self, work: Any) -> None:
        try:
            await work
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            self.judge(error, "a task")

    def do_cancel_task(self, one: int, two: int, odd: list[str]) -> None:
        if self.tasks:
            self.tasks[one % len(self.tasks)].cancel()

    def do_poke(self, one: int, two: int, odd: list[str]) -> None:
        """An acquire that is driven by hand, in any order."""
        if two < 4 or not self.acquires:
            self.acquires.append(self.probe.acquire(self.pick_pool(one, odd), inf))
        acquire = self.acquires[one % len(self.acquires)]
        if two % 8 == 0:
            acquire.close()  # not while it runs
            self.acquires.remove(acquire)
        elif two % 8 < 4:
            try:
                acquire.send(None)
            except StopIteration as stop:
                if stop.value is None:
                    self.fault("an acquire has ended with nothing")
        elif two % 8 == 4:
            acquire.throw(PLANNED[one % 6]("thrown"))  # a StopIteration would end the await well
        elif two % 8 == 5:
            acquire.close()
        elif two % 8 == 6:
            acquire.__aenter__()
        else:
            acquire.__aexit__(None, None, None)

    def do_try_acquire(self, one: int, two: int, odd: list[str]) -> None:
        self.probe.try_acquire(self.pick_pool(one, odd))

    def do_release(self, one: int, two: int, odd: list[str]) -> None:
        pool = self.pick_pool(one, odd)
        resource = self.pick_resource(pool, two)
        self.give(pool, resource, lambda: self.probe.release(pool, resource))

    def do_discard(self, one: int, two: int, odd: list[str]) -> None:
        pool = self.pick_pool(one, odd)
        resource = self.pick_resource(pool, two)
        error: Any = self.probe.NULL
        if two % 4 == 1:
            error = PLANNED[self.more % len(PLANNED)]("discarded")
        elif two % 4 == 2 and two > 8:
            odd.append("error")
            error = "broken"
        self.give(pool, resource, lambda: self.probe.discard(pool, resource, error))

    def give(self, pool: Any, resource: Any, call: Callable[[], int]) -> None:
        """What is held is taken, what is not is refused."""
        held = any(holder.resource is resource for holder in holders(pool))
        try:
            if call() != 0:
                self.fault("neither 0 nor an exception")
        except cenote.NotAcquiredError:
            if held:
                self.fault("what is held was refused")
            raise
        if not held:
            self.fault(f"what is not held was accepted: {resource!r}")

    def do_close(self, one: int, two: int, odd: list[str]) -> None:
        pool = self.pick_pool(one, odd)
        if two & 1:
            self.spawn(pool.close(drain=1.0) if two > 8 and not odd else self.probe.close(pool))
        else:
            self.probe.close(pool).close()  # and nothing has happened

    def do_look(self, one: int, two: int, odd: list[str]) -> None:
        pool = self.pick_pool(one, odd)
        names = ["count", "idle_count", "active_count", "waiting_count", "state", "pool_check"]
        if getattr(self.probe, names[two % len(names)])(pool) < 0:
            self.fault("a count below 0 without an exception")
        self.probe.pool_check(self.pick_resource(pool, one))

    def do_subscribe(self, one: int, two: int, odd: list[str]) -> None:
        pool = self.pick_pool(one, odd)
        plan = self.plan("listener")
        plan.listener, plan.value = self.mode(self.more), two - 8
        if two == 15:
            odd.append("listener")
        self.subscriptions.append(self.probe.subscribe(pool, plan, two != 15))

    def do_unsubscribe(self, one: int, two: int, odd: list[str]) -> None:
        if two == 15 or not self.subscriptions:
            odd.append("subscription")
            wrong = [self.probe.NULL, None, 3, self.twin]
            self.probe.unsubscribe(wrong[one % len(wrong)])
            return
        subscription = self.subscriptions[one % len(self.subscriptions)]
        self.probe.unsubscribe(subscription)
        if two & 1:  # by identity: a finalizer may have changed the list
            self.subscriptions = [each for each in self.subscriptions if each is not subscription]

    def do_set_state(self, one: int, two: int, odd: list[str]) -> None:
        state = two % 3 if two < 14 else [-1, 1 << 30][two & 1]
        if two >= 14:
            odd.append("state")
        self.probe.set_state(self.pick_pool(one, odd), state)

    def do_set_strategy(self, one: int, two: int, odd: list[str]) -> None:
        pool = self.pick_pool(one, odd)
        plan = self.plan("strategy")
        plan.success, plan.failure = self.mode(self.more), self.mode(self.more >> 4)
        plan.recover = self.mode(two)
        plan.value = two - 8
        if two == 14:
            odd.append("strategy")
        names = {14: "success", 15: None}.get(two, "success failure recover")
        self.probe.set_strategy(pool, plan, names)

    def do_mode(self, one: int, two: int, odd: list[str]) -> None:
        plans = [each.plan for each in self.pools if each.plan is not None]
        more = self.more
        if plans:
            plan = plans[one % len(plans)]
            mode = self.mode(two)
            name = CALLBACKS[one % 5]
            if name == "factory" and mode == self.probe.WELL:
                mode = self.probe.MAKE
            setattr(plan, name, mode)
            plan.error, plan.value = PLANNED[more % len(PLANNED)], two - 8

    def do_make(self, one: int, two: int, odd: list[str]) -> None:
        self.made = self.more * 256 + one * 16 + two

    def do_retire(self, one: int, two: int, odd: list[str]) -> None:
        if self.pools:
            self.pools[one % len(self.pools)].pool.retire()

    def do_collect(self, one: int, two: int, odd: list[str]) -> None:
        gc.collect()

    def do_drop(self, one: int, two: int, odd: list[str]) -> None:
        """Forget something; a pool may be collected, with all who wait in it."""
        if two < 4 and self.pools:
            self.collected = True
            made = self.pools.pop(one % len(self.pools))
            forget_errors(made.plan)
        elif two < 8 and self.asked:
            self.asked[one % len(self.asked)].ticket = None
        elif two < 12 and self.subscriptions:
            del self.subscriptions[one % len(self.subscriptions)]
        elif self.tasks:
            del self.tasks[one % len(self.tasks)]
            self.collected = True


def holders(pool: Any) -> list[Any]:
    """Those who can give back: not those to whom it was handed in this very step."""
    if not isinstance(pool, cenote.Pool):
        return []
    try:
        return [
            holder
            for holder in pool.holders()
            if holder.resource is not None
            and pool._engine.core.find(holder.resource, None) is not None
        ]
    except AttributeError:  # without its constructor
        return []


def is_single(resource: Any) -> bool:
    return isinstance(resource, Thing) and resource.once


def forget_errors(plan: Any) -> None:
    """The collector does not see what user data refers to: nothing that leads back to the pool."""
    if plan is not None:
        plan.log.clear()
