"""The errors: their classes, and what they say, word for word."""

import asyncio
import contextlib
import copy
import dataclasses
import gc
import itertools
import pickle
import threading

import pytest

import cenote
from cenote import (
    AcquireTimeoutError,
    CircuitState,
    Holder,
    NotAcquiredError,
    PoolClosedError,
    PoolDeadlockError,
    PoolError,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from tests.support.clock import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Holding,
    RecordingStrategy,
    Thing,
    acquiring,
    line,
    outcome,
    raising,
    recorded,
    start,
    styled,
)

from cenote.errors import seconds  # isort: skip

NAMES = [(None, "pool"), ("db", "pool 'db'")]
named = pytest.mark.parametrize(("name", "label"), NAMES)

ADVICE = ". Raise max_size, or hold resources for a shorter time."
DEADLOCK_ADVICE = (
    ". Deadlock: every resource is held by a task that itself waits for this pool. "
    "Release before acquiring again, or raise max_size."
)


# -- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (PoolError, (Exception,)),
        (PoolClosedError, (PoolError,)),
        (ServiceUnavailableError, (PoolError,)),
        (PoolOverloadedError, (PoolError,)),
        (PoolDeadlockError, (PoolError,)),
        (AcquireTimeoutError, (PoolError, TimeoutError)),
        (NotAcquiredError, (PoolError, ValueError)),
    ],
)
def test_the_errors_have_their_base_classes(error, bases):
    assert error.__bases__ == bases


def test_unrelated_errors_are_not_caught_together():
    siblings = [
        PoolClosedError,
        ServiceUnavailableError,
        PoolOverloadedError,
        PoolDeadlockError,
        AcquireTimeoutError,
        NotAcquiredError,
    ]
    for one in siblings:
        assert [other for other in siblings if issubclass(one, other)] == [one]


# -- AcquireTimeoutError -------------------------------------------------------------------------


@pytest.mark.virtual_time
@named
async def test_a_timeout_says_the_counts_and_the_holders(make_pool, name, label):
    pool = make_pool(Thing, max_size=2, name=name)
    at = line() + 3

    async def hold(seconds):
        async with pool.acquire():
            await asyncio.sleep(seconds)

    tasks = [start(hold(60), "first")]
    await advance(40)
    tasks.append(start(hold(60), "second"))
    await advance(3.5)
    waiter = acquiring(pool)
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=2)
    assert str(caught.value) == (
        f"{label}: no resource within 2.0 s (2 active, 0 idle, 2 waiting); held by "
        f"task 'first' for 46 s ({__file__}:{at}); "
        f"task 'second' for 5.5 s ({__file__}:{at}){ADVICE}"
    )
    pool.release(await waiter)
    await asyncio.gather(*tasks)


@pytest.mark.virtual_time
async def test_a_timeout_has_its_holders_as_data(make_pool):
    pool = make_pool(Thing, max_size=2)
    older, at = await pool.acquire(), line()
    await advance(5)
    newer = await acquiring(pool, name="other")
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=2)
    first, second = caught.value.holders
    assert isinstance(first, Holder)
    assert (first.resource, first.task, first.seconds) == (older, "test", 7.0)
    assert (first.file, first.line, first.reason) == (__file__, at, None)
    assert (second.resource, second.task, second.seconds) == (newer, "other", 2.0)
    pool.release(older)
    pool.release(newer)


@pytest.mark.virtual_time
async def test_a_timeout_lists_ten_holders_and_counts_the_rest(make_pool):
    pool = make_pool(Thing, max_size=12)
    holdings = []
    for number in range(12):
        holdings.append(Holding(pool, name=f"holder {number}"))
        await advance(1)
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=1)
    message = str(caught.value)
    assert [n for n in range(12) if f"task 'holder {n}' for" in message] == [*range(10)]
    assert message.endswith(f"; and 2 more{ADVICE}")
    assert [holder.task for holder in caught.value.holders] == [f"holder {n}" for n in range(12)]
    for holding in holdings:
        await holding.leave()


@named
async def test_a_timeout_of_zero_says_so(make_pool, name, label):
    pool = make_pool(Gate(Thing), name=name)
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=0)
    assert str(caught.value) == (
        f"{label}: no resource within 0.0 s (0 active, 0 idle, 0 waiting){ADVICE}"
    )
    assert caught.value.holders == ()


@pytest.mark.virtual_time
async def test_a_fraction_of_a_second_is_said_as_such(make_pool):
    pool = make_pool(Gate(Thing))
    with pytest.raises(AcquireTimeoutError, match=r"no resource within 0\.25 s "):
        await pool.acquire(timeout=0.25)


@pytest.mark.virtual_time
async def test_the_default_timeout_is_named_like_any_other(make_pool):
    pool = make_pool(Gate(Thing), acquire_timeout=3)
    with pytest.raises(AcquireTimeoutError, match=r"no resource within 3\.0 s "):
        await pool.acquire()


@pytest.mark.virtual_time
async def test_a_timeout_has_the_last_factory_error_of_its_wait(make_pool):
    errors = [OSError("first"), OSError("second")]
    calls = iter(errors)

    async def connect():
        await asyncio.sleep(1)
        for error in calls:
            raise error
        await asyncio.Event().wait()

    pool = make_pool(connect, max_size=1)
    others = [acquiring(pool), acquiring(pool)]
    await settle()
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=5)
    assert caught.value.__cause__ is errors[1]
    assert [await outcome(other) for other in others] == errors


@pytest.mark.virtual_time
async def test_a_timeout_without_a_factory_error_has_no_cause(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=1)
    assert caught.value.__cause__ is None
    pool.release(thing)


@pytest.mark.virtual_time
@pytest.mark.parametrize("pause", [1, 0], ids=["later", "at the same instant"])
@pytest.mark.parametrize("timeout", [0, 1])
async def test_an_older_factory_error_causes_no_timeout(make_pool, pause, timeout):
    gates = iter([raising(OSError("old")), Gate()])

    async def connect():
        result = next(gates)()
        return await result

    pool = make_pool(connect, max_size=1)
    with pytest.raises(OSError, match="old"):
        await pool.acquire()
    await advance(pause)
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=timeout)
    assert caught.value.__cause__ is None


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


@pytest.mark.virtual_time
async def test_a_timeout_among_busy_holders_does_not_say_deadlock(make_pool):
    pool = make_pool(Thing, max_size=2)
    busy = Holding(pool)
    await settle()
    async with pool.acquire():
        with pytest.raises(AcquireTimeoutError) as caught:
            await pool.acquire(timeout=1)
    assert str(caught.value).endswith(ADVICE)
    await busy.leave()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0.0 s"), (1e-9, "0.00 ms"), (8.7e-05, "0.09 ms"), (0.0025, "2.5 ms"),
        (0.00999, "10.0 ms"), (0.01, "0.01 s"), (0.05, "0.05 s"), (0.25, "0.25 s"),
        (0.999, "1 s"), (1, "1.0 s"), (5, "5.0 s"), (42.4, "42 s"), (86400, "86400 s"),
    ],
)  # fmt: skip
def test_durations_are_short_and_readable(value, shown):
    assert seconds(value) == shown


class Secret:
    """A resource that cannot be pickled, with what must not be."""

    def __init__(self):
        self.password = "hunter2"
        self.lock = threading.Lock()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_timeout_is_pickled_without_what_is_held(protocol):
    holder = Holder(resource=Secret(), task="t", seconds=1.5, file="f.py", line=3, reason="why")
    error = AcquireTimeoutError("too late", (holder,))
    pickled = pickle.dumps(error, protocol)
    assert b"hunter2" not in pickled
    twin = pickle.loads(pickled)
    assert type(twin) is AcquireTimeoutError
    assert str(twin) == "too late"
    assert twin.holders == (dataclasses.replace(holder, resource=None),)
    assert error.holders == (holder,)


@pytest.mark.virtual_time
async def test_a_timeout_of_a_real_pool_can_be_pickled(make_pool):
    pool = make_pool(Secret, max_size=1)
    held = await pool.acquire()
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=1)
    assert caught.value.holders[0].resource is held
    for twin in (pickle.loads(pickle.dumps(caught.value)), copy.deepcopy(caught.value)):
        assert str(twin) == str(caught.value)
        assert [dataclasses.replace(holder, resource=held) for holder in twin.holders] == [
            *caught.value.holders
        ]
        assert twin.holders[0].resource is None
    pool.release(held)


@pytest.mark.parametrize(
    "kind",
    [
        PoolError,
        PoolClosedError,
        ServiceUnavailableError,
        PoolOverloadedError,
        PoolDeadlockError,
        NotAcquiredError,
    ],
)
def test_the_other_errors_can_be_pickled(kind):
    copy = pickle.loads(pickle.dumps(kind("words")))
    assert (type(copy), str(copy)) == (kind, "words")


# -- file and line -------------------------------------------------------------------------------


def where(pool):
    (holder,) = pool.holders()
    return holder.file, holder.line


async def test_file_and_line_are_of_the_call(make_pool):
    pool = make_pool(Thing)
    asked, at = pool.acquire(), line()
    thing = await asked
    assert where(pool) == (__file__, at)
    pool.release(thing)


async def test_file_and_line_of_a_block_are_right(make_pool):
    pool = make_pool(Thing)
    at = line() + 1
    async with pool.acquire():
        assert where(pool) == (__file__, at)


async def test_file_and_line_of_try_acquire_are_right(make_pool):
    pool = make_pool(Thing)
    thing, at = pool.try_acquire(), line()
    assert where(pool) == (__file__, at)
    pool.release(thing)


async def test_file_and_line_of_a_waiter_are_right(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    at = line() + 3

    async def ask():
        return await pool.acquire()

    waiter = start(ask(), "waiter")
    await settle()
    pool.release(thing)
    thing = await waiter
    assert where(pool) == (__file__, at)
    assert pool.holders()[0].task == "waiter"
    pool.release(thing)


async def test_file_and_line_inside_a_helper_are_of_the_helper(make_pool):
    pool = make_pool(Thing)
    at = line() + 3

    def helper():
        return pool.acquire()

    thing = await helper()
    assert where(pool) == (__file__, at)
    pool.release(thing)


async def test_file_and_line_go_through_an_exit_stack(make_pool):
    pool = make_pool(Thing)
    async with contextlib.AsyncExitStack() as stack:
        at = line() + 1
        await stack.enter_async_context(pool.acquire())
        assert where(pool) == (__file__, at)


async def test_a_call_by_contextlib_has_the_frame_behind(make_pool):
    pool = make_pool(Thing)
    stack = contextlib.AsyncExitStack()
    stack.push_async_callback(pool.acquire)  # contextlib calls it, and awaits the result
    at = line() + 1
    await stack.aclose()
    assert where(pool) == (__file__, at)
    pool.release(pool.holders()[0].resource)


async def test_file_and_line_stay_in_a_context_manager(make_pool):
    pool = make_pool(Thing)
    at = line() + 4

    @contextlib.asynccontextmanager
    async def session():
        async with pool.acquire() as thing:
            yield thing

    async with session():
        assert where(pool) == (__file__, at)


async def test_file_and_line_go_through_wait_for(make_pool):
    pool = make_pool(Thing)
    at = line() + 1
    thing = await asyncio.wait_for(pool.acquire(), 5)
    assert where(pool) == (__file__, at)
    pool.release(thing)


async def test_a_call_by_asyncio_has_the_frame_behind(make_pool):
    pool = make_pool(Thing)
    asked = []
    # Between the loop and acquire() is no frame but those of asyncio.
    once = itertools.islice(iter(pool.acquire, None), 1)
    asyncio.get_running_loop().call_soon(asked.extend, once)
    await settle()
    thing = await asked[0]
    assert where(pool)[0].endswith("conftest.py")  # which runs the loop
    pool.release(thing)


async def test_the_task_is_the_one_that_awaited(make_pool):
    pool = make_pool(Thing)
    asked = pool.acquire()

    async def wait():
        return await asked

    thing = await start(wait(), "awaiter")
    assert [holder.task for holder in pool.holders()] == ["awaiter"]
    pool.release(thing)


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


# -- NotAcquiredError ----------------------------------------------------------------------------


@named
@pytest.mark.parametrize("verb", ["release", "discard"])
async def test_a_foreign_resource_is_refused(make_pool, name, label, verb):
    pool = make_pool(Thing, name=name)
    held = await pool.acquire()
    stranger = Thing()
    with pytest.raises(NotAcquiredError) as caught:
        getattr(pool, verb)(stranger)
    assert str(caught.value) == (
        f"{label}: cannot {verb} <Thing at {id(stranger):#x}>: it is not out. "
        f"It came from elsewhere, or was released or discarded before."
    )
    pool.release(held)


@pytest.mark.parametrize("second", ["release", "discard"])
@pytest.mark.parametrize("first", ["release", "discard"])
async def test_returning_twice_is_refused_and_changes_nothing(make_pool, first, second):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, max_size=2)
    held, thing = await pool.acquire(), await pool.acquire()
    getattr(pool, first)(thing)
    listener.reports.clear()
    events = recorded(pool)
    before = pool.stats()
    with pytest.raises(NotAcquiredError):
        getattr(pool, second)(thing)
    assert pool.stats() == before
    assert (events, listener.reports) == ([], [])
    pool.release(held)


async def test_a_foreign_resource_changes_nothing(make_pool):
    asked, listener = [], RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, before_release=asked.append, destructor=asked.append)
    held = await pool.acquire()
    before = pool.stats()
    for stranger in (Thing(), None, 42):
        with pytest.raises(NotAcquiredError):
            pool.release(stranger)
        with pytest.raises(NotAcquiredError):
            pool.discard(stranger, OSError())
    assert pool.stats() == before
    assert (asked, listener.reports) == ([], [])
    pool.release(held)


async def test_an_idle_resource_is_not_out(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    pool.release(thing)
    with pytest.raises(NotAcquiredError):
        pool.release(thing)
    assert await pool.acquire() is thing
    pool.release(thing)


async def test_a_granted_resource_is_not_out_yet(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.release(thing)
    with pytest.raises(NotAcquiredError):
        pool.release(thing)
    assert await waiter is thing
    pool.release(thing)


async def test_an_equal_resource_is_not_the_same(make_pool):
    pool = make_pool(list)
    held = await pool.acquire()
    with pytest.raises(NotAcquiredError):
        pool.release([])
    pool.release(held)


async def test_the_message_does_not_show_the_resource_itself(make_pool):
    class Connection:
        def __repr__(self):
            return "password"

    pool = make_pool(Connection)
    with pytest.raises(NotAcquiredError) as caught:
        pool.release(Connection())
    assert "password" not in str(caught.value)


# -- the short ones ------------------------------------------------------------------------------


@named
async def test_a_closed_pool_refuses_by_name(make_pool, name, label):
    pool = make_pool(Thing, name=name)
    await pool.close()
    words = f"{label} is closed. Create a new Pool to go on."
    with pytest.raises(PoolClosedError) as caught:
        await pool.acquire()
    assert str(caught.value) == words
    with pytest.raises(PoolClosedError) as caught:
        await pool.open()
    assert str(caught.value) == words


@named
async def test_the_waiters_of_a_closed_pool_are_refused(make_pool, name, label):
    pool = make_pool(Thing, max_size=1, name=name)
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    await pool.close()
    error = await outcome(waiter)
    assert isinstance(error, PoolClosedError)
    assert str(error) == f"{label} is closed. Create a new Pool to go on."
    pool.release(thing)


@named
async def test_a_draining_pool_refuses_by_name(make_pool, name, label):
    pool = make_pool(Thing, name=name)
    thing = await pool.acquire()
    closing = start(pool.close(drain=60))
    await settle()
    with pytest.raises(PoolClosedError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"{label} is draining and takes no new acquires. Create a new Pool to go on."
    )
    pool.release(thing)
    await closing


@named
async def test_an_overloaded_pool_says_its_limit(make_pool, name, label):
    pool = make_pool(Thing, max_size=1, max_waiting=2, name=name)
    thing = await pool.acquire()
    waiters = [acquiring(pool), acquiring(pool)]
    await settle()
    with pytest.raises(PoolOverloadedError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"{label}: 2 waiting already, max_waiting is 2. "
        f"Shed this request, or raise max_waiting or max_size."
    )
    assert pool.waiting_count == 2
    pool.release(thing)
    for waiter in waiters:
        pool.release(await waiter)


@pytest.mark.virtual_time
@named
async def test_an_unavailable_service_is_refused_by_name(make_pool, name, label):
    pool = make_pool(Thing, name=name)
    await pool.discard(await pool.acquire(), OSError("connection lost"))
    pool.deactivate()
    await advance(12)
    with pytest.raises(ServiceUnavailableError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"{label}: the service is unavailable (circuit breaker INACTIVE for 12 s); "
        f"last failure: OSError: connection lost. "
        f"Try again later; pool.recover() or pool.activate() lets acquires pass at once."
    )


@pytest.mark.parametrize(
    ("limit", "taken"), [(1, "1 trial acquire is taken"), (2, "2 trial acquires are taken")]
)
async def test_a_recovering_service_says_its_limit(make_pool, limit, taken):
    pool = make_pool(Thing, recovering_limit=limit, name="db")
    pool.recover()
    probes = [await pool.acquire() for _ in range(limit)]
    with pytest.raises(ServiceUnavailableError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"pool 'db': the service is unavailable (circuit breaker RECOVERING, and its {taken}). "
        f"Try again later; pool.recover() or pool.activate() lets acquires pass at once."
    )
    for probe in probes:
        pool.release(probe)
    assert pool.state is CircuitState.RECOVERING


@named
@pytest.mark.parametrize("style", STYLES)
async def test_a_release_rejected_by_false_says_so(make_pool, name, label, style):
    listener = RecordingStrategy()
    pool = make_pool(
        Thing, before_release=styled(style, lambda _: False), strategy=listener, name=name
    )
    await pool.release(await pool.acquire())
    (error,) = listener.reports
    assert type(error) is PoolError
    assert str(error) == f"{label}: before_release rejected the resource (it returned False)"


@pytest.mark.virtual_time
@named
async def test_a_hook_that_takes_too_long_is_named(make_pool, name, label, caplog):
    listener = RecordingStrategy()
    pool = make_pool(Thing, before_release=Gate(), strategy=listener, hook_timeout=2, name=name)
    await pool.release(await pool.acquire())
    (error,) = listener.reports
    assert isinstance(error, PoolError)
    assert isinstance(error, TimeoutError)
    assert str(error) == (
        f"{label}: before_release took longer than hook_timeout (2.0 s) and was cut off"
    )


@pytest.mark.virtual_time
@named
async def test_a_factory_that_takes_too_long_is_named(make_pool, name, label):
    pool = make_pool(Gate(), create_timeout=2, name=name)
    with pytest.raises(PoolError) as caught:
        await pool.acquire()
    assert isinstance(caught.value, TimeoutError)
    assert not isinstance(caught.value, AcquireTimeoutError)
    assert str(caught.value) == (
        f"{label}: the factory took longer than create_timeout (2.0 s) and was cancelled"
    )


@pytest.mark.virtual_time
@named
async def test_a_destructor_that_takes_too_long_is_named(make_pool, name, label, caplog):
    pool = make_pool(Thing, destructor=Gate(), destructor_timeout=2, name=name)
    await pool.discard(await pool.acquire())
    (record,) = [record for record in caplog.records if record.name == "cenote"]
    assert record.getMessage() == (
        f"{label}: destructor took longer than destructor_timeout (2.0 s) and was cut off; "
        f"its slot is free again"
    )


@named
@pytest.mark.parametrize("style", STYLES)
async def test_a_factory_that_returns_none_is_named(make_pool, name, label, style):
    pool = make_pool(styled(style, lambda: None), name=name)
    with pytest.raises(PoolError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"{label}: the factory returned None. Return the resource; None stands for 'nothing'."
    )


@named
@pytest.mark.parametrize("style", ["async", "awaitable"])
async def test_try_acquire_with_an_async_hook_is_refused(make_pool, name, label, style):
    pool = make_pool(Thing, min_size=1, before_acquire=styled(style, lambda _: True), name=name)
    await pool.open()
    with pytest.raises(PoolError) as caught:
        pool.try_acquire()
    assert str(caught.value) == (
        f"{label}: try_acquire() cannot run an async before_acquire. "
        f"Use `await pool.acquire(timeout=0)`."
    )
    assert pool.idle_count == 1


async def test_an_acquire_object_is_used_once(make_pool):
    pool = make_pool(Thing)
    asked = pool.acquire()
    thing = await asked
    with pytest.raises(RuntimeError) as caught:
        await asked
    assert str(caught.value) == (
        "this acquire() was used before; call pool.acquire() for each resource"
    )
    assert pool.active_count == 1
    pool.release(thing)


@named
async def test_several_failing_destructors_make_one_group(make_pool, name, label):
    errors = [OSError(n) for n in range(2)]
    left = iter(errors)

    def destroy(_):
        raise next(left)

    pool = make_pool(Thing, min_size=2, destructor=destroy, name=name)
    await pool.open()
    with pytest.raises(ExceptionGroup) as caught:
        await pool.close()
    assert caught.value.message == f"{label}: 2 destructors failed"
    assert list(caught.value.exceptions) == errors


# -- another loop, another thread ----------------------------------------------------------------

CALLS = {
    "acquire": lambda pool, thing: pool.acquire(),
    "open": lambda pool, thing: pool.open(),
    "close": lambda pool, thing: pool.close(),
    "try_acquire": lambda pool, thing: pool.try_acquire(),
    "release": lambda pool, thing: pool.release(thing),
    "discard": lambda pool, thing: pool.discard(thing),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


async def perform(call, pool, thing):
    result = call(pool, thing)
    if result is not None:
        await result


@every_call
@named
async def test_a_call_from_another_threads_loop_is_refused(make_pool, name, label, call):
    pool = make_pool(Thing, name=name)
    thing = await pool.acquire()
    before = pool.stats()
    error = await outcome(asyncio.to_thread(asyncio.run, perform(call, pool, thing)))
    assert type(error) is RuntimeError
    assert str(error) == (
        f"{label} belongs to the event loop in which it was opened; this call comes from "
        f"another thread. Remedy: go through asyncio.run_coroutine_threadsafe()."
    )
    assert pool.stats() == before
    pool.release(thing)


@pytest.mark.parametrize("verb", ["try_acquire", "release", "discard"])
async def test_a_plain_call_from_another_thread_is_refused(make_pool, verb):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    error = await outcome(asyncio.to_thread(CALLS[verb], pool, thing))
    assert type(error) is RuntimeError
    assert "this call comes from another thread" in str(error)
    pool.release(thing)


@every_call
@named
def test_a_call_from_another_loop_is_refused(name, label, call):
    pool = cenote.Pool(Thing, name=name)
    with (
        contextlib.closing(asyncio.new_event_loop()) as own,
        contextlib.closing(asyncio.new_event_loop()) as other,
    ):
        thing = own.run_until_complete(perform_acquire(pool))
        with pytest.raises(RuntimeError) as caught:
            other.run_until_complete(perform(call, pool, thing))
        own.run_until_complete(give_back_and_close(pool, thing))
    assert str(caught.value) == (
        f"{label} belongs to the event loop in which it was opened; this call comes from "
        f"another event loop. Remedy: make a pool for each event loop."
    )


def test_a_call_after_the_loop_was_closed_is_refused():
    pool = cenote.Pool(Thing)
    asyncio.run(perform_acquire(pool))
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(perform_acquire(pool))
    assert str(caught.value) == (
        "pool belongs to the event loop in which it was opened, which is closed by now; "
        "this call comes from another event loop. Remedy: make a pool for each event loop."
    )
    caught.value.__traceback__ = None
    last = [pool]
    del pool, caught
    with pytest.warns(ResourceWarning, match="unclosed <Pool"):
        forget(last)


def forget(things):
    things.clear()
    gc.collect()


async def perform_acquire(pool):
    return await pool.acquire()


async def give_back_and_close(pool, thing):
    pool.release(thing)
    await pool.close()


async def test_acquire_itself_does_nothing_in_another_thread(make_pool):
    pool = make_pool(Thing)
    await pool.open()
    asked = await asyncio.to_thread(pool.acquire)
    pool.release(await asked)


async def test_the_pool_works_on_after_a_call_from_elsewhere(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    await outcome(asyncio.to_thread(pool.release, thing))
    assert not waiter.done()
    pool.release(thing)
    pool.release(await waiter)
