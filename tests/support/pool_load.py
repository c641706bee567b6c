"""Load on a pool: tasks that hold its resources."""

import asyncio


class Load:
    """Tasks that each hold one resource of a pool until they are told to end."""

    def __init__(self, pool, number):
        self.done = asyncio.Event()
        self.tasks = [asyncio.create_task(self._hold(pool)) for _ in range(number)]

    async def _hold(self, pool):
        async with pool.acquire():
            await self.done.wait()

    async def end(self):
        self.done.set()
        await asyncio.gather(*self.tasks)
