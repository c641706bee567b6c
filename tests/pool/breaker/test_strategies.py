"""Strategies: what they are asked, what they may do, and what their errors do."""

import logging

import pytest

import cenote
from cenote import (
    CircuitBreakerStrategy,
    CircuitState,
    ConsecutiveFailures,
    FailureRate,
    ServiceUnavailableError,
)
from cenote.testing import advance
from tests.support.kit import (
    STYLES,
    Fatal,
    RaisingStrategy,
    RecordingStrategy,
    Thing,
    Tripwire,
    raising,
    styled,
)


def test_the_built_in_strategies_are_strategies():
    for strategy in (ConsecutiveFailures(), FailureRate(), RecordingStrategy()):
        assert isinstance(strategy, CircuitBreakerStrategy)


async def test_a_strategy_can_be_set_and_removed_at_run_time(make_pool):
    first, second = RecordingStrategy(), RecordingStrategy()
    pool = make_pool(Thing, strategy=first)
    assert pool.strategy is first
    thing = await pool.acquire()
    pool.strategy = second
    assert pool.strategy is second
    pool.release(thing)
    pool.strategy = None
    assert pool.strategy is None
    pool.release(await pool.acquire())
    assert (first.reports, second.reports) == ([], ["success"])


async def test_removing_the_strategy_makes_recovery_manual(make_pool):
    tripwire = Tripwire()
    pool = make_pool(Thing, strategy=tripwire)
    pool.discard(await pool.acquire(), OSError())
    tripwire.ready = True
    pool.strategy = None
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert tripwire.asked == 0


async def test_should_recover_is_asked_only_when_an_acquire_meets_inactive(make_pool):
    tripwire = Tripwire()
    pool = make_pool(Thing, strategy=tripwire, max_size=2)
    pool.release(await pool.acquire())
    pool.recover()
    probe = await pool.acquire()
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert tripwire.asked == 0
    pool.deactivate()
    for asked in (1, 2):
        with pytest.raises(ServiceUnavailableError):
            await pool.acquire()
        assert tripwire.asked == asked
    pool.release(probe)


@pytest.mark.parametrize("style", STYLES)
async def test_the_acquire_that_may_recover_is_the_probe(make_pool, style):
    tripwire = Tripwire()
    pool = make_pool(styled(style, Thing), strategy=tripwire)
    pool.deactivate()
    tripwire.ready = True
    probe = await pool.acquire()
    assert pool.state is CircuitState.RECOVERING
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert tripwire.asked == 1
    pool.release(probe)
    assert tripwire.reports == ["success"]


@pytest.mark.virtual_time
async def test_recovery_is_manual_without_should_recover(make_pool):
    pool = make_pool(Thing, strategy=RecordingStrategy())
    pool.deactivate()
    await advance(1e6)
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    pool.recover()
    pool.release(await pool.acquire())


async def test_a_strategy_may_switch_the_pool_on_success(make_pool):
    class Trusting(RecordingStrategy):
        def report_success(self, source):
            source.activate()

    pool = make_pool(Thing, strategy=Trusting())
    pool.recover()
    pool.release(await pool.acquire())
    assert pool.state is CircuitState.ACTIVE


async def test_a_strategy_that_raises_on_success_is_logged_and_harmless(make_pool, caplog):
    pool = make_pool(Thing, strategy=RaisingStrategy("report_success"))
    pool.release(await pool.acquire())
    async with pool.acquire():
        pass
    assert (pool.idle_count, pool.active_count) == (1, 0)
    assert_logged(caplog, "report_success is broken", times=2)


FAILURES = {
    "discard": lambda pool, thing: pool.discard(thing, OSError("lost")),
    "release": lambda pool, thing: pool.release(thing),
}


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
async def test_a_strategy_that_raises_on_failure_is_logged_and_harmless(make_pool, caplog, fail):
    pool = make_pool(
        Thing, strategy=RaisingStrategy("report_failure"), before_release=lambda _: False
    )
    await fail(pool, await pool.acquire())
    assert pool.count == 0
    assert_logged(caplog, "report_failure is broken")


@pytest.mark.parametrize("style", STYLES)
async def test_a_raising_strategy_does_not_replace_a_factory_error(make_pool, caplog, style):
    pool = make_pool(
        styled(style, raising(OSError("down"))), strategy=RaisingStrategy("report_failure")
    )
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    assert_logged(caplog, "report_failure is broken")


async def test_should_recover_that_raises_is_logged_and_means_no(make_pool, caplog):
    pool = make_pool(Thing, strategy=RaisingStrategy("should_recover"))
    pool.deactivate()
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert pool.state is CircuitState.INACTIVE
    assert_logged(caplog, "should_recover is broken")


def assert_logged(caplog, words, times=1):
    raised = [
        str(record.exc_info[1])
        for record in caplog.records
        if record.name == "cenote" and record.levelno >= logging.ERROR and record.exc_info
    ]
    assert raised == [words] * times


@pytest.mark.parametrize("method", ["report_success", "report_failure", "should_recover"])
async def test_a_strategy_raising_a_base_exception_is_harmless(make_pool, method):
    pool = make_pool(Thing, max_size=1, strategy=RaisingStrategy(method, Fatal()))
    await pool.release(await pool.acquire())
    await pool.discard(await pool.acquire(), OSError())
    pool.deactivate()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    pool.activate()
    await pool.release(await pool.acquire())
