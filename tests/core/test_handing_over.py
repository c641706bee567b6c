"""How an acquire hands its resource over, and what the native core keeps of that."""

import gc
import sys
import tracemalloc
import weakref

import pytest

import cenote

native_only = pytest.mark.skipif(
    cenote.core != "native", reason="the pure core is in use (CENOTE_PURE=1, or not compiled)"
)


class Thing:
    pass


async def step(acquire):
    """The end of an acquire that is ready, as whoever drives it by hand sees it."""
    try:
        next(acquire.__await__())
    except StopIteration as stop:
        return stop
    raise AssertionError("it was not ready")


@pytest.mark.parametrize(
    "resource", [Thing(), (1, 2), (), ValueError("no")], ids=["thing", "pair", "nothing", "error"]
)
async def test_an_acquire_gives_the_very_resource_every_time(make_pool, resource):
    pool = make_pool(lambda: resource, max_size=1)
    for _ in range(3):
        async with pool.acquire() as given:
            assert given is resource
        assert await pool.acquire() is resource
        pool.release(resource)
        stop = await step(pool.acquire())
        assert stop.value is resource
        pool.release(resource)
        with pytest.raises(StopIteration) as given:
            pool.acquire().send(None)
        assert given.value.value is resource
        pool.release(resource)


async def test_a_stop_that_somebody_keeps_is_not_raised_again(make_pool):
    pool = make_pool(Thing, max_size=1)
    kept = []
    for _ in range(3):
        kept.append(await step(pool.acquire()))
        pool.release(kept[-1].value)
    assert len({id(stop) for stop in kept}) == 3
    assert len({stop.value for stop in kept}) == 1
    assert [stop.__traceback__.tb_next for stop in kept] == [None] * 3
    async with pool.acquire() as thing:
        assert thing is kept[0].value


async def test_a_stop_lets_go_of_its_resource_on_release(make_pool):
    pool = make_pool(Thing, max_size=1)
    pool.release(await pool.acquire())

    async def drive():
        local = Thing()  # in the frame that the traceback holds
        try:
            next(pool.acquire().__await__())
        except StopIteration as stop:
            return weakref.ref(local), stop.value

    seen, thing = await drive()
    pool.release(thing)
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("leave", [
    lambda stop: stop.add_note("mine"),
    lambda stop: setattr(stop, "__cause__", ValueError()),
    lambda stop: setattr(stop, "__context__", ValueError()),
    lambda stop: setattr(stop, "args", ("mine",)),
])  # fmt: skip
async def test_a_stop_that_somebody_has_changed_is_not_raised_again(make_pool, leave):
    pool = make_pool(Thing, max_size=1)
    pool.release(await pool.acquire())
    stop = await step(pool.acquire())
    leave(stop)
    stop.__traceback__ = None
    thing = stop.value
    del stop
    pool.release(thing)
    stop = await step(pool.acquire())
    assert stop.value is thing
    assert (stop.__cause__, stop.__context__, hasattr(stop, "__notes__")) == (None, None, False)
    assert "mine" not in stop.args
    pool.release(thing)


async def test_a_resource_is_not_kept_by_what_handed_it_over(make_pool):
    pool = make_pool(Thing, max_size=1)
    counts = []
    for _ in range(4):
        async with pool.acquire() as thing:
            pass
        counts.append(sys.getrefcount(thing))
    seen = weakref.ref(thing)
    del thing
    await pool.discard(await pool.acquire())
    assert (len(set(counts)), seen()) == (1, None)


@pytest.mark.parametrize("order", [1, -1], ids=["oldest first", "newest first"])
async def test_many_resources_are_let_go_in_any_order(make_pool, order):
    pool = make_pool(Thing, max_size=300)
    for _ in range(2):
        taken = [await pool.acquire() for _ in range(300)]
        for thing in taken[::order]:
            pool.release(thing)
        with pytest.raises(cenote.NotAcquiredError):
            pool.release(taken[7])
    seen = [weakref.ref(thing) for thing in taken]
    del taken, thing
    await pool.close()
    assert [one() for one in seen] == [None] * 300


@native_only
async def test_an_idle_resource_takes_less_than_150_bytes():
    number = 2_000
    stock = [object() for _ in range(number)]
    pool = cenote.Pool(stock.pop, max_size=number)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        taken = [await pool.acquire() for _ in range(number)]
        while taken:
            pool.release(taken.pop())
        del taken
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pool.stats().idle == number
    assert (after - before) / number < 150
    await pool.close()
