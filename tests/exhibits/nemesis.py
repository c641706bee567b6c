"""`make nemesis`: real processes share the budget of a real PostgreSQL while everything happens to
them and to their ledger.

Processes are killed, paused, replaced and forked, on two hosts, with clocks that run half a percent
fast or slow. Between each host and the ledger is a proxy that resets, delays and swallows; the
ledger hangs, and is started again with its data, with older data and without.

The role that the processes use may have as many connections as the budget: one too many is an error
in the server's log, which is read at the end. A watcher counts the sessions all the time. No
acquire may fail, and in the end everybody is served. What `LOOSE` names may cost exactness by
design: what the server refuses meanwhile is counted apart.

    python -m tests.exhibits.nemesis --seconds 60 --processes 8 --ledger redis
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
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from cenote.testing import FaultProxy
from tests.support.fleet_process import FleetProcess
from tests.support.servers import PostgresServer, RedisServer

STILL = 20.0  # seconds in which everybody has to be served when everything is over
RATES = (0.995, 1.0, 1.005)  # of the clocks
Event = tuple[str, Callable[[], Awaitable[None]]]
LOOSE = {"pause for long", "cut off", "remove the file", "set the ledger back"}  # see docs/fleet.md


class Site:
    """Where the ledger is, and how each of two hosts reaches it."""

    def __init__(self, ledger: str, server: PostgresServer, stack: contextlib.ExitStack) -> None:
        self.ledger = ledger
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.redis: RedisServer | None = None
        self.proxies: list[FaultProxy] = []
        if ledger == "redis":
            self.redis = stack.enter_context(RedisServer())
        if ledger != "local":
            place = server if self.redis is None else self.redis
            for _ in range(2):
                proxy = FaultProxy(place.host, place.port)
                self.proxies.append(stack.enter_context(proxy))
        self._server = server

    def options(self, host: int) -> dict[str, Any]:
        """Of the fleet of a process on this host."""
        if self.ledger == "local":
            return {"path": str(self.directory / "fleet")}
        proxy = self.proxies[host]
        place = f"{proxy.host}:{proxy.port}"
        if self.ledger == "redis":
            return {"url": f"redis://{place}", "host": f"host{host}"}
        url = self._server.tcp_url().replace(f"{self._server.host}:{self._server.port}", place)
        return {"url": url, "host": f"host{host}", "place": str(self.directory / f"host{host}")}


class Nemesis:
    """One run on one ledger."""

    def __init__(self, server: PostgresServer, site: Site, options: argparse.Namespace) -> None:
        self.server, self.site, self.options = server, site, options
        self.ttl, self.beat = options.ttl, options.ttl / 5
        self.random = random.Random(options.seed)
        self.role = "nemesis"
        self.stack = contextlib.AsyncExitStack()
        self.processes: list[FleetProcess] = []
        self.figures: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.most = 0  # sessions at once
        self.refused_loosely = 0  # during what is in LOOSE
        self._log = server.directory / "log"
        self._begin = len(self._log.read_text(errors="replace"))

    async def run(self) -> None:
        import asyncpg

        watcher = await asyncpg.connect(self.server.url)
        await watcher.execute(
            f"create role {self.role} login connection limit {self.options.budget}"
        )
        watching = asyncio.create_task(self._watch(watcher))
        try:
            async with self.stack:
                before = "the start"
                await self._blame(before, lambda: self._start(self.options.processes))
                for name, what in self._drawn():
                    await self._do(name, what, before)
                    before = name
                await self._blame(f"the end, after {before}", self._look_at_the_end)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await watcher.close()
        self.figures["refusals"] = len(self._refusals()) - self.refused_loosely
        if self.most > self.options.budget:
            self.complaints.append(f"{self.most} sessions, the budget is {self.options.budget}")

    def _refusals(self) -> list[str]:
        """What the server has refused since the beginning."""
        said = self._log.read_text(errors="replace")[self._begin :]
        return [line for line in said.splitlines() if "too many connections" in line]

    async def _watch(self, watcher: Any) -> None:
        question = "select count(*) from pg_stat_activity where usename = $1"
        while True:
            self.most = max(self.most, await watcher.fetchval(question, self.role))
            await asyncio.sleep(0.02)

    async def _start(self, number: int) -> list[FleetProcess]:
        url = self.server.url.replace("postgres@", f"{self.role}@")
        new = [
            FleetProcess(
                url,
                least=self.random.choice([0, 1]),
                most=10,
                rate=self.random.choice(RATES),
                budget=self.options.budget,
                ttl=self.ttl,
                **self.site.options(self.random.randrange(2)),
            )
            for _ in range(number)
        ]
        started = await asyncio.gather(
            *(self.stack.enter_async_context(each) for each in new), return_exceptions=True
        )
        self.complaints += [
            f"a process did not start: {each!r}" for each in started if isinstance(each, Exception)
        ]
        new = [each for each in started if isinstance(each, FleetProcess)]
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

    def _drawn(self) -> Iterator[Event]:
        """What happens, one after the other."""
        every = self._every()
        if self.options.once:
            events = [*dict(every).items()]
            self.random.shuffle(events)
            yield from events
            return
        ends = time.monotonic() + self.options.seconds
        while time.monotonic() < ends:
            yield self.random.choice(every)

    def _every(self) -> list[Event]:
        """What may happen, the more often the more often it stands here."""
        every: list[Event] = [
            ("change the load", self._change_load),
            ("change the load", self._change_load),
            ("kill", self._kill),
            ("pause", self._pause),
            ("deploy", self._deploy),
            ("fork", self._fork),
        ]
        if self.site.ledger == "local":
            return [*every, ("remove the file", self._remove_file)]
        every += [
            ("reset", self._reset),
            ("delay", self._delay),
            ("black hole", self._black_hole),
            ("cut off", self._cut_off),
        ]
        if self.site.redis is None:
            return [*every, ("end the sessions", self._end_sessions)]
        return [
            *every,
            ("pause for long", self._pause_for_long),
            ("hang the ledger", self._hang_ledger),
            ("restart the ledger with its data", self._restart_with_data),
            ("restart the ledger without its data", self._restart_without_data),
            ("set the ledger back", self._set_back),
        ]

    async def _do(self, name: str, what: Callable[[], Awaitable[None]], before: str) -> None:
        self.figures[name] += 1
        if name not in LOOSE:
            await self._blame(f"{name}, after {before}", what)
            return
        already = len(self._refusals())
        await what()
        await asyncio.sleep(2 * self.ttl)
        self.refused_loosely += len(self._refusals()) - already

    async def _blame(self, story: str, what: Callable[[], Awaitable[Any]]) -> None:
        """Remember what the server refuses meanwhile, with what happened then."""
        already = len(self._refusals())
        await what()
        await asyncio.sleep(self.random.uniform(0, 0.5))
        self.complaints += [f"{line} ({story})" for line in self._refusals()[already:]]

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
        """With Redis for less than the ttl; the other ledgers keep what a paused process has."""
        longest = 2.0 if self.site.redis is None else 0.8
        await self._stop_one(self.random.uniform(0, longest) * self.ttl)

    async def _pause_for_long(self) -> None:
        await self._stop_one(self.random.uniform(1, 2.5) * self.ttl)

    async def _stop_one(self, seconds: float) -> None:
        process = self.random.choice(self.processes)
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
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

    # -- what happens to the ledger ----------------------------------------------------------------

    async def _remove_file(self) -> None:
        (self.site.directory / "fleet").unlink(missing_ok=True)

    async def _reset(self) -> None:
        for proxy in self._some_hosts():
            proxy.reset()

    async def _delay(self) -> None:
        """Every message takes up to half a beat; answers come too late, or in time."""
        for proxy in (hosts := self._some_hosts()):
            proxy.slow(self.random.uniform(0, self.beat / 2))
        await asyncio.sleep(self.random.uniform(0, 2) * self.ttl)
        for proxy in hosts:
            proxy.slow(0.0)

    async def _black_hole(self) -> None:
        """For less than the ttl nothing comes through, and nobody is told."""
        await self._swallow(self._some_hosts(), self.random.uniform(0, 0.6) * self.ttl)

    async def _cut_off(self) -> None:
        """One host reaches the database, and not the ledger, for longer than the ttl."""
        await self._know_each_other()
        await self._swallow([self.random.choice(self.site.proxies)], 2.5 * self.ttl)

    async def _swallow(self, hosts: list[FaultProxy], seconds: float) -> None:
        for proxy in hosts:
            proxy.black_hole()
        await asyncio.sleep(seconds)
        for proxy in hosts:
            proxy.black_hole(False)
            proxy.reset()

    def _some_hosts(self) -> list[FaultProxy]:
        """One host, or both."""
        proxies = self.site.proxies
        return [self.random.choice(proxies)] if self.random.random() < 0.5 else proxies

    async def _know_each_other(self) -> None:
        """Who joins in the last beat before the ledger is gone is not counted by the others."""
        await asyncio.sleep(2 * self.beat)

    async def _end_sessions(self) -> None:
        """An administrator ends the sessions of the ledger at the server."""
        import asyncpg

        admin = await asyncpg.connect(self.server.url)
        await admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name like 'cenote:________ b%'"
        )
        await admin.close()

    async def _hang_ledger(self) -> None:
        assert self.site.redis is not None
        await self._know_each_other()
        self.site.redis.pause()
        await asyncio.sleep(self.random.uniform(0, 2) * self.ttl)
        self.site.redis.go_on()
        await self._know_each_other()

    async def _restart_with_data(self) -> None:
        await self._restart(saved=True)

    async def _restart_without_data(self) -> None:
        await self._restart(saved=False)

    async def _restart(self, *, saved: bool) -> None:
        from redis.asyncio import Redis

        server = self.site.redis
        assert server is not None
        await self._know_each_other()
        if saved:
            async with Redis.from_url(server.url) as client:
                await client.save()
        server.kill()
        if not saved:
            (server.directory / "dump.rdb").unlink(missing_ok=True)
        await asyncio.sleep(self.random.uniform(0, 2) * self.ttl)
        await asyncio.to_thread(server.start)
        await asyncio.sleep(4 * self.beat)  # newcomers would get their floor

    async def _set_back(self) -> None:
        """As after a failover: what was written lately is lost."""
        from redis.asyncio import Redis

        server = self.site.redis
        assert server is not None
        async with Redis.from_url(server.url) as client:
            await client.save()
        await self._change_load()
        await asyncio.sleep(self.random.uniform(0, 1) * self.ttl)
        server.kill()
        await asyncio.to_thread(server.start)
        await asyncio.sleep(4 * self.beat)

    # -- the end -----------------------------------------------------------------------------------

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
    parser.add_argument("--once", action="store_true", help="each thing happens once instead")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--budget", type=int, default=24)
    parser.add_argument("--ttl", type=float, default=2.0)
    parser.add_argument("--ledger", choices=["local", "redis", "postgresql"], default="local")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        nemesis = Nemesis(server, Site(options.ledger, server, stack), options)
        began = time.monotonic()
        asyncio.run(nemesis.run())
        took = time.monotonic() - began
    figures = ", ".join(f"{number} {what}" for what, number in nemesis.figures.items())
    print(f"{options.ledger}, seed {options.seed}: {figures}; {nemesis.refused_loosely} more where "
          f"the design allows it; at most {nemesis.most} sessions of {options.budget}; "
          f"{took:.0f} s")  # fmt: skip
    for complaint in nemesis.complaints[:20]:
        print(f"WRONG: {complaint}")
    return 1 if nemesis.complaints or nemesis.figures["refusals"] else 0


if __name__ == "__main__":
    sys.exit(main())
