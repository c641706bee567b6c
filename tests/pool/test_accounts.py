"""Every acquire that has begun is counted once more, by how it ended, and has its event."""

import asyncio

import pytest

import cenote
from cenote import (
    AcquireTimeoutError,
    PoolClosedError,
    PoolDeadlockError,
    PoolError,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from cenote.testing import settle
from cenote.testing.ledger import ended
from tests.support.kit import STYLES, Gate, Thing, acquiring, cancel, outcome, raising, styled

styles = pytest.mark.parametrize("style", STYLES)
ENDS = {"acquired", "timeout", "cancelled", "failed", "refused"}


class Broken(Exception):
    """What a factory raises."""


def ends(pool):
    """The counts of what ended, without those that are 0."""
    stats = pool.stats()
    counts = {
        "begun": stats.begun,
        "acquired": stats.acquired,
        "timeouts": stats.timeouts,
        "cancelled": stats.cancelled,
        "failed": stats.failed,
        **stats.refused,
    }
    assert stats.begun == ended(stats)
    return {name: count for name, count in counts.items() if count}


def ends_of(pool):
    """Collects kind and reason of the events that end an acquire."""
    seen = []
    pool.subscribe(lambda event: event.kind in ENDS and seen.append((event.kind, event.reason)))
    return seen


@styles
async def test_an_error_of_the_factory_counts_failed(make_pool, style):
    pool = make_pool(styled(style, raising(Broken("down"))))
    events = []
    pool.subscribe(events.append)
    with pytest.raises(Broken):
        await pool.acquire()
    assert ends(pool) == {"begun": 1, "failed": 1}
    failed = {event.kind: event for event in events}
    assert isinstance(failed["create_failed"].error, Broken)
    assert isinstance(failed["failed"].error, Broken)
    assert failed["failed"].task == "test"
    assert failed["failed"].duration is not None


@styles
async def test_a_factory_that_fails_for_nobody_is_an_event(make_pool, style):
    pool = make_pool(styled(style, raising(Broken("down"))), min_size=1)
    seen = []
    pool.subscribe(lambda event: seen.append(event.kind))
    with pytest.raises(Broken):
        await pool.open()
    assert "create_failed" in seen
    assert ends(pool) == {}


async def test_an_open_breaker_counts_refused_by_circuit(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    seen = ends_of(pool)
    pool.deactivate()
    assert isinstance(await outcome(waiter), ServiceUnavailableError)
    with pytest.raises(ServiceUnavailableError):
        await pool.acquire()
    assert ends(pool) == {"begun": 3, "acquired": 1, "circuit": 2}
    assert seen == [("refused", "circuit")] * 2
    pool.release(thing)


async def test_a_full_queue_counts_refused_as_overloaded(make_pool):
    pool = make_pool(Thing, max_size=1, max_waiting=0)
    thing = await pool.acquire()
    seen = ends_of(pool)
    with pytest.raises(PoolOverloadedError):
        await pool.acquire()
    assert ends(pool) == {"begun": 2, "acquired": 1, "overloaded": 1}
    assert seen == [("refused", "overloaded")]
    pool.release(thing)


async def test_a_closed_pool_counts_refused_as_closed(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    seen = ends_of(pool)
    await pool.close()
    assert isinstance(await outcome(waiter), PoolClosedError)
    with pytest.raises(PoolClosedError):
        await pool.acquire()
    assert ends(pool) == {"begun": 3, "acquired": 1, "closed": 2}
    assert seen == [("refused", "closed")]  # the second came after `closed`: nothing is sent then
    pool.release(thing)


async def test_a_draining_pool_counts_refused_as_closed(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    closing = asyncio.create_task(pool.close(drain=60))
    await settle()
    seen = ends_of(pool)
    acquire = pool.acquire()
    for _ in range(2):  # it has not begun, and may be asked again
        with pytest.raises(PoolClosedError):
            await acquire
    assert ends(pool) == {"begun": 3, "acquired": 1, "closed": 2}
    assert seen == [("refused", "closed")] * 2
    pool.release(thing)
    await closing


async def test_a_deadlock_counts_refused_as_deadlock(make_pool):
    pool = make_pool(Thing, max_size=1)
    seen = ends_of(pool)
    async with pool.acquire():
        with pytest.raises(PoolDeadlockError):
            await pool.acquire()
    assert ends(pool) == {"begun": 2, "acquired": 1, "deadlock": 1}
    assert seen == [("acquired", None), ("refused", "deadlock")]


async def test_an_acquire_that_is_never_awaited_has_not_begun(make_pool):
    pool = make_pool(Thing)
    pool.acquire()
    pool.acquire().__await__()
    pool.acquire().close()
    task = acquiring(pool)
    await cancel(task)  # before its first step
    assert ends(pool) == {}


async def test_an_acquire_used_twice_is_counted_once(make_pool):
    pool = make_pool(Thing)
    acquire = pool.acquire()
    thing = await acquire
    with pytest.raises(RuntimeError, match="used before"):
        await acquire
    closed = pool.acquire()
    closed.close()
    with pytest.raises(RuntimeError, match="used before"):
        await closed
    pool.release(thing)
    assert ends(pool) == {"begun": 1, "acquired": 1}


async def test_a_dropped_iterator_of_a_waiter_counts_cancelled(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    steps = pool.acquire().__await__()
    next(steps)
    del steps
    await settle()
    assert ends(pool) == {"begun": 2, "acquired": 1, "cancelled": 1}
    pool.release(thing)


@pytest.mark.parametrize("async_hook", [False, True])
async def test_a_closed_coroutine_of_a_waiter_counts_cancelled(make_pool, async_hook):
    async def inspect(thing):
        return True

    pool = make_pool(Thing, max_size=1, before_acquire=inspect if async_hook else None)
    thing = await pool.acquire()

    async def use():
        async with pool.acquire():
            raise AssertionError

    coroutine = use()
    coroutine.send(None)
    coroutine.close()
    await settle()
    assert ends(pool) == {"begun": 2, "acquired": 1, "cancelled": 1}
    pool.release(thing)


@pytest.mark.parametrize("hook", ["factory", "before_acquire"])
@pytest.mark.parametrize("what", ["send", "throw", "close"])
async def test_an_acquire_that_its_own_hook_drives_counts_once(make_pool, hook, what):
    refused = []

    def drive(*_):
        if running and not refused:
            asked = running[0]
            call = {"send": (None,), "throw": (KeyError(),), "close": ()}[what]
            try:
                getattr(asked, what)(*call)
            except Exception as error:
                refused.append(error)
            else:
                refused.append(None)
        return Thing() if hook == "factory" else True

    running = []
    pool = make_pool(
        drive if hook == "factory" else Thing,
        before_acquire=drive if hook == "before_acquire" else None,
    )
    if hook != "factory":
        pool.release(await pool.acquire())
    running.append(pool.acquire())
    thing = await running[0]
    assert len(refused) == 1
    counts = ends(pool)
    assert counts == {"begun": counts["acquired"], "acquired": counts["acquired"]}
    assert pool.active_count == 1
    pool.release(thing)
    assert pool.idle_count == 1


@styles
async def test_what_before_acquire_raises_beside_exceptions_counts_cancelled(make_pool, style):
    pool = make_pool(Thing, before_acquire=styled(style, raising(asyncio.CancelledError())))
    pool.release(await pool.acquire())
    seen = ends_of(pool)
    assert isinstance(await outcome(acquiring(pool)), asyncio.CancelledError)
    assert ends(pool) == {"begun": 2, "acquired": 1, "cancelled": 1}
    assert seen == [("cancelled", None)]


async def test_a_timeout_of_zero_counts_as_timeout(make_pool):
    pool = make_pool(styled("async", Thing))
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=0)
    assert ends(pool) == {"begun": 1, "timeouts": 1}


async def test_a_timeout_that_a_cancellation_hides_is_counted_once(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    pool.deactivate()  # it is refused,
    await cancel(waiter)  # and cancelled before it has run
    assert ends(pool) == {"begun": 2, "acquired": 1, "circuit": 1}
    pool.release(thing)


async def test_a_try_counts_only_what_it_gives(make_pool):
    bad = True

    def make():
        if bad:
            raise Broken
        return Thing()

    pool = make_pool(make, max_size=1)
    seen = ends_of(pool)
    with pytest.raises(Broken):
        pool.try_acquire()
    bad = False
    thing = pool.try_acquire()
    assert pool.try_acquire() is None
    pool.release(thing)
    pool.release(pool.try_acquire())
    assert ends(pool) == {"begun": 3, "acquired": 2, "failed": 1}
    assert [kind for kind, _ in seen] == ["failed", "acquired", "acquired"]


async def test_a_try_that_may_not_ask_has_not_begun(make_pool):
    async def inspect(thing):
        return True

    pool = make_pool(Thing, before_acquire=inspect)
    pool.release(await pool.acquire())
    with pytest.raises(PoolError, match="async before_acquire"):
        pool.try_acquire()
    assert ends(pool) == {"begun": 1, "acquired": 1}


async def test_a_refusal_of_a_factorys_own_pool_counts_failed(make_pool):
    inner = make_pool(Thing)
    await inner.close()

    async def make():
        return await inner.acquire()

    pool = make_pool(make)
    with pytest.raises(PoolClosedError):
        await pool.acquire()
    assert ends(pool) == {"begun": 1, "failed": 1}
    assert ends(inner) == {"begun": 1, "closed": 1}


async def test_a_creation_that_close_cancels_has_not_failed(make_pool):
    gate = Gate()
    pool = make_pool(gate)
    kinds = []
    pool.subscribe(lambda event: kinds.append(event.kind))
    waiter = acquiring(pool)
    await settle()
    await pool.close()
    assert isinstance(await outcome(waiter), PoolClosedError)
    assert "create_failed" not in kinds
    assert ends(pool) == {"begun": 1, "closed": 1}


def test_what_did_not_occur_counts_zero():
    refused = cenote.Pool(Thing).stats().refused
    assert refused == {}
    assert refused["circuit"] == 0
