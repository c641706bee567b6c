"""`python -m benchmarks [--quick] [--json FILE]`."""

import argparse
import asyncio
import json
import platform
import sys
import time
from pathlib import Path

import cenote

from . import memory, throughput, uncontended, waiters
from .measure import FULL, QUICK, Samples, Scale


async def run(scale: Scale) -> dict[str, Samples]:
    table, alone = await uncontended.run(scale)
    print(f"{table}\n", flush=True)
    hand_off, cancel, queued = await waiters.run(scale)
    print(f"{hand_off}\n\n{cancel}\n", flush=True)
    table, shared = await throughput.run(scale)
    print(f"{table}\n", flush=True)
    resources, tasks, sizes = await memory.run(scale)
    print(f"{resources}\n\n{tasks}\n", flush=True)
    return {"uncontended": alone, "waiters": queued, "contended": shared, "memory": sizes}


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
    samples = asyncio.run(run(scale))
    seconds = time.perf_counter() - began
    print(f"Medians of {scale.rounds} or more interleaved rounds, in {seconds:.0f} s.")
    print("The garbage collector is off while something is measured.")
    if options.json is not None:
        options.json.write_text(json.dumps({**machine, "samples": samples}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
