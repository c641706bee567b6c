"""A factory that finds the backend full: no failure; acquires wait, and it is tried again."""

import asyncio
import logging
from itertools import pairwise

import pytest

import cenote
from cenote.testing import advance, now, settle
from tests.support.kit import RecordingStrategy, Thing, acquiring, outcome, recorded

pytestmark = pytest.mark.virtual_time
both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


class Limited:
    """A factory for a backend with so many places; `asked` has the time of each call."""

    def __init__(self, kind: str, places: int) -> None:
        self.places = places
        self.asked: list[float] = []
        self.hook = self.make if kind == "sync" else self.make_async

    def make(self) -> Thing:
        self.asked.append(now())
        if self.places <= 0:
            raise cenote.BackendFullError("no place is free")
        self.places -= 1
        return Thing()

    async def make_async(self) -> Thing:
        await asyncio.sleep(0)
        return self.make()

    def leave(self, thing: Thing) -> None:
        self.places += 1


@both_kinds
async def test_acquires_wait_for_what_comes_back(make_pool, kind):
    backend, strategy = Limited(kind, 2), RecordingStrategy()
    pool = make_pool(backend.hook, destructor=backend.leave, max_size=5, strategy=strategy)
    first, second = await pool.acquire(), await pool.acquire()
    tasks = [acquiring(pool), acquiring(pool)]
    await settle()
    assert pool.waiting_count == 2
    pool.release(first)
    assert await tasks[0] is first
    assert strategy.reports == ["success"]  # and no failure
    pool.release(second)
    assert await tasks[1] is second
    for each in (first, second):
        pool.release(each)


@both_kinds
async def test_it_is_tried_again_with_backoff(make_pool, kind):
    backend = Limited(kind, 0)
    pool = make_pool(backend.hook, max_size=5)
    tasks = [acquiring(pool) for _ in range(3)]
    await advance(30)
    gaps = [later - earlier for earlier, later in pairwise(backend.asked)]
    gaps = [gap for gap in gaps if gap > 0]  # the first ones are asked at once
    assert 0.05 <= gaps[0] <= 0.1
    assert all(1 <= gap <= 2 for gap in gaps[5:])
    assert len(gaps) < 40  # one at a time
    backend.places = 3
    await advance(2)
    for task in tasks:
        pool.release(await task)
    assert pool.count == 3


@both_kinds
async def test_new_acquires_do_not_ask_meanwhile(make_pool, kind):
    backend = Limited(kind, 0)
    pool = make_pool(backend.hook, max_size=5)
    tasks = [acquiring(pool)]
    await settle()
    asked = len(backend.asked)
    tasks += [acquiring(pool) for _ in range(20)]
    await settle()
    assert len(backend.asked) == asked
    await pool.close()
    for task in tasks:
        assert isinstance(await outcome(task), cenote.PoolClosedError)


@both_kinds
async def test_the_timeout_error_says_that_it_is_full(make_pool, kind):
    backend, strategy = Limited(kind, 0), RecordingStrategy()
    pool = make_pool(backend.hook, name="main", strategy=strategy)
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await pool.acquire(timeout=5)
    assert str(caught.value) == (
        "pool 'main': no resource within 5.0 s (0 active, 0 idle, 1 waiting); the backend is full "
        "(BackendFullError: no place is free). Raise the limit of the backend, or lower max_size "
        "in the programs that share it."
    )
    assert isinstance(caught.value.__cause__, cenote.BackendFullError)
    assert strategy.reports == []
    assert pool.stats().timeouts == 1


@both_kinds
async def test_without_a_wait_it_is_a_timeout(make_pool, kind):
    backend = Limited(kind, 0)
    pool = make_pool(backend.hook)
    with pytest.raises(cenote.AcquireTimeoutError):
        await pool.acquire(timeout=0)
    assert pool.try_acquire() is None
    backend.places = 1
    task = acquiring(pool)
    await advance(1)
    pool.release(await task)


@both_kinds
async def test_open_waits_within_the_acquire_timeout(make_pool, kind):
    backend = Limited(kind, 1)
    pool = make_pool(backend.hook, destructor=backend.leave, min_size=2, acquire_timeout=10)
    opening = asyncio.create_task(pool.open())
    await advance(5)
    assert not opening.done()
    backend.places = 1
    await advance(2)
    await opening
    assert pool.idle_count == 2
    other = make_pool(backend.hook, min_size=1, acquire_timeout=10)
    began = now()
    opening = asyncio.create_task(other.open())
    await advance(15)
    with pytest.raises(cenote.AcquireTimeoutError, match="the backend is full"):
        await opening
    assert now() - began >= 10
    backend.places = 1
    task = acquiring(other)  # which is not left waiting for what nobody tries any more
    await settle()
    other.release(await task)


@both_kinds
async def test_min_size_is_restored_when_there_is_room(make_pool, kind):
    backend = Limited(kind, 2)
    pool = make_pool(backend.hook, min_size=2)
    await pool.open()
    pool.discard(await pool.acquire())
    await advance(10)
    assert pool.count == 1
    backend.places = 1
    await advance(3)
    assert pool.idle_count == 2


@both_kinds
async def test_nobody_waits_and_nobody_asks(make_pool, kind):
    backend = Limited(kind, 0)
    pool = make_pool(backend.hook)
    task = acquiring(pool)
    await settle()
    task.cancel()
    await advance(5)
    asked = len(backend.asked)
    await advance(60)
    assert len(backend.asked) == asked
    backend.places = 1
    pool.release(await pool.acquire())


async def test_one_warning_for_one_spell(make_pool, caplog):
    caplog.set_level(logging.WARNING, "cenote")
    backend = Limited("async", 0)
    pool = make_pool(backend.hook, name="main")
    events = recorded(pool)
    task = acquiring(pool)
    await advance(20)
    assert len(caplog.records) == 1
    assert "the backend is full; acquires wait, and it is tried again in" in caplog.text
    assert "no place is free" in caplog.text
    assert {event.kind for event in events} <= {"opened", "waiting"}
    backend.places = 1
    await advance(3)
    pool.release(await task)
