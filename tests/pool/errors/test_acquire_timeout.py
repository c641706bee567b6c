"""`AcquireTimeoutError`: counts, holders, cause, and how it is pickled."""

import asyncio
import contextlib
import copy
import dataclasses
import inspect
import os
import pickle
import threading

import pytest

import cenote
from cenote import (
    AcquireTimeoutError,
    Holder,
    NotAcquiredError,
    PoolClosedError,
    PoolDeadlockError,
    PoolError,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from cenote.testing import advance, settle
from tests.support.kit import (
    Broken,
    Gate,
    Holding,
    Thing,
    acquiring,
    line,
    obtain,
    outcome,
    raising,
    start,
)

from cenote.messages import seconds  # isort: skip
from cenote.pool.words import Words  # isort: skip

virtual_time = pytest.mark.virtual_time
NAMES = [(None, "pool"), ("db", "pool 'db'")]
named = pytest.mark.parametrize(("name", "label"), NAMES)
ADVICE = ". Raise max_size, or hold resources for a shorter time."


# -- what the timeout error says -----------------------------------------------------------------


@virtual_time
async def test_the_timeout_error_lists_holders_longest_first(make_pool):
    pool = make_pool(object, max_size=2, name="db")
    older = await acquiring(pool, "older")
    await advance(3)
    newer = await acquiring(pool, "newer")
    file, place = obtain.__code__.co_filename, inspect.getsourcelines(obtain)[1] + 2
    patient = acquiring(pool)
    await settle()
    with pytest.raises(cenote.AcquireTimeoutError) as raised:
        await pool.acquire(timeout=2)
    holders = raised.value.holders
    assert [(holder.task, holder.seconds) for holder in holders] == [("older", 5), ("newer", 2)]
    assert [holder.resource for holder in holders] == [older, newer]
    assert {(holder.file, holder.line) for holder in holders} == {(file, place)}
    text = str(raised.value)
    assert "pool 'db'" in text
    assert "2 active, 0 idle, 2 waiting" in text
    assert (
        f"task 'older' for 5.0 s ({file}:{place}); task 'newer' for 2.0 s ({file}:{place})"
    ) in text
    pool.release(older)
    pool.release(newer)
    pool.release(await patient)


@virtual_time
async def test_a_holder_has_the_calls_place_and_awaiting_task(make_pool):
    pool = make_pool(object, max_size=1)
    acquire, here = pool.acquire(), line()

    async def elsewhere():
        return await acquire

    held = await asyncio.create_task(elsewhere(), name="awaiter")
    with pytest.raises(cenote.AcquireTimeoutError) as raised:
        await pool.acquire(timeout=1)
    (holder,) = raised.value.holders
    assert (holder.task, holder.file, holder.line) == ("awaiter", __file__, here)
    pool.release(held)


async def test_frames_of_contextlib_are_not_the_place_of_an_acquire(make_pool):
    pool, acquires = make_pool(object, max_size=1), []
    stack = contextlib.ExitStack()
    stack.callback(acquires.extend, map(pool.acquire, [None]))  # called by contextlib itself
    stack.close(); here = line()  # fmt: skip  # noqa: E702
    held = await acquires[0]
    (holder,) = pool.holders()
    assert (holder.file, holder.line) == (__file__, here)
    pool.release(held)


async def test_frames_of_asyncio_are_not_the_place_of_an_acquire(make_pool):
    pool, acquires = make_pool(object, max_size=1), []
    asyncio.get_running_loop().call_soon(acquires.extend, map(pool.acquire, [None]))
    await settle()
    held = await acquires[0]
    (holder,) = pool.holders()
    assert "asyncio" not in holder.file
    assert not holder.file.startswith(os.path.dirname(cenote.__file__))
    pool.release(held)


@virtual_time
async def test_a_timeout_has_the_last_factory_error_as_cause(make_pool):
    doors = Gate()
    pool = make_pool(doors, max_size=1)
    first, second = acquiring(pool), acquiring(pool, timeout=5)
    await advance(1)
    error = Broken()
    doors.calls[0].set_exception(error)
    assert await outcome(first) is error
    timeout = await outcome(second)
    assert isinstance(timeout, cenote.AcquireTimeoutError)
    assert timeout.__cause__ is error


@virtual_time
@pytest.mark.parametrize("pause", [0, 1])
async def test_a_factory_error_before_the_wait_is_no_cause(make_pool, pause):
    doors = Gate()
    pool = make_pool(doors, max_size=1)
    first = acquiring(pool)
    await settle()
    doors.calls[0].set_exception(Broken())
    assert isinstance(await outcome(first), Broken)
    await advance(pause)
    with pytest.raises(cenote.AcquireTimeoutError) as raised:
        await pool.acquire(timeout=5)
    assert raised.value.__cause__ is None


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
        f"{label}: no resource within 0.0 s (0 active, 0 idle, 0 waiting). Nothing was idle, and "
        f"timeout=0 leaves no time for the factory: with wait_timeout=0 a new one is made."
    )
    assert caught.value.holders == ()


@pytest.mark.virtual_time
@pytest.mark.parametrize("word", [None, "connecting to host 'db'"])
async def test_a_timeout_where_nothing_is_held_blames_the_factory(make_pool, word):
    pool = make_pool(Gate(Thing), max_size=1)
    if word is not None:
        pool._word(Words(factory=word))
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=2)
    what = "The factory" if word is None else "Connecting to host 'db'"
    assert str(caught.value) == (
        f"pool: no resource within 2.0 s (0 active, 0 idle, 1 waiting). {what} was still under "
        f"way: find out what takes so long, or raise the timeout."
    )


@pytest.mark.virtual_time
@pytest.mark.parametrize("word", [None, "the check of an idle connection"])
async def test_a_timeout_while_a_hook_looks_blames_the_hook(make_pool, word):
    async def check(resource):
        await asyncio.sleep(3)

    pool = make_pool(Thing, max_size=2, before_acquire=check)
    if word is not None:
        pool._word(Words(before_acquire=word))
    pool.release(await pool.acquire())
    with pytest.raises(AcquireTimeoutError) as caught:
        await pool.acquire(timeout=2)
    what = "The hook before_acquire" if word is None else "The check of an idle connection"
    assert str(caught.value) == (
        f"pool: no resource within 2.0 s (1 active, 0 idle, 0 waiting). {what} was still under "
        f"way: find out why it does not answer, or raise the timeout."
    )


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


@pytest.mark.own_loop
@pytest.mark.virtual_time
async def test_a_timeout_keeps_its_cause_through_a_rejection(make_pool):
    """It begins in a full pool, in C, and goes on in Python after what it got was rejected."""
    down, calls, gate = OSError("down"), [], asyncio.Event()

    async def make():
        calls.append(1)
        if len(calls) == 3:
            raise down
        if len(calls) > 3:
            await gate.wait()
        return Thing()

    pool = make_pool(make, max_size=2, before_acquire=lambda _: False)
    one, two = await pool.acquire(), await pool.acquire()
    early, late = acquiring(pool, "early", timeout=8), acquiring(pool, "late", timeout=5)
    await settle()
    await pool.discard(one)
    assert await outcome(early) is down
    await pool.release(two)
    await advance(6)
    error = await outcome(late)
    assert isinstance(error, cenote.AcquireTimeoutError)
    assert error.__cause__ is down
    gate.set()
    await settle()
