"""Long texts: how long the event loop waits for the analysis of a megabyte, and what is kept."""

import asyncio
import gc
import tracemalloc
from time import perf_counter

import cenote

from .measure import Goal, Part, Scale, Table, median, spread

LENGTH = 1_000_000  # characters of a text
LONGEST = 10.0  # milliseconds for which nothing else may run
MANY, EACH = 50, 300_000  # texts, and characters of each, of which not all may be kept
MOST = 12.0  # megabytes: 4 of texts, each in up to two more forms
TITLE = "The analysis of long texts"


async def run(scale: Scale) -> Part:
    # The driver keeps no prepared statements: those have texts of their own.
    async with cenote.Database("sqlite:///:memory:", max_size=1, statement_cache_size=0) as db:
        pauses = [await longest_pause(db, number) for number in range(scale.rounds)]
        kept = await memory(db)
    result = Table(TITLE, ["cenote.Database", "", "spread"])
    result.rows += [
        [
            "longest pause of the event loop, a megabyte, ms",
            f"{median(pauses):.1f}",
            spread(pauses),
        ],
        [f"kept of {MANY * EACH / 1e6:.0f} MB of texts, MB", f"{kept:.1f}", "-"],
    ]
    goals = [
        Goal("pause of the event loop, a megabyte of SQL", LONGEST, median(pauses), unit=" ms"),
        Goal(f"memory kept of {MANY * EACH / 1e6:.0f} MB of SQL", MOST, kept, unit=" MB"),
    ]  # fmt: skip
    samples = {"pause: cenote.Database": pauses, "kept: cenote.Database": [kept]}
    return Part([result], samples, goals)


async def longest_pause(db: cenote.Database, number: int) -> float:
    """Milliseconds between two turns of the event loop, at most."""
    rows = ", ".join(["(?, 'a text', 17)"] * (LENGTH // 18))
    text = f"select count(*), {number} from (select 1 where 0) -- values {rows}"
    longest, over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        last = perf_counter()
        while not over:
            await asyncio.sleep(0)
            now = perf_counter()
            longest, last = max(longest, now - last), now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    gc.disable()
    try:
        assert await db.fetch_val(text) == 0
    finally:
        gc.enable()
        over = True
        await watcher
    return 1e3 * longest


async def memory(db: cenote.Database) -> float:
    """Megabytes that are kept after many different texts."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(MANY):
            text = f"select {number} where 1 = ? -- {'x' * EACH}"
            assert await db.fetch_val(text, [1]) == number
            del text
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / 1e6
    finally:
        tracemalloc.stop()
