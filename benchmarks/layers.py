"""`python -m benchmarks.layers`: instructions of a statement, a transaction and a stream, above the
bare driver's.

Counted by valgrind, twice with different numbers of runs, so that start and end cancel out; so
nothing else that the machine does has a part in it, and a change of one percent shows. Only this
process is counted: the server, the kernel and the time that a round trip takes are not.
`python -m benchmarks.layers asyncpg` counts one driver, `... asyncpg transaction` one case.
"""

import asyncio
import gc
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import MariaDBServer, PostgresServer

import cenote
from cenote.sql import connection_hooks

from .drivers import ALL, DRIVERS, KEY, PICK, TEXT, Driver, count
from .measure import Table
from .statements import fill

FEW, MANY, STREAMS = 50, 150, 10  # runs; a stream counts for so many
ROWS = 1_000  # of a stream
INSIDE = 10  # statements in one transaction, to separate their cost from that of its ends

SCHEMES = {"asyncpg": "postgresql", "psycopg": "postgresql+psycopg", "asyncmy": "mysql"}
EMPTY, INNER, MARGIN = "empty transaction", "empty inner block", "statement in a transaction"
HANDLE = "the same by tx"

Run = Callable[[], Awaitable[Any]]


def jobs_of(db: Any) -> dict[str, Run]:
    """What is done through cenote."""

    async def empty() -> None:
        async with db.transaction():
            pass

    async def inner() -> None:
        async with db.transaction(), db.transaction():
            pass

    async def transaction() -> Any:
        async with db.transaction():
            await db.fetch_val(PICK + "?", [KEY])
            return await db.fetch_val(PICK + "?", [KEY])

    async def many() -> None:
        async with db.transaction():
            for _ in range(INSIDE):
                await db.fetch_val(PICK + "?", [KEY])

    async def handle() -> None:
        async with db.transaction() as tx:
            for _ in range(INSIDE):
                await tx.fetch_val(PICK + "?", [KEY])

    return {
        "statement": lambda: db.fetch_val(TEXT),
        "transaction": transaction,
        EMPTY: empty,
        INNER: inner,
        MARGIN: many,
        HANDLE: handle,
        "stream": lambda: count(db.iterate(ALL)),
    }


def bare_jobs_of(driver: Driver, connection: Any) -> dict[str, Run]:
    """The same by the bare driver."""

    async def many() -> None:
        await driver.many(connection, INSIDE)

    return {
        "statement": lambda: driver.statement(connection),
        "transaction": lambda: driver.transaction(connection),
        EMPTY: lambda: driver.many(connection, 0),
        INNER: lambda: driver.inner(connection),
        MARGIN: many,
        HANDLE: many,
        "stream": lambda: driver.stream(connection),
    }


@asynccontextmanager
async def jobs(name: str, url: str, *, bare: bool) -> AsyncIterator[dict[str, Run]]:
    if bare:
        connection = await DRIVERS[name].connect(url)
        yield bare_jobs_of(DRIVERS[name], connection)
        await DRIVERS[name].close(connection)
    else:
        # Valgrind takes fifty times as long: by the clock a connection would have been idle.
        connection_hooks.JUST_NOW *= 1_000
        async with cenote.Database(url, max_size=1) as db:
            yield jobs_of(db)


async def run(name: str, url: str, case: str, way: str, runs: int) -> None:
    async with jobs(name, url, bare=way == "bare") as found:
        job = found[case]
        for _ in range(5):
            await job()
        gc.collect()
        gc.disable()
        for _ in range(runs // STREAMS if case == "stream" else runs):
            await job()


def instructions(*arguments: str) -> int:
    """All of one process."""
    command = [
        "valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
        sys.executable, "-m", "benchmarks.layers", "run", *arguments,
    ]  # fmt: skip
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    match = re.search(r"I\s+refs:\s+([\d,]+)", ended.stderr)
    assert match is not None, ended.stderr
    return int(match[1].replace(",", ""))


def measure(name: str, url: str, case: str, way: str) -> float:
    """Instructions of one run."""
    few, many = (instructions(name, url, case, way, str(runs)) for runs in (FEW, MANY))
    return (many - few) / ((MANY - FEW) / (STREAMS if case == "stream" else 1))


def table(name: str, url: str, cases: list[str]) -> Table:
    found = {way: {case: measure(name, url, case, way) for case in cases}
             for way in ("bare", "cenote")}  # fmt: skip
    for each in found.values():  # the ends of the transaction, and what is inside, apart
        for case in (MARGIN, HANDLE):
            if case in each and EMPTY in each:
                each[case] = (each[case] - each[EMPTY]) / INSIDE
        if INNER in each and EMPTY in each:
            each[INNER] -= each[EMPTY]
    result = Table(
        f"Instructions with {name}, CPython {sys.version.split()[0]}",
        ["", "bare driver", "cenote", "above it", "to cenote"],
    )
    for case in cases:
        bare, ours = found["bare"][case], found["cenote"][case]
        result.rows.append(
            [case, f"{bare:,.0f}", f"{ours:,.0f}", f"{ours - bare:+,.0f}", f"{bare / ours:.2f}x"]
        )
    return result


@contextmanager
def server(name: str) -> Iterator[str]:
    """The URL of a database with the table that the cases read."""
    with ExitStack() as stack:
        if name == "aiosqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cenote-layers-"))
            url = f"sqlite:///{Path(folder) / 'bench.db'}"
        else:
            kind: Any = MariaDBServer if name == "asyncmy" else PostgresServer
            _, address = stack.enter_context(kind()).tcp_url().split("://")
            url = f"{SCHEMES[name]}://{address}"
        asyncio.run(fill(url, ROWS))
        yield url


def main() -> int:
    if sys.argv[1:2] == ["run"]:
        name, url, case, way, runs = sys.argv[2:]
        asyncio.run(run(name, url, case, way, int(runs)))
        return 0
    if shutil.which("valgrind") is None:
        print("This needs valgrind.", file=sys.stderr)
        return 1
    cases = sys.argv[2:] or [*jobs_of(None)]
    for name in sys.argv[1:2] or [*DRIVERS]:
        with server(name) as url:
            print(f"{table(name, url, cases)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
