"""cenote and the bare driver behind a queue, each in a process of its own, on two event loops.

In one process the contenders share what the layout of the process does to them, and the event loop.
Here they take turns, round by round; a process does every kind of job, one after the other.
"""

from collections import defaultdict
from collections.abc import Mapping

from . import client
from .client import STOCK, UVLOOP
from .drivers import CENOTE, HANDLE, INSIDE, NESTED, QUEUE
from .measure import (
    Goal,
    Part,
    Samples,
    Scale,
    Table,
    Versus,
    compare,
    median,
    ratios,
    rotated,
    spread,
)
from .statements import CONNECTIONS, STATEMENTS, STREAMS, TASKS, TRANSACTIONS, database, fill

KINDS = (STATEMENTS, TRANSACTIONS, NESTED, INSIDE, HANDLE, STREAMS)
LOOPS = (STOCK, UVLOOP)
WAYS = (CENOTE, QUEUE)
TITLE = "Each in a process of its own"
# With a driver, the least that its transactions should be, in times of the bare driver's. Those of
# SQLite take the write lock at once, which the bare driver does not.
LEAST = {"asyncpg": 0.95, "psycopg": 1.0, "asyncmy": 0.97}
LEAST_STATEMENTS, LEAST_STREAMS = 0.98, 1.0


async def run(scale: Scale, urls: dict[str, str]) -> Part:
    """`urls`: by the name of the driver; those of servers may be missing."""
    part = Part([], {})
    result = Table(
        f"{TITLE}: {TASKS} tasks over {CONNECTIONS} connections, streams {CONNECTIONS}",
        [
            "",
            "cenote.Database, a second",
            "spread",
            "bare driver behind a Queue",
            "spread",
            "to cenote",
        ],
    )
    absent = {loop: reason for loop in LOOPS if (reason := client.missing(loop)) is not None}
    with database() as (_, sqlite):
        for driver, url in {"aiosqlite": sqlite, **urls}.items():
            await fill(url, scale.rows)
            for loop in LOOPS:
                if loop not in absent:
                    found = measure(scale, driver, loop, url)
                    for kind, samples in found.items():
                        add(part, result, f"{driver} on {loop}: {kind}", samples)
    part.goals = goals_of(part.samples, [*urls])
    result.notes.append(
        "The pairs take turns. Above 1 cenote does more in a second than the bare driver."
    )
    result.notes += [f"Skipped: {loop}, because {reason}." for loop, reason in absent.items()]
    part.tables.append(result)
    return part


def measure(scale: Scale, driver: str, loop: str, url: str) -> dict[str, Samples]:
    """Jobs a second, with each kind of job."""
    found: dict[str, Samples] = {kind: defaultdict(list) for kind in KINDS}
    for number in range(max(1, scale.rounds - 2)):  # each takes a minute
        for way, _ in rotated(dict.fromkeys(WAYS), number):
            rates = client.measure_kinds(
                driver, way, loop, KINDS, TASKS, CONNECTIONS, scale.apart, url
            )
            for kind, rate in rates.items():
                found[kind][way].append(rate)
    return found


def add(part: Part, result: Table, what: str, samples: Samples) -> None:
    against: Versus = compare(what, samples, CENOTE, more_is_better=True)[QUEUE]
    part.versus.append(against)
    part.samples |= {f"{what}: {way}": samples[way] for way in WAYS}
    cells = []
    for way in WAYS:
        cells += [f"{median(samples[way]):,.0f}", spread(samples[way])]
    result.rows.append([what, *cells, str(against)])


def goals_of(samples: Mapping[str, list[float]], servers: list[str]) -> list[Goal]:
    """One for each driver and kind, for the worse of the two event loops."""
    wanted = {("aiosqlite", STATEMENTS): LEAST_STATEMENTS}
    for driver in [each for each in LEAST if each in servers]:
        wanted[driver, STATEMENTS] = LEAST_STATEMENTS
        wanted |= {(driver, kind): LEAST[driver] for kind in (TRANSACTIONS, NESTED, INSIDE, HANDLE)}
    wanted |= {(driver, STREAMS): LEAST_STREAMS for driver in ("aiosqlite", *servers)}
    goals = []
    for (driver, kind), least in wanted.items():
        found = [
            median(ratios(samples[f"{what}: {CENOTE}"], samples[f"{what}: {QUEUE}"]))
            for what in (f"{driver} on {loop}: {kind}" for loop in LOOPS)
            if f"{what}: {CENOTE}" in samples
        ]
        what = f"{driver}: {kind}, to the bare driver (on the slower loop)"
        goals.append(Goal(what, least, min(found, default=None), at_least=True))
    return goals
