"""Chaos: thousands of tasks on a few connections while everything around them breaks.

`python -m tests.exhibits.chaos [--seconds 150] [--seed N] [--driver asyncpg] ...` runs it on real
servers and prints the figures; `make chaos` runs all drivers. Every decision of the load
and of the faults comes from the seed, which is printed; what the operating system adds does not.

Two ledgers must agree at the end: one table on the server, one dict here. Every transaction writes
two rows; a transaction is there with both or with none.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import cenote
from cenote.testing import FaultProxy
from cenote.testing.ledger import ended
from tests.support.servers import MariaDBServer, PostgresServer
from tests.support.waiting import eventually

OPERATION = 5.0  # seconds that one operation may take: a silent connection is noticed only so
PATIENCE = 60.0  # until everything must be over after the end
GROWTH = 12_000  # objects more than before that are no leak: caches, once
SETTLED = OPERATION + 10.0  # without faults at the end: until everything must work again

# Programming errors, of cenote or of a driver that it should have understood.
UNEXPECTED = (AttributeError, NameError, TypeError, KeyError, IndexError, RuntimeError, ValueError)

DRIVERS: dict[str, tuple[Any, str, str, str]] = {
    # server, scheme, a query for the sessions of `app`, a statement that ends one
    "asyncpg": (
        PostgresServer,
        "postgresql",
        "select pid from pg_stat_activity where usename = 'app' and pid <> pg_backend_pid()",
        "select pg_terminate_backend({})",
    ),
    "psycopg": (
        PostgresServer,
        "postgresql+psycopg",
        "select pid from pg_stat_activity where usename = 'app' and pid <> pg_backend_pid()",
        "select pg_terminate_backend({})",
    ),
    "mysql": (
        MariaDBServer,
        "mysql",
        "select id from information_schema.processlist "
        "where user = 'app' and id <> connection_id()",
        "kill {}",
    ),
}


@dataclass
class Figures:
    """What happened."""

    driver: str
    seed: int
    operations: Counter[str] = field(default_factory=Counter)  # by kind, that ended well
    errors: Counter[str] = field(default_factory=Counter)  # by type
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # of transactions
    recoveries: list[float] = field(
        default_factory=list
    )  # seconds from a fault to the next success
    most_links: int = 0
    databases: int = 0
    objects: tuple[int, int] = (0, 0)  # before and after
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def listed(counter: Counter[str]) -> str:
            return ", ".join(f"{name} {count:,}" for name, count in counter.most_common()) or "none"

        longest = max(self.recoveries, default=0.0)
        lines = [
            f"{self.driver}, seed {self.seed}: {sum(self.operations.values()):,} operations",
            f"  operations    {listed(self.operations)}",
            f"  transactions  {listed(self.outcomes)}",
            f"  faults        {listed(self.faults)}",
            f"  errors        {listed(self.errors)}",
            f"  recoveries    {len(self.recoveries):,}, the longest took {longest:.2f} s",
            f"  connections   at most {self.most_links} open, {self.databases} databases in turn",
            f"  objects       {self.objects[0]:,} before, {self.objects[1]:,} after",
        ]
        return "\n".join([*lines, *(f"  WRONG: {text}" for text in self.complaints)])


class Chaos:
    def __init__(
        self, driver: str, *, seed: int, seconds: float, tasks: int, connections: int
    ) -> None:
        self.make_server, self.scheme, self.sessions, self.kill = DRIVERS[driver]
        self.figures = Figures(driver, seed)
        self.seed = seed
        self.random = random.Random(f"{seed} faults")
        self.seconds = seconds
        self.tasks = tasks
        self.connections = connections
        self.ledger: dict[int, str] = {}  # operation -> committed, failed, unknown
        self.number = 0
        self.db: Any = None
        self.workers: list[asyncio.Task[None]] = []
        self.closing: list[Any] = []
        self.stopping = False
        self.enough = False  # of faults
        self.broken_since: float | None = None
        self.server: Any = None
        self.proxy: Any = None

    def run(self) -> Figures:
        with self.make_server() as server, FaultProxy(server.host, server.port) as proxy:
            self.server, self.proxy = server, proxy
            asyncio.run(self.main())
        return self.figures

    def url(self, *, direct: bool = False) -> str:
        url: str = self.server.tcp_url().replace(
            self.server.tcp_url().split("://")[0] + "://", f"{self.scheme}://"
        )
        if not direct:
            server, proxy = self.server, self.proxy
            old, new = f"@{server.host}:{server.port}/", f"@{proxy.host}:{proxy.port}/"
            assert old in url
            url = url.replace(old, new)
        return url

    def new_database(self) -> Any:
        self.figures.databases += 1
        return cenote.Database(
            self.url(),
            max_size=self.connections,
            acquire_timeout=OPERATION,
            create_timeout=3.0,
            hook_timeout=1.0,
            destructor_timeout=1.0,
            ping_after_idle=1.0,
            strategy=cenote.ConsecutiveFailures(20, recovery_timeout=0.2, max_recovery_timeout=1.0),
        )

    async def main(self) -> None:
        figures = self.figures
        async with cenote.Database(self.url(direct=True), max_size=1) as admin:
            await admin.execute(
                "create table ledger "
                "(op bigint not null, part int not null, primary key (op, part))"
            )
        await self.warm_up()
        gc.collect()
        before = len(gc.get_objects())
        self.db = self.new_database()
        self.workers = [
            asyncio.create_task(self.worker(number), name=f"worker-{number}")
            for number in range(self.tasks)
        ]
        watch = asyncio.create_task(self.watch())
        faults = asyncio.create_task(self.break_things())
        await asyncio.sleep(self.seconds)
        self.enough = True
        await asyncio.wait([faults])  # not cancelled: a thread would go on stopping the server
        self.heal()
        await self.recover()
        self.stopping = True
        for task in (await asyncio.wait(self.workers, timeout=PATIENCE))[1]:
            self.complain(f"{task.get_name()} waited for ever: {task!r}")
            task.cancel()
        watch.cancel()
        await asyncio.wait([watch])
        self.check_errors(faults)
        await self.close(self.db)
        for db in self.closing:
            await db
        await self.compare()
        self.db = None
        self.workers.clear()
        self.closing.clear()
        gc.collect()
        figures.objects = (before, len(gc.get_objects()))
        if figures.objects[1] > before + GROWTH:
            self.complain(f"{figures.objects[1] - before:,} objects are left")
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            self.complain(f"a task is left: {task!r}")

    async def recover(self) -> None:
        """Without faults: every kind of operation must work again."""
        loop = asyncio.get_running_loop()
        before, deadline = self.figures.operations.copy(), loop.time() + SETTLED
        kinds = ("read", "transact", "stream", "prepare", "touch")
        while loop.time() < deadline:
            await asyncio.sleep(0.05)
            if all(self.figures.operations[kind] > before[kind] for kind in kinds):
                return
        self.complain("not everything worked again after the last fault")

    async def warm_up(self) -> None:
        """What is made once is not a leak."""
        db = self.new_database()
        choice = random.Random(self.seed)
        for kind in (self.read, self.transact, self.stream, self.prepare, self.touch):
            for _ in range(20):
                await kind(choice, db)
        await db.close()

    def check_errors(self, *tasks: asyncio.Task[None]) -> None:
        for task in [*tasks, *self.workers]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.complain(f"{task.get_name()} ended with {error!r}")

    def complain(self, text: str) -> None:
        if len(self.figures.complaints) < 20:
            self.figures.complaints.append(text)

    # -- load ------------------------------------------------------------------------------------

    async def worker(self, number: int) -> None:
        choice = random.Random(f"{self.seed} {number}")
        kinds: list[Callable[[random.Random, Any], Awaitable[None]]] = [
            self.read, self.read, self.read, self.transact, self.transact, self.stream,
            self.prepare, self.touch,
        ]  # fmt: skip
        while not self.stopping:
            kind = choice.choice(kinds)
            try:
                async with asyncio.timeout(OPERATION):
                    await kind(choice, self.db)
            except asyncio.CancelledError:
                # Of the fault injector: the task goes on, as a new request would.
                self.figures.errors["CancelledError"] += 1
                task = asyncio.current_task()
                assert task is not None
                while task.uncancel():
                    pass
            except AssertionError:
                raise
            except Exception as error:
                self.figures.errors[type(error).__name__] += 1
                if isinstance(error, UNEXPECTED):
                    self.complain("".join(traceback.format_exception(error)))
            else:
                self.figures.operations[kind.__name__] += 1
                if self.broken_since is not None:
                    now = asyncio.get_running_loop().time()
                    self.figures.recoveries.append(now - self.broken_since)
                    self.broken_since = None
            await asyncio.sleep(choice.random() * 0.2)

    def next_number(self) -> int:
        self.number += 1
        return self.number

    async def read(self, choice: random.Random, db: Any) -> None:
        nonce = self.next_number()
        answer = await db.fetch_val(f"select {nonce}")
        assert answer == nonce, f"asked {nonce}, was answered {answer}"

    async def stream(self, choice: random.Random, db: Any) -> None:
        nonce, count = self.next_number(), choice.randrange(1, 400)
        rows = " union all ".join(f"select {nonce} as a, {i} as b" for i in range(count % 40 + 1))
        stream = db.iterate(rows)
        try:
            async for row in stream:
                assert row["a"] == nonce, f"asked {nonce}, was answered {tuple(row)}"
                if choice.random() < 0.01:
                    break
        finally:
            await stream.aclose()

    async def prepare(self, choice: random.Random, db: Any) -> None:
        async with await db.prepare("select op from ledger where op = ? and part = 1") as statement:
            for _ in range(choice.randrange(1, 4)):
                op = choice.randrange(1, self.number + 2)
                found = await statement.fetch_val([op])
                assert found in (None, op), f"asked for {op}, was answered {found}"

    async def touch(self, choice: random.Random, db: Any) -> None:
        try:
            await db.execute("create temporary table mine (a int)")
            await db.execute("insert into mine values (?)", [1])
            assert await db.fetch_val("select count(*) from mine") == 1
        finally:
            with contextlib.suppress(cenote.PoolError):
                await db.release()

    async def transact(self, choice: random.Random, db: Any) -> None:
        op = self.next_number()
        outcome = "failed"  # as long as COMMIT was not sent
        try:
            async with db.transaction():
                await db.execute("insert into ledger values (?, 1)", [op])
                if choice.random() < 0.3:
                    await asyncio.sleep(choice.random() * 0.1)
                if choice.random() < 0.1:
                    raise KeyError("changed my mind")
                await db.execute("insert into ledger values (?, 2)", [op])
                outcome = "unknown"
            outcome = "committed"
        except KeyError:
            pass
        except cenote.TransactionLostError as error:
            if error.outcome == "rolled_back":
                outcome = "failed"
            raise
        finally:
            self.ledger[op] = outcome
            self.figures.outcomes[outcome] += 1

    # -- faults ----------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Never more connections than allowed."""
        while True:
            db = self.db
            for loop_db in db._loop_databases.values():
                links = len(loop_db.connections)
                self.figures.most_links = max(self.figures.most_links, links)
                if links > self.connections:
                    self.complain(f"{links} connections are open, {self.connections} are allowed")
            await asyncio.sleep(0.01)

    async def break_things(self) -> None:
        faults = {
            self.reset: 6, self.cut: 4, self.black_hole: 2, self.cut_replies: 6, self.slow_down: 3,
            self.half_open: 3, self.refuse: 2, self.kill_sessions: 6, self.cancel_tasks: 12,
            self.renew_database: 2, self.open_breaker: 2, self.kill_server: 1, self.stop_server: 1,
        }  # fmt: skip
        while not self.enough:
            await asyncio.sleep(self.random.random() * 1.0)
            fault = self.random.choices([*faults], [*faults.values()])[0]
            self.figures.faults[fault.__name__] += 1
            if self.broken_since is None:
                self.broken_since = asyncio.get_running_loop().time()
            await fault()

    def heal(self) -> None:
        self.proxy.black_hole(False)
        self.proxy.refuse(False)
        self.proxy.slow(0)
        self.server.start()
        self.db.pool.activate()

    async def reset(self) -> None:
        self.proxy.reset()

    async def cut(self) -> None:
        self.proxy.cut()

    async def half_open(self) -> None:
        self.proxy.half_open()

    async def cut_replies(self) -> None:
        self.proxy.cut_reply_after(self.random.randrange(0, 5000))

    async def black_hole(self) -> None:
        self.proxy.black_hole(True)
        await asyncio.sleep(self.random.random() * 2)
        self.proxy.black_hole(False)

    async def refuse(self) -> None:
        self.proxy.refuse(True)
        self.proxy.reset()
        await asyncio.sleep(self.random.random())
        self.proxy.refuse(False)

    async def slow_down(self) -> None:
        self.proxy.slow(0.05)
        await asyncio.sleep(self.random.random())
        self.proxy.slow(0)

    async def kill_sessions(self) -> None:
        async with cenote.Database(self.url(direct=True), max_size=1) as admin:
            sessions = [row[0] for row in await admin.fetch_all(self.sessions)]
            for session in self.random.sample(sessions, min(len(sessions), 5)):
                with contextlib.suppress(Exception):  # it is gone already
                    await admin.execute(self.kill.format(session))

    async def cancel_tasks(self) -> None:
        for task in self.random.sample(self.workers, max(1, len(self.workers) // 20)):
            task.cancel()

    async def renew_database(self) -> None:
        old, self.db = self.db, self.new_database()
        self.closing.append(asyncio.create_task(self.close(old)))

    async def open_breaker(self) -> None:
        self.db.pool.deactivate()
        await asyncio.sleep(self.random.random() * 0.3)
        self.db.pool.activate()

    async def kill_server(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(self.random.random() * 0.5)
        await asyncio.to_thread(self.server.start)

    async def stop_server(self) -> None:
        await asyncio.to_thread(self.server.stop)
        await asyncio.sleep(self.random.random() * 0.5)
        await asyncio.to_thread(self.server.start)

    # -- the end ---------------------------------------------------------------------------------

    async def close(self, db: Any) -> None:
        loop = asyncio.get_running_loop()
        loop_db = db._loop_databases.get(loop)
        await db.close()
        if loop_db is None:
            return
        deadline = loop.time() + PATIENCE
        stats = loop_db.pool.stats()
        while (stats.count or stats.destroying) and loop.time() < deadline:
            await asyncio.sleep(0.01)  # those in mid-statement are closed when it ends
            stats = loop_db.pool.stats()
        if (
            stats.created != sum(stats.destroyed.values())
            or stats.begun != ended(stats)
            or loop_db.connections
            or loop_db.sessions
        ):
            self.complain(
                f"the ledger of {db!r} is not even: {stats}, "
                f"{len(loop_db.connections)} connections, {len(loop_db.sessions)} sessions"
            )

    async def compare(self) -> None:
        """The ledger of the server and ours."""
        async with cenote.Database(self.url(direct=True), max_size=1) as admin:
            rows = await admin.fetch_all("select op, count(*) as parts from ledger group by op")
        parts = {row["op"]: row["parts"] for row in rows}
        for op, outcome in self.ledger.items():
            found = parts.pop(op, 0)
            if found == 1:
                self.complain(f"transaction {op} ({outcome}) is there by half")
            if outcome == "committed" and found != 2:
                self.complain(f"transaction {op} reported commit, and {found} of 2 rows are there")
            if outcome == "failed" and found != 0:
                self.complain(f"transaction {op} reported failure, and {found} rows are there")
        for op in parts:
            self.complain(f"transaction {op} is there, and nobody made it")


async def herd(url: str, proxy: FaultProxy, *, seconds: float, breaker: bool) -> float:
    """Attempts a second to connect to a server that is gone, by 500 tasks that do not give up."""
    strategy = cenote.ConsecutiveFailures(5, 0.25, max_recovery_timeout=1.0) if breaker else None
    db = cenote.Database(url, max_size=20, acquire_timeout=OPERATION, strategy=strategy)
    ended = False

    async def ask() -> None:
        while not ended:
            with contextlib.suppress(Exception):
                await db.fetch_val("select 1")
            await asyncio.sleep(0.01)

    before = proxy.connections
    tasks = [asyncio.create_task(ask()) for _ in range(500)]
    await asyncio.sleep(seconds)
    attempts = proxy.connections - before
    ended = True
    await asyncio.wait(tasks)
    await db.close()
    return attempts / seconds


async def asked_in_vain(db: cenote.Database, proxy: FaultProxy) -> int:
    """How often 100 tasks, which ask once each, try to connect to a server that is gone."""
    before = proxy.connections
    asking = [db.fetch_val("select 1") for _ in range(100)]
    await asyncio.gather(*asking, return_exceptions=True)
    # An open breaker answers before what is under way has failed.
    await eventually(lambda: db.pool.stats().creating == 0)
    return proxy.connections - before


@contextlib.contextmanager
def dead_server() -> Iterator[tuple[str, FaultProxy]]:
    """The URL of a server that refuses every connection, and the proxy that counts them."""
    with PostgresServer() as server, FaultProxy(server.host, server.port) as proxy:
        proxy.refuse(True)
        old, new = f"@{server.host}:{server.port}/", f"@{proxy.host}:{proxy.port}/"
        yield server.tcp_url().replace(old, new), proxy


def measure_herd(seconds: float) -> tuple[float, float]:
    """Without and with the breaker."""
    with dead_server() as (url, proxy):
        without = asyncio.run(herd(url, proxy, seconds=seconds, breaker=False))
        return without, asyncio.run(herd(url, proxy, seconds=seconds, breaker=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="with each driver")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--driver", choices=[*DRIVERS], action="append")
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=20)
    options = parser.parse_args()
    logging.getLogger("cenote").setLevel(logging.CRITICAL)  # what fails here fails on purpose
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    print(f"seed {options.seed}; again with: --seed {options.seed}", flush=True)
    wrong = 0
    for driver in options.driver or [*DRIVERS]:
        began = time.monotonic()
        figures = Chaos(
            driver,
            seed=options.seed,
            seconds=options.seconds,
            tasks=options.tasks,
            connections=options.connections,
        ).run()
        print(f"{figures}\n  in {time.monotonic() - began:.0f} s, {cenote.core} core", flush=True)
        wrong += len(figures.complaints)
    if not options.driver:
        without, with_breaker = measure_herd(5.0)
        print(
            f"a dead server, 500 tasks: {without:,.1f} attempts a second to connect without a "
            f"breaker, {with_breaker:,.1f} with it"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
