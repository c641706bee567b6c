"""`make nemesis`: real processes share the budget of a real PostgreSQL while everything happens to
them: they are killed, paused, replaced and forked.

The role that they use may have as many connections as the budget: one too many is an error in the
server's log, which is read at the end. A watcher counts the sessions all the time. No acquire may
fail, and in the end everybody is served.

    python -m tests.exhibits.nemesis --seconds 60 --processes 8
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.fleet_process import FleetProcess
from tests.support.servers import PostgresServer, RedisServer

STILL = 20.0  # seconds in which everybody has to be served when everything is over
KEEPS = {"local", "postgresql"}  # ledgers that keep what a paused process has, however long


class Nemesis:
    """One run on one ledger."""

    def __init__(
        self, server: PostgresServer, url: str | None, path: str | None, options: argparse.Namespace
    ) -> None:
        self.server, self.options = server, options
        self.fleet = {"url": url, "path": path, "budget": options.budget, "ttl": options.ttl}
        self.random = random.Random(options.seed)
        self.role = "nemesis"
        self.stack = contextlib.AsyncExitStack()
        self.processes: list[FleetProcess] = []
        self.figures: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.most = 0  # sessions at once

    async def run(self) -> None:
        import asyncpg

        watcher = await asyncpg.connect(self.server.url)
        await watcher.execute(
            f"create role {self.role} login connection limit {self.options.budget}"
        )
        log = self.server.directory / "log"
        begin = len(log.read_text(errors="replace"))
        watching = asyncio.create_task(self._watch(watcher))
        try:
            async with self.stack:
                await self._start(self.options.processes)
                ends = time.monotonic() + self.options.seconds
                while time.monotonic() < ends:
                    await self._do_something()
                    await asyncio.sleep(self.random.uniform(0, 0.5))
                await self._look_at_the_end()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await watcher.close()
        said = log.read_text(errors="replace")[begin:]
        refused = [line for line in said.splitlines() if "too many connections" in line]
        self.figures["refusals"] = len(refused)
        self.complaints += refused[:3]
        if self.most > self.options.budget:
            self.complaints.append(f"{self.most} sessions, the budget is {self.options.budget}")

    async def _watch(self, watcher: Any) -> None:
        question = "select count(*) from pg_stat_activity where usename = $1"
        while True:
            self.most = max(self.most, await watcher.fetchval(question, self.role))
            await asyncio.sleep(0.02)

    async def _start(self, number: int) -> list[FleetProcess]:
        url = self.server.url.replace("postgres@", f"{self.role}@")
        new = [
            FleetProcess(url, least=self.random.choice([0, 1]), most=10, **self.fleet)
            for _ in range(number)
        ]
        await asyncio.gather(*(self.stack.enter_async_context(each) for each in new))
        for process in new:
            await self._load(process)
        self.processes += new
        return new

    async def _load(self, process: FleetProcess) -> None:
        tasks = self.random.choice([0, 1, 4, 20])
        await process.ask("work", tasks, self.random.choice([0.002, 0.01, 0.05]))

    async def _count(self, process: FleetProcess) -> int:
        """How many it has served since the last look."""
        found = await process.count()
        for error in found["errors"]:
            self.complaints.append(f"process {process.pid}: {error}")
        self.figures["served"] += found["served"]
        return int(found["served"])

    # -- what happens ------------------------------------------------------------------------------

    async def _do_something(self) -> None:
        what = self.random.choice(
            [
                self._change_load,
                self._change_load,
                self._kill,
                self._pause,
                self._deploy,
                self._fork,
            ]
        )
        self.figures[what.__name__.strip("_")] += 1
        await what()

    async def _change_load(self) -> None:
        for process in self.processes:
            if self.random.random() < 0.5:
                await self._load(process)

    async def _kill(self) -> None:
        process = self.processes.pop(self.random.randrange(len(self.processes)))
        await self._count(process)
        await process.kill()
        await self._start(1)

    async def _pause(self) -> None:
        process = self.random.choice(self.processes)
        longest = 2.0 if self.options.ledger in KEEPS else 0.8
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(self.random.uniform(0, longest) * self.options.ttl)
        process.signal(signal.SIGCONT)

    async def _deploy(self) -> None:
        """As many new ones as there are, and then the old ones close."""
        old = self.processes
        self.processes = []
        await self._start(len(old))
        for process in old:
            await self._count(process)
        await asyncio.gather(*(process.ask("close") for process in old))

    async def _fork(self) -> None:
        process = self.random.choice(self.processes)
        answer = await process.ask("fork")
        if answer != [7, 1]:
            self.complaints.append(f"a forked child answered {answer!r}")

    async def _look_at_the_end(self) -> None:
        """Everybody is served within `STILL` seconds."""
        for process in self.processes:
            await process.ask("work", 4, 0.005)
            await self._count(process)
        hungry = list(self.processes)
        ends = time.monotonic() + STILL
        while hungry and time.monotonic() < ends:
            await asyncio.sleep(0.1)
            hungry = [each for each in hungry if not await self._count(each)]
        self.complaints += [f"process {each.pid} got nothing" for each in hungry]
        await asyncio.gather(*(process.ask("close") for process in self.processes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--budget", type=int, default=24)
    parser.add_argument("--ttl", type=float, default=2.0)
    parser.add_argument("--ledger", choices=["local", "redis", "postgresql"], default="local")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        url = path = None
        if options.ledger == "redis":
            url = stack.enter_context(RedisServer()).url
        elif options.ledger == "postgresql":
            url = server.url
        else:
            path = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "fleet")
        nemesis = Nemesis(server, url, path, options)
        began = time.monotonic()
        asyncio.run(nemesis.run())
        took = time.monotonic() - began
    figures = ", ".join(f"{number} {what}" for what, number in nemesis.figures.items())
    print(f"{options.ledger}, seed {options.seed}: {figures}; at most {nemesis.most} sessions of "
          f"{options.budget}; {took:.0f} s")  # fmt: skip
    for complaint in nemesis.complaints[:20]:
        print(f"WRONG: {complaint}")
    return 1 if nemesis.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
