"""Who may call `close()`: several tasks, cancelled tasks, hooks."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, now, settle
from tests.support.kit import (
    Gate,
    Thing,
    obtain,
    recorded,
    started,
)

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


async def test_a_hook_that_closes_the_pool_gets_no_resource(make_pool):
    pool = make_pool(Thing, before_acquire=lambda _: closing.append(close()))
    closing = []

    def close():
        coroutine = pool.close()
        with pytest.raises(StopIteration):
            coroutine.send(None)

    await pool.release(await pool.acquire())
    assert pool.try_acquire() is None
    assert pool.count == 0
