"""A recovery lets only so many acquires out at once, its probes."""

import asyncio

import pytest

from cenote import (
    AcquireTimeoutError,
    CircuitState,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from cenote.testing import settle
from tests.support.kit import (
    STYLES,
    Gate,
    Holding,
    Thing,
    acquiring,
    cancel,
    outcome,
    queued,
    raising,
    styled,
)
from tests.support.waiting import WAIT

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
    old, first, second = await queued(pool, 2)
    pool.recover()
    await cancel(first)
    pool.release(old)
    pool.release(await second)
    await assert_a_place_is_free(pool)


@pytest.mark.parametrize("style", STYLES)
async def test_a_newcomer_does_not_block_earlier_waiters(make_pool, style):
    pool = make_pool(styled(style, Thing), max_size=1)
    old, waiter = await queued(pool)
    pool.recover()
    newcomer = Holding(pool)  # refused, or behind the other
    await settle()
    pool.release(old)
    async with asyncio.timeout(WAIT):
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
    async with asyncio.timeout(WAIT):
        await asyncio.gather(waiter.leave(), probe.leave(), return_exceptions=True)


# -- a probe that ends without a verdict gives its place back ------------------------------------


async def assert_a_place_is_free(pool):
    assert pool.state is CircuitState.RECOVERING
    thing = await pool.acquire(timeout=WAIT)
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


async def test_a_discarded_probe_frees_its_place_during_the_destructor(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, max_size=2, recovering_limit=1, destructor=destructor)
    held = [await pool.acquire(), await pool.acquire()]
    waiters = [acquiring(pool) for _ in held]
    await settle()
    pool.recover()
    pool.release(held[0])  # to the first waiter, which takes the only place
    probe = await waiters[0]
    pool.release(held[1])  # idle: the second has no place
    await settle()
    assert not waiters[1].done()
    gone = pool.discard(probe)
    await settle()
    assert (destructor.entered, waiters[1].done()) == (1, True)
    destructor.open()
    await gone
    await pool.release(await waiters[1])


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
