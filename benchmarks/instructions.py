"""`python -m benchmarks.instructions`: the instructions of one cycle by part, from callgrind.

Counted twice with different numbers of cycles, so that start and end cancel out. Needs valgrind,
and a native core compiled with -g. The kernel is not counted, nor is a clock that is read without a
system call (vDSO): of the clock, nanoseconds say more.
"""

import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cenote

from . import observed, uncontended
from .measure import Case, Table

SOURCE = Path(cenote.__file__).with_name("_native")
FEW, MANY = 2_000, 12_000  # cycles
LOOP = "an empty loop"
BLOCK, TRY, WATCHED = "block", "try", "watched"
TITLES = {
    BLOCK: "async with acquire()",
    WATCHED: "the same with both exporters",
    TRY: "try_acquire(), release()",
}

PARTS = {  # what a part is about -> the functions that it is made of, as a pattern
    "clock, without the kernel's part": "fastpath_now",
    "running task, twice": "fastpath_task|fastpath_check_loop|look_up_task",
    "caller's code and instruction": "claim_note_caller",
    "acquire object: made, tracked, freed": "acquire_new|claim_start|Claim_(dealloc|clear)",
    "table of leases": "table_.*",
    "idle ring, states, counters": "(core|ring|list|check)_.*",
    "histograms of the exporters": "histograms_.*|bucket_add",
    "handing over: StopIteration": "stop_.*|slot_.*",
    "fast path around these": ".*",
}
REST = "interpreter: method look-up, calls, await, block"

Counts = Counter[str]


def parts() -> dict[tuple[str, int], str]:
    """(file, line) -> part, for every line of the native core."""
    found = {}
    for path in SOURCE.glob("*.[ch]"):
        name = ""
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if match := re.match(r"(\w+)\(", text):
                name = match[1]
            found[path.name, number] = part_of(name)
    return found


def part_of(function: str) -> str:
    return next(part for part, names in PARTS.items() if re.fullmatch(names, function))


def functions() -> set[str]:
    text = "".join(path.read_text() for path in SOURCE.glob("*.[ch]"))
    return set(re.findall(r"^(\w+)\(", text, re.MULTILINE))


def events(profile: Path) -> Iterator[tuple[str, str, int, str | None, int]]:
    """File, function and line; the function that is called from there, or None; and the cost."""
    file = function = called = ""
    is_call = False
    for line in profile.read_text(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key in ("fl", "fi", "fe"):
            file = value.rpartition("/")[2]
        elif key == "fn":
            function = value.partition("'")[0]
        elif key == "cfn":
            called = value.partition("'")[0]
        elif key == "calls":
            is_call = True
        elif line[:1].isdigit():
            number, cost = line.split()[:2]
            yield file, function, int(number), called if is_call else None, int(cost)
            is_call = False


def by_part(profile: Path) -> Counts:
    """What the core does itself, and what it calls of the interpreter, by part; the rest apart."""
    lines, own = parts(), functions()
    counts: Counts = Counter()
    for file, function, number, called, cost in events(profile):
        part = lines.get((file, number)) or (part_of(function) if function in own else None)
        if called is None:
            counts["all"] += cost
        elif called in own or called == "_Py_Dealloc":  # of which the core's part has its own lines
            continue
        if part is not None:
            counts[part] += cost
    return counts


def count(case: str) -> Counts:
    """The instructions of one cycle."""
    with tempfile.TemporaryDirectory() as folder:
        profiles = []
        for cycles in (FEW, MANY):
            profiles.append(Path(folder, f"{cycles}.out"))
            subprocess.run(
                ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={profiles[-1]}",
                 "--compress-strings=no", "--compress-pos=no",
                 sys.executable, "-m", "benchmarks.instructions", case, str(cycles)],
                check=True,
            )  # fmt: skip
        few, many = map(by_part, profiles)
    return Counter({part: round((many[part] - few[part]) / (MANY - FEW)) for part in many})


async def run_cycles(name: str, cycles: int) -> None:
    async def nothing(operations: int) -> float:
        for _ in range(operations):
            pass
        return 0.0

    async with cenote.Pool(object, min_size=1, max_size=1) as pool:
        if name == WATCHED:
            observed.both(pool)
        cases: dict[str, Case] = {
            LOOP: nothing,
            BLOCK: uncontended.block(pool),
            WATCHED: uncontended.block(pool),
            TRY: uncontended.try_and_release(pool),
        }
        gc.disable()
        await cases[name](cycles)
        sys.stdout.flush()
        os._exit(0)  # the end would have OpenTelemetry record every cycle, as a collection does


def main() -> int:
    if len(sys.argv) == 3:
        asyncio.run(run_cycles(sys.argv[1], int(sys.argv[2])))
        return 0
    if cenote.core != "native" or shutil.which("valgrind") is None:
        print("This needs valgrind and the native core.", file=sys.stderr)
        return 1
    loop = count(LOOP)["all"]
    counted = {case: count(case) for case in TITLES}
    for counts in counted.values():
        counts[REST] = counts["all"] - loop - sum(counts[part] for part in PARTS)
        counts["all together"] = counts["all"] - loop
    title = f"Instructions of one cycle, CPython {sys.version.split()[0]}"
    table = Table(title, ["part", *(TITLES[case] for case in counted)])
    for part in (*PARTS, REST, "all together"):
        table.rows.append([part, *(f"{counts[part]:,}" for counts in counted.values())])
    table.notes.append(f"Without the {loop} instructions of an empty loop.")
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
