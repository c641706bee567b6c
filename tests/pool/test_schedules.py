"""The pool under every order of callbacks: a loop that permutes what is ready, by a drawn schedule.

Each schedule is a list of numbers; the loop takes the next number modulo what is ready, and the
oldest when the list is used up. So hypothesis shrinks a failing one to the shortest.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import cenote
from cenote.testing import VirtualLoop, check_ledger

pytestmark = [pytest.mark.own_loop, pytest.mark.thorough]

SCHEDULES = 1_000  # for each scenario, and each core


class Ready(deque[Any]):
    """The ready callbacks of a loop, taken in the order of a schedule."""

    def __init__(self, choices: Iterable[int]) -> None:
        super().__init__()
        self._choices = iter(choices)

    def popleft(self) -> Any:
        if len(self) > 1 and (choice := next(self._choices, None)) is not None:
            self.rotate(-(choice % len(self)))
        return super().popleft()


def run(scenario: Any, choices: list[int]) -> None:
    loop = VirtualLoop()
    loop._ready = Ready(choices)  # type: ignore[attr-defined]
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    try:
        loop.run_until_complete(asyncio.wait_for(scenario(), 1_000))
        left = asyncio.all_tasks(loop)
        assert not left, left
        assert not faults, faults
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def even(pool: cenote.Pool[Any], out: set[Any]) -> None:
    assert not out
    check_ledger(pool)


class World:
    """A factory whose things may be used by one task at a time, and must all be destroyed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.alive: set[object] = set()
        self.used: set[object] = set()

    async def make(self) -> object:
        await asyncio.sleep(0.1)
        thing = object()
        self.alive.add(thing)
        assert len(self.alive) <= self.most
        return thing

    async def destroy(self, thing: object) -> None:
        assert thing not in self.used
        await asyncio.sleep(0.05)
        self.alive.remove(thing)

    @contextlib.contextmanager
    def using(self, thing: object) -> Any:
        assert thing in self.alive
        assert thing not in self.used, "two tasks have the same thing"
        self.used.add(thing)
        try:
            yield
        finally:
            self.used.remove(thing)


async def cancelled_waiters() -> None:
    """Holders, waiters, and cancellations at the very moment of the hand-off."""
    world = World(2)
    pool = cenote.Pool(world.make, destructor=world.destroy, max_size=2)

    async def user(turns: int) -> None:
        for _ in range(turns):
            async with pool.acquire() as thing:
                with world.using(thing):
                    await asyncio.sleep(0)

    tasks = [asyncio.create_task(user(3)) for _ in range(6)]
    await asyncio.sleep(0.11)
    for task in tasks[1::2]:
        task.cancel()
    await asyncio.wait(tasks)
    await pool.close()
    even(pool, world.alive)


async def checked_and_reset() -> None:
    """Async hooks on both sides, some of which say no or raise."""
    world = World(2)
    calls = 0

    async def check(thing: object) -> bool:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls % 5 == 0:
            raise OSError("no")
        return calls % 3 != 0

    pool = cenote.Pool(
        world.make,
        destructor=world.destroy,
        before_acquire=check,
        before_release=check,
        max_size=2,
    )

    async def user() -> None:
        for _ in range(3):
            async with pool.acquire() as thing:
                with world.using(thing):
                    await asyncio.sleep(0)

    tasks = [asyncio.create_task(user()) for _ in range(4)]
    await asyncio.sleep(0.2)
    tasks[0].cancel()
    await asyncio.wait(tasks)
    await pool.close()
    even(pool, world.alive)


async def closed_while_busy() -> None:
    """close() with holders, waiters and creations under way."""
    world = World(3)
    pool = cenote.Pool(world.make, destructor=world.destroy, min_size=1, max_size=3)

    async def user() -> None:
        with contextlib.suppress(cenote.PoolClosedError):
            while True:
                async with pool.acquire(timeout=5) as thing:
                    with world.using(thing):
                        await asyncio.sleep(0.03)

    tasks = [asyncio.create_task(user()) for _ in range(6)]
    await asyncio.sleep(0.15)
    closers = [asyncio.create_task(pool.close()) for _ in range(2)]
    tasks[2].cancel()
    await asyncio.wait([*tasks, *closers])
    await asyncio.sleep(1)  # the last ones are destroyed when their tasks let go of them
    even(pool, world.alive)


async def breaker_opens() -> None:
    """A breaker that opens and recovers while tasks wait, and timeouts that hit the hand-off."""
    world = World(2)
    pool = cenote.Pool(
        world.make,
        destructor=world.destroy,
        max_size=2,
        strategy=cenote.ConsecutiveFailures(1, 0.1, 1),
    )

    async def user(number: int) -> None:
        for turn in range(4):
            with contextlib.suppress(cenote.PoolError):
                thing = await pool.acquire(timeout=0.1 + number / 100)
                with world.using(thing):
                    await asyncio.sleep(0.01)
                if (number + turn) % 4 == 0:
                    await pool.discard(thing, OSError("broken"))
                else:
                    await pool.release(thing)
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(user(number)) for number in range(5)]
    await asyncio.sleep(0.14)
    tasks[3].cancel()
    await asyncio.wait(tasks)
    await pool.close()
    even(pool, world.alive)


async def lanes_under_overload() -> None:
    """Lanes of different priorities, in a pool that sheds; waiters that time out or are cancelled,
    and a lane at its limit beside what is idle."""
    world = World(3)
    pool = cenote.Pool(
        world.make,
        destructor=world.destroy,
        max_size=3,
        max_creating=1,
        queue_target=0.02,
        queue_interval=0.05,
    )
    lanes = [pool.lane("high", max_size=1, priority=1), pool.lane("low", max_size=2, priority=-1)]
    used = dict.fromkeys(lanes, 0)

    def look() -> None:
        for lane in lanes:
            assert used[lane] <= lane.active_count <= (lane.max_size or 0), lane
        if pool.idle_count:
            full = [lane for lane in lanes if lane.active_count == lane.max_size]
            assert pool.waiting_count == sum(lane.waiting_count for lane in full)

    async def user(number: int) -> None:
        lane = [None, *lanes, *lanes][number % 5]
        for turn in range(4):
            with contextlib.suppress(cenote.AcquireTimeoutError, cenote.PoolOverloadedError):
                async with (lane or pool).acquire(timeout=0.1 + number / 50) as thing:
                    with world.using(thing), using_place(lane):
                        look()
                        await asyncio.sleep(0.03 if turn % 2 else 0)
                        look()
            look()

    @contextlib.contextmanager
    def using_place(lane: Any) -> Any:
        if lane is None:
            yield
            return
        used[lane] += 1
        try:
            yield
        finally:
            used[lane] -= 1

    tasks = [asyncio.create_task(user(number)) for number in range(10)]
    await asyncio.sleep(0.14)
    for task in tasks[1::3]:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        assert task.cancelled() or task.exception() is None
    assert not any(lane.active_count or lane.waiting_count for lane in lanes)
    await pool.close()
    even(pool, world.alive)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "scenario",
    [
        cancelled_waiters,
        checked_and_reset,
        closed_while_busy,
        breaker_opens,
        lanes_under_overload,
    ],
)
def test_every_schedule_keeps_the_promises(scenario: Any) -> None:
    @settings(max_examples=SCHEDULES, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.integers(0, 7), max_size=150))
    def check(choices: list[int]) -> None:
        run(scenario, choices)

    check()


@pytest.mark.virtual_time
def test_a_race_is_found_and_shrunk() -> None:
    """A loop that permutes nothing would prove nothing."""

    async def race() -> None:
        order: list[int] = []

        async def note(number: int) -> None:
            order.append(number)

        await asyncio.gather(*(note(number) for number in range(4)))
        assert order == sorted(order)

    shortest: list[list[int]] = []

    @settings(max_examples=200, database=None)
    @given(st.lists(st.integers(0, 7), max_size=150))
    def check(choices: list[int]) -> None:
        try:
            run(race, choices)
        except AssertionError:
            shortest.append(choices)
            raise

    with pytest.raises(AssertionError):
        check()
    assert min(map(len, shortest)) <= 4
