"""`python -m benchmarks.processes --ledger local`: how fast a fleet of real processes reacts.

The processes share the budget of a real PostgreSQL server, whose role lets in no more than
that. The times say little on a machine that does other work as well.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import asyncpg
from tests.support.fleet_process import FleetProcess
from tests.support.servers import PostgresServer, RedisServer

from cenote.fleet.ledger import LedgerConfig, Sync
from cenote.fleet.redis import RedisLedger
from cenote.testing import FaultProxy

from .measure import Table

LEDGERS: Final = ("local", "redis", "postgresql")
PROCESSES: Final = 12
EACH: Final = 5  # of the budget, for each process
TTL: Final = 3.0
TICK: Final = 0.001  # seconds between two looks
LONGEST: Final = 60.0  # seconds for which something is waited for
MEMBERS: Final = 1_000  # whose requests Redis serves
HOLD: Final = 0.02  # seconds for which a task has a connection, on average


class Bench:
    """The servers, and the processes of one scene."""

    def __init__(self, ledger: str, rounds: int, stack: ExitStack) -> None:
        self.ledger, self.rounds = ledger, rounds
        self.server = stack.enter_context(PostgresServer())
        self.redis = stack.enter_context(RedisServer()) if ledger == "redis" else None
        self.proxy = stack.enter_context(FaultProxy(self.server.host, self.server.port))
        self._directory = Path(stack.enter_context(TemporaryDirectory()))
        self._number = 0  # of the scene
        self.rows: list[Sequence[str]] = []

    async def scene(self, budget: int) -> None:
        """A fleet and a role of its own for what is measured next."""
        self._number += 1
        self.role = f"bench{self._number}"
        self.budget = budget
        admin = await asyncpg.connect(self.server.url)
        await admin.execute(f"create role {self.role} login connection limit {budget}")
        await admin.execute(f"alter role {self.role} password 'secret'")
        await admin.close()

    def fleet(self) -> dict[str, Any]:
        """The options of the fleet of this scene."""
        options: dict[str, Any] = {"budget": self.budget, "ttl": TTL, "name": self.role}
        if self.redis is not None:
            return options | {"url": self.redis.url}
        path = str(self._directory / self.role)
        if self.ledger == "local":
            return options | {"path": path}
        return options | {"url": self.server.url}

    def process(self, most: int, *, proxied: bool = False) -> FleetProcess:
        """One of this scene; `proxied`: the server can be cut off."""
        url = self.server.url.replace("postgres@", f"{self.role}@")
        if proxied:
            url = self.server.tcp_url(user=self.role, password="secret")
            url = url.replace(f":{self.server.port}/", f":{self.proxy.port}/")
        return FleetProcess(url, least=1, most=most, **self.fleet())

    def add(self, what: str, seconds: Sequence[float], wanted: str) -> None:
        """A row of the table."""
        ordered = sorted(seconds)
        late = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        self.rows.append([what, f"{statistics.median(ordered):.3f} s", f"{late:.3f} s", wanted])

    def add_figure(self, what: str, figure: str, wanted: str) -> None:
        """A row with one number."""
        self.rows.append([what, figure, "", wanted])

    def refused(self) -> int:
        """How often the server has refused anybody."""
        said = (self.server.directory / "log").read_text(errors="replace")
        return said.count("too many connections")


async def until(condition: Callable[[], Awaitable[bool]]) -> float:
    """The seconds until it is so."""
    began = time.perf_counter()
    async with asyncio.timeout(LONGEST):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(TICK)
    return time.perf_counter() - began


async def has(process: FleetProcess, number: int) -> bool:
    return bool((await process.count())["size"] >= number)


async def started(stack: AsyncExitStack, processes: Sequence[FleetProcess]) -> list[FleetProcess]:
    """All of them, at once."""
    return await asyncio.gather(*(stack.enter_async_context(each) for each in processes))


# -- what is measured ------------------------------------------------------------------------------


async def move(bench: Bench) -> None:
    """40 connections that one process has are needed by another."""
    await bench.scene(42)
    async with AsyncExitStack() as stack:
        first, second = await started(stack, [bench.process(41) for _ in range(2)])
        took = []
        for _ in range(bench.rounds):
            await first.ask("work", 41, HOLD)
            await until(partial(has, first, 41))
            await asyncio.sleep(TTL)
            await first.ask("work", 0, HOLD)
            await asyncio.sleep(1.0)  # longer than a need is remembered
            await second.ask("work", 41, HOLD)
            took.append(await until(partial(has, second, 41)))
            first, second = second, first
            await second.ask("work", 0, HOLD)
            await first.ask("work", 0, HOLD)
            await asyncio.sleep(1.0)
    bench.add("40 connections move to another process", took, "file 0.020, PG 0.060, Redis 0.075")


async def kill(bench: Bench) -> None:
    """A process that has two thirds of the budget is killed."""
    took = []
    for _ in range(bench.rounds):
        await bench.scene(30)
        async with AsyncExitStack() as stack:
            first, second = await started(stack, [bench.process(30) for _ in range(2)])
            await first.ask("work", 20, HOLD)
            await until(partial(has, first, 20))
            await second.ask("work", 29, HOLD)
            await asyncio.sleep(TTL / 5)
            await first.kill()
            took.append(await until(partial(has, second, 29)))
    bench.add("kill -9, all is used again", took, f"file 0.2, PG 1, Redis {1.2 * TTL:.1f}")


async def deploy(bench: Bench) -> None:
    """Twice as many processes, all busy, and then the old ones close."""
    await bench.scene(PROCESSES * EACH)
    async with AsyncExitStack() as stack:
        old = await started(stack, [bench.process(20) for _ in range(PROCESSES)])
        for each in old:
            await each.ask("work", 10, HOLD)
        await asyncio.sleep(TTL)
        new = await started(stack, [bench.process(20) for _ in range(PROCESSES)])
        floors, errors = [], 0

        async def begin(process: FleetProcess) -> None:
            await process.ask("work", 10, HOLD)

            async def is_served() -> bool:
                return bool((await process.count())["served"])

            floors.append(await until(is_served))

        await asyncio.gather(*map(begin, new))
        fair = [await until(partial(has, each, EACH // 2)) for each in new]
        await asyncio.gather(*(each.ask("close") for each in old))
        fair += [await until(partial(has, each, EACH)) for each in new]
        for each in new:
            errors += len((await each.count())["errors"])
    bench.add("deploy: first connection of a new process", floors, "0.25")
    bench.add("deploy: until it has its part", fair, "0.5")
    bench.add_figure("deploy: errors", str(errors), "0")


async def idle(bench: Bench) -> None:
    """Processes that do nothing."""
    await bench.scene(PROCESSES * EACH)
    seconds = 10.0
    async with AsyncExitStack() as stack:
        processes = await started(stack, [bench.process(20) for _ in range(PROCESSES)])
        await asyncio.sleep(TTL)
        before = [cpu_of(each.pid) for each in processes]
        await asyncio.sleep(seconds)
        used = [cpu_of(each.pid) - was for each, was in zip(processes, before, strict=True)]
    each_second = 1000 * statistics.mean(used) / seconds * TTL / 10  # beats at the usual ttl
    bench.add_figure("idle, each process", f"{each_second:.2f} ms CPU/s", "1 ms")


def cpu_of(pid: int) -> float:
    """The seconds of processor time that a process has used, by the clock of the scheduler."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def without_coordinator(bench: Bench) -> None:
    """Redis is killed under load."""
    if bench.redis is None:
        return
    await bench.scene(PROCESSES * EACH)
    async with AsyncExitStack() as stack:
        processes = await started(stack, [bench.process(20) for _ in range(PROCESSES)])
        for each in processes:
            await each.ask("work", 8, HOLD)
        await asyncio.sleep(TTL)

        async def served(seconds: float) -> float:
            for each in processes:
                await each.count()
            await asyncio.sleep(seconds)
            return float(sum([(await each.count())["served"] for each in processes])) / seconds

        usual = await served(0.9 * TTL)
        bench.redis.kill()
        at_once = await served(0.9 * TTL)
        await asyncio.sleep(1.2 * TTL)
        later = await served(TTL)
        errors = sum([len((await each.count())["errors"]) for each in processes])
        await asyncio.to_thread(bench.redis.start)
    bench.add_figure("coordinator dead, within ttl", f"{100 * at_once / usual:.1f} %", "98 %")
    bench.add_figure("coordinator dead, later", f"{100 * later / usual:.1f} %", "the equal part")
    bench.add_figure("coordinator dead: errors", str(errors), "0")


async def redis_sync(bench: Bench) -> None:
    """What the script costs Redis for a beat, with many members to which nothing happens."""
    if bench.redis is None:
        return
    from redis.asyncio import Redis

    ledger = RedisLedger(LedgerConfig(bench.redis.url, "many", 10.0))
    await ledger.open(lambda _: None)

    async def beat(seq: int) -> None:
        for number in range(MEMBERS):
            name, host = f"m{number}", f"host{number % 50}"
            await ledger.sync(Sync(name, seq, 1, 1, 1, 20, 2 * MEMBERS, host, number, "pool"))

    async with Redis.from_url(bench.redis.url) as client:
        ledger._follow = nothing  # type: ignore  # the news is not measured
        for seq in range(1, 4):
            await beat(seq)
        await client.config_resetstat()
        await beat(4)
        costs = (await client.info("commandstats"))["cmdstat_evalsha"]["usec_per_call"]
    await ledger.close()
    bench.add_figure(f"Redis, each beat of {MEMBERS:,} members", f"{costs} us", "40 us")


async def nothing(_: str) -> None:
    """Instead of subscribing."""


async def breaker(bench: Bench) -> None:
    """The server is gone for ten seconds; most processes hardly use it."""
    await bench.scene(PROCESSES * EACH)
    async with AsyncExitStack() as stack:
        processes = [bench.process(20, proxied=True) for _ in range(PROCESSES)]
        await started(stack, processes)
        for number, each in enumerate(processes):
            await each.ask("work", 8 if number < 3 else 1, HOLD if number < 3 else 0.5)
        await asyncio.sleep(TTL)

        async def open_ones() -> int:
            states = [await each.ask("breaker") for each in processes]
            return sum(each != "ACTIVE" for each in states)

        async def some_open() -> bool:
            return await open_ones() > 0

        async def all_open() -> bool:
            return await open_ones() == PROCESSES

        async def none_open() -> bool:
            return await open_ones() == 0

        bench.proxy.refuse()
        bench.proxy.reset()
        await until(some_open)
        opened = await until(all_open)
        before = bench.proxy.connections
        await asyncio.sleep(10.0)
        connects = bench.proxy.connections - before
        bench.proxy.refuse(False)
        back = await until(none_open)
    bench.add("breaker: last open after the first", [opened], "0.25")
    bench.add_figure("breaker: connects while down", f"{connects / 10:.1f}/s", "1/s")
    bench.add("breaker: all back after the server", [back], "1.5")


SCENES: Final = (move, kill, deploy, idle, without_coordinator, redis_sync, breaker)


async def run(bench: Bench, only: Sequence[str]) -> Table:
    """Measure everything, or only these."""
    for scene in SCENES:
        if not only or scene.__name__ in only:
            before = bench.refused()
            await scene(bench)
            if refused := bench.refused() - before:
                bench.add_figure(f"{scene.__name__}: refused by the server", str(refused), "0")
    title = f"A fleet of {PROCESSES} processes, ledger: {bench.ledger}, ttl {TTL:g} s"
    return Table(title, ["", "median", "p99", "goal"], bench.rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__)
    parser.add_argument("--ledger", choices=LEDGERS, default="local")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[], choices=[f.__name__ for f in SCENES])
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        print(asyncio.run(run(Bench(options.ledger, options.rounds, stack), options.only)))


if __name__ == "__main__":
    main()
