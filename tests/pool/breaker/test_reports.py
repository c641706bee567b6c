"""What is reported to the strategy, and what is not."""

import asyncio

import pytest

from cenote import (
    AcquireTimeoutError,
    PoolClosedError,
    PoolError,
    ServiceUnavailableError,
)
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Holding,
    RecordingStrategy,
    Thing,
    Tripwire,
    acquiring,
    cancel,
    outcome,
    queued,
    raising,
    styled,
)


async def test_an_accepted_release_is_a_success_of_that_pool(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener)
    pool.release(await pool.acquire())
    async with pool.acquire():
        assert listener.reports == ["success"]
    assert listener.reports == ["success", "success"]
    assert listener.sources == [pool, pool]


async def test_acquiring_and_creating_are_no_successes(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, min_size=2)
    await pool.open()
    thing = await pool.acquire()
    assert listener.reports == []
    pool.release(thing)


async def test_a_block_left_by_a_plain_exception_is_a_success(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener)
    with pytest.raises(KeyError):
        async with pool.acquire():
            raise KeyError
    assert listener.reports == ["success"]


@pytest.mark.parametrize("style", STYLES)
async def test_a_success_is_reported_between_hook_and_grant(make_pool, style):
    seen = []

    class Watcher(RecordingStrategy):
        def report_success(self, source):
            seen.append(("reported", source.idle_count, source.waiting_count))

    pool = make_pool(
        Thing,
        max_size=1,
        strategy=Watcher(),
        before_release=styled(style, lambda _: seen.append("asked")),
    )
    thing, waiter = await queued(pool)
    await pool.release(thing)
    assert seen == ["asked", ("reported", 0, 1)]
    await pool.release(await waiter)


@pytest.mark.parametrize("style", STYLES)
async def test_a_release_rejected_by_false_is_a_failure(make_pool, style):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, before_release=styled(style, lambda _: False))
    await pool.release(await pool.acquire())
    (error,) = listener.reports
    assert type(error) is PoolError
    assert "before_release" in str(error)
    assert listener.sources == [pool]


@pytest.mark.parametrize("style", STYLES)
async def test_a_release_rejected_by_an_exception_is_a_failure(make_pool, style):
    listener, error = RecordingStrategy(), OSError("lost")
    pool = make_pool(Thing, strategy=listener, before_release=styled(style, raising(error)))
    await pool.release(await pool.acquire())
    assert listener.reports == [error]


@pytest.mark.virtual_time
async def test_a_release_rejected_by_timing_out_is_a_failure(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, before_release=Gate(), hook_timeout=2)
    await pool.release(await pool.acquire())
    (error,) = listener.reports
    assert isinstance(error, PoolError)
    assert isinstance(error, TimeoutError)


async def test_a_discard_with_an_error_is_a_failure(make_pool):
    listener, error = RecordingStrategy(), OSError("lost")
    pool = make_pool(Thing, strategy=listener)
    await pool.discard(await pool.acquire(), error)
    assert listener.reports == [error]
    assert listener.sources == [pool]


async def test_a_discard_without_an_error_is_neither(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener)
    await pool.discard(await pool.acquire())
    assert listener.reports == []


async def test_a_discard_with_a_cancellation_is_neither(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener)
    await pool.discard(await pool.acquire(), asyncio.CancelledError())
    assert listener.reports == []


@pytest.mark.parametrize("style", STYLES)
async def test_a_failing_factory_is_a_failure(make_pool, style):
    listener, error = RecordingStrategy(), OSError("down")
    pool = make_pool(styled(style, raising(error)), strategy=listener)
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    assert listener.reports == [error]
    assert listener.sources == [pool]


async def test_a_factory_failing_in_try_acquire_is_a_failure(make_pool):
    listener, error = RecordingStrategy(), OSError("down")
    pool = make_pool(raising(error), strategy=listener)
    with pytest.raises(OSError, match="down"):
        pool.try_acquire()
    assert listener.reports == [error]


@pytest.mark.parametrize("style", STYLES)
async def test_a_factory_failing_on_open_is_a_failure(make_pool, style):
    listener, error = RecordingStrategy(), OSError("down")
    pool = make_pool(styled(style, raising(error)), min_size=1, strategy=listener)
    with pytest.raises(OSError, match="down"):
        await pool.open()
    assert listener.reports == [error]


@pytest.mark.parametrize("style", STYLES)
async def test_a_factory_that_returns_none_is_a_failure(make_pool, style):
    listener = RecordingStrategy()
    pool = make_pool(styled(style, lambda: None), strategy=listener)
    with pytest.raises(PoolError) as caught:
        await pool.acquire()
    assert listener.reports == [caught.value]


@pytest.mark.virtual_time
async def test_a_factory_past_its_timeout_is_a_failure(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Gate(), strategy=listener, create_timeout=2)
    with pytest.raises(PoolError) as caught:
        await pool.acquire()
    assert listener.reports == [caught.value]
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.virtual_time
async def test_a_factory_failing_without_its_acquirer_is_a_failure(make_pool):
    listener, error = RecordingStrategy(), OSError("down")
    gate = Gate(raising(error))
    pool = make_pool(gate, strategy=listener)
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=1)
    assert listener.reports == []
    gate.open()
    await settle()
    assert listener.reports == [error]


@pytest.mark.virtual_time
async def test_an_acquire_that_times_out_is_neither(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, max_size=1, strategy=listener)
    thing = await pool.acquire()
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=1)
    assert listener.reports == []
    pool.discard(thing)


async def test_a_creation_cancelled_by_close_is_neither(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Gate(), strategy=listener)
    waiter = acquiring(pool)
    await settle()
    await pool.close()
    assert isinstance(await outcome(waiter), PoolClosedError)
    assert listener.reports == []


async def test_a_cancelled_waiter_is_neither(make_pool):
    listener, gate = RecordingStrategy(), Gate(Thing)
    pool = make_pool(gate, strategy=listener)
    waiter = acquiring(pool)
    await settle()
    await cancel(waiter)
    gate.open()
    await settle()
    assert listener.reports == []


@pytest.mark.parametrize("verdict", [lambda _: None, lambda _: False])
@pytest.mark.parametrize("reuse", [False, True])
async def test_a_block_left_by_a_cancellation_is_neither(make_pool, reuse, verdict):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, reuse_after_cancel=reuse, before_release=verdict)
    holding = Holding(pool)
    await settle()
    await cancel(holding.task)
    assert listener.reports == []


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("verdict", [lambda _: False, raising(OSError("lost"))])
async def test_a_rejection_by_before_acquire_is_neither(make_pool, style, verdict):
    listener = RecordingStrategy()
    pool = make_pool(Thing, min_size=1, strategy=listener, before_acquire=styled(style, verdict))
    await pool.open()
    thing = await pool.acquire()
    assert pool.stats().rejected == 1
    assert listener.reports == []
    await pool.discard(thing)


@pytest.mark.virtual_time
async def test_a_failed_healthcheck_is_neither(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, healthcheck=lambda _: False, healthcheck_interval=1)
    thing = await pool.acquire()
    pool.release(thing)
    listener.reports.clear()
    await advance(1.5)
    assert pool.stats().destroyed == {"check_failed": 1}
    assert listener.reports == []


async def test_a_failing_destructor_is_no_failure(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, destructor=raising(OSError("late")))
    with pytest.raises(OSError, match="late"):
        pool.discard(await pool.acquire())
    assert listener.reports == []


RETURNS = {
    "accepted": lambda pool, thing: pool.release(thing),
    "discarded": lambda pool, thing: pool.discard(thing, OSError("lost")),
}


@pytest.mark.parametrize("give_back", RETURNS.values(), ids=RETURNS)
async def test_leases_from_before_the_recovery_report_nothing(make_pool, give_back):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener)
    old = await pool.acquire()
    pool.recover()
    give_back(pool, old)
    assert listener.reports == []


async def test_a_rejected_lease_from_before_the_recovery_reports_nothing(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, before_release=lambda _: False)
    old = await pool.acquire()
    pool.recover()
    pool.release(old)
    assert listener.reports == []


@pytest.mark.parametrize("give_back", RETURNS.values(), ids=RETURNS)
async def test_a_probe_of_an_earlier_recovery_reports_nothing(make_pool, give_back):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener)
    pool.recover()
    old = await pool.acquire()
    pool.deactivate()
    pool.recover()
    give_back(pool, old)
    assert listener.reports == []


@pytest.mark.parametrize("give_back", RETURNS.values(), ids=RETURNS)
async def test_probes_report_success_and_failure(make_pool, give_back):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener)
    pool.recover()
    give_back(pool, await pool.acquire())
    assert len(listener.reports) == 1


async def test_a_served_earlier_waiter_is_a_probe_and_reports(make_pool):
    listener = RecordingStrategy()
    pool = make_pool(Thing, max_size=1, strategy=listener)
    old, waiter = await queued(pool)
    pool.recover()
    pool.release(old)
    assert listener.reports == []
    pool.release(await waiter)
    assert listener.reports == ["success"]


@pytest.mark.parametrize("give_back", RETURNS.values(), ids=RETURNS)
async def test_what_comes_back_while_inactive_is_reported(make_pool, give_back):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener)
    thing = await pool.acquire()
    pool.deactivate()
    give_back(pool, thing)
    assert len(listener.reports) == 1


@pytest.mark.parametrize("style", ["async", "awaitable"])
async def test_a_factory_error_reaches_the_oldest_waiter_before_the_strategy(make_pool, style):
    error = OSError("down")
    pool = make_pool(styled(style, raising(error)), max_size=1, strategy=Tripwire())
    first, second = acquiring(pool), acquiring(pool)
    assert await outcome(first) is error
    assert isinstance(await outcome(second), ServiceUnavailableError)


async def test_a_sync_factory_error_reaches_its_caller_despite_the_breaker(make_pool):
    error = OSError("down")
    makers = iter([Thing, raising(error)])
    pool = make_pool(lambda: next(makers)(), max_size=1, strategy=Tripwire())
    thing, first, second = await queued(pool, 2)
    pool.discard(thing)
    assert await outcome(first) is error
    assert isinstance(await outcome(second), ServiceUnavailableError)
