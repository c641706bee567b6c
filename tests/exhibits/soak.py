"""Mixed cycles for a long time, and what must not have grown afterwards.

`python -m tests.exhibits.soak --cycles 1000000` runs by itself and says PASS or FAIL;
`test_soak.py` runs a short one. A cycle is one attempt to acquire, however it ends. Resources and
hooks live as long as the run, so that their reference counts can be compared before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import gc
import logging
import os
import random
import sys
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import cenote
from tests.exhibits import soak_scenarios as soak_scenarios  # registers them
from tests.exhibits.soak_world import STOCK, Soak


@dataclass
class Reading:
    cycles: int
    references: dict[str, int]
    kinds: collections.Counter[str]
    objects: int
    blocks: int
    resident: int  # bytes; 0 where it is not known
    traced: int  # bytes; 0 if not traced


def read(soak: Soak) -> Reading:
    """Of a quiet moment: no pool is left."""
    for _ in range(4):
        gc.collect()
    watched = soak.watched()
    references = {name: sys.getrefcount(thing) for name, thing in watched.items()}
    del watched
    objects = gc.get_objects()
    kinds = collections.Counter(type(each).__name__ for each in objects)
    count = len(objects)
    del objects
    gc.collect()
    resident = 0
    # Another allocator is that of a sanitizer, which keeps for long what was freed.
    if not os.environ.get("PYTHONMALLOC"):
        with contextlib.suppress(OSError):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
                "SC_PAGE_SIZE"
            )
    traced = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
    return Reading(
        soak.cycles, references, kinds, count, sys.getallocatedblocks(), resident, traced
    )


# Caches of the interpreter breathe; a leak of one in a hundred cycles is far beyond all of these.
MOST_REFERENCES = 2
MOST_TYPE_REFERENCES = 80  # acquire objects that are kept for reuse keep their type
MOST_OBJECTS = 150
MOST_BLOCKS = 600
MOST_RESIDENT = 6 << 20
MOST_TRACED = 100_000


def growth(before: Reading, after: Reading) -> list[str]:
    """What has grown, or shrunk where it must not, in words."""
    complaints = []
    for name, count in after.references.items():
        change = count - before.references[name]
        if abs(change) > (MOST_TYPE_REFERENCES if name.startswith("type ") else MOST_REFERENCES):
            complaints.append(f"references to {name}: {before.references[name]} -> {count}")
    if after.objects - before.objects > MOST_OBJECTS:
        top = ", ".join(f"{kind} +{n}" for kind, n in (after.kinds - before.kinds).most_common(5))
        complaints.append(f"objects: {before.objects} -> {after.objects} ({top})")
    if after.blocks - before.blocks > MOST_BLOCKS:
        complaints.append(f"allocated blocks: {before.blocks} -> {after.blocks}")
    if after.resident - before.resident > MOST_RESIDENT:
        complaints.append(f"resident bytes: {before.resident} -> {after.resident}")
    if before.traced and after.traced - before.traced > MOST_TRACED:
        complaints.append(f"traced bytes: {before.traced} -> {after.traced}")
    return complaints


@dataclass
class Outcome:
    before: Reading
    after: Reading
    complaints: list[str]
    soak: Soak


def run(cycles: int, *, seed: int, warm_up: int, trace: bool, kind: type[Soak] = Soak) -> Outcome:
    """Complaints about whatever grew from the end of the warm-up to the end."""
    log = logging.getLogger("cenote")
    disabled, log.disabled = log.disabled, True
    soak = kind(seed)
    tracing = trace and not tracemalloc.is_tracing()
    try:
        with asyncio.Runner() as runner:
            runner.run(soak.run(warm_up))
            if tracing:
                tracemalloc.start(1)
                runner.run(soak.run(warm_up))
            before = read(soak)
            before = read(soak)  # the first one fills what it counts itself
            runner.run(soak.run(cycles))
            after = read(soak)
    finally:
        if tracing:
            tracemalloc.stop()
        log.disabled = disabled
    complaints = growth(before, after)
    if len(soak.factory.stock) != STOCK:
        complaints.append(f"{STOCK - len(soak.factory.stock)} resources were never destroyed")
    return Outcome(before, after, complaints, soak)


def report(title: str, outcome: Outcome, seconds: float) -> None:
    before, after = outcome.before, outcome.after
    cycles = after.cycles - before.cycles
    moved = {
        name: count - before.references[name]
        for name, count in after.references.items()
        if count != before.references[name]
    }
    print(f"{title}: {cycles:,} cycles in {seconds:.1f} s", flush=True)
    print(f"  objects          {before.objects:>12,} -> {after.objects:,}")
    print(f"  allocated blocks {before.blocks:>12,} -> {after.blocks:,}")
    print(f"  resident bytes   {before.resident:>12,} -> {after.resident:,}")
    if before.traced:
        print(f"  traced bytes     {before.traced:>12,} -> {after.traced:,}")
    print(f"  references       {len(after.references)} objects watched, changed: {moved or 'none'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"cenote {cenote.__version__}, {cenote.core} core, Python {version}", end=", ")
    print(f"seed {arguments.seed}", flush=True)
    complaints: list[str] = []
    # Traced memory is exact, and slow: a tenth of the cycles has to do.
    for title, cycles, trace in (
        ("plain", arguments.cycles, False),
        ("traced", arguments.cycles // 10, True),
    ):
        began = time.perf_counter()
        outcome = run(cycles, seed=arguments.seed, warm_up=max(2_000, cycles // 20), trace=trace)
        report(title, outcome, time.perf_counter() - began)
        complaints += [f"{title}: {each}" for each in outcome.complaints]
        if not trace:
            counts = ", ".join(f"{name} {n:,}" for name, n in outcome.soak.done.most_common())
            print(f"  cycles: {counts}")
    for each in complaints:
        print(f"GROWN {each}")
    print("FAIL" if complaints else "PASS")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
