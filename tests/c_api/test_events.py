"""Listeners in C, and their subscriptions."""

import gc

import pytest

import cenote
from tests.support.kit import Thing
from tests.support.probe import called, native_only

pytestmark = native_only


async def test_a_subscription_lasts_until_it_is_ended(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    subscription = probe.subscribe(pool, plan)
    pool.release(await pool.acquire())
    kinds = ["opened", "created", "acquired", "released"]
    assert plan.log == [("event", kind) for kind in kinds]
    assert probe.unsubscribe(subscription) == 0
    pool.release(await pool.acquire())
    assert len(plan.log) == 4
    assert probe.unsubscribe(subscription) == 0
    assert plan.freed == 0
    del subscription
    gc.collect()
    assert plan.freed == 1


async def test_dropping_a_subscription_does_not_end_it(make_c, probe):
    pool, _ = make_c()
    plan = probe.Plan()
    probe.subscribe(pool, plan)
    gc.collect()
    pool.release(await pool.acquire())
    assert len(plan.log) == 4
    assert plan.freed == 0
    await pool.close()
    gc.collect()
    assert called(plan)[-1] == "event"
    assert plan.log[-1] == ("event", "closed")
    assert plan.freed == 1


@pytest.mark.parametrize("mode", ["RAISE", "SILENT", "CONTRADICT"])
async def test_a_listener_that_fails_is_logged(make_c, probe, caplog, mode):
    pool, _ = make_c()
    plan = probe.Plan()
    probe.subscribe(pool, plan)
    plan.listener, plan.error = getattr(probe, mode), OSError("deaf")
    pool.release(await pool.acquire())
    text = "the C listener of a cenote pool failed" if mode == "SILENT" else "OSError: deaf"
    assert text in caplog.text
    assert pool.idle_count == 1


def test_subscribe_with_wrong_arguments(probe):
    for pool, listener, error in ((cenote.Pool(Thing), False, ValueError), (3, True, TypeError)):
        plan = probe.Plan()
        with pytest.raises(error):
            probe.subscribe(pool, plan, listener)
        assert plan.freed == 1


async def test_unsubscribe_calls_nothing_but_subscriptions(make_c, probe):
    pool, _ = make_c()
    called = []
    wrong = {"NULL": probe.NULL, "int": 3, "NoneType": None, "Pool": pool, "type": dict,
             "function": pool.subscribe(called.append),
             "builtin_function_or_method": called.clear}  # fmt: skip
    for kind, each in wrong.items():
        with pytest.raises(TypeError, match=f"a subscription of subscribe is needed, not {kind}"):
            probe.unsubscribe(each)
    pool.release(await pool.acquire())
    assert len(called) == 4
    plan = probe.Plan()
    subscription = probe.subscribe(pool, plan)
    subscription()  # Python may end it, too
    pool.release(await pool.acquire())
    assert plan.log == []
