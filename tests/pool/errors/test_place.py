"""File and line of an acquire."""

import asyncio
import contextlib
import itertools

from cenote.testing import settle
from tests.support.kit import (
    Thing,
    line,
    start,
)


def where(pool):
    (holder,) = pool.holders()
    return holder.file, holder.line


async def test_file_and_line_are_of_the_call(make_pool):
    pool = make_pool(Thing)
    asked, at = pool.acquire(), line()
    thing = await asked
    assert where(pool) == (__file__, at)
    pool.release(thing)


async def test_file_and_line_of_a_block_are_right(make_pool):
    pool = make_pool(Thing)
    at = line() + 1
    async with pool.acquire():
        assert where(pool) == (__file__, at)


async def test_file_and_line_of_try_acquire_are_right(make_pool):
    pool = make_pool(Thing)
    thing, at = pool.try_acquire(), line()
    assert where(pool) == (__file__, at)
    pool.release(thing)


async def test_file_and_line_of_a_waiter_are_right(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    at = line() + 3

    async def ask():
        return await pool.acquire()

    waiter = start(ask(), "waiter")
    await settle()
    pool.release(thing)
    thing = await waiter
    assert where(pool) == (__file__, at)
    assert pool.holders()[0].task == "waiter"
    pool.release(thing)


async def test_file_and_line_inside_a_helper_are_of_the_helper(make_pool):
    pool = make_pool(Thing)
    at = line() + 3

    def helper():
        return pool.acquire()

    thing = await helper()
    assert where(pool) == (__file__, at)
    pool.release(thing)


async def test_file_and_line_go_through_an_exit_stack(make_pool):
    pool = make_pool(Thing)
    async with contextlib.AsyncExitStack() as stack:
        at = line() + 1
        await stack.enter_async_context(pool.acquire())
        assert where(pool) == (__file__, at)


async def test_a_call_by_contextlib_has_the_frame_behind(make_pool):
    pool = make_pool(Thing)
    stack = contextlib.AsyncExitStack()
    stack.push_async_callback(pool.acquire)  # contextlib calls it, and awaits the result
    at = line() + 1
    await stack.aclose()
    assert where(pool) == (__file__, at)
    pool.release(pool.holders()[0].resource)


async def test_file_and_line_stay_in_a_context_manager(make_pool):
    pool = make_pool(Thing)
    at = line() + 4

    @contextlib.asynccontextmanager
    async def session():
        async with pool.acquire() as thing:
            yield thing

    async with session():
        assert where(pool) == (__file__, at)


async def test_file_and_line_go_through_wait_for(make_pool):
    pool = make_pool(Thing)
    at = line() + 1
    thing = await asyncio.wait_for(pool.acquire(), 5)
    assert where(pool) == (__file__, at)
    pool.release(thing)


async def test_a_call_by_asyncio_has_the_frame_behind(make_pool):
    pool = make_pool(Thing)
    asked = []
    # Between the loop and acquire() is no frame but those of asyncio.
    once = itertools.islice(iter(pool.acquire, None), 1)
    asyncio.get_running_loop().call_soon(asked.extend, once)
    await settle()
    thing = await asked[0]
    assert where(pool)[0].endswith("conftest.py")  # which runs the loop
    pool.release(thing)


async def test_the_task_is_the_one_that_awaited(make_pool):
    pool = make_pool(Thing)
    asked = pool.acquire()

    async def wait():
        return await asked

    thing = await start(wait(), "awaiter")
    assert [holder.task for holder in pool.holders()] == ["awaiter"]
    pool.release(thing)
