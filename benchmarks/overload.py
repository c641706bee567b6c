"""`python -m benchmarks.overload`: answers in time, where more is asked than can be answered.

Requests come at random, each takes a resource for its service, and its caller gives up after a
second. Counted are the answers in time, in percent of what the backend can do. The simulated
backend is in virtual time, so that the load of the machine has no part in it: once with a plain
queue, once with a `queue_target`; and a site beside a batch job, without a lane and with one.
`--postgresql` starts a server, and asks every pool that is installed: see `overload_servers`.
"""

import argparse
import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import NamedTuple

import cenote
from cenote.testing import VirtualLoop

from . import report
from .measure import Table
from .plots import LinePanel, Lines, Series, both

SIZE, SERVICE = 10, 0.05  # resources, and seconds that a request takes of one
CAPACITY = SIZE / SERVICE  # requests a second
PATIENCE = 1.0  # seconds after which a caller gives up
SECONDS, WARM_UP = 15.0, 5.0  # of which the first are not counted
TARGET, INTERVAL = 0.1, 1.0
LOADS = (0.5, 1.0, 2.0, 5.0, 10.0)
WORKERS, STINT = 8, 0.5  # tasks of the batch job, and seconds for which each takes a resource
LANE = 3  # of them that may be out at once
BARE, SHEDDING = "cenote, plain queue", "cenote, queue_target"

Serve = Callable[[], Awaitable[object]]  # does one request


class Outcome(NamedTuple):
    """What became of the requests at one load."""

    goodput: float  # answers in time, as a part of the capacity
    p50: float  # seconds, of those
    p99: float


async def offer(
    serve: Serve, rate: float, *, seconds: float, warm_up: float, seed: str
) -> list[float]:
    """So many requests a second, at random: what each took that was answered in time.

    The arrivals are drawn before: they keep to their times whatever the pool does.
    """
    loop, choice, took = asyncio.get_running_loop(), random.Random(seed), list[float]()
    begin = coming = loop.time()

    async def request(came: float) -> None:
        try:
            async with asyncio.timeout_at(came + PATIENCE):
                await serve()
        except (TimeoutError, cenote.PoolError):
            return
        time = loop.time() - came
        if came - begin >= warm_up and time <= PATIENCE:  # not if it came in spite of the timeout
            took.append(time)

    requests: set[asyncio.Task[None]] = set()
    while (coming := coming + choice.expovariate(rate)) - begin < seconds:
        await asyncio.sleep(max(0.0, coming - loop.time()))
        requests.add(task := asyncio.create_task(request(coming)))
        task.add_done_callback(requests.discard)
    await asyncio.gather(*requests)
    return took


def outcome(took: Sequence[float], expected: float) -> Outcome:
    """Of these answers in time, where so many are possible."""
    if not took:
        return Outcome(0.0, nan, nan)
    took = sorted(took)
    return Outcome(len(took) / expected, took[len(took) // 2], took[len(took) * 99 // 100])


# -- a simulated backend -------------------------------------------------------------------------


def simulate(load: float, queue_target: float | None) -> Outcome:
    """Offer `load` times the capacity."""

    async def requests() -> list[float]:
        async with cenote.Pool(
            object, max_size=SIZE, queue_target=queue_target, queue_interval=INTERVAL
        ) as pool:

            async def serve() -> None:
                async with pool.acquire():
                    await asyncio.sleep(SERVICE)

            seed = f"overload {load}"
            return await offer(serve, load * CAPACITY, seconds=SECONDS, warm_up=WARM_UP, seed=seed)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return outcome(runner.run(requests()), CAPACITY * (SECONDS - WARM_UP))


def simulate_batch(*, lane: bool) -> tuple[Outcome, float]:
    """A site with half of the capacity beside a batch job that takes all it can: what became of
    its requests, and how many stints of the batch ended in a second."""
    stints = 0

    async def both_kinds() -> list[float]:
        async with cenote.Pool(object, max_size=SIZE) as pool:
            source = pool.lane("batch", max_size=LANE, priority=-1) if lane else pool

            async def serve() -> None:
                async with pool.acquire():
                    await asyncio.sleep(SERVICE)

            async def work() -> None:
                nonlocal stints
                while True:
                    async with source.acquire():
                        await asyncio.sleep(STINT)
                    stints += 1

            workers = [asyncio.create_task(work()) for _ in range(WORKERS)]
            took = await offer(serve, CAPACITY / 2, seconds=SECONDS, warm_up=WARM_UP, seed="a site")
            for each in workers:
                each.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            return took

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        took = runner.run(both_kinds())
    return outcome(took, CAPACITY / 2 * (SECONDS - WARM_UP)), stints / SECONDS


# -- what is shown -------------------------------------------------------------------------------

Outcomes = Mapping[str, Mapping[float, Outcome]]  # by name and load


def simulated(loads: Sequence[float] = LOADS) -> dict[str, dict[float, Outcome]]:
    targets = {BARE: None, SHEDDING: TARGET}
    return {
        name: {load: simulate(load, target) for load in loads} for name, target in targets.items()
    }


def table(title: str, found: Outcomes) -> Table:
    loads = [*next(iter(found.values()))]
    result = Table(title, ["answers in time", *(f"load {load:g}" for load in loads)])
    for name, by_load in found.items():
        result.rows.append([name, *(cell(by_load[load]) for load in loads)])
    result.notes.append(
        "Answers in time, in percent of the capacity; median and 99th percentile of their times. A "
        f"load of 1 is the capacity; callers give up after {PATIENCE:g} s."
    )
    return result


def cell(each: Outcome) -> str:
    if not each.goodput:
        return "0%"
    return f"{each.goodput:.0%}, {each.p50:.2f} s, {each.p99:.2f} s"


def batch_table() -> Table:
    result = Table(
        "A site beside a batch job", ["", "answers in time", "p50", "p99", "stints a second"]
    )
    for name, lane in (("without a lane", False), (f"batch in a lane of {LANE}", True)):
        site, stints = simulate_batch(lane=lane)
        result.rows.append(
            [name, f"{site.goodput:.0%}", f"{site.p50:.2f} s", f"{site.p99:.2f} s", f"{stints:.1f}"]
        )
    return result


def in_percent(each: Outcome) -> float:
    """The goodput as an axis of logarithms can show it."""
    return min(max(100 * each.goodput, 0.1), 100.0)


def chart(panels: Mapping[str, Outcomes]) -> Lines:
    """By the title of each panel, its lines."""
    return Lines(
        "Answers in time under overload",
        f"In percent of what the backend can do; callers give up after {PATIENCE:g} s. A load of 1 "
        "is the capacity; both axes are logarithms.",
        [
            LinePanel(
                title,
                [
                    Series(
                        name,
                        [(load, in_percent(each)) for load, each in by_load.items()],
                        name == SHEDDING,
                    )
                    for name, by_load in found.items()
                ],
            )
            for title, found in panels.items()
        ],
        "offered load",
        show="{:g}%".format,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--postgresql", action="store_true", help="a real server and other pools")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each load of those")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="write the plot there, and on FOLDER.md"
    )
    options = parser.parse_args(arguments)
    panels: dict[str, Outcomes] = {"simulated": simulated()}
    tables = [table("Overload, simulated", panels["simulated"]), batch_table()]
    print(*tables, sep="\n\n", flush=True)
    if options.postgresql:
        from . import overload_servers

        panels["PostgreSQL"] = overload_servers.measure(options.seconds)
        tables.insert(1, table("Overload of PostgreSQL", panels["PostgreSQL"]))
        print(f"\n{tables[1]}")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        for name, drawing in both("overload", chart(panels)).items():
            (options.output / name).write_text(drawing, "utf-8")
        report.write_overload(options.output, tables)


if __name__ == "__main__":
    main()
