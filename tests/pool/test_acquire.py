"""What acquire and try_acquire promise: who gets what, when, and which error."""

import asyncio
import contextlib
import contextvars
import inspect
import os
import sys

import pytest

import cenote
from tests.support.clock import advance, now, settle
from tests.support.kit import (
    Broken,
    FakeService,
    Gate,
    NumberedThing,
    RecordingStrategy,
    Stubborn,
    acquiring,
    filled,
    give_all,
    line,
    obtain,
    outcome,
    take_all,
)

virtual_time = pytest.mark.virtual_time
both_factories = pytest.mark.parametrize("factory", ["sync ok", "async ok"])
both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


# -- the steps -----------------------------------------------------------------------------------


async def test_acquire_does_nothing_by_itself(make_pool):
    service, events = FakeService(), []
    pool = make_pool(**service.hooks(), min_size=1)
    pool.subscribe(events.append)
    pool.acquire()
    await settle()
    assert service.calls == 0
    assert events == []


@both_factories
async def test_an_awaited_acquire_gives_a_resource_until_it_is_released(make_pool, factory):
    service = FakeService(factory)
    pool = make_pool(**service.hooks())
    resource = await pool.acquire()
    assert resource is service.made[0]
    assert (pool.active_count, pool.idle_count) == (1, 0)
    pool.release(resource)
    assert (pool.active_count, pool.idle_count) == (0, 1)


@both_factories
async def test_a_block_gives_a_resource_and_releases_it(make_pool, factory):
    service = FakeService(factory)
    pool = make_pool(**service.hooks())
    async with pool.acquire() as resource:
        assert resource is service.made[0]
        assert pool.active_count == 1
    assert (pool.active_count, pool.idle_count) == (0, 1)


@pytest.mark.parametrize("timeout", [None, 0, 3])
async def test_a_closed_pool_refuses_first_of_all(make_pool, timeout):
    pool = make_pool(FakeService()._factory_sync)
    pool.deactivate()
    await pool.close()
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire(timeout=timeout)
    with pytest.raises(cenote.PoolClosedError):
        async with pool.acquire(timeout=timeout):
            pass


@pytest.mark.parametrize("timeout", [None, 0, 3])
async def test_an_inactive_pool_refuses_even_what_is_idle(make_pool, timeout):
    pool = await filled(make_pool, FakeService(), 1)
    pool.deactivate()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire(timeout=timeout)
    assert pool.idle_count == 1


async def test_an_idle_resource_is_taken_before_a_new_one(make_pool):
    service = FakeService()
    pool = make_pool(**service.hooks(), max_size=5)
    first = await pool.acquire()
    pool.release(first)
    assert await pool.acquire() is first
    assert service.calls == 1
    pool.release(first)


@both_factories
async def test_a_new_resource_is_not_shown_to_before_acquire(make_pool, factory):
    seen = []
    pool = make_pool(**FakeService(factory).hooks(), before_acquire=seen.append, max_size=2)
    held = await take_all(pool, 2)
    waiter = acquiring(pool)
    await settle()
    await pool.discard(held.pop())  # the waiter gets a new one in its slot
    held.append(await waiter)
    assert seen == []
    await give_all(pool, held)


async def test_a_new_resource_that_was_idle_meanwhile_is_shown(make_pool):
    doors, seen = Gate(), []
    pool = make_pool(doors, before_acquire=seen.append)
    gone = acquiring(pool)
    await settle()
    gone.cancel()
    await settle()
    doors.calls[0].set_result("made")
    await settle()
    assert await pool.acquire() == "made"
    assert seen == ["made"]
    pool.release("made")


@both_kinds
async def test_before_acquire_sees_an_idle_resource_counted_as_active(make_pool, kind):
    seen = []

    def look(resource):
        seen.append((resource, pool.active_count, pool.idle_count, pool.count))

    async def look_async(resource):
        look(resource)

    hook = look if kind == "sync" else look_async
    pool = make_pool(object, before_acquire=hook)
    resource = await pool.acquire()
    assert seen == []  # a new resource is not shown
    pool.release(resource)
    assert await pool.acquire() is resource
    assert seen == [(resource, 1, 0, 1)]
    pool.release(resource)


@pytest.mark.parametrize("answer", [None, True, 0, "", [], "no"])
@both_kinds
async def test_before_acquire_accepts_with_anything_but_false(make_pool, kind, answer):
    async def accept(resource):
        return answer

    pool = make_pool(object, before_acquire=accept if kind == "async" else lambda _: answer)
    resource = await pool.acquire()
    pool.release(resource)
    assert await pool.acquire() is resource
    pool.release(resource)


@both_kinds
@pytest.mark.parametrize("how", ["no", "fails"])
async def test_rejected_idle_resources_are_destroyed_and_the_next_is_taken(make_pool, kind, how):
    service = FakeService(destructor="sync ok")

    def judge(resource):
        if resource.number < 2 and how == "fails":
            raise Broken
        return resource.number >= 2

    async def judge_async(resource):
        return judge(resource)

    hook = judge if kind == "sync" else judge_async
    pool = await filled(make_pool, service, 3, before_acquire=hook)
    resource = await pool.acquire()
    assert resource is service.made[2]
    assert service.destroyed == service.made[:2]
    assert pool.stats().rejected == 2
    assert pool.count == 1
    pool.release(resource)


@both_kinds
async def test_a_new_resource_replaces_rejected_idle_ones(make_pool, kind):
    service = FakeService(before_acquire=f"{kind} no", destructor="sync ok")
    pool = await filled(make_pool, service, 3)
    resource = await pool.acquire()
    assert service.destroyed == service.made[:3]
    assert resource is service.made[3]
    pool.release(resource)


async def test_an_acquire_passes_over_what_became_idle_later(make_pool):
    service, doors = FakeService(), Gate()
    pool = make_pool(**service.hooks(), before_acquire=doors, max_size=3)
    first, second = await take_all(pool, 2)
    pool.release(first)
    task = acquiring(pool)
    await settle()
    pool.release(second)
    doors.calls[0].set_result(False)
    await settle()
    assert task.done()
    assert await task is service.made[2]
    assert pool.idle_count == 1
    pool.release(await task)


@both_factories
async def test_new_resources_are_made_up_to_max_size(make_pool, factory):
    service = FakeService(factory)
    pool = make_pool(**service.hooks(), max_size=2)
    tasks = [acquiring(pool) for _ in range(3)]
    await settle()
    assert [task.done() for task in tasks] == [True, True, False]
    assert (service.calls, pool.waiting_count) == (2, 1)
    pool.release(await tasks[0])
    assert await tasks[2] is await tasks[0]
    await give_all(pool, [await tasks[1], await tasks[2]])


# -- the queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before_acquire", [None, "sync ok", "async ok"])
@both_factories
async def test_waiters_are_served_in_the_order_of_their_coming(make_pool, factory, before_acquire):
    service, served = FakeService(factory, before_acquire=before_acquire), []
    pool = make_pool(**service.hooks(), max_size=2)

    async def use(number):
        async with pool.acquire():
            served.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(number) for number in range(20)))
    assert served == list(range(20))


@both_factories
async def test_a_holder_that_acquires_again_goes_to_the_back(make_pool, factory):
    pool, served = make_pool(**FakeService(factory).hooks(), max_size=1), []

    async def use(name, times):
        for _ in range(times):
            resource = await pool.acquire()
            served.append(name)
            await asyncio.sleep(0)
            pool.release(resource)

    await asyncio.gather(use("greedy", 3), use("second", 1), use("third", 1))
    assert served == ["greedy", "second", "third", "greedy", "greedy"]


@pytest.mark.parametrize("give", ["release", "discard"])
@both_factories
async def test_a_newcomer_in_the_step_of_a_return_waits(make_pool, factory, give):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    getattr(pool, give)(held)
    newcomer = acquiring(pool)
    assert pool.try_acquire() is None
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=0)
    await settle()
    assert waiter.done()
    assert not newcomer.done()
    pool.release(await waiter)
    pool.release(await newcomer)


async def test_a_released_resource_that_is_owed_counts_as_active(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    assert pool.waiting_count == 1
    pool.release(held)
    assert (pool.active_count, pool.idle_count, pool.waiting_count) == (1, 0, 0)
    assert await waiter is held
    pool.release(held)


async def test_surplus_beside_a_waiter_is_open_to_newcomers_at_once(make_pool):
    pool = make_pool(object, max_size=3)
    held = await take_all(pool, 3)
    waiter = acquiring(pool)
    await settle()
    for resource in held:
        pool.release(resource)
    assert pool.try_acquire() is held[1]
    newcomer = pool.acquire().__await__()
    with pytest.raises(StopIteration) as given:
        next(newcomer)  # without a single suspension
    assert given.value.value is held[2]
    assert await waiter is held[0]
    await give_all(pool, held)


@both_factories
async def test_a_waiter_may_leave_in_the_middle(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1)
    held = await pool.acquire()
    tasks = []
    for _ in range(5):
        tasks.append(acquiring(pool))
        await settle()
    tasks[0].cancel()
    tasks[2].cancel()
    tasks[4].cancel()
    await settle()
    assert pool.waiting_count == 2
    pool.release(held)
    pool.release(await tasks[1])
    pool.release(await tasks[3])


# -- leaving after having been handed something ----------------------------------------------------


def cancelled(pool, task):
    task.cancel()


def refused(pool, task):
    pool.deactivate()


leaving = pytest.mark.parametrize("leave", [cancelled, refused])


@leaving
async def test_a_granted_resource_is_idle_again_when_its_waiter_leaves(make_pool, leave):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), max_size=1)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.release(held)
    leave(pool, waiter)
    assert await outcome(waiter) is not held
    assert (pool.idle_count, pool.active_count) == (1, 0)
    assert service.destroyed == []
    pool.activate()
    assert pool.try_acquire() is held
    pool.release(held)


async def test_a_granted_resource_passes_on_when_its_waiter_is_cancelled(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    pool.release(held)
    first.cancel()
    assert await second is held
    assert first.cancelled()
    assert pool.stats().cancelled == 1
    pool.release(held)


@leaving
async def test_a_creation_right_is_free_when_its_waiter_leaves(make_pool, leave):
    service = FakeService()
    pool = make_pool(**service.hooks(), max_size=1)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.discard(held)
    leave(pool, waiter)
    assert await outcome(waiter) is not held
    assert service.calls == 1
    assert pool.stats().creating == 0
    pool.activate()
    pool.release(pool.try_acquire())


async def test_a_creation_right_passes_on_when_its_waiter_is_cancelled(make_pool):
    service = FakeService()
    pool = make_pool(**service.hooks(), max_size=1)
    held = await pool.acquire()
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    pool.discard(held)
    first.cancel()
    assert await second is service.made[1]
    assert first.cancelled()
    pool.release(await second)


async def test_a_granted_resource_is_destroyed_by_close(
    make_pool,
):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), max_size=1)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.release(held)
    await pool.close()
    assert isinstance(await outcome(waiter), cenote.PoolClosedError)
    assert service.destroyed == [held]


@pytest.mark.parametrize(
    "leave", ["cancel", "deactivate", "close", pytest.param("timeout", marks=virtual_time)]
)
@pytest.mark.parametrize("handed", [False, True], ids=["newcomer", "waiter"])
@both_factories
async def test_leaving_during_before_acquire_interrupts_it_and_destroys(
    make_pool, factory, handed, leave
):
    service, interrupted = FakeService(factory, destructor="sync ok"), []

    async def hang(resource):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupted.append(resource)
            raise

    pool = make_pool(**service.hooks(), before_acquire=hang, max_size=1, hook_timeout=1000)
    held = await pool.acquire()
    if not handed:
        pool.release(held)
    waiter = acquiring(pool, timeout=5 if leave == "timeout" else None)
    await settle()
    if handed:
        pool.release(held)
        await settle()
    behind = acquiring(pool)
    await settle()
    assert not waiter.done()
    if leave == "cancel":
        waiter.cancel()
    elif leave == "deactivate":
        pool.deactivate()
    elif leave == "close":
        await pool.close()
    else:
        await advance(5)
    left_with = {
        "cancel": asyncio.CancelledError,
        "deactivate": cenote.ServiceUnavailableError,
        "close": cenote.PoolClosedError,
        "timeout": cenote.AcquireTimeoutError,
    }[leave]
    await settle()
    assert waiter.done()
    result = await outcome(waiter)
    assert result is left_with or isinstance(result, left_with)
    assert interrupted == [held]
    assert service.destroyed == [held]
    if leave in ("cancel", "timeout"):  # its slot went to the next
        assert await behind is service.made[1]
        pool.release(await behind)
    else:
        assert isinstance(await outcome(behind), left_with)
        assert pool.stats().creating == 0


# -- a rejected waiter -----------------------------------------------------------------------------


@both_kinds
@both_factories
async def test_a_rejected_waiter_makes_one_in_its_slot(make_pool, factory, kind):
    service = FakeService(factory, before_acquire=f"{kind} no", destructor="async ok")
    pool = make_pool(**service.hooks(), max_size=1)
    held = await pool.acquire()
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    pool.release(held)
    newcomer = acquiring(pool)
    await settle()
    assert first.done()
    assert await first is service.made[1]
    assert not second.done()
    assert service.destroyed == [held]
    service.heal()
    pool.release(await first)
    pool.release(await second)
    pool.release(await newcomer)
    assert service.peak == 1


@both_factories
async def test_a_rejected_waiter_stays_first_during_the_destruction(make_pool, factory):
    service, doors = FakeService(factory, before_acquire="sync no"), Gate()
    pool = make_pool(**service.hooks(), destructor=doors, max_size=2)
    bad, good = await take_all(pool, 2)
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    pool.release(bad)
    await settle()
    assert pool.waiting_count == 2
    service.heal()
    pool.release(good)
    await settle()
    assert first.done()
    assert await first is good
    assert not second.done()
    doors.calls[0].set_result(None)
    assert await second is service.made[2]
    for resource in (good, await second):
        pool.release(resource)
    closing = asyncio.create_task(pool.close())
    await settle()
    for call in doors.calls[1:]:
        call.set_result(None)
    await closing


@both_factories
async def test_a_rejected_waiter_is_handed_what_became_idle_meanwhile(make_pool, factory):
    """Whichever comes first: what is idle is there already."""
    service, doors = FakeService(factory), Gate()
    pool = make_pool(**service.hooks(), before_acquire=doors, max_size=2)
    bad, other = await take_all(pool, 2)
    waiter = acquiring(pool)
    await settle()
    pool.release(bad)
    await settle()
    pool.release(other)
    doors.calls[0].set_result(False)
    await settle()
    doors.calls[1].set_result(True)
    assert await waiter is other
    assert len(service.made) == 2
    pool.release(await waiter)


# -- creating --------------------------------------------------------------------------------------


async def test_an_async_factory_runs_in_a_task_of_the_pool(make_pool):
    tasks = []

    async def create():
        tasks.append(asyncio.current_task())
        return object()

    pool = make_pool(create)
    pool.release(await pool.acquire())
    assert tasks != [asyncio.current_task()]


variable = contextvars.ContextVar("variable", default="nothing")


@pytest.mark.parametrize("style", ["async def", "returns an awaitable"])
async def test_a_factory_runs_in_the_context_of_the_constructor(make_pool, style):
    seen = []

    async def create():
        seen.append(variable.get())
        variable.set("left by a factory")
        return object()

    variable.set("constructor")
    pool = make_pool(create if style == "async def" else lambda: create())
    variable.set("acquirer")
    held = await take_all(pool, 2)
    assert seen == ["constructor", "constructor"]
    assert variable.get() == "acquirer"
    await give_all(pool, held)


@pytest.mark.parametrize(
    "leave", ["cancel", "deactivate", pytest.param("timeout", marks=virtual_time)]
)
async def test_what_a_gone_acquirer_had_ordered_becomes_idle(make_pool, leave):
    doors = Gate()
    pool = make_pool(doors)
    task = acquiring(pool, timeout=5 if leave == "timeout" else None)
    await settle()
    if leave == "cancel":
        task.cancel()
    elif leave == "deactivate":
        pool.deactivate()
    else:
        await advance(5)
    await settle()
    assert task.done()
    assert await outcome(task) != "made"
    assert pool.stats().creating == 1
    assert not doors.calls[0].done()
    doors.calls[0].set_result("made")
    await settle()
    assert pool.idle_count == 1
    pool.activate()
    assert pool.try_acquire() == "made"
    pool.release("made")


async def test_a_newcomer_rides_on_the_creation_of_a_cancelled_acquirer(make_pool):
    doors = Gate()
    pool = make_pool(doors)
    gone = acquiring(pool)
    await settle()
    gone.cancel()
    await settle()
    rider = acquiring(pool)
    await settle()
    assert len(doors.calls) == 1
    doors.calls[0].set_result("made")
    assert await rider == "made"
    pool.release("made")


async def test_the_creation_of_a_cancelled_acquirer_passes_on(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=1)
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    first.cancel()
    await settle()
    assert len(doors.calls) == 1
    doors.calls[0].set_result("made")
    assert await second == "made"
    pool.release("made")


async def test_a_waiter_takes_a_release_during_its_creation(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=2)
    holder = acquiring(pool)
    await settle()
    doors.calls[0].set_result("old")
    held = await holder
    waiter = acquiring(pool)
    await settle()
    assert len(doors.calls) == 2
    pool.release(held)
    assert await waiter == "old"
    assert pool.stats().creating == 1
    doors.calls[1].set_result("new")
    await settle()
    assert pool.idle_count == 1
    pool.release("old")


async def test_a_waiter_takes_the_new_resource_if_that_comes_first(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=2)
    tasks = [acquiring(pool), acquiring(pool)]
    await settle()
    doors.calls[1].set_result("second factory")
    await settle()
    assert tasks[0].done()  # the oldest waiter, though its own factory is still at work
    assert await tasks[0] == "second factory"
    assert not tasks[1].done()
    pool.release("second factory")
    assert await tasks[1] == "second factory"
    doors.calls[0].set_result("first factory")
    await settle()
    assert pool.idle_count == 1
    pool.release("second factory")


# -- a factory that fails --------------------------------------------------------------------------


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
    held = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
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


# -- the timeout -----------------------------------------------------------------------------------


@virtual_time
@pytest.mark.parametrize(
    ("default", "given", "after"),
    [(None, {"timeout": 3}, 3), (4, {}, 4), (4, {"timeout": 3}, 3), (4, {"timeout": 6}, 6)],
)
@both_factories
async def test_acquire_gives_up_at_its_deadline(make_pool, factory, default, given, after):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1, acquire_timeout=default)
    held = await pool.acquire()
    begin = now()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(**given)
    assert now() - begin == after
    assert pool.waiting_count == 0
    assert pool.stats().timeouts == 1
    pool.release(held)


@virtual_time
@pytest.mark.parametrize(("default", "given"), [(None, {}), (4, {"timeout": None})])
async def test_acquire_waits_without_end_without_a_timeout(make_pool, default, given):
    pool = make_pool(object, max_size=1, acquire_timeout=default)
    held = await pool.acquire()
    task = acquiring(pool, **given)
    await advance(1_000_000)
    assert not task.done()
    pool.release(held)
    assert await task is held
    pool.release(held)


@virtual_time
async def test_the_timeout_bounds_an_async_factory(make_pool):
    pool = make_pool(**FakeService("async never").hooks(), create_timeout=50)
    begin = now()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=3)
    assert now() - begin == 3


@virtual_time
async def test_the_timeout_bounds_an_async_before_acquire(make_pool):
    service = FakeService(before_acquire="async never")
    pool = await filled(make_pool, service, 1, hook_timeout=50)
    begin = now()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=3)
    assert now() - begin == 3


@virtual_time
async def test_one_deadline_bounds_wait_hook_and_factory_together(make_pool):
    service = FakeService("async ok", before_acquire="async no")
    pool = make_pool(**service.hooks(), max_size=1)
    held = await pool.acquire()
    service.modes = {"factory": "async slow", "before_acquire": "async slow"}
    begin = now()
    task = acquiring(pool, timeout=5)  # 2 s of waiting, 2 s of the hook, 1 of 2 s of the factory
    await advance(2)

    def reject(hook):
        return hook != "before_acquire"

    service._act = reject
    pool.release(held)
    assert isinstance(await outcome(task), cenote.AcquireTimeoutError)
    assert now() - begin == 5
    assert service.calls == 2


@virtual_time
async def test_one_deadline_bounds_any_number_of_rejections(make_pool):
    service = FakeService(before_acquire="async ok")
    pool = await filled(make_pool, service, 8)
    service.modes["before_acquire"] = "async slow"
    service._act = lambda hook: False
    begin = now()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=5)
    assert now() - begin == 5
    assert pool.stats().rejected == 2


@virtual_time
async def test_a_served_acquire_leaves_no_timer_that_fails_it_later(make_pool):
    pool = make_pool(**FakeService("async slow").hooks(), max_size=1)
    async with pool.acquire(timeout=5):
        await advance(100)
        assert pool.active_count == 1
    assert pool.idle_count == 1
    assert pool.stats().timeouts == 0


@virtual_time
async def test_a_release_in_the_instant_of_a_deadline_loses_nothing(
    make_pool,
):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    task = acquiring(pool, timeout=5)
    await settle()
    asyncio.get_running_loop().call_later(5, pool.release, held)
    await advance(5)
    result = await outcome(task)
    if result is held:
        pool.release(held)
    assert pool.idle_count == 1


# -- timeout=0 -------------------------------------------------------------------------------------


async def test_timeout_0_gives_an_idle_resource(make_pool):
    service = FakeService("async ok")
    pool = await filled(make_pool, service, 1)
    assert await pool.acquire(timeout=0) is service.made[0]
    pool.release(service.made[0])


async def test_timeout_0_gives_what_a_sync_factory_makes(make_pool):
    pool = make_pool(object, max_size=1)
    resource = await pool.acquire(timeout=0)
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=0)
    pool.release(resource)


async def test_timeout_0_raises_what_a_sync_factory_raises(make_pool):
    pool = make_pool(**FakeService("sync fails").hooks(), max_size=1)
    with pytest.raises(Broken):
        await pool.acquire(timeout=0)


@pytest.mark.parametrize("style", ["async def", "returns an awaitable"])
async def test_timeout_0_does_not_start_an_async_factory(make_pool, style):
    started = []

    async def create():
        started.append(True)
        return object()

    pool = make_pool(create if style == "async def" else lambda: create())
    for _ in range(2):
        with pytest.raises(cenote.AcquireTimeoutError):
            await pool.acquire(timeout=0)
    await settle()
    assert started == []
    assert pool.stats().creating == 0


async def test_timeout_0_never_queues(make_pool):
    pool, events = make_pool(object, max_size=1), []
    held = await pool.acquire()
    pool.subscribe(lambda event: events.append(event.kind))
    with pytest.raises(cenote.AcquireTimeoutError):
        next(pool.acquire(timeout=0).__await__())  # without a single suspension
    assert events == ["timeout"]
    pool.release(held)


@virtual_time
async def test_timeout_0_gives_an_async_hook_all_of_hook_timeout(make_pool):
    service = FakeService(before_acquire="async slow")
    pool = await filled(make_pool, service, 1)
    begin = now()
    assert await pool.acquire(timeout=0) is service.made[0]
    assert now() - begin == 2
    pool.release(service.made[0])


@virtual_time
@both_factories
async def test_timeout_0_goes_on_after_a_hook_past_hook_timeout(make_pool, factory):
    service = FakeService(factory, before_acquire="async never")
    pool = await filled(make_pool, service, 2, hook_timeout=3)
    begin = now()
    if factory == "sync ok":
        resource = await pool.acquire(timeout=0)
        assert resource is service.made[2]
        pool.release(resource)
    else:
        with pytest.raises(cenote.AcquireTimeoutError):
            await pool.acquire(timeout=0)
    assert now() - begin == 6
    assert pool.stats().rejected == 2


# -- what the timeout error says -------------------------------------------------------------------


@virtual_time
async def test_the_timeout_error_lists_holders_longest_first(make_pool):
    pool = make_pool(object, max_size=2, name="db")
    older = await acquiring(pool, "older")
    await advance(3)
    newer = await acquiring(pool, "newer")
    file, place = obtain.__code__.co_filename, inspect.getsourcelines(obtain)[1] + 2
    patient = acquiring(pool)
    await settle()
    with pytest.raises(cenote.AcquireTimeoutError) as raised:
        await pool.acquire(timeout=2)
    holders = raised.value.holders
    assert [(holder.task, holder.seconds) for holder in holders] == [("older", 5), ("newer", 2)]
    assert [holder.resource for holder in holders] == [older, newer]
    assert {(holder.file, holder.line) for holder in holders} == {(file, place)}
    text = str(raised.value)
    assert "pool 'db'" in text
    assert "2 active, 0 idle, 2 waiting" in text
    assert (
        f"task 'older' for 5.0 s ({file}:{place}); task 'newer' for 2.0 s ({file}:{place})"
    ) in text
    pool.release(older)
    pool.release(newer)
    pool.release(await patient)


@virtual_time
async def test_a_holder_has_the_calls_place_and_awaiting_task(make_pool):
    pool = make_pool(object, max_size=1)
    acquire, here = pool.acquire(), line()

    async def elsewhere():
        return await acquire

    held = await asyncio.create_task(elsewhere(), name="awaiter")
    with pytest.raises(cenote.AcquireTimeoutError) as raised:
        await pool.acquire(timeout=1)
    (holder,) = raised.value.holders
    assert (holder.task, holder.file, holder.line) == ("awaiter", __file__, here)
    pool.release(held)


async def test_frames_of_contextlib_are_not_the_place_of_an_acquire(make_pool):
    pool, acquires = make_pool(object, max_size=1), []
    stack = contextlib.ExitStack()
    stack.callback(acquires.extend, map(pool.acquire, [None]))  # called by contextlib itself
    stack.close(); here = line()  # fmt: skip  # noqa: E702
    held = await acquires[0]
    (holder,) = pool.holders()
    assert (holder.file, holder.line) == (__file__, here)
    pool.release(held)


async def test_frames_of_asyncio_are_not_the_place_of_an_acquire(make_pool):
    pool, acquires = make_pool(object, max_size=1), []
    asyncio.get_running_loop().call_soon(acquires.extend, map(pool.acquire, [None]))
    await settle()
    held = await acquires[0]
    (holder,) = pool.holders()
    assert "asyncio" not in holder.file
    assert not holder.file.startswith(os.path.dirname(cenote.__file__))
    pool.release(held)


@virtual_time
async def test_a_timeout_has_the_last_factory_error_as_cause(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=1)
    first, second = acquiring(pool), acquiring(pool, timeout=5)
    await advance(1)
    error = Broken()
    doors.calls[0].set_exception(error)
    assert await outcome(first) is error
    timeout = await outcome(second)
    assert isinstance(timeout, cenote.AcquireTimeoutError)
    assert timeout.__cause__ is error


@virtual_time
@pytest.mark.parametrize("pause", [0, 1])
async def test_a_factory_error_before_the_wait_is_no_cause(make_pool, pause):
    doors = Gate()
    pool = make_pool(doors, max_size=1)
    first = acquiring(pool)
    await settle()
    doors.calls[0].set_exception(Broken())
    assert isinstance(await outcome(first), Broken)
    await advance(pause)
    with pytest.raises(cenote.AcquireTimeoutError) as raised:
        await pool.acquire(timeout=5)
    assert raised.value.__cause__ is None


# -- deadlock --------------------------------------------------------------------------------------


async def test_a_task_that_waits_for_itself_is_deadlocked(make_pool):
    pool = make_pool(object, max_size=1)

    async def nest():
        async with pool.acquire(), pool.acquire():
            pass

    task = asyncio.create_task(nest(), name="nested")
    await settle()
    assert task.done()
    error = await outcome(task)
    assert isinstance(error, cenote.PoolDeadlockError)
    assert "'nested'" in str(error)
    assert (pool.idle_count, pool.waiting_count) == (1, 0)


async def circle(pool, timeouts):
    """Tasks that each hold one resource and then, one after the other, ask for a second."""

    async def nest(turn, timeout):
        async with pool.acquire():
            await turn.wait()
            async with pool.acquire(timeout=timeout):
                pass

    turns = [asyncio.Event() for _ in timeouts]
    tasks = [
        asyncio.create_task(nest(turn, timeout), name=f"task {number}")
        for number, (turn, timeout) in enumerate(zip(turns, timeouts, strict=True))
    ]
    for turn in turns:
        await settle()
        turn.set()
    await settle()
    return tasks


@both_factories
async def test_only_the_acquire_that_completes_a_circle_raises(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=3)
    tasks = await circle(pool, [None, None, None])
    assert tasks[2].done()
    error = await outcome(tasks[2])
    assert isinstance(error, cenote.PoolDeadlockError)
    for task in tasks:
        assert repr(task.get_name()) in str(error)
    assert [await outcome(task) for task in tasks[:2]] == [None, None]


@virtual_time
@pytest.mark.parametrize("timeouts", [(5, None), (None, 5)], ids=["first", "last"])
async def test_a_timeout_in_a_circle_is_a_deadlock(make_pool, timeouts):
    pool = make_pool(object, max_size=2)
    tasks = await circle(pool, timeouts)
    assert not any(task.done() for task in tasks)
    await advance(5)
    error = await outcome(tasks[timeouts.index(5)])
    assert isinstance(error, cenote.AcquireTimeoutError)
    assert "deadlock" in str(error).lower()
    assert await outcome(tasks[timeouts.index(None)]) is None


@virtual_time
async def test_a_timeout_without_a_circle_is_no_deadlock(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    with pytest.raises(cenote.AcquireTimeoutError) as raised:
        await pool.acquire(timeout=1)
    assert "deadlock" not in str(raised.value).lower()
    pool.release(held)


async def test_a_resource_without_a_block_may_come_back(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    asyncio.get_running_loop().call_soon(pool.release, held)
    assert await pool.acquire() is held
    pool.release(held)


async def test_nobody_is_deadlocked_while_a_slot_is_closing(make_pool):
    doors = Gate()
    pool = make_pool(object, destructor=doors, max_size=2)
    other = await pool.acquire()

    async def nest():
        async with pool.acquire():
            pool.discard(other)
            async with pool.acquire():
                pass

    task = asyncio.create_task(nest())
    await settle()
    assert not task.done()
    doors.calls[0].set_result(None)
    await task
    closing = asyncio.create_task(pool.close())
    await settle()
    for call in doors.calls[1:]:
        call.set_result(None)
    await closing


async def test_nobody_is_deadlocked_while_a_slot_is_opening(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=2)

    async def nest():
        async with pool.acquire(), pool.acquire():
            pass

    task = asyncio.create_task(nest())
    await settle()
    doors.calls[0].set_result("first")
    await settle()
    assert not task.done()
    doors.calls[1].set_result("second")
    await task


# -- max_waiting -----------------------------------------------------------------------------------


@both_factories
async def test_more_waiters_than_max_waiting_are_refused_at_once(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1, max_waiting=2)
    held = await pool.acquire()
    tasks = [acquiring(pool), acquiring(pool)]
    await settle()
    for _ in range(2):
        with pytest.raises(cenote.PoolOverloadedError):
            await pool.acquire(timeout=5)
    assert pool.waiting_count == 2
    pool.release(held)
    third = acquiring(pool)  # one that was handed something waits no more
    pool.release(await tasks[0])
    pool.release(await tasks[1])
    pool.release(await third)


async def test_max_waiting_0_serves_what_needs_no_waiting(make_pool):
    pool = make_pool(object, max_size=1, max_waiting=0)
    held = await pool.acquire()
    with pytest.raises(cenote.PoolOverloadedError):
        await pool.acquire()
    pool.release(held)
    pool.release(await pool.acquire())


async def test_a_task_whose_own_creation_runs_counts_for_max_waiting(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=5, max_waiting=1)
    creator = acquiring(pool)
    await settle()
    assert pool.waiting_count == 1
    with pytest.raises(cenote.PoolOverloadedError):
        await pool.acquire()
    assert len(doors.calls) == 1
    doors.calls[0].set_result("made")
    pool.release(await creator)


# -- the price of a cancellation -------------------------------------------------------------------


@pytest.mark.parametrize("place", ["first", "middle", "last"])
async def test_cancelling_costs_the_same_in_a_long_queue(make_pool, place):
    async def lines_run(length):
        pool = make_pool(object, max_size=1)
        held = await pool.acquire()
        queue = [acquiring(pool) for _ in range(length)]
        await settle()
        victim = queue[{"first": 0, "middle": length // 2, "last": -1}[place]]
        count = 0

        def trace(frame, event, argument):
            nonlocal count
            count += event == "line"
            return trace

        victim.cancel()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            sys.settrace(before)
        assert victim.cancelled()
        for task in queue:
            task.cancel()
        await asyncio.wait(queue)
        pool.release(held)
        return count

    await lines_run(3)
    short, long = await lines_run(10), await lines_run(2000)
    assert long <= short + 20


# -- try_acquire -----------------------------------------------------------------------------------


async def test_try_acquire_gives_idle_then_new_then_none(make_pool):
    service = FakeService()
    pool = make_pool(**service.hooks(), max_size=2)
    first = pool.try_acquire()
    pool.release(first)
    assert pool.try_acquire() is first
    second = pool.try_acquire()
    assert second is service.made[1]
    assert pool.try_acquire() is None
    assert service.calls == 2
    await give_all(pool, [first, second])


@pytest.mark.parametrize("style", ["async def", "returns an awaitable"])
async def test_try_acquire_with_an_async_factory_gives_idle_resources_only(make_pool, style):
    service, started = FakeService("async ok"), []

    async def create():
        started.append(True)
        return await service._factory_async()

    pool = make_pool(create if style == "async def" else lambda: create())
    assert pool.try_acquire() is None
    await settle()
    assert started == []
    assert pool.stats().creating == 0
    held = await pool.acquire()
    assert pool.try_acquire() is None
    pool.release(held)
    assert pool.try_acquire() is held
    pool.release(held)


async def test_try_acquire_gives_none_when_closed_and_when_inactive(make_pool):
    pool = await filled(make_pool, FakeService(), 1)
    pool.deactivate()
    assert pool.try_acquire() is None
    assert pool.idle_count == 1
    pool.activate()
    await pool.close()
    assert pool.try_acquire() is None


async def test_try_acquire_lets_factory_errors_through_and_keeps_the_slot(make_pool):
    service, strategy = FakeService("sync fails"), RecordingStrategy()
    pool = make_pool(**service.hooks(), max_size=1, strategy=strategy)
    for _ in range(2):
        with pytest.raises(Broken):
            pool.try_acquire()
    assert strategy.reports == service.errors
    service.heal()
    pool.release(pool.try_acquire())


async def test_try_acquire_refuses_a_none_from_the_factory(make_pool):
    pool = make_pool(lambda: None)
    with pytest.raises(cenote.PoolError, match="factory returned None"):
        pool.try_acquire()


@pytest.mark.parametrize("how", ["no", "fails"])
async def test_try_acquire_asks_a_sync_before_acquire(make_pool, how):
    service = FakeService(before_acquire=f"sync {how}", destructor="sync ok")
    pool = await filled(make_pool, service, 2)
    resource = pool.try_acquire()
    assert resource is service.made[2]  # the two idle ones were rejected
    assert service.destroyed == service.made[:2]
    pool.release(resource)


@pytest.mark.parametrize("style", ["async def", "returns an awaitable"])
async def test_try_acquire_refuses_an_async_before_acquire(make_pool, style):
    service = FakeService(before_acquire="async ok", destructor="sync ok")
    hooks = service.hooks()
    if style == "returns an awaitable":
        hooks["before_acquire"] = lambda resource: service._before_acquire_async(resource)
    pool = make_pool(**hooks)
    await give_all(pool, await take_all(pool, 2))
    with pytest.raises(cenote.PoolError, match=r"acquire\(timeout=0\)"):
        pool.try_acquire()
    assert pool.idle_count == 2
    assert await pool.acquire() is service.made[0]  # its place in the order, too
    pool.release(service.made[0])
    assert service.destroyed == []


async def test_try_acquire_is_seen_as_held_by_the_calling_task(make_pool):
    pool = make_pool(object)
    resource, here = pool.try_acquire(), line()
    (holder,) = pool.holders()
    assert (holder.task, holder.file, holder.line) == ("test", __file__, here)
    pool.release(resource)


async def test_try_acquire_leaves_room_that_waiters_are_owed(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.discard(held)
    assert pool.try_acquire() is None
    pool.release(await waiter)


async def test_try_acquire_in_a_subscriber_leaves_what_waiters_are_owed(make_pool):
    """Told of the destruction in the very step that frees the slot."""
    pool, stolen = make_pool(object, max_size=1), []
    held = await pool.acquire()
    waiter = acquiring(pool)
    await settle()

    def steal(event):
        if event.kind == "destroyed":
            stolen.append(pool.try_acquire())

    unsubscribe = pool.subscribe(steal)
    pool.discard(held)
    unsubscribe()
    assert stolen == [None]
    pool.release(await waiter)


# -- max_size --------------------------------------------------------------------------------------


@pytest.mark.parametrize("destructor", ["sync ok", "async ok"])
@both_factories
async def test_the_backend_never_sees_more_than_max_size(make_pool, factory, destructor):
    service = FakeService(factory, destructor=destructor)
    pool = make_pool(**service.hooks(), max_size=3)

    async def use(number):
        for turn in range(6):
            resource = await pool.acquire()
            assert isinstance(resource, NumberedThing)
            await asyncio.sleep(0)
            if (number + turn) % 3:
                pool.discard(resource)
            else:
                pool.release(resource)

    await asyncio.gather(*(use(number) for number in range(10)))
    assert service.peak == 3
    assert service.live == pool.count


async def test_a_resource_under_destruction_keeps_its_slot(make_pool):
    doors = Gate()
    pool = make_pool(object, destructor=doors, max_size=1)
    pool.discard(await pool.acquire())
    waiter = acquiring(pool)
    await settle()
    assert pool.try_acquire() is None
    assert not waiter.done()
    assert pool.stats().destroying == 1
    doors.calls[0].set_result(None)
    resource = await waiter
    discarded = pool.discard(resource)
    await settle()
    doors.calls[1].set_result(None)
    await discarded
