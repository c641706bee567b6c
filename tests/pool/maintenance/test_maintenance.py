"""Maintenance keeps nothing alive, and survives failing hooks."""

import asyncio
import logging
import weakref

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Thing,
    Things,
    forget,
    raising,
    styled,
)
from tests.support.waiting import WAIT

BUSY = {
    "healthcheck": lambda thing: True,
    "healthcheck_interval": 10.0,
    "min_size": 2,
    "max_lifetime": 50.0,
    "max_idle": 20.0,
    "hold_warning": 5.0,
}


@pytest.mark.virtual_time
async def test_maintenance_has_no_task_of_its_own(make_pool):
    pool = make_pool(Thing, **BUSY)
    await pool.open()
    await advance(35)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.virtual_time
def test_maintenance_does_not_keep_the_loop_alive():
    pool = cenote.Pool(Thing, **BUSY)

    async def main(pool):
        await pool.open()
        await settle()

    asyncio.run(main(pool))
    assert pool.count == 2
    box = [pool]
    del pool
    forget(box)


@pytest.mark.virtual_time
async def test_maintenance_does_not_keep_the_pool_alive(make_pool):
    pool = make_pool(Thing, check_ledger=False, **BUSY)
    await pool.open()
    await advance(15)
    reference = weakref.ref(pool)
    box = [pool]
    del pool
    forget(box)
    assert reference() is None
    await advance(100)  # and its timers find nobody


@pytest.mark.virtual_time
async def test_a_backoff_does_not_keep_the_pool_alive(make_pool, monkeypatch):
    # A log recorded would hold the pool by its traceback.
    monkeypatch.setattr(logging.getLogger("cenote"), "disabled", True)
    things = Things(range(2, 1000))
    pool = make_pool(things, check_ledger=False, min_size=1)
    await pool.open()
    pool.discard(await pool.acquire())
    await advance(100)
    reference = weakref.ref(pool)
    box = [pool]
    del pool
    forget(box)
    assert reference() is None
    calls = things.calls
    await advance(100)
    assert things.calls == calls


@pytest.mark.virtual_time
async def test_maintenance_survives_failing_hooks(make_pool):
    checked = []

    def check(thing):
        checked.append(thing)
        raise OSError("broken wire")

    pool = make_pool(
        Thing,
        healthcheck=check,
        destructor=raising(ValueError("will not go")),
        healthcheck_interval=10.0,
        min_size=2,
        check_ledger=False,
    )
    pool.subscribe(raising(ZeroDivisionError()))
    await pool.open()
    for round in range(1, 4):
        await advance(10)
        assert len(checked) == 2 * round
        assert pool.idle_count == 2
    with pytest.raises(ExceptionGroup):
        await pool.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_maintenance_survives_failing_destructors_of_expired_resources(make_pool, kind):
    destroyed = []

    def destructor(thing):
        destroyed.append(thing)
        raise ValueError("will not go")

    pool = make_pool(
        Thing,
        destructor=styled(kind, destructor),
        max_lifetime=100.0,
        min_size=3,
        check_ledger=False,
    )
    await pool.open()
    await advance(500)
    assert len(destroyed) >= 12
    assert pool.idle_count == 3
    with pytest.raises(ExceptionGroup):
        await pool.close()


def test_a_sweep_within_a_millisecond_runs_on_uvloop(caplog):
    """uvloop calls that at once, and its handle does not tell the time."""
    uvloop = pytest.importorskip("uvloop")

    async def live() -> None:
        async with cenote.Pool(object, max_idle=0.0003) as pool:
            async with pool.acquire():
                pass
            async with asyncio.timeout(WAIT):
                while pool.count:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(live())
    finally:
        loop.close()
    assert not caplog.records
