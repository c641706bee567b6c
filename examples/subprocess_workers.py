"""Worker processes as resources: each serves one task at a time, one that dies is replaced."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack

import cenote

WORKERS = 3
JOBS = 12

WORKER = """
import os, sys
for line in sys.stdin:
    word = line.strip()
    if word == "poison":
        sys.exit(1)
    print(os.getpid(), word.upper(), flush=True)
"""


class WorkerDied(Exception):
    pass


class Worker:
    def __init__(self, process: Process) -> None:
        self.process = process

    async def ask(self, word: str) -> tuple[int, str]:
        """The worker's process id, and its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n".encode())
        answer = (await self.process.stdout.readline()).decode().split()
        if not answer:
            raise WorkerDied(f"a worker died of {word!r}")
        return int(answer[0]), answer[1]

    def is_running(self) -> bool:
        return self.process.returncode is None

    async def stop(self) -> None:
        """Close its input, at which a worker ends, and wait for that.

        Not kill(): for a process that has just died it asks for the exit status itself, and asyncio
        then finds none.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


async def start() -> Worker:
    return Worker(
        await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, stdin=PIPE, stdout=PIPE)
    )


async def work(pool: cenote.Pool[Worker], word: str) -> int | None:
    """The process that did the job, or None if it died of it."""
    async with pool.acquire(timeout=10) as worker:
        try:
            process, answer = await worker.ask(word)
        except WorkerDied as error:
            print(f"as expected: {error}")
            pool.discard(worker, error)
            return None
    assert answer == word.upper()
    return process


async def processes(pool: cenote.Pool[Worker]) -> set[int]:
    """The ids of all workers: a task that holds all of them has seen each."""
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(pool.acquire(timeout=10)) for _ in range(WORKERS)
        ]
        return {worker.process.pid for worker in workers}


async def main() -> None:
    pool = cenote.Pool(
        start,
        destructor=Worker.stop,
        before_acquire=Worker.is_running,
        min_size=WORKERS,
        max_size=WORKERS,
        name="workers",
    )
    async with pool:
        done_by = await asyncio.gather(*(work(pool, f"job{number}") for number in range(JOBS)))
        print(f"{JOBS} jobs were done by {len(set(done_by))} processes")

        before = await processes(pool)
        await work(pool, "poison")
        after = await processes(pool)
        print(f"of {len(after)} processes {len(after - before)} is new")

    stats = pool.stats()
    print(f"processes started: {stats.created}, ended: {sum(stats.destroyed.values())}")


if __name__ == "__main__":
    asyncio.run(main())
