"""Both cores in one process: random programs, each run on the native and on the pure core.

A program is made of plain values from a seed. It is run twice, each time in a virtual loop of its
own, and everything that can be seen of the pool after each step is written down: results, errors
with their texts and causes, counts, statistics, holders, events, log lines. The two protocols must
be the same.

`python -m tests.support.lockstep --programs 5000 --seed 7` runs more than the suite does.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib.util
import logging
import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cenote
from cenote.testing import VirtualLoop, advance, settle

Step = tuple[Any, ...]
Protocol = list[tuple[str, Any]]

PURE = "cenote_pure"  # the name under which the package is loaded once more


def pure_package() -> ModuleType:
    """The package a second time, on its pure core."""
    if PURE in sys.modules:
        return sys.modules[PURE]
    path = Path(cenote.__file__)
    spec = importlib.util.spec_from_file_location(
        PURE, path, submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PURE] = package
    before = os.environ.get("CENOTE_PURE")
    os.environ["CENOTE_PURE"] = "1"
    try:
        spec.loader.exec_module(package)
    finally:
        if before is None:
            del os.environ["CENOTE_PURE"]
        else:
            os.environ["CENOTE_PURE"] = before
    assert package.core == "pure"
    return package


# -- programs --------------------------------------------------------------------------------------

KINDS = {
    "acquire": 10, "block": 6, "try": 4, "release": 12, "discard": 3, "cancel": 3, "settle": 6,
    "advance": 6, "resize": 1.5, "retire": 1, "deactivate": 0.7, "activate": 1, "recover": 0.8,
    "factory": 2.5, "verdict": 2.5, "subscribe": 0.5, "strategy": 0.5, "drive": 1.5, "drop": 1,
    "throw": 0.7, "release twice": 0.5, "collect": 0.5,
}  # fmt: skip
TIMEOUTS = [None, 0, 0.5, 1, 3, 3, 10]
WAIT_TIMEOUTS = [None, None, None, None, None, 0, 0.5, 2]
MODES = ["well", "well", "well", "fail", "none", "slow"]


def generate(seed: object) -> tuple[dict[str, Any], list[Step]]:
    """The options of a pool, and what is done with it."""
    choice = random.Random(str(seed))

    def maybe(odds: float, *values: Any) -> Any:
        return choice.choice(values) if choice.random() < odds else None

    most = choice.choice([1, 1, 2, 3, 5])
    options: dict[str, Any] = {
        "factory": choice.choice(["sync", "async", "async"]),
        "max_size": most,
        "min_size": choice.choice([0, 0, 0, 1, most]),
        "lifo": choice.random() < 0.3,
        "destructor": maybe(0.6, "sync", "async"),
        "before_acquire": maybe(0.5, "sync", "async"),
        "before_release": maybe(0.4, "sync", "async"),
        "healthcheck": maybe(0.2, "sync", "async"),
        "healthcheck_interval": 2.0,
        "max_lifetime": maybe(0.2, 4.0),
        "max_idle": maybe(0.2, 3.0),
        "max_uses": maybe(0.2, 1, 3),
        "hold_warning": maybe(0.2, 1.5),
        "max_waiting": maybe(0.15, 0, 2),
        "acquire_timeout": maybe(0.3, 2.0),
        "max_creating": maybe(0.3, 1, 2),
        "queue_target": maybe(0.3, 0.2, 0.5),
        "queue_interval": 1.0,
        "lane": maybe(0.5, (1, -1), (1, 0), (2, 1), (None, 1)),
        "create_timeout": 2.5,
        "hook_timeout": 1.5,
        "recovering_limit": choice.choice([1, 1, 2]),
        "reuse_after_cancel": choice.random() < 0.2,
        "strategy": choice.random() < 0.4,
        "subscribed": choice.random() < 0.5,
    }
    names, weights = [*KINDS], [*KINDS.values()]
    steps: list[Step] = [
        (choice.choices(names, weights)[0], choice.randrange(64), choice.randrange(64))
        for _ in range(choice.choice([10, 30, 60]))
    ]
    steps.append(("close", maybe(0.3, 2.0), choice.randrange(64)))
    return options, steps


# -- one run ---------------------------------------------------------------------------------------


class Thing:
    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"<thing {self.number}>"


def told(error: BaseException | None) -> Any:
    """An error with its text and its causes."""
    if error is None:
        return None
    text = re.sub("0x[0-9a-f]+", "0x", str(error))  # an address
    return type(error).__name__, text, told(error.__cause__)


class Run:
    """A program on one of the two packages."""

    def __init__(self, package: ModuleType, options: dict[str, Any]) -> None:
        self.package = package
        self.loop = VirtualLoop()
        self.protocol: Protocol = []
        self.made = self.timers = 0
        self.mode = "well"
        self.verdicts: list[Any] = []
        self.held: list[Thing] = []
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.steps: list[Any] = []
        self.leave = asyncio.Event()
        self.lines: list[Any] = []
        self.pool = self.build(dict(options))

    def build(self, options: dict[str, Any]) -> Any:
        factory = self.hook(options.pop("factory"), self.make)
        for name in ("destructor", "before_acquire", "before_release", "healthcheck"):
            kind = options.pop(name)
            if kind is not None:
                answer = self.judge if name != "destructor" else self.destroy
                options[name] = self.hook(kind, answer)
        if "healthcheck" not in options:
            options["healthcheck_interval"] = 0.0
        subscribed, has_strategy = options.pop("subscribed"), options.pop("strategy")
        self.lane_options = options.pop("lane")
        if has_strategy:
            options["strategy"] = self.strategy()
        pool = self.package.Pool(factory, name="pool", **options)
        if subscribed:
            pool.subscribe(self.heard)
        self.lane = pool
        if self.lane_options is not None:
            size, priority = self.lane_options
            self.lane = pool.lane("lane", max_size=size, priority=priority)
        return pool

    def strategy(self) -> Any:
        return self.package.ConsecutiveFailures(2, recovery_timeout=1.0, success_threshold=1)

    def hook(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if kind == "sync":
            return function

        async def slow(*args: Any) -> Any:
            await asyncio.sleep(self.unlike(0.25 if self.mode != "slow" else 5))
            return function(*args)

        return slow

    def make(self) -> Any:
        self.made += 1
        if self.mode == "fail":
            raise OSError(f"down {self.made}")
        return None if self.mode == "none" else Thing(self.made)

    def judge(self, thing: Thing) -> Any:
        verdict = self.verdicts.pop(0) if self.verdicts else True
        if verdict is None:
            raise ValueError(f"bad {thing.number}")
        return verdict

    def destroy(self, thing: Thing) -> None:
        self.note("destroyed", thing.number)

    def note(self, what: str, *values: Any) -> None:
        self.lines.append((what, *values))

    def heard(self, event: Any) -> None:
        resource = None if event.resource is None else event.resource.number
        when = None if self.pool._engine.loop is None else event.time  # else that of the machine
        self.note(
            "event", event.kind, when, resource, event.task, event.duration,
            str(event.reason), told(event.error), event.lane,
        )  # fmt: skip

    # -- steps

    def unlike(self, seconds: float) -> float:
        """No two alike: which of two timers at the same instant comes first is not promised."""
        self.timers += 1
        return seconds + self.timers / 8192

    def timeout(self, number: int) -> float | None:
        timeout = TIMEOUTS[number % len(TIMEOUTS)]
        return self.unlike(timeout) if timeout else timeout

    def wait_timeout(self, number: int) -> float | None:
        limit = WAIT_TIMEOUTS[number // 8]
        return self.unlike(limit) if limit else limit

    def begin(self, body: Callable[[], Any]) -> None:
        name = f"task {len(self.tasks)}"
        self.tasks[name] = self.loop.create_task(self.observed(name, body), name=name)

    async def observed(self, name: str, body: Callable[[], Any]) -> None:
        try:
            result = await body()
        except BaseException as error:
            self.note("ended", name, told(error))
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            self.note("ended", name, repr(result))

    async def do(self, kind: str, one: int, two: int) -> Any:
        pool = self.pool
        if kind in ("settle", "advance"):
            await (settle() if kind == "settle" else advance([0.1, 0.5, 1, 2, 5][one % 5]))
        elif kind in ("acquire", "block"):
            timeout = self.timeout(one)
            limit = self.wait_timeout(two)
            source = self.lane if two % 2 else pool

            async def take() -> Any:
                self.held.append(await source.acquire(timeout, wait_timeout=limit))
                return self.held[-1]

            async def block() -> Any:
                async with source.acquire(timeout, wait_timeout=limit) as thing:
                    await asyncio.sleep(self.unlike([0, 0.5, 2, 30][two % 4]))
                    if two % 7 == 0:
                        raise KeyError(two)
                    if two % 5 == 0:
                        async with self.lane.acquire(timeout=timeout):
                            pass
                return thing

            self.begin(take if kind == "acquire" else block)
        elif kind == "try":
            thing = (self.lane if two % 2 else pool).try_acquire()
            if thing is not None:
                self.held.append(thing)
            return thing
        elif kind in ("release", "discard") and self.held:
            thing = self.held.pop(one % len(self.held))
            if kind == "release":
                self.begin(lambda: pool.release(thing))
            else:
                error = OSError("broken") if two % 2 else None
                self.begin(lambda: pool.discard(thing, error))
            await asyncio.sleep(0)
        elif kind == "release twice":
            return pool.release(self.held[0] if self.held and two % 2 else Thing(-1)) and None
        elif kind == "cancel":
            waiting = [task for task in self.tasks.values() if not task.done()]
            if waiting:
                waiting[one % len(waiting)].cancel()
        elif kind == "resize":
            pool.resize(max_size=1 + one % 5, min_size=0)
        elif kind in ("retire", "activate", "deactivate", "recover"):
            if pool._engine.loop is not None:  # before that it has the time of the machine
                getattr(pool, kind)()
        elif kind == "factory":
            self.mode = MODES[one % len(MODES)]
        elif kind == "verdict":
            self.verdicts.append([False, None, True][one % 3])
        elif kind == "subscribe":
            pool.subscribe(self.heard)
        elif kind == "strategy":
            pool.strategy = self.strategy() if one % 2 else None
        elif kind == "drive":
            self.steps.append(pool.acquire(timeout=self.timeout(one)).__await__())
            return self.stepped(lambda: self.steps[-1].send(None))
        elif kind == "drop" and self.steps:
            self.steps.pop(one % len(self.steps))
        elif kind == "throw" and self.steps:
            steps = self.steps.pop(one % len(self.steps))
            return self.stepped(lambda: steps.throw(KeyError("thrown")))
        elif kind == "collect":
            gc.collect()
        elif kind == "close":
            self.begin(lambda: pool.close(drain=one))
            await advance(20)
        return None

    def stepped(self, step: Callable[[], Any]) -> Any:
        try:
            return "future" if step() is not None else "turn"
        except StopIteration as stop:
            self.held.append(stop.value)
            return stop.value

    async def run(self, steps: list[Step]) -> None:
        for number, (kind, one, two) in enumerate(steps):
            try:
                self.note("answer", repr(await self.do(kind, one, two)))
            except Exception as error:
                self.note("raised", told(error))
            self.look(f"step {number}, {kind}")
        self.steps.clear()
        for task in self.tasks.values():
            task.cancel()
        await settle()
        for thing in self.held:
            with contextlib.suppress(self.package.NotAcquiredError):
                self.pool.release(thing)
        await self.pool.close()
        await advance(20)
        self.look("the end")

    def look(self, where: str) -> None:
        pool = self.pool
        lines, self.lines = self.lines, []
        self.protocol += [(where, line) for line in lines]
        self.protocol.append((where, ("stats", fields(pool.stats()))))
        self.protocol.append((where, ("repr", repr(pool), str(pool.state), len(pool))))
        if self.lane is not pool:
            self.protocol.append((where, ("lane", repr(self.lane), fields(self.lane.stats()))))
        holders = [
            (each.resource.number, each.task, each.seconds, each.line, each.reason, each.lane)
            for each in pool.holders()
        ]
        self.protocol.append((where, ("holders", holders)))


def fields(stats: Any) -> dict[str, Any]:
    values = {name: getattr(stats, name) for name in stats.__slots__}
    mappings = {name: dict(values[name]) for name in ("destroyed", "refused") if name in values}
    return values | mappings


class Lines(logging.Handler):
    """Log lines are part of what is seen."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def emit(self, record: logging.LogRecord) -> None:
        self.run.note("log", record.levelname, record.getMessage())


@contextlib.contextmanager
def heard_by(run: Run) -> Iterator[None]:
    logger, handler = logging.getLogger("cenote"), Lines(run)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # coroutines that nobody awaits
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def play(package: ModuleType, seed: object, options: dict[str, Any], steps: list[Step]) -> Protocol:
    """What can be seen of this program on this package."""
    random.seed(str(seed))  # of the jitter
    run = Run(package, options)
    run.loop.set_exception_handler(
        lambda _, context: run.note("loop", context["message"], told(context.get("exception")))
    )
    try:
        with heard_by(run):
            run.loop.run_until_complete(run.loop.create_task(run.run(steps), name="main"))
    finally:
        run.loop.close()
    return run.protocol


def difference(seed: object) -> str | None:
    """The first difference between the two cores, with the program; None if there is none."""
    options, steps = generate(seed)
    native = play(cenote, seed, options, steps)
    pure = play(pure_package(), seed, options, steps)
    if native == pure:
        return None
    at = next(
        (
            number
            for number, both in enumerate(zip(native, pure, strict=False))
            if both[0] != both[1]
        ),
        min(len(native), len(pure)),
    )
    return "\n".join(
        [
            f"seed {seed!r}: the cores differ",
            *(f"  both:   {each}" for each in native[max(0, at - 4) : at]),
            *(f"  native: {each}" for each in native[at : at + 3]),
            *(f"  pure:   {each}" for each in pure[at : at + 3]),
            f"  options {options}",
            f"  steps {steps}",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="do not stop at the first difference")
    options = parser.parse_args()
    if cenote.core != "native":
        print("the core is pure: there is nothing to compare")
        return 1
    found = 0
    for number in range(options.first, options.first + options.programs):
        text = difference(f"{options.seed} {number}")
        if text is not None:
            found += 1
            print(text, flush=True)
            if not options.all:
                break
    print(f"{options.programs} programs, {found} with a difference")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
