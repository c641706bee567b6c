"""max_creating: so many factories at once, at most, whoever needs what they make."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Gate, Thing, acquiring, give_all, take_all


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_only_so_many_factories_run_at_once(make_pool, limit):
    doors = Gate(Thing)
    pool = make_pool(doors, max_size=6, max_creating=limit)
    waiters = [acquiring(pool) for _ in range(6)]
    for done in range(6):
        await settle()
        assert doors.entered == min(6, done + limit)
        assert pool.stats().creating == min(limit, 6 - done)
        doors.calls[done].set_result(f"thing {done}")
    await settle()
    assert [waiter.result() for waiter in waiters] == [f"thing {n}" for n in range(6)]
    await give_all(pool, [waiter.result() for waiter in waiters])


async def test_a_failed_factory_makes_way_for_the_next(make_pool):
    doors = Gate(Thing)
    pool = make_pool(doors, max_size=3, max_creating=1)
    waiters = [acquiring(pool) for _ in range(3)]
    await settle()
    doors.calls[0].set_exception(OSError("down"))
    await settle()
    assert isinstance(waiters[0].exception(), OSError)
    assert doors.entered == 2
    doors.open()
    await give_all(pool, await asyncio.gather(*waiters[1:]))


async def test_a_waiter_takes_what_is_released_instead(make_pool):
    doors = Gate(Thing)
    pool = make_pool(doors, max_size=3, max_creating=1)
    doors.open()
    held = await pool.acquire()
    doors.shut()
    first, second = acquiring(pool), acquiring(pool)
    await settle()
    assert doors.entered == 2
    pool.release(held)
    assert await first is held
    assert not second.done()
    doors.open()
    await give_all(pool, [held, await second])


async def test_open_makes_min_size_a_few_at_a_time(make_pool):
    most = 0

    async def create():
        nonlocal most
        most = max(most, pool.stats().creating)
        await asyncio.sleep(0)
        return object()

    pool = make_pool(create, min_size=7, max_size=10, max_creating=2)
    await pool.open()
    assert (pool.count, most) == (7, 2)


@pytest.mark.virtual_time
async def test_min_size_is_restored_a_few_at_a_time(make_pool):
    doors = Gate(Thing)
    doors.open()
    pool = make_pool(doors, min_size=4, max_size=4, max_creating=2)
    await pool.open()
    doors.shut()
    await pool.retire()
    for made in (0, 2):
        await advance(1)
        assert doors.entered == 4 + made + 2
        assert pool.stats().creating == 2
        for call in doors.calls[4 + made :]:
            call.set_result(Thing())
    await settle()
    assert pool.idle_count == 4


async def test_sync_factories_serve_every_waiter_in_turn(make_pool):
    pool = make_pool(Thing, max_size=5, max_creating=1)
    held = await take_all(pool, 5)
    waiters = [acquiring(pool) for _ in range(5)]
    await settle()
    for thing in held:
        pool.discard(thing)
    await settle()
    assert all(waiter.done() for waiter in waiters)
    await give_all(pool, [waiter.result() for waiter in waiters])


async def test_a_permit_given_back_goes_to_the_next(make_pool):
    pool = make_pool(Thing, max_size=2, max_creating=1)
    held = await take_all(pool, 2)
    waiters = [acquiring(pool) for _ in range(2)]
    await settle()
    for thing in held:
        pool.discard(thing)
    waiters[0].cancel()
    await settle()
    assert waiters[0].cancelled()
    await give_all(pool, [await waiters[1]])


@pytest.mark.virtual_time
async def test_timeout_zero_starts_no_factory_beyond_the_limit(make_pool):
    doors = Gate(Thing)
    pool = make_pool(doors, max_size=3, max_creating=1)
    waiter = acquiring(pool)
    await settle()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=0)
    late = acquiring(pool, timeout=2)
    await advance(2)
    assert isinstance(late.exception(), cenote.AcquireTimeoutError)
    assert doors.entered == 1
    doors.open()
    await give_all(pool, [await waiter])


async def test_after_an_outage_waiters_are_let_in_as_connections_come(make_pool):
    doors = Gate(Thing)
    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=0.0, success_threshold=1)
    pool = make_pool(doors, max_size=8, max_creating=2, strategy=strategy)
    doomed = acquiring(pool)
    await settle()
    doors.calls[0].set_exception(OSError("down"))
    await settle()
    assert isinstance(doomed.exception(), OSError)
    assert pool.state is cenote.CircuitState.INACTIVE
    probe = acquiring(pool)
    await settle()
    assert pool.state is cenote.CircuitState.RECOVERING
    doors.calls[1].set_result(Thing())
    await pool.release(await probe)
    assert pool.state is cenote.CircuitState.ACTIVE
    waiters = [acquiring(pool) for _ in range(8)]
    await settle()
    assert (doors.entered - 2, sum(waiter.done() for waiter in waiters)) == (2, 1)
    for call in doors.calls[2:]:
        call.set_result(Thing())
    await settle()
    assert (doors.entered - 2, sum(waiter.done() for waiter in waiters)) == (4, 3)
    doors.open()
    await give_all(pool, await asyncio.gather(*waiters))
