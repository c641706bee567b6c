"""Health checks of idle resources."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Thing,
    Things,
    obtain,
    recorded,
    started,
    styled,
)

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("kind", STYLES)
async def test_every_idle_resource_is_checked_in_every_interval(make_pool, kind):
    things, checked = Things(), []
    pool = make_pool(
        things,
        healthcheck=styled(kind, checked.append),
        healthcheck_interval=10.0,
        min_size=3,
    )
    await pool.open()
    await advance(9.9)
    assert checked == []
    await advance(0.1)
    assert checked == things.made
    await advance(10)
    assert sorted(map(id, checked)) == sorted(map(id, things.made * 2))
    assert pool.idle_count == 3


async def test_nothing_is_checked_without_an_interval(make_pool):
    checked = []
    pool = make_pool(Thing, healthcheck=checked.append, min_size=1)
    await pool.open()
    await advance(1000)
    assert checked == []


async def test_checks_run_one_at_a_time(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=3, max_size=3)
    await pool.open()
    await advance(10)
    assert len(check.calls) == 1
    assert (pool.active_count, pool.idle_count, pool.count) == (1, 2, 3)
    others = [pool.try_acquire(), pool.try_acquire()]
    assert None not in others
    assert check.arguments[0] not in others
    for thing in others:
        pool.release(thing)
    for number in range(3):
        assert len(check.calls) == number + 1
        check.calls[number].set_result(True)
        await settle()
    assert len(check.calls) == 3
    assert pool.idle_count == 3


async def test_busy_resources_are_never_checked(make_pool):
    checked = []
    pool = make_pool(
        Thing, healthcheck=checked.append, healthcheck_interval=10.0, min_size=2, max_size=2
    )
    await pool.open()
    async with pool.acquire() as busy:
        await advance(35)
        assert len(checked) == 3
        assert busy not in checked


async def test_what_became_busy_during_the_round_is_not_checked(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=2, max_size=2)
    await pool.open()
    await advance(10)
    busy = pool.try_acquire()
    check.calls[0].set_result(True)
    await settle()
    assert len(check.calls) == 1
    pool.release(busy)


async def test_a_slow_check_delays_the_next_round(make_pool):
    check = Gate()
    pool = make_pool(
        Thing, healthcheck=check, healthcheck_interval=1.0, hook_timeout=100.0, min_size=2
    )
    await pool.open()
    await advance(50)
    assert len(check.calls) == 1
    check.calls[0].set_result(True)
    await settle()
    assert len(check.calls) == 2
    check.calls[1].set_result(True)


def refuse(thing):
    return False


def fail(thing):
    raise OSError("broken wire")


@pytest.mark.parametrize("verdict", [refuse, fail])
@pytest.mark.parametrize("kind", STYLES)
async def test_the_failing_ones_are_destroyed(make_pool, kind, verdict):
    things, destroyed = Things(), []

    def check(thing):
        return verdict(thing) if thing is things.made[1] else None

    pool = make_pool(
        things,
        healthcheck=styled(kind, check),
        destructor=styled(kind, destroyed.append),
        healthcheck_interval=10.0,
        min_size=3,
    )
    await pool.open()
    pool.resize(min_size=0)
    events = recorded(pool)
    await advance(10)
    assert destroyed == [things.made[1]]
    assert pool.idle_count == 2
    assert [event.kind for event in events] == ["check_failed", "destroyed"]
    assert isinstance(events[0].error, OSError if verdict is fail else cenote.PoolError)
    assert ("healthcheck" in str(events[0].error)) == (verdict is refuse)


@pytest.mark.parametrize("kind", STYLES)
async def test_an_error_of_a_check_is_logged(make_pool, kind, caplog):
    things = Things()
    pool = make_pool(things, healthcheck=styled(kind, fail), healthcheck_interval=10.0, min_size=2)
    await pool.open()
    pool.resize(min_size=0)
    await advance(10)
    assert caplog.text.count("broken wire") >= 2
    assert {line.name for line in caplog.records} == {"cenote"}
    assert pool.count == 0


async def test_a_hanging_check_is_cut_off(make_pool):
    check, destroyed = Gate(), []
    pool = make_pool(
        Thing,
        healthcheck=check,
        destructor=destroyed.append,
        healthcheck_interval=100.0,
        hook_timeout=3.0,
        min_size=2,
    )
    await pool.open()
    pool.resize(min_size=0)
    await advance(102.9)
    assert len(check.calls) == 1
    await advance(0.1)
    assert check.calls[0].cancelled()
    assert destroyed == check.arguments[:1]
    assert len(check.calls) == 2
    check.calls[1].set_result(True)
    await settle()
    assert pool.idle_count == 1


async def test_a_cancelled_check_destroys_its_resource(make_pool):
    checked = []

    async def check(thing):
        checked.append(thing)
        if len(checked) == 1:
            raise asyncio.CancelledError

    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=2)
    await pool.open()
    pool.resize(min_size=0)
    await advance(10)
    assert len(checked) == 2
    assert pool.idle_count == 1


async def test_a_checked_resource_goes_to_the_waiter(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=1, max_size=1)
    await pool.open()
    await advance(10)
    waiter = await started(obtain(pool))
    assert not waiter.done()
    check.calls[0].set_result(True)
    thing = await waiter
    assert thing is check.arguments[0]
    pool.release(thing)


async def test_the_slot_of_a_failed_check_goes_to_the_waiter(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=1, max_size=1)
    await pool.open()
    await advance(10)
    waiter = await started(obtain(pool))
    check.calls[0].set_result(False)
    thing = await waiter
    assert thing is not check.arguments[0]
    pool.release(thing)


async def test_a_check_is_no_use(make_pool):
    pool = make_pool(
        Thing,
        healthcheck=lambda thing: True,
        healthcheck_interval=1.0,
        min_size=1,
        max_uses=2,
        max_idle=5.0,
    )
    await pool.open()
    thing = await pool.acquire()
    pool.release(thing)
    await advance(4)
    assert pool.try_acquire() is thing
    pool.release(thing)
    await settle()
    assert pool.try_acquire() is not thing
    for holder in pool.holders():
        pool.release(holder.resource)


async def test_a_check_does_not_make_an_idle_resource_young_again(make_pool):
    destroyed = []
    pool = make_pool(
        Thing,
        healthcheck=lambda thing: True,
        destructor=destroyed.append,
        healthcheck_interval=1.0,
        max_idle=5.5,
    )
    pool.release(await pool.acquire())
    await advance(5.4)
    assert destroyed == []
    await advance(0.2)
    assert len(destroyed) == 1


async def test_nothing_is_checked_after_the_round_met_a_closed_pool(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=3)
    await pool.open()
    await advance(10)
    await pool.close()
    await advance(100)
    assert len(check.calls) == 1
    assert pool.count == 0
