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

from tests.servers import PostgresServer

import cenote

from . import databases, handlers, memory, throughput, uncontended, waiters
from .measure import FULL, QUICK, Goal, Samples, Scale

Report = dict[str, Samples]


async def run(scale: Scale, url: str | None) -> tuple[Report, list[Goal]]:
    """`url`: of a PostgreSQL, or None if there is none."""
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
    resources, tasks, report["memory"] = await memory.run(scale)
    print(f"{resources}\n\n{tasks}\n", flush=True)
    print(f"{Goal.table(goals)}\n", flush=True)
    return report, goals


@contextmanager
def database(scale: Scale) -> Iterator[str | None]:
    """The address of a PostgreSQL of our own; if there can be none, says why."""
    reason = "--quick starts no server" if scale is QUICK else databases.missing()
    with ExitStack() as stack:
        url = None
        if reason is None:
            try:
                url = stack.enter_context(PostgresServer()).url
            except (OSError, subprocess.SubprocessError) as error:
                reason = str(error)
        if url is None:
            print(f"Skipped: psycopg_pool and asyncpg, because {reason}.\n", flush=True)
        yield url


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
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
    with database(scale) as url:
        samples, goals = asyncio.run(run(scale, url))
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
