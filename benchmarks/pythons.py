"""`python -m benchmarks.pythons PYTHON...`: the cycle of a pool on several Pythons, as one table.

Each is the path of an interpreter that has cenote installed, or a whole command that starts one.
They take turns, on both cores. The fastest round of each counts, so that other work on the machine
does not.
"""

import json
import os
import shlex
import subprocess
import sys

from .measure import Samples, Table, times
from .uncontended import BLOCK, EMPTY, QUEUE, SEMAPHORE, TRY

PASSES, ROUNDS, OPERATIONS = 3, 40, 500
ABOUT = (
    "import sys, cenote;"
    "print(sys.implementation.name, sys.version.split()[0], cenote.core, sep='|')"
)


def ask(python: str, *arguments: str, pure: bool) -> str:
    """What a program prints; the core is chosen in the command, which may enter another system."""
    command = [
        *shlex.split(python)[:-1],
        "env",
        f"CENOTE_PURE={int(pure)}",
        "PYTHONWARNINGS=ignore",
    ]
    command += [shlex.split(python)[-1], *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def measure(python: str, *, pure: bool) -> Samples:
    program = ("-m", "benchmarks.uncontended", str(ROUNDS), str(OPERATIONS))
    samples: Samples = json.loads(ask(python, *program, pure=pure))
    return samples


def main(pythons: list[str]) -> None:
    found: dict[tuple[str, bool], list[Samples]] = {}
    for _ in range(PASSES):
        for python in pythons:
            for pure in (False, True):
                found.setdefault((python, pure), []).append(measure(python, pure=pure))
    table = Table(
        f"Uncontended, on {os.cpu_count()} processors",
        [
            *("Python", "core", "async with acquire(), ns"),
            *("to empty async with", "to Semaphore", "try_acquire(), to Queue"),
        ],
    )
    for (python, pure), passes in found.items():
        name, version, core = ask(python, "-c", ABOUT, pure=pure).split("|")
        if pure or core == "native":
            row = (f"{'PyPy' if name == 'pypy' else 'CPython'} {version}", core)
            table.rows.append([*row, *figures(passes)])
    print(table)


def figures(passes: list[Samples]) -> list[str]:
    best = {name: min(min(samples[name]) for samples in passes) for name in passes[0]}
    against = ((BLOCK, EMPTY), (BLOCK, SEMAPHORE), (TRY, QUEUE))
    return [
        f"{best[BLOCK] * 1e9:,.0f}",
        *(times(best[name] / best[base]) for name, base in against),
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
