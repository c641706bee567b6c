"""Event objects: made only for subscribers, never changed, never kept."""

import contextlib
import gc
import sys
import weakref

import pytest

import cenote
from cenote import AcquireTimeoutError
from cenote.testing import advance
from tests.support.kit import (
    Thing,
    acquiring,
    cancel,
    kinds,
    recorded,
)

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
