"""`python -m benchmarks`: everything in one run. See docs/benchmarks.md for the method."""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import MariaDBServer, PostgresServer, RedisServer

from . import (
    adapters,
    alone,
    apart,
    bulk,
    databases,
    drivers,
    fairness,
    handlers,
    inside,
    latency,
    memory,
    observed,
    pools,
    recovery,
    report,
    statements,
    tail,
    texts,
    throughput,
    uncontended,
    waiters,
)
from .measure import FULL, QUICK, Goal, Part, Scale
from .recovery import MARIADB, POSTGRESQL

# With a server, its class and the drivers that are measured on it.
SERVERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    POSTGRESQL: (PostgresServer, ("asyncpg", "psycopg")),
    MARIADB: (MariaDBServer, ("asyncmy",)),
}
# Of the pool alone, in the order in which they are measured.
POOLS: dict[str, Any] = {
    "uncontended": uncontended.run,
    "alone": alone.run,
    "waiters": waiters.run,
    "contended": throughput.run,
    "fairness": fairness.run,
    "tail": tail.run,
    "observed": observed.run,
    "memory": memory.run,
}
HALVES = ("pools", "statements", "apart", "inside", "bulk", "texts", "latency", "adapters",
          "recovery")  # fmt: skip
ROOT = Path(__file__).parent.parent


class Run:
    """Collects the parts, and says what it does."""

    def __init__(self, scale: Scale, servers: dict[str, Any]) -> None:
        self.scale = scale
        self.servers = servers  # that run
        self.parts: dict[str, Part] = {}
        self.skipped: list[str] = []

    def skip(self, what: str, reason: str) -> None:
        line = f"Skipped: {what}, because {reason}."
        self.skipped.append(line)
        print(f"{line}\n", flush=True)

    def add(self, name: str, part: Part) -> None:
        self.parts[name] = part
        for table in part.tables:
            print(f"{table}\n", flush=True)

    async def measure(self, only: Sequence[str]) -> None:
        names = [*POOLS, "databases", "handlers"] if "pools" in only else list(only)
        for name, why in pools.absent().items():
            self.skip(name, why)
        for name, function in POOLS.items():
            if name in names:
                self.add(name, await function(self.scale))
        if "databases" in names:
            await self.measure_databases()
        if "handlers" in names:
            if (reason := handlers.missing()) is None:
                self.add("handlers", await handlers.run(self.scale))
            else:
                self.skip("hooks in C", reason)
        if "statements" in only:
            self.add("statements", await statements.run(self.scale, self.urls()))
        if "apart" in only:
            self.add("apart", await apart.run(self.scale, self.urls()))
        if "inside" in only:
            self.add("inside", await inside.run(self.scale, self.urls()))
        if "bulk" in only:
            self.add("bulk", await bulk.run(self.scale, self.urls()))
        if "texts" in only:
            self.add("texts", await texts.run(self.scale))
        if "latency" in only and "psycopg" in self.urls():
            self.add("latency", await latency.run(self.scale, self.urls()["psycopg"]))
        if "adapters" in only:
            await self.measure_adapters()
        if "recovery" in only and self.servers:
            self.add("recovery", await recovery.run(self.scale, self.servers))

    async def measure_databases(self) -> None:
        url = self.urls().get("asyncpg")
        if url is None:
            self.parts["databases"] = Part([], {}, databases.goals(None))
        else:
            self.add("databases", await databases.run(self.scale, url))

    async def measure_adapters(self) -> None:
        if (url := self.urls().get("asyncpg")) is None:
            self.skip("the adapters", "they are measured on PostgreSQL")
            return
        if reason := RedisServer.missing():
            self.skip("the adapter of redis-py", reason)
        self.add("adapters", await adapters.run(self.scale, url))

    def urls(self) -> dict[str, str]:
        """By the name of the driver."""
        found: dict[str, str] = {}
        for name, server in self.servers.items():
            found |= dict.fromkeys(SERVERS[name][1], server.tcp_url())
        if "psycopg" in found:
            found["psycopg"] = found["psycopg"].replace("postgresql://", "postgresql+psycopg://")
        return found

    def goals(self) -> list[Goal]:
        return [goal for part in self.parts.values() for goal in part.goals]


@contextmanager
def servers(run: Run, *, wanted: bool) -> Iterator[None]:
    """Servers of our own; if there can be none, says why."""
    with ExitStack() as stack:
        for name, (server, used) in SERVERS.items():
            reason = server.missing() if wanted else "no servers were asked for"
            for driver in used:
                reason = reason or drivers.missing(driver)
            if reason is None:
                try:
                    run.servers[name] = stack.enter_context(server())
                except (OSError, subprocess.SubprocessError) as error:
                    reason = str(error)
            if reason is not None:
                run.skip(f"{name} with {' and '.join(used)}", reason)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    run = Run(QUICK if options.quick else FULL, {})
    machine = report.machine()
    print(f"# {machine['title']}\n")
    began = time.perf_counter()
    with servers(run, wanted=not options.no_servers):
        asyncio.run(run.measure([options.only] if options.only else HALVES))
    seconds = time.perf_counter() - began
    if goals := run.goals():
        print(f"{Goal.table(goals)}\n", flush=True)
    print(f"Medians of {run.scale.rounds} or more interleaved rounds, in {seconds:.0f} s.")
    print("The garbage collector is off while something is measured.")
    found = report.gather(machine, run.parts, run.skipped, seconds, quick=options.quick)
    if options.json is not None:
        report.write_json(options.json, found)
    folder = options.output or default_folder(complete=not (options.quick or options.only))
    print(f"Written: {', '.join(report.write(folder, found, run.parts))}, in {folder}.")
    return 0


def default_folder(*, complete: bool) -> Path:
    """What is not the whole does not replace the figures of the documentation."""
    return ROOT / ("docs/benchmarks" if complete else "build/benchmarks")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there, too")
    parser.add_argument(
        "--only",
        choices=[*HALVES, *POOLS, "databases", "handlers"],
        help="one of the nine parts, or a single part of the pools",
    )
    parser.add_argument("--no-servers", action="store_true", help="skip what needs a server")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where tables, samples and plots go; by default docs/benchmarks, and build/benchmarks "
        "for what is not the whole",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
