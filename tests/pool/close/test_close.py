"""What `close()` does to resources, waiters, creations and destructors."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Fatal,
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


async def test_destructors_raising_base_exceptions_do_not_stop_close():
    def destroy(thing):
        raise Fatal

    pool = cenote.Pool(Thing, destructor=destroy, min_size=3)
    await pool.open()
    held = [await pool.acquire() for _ in range(2)]
    with pytest.raises(BaseExceptionGroup) as raised:
        await pool.close()
    assert len(raised.value.exceptions) == 1
    for thing in held:
        with pytest.raises(Fatal):
            pool.release(thing)
    assert sum(pool.stats().destroyed.values()) == 3
