"""`acquire`: an awaitable, and a context manager."""

import asyncio
import contextlib
import math

import pytest

import cenote
from cenote.testing import advance
from tests.support.kit import Thing, started, styled
from tests.support.probe import (
    native_only,
)

pytestmark = native_only


async def test_acquire_gives_an_awaitable(make_c, probe):
    pool, _ = make_c()
    resource = await probe.acquire(pool, -1.0)
    assert resource == b"resource"
    assert pool.active_count == 1
    [holder] = pool.holders()
    assert holder.file == __file__
    assert probe.release(pool, resource) == 0


async def test_acquire_is_a_context_manager(make_c, probe):
    pool, _ = make_c()
    async with probe.acquire(pool, -1.0) as resource:
        assert resource == b"resource"
        assert (pool.active_count, pool.idle_count) == (1, 0)
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_acquire_works_on_a_pool_of_python(make_pool, probe):
    pool = make_pool(styled("async", Thing))
    async with probe.acquire(pool, math.inf) as thing:
        assert isinstance(thing, Thing)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("default", "given", "expected"),
    [(3.0, -1.0, 3.0), (3.0, 2.0, 2.0), (3.0, 0.0, 0.0), (None, 5.0, 5.0), (3.0, math.inf, None)],
)
async def test_the_timeout_of_acquire(make_c, probe, default, given, expected):
    pool, _ = make_c(max_size=1, acquire_timeout=default)
    resource = await pool.acquire()

    async def wait():
        began = asyncio.get_running_loop().time()
        try:
            pool.release(await probe.acquire(pool, given))
        except cenote.AcquireTimeoutError:
            return asyncio.get_running_loop().time() - began

    task = await started(wait())
    await advance(100.0)
    assert task.done() is (expected is not None)
    pool.release(resource)
    assert await task == expected


async def test_a_timeout_that_is_no_number(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    with pytest.raises(ValueError, match="nan"):
        probe.acquire(pool, math.nan)
    with pytest.raises(ValueError, match="nan"):
        probe.acquire_call(pool, math.nan, plan)
    assert (plan.log, plan.freed) == ([], 1)


class Driver:
    """A listener that sends to an acquire or closes it, at the first event of a kind."""

    def __init__(self, kind, verb):
        self.acquire, self.driven = None, False
        self._kind, self._verb = kind, verb

    def __call__(self, name, kind):
        if kind != self._kind or self.driven:
            return
        self.driven = True
        with contextlib.suppress(StopIteration):
            self.acquire.send(None) if self._verb == "send" else self.acquire.close()


def give_everything_back(pool):
    for holder in pool.holders():
        pool.release(holder.resource)


@pytest.mark.parametrize("kind", ["opened", "acquired"])
@pytest.mark.parametrize("verb", ["send", "close"])
async def test_a_listener_may_drive_the_acquire_of_its_event(make_c, probe, kind, verb):
    """Found by fuzzing: it was begun twice, or its missing result crashed the interpreter."""
    pool, _ = make_c(max_size=2)
    if kind == "acquired":
        pool.release(await pool.acquire())
    plan, drive = probe.Plan(), Driver(kind, verb)
    plan.call = drive
    subscription = probe.subscribe(pool, plan)
    drive.acquire = probe.acquire(pool, math.inf)
    with pytest.raises((RuntimeError, StopIteration)) as raised:
        drive.acquire.send(None)
    plan.call = None
    assert drive.driven
    assert "was used before" in str(raised.value)
    give_everything_back(pool)
    probe.unsubscribe(subscription)
    assert pool.active_count == 0


@pytest.mark.parametrize("verb", ["send", "close"])
async def test_a_listener_may_drive_the_acquire_that_has_waited(make_c, probe, verb):
    """Found in review: the task that awaited it was given None."""
    pool, _ = make_c(max_size=1)
    resource = await pool.acquire()
    plan, drive = probe.Plan(), Driver("acquired", verb)
    drive.acquire = probe.acquire(pool, math.inf)
    assert asyncio.isfuture(drive.acquire.send(None))
    plan.call = drive
    subscription = probe.subscribe(pool, plan)
    pool.release(resource)
    with pytest.raises(RuntimeError, match="was used before"):
        drive.acquire.send(None)
    plan.call = None
    assert drive.driven
    give_everything_back(pool)
    probe.unsubscribe(subscription)
    assert (pool.active_count, pool.idle_count) == (0, 1)
