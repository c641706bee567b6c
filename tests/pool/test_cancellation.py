"""Cancellations in hooks, and at every suspension of a scenario."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Generator
from typing import Any

import pytest

import cenote
from cenote.testing import VirtualLoop, advance, settle
from tests.support.kit import (
    HOOKS,
    Broken,
    FakeService,
    Gate,
    RecordingStrategy,
    Stubborn,
    acquiring,
    give_all,
    hang,
    make_leave,
    outcome,
    take_all,
)

virtual_time = pytest.mark.virtual_time
both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])
Pool = cenote.Pool[Any]
Modes = tuple[str | None, ...]


def raising_cancellation(kind: str) -> Callable[..., Any]:
    def raise_it(*resource):
        raise asyncio.CancelledError("from the hook")

    async def raise_it_later(*resource):
        await asyncio.sleep(0)
        raise_it()

    return raise_it if kind == "sync" else raise_it_later


@both_kinds
async def test_a_cancellation_raised_by_the_factory_comes_through(make_pool, kind):
    strategy = RecordingStrategy()
    pool = make_pool(raising_cancellation(kind), max_size=1, strategy=strategy)
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await pool.acquire()
    assert pool.stats().creating == 0
    assert strategy.reports == []


async def test_a_cancellation_raised_by_the_factory_comes_through_try_acquire(make_pool):
    pool = make_pool(raising_cancellation("sync"), max_size=1)
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            pool.try_acquire()


@both_kinds
@pytest.mark.parametrize("handed", [False, True], ids=["newcomer", "waiter"])
async def test_a_cancellation_raised_by_before_acquire_comes_through(make_pool, kind, handed):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), before_acquire=raising_cancellation(kind), max_size=1)
    held = await pool.acquire()
    if not handed:
        pool.release(held)
    task = acquiring(pool)
    await settle()
    if handed:
        pool.release(held)
    assert isinstance(await outcome(task), asyncio.CancelledError)
    assert service.destroyed == [held]
    resource = await pool.acquire()  # the slot is free
    assert pool.count == 1
    pool.release(resource)


@both_kinds
async def test_a_cancellation_raised_by_before_release_comes_through(make_pool, kind):
    service, strategy = FakeService(destructor="sync ok"), RecordingStrategy()
    pool = make_pool(
        **service.hooks(),
        before_release=raising_cancellation(kind),
        max_size=1,
        strategy=strategy,
    )
    resource = await pool.acquire()
    with pytest.raises(asyncio.CancelledError):
        await pool.release(resource)
    with pytest.raises(asyncio.CancelledError):
        async with pool.acquire():
            pass
    assert service.destroyed == service.made
    assert strategy.reports == []
    assert pool.count == 0


@both_kinds
async def test_a_cancellation_raised_by_the_destructor_comes_through(make_pool, kind):
    pool = make_pool(object, destructor=raising_cancellation(kind), max_size=1)
    resource = await pool.acquire()
    with pytest.raises(asyncio.CancelledError):
        await pool.discard(resource)
    assert (pool.count, pool.stats().destroying) == (0, 0)
    resource = await pool.acquire()
    with pytest.raises(asyncio.CancelledError):
        await pool.discard(resource)


async def test_a_failed_open_does_not_cancel_another_acquire(make_pool):
    first, cleanup, calls = Gate(), asyncio.Event(), []

    async def create():
        calls.append(True)
        if len(calls) == 1:
            return await first()
        if len(calls) == 2:
            try:
                await hang()
            finally:
                await cleanup.wait()
        return object()

    pool = make_pool(create, min_size=2)
    opening = asyncio.create_task(pool.open())
    await settle()
    first.calls[0].set_exception(Broken())  # the open fails, and the other creation is cancelled
    await settle()
    task = acquiring(pool)
    await settle()
    cleanup.set()
    assert isinstance(await outcome(opening), Broken)
    assert not isinstance(await outcome(task), asyncio.CancelledError)
    pool.release(await task)


async def swallow(*resource: Any) -> bool:
    """An async hook that answers its cancellation with yes."""
    with contextlib.suppress(asyncio.CancelledError):
        await hang()
    return True


async def test_an_acquirer_is_cancelled_though_before_acquire_swallows_it(make_pool):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), before_acquire=swallow, max_size=1)
    pool.release(await pool.acquire())
    task = acquiring(pool)
    await settle()
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    await settle()
    assert service.destroyed == service.made  # what it accepted came too late
    assert pool.count == 0


@virtual_time
@pytest.mark.parametrize("leave", ["cancel", "timeout", "deactivate"])
async def test_an_acquirer_leaves_at_once_despite_a_stubborn_hook(make_pool, leave):
    service, deaf = FakeService(destructor="sync ok"), Stubborn(object())
    pool = make_pool(**service.hooks(), before_acquire=deaf, max_size=1)
    pool.release(await pool.acquire())
    task = acquiring(pool, timeout=1)
    await settle()
    await make_leave(task, pool, leave, timeout=1)
    await outcome(task)
    pool.activate()
    await advance(1)  # the hook has had its chance
    assert service.destroyed == service.made
    await give_all(pool, await take_all(pool, 1))
    deaf.let_go.set()
    await settle()


@virtual_time
@pytest.mark.parametrize("hook", ["swallows", "deaf"])
async def test_a_release_whose_hook_hides_its_timeout_is_rejected(make_pool, hook):
    service, strategy, deaf = (
        FakeService(destructor="sync ok"),
        RecordingStrategy(),
        Stubborn(object()),
    )
    before_release = swallow if hook == "swallows" else deaf
    pool = make_pool(
        **service.hooks(), before_release=before_release, hook_timeout=1, strategy=strategy
    )
    resource = await pool.acquire()
    returned = asyncio.ensure_future(pool.release(resource))
    await advance(2)
    assert returned.done()
    await returned
    assert service.destroyed == [resource]
    (error,) = strategy.reports
    assert isinstance(error, TimeoutError)
    assert isinstance(error, cenote.PoolError)
    deaf.let_go.set()
    await settle()


@virtual_time
@pytest.mark.parametrize("hook", ["swallows", "deaf", "obeys"])
async def test_a_destructor_past_its_timeout_is_abandoned_and_raises_nothing(make_pool, hook):
    deaf = Stubborn(object())

    async def obey(resource):
        await hang()

    destructor = {"swallows": swallow, "deaf": deaf, "obeys": obey}[hook]
    pool = make_pool(object, destructor=destructor, destructor_timeout=3, max_size=1)
    begin = asyncio.get_running_loop().time()
    await pool.discard(await pool.acquire())
    assert asyncio.get_running_loop().time() - begin == 3
    assert (pool.count, pool.stats().destroying) == (0, 0)
    deaf.let_go.set()
    await settle()


@pytest.mark.parametrize("hook", ["factory", "before_acquire", "before_release", "destructor"])
async def test_a_task_cancelled_during_its_hook_is_cancelled(make_pool, hook):
    doors = Gate()
    hooks = {"factory": object, hook: doors}
    pool = make_pool(**hooks, max_size=1)

    async def use():
        async with pool.acquire():
            pass
        async with pool.acquire() as resource:
            await pool.discard(resource)

    task = asyncio.create_task(use())
    await settle()
    assert len(doors.calls) == 1
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    for call in doors.calls:
        if not call.done():
            call.set_result("made")
    closing = asyncio.create_task(pool.close())
    await settle()
    for call in doors.calls:
        if not call.done():
            call.set_result("made")
    await closing


SIZE = 2
TARGET, INTERVAL = 1.0, 5.0  # of a pool that sheds

Act = Callable[["Victim"], None]


class Victim:
    """A task that uses the pool once; at its k-th suspension something happens to it."""

    def __init__(self, pool: Pool, point: int, leave: tuple[Act, str]) -> None:
        self.pool = pool
        self.source: Any = pool  # or a lane of it
        self.point = point
        self.act, self.moment = leave
        self.suspensions = 0
        self.task: asyncio.Task[None] | None = None
        self.helpers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.task = asyncio.create_task(self._run(), name="victim")

    async def _run(self) -> None:
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        """Drives `_use` by hand and counts how often it suspends."""
        steps = self._use().__await__()
        advance = steps.send
        argument: Any = None
        while True:
            try:
                awaited = advance(argument)
            except StopIteration:
                return
            self.suspensions += 1
            self._strike(awaited)
            try:
                argument, advance = (yield awaited), steps.send
            except BaseException as error:
                argument, advance = error, steps.throw

    async def _use(self) -> None:
        async with self.source.acquire(timeout=50):
            await asyncio.sleep(0)

    def _strike(self, awaited: asyncio.Future[Any] | None) -> None:
        loop = asyncio.get_running_loop()
        if self.moment == "again and again" and self.suspensions >= self.point > 0:
            self.act(self)
            loop.call_soon(self.act, self)
        elif self.suspensions != self.point:
            return
        elif self.moment == "granted" and awaited is not None:
            # What it waits for has come, but it has not run yet.
            awaited.add_done_callback(lambda _: self.act(self))
        else:
            loop.call_soon(self.act, self)


def cancel(victim: Victim) -> None:
    victim.task.cancel()


def time_out(victim: Victim) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.jump(loop.time() + 50)


def open_breaker(victim: Victim) -> None:
    victim.pool.deactivate()


def close_pool(victim: Victim) -> None:
    victim.helpers.append(asyncio.create_task(victim.pool.close()))


LEFT_WITH = {
    cancel: asyncio.CancelledError,
    time_out: cenote.AcquireTimeoutError,
    open_breaker: cenote.ServiceUnavailableError,
    close_pool: cenote.PoolClosedError,
}


async def use(source: Any) -> None:
    async with source.acquire():
        await asyncio.sleep(0)


async def uncontended(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    victim.start()
    return []


async def idle(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    await give_all(pool, await take_all(pool, SIZE))
    victim.start()
    return []


async def handed(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    """The first in the queue; with a hook that rejects, it makes one in its slot."""
    return await queued(pool, victim, before=0, behind=1)


async def contended(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    return await queued(pool, victim, before=2, behind=2)


async def queued(
    pool: Pool, victim: Victim, *, before: int, behind: int
) -> list[asyncio.Task[None]]:
    held = await take_all(pool, SIZE)
    others = [asyncio.create_task(use(pool)) for _ in range(before)]
    await asyncio.sleep(0)
    victim.start()
    await asyncio.sleep(0)
    others += [asyncio.create_task(use(pool)) for _ in range(behind)]
    await settle()
    await give_all(pool, held)
    return others


async def creation_under_way(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    creator = asyncio.create_task(use(pool))
    await asyncio.sleep(0)
    creator.cancel()
    victim.start()
    await outcome(creator)
    return [asyncio.create_task(use(pool))]


async def parked(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    """In a full lane, between others of the lane and of none."""
    victim.source = lane = pool.lane("full", max_size=1, priority=-1)
    held = await take_all(lane, 1) + await take_all(pool, SIZE - 1)
    others = [asyncio.create_task(use(lane))]
    await asyncio.sleep(0)
    victim.start()
    await asyncio.sleep(0)
    others += [asyncio.create_task(use(source)) for source in (lane, pool)]
    await settle()
    await give_all(pool, held)
    return others


async def overloaded(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    """Those who have waited for long are shed, one who came late is served."""
    victim.source = pool.lane("old", max_size=1)
    held = await take_all(pool, SIZE)
    others = [asyncio.create_task(use(pool))]
    await asyncio.sleep(0)
    victim.start()
    await asyncio.sleep(0)
    others += [asyncio.create_task(use(victim.source))]
    await advance(INTERVAL)
    others += [asyncio.create_task(use(pool))]
    await settle()
    await give_all(pool, held)
    return others


async def run(make_pool: Any, modes: Modes, scenario: Any, leave: tuple[Act, str], k: int) -> int:
    """One run, in which the victim leaves at its k-th suspension; gives how many it had."""
    service = FakeService(**dict(zip(HOOKS, modes, strict=True)))
    target = TARGET if scenario is overloaded else None
    pool = make_pool(**service.hooks(), max_size=SIZE, queue_target=target, queue_interval=INTERVAL)
    victim = Victim(pool, k, leave)
    others = await scenario(pool, victim)
    result = await outcome(victim.task)
    endings = [await outcome(task) for task in others]
    for helper in victim.helpers:
        await helper
    await settle()

    act, moment = leave
    left_with = LEFT_WITH[act]
    left = result is left_with or isinstance(result, left_with)
    assert victim.suspensions >= k
    assert left or result is None or is_shed(result), result
    if k and (act is cancel or (k == 1 and moment != "granted" and scenario in QUEUED)):
        assert left
    for ending in endings:
        shared = act in (open_breaker, close_pool) and isinstance(ending, left_with)
        assert ending is None or shared or is_shed(ending), ending
    shed = sum(map(is_shed, [result, *endings]))
    counted = pool.stats().refused["shed"]
    assert shed <= counted <= shed + left  # one that was cancelled as well sees only that
    assert shed >= 2 or k or scenario is not overloaded
    stats = pool.stats()
    assert (stats.active, stats.waiting, stats.creating, stats.destroying) == (0, 0, 0, 0), stats

    for lane in pool.lanes():
        assert (lane.active_count, lane.waiting_count) == (0, 0), lane

    if not pool.closed:
        pool.activate()
        await give_all(pool, await take_all(pool, SIZE))
        for lane in pool.lanes():
            await give_all(pool, await take_all(lane, lane.max_size))
        await pool.close()
        await settle()
    stats = pool.stats()
    assert stats.created == sum(stats.destroyed.values()) == len(service.destroyed), stats
    assert service.live == 0
    assert service.peak <= SIZE
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return victim.suspensions


def is_shed(ending: Any) -> bool:
    return isinstance(ending, cenote.PoolOverloadedError) and ending.reason == "shed"


QUEUED = handed, contended, parked, overloaded  # where it waits for what comes back


@pytest.mark.parametrize(
    "scenario",
    [
        uncontended,
        idle,
        handed,
        contended,
        creation_under_way,
        parked,
        pytest.param(overloaded, marks=virtual_time),
    ],
    ids=lambda scenario: scenario.__name__,
)
@pytest.mark.parametrize(
    "leave",
    [
        (cancel, "suspended"),
        (cancel, "granted"),
        (cancel, "again and again"),
        pytest.param((time_out, "suspended"), marks=virtual_time),
        pytest.param((time_out, "granted"), marks=virtual_time),
        (open_breaker, "suspended"),
        (open_breaker, "granted"),
        (close_pool, "suspended"),
        (close_pool, "granted"),
    ],
    ids=lambda leave: f"{leave[0].__name__} {leave[1]}",
)
@pytest.mark.parametrize("factory", ["sync ok", "async ok"])
async def test_leaving_at_any_suspension_loses_nothing(make_pool, scenario, leave, factory):
    verdicts = [None, "sync no", "async ok", "async no"]
    destructors = ["sync ok", "async ok"]
    for modes in itertools.product([factory], verdicts, verdicts, destructors):
        suspensions = await run(make_pool, modes, scenario, leave, 0)
        assert suspensions > 0
        for k in range(1, suspensions + 1):
            try:
                await run(make_pool, modes, scenario, leave, k)
            except BaseException as error:
                error.add_note(f"at suspension {k} of {suspensions}, with {modes}")
                raise
