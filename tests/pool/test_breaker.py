"""The circuit breaker: its states, limited recovery, what is reported, and the two strategies."""

import asyncio
import inspect
import itertools
import logging

import pytest

import cenote
from cenote import (
    AcquireTimeoutError,
    CircuitBreakerStrategy,
    CircuitState,
    ConsecutiveFailures,
    FailureRate,
    PoolClosedError,
    PoolError,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from tests.support.clock import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Holding,
    RaisingStrategy,
    RecordingStrategy,
    Thing,
    Tripwire,
    acquiring,
    cancel,
    outcome,
    raising,
    recorded,
    start,
    styled,
)

SWITCHES = {
    "activate": CircuitState.ACTIVE,
    "deactivate": CircuitState.INACTIVE,
    "recover": CircuitState.RECOVERING,
}


# -- states --------------------------------------------------------------------------------------


def test_a_pool_begins_active():
    assert cenote.Pool(Thing).state is CircuitState.ACTIVE


@pytest.mark.parametrize(("first", "then"), [*itertools.product(SWITCHES, repeat=2)])
def test_every_state_can_be_left_for_every_other(first, then):
    pool = cenote.Pool(Thing)
    getattr(pool, first)()
    assert pool.state is SWITCHES[first]
    getattr(pool, then)()
    assert pool.state is SWITCHES[then]


async def test_inactive_refuses_even_what_is_idle(make_pool):
    pool = make_pool(Thing, min_size=1)
    await pool.open()
    pool.deactivate()
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    with pytest.raises(ServiceUnavailableError):
        async with pool.acquire(timeout=0):
            pass
    assert pool.try_acquire() is None
    assert pool.idle_count == 1


@pytest.mark.parametrize("style", STYLES)
async def test_inactive_does_not_call_the_factory(make_pool, style):
    calls = []
    pool = make_pool(styled(style, lambda: calls.append(1) or Thing()))
    pool.deactivate()
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert pool.try_acquire() is None
    await settle()
    assert calls == []


async def test_a_closed_pool_says_closed_and_not_unavailable(make_pool):
    pool = make_pool(Thing)
    pool.deactivate()
    await pool.close()
    with pytest.raises(PoolClosedError):
        await pool.acquire()


async def test_activate_lets_all_pass_again(make_pool):
    pool = make_pool(Thing, max_size=3)
    pool.deactivate()
    pool.activate()
    things = [await pool.acquire() for _ in range(3)]
    for thing in things:
        pool.release(thing)


async def test_what_is_out_can_be_returned_while_inactive(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    pool.deactivate()
    pool.release(thing)
    assert pool.idle_count == 1


async def test_opening_while_inactive_is_refused_and_does_not_hang(make_pool):
    pool = make_pool(Thing, min_size=1)
    pool.deactivate()
    async with asyncio.timeout(1):
        with pytest.raises(ServiceUnavailableError):
            await pool.open()


@pytest.mark.virtual_time
async def test_min_size_is_not_restored_while_inactive(make_pool):
    pool = make_pool(Thing, min_size=1)
    thing = await pool.acquire()
    pool.deactivate()
    await pool.discard(thing)
    await advance(1000)
    assert (pool.count, pool.stats().created) == (0, 1)
    pool.activate()
    await settle()
    assert pool.idle_count == 1


# -- limited recovery ----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("style", STYLES)
async def test_recovering_lets_only_its_limit_out_at_once(make_pool, limit, style):
    pool = make_pool(styled(style, Thing), recovering_limit=limit)
    pool.recover()
    out = [await pool.acquire() for _ in range(limit)]
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert pool.try_acquire() is None
    await pool.release(out.pop())
    out.append(await pool.acquire())
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    for thing in out:
        await pool.release(thing)
    assert pool.state is CircuitState.RECOVERING


@pytest.mark.parametrize("limit", [1, 2])
async def test_try_acquire_takes_places_too(make_pool, limit):
    pool = make_pool(Thing, recovering_limit=limit)
    await pool.open()
    pool.recover()
    out = [pool.try_acquire() for _ in range(limit)]
    assert None not in out
    assert pool.try_acquire() is None
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    for thing in out:
        pool.release(thing)


async def test_what_was_out_before_the_recovery_takes_no_place(make_pool):
    pool = make_pool(Thing)
    old = [await pool.acquire() for _ in range(3)]
    pool.recover()
    probe = await pool.acquire()
    pool.release(old.pop())
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    for thing in [probe, *old]:
        pool.release(thing)


@pytest.mark.parametrize("limit", [1, 2])
async def test_trial_creations_under_way_count(make_pool, limit):
    gate = Gate(Thing)
    pool = make_pool(gate, recovering_limit=limit)
    pool.recover()
    probes = [acquiring(pool) for _ in range(limit)]
    await settle()
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert gate.entered == limit
    gate.open()
    for probe in probes:
        await pool.release(await probe)


async def test_a_probe_in_its_async_before_acquire_counts(make_pool):
    gate = Gate()
    pool = make_pool(Thing, min_size=2, before_acquire=gate)
    await pool.open()
    pool.recover()
    probe = acquiring(pool)
    await settle()
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    gate.open()
    pool.release(await probe)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("limit", [1, 2])
async def test_earlier_waiters_are_served_within_the_limit(make_pool, limit, style):
    pool = make_pool(styled(style, Thing), max_size=4, recovering_limit=limit)
    old = [await pool.acquire() for _ in range(4)]
    waiters = [acquiring(pool) for _ in range(4)]
    await settle()
    pool.recover()
    await settle()
    assert pool.waiting_count == 4
    for thing in old:
        pool.release(thing)
    for served in range(limit, 5):
        await settle()
        assert [waiter.done() for waiter in waiters] == [n < served for n in range(4)]
        pool.release(await waiters[served - limit])
    await settle()
    for waiter in waiters[5 - limit :]:
        pool.release(await waiter)


@pytest.mark.parametrize("limit", [1, 2])
async def test_earlier_waiters_get_new_room_within_the_limit(make_pool, limit):
    gate = Gate(Thing)
    pool = make_pool(gate, max_size=4, recovering_limit=limit)
    waiters = [acquiring(pool) for _ in range(4)]
    await settle()
    pool.recover()
    gate.open()
    await settle()
    assert [waiter.done() for waiter in waiters] == [n < limit for n in range(4)]
    for waiter in waiters:
        pool.release(await waiter)


async def test_an_earlier_waiter_that_leaves_makes_way(make_pool):
    pool = make_pool(Thing, max_size=1)
    old = await pool.acquire()
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    pool.recover()
    await cancel(first)
    pool.release(old)
    pool.release(await second)
    await assert_a_place_is_free(pool)


@pytest.mark.parametrize("style", STYLES)
async def test_a_newcomer_does_not_block_earlier_waiters(make_pool, style):
    pool = make_pool(styled(style, Thing), max_size=1)
    old = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.recover()
    newcomer = Holding(pool)  # refused, or behind the other
    await settle()
    pool.release(old)
    async with asyncio.timeout(1):
        pool.release(await waiter)
        await outcome(newcomer.leave())
    await assert_a_place_is_free(pool)


@pytest.mark.parametrize("limit", [1, 2])
async def test_creations_for_earlier_waiters_stay_within_the_limit(make_pool, limit):
    gate = Gate(Thing)
    gate.open()
    pool = make_pool(gate, max_size=4, recovering_limit=limit)
    old = [await pool.acquire() for _ in range(4)]
    waiters = [acquiring(pool) for _ in range(4)]
    await settle()
    pool.recover()
    gate.shut()
    for thing in old:
        pool.discard(thing)
    await settle()
    assert gate.entered == 4 + limit
    gate.open()
    for waiter in waiters:
        pool.release(await waiter)


async def test_activate_serves_all_who_wait(make_pool):
    pool = make_pool(Thing, max_size=3)
    old = [await pool.acquire() for _ in range(3)]
    waiters = [acquiring(pool) for _ in range(3)]
    await settle()
    pool.recover()
    for thing in old:
        pool.release(thing)
    await settle()
    assert pool.waiting_count == 2
    pool.activate()
    await settle()
    assert all(waiter.done() for waiter in waiters)
    for waiter in waiters:
        pool.release(waiter.result())


@pytest.mark.parametrize("style", STYLES)
async def test_a_rejection_while_recovering_leaves_nobody_hanging(make_pool, style):
    """One was handed a resource before recover(), one came as the probe; the resource is bad."""
    gate, old = Gate(lambda _: False), None
    pool = make_pool(
        styled(style, Thing),
        max_size=1,
        before_acquire=lambda thing: gate(thing) if thing is old else None,
    )
    old = await pool.acquire()
    waiter = Holding(pool)
    await settle()
    pool.release(old)
    await settle()
    assert gate.entered == 1
    pool.recover()
    probe = Holding(pool)
    await settle()
    gate.open()
    async with asyncio.timeout(1):
        await asyncio.gather(waiter.leave(), probe.leave(), return_exceptions=True)


# -- a probe that ends without a verdict gives its place back ------------------------------------


async def assert_a_place_is_free(pool):
    assert pool.state is CircuitState.RECOVERING
    thing = await pool.acquire(timeout=1)
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    await pool.release(thing)


async def test_a_probe_cancelled_while_creating_gives_its_place_back(make_pool):
    gate = Gate(Thing)
    pool = make_pool(gate)
    pool.recover()
    probe = acquiring(pool)
    await settle()
    await cancel(probe)
    gate.open()
    await assert_a_place_is_free(pool)
    assert gate.entered == 1


async def test_a_probe_cancelled_while_waiting_gives_its_place_back(make_pool):
    pool = make_pool(Thing, max_size=1)
    old = await pool.acquire()
    pool.recover()
    probe = acquiring(pool)
    await settle()
    await cancel(probe)
    pool.release(old)
    await assert_a_place_is_free(pool)


async def test_a_probe_cancelled_after_its_grant_gives_its_place_back(make_pool):
    pool = make_pool(Thing, max_size=1)
    old = await pool.acquire()
    pool.recover()
    probe = acquiring(pool)
    await settle()
    pool.release(old)
    await cancel(probe)
    await assert_a_place_is_free(pool)


async def test_a_probe_cancelled_in_before_acquire_gives_its_place_back(make_pool):
    gate = Gate()
    pool = make_pool(Thing, min_size=1, before_acquire=gate)
    await pool.open()
    pool.recover()
    probe = acquiring(pool)
    await settle()
    assert gate.entered == 1
    await cancel(probe)
    gate.open()
    await assert_a_place_is_free(pool)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("style", STYLES)
async def test_a_probe_cancelled_in_its_block_gives_its_place_back(make_pool, reuse, style):
    pool = make_pool(
        Thing,
        destructor=styled(style, lambda _: None),
        before_release=styled(style, lambda _: None),
        reuse_after_cancel=reuse,
    )
    pool.recover()
    probe = Holding(pool)
    await settle()
    await cancel(probe.task)
    await assert_a_place_is_free(pool)


@pytest.mark.virtual_time
async def test_a_probe_that_times_out_gives_its_place_back(make_pool):
    pool = make_pool(Thing, max_size=1)
    old = await pool.acquire()
    pool.recover()
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=1)
    pool.release(old)
    await assert_a_place_is_free(pool)


async def test_a_probe_that_may_not_wait_gives_its_place_back(make_pool):
    pool = make_pool(Thing, max_size=1, max_waiting=0)
    old = await pool.acquire()
    pool.recover()
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=0)
    with pytest.raises(PoolOverloadedError):
        await pool.acquire()
    assert pool.try_acquire() is None
    pool.release(old)
    await assert_a_place_is_free(pool)


@pytest.mark.parametrize("style", STYLES)
async def test_a_probe_whose_factory_fails_gives_its_place_back(make_pool, style):
    makers = iter([raising(OSError("down")), Thing])
    pool = make_pool(styled(style, lambda: next(makers)()))
    pool.recover()
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    await assert_a_place_is_free(pool)


async def test_try_acquire_with_a_failing_factory_gives_its_place_back(make_pool):
    makers = iter([raising(OSError("down")), Thing])
    pool = make_pool(lambda: next(makers)())
    await pool.open()
    pool.recover()
    with pytest.raises(OSError, match="down"):
        pool.try_acquire()
    await assert_a_place_is_free(pool)


async def test_a_probe_that_is_discarded_gives_its_place_back(make_pool):
    pool = make_pool(Thing)
    pool.recover()
    pool.discard(await pool.acquire())
    await assert_a_place_is_free(pool)


async def test_an_acquire_that_is_never_awaited_takes_no_place(make_pool):
    pool = make_pool(Thing)
    pool.recover()
    unused = pool.acquire()
    await assert_a_place_is_free(pool)
    del unused


async def test_a_probe_takes_no_place_in_the_next_recovery(make_pool):
    pool = make_pool(Thing)
    pool.recover()
    old = await pool.acquire()
    pool.deactivate()
    pool.recover()
    probe = await pool.acquire()
    pool.release(old)
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    pool.release(probe)


# -- what is reported ----------------------------------------------------------------------------


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
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
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
    old = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
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
    thing = await pool.acquire()
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    pool.discard(thing)
    assert await outcome(first) is error
    assert isinstance(await outcome(second), ServiceUnavailableError)


# -- strategies ----------------------------------------------------------------------------------


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


# -- deactivate fails every waiter at once -------------------------------------------------------


async def test_deactivate_fails_everybody_in_the_queue(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiters = [acquiring(pool) for _ in range(3)]
    await settle()
    pool.deactivate()
    assert pool.waiting_count == 0
    await settle()
    for waiter in waiters:
        assert isinstance(waiter.exception(), ServiceUnavailableError)
    pool.release(thing)
    assert pool.idle_count == 1


async def test_deactivate_fails_acquirers_but_keeps_their_creations(make_pool):
    gate = Gate(Thing)
    pool = make_pool(gate, max_size=2)
    waiters = [acquiring(pool) for _ in range(3)]
    await settle()
    pool.deactivate()
    await settle()
    for waiter in waiters:
        assert isinstance(waiter.exception(), ServiceUnavailableError)
    gate.open()
    await settle()
    assert (gate.entered, pool.idle_count) == (2, 2)


async def test_deactivate_fails_those_already_handed_a_resource(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    handed, waiting = acquiring(pool), acquiring(pool)
    await settle()
    pool.release(thing)
    pool.deactivate()
    assert (pool.idle_count, pool.active_count) == (1, 0)
    for waiter in (handed, waiting):
        assert isinstance(await outcome(waiter), ServiceUnavailableError)


async def test_deactivate_fails_those_already_handed_the_right_to_create(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    handed, waiting = acquiring(pool), acquiring(pool)
    await settle()
    pool.discard(thing)
    pool.deactivate()
    for waiter in (handed, waiting):
        assert isinstance(await outcome(waiter), ServiceUnavailableError)
    assert pool.stats().created == 1
    assert pool.stats().creating == 0


@pytest.mark.parametrize("queued", [False, True])
async def test_deactivate_fails_those_in_an_async_before_acquire(make_pool, queued):
    gate = Gate()
    pool = make_pool(Thing, max_size=1, min_size=0, before_acquire=gate)
    thing = await pool.acquire()
    if queued:
        waiter = acquiring(pool)
        await settle()
        pool.release(thing)
    else:
        pool.release(thing)
        waiter = acquiring(pool)
    await settle()
    assert gate.entered == 1
    pool.deactivate()
    await settle()
    assert isinstance(waiter.exception(), ServiceUnavailableError)
    assert pool.count == 0  # nobody knows how far the hook was


async def test_a_before_acquire_that_deactivates_fails_its_waiter(make_pool):
    pool = make_pool(Thing, max_size=1, before_acquire=lambda _: pool.deactivate())
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.release(thing)
    assert isinstance(await outcome(waiter), ServiceUnavailableError)
    assert (pool.active_count, pool.waiting_count) == (0, 0)


async def test_a_failure_while_others_wait_deactivates_and_fails_them(make_pool):
    pool = make_pool(Thing, max_size=1, strategy=Tripwire())
    thing = await pool.acquire()
    waiters = [acquiring(pool) for _ in range(2)]
    await settle()
    pool.discard(thing, OSError("lost"))
    for waiter in waiters:
        assert isinstance(await outcome(waiter), ServiceUnavailableError)
    assert pool.stats().created == 1


async def test_state_changed_tells_only_of_changes(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    for switch in ("activate", "recover", "recover", "activate", "deactivate", "deactivate"):
        getattr(pool, switch)()
    assert [event.reason for event in events] == ["RECOVERING", "ACTIVE", "INACTIVE"]


# -- the built-in strategies ---------------------------------------------------------------------

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


@pytest.mark.virtual_time
async def test_failure_rate_needs_its_minimum_of_calls(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(minimum_calls=5))
    await fail(pool, 4)
    assert pool.state is CircuitState.ACTIVE
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE


@pytest.mark.virtual_time
async def test_successes_are_calls_for_failure_rate(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(minimum_calls=4))
    await succeed(pool, 2)
    await fail(pool)
    assert pool.state is CircuitState.ACTIVE
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE


@pytest.mark.virtual_time
async def test_failure_rate_opens_only_at_its_threshold(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(threshold=0.75, minimum_calls=1))
    await succeed(pool, 2)
    await fail(pool, 5)  # 5 of 7
    assert pool.state is CircuitState.ACTIVE
    await fail(pool)  # 6 of 8
    assert pool.state is CircuitState.INACTIVE


@pytest.mark.virtual_time
async def test_failure_rate_judges_after_a_success_as_well(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(minimum_calls=20))
    await fail(pool, 15)
    await succeed(pool, 4)
    assert pool.state is CircuitState.ACTIVE
    await succeed(pool)  # 15 of 20
    assert pool.state is CircuitState.INACTIVE


@pytest.mark.virtual_time
async def test_failure_rate_stays_closed_after_enough_successes(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(minimum_calls=20))
    await fail(pool, 9)
    await succeed(pool, 20)
    assert pool.state is CircuitState.ACTIVE


@pytest.mark.virtual_time
async def test_failure_rate_forgets_what_left_its_window(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(window=60, minimum_calls=4))
    await fail(pool, 3)
    await advance(60)
    await fail(pool, 3)
    assert pool.state is CircuitState.ACTIVE


@pytest.mark.virtual_time
async def test_failure_rate_remembers_what_is_in_its_window(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(window=60, minimum_calls=4))
    await fail(pool, 3)
    await advance(55)
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE


@pytest.mark.virtual_time
async def test_the_window_of_failure_rate_slides(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(window=60, minimum_calls=5))
    await fail(pool, 2)
    await advance(40)
    await fail(pool, 2)
    await advance(25)  # the first two are gone, the second two are not
    await fail(pool, 2)
    assert pool.state is CircuitState.ACTIVE
    await fail(pool)
    assert pool.state is CircuitState.INACTIVE


@pytest.mark.virtual_time
async def test_old_successes_do_not_hide_new_failures(make_pool):
    pool = make_pool(Thing, strategy=FailureRate(window=60, minimum_calls=4))
    await succeed(pool, 1000)
    await advance(60)
    await fail(pool, 4)
    assert pool.state is CircuitState.INACTIVE


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
