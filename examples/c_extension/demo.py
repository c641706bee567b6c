"""100 tasks share 8 buffers of C memory. Build first: python setup.py build_ext --inplace"""

import asyncio
import zlib

import buffers

import cenote

TASKS, BUFFERS, SIZE = 100, 8, 4096


class Demo:
    def __init__(self, pool: cenote.Pool[buffers.Buffer]) -> None:
        self.pool = pool
        self.dirty = 0  # buffers that still showed what another task had written
        self.busiest = 0
        self.checksums = 0

    async def use(self, number: int) -> None:
        """Write into a buffer, wait, and see that nobody else wrote into it meanwhile."""
        async with self.pool.acquire() as buffer:
            self.busiest = max(self.busiest, self.pool.active_count)
            with memoryview(buffer) as view:
                self.dirty += any(view)
                mine = f"task {number}".encode()
                view[: len(mine)] = mine
                await asyncio.sleep(0.001)
                assert bytes(view[: len(mine)]) == mine
            if number % 25 == 24:
                buffers.overrun(buffer)

    async def add_up(self, number: int) -> None:
        """The same without a coroutine in between: C acquires, works, releases and calls back."""
        data = bytes([number]) * 10_000  # more than one buffer holds: it goes through in parts
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(crc: int | None, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            elif crc is not None:
                future.set_result(crc)

        buffers.checksum(self.pool, data, done, timeout=10.0)
        assert await future == zlib.crc32(data)
        self.checksums += 1

    def task(self, number: int) -> asyncio.Task[None]:
        work = self.add_up if number % 5 == 0 else self.use
        return asyncio.create_task(work(number))

    async def give_up(self) -> str:
        """Hold every buffer, so that a checksum must wait, and then call it off."""
        heard: list[str] = []
        held = [await self.pool.acquire() for _ in range(BUFFERS)]
        ticket = buffers.checksum(
            self.pool, b"", lambda _, error: heard.append(type(error).__name__)
        )
        await asyncio.sleep(0)
        buffers.cancel(ticket)
        await asyncio.sleep(0)
        for buffer in held:
            self.pool.release(buffer)
        return heard[0]

    async def wait_for_check(self) -> None:
        """Break the guard of an idle buffer, as a stray pointer would: the healthcheck sees it."""
        async with self.pool.acquire() as buffer:
            pass
        found = asyncio.Event()
        self.pool.subscribe(lambda event: found.set() if event.kind == "check_failed" else None)
        buffers.overrun(buffer)
        await found.wait()


async def main() -> None:
    arena = buffers.Arena(SIZE)
    pool = arena.pool(min_size=2, max_size=BUFFERS, healthcheck_interval=0.05, name=f"{SIZE} bytes")
    demo = Demo(pool)
    async with pool:
        print(pool)
        await asyncio.gather(*map(demo.task, range(TASKS)))
        print(
            f"{TASKS} tasks used {demo.busiest} buffers at once; "
            f"{demo.dirty} of them found what another task had written"
        )
        print(f"{demo.checksums} of them were checksums in C, all of them right")
        print(f"buffers thrown away because of a write too far: {arena.overruns}")
        print(f"a checksum that was given up hears: {await demo.give_up()}")
        await demo.wait_for_check()
        print(f"found by the healthcheck: {pool.stats().destroyed['check_failed']}")
    print(f"handed out again: {arena.lent}, returned: {arena.returned}")
    print(f"blocks allocated: {arena.made}, freed: {arena.freed}")


if __name__ == "__main__":
    asyncio.run(main())
