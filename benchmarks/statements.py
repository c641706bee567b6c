"""A database under work: many tasks over a few connections, and one task alone."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import cenote

from . import drivers
from .drivers import BARE, CENOTE, READ_ONLY, Jobs, Run
from .measure import (
    Case,
    Goal,
    Part,
    Samples,
    Scale,
    Table,
    compare,
    interleave,
    median,
    ratios,
    spread,
)

TASKS, CONNECTIONS = 100, 10
STATEMENTS, TRANSACTIONS, STREAMS = "statements", "transactions", "streams"
KINDS = (STATEMENTS, TRANSACTIONS, STREAMS)


async def run(scale: Scale, urls: dict[str, str]) -> Part:
    """`urls`: by the name of the driver; those of servers may be missing."""
    part = Part([], {})
    with database() as (driver_of_file, file):
        for driver, url in {driver_of_file: file, **urls}.items():
            await fill(url, scale.rows)
            for kind in KINDS:
                many, alone = await measure(scale, kind, driver, url)
                part.tables.append(table(driver, kind, many, alone, scale))
                part.versus += compare(f"{driver}: {kind}", many, CENOTE).values()
                name = f"{driver}, {kind}"
                part.samples |= {f"{name}: {peer}": values for peer, values in many.items()}
                part.samples |= {f"{name}, alone: {peer}": got for peer, got in alone.items()}
                if (driver, kind) == ("asyncpg", STATEMENTS):
                    part.goals = goals_of(many, alone)
    part.goals = part.goals or goals_of(None, None)
    part.tables[-1].notes += [f"Skipped: {what}: {why}." for what, why in drivers.absent().items()]
    return part


@contextmanager
def database() -> Iterator[tuple[str, str]]:
    """A driver without a server, and the URL of a new file for it."""
    with tempfile.TemporaryDirectory(prefix="cenote-bench-") as directory:
        yield "aiosqlite", f"sqlite:///{Path(directory) / 'bench.db'}"


async def fill(url: str, rows: int) -> None:
    async with cenote.Database(url, max_size=1) as db:
        await db.execute("drop table if exists bench")
        await db.execute("create table bench (id integer primary key, value integer)")
        pairs = ((number, number * number) for number in range(rows))
        await db.execute_many("insert into bench values (?, ?)", list(pairs))


def goals_of(samples: Samples | None, alone: Samples | None) -> list[Goal]:
    faster = above = None
    if samples is not None and alone is not None:
        faster = median(ratios(samples["asyncpg.Pool"], samples[CENOTE]))
        above = 1e6 * (median(alone[CENOTE]) - median(alone[BARE]))
    return [
        Goal("fetch_val() a second, to asyncpg.Pool.fetchval()", 2.2, faster, at_least=True),
        Goal("fetch_val() of one task, above bare asyncpg", 5.0, above, unit=" us"),
    ]


async def measure(scale: Scale, kind: str, driver: str, url: str) -> tuple[Samples, Samples]:
    """Seconds for each: with many tasks, and with one."""
    peers = drivers.peers(driver)
    if kind != TRANSACTIONS:
        peers.pop(READ_ONLY, None)
    share = {STATEMENTS: 1, TRANSACTIONS: 4, STREAMS: 50}[kind]  # how long each takes, about
    tasks = CONNECTIONS if kind == STREAMS else TASKS
    async with AsyncExitStack() as stack:
        shared = {
            name: await stack.enter_async_context(make(url, CONNECTIONS))
            for name, make in peers.items()
            if name != BARE
        }
        many = await interleave(
            {name: busy(job(jobs, kind), tasks) for name, jobs in shared.items()},
            rounds=scale.rounds * (2 if kind == STATEMENTS else 1),
            operations=max(tasks, TASKS * scale.turns // share),
        )
    async with AsyncExitStack() as stack:
        single = {
            name: await stack.enter_async_context(make(url, 1)) for name, make in peers.items()
        }
        alone = await interleave(
            {name: one(job(jobs, kind)) for name, jobs in single.items()},
            rounds=scale.short_rounds if kind == STATEMENTS else scale.rounds,
            operations=max(2, scale.operations // 20 // share),
        )
    return many, alone


def job(jobs: Jobs, kind: str) -> Run:
    return {
        STATEMENTS: jobs.statement,
        TRANSACTIONS: jobs.transaction,
        STREAMS: jobs.stream,
        **jobs.more,
    }[kind]


def busy(run: Run, tasks: int) -> Case:
    async def case(operations: int) -> float:
        turns = max(1, operations // tasks)

        async def work() -> None:
            for _ in range(turns):
                await run()

        began = perf_counter()
        await asyncio.gather(*(work() for _ in range(tasks)))
        return (perf_counter() - began) * operations / (turns * tasks)

    return case


def one(run: Run) -> Case:
    async def case(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            await run()
        return perf_counter() - began

    return case


def table(driver: str, kind: str, many: Samples, alone: Samples, scale: Scale) -> Table:
    rows = scale.rows if kind == STREAMS else 1
    tasks = CONNECTIONS if kind == STREAMS else TASKS
    of = f", {rows:,} rows each" if kind == STREAMS else ""
    result = Table(
        f"{kind.capitalize()} with {driver}{of}: {tasks} tasks over {CONNECTIONS} connections",
        [
            "",
            "rows a second" if kind == STREAMS else "a second",
            "spread",
            "to cenote",
            "one task alone, \N{MICRO SIGN}s",
            "above the bare driver",
        ],
    )
    versus = compare(kind, many, CENOTE)
    limit = median(alone[BARE])
    for name, single in alone.items():
        values = many.get(name)
        figures = ["-", "-", "-"]
        if values is not None:
            against = str(versus.get(name, "1"))
            figures = [f"{rows / median(values):,.0f}", spread(values), against]
        above = f"{1e6 * (median(single) - limit):+,.1f}"
        result.rows.append([name, *figures, f"{1e6 * median(single):,.1f}", above])
    return result
