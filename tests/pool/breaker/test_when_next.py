"""When the breaker lets something pass again: in the error, and in the log with the reason."""

import asyncio
import logging
import pickle

import pytest

import cenote
from cenote import (
    AcquireTimeoutError,
    ConsecutiveFailures,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from cenote.testing import advance
from tests.support.kit import FakeService, Thing, outcome, raising


@pytest.fixture
def still(monkeypatch):
    """No jitter."""
    monkeypatch.setattr("random.uniform", lambda low, high: high)


async def opened(make_pool, threshold=2):
    """A pool whose breaker its own strategy has opened."""
    strategy = ConsecutiveFailures(threshold, recovery_timeout=8.0)
    error = OSError("down.")
    pool = make_pool(raising(error), strategy=strategy, name="db")
    for _ in range(threshold):
        assert await outcome(pool.acquire()) is error
    return pool


@pytest.mark.virtual_time
async def test_the_error_says_when_a_probe_may_pass(make_pool, still):
    pool = await opened(make_pool)
    await asyncio.sleep(3)
    with pytest.raises(ServiceUnavailableError, match=r"Try again in 5\.0 s") as caught:
        await pool.acquire()
    assert caught.value.retry_after == pytest.approx(5.0)


async def test_leases_that_fail_after_it_opened_are_not_the_cause(make_pool):
    pool = make_pool(Thing, strategy=ConsecutiveFailures(1))
    first, second = await pool.acquire(), await pool.acquire()
    pool.discard(first, OSError("the server went away."))
    pool.discard(second, OSError("interrupted"))
    with pytest.raises(ServiceUnavailableError) as caught:
        await pool.acquire()
    assert "last failure: OSError: the server went away. Try again in" in str(caught.value)


@pytest.mark.virtual_time
async def test_beside_a_probe_the_time_is_not_named(make_pool, still):
    """'Try again in 0.0 s' would be no help: when the probe is back, nobody knows."""
    service = FakeService("sync fails")
    pool = make_pool(**service.hooks(), strategy=ConsecutiveFailures(1, recovery_timeout=8.0))
    await outcome(pool.acquire())
    service.heal()
    await asyncio.sleep(8)
    async with pool.acquire():
        with pytest.raises(ServiceUnavailableError, match=r"is taken.*Try again later"):
            await pool.acquire()


async def test_without_a_strategy_nothing_is_known(make_pool):
    pool = make_pool(Thing)
    pool.deactivate()
    with pytest.raises(ServiceUnavailableError, match="Try again later") as caught:
        await pool.acquire()
    assert caught.value.retry_after is None


async def test_a_strategy_that_cannot_say_when_is_logged(make_pool, caplog):
    class Strategy:
        def report_success(self, pool): ...

        def report_failure(self, pool, error): ...

        def retry_after(self):
            raise KeyError("when")

    pool = make_pool(Thing, strategy=Strategy())
    pool.deactivate()
    with pytest.raises(ServiceUnavailableError) as caught:
        await pool.acquire()
    assert caught.value.retry_after is None
    assert "the strategy failed in retry_after()" in caplog.text


@pytest.mark.parametrize(
    "kind", [ServiceUnavailableError, PoolOverloadedError, AcquireTimeoutError]
)
def test_every_error_to_retry_after_keeps_it_in_a_pickle(kind):
    assert kind("full").retry_after is None
    error = pickle.loads(pickle.dumps(kind("full", retry_after=2.5)))
    assert (type(error), str(error), error.retry_after) == (kind, "full", 2.5)


@pytest.mark.parametrize(
    ("threshold", "why"),
    [
        (1, "1 failure since the last change: OSError: down"),
        (3, "3 failures since the last change, the last one: OSError: down"),
    ],
)
@pytest.mark.virtual_time
async def test_the_log_says_why_it_opened_and_what_follows(
    make_pool, caplog, still, threshold, why
):
    await opened(make_pool, threshold=threshold)
    [line] = [each.getMessage() for each in caplog.records if "circuit" in each.getMessage()]
    assert line.endswith(
        f"circuit breaker ACTIVE -> INACTIVE (open): {why}; the next probe is due in 8.0 s"
    )


@pytest.mark.virtual_time
async def test_the_log_says_what_follows_a_switch_by_hand(make_pool, caplog):
    caplog.set_level(logging.INFO, "cenote")
    pool = make_pool(Thing, recovering_limit=2)
    await pool.open()
    pool.deactivate()
    await advance(40)
    pool.recover()
    await advance(2)
    pool.activate()
    lines = [each.getMessage().partition("circuit breaker ")[2] for each in caplog.records]
    assert lines == [
        "ACTIVE -> INACTIVE (open): no failure was reported since the last change; "
        "no probe is due, pool.recover() or pool.activate() lets acquires pass",
        "INACTIVE -> RECOVERING (half-open): 2 acquires at a time may pass as a probe",
        "RECOVERING -> ACTIVE (closed): every acquire passes again, after 42 s",
    ]


def test_the_repr_names_the_breaker_before_its_state():
    pool = cenote.Pool(Thing, name="db")
    assert "breaker ACTIVE" in repr(pool)
    pool.deactivate()
    assert "breaker INACTIVE" in repr(pool)
