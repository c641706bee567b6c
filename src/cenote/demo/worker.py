"""One process of `python -m cenote demo --fleet`: a program that shares the budget with others.

Lines on its standard input say how many of its tasks work, and it ends with that input. It prints
what it has done, a line of JSON a few times a second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from collections import Counter
from typing import Final

from .. import caller
from ..fleet.fleet import Fleet
from ..sql.database import Database

TASKS: Final = 20
ACCOUNTS: Final = 50
EVERY: Final = 0.2  # seconds between two lines
NAP: Final = 0.02  # seconds that a query takes, on average
DRAIN: Final = 10.0  # seconds for what is under way at the end


class Worker:
    """Its tasks, and what they have done."""

    def __init__(self, db: Database) -> None:
        self.db: Database = db
        self.served: int = 0
        self.errors: Counter[str] = Counter()
        self.load: int = 0  # how many of the tasks work
        self.ends: bool = False
        self.told: asyncio.Event = asyncio.Event()  # something of that has changed

    async def work(self, number: int) -> None:
        """Query now and then, and move money sometimes, as long as it is wanted."""
        while not self.ends:
            if number >= self.load:
                self.told.clear()
                await self.told.wait()
                continue
            try:
                await (self.transfer() if random.random() < 0.02 else self.look())
            except Exception as error:
                self.errors[type(error).__name__] += 1
            else:
                self.served += 1
            await asyncio.sleep(random.uniform(0, NAP))

    async def look(self) -> None:
        await self.db.fetch_one(
            "select balance, nap(:seconds) from accounts where id = :id",
            {"id": random.randrange(ACCOUNTS), "seconds": random.uniform(0.5, 1.5) * NAP},
        )

    async def transfer(self) -> None:
        giver, taker = random.sample(range(ACCOUNTS), 2)
        async with self.db.transaction():
            await self.db.execute("update accounts set balance = balance - 1 where id = ?", [giver])
            await self.db.execute("update accounts set balance = balance + 1 where id = ?", [taker])

    async def obey(self) -> None:
        """Do what the lines of the standard input say, until it ends."""
        while line := await asyncio.to_thread(sys.stdin.readline):
            self.load = int(line)
            self.told.set()
        self.ends = True
        self.told.set()

    async def report(self) -> None:
        while True:
            self.print()
            await asyncio.sleep(EVERY)

    def print(self) -> None:
        print(json.dumps({"served": self.served, "errors": self.errors}), flush=True)


async def run(database: str, ledger: str, budget: int, most: int, ttl: float) -> None:
    """Work until the standard input ends."""
    fleet = Fleet(budget=budget, name="demo", path=ledger, ttl=ttl)
    db = Database(
        f"sqlite:///{database}",
        connect_args={"timeout": 60.0},
        max_size=most,
        acquire_timeout=60.0,
        fleet=fleet,
        name="shop",
    )
    db.create_function("nap", 1, nap)
    await db.open()
    worker = Worker(db)
    reporting = asyncio.create_task(worker.report(), name="report")
    tasks = [asyncio.create_task(worker.work(n), name=f"worker-{n}") for n in range(TASKS)]
    await worker.obey()
    await asyncio.wait(tasks)
    reporting.cancel()
    await db.close(drain=DRAIN)
    worker.print()


def nap(seconds: float) -> int:
    time.sleep(seconds)
    return 1


def main() -> None:
    logging.getLogger("cenote").addHandler(logging.NullHandler())
    logging.getLogger("cenote").propagate = False
    caller.internal[__file__] = False  # it plays an application
    database, ledger, budget, most, ttl = sys.argv[1:]
    asyncio.run(run(database, ledger, int(budget), int(most), float(ttl)))


if __name__ == "__main__":
    main()
