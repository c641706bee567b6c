"""The gates: each hook is ok, fails, is slow or hangs, in every combination, under load."""

import asyncio
import itertools

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import HOOKS, SLOW, Broken, FakeService, give_all, take_all

pytestmark = [pytest.mark.virtual_time, pytest.mark.thorough]

MODES = ("sync ok", "sync fails", "async ok", "async fails", "async slow", "async never")
VERDICTS = (*MODES, "sync no", "async no")
VERDICTS_OF_LANES = ("sync ok", "sync no", "async fails", "async slow", "async never")
LANES = (("high", {"max_size": 1, "priority": 1}), ("low", {"max_size": 2, "priority": -1}))
SIZE, TASKS, ROUNDS = 2, 4, 2
TIMEOUTS = {"create_timeout": 6.0, "hook_timeout": 5.0, "destructor_timeout": 4.0}
PATIENCE = 30.0  # of one acquire
GRACE = 1.0  # what a pool may add to its timeouts to wait for a hook that it cancelled
HOLD = 1.0  # seconds for which a resource is used
RETURN = TIMEOUTS["hook_timeout"] + TIMEOUTS["destructor_timeout"] + GRACE
LONGEST = ROUNDS * (PATIENCE + HOLD + RETURN)


async def work(pool, log, source=None):
    """What a user does: acquire, use, give back; errors are written down. `source`: a lane."""
    loop, source = asyncio.get_running_loop(), source or pool
    for _ in range(ROUNDS):
        begin = loop.time()
        try:
            resource = await source.acquire(timeout=PATIENCE)
        except (Broken, cenote.PoolError) as error:
            log.append(error)
            assert loop.time() - begin <= PATIENCE
            continue
        assert loop.time() - begin <= PATIENCE
        assert_lanes(pool)
        await asyncio.sleep(HOLD)
        assert_lanes(pool)
        begin = loop.time()
        try:
            await pool.release(resource)
        except Broken as error:
            log.append(error)
        assert loop.time() - begin <= RETURN
        log.append("done")


def assert_lanes(pool):
    """What holds for lanes at every instant."""
    lanes = pool.lanes()
    for lane in lanes:
        assert lane.active_count <= (lane.max_size or SIZE), lane
        held = sum(holder.lane == lane.name for holder in pool.holders())
        assert held <= lane.active_count, lane
    if pool.idle_count:  # then nobody waits but those whose lane is full
        full = [lane for lane in lanes if lane.active_count == lane.max_size]
        assert pool.waiting_count == sum(lane.waiting_count for lane in full)


async def pass_gates(make_pool, modes, lanes=(), **options):
    service, log, loop = FakeService(**modes), [], asyncio.get_running_loop()
    pool = make_pool(**service.hooks(), max_size=SIZE, **TIMEOUTS, **options)
    sources = [pool.lane(name, **limits) for name, limits in lanes]
    begin = loop.time()
    await asyncio.gather(
        *(work(pool, log) for _ in range(TASKS)),
        *(work(pool, log, lane) for lane in sources for _ in range(TASKS)),
    )
    assert loop.time() - begin <= LONGEST
    assert len(log) >= TASKS * ROUNDS * (1 + len(sources))
    works = modes["factory"] in ("sync ok", "async ok", "async slow")
    assert ("done" in log) == works

    # What was begun for those who left comes to its end, too.
    await asyncio.sleep(sum(TIMEOUTS.values()) + 3 * GRACE)
    stats = pool.stats()
    assert (stats.active, stats.waiting, stats.creating, stats.destroying) == (0, 0, 0, 0)
    assert service.live == stats.idle
    assert all((lane.active_count, lane.waiting_count) == (0, 0) for lane in sources)

    service.heal()
    for lane in sources:  # no place was lost
        await give_all(pool, await take_all(lane, lane.max_size))
    begin = loop.time()
    resources = await take_all(pool, SIZE)  # no slot was lost
    assert loop.time() - begin < SLOW
    await give_all(pool, resources)
    await pool.close()
    await settle()
    assert service.live == 0
    assert service.peak <= SIZE
    stats = pool.stats()
    assert stats.created == sum(stats.destroyed.values()) == len(service.destroyed)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return stats


@pytest.mark.parametrize("destructor", MODES)
@pytest.mark.parametrize("factory", MODES)
async def test_no_combination_of_hooks_costs_a_slot_or_an_end(make_pool, factory, destructor):
    for before_acquire, before_release in itertools.product(VERDICTS, VERDICTS):
        modes = dict(zip(HOOKS, (factory, before_acquire, before_release, destructor), strict=True))
        try:
            await pass_gates(make_pool, modes)
        except BaseException as error:
            error.add_note(f"with {modes}")
            raise


@pytest.mark.parametrize("destructor", MODES)
@pytest.mark.parametrize("factory", MODES)
async def test_no_combination_costs_a_place_of_a_lane(make_pool, factory, destructor):
    shed = 0
    for before_acquire, before_release in itertools.product(VERDICTS_OF_LANES, VERDICTS_OF_LANES):
        modes = dict(zip(HOOKS, (factory, before_acquire, before_release, destructor), strict=True))
        try:
            stats = await pass_gates(
                make_pool, modes, LANES, queue_target=HOLD, queue_interval=2 * HOLD
            )
        except BaseException as error:
            error.add_note(f"with {modes}")
            raise
        shed += stats.refused["shed"]
    assert shed or factory in ("sync fails", "async fails", "async never")


@pytest.mark.parametrize("destructor", MODES)
@pytest.mark.parametrize("factory", MODES)
async def test_closing_under_load_ends_whatever_the_hooks_do(make_pool, factory, destructor):
    loop = asyncio.get_running_loop()
    for before_acquire, before_release in itertools.product(VERDICTS, VERDICTS):
        modes = dict(zip(HOOKS, (factory, before_acquire, before_release, destructor), strict=True))
        service, log = FakeService(**modes), []
        pool = make_pool(**service.hooks(), max_size=SIZE, **TIMEOUTS)
        workers = [asyncio.create_task(work(pool, log)) for _ in range(TASKS)]
        await asyncio.sleep(2.5)
        begin = loop.time()
        try:
            try:
                await pool.close()
            except ExceptionGroup:
                assert destructor.endswith("fails")
            assert loop.time() - begin <= RETURN
            await asyncio.gather(*workers)
            await asyncio.sleep(RETURN)
            stats = pool.stats()
            assert stats.created == sum(stats.destroyed.values()) == len(service.destroyed)
            assert service.live == 0
            assert service.peak <= SIZE
            assert asyncio.all_tasks() == {asyncio.current_task()}
        except BaseException as error:
            error.add_note(f"with {modes}")
            raise
