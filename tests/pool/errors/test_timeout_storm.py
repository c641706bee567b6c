"""Many timeouts in one step of the loop share one list of holders."""

import asyncio
import gc
import weakref

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Gate, Holding, Thing, acquiring, outcome

from cenote.pool import deadlines  # isort: skip

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def snapshots(monkeypatch):
    """The lists of holders that were made."""
    made = []
    real = deadlines.holdings

    def noted(core, now):
        made.append(real(core, now))
        return made[-1]

    monkeypatch.setattr(deadlines, "holdings", noted)
    return made


async def errors_of(waiters):
    found = [await outcome(waiter) for waiter in waiters]
    assert all(isinstance(error, cenote.AcquireTimeoutError) for error in found)
    return found


async def test_the_holders_are_listed_once_for_all(make_pool, snapshots):
    pool = make_pool(Thing, max_size=50, name="main")
    holdings = [Holding(pool, name=f"holder {number}") for number in range(50)]
    await advance(1)
    waiters = [acquiring(pool, timeout=4) for _ in range(1000)]
    errors = await errors_of(waiters)
    assert len(snapshots) == 1
    assert pool.stats().timeouts == 1000
    for error in errors:
        assert len(error.holders) == 50
        assert {holder.seconds for holder in error.holders} == {5.0}
    assert "(50 active, 0 idle, 1000 waiting)" in str(errors[0])
    assert "(50 active, 0 idle, 1 waiting)" in str(errors[-1])
    for error in errors:
        assert "held by task 'holder 0' for 5.0 s" in str(error)
        assert "task 'holder 9' for 5.0 s" in str(error)
        assert "'holder 10'" not in str(error)
        assert "; and 40 more. Raise max_size" in str(error)
    for holding in holdings:
        await holding.leave()


async def test_each_moment_has_its_own(make_pool, snapshots):
    pool = make_pool(Thing, max_size=1)
    holding = Holding(pool)
    await settle()
    waiters = [acquiring(pool, timeout=seconds) for seconds in (5, 5, 7, 7)]
    errors = await errors_of(waiters)
    assert [error.holders[0].seconds for error in errors] == [5.0, 5.0, 7.0, 7.0]
    assert len(snapshots) == 2
    await holding.leave()


async def test_what_changes_hands_in_the_step_is_seen(make_pool, snapshots):
    pool = make_pool(Thing, max_size=3)
    first, second, third = [await pool.acquire() for _ in range(3)]
    waiters = [acquiring(pool, f"waiter {number}", timeout=5) for number in range(5)]
    seen = []

    def give_back(event):
        if event.kind == "timeout":
            seen.append(event.error)
            if len(seen) == 2:
                pool.discard(second)
                pool.discard(third)

    pool.subscribe(give_back)
    await advance(5)
    assert [len(error.holders) for error in seen[:2]] == [3, 3]
    assert seen[0].holders is seen[1].holders
    (last,) = seen[2:]  # the other two have what was given back
    assert [holder.resource for holder in last.holders] == [first]
    assert len(snapshots) == 2
    for waiter in waiters:
        got = await outcome(waiter)
        if isinstance(got, Thing):
            pool.release(got)
    pool.release(first)


async def test_a_timeout_in_before_acquire_does_not_name_its_waiter(make_pool, snapshots):
    gate = Gate()
    pool = make_pool(Thing, max_size=20, before_acquire=gate)
    for resource in [await pool.acquire() for _ in range(20)]:
        pool.release(resource)
    waiters = [acquiring(pool, f"waiter {number}", timeout=5) for number in range(20)]
    await settle()
    assert gate.entered == 20
    for number, error in enumerate(await errors_of(waiters)):
        assert f"waiter {number}" not in [holder.task for holder in error.holders]
        assert f"'waiter {number}'" not in str(error)
        assert len(error.holders) == 19
    assert len(snapshots) == 1
    gate.open()


async def test_timeouts_of_several_steps_share_nothing(make_pool, snapshots):
    pool = make_pool(Thing, max_size=1)
    resource = await pool.acquire()
    errors = [await outcome(pool.acquire(timeout=0)) for _ in range(3)]
    assert len(snapshots) == len({id(error.holders) for error in errors}) == 3
    pool.release(resource)


async def test_nothing_is_kept_when_the_step_is_over(make_pool):
    pool = make_pool(Thing, max_size=1)
    resource = await pool.acquire()
    gone = weakref.ref(resource)
    for waiter in [acquiring(pool, timeout=5) for _ in range(3)]:
        await outcome(waiter)
    waiter = None
    pool.discard(resource)
    del resource
    await asyncio.sleep(0)
    gc.collect()
    assert gone() is None
