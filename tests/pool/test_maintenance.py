"""Background work: health checks, lifetimes, idle times, min_size, warnings of long holds."""

import asyncio
import inspect
import itertools
import logging
import weakref

import pytest

import cenote
from tests.support.clock import advance, now, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Moody,
    RecordingStrategy,
    Thing,
    Things,
    drop,
    obtain,
    raising,
    recorded,
    started,
    styled,
)

pytestmark = pytest.mark.virtual_time


def pass_unnoticed(seconds):
    """Time goes by while the loop is blocked: no timer fires."""
    loop = asyncio.get_running_loop()
    loop.jump(loop.time() + seconds)


# -- health checks -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
async def test_every_idle_resource_is_checked_in_every_interval(make_pool, kind):
    things, checked = Things(), []
    pool = make_pool(
        things,
        healthcheck=styled(kind, checked.append),
        healthcheck_interval=10.0,
        min_size=3,
    )
    await pool.open()
    await advance(9.9)
    assert checked == []
    await advance(0.1)
    assert checked == things.made
    await advance(10)
    assert sorted(map(id, checked)) == sorted(map(id, things.made * 2))
    assert pool.idle_count == 3


async def test_nothing_is_checked_without_an_interval(make_pool):
    checked = []
    pool = make_pool(Thing, healthcheck=checked.append, min_size=1)
    await pool.open()
    await advance(1000)
    assert checked == []


async def test_checks_run_one_at_a_time(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=3, max_size=3)
    await pool.open()
    await advance(10)
    assert len(check.calls) == 1
    assert (pool.active_count, pool.idle_count, pool.count) == (1, 2, 3)
    others = [pool.try_acquire(), pool.try_acquire()]
    assert None not in others
    assert check.arguments[0] not in others
    for thing in others:
        pool.release(thing)
    for number in range(3):
        assert len(check.calls) == number + 1
        check.calls[number].set_result(True)
        await settle()
    assert len(check.calls) == 3
    assert pool.idle_count == 3


async def test_busy_resources_are_never_checked(make_pool):
    checked = []
    pool = make_pool(
        Thing, healthcheck=checked.append, healthcheck_interval=10.0, min_size=2, max_size=2
    )
    await pool.open()
    async with pool.acquire() as busy:
        await advance(35)
        assert len(checked) == 3
        assert busy not in checked


async def test_what_became_busy_during_the_round_is_not_checked(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=2, max_size=2)
    await pool.open()
    await advance(10)
    busy = pool.try_acquire()
    check.calls[0].set_result(True)
    await settle()
    assert len(check.calls) == 1
    pool.release(busy)


async def test_a_slow_check_delays_the_next_round(make_pool):
    check = Gate()
    pool = make_pool(
        Thing, healthcheck=check, healthcheck_interval=1.0, hook_timeout=100.0, min_size=2
    )
    await pool.open()
    await advance(50)
    assert len(check.calls) == 1
    check.calls[0].set_result(True)
    await settle()
    assert len(check.calls) == 2
    check.calls[1].set_result(True)


def refuse(thing):
    return False


def fail(thing):
    raise OSError("broken wire")


@pytest.mark.parametrize("verdict", [refuse, fail])
@pytest.mark.parametrize("kind", STYLES)
async def test_the_failing_ones_are_destroyed(make_pool, kind, verdict):
    things, destroyed = Things(), []

    def check(thing):
        return verdict(thing) if thing is things.made[1] else None

    pool = make_pool(
        things,
        healthcheck=styled(kind, check),
        destructor=styled(kind, destroyed.append),
        healthcheck_interval=10.0,
        min_size=3,
    )
    await pool.open()
    pool.resize(min_size=0)
    events = recorded(pool)
    await advance(10)
    assert destroyed == [things.made[1]]
    assert pool.idle_count == 2
    assert [event.kind for event in events] == ["check_failed", "destroyed"]
    assert isinstance(events[0].error, OSError if verdict is fail else cenote.PoolError)
    assert ("healthcheck" in str(events[0].error)) == (verdict is refuse)


@pytest.mark.parametrize("kind", STYLES)
async def test_an_error_of_a_check_is_logged(make_pool, kind, caplog):
    things = Things()
    pool = make_pool(things, healthcheck=styled(kind, fail), healthcheck_interval=10.0, min_size=2)
    await pool.open()
    pool.resize(min_size=0)
    await advance(10)
    assert caplog.text.count("broken wire") >= 2
    assert {line.name for line in caplog.records} == {"cenote"}
    assert pool.count == 0


async def test_a_hanging_check_is_cut_off(make_pool):
    check, destroyed = Gate(), []
    pool = make_pool(
        Thing,
        healthcheck=check,
        destructor=destroyed.append,
        healthcheck_interval=100.0,
        hook_timeout=3.0,
        min_size=2,
    )
    await pool.open()
    pool.resize(min_size=0)
    await advance(102.9)
    assert len(check.calls) == 1
    await advance(0.1)
    assert check.calls[0].cancelled()
    assert destroyed == check.arguments[:1]
    assert len(check.calls) == 2
    check.calls[1].set_result(True)
    await settle()
    assert pool.idle_count == 1


async def test_a_cancelled_check_destroys_its_resource(make_pool):
    checked = []

    async def check(thing):
        checked.append(thing)
        if len(checked) == 1:
            raise asyncio.CancelledError

    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=2)
    await pool.open()
    pool.resize(min_size=0)
    await advance(10)
    assert len(checked) == 2
    assert pool.idle_count == 1


async def test_a_checked_resource_goes_to_the_waiter(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=1, max_size=1)
    await pool.open()
    await advance(10)
    waiter = await started(obtain(pool))
    assert not waiter.done()
    check.calls[0].set_result(True)
    thing = await waiter
    assert thing is check.arguments[0]
    pool.release(thing)


async def test_the_slot_of_a_failed_check_goes_to_the_waiter(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=1, max_size=1)
    await pool.open()
    await advance(10)
    waiter = await started(obtain(pool))
    check.calls[0].set_result(False)
    thing = await waiter
    assert thing is not check.arguments[0]
    pool.release(thing)


async def test_a_check_is_no_use(make_pool):
    pool = make_pool(
        Thing,
        healthcheck=lambda thing: True,
        healthcheck_interval=1.0,
        min_size=1,
        max_uses=2,
        max_idle=5.0,
    )
    await pool.open()
    thing = await pool.acquire()
    pool.release(thing)
    await advance(4)
    assert pool.try_acquire() is thing
    pool.release(thing)
    await settle()
    assert pool.try_acquire() is not thing
    for holder in pool.holders():
        pool.release(holder.resource)


async def test_a_check_does_not_make_an_idle_resource_young_again(make_pool):
    destroyed = []
    pool = make_pool(
        Thing,
        healthcheck=lambda thing: True,
        destructor=destroyed.append,
        healthcheck_interval=1.0,
        max_idle=5.5,
    )
    pool.release(await pool.acquire())
    await advance(5.4)
    assert destroyed == []
    await advance(0.2)
    assert len(destroyed) == 1


async def test_nothing_is_checked_after_the_round_met_a_closed_pool(make_pool):
    check = Gate()
    pool = make_pool(Thing, healthcheck=check, healthcheck_interval=10.0, min_size=3)
    await pool.open()
    await advance(10)
    await pool.close()
    await advance(100)
    assert len(check.calls) == 1
    assert pool.count == 0


# -- max_lifetime --------------------------------------------------------------------------------


async def test_max_lifetime_retires_idle_resources_with_jitter(make_pool):
    pool = make_pool(Thing, min_size=30, max_size=30, max_lifetime=100.0)
    await pool.open()
    pool.resize(min_size=0)
    events, made_at = recorded(pool), now()
    await advance(200)
    ages = [event.time - made_at for event in events if event.kind == "destroyed"]
    assert len(ages) == 30
    assert 90 <= min(ages) < max(ages) <= 110
    assert {event.reason for event in events} == {"max_lifetime"}


async def test_max_lifetime_never_ends_what_is_in_use(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_lifetime=100.0)
    async with pool.acquire() as thing:
        await advance(500)
        assert destroyed == []
    assert destroyed == [thing]


@pytest.mark.parametrize("kind", STYLES)
async def test_a_waiter_gets_a_new_one_for_the_expired(make_pool, kind):
    things = Things()
    pool = make_pool(styled(kind, things), max_lifetime=100.0, max_size=1)
    old = await pool.acquire()
    waiter = await started(obtain(pool))
    await advance(200)
    pool.release(old)
    new = await waiter
    assert things.made == [old, new]
    pool.release(new)


async def try_acquire(pool):
    return pool.try_acquire()


async def acquire_at_once(pool):
    return await pool.acquire(timeout=0)


@pytest.mark.parametrize("hook", [None, "sync"])
@pytest.mark.parametrize("way", [obtain, acquire_at_once, try_acquire])
async def test_an_expired_idle_resource_is_never_handed_out(make_pool, way, hook):
    destroyed, seen = [], []
    pool = make_pool(
        Thing,
        before_acquire=seen.append if hook else None,
        destructor=destroyed.append,
        max_lifetime=100.0,
        max_size=1,
    )
    pool.release(old := await pool.acquire())
    pass_unnoticed(111)
    new = await way(pool)
    assert new is not None
    assert new is not old
    assert destroyed == [old]
    assert seen == []
    pool.release(new)


async def test_an_expired_resource_is_not_granted_to_a_waiter(make_pool):
    pool = make_pool(Thing, max_lifetime=100.0, max_size=1)
    old = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.release(old)
    pass_unnoticed(111)
    new = await waiter
    assert new is not old
    pool.release(new)


# -- max_idle ------------------------------------------------------------------------------------


async def test_max_idle_destroys_above_min_size_only(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_idle=30.0, min_size=1, max_size=4)
    things = [await pool.acquire() for _ in range(4)]
    for thing in things:
        pool.release(thing)
    await advance(29.9)
    assert destroyed == []
    await advance(0.1)
    assert len(destroyed) == 3
    await advance(1000)
    assert pool.idle_count == 1


async def test_busy_resources_count_to_min_size(make_pool):
    pool = make_pool(Thing, max_idle=30.0, min_size=1)
    busy, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    await advance(31)
    assert (pool.active_count, pool.idle_count) == (1, 0)
    pool.release(busy)


async def test_the_idle_time_begins_with_the_return(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_idle=30.0)
    pool.release(thing := await pool.acquire())
    await advance(29)
    assert pool.try_acquire() is thing
    await advance(100)
    assert destroyed == []
    pool.release(thing)
    await advance(29.9)
    assert destroyed == []
    await advance(0.1)
    assert destroyed == [thing]


async def test_each_goes_when_its_own_time_is_over(make_pool):
    pool = make_pool(Thing, max_idle=30.0)
    events = recorded(pool)
    first, second = await pool.acquire(), await pool.acquire()
    began = now()
    pool.release(first)
    await advance(10)
    pool.release(second)
    await advance(100)
    gone = [(e.resource, e.time - began, e.reason) for e in events if e.kind == "destroyed"]
    assert gone == [(first, 30, "max_idle"), (second, 40, "max_idle")]


async def test_a_smaller_min_size_lets_the_idle_go(make_pool):
    pool = make_pool(Thing, max_idle=30.0, min_size=2)
    await pool.open()
    await advance(100)
    assert pool.idle_count == 2
    pool.resize(min_size=0)
    await advance(30)
    assert pool.count == 0


# -- min_size ------------------------------------------------------------------------------------


async def discard(pool):
    pool.discard(await pool.acquire())


async def reject(pool):
    pool.release(await pool.acquire())


async def retire(pool):
    pool.retire()


async def wait(pool):
    await advance(120)


async def fail_in_block(pool):
    task = asyncio.create_task(sleep_in_block(pool))
    await settle()
    task.cancel()


async def sleep_in_block(pool):
    async with pool.acquire():
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", STYLES)
@pytest.mark.parametrize(
    ("destroy", "options"),
    [
        (discard, {}),
        (retire, {}),
        (fail_in_block, {}),
        (reject, {"before_release": lambda _: False}),
        (reject, {"max_uses": 1}),
        (wait, {"max_lifetime": 100.0}),
        (wait, {"healthcheck": lambda _: False, "healthcheck_interval": 100.0}),
    ],
)
async def test_min_size_is_restored_after_every_destruction(make_pool, kind, destroy, options):
    things = Things()
    pool = make_pool(styled(kind, things), min_size=2, **options)
    await pool.open()
    before = set(things.made)
    await destroy(pool)
    await settle()
    assert set(things.made) - before
    assert pool.idle_count == 2


async def test_min_size_is_restored_after_before_acquire_rejected(make_pool):
    verdicts = [False, False]
    pool = make_pool(Thing, before_acquire=lambda thing: not verdicts or verdicts.pop(), min_size=2)
    await pool.open()
    async with pool.acquire():
        await settle()
        assert pool.count == 2


async def test_min_size_is_restored_when_the_destructor_is_done(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=1, max_size=1)
    await pool.open()
    pool.discard(await pool.acquire())
    await settle()
    assert pool.count == 0
    destructor.calls[0].set_result(None)
    await settle()
    assert pool.count == 1
    closing = await started(pool.close())
    destructor.calls[1].set_result(None)
    await closing


async def bring_down(pool, factory):
    factory.down = True
    factory.asked.clear()
    for _ in range(pool.count):
        pool.discard(await pool.acquire())
    await settle()


@pytest.mark.parametrize("kind", STYLES)
@pytest.mark.parametrize("size", [1, 3])
async def test_a_failing_factory_is_asked_again_with_backoff(make_pool, kind, size):
    factory = Moody()
    pool = make_pool(styled(kind, factory), min_size=size)
    await pool.open()
    await bring_down(pool, factory)
    await advance(600)
    assert 600 / 60 <= len(factory.asked) <= 60 * size
    moments = sorted(set(factory.asked))
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert min(gaps) > 0.1
    assert max(gaps) > 4 * gaps[0]
    assert max(gaps) <= 60


async def test_the_backoff_is_jittered(make_pool):
    factories = [Moody(), Moody()]
    for factory in factories:
        pool = make_pool(factory, min_size=1)
        await pool.open()
        await bring_down(pool, factory)
    await advance(100)
    one, other = factories
    assert not set(one.asked[1:]) & set(other.asked[1:])


async def test_min_size_is_restored_when_the_factory_works_again(make_pool):
    factory = Moody()
    pool = make_pool(factory, min_size=2)
    await pool.open()
    await bring_down(pool, factory)
    await advance(300)
    assert pool.count == 0
    factory.down = False
    await advance(60)
    assert pool.idle_count == 2


async def test_the_backoff_begins_anew_after_a_success(make_pool):
    factory = Moody()
    pool = make_pool(factory, min_size=1)
    await pool.open()
    await bring_down(pool, factory)
    await advance(300)
    factory.down = False
    await advance(60)
    await bring_down(pool, factory)
    await advance(5)
    assert len(factory.asked) >= 3


async def acquired(pool):
    return await pool.acquire()


async def tried(pool):
    return pool.try_acquire()


async def recovered(pool):
    pool.deactivate()
    pool.recover()
    return await pool.acquire()


@pytest.mark.parametrize(
    ("kind", "way"),
    [*itertools.product(STYLES, [acquired, recovered]), ("sync", tried)],
)
async def test_any_successful_creation_restores_min_size(make_pool, kind, way):
    factory = Moody()
    pool = make_pool(styled(kind, factory), min_size=4)
    await pool.open()
    await bring_down(pool, factory)
    await advance(300)
    assert pool.count == 0
    factory.down = False
    moment = now()
    resource = await way(pool)
    await settle()
    assert (pool.count, now()) == (4, moment)
    await pool.release(resource)


async def test_a_failure_in_the_background_is_logged_and_reported(make_pool, caplog):
    factory, strategy = Moody(), RecordingStrategy()
    pool = make_pool(factory, min_size=1, strategy=strategy)
    await pool.open()
    await bring_down(pool, factory)
    assert "backend down" in caplog.text
    assert [type(error) for error in strategy.reports] == [OSError]


async def test_a_hanging_factory_in_the_background_counts_as_failed(make_pool):
    factory, strategy = Gate(), RecordingStrategy()
    pool = make_pool(factory, min_size=1, create_timeout=20.0, strategy=strategy)
    task = await started(obtain(pool))
    factory.calls[0].set_result(Thing())
    pool.discard(await task)
    await advance(19.9)
    assert not factory.calls[1].done()
    await advance(0.2)
    assert factory.calls[1].cancelled()
    [error] = strategy.reports
    assert isinstance(error, cenote.PoolError)
    assert isinstance(error, TimeoutError)
    await advance(60)
    assert len(factory.calls) > 2


@pytest.mark.parametrize("resume", ["activate", "recover"])
async def test_min_size_rests_while_inactive(make_pool, resume):
    things = Things()
    pool = make_pool(things, min_size=2)
    await pool.open()
    pool.deactivate()
    await pool.retire()
    await advance(1000)
    assert (things.calls, pool.count) == (2, 0)
    getattr(pool, resume)()
    await settle()
    assert (things.calls, pool.count) == (4, 2)


@pytest.mark.parametrize("resume", ["activate", "recover"])
async def test_a_backoff_rests_while_inactive(make_pool, resume):
    factory = Moody()
    pool = make_pool(factory, min_size=1)
    await pool.open()
    await bring_down(pool, factory)
    pool.deactivate()
    asked = len(factory.asked)
    await advance(1000)
    assert len(factory.asked) == asked
    factory.down = False
    getattr(pool, resume)()
    await advance(60)
    assert pool.idle_count == 1


# -- hold_warning --------------------------------------------------------------------------------


async def test_a_long_hold_is_logged_and_sent_once(make_pool, caplog):
    pool = make_pool(Thing, hold_warning=5.0, name="shop")
    events = recorded(pool)
    thing = await pool.acquire()
    line = inspect.currentframe().f_lineno - 1
    await advance(4.9)
    assert caplog.text == ""
    await advance(0.1)
    [event] = [event for event in events if event.kind == "held_long"]
    assert (event.resource, event.reason) == (thing, f"{__file__}:{line}")
    assert (event.task, event.duration) == ("test", pytest.approx(5.0))
    [logged] = caplog.records
    assert (logged.name, logged.levelname) == ("cenote", "WARNING")
    for word in ("'shop'", "'test'", f"{__file__}:{line}"):
        assert word in logged.getMessage()
    await advance(100)
    assert len(caplog.records) == 1
    assert [event.kind for event in events].count("held_long") == 1
    pool.release(thing)


async def test_each_lease_is_warned_of_in_its_time(make_pool):
    pool = make_pool(Thing, hold_warning=5.0)
    events, began = recorded(pool), now()
    first = await pool.acquire()
    await advance(3)
    async with pool.acquire() as second:
        await advance(10)
    pool.release(first)
    third = await pool.acquire()
    await advance(10)
    pool.release(third)
    moments = [(e.resource, e.time - began) for e in events if e.kind == "held_long"]
    assert moments == [(first, 5), (second, 8), (third, 18)]


async def test_what_comes_back_in_time_is_not_warned_of(make_pool, caplog):
    pool = make_pool(Thing, hold_warning=5.0)
    for _ in range(3):
        async with pool.acquire():
            await advance(4)
    await advance(100)
    assert caplog.text == ""


async def test_nothing_is_warned_of_without_hold_warning(make_pool, caplog):
    pool = make_pool(Thing)
    async with pool.acquire():
        await advance(1e6)
    assert caplog.text == ""


# -- it disturbs nobody --------------------------------------------------------------------------

BUSY = {
    "healthcheck": lambda thing: True,
    "healthcheck_interval": 10.0,
    "min_size": 2,
    "max_lifetime": 50.0,
    "max_idle": 20.0,
    "hold_warning": 5.0,
}


async def test_maintenance_has_no_task_of_its_own(make_pool):
    pool = make_pool(Thing, **BUSY)
    await pool.open()
    await advance(35)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_maintenance_does_not_keep_the_loop_alive():
    pool = cenote.Pool(Thing, **BUSY)

    async def main(pool):
        await pool.open()
        await settle()

    asyncio.run(main(pool))
    assert pool.count == 2
    box = [pool]
    del pool
    with pytest.warns(ResourceWarning, match="unclosed"):
        drop(box)


async def test_maintenance_does_not_keep_the_pool_alive(make_pool):
    pool = make_pool(Thing, check_ledger=False, **BUSY)
    await pool.open()
    await advance(15)
    reference = weakref.ref(pool)
    box = [pool]
    del pool
    with pytest.warns(ResourceWarning, match="unclosed"):
        drop(box)
    assert reference() is None
    await advance(100)  # and its timers find nobody


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
    with pytest.warns(ResourceWarning, match="unclosed"):
        drop(box)
    assert reference() is None
    calls = things.calls
    await advance(100)
    assert things.calls == calls


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
