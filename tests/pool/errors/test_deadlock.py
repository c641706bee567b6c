"""`PoolDeadlockError`: when it is raised, when not, and what it says."""

import asyncio
import contextlib

import pytest

import cenote
from cenote import (
    AcquireTimeoutError,
    PoolDeadlockError,
)
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    FakeService,
    Gate,
    Holding,
    Thing,
    acquiring,
    line,
    outcome,
    start,
    styled,
)

virtual_time = pytest.mark.virtual_time
both_factories = pytest.mark.parametrize("factory", ["sync ok", "async ok"])
NAMES = [(None, "pool"), ("db", "pool 'db'")]
named = pytest.mark.parametrize(("name", "label"), NAMES)


# -- deadlock ------------------------------------------------------------------------------------


async def test_a_task_that_waits_for_itself_is_deadlocked(make_pool):
    pool = make_pool(object, max_size=1)

    async def nest():
        async with pool.acquire(), pool.acquire():
            pass

    task = asyncio.create_task(nest(), name="nested")
    await settle()
    assert task.done()
    error = await outcome(task)
    assert isinstance(error, cenote.PoolDeadlockError)
    assert "'nested'" in str(error)
    assert (pool.idle_count, pool.waiting_count) == (1, 0)


async def circle(pool, timeouts):
    """Tasks that each hold one resource and then, one after the other, ask for a second."""

    async def nest(turn, timeout):
        async with pool.acquire():
            await turn.wait()
            async with pool.acquire(timeout=timeout):
                pass

    turns = [asyncio.Event() for _ in timeouts]
    tasks = [
        asyncio.create_task(nest(turn, timeout), name=f"task {number}")
        for number, (turn, timeout) in enumerate(zip(turns, timeouts, strict=True))
    ]
    for turn in turns:
        await settle()
        turn.set()
    await settle()
    return tasks


@both_factories
async def test_only_the_acquire_that_completes_a_circle_raises(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=3)
    tasks = await circle(pool, [None, None, None])
    assert tasks[2].done()
    error = await outcome(tasks[2])
    assert isinstance(error, cenote.PoolDeadlockError)
    for task in tasks:
        assert repr(task.get_name()) in str(error)
    assert [await outcome(task) for task in tasks[:2]] == [None, None]


@virtual_time
@pytest.mark.parametrize("timeouts", [(5, None), (None, 5)], ids=["first", "last"])
async def test_a_timeout_in_a_circle_is_a_deadlock(make_pool, timeouts):
    pool = make_pool(object, max_size=2)
    tasks = await circle(pool, timeouts)
    assert not any(task.done() for task in tasks)
    await advance(5)
    error = await outcome(tasks[timeouts.index(5)])
    assert isinstance(error, cenote.AcquireTimeoutError)
    assert "deadlock" in str(error).lower()
    assert await outcome(tasks[timeouts.index(None)]) is None


@virtual_time
async def test_a_timeout_without_a_circle_is_no_deadlock(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    with pytest.raises(cenote.AcquireTimeoutError) as raised:
        await pool.acquire(timeout=1)
    assert "Deadlock" not in str(raised.value)
    pool.release(held)


async def test_a_resource_without_a_block_may_come_back(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    asyncio.get_running_loop().call_soon(pool.release, held)
    assert await pool.acquire() is held
    pool.release(held)


async def test_nobody_is_deadlocked_while_a_slot_is_closing(make_pool):
    doors = Gate()
    pool = make_pool(object, destructor=doors, max_size=2)
    other = await pool.acquire()

    async def nest():
        async with pool.acquire():
            pool.discard(other)
            async with pool.acquire():
                pass

    task = asyncio.create_task(nest())
    await settle()
    assert not task.done()
    doors.calls[0].set_result(None)
    await task
    closing = asyncio.create_task(pool.close())
    await settle()
    for call in doors.calls[1:]:
        call.set_result(None)
    await closing


async def test_nobody_is_deadlocked_while_a_slot_is_opening(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=2)

    async def nest():
        async with pool.acquire(), pool.acquire():
            pass

    task = asyncio.create_task(nest())
    await settle()
    doors.calls[0].set_result("first")
    await settle()
    assert not task.done()
    doors.calls[1].set_result("second")
    await task


DEADLOCK_ADVICE = (
    ". Deadlock: every resource is held by a task that itself waits for this pool. "
    "Release before acquiring again, or raise max_size."
)


@pytest.mark.virtual_time
@named
async def test_a_timeout_in_a_circle_says_deadlock(make_pool, name, label):
    pool = make_pool(Thing, max_size=1, name=name)
    at = line() + 1
    async with pool.acquire():
        with pytest.raises(AcquireTimeoutError) as caught:
            await pool.acquire(timeout=2)
    assert str(caught.value) == (
        f"{label}: no resource within 2.0 s (1 active, 0 idle, 1 waiting); held by "
        f"task 'test' for 2.0 s ({__file__}:{at}){DEADLOCK_ADVICE}"
    )


@pytest.mark.virtual_time
async def test_the_first_timeout_of_a_circle_says_deadlock(make_pool):
    pool = make_pool(Thing, max_size=2)
    both = asyncio.Barrier(2)

    async def nested(timeout):
        async with pool.acquire():
            await both.wait()
            async with pool.acquire(timeout=timeout):
                pass

    short, long = start(nested(1)), start(nested(9))
    error = await outcome(short)
    assert isinstance(error, AcquireTimeoutError)
    assert str(error).endswith(DEADLOCK_ADVICE)
    await long


# -- PoolDeadlockError ---------------------------------------------------------------------------


@named
@pytest.mark.parametrize("style", STYLES)
async def test_a_nested_acquire_of_the_only_resource_is_a_deadlock(make_pool, name, label, style):
    pool = make_pool(styled(style, Thing), max_size=1, name=name)
    async with pool.acquire():
        with pytest.raises(PoolDeadlockError) as caught:
            await pool.acquire()
    assert str(caught.value) == (
        f"{label}: deadlock: the only resource is held by tasks that themselves wait for this "
        f"pool without a deadline: 'test'. Release before acquiring again, raise max_size, "
        f"or give acquire() a timeout."
    )
    assert (pool.waiting_count, pool.idle_count) == (0, 1)


async def test_a_task_that_holds_everything_is_named_once(make_pool):
    pool = make_pool(Thing, max_size=2)
    async with pool.acquire(), pool.acquire():
        with pytest.raises(PoolDeadlockError) as caught:
            async with pool.acquire():
                pass
    assert ": deadlock: all 2 resources are held by " in str(caught.value)
    assert " without a deadline: 'test'. " in str(caught.value)


@named
async def test_a_circle_of_two_is_a_deadlock_at_once(make_pool, name, label):
    pool = make_pool(Thing, max_size=2, name=name)
    both = asyncio.Barrier(2)

    async def nested(turns):
        async with pool.acquire():
            await both.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            async with pool.acquire():
                pass

    first, second = start(nested(0), "first"), start(nested(5), "second")
    error = await outcome(second)
    assert isinstance(error, PoolDeadlockError)
    assert str(error) in {
        f"{label}: deadlock: all 2 resources are held by tasks that themselves wait for this "
        f"pool without a deadline: {who}. Release before acquiring again, raise max_size, "
        f"or give acquire() a timeout."
        for who in ("'first', 'second'", "'second', 'first'")
    }
    await first  # served by what the second gave back


async def nested_acquire(pool, **options):
    """Holds one in a block and wants another."""
    async with pool.acquire(), pool.acquire(**options):
        pass


async def test_no_deadlock_while_a_slot_is_opening(make_pool):
    gate = Gate(Thing)
    pool = make_pool(gate, min_size=0, max_size=2)
    opening = acquiring(pool)
    await settle()
    gate.open()
    first = await opening
    gate.shut()
    pool.release(first)
    inner = asyncio.Event()

    async def nested():
        async with pool.acquire():
            await inner.wait()
            async with pool.acquire():
                pass

    task = start(nested())
    await settle()
    other = acquiring(pool)  # takes the last room
    await settle()
    inner.set()
    await settle()
    assert pool.stats().creating == 1
    assert pool.waiting_count == 2
    gate.open()
    pool.release(await other)
    await task


async def test_no_deadlock_while_a_slot_is_closing(make_pool):
    gate = Gate()
    pool = make_pool(Thing, destructor=gate, max_size=2)
    pool.discard(await pool.acquire())
    task = start(nested_acquire(pool))
    await settle()
    assert (pool.stats().destroying, pool.waiting_count) == (1, 1)
    gate.open()
    await task


async def test_no_deadlock_when_a_holder_has_no_block(make_pool):
    pool = make_pool(Thing, max_size=2)
    plain = await pool.acquire()  # anybody may release it
    task = start(nested_acquire(pool))
    waiter = acquiring(pool)
    await settle()
    assert pool.waiting_count == 2
    pool.release(plain)
    await task
    pool.release(await waiter)


async def test_no_deadlock_for_a_plain_await_in_the_same_task(make_pool):
    pool = make_pool(Thing, max_size=1)

    async def twice():
        first = await pool.acquire()
        second = await pool.acquire()
        pool.release(second)
        return first

    task = start(twice())
    await settle()
    assert pool.waiting_count == 1
    pool.release(pool.holders()[0].resource)
    await task


@pytest.mark.virtual_time
async def test_no_deadlock_when_a_waiter_has_a_deadline(make_pool):
    pool = make_pool(Thing, max_size=2)
    go_on = [asyncio.Event(), asyncio.Event()]

    async def nested(event, **options):
        async with pool.acquire():
            await event.wait()
            async with pool.acquire(**options):
                pass

    limited, unlimited = start(nested(go_on[0], timeout=3)), start(nested(go_on[1]))
    for event in go_on:
        await advance(1)
        event.set()
    await advance(1)
    assert pool.waiting_count == 2
    error = await outcome(limited)
    assert isinstance(error, AcquireTimeoutError)
    assert str(error).endswith(DEADLOCK_ADVICE)
    await unlimited


@pytest.mark.virtual_time
async def test_no_deadlock_when_the_last_waiter_has_a_deadline(make_pool):
    pool = make_pool(Thing, max_size=1)
    error = await outcome(start(nested_acquire(pool, timeout=2)))
    assert isinstance(error, AcquireTimeoutError)


@pytest.mark.virtual_time
async def test_no_deadlock_when_the_default_timeout_is_the_deadline(make_pool):
    pool = make_pool(Thing, max_size=1, acquire_timeout=2)
    assert isinstance(await outcome(start(nested_acquire(pool))), AcquireTimeoutError)


async def test_no_deadlock_when_a_holder_is_not_waiting(make_pool):
    pool = make_pool(Thing, max_size=2)
    busy = Holding(pool)
    await settle()
    task = start(nested_acquire(pool))
    await settle()
    assert pool.waiting_count == 1
    await busy.leave()
    await task


async def test_no_deadlock_when_a_holder_waits_for_another_pool(make_pool):
    pool, other = make_pool(Thing, max_size=1), make_pool(Thing, max_size=1)
    busy = Holding(other)
    await settle()

    async def cross():
        async with pool.acquire(), other.acquire():
            pass

    task = start(cross())
    await settle()
    waiter = acquiring(pool)
    await settle()
    await busy.leave()
    await task
    pool.release(await waiter)


async def test_no_deadlock_while_a_hook_looks_at_a_resource(make_pool):
    gate = Gate()
    pool = make_pool(Thing, max_size=2, before_release=gate)
    plain = await pool.acquire()
    pool.release(plain)  # the hook is looking
    task = start(nested_acquire(pool))
    await settle()
    assert pool.waiting_count == 1
    gate.open()
    await task


async def test_no_deadlock_when_there_is_room_again(make_pool):
    pool = make_pool(Thing, max_size=2)
    both = asyncio.Barrier(3)

    async def nested():
        async with pool.acquire() as thing:
            await both.wait()
            pool.discard(thing)
            async with pool.acquire():
                pass

    tasks = [start(nested()) for _ in range(2)]
    await both.wait()
    await asyncio.gather(*tasks)


async def test_a_waiter_that_left_does_not_count_for_a_circle(make_pool):
    pool = make_pool(Thing, max_size=2)
    other, leave = Holding(pool), asyncio.Event()
    await settle()

    async def gives_up():
        async with pool.acquire():
            with contextlib.suppress(asyncio.CancelledError):
                await pool.acquire()
            await leave.wait()

    first = start(gives_up())
    await settle()
    first.cancel()
    await other.leave()
    second = start(nested_acquire(pool))
    await settle()
    assert pool.waiting_count == 1
    leave.set()
    await first
    await second


@pytest.mark.own_loop
async def test_a_deadlock_names_tasks_in_the_order_of_leases(make_pool):
    pool = make_pool(Thing, max_size=6)
    go = asyncio.Event()

    async def hold(last):
        async with pool.acquire():
            await go.wait()
            if last:
                await settle()
            async with pool.acquire():
                pass

    names = [f"task {number}" for number in (3, 1, 5, 0, 4, 2)]
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(hold(name == "task 2"), name=name))
        await settle()
    go.set()
    done, _ = await asyncio.wait(tasks)
    errors = [task.exception() for task in done if task.exception() is not None]
    assert errors
    found = [str(errors[0]).index(name) for name in names]
    assert found == sorted(found)
