"""`python -m benchmarks [--quick] [--json FILE]`."""

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.servers import MariaDBServer, PostgresServer

import cenote

from . import databases, handlers, memory, observed, statements, throughput, uncontended, waiters
from .measure import FULL, QUICK, Goal, Samples, Scale

Report = dict[str, Samples]

# With a class, the drivers that are measured on it.
SERVERS: list[tuple[Any, tuple[str, ...]]] = [
    (PostgresServer, ("asyncpg", "psycopg")),
    (MariaDBServer, ("asyncmy",)),
]


async def run(scale: Scale, urls: dict[str, str], only: str | None) -> tuple[Report, list[Goal]]:
    """`urls`: of the servers that there are, by the name of a driver."""
    if only == "statements":
        goals: list[Goal] = []
        report = Report()
    else:
        report, goals = await run_pools(scale, urls.get("asyncpg"))
    if only in (None, "statements"):
        tables, more, report["statements"] = await statements.run(scale, urls)
        goals += more
        for table in tables:
            print(f"{table}\n", flush=True)
    print(f"{Goal.table(goals)}\n", flush=True)
    return report, goals


async def run_pools(scale: Scale, url: str | None) -> tuple[Report, list[Goal]]:
    table, goals, alone = await uncontended.run(scale)
    print(f"{table}\n", flush=True)
    report = {"uncontended": alone}
    if url is None:
        goals += databases.goals(None)
    else:
        table, more, report["databases"] = await databases.run(scale, url)
        goals += more
        print(f"{table}\n", flush=True)
    if (reason := handlers.missing()) is None:
        table, report["handlers"] = await handlers.run(scale)
        print(f"{table}\n", flush=True)
    else:
        print(f"Skipped: hooks in C, because {reason}.\n", flush=True)
    hand_off, cancel, report["waiters"] = await waiters.run(scale)
    print(f"{hand_off}\n\n{cancel}\n", flush=True)
    table, report["contended"] = await throughput.run(scale)
    print(f"{table}\n", flush=True)
    table, more, report["observed"] = await observed.run(scale)
    goals += more
    print(f"{table}\n", flush=True)
    resources, tasks, report["memory"] = await memory.run(scale)
    print(f"{resources}\n\n{tasks}\n", flush=True)
    return report, goals


@contextmanager
def servers(scale: Scale) -> Iterator[dict[str, str]]:
    """The addresses of servers of our own; if there can be none, says why."""
    urls: dict[str, str] = {}
    with ExitStack() as stack:
        for server, drivers in SERVERS:
            reason = "--quick starts no server" if scale is QUICK else server.missing()
            for driver in drivers:
                reason = reason or statements.missing(driver)
            if reason is None:
                try:
                    address = stack.enter_context(server()).tcp_url()
                    urls |= dict.fromkeys(drivers, address)
                except (OSError, subprocess.SubprocessError) as error:
                    reason = str(error)
            if reason is not None:
                print(f"Skipped: {' and '.join(drivers)}, because {reason}.\n", flush=True)
        if "psycopg" in urls:
            urls["psycopg"] = urls["psycopg"].replace("postgresql://", "postgresql+psycopg://")
        yield urls


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument("--only", choices=["pools", "statements"], help="half of it")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL

    machine = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.machine()}",
        "cenote": cenote.__version__,
        "core": cenote.core,
    }
    print(
        f"# cenote {machine['cenote']} ({machine['core']} core), "
        f"{machine['implementation']} {machine['python']}, {machine['system']}\n"
    )
    began = time.perf_counter()
    with servers(scale) as urls:
        samples, goals = asyncio.run(run(scale, urls, options.only))
    seconds = time.perf_counter() - began
    print(f"Medians of {scale.rounds} or more interleaved rounds, in {seconds:.0f} s.")
    print("The garbage collector is off while something is measured.")
    if options.json is not None:
        marks = [{**asdict(goal), "mark": goal.mark} for goal in goals]
        report = {**machine, "goals": marks, "samples": samples}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
