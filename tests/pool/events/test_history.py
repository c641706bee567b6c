"""What a pool remembers of its last 15 minutes, whether anybody asks or not."""

import asyncio
import contextlib
import gc
import os
import random
import tracemalloc

import pytest

from cenote import ConsecutiveFailures, observe
from cenote.observe import EventKind, entries_of, samples_of
from cenote.pool.journal import EVENTS
from cenote.testing import Deadlocked, VirtualLoop, advance, settle
from tests.support.kit import Thing, acquiring, cancel, outcome, raising

pytestmark = pytest.mark.virtual_time

LEAST = -1.0  # before every sample


def rows(pool):
    """acquired, timeouts, waiting, active, size of every second"""
    return [
        (each.acquired, each.timeouts, each.waiting, each.active, each.size)
        for each in samples_of(pool, LEAST)
    ]


def told(pool):
    return [(entry.kind, entry.times) for entry in entries_of(pool, 0)]


# -- samples -------------------------------------------------------------------------------------


async def test_every_second_is_sampled_without_a_watcher(make_pool):
    pool = make_pool(Thing, max_size=1)
    for _ in range(3):  # in the first second
        await pool.release(await pool.acquire())
    thing = await pool.acquire()
    await advance(0.5)
    waiter = acquiring(pool, timeout=1.5)
    await advance(2.0)  # it has timed out, at 2.0
    assert isinstance(await outcome(waiter), TimeoutError)
    pool.release(thing)
    await advance(1.0)
    assert rows(pool) == [(4, 0, 1, 1, 1), (0, 0, 1, 1, 1), (0, 1, 0, 0, 1)]


async def test_seconds_without_a_change_are_filled_in(make_pool):
    pool = make_pool(Thing, max_size=2)
    thing = await pool.acquire()
    await advance(600)
    assert rows(pool) == [(1, 0, 0, 1, 1)] + 599 * [(0, 0, 0, 1, 1)]
    pool.release(thing)
    await advance(10)
    assert rows(pool)[600:] == 10 * [(0, 0, 0, 0, 1)]
    ended = [each.time for each in samples_of(pool, LEAST)]
    assert ended == [ended[0] + second for second in range(610)]


async def test_refusals_and_failures_are_in_the_samples(make_pool):
    pool = make_pool(raising(OSError("refused")), strategy=ConsecutiveFailures(2))
    await pool.open()
    for _ in range(5):
        await outcome(acquiring(pool))
    await advance(1.0)
    [sample] = samples_of(pool, LEAST)
    assert (sample.acquired, sample.failed, sample.refused) == (0, 2, 3)
    told_of = [(entry.kind, entry.times, entry.text) for entry in entries_of(pool, 0)]
    assert ("refused", 3, "circuit") in told_of
    assert ("failed", 2, "OSError: refused") in told_of
    assert ("create_failed", 2, "OSError: refused") in told_of


async def test_what_happened_in_a_second_stays_in_it(make_pool):
    pool = make_pool(Thing)
    await pool.open()
    counts = []
    chance = random.Random(3)
    for _ in range(200):
        number = chance.choice([0, 0, 1, 5])
        counts.append(number)
        for _ in range(number):
            await pool.release(await pool.acquire())
        await advance(1.0)
    assert [each.acquired for each in samples_of(pool, LEAST)] == counts
    assert sum(counts) == pool.stats().acquired


@pytest.mark.parametrize("seconds", [899, 900, 901, 1900])
async def test_the_last_fifteen_minutes_are_kept(make_pool, seconds):
    pool = make_pool(Thing)
    begin = asyncio.get_running_loop().time()
    for _ in range(seconds):
        await pool.release(await pool.acquire())
        await advance(1.0)
    found = samples_of(pool, LEAST)
    assert len(found) in (min(seconds, 900), min(seconds, 899))
    assert found[-1].time == begin + seconds
    assert {each.acquired for each in found} == {1}
    later = samples_of(pool, begin + seconds - 3.5)
    assert [each.time - begin for each in later] == [seconds - 3, seconds - 2, seconds - 1, seconds]


async def test_the_history_sets_no_timer(make_pool):
    pool = make_pool(Thing, max_size=1)
    await pool.release(await pool.acquire())
    await advance(5.0)
    loop = asyncio.get_running_loop()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []


def test_a_hang_is_still_seen_with_history(make_pool):
    loop = VirtualLoop()

    async def hang():
        pool = make_pool(Thing, max_size=1, check_ledger=False)
        thing = await pool.acquire()
        try:
            await loop.create_task(asyncio.Event().wait())
        finally:
            pool.release(thing)
            await pool.close()

    with pytest.raises(Deadlocked):
        loop.run_until_complete(hang())
    with contextlib.suppress(asyncio.CancelledError):
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(task)
    loop.close()


# -- the journal ---------------------------------------------------------------------------------


async def test_a_storm_of_events_is_one_entry(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    for _ in range(500):
        await outcome(acquiring(pool, timeout=0))
    pool.release(thing)
    assert told(pool) == [("opened", 1), ("created", 1), ("timeout", 500)]
    entry = entries_of(pool, 0)[-1]
    assert entry.text.startswith("longest holder: task 'test' for ")
    assert entry.text.endswith(f"{__file__.split('/')[-1]}:{thing_line()})")


def thing_line():
    code = test_a_storm_of_events_is_one_entry.__code__
    return code.co_firstlineno + 2


async def test_an_entry_ends_with_a_pause(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    for pause in (1.0, 4.0, 5.5, 1.0):
        await outcome(acquiring(pool, timeout=0))
        await advance(pause)
    assert told(pool)[2:] == [("timeout", 3), ("timeout", 1)]
    pool.release(thing)


async def test_an_entry_covers_a_minute_at_most(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    for _ in range(100):
        await outcome(acquiring(pool, timeout=0))
        await advance(1.0)
    assert told(pool)[2:] == [("timeout", 61), ("timeout", 39)]
    pool.release(thing)


async def test_a_reader_gets_what_has_grown(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    await outcome(acquiring(pool, timeout=0))
    seen = entries_of(pool, 0)[-1].changed
    assert entries_of(pool, seen) == []
    await outcome(acquiring(pool, timeout=0))
    [entry] = entries_of(pool, seen)
    assert (entry.kind, entry.times, entry.number) == ("timeout", 2, seen)
    pool.release(thing)


async def test_every_switch_of_the_breaker_is_kept(make_pool):
    pool = make_pool(Thing)
    await pool.open()
    pool.deactivate()
    pool.recover()
    pool.activate()
    told_of = [(entry.kind, entry.text) for entry in entries_of(pool, 0)]
    assert [text for kind, text in told_of if kind == "state_changed"] == [
        "INACTIVE", "RECOVERING", "ACTIVE",
    ]  # fmt: skip


async def test_the_failed_probes_of_an_outage_are_two_entries(make_pool):
    strategy = ConsecutiveFailures(1, recovery_timeout=1.0, max_recovery_timeout=1.0)
    pool = make_pool(raising(OSError("refused")), strategy=strategy)
    begin = asyncio.get_running_loop().time()
    for _ in range(600):  # ten minutes
        await outcome(acquiring(pool))
        await advance(1.0)
    probes = 0
    for outage in (1, 2):
        switches = [each for each in entries_of(pool, 0) if each.kind == "state_changed"]
        opened, probed = switches[-2:]
        assert (opened.text, probed.text) == ("INACTIVE \u00b7 OSError: refused", "RECOVERING")
        assert opened.times == probed.times + 1 > 1
        probes += probed.times
        pool.activate()
        assert len(switches) == 3 * outage - 1  # each, and the end of the outage before
        await outcome(acquiring(pool))
        await advance(5.0)
        await outcome(acquiring(pool))
    first = next(each for each in entries_of(pool, 0) if each.kind == "state_changed")
    assert first.first == begin
    assert probes > 200  # more than there are entries
    assert "opened" in [kind for kind, _ in told(pool)]


async def test_a_breaker_opened_by_hand_has_no_old_cause(make_pool):
    pool = make_pool(Thing, strategy=ConsecutiveFailures(3))
    pool.discard(await pool.acquire(), OSError("long ago"))
    pool.deactivate()
    pool.activate()
    pool.deactivate()
    switches = [each.text for each in entries_of(pool, 0) if each.kind == "state_changed"]
    assert switches == ["INACTIVE \u00b7 OSError: long ago", "ACTIVE", "INACTIVE"]


async def test_a_close_is_the_last_entry(make_pool):
    pool = make_pool(Thing)
    await pool.release(await pool.acquire())
    await pool.close()
    kinds = [kind for kind, _ in told(pool)]
    assert kinds == ["opened", "created", "destroyed", "closed"]
    await advance(2.0)
    assert rows(pool)[0][0] == 1


async def test_errors_in_the_journal_are_masked(make_pool):
    pool = make_pool(Thing, before_release=raising(ValueError("refused by pg://me:secret@host")))
    pool.release(await pool.acquire())
    texts = [entry.text for entry in entries_of(pool, 0) if entry.kind == "rejected"]
    assert texts == ["before_release \u00b7 ValueError: refused by pg://***@host"]


async def test_cancelled_waits_are_in_the_journal(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = acquiring(pool, name="impatient")
    await settle()
    await cancel(waiter)
    pool.release(thing)
    entry = entries_of(pool, 0)[-1]
    assert (entry.kind, entry.task) == ("cancelled", "impatient")


# -- what it costs -------------------------------------------------------------------------------


async def test_the_history_of_a_pool_is_bounded(make_pool):
    """Filled to the brim with the longest texts, it takes less than 100 kB."""
    pool = make_pool(Thing, max_size=3)
    await pool.open()
    history = pool._engine.history
    kinds = list(EventKind)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    now = 1e6
    for number in range(2000):
        now += 1.0
        history.samples.take(now, (number, number, number, number), (10**6, 10**6, 10**6))
        kind, reason = kinds[number % len(kinds)], f"reason {number}"
        history.journal.add(kind, reason, now, 90 * "\u4e16", 900 * "\u4e16", 1.5)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 100_000
    assert len(entries_of(pool, 0)) <= EVENTS
    assert len([*history.samples.since(LEAST, now)]) <= observe.SECONDS


async def test_acquires_call_nothing_of_the_history(make_pool, monkeypatch):
    """Between two seconds, an acquire and a return only compare."""
    pool = make_pool(Thing)
    await pool.release(await pool.acquire())
    calls = []
    monkeypatch.setattr(pool._engine, "sample", lambda now: calls.append(now))
    for _ in range(100):
        await pool.release(await pool.acquire())
        async with pool.acquire():
            pass
    assert calls == []
    await advance(1.0)
    pool.release(await pool.acquire())
    assert calls


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_forked_child_begins_its_own_history(make_pool):
    pool = make_pool(Thing)
    await pool.release(await pool.acquire())
    pid = os.fork()
    if pid == 0:
        os._exit(len(entries_of(pool, 0)) + 10 * len(samples_of(pool, LEAST)))
    _, status = os.waitpid(pid, 0)  # noqa: ASYNC222
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(entries_of(pool, 0)) == 2
