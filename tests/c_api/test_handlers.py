"""The five handlers that an extension may give to a pool."""

import sys

import pytest

import cenote
from cenote.testing import advance
from tests.support.kit import Thing, obtain, started, styled
from tests.support.probe import CHECKS, called, native_only

pytestmark = native_only


@pytest.mark.virtual_time
async def test_each_of_the_five_handlers_is_called(make_c):
    pool, plan = make_c(healthcheck_interval=10.0)
    resource = await pool.acquire()
    assert plan.log == [("factory", None)]
    pool.release(resource)
    assert plan.log[1:] == [("before_release", resource)]
    await advance(10.0)
    assert plan.log[2:] == [("healthcheck", resource)]
    assert await pool.acquire() is resource
    assert plan.log[3:] == [("before_acquire", resource)]
    pool.discard(resource)
    assert plan.log[4:] == [("destructor", resource)]


async def test_all_but_the_factory_may_be_left_out(make_c):
    pool, plan = make_c("factory", healthcheck_interval=10.0)
    pool.release(await pool.acquire())
    pool.release(await pool.acquire())
    await pool.close()
    assert called(plan) == ["factory"]


@pytest.mark.real_time("the clock of the virtual loop is a Python function")
@pytest.mark.parametrize("through", ["python", "c", "block"])
async def test_c_hooks_run_without_any_python_function(make_c, probe, through):
    pool, plan = make_c()
    pool.release(await pool.acquire())
    plan.log.clear()
    seen = []

    def profile(frame, event, argument):
        if event == "call":
            seen.append(frame.f_code)

    sys.setprofile(profile)
    try:
        if through == "python":
            resource = await pool.acquire()
            pool.release(resource)
        elif through == "c":
            resource = await probe.acquire(pool, -1.0)
            probe.release(pool, resource)
        else:
            async with pool.acquire() as resource:
                pass
    finally:
        sys.setprofile(None)
    assert seen == []
    assert plan.log == [("before_acquire", resource), ("before_release", resource)]


async def test_a_c_factory_that_raises(make_c, probe):
    pool, plan = make_c()
    plan.factory, plan.error = probe.RAISE, OSError("down")
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    plan.factory = probe.WELL
    pool.release(await pool.acquire())


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("SILENT", SystemError, "the C factory of a cenote pool failed without an exception"),
        ("NO", cenote.PoolError, "None"),
        ("CONTRADICT", OSError, "down"),
    ],
)
async def test_a_c_factory_that_does_wrong(make_c, probe, mode, error, message):
    pool, plan = make_c()
    plan.factory, plan.error = getattr(probe, mode), OSError("down")
    with pytest.raises(error, match=message):
        await pool.acquire()
    with pytest.raises(error, match=message):
        pool.try_acquire()
    assert pool.count == 0
    plan.factory = probe.WELL
    pool.release(await pool.acquire())


async def test_a_c_factory_may_return_an_awaitable(make_c, probe):
    pool, plan = make_c()
    plan.factory, plan.given = probe.GIVE, styled("async", Thing)()
    assert isinstance(await pool.acquire(), Thing)
    pool.release(pool.holders()[0].resource)


@pytest.mark.virtual_time
@pytest.mark.parametrize("hook", CHECKS)
async def test_a_c_check_that_says_no(make_c, probe, hook, caplog):
    pool, plan = make_c(healthcheck_interval=10.0)
    resource = await pool.acquire()
    setattr(plan, hook, probe.NO)
    pool.release(resource)
    await advance(10.0 if hook == "healthcheck" else 0.0)
    if hook == "before_acquire":
        assert await pool.acquire() is not resource
        pool.release(pool.holders()[0].resource)
    assert called(plan)[:4].count("destructor") == 1
    reason = "check_failed" if hook == "healthcheck" else "rejected"
    assert pool.stats().destroyed == {reason: 1}
    assert caplog.text == ""
    setattr(plan, hook, probe.WELL)


@pytest.mark.virtual_time
@pytest.mark.parametrize("hook", CHECKS)
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("RAISE", "OSError: broken wire"),
        ("CONTRADICT", "OSError: broken wire"),
        ("SILENT", "SystemError: the C {} of a cenote pool failed without an exception"),
    ],
)
async def test_a_c_check_that_fails_rejects_and_is_logged(
    make_c, probe, hook, mode, message, caplog
):
    pool, plan = make_c(healthcheck_interval=10.0)
    resource = await pool.acquire()
    setattr(plan, hook, getattr(probe, mode))
    plan.error = OSError("broken wire")
    pool.release(resource)
    await advance(10.0 if hook == "healthcheck" else 0.0)
    if hook == "before_acquire":
        assert await pool.acquire() is not resource
        pool.release(pool.holders()[0].resource)
    assert message.format(hook) in caplog.text
    assert pool.stats().created - pool.count == 1
    setattr(plan, hook, probe.WELL)


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("RAISE", OSError, "stuck"),
        ("CONTRADICT", OSError, "stuck"),
        ("SILENT", SystemError, "the C destructor of a cenote pool failed without an exception"),
    ],
)
async def test_a_c_destructor_that_fails(make_c, probe, mode, error, message):
    pool, plan = make_c()
    plan.destructor, plan.error = getattr(probe, mode), OSError("stuck")
    with pytest.raises(error, match=message):
        pool.discard(await pool.acquire())
    assert pool.count == 0
    resource = await pool.acquire()
    with pytest.raises(error, match=message):
        probe.discard(pool, resource, probe.NULL)
    pool.release(await pool.acquire())
    with pytest.raises(ExceptionGroup):
        await pool.close()


async def test_a_waiter_gets_what_a_c_hook_has_accepted(make_c):
    pool, plan = make_c(max_size=1)
    resource = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.release(resource)
    assert await waiter is resource
    assert called(plan) == ["factory", "before_release", "before_acquire"]
    pool.release(resource)
