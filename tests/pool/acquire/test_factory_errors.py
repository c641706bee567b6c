"""A factory that fails, hangs, or answers too late."""

import asyncio
import contextlib

import pytest

import cenote
from cenote.testing import advance, now, settle
from tests.support.kit import (
    Broken,
    FakeService,
    Gate,
    RecordingStrategy,
    Stubborn,
    acquiring,
    give_all,
    outcome,
    queued,
    take_all,
)

virtual_time = pytest.mark.virtual_time
both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


@both_kinds
async def test_a_factory_error_is_raised_and_frees_the_slot(make_pool, kind):
    service = FakeService(f"{kind} fails")
    pool = make_pool(**service.hooks(), max_size=1)
    with pytest.raises(Broken) as raised:
        await pool.acquire()
    assert raised.value is service.errors[0]
    assert pool.stats().creating == 0
    service.heal()
    pool.release(await pool.acquire())


async def test_a_factory_error_goes_to_the_oldest_waiter(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=2)
    tasks = [acquiring(pool), acquiring(pool)]
    await settle()
    error = Broken()
    doors.calls[1].set_exception(error)
    assert await outcome(tasks[0]) is error
    await settle()
    assert not tasks[1].done()
    doors.calls[0].set_result("made")
    assert await tasks[1] == "made"
    pool.release("made")


async def test_the_next_waiter_tries_after_a_factory_error(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=1)
    tasks = [acquiring(pool), acquiring(pool)]
    await settle()
    assert len(doors.calls) == 1
    doors.calls[0].set_exception(Broken())
    assert isinstance(await outcome(tasks[0]), Broken)
    await settle()
    assert len(doors.calls) == 2
    doors.calls[1].set_result("made")
    assert await tasks[1] == "made"
    pool.release("made")


async def test_a_factory_error_reaches_the_waiter_before_the_strategy(make_pool):
    waiting = []

    def open_breaker(pool):
        waiting.append(pool.waiting_count)
        pool.deactivate()

    doors, strategy = Gate(), RecordingStrategy(open_breaker)
    pool = make_pool(doors, max_size=1, strategy=strategy)
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    error = Broken()
    doors.calls[0].set_exception(error)
    assert await outcome(first) is error
    assert isinstance(await outcome(second), cenote.ServiceUnavailableError)
    assert strategy.reports == [error]
    assert waiting == [1]


@both_kinds
async def test_an_acquirer_gets_the_error_that_opened_the_breaker(make_pool, kind):
    service, strategy = (
        FakeService(f"{kind} fails"),
        RecordingStrategy(lambda pool: pool.deactivate()),
    )
    pool = make_pool(**service.hooks(), strategy=strategy)
    with pytest.raises(Broken):
        await pool.acquire()
    assert strategy.reports == service.errors
    assert pool.state is cenote.CircuitState.INACTIVE


@pytest.mark.parametrize("max_size", [1, 3])
@both_kinds
async def test_each_acquirer_gets_an_error_of_a_dead_service(make_pool, kind, max_size):
    service = FakeService(f"{kind} fails")
    pool = make_pool(**service.hooks(), max_size=max_size)
    tasks = [acquiring(pool) for _ in range(10)]
    await settle()
    assert all(task.done() for task in tasks)
    assert {await outcome(task) for task in tasks} == set(service.errors)
    assert len(service.errors) == 10
    assert service.peak <= max_size


@pytest.mark.parametrize("max_size", [1, 3])
@both_kinds
async def test_each_waiter_gets_an_error_when_the_service_dies(make_pool, kind, max_size):
    service = FakeService(f"{kind} ok", destructor="async ok")
    pool = make_pool(**service.hooks(), max_size=max_size)
    held = await take_all(pool, max_size)
    tasks = [acquiring(pool) for _ in range(10)]
    await settle()
    service.modes["factory"] = f"{kind} fails"
    await pool.discard(held.pop())  # one free slot must do for all of them
    await settle()
    assert all(task.done() for task in tasks)
    assert [await outcome(task) for task in tasks] == service.errors
    await give_all(pool, held)


@virtual_time
@both_kinds
async def test_a_drain_does_not_wait_for_a_failed_waiter(make_pool, kind):
    service = FakeService(f"{kind} ok")
    pool = make_pool(**service.hooks(), max_size=1)
    held, waiter = await queued(pool)
    service.modes["factory"] = f"{kind} fails"
    await pool.discard(held)
    assert isinstance(await outcome(waiter), Broken)
    begin = now()
    await pool.close(drain=1000)
    assert now() == begin


@both_kinds
async def test_a_factory_that_returns_none_fails(make_pool, kind):
    async def nothing_async():
        return None

    pool = make_pool(nothing_async if kind == "async" else lambda: None, max_size=1)
    for _ in range(2):
        with pytest.raises(cenote.PoolError, match="factory returned None"):
            await pool.acquire()
    assert pool.stats().created == 0


@virtual_time
async def test_a_factory_past_create_timeout_is_cancelled_and_fails(make_pool):
    service = FakeService("async never")
    pool = make_pool(**service.hooks(), create_timeout=7, max_size=1)
    begin = now()
    with pytest.raises(TimeoutError) as raised:
        await pool.acquire()
    assert isinstance(raised.value, cenote.PoolError)
    assert not isinstance(raised.value, cenote.AcquireTimeoutError)
    assert now() - begin == 7
    assert service.live == 0
    service.heal()
    pool.release(await pool.acquire())


@virtual_time
async def test_each_waiter_of_a_hanging_factory_gets_an_error(make_pool):
    service = FakeService("async never")
    pool = make_pool(**service.hooks(), create_timeout=1, max_size=2)
    tasks = [acquiring(pool) for _ in range(6)]
    await advance(3)
    outcomes = [await outcome(task) for task in tasks]
    assert all(isinstance(error, TimeoutError) for error in outcomes)
    assert len(set(outcomes)) == 6


@virtual_time
async def test_a_resource_made_at_the_cancellation_counts_as_failed(
    make_pool,
):
    destroyed = []

    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"

    pool = make_pool(stubborn, destructor=destroyed.append, create_timeout=1, max_size=1)
    with pytest.raises(TimeoutError, match="create_timeout"):
        await pool.acquire()
    await settle()
    assert destroyed == ["late"]
    assert pool.count == 0


@virtual_time
async def test_an_error_raised_at_the_cancellation_counts_as_timeout(
    make_pool,
):
    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Broken from None

    pool = make_pool(stubborn, create_timeout=1, max_size=1)
    with pytest.raises(TimeoutError, match="create_timeout"):
        await pool.acquire()


@virtual_time
async def test_a_factory_that_ignores_its_cancellation_loses_its_slot(
    make_pool,
):
    destroyed, released = [], asyncio.Event()

    async def deaf():
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return object()

    pool = make_pool(deaf, destructor=destroyed.append, create_timeout=1, max_size=1)
    begin = now()
    with pytest.raises(TimeoutError, match="create_timeout"):
        await pool.acquire()
    assert now() - begin < 2
    assert pool.stats().creating == 0
    released.set()
    resource = await pool.acquire()  # the slot is free: another one is made
    await settle()
    assert len(destroyed) == 1
    assert resource not in destroyed
    assert (pool.count, pool.active_count) == (1, 1)
    pool.release(resource)


@virtual_time
@pytest.mark.parametrize("destructor", [None, "sync", "async"])
async def test_a_resource_that_comes_late_is_counted(make_pool, destructor):
    factory, destroyed, events = Stubborn("late"), [], []

    async def slowly(resource):
        await asyncio.sleep(1)
        destroyed.append(resource)

    hooks = {"sync": destroyed.append, "async": slowly}
    pool = make_pool(factory, destructor=hooks.get(destructor), create_timeout=1)
    pool.subscribe(events.append)
    with pytest.raises(TimeoutError, match="create_timeout"):
        await pool.acquire()
    await advance(8)
    assert (pool.stats().created, len(destroyed)) == (0, 0)
    factory.let_go.set()
    await advance(1)
    assert destroyed == ([] if destructor is None else ["late"])
    assert (pool.stats().created, pool.stats().destroyed) == (1, {"late": 1})
    created, gone = events[-2:]
    assert (created.kind, created.resource) == ("created", "late")
    assert created.duration == pytest.approx(9.1)
    assert (gone.kind, gone.resource, gone.reason) == ("destroyed", "late", "late")


@virtual_time
async def test_a_resource_that_comes_after_close_is_counted(make_pool):
    factory, destroyed = Stubborn("late"), []
    pool = make_pool(factory, destructor=destroyed.append)
    task = asyncio.create_task(pool.acquire())
    await settle()
    await pool.close()
    assert isinstance(await outcome(task), cenote.PoolClosedError)
    assert pool.stats().created == 0
    factory.let_go.set()
    await settle()
    assert destroyed == ["late"]
    assert (pool.stats().created, pool.stats().destroyed) == (1, {"late": 1})


@virtual_time
async def test_a_failing_destructor_of_a_late_resource_is_logged(make_pool, caplog):
    factory, events, fault = Stubborn("late"), [], Broken()

    def destructor(resource):
        raise fault

    pool = make_pool(factory, destructor=destructor, create_timeout=1)
    pool.subscribe(events.append)
    with pytest.raises(TimeoutError, match="create_timeout"):
        await pool.acquire()
    factory.let_go.set()
    await settle()
    assert events[-1].error is fault
    assert "the destructor failed" in caplog.text
