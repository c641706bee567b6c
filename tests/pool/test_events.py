"""Events: what subscribers hear, with which fields, in which order, and what they may do."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import sys
import weakref

import pytest

import cenote
from cenote import AcquireTimeoutError, PoolClosedError, PoolError, ServiceUnavailableError
from tests.support.clock import advance, settle
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


# -- every kind and its fields -------------------------------------------------------------------


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
    assert fields(only(events, "acquired")) == {
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
    assert fields(only(events, "released")) == {
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


# -- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
async def test_the_order_of_a_whole_life(make_pool, style):
    pool = make_pool(styled(style, Thing), destructor=styled(style, lambda _: None), max_size=1)
    events = recorded(pool)
    thing = await pool.acquire()
    waiters = [acquiring(pool, name=name) for name in ("second", "third")]
    await settle()
    pool.release(thing)
    await settle()
    await pool.discard(waiters[0].result())
    await settle()
    await pool.release(waiters[1].result())
    await pool.close()
    told = [(event.kind, event.task) for event in events if event.kind != "waiting"]
    assert told == [
        ("opened", None),
        ("created", None),
        ("acquired", "test"),
        ("released", "test"),
        ("acquired", "second"),
        ("released", "second"),
        ("destroyed", None),
        ("created", None),
        ("acquired", "third"),
        ("released", "third"),
        ("destroyed", None),
        ("closed", None),
    ]
    waited = [event.task for event in events if event.kind == "waiting"]
    assert waited[-2:] == ["second", "third"]


async def test_rejected_comes_before_destroyed(make_pool):
    pool = make_pool(Thing, before_release=lambda _: False)
    thing = await pool.acquire()
    events = recorded(pool)
    pool.release(thing)
    assert kinds(events) == ["released", "rejected", "destroyed"]


async def test_nothing_is_sent_after_closed(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    events = recorded(pool)
    waiter = acquiring(pool)
    await settle()
    await pool.close()
    assert isinstance(await outcome(waiter), PoolClosedError)
    pool.release(thing)
    assert kinds(events) == ["waiting", "closed"]


async def test_closed_comes_after_the_destruction_of_what_was_idle(make_pool):
    gate = Gate()
    pool = make_pool(Thing, destructor=gate)
    pool.release(await pool.acquire())
    events = recorded(pool)
    closing = asyncio.ensure_future(pool.close())
    await settle()
    assert kinds(events) == []
    gate.open()
    await closing
    assert kinds(events) == ["destroyed", "closed"]


# -- subscribing ---------------------------------------------------------------------------------


async def test_unsubscribe_ends_it_and_may_be_called_twice(make_pool):
    pool = make_pool(Thing)
    first, second = [], []
    unsubscribe = pool.subscribe(first.append)
    pool.subscribe(second.append)
    await pool.open()
    unsubscribe()
    unsubscribe()
    pool.release(await pool.acquire())
    assert kinds(first) == ["opened"]
    assert kinds(second) == ["opened", "created", "acquired", "released"]


async def test_a_callback_subscribed_twice_is_called_twice(make_pool):
    pool = make_pool(Thing)
    events = []
    callback = events.append
    unsubscribe = pool.subscribe(callback)
    pool.subscribe(callback)
    await pool.open()
    assert kinds(events) == ["opened", "opened"]
    unsubscribe()
    unsubscribe()
    pool.deactivate()
    assert kinds(events) == ["opened", "opened", "state_changed"]


async def test_a_subscriber_may_unsubscribe_itself_while_called(make_pool):
    pool = make_pool(Thing)
    events = []

    def once(event):
        events.append(event)
        unsubscribe()

    unsubscribe = pool.subscribe(once)
    others = recorded(pool)
    pool.release(await pool.acquire())
    assert kinds(events) == ["opened"]
    assert kinds(others) == ["opened", "created", "acquired", "released"]


async def test_a_raising_subscriber_is_logged_and_harmless(make_pool, caplog):
    pool = make_pool(Thing, max_size=1, name="db")
    pool.subscribe(raising(ValueError("no")))
    others = recorded(pool)
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.release(thing)
    pool.discard(await waiter)
    pool.deactivate()
    await pool.close()
    assert kinds(others) == [
        "opened",
        "created",
        "acquired",
        "waiting",
        "released",
        "acquired",
        "released",
        "destroyed",
        "state_changed",
        "closed",
    ]
    failures = [
        record
        for record in caplog.records
        if record.name == "cenote" and record.levelno == logging.ERROR
    ]
    assert len(failures) == len(others)
    assert all(str(record.exc_info[1]) == "no" for record in failures)


async def test_subscribers_are_dropped_after_closed(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    events = recorded(pool)
    await pool.close()
    assert kinds(events) == ["closed"]
    pool.release(thing)
    assert pool.stats().destroyed == {"closed": 1}
    assert kinds(events) == ["closed"]


async def test_closing_twice_sends_closed_once(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    await asyncio.gather(pool.close(), pool.close())
    await pool.close()
    assert kinds(events) == ["closed"]


# -- re-entering the pool from a subscriber ------------------------------------------------------

EVERY_MOMENT = ["opened", "created", "acquired", "waiting", "released", "destroyed", "rejected"]


@pytest.mark.parametrize("moment", [*EVERY_MOMENT, "cancelled", "state_changed"])
async def test_a_subscriber_may_borrow_a_resource_at_any_moment(make_pool, moment):
    pool = make_pool(
        Thing,
        max_size=2,
        before_release=lambda thing: thing is not bad,
    )
    bad = None
    borrowed = 0

    def borrow(event):
        nonlocal borrowed
        if event.kind == moment and borrowed < 5:
            borrowed += 1
            assert pool.count == pool.idle_count + pool.active_count
            thing = pool.try_acquire()
            if thing is not None:
                pool.release(thing)

    pool.subscribe(borrow)
    first, second = await pool.acquire(), await pool.acquire()
    waiter, leaver = acquiring(pool), acquiring(pool)
    await settle()
    await cancel(leaver)
    bad = first
    pool.release(first)
    pool.release(second)
    await settle()
    pool.discard(await waiter)
    pool.recover()
    pool.activate()
    await settle()
    assert borrowed
    assert (pool.active_count, pool.waiting_count) == (0, 0)


async def test_a_subscriber_may_release_what_was_acquired(make_pool):
    pool = make_pool(Thing)

    def give_back(event):
        if event.kind == "acquired":
            pool.release(event.resource)

    pool.subscribe(give_back)
    async with pool.acquire() as thing:
        assert isinstance(thing, Thing)
        assert pool.active_count == 0
    assert pool.idle_count == 1
    assert isinstance(await pool.acquire(), Thing)
    assert isinstance(pool.try_acquire(), Thing)
    assert (pool.count, pool.idle_count) == (1, 1)


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_subscriber_may_discard_what_was_acquired(make_pool, kept):
    pool = make_pool(Thing, min_size=kept)
    await pool.open()

    def destroy(event):
        if event.kind == "acquired":
            pool.discard(event.resource)

    pool.subscribe(destroy)
    async with pool.acquire() as thing:
        assert isinstance(thing, Thing)
    assert isinstance(await pool.acquire(), Thing)
    assert isinstance(pool.try_acquire(), Thing)
    assert pool.active_count == 0


async def test_a_subscriber_may_release_to_a_waiter(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()

    def give_back(event):
        if event.kind == "waiting":
            pool.release(thing)

    pool.subscribe(give_back)
    assert await pool.acquire() is thing
    pool.release(thing)


async def test_a_subscriber_may_deactivate_under_a_waiter(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()

    def deactivate(event):
        if event.kind == "waiting":
            pool.deactivate()

    pool.subscribe(deactivate)
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    pool.release(thing)


# -- without a subscriber ------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_no_event_is_made_without_a_subscriber(make_pool, monkeypatch):
    made = []

    class Counted(cenote.PoolEvent):
        __slots__ = ()

        def __init__(self, *args, **fields):
            made.append(fields)
            super().__init__(*args, **fields)

    modules = [module for name, module in sys.modules.items() if name.startswith("cenote")]
    for module in modules:
        if hasattr(module, "PoolEvent"):
            monkeypatch.setattr(module, "PoolEvent", Counted)

    async def whole_life(pool):
        thing = await pool.acquire()
        waiter, leaver = acquiring(pool), acquiring(pool)
        await advance(5)
        await cancel(leaver)
        with pytest.raises(AcquireTimeoutError):
            await pool.acquire(timeout=1)
        pool.release(thing)
        pool.discard(await waiter)
        pool.release(await pool.acquire())
        await advance(20)
        pool.deactivate()
        with contextlib.suppress(cenote.ServiceUnavailableError):
            await pool.acquire()
        await pool.close()

    options = {
        "max_size": 1,
        "hold_warning": 3,
        "before_release": lambda _: False,
        "healthcheck": lambda _: False,
        "healthcheck_interval": 10,
    }
    await whole_life(make_pool(Thing, **options))
    assert made == []
    pool = make_pool(Thing, **options)
    pool.subscribe(lambda event: None)
    await whole_life(pool)
    assert len(made) > 10  # the counting works


# -- events of the fast path ---------------------------------------------------------------------


async def test_events_that_are_kept_stay_as_they_are(make_pool):
    pool = make_pool(Thing, min_size=1)
    await pool.open()
    events = recorded(pool)
    for _ in range(3):
        pool.release(await pool.acquire())
    assert kinds(events) == ["acquired", "released"] * 3
    assert len({id(event) for event in events}) == 6
    assert [event.time for event in events] == sorted(event.time for event in events)
    twin = cenote.PoolEvent("acquired", pool, events[0].time, events[0].resource, "test", 0.0)
    assert events[0] == twin
    assert hash(events[0]) == hash(twin)
    assert repr(events[0]) == repr(twin)


async def test_an_event_that_nobody_keeps_keeps_nothing_alive(make_pool):
    class Resource:
        pass

    pool = make_pool(Resource, check_ledger=False)
    heard = []
    pool.subscribe(lambda event: heard.append(event.kind))
    async with pool, pool.acquire() as resource:
        reference = weakref.ref(resource)
        del resource
    assert heard == ["opened", "created", "acquired", "released", "destroyed", "closed"]
    assert reference() is None


async def test_a_subscriber_that_uses_the_pool_keeps_its_event(make_pool):
    pool = make_pool(Thing, min_size=2)
    await pool.open()
    seen = []

    def nosy(event):
        if event.kind == "acquired" and not seen:
            seen.append(event.resource)
            pool.release(pool.try_acquire())
            seen.append((event.kind, event.resource, event.reason))

    pool.subscribe(nosy)
    thing = await pool.acquire()
    assert seen == [thing, ("acquired", thing, None)]
    pool.release(thing)


async def test_references_do_not_grow_with_the_number_of_events(make_pool):
    pool = make_pool(Thing, min_size=1)
    await pool.open()
    pool.subscribe(lambda event: event.kind)

    async def cycles(number):
        for _ in range(number):
            async with pool.acquire():
                pass
        gc.collect()
        return [sys.getrefcount(each) for each in (pool, cenote.PoolEvent)]

    before = await cycles(10)
    assert await cycles(1000) == before
