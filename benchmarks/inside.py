"""What a statement in a transaction costs above the bare driver's, with one task alone.

Processor time of one process for each driver and event loop: of transactions with ten selects by
key, less that of empty ones, divided by ten. The server and the way to it have no part in it.
"""

import asyncio
import importlib
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from time import process_time

import cenote

from . import client
from .client import STOCK, URL, UVLOOP
from .drivers import BARE, CENOTE, DRIVERS, KEY, PICK, SEVERAL, Run
from .measure import Case, Goal, Part, Samples, Scale, Table, interleave, median
from .statements import database, fill

LOOPS = (STOCK, UVLOOP)
MOST = 1.0  # microseconds that a statement may cost above the bare driver's
TITLE = "A statement in a transaction, processor time"


async def run(scale: Scale, urls: dict[str, str]) -> Part:
    """`urls`: by the name of the driver; those of servers may be missing."""
    part = Part([], {})
    micros = "\N{MICRO SIGN}s"
    result = Table(
        f"{TITLE} in {micros}",
        ["", "cenote.Database", "bare driver", "above it, median of the rounds"],
    )
    absent = {loop: reason for loop in LOOPS if (reason := client.missing(loop)) is not None}
    with database() as (_, sqlite):
        for driver, url in {"aiosqlite": sqlite, **urls}.items():
            await fill(url, scale.rows)
            worst: float | None = None
            for loop in LOOPS:
                if loop in absent:
                    continue
                found = measure(scale, driver, loop, url)
                ours, bare = each_of(found, CENOTE), each_of(found, BARE)
                above = median([one - other for one, other in zip(ours, bare, strict=True)])
                worst = above if worst is None else max(worst, above)
                what = f"{driver} on {loop}"
                part.samples |= {f"{what}: {name}": values for name, values in found.items()}
                row = [f"{median(ours):,.1f}", f"{median(bare):,.1f}", f"{above:+,.1f}"]
                result.rows.append([what, *row])
            goal = f"{driver}: a statement in a transaction, above the bare driver"
            part.goals.append(Goal(goal, MOST, worst, unit=" us"))
    result.notes += [f"Skipped: {loop}, because {reason}." for loop, reason in absent.items()]
    part.tables.append(result)
    return part


def each_of(samples: Samples, way: str) -> list[float]:
    """Microseconds of one statement, round by round."""
    pairs = zip(samples[f"{way}, {SEVERAL}"], samples[f"{way}, 0"], strict=True)
    return [1e6 * (many - none) / SEVERAL for many, none in pairs]


def measure(scale: Scale, driver: str, loop: str, url: str) -> Samples:
    """Seconds of a transaction with many statements, and with none, both ways."""
    numbers = str(scale.rounds), str(max(2, scale.operations // 40))
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.inside", driver, loop, *numbers],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, URL: url},
    )
    samples: Samples = json.loads(ended.stdout)
    return samples


async def main(driver: str, rounds: int, operations: int) -> Samples:
    url, bare = os.environ[URL], DRIVERS[driver]
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(cenote.Database(url, max_size=1))
        connection = await bare.connect(url)
        stack.push_async_callback(bare.close, connection)

        async def ours(statements: int) -> None:
            async with db.transaction():
                for _ in range(statements):
                    await db.fetch_val(PICK + "?", [KEY])

        cases = {
            f"{CENOTE}, {SEVERAL}": case(lambda: ours(SEVERAL)),
            f"{BARE}, {SEVERAL}": case(lambda: bare.many(connection, SEVERAL)),
            f"{CENOTE}, 0": case(lambda: ours(0)),
            f"{BARE}, 0": case(lambda: bare.many(connection, 0)),
        }
        return await interleave(cases, rounds=rounds, operations=operations)


def case(job: Run) -> Case:
    async def timed(operations: int) -> float:
        began = process_time()
        for _ in range(operations):
            await job()
        return process_time() - began

    return timed


if __name__ == "__main__":
    driver, loop, *numbers = sys.argv[1:]
    factory = importlib.import_module("uvloop").new_event_loop if loop == UVLOOP else None
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(main(driver, *map(int, numbers)))))
