"""Counts, statistics and the repr of a pool."""

import asyncio
import copy
import dataclasses
import json
import pickle
import random

import pytest

import cenote
from cenote import AcquireTimeoutError, PoolOverloadedError, Stats
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Holding,
    Thing,
    acquiring,
    cancel,
    counts,
    outcome,
    queued,
    styled,
)

styles = pytest.mark.parametrize("style", STYLES)


def work(pool):
    """creating, destroying"""
    stats = pool.stats()
    return stats.creating, stats.destroying


async def test_a_sync_factory_counts_as_creating(make_pool):
    seen = []
    pool = make_pool(lambda: seen.append((counts(pool), work(pool))) or Thing())
    pool.release(await pool.acquire())
    assert seen == [((0, 0, 0, 0), (1, 0))]


@pytest.mark.parametrize("style", ["async", "awaitable"])
async def test_an_async_factory_counts_as_creating_and_waiting(make_pool, style):
    seen = []
    pool = make_pool(styled(style, lambda: seen.append((counts(pool), work(pool))) or Thing()))
    pool.release(await pool.acquire())
    assert seen == [((0, 0, 0, 1), (1, 0))]


@styles
async def test_a_new_resource_is_counted_at_once(make_pool, style):
    pool = make_pool(styled(style, Thing))
    thing = await pool.acquire()
    assert (counts(pool), work(pool)) == ((1, 0, 1, 0), (0, 0))
    pool.release(thing)
    assert counts(pool) == (1, 1, 0, 0)


@styles
async def test_a_resource_in_before_acquire_is_active(make_pool, style):
    seen = []
    pool = make_pool(
        Thing, min_size=2, before_acquire=styled(style, lambda _: seen.append(counts(pool)))
    )
    await pool.open()
    assert counts(pool) == (2, 2, 0, 0)
    thing = await pool.acquire()
    assert seen == [(2, 1, 1, 0)]
    pool.release(thing)


@styles
async def test_a_waiter_in_before_acquire_does_not_wait(make_pool, style):
    seen = []
    pool = make_pool(
        Thing, max_size=1, before_acquire=styled(style, lambda _: seen.append(counts(pool)))
    )
    thing, waiter = await queued(pool)
    assert counts(pool) == (1, 0, 1, 1)
    pool.release(thing)
    await waiter
    assert seen == [(1, 0, 1, 0)]
    pool.release(thing)


@styles
async def test_a_resource_in_before_release_is_active(make_pool, style):
    seen = []
    pool = make_pool(Thing, before_release=styled(style, lambda _: seen.append(counts(pool))))
    await pool.release(await pool.acquire())
    assert seen == [(1, 0, 1, 0)]
    assert counts(pool) == (1, 1, 0, 0)


@pytest.mark.virtual_time
@styles
async def test_a_resource_in_the_healthcheck_is_active(make_pool, style):
    seen = []
    pool = make_pool(
        Thing,
        min_size=3,
        healthcheck=styled(style, lambda _: seen.append(counts(pool))),
        healthcheck_interval=1,
    )
    await pool.open()
    await advance(1.5)
    assert seen == [(3, 2, 1, 0)] * 3
    assert counts(pool) == (3, 3, 0, 0)


@styles
async def test_a_resource_in_its_destructor_counts_as_destroying_only(make_pool, style):
    seen = []
    pool = make_pool(
        Thing,
        destructor=styled(style, lambda _: seen.append((counts(pool), work(pool)))),
    )
    kept, thing = await pool.acquire(), await pool.acquire()
    await pool.discard(thing)
    assert seen == [((1, 0, 1, 0), (0, 1))]
    assert (counts(pool), work(pool)) == ((1, 0, 1, 0), (0, 0))
    pool.release(kept)


@pytest.mark.parametrize("hook", ["before_acquire", "before_release"])
@styles
async def test_a_rejected_resource_is_not_counted_in_its_destructor(make_pool, hook, style):
    seen = []
    pool = make_pool(
        Thing,
        max_size=1,
        destructor=styled(style, lambda _: seen.append((counts(pool)[0], work(pool)))),
        **{hook: styled(style, lambda _: False)},
    )
    first = await pool.acquire()
    await pool.release(first)
    await pool.release(await pool.acquire())
    await settle()
    assert seen[0] == (0, (0, 1))


@styles
async def test_counts_inside_the_destructors_of_close(make_pool, style):
    seen = []
    pool = make_pool(
        Thing, min_size=3, destructor=styled(style, lambda _: seen.append(counts(pool)[0]))
    )
    await pool.open()
    await pool.close()
    assert len(seen) == 3
    assert max(seen) <= 2
    assert (counts(pool), work(pool)) == ((0, 0, 0, 0), (0, 0))


async def test_a_task_whose_own_creation_runs_counts_as_waiting(make_pool):
    gate = Gate(Thing)
    pool = make_pool(gate, max_size=2)
    waiters = [acquiring(pool) for _ in range(3)]
    await settle()
    assert (counts(pool), work(pool)) == ((0, 0, 0, 3), (2, 0))
    gate.open()
    for waiter in waiters:
        pool.release(await waiter)
    assert counts(pool) == (2, 2, 0, 0)


async def test_a_task_whose_own_creation_runs_counts_for_max_waiting(make_pool):
    gate = Gate(Thing)
    pool = make_pool(gate, max_size=2, max_waiting=1)
    waiter = acquiring(pool)
    await settle()
    with pytest.raises(PoolOverloadedError):
        await pool.acquire()
    gate.open()
    pool.release(await waiter)


async def test_a_task_already_handed_a_resource_does_not_wait(make_pool):
    pool = make_pool(Thing, max_size=1, max_waiting=1)
    thing, waiter = await queued(pool)
    assert counts(pool) == (1, 0, 1, 1)
    pool.release(thing)
    assert counts(pool) == (1, 0, 1, 0)
    second = pool.acquire()  # there is room in the queue again
    task = asyncio.ensure_future(second)
    pool.release(await waiter)
    pool.release(await task)


async def test_a_task_with_a_creation_right_does_not_wait(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing, waiter = await queued(pool)
    pool.discard(thing)
    assert (counts(pool), work(pool)) == ((0, 0, 0, 0), (1, 0))
    pool.release(await waiter)


async def test_a_waiter_that_leaves_no_longer_waits(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing, *waiters = await queued(pool, 3)
    await cancel(waiters[1])
    assert counts(pool) == (1, 0, 1, 2)
    await cancel(waiters[0])
    await cancel(waiters[2])
    assert counts(pool) == (1, 0, 1, 0)
    pool.release(thing)


@pytest.mark.virtual_time
@pytest.mark.parametrize("seed", range(5))
@styles
async def test_a_busy_pool_counts_exactly_what_is_alive(make_pool, style, seed):
    chance = random.Random(seed)
    alive, existing = set(), set()
    peak = 0

    def create():
        nonlocal peak
        if chance.random() < 0.1:
            raise OSError("down")
        thing = Thing()
        alive.add(thing)
        existing.add(thing)
        peak = max(peak, len(existing))
        return thing

    def look(thing):
        assert thing in alive
        return chance.random() > 0.1

    def destroy(thing):
        alive.remove(thing)
        return existing.remove(thing) if style == "sync" else slowly_destroy(thing)

    async def slowly_destroy(thing):
        await asyncio.sleep(chance.choice([0, 0.01]))
        existing.remove(thing)

    pool = make_pool(
        styled(style, create),
        destructor=destroy,
        before_acquire=styled(style, look),
        before_release=styled(style, look),
        healthcheck=styled(style, look),
        healthcheck_interval=0.02,
        min_size=2,
        max_size=5,
        max_uses=7,
        max_idle=0.05,
        max_lifetime=0.3,
    )

    async def user():
        for _ in range(20):
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.03]))
            limit = chance.choice([None, 0, 0.01, 1])
            try:
                async with asyncio.timeout(chance.choice([None, 0.005, 0.02])):
                    async with pool.acquire(timeout=limit) as thing:
                        assert thing in alive
                        await asyncio.sleep(chance.choice([0, 0.01]))
                        if chance.random() < 0.1:
                            pool.discard(thing)
            except (OSError, TimeoutError):
                pass

    def check():
        nonlocal checks
        checks += 1
        assert counts(pool)[0] == len(alive)
        creating, destroying = work(pool)
        assert len(alive) + creating + destroying <= 5

    async def watch():
        while True:
            for _ in range(7):
                check()
                await asyncio.sleep(0)
            check()
            await asyncio.sleep(0.0007)

    checks = 0
    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(user() for _ in range(12)))
    await advance(0.2)
    check()
    watcher.cancel()
    assert isinstance(await outcome(watcher), asyncio.CancelledError)
    await pool.close()
    assert (alive, existing) == (set(), set())
    assert counts(pool) == (0, 0, 0, 0)
    assert checks > 200
    assert peak <= 5


async def test_stats_are_a_frozen_snapshot(make_pool):
    pool = make_pool(Thing)
    before = pool.stats()
    assert isinstance(before, Stats)
    pool.discard(await pool.acquire())
    assert (before.created, before.destroyed) == (0, {})
    after = pool.stats()
    assert after.created == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.created = 5
    with pytest.raises(TypeError):
        after.destroyed["discarded"] = 5
    pool.discard(await pool.acquire())
    assert after.destroyed == {"discarded": 1}


async def test_stats_become_data_of_other_kinds(make_pool):
    pool = make_pool(Thing)
    pool.discard(await pool.acquire())
    pool.deactivate()
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    lane = pool.lane("batch")
    for stats in (pool.stats(), lane.stats()):
        data = dataclasses.asdict(stats)
        assert json.loads(json.dumps(data)) == data
        assert pickle.loads(pickle.dumps(stats)) == copy.deepcopy(stats) == stats
    stats = pool.stats()
    assert (stats.destroyed["discarded"], stats.refused["circuit"]) == (1, 1)
    assert stats.destroyed["max_uses"] == stats.refused["shed"] == 0
    counts = pickle.loads(pickle.dumps(stats)).destroyed
    for change in (counts.clear, counts.popitem, lambda: counts.update(closed=1)):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()


async def test_a_pool_is_neither_copied_nor_pickled(make_pool):
    for shared in (make_pool(Thing), cenote.Database("sqlite:///:memory:")):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="make one in each process"):
                duplicate(shared)


def test_the_fields_of_stats():
    assert [field.name for field in dataclasses.fields(Stats)] == [
        "count",
        "idle",
        "active",
        "waiting",
        "creating",
        "destroying",
        "created",
        "destroyed",
        "begun",
        "acquired",
        "released",
        "timeouts",
        "cancelled",
        "failed",
        "refused",
        "rejected",
        "wait_time",
        "max_wait_time",
        "hold_time",
        "max_hold_time",
    ]


@pytest.mark.virtual_time
async def test_the_totals_of_a_scripted_life(make_pool):
    bad = set()
    pool = make_pool(Thing, max_size=1, before_release=lambda thing: thing not in bad)

    first = await pool.acquire()  # created
    waiter = acquiring(pool)
    await advance(3)
    pool.release(first)  # held for 3 s
    await waiter  # waited for 3 s
    await advance(5)
    timed_out = outcome(acquiring(pool, timeout=2))
    assert isinstance(await timed_out, AcquireTimeoutError)
    leaver = acquiring(pool)
    await advance(1)
    await cancel(leaver)
    bad.add(first)
    pool.release(first)  # held for 8 s, rejected
    second = await pool.acquire()  # created
    pool.discard(second)
    holding = Holding(pool)  # created
    await advance(1)
    await cancel(holding.task)  # held for 1 s
    async with pool.acquire():  # created
        await advance(0.5)
    assert pool.try_acquire() is not None  # never returned
    assert pool.stats() == Stats(
        count=1,
        idle=0,
        active=1,
        waiting=0,
        creating=0,
        destroying=0,
        created=4,
        destroyed={"rejected": 1, "discarded": 1, "cancelled": 1},
        begun=8,
        acquired=6,
        released=5,
        timeouts=1,
        cancelled=1,
        failed=0,
        refused={},
        rejected=1,
        wait_time=3.0,
        max_wait_time=3.0,
        hold_time=3.0 + 8.0 + 1.0 + 0.5,
        max_hold_time=8.0,
    )
    pool.release(pool.holders()[0].resource)


@pytest.mark.virtual_time
async def test_wait_times_add_up_and_the_longest_is_kept(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    for wait in (2, 5, 1):
        waiter = acquiring(pool)
        await advance(wait)
        pool.release(thing)
        await waiter
    stats = pool.stats()
    assert (stats.wait_time, stats.max_wait_time) == (8.0, 5.0)
    assert (stats.acquired, stats.released) == (4, 3)
    pool.release(thing)


@pytest.mark.virtual_time
async def test_the_wait_for_an_own_creation_is_wait_time(make_pool):
    async def connect():
        await asyncio.sleep(3)
        return Thing()

    pool = make_pool(connect)
    async with pool.acquire():
        pass
    assert pool.stats().wait_time == 3.0


@pytest.mark.virtual_time
async def test_a_wait_that_came_to_nothing_is_no_wait_time(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=5)
    assert (pool.stats().wait_time, pool.stats().acquired) == (0.0, 1)
    pool.release(thing)


async def test_a_timeout_of_zero_is_a_timeout(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=0)
    assert pool.stats().timeouts == 1
    pool.release(thing)


async def test_a_cancellation_in_a_hook_is_counted(make_pool):
    gate = Gate()
    pool = make_pool(Thing, min_size=1, max_size=1, before_acquire=gate)
    await pool.open()
    waiter = acquiring(pool)
    await settle()
    await cancel(waiter)
    assert pool.stats().cancelled == 1
    await settle()


async def test_a_hand_off_that_was_cancelled_is_not_acquired(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing, waiter = await queued(pool)
    pool.release(thing)
    await cancel(waiter)
    stats = pool.stats()
    assert (stats.acquired, stats.released, stats.cancelled) == (1, 1, 1)
    assert counts(pool) == (1, 1, 0, 0)


@styles
async def test_rejections_by_either_hook_are_counted(make_pool, style):
    pool = make_pool(
        Thing,
        max_size=1,
        before_acquire=styled(style, lambda _: rejecting != "before_acquire"),
        before_release=styled(style, lambda _: rejecting != "before_release"),
    )
    rejecting = None
    await pool.release(await pool.acquire())
    rejecting = "before_acquire"
    thing = await pool.acquire()
    assert pool.stats().rejected == 1
    rejecting = "before_release"
    await pool.release(thing)
    assert pool.stats().rejected == 2
    assert pool.stats().destroyed == {"rejected": 2}


async def test_created_minus_destroyed_is_what_exists(make_pool):
    pool = make_pool(Thing, max_uses=2, min_size=1)
    for _ in range(7):
        await pool.release(await pool.acquire())
    await settle()
    stats = pool.stats()
    assert stats.created - sum(stats.destroyed.values()) == pool.count == 1
    assert stats.destroyed == {"max_uses": 3}


async def test_a_failed_factory_created_nothing(make_pool):
    def fail():
        raise OSError("down")

    pool = make_pool(fail)
    with pytest.raises(OSError, match="down"):
        await pool.acquire()
    stats = pool.stats()
    assert (stats.created, stats.creating, stats.destroyed, stats.acquired) == (0, 0, {}, 0)


async def test_repr_shows_name_state_and_counts(make_pool):
    pool = make_pool(Thing, max_size=2, name="db")
    assert repr(pool) == "<Pool 'db' new, breaker ACTIVE: 0 active, 0 idle, 0 waiting, max 2>"
    first, second = await pool.acquire(), await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    assert repr(pool) == "<Pool 'db' open, breaker ACTIVE: 2 active, 0 idle, 1 waiting, max 2>"
    pool.release(first)
    pool.release(second)
    pool.release(await waiter)
    pool.recover()
    assert repr(pool) == "<Pool 'db' open, breaker RECOVERING: 0 active, 2 idle, 0 waiting, max 2>"
    await pool.close()
    pool.deactivate()
    assert repr(pool) == "<Pool 'db' closed, breaker INACTIVE: 0 active, 0 idle, 0 waiting, max 2>"


def test_repr_without_a_name():
    assert (
        repr(cenote.Pool(Thing))
        == "<Pool new, breaker ACTIVE: 0 active, 0 idle, 0 waiting, max 10>"
    )


async def test_everything_can_be_read_from_another_thread(make_pool):
    pool = make_pool(Thing, max_size=1, name="db")
    thing, waiter = await queued(pool)

    def read():
        return counts(pool), pool.state, pool.closed, repr(pool), pool.holders()

    seen, state, closed, words, holders = await asyncio.to_thread(read)
    assert seen == (1, 0, 1, 1)
    assert (state, closed) == (cenote.CircuitState.ACTIVE, False)
    assert words == "<Pool 'db' open, breaker ACTIVE: 1 active, 0 idle, 1 waiting, max 1>"
    assert [holder.resource for holder in holders] == [thing]
    pool.release(thing)
    pool.release(await waiter)


async def test_reading_while_the_pool_is_busy_never_fails(make_pool):
    pool = make_pool(Thing, max_size=4)
    done = False

    def read():
        reads = 0
        while not done or reads < 100:
            stats = pool.stats()
            assert stats.count == stats.idle + stats.active
            assert 0 <= stats.count <= 4
            assert stats.idle >= 0
            assert stats.active >= 0
            pool.holders()
            repr(pool)
            reads += 1

    async def user():
        for turn in range(200):
            async with pool.acquire() as thing:
                await asyncio.sleep(0)
                if turn % 5 == 0:
                    pool.discard(thing)

    reading = asyncio.ensure_future(asyncio.to_thread(read))
    await asyncio.gather(*(user() for _ in range(8)))
    done = True
    await reading
