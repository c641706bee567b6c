"""The breaker from C: the state of the pool, and strategies of C functions."""

import sys

import pytest

import cenote
from tests.support.kit import Thing
from tests.support.probe import called, native_only, only

pytestmark = native_only


async def test_the_state_and_its_transitions(make_c, probe):
    pool, _ = make_c()
    states = {
        probe.CENOTE_INACTIVE: cenote.CircuitState.INACTIVE,
        probe.CENOTE_RECOVERING: cenote.CircuitState.RECOVERING,
        probe.CENOTE_ACTIVE: cenote.CircuitState.ACTIVE,
    }
    assert probe.state(pool) == probe.CENOTE_ACTIVE
    for number, state in states.items():
        assert probe.set_state(pool, number) == 0
        assert probe.state(pool) == number
        assert pool.state is state
        assert probe.set_state(pool, number) == 0
    for wrong in (-1, 3, 1000):
        with pytest.raises(ValueError, match="is no state"):
            probe.set_state(pool, wrong)
    assert probe.state(pool) == probe.CENOTE_ACTIVE


async def test_a_c_strategy_gets_successes_and_failures(make_c, probe):
    pool, handlers = make_c(name="watched")
    plan = probe.Plan()
    assert probe.set_strategy(pool, plan, "success failure recover") == 0
    pool.release(await pool.acquire())
    assert plan.log == [("success", "watched")]
    plan.log.clear()
    handlers.before_release = probe.NO
    pool.release(await pool.acquire())
    assert isinstance(only(plan.log, "failure"), cenote.PoolError)
    plan.log.clear()
    handlers.factory, handlers.error = probe.RAISE, OSError("down")
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    assert plan.log == [("failure", handlers.error)]


async def test_a_release_reaches_a_c_strategy_without_python(make_c, probe):
    pool, _ = make_c()
    plan, seen = probe.Plan(), []
    probe.set_strategy(pool, plan, "success failure")
    pool.release(await pool.acquire())
    async with pool.acquire() as resource:
        sys.setprofile(lambda frame, event, argument: seen.append((event, frame.f_code.co_name)))
        try:
            pool.release(resource)
        finally:
            sys.setprofile(None)
    assert called(plan) == ["success", "success"]
    ours = {"time", "name"}  # of the virtual clock, and what the probe asks the pool for
    assert {name for event, name in seen if event == "call"} <= ours


async def test_leases_from_before_the_recovery_reach_no_c_strategy(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    probe.set_strategy(pool, plan, "success failure")
    old = await pool.acquire()
    pool.recover()
    pool.release(old)
    assert plan.log == []
    pool.release(await pool.acquire())
    assert called(plan) == ["success"]


async def test_a_c_strategy_may_replace_itself(make_c, probe):
    pool, _ = make_c()
    first, second = probe.Plan(), probe.Plan()
    first.call = lambda *_: probe.set_strategy(pool, second, "success failure")
    probe.set_strategy(pool, first, "success failure")
    pool.release(await pool.acquire())
    first.call = None
    assert (called(first), first.freed) == (["success"], 1)
    pool.release(await pool.acquire())
    assert called(second) == ["success"]


async def test_a_c_strategy_may_switch_the_pool(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()

    def switch(name, argument):
        if name == "failure":
            probe.set_state(pool, probe.CENOTE_INACTIVE)
        elif name == "success" and probe.state(pool) == probe.CENOTE_RECOVERING:
            probe.set_state(pool, probe.CENOTE_ACTIVE)

    plan.call = switch
    probe.set_strategy(pool, plan, "success failure recover")
    probe.discard(pool, await pool.acquire(), OSError("broken"))
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    assert called(plan) == ["failure", "recover"]
    plan.recover = probe.NO  # which is "yes" here
    async with pool.acquire():
        assert probe.state(pool) == probe.CENOTE_RECOVERING
    assert probe.state(pool) == probe.CENOTE_ACTIVE
    plan.call = None
    pool.strategy = None


async def test_recovery_is_manual_without_should_recover(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    probe.set_strategy(pool, plan, "success failure")
    pool.deactivate()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    assert pool.state is cenote.CircuitState.INACTIVE
    pool.recover()
    pool.release(await pool.acquire())
    assert called(plan) == ["success"]


@pytest.mark.parametrize("mode", ["RAISE", "SILENT", "CONTRADICT"])
async def test_a_c_strategy_that_fails_is_logged(make_c, probe, caplog, mode):
    pool, _ = make_c()
    plan = probe.Plan()
    plan.success = plan.failure = plan.recover = getattr(probe, mode)
    plan.error = OSError("no idea")
    probe.set_strategy(pool, plan, "success failure recover")
    text = "the C strategy of a cenote pool failed" if mode == "SILENT" else "OSError: no idea"

    def logged(what):
        found = what in caplog.text and text in caplog.text
        caplog.clear()
        return found

    pool.release(await pool.acquire())
    assert logged("report_success")
    pool.discard(await pool.acquire(), OSError("broken"))
    assert logged("report_failure")
    pool.deactivate()
    caplog.clear()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    assert logged("should_recover")
    assert pool.state is cenote.CircuitState.INACTIVE


async def test_a_strategy_is_freed_when_it_is_replaced(make_c, probe):
    pool, _ = make_c()
    first, second, third = probe.Plan(), probe.Plan(), probe.Plan()
    probe.set_strategy(pool, first, "success failure")
    probe.set_strategy(pool, second, "success failure")
    assert (first.freed, second.freed) == (1, 0)
    probe.set_strategy(pool, third, None)
    assert (second.freed, third.freed) == (1, 1)
    assert pool.strategy is None
    pool.release(await pool.acquire())
    assert first.log + second.log + third.log == []


@pytest.mark.parametrize("names", ["", "success", "failure", "recover"])
def test_a_strategy_needs_both_reports(probe, names):
    pool, plan = cenote.Pool(Thing), probe.Plan()
    with pytest.raises(ValueError, match="needs report_success and report_failure"):
        probe.set_strategy(pool, plan, names)
    assert plan.freed == 1
    assert pool.strategy is None


async def test_c_strategies_and_listeners_are_not_interchangeable(make_c, probe):
    pool, plan = make_c()
    assert probe.set_strategy(pool, plan, "success failure") == 0
    with pytest.raises(TypeError, match="is no listener"):
        pool.strategy.hear(None)
    listener = keep_listener(pool, probe)
    with pytest.raises(TypeError, match="is no strategy"):
        listener.report_success(pool)
    with pytest.raises(TypeError, match="is no strategy"):
        listener.report_failure(pool, OSError())
    assert listener.should_recover() is False


def keep_listener(pool, probe):
    """The object behind a C listener."""
    probe.subscribe(pool, probe.Plan())
    return pool._engine.subscribers[-1].callback.__self__
