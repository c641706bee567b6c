"""The strategies that come with cenote."""

import asyncio
import inspect

import pytest

from cenote import (
    CircuitState,
    ConsecutiveFailures,
    FailureRate,
    ServiceUnavailableError,
)
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Holding,
    Thing,
    cancel,
    outcome,
    raising,
    start,
    styled,
)

# Both, such that one failure opens the breaker.
TOUCHY = {
    "consecutive": lambda **options: ConsecutiveFailures(failure_threshold=1, **options),
    "rate": lambda **options: FailureRate(minimum_calls=1, **options),
}


touchy = pytest.mark.parametrize("make_strategy", TOUCHY.values(), ids=TOUCHY)


async def fail(pool, times=1):
    for _ in range(times):
        await pool.discard(await pool.acquire(), OSError("lost"))


async def succeed(pool, times=1):
    for _ in range(times):
        await pool.release(await pool.acquire())


async def passes(pool, seconds):
    """Let time pass: a step between calls."""
    await advance(seconds)


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters}


def test_the_defaults_of_consecutive_failures():
    assert defaults(ConsecutiveFailures) == {
        "failure_threshold": 5,
        "recovery_timeout": 30.0,
        "success_threshold": 3,
        "max_recovery_timeout": 300.0,
    }


def test_the_defaults_of_failure_rate():
    assert defaults(FailureRate) == {
        "threshold": 0.5,
        "window": 60.0,
        "minimum_calls": 20,
        "recovery_timeout": 30.0,
        "success_threshold": 3,
        "max_recovery_timeout": 300.0,
    }


async def test_consecutive_failures_opens_at_its_threshold(make_pool):
    pool = make_pool(Thing, strategy=ConsecutiveFailures(failure_threshold=3))
    await fail(pool, 2)
    assert pool.state is CircuitState.ACTIVE
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE


async def test_a_success_begins_the_row_of_failures_anew(make_pool):
    pool = make_pool(Thing, strategy=ConsecutiveFailures(failure_threshold=3))
    await fail(pool, 2)
    await succeed(pool)
    await fail(pool, 2)
    assert pool.state is CircuitState.ACTIVE
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE


@pytest.mark.parametrize("style", STYLES)
async def test_consecutive_failures_counts_failing_factories(make_pool, style):
    strategy = ConsecutiveFailures(failure_threshold=2)
    pool = make_pool(styled(style, raising(OSError("down"))), strategy=strategy)
    for _ in range(2):
        with pytest.raises(OSError, match="down"):
            await pool.acquire()
    assert pool.state is CircuitState.INACTIVE


@pytest.mark.virtual_time
@touchy
async def test_the_breaker_stays_open_for_the_recovery_timeout(make_pool, make_strategy):
    pool = make_pool(Thing, strategy=make_strategy(recovery_timeout=16))
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE
    await advance(14)
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert pool.state is CircuitState.INACTIVE
    await advance(2)
    pool.release(await pool.acquire())
    assert pool.state is CircuitState.RECOVERING


@pytest.mark.virtual_time
@touchy
async def test_the_recovery_timeout_doubles_up_to_its_maximum(make_pool, make_strategy):
    strategy = make_strategy(recovery_timeout=16, max_recovery_timeout=80)
    pool = make_pool(Thing, strategy=strategy)
    for patience in (16, 32, 64, 80, 80):
        await fail(pool)
        assert pool.state is CircuitState.INACTIVE
        await advance(patience * 7 / 8)
        with pytest.raises(ServiceUnavailableError):
            await pool.acquire()
        await advance(patience / 8)


@pytest.mark.virtual_time
@touchy
async def test_a_complete_recovery_sets_the_timeout_back(make_pool, make_strategy):
    pool = make_pool(Thing, strategy=make_strategy(recovery_timeout=16, success_threshold=1))
    for patience in (16, 32):
        await fail(pool)
        await advance(patience)
    await succeed(pool)
    assert pool.state is CircuitState.ACTIVE
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE
    await advance(16)
    await succeed(pool)


@pytest.mark.virtual_time
@touchy
async def test_the_recovery_timeout_has_jitter(make_pool, make_strategy):
    pools = [make_pool(Thing, strategy=make_strategy(recovery_timeout=100)) for _ in range(50)]
    for pool in pools:
        await fail(pool)
    await advance(95)
    answers = [type(await outcome(use(pool))) for pool in pools]
    assert set(answers) == {Thing, ServiceUnavailableError}


async def use(pool):
    async with pool.acquire() as thing:
        return thing


@pytest.mark.virtual_time
@touchy
async def test_the_breaker_closes_after_so_many_successes(make_pool, make_strategy):
    pool = make_pool(Thing, strategy=make_strategy(recovery_timeout=16, success_threshold=3))
    await fail(pool)
    await advance(16)
    await succeed(pool, 2)
    assert pool.state is CircuitState.RECOVERING
    await succeed(pool)
    assert pool.state is CircuitState.ACTIVE


@pytest.mark.virtual_time
@touchy
async def test_successes_do_not_count_in_the_next_recovery(make_pool, make_strategy):
    pool = make_pool(Thing, strategy=make_strategy(recovery_timeout=16, success_threshold=3))
    await fail(pool)
    await advance(16)
    await succeed(pool, 2)
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE
    await advance(32)
    await succeed(pool, 2)
    assert pool.state is CircuitState.RECOVERING
    await succeed(pool)
    assert pool.state is CircuitState.ACTIVE


@pytest.mark.virtual_time
async def test_the_row_of_failures_begins_anew_after_a_recovery(make_pool):
    strategy = ConsecutiveFailures(failure_threshold=3, recovery_timeout=16, success_threshold=1)
    pool = make_pool(Thing, strategy=strategy)
    await fail(pool, 3)
    await advance(16)
    await succeed(pool)
    await fail(pool, 2)
    assert pool.state is CircuitState.ACTIVE


@pytest.mark.virtual_time
@touchy
async def test_late_failures_while_inactive_do_not_prolong_the_outage(make_pool, make_strategy):
    pool = make_pool(Thing, strategy=make_strategy(recovery_timeout=16))
    late = await pool.acquire()
    await fail(pool)
    await advance(15)
    pool.discard(late, OSError("lost"))
    await advance(1)
    await succeed(pool)


@pytest.mark.virtual_time
@touchy
async def test_a_cancelled_probe_does_not_stop_the_recovery(make_pool, make_strategy):
    pool = make_pool(Thing, strategy=make_strategy(recovery_timeout=16, success_threshold=1))
    await fail(pool)
    await advance(16)
    probe = Holding(pool)
    await settle()
    await cancel(probe.task)
    assert pool.state is CircuitState.RECOVERING
    await succeed(pool)
    assert pool.state is CircuitState.ACTIVE


ACTIVE, INACTIVE = CircuitState.ACTIVE, CircuitState.INACTIVE

# The options of FailureRate, and the steps of a scenario: calls, time that passes, expected states.
SCENARIOS = {
    "the minimum of calls is needed": (
        {"minimum_calls": 5},
        [(fail, 4), ACTIVE, (fail, 1), INACTIVE],
    ),
    "successes are calls": (
        {"minimum_calls": 4},
        [(succeed, 2), (fail, 1), ACTIVE, (fail, 1), INACTIVE],
    ),
    "the threshold is reached": (
        {"threshold": 0.75, "minimum_calls": 1},
        [(succeed, 2), (fail, 5), ACTIVE, (fail, 1), INACTIVE],  # 5 of 7, 6 of 8
    ),
    "a success is judged as well": (
        {"minimum_calls": 20},
        [(fail, 15), (succeed, 4), ACTIVE, (succeed, 1), INACTIVE],  # 15 of 20
    ),
    "enough successes keep it closed": (
        {"minimum_calls": 20},
        [(fail, 9), (succeed, 20), ACTIVE],
    ),
    "calls outside of the window are forgotten": (
        {"window": 60, "minimum_calls": 4},
        [(fail, 3), (passes, 60), (fail, 3), ACTIVE],
    ),
    "calls in the window are remembered": (
        {"window": 60, "minimum_calls": 4},
        [(fail, 3), (passes, 55), (fail, 1), INACTIVE],
    ),
    "the window slides": (
        {"window": 60, "minimum_calls": 5},
        # After 65 s the first two are gone, the second two are not.
        [(fail, 2), (passes, 40), (fail, 2), (passes, 25), (fail, 2), ACTIVE, (fail, 1), INACTIVE],
    ),
    "old successes do not hide new failures": (
        {"window": 60, "minimum_calls": 4},
        [(succeed, 1000), (passes, 60), (fail, 4), INACTIVE],
    ),
}


@pytest.mark.virtual_time
@pytest.mark.parametrize(("options", "steps"), SCENARIOS.values(), ids=SCENARIOS)
async def test_failure_rate_judges_the_calls_in_its_window(make_pool, options, steps):
    pool = make_pool(Thing, strategy=FailureRate(**options))
    for step in steps:
        if isinstance(step, CircuitState):
            assert pool.state is step
        else:
            act, argument = step
            await act(pool, argument)


@pytest.mark.virtual_time
async def test_an_outage_and_its_end_with_many_tasks(make_pool):
    """Everybody gets an answer while the backend is down, and service comes back by itself."""
    down = False
    calls = 0

    async def connect():
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.1)
        if down:
            raise OSError("down")
        return Thing()

    strategy = ConsecutiveFailures(failure_threshold=3, recovery_timeout=16, success_threshold=2)
    pool = make_pool(connect, max_size=2, strategy=strategy, max_uses=1)

    async def request():
        async with pool.acquire():
            await asyncio.sleep(0.1)

    down = True
    answers = [await outcome(start(request())) for _ in range(10)]
    assert [type(answer) for answer in answers] == [OSError] * 3 + [ServiceUnavailableError] * 7
    assert calls == 3
    await advance(16)
    assert type(await outcome(start(request()))) is OSError
    down = False
    await advance(32)
    for _ in range(2):
        assert await outcome(start(request())) is None
    assert pool.state is CircuitState.ACTIVE
    answers = await asyncio.gather(*(request() for _ in range(10)))
    assert answers == [None] * 10
