"""Calls from another loop or another thread are refused."""

import asyncio
import contextlib
import gc

import pytest

import cenote
from tests.support.kit import (
    Thing,
    outcome,
    queued,
)

NAMES = [(None, "pool"), ("db", "pool 'db'")]
named = pytest.mark.parametrize(("name", "label"), NAMES)


CALLS = {
    "acquire": lambda pool, thing: pool.acquire(),
    "open": lambda pool, thing: pool.open(),
    "close": lambda pool, thing: pool.close(),
    "try_acquire": lambda pool, thing: pool.try_acquire(),
    "release": lambda pool, thing: pool.release(thing),
    "discard": lambda pool, thing: pool.discard(thing),
}


every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


async def perform(call, pool, thing):
    result = call(pool, thing)
    if result is not None:
        await result


@every_call
@named
async def test_a_call_from_another_threads_loop_is_refused(make_pool, name, label, call):
    pool = make_pool(Thing, name=name)
    thing = await pool.acquire()
    before = pool.stats()
    error = await outcome(asyncio.to_thread(asyncio.run, perform(call, pool, thing)))
    assert type(error) is RuntimeError
    assert str(error) == (
        f"{label} belongs to the event loop in which it was opened; this call comes from "
        f"another thread. Remedy: go through asyncio.run_coroutine_threadsafe()."
    )
    assert pool.stats() == before
    pool.release(thing)


@pytest.mark.parametrize("verb", ["try_acquire", "release", "discard"])
async def test_a_plain_call_from_another_thread_is_refused(make_pool, verb):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    error = await outcome(asyncio.to_thread(CALLS[verb], pool, thing))
    assert type(error) is RuntimeError
    assert "this call comes from another thread" in str(error)
    pool.release(thing)


@every_call
@named
def test_a_call_from_another_loop_is_refused(name, label, call):
    pool = cenote.Pool(Thing, name=name)
    with (
        contextlib.closing(asyncio.new_event_loop()) as own,
        contextlib.closing(asyncio.new_event_loop()) as other,
    ):
        thing = own.run_until_complete(perform_acquire(pool))
        with pytest.raises(RuntimeError) as caught:
            other.run_until_complete(perform(call, pool, thing))
        own.run_until_complete(give_back_and_close(pool, thing))
    assert str(caught.value) == (
        f"{label} belongs to the event loop in which it was opened; this call comes from "
        f"another event loop. Remedy: make a pool for each event loop."
    )


def test_a_call_after_the_loop_was_closed_is_refused():
    pool = cenote.Pool(Thing)
    asyncio.run(perform_acquire(pool))
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(perform_acquire(pool))
    assert str(caught.value) == (
        "pool belongs to the event loop in which it was opened, which is closed by now; "
        "this call comes from another event loop. Remedy: make a pool for each event loop."
    )
    caught.value.__traceback__ = None
    last = [pool]
    del pool, caught
    with pytest.warns(ResourceWarning, match="unclosed <Pool"):
        forget(last)


def forget(things):
    things.clear()
    gc.collect()


async def perform_acquire(pool):
    return await pool.acquire()


async def give_back_and_close(pool, thing):
    pool.release(thing)
    await pool.close()


async def test_acquire_itself_does_nothing_in_another_thread(make_pool):
    pool = make_pool(Thing)
    await pool.open()
    asked = await asyncio.to_thread(pool.acquire)
    pool.release(await asked)


async def test_the_pool_works_on_after_a_call_from_elsewhere(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing, waiter = await queued(pool)
    await outcome(asyncio.to_thread(pool.release, thing))
    assert not waiter.done()
    pool.release(thing)
    pool.release(await waiter)
