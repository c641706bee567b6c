"""A process with a database in a fleet: it does what its standard input says, one line for each.

Run as `python -m tests.support.fleet_process URL OPTIONS`, by `FleetProcess`.
"""

import asyncio
import json
import os
import random
import sys
from dataclasses import replace
from typing import Any

import cenote
from tests.support.asked_process import AskedProcess


class FleetProcess(AskedProcess):
    """One process of a fleet, seen from outside."""

    module = "tests.support.fleet_process"

    def __init__(self, database: str, /, **options: Any) -> None:
        """`options`: of the fleet; `least`, `most`: of its database; `rate`: of its clock; `host`:
        on which it seems to be, with the file `place` if the fleet is in PostgreSQL."""
        super().__init__(database, json.dumps(options))

    async def count(self) -> Any:
        """What it has, what it served since the last look, and what went wrong."""
        return await self.ask("count")


class RatedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock runs fast or slow."""

    rate = 1.0

    def time(self) -> float:
        return super().time() * self.rate


class Program:
    """What runs in the process."""

    def __init__(
        self,
        database: str,
        /,
        *,
        least: int = 0,
        most: int = 10,
        host: str | None = None,
        place: str | None = None,
        **options: Any,
    ) -> None:
        self.fleet = cenote.Fleet(**options)
        if host is not None:
            ledger = replace(self.fleet._config.ledger, path=place)
            self.fleet._config = replace(self.fleet._config, host=host, ledger=ledger)
        self.db = cenote.Database(database, min_size=least, max_size=most, fleet=self.fleet)
        self.served = self.load = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.errors: list[str] = []

    def work(self, load: int, hold: float) -> None:
        self.load = load
        for number in range(load):
            task = asyncio.create_task(self.use(number, hold), name=f"user {number}")
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def use(self, number: int, hold: float) -> None:
        while number < self.load:
            try:
                async with self.db.connection():
                    await asyncio.sleep(random.uniform(0, 2 * hold))
                self.served += 1
            except Exception as error:
                self.errors.append(repr(error))
                await asyncio.sleep(0.1)

    def count(self) -> dict[str, Any]:
        pool = self.db.pool
        served, self.served = self.served, 0
        return {
            "served": served,
            "size": pool.max_size,
            "occupied": pool.occupied,
            "open": pool.active_count + pool.idle_count,
            "errors": self.errors,
        }

    async def fork(self) -> Any:
        """A child that uses the same objects, in a loop of its own, until it is told to end by the
        end of the pipe. Returns its id, and what it has served."""
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(None, os.read, reading, 4096)
            os.close(reading)
            await loop.run_in_executor(None, os.waitpid, child, 0)
            return json.loads(answer)
        try:
            asyncio.events._set_running_loop(None)
            os.write(writing, json.dumps(asyncio.run(self.in_child())).encode())
        except BaseException as error:
            os.write(writing, json.dumps(repr(error)).encode())
        os._exit(0)

    async def in_child(self) -> list[Any]:
        value = await self.db.fetch_val("select 7")
        members = await self.fleet.members()
        here = [each.process for each in members].count(os.getpid())
        await self.db.close()
        return [value, here]


async def main(url: str, options: dict[str, Any]) -> None:
    program = Program(url, **options)
    await program.db.open()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("0", flush=True)
    while line := await reader.readline():
        what, *arguments = json.loads(line)
        answer: Any = 0
        if what == "work":
            program.work(*arguments)
        elif what == "count":
            answer = program.count()
        elif what == "members":
            answer = [[each.process, each.held] for each in await program.fleet.members()]
        elif what == "silent":
            members = await program.fleet.members()
            answer = [each.process for each in members if each.silent]
        elif what == "breaker":
            answer = str(program.db.pool.state)
        elif what == "fork":
            answer = await program.fork()
        elif what == "close":
            program.load = 0
            while program.tasks:
                await asyncio.wait(program.tasks)
            await program.db.close(drain=5)
        print(json.dumps(answer), flush=True)
        if what == "close":
            return


if __name__ == "__main__":
    chosen = json.loads(sys.argv[2])
    RatedLoop.rate = chosen.pop("rate", 1.0)
    with asyncio.Runner(loop_factory=RatedLoop) as runner:
        runner.run(main(sys.argv[1], chosen))
