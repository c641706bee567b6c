"""The states of the circuit breaker, and what deactivation does to waiters."""

import asyncio
import itertools

import pytest

import cenote
from cenote import (
    CircuitState,
    PoolClosedError,
    ServiceUnavailableError,
)
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Thing,
    Tripwire,
    acquiring,
    outcome,
    queued,
    recorded,
    styled,
)
from tests.support.waiting import WAIT

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
    async with asyncio.timeout(WAIT):
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


# -- deactivate fails every waiter at once -------------------------------------------------------


async def test_deactivate_fails_everybody_in_the_queue(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing, *waiters = await queued(pool, 3)
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


@pytest.mark.parametrize(
    ("give", "kept"), [("release", 1), ("discard", 0)], ids=["resource", "creation right"]
)
async def test_deactivate_fails_waiters_that_were_granted_something(make_pool, give, kept):
    pool = make_pool(Thing, max_size=1)
    thing, granted, waiting = await queued(pool, 2)
    getattr(pool, give)(thing)
    pool.deactivate()
    assert (pool.idle_count, pool.active_count) == (kept, 0)
    for waiter in (granted, waiting):
        assert isinstance(await outcome(waiter), ServiceUnavailableError)
    assert (pool.stats().created, pool.stats().creating) == (1, 0)


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
    thing, waiter = await queued(pool)
    pool.release(thing)
    assert isinstance(await outcome(waiter), ServiceUnavailableError)
    assert (pool.active_count, pool.waiting_count) == (0, 0)


async def test_a_failure_while_others_wait_deactivates_and_fails_them(make_pool):
    pool = make_pool(Thing, max_size=1, strategy=Tripwire())
    thing, *waiters = await queued(pool, 2)
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
