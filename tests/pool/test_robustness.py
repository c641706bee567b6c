"""Hostile surroundings: exceptions that are no Exception, strange task factories, eager tasks."""

import asyncio
import sys
import weakref

import pytest

import cenote
from tests.support.clock import settle
from tests.support.kit import Fatal, RaisingStrategy, Thing

KINDS = ["created", "acquired", "released", "destroyed", "waiting", "rejected", "timeout"]


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


@pytest.mark.parametrize("method", ["report_success", "report_failure", "should_recover"])
async def test_a_strategy_raising_a_base_exception_is_harmless(make_pool, method):
    pool = make_pool(Thing, max_size=1, strategy=RaisingStrategy(method, Fatal()))
    await pool.release(await pool.acquire())
    await pool.discard(await pool.acquire(), OSError())
    pool.deactivate()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    pool.activate()
    await pool.release(await pool.acquire())


async def test_a_raising_subscriber_of_closed_does_not_hang_close(make_pool):
    pool = make_pool(Thing)
    await pool.open()

    def fail(event):
        raise Fatal

    pool.subscribe(fail)
    await pool.close()
    assert pool.closed


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


async def test_a_hook_that_ends_cancelled_ends_its_release_once(make_pool):
    async def examine(thing):
        raise asyncio.CancelledError

    pool = make_pool(Thing, before_release=examine)
    operation = pool.release(await pool.acquire())
    await settle()
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await operation


async def test_an_unawaited_release_logs_a_base_exception(make_pool, caplog):
    async def before_release(thing):
        await asyncio.sleep(0)
        raise Fatal("lost")

    pool = make_pool(Thing, before_release=before_release)
    pool.release(await pool.acquire())
    await settle()
    assert pool.count == 0
    (record,) = caplog.records
    assert "before_release failed" in record.message
    assert isinstance(record.exc_info[1], Fatal)


async def test_a_task_factory_that_refuses_costs_no_slot(make_pool):
    async def make():
        return Thing()

    pool = make_pool(make, max_size=1)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))
    try:
        for _ in range(2):
            with pytest.raises(TypeError):
                await pool.acquire()
    finally:
        loop.set_task_factory(None)
    await pool.release(await pool.acquire())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("works", [True, False])
async def test_a_thousand_waiters_are_served_with_eager_tasks(make_pool, works):
    async def make():
        if not works:
            raise OSError
        return Thing()

    async def take(pool):
        return await pool.acquire()

    pool = make_pool(make, max_size=1)
    waiters = [asyncio.ensure_future(take(pool)) for _ in range(1000)]
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        await asyncio.sleep(0)
        pool.resize(max_size=1000)
        ends = await asyncio.gather(*waiters, return_exceptions=True)
    finally:
        loop.set_task_factory(None)
    assert all(isinstance(end, Thing if works else OSError) for end in ends)
    for end in ends:
        if works:
            pool.release(end)


async def test_open_waits_for_the_undo_of_a_failed_open(make_pool):
    calls, cleanup = [], asyncio.Event()

    async def make():
        calls.append(None)
        if len(calls) == 1:
            await asyncio.sleep(0)
            raise OSError
        if len(calls) == 2:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await cleanup.wait()
        return Thing()

    pool = make_pool(make, min_size=2)
    first = asyncio.ensure_future(pool.open())
    await settle()
    second = asyncio.ensure_future(pool.open())
    await settle()
    cleanup.set()
    with pytest.raises(OSError):
        await first
    await second
    assert pool.count == 2


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


@pytest.mark.parametrize("option", ["max_size", "max_uses", "max_waiting", "recovering_limit"])
def test_a_number_too_large_to_count_names_its_argument(option):
    with pytest.raises(ValueError, match=option):
        cenote.Pool(Thing, **{option: 10**30})


async def test_a_resize_too_large_changes_nothing(make_pool):
    pool = make_pool(Thing)
    with pytest.raises(ValueError, match="max_size"):
        pool.resize(min_size=1, max_size=10**30)
    assert (pool.min_size, pool.max_size) == (0, 10)


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


def test_a_sweep_within_a_millisecond_runs_on_uvloop(caplog):
    """uvloop calls that at once, and its handle does not tell the time."""
    uvloop = pytest.importorskip("uvloop")

    async def live() -> None:
        async with cenote.Pool(object, max_idle=0.0003) as pool:
            async with pool.acquire():
                pass
            async with asyncio.timeout(10):
                while pool.count:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(live())
    finally:
        loop.close()
    assert not caplog.records
