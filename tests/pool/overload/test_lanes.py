"""Lanes: a limit and a priority for a part of the acquires of a pool."""

import asyncio
import pickle

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import (
    FakeService,
    Gate,
    Holding,
    Thing,
    acquiring,
    cancel,
    give_all,
    kinds,
    outcome,
    recorded,
    take_all,
)

both_factories = pytest.mark.parametrize("factory", ["sync ok", "async ok"])
virtual_time = pytest.mark.virtual_time


async def served_in_order(pool, held, waiters):
    """The names of the waiters in the order in which they get the only resource."""
    order = []
    while not all(waiter.done() for waiter in waiters):
        pool.release(held)
        await settle()
        [next_one] = [w for w in waiters if w.done() and w.get_name() not in order]
        order.append(next_one.get_name())
        held = next_one.result()
    pool.release(held)
    return order


# -- the limit -----------------------------------------------------------------------------------


@both_factories
async def test_a_lane_never_has_more_out_than_its_size(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=5)
    batch = pool.lane("batch", max_size=2)
    out = most = 0

    async def use():
        nonlocal out, most
        async with batch.acquire():
            out += 1
            most = max(most, out)
            assert out <= batch.active_count <= 2  # one that was handed over counts
            await asyncio.sleep(0)
            out -= 1

    await asyncio.gather(*(use() for _ in range(20)))
    assert most == 2
    assert (batch.active_count, batch.waiting_count) == (0, 0)
    assert batch.stats().acquired == 20


@both_factories
async def test_a_lane_at_its_limit_holds_up_nobody(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=3)
    batch = pool.lane("batch", max_size=1, priority=5)
    held = await batch.acquire()
    parked = [acquiring(batch) for _ in range(3)]
    await settle()
    others = await take_all(pool, 2)
    assert pool.try_acquire() is None
    assert (batch.waiting_count, pool.waiting_count) == (3, 3)
    await give_all(pool, others)
    assert pool.idle_count == 2
    pool.release(held)
    for waiter in parked:
        pool.release(await waiter)


async def test_a_waiter_with_a_place_takes_what_is_idle(make_pool):
    pool = make_pool(Thing, max_size=2)
    batch = pool.lane("batch", max_size=1)
    first = await batch.acquire()
    pool.release(await pool.acquire())
    waiter = acquiring(batch)
    await settle()
    assert pool.idle_count == 1
    pool.release(first)
    await settle()
    assert waiter.done()
    pool.release(waiter.result())


async def test_a_newcomer_of_a_lane_overtakes_nobody_in_it(make_pool):
    pool = make_pool(Thing, max_size=3)
    batch = pool.lane("batch", max_size=1)
    held = await batch.acquire()
    waiter = acquiring(batch)
    await settle()
    pool.release(held)
    assert batch.try_acquire() is None
    with pytest.raises(cenote.AcquireTimeoutError):
        await batch.acquire(timeout=0)
    pool.release(await waiter)


async def test_try_acquire_takes_a_place_of_the_lane(make_pool):
    pool = make_pool(Thing, max_size=3)
    batch = pool.lane("batch", max_size=2)
    held = [batch.try_acquire(), batch.try_acquire()]
    assert None not in held
    assert batch.try_acquire() is None
    assert batch.active_count == 2
    pool.release(held.pop())
    assert batch.active_count == 1
    pool.discard(held.pop())
    assert batch.active_count == 0
    assert {holder.lane for holder in pool.holders()} == set()


@pytest.mark.parametrize("end", ["release", "discard", "reject"])
async def test_a_place_is_taken_until_the_hook_is_done(make_pool, end):
    gate = Gate(lambda _: end != "reject")
    pool = make_pool(Thing, max_size=3, before_release=gate)
    batch = pool.lane("batch", max_size=1)
    held = await batch.acquire()
    waiter = acquiring(batch)
    await settle()
    if end == "discard":
        pool.discard(held)
    else:
        pool.release(held)
        await settle()
        assert (batch.active_count, waiter.done()) == (1, False)
        gate.open()
    await settle()
    assert waiter.done()
    gate.open()
    await pool.release(await waiter)


@pytest.mark.parametrize(
    "leave", ["cancel", "deactivate", pytest.param("timeout", marks=virtual_time)]
)
@pytest.mark.parametrize("where", ["queue", "lane", "handed"])
async def test_a_waiter_that_leaves_passes_its_place_on(make_pool, leave, where):
    pool = make_pool(Thing, max_size=2)
    batch = pool.lane("batch", max_size=2 if where == "queue" else 1)
    held = await take_all(batch, 1)
    held += await take_all(pool, 1)
    doomed = acquiring(batch, timeout=5 if leave == "timeout" else None)
    await settle()
    if where == "handed" and leave != "timeout":
        pool.release(held.pop(0))
    if leave == "cancel":
        await cancel(doomed)
    elif leave == "timeout":
        await advance(5)
    else:
        pool.deactivate()
        await settle()
        pool.activate()
    assert not isinstance(await outcome(doomed), Thing)
    assert (batch.active_count, batch.waiting_count) == (
        sum(holder.lane == "batch" for holder in pool.holders()),
        0,
    )
    await give_all(pool, held)
    assert batch.active_count == 0
    pool.release(await batch.acquire(timeout=0))


async def test_a_rejected_waiter_of_a_lane_keeps_its_turn(make_pool):
    verdicts = iter([False, True, True])
    pool = make_pool(Thing, max_size=1, before_acquire=lambda _: next(verdicts))
    batch = pool.lane("batch", max_size=1)
    held = await pool.acquire()
    waiters = [acquiring(batch, name=f"{n}") for n in range(2)]
    await settle()
    pool.release(held)
    await settle()
    assert [waiter.done() for waiter in waiters] == [True, False]
    pool.release(waiters[0].result())
    pool.release(await waiters[1])


async def test_wait_timeout_zero_never_waits_for_a_place(make_pool):
    pool = make_pool(Thing, max_size=3)
    batch = pool.lane("batch", max_size=1)
    held = await batch.acquire(wait_timeout=0)
    with pytest.raises(cenote.AcquireTimeoutError, match="lane 'batch'"):
        await batch.acquire(wait_timeout=0)
    assert batch.waiting_count == 0
    pool.release(held)


@virtual_time
@pytest.mark.parametrize("wait_timeout", [0, 2.0])
async def test_wait_timeout_ends_when_a_higher_priority_overtakes(make_pool, wait_timeout):
    async def create():
        await asyncio.sleep(4)
        return Thing()

    pool = make_pool(create, max_size=1)
    low, high = pool.lane("low", priority=-1), pool.lane("high", priority=1)
    waiter = acquiring(low, wait_timeout=wait_timeout)
    await advance(3)
    assert not waiter.done()  # a factory runs for it
    overtaker = acquiring(high)
    await advance(1)
    with pytest.raises(cenote.AcquireTimeoutError, match=r"lane 'low'.*wait_timeout"):
        waiter.result()
    assert low.stats().timeouts == 1
    pool.release(overtaker.result())


async def test_a_broken_newcomer_gives_its_place_back(make_pool):
    def create():
        raise OSError("down")

    pool = make_pool(create, max_size=2)
    batch = pool.lane("batch", max_size=1)
    for _ in range(2):
        with pytest.raises(OSError, match="down"):
            await batch.acquire()
    assert batch.active_count == 0
    assert batch.stats().failed == 2


# -- priorities ----------------------------------------------------------------------------------


@both_factories
async def test_higher_priorities_first_and_fifo_within_one(make_pool, factory):
    pool = make_pool(**FakeService(factory).hooks(), max_size=1)
    low, high = pool.lane("low", priority=-1), pool.lane("high", priority=1)
    same = pool.lane("same", priority=0)
    held = await pool.acquire()
    waiters = []
    for number in range(3):
        for source, name in [(low, "low"), (pool, "plain"), (same, "same"), (high, "high")]:
            waiters.append(acquiring(source, name=f"{name} {number}"))
            await settle()
    order = await served_in_order(pool, held, waiters)
    assert order == [
        *("high 0", "high 1", "high 2"),
        *("plain 0", "same 0", "plain 1", "same 1", "plain 2", "same 2"),
        *("low 0", "low 1", "low 2"),
    ]


async def test_a_freed_place_comes_with_the_old_turn(make_pool):
    pool = make_pool(Thing, max_size=2)
    lane = pool.lane("lane", max_size=1)
    ours, other = await lane.acquire(), await pool.acquire()
    waiters = [
        acquiring(lane, name="lane"),
        acquiring(pool, name="first"),
        acquiring(pool, name="last"),
    ]
    await settle()
    pool.release(other)
    await settle()
    assert [waiter.done() for waiter in waiters] == [False, True, False]
    pool.release(ours)
    await settle()
    assert [waiter.done() for waiter in waiters] == [True, True, False]
    pool.release(waiters[1].result())
    pool.release(waiters[0].result())
    pool.release(await waiters[2])


async def test_a_failed_factory_frees_the_place_before_the_slot(make_pool):
    fates = iter([True, False, True])

    def create():
        if not next(fates):
            raise OSError("no route")
        return Thing()

    pool = make_pool(create, max_size=1)
    lane = pool.lane("lane", max_size=1)
    held = await pool.acquire()
    failing, older = acquiring(lane, name="failing"), acquiring(lane, name="older")
    await settle()
    younger = acquiring(pool, name="younger")
    await settle()
    pool.discard(held)
    assert isinstance(await outcome(failing), OSError)
    assert await served_in_order(pool, await older, [younger]) == ["younger"]


async def test_cancelling_in_a_long_lane_costs_the_same(make_pool):
    """However long the queue is: every second one leaves, the others keep their order."""
    pool = make_pool(Thing, max_size=1)
    lane = pool.lane("lane", max_size=1, priority=1)
    held = await lane.acquire()
    waiters = [acquiring(lane, name=f"{n}") for n in range(40)]
    await settle()
    for waiter in waiters[::2]:
        waiter.cancel()
    await settle()
    assert lane.waiting_count == 20
    order = await served_in_order(pool, held, waiters[1::2])
    assert order == [f"{n}" for n in range(1, 40, 2)]


# -- what is seen --------------------------------------------------------------------------------


async def test_the_same_name_gives_the_same_lane(make_pool):
    pool = make_pool(Thing, name="main")
    batch = pool.lane("batch", max_size=3, priority=-1)
    assert pool.lane("batch", max_size=3, priority=-1) is batch
    assert pool.lanes() == [batch]
    assert (batch.name, batch.max_size, batch.priority) == ("batch", 3, -1)
    unlimited = pool.lane("unlimited")
    assert (unlimited.max_size, unlimited.priority) == (None, 0)
    with pytest.raises(ValueError, match=r"lane 'batch' of pool 'main' has max_size=3 and prio"):
        pool.lane("batch", max_size=4, priority=-1)
    with pytest.raises(ValueError, match=r"cannot have max_size=3 and priority=0 as well"):
        pool.lane("batch", max_size=3)


@pytest.mark.parametrize(
    ("error", "name", "options"),
    [
        (TypeError, 3, {}),
        (ValueError, "", {}),
        (ValueError, "batch", {"max_size": 0}),
        (TypeError, "batch", {"max_size": 1.5}),
        (TypeError, "batch", {"priority": "high"}),
        (TypeError, "batch", {"priority": None}),
    ],
)
async def test_bad_options_of_a_lane_are_refused(make_pool, error, name, options):
    pool = make_pool(Thing)
    with pytest.raises(error, match=r"^(name|max_size|priority) must be"):
        pool.lane(name, **options)
    assert pool.lanes() == []


async def test_holders_and_errors_name_the_lane(make_pool):
    pool = make_pool(Thing, max_size=2, name="main")
    batch = pool.lane("batch", max_size=1)
    ours, other = await batch.acquire(), await pool.acquire()
    assert {holder.lane for holder in pool.holders()} == {"batch", None}
    assert pickle.loads(pickle.dumps(pool.holders()[0])).lane == pool.holders()[0].lane
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await batch.acquire(timeout=0)
    text = str(caught.value)
    assert text.startswith("pool 'main', lane 'batch': no resource within")
    assert "in lane 'batch' (" in text
    assert "raise max_size of lane 'batch'" in text
    assert repr(batch) == ("<Lane 'batch' of pool 'main': 1 active, 0 waiting, max 1, priority 0>")
    await give_all(pool, [ours, other])


async def test_a_timeout_in_a_lane_blames_the_full_pool(make_pool):
    pool = make_pool(Thing, max_size=1)
    batch = pool.lane("batch", max_size=1)
    held = await pool.acquire()
    waiter = acquiring(batch)  # has the only place of the lane, and no resource
    await settle()
    with pytest.raises(cenote.AcquireTimeoutError) as caught:
        await batch.acquire(timeout=0)
    assert str(caught.value).endswith(". Raise max_size, or hold resources for a shorter time.")
    pool.release(held)
    with pytest.raises(cenote.AcquireTimeoutError, match="raise max_size of lane 'batch'"):
        await batch.acquire(timeout=0)
    pool.release(await waiter)


async def test_holders_name_the_caller_of_the_lane(make_pool):
    pool = make_pool(Thing)
    held = await pool.lane("batch").acquire()
    [holder] = pool.holders()
    assert holder.file == __file__
    pool.release(held)


@virtual_time
async def test_events_of_a_lane_have_its_name(make_pool):
    pool = make_pool(Thing, max_size=1)
    batch = pool.lane("batch", max_size=1)
    events = recorded(pool)
    held = await batch.acquire()
    waiter = acquiring(batch, timeout=1)
    gone = acquiring(batch)
    await settle()
    gone.cancel()
    await advance(1)
    pool.release(held)
    pool.release(await pool.acquire())
    assert isinstance(waiter.exception(), cenote.AcquireTimeoutError)
    lanes = {}
    for event in events:
        lanes.setdefault(str(event.kind), []).append(event.lane)
    assert lanes["waiting"] == ["batch", "batch"]
    assert lanes["timeout"] == lanes["cancelled"] == ["batch"]
    assert lanes["acquired"] == lanes["released"] == ["batch", None]
    assert "opened" in kinds(events)


@virtual_time
async def test_stats_of_a_lane_count_every_end(make_pool):
    pool = make_pool(Thing, max_size=1, max_waiting=2)
    batch = pool.lane("batch", max_size=1, priority=-1)
    held = await batch.acquire()
    timed, cancelled = acquiring(batch, timeout=3), acquiring(batch)
    await settle()
    with pytest.raises(cenote.PoolOverloadedError):
        await batch.acquire()
    await advance(2)
    stats = batch.stats()
    assert (stats.active, stats.waiting, stats.oldest_wait) == (1, 2, 2.0)
    assert stats.begun == 4
    cancelled.cancel()
    await advance(1)
    pool.release(held)
    stats = batch.stats()
    assert isinstance(timed.exception(), cenote.AcquireTimeoutError)
    assert (stats.acquired, stats.timeouts, stats.cancelled) == (1, 1, 1)
    assert stats.refused == {"overloaded": 1}
    assert stats.refused["shed"] == 0  # nobody was
    assert stats.begun == 4
    assert (stats.name, stats.max_size, stats.priority) == ("batch", 1, -1)
    assert (stats.active, stats.waiting, stats.oldest_wait) == (0, 0, 0.0)


# -- the pool around it --------------------------------------------------------------------------


async def test_a_drain_serves_those_parked_in_a_lane(make_pool):
    pool = make_pool(Thing, max_size=2)
    batch = pool.lane("batch", max_size=1)
    held = await batch.acquire()
    parked = acquiring(batch)
    await settle()
    closing = asyncio.create_task(pool.close(drain=10))
    await settle()
    pool.release(held)
    pool.release(await parked)
    await closing


async def test_closing_fails_those_parked_in_a_lane(make_pool):
    pool = make_pool(Thing, max_size=2)
    batch = pool.lane("batch", max_size=1)
    held = await batch.acquire()
    parked = [acquiring(batch) for _ in range(2)]
    await settle()
    await pool.close()
    for waiter in parked:
        assert isinstance(await outcome(waiter), cenote.PoolClosedError)
    pool.release(held)
    assert batch.waiting_count == 0


async def test_a_parked_waiter_takes_no_place_of_a_recovery(make_pool):
    pool = make_pool(Thing, max_size=3)
    batch = pool.lane("batch", max_size=1)
    held = await batch.acquire()
    pool.recover()
    parked = acquiring(batch)
    await settle()
    probe = await pool.acquire()
    pool.release(probe)
    pool.release(held)
    pool.release(await parked)
    assert pool.state is cenote.CircuitState.RECOVERING


async def test_a_lane_lives_as_long_as_its_pool(make_pool):
    pool = make_pool(Thing)
    pool.lane("batch", max_size=1, priority=2)
    held = await pool.lane("batch", max_size=1, priority=2).acquire()
    [lane] = pool.lanes()
    assert lane.active_count == 1
    pool.release(held)


# -- deadlocks -----------------------------------------------------------------------------------


async def test_a_lane_whose_holder_waits_for_it_is_a_deadlock(make_pool):
    pool = make_pool(Thing, max_size=5, name="main")
    batch = pool.lane("batch", max_size=1)
    async with batch.acquire():
        with pytest.raises(cenote.PoolDeadlockError, match="the only resource that lane 'batch'"):
            await batch.acquire()
        async with pool.acquire():
            pass
    assert batch.stats().refused == {"deadlock": 1}


async def test_two_lanes_that_wait_for_one_another_deadlock(make_pool):
    pool = make_pool(Thing, max_size=5)
    one, two = pool.lane("one", max_size=1), pool.lane("two", max_size=1)
    entered = asyncio.Event()

    async def crosswise(first, second):
        async with first.acquire():
            if first is two:
                entered.set()
            await entered.wait()
            async with second.acquire():
                pass

    both = [asyncio.create_task(crosswise(*lanes)) for lanes in [(one, two), (two, one)]]
    results = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "PoolDeadlockError"]


async def test_a_holder_that_waits_elsewhere_is_no_deadlock(make_pool):
    pool = make_pool(Thing, max_size=2)
    batch = pool.lane("batch", max_size=1)
    other = Holding(pool)
    await settle()

    async def nested():
        async with batch.acquire(), pool.acquire():
            pass

    task = asyncio.create_task(nested())
    await settle()
    waiter = acquiring(batch)
    await settle()
    assert not waiter.done()
    await other.leave()
    await task
    pool.release(await waiter)
