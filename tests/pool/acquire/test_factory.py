"""Where the factory runs, and who gets what it makes."""

import asyncio
import contextvars

import pytest

from cenote.testing import settle
from tests.support.kit import Gate, Thing, acquiring, give_all, make_leave, outcome, take_all

virtual_time = pytest.mark.virtual_time


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
    await make_leave(task, pool, leave, timeout=5)
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


async def test_a_task_factory_that_refuses_costs_no_slot(make_pool):
    async def make():
        return Thing()

    pool = make_pool(make, max_size=1)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))
    try:
        for _ in range(2):
            with pytest.raises(TypeError):
                await pool.acquire()
    finally:
        loop.set_task_factory(None)
    await pool.release(await pool.acquire())
