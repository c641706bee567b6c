"""acquire(wait_timeout=...): a limit of the time in the queue alone."""

import asyncio

import pytest

from cenote import AcquireTimeoutError, BackendFullError, PoolDeadlockError
from cenote.testing import advance, settle
from tests.support.kit import STYLES, Gate, Thing, acquiring, outcome, styled

pytestmark = pytest.mark.virtual_time
styles = pytest.mark.parametrize("style", STYLES)


def waiting(pool, timeout=None, **limits):
    return asyncio.ensure_future(pool.acquire(timeout, **limits))


async def test_the_wait_in_the_queue_ends_in_time(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = waiting(pool, wait_timeout=2)
    await advance(1.9)
    assert not waiter.done()
    await advance(0.1)
    error = await outcome(waiter)
    assert isinstance(error, AcquireTimeoutError)
    assert "no resource within 2.0 s (wait_timeout; 1 active, 0 idle, 1 waiting)" in str(error)
    assert pool.stats().timeouts == 1
    pool.release(thing)


async def test_one_that_is_served_in_time_keeps_its_resource(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = waiting(pool, wait_timeout=2)
    await advance(1)
    pool.release(thing)
    assert await waiter is thing
    await advance(5)
    pool.release(thing)


async def test_the_time_of_the_own_factory_does_not_count(make_pool):
    factory = Gate(lambda: Thing())
    pool = make_pool(factory, max_size=1)
    first = waiting(pool, wait_timeout=2)
    second = waiting(pool, wait_timeout=2)
    await advance(5)
    assert not first.done()  # the factory runs for it
    assert isinstance(await outcome(second), AcquireTimeoutError)
    factory.open()
    pool.release(await first)


async def test_the_time_of_an_async_hook_does_not_count(make_pool):
    hook = Gate(lambda _: True)
    pool = make_pool(Thing, max_size=1, before_acquire=hook)
    thing = await pool.acquire()
    waiter = waiting(pool, wait_timeout=2)
    await advance(1)
    pool.release(thing)
    await advance(3)
    assert not waiter.done()
    hook.open()
    pool.release(await waiter)


@pytest.mark.parametrize(
    ("timeout", "wait_timeout", "words"),
    [(3, 2, "within 2.0 s (wait_timeout; "), (2, 3, "within 2.0 s (timeout; ")],
)
async def test_of_both_limits_the_first_one_ends_it(make_pool, timeout, wait_timeout, words):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = waiting(pool, timeout, wait_timeout=wait_timeout)
    await advance(2)
    assert words in str(await outcome(waiter))
    pool.release(thing)


async def test_both_limits_hold_after_a_hook_that_rejects(make_pool):
    """That of the whole is in force while the hook runs, and that of the queue comes later."""
    hook = Gate(lambda _: False)
    pool = make_pool(styled("async", Thing), max_size=1, before_acquire=hook)
    pool.release(await pool.acquire())
    newcomer = waiting(pool, 5, wait_timeout=2)
    await advance(1)
    holder = waiting(pool)  # it is first in the queue
    await settle()
    hook.open()
    await advance(1.9)
    assert not newcomer.done()
    await advance(0.1)
    assert "(wait_timeout; 1 active, 0 idle, 1 waiting)" in str(await outcome(newcomer))
    pool.release(await holder)


async def test_the_whole_limit_bounds_a_factory_beyond_the_queue(make_pool):
    pool = make_pool(Gate(), max_size=1)
    waiter = waiting(pool, 5, wait_timeout=2)
    await advance(4)
    assert not waiter.done()
    await advance(1)
    assert "within 5.0 s (timeout; " in str(await outcome(waiter))


@styles
async def test_without_a_queue_a_factory_may_run(make_pool, style):
    pool = make_pool(styled(style, Thing), max_size=1)
    thing = await pool.acquire(wait_timeout=0)
    began = asyncio.get_running_loop().time()
    with pytest.raises(AcquireTimeoutError, match=r"within 0\.0 s \(wait_timeout; "):
        await pool.acquire(wait_timeout=0)
    assert asyncio.get_running_loop().time() == began
    pool.release(thing)
    pool.release(await pool.acquire(wait_timeout=0))
    assert pool.stats().created == 1


async def test_without_a_queue_a_slow_factory_is_waited_for(make_pool):
    factory = Gate(lambda: Thing())
    pool = make_pool(factory, max_size=1)
    waiter = waiting(pool, wait_timeout=0)
    await advance(10)
    assert isinstance(await outcome(waiting(pool, wait_timeout=0)), AcquireTimeoutError)
    factory.open()
    pool.release(await waiter)


async def test_a_wait_with_a_limit_is_no_deadlock(make_pool):
    pool = make_pool(Thing, max_size=1)
    async with pool.acquire():
        with pytest.raises(AcquireTimeoutError, match="Deadlock"):
            await pool.acquire(wait_timeout=1)


async def test_a_full_backend_ends_a_wait_without_a_queue(make_pool):
    factory = Gate()
    pool = make_pool(factory, max_size=1)
    waiter = waiting(pool, wait_timeout=0)
    await settle()
    factory.calls[0].set_exception(BackendFullError("no room"))
    error = await outcome(waiter)
    assert isinstance(error, AcquireTimeoutError)
    assert "wait_timeout" in str(error)


@pytest.mark.parametrize("bad", [-1, float("nan")])
async def test_a_bad_limit_is_refused_by_name(make_pool, bad):
    pool = make_pool(Thing)
    with pytest.raises(ValueError, match="wait_timeout must be"):
        pool.acquire(wait_timeout=bad)
    with pytest.raises(TypeError, match="wait_timeout must be a number"):
        pool.acquire(wait_timeout="soon")
    with pytest.raises(TypeError):
        pool.acquire(timeot=1)
    with pytest.raises(TypeError):
        pool.acquire(1, timeout=1)


async def test_an_infinite_limit_is_none(make_pool):
    pool = make_pool(Thing, max_size=1)
    async with pool.acquire():
        with pytest.raises(PoolDeadlockError):
            await pool.acquire(wait_timeout=float("inf"))


# -- scoped ----------------------------------------------------------------------------------------


async def test_a_scoped_acquire_may_be_part_of_a_deadlock(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire(scoped=True)
    with pytest.raises(PoolDeadlockError):
        await pool.acquire(scoped=True)
    pool.release(thing)
    thing = await pool.acquire()  # may be released by anybody
    waiter = acquiring(pool)
    await settle()
    pool.release(thing)
    pool.release(await waiter)
