"""Every kind of event and its fields."""

import asyncio
import contextlib
import dataclasses

import pytest

from cenote import AcquireTimeoutError, PoolClosedError, PoolError, ServiceUnavailableError
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Holding,
    Thing,
    acquiring,
    cancel,
    kinds,
    line,
    outcome,
    raising,
    recorded,
    styled,
)

NOTHING = {"resource": None, "task": None, "duration": None, "reason": None, "error": None}


def only(events, kind):
    (event,) = [event for event in events if event.kind == kind]
    return event


def fields_of(event):
    return {name: getattr(event, name) for name in NOTHING}


async def test_every_event_has_its_pool_and_time(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    before = asyncio.get_running_loop().time()
    async with pool.acquire():
        pass
    await pool.close()
    after = asyncio.get_running_loop().time()
    assert all(event.pool is pool for event in events)
    times = [event.time for event in events]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= after


async def test_an_event_is_frozen(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    await pool.open()
    with pytest.raises(dataclasses.FrozenInstanceError):
        events[0].kind = "closed"


async def test_opened_comes_once_with_no_fields(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    await pool.open()
    await pool.open()
    assert kinds(events) == ["opened"]
    assert fields_of(events[0]) == NOTHING


async def test_the_first_acquire_sends_opened_too(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    pool.release(await pool.acquire())
    assert kinds(events) == ["opened", "created", "acquired", "released"]


@pytest.mark.parametrize("style", STYLES)
async def test_created_has_the_new_resource(make_pool, style):
    pool = make_pool(styled(style, Thing), min_size=1)
    events = recorded(pool)
    await pool.open()
    thing = await pool.acquire()
    event = only(events, "created")
    assert event.resource is thing
    assert (event.reason, event.error) == (None, None)
    await pool.release(thing)


@pytest.mark.virtual_time
async def test_acquired_has_the_task_and_its_wait(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    events = recorded(pool)
    waiter = acquiring(pool, name="waiter")
    await advance(3)
    pool.release(thing)
    await settle()
    assert fields_of(only(events, "acquired")) == {
        **NOTHING,
        "resource": thing,
        "task": "waiter",
        "duration": 3.0,
    }
    pool.release(waiter.result())


async def test_acquired_without_a_wait(make_pool):
    pool = make_pool(Thing, min_size=2)
    await pool.open()
    events = recorded(pool)
    thing, other = await pool.acquire(), pool.try_acquire()
    assert [fields_of(event) for event in events] == [
        {**NOTHING, "resource": thing, "task": "test", "duration": 0.0},
        {**NOTHING, "resource": other, "task": "test", "duration": 0.0},
    ]
    pool.release(thing)
    pool.release(other)


@pytest.mark.virtual_time
@pytest.mark.parametrize("way", ["release", "discard"])
async def test_released_has_the_holding_task_and_its_duration(make_pool, way):
    pool = make_pool(Thing)
    holder = acquiring(pool, name="holder")
    thing = await holder
    events = recorded(pool)
    await advance(4)
    await getattr(pool, way)(thing)
    assert fields_of(only(events, "released")) == {
        **NOTHING,
        "resource": thing,
        "task": "holder",
        "duration": 4.0,
    }


@pytest.mark.virtual_time
async def test_a_cancelled_block_sends_released_and_destroyed(make_pool):
    pool = make_pool(Thing)
    holding = Holding(pool, name="holder")
    await advance(2)
    events = recorded(pool)
    await cancel(holding.task)
    assert kinds(events) == ["released", "destroyed"]
    assert (events[0].task, events[0].duration) == ("holder", 2.0)
    assert events[1].resource is holding.resource


async def test_waiting_has_the_task_that_waits(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    events = recorded(pool)
    waiter = acquiring(pool, name="waiter")
    await settle()
    assert kinds(events) == ["waiting"]
    assert fields_of(events[0]) == {**NOTHING, "task": "waiter"}
    pool.release(thing)
    pool.release(await waiter)


async def test_no_waiting_event_when_nothing_is_waited_for(make_pool):
    pool = make_pool(Thing, max_size=1)
    events = recorded(pool)
    async with pool.acquire():
        with pytest.raises(AcquireTimeoutError):
            await pool.acquire(timeout=0)
    assert "waiting" not in kinds(events)


@pytest.mark.virtual_time
async def test_timeout_has_the_task_and_its_wait(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    events = recorded(pool)
    error = await outcome(acquiring(pool, name="waiter", timeout=2))
    assert kinds(events) == ["waiting", "timeout"]
    assert fields_of(events[1]) == {**NOTHING, "task": "waiter", "duration": 2.0, "error": error}
    pool.release(thing)


@pytest.mark.virtual_time
@pytest.mark.parametrize("subscribed", ["before", "while it waits"])
@pytest.mark.parametrize("what", ["deactivate", "close"])
async def test_a_subscriber_may_end_the_wait_that_has_timed_out(make_pool, subscribed, what):
    """Found by fuzzing the C API: the wait was failed twice, which broke the timer's callback."""
    pool = make_pool(Thing, max_size=1)

    def end(event):
        if event.kind == "timeout" and what == "deactivate":
            pool.deactivate()
        elif event.kind == "timeout":
            with contextlib.suppress(StopIteration):  # in one step
                pool.close().send(None)

    thing = await pool.acquire()
    if subscribed == "before":
        pool.subscribe(end)
    waiters = [acquiring(pool, timeout=2) for _ in range(2)]
    await settle()
    if subscribed != "before":
        pool.subscribe(end)
    await advance(2)
    kind = ServiceUnavailableError if what == "deactivate" else PoolClosedError
    assert [type(await outcome(each)) for each in waiters] == [kind] * 2
    pool.activate()
    pool.release(thing)


@pytest.mark.virtual_time
async def test_cancelled_has_the_task_and_its_wait(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    events = recorded(pool)
    waiter = acquiring(pool, name="waiter")
    await advance(2)
    await cancel(waiter)
    assert kinds(events) == ["waiting", "cancelled"]
    assert fields_of(events[1]) == {**NOTHING, "task": "waiter", "duration": 2.0}
    pool.release(thing)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("hook", ["before_acquire", "before_release"])
async def test_rejected_by_false_has_the_hook_and_a_pool_error(make_pool, hook, style):
    pool = make_pool(Thing, **{hook: styled(style, lambda _: False)})
    thing = await pool.acquire()
    events = recorded(pool)
    await pool.release(thing)
    await pool.release(await pool.acquire())
    event = next(event for event in events if event.kind == "rejected")
    assert event.resource is thing
    assert event.reason == hook
    assert type(event.error) is PoolError


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("hook", ["before_acquire", "before_release"])
async def test_rejected_by_an_exception_has_that_exception(make_pool, hook, style):
    error = OSError("bad")
    pool = make_pool(Thing, **{hook: styled(style, raising(error))})
    thing = await pool.acquire()
    events = recorded(pool)
    await pool.release(thing)
    await pool.release(await pool.acquire())
    event = next(event for event in events if event.kind == "rejected")
    assert (event.resource, event.reason, event.error) == (thing, hook, error)


@pytest.mark.virtual_time
@pytest.mark.parametrize("style", STYLES)
async def test_check_failed_has_resource_and_error(make_pool, style):
    error = OSError("bad")
    pool = make_pool(
        Thing, min_size=0, healthcheck=styled(style, raising(error)), healthcheck_interval=1
    )
    thing = await pool.acquire()
    pool.release(thing)
    events = recorded(pool)
    await advance(1.5)
    assert kinds(events) == ["check_failed", "destroyed"]
    assert (events[0].resource, events[0].error) == (thing, error)
    assert (events[1].resource, events[1].reason) == (thing, "check_failed")


@pytest.mark.virtual_time
async def test_check_failed_by_false_has_a_pool_error(make_pool):
    pool = make_pool(Thing, healthcheck=lambda _: False, healthcheck_interval=1)
    pool.release(await pool.acquire())
    events = recorded(pool)
    await advance(1.5)
    error = only(events, "check_failed").error
    assert type(error) is PoolError
    assert "healthcheck" in str(error)


@pytest.mark.virtual_time
async def test_held_long_has_file_and_line_and_comes_once(make_pool, caplog):
    pool = make_pool(Thing, hold_warning=5)
    events = recorded(pool)
    at = line() + 1
    thing = await pool.acquire()
    await advance(4.9)
    assert "held_long" not in kinds(events)
    await advance(0.2)
    event = only(events, "held_long")
    assert (event.resource, event.task) == (thing, "test")
    assert event.duration == pytest.approx(5)
    assert event.reason == f"{__file__}:{at}"
    (record,) = [record for record in caplog.records if record.name == "cenote"]
    assert f"{__file__}:{at}" in record.getMessage()
    other = Holding(pool, name="other")
    await advance(100)
    assert [event.task for event in events if event.kind == "held_long"] == ["test", "other"]
    pool.release(thing)
    await other.leave()


@pytest.mark.virtual_time
async def test_held_long_comes_for_each_lease(make_pool):
    pool = make_pool(Thing, hold_warning=5)
    events = recorded(pool)
    for task in ("first", "second"):
        holding = Holding(pool, name=task)
        await advance(6)
        await holding.leave()
    long = [event.task for event in events if event.kind == "held_long"]
    assert long == ["first", "second"]


async def test_state_changed_has_the_new_state(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    pool.deactivate()
    pool.recover()
    pool.activate()
    assert [fields_of(event) for event in events] == [
        {**NOTHING, "reason": "INACTIVE"},
        {**NOTHING, "reason": "RECOVERING"},
        {**NOTHING, "reason": "ACTIVE"},
    ]
    assert set(kinds(events)) == {"state_changed"}


async def test_closed_comes_once_with_no_fields(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    await pool.open()
    await pool.close()
    assert kinds(events) == ["opened", "closed"]
    assert fields_of(events[1]) == NOTHING


async def test_destroyed_by_discard_has_its_reason(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    events = recorded(pool)
    await pool.discard(thing)
    event = only(events, "destroyed")
    assert fields_of(event) == {**NOTHING, "resource": thing, "reason": "discarded"}


@pytest.mark.parametrize("style", STYLES)
async def test_destroyed_has_what_the_destructor_raised(make_pool, style):
    error = OSError("bad")
    pool = make_pool(Thing, destructor=styled(style, raising(error)))
    events = recorded(pool)
    thing = await pool.acquire()
    with pytest.raises(OSError, match="bad"):
        await pool.discard(thing)
    event = only(events, "destroyed")
    assert (event.resource, event.error) == (thing, error)


@pytest.mark.virtual_time
async def test_destroyed_comes_when_the_destructor_is_done(make_pool):
    gate = Gate()
    pool = make_pool(Thing, destructor=gate)
    events = recorded(pool)
    thing = await pool.acquire()
    pool.discard(thing)
    await settle()
    assert "destroyed" not in kinds(events)
    gate.open()
    await settle()
    assert only(events, "destroyed").resource is thing


@pytest.mark.virtual_time
async def test_an_abandoned_destructor_is_destroyed_with_a_timeout_error(make_pool):
    pool = make_pool(Thing, destructor=Gate(), destructor_timeout=2)
    events = recorded(pool)
    await pool.discard(await pool.acquire())
    assert isinstance(only(events, "destroyed").error, TimeoutError)


async def leave_discarded(pool):
    await pool.discard(await pool.acquire())


async def leave_rejected(pool):
    await pool.release(await pool.acquire())


async def leave_cancelled(pool):
    with pytest.raises(asyncio.CancelledError):
        async with pool.acquire():
            raise asyncio.CancelledError


async def leave_retired(pool):
    await pool.release(await pool.acquire())
    await pool.retire()


async def leave_resized(pool):
    things = [await pool.acquire() for _ in range(2)]
    for thing in things:
        await pool.release(thing)
    await pool.resize(max_size=1)


async def leave_used_up(pool):
    await pool.release(await pool.acquire())


async def leave_idle_too_long(pool):
    await pool.release(await pool.acquire())
    await advance(100)


async def leave_closed(pool):
    await pool.release(await pool.acquire())
    await pool.close()


REASONS = [
    ("discarded", leave_discarded, {}),
    ("rejected", leave_rejected, {"before_release": lambda _: False}),
    ("cancelled", leave_cancelled, {}),
    ("retired", leave_retired, {}),
    ("resized", leave_resized, {}),
    ("max_uses", leave_used_up, {"max_uses": 1}),
    ("max_idle", leave_idle_too_long, {"max_idle": 50}),
    ("max_lifetime", leave_idle_too_long, {"max_lifetime": 50}),
    ("closed", leave_closed, {}),
]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("reason", "leave", "options"), REASONS, ids=[reason for reason, *_ in REASONS]
)
async def test_destroyed_has_its_cause_as_the_stats_have(make_pool, reason, leave, options):
    pool = make_pool(Thing, **options)
    events = recorded(pool)
    await leave(pool)
    assert only(events, "destroyed").reason == reason
    assert pool.stats().destroyed == {reason: 1}
