"""User data lives as long as it is needed, and is freed once."""

import asyncio
import gc
import sys

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import Thing, drop, forget, obtain, raising
from tests.support.probe import (
    ALL,
    called,
    native_only,
)

pytestmark = native_only


async def test_user_data_lives_as_long_as_the_pool(probe):
    plan = probe.Plan()
    pool = probe.pool_new_c(plan, ALL, {})
    pool.release(await pool.acquire())
    await pool.close()
    gc.collect()
    assert plan.freed == 0
    del pool
    gc.collect()
    assert plan.freed == 1
    assert called(plan)[-1] == "destructor"


def test_user_data_of_an_unused_pool_is_freed(probe):
    plan = probe.Plan()
    probe.pool_new_c(plan, ALL, {})
    gc.collect()
    assert plan.freed == 1


@pytest.mark.parametrize("options", [{"max_size": 0}, {"colour": "blue"}, {"min_size": "few"}])
def test_user_data_is_freed_if_the_constructor_fails(probe, options):
    plan = probe.Plan()
    with pytest.raises((TypeError, ValueError)):
        probe.pool_new_c(plan, ALL, options)
    gc.collect()
    assert plan.freed == 1


def test_user_data_is_freed_with_a_cycle(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(plan, ALL, {})]
    box[0].subscribe(lambda event, pool=box[0]: pool)
    drop(box)
    assert plan.freed == 1


async def test_an_unclosed_pool_is_emptied_by_its_c_destructor(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(plan, ALL, {})]
    box[0].release(await box[0].acquire())
    forget(box)
    assert called(plan) == ["factory", "before_release", "destructor"]
    assert plan.freed == 1


def test_user_data_is_freed_after_the_loop(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(plan, ALL, {})]
    asyncio.run(obtain(box[0]))
    forget(box)
    assert plan.freed == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda probe, plan: probe.pool_new_c(plan, None, {}),
        lambda probe, plan: probe.pool_new_c(plan, ALL, {"colour": "blue"}),
        lambda probe, plan: probe.acquire_call(cenote.Pool(Thing), -1.0, plan, False),
        lambda probe, plan: probe.acquire_call(cenote.Pool(Thing), -1.0, plan),
        lambda probe, plan: probe.subscribe(3, plan),
        lambda probe, plan: probe.set_strategy(cenote.Pool(Thing), plan, "success"),
    ],
)
def test_the_free_function_may_call_anything_after_a_failed_call(probe, call):
    """Found by fuzzing: it was called with the exception set."""
    plan, seen = probe.Plan(), []
    plan.at_free = lambda plan: seen.append(probe.pool_check(cenote.Pool(Thing)))
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"\w"):
        call(probe, plan)
    assert seen == [1]
    assert plan.freed == 1


async def test_an_exception_of_what_frees_user_data_is_reported(make_c, probe, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    pool, _ = make_c()
    plan = probe.Plan()
    plan.at_free, plan.leaves = raising(OSError("stuck")), True
    probe.set_strategy(pool, plan, "success failure")
    assert probe.set_strategy(pool, probe.NULL, None) == 0
    assert (plan.freed, reported) == (1, [OSError])


def test_user_data_may_be_left_out(probe):
    with pytest.raises(ValueError, match="max_size"):
        probe.pool_new_c(probe.NULL, "factory", {"max_size": 0})


def run_and_close(main, last):
    """Run `main`, register `last` so late that what it starts has no step, and close the loop."""
    loop = asyncio.SelectorEventLoop()
    loop.set_exception_handler(lambda loop, report: None)  # of tasks that are destroyed

    async def both():
        await main()
        loop.call_soon(last)

    loop.run_until_complete(both())
    loop.close()


def nothing():
    pass


@pytest.mark.filterwarnings("ignore:coroutine 'Tickets._drive' was never awaited:RuntimeWarning")
def test_user_data_is_freed_if_its_loop_never_runs(probe):
    plan = probe.Plan()
    box = [probe.pool_new_c(probe.Plan(), ALL, {})]

    async def main():
        box[0].release(await box[0].acquire())

    def last():
        box.append(probe.acquire_call(box[0], -1.0, plan))

    run_and_close(main, last)
    assert len(box) == 2
    forget(box)
    assert (plan.log, plan.freed) == ([], 1)


@pytest.mark.parametrize("first", ["ticket", "pool"])
def test_user_data_is_freed_if_its_loop_closes_while_waiting(probe, first):
    plan = probe.Plan()
    box = [probe.pool_new_c(probe.Plan(), ALL, {"max_size": 1})]
    tickets = []

    async def main():
        await box[0].acquire()
        tickets.append(probe.acquire_call(box[0], -1.0, plan))
        await settle()
        assert box[0].waiting_count == 1

    run_and_close(main, nothing)
    assert plan.log == []
    if first == "ticket":
        drop(tickets)
    forget([box.pop(), tickets.pop() if tickets else None])
    assert (plan.log, plan.freed) == ([], 1)


async def test_references_do_not_grow(make_c, probe):
    pool, handlers = make_c(max_size=1)
    resource = await pool.acquire()
    pool.release(resource)
    plan = probe.Plan()

    async def round_trip():
        probe.release(pool, await probe.acquire(pool, -1.0))
        probe.release(pool, probe.try_acquire(pool))
        plan.call = lambda name, resource: probe.release(pool, resource)
        probe.acquire_call(pool, -1.0, plan)
        await settle()
        plan.call = None
        held = probe.try_acquire(pool)
        ticket = probe.acquire_call(pool, -1.0, plan)
        await settle()
        probe.ticket_cancel(ticket)
        await settle()
        probe.release(pool, held)
        probe.set_strategy(pool, plan, "success failure recover")
        probe.unsubscribe(probe.subscribe(pool, plan))
        probe.set_strategy(pool, plan, None)
        plan.log.clear()
        handlers.log.clear()

    def references():
        gc.collect()
        return [sys.getrefcount(each) for each in (resource, plan, handlers, pool)]

    for _ in range(3):
        await round_trip()
    before, freed = references(), plan.freed
    for _ in range(50):
        await round_trip()
    assert references() == before
    assert plan.freed == freed + 50 * 5
