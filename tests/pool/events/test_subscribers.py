"""Subscribers: the order of events, subscribing, and using the pool from a subscriber."""

import asyncio
import logging

import pytest

import cenote
from cenote import PoolClosedError
from cenote.testing import settle
from tests.support.kit import (
    STYLES,
    Fatal,
    Gate,
    Thing,
    acquiring,
    cancel,
    kinds,
    outcome,
    queued,
    raising,
    recorded,
    styled,
)

KINDS = ["created", "acquired", "released", "destroyed", "waiting", "rejected", "timeout"]


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
    assert kinds(events) == ["waiting", "refused", "closed"]


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
    thing, waiter = await queued(pool)
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_subscriber_raising_a_base_exception_is_harmless(make_pool, kind, is_async):
    async def make():
        return Thing()

    pool = make_pool(make if is_async else Thing, max_size=1, before_release=lambda _: uses.pop())
    uses = [True, False]

    def fail(event):
        if event.kind == kind:
            raise Fatal

    pool.subscribe(fail)
    thing = await pool.acquire()
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=0.001)
    waiter = asyncio.ensure_future(pool.acquire())
    await settle()
    await pool.release(thing)
    await pool.release(await waiter)
    assert pool.active_count == 0


async def test_a_raising_subscriber_of_closed_does_not_hang_close(make_pool):
    pool = make_pool(Thing)
    await pool.open()

    def fail(event):
        raise Fatal

    pool.subscribe(fail)
    await pool.close()
    assert pool.closed
