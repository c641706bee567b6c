"""Opening: what it creates, how it fails, and where a pool may be used afterwards."""

import asyncio
import inspect
import sys
import threading

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import (
    STYLES,
    Fatal,
    Gate,
    Thing,
    Things,
    obtain,
    recorded,
    started,
    styled,
)
from tests.support.waiting import WAIT

# -- open() --------------------------------------------------------------------------------------


def test_the_constructor_creates_nothing_and_needs_no_loop():
    things = Things()
    pool = cenote.Pool(things, min_size=2)
    assert (things.calls, pool.count, pool.closed) == (0, 0, False)


@pytest.mark.parametrize("kind", STYLES)
async def test_open_creates_min_size(make_pool, kind):
    things = Things()
    pool = make_pool(styled(kind, things), min_size=3)
    await pool.open()
    assert (pool.count, pool.idle_count, things.calls) == (3, 3, 3)


async def test_open_returns_only_when_all_of_them_exist(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=2)
    opening = await started(pool.open())
    factory.calls[0].set_result(Thing())
    await settle()
    assert not opening.done()
    factory.calls[1].set_result(Thing())
    await opening
    assert pool.count == 2


async def test_async_with_opens_and_closes(make_pool):
    pool = make_pool(Thing, min_size=1)
    async with pool as entered:
        assert entered is pool
        assert pool.count == 1
    assert pool.closed


async def test_open_without_min_size_creates_nothing(make_pool):
    things = Things()
    pool = make_pool(things)
    events = recorded(pool)
    await pool.open()
    assert things.calls == 0
    assert [event.kind for event in events] == ["opened"]


async def test_open_of_an_open_pool_changes_nothing(make_pool):
    things = Things()
    pool = make_pool(things, min_size=2)
    await pool.open()
    await pool.open()
    assert things.calls == 2


async def test_two_opens_at_once_create_min_size_once(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=2)
    first = await started(pool.open())
    second = await started(pool.open())
    assert len(factory.calls) == 2
    for call in factory.calls:
        call.set_result(Thing())
    await asyncio.gather(first, second)
    assert pool.count == 2


# -- open() that fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
@pytest.mark.parametrize("failing", [{1}, {2}, {3}])
async def test_a_failed_open_destroys_what_was_created(make_pool, kind, failing):
    things, destroyed = Things(failing), []
    pool = make_pool(styled(kind, things), destructor=styled(kind, destroyed.append), min_size=3)
    with pytest.raises(OSError, match=f"call {min(failing)} failed"):
        await pool.open()
    assert destroyed == things.made
    assert pool.count == 0
    assert not pool.closed


@pytest.mark.parametrize("kind", STYLES)
async def test_a_failed_open_raises_the_first_of_several_errors(make_pool, kind):
    things = Things({1, 2, 3})
    pool = make_pool(styled(kind, things), min_size=3)
    with pytest.raises(OSError, match="call 1 failed"):
        await pool.open()


async def test_the_first_error_is_the_first_in_time(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=2)
    opening = await started(pool.open())
    factory.calls[1].set_exception(OSError("early"))
    factory.calls[0].set_exception(OSError("late"))
    with pytest.raises(OSError, match="early"):
        await opening


async def test_a_failed_open_cancels_the_other_creations(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=2)
    opening = await started(pool.open())
    factory.calls[0].set_exception(OSError("down"))
    with pytest.raises(OSError, match="down"):
        await opening
    assert factory.calls[1].cancelled()


async def test_a_failed_open_destroys_what_a_stubborn_factory_makes(make_pool):
    made, destroyed = [], []

    async def factory():
        if not made:
            made.append(Thing())
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return made[0]
        raise OSError("down")

    pool = make_pool(factory, destructor=destroyed.append, min_size=2)
    with pytest.raises(OSError, match="down"):
        await pool.open()
    assert destroyed == made
    assert pool.count == 0


async def test_a_failing_destructor_does_not_hide_a_factory_error(make_pool):
    def destructor(thing):
        raise ValueError("destructor")

    pool = make_pool(Things({2}), destructor=destructor, min_size=2)
    with pytest.raises(OSError, match="call 2 failed"):
        await pool.open()


@pytest.mark.parametrize("kind", STYLES)
async def test_a_pool_may_be_opened_again_after_a_failure(make_pool, kind):
    things = Things({2})
    pool = make_pool(styled(kind, things), min_size=2)
    with pytest.raises(OSError, match="call 2 failed"):
        await pool.open()
    await pool.open()
    assert pool.idle_count == 2


async def test_async_with_may_be_entered_again_after_a_failure(make_pool):
    pool = make_pool(Things({1}), min_size=1)
    with pytest.raises(OSError, match="call 1 failed"):
        async with pool:
            pytest.fail("it was not opened")
    async with pool:
        assert pool.count == 1


def test_a_failed_pool_may_be_opened_in_another_loop():
    pool = cenote.Pool(Things({1}), min_size=1)
    with pytest.raises(OSError, match="call 1 failed"):
        asyncio.run(pool.open())

    async def again():
        async with pool:
            assert pool.count == 1

    asyncio.run(again())


async def test_two_opens_that_fail_both_raise(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=1)
    first = await started(pool.open())
    second = await started(pool.open())
    factory.calls[0].set_exception(OSError("down"))
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [str(error) for error in results] == ["down", "down"]
    assert pool.count == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError, Fatal])
@pytest.mark.parametrize("kind", STYLES)
async def test_what_is_no_exception_fails_open_like_any_other_error(make_pool, kind, error):
    made, destroyed, calls = [], [], []

    def factory():
        calls.append(None)
        if len(calls) == 2:
            raise error("down")
        made.append(Thing())
        return made[-1]

    pool = make_pool(styled(kind, factory), destructor=destroyed.append, min_size=2)
    with pytest.raises(error, match="down"):
        await pool.open()
    assert len(calls) == 2
    assert (destroyed, pool.count, pool.closed) == (made, 0, False)
    await pool.open()
    assert pool.idle_count == 2


async def test_two_opens_both_raise_what_is_no_exception(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=2)
    opens = [await started(pool.open()) for _ in range(2)]
    factory.calls[0].set_exception(Fatal("down"))
    results = await asyncio.gather(*opens, return_exceptions=True)
    assert [repr(error) for error in results] == ["Fatal('down')"] * 2
    assert len(factory.calls) == 2
    assert pool.count == 0


async def test_a_cancelled_open_destroys_what_was_created(make_pool):
    factory, destroyed, thing = Gate(), [], Thing()
    pool = make_pool(factory, destructor=destroyed.append, min_size=2)
    opening = await started(pool.open())
    factory.calls[0].set_result(thing)
    await settle()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert destroyed == [thing]
    assert factory.calls[1].cancelled()
    assert pool.count == 0


async def test_a_pool_may_be_opened_again_after_a_cancelled_open(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=1)
    opening = await started(pool.open())
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    opening = await started(pool.open())
    factory.calls[-1].set_result(Thing())
    await opening
    assert pool.idle_count == 1


@pytest.mark.virtual_time
async def test_cancelling_one_open_leaves_the_other_alone(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=2)
    first = await started(pool.open())
    second = await started(pool.open())
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await settle()
    assert not second.done()
    for call in factory.calls:
        if not call.done():
            call.set_result(Thing())
    await second
    assert pool.count == 2


async def test_open_while_inactive_does_not_hang(make_pool):
    pool = make_pool(Thing, min_size=1)
    pool.deactivate()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.open()


# -- the first acquire ---------------------------------------------------------------------------


async def test_the_first_acquire_does_not_wait_for_min_size(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=3)
    task = await started(obtain(pool))
    factory.calls[0].set_result(Thing())
    thing = await task
    assert pool.count == 1
    for call in factory.calls[1:]:
        call.set_result(Thing())
    await settle()
    assert pool.count == 3
    pool.release(thing)


@pytest.mark.parametrize("kind", STYLES)
async def test_the_resource_of_the_first_acquire_counts_to_min_size(make_pool, kind):
    things = Things()
    pool = make_pool(styled(kind, things), min_size=3)
    async with pool.acquire():
        await settle()
        assert things.calls == 3
        assert (pool.active_count, pool.idle_count) == (1, 2)


async def test_the_first_acquire_opens_the_pool_once(make_pool):
    pool = make_pool(Thing)
    events = recorded(pool)
    for _ in range(2):
        async with pool.acquire():
            pass
    assert [event.kind for event in events].count("opened") == 1


async def test_open_after_the_first_acquire_waits_for_min_size(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=2)
    task = await started(obtain(pool))
    opening = await started(pool.open())
    factory.calls[0].set_result(Thing())
    thing = await task
    await settle()
    assert not opening.done()
    factory.calls[1].set_result(Thing())
    await opening
    assert len(factory.calls) == 2
    pool.release(thing)


# -- closed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [True, False])
async def test_a_closed_pool_stays_closed(make_pool, opened):
    things = Things()
    pool = make_pool(things, min_size=1)
    if opened:
        await pool.open()
    await pool.close()
    made = things.calls
    with pytest.raises(cenote.PoolClosedError):
        await pool.open()
    with pytest.raises(cenote.PoolClosedError):
        async with pool:
            pytest.fail("it was opened")
    with pytest.raises(cenote.PoolClosedError):
        await pool.acquire()
    assert pool.try_acquire() is None
    assert pool.closed
    assert things.calls == made


# -- another loop, another thread ----------------------------------------------------------------

OPERATIONS = {
    "acquire": lambda pool, thing: pool.acquire(),
    "block": lambda pool, thing: pool.acquire().__aenter__(),
    "try_acquire": lambda pool, thing: pool.try_acquire(),
    "release": lambda pool, thing: pool.release(thing),
    "discard": lambda pool, thing: pool.discard(thing),
    "open": lambda pool, thing: pool.open(),
    "close": lambda pool, thing: pool.close(),
}
PLAIN = ["try_acquire", "release", "discard"]


async def perform(operation, pool, thing):
    result = OPERATIONS[operation](pool, thing)
    if inspect.isawaitable(result):
        await result


def in_thread(function, *arguments):
    """What the function returned, or its error, from a thread of its own."""
    outcome = []

    def work():
        try:
            outcome.append(function(*arguments))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return outcome[0]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_refused_in_another_loop(operation):
    home = asyncio.new_event_loop()
    pool = cenote.Pool(Thing, name="shop")
    thing = home.run_until_complete(obtain(pool))
    before = pool.stats()
    with pytest.raises(RuntimeError, match=r"'shop'.*another event loop"):
        asyncio.run(perform(operation, pool, thing))
    assert pool.stats() == before
    assert not pool.closed
    pool.release(thing)
    home.run_until_complete(pool.close())
    home.close()


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_operation_is_refused_in_another_threads_loop(make_pool, operation):
    pool = make_pool(Thing, name="shop")
    thing = await pool.acquire()
    before = pool.stats()
    error = in_thread(lambda: asyncio.run(perform(operation, pool, thing)))
    assert isinstance(error, RuntimeError)
    assert "'shop'" in str(error)
    assert "another thread" in str(error)
    assert pool.stats() == before
    assert not pool.closed
    pool.release(thing)


@pytest.mark.parametrize("operation", PLAIN)
async def test_every_plain_operation_is_refused_in_another_thread(make_pool, operation):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    before = pool.stats()
    error = in_thread(OPERATIONS[operation], pool, thing)
    assert isinstance(error, RuntimeError)
    assert "another thread" in str(error)
    assert pool.stats() == before
    pool.release(thing)


async def test_everything_may_be_read_from_another_thread(make_pool):
    pool = make_pool(Thing, min_size=2, max_size=2, name="shop")
    await pool.open()
    things = [await pool.acquire(), await pool.acquire()]
    waiter = await started(obtain(pool))
    pool.release(things.pop())
    thing = await waiter

    def read():
        return (
            (len(pool), pool.count, pool.idle_count, pool.active_count, pool.waiting_count),
            (pool.stats().active, [holder.resource for holder in pool.holders()]),
            (pool.state, pool.closed, bool(pool)),
            repr(pool),
        )

    assert in_thread(read) == (
        (2, 2, 0, 2, 0),
        (2, [things[0], thing]),
        (cenote.CircuitState.ACTIVE, False, True),
        repr(pool),
    )
    for each in (*things, thing):
        pool.release(each)


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


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("kind", STYLES)
async def test_open_ends_with_eager_tasks(make_pool, kind):
    """A factory that does not suspend is done when its task is made."""
    pool = make_pool(styled(kind, Thing), min_size=2)

    def fail():
        raise OSError("down")

    down = make_pool(styled(kind, fail), min_size=2)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        async with asyncio.timeout(WAIT):
            await pool.open()
            with pytest.raises(OSError, match="down"):
                await down.open()
    finally:
        loop.set_task_factory(None)
    assert (pool.idle_count, down.count) == (2, 0)
