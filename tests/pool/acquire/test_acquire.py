"""What an acquire does: which resource it gives, and when it begins."""

import asyncio
import gc

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import (
    Broken,
    FakeService,
    Gate,
    NumberedThing,
    Thing,
    acquiring,
    filled,
    give_all,
    take_all,
)

both_factories = pytest.mark.parametrize("factory", ["sync ok", "async ok"])
both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


# -- the steps -----------------------------------------------------------------------------------


async def test_acquire_does_nothing_by_itself(make_pool):
    service, events = FakeService(), []
    pool = make_pool(**service.hooks(), min_size=1)
    pool.subscribe(events.append)
    pool.acquire()
    await settle()
    assert service.calls == 0
    assert events == []


@both_factories
async def test_an_awaited_acquire_gives_a_resource_until_it_is_released(make_pool, factory):
    service = FakeService(factory)
    pool = make_pool(**service.hooks())
    resource = await pool.acquire()
    assert resource is service.made[0]
    assert (pool.active_count, pool.idle_count) == (1, 0)
    pool.release(resource)
    assert (pool.active_count, pool.idle_count) == (0, 1)


@both_factories
async def test_a_block_gives_a_resource_and_releases_it(make_pool, factory):
    service = FakeService(factory)
    pool = make_pool(**service.hooks())
    async with pool.acquire() as resource:
        assert resource is service.made[0]
        assert pool.active_count == 1
    assert (pool.active_count, pool.idle_count) == (0, 1)


@pytest.mark.parametrize("timeout", [None, 0, 3])
async def test_a_closed_pool_refuses_first_of_all(make_pool, timeout):
    pool = make_pool(FakeService()._factory_sync)
    pool.deactivate()
    await pool.close()
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire(timeout=timeout)
    with pytest.raises(cenote.PoolClosedError):
        async with pool.acquire(timeout=timeout):
            pass


@pytest.mark.parametrize("timeout", [None, 0, 3])
async def test_an_inactive_pool_refuses_even_what_is_idle(make_pool, timeout):
    pool = await filled(make_pool, FakeService(), 1)
    pool.deactivate()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire(timeout=timeout)
    assert pool.idle_count == 1


async def test_an_idle_resource_is_taken_before_a_new_one(make_pool):
    service = FakeService()
    pool = make_pool(**service.hooks(), max_size=5)
    first = await pool.acquire()
    pool.release(first)
    assert await pool.acquire() is first
    assert service.calls == 1
    pool.release(first)


@both_factories
async def test_a_new_resource_is_not_shown_to_before_acquire(make_pool, factory):
    seen = []
    pool = make_pool(**FakeService(factory).hooks(), before_acquire=seen.append, max_size=2)
    held = await take_all(pool, 2)
    waiter = acquiring(pool)
    await settle()
    await pool.discard(held.pop())  # the waiter gets a new one in its slot
    held.append(await waiter)
    assert seen == []
    await give_all(pool, held)


async def test_a_new_resource_that_was_idle_meanwhile_is_shown(make_pool):
    doors, seen = Gate(), []
    pool = make_pool(doors, before_acquire=seen.append)
    gone = acquiring(pool)
    await settle()
    gone.cancel()
    await settle()
    doors.calls[0].set_result("made")
    await settle()
    assert await pool.acquire() == "made"
    assert seen == ["made"]
    pool.release("made")


@both_kinds
async def test_before_acquire_sees_an_idle_resource_counted_as_active(make_pool, kind):
    seen = []

    def look(resource):
        seen.append((resource, pool.active_count, pool.idle_count, pool.count))

    async def look_async(resource):
        look(resource)

    hook = look if kind == "sync" else look_async
    pool = make_pool(object, before_acquire=hook)
    resource = await pool.acquire()
    assert seen == []  # a new resource is not shown
    pool.release(resource)
    assert await pool.acquire() is resource
    assert seen == [(resource, 1, 0, 1)]
    pool.release(resource)


@pytest.mark.parametrize("answer", [None, True, 0, "", [], "no"])
@both_kinds
async def test_before_acquire_accepts_with_anything_but_false(make_pool, kind, answer):
    async def accept(resource):
        return answer

    pool = make_pool(object, before_acquire=accept if kind == "async" else lambda _: answer)
    resource = await pool.acquire()
    pool.release(resource)
    assert await pool.acquire() is resource
    pool.release(resource)


@both_kinds
@pytest.mark.parametrize("how", ["no", "fails"])
async def test_rejected_idle_resources_are_destroyed_and_the_next_is_taken(make_pool, kind, how):
    service = FakeService(destructor="sync ok")

    def judge(resource):
        if resource.number < 2 and how == "fails":
            raise Broken
        return resource.number >= 2

    async def judge_async(resource):
        return judge(resource)

    hook = judge if kind == "sync" else judge_async
    pool = await filled(make_pool, service, 3, before_acquire=hook)
    resource = await pool.acquire()
    assert resource is service.made[2]
    assert service.destroyed == service.made[:2]
    assert pool.stats().rejected == 2
    assert pool.count == 1
    pool.release(resource)


@both_kinds
async def test_a_new_resource_replaces_rejected_idle_ones(make_pool, kind):
    service = FakeService(before_acquire=f"{kind} no", destructor="sync ok")
    pool = await filled(make_pool, service, 3)
    resource = await pool.acquire()
    assert service.destroyed == service.made[:3]
    assert resource is service.made[3]
    pool.release(resource)


async def test_an_acquire_passes_over_what_became_idle_later(make_pool):
    service, doors = FakeService(), Gate()
    pool = make_pool(**service.hooks(), before_acquire=doors, max_size=3)
    first, second = await take_all(pool, 2)
    pool.release(first)
    task = acquiring(pool)
    await settle()
    pool.release(second)
    doors.calls[0].set_result(False)
    await settle()
    assert task.done()
    assert await task is service.made[2]
    assert pool.idle_count == 1
    pool.release(await task)


@both_factories
async def test_new_resources_are_made_up_to_max_size(make_pool, factory):
    service = FakeService(factory)
    pool = make_pool(**service.hooks(), max_size=2)
    tasks = [acquiring(pool) for _ in range(3)]
    await settle()
    assert [task.done() for task in tasks] == [True, True, False]
    assert (service.calls, pool.waiting_count) == (2, 1)
    pool.release(await tasks[0])
    assert await tasks[2] is await tasks[0]
    await give_all(pool, [await tasks[1], await tasks[2]])


# -- max_size ------------------------------------------------------------------------------------


@pytest.mark.parametrize("destructor", ["sync ok", "async ok"])
@both_factories
async def test_the_backend_never_sees_more_than_max_size(make_pool, factory, destructor):
    service = FakeService(factory, destructor=destructor)
    pool = make_pool(**service.hooks(), max_size=3)

    async def use(number):
        for turn in range(6):
            resource = await pool.acquire()
            assert isinstance(resource, NumberedThing)
            await asyncio.sleep(0)
            if (number + turn) % 3:
                pool.discard(resource)
            else:
                pool.release(resource)

    await asyncio.gather(*(use(number) for number in range(10)))
    assert service.peak == 3
    assert service.live == pool.count


async def test_a_resource_under_destruction_keeps_its_slot(make_pool):
    doors = Gate()
    pool = make_pool(object, destructor=doors, max_size=1)
    pool.discard(await pool.acquire())
    waiter = acquiring(pool)
    await settle()
    assert pool.try_acquire() is None
    assert not waiter.done()
    assert pool.stats().destroying == 1
    doors.calls[0].set_result(None)
    resource = await waiter
    discarded = pool.discard(resource)
    await settle()
    doors.calls[1].set_result(None)
    await discarded


# -- once, and not before its first step ---------------------------------------------------------


@pytest.mark.own_loop
@pytest.mark.parametrize("hook", [None, "async"])
async def test_an_acquire_takes_nothing_before_its_first_step(make_pool, hook):
    async def look(thing):
        await asyncio.sleep(0)

    pool = make_pool(Thing, max_size=1, before_acquire=look if hook else None)
    await pool.release(await pool.acquire())
    steps = pool.acquire().__await__()
    assert (pool.idle_count, pool.active_count) == (1, 0)
    del steps
    gc.collect()
    await settle()
    assert (pool.idle_count, pool.active_count) == (1, 0)


@pytest.mark.own_loop
async def test_an_iterator_that_never_began_leaves_the_acquire_alone(make_pool):
    pool = make_pool(Thing, max_size=1)
    asked = pool.acquire()
    first, second = asked.__await__(), asked.__await__()
    with pytest.raises(KeyError):
        first.throw(KeyError())
    with pytest.raises(StopIteration) as stop:
        second.send(None)
    assert stop.value.value is not None
    assert pool.active_count == 1
    with pytest.raises(StopIteration):
        second.send(None)
    with pytest.raises(StopIteration):
        first.send(None)
    pool.release(stop.value.value)


@pytest.mark.own_loop
async def test_an_acquire_that_was_thrown_into_is_used(make_pool):
    pool = make_pool(Thing, max_size=1)
    asked = pool.acquire()
    with pytest.raises(KeyError):
        asked.throw(KeyError())
    with pytest.raises(RuntimeError, match="used before"):
        await asked
    assert pool.active_count == 0


@pytest.mark.own_loop
async def test_a_pool_is_initialized_once(make_pool):
    pool = make_pool(Thing, max_size=1, name="one")
    await pool.release(await pool.acquire())
    with pytest.raises(RuntimeError, match="pool 'one' was initialized before; make another Pool"):
        pool.__init__(Thing, max_size=5)
    assert pool.max_size == 1
    assert pool.idle_count == 1


@pytest.mark.own_loop
async def test_a_hook_cannot_initialize_its_pool_again(make_pool):
    raised = []

    def look(thing):
        with pytest.raises(RuntimeError, match="initialized before") as caught:
            pool.__init__(Thing)
        raised.append(caught.value)
        gc.collect()

    pool = make_pool(Thing, max_size=1, before_acquire=look, before_release=look)
    await pool.release(await pool.acquire())
    await pool.release(await pool.acquire())
    assert len(raised) == 3
