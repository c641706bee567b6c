"""Every call of the C API refuses an object that is not a pool."""

import pytest

import cenote
from tests.support.probe import native_only

pytestmark = native_only


CALLS = {
    "acquire": lambda probe, pool: probe.acquire(pool, -1.0),
    "try_acquire": lambda probe, pool: probe.try_acquire(pool),
    "release": lambda probe, pool: probe.release(pool, 3),
    "discard": lambda probe, pool: probe.discard(pool, 3, probe.NULL),
    "close": lambda probe, pool: probe.close(pool),
    "count": lambda probe, pool: probe.count(pool),
    "idle_count": lambda probe, pool: probe.idle_count(pool),
    "active_count": lambda probe, pool: probe.active_count(pool),
    "waiting_count": lambda probe, pool: probe.waiting_count(pool),
    "state": lambda probe, pool: probe.state(pool),
    "set_state": lambda probe, pool: probe.set_state(pool, 0),
}
WITH_DATA = {
    "acquire_call": lambda probe, pool, plan: probe.acquire_call(pool, -1.0, plan),
    "subscribe": lambda probe, pool, plan: probe.subscribe(pool, plan),
    "set_strategy": lambda probe, pool, plan: probe.set_strategy(pool, plan, "success failure"),
}


@pytest.mark.parametrize("wrong", [None, 3, "pool", cenote.Pool, "NULL"])
@pytest.mark.parametrize("call", CALLS)
async def test_what_is_no_pool_is_refused(probe, call, wrong):
    name = "NULL" if wrong == "NULL" else type(wrong).__name__
    with pytest.raises(TypeError, match=f"a cenote.Pool is needed, not {name}"):
        CALLS[call](probe, probe.NULL if wrong == "NULL" else wrong)


@pytest.mark.parametrize("wrong", [None, 3, "NULL"])
@pytest.mark.parametrize("call", WITH_DATA)
async def test_what_is_no_pool_is_refused_and_data_freed(probe, call, wrong):
    plan = probe.Plan()
    with pytest.raises(TypeError, match=r"a cenote\.Pool is needed"):
        WITH_DATA[call](probe, probe.NULL if wrong == "NULL" else wrong, plan)
    assert (plan.log, plan.freed) == ([], 1)


@pytest.mark.parametrize("call", CALLS)
async def test_a_pool_without_its_constructor_is_refused(probe, call):
    with pytest.raises(RuntimeError, match="not initialized"):
        CALLS[call](probe, cenote.Pool.__new__(cenote.Pool))
