"""What `close()` does to subscribers and maintenance."""

import asyncio
import gc
import weakref

import pytest

from cenote.testing import advance, now, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Thing,
    Things,
    raising,
    recorded,
    started,
    styled,
)


async def test_subscribers_get_closed_last_and_once(make_pool):
    pool = make_pool(Thing, min_size=1)
    await pool.open()
    events = recorded(pool)
    await pool.close()
    await pool.close()
    assert [event.kind for event in events] == ["destroyed", "closed"]


async def test_subscribers_are_dropped_by_close(make_pool):
    class Subscriber:
        def __call__(self, event):
            events.append(event.kind)

    events = []
    pool = make_pool(Thing)
    subscriber = Subscriber()
    pool.subscribe(subscriber)
    thing = await pool.acquire()
    await pool.close()
    assert events[-1] == "closed"
    pool.release(thing)
    assert events[-1] == "closed"
    reference = weakref.ref(subscriber)
    del subscriber
    gc.collect()
    assert reference() is None


async def test_an_unopened_pool_says_closed(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    await pool.close()
    assert [event.kind for event in events] == ["closed"]


@pytest.mark.virtual_time
async def test_maintenance_stops_with_the_pool(make_pool):
    things, checked = Things(), []
    pool = make_pool(
        things,
        healthcheck=checked.append,
        healthcheck_interval=1.0,
        min_size=2,
        max_lifetime=5.0,
        max_idle=5.0,
        hold_warning=5.0,
    )
    thing = await pool.acquire()
    await settle()
    await pool.close()
    made = things.calls
    await advance(100)
    assert (things.calls, checked) == (made, [])
    pool.release(thing)
    await advance(100)
    assert things.calls == made


def checked(hook, destructor):
    """The options of a pool whose one resource is checked after a second."""
    return {
        "healthcheck": hook,
        "healthcheck_interval": 1.0,
        "hook_timeout": 5.0,
        "destructor": destructor,
        "min_size": 1,
    }


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_close_interrupts_the_healthcheck_and_destroys_its_resource(make_pool, kind, caplog):
    check, destroyed = Gate(), []
    pool = make_pool(Thing, **checked(check, styled(kind, destroyed.append)))
    events = recorded(pool)
    await pool.open()
    await advance(1)
    assert (pool.active_count, destroyed) == (1, [])
    began = now()
    await pool.close()
    assert now() == began
    assert check.calls[0].cancelled()
    assert destroyed == check.arguments
    assert pool.stats().destroyed == {"closed": 1}
    assert [event.kind for event in events] == ["opened", "created", "destroyed", "closed"]
    assert not caplog.records


@pytest.mark.virtual_time
async def test_close_does_not_wait_for_a_stubborn_healthcheck(make_pool):
    end, destroyed = asyncio.Event(), []

    async def deaf(thing):
        try:
            await end.wait()
        except asyncio.CancelledError:
            await end.wait()

    pool = make_pool(Thing, **checked(deaf, destroyed.append))
    await pool.open()
    await advance(1)
    began = now()
    await pool.close()
    assert now() == pytest.approx(began + 0.1)
    assert len(destroyed) == 1
    end.set()
    await settle()
    assert len(destroyed) == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_the_group_has_errors_of_checked_resources(make_pool, kind):
    fault = ValueError("will not go")
    pool = make_pool(Thing, **checked(Gate(), styled(kind, raising(fault))))
    await pool.open()
    await advance(1)
    with pytest.raises(ExceptionGroup) as caught:
        await pool.close()
    assert caught.value.exceptions == (fault,)


@pytest.mark.virtual_time
async def test_a_drain_does_not_wait_for_a_healthcheck(make_pool):
    check, destroyed, began = Gate(), [], now()
    pool = make_pool(Thing, **checked(check, destroyed.append), max_size=2)
    thing = await pool.acquire()
    await pool.release(thing)
    await advance(1)
    other = await pool.acquire()  # beside the one that is checked
    closing = await started(pool.close(drain=10))
    assert not closing.done()
    pool.release(other)
    await closing
    assert now() == began + 1
    assert check.calls[0].cancelled()
    assert len(destroyed) == 2
