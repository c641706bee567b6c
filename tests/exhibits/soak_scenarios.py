"""The scenarios of the soak: each uses a pool in its own way and returns its number of cycles."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from typing import Any

import cenote
from tests.exhibits.soak_world import (
    Planned,
    Pool,
    Soak,
    Strategy,
    Thing,
    close,
    expected,
    scenario,
)


@scenario(30)
async def hits(soak: Soak, pool: Pool) -> int:
    for _ in range(50):
        with expected():
            async with pool.acquire():
                pass
    return 50


@scenario(10)
async def hits_by_hand(soak: Soak, pool: Pool) -> int:
    for _ in range(20):
        with expected():
            thing = await pool.acquire(timeout=soak.dice.choice([None, 0, 0.5]))
            await pool.release(thing)
    return 20


@scenario(10)
async def tries(soak: Soak, pool: Pool) -> int:
    for _ in range(30):
        with expected():
            thing = pool.try_acquire()
            if thing is not None:
                await pool.release(thing)
    return 30


async def holding(pool: Pool, turns: int = 1, **options: Any) -> None:
    with expected():
        async with pool.acquire(**options):
            for _ in range(turns):
                await asyncio.sleep(0)


@scenario(10)
async def waits(soak: Soak, pool: Pool) -> int:
    await asyncio.gather(*(holding(pool, turns % 3) for turns in range(24)))
    return 24


@scenario(10)
async def cancellations(soak: Soak, pool: Pool) -> int:
    tasks = [asyncio.create_task(holding(pool, 2)) for _ in range(24)]
    for _ in range(4):
        await asyncio.sleep(0)
        for task in soak.dice.sample(tasks, 4):
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return 24


@scenario(4)
async def timeouts(soak: Soak, pool: Pool) -> int:
    holders = [asyncio.create_task(holding(pool, 40)) for _ in range(pool.max_size)]
    waiters = [holding(pool, timeout=soak.dice.choice([0, 0.0001, 0.0005])) for _ in range(20)]
    await asyncio.gather(*holders, *waiters)
    return 20 + len(holders)


@scenario(4)
async def nested_timeouts(soak: Soak, pool: Pool) -> int:
    for _ in range(5):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0005):
                await asyncio.gather(*(holding(pool, 200) for _ in range(4)))
    return 20


@scenario(6)
async def faults(soak: Soak, pool: Pool) -> int:
    with soak.faults():
        for _ in range(20):
            with expected():
                async with pool.acquire(timeout=0.01):
                    pass
        await asyncio.gather(*(holding(pool, timeout=0.01) for _ in range(10)))
    return 30


@scenario(4)
async def one_fault(soak: Soak, pool: Pool) -> int:
    """The same error twenty times, without another to hide it."""
    hook = soak.dice.choice(
        [soak.before_acquire, soak.before_release, soak.destructor, soak.factory]
    )
    kept, hook.plan = hook.plan, [soak.dice.choice(["raise", "reject", "slow raise"])]
    if hook is soak.factory and hook.plan == ["reject"]:
        hook.plan = ["none"]
    try:
        for _ in range(20):
            with expected():
                thing = await pool.acquire(timeout=0.01)
                await pool.release(thing)
    finally:
        hook.plan = kept
    return 20


@scenario(4)
async def errors_in_the_block(soak: Soak, pool: Pool) -> int:
    for kind in [Planned, asyncio.CancelledError, KeyError, GeneratorExit] * 3:
        with expected(), contextlib.suppress(asyncio.CancelledError, KeyError, GeneratorExit):
            async with pool.acquire(timeout=0.01):
                raise kind
    return 12


@scenario(4)
async def discards(soak: Soak, pool: Pool) -> int:
    for _ in range(20):
        with expected():
            async with pool.acquire(timeout=0.01) as thing:
                error = soak.dice.choice([None, Planned("discarded")])
                await pool.discard(thing, error)
                del error
    return 20


@scenario(4)
async def misuse(soak: Soak, pool: Pool) -> int:
    for _ in range(5):
        with expected():
            async with pool.acquire(timeout=0.01) as thing:
                await pool.release(thing)
                with contextlib.suppress(cenote.NotAcquiredError):
                    pool.release(thing)
                for wrong in (None, soak, pool):
                    with contextlib.suppress(cenote.NotAcquiredError):
                        pool.discard(wrong)
                with contextlib.suppress(TypeError, ValueError):
                    pool.acquire(timeout=soak.dice.choice([-1, "1", float("nan")]))
        pool.acquire()  # and nothing more
        twice = pool.acquire(timeout=0.01)
        with expected():
            await pool.release(await twice)
        with expected(), contextlib.suppress(RuntimeError):
            await twice
    return 15


@scenario(4)
async def driven(soak: Soak, pool: Pool) -> int:
    """Acquires as coroutines of tasks, some thrown at or closed before they began."""
    for _ in range(10):
        with expected():
            thing = await asyncio.create_task(pool.acquire(timeout=0.01))
            await pool.release(thing)
    for _ in range(5):
        with contextlib.suppress(Planned):
            pool.acquire().throw(Planned())
        pool.acquire().close()
        task = asyncio.create_task(pool.acquire())
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            with expected():
                await pool.release(task.result())
    return 25


@scenario(3)
async def twins(soak: Soak, pool: Pool) -> int:
    cycles = 0
    async with cenote.Pool(
        soak.same, before_release=soak.before_release, hook_timeout=0.002, max_size=20
    ) as twin_pool:

        async def hold(turns: int) -> None:
            async with twin_pool.acquire() as thing:
                for _ in range(turns):
                    await asyncio.sleep(0)
                if turns == 2:
                    await twin_pool.discard(thing)

        for _ in range(3):
            await asyncio.gather(*(hold(turns % 4) for turns in range(24)))
            cycles += 24
    return cycles


@scenario(3)
async def closes(soak: Soak, pool: Pool) -> int:
    """Small pools, closed with everything under way."""
    for size in (1, 2, 3):
        small = soak.pool(max_size=size)
        with expected():
            held = await small.acquire(timeout=0.01)
            waiters = [asyncio.create_task(holding(small)) for _ in range(4)]
            for _ in range(soak.dice.randrange(3)):
                await asyncio.sleep(0)
            await close(small)
            with expected():
                await small.release(held)
            await asyncio.gather(*waiters)
        await close(small)
    return 15


@scenario(3)
async def breaker(soak: Soak, pool: Pool) -> int:
    pool.strategy = soak.strategy
    waiters = [asyncio.create_task(holding(pool, 3)) for _ in range(12)]
    for switch in (pool.deactivate, pool.recover, pool.activate):
        await asyncio.sleep(0)
        switch()
        with expected():
            async with pool.acquire(timeout=0.01):
                pass
        with expected():
            pool.try_acquire()
        for holder in pool.holders():
            with expected():
                await pool.release(holder.resource)
    await asyncio.gather(*waiters)
    pool.strategy = None
    return 18


@scenario(3)
async def deadlocks(soak: Soak, pool: Pool) -> int:
    size = pool.max_size

    async def hoard() -> None:
        with expected():
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(size + 1):
                    await stack.enter_async_context(pool.acquire())

    await asyncio.gather(hoard(), hoard())
    return size * 2


@scenario(3)
async def looks(soak: Soak, pool: Pool) -> int:
    unsubscribe = pool.subscribe(soak.subscriber)
    for _ in range(10):
        with expected():
            async with pool.acquire(timeout=0.01):
                pool.stats(), pool.holders(), repr(pool), len(pool)
    unsubscribe()
    return 10


@scenario(2)
async def sizes(soak: Soak, pool: Pool) -> int:
    size = pool.max_size
    users = [asyncio.create_task(holding(pool, 2)) for _ in range(12)]
    await asyncio.sleep(0)
    with expected():
        pool.resize(min_size=0, max_size=1)
        await pool.retire()
        pool.resize(max_size=20)
        await asyncio.sleep(0)
        await pool.resize(max_size=size)
    await asyncio.gather(*users)
    return 12


@scenario(2)
async def forgotten(soak: Soak, pool: Pool) -> int:
    """Pools that nobody closes, in cycles with their resources, hooks and subscribers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(3):
            lost = cenote.Pool(Thing, max_size=4)
            lost.subscribe(lambda event, lost=lost: None)
            lost.strategy = Strategy(soak.dice)
            lost.strategy.pool = lost  # type: ignore[attr-defined]
            first, second = await lost.acquire(), await lost.acquire()
            first.pool = second.pool = lost
            await lost.release(first)
            del first, second, lost
        gc.collect(1)
    return 6
