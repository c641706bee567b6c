"""One contender in a process of its own: prints how many jobs a second it did.

`python -m benchmarks.client DRIVER WAY LOOP KIND TASKS CONNECTIONS SECONDS`, the URL in the
environment. `apart.py` and `languages/` start it.
"""

import asyncio
import gc
import importlib
import os
import subprocess
import sys
from time import perf_counter

from . import drivers
from .drivers import Run
from .statements import job

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
    numbers = (str(each) for each in (tasks, connections, seconds))
    command = [sys.executable, "-m", "benchmarks.client", driver, way, loop, kind, *numbers]
    ended = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, URL: url}
    )
    return float(ended.stdout)


async def rate(run: Run, tasks: int, seconds: float) -> float:
    done = 0
    began = perf_counter()
    end = began + seconds

    async def work() -> None:
        nonlocal done
        while perf_counter() < end:
            await run()
            done += 1

    await asyncio.gather(*(work() for _ in range(tasks)))
    return done / (perf_counter() - began)


async def main(
    driver: str, way: str, kind: str, tasks: int, connections: int, seconds: float
) -> None:
    make = drivers.peers(driver)[way]
    async with make(os.environ[URL], connections) as jobs:
        run = job(jobs, kind)
        await rate(run, tasks, seconds / 4)
        gc.collect()
        gc.disable()
        print(await rate(run, tasks, seconds))


if __name__ == "__main__":
    driver, way, loop, kind, *numbers = sys.argv[1:]
    factory = importlib.import_module("uvloop").new_event_loop if loop == UVLOOP else None
    with asyncio.Runner(loop_factory=factory) as runner:
        tasks, connections = map(int, numbers[:2])
        runner.run(main(driver, way, kind, tasks, connections, float(numbers[2])))
