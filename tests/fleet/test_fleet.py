"""Pools in a fleet: what each may have, and when, on a ledger in memory and in virtual time."""

import asyncio
import contextlib

import pytest

from cenote import AcquireTimeoutError, ConsecutiveFailures
from cenote.fleet.ledger import LedgerError
from cenote.testing import VirtualLoop, advance, now, settle
from tests.support.fleet_world import World, WorldLedger
from tests.support.kit import acquiring
from tests.support.pool_load import Load

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def world():
    return World(30)


async def traffic(pool, seconds):
    """Acquire, hold for so long, release, again and again, until cancelled."""
    while True:
        async with pool.acquire():
            await asyncio.sleep(seconds)


async def test_one_process_alone_has_all_it_may(world):
    async with world:
        pool = world.process().pool(max_size=20)
        load = Load(pool, 20)
        await advance(0.1)
        assert (pool.max_size, pool.active_count, len(world.backend.there)) == (20, 20, 20)
        await load.end()


async def test_an_acquire_never_asks_the_ledger(world):
    async with world:
        pool = world.process().pool(max_size=20)
        await pool.release(await pool.acquire())
        world.log.clear()
        for _ in range(1000):
            async with pool.acquire():
                pass
        assert world.log == []


async def test_an_open_pool_has_something_lent(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        await first.open()
        assert first.max_size == 30
        await second.open()  # it gets what was lent to the first
        assert second.max_size >= 1
        world.away = True
        third = world.process().pool(max_size=30)
        await third.open()
        assert third.max_size == 30
        world.away = False
        await third.close()


async def test_opening_waits_a_beat_for_what_is_used(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        load = Load(first, 30)
        await advance(1)
        began = now()
        await second.open()
        assert (second.max_size, now() - began <= 2.1) == (0, True)
        await load.end()


@pytest.mark.parametrize("slow_for", [1, 9])
async def test_a_slow_ledger_is_asked_again_at_the_start(world, monkeypatch, slow_for):
    opens, really_open = [], WorldLedger.open

    async def open_slowly(self, news):
        opens.append(now())
        if len(opens) > slow_for:
            return await really_open(self, news)
        await asyncio.sleep(1.5)  # a ledger that waits less long than a start may take
        raise LedgerError("no answer") from TimeoutError()

    monkeypatch.setattr(WorldLedger, "open", open_slowly)
    async with world:
        pool = world.process().pool(max_size=20)
        began = now()
        await pool.open()
        assert pool.max_size == (20 if slow_for == 1 else 1)
        assert now() - began < 3.1


async def test_opening_ends_when_the_pool_is_closed(world):
    async with world:
        world.delay = lambda: 1000.0  # no answer
        pool = world.process().pool(max_size=30)
        opening = asyncio.create_task(pool.open())
        await settle()
        await pool.close()
        await asyncio.wait([opening])


async def test_two_busy_processes_share_the_budget(world):
    async with world:
        first, second = (world.process().pool(max_size=20) for _ in range(2))
        one = Load(first, 20)
        await advance(1)
        assert first.active_count == 20
        two = Load(second, 20)
        await advance(1)
        assert (first.active_count, second.active_count) == (20, 10)
        await one.end()
        await advance(1)
        assert (first.active_count, second.active_count) == (0, 20)
        await two.end()


async def test_what_is_idle_moves_at_once(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        one = Load(first, 28)
        await advance(1)
        await one.end()
        await advance(3)
        assert first.idle_count > 20
        world.log.clear()
        two = Load(second, 29)
        await advance(0.05)
        assert second.active_count == 29
        assert len(world.log) < 12
        assert first.occupied <= 1
        await two.end()


async def test_what_is_busy_moves_when_it_comes_back(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        loads = [asyncio.create_task(traffic(first, 0.1)) for _ in range(40)]
        await advance(5)
        assert first.active_count >= 28
        loads += [asyncio.create_task(traffic(second, 0.1)) for _ in range(40)]
        await advance(1)
        assert (first.active_count, second.active_count) == (15, 15)
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)


async def test_min_size_is_kept_while_others_are_short(world):
    async with world:
        first, second = world.process().pool(min_size=5, max_size=30), world.process().pool()
        await first.open()
        assert first.count == 5
        second.resize(max_size=40)
        load = Load(second, 40)
        await advance(5)
        assert (first.count, second.active_count) == (5, 25)
        await load.end()


async def test_a_quiet_process_asks_once_a_beat(world):
    async with world:
        pool = world.process().pool(max_size=20)
        await pool.release(await pool.acquire())
        await advance(5)
        world.log.clear()
        await advance(60)
        assert 30 <= len(world.log) <= 35


async def test_a_closed_pool_leaves_the_fleet(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        one = Load(first, 30)
        await advance(1)
        two = Load(second, 30)
        await advance(1)
        assert second.active_count == 0
        await first.close()
        await advance(0)
        assert second.active_count == 0  # what is out lives on
        await one.end()
        await advance(0.5)
        assert second.active_count == 30
        assert len(world.reference.rows) == 1
        await two.end()


async def test_a_process_leaves_only_after_everything_is_closed(world):
    async with world:
        world.backend.slow = 0.5
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        one = Load(first, 29)
        two = Load(second, 1)
        await advance(5)
        await one.end()
        await two.end()
        two = Load(second, 30)
        await first.close()
        await advance(5)
        assert second.active_count == 30
        assert world.backend.most == 30
        await two.end()


async def test_a_deploy_of_twice_as_many_works_without_an_error(world):
    async with world:
        old = [world.process().pool(max_size=10) for _ in range(10)]
        loads = [[asyncio.create_task(traffic(pool, 0.05)) for _ in range(6)] for pool in old]
        await advance(10)
        new = [world.process().pool(max_size=10) for _ in range(10)]
        await asyncio.gather(*(pool.open() for pool in new))
        more = [asyncio.create_task(traffic(pool, 0.05)) for pool in new for _ in range(6)]
        await advance(0.25)
        assert min(pool.occupied for pool in new) >= 1
        await advance(0.25)
        counts = [pool.max_size for pool in old + new]
        assert sum(counts) == 30
        assert max(counts) - min(counts) <= 1
        for tasks, pool in zip(loads, old, strict=True):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await pool.close()
        await advance(1)
        assert [pool.active_count for pool in new] == [3] * 10
        for task in more:
            task.cancel()
        await asyncio.gather(*more, return_exceptions=True)


async def test_more_processes_than_budget_take_turns():
    async with World(3) as world:
        pools = [world.process().pool(max_size=4) for _ in range(6)]
        loads = [asyncio.create_task(traffic(pool, 0.1)) for pool in pools for _ in range(2)]
        await advance(60)
        served = [pool.stats().acquired for pool in pools]
        assert min(served) > 0.8 * max(served)
        assert sum(served) > 0.9 * 3 * 600
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)


async def test_a_timeout_says_what_the_fleet_uses(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        load = Load(first, 29)
        await advance(1)
        more = Load(second, 1)
        await advance(1)
        text = (
            r"the fleet 'shop' uses 30 of 30 in 2 processes; this one has 1, and will have \d+\. "
        )
        with pytest.raises(AcquireTimeoutError, match=text):
            await second.acquire(timeout=1)
        await load.end()
        await more.end()


async def test_a_nested_acquire_waits_for_the_lease(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        load = Load(first, 29)
        await advance(1)
        async with second.acquire():
            assert second.max_size == 1
            waiter = acquiring(second)
            await settle()
            await load.end()
            await second.release(await waiter)


# -- the ledger is away ----------------------------------------------------------------------------


async def test_for_the_ttl_nothing_changes_without_the_ledger(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        load, other = Load(first, 25), Load(second, 1)
        await advance(5)
        world.away = True
        await advance(7)
        assert (first.max_size, first.active_count) == (25, 25)
        await load.end()
        load = Load(first, 25)
        await advance(0.1)
        assert first.active_count == 25
        await load.end()
        await other.end()


async def test_after_the_ttl_everybody_has_the_equal_part(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        load, other = Load(first, 25), Load(second, 1)
        await advance(5)
        await load.end()
        world.reference.learns = True  # as one that is not in this process
        world.debts = True  # until it knows who has how much
        world.away = True
        await advance(10)
        assert (first.max_size, first.occupied) == (15, 15)
        await other.end()
        load, other = Load(first, 25), Load(second, 25)
        await advance(11)
        assert (first.active_count, second.active_count) == (15, 15)
        world.away = False
        await load.end()
        await advance(8)  # it waits for two beats whether there is somebody else
        assert (first.active_count, second.active_count) == (0, 25)
        await other.end()


async def test_a_strict_process_has_one_resource_alone(world):
    async with world:
        pool = world.process(strict=True).pool(max_size=30)
        load = Load(pool, 25)
        await advance(5)
        await load.end()
        world.away = True
        await advance(6)
        assert pool.max_size == 30
        await advance(2)
        assert (pool.max_size, pool.occupied) == (1, 1)
        world.away = False
        await advance(3)
        assert pool.max_size == 30


async def test_without_the_ledger_at_the_start_one_goes_alone(world, caplog):
    async with world:
        world.away = True
        pool = world.process().pool(max_size=40)
        load = Load(pool, 40)
        await advance(0.1)
        assert pool.active_count == 30
        [record] = [each for each in caplog.records if each.levelname == "WARNING"]
        assert record.getMessage() == (
            "fleet 'shop', pool 'pool': the fleet cannot be reached (LedgerError: refused); until "
            "it can, this process has 30, as much as one alone"
        )
        await load.end()


async def test_a_ledger_that_has_lost_its_data_is_told(world):
    async with world:
        first, second = (world.process().pool(max_size=30) for _ in range(2))
        load, other = Load(first, 20), Load(second, 10)
        await advance(5)
        world.learns = True
        world.checks = False  # it does not know yet what there is
        world.forget()
        await advance(5)
        world.checks = True
        world.check()
        assert (first.active_count, second.active_count) == (20, 10)
        await load.end()
        await other.end()


async def test_two_budgets_are_the_smallest_and_a_warning(world, caplog):
    async with world:
        first = world.process().pool(max_size=40)
        second = world.process(budget=20).pool(max_size=40)
        load, other = Load(first, 40), Load(second, 40)
        await advance(60)
        world.budget = 20
        await load.end()
        await other.end()
        load, other = Load(first, 40), Load(second, 40)
        await advance(5)
        assert first.active_count + second.active_count == 20
        assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
            "fleet 'shop': this process has budget=30, another one 20; the smallest counts. "
            "Give all of them the same"
        ]
        await load.end()
        await other.end()


# -- the circuit breaker ---------------------------------------------------------------------------


async def test_the_fleet_opens_and_closes_together(world):
    async with world:
        breakers = [world.process() for _ in range(3)]
        pools = [
            each.pool(strategy=each.fleet.breaker(ConsecutiveFailures(2, recovery_timeout=1.0)))
            for each in breakers
        ]
        for pool in pools:
            await pool.release(await pool.acquire())
        world.backend.down = True
        for pool in pools[:2]:
            for _ in range(2):
                with contextlib.suppress(OSError):
                    pool.discard(await pool.acquire(), OSError("down"))
        await advance(1)
        assert [pool.state for pool in pools] == ["INACTIVE"] * 3
        world.backend.down = False
        await advance(3)
        assert [pool.state for pool in pools] == ["ACTIVE"] * 3


async def test_a_strategy_set_later_takes_part(world):
    async with world:
        first, second = world.process(), world.process()
        pool = first.pool()
        other = second.pool(strategy=second.fleet.breaker(ConsecutiveFailures(1)))
        await pool.open()
        await other.open()
        await advance(3)
        assert [each.breaker for each in await second.fleet.members()] == [None, "ACTIVE"]
        pool.strategy = first.fleet.breaker(ConsecutiveFailures(1))
        await advance(3)
        assert [each.breaker for each in await second.fleet.members()] == ["ACTIVE", "ACTIVE"]


# -- the edges -------------------------------------------------------------------------------------


async def test_a_destructor_left_behind_counts_for_a_while(world):
    async with world:
        first = world.process().pool(max_size=30, destructor_timeout=0.5)
        second = world.process().pool(max_size=30)
        load = Load(first, 25)
        await advance(1)
        world.backend.slow = 20.0
        await load.end()
        first.retire()
        await advance(1)
        world.backend.slow = 0.0
        assert (first.occupied, first.max_size) == (0, 5)
        load = Load(second, 30)
        await advance(5)
        assert second.active_count == 5
        await advance(10)
        assert second.active_count == 29
        await load.end()
        await advance(20)


async def test_closing_does_not_wait_for_a_ledger_that_is_away(world):
    async with world:
        first, second = world.process(), world.process()
        pools = [each.pool(max_size=10) for each in (first, second)]
        for pool in pools:
            await pool.release(await pool.acquire())
        first.away = True
        await pools[0].close()
        world.loses = lambda: True  # no answer at all
        began = now()
        await pools[1].close()
        assert now() - began < 2


async def test_a_timeout_of_a_paused_process_is_no_outage(world, caplog):
    async with world:
        process = world.process()
        pool = process.pool(max_size=10)
        world.delay = lambda: 3.0  # the answer comes after the beat,
        opening = asyncio.create_task(pool.open())
        await settle()
        [loan] = process.loans
        loan._begin()
        loop = asyncio.get_running_loop()
        await advance(1)
        world.delay = lambda: 0.001
        loop.time = lambda: VirtualLoop.time(loop) + 0.5  # and the timeout comes late
        await advance(2)
        del loop.time
        assert caplog.records == []
        await advance(1)
        assert pool.max_size == 10
        await opening


async def test_a_sentence_for_each_state_of_the_lease(world):
    async with world:
        process = world.process(strict=True)
        pool = process.pool(max_size=10)
        opening = asyncio.create_task(pool.open())
        await settle()
        [loan] = process.loans
        assert loan.sentence() == "the fleet 'shop' has not answered yet"
        await opening
        assert loan.sentence() == (
            "the fleet 'shop' uses 10 of 30 in 1 process; this one has 10, its part"
        )
        world.away = True
        await advance(11)
        assert loan.sentence() == (
            "the fleet 'shop' cannot be reached; this process has 1, its equal part at most"
        )


async def test_a_timeout_names_what_is_to_be_raised(world):
    async with world:
        first, second = (world.process().pool(max_size=20) for _ in range(2))
        one = Load(first, 20)
        await advance(1)
        with pytest.raises(
            AcquireTimeoutError, match=r"has 20, its part\. Raise max_size, or hold"
        ):
            await first.acquire(timeout=0.01)
        two = Load(second, 20)
        await advance(1)
        with pytest.raises(AcquireTimeoutError, match=r"has 10, .*\. Raise the budget, or hold"):
            await second.acquire(timeout=0.01)
        await one.end()
        await two.end()


async def test_a_resize_during_a_request_is_told_after_it(world):
    async with world:
        pool = world.process().pool(max_size=5)
        await pool.open()
        await advance(3)
        world.delay = lambda: 0.1
        [loan] = world.processes[next(iter(world.processes))].loans
        loan._begin()
        await advance(0.05)
        pool.resize(max_size=20)
        await advance(0.4)
        assert pool.max_size == 20


async def test_an_unexpected_error_of_a_ledger_is_logged(world, caplog, monkeypatch):
    async with world:
        process = world.process()
        pool = process.pool(max_size=10)
        monkeypatch.setattr(WorldLedger, "sync", broken)
        await pool.release(await pool.acquire())
        assert pool.max_size == 10
        assert "a request failed unexpectedly: ZeroDivisionError" in caplog.text
        monkeypatch.undo()


async def broken(self, request):
    raise ZeroDivisionError


async def test_what_the_program_resizes_is_lent_at_most(world):
    async with world:
        pool = world.process().pool(max_size=10)
        load = Load(pool, 20)
        await advance(1)
        assert pool.active_count == 10
        pool.resize(max_size=15)
        await advance(0.1)
        assert pool.active_count == 15
        await load.end()
        pool.resize(max_size=4, min_size=2)
        await advance(1)
        assert (pool.max_size, pool.count) == (4, 4)
        [row] = world.reference.rows.values()
        assert (row.charge, row.last.floor, row.last.ceiling) == (4, 2, 4)
