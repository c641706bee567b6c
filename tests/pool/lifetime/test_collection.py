"""Pools, blocks and waiters that the garbage collector finds, and pools that nobody closed."""

import asyncio
import contextlib
import gc
import threading
import types
import warnings
import weakref

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import (
    RecordingStrategy,
    Thing,
    Things,
    drop,
    forget,
    obtain,
    started,
)

# -- an unclosed pool ----------------------------------------------------------------------------


@contextlib.contextmanager
def warned():
    """The texts of the ResourceWarnings inside."""
    texts = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
        gc.collect()
    texts += [str(each.message) for each in caught if each.category is ResourceWarning]


async def test_an_unclosed_pool_warns(make_pool):
    pool = make_pool(Thing, check_ledger=False, name="shop")
    await pool.open()
    await settle()
    box = [pool]
    del pool
    forget(box, match=r"unclosed .*'shop'")


async def test_a_pool_that_acquire_opened_warns_as_well(make_pool):
    pool = make_pool(Thing, check_ledger=False)
    async with pool.acquire():
        pass
    box = [pool]
    del pool
    forget(box)


async def test_a_sync_destructor_is_run_on_what_is_idle(make_pool):
    things, destroyed = Things(), []
    pool = make_pool(things, check_ledger=False, destructor=destroyed.append, min_size=3)
    await pool.open()
    await settle()
    busy = await pool.acquire()
    box = [pool]
    del pool
    forget(box)
    assert destroyed == things.made[1:]
    assert busy is things.made[0]


async def test_a_failing_destructor_does_not_spare_the_others(make_pool, caplog):
    called = []

    def destructor(thing):
        called.append(thing)
        raise ValueError("will not go")

    pool = make_pool(Thing, check_ledger=False, destructor=destructor, min_size=2)
    await pool.open()
    await settle()
    box = [pool]
    del pool
    forget(box)
    assert len(called) == 2
    assert "will not go" in caplog.text


async def test_an_async_destructor_is_not_called(make_pool):
    called = []

    async def destructor(thing):
        called.append(thing)

    pool = make_pool(Thing, check_ledger=False, destructor=destructor, min_size=1)
    await pool.open()
    await settle()
    box = [pool]
    del pool
    forget(box)
    await settle()
    assert called == []


@pytest.mark.parametrize("closed", [False, True])
def test_the_destructor_runs_unless_the_loop_is_closed(closed):
    destroyed = []
    pool = cenote.Pool(Thing, destructor=destroyed.append, min_size=1)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(pool.open())
    if closed:
        loop.close()
    box = [pool]
    del pool
    forget(box)
    assert len(destroyed) == (0 if closed else 1)
    loop.close()


async def test_the_destructor_is_not_run_in_another_thread(make_pool):
    destroyed = []
    pool = make_pool(Thing, check_ledger=False, destructor=destroyed.append, min_size=1)
    await pool.open()
    await settle()
    box = [pool]
    del pool
    with pytest.warns(ResourceWarning, match="unclosed"):
        drop_in_thread(box)
    await settle()
    assert destroyed == []


def test_an_unopened_pool_does_not_warn():
    pool = cenote.Pool(Thing, min_size=1)
    reference = weakref.ref(pool)
    with warned() as texts:
        del pool
    assert texts == []
    assert reference() is None


async def test_a_closed_pool_does_not_warn(make_pool):
    pool = make_pool(Thing, check_ledger=False, min_size=1)
    await pool.open()
    await pool.close()
    with warned() as texts:
        del pool
    assert texts == []


async def test_a_pool_whose_open_failed_does_not_warn(make_pool):
    pool = make_pool(Things({1}), check_ledger=False, min_size=1)
    with contextlib.suppress(OSError):
        await pool.open()
    await settle()
    with warned() as texts:
        del pool
    assert texts == []


# -- cycles --------------------------------------------------------------------------------------


class Knot(RecordingStrategy):
    """Hooks, strategy, subscriber and resource at once, and it knows the pool."""

    pool: cenote.Pool

    def make(self):
        resource = Thing()
        resource.pool = self.pool
        return resource

    def look(self, resource):
        return self.pool is not None


class Sync(Knot):
    def hooks(self):
        return {
            "destructor": self.look,
            "healthcheck": self.look,
            "before_acquire": self.look,
            "before_release": self.look,
        }


class Async(Knot):
    async def make(self):
        await asyncio.sleep(0)
        return super().make()

    async def look_later(self, resource):
        await asyncio.sleep(0)
        return self.look(resource)

    def hooks(self):
        return dict.fromkeys(Sync().hooks(), self.look_later)


@pytest.mark.parametrize("knot", [Sync, Async])
@pytest.mark.parametrize("closed", [True, False])
async def test_a_cycle_through_everything_is_collectable(make_pool, knot, closed):
    name = f"{knot.__name__} {closed}"

    async def live():
        tied = knot()
        pool = make_pool(
            tied.make,
            **tied.hooks(),
            check_ledger=False,
            name=name,
            strategy=tied,
            min_size=2,
            healthcheck_interval=10.0,
            max_lifetime=100.0,
            max_idle=100.0,
            hold_warning=10.0,
        )
        tied.pool = pool
        pool.subscribe(tied.look)
        await pool.open()
        for _ in range(3):
            async with pool.acquire():
                pass
        thing = await pool.acquire()
        await pool.discard(thing, OSError("down"))
        if closed:
            await pool.close()
        return weakref.ref(pool), weakref.ref(tied)

    references = await live()
    await settle()
    with warned() as texts:
        gc.collect()
    gc.collect()  # what the warning has shown, too
    assert len([text for text in texts if name in text]) == (0 if closed else 1)
    assert [reference() for reference in references] == [None, None]


async def test_a_cycle_through_a_busy_resource_is_collectable(make_pool):
    async def live():
        tied = Sync()
        tied.pool = make_pool(tied.make, check_ledger=False, name="busy")
        resource = await tied.pool.acquire()
        resource.itself = resource
        return weakref.ref(tied.pool), weakref.ref(resource)

    references = await live()
    with warned() as texts:
        gc.collect()
    gc.collect()  # what the warning has shown, too
    assert len([text for text in texts if "'busy'" in text]) == 1
    assert [reference() for reference in references] == [None, None]


async def test_a_released_resource_is_let_go_when_it_is_destroyed(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    pool.discard(thing)
    reference = weakref.ref(thing)
    del thing
    gc.collect()
    assert reference() is None


# -- finalizers elsewhere ------------------------------------------------------------------------


@types.coroutine
def pause():
    yield


async def pause_in_block(pool):
    async with pool.acquire():
        await pause()


def drop_in_thread(box):
    thread = threading.Thread(target=drop, args=[box])
    thread.start()
    thread.join()


def suspended(coroutine):
    """A coroutine that was begun, in a box: the only reference to it."""
    coroutine.send(None)
    return [coroutine]


async def test_a_block_collected_in_its_thread_gives_its_resource_back(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append)
    suspended(pause_in_block(pool)).clear()
    await settle()
    assert (pool.active_count, len(destroyed)) == (0, 1)


async def test_a_block_collected_in_another_thread_uses_the_loop(make_pool):
    threads = []
    pool = make_pool(Thing, destructor=lambda thing: threads.append(threading.get_ident()))
    box = suspended(pause_in_block(pool))
    before = pool.stats()
    drop_in_thread(box)
    assert pool.stats() == before
    assert threads == []
    await settle()
    assert pool.active_count == 0
    assert threads == [threading.get_ident()]


async def test_a_block_collected_in_mid_operation_changes_the_pool_later(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append)
    box = suspended(pause_in_block(pool))
    before = pool.stats()
    pool._engine.core.busy += 1
    box.clear()
    assert pool.stats() == before
    assert destroyed == []
    pool._engine.core.busy -= 1
    await settle()
    assert (pool.active_count, len(destroyed)) == (0, 1)


async def test_what_the_collected_block_held_goes_to_the_waiter(make_pool):
    pool = make_pool(Thing, max_size=1)
    box = suspended(pause_in_block(pool))
    waiter = await started(obtain(pool))
    drop_in_thread(box)
    pool.release(await waiter)


@pytest.mark.parametrize("elsewhere", ["thread", "operation"])
async def test_a_waiter_collected_elsewhere_leaves_the_queue_in_the_loop(make_pool, elsewhere):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    box = suspended(obtain(pool))
    second = await started(obtain(pool))
    if elsewhere == "thread":
        drop_in_thread(box)
        assert pool.waiting_count == 2
    else:
        pool._engine.core.busy += 1
        box.clear()
        assert pool.waiting_count == 2
        pool._engine.core.busy -= 1
    await settle()
    assert pool.waiting_count == 1
    pool.release(thing)
    assert await second is thing
    pool.release(thing)


async def test_a_waiter_collected_after_its_grant_passes_it_on(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    box = suspended(obtain(pool))
    second = await started(obtain(pool))
    pool.release(thing)
    drop_in_thread(box)
    assert await second is thing
    pool.release(thing)


def test_a_block_collected_after_its_loop_was_closed_is_quiet():
    pool = cenote.Pool(Thing)

    async def begin(pool):
        return suspended(pause_in_block(pool)), suspended(pause_in_block(pool))

    here, there = asyncio.run(begin(pool))
    drop(here)
    drop_in_thread(there)
    box = [pool]
    del pool
    forget(box)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_task_of_the_factory_keeps_no_pool(make_pool):
    readers = []

    async def make():
        readers.append(asyncio.ensure_future(asyncio.get_running_loop().create_future()))
        return Thing()

    pool = cenote.Pool(make)
    async with pool.acquire():
        pass
    await settle()
    seen = weakref.ref(pool)
    del pool
    import gc

    gc.collect()
    assert seen() is None
    readers[0].cancel()
    await settle()
