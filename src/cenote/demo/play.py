"""The play: a small shop on the embedded database, and everything that can go wrong in a minute."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ..breaker import ConsecutiveFailures
from ..observe import EventKind, PoolEvent, Stats
from ..sql.database import Database
from ..states import CircuitState
from .screen import FRAME, Screen, Tally, summary

TASKS: Final = 100
CONNECTIONS: Final = 20
ACCOUNTS: Final = 50
BALANCE: Final = 1000  # of each account at the beginning
MONEY: Final = ACCOUNTS * BALANCE
FORGETFUL: Final = "forgetful"  # the task that begins transactions and never commits
SIT: Final = 1.5  # seconds that it sits in one
PATIENCE: Final = 30.0  # real seconds in which what is announced must happen


def _at_once(play: Play) -> bool:
    return True


def _somebody_timed_out(play: Play) -> bool:
    return bool(play.tally.sample)


def _was_rolled_back(play: Play) -> bool:
    return play.rolled_back > 0


def _was_replaced(play: Play) -> bool:
    return play.tally.replaced > 0


def _was_left_alone(play: Play) -> bool:
    """The breaker has refused, and tried once whether the database is back."""
    tried = any(state is CircuitState.RECOVERING for _, state in play.tally.states)
    return tried and play.tally.errors["ServiceUnavailableError"] > 0


def _has_recovered(play: Play) -> bool:
    return play.tally.states[-1][1] is CircuitState.ACTIVE


@dataclass(frozen=True, slots=True)
class Act:
    """A part of the play. Durations are seconds; `--fast` shortens them all.

    On a slow machine it lasts longer: until what it is about has happened.
    """

    title: str
    length: float
    query: float  # how long a query takes, on average
    pause: float  # how long a task thinks between two queries, on average
    down: bool = False
    forgetful: bool = False  # somebody begins transactions and never commits
    breaking: bool = False  # connections break
    point: Callable[[Play], bool] = _at_once


ACTS: Final = (
    Act("a calm day", 9.0, query=0.04, pause=0.8),
    Act("rush hour", 12.0, query=0.07, pause=0.05, point=_somebody_timed_out),
    Act(
        "somebody forgets to commit",
        8.0,
        query=0.04,
        pause=0.5,
        forgetful=True,
        point=_was_rolled_back,
    ),
    Act("connections break", 8.0, query=0.04, pause=0.4, breaking=True, point=_was_replaced),
    Act("the database is gone", 7.0, query=0.04, pause=0.4, down=True, point=_was_left_alone),
    Act("the database is back", 11.0, query=0.04, pause=0.4, point=_has_recovered),
)
LENGTH: Final = sum(act.length for act in ACTS)


class Play:
    """`once()` plays all acts; the database lives as long as the block around it."""

    def __init__(self, chance: random.Random, pace: float, screen: Screen) -> None:
        self.chance = chance
        self.pace = pace
        self.length: float = LENGTH * pace
        self.screen = screen
        self.act: Act = ACTS[0]
        self.tally: Tally = Tally(0.0)
        self.cut: int = 0  # connections, in this round
        self.rolled_back: int = 0  # forgotten transactions of this round of which nothing is left
        self.before: Stats | None = None  # of the pool, at the end of the round before
        self._freed = asyncio.Event()  # the forgetful task's connection is back, or gone
        self._home = tempfile.TemporaryDirectory(prefix="cenote-demo-")
        self._data = os.path.join(self._home.name, "data")
        os.mkdir(self._data)
        self.db: Database = Database(
            f"sqlite:///{os.path.join(self._data, 'shop.db')}",
            min_size=CONNECTIONS // 2,
            max_size=CONNECTIONS,
            max_lifetime=30.0 * pace,
            healthcheck_interval=1.0 * pace,
            hold_warning=2.0 * pace,
            lifo=True,
            strategy=ConsecutiveFailures(
                5, recovery_timeout=1.0 * pace, success_threshold=3, max_recovery_timeout=pace
            ),
            name="shop",
        )
        self.db.create_function("nap", 1, _nap)

    async def __aenter__(self) -> Play:
        await self.db.execute("create table accounts (id integer primary key, balance int)")
        await self.db.execute_many(
            "insert into accounts values (?, ?)", [(n, BALANCE) for n in range(ACCOUNTS)]
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.db.close()
        self._home.cleanup()

    @property
    def pool(self) -> Any:
        return self.db.pool

    async def once(self) -> None:
        self.tally = Tally(asyncio.get_running_loop().time())
        self.rolled_back = self.cut = 0
        unsubscribe = self.pool.subscribe(self._hear)
        watcher = asyncio.create_task(self._watch())
        self.screen.start(TASKS, CONNECTIONS)
        try:
            await self._perform()
            await self._calm_down()
            self.screen.draw(self, last=True)
        finally:
            watcher.cancel()
            unsubscribe()
            self.screen.stop()
        money = await self.db.fetch_val("select sum(balance) from accounts")
        stats = self.pool.stats()
        for line in summary(self, stats, money, MONEY):
            self.screen.print(line)
        self.before = stats

    def _hear(self, event: PoolEvent) -> None:
        self.tally.hear(event)
        if event.kind == EventKind.RELEASED and event.task == FORGETFUL:
            self._freed.set()

    async def _perform(self) -> None:
        tasks = [
            asyncio.create_task(self._report(), name="nightly-report"),
            asyncio.create_task(self._checkout(), name="checkout"),
            asyncio.create_task(self._trouble(), name="trouble"),
            asyncio.create_task(self._accidents(), name="accidents"),
        ]
        for number in range(1, TASKS - len(tasks) + 1):
            tasks.append(asyncio.create_task(self._worker(), name=f"worker-{number:02}"))
        try:
            for act in ACTS:
                self.act = act
                self.tally.say("scene", act.title)
                self._set_down(act.down)
                tally, failed = self.tally, self.tally.errors.total()
                tally.tells_replaced = not (act.breaking or act.down)
                await asyncio.sleep(act.length * self.pace)
                await self._wait_for(partial(act.point, self))
                if act.breaking:
                    failed = tally.errors.total() - failed
                    tally.say(
                        "broken",
                        f"{self.cut} connections cut, {tally.replaced} replaced, "
                        f"{failed} operations failed",
                    )
        finally:
            self._set_down(False)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _calm_down(self) -> None:
        """Wait until what was cut off at the end is closed."""
        await self._wait_for(lambda: not self.pool.active_count)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        for _ in range(round(PATIENCE / FRAME)):
            if condition():
                break
            await asyncio.sleep(FRAME)

    # -- the tasks -------------------------------------------------------------------------------

    async def _worker(self) -> None:
        while True:
            await self._think(self.act.pause)
            if self.chance.random() < 0.15:
                await self._attempt(self._transfer)
            else:
                await self._attempt(self._look)

    async def _look(self) -> None:
        account = self.chance.randrange(ACCOUNTS)
        seconds = self.act.query * self.chance.uniform(0.5, 1.5) * self.pace
        await self.db.fetch_one(
            "select balance, nap(:seconds) from accounts where id = :id",
            {"id": account, "seconds": seconds},
        )

    async def _transfer(self) -> None:
        giver, taker = self.chance.sample(range(ACCOUNTS), 2)
        amount = self.chance.randrange(1, 20)
        async with self.db.transaction():
            await self.db.execute(
                "update accounts set balance = balance - ? where id = ?", [amount, giver]
            )
            await self.db.execute(
                "update accounts set balance = balance + ? where id = ?", [amount, taker]
            )

    async def _report(self) -> None:
        """Somebody's long transaction, at the worst moment."""
        await asyncio.sleep((ACTS[0].length + 2.0) * self.pace)
        await self._attempt(self._read_all)

    async def _read_all(self) -> None:
        async with self.db.transaction(read_only=True):
            for _ in range(10):
                await self.db.fetch_val("select nap(?)", [0.3 * self.pace])

    async def _checkout(self) -> None:
        """In a hurry: it would rather fail than wait, and the error says why it failed."""
        await asyncio.sleep((ACTS[0].length + 4.0) * self.pace)
        while True:
            try:
                async with self.pool.acquire(timeout=0.1 * self.pace):
                    pass
            except Exception as error:
                self.tally.failed(error)
            else:
                self.tally.served += 1
            await self._think(0.7)

    async def _trouble(self) -> None:
        while True:
            await self._think(1.0)
            if self.act.forgetful:
                await self._forget_and_look()

    async def _accidents(self) -> None:
        while True:
            await self._think(1.0)
            if self.act.breaking:
                self._break_one()

    async def _forget_and_look(self) -> None:
        """When the task has ended and its connection is free: is the money there?"""
        self._freed.clear()
        if not await asyncio.create_task(self._forget(), name=FORGETFUL):
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._freed.wait()
            money = await self.db.fetch_val("select sum(balance) from accounts")
        except Exception as error:
            self.tally.failed(error)
            return
        if money == MONEY:
            self.rolled_back += 1
            self.tally.say(
                "returned", f"rolled back: all {money:,} are there, and its connection is free"
            )
        else:
            self.tally.say("error", f"NOT rolled back: {money:,} of {MONEY:,} are there")

    async def _forget(self) -> bool:
        """Begins, takes all the money, and ends: the database takes it back."""
        await self._attempt(self._take_everything)
        forgot = self.db.in_transaction
        if forgot:
            pinned = self.db.pin_reason
            self.tally.say("pinned", f"task '{FORGETFUL}' ends {pinned}, without a commit")
        return forgot

    async def _take_everything(self) -> None:
        await self.db.execute("begin")  # locks nothing before it writes
        await asyncio.sleep(SIT * self.pace)
        await self.db.execute("update accounts set balance = 0")

    def _break_one(self) -> None:
        """As a firewall or an administrator does it."""
        links = [*self._links()]
        if links:
            self.chance.choice(links).terminate()
            if not self.cut:
                self.tally.say("broken", "connections are cut; whoever meets one gets another")
            self.cut += 1

    def _set_down(self, down: bool) -> None:
        """Away with the files, and with all connections to them."""
        away = f"{self._data}-away"
        if down and os.path.exists(self._data):
            os.rename(self._data, away)
            for link in [*self._links()]:
                link.terminate()
        elif not down and os.path.exists(away):
            os.rename(away, self._data)

    def _links(self) -> set[Any]:
        return self.db._loop_databases.here().connections

    async def _attempt(self, operation: Callable[[], Awaitable[None]]) -> None:
        try:
            await operation()
        except Exception as error:
            self.tally.failed(error)
            await self._think(0.5)
        else:
            self.tally.served += 1

    async def _think(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.chance.uniform(0.5, 1.5) * self.pace)

    async def _watch(self) -> None:
        while True:
            self.screen.draw(self)
            await asyncio.sleep(FRAME)


def _nap(seconds: float) -> int:
    time.sleep(seconds)
    return 1
