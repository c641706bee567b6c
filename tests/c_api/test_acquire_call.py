"""`acquire_call`, which reports to a callback.

The probe itself checks that no callback is called inside of it.
"""

import asyncio
import gc
import math
import re
import sys

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Thing, styled
from tests.support.probe import (
    called,
    native_only,
    only,
)

pytestmark = native_only


@pytest.mark.parametrize("state", ["new", "idle"])
async def test_acquire_call_gives_a_resource_later(make_c, probe, state):
    pool, _ = make_c()
    if state == "idle":
        pool.release(await pool.acquire())
    plan = probe.Plan()
    probe.acquire_call(pool, -1.0, plan)
    assert (plan.log, plan.freed) == ([], 0)
    await settle()
    resource = only(plan.log, "resource")
    assert plan.freed == 1
    assert pool.active_count == 1
    [holder] = pool.holders()
    assert holder.resource is resource
    assert holder.file == __file__
    pool.release(resource)


async def test_acquire_call_waits_its_turn(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plans = [probe.Plan() for _ in range(3)]
    for plan in plans:
        probe.acquire_call(pool, math.inf, plan)
    await settle()
    assert probe.waiting_count(pool) == 3
    for plan in plans:
        assert (plan.log, plan.freed) == ([], 0)
        pool.release(resource)
        await settle()
        assert only(plan.log, "resource") is resource
        assert plan.freed == 1
    pool.release(resource)


async def test_acquire_call_with_an_async_factory(make_pool, probe):
    pool = make_pool(styled("async", Thing))
    plan = probe.Plan()
    probe.acquire_call(pool, 5.0, plan)
    await settle()
    pool.release(only(plan.log, "resource"))


@pytest.mark.skipif(
    not hasattr(asyncio, "eager_task_factory"), reason="eager tasks came with Python 3.12"
)
async def test_acquire_call_calls_later_even_if_tasks_are_eager(make_c, probe):
    pool, _ = make_c()
    pool.release(await pool.acquire())
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    plan = probe.Plan()
    probe.acquire_call(pool, -1.0, plan)
    assert plan.log == []
    await settle()
    pool.release(only(plan.log, "resource"))


async def test_the_callback_may_release_at_once(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    plan.call = lambda name, resource: probe.release(pool, resource)
    probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert called(plan) == ["resource"]
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_the_callback_may_acquire_again(make_c, probe):
    pool, _ = make_c(max_size=1)
    plans = [probe.Plan() for _ in range(5)]
    rest = iter(plans[1:])

    def again(name, resource):
        probe.release(pool, resource)
        if (plan := next(rest, None)) is not None:
            plan.call = again
            probe.acquire_call(pool, -1.0, plan)

    plans[0].call = again
    probe.acquire_call(pool, -1.0, plans[0])
    await settle()
    assert [(called(plan), plan.freed) for plan in plans] == [(["resource"], 1)] * 5


@pytest.mark.virtual_time
async def test_acquire_call_times_out(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan = probe.Plan()
    probe.acquire_call(pool, 5.0, plan)
    await advance(4.9)
    assert plan.log == []
    await advance(0.1)
    error = only(plan.log, "error")
    assert isinstance(error, cenote.AcquireTimeoutError)
    assert [holder.resource for holder in error.holders] == [resource]
    assert plan.freed == 1
    pool.release(resource)
    await settle()
    assert called(plan) == ["error"]


async def test_acquire_call_reports_the_error_of_the_factory(make_c, probe):
    pool, handlers = make_c()
    handlers.factory, handlers.error = probe.RAISE, OSError("down")
    plan = probe.Plan()
    probe.acquire_call(pool, -1.0, plan)
    await settle()
    assert only(plan.log, "error") is handlers.error
    assert plan.freed == 1


async def test_acquire_call_reports_a_closed_pool_and_an_open_breaker(make_c, probe):
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plans = [probe.Plan() for _ in range(4)]
    probe.acquire_call(pool, -1.0, plans[0])
    await settle()
    pool.deactivate()
    probe.acquire_call(pool, -1.0, plans[1])
    await settle()
    pool.activate()
    probe.acquire_call(pool, -1.0, plans[2])
    await settle()
    await pool.close()
    probe.acquire_call(pool, -1.0, plans[3])
    await settle()
    errors = [type(only(plan.log, "error")) for plan in plans]
    unavailable, closed = cenote.ServiceUnavailableError, cenote.PoolClosedError
    assert errors == [unavailable, unavailable, closed, closed]
    assert [plan.freed for plan in plans] == [1] * 4
    pool.release(resource)


async def test_a_hook_that_raises_generator_exit_loses_no_slot(make_c, probe):
    """Found by fuzzing: the acquire stayed in the queue, and was handed the next resource."""
    pool, handlers = make_c(max_size=1)
    resource = await pool.acquire()
    plan = probe.Plan()
    probe.acquire_call(pool, math.inf, plan)
    await settle()
    handlers.before_acquire, handlers.error = probe.RAISE, GeneratorExit
    asyncio.get_running_loop().set_exception_handler(lambda loop, report: None)
    pool.release(resource)
    await settle()
    assert isinstance(only(plan.log, "error"), GeneratorExit)
    assert (pool.waiting_count, pool.active_count, pool._engine.core.granted_count) == (0, 0, 0)
    handlers.before_acquire = probe.WELL
    pool.release(await pool.acquire(timeout=0))


@pytest.mark.parametrize(
    ("mode", "kind", "message"),
    [
        ("RAISE", KeyError, "mine"),
        ("CONTRADICT", KeyError, "mine"),
        ("SILENT", SystemError, "the C completion callback .* failed without an exception"),
    ],
)
async def test_a_callback_that_fails_is_reported(make_c, probe, monkeypatch, mode, kind, message):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable))
    pool, _ = make_c()
    plan = probe.Plan()
    plan.completion, plan.error = getattr(probe, mode), KeyError("mine")
    probe.acquire_call(pool, -1.0, plan)
    await settle()
    [unraisable] = reported
    assert unraisable.exc_type is kind
    assert re.search(message, str(unraisable.exc_value))
    assert (called(plan), plan.freed) == (["resource"], 1)
    assert pool.active_count == 1  # it was told of it, and it is its own
    pool.release(plan.log[0][1])
    reported.clear()


def test_acquire_call_needs_a_running_loop(probe):
    pool, plan = cenote.Pool(Thing), probe.Plan()
    with pytest.raises(RuntimeError, match="no running event loop"):
        probe.acquire_call(pool, -1.0, plan)
    gc.collect()
    assert (plan.log, plan.freed) == ([], 1)


async def test_acquire_call_needs_a_callback(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    with pytest.raises(ValueError, match="callback"):
        probe.acquire_call(pool, -1.0, plan, False)
    assert plan.freed == 1


async def test_acquire_call_needs_no_user_data(make_c, probe):
    pool, _ = make_c(max_size=1)
    with pytest.raises(TypeError):
        probe.acquire_call(pool, "soon", probe.NULL)
    with pytest.raises(TypeError):
        probe.acquire_call(3, -1.0, probe.NULL)
