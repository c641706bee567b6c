"""A pool in the child of a fork."""

import gc
import os

import pytest

from cenote.testing import settle
from tests.support.kit import acquiring, full
from tests.support.running import run_forking


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
async def test_a_child_process_forgets_the_waiters_of_its_parent(make_pool):
    pool, held = await full(make_pool)
    waiters = [acquiring(pool, timeout=10 + each) for each in range(20)]
    await settle()
    child = os.fork()
    if child == 0:
        try:
            for waiter in waiters:
                waiter.cancel()
            del waiters
            gc.collect()
            os._exit(0 if pool.waiting_count == 0 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222
    for waiter in waiters:
        await pool.release(held)
        held = await waiter
    await pool.release(held)


PRELUDE = """
import asyncio, gc, logging, os, sys
import cenote

logging.getLogger("cenote").addHandler(logging.NullHandler())

def say(*words, write=os.write):
    write(1, (" ".join(map(str, words)) + "\\n").encode())

class Thing:
    def __init__(self):
        self.maker = os.getpid()

    def __del__(self, getpid=os.getpid, say=say):
        if getpid() != self.maker:
            say("FINALIZED IN THE CHILD")

def destroy(thing):
    say("destroyed", "own" if thing.maker == os.getpid() else "OF THE PARENT")

def wait(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def counts(pool):
    stats = pool.stats()
    return (len(pool), stats.idle, stats.active, stats.waiting, stats.creating, stats.destroying,
            stats.created, stats.acquired, len(pool.holders()))
"""


def test_the_copy_of_the_child_is_empty_and_unbound():
    lines = run_forking(
        PRELUDE,
        """
        async def main():
            pool = cenote.Pool(Thing, destructor=destroy, min_size=2, max_size=3)
            await pool.open()
            things = [await pool.acquire(), await pool.acquire(), await pool.acquire()]
            waiter = asyncio.create_task(pool.acquire().__aenter__())
            await asyncio.sleep(0)
            child = os.fork()
            if child == 0:
                say(*counts(pool), pool.closed, pool.state)
                try:
                    pool.release(things[0])
                except cenote.NotAcquiredError:
                    say("not acquired")
                os._exit(0)
            wait(child)
            pool.release(things.pop())
            things.append(await waiter)
            for thing in things:
                pool.release(thing)
            await pool.close()

        asyncio.run(main())
    """,
    )
    assert lines == ["0 0 0 0 0 0 0 0 0 False ACTIVE", "not acquired"] + ["destroyed own"] * 3


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_the_child_may_use_its_copy_in_its_loop(place):
    lines = run_forking(
        PRELUDE,
        f"""
        pool = cenote.Pool(Thing, destructor=destroy, min_size=2, max_size=2)

        async def use():
            async with pool:
                async with pool.acquire() as thing:
                    say(thing.maker == os.getpid(), pool.count, pool.max_size)

        def fork():
            child = os.fork()
            if child == 0:
                asyncio.run(use())
                os._exit(0)
            wait(child)

        async def main():
            await pool.open()
            if {place == "inside"}:
                fork()

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        if {place == "outside"}:
            fork()
        say("parent")
        loop.run_until_complete(use())
        loop.close()
    """,
    )
    own = ["True 2 2", "destroyed own", "destroyed own"]
    assert lines == [*own, "parent", *own]


def test_the_child_does_not_finalize_resources_of_the_parent():
    lines = run_forking(
        PRELUDE,
        """
        async def main():
            pool = cenote.Pool(Thing, destructor=destroy, min_size=3, max_size=4)
            async with pool:
                async with pool.acquire() as thing:
                    other = await pool.acquire()
                    loop, task = asyncio.get_running_loop(), asyncio.current_task()
                    child = os.fork()
                    if child == 0:
                        del thing, other
                        gc.collect()
                        if sys.version_info >= (3, 14):  # which forgets both: the child would go on
                            asyncio._set_running_loop(loop)
                            asyncio.tasks._swap_current_task(loop, task)
                        sys.exit(0)
                    wait(child)
                    say("parent goes on")
                    pool.release(other)

        asyncio.run(main())
    """,
    )
    assert lines == ["parent goes on"] + ["destroyed own"] * 3


def test_a_pool_that_the_child_lets_go_finalizes_nothing():
    lines = run_forking(
        PRELUDE,
        """
        pool = cenote.Pool(Thing, destructor=destroy, min_size=2)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(pool.open())
        child = os.fork()
        if child == 0:
            del pool
            gc.collect()
            say("child")
            loop.close()
            sys.exit(0)
        wait(child)
        loop.run_until_complete(pool.close())
        loop.close()
    """,
    )
    assert lines == ["child"] + ["destroyed own"] * 2


def test_a_close_in_the_child_touches_nothing_of_the_parent():
    lines = run_forking(
        PRELUDE,
        """
        pool = cenote.Pool(Thing, destructor=destroy, min_size=1)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(pool.open())
        child = os.fork()
        if child == 0:
            asyncio.run(pool.close())
            say("closed", pool.closed)
            os._exit(0)
        wait(child)
        say("open", not pool.closed, pool.count)
        loop.run_until_complete(pool.close())
        loop.close()
    """,
    )
    assert lines == ["closed True", "open True 1", "destroyed own"]


def test_a_closed_pool_is_closed_in_the_child():
    lines = run_forking(
        PRELUDE,
        """
        pool = cenote.Pool(Thing)
        asyncio.run(pool.close())
        child = os.fork()
        if child == 0:
            say(pool.closed)
            os._exit(0)
        wait(child)
    """,
    )
    assert lines == ["True"]


def test_the_child_inherits_sizes_and_breaker():
    lines = run_forking(
        PRELUDE,
        """
        pool = cenote.Pool(Thing, max_size=4)
        pool.resize(max_size=7)
        pool.deactivate()
        child = os.fork()
        if child == 0:
            say(pool.max_size, pool.state)
            os._exit(0)
        wait(child)
    """,
    )
    assert lines == ["7 INACTIVE"]
