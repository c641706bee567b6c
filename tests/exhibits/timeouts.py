"""Timeouts of statements at random moments: every statement gets its own answer or its own timeout.

The server is told to stop at the very moment at which the statement ends, or just before or after,
and the next statement follows at once on the same connection: no order to stop may hit that one.
`make timeouts`, or `python -m tests.exhibits.timeouts --driver asyncpg --timeouts 10000`.
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import cenote
from tests.support import backends
from tests.support.backends import Backend
from tests.support.servers import MariaDBServer, PostgresServer

# A number, after about so many milliseconds.
SLOW = {
    "asyncpg": "select {number} from (select pg_sleep({milliseconds} / 1000.0)) as slept",
    "psycopg": "select {number} from (select pg_sleep({milliseconds} / 1000.0)) as slept",
    "mysql": "select {number} + 0 * sleep({milliseconds} / 1000.0)",
    "sqlite": "with recursive c(x) as (select 1 union all select x + 1 from c "
    "limit 1 + cast({milliseconds} * 8000 as int)) select {number} + 0 * count(*) from c",
}
LONGEST = 4.0  # milliseconds that a statement takes, about
# How much longer all of it takes with drivers whose orders to stop are slower: else nearly every
# statement would have ended before.
PACE = {"asyncpg": 8.0, "psycopg": 8.0}

Ask = Callable[[Any, str, float], Awaitable[Any]]


async def ask_plainly(db: Any, sql: str, timeout: float) -> Any:
    return await db.fetch_val(sql, timeout=timeout)


async def ask_for_all(db: Any, sql: str, timeout: float) -> Any:
    return (await db.fetch_all(sql, timeout=timeout))[0][0]


async def ask_by_stream(db: Any, sql: str, timeout: float) -> Any:
    async with db.iterate(sql, timeout=timeout) as stream:
        (number,) = [row[0] async for row in stream]
        return number


async def ask_by_statement(db: Any, sql: str, timeout: float) -> Any:
    async with await db.prepare(sql) as statement:
        number = await statement.fetch_val(timeout=timeout)
        assert await statement.fetch_val() == number
        return number


async def ask_in_transaction(db: Any, sql: str, timeout: float) -> Any:
    async with db.transaction(read_only=True) as tx:
        return await tx.fetch_val(sql, timeout=timeout)


async def ask_by_stream_in_transaction(db: Any, sql: str, timeout: float) -> Any:
    async with db.transaction(read_only=True) as tx:
        return await ask_by_stream(tx, sql, timeout)


async def ask_in_savepoint(db: Any, sql: str, timeout: float) -> Any:
    async with db.transaction() as tx:
        try:
            async with db.transaction() as inner:
                return await inner.fetch_val(sql, timeout=timeout)
        except cenote.StatementTimeoutError as error:
            if error.connection_kept:
                assert await tx.fetch_val("select 4711") == 4711  # it was only the savepoint
            raise


ASKS: list[Ask] = [
    ask_plainly, ask_for_all, ask_by_stream, ask_by_statement, ask_in_transaction,
    ask_by_stream_in_transaction, ask_in_savepoint,
]  # fmt: skip


async def torment(backend: Backend, *, timeouts: int, tasks: int, seed: int) -> Counter[str]:
    """Ask until there were so many timeouts; count the answers and what became of the rest."""
    counts: Counter[str] = Counter()
    chance = random.Random(seed)
    numbers = count(1000)
    sqlite_writes = backend.embedded  # one transaction that may write at a time
    pace = PACE.get(backend.name, 1.0)

    async with backend.database(max_size=2 * tasks, min_size=tasks, strategy=None) as db:
        await db.open()

        async def ask_one() -> None:
            number, milliseconds = next(numbers), chance.random() * LONGEST * pace
            ask = chance.choice(ASKS[:-1] if sqlite_writes else ASKS)
            sql = SLOW[backend.name].format(number=number, milliseconds=f"{milliseconds:.3f}")
            if chance.random() < 0.5:  # around the end of the statement, and now and then at once
                timeout = milliseconds / 1000 + chance.uniform(-0.002, 0.004) * pace
            else:  # at any moment of it
                timeout = chance.random() * milliseconds / 1000
            timeout = max(0.0002, timeout)
            try:
                answer = await ask(db, sql, timeout)
            except cenote.StatementTimeoutError as error:
                counts["timeouts"] += 1
                counts["connections replaced"] += not error.connection_kept
            except cenote.AcquireTimeoutError:
                counts["waited too long"] += 1
            else:
                counts["right" if answer == number else "WRONG"] += 1

        async def work() -> None:
            while counts["timeouts"] < timeouts:
                await ask_one()
                number = next(numbers)
                if await db.fetch_val(f"select {number}") != number:  # nothing may hit this one
                    counts["WRONG"] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(work())
        counts["connections"] = db.pool.stats().created
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", choices=sorted(SLOW), help="one of them; else all")
    parser.add_argument("--timeouts", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options = parser.parse_args()

    print("seed", options.seed)
    drivers = [options.driver] if options.driver else [*SLOW]
    return max(run(driver, options) for driver in drivers)


def run(driver: str, options: argparse.Namespace) -> int:
    """Start a server, and ask; 1 if an answer was wrong."""
    with contextlib.ExitStack() as stack:
        if driver == "sqlite":
            backend = backends.sqlite(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        else:
            kind: Any = MariaDBServer if driver == "mysql" else PostgresServer
            if reason := kind.missing():
                print(f"{driver}: skipped: {reason}")
                return 0
            backend = getattr(backends, driver)(stack.enter_context(kind()))
        counts = asyncio.run(
            torment(backend, timeouts=options.timeouts, tasks=options.tasks, seed=options.seed)
        )
    print(f"{driver}: {', '.join(f'{what} {number:,}' for what, number in counts.items())}")
    return 1 if counts["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
