"""The counts of a pool, read from C."""

import gc
import threading

from cenote.testing import settle
from tests.support.probe import native_only, only

pytestmark = native_only


async def test_counts_are_those_of_the_pool(make_c, probe):
    pool, _ = make_c(max_size=2)

    def counts():
        found = tuple(
            getattr(probe, name)(pool)
            for name in ("count", "idle_count", "active_count", "waiting_count")
        )
        seen = (pool.count, pool.idle_count, pool.active_count, pool.waiting_count)
        assert found == seen
        return found

    assert counts() == (0, 0, 0, 0)
    one, two = await pool.acquire(), await pool.acquire()
    probe.acquire_call(pool, -1.0, waiter := probe.Plan())
    await settle()
    assert counts() == (2, 0, 2, 1)
    pool.release(one)
    await settle()
    pool.release(two)
    assert counts() == (2, 1, 1, 0)
    pool.release(only(waiter.log, "resource"))


async def test_counts_may_be_read_in_any_thread_and_nothing_else(make_c, probe):
    pool, _ = make_c()
    resource = await pool.acquire()
    seen, plan = [], probe.Plan()

    def other():
        seen.append(probe.count(pool) == probe.active_count(pool) == 1)
        seen.append(probe.idle_count(pool) == probe.waiting_count(pool) == 0)
        seen.append(probe.state(pool) == probe.CENOTE_ACTIVE)
        for call in (
            lambda: probe.release(pool, resource),
            lambda: probe.discard(pool, resource, probe.NULL),
            lambda: probe.set_state(pool, probe.CENOTE_INACTIVE),
            lambda: probe.try_acquire(pool),
            lambda: probe.acquire_call(pool, -1.0, plan),
        ):
            try:
                call()
            except RuntimeError:
                seen.append(True)
            else:
                seen.append(call)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    gc.collect()
    assert seen == [True] * 8
    assert plan.freed == 1
    pool.release(resource)
