"""Poison: tasks cancelled between question and answer, on the plain pool over Redis.

Whoever takes the connection next must get the answer to its own question, never the one that the
cancelled task left on the wire. `python -m tests.exhibits.poison --operations 100000`.
"""

import argparse
import asyncio
import os
import random
import sys
from collections import Counter

import cenote
from tests.support.servers import RedisServer

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(connection: Connection, nonce: int, asked: asyncio.Event) -> int:
    reader, writer = connection
    text = str(nonce).encode()
    writer.write(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n" % (len(text), text))
    await writer.drain()
    asked.set()
    await reader.readline()
    return int(await reader.readline())


async def poison(
    host: str,
    port: int,
    *,
    operations: int,
    tasks: int,
    connections: int,
    seed: int,
    reuse_after_cancel: bool = False,
) -> Counter[str]:
    """How many were answered rightly, wrongly, or cancelled."""
    counts: Counter[str] = Counter()
    choice = random.Random(seed)
    numbers = iter(range(operations))

    async def destroy(connection: Connection) -> None:
        connection[1].close()

    async with cenote.Pool(
        lambda: asyncio.open_connection(host, port),
        destructor=destroy,
        max_size=connections,
        reuse_after_cancel=reuse_after_cancel,
    ) as pool:

        async def worker() -> None:
            for nonce in numbers:
                asked = asyncio.Event()
                task = asyncio.ensure_future(use(nonce, asked))
                moment = choice.random()
                if moment < 0.2:  # between write and read, or a little later
                    await asked.wait()
                if moment < 0.3:  # anywhere
                    for _ in range(choice.randrange(0, 3)):
                        await asyncio.sleep(0)
                    task.cancel()
                try:
                    answer = await task
                except asyncio.CancelledError:
                    counts["cancelled"] += 1
                else:
                    counts["right" if answer == nonce else "wrong"] += 1

        async def use(nonce: int, asked: asyncio.Event) -> int:
            async with pool.acquire(timeout=30) as connection:
                return await ask(connection, nonce, asked)

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(worker())
        counts["connections"] = pool.stats().created
        if pool.active_count or pool.waiting_count or pool.count > connections:
            counts["slots lost"] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options = parser.parse_args()
    if reason := RedisServer.missing():
        print(f"skipped: {reason}")
        return 0
    with RedisServer() as server:
        counts = asyncio.run(
            poison(
                server.host,
                server.port,
                operations=options.operations,
                tasks=50,
                connections=10,
                seed=options.seed,
            )
        )
    told = ", ".join(f"{what} {count:,}" for what, count in counts.items())
    print(f"redis, seed {options.seed}, {cenote.core} core: {told}")
    return 1 if counts["wrong"] or counts["slots lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
