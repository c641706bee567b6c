"""One contender in a process of its own: prints how many jobs a second it did.

`python -m benchmarks.client DRIVER WAY LOOP KINDS TASKS CONNECTIONS SECONDS`, the URL in the
environment; kinds of jobs are separated by commas, and there is a line for each. `apart.py` and
`languages/` start it.
"""

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from time import perf_counter

from . import drivers
from .drivers import Run
from .measure import quiet
from .statements import STREAMS, job

URL = "CENOTE_BENCH_URL"
STOCK, UVLOOP = "asyncio", "uvloop"


def missing(loop: str) -> str | None:
    """Why nothing can be measured on this loop."""
    if loop == UVLOOP and not drivers.installed("uvloop"):
        return "uvloop is not installed: pip install 'cenote[bench]'"
    return None


def measure(
    driver: str, way: str, loop: str, kind: str, tasks: int, connections: int, seconds: float,
    url: str,
) -> float:  # fmt: skip
    """Start it, and return what it prints."""
    [rate] = measure_kinds(driver, way, loop, [kind], tasks, connections, seconds, url).values()
    return rate


def measure_kinds(
    driver: str, way: str, loop: str, kinds: Sequence[str], tasks: int, connections: int,
    seconds: float, url: str,
) -> dict[str, float]:  # fmt: skip
    """The same for several kinds of jobs, one after the other in one process."""
    numbers = (str(each) for each in (tasks, connections, seconds))
    command = [sys.executable, "-m", "benchmarks.client", driver, way, loop, ",".join(kinds)]
    ended = subprocess.run(
        [*command, *numbers],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, URL: url},
    )
    return dict(zip(kinds, map(float, ended.stdout.split()), strict=True))


async def rate(run: Run, tasks: int, seconds: float) -> float:
    done = 0
    began = perf_counter()
    end = began + seconds

    async def work() -> None:
        nonlocal done
        while True:  # once at least
            await run()
            done += 1
            if perf_counter() >= end:
                return

    await asyncio.gather(*(work() for _ in range(tasks)))
    return done / (perf_counter() - began)


async def main(
    driver: str, way: str, kinds: Sequence[str], tasks: int, connections: int, seconds: float
) -> None:
    make = drivers.peers(driver)[way]
    async with make(os.environ[URL], connections) as jobs:
        for kind in kinds:
            run = job(jobs, kind)
            number = connections if kind == STREAMS else tasks
            await rate(run, number, seconds / 4)
            with quiet():
                print(await rate(run, number, seconds))


if __name__ == "__main__":
    driver, way, loop, kinds, *numbers = sys.argv[1:]
    factory = importlib.import_module("uvloop").new_event_loop if loop == UVLOOP else None
    with asyncio.Runner(loop_factory=factory) as runner:
        tasks, connections = map(int, numbers[:2])
        runner.run(main(driver, way, kinds.split(","), tasks, connections, float(numbers[2])))
