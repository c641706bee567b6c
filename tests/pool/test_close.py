"""Close: what it ends, what it waits for, from where it may be called, and drain."""

import asyncio
import gc
import math
import weakref

import pytest

import cenote
from tests.support.clock import advance, now, settle
from tests.support.kit import (
    STYLES,
    Gate,
    RecordingStrategy,
    Thing,
    Things,
    obtain,
    raising,
    recorded,
    started,
    styled,
)

# -- idle, busy, waiting -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
async def test_close_destroys_what_is_idle(make_pool, kind):
    things, destroyed = Things(), []
    pool = make_pool(things, destructor=styled(kind, destroyed.append), min_size=3)
    await pool.open()
    await pool.close()
    assert destroyed == things.made
    assert (pool.closed, pool.count) == (True, 0)


async def test_close_waits_for_async_destructors(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=2)
    await pool.open()
    closing = await started(pool.close())
    assert pool.closed
    for call in destructor.calls:
        assert not closing.done()
        call.set_result(None)
        await settle()
    assert closing.done()


async def test_close_of_an_unopened_pool_creates_nothing(make_pool):
    things = Things()
    pool = make_pool(things, min_size=2)
    await pool.close()
    assert (pool.closed, things.calls) == (True, 0)


@pytest.mark.parametrize("kind", STYLES)
async def test_every_waiter_gets_pool_closed_error(make_pool, kind):
    pool = make_pool(styled(kind, Thing), max_size=1, name="shop")
    thing = await pool.acquire()
    waiters = [await started(obtain(pool)) for _ in range(3)]
    await pool.close()
    for waiter in waiters:
        with pytest.raises(cenote.PoolClosedError, match="'shop'"):
            await waiter
    assert pool.waiting_count == 0
    pool.release(thing)


async def test_a_waiter_with_a_grant_gets_pool_closed_error(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_size=1)
    thing = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.release(thing)
    await pool.close()
    with pytest.raises(cenote.PoolClosedError):
        await waiter
    assert destroyed == [thing]


async def test_a_waiter_with_a_slot_creates_nothing_after_close(make_pool):
    things = Things()
    pool = make_pool(things, max_size=1)
    thing = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.discard(thing)
    await pool.close()
    with pytest.raises(cenote.PoolClosedError):
        await waiter
    assert things.calls == 1


async def test_close_interrupts_before_acquire_and_destroys_its_resource(make_pool):
    hook, destroyed = Gate(), []
    pool = make_pool(Thing, before_acquire=hook, destructor=destroyed.append)
    pool.release(thing := await pool.acquire())
    acquiring = await started(obtain(pool))
    await pool.close()
    with pytest.raises(cenote.PoolClosedError):
        await acquiring
    assert hook.calls[0].cancelled()
    assert destroyed == [thing]


@pytest.mark.parametrize("way", ["release", "discard"])
@pytest.mark.parametrize("kind", STYLES)
async def test_busy_resources_live_on_and_are_destroyed_on_return(make_pool, kind, way):
    destroyed = []
    pool = make_pool(Thing, destructor=styled(kind, destroyed.append))
    thing = await pool.acquire()
    await pool.close()
    assert destroyed == []
    assert (pool.closed, pool.active_count) == (True, 1)
    await getattr(pool, way)(thing)
    assert destroyed == [thing]
    assert pool.count == 0


async def test_a_block_may_be_left_after_close(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append)
    async with pool.acquire() as thing:
        await pool.close()
        assert destroyed == []
    assert destroyed == [thing]


async def test_a_release_after_close_is_examined_and_reported(make_pool):
    seen, strategy = [], RecordingStrategy()
    pool = make_pool(Thing, before_release=seen.append, strategy=strategy)
    thing = await pool.acquire()
    await pool.close()
    pool.release(thing)
    assert seen == [thing]
    assert strategy.reports == ["success"]


async def test_an_open_under_way_gets_pool_closed_error(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=2)
    opening = await started(pool.open())
    await pool.close()
    with pytest.raises(cenote.PoolClosedError):
        await opening
    assert all(call.cancelled() for call in factory.calls)


# -- creations under way -------------------------------------------------------------------------


async def test_creations_under_way_are_cancelled(make_pool):
    factory = Gate()
    pool = make_pool(factory)
    waiter = await started(obtain(pool))
    await pool.close()
    assert factory.calls[0].cancelled()
    with pytest.raises(cenote.PoolClosedError):
        await waiter


@pytest.mark.parametrize("kind", STYLES)
async def test_what_a_cancelled_creation_makes_all_the_same_is_destroyed(make_pool, kind):
    thing, destroyed = Thing(), []

    async def factory():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return thing

    pool = make_pool(factory, destructor=styled(kind, destroyed.append))
    waiter = await started(obtain(pool))
    await pool.close()
    assert destroyed == [thing]
    with pytest.raises(cenote.PoolClosedError):
        await waiter


@pytest.mark.parametrize("kind", STYLES)
async def test_what_was_made_but_not_yet_fetched_is_destroyed(make_pool, kind):
    factory, destroyed, thing = Gate(), [], Thing()
    pool = make_pool(factory, destructor=styled(kind, destroyed.append))
    waiter = await started(obtain(pool))
    factory.calls[0].set_result(thing)
    await asyncio.sleep(0)  # the factory has run, the waiter not yet
    assert (pool.count, waiter.done()) == (1, False)
    await pool.close()
    assert destroyed == [thing]
    with pytest.raises(cenote.PoolClosedError):
        await waiter


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_what_a_stubborn_factory_makes_much_later_is_destroyed(make_pool, kind):
    thing, destroyed, end = Thing(), [], asyncio.Event()

    async def factory():
        try:
            await end.wait()
        except asyncio.CancelledError:
            await end.wait()
        return thing

    pool = make_pool(factory, destructor=styled(kind, destroyed.append))
    waiter = await started(obtain(pool))
    await pool.close()  # it does not wait for ever
    with pytest.raises(cenote.PoolClosedError):
        await waiter
    end.set()
    await settle()
    assert destroyed == [thing]


# -- destructors that fail or hang ---------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
async def test_all_are_destroyed_though_some_destructors_raise(make_pool, kind):
    faults = [ValueError("one"), None, OSError("three"), None]
    called = []

    def destructor(thing):
        called.append(thing)
        fault = faults[len(called) - 1]
        if fault is not None:
            raise fault

    things = Things()
    pool = make_pool(
        things, destructor=styled(kind, destructor), min_size=4, name="shop", max_size=4
    )
    await pool.open()
    with pytest.raises(ExceptionGroup, match="'shop'") as caught:
        await pool.close()
    assert called == things.made
    assert caught.value.exceptions == (faults[0], faults[2])
    assert (pool.closed, pool.count, pool.stats().destroying) == (True, 0, 0)


async def test_a_single_failure_is_a_group_as_well(make_pool):
    fault = ValueError("one")
    pool = make_pool(Thing, destructor=raising(fault), min_size=1)
    await pool.open()
    with pytest.raises(ExceptionGroup) as caught:
        await pool.close()
    assert caught.value.exceptions == (fault,)


async def test_close_after_a_close_that_raised_is_quiet(make_pool):
    pool = make_pool(Thing, destructor=raising(ValueError("one")), min_size=1)
    await pool.open()
    with pytest.raises(ExceptionGroup):
        await pool.close()
    await pool.close()


async def test_the_group_has_errors_of_cancelled_creations(make_pool):
    fault = ValueError("will not go")

    async def factory():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Thing()

    pool = make_pool(factory, destructor=raising(fault))
    waiter = await started(obtain(pool))
    with pytest.raises(ExceptionGroup) as caught:
        await pool.close()
    assert caught.value.exceptions == (fault,)
    with pytest.raises(cenote.PoolClosedError):
        await waiter


@pytest.mark.virtual_time
async def test_a_hanging_destructor_does_not_stop_the_others(make_pool):
    destroyed, hung = [], []

    async def destructor(thing):
        if not hung:
            hung.append(thing)
            await asyncio.Event().wait()
        destroyed.append(thing)

    things = Things()
    pool = make_pool(things, destructor=destructor, destructor_timeout=4.0, min_size=3)
    await pool.open()
    closing = await started(pool.close())
    assert destroyed == things.made[1:]
    assert not closing.done()
    await advance(4)
    assert closing.done()
    assert await closing is None  # abandoned: raises nothing
    assert pool.stats().destroying == 0


# -- the end of `async with pool` ----------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
async def test_a_failing_destructor_does_not_hide_a_cancellation(make_pool, kind):
    pool = make_pool(Thing, destructor=styled(kind, raising(OSError("destructor"))), min_size=1)

    async def use():
        async with pool:
            await asyncio.Event().wait()

    using = await started(use())
    using.cancel()
    await asyncio.wait([using])
    assert using.cancelled()
    assert pool.closed


@pytest.mark.virtual_time
async def test_a_failing_destructor_does_not_hide_a_timeout(make_pool):
    pool = make_pool(Thing, destructor=raising(OSError("destructor")), min_size=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3), pool:
            await asyncio.Event().wait()


async def test_a_failing_destructor_does_not_hide_an_error(make_pool, caplog):
    pool = make_pool(Thing, destructor=raising(OSError("destructor")), min_size=1)
    events = recorded(pool)
    with pytest.raises(ValueError, match="block"):
        async with pool:
            raise ValueError("block")
    assert "the destructor failed" in caplog.text
    assert [str(event.error) for event in events if event.kind == "destroyed"] == ["destructor"]


async def test_a_block_left_normally_raises_what_close_raises(make_pool):
    fault = OSError("destructor")
    pool = make_pool(Thing, destructor=raising(fault), min_size=1)
    with pytest.raises(ExceptionGroup) as caught:
        async with pool:
            pass
    assert caught.value.exceptions == (fault,)


@pytest.mark.parametrize("fatal", [asyncio.CancelledError, SystemExit])
async def test_a_destructor_may_end_the_program(make_pool, fatal):
    faults = [OSError("destructor"), fatal()]
    pool = make_pool(Thing, destructor=lambda _: raising(faults.pop(0))(), min_size=2)
    with pytest.raises(fatal):
        async with pool:
            raise ValueError("block")


@pytest.mark.parametrize("error", [None, ValueError("block")])
async def test_a_cancellation_while_the_block_closes_its_pool(make_pool, error):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=1)

    async def use():
        async with pool:
            if error is not None:
                raise error

    using = await started(use())
    using.cancel()
    await asyncio.wait([using])
    assert using.cancelled()
    destructor.calls[0].set_exception(OSError("destructor"))
    await settle()
    assert pool.stats().destroying == 0


# -- several callers, cancelled callers ----------------------------------------------------------


async def test_close_may_be_called_twice(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, min_size=1)
    await pool.open()
    for _ in range(3):
        await pool.close()
    assert len(destroyed) == 1


async def test_a_second_caller_waits_for_the_first(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=1)
    await pool.open()
    first = await started(pool.close())
    second = await started(pool.close())
    assert not second.done()
    destructor.calls[0].set_result(None)
    await asyncio.gather(first, second)
    assert len(destructor.calls) == 1


async def test_close_completes_though_its_awaiter_is_cancelled(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=2)
    events = recorded(pool)
    await pool.open()
    closing = await started(pool.close())
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert pool.closed
    assert not any(call.cancelled() for call in destructor.calls)
    for call in destructor.calls:
        call.set_result(None)
    await settle()
    assert (pool.stats().destroying, events[-1].kind) == (0, "closed")


async def test_a_second_caller_is_served_when_the_first_is_cancelled(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=1)
    await pool.open()
    first = await started(pool.close())
    second = await started(pool.close())
    first.cancel()
    await settle()
    assert not second.done()
    destructor.calls[0].set_result(None)
    await second
    assert first.cancelled()


# -- inside a hook -------------------------------------------------------------------------------


async def directly(pool):
    await pool.close()


async def in_a_child_task(pool):
    await asyncio.create_task(pool.close())


async def in_a_task_group(pool):
    async with asyncio.TaskGroup() as group:
        group.create_task(pool.close())


async def in_a_timeout(pool):
    await asyncio.wait_for(pool.close(), 3600)


WAYS = [directly, in_a_child_task, in_a_task_group, in_a_timeout]


class Closer:
    """A hook that closes the pool, once, and goes on."""

    pool: cenote.Pool

    def __init__(self, way):
        self.way = way
        self.came_back = 0

    async def __call__(self, *arguments):
        if not self.pool.closed:
            await self.way(self.pool)
            self.came_back += 1
        return arguments[0] if arguments else Thing()


@pytest.mark.virtual_time
@pytest.mark.parametrize("way", WAYS)
async def test_close_inside_the_factory_leaves_it_alone(make_pool, way):
    closer, destroyed, began = Closer(way), [], now()
    pool = closer.pool = make_pool(closer, destructor=destroyed.append)
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire()
    await settle()
    assert closer.came_back == 1
    assert len(destroyed) == 1
    assert now() == began


@pytest.mark.virtual_time
@pytest.mark.parametrize("way", WAYS)
async def test_close_inside_the_destructor_does_not_wait_for_it(make_pool, way):
    closer, began = Closer(way), now()
    pool = closer.pool = make_pool(Thing, destructor=closer)
    await pool.discard(await pool.acquire())
    assert closer.came_back == 1
    assert pool.closed
    assert now() == began


@pytest.mark.virtual_time
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("way", WAYS)
async def test_close_inside_a_destructor_that_close_itself_called(make_pool, way, size):
    came_back, began = [], now()

    async def destructor(thing):
        await way(pool)
        came_back.append(thing)

    pool = make_pool(Thing, destructor=destructor, min_size=size)
    await pool.open()
    await pool.close()  # from outside: it does wait for them
    assert len(came_back) == size
    assert now() == began


@pytest.mark.virtual_time
@pytest.mark.parametrize("way", WAYS)
async def test_close_inside_before_acquire_does_not_wait_for_it(make_pool, way):
    closer, destroyed, began = Closer(way), [], now()
    pool = closer.pool = make_pool(Thing, before_acquire=closer, destructor=destroyed.append)
    pool.release(thing := await pool.acquire())
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire()
    await settle()
    assert destroyed == [thing]
    assert now() == began


@pytest.mark.virtual_time
@pytest.mark.parametrize("way", WAYS)
async def test_close_inside_before_release_does_not_wait_for_it(make_pool, way):
    closer, destroyed, began = Closer(way), [], now()
    pool = closer.pool = make_pool(Thing, before_release=closer, destructor=destroyed.append)
    thing = await pool.acquire()
    await pool.release(thing)
    assert closer.came_back == 1
    assert destroyed == [thing]
    assert now() == began


@pytest.mark.virtual_time
@pytest.mark.parametrize("way", WAYS)
async def test_close_inside_the_healthcheck_does_not_wait_for_it(make_pool, way):
    closer, destroyed = Closer(way), []
    pool = closer.pool = make_pool(
        Thing,
        healthcheck=closer,
        destructor=destroyed.append,
        min_size=2,
        healthcheck_interval=10.0,
    )
    await pool.open()
    await advance(10)
    assert closer.came_back == 1
    assert len(destroyed) == 2
    assert pool.closed


@pytest.mark.virtual_time
@pytest.mark.parametrize("hook", ["destructor", "before_release"])
async def test_close_in_a_task_that_the_hook_returns(make_pool, hook):
    began = now()

    def close(thing):
        return asyncio.create_task(pool.close())

    pool = make_pool(Thing, **{hook: close}, max_uses=1)
    await pool.release(await pool.acquire())
    assert pool.closed
    assert now() == began


async def test_close_inside_a_factory_cancels_the_other_creations(make_pool):
    other = Gate()

    async def factory():
        if not other.calls:
            await other()
        await pool.close()
        return Thing()

    pool = make_pool(factory)
    first = await started(obtain(pool))
    second = await started(obtain(pool))
    for task in (first, second):
        with pytest.raises(cenote.PoolClosedError):
            await task
    assert other.calls[0].cancelled()


# -- subscribers and maintenance -----------------------------------------------------------------


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


# -- drain ---------------------------------------------------------------------------------------


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_drain_serves_those_who_wait(make_pool, kind):
    pool = make_pool(styled(kind, Thing), max_size=1)
    thing = await pool.acquire()
    waiters = [await started(obtain(pool)) for _ in range(2)]
    closing = await started(pool.close(drain=10))
    pool.release(thing)
    for waiter in waiters:
        assert await waiter is thing
        assert not closing.done()
        pool.release(thing)
    await closing


@pytest.mark.virtual_time
async def test_drain_serves_those_whose_resource_is_being_created(make_pool):
    factory, thing = Gate(), Thing()
    pool = make_pool(factory)
    waiter = await started(obtain(pool))
    closing = await started(pool.close(drain=10))
    assert not closing.done()
    factory.calls[0].set_result(thing)
    assert await waiter is thing
    pool.release(thing)
    await closing


@pytest.mark.virtual_time
async def test_drain_refuses_new_acquires(make_pool):
    pool = make_pool(Thing, min_size=2)
    await pool.open()
    thing = await pool.acquire()
    closing = await started(pool.close(drain=10))
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire()
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire(timeout=0)
    with pytest.raises(cenote.PoolClosedError):
        async with pool.acquire():
            pytest.fail("it was let in")
    assert pool.try_acquire() is None
    pool.release(thing)
    await closing


@pytest.mark.virtual_time
async def test_drain_ends_as_soon_as_everything_is_back(make_pool):
    destroyed, began = [], now()
    pool = make_pool(Thing, destructor=destroyed.append, max_size=2)
    things = [await pool.acquire(), await pool.acquire()]
    closing = await started(pool.close(drain=10))
    await advance(3)
    pool.release(things[0])
    await settle()
    assert not closing.done()
    pool.release(things[1])
    await closing
    assert now() == began + 3
    assert sorted(map(id, destroyed)) == sorted(map(id, things))


@pytest.mark.virtual_time
async def test_drain_waits_for_the_hooks_of_what_came_back(make_pool):
    hook = Gate()
    pool = make_pool(Thing, before_release=hook)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=4))
    pool.release(thing)
    await settle()
    assert not pool.closed
    hook.calls[0].set_result(True)
    await closing
    assert pool.closed


@pytest.mark.virtual_time
async def test_a_drain_with_nobody_out_ends_at_once(make_pool):
    began = now()
    pool = make_pool(Thing, min_size=2)
    await pool.open()
    await pool.close(drain=10)
    assert now() == began
    assert pool.count == 0


@pytest.mark.virtual_time
async def test_closed_is_true_from_the_end_of_the_drain(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=10))
    await advance(9.9)
    assert not pool.closed
    await advance(0.1)
    assert pool.closed
    await closing
    pool.release(thing)


@pytest.mark.virtual_time
async def test_the_end_of_a_drain_fails_waiters_only(make_pool, caplog):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_size=1)
    thing = await pool.acquire()
    waiter = await started(obtain(pool))
    closing = await started(pool.close(drain=10))
    await advance(9.9)
    assert not waiter.done()
    assert not closing.done()
    await advance(0.1)
    await closing
    with pytest.raises(cenote.PoolClosedError):
        await waiter
    assert destroyed == []
    pool.release(thing)
    assert destroyed == [thing]


@pytest.mark.virtual_time
async def test_an_endless_drain_waits_for_everything(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=math.inf))
    await advance(1e6)
    assert not closing.done()
    pool.release(thing)
    await closing


@pytest.mark.virtual_time
async def test_a_second_close_waits_for_the_drain(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    first = await started(pool.close(drain=10))
    second = await started(pool.close())
    await advance(5)
    assert not second.done()
    pool.release(thing)
    await asyncio.gather(first, second)


@pytest.mark.virtual_time
async def test_a_drain_completes_though_its_awaiter_is_cancelled(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=10))
    closing.cancel()
    await settle()
    assert not pool.closed
    await advance(10)
    assert pool.closed
    pool.release(thing)


@pytest.mark.virtual_time
async def test_a_drained_resource_that_is_discarded_ends_the_drain(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    closing = await started(pool.close(drain=10))
    pool.discard(thing)
    await settle()
    assert closing.done()


@pytest.mark.virtual_time
async def test_a_cancelled_waiter_does_not_hold_up_the_drain(make_pool):
    pool = make_pool(Gate())
    waiter = await started(obtain(pool))
    closing = await started(pool.close(drain=10))
    assert not closing.done()
    waiter.cancel()
    await closing
    assert now() < 1010


async def test_drain_of_an_unopened_pool_ends_at_once(make_pool):
    pool = make_pool(Thing)
    await pool.close(drain=10)
    assert pool.closed


async def test_a_drain_of_zero_is_a_plain_close(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    await pool.close(drain=0)
    assert pool.closed
    pool.release(thing)


@pytest.mark.parametrize(
    ("drain", "error"), [(-1, ValueError), (math.nan, ValueError), ("10", TypeError)]
)
async def test_a_bad_drain_is_refused_and_nothing_is_closed(make_pool, drain, error):
    pool = make_pool(Thing)
    with pytest.raises(error, match="drain"):
        await pool.close(drain=drain)
    assert not pool.closed
