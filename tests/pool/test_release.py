"""The way back: release, discard, retire, resize, max_uses, and destructors that fail or hang."""

import asyncio
import logging

import pytest

import cenote
from tests.support.clock import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    RecordingStrategy,
    Thing,
    Things,
    obtain,
    raising,
    recorded,
    started,
    styled,
)

# -- release: what has happened when -------------------------------------------------------------


async def test_a_sync_release_has_happened_when_it_returns(make_pool):
    seen, strategy = [], RecordingStrategy()
    pool = make_pool(Thing, before_release=seen.append, strategy=strategy)
    thing = await pool.acquire()
    pool.release(thing)
    assert seen == [thing]
    assert strategy.reports == ["success"]
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_a_sync_rejection_has_happened_when_release_returns(make_pool):
    destroyed = []
    pool = make_pool(Thing, before_release=lambda thing: False, destructor=destroyed.append)
    thing = await pool.acquire()
    pool.release(thing)
    assert destroyed == [thing]
    assert pool.count == 0


@pytest.mark.parametrize("kind", STYLES)
async def test_release_may_be_awaited(make_pool, kind):
    pool = make_pool(Thing, before_release=styled(kind, lambda thing: True))
    assert await pool.release(await pool.acquire()) is None
    assert pool.idle_count == 1


async def test_an_async_release_goes_on_if_nobody_awaits_it(make_pool):
    hook = Gate()
    pool = make_pool(Thing, before_release=hook)
    pool.release(await pool.acquire())
    await settle()
    assert (pool.active_count, pool.idle_count) == (1, 0)
    hook.calls[0].set_result(True)
    await settle()
    assert (pool.active_count, pool.idle_count) == (0, 1)


async def test_an_async_release_goes_on_if_its_awaiter_is_cancelled(make_pool):
    hook = Gate()
    pool = make_pool(Thing, before_release=hook)
    thing = await pool.acquire()

    async def give_back():
        await pool.release(thing)

    task = await started(give_back())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not hook.calls[0].done()
    hook.calls[0].set_result(True)
    await settle()
    assert pool.idle_count == 1


async def test_an_async_destructor_goes_on_if_its_awaiter_is_cancelled(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor)
    thing = await pool.acquire()

    async def throw_away():
        await pool.discard(thing)

    task = await started(throw_away())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.stats().destroying == 1
    destructor.calls[0].set_result(None)
    await settle()
    assert pool.stats().destroying == 0


UNDER_WAY = {
    "release": lambda pool, thing: pool.release(thing),
    "discard": lambda pool, thing: pool.discard(thing),
    "retire": lambda pool, thing: pool.retire(),
    "resize": lambda pool, thing: pool.resize(max_size=1),
}


@pytest.mark.parametrize("verb", UNDER_WAY)
async def test_what_is_under_way_may_be_given_to_a_task(make_pool, verb):
    end = asyncio.Event()

    async def destructor(thing):
        await end.wait()

    pool = make_pool(Thing, destructor=destructor, max_uses=1 if verb == "release" else None)
    thing, other = await pool.acquire(), await pool.acquire()
    if verb in ("retire", "resize"):
        pool.release(thing)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(UNDER_WAY[verb](pool, thing))
        await settle()
        assert not task.done()
        assert pool.stats().destroying == 1
        end.set()
    assert task.result() is None
    assert pool.stats().destroying == 0
    await pool.release(other)


@pytest.mark.parametrize("verb", UNDER_WAY)
async def test_what_is_over_may_be_given_to_a_task(make_pool, verb):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    if verb in ("retire", "resize"):
        pool.release(thing)
    task = asyncio.create_task(UNDER_WAY[verb](pool, thing))
    assert await task is None
    thing = await pool.acquire()
    task = asyncio.create_task(pool.release(thing))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.idle_count == 1


async def test_several_tasks_may_wait_for_one_release(make_pool):
    fault, destructor = OSError("destructor"), Gate()
    pool = make_pool(Thing, destructor=destructor)
    discarding = pool.discard(await pool.acquire())
    first, second, third = [await started(discarding) for _ in range(3)]
    first.cancel()
    await settle()
    assert first.cancelled()
    assert [task.done() for task in (second, third)] == [False, False]
    destructor.calls[0].set_exception(fault)
    results = await asyncio.gather(second, third, discarding, return_exceptions=True)
    assert results == [fault] * 3


async def test_the_error_of_a_release_that_nobody_awaits_is_logged(make_pool, caplog):
    pool = make_pool(
        Thing,
        before_release=styled("async", lambda thing: False),
        destructor=styled("async", raising(ValueError("stuck"))),
    )
    pool.release(await pool.acquire())
    await settle()
    assert "stuck" in caplog.text


# -- release: order ------------------------------------------------------------------------------


class Diary(RecordingStrategy):
    """A strategy and hooks that write down what they see of the pool."""

    pool: cenote.Pool

    def __init__(self, verdict):
        super().__init__()
        self.verdict = verdict
        self.lines = []

    def write(self, what):
        pool = self.pool
        self.lines.append((what, pool.active_count, pool.idle_count, pool.waiting_count))

    def before_release(self, thing):
        self.write("hook")
        return self.verdict

    def destructor(self, thing):
        self.write("destructor")

    def report_success(self, source):
        self.write("success")

    def report_failure(self, source, error):
        self.write("failure")


@pytest.mark.parametrize("kind", STYLES)
async def test_an_accepted_release_asks_hook_then_strategy_then_idles(make_pool, kind):
    diary = Diary(True)
    pool = make_pool(Thing, before_release=styled(kind, diary.before_release), strategy=diary)
    diary.pool = pool
    await pool.release(await pool.acquire())
    diary.write("end")
    assert diary.lines == [("hook", 1, 0, 0), ("success", 1, 0, 0), ("end", 0, 1, 0)]


@pytest.mark.parametrize("kind", STYLES)
async def test_an_accepted_release_is_reported_before_the_hand_off(make_pool, kind):
    diary = Diary(True)
    pool = make_pool(
        Thing, before_release=styled(kind, diary.before_release), strategy=diary, max_size=1
    )
    diary.pool = pool
    thing = await pool.acquire()
    waiter = await started(obtain(pool))
    await pool.release(thing)
    diary.write("end")
    assert diary.lines == [("hook", 1, 0, 1), ("success", 1, 0, 1), ("end", 1, 0, 0)]
    assert await waiter is thing
    await pool.release(thing)


@pytest.mark.parametrize("kind", STYLES)
async def test_a_rejected_release_is_reported_before_the_destruction(make_pool, kind):
    diary = Diary(False)
    pool = make_pool(
        Thing,
        before_release=styled(kind, diary.before_release),
        destructor=styled(kind, diary.destructor),
        strategy=diary,
    )
    diary.pool = pool
    await pool.release(await pool.acquire())
    assert [line[0] for line in diary.lines] == ["hook", "failure", "destructor"]


async def test_a_released_resource_goes_to_the_oldest_waiter(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    first = await started(obtain(pool))
    second = await started(obtain(pool))
    pool.release(thing)
    await settle()
    assert (first.done(), second.done()) == (True, False)
    pool.release(thing)
    assert await second is thing
    pool.release(thing)


async def test_the_reference_of_the_caller_stays_valid(make_pool):
    pool = make_pool(lambda: {"open": True})
    resource = await pool.acquire()
    pool.release(resource)
    assert resource == {"open": True}
    assert await pool.acquire() is resource
    pool.release(resource)


# -- release: rejections -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
@pytest.mark.parametrize("verdict", [True, None, 0, "", [], 0.0])
async def test_everything_but_false_accepts(make_pool, kind, verdict):
    pool = make_pool(Thing, before_release=styled(kind, lambda thing: verdict))
    await pool.release(await pool.acquire())
    assert pool.idle_count == 1


@pytest.mark.parametrize("kind", STYLES)
async def test_a_rejection_by_false_is_a_pool_error(make_pool, kind):
    strategy = RecordingStrategy()
    pool = make_pool(
        Thing, before_release=styled(kind, lambda thing: False), strategy=strategy, name="shop"
    )
    await pool.release(await pool.acquire())
    [error], [source] = strategy.reports, strategy.sources
    assert source is pool
    assert isinstance(error, cenote.PoolError)
    assert "before_release" in str(error)
    assert "'shop'" in str(error)


@pytest.mark.parametrize("kind", STYLES)
async def test_what_the_hook_raised_is_the_failure_and_is_logged(make_pool, kind, caplog):
    strategy, fault = RecordingStrategy(), OSError("broken wire")
    pool = make_pool(Thing, before_release=styled(kind, raising(fault)), strategy=strategy)
    await pool.release(await pool.acquire())
    assert (strategy.reports, strategy.sources) == ([fault], [pool])
    assert "broken wire" in caplog.text
    assert {recorded.name for recorded in caplog.records} == {"cenote"}
    assert pool.count == 0


@pytest.mark.virtual_time
async def test_a_hook_that_takes_too_long_rejects(make_pool):
    strategy, destroyed = RecordingStrategy(), []
    pool = make_pool(
        Thing,
        before_release=Gate(),
        destructor=destroyed.append,
        strategy=strategy,
        hook_timeout=3.0,
    )
    thing = await pool.acquire()
    pool.release(thing)
    await advance(2.9)
    assert destroyed == []
    await advance(0.1)
    assert destroyed == [thing]
    [error] = strategy.reports
    assert isinstance(error, cenote.PoolError)
    assert isinstance(error, TimeoutError)
    assert "before_release" in str(error)


@pytest.mark.parametrize("factory_kind", STYLES)
@pytest.mark.parametrize("kind", STYLES)
async def test_a_rejection_frees_a_slot_for_the_oldest_waiter(make_pool, kind, factory_kind):
    things, verdicts = Things(), [False]
    pool = make_pool(
        styled(factory_kind, things),
        before_release=styled(kind, lambda thing: verdicts.pop() if verdicts else True),
        max_size=1,
    )
    old = await pool.acquire()
    first = await started(obtain(pool))
    second = await started(obtain(pool))
    await pool.release(old)
    new = await first
    assert things.made == [old, new]
    assert not second.done()
    await pool.release(new)
    assert await second is new
    await pool.release(new)


async def test_a_rejection_is_counted_and_sent_as_an_event(make_pool):
    pool = make_pool(Thing, before_release=lambda thing: False)
    thing = await pool.acquire()
    events = recorded(pool)
    pool.release(thing)
    kinds = [(event.kind, event.resource) for event in events]
    assert kinds == [("released", thing), ("rejected", thing), ("destroyed", thing)]
    assert pool.stats().rejected == 1


# -- what is not out -----------------------------------------------------------------------------


class Equal:
    """All of them are equal."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


def foreign(pool, thing):
    return Equal()


def released(pool, thing):
    pool.release(thing)
    return thing


def discarded(pool, thing):
    pool.discard(thing)
    return thing


def nothing(pool, thing):
    return None


@pytest.mark.parametrize("verb", ["release", "discard"])
@pytest.mark.parametrize("what", [foreign, released, discarded, nothing])
async def test_what_is_not_out_cannot_come_back(make_pool, verb, what):
    seen, strategy, destroyed = [], RecordingStrategy(), []
    pool = make_pool(Equal, before_release=seen.append, destructor=destroyed.append, name="shop")
    other, thing = await pool.acquire(), await pool.acquire()
    resource = what(pool, thing)
    pool.strategy = strategy
    before, events = (pool.stats(), len(seen), len(destroyed)), recorded(pool)
    with pytest.raises(cenote.NotAcquiredError, match=rf"'shop'.*cannot {verb}"):
        getattr(pool, verb)(resource)
    assert (pool.stats(), len(seen), len(destroyed)) == before
    assert (strategy.reports, events) == ([], [])
    for holder in pool.holders():
        pool.release(holder.resource)
    assert resource is not other


def test_not_acquired_error_is_also_a_value_error():
    assert issubclass(cenote.NotAcquiredError, cenote.PoolError)
    assert issubclass(cenote.NotAcquiredError, ValueError)


async def test_a_second_release_is_refused_during_the_first(make_pool):
    hook = Gate()
    pool = make_pool(Thing, before_release=hook)
    thing = await pool.acquire()
    operation = pool.release(thing)
    with pytest.raises(cenote.NotAcquiredError):
        pool.release(thing)
    await settle()
    assert len(hook.calls) == 1
    hook.calls[0].set_result(True)
    await operation
    assert pool.idle_count == 1


async def test_the_resource_of_another_pool_is_foreign(make_pool):
    one, other = make_pool(Thing), make_pool(Thing)
    thing = await one.acquire()
    await other.open()
    with pytest.raises(cenote.NotAcquiredError):
        other.release(thing)
    assert one.active_count == 1
    one.release(thing)


async def test_a_resource_owed_to_a_waiter_is_not_out(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.release(thing)
    with pytest.raises(cenote.NotAcquiredError):
        pool.release(thing)
    assert await waiter is thing
    pool.release(thing)


# -- identical and hostile resources -------------------------------------------------------------


async def hold(pool, leave, verb="release"):
    resource = await pool.acquire()
    await leave.wait()
    getattr(pool, verb)(resource)


def holding(pool):
    return sorted(holder.task for holder in pool.holders())


@pytest.mark.parametrize("verb", ["release", "discard"])
@pytest.mark.parametrize("leaver", ["a", "b", "c"])
async def test_the_own_lease_of_identical_resources_comes_back(make_pool, verb, leaver):
    pool = make_pool(lambda: 42)
    events = {name: asyncio.Event() for name in "abc"}
    tasks = {}
    for name, event in events.items():
        tasks[name] = asyncio.create_task(hold(pool, event, verb), name=name)
        await settle()
    events[leaver].set()
    await tasks[leaver]
    assert holding(pool) == sorted({"a", "b", "c"} - {leaver})
    for event in events.values():
        event.set()
    await asyncio.gather(*tasks.values())
    assert pool.active_count == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("verb", ["release", "discard"])
async def test_the_oldest_foreign_lease_of_identical_resources_comes_back(make_pool, verb):
    pool = make_pool(lambda: 42)
    events = {name: asyncio.Event() for name in "abc"}
    tasks = []
    for name, event in events.items():
        tasks.append(asyncio.create_task(hold(pool, event), name=name))
        await advance(1)
    getattr(pool, verb)(42)
    assert holding(pool) == ["b", "c"]
    getattr(pool, verb)(42)
    assert holding(pool) == ["c"]
    getattr(pool, verb)(42)
    with pytest.raises(cenote.NotAcquiredError):
        getattr(pool, verb)(42)
    for event in events.values():
        event.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in results] == [cenote.NotAcquiredError] * 3


async def test_leaving_a_block_releases_its_own_lease_of_identical_resources(make_pool):
    pool = make_pool(lambda: 42)

    async def block(leave):
        async with pool.acquire():
            await leave.wait()

    events = {name: asyncio.Event() for name in "abc"}
    tasks = {}
    for name, event in events.items():
        tasks[name] = asyncio.create_task(block(event), name=name)
        await settle()
    events["b"].set()
    await tasks["b"]
    assert holding(pool) == ["a", "c"]
    events["a"].set()
    await tasks["a"]
    assert holding(pool) == ["c"]
    events["c"].set()
    await tasks["c"]


class Hostile:
    """Whoever asks it anything has lost."""

    def refuse(self, *_):
        raise AssertionError("a resource is told by its identity alone")

    __eq__ = __ne__ = __lt__ = __hash__ = __bool__ = __len__ = refuse
    __repr__ = __str__ = __iter__ = __contains__ = __getattr__ = refuse


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", STYLES)
async def test_nothing_is_asked_of_a_resource(make_pool, kind, caplog):
    accept = styled(kind, lambda resource: None)
    verdicts = [False]
    pool = make_pool(
        styled(kind, Hostile),
        destructor=accept,
        healthcheck=accept,
        before_acquire=styled("sync", lambda resource: None),
        before_release=styled(kind, lambda resource: verdicts.pop() if verdicts else None),
        min_size=1,
        max_size=2,
        healthcheck_interval=10.0,
        max_lifetime=100.0,
        max_idle=15.0,
        hold_warning=1.0,
        strategy=RecordingStrategy(),
    )
    events = recorded(pool)
    await pool.open()
    first, second = await pool.acquire(), await pool.acquire()
    waiter = await started(obtain(pool))
    await advance(2)
    await pool.release(first)
    with pytest.raises(cenote.NotAcquiredError):
        pool.release(first)
    await pool.discard(second, OSError("down"))
    await pool.release(await waiter)
    async with pool.acquire():
        assert len(pool.holders()) == 1
    tried = pool.try_acquire()
    pool.release(tried)
    await advance(200)
    await pool.retire()
    assert {event.kind for event in events} >= {"acquired", "released", "destroyed", "held_long"}
    assert "told by its identity" not in caplog.text
    await pool.close()


# -- discard -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
async def test_discard_destroys_without_asking_before_release(make_pool, kind):
    seen, destroyed = [], []
    pool = make_pool(Thing, before_release=seen.append, destructor=styled(kind, destroyed.append))
    thing = await pool.acquire()
    await pool.discard(thing)
    assert destroyed == [thing]
    assert seen == []
    assert pool.count == 0
    assert pool.stats().released == 1


async def test_a_sync_discard_has_happened_when_it_returns(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append)
    thing = await pool.acquire()
    pool.discard(thing)
    assert destroyed == [thing]


async def test_discard_reports_an_error_to_the_strategy(make_pool):
    strategy, fault = RecordingStrategy(), OSError("reset by peer")
    pool = make_pool(Thing, strategy=strategy)
    pool.discard(await pool.acquire(), fault)
    pool.discard(await pool.acquire(), error=fault)
    assert (strategy.reports, strategy.sources) == ([fault] * 2, [pool] * 2)


async def test_discard_without_an_error_reports_nothing(make_pool):
    strategy = RecordingStrategy()
    pool = make_pool(Thing, strategy=strategy)
    pool.discard(await pool.acquire())
    assert strategy.reports == []


async def test_discard_with_a_cancellation_reports_nothing(make_pool):
    strategy = RecordingStrategy()
    pool = make_pool(Thing, strategy=strategy)
    pool.discard(await pool.acquire(), asyncio.CancelledError())
    assert strategy.reports == []


async def test_discard_refuses_what_is_no_error(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    with pytest.raises(TypeError, match="error"):
        pool.discard(thing, "broken")
    pool.release(thing)


@pytest.mark.parametrize("kind", STYLES)
async def test_a_discard_frees_a_slot_for_the_oldest_waiter(make_pool, kind):
    pool = make_pool(styled(kind, Thing), max_size=1)
    old = await pool.acquire()
    first = await started(obtain(pool))
    second = await started(obtain(pool))
    pool.discard(old)
    new = await first
    assert new is not old
    assert not second.done()
    pool.release(new)
    pool.release(await second)


# -- retire --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
async def test_retire_destroys_idle_now_and_busy_on_release(make_pool, kind):
    things, destroyed = Things(), []
    pool = make_pool(things, destructor=styled(kind, destroyed.append), max_size=3)
    busy, *others = [await pool.acquire() for _ in range(3)]
    for thing in others:
        pool.release(thing)
    await pool.retire()
    assert destroyed == others
    assert pool.count == 1
    await pool.release(busy)
    assert destroyed == [*others, busy]


async def test_a_sync_retire_has_happened_when_it_returns(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append)
    pool.release(thing := await pool.acquire())
    pool.retire()
    assert destroyed == [thing]


async def test_an_async_retire_goes_on_if_nobody_awaits_it(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, min_size=2)
    await pool.open()
    pool.resize(min_size=0)
    pool.retire()
    await settle()
    assert (pool.count, pool.stats().destroying) == (0, 2)
    for call in destructor.calls:
        call.set_result(None)
    await settle()
    assert pool.stats().destroying == 0


async def test_what_is_made_after_retire_lives(make_pool):
    pool = make_pool(Thing)
    await pool.open()
    pool.retire()
    thing = await pool.acquire()
    pool.release(thing)
    assert await pool.acquire() is thing
    pool.release(thing)


@pytest.mark.parametrize("kind", STYLES)
async def test_a_waiter_is_not_given_a_retired_resource(make_pool, kind):
    things = Things()
    pool = make_pool(styled(kind, things), max_size=1)
    old = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.retire()
    pool.release(old)
    new = await waiter
    assert things.made == [old, new]
    pool.release(new)


@pytest.mark.parametrize("kind", [None, *STYLES])
async def test_a_creation_under_way_belongs_to_the_old_generation(make_pool, kind):
    factory, destroyed = Gate(), []
    destructor = None if kind is None else styled(kind, destroyed.append)
    pool = make_pool(factory, destructor=destructor, max_size=1)
    waiter = await started(obtain(pool))
    pool.retire()
    old, new = Thing(), Thing()
    factory.calls[0].set_result(old)
    await settle()
    assert not waiter.done()
    factory.calls[1].set_result(new)
    assert await waiter is new
    assert destroyed == ([] if kind is None else [old])
    pool.release(new)


async def test_open_goes_on_when_its_creations_are_retired(make_pool):
    factory = Gate()
    pool = make_pool(factory, min_size=1)
    opening = await started(pool.open())
    pool.retire()
    factory.calls[0].set_result(old := Thing())
    await settle()
    assert not opening.done()
    factory.calls[1].set_result(new := Thing())
    await opening
    assert pool.try_acquire() is new
    assert new is not old
    pool.release(new)


async def test_a_resource_in_before_release_is_retired_afterwards(make_pool):
    hook, destroyed = Gate(), []
    pool = make_pool(Thing, before_release=hook, destructor=destroyed.append)
    operation = pool.release(thing := await pool.acquire())
    await settle()
    pool.retire()
    assert destroyed == []
    hook.calls[0].set_result(True)
    await operation
    assert destroyed == [thing]


async def test_retire_gives_the_freed_slots_to_the_waiters(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, max_size=1)
    pool.release(await pool.acquire())
    pool.retire()
    waiter = await started(obtain(pool))
    assert not waiter.done()
    destructor.calls[0].set_result(None)
    pool.release(await waiter)
    closing = await started(pool.close())
    destructor.calls[1].set_result(None)
    await closing


# -- resize --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STYLES)
async def test_new_room_serves_the_waiters_at_once(make_pool, kind):
    pool = make_pool(styled(kind, Thing), max_size=1)
    first = await pool.acquire()
    waiters = [await started(obtain(pool)) for _ in range(3)]
    pool.resize(max_size=3)
    await settle()
    assert [waiter.done() for waiter in waiters] == [True, True, False]
    for thing in (first, waiters[0].result(), waiters[1].result()):
        pool.release(thing)
    pool.release(await waiters[2])
    assert pool.max_size == 3


@pytest.mark.parametrize("kind", STYLES)
async def test_surplus_idle_resources_go_now(make_pool, kind):
    destroyed = []
    pool = make_pool(Thing, destructor=styled(kind, destroyed.append), min_size=3)
    await pool.open()
    await pool.resize(min_size=0, max_size=1)
    assert len(destroyed) == 2
    assert pool.idle_count == 1


async def test_surplus_busy_resources_go_on_return(make_pool):
    destroyed = []
    pool = make_pool(Thing, destructor=destroyed.append, max_size=3)
    things = [await pool.acquire() for _ in range(3)]
    pool.resize(max_size=1)
    assert destroyed == []
    for thing in things:
        pool.release(thing)
    assert destroyed == things[:2]
    assert pool.idle_count == 1


async def test_surplus_resources_do_not_go_to_waiters(make_pool):
    pool = make_pool(Thing, max_size=2)
    first, second = await pool.acquire(), await pool.acquire()
    waiter = await started(obtain(pool))
    pool.resize(max_size=1)
    pool.release(first)
    await settle()
    assert not waiter.done()
    pool.release(second)
    assert await waiter is second
    pool.release(second)


async def test_idle_resources_go_before_busy_ones(make_pool):
    pool = make_pool(Thing, max_size=2)
    busy, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    pool.resize(max_size=1)
    assert (pool.active_count, pool.idle_count) == (1, 0)
    pool.release(busy)
    assert pool.idle_count == 1


async def test_a_creation_under_way_counts_as_surplus(make_pool):
    factory = Gate()
    pool = make_pool(factory, max_size=2)
    waiters = [await started(obtain(pool)) for _ in range(2)]
    pool.resize(max_size=1)
    for call in factory.calls:
        call.set_result(Thing())
    await settle()
    assert pool.count == 1
    assert [waiter.done() for waiter in waiters] == [True, False]
    pool.release(waiters[0].result())
    pool.release(await waiters[1])


async def test_a_larger_min_size_is_filled(make_pool):
    pool = make_pool(Thing)
    await pool.open()
    pool.resize(min_size=3)
    await settle()
    assert (pool.idle_count, pool.min_size) == (3, 3)


@pytest.mark.parametrize(
    ("sizes", "error", "name"),
    [
        ({"min_size": 4}, ValueError, "min_size"),
        ({"min_size": -1}, ValueError, "min_size"),
        ({"max_size": 0}, ValueError, "max_size"),
        ({"max_size": 1}, ValueError, "min_size"),
        ({"max_size": 1.5}, TypeError, "max_size"),
    ],
)
async def test_bad_sizes_change_nothing(make_pool, sizes, error, name):
    pool = make_pool(Thing, min_size=2, max_size=3)
    await pool.open()
    with pytest.raises(error, match=name):
        pool.resize(**sizes)
    assert (pool.min_size, pool.max_size, pool.count) == (2, 3, 2)


# -- max_uses ------------------------------------------------------------------------------------


async def test_max_uses_is_how_often_it_is_handed_out(make_pool):
    things, destroyed = Things(), []
    pool = make_pool(things, destructor=destroyed.append, max_uses=2, max_size=1)
    first = await pool.acquire()
    pool.release(first)
    assert pool.try_acquire() is first
    assert destroyed == []
    pool.release(first)
    assert destroyed == [first]
    assert await pool.acquire() is things.made[1]
    pool.release(things.made[1])


@pytest.mark.parametrize("kind", STYLES)
async def test_a_waiter_gets_a_new_one_for_the_used_up(make_pool, kind):
    things = Things()
    pool = make_pool(styled(kind, things), max_uses=1, max_size=1)
    old = await pool.acquire()
    waiter = await started(obtain(pool))
    pool.release(old)
    new = await waiter
    assert things.made == [old, new]
    pool.release(new)


# -- destructors that fail -----------------------------------------------------------------------


def reject(pool, thing):
    return pool.release(thing)


def discard(pool, thing):
    return pool.discard(thing)


@pytest.mark.parametrize("way", [reject, discard])
@pytest.mark.parametrize("kind", STYLES)
async def test_what_a_destructor_raises_is_raised_logged_and_sent(make_pool, way, kind, caplog):
    fault = ValueError("will not go")
    pool = make_pool(
        Thing, before_release=lambda thing: False, destructor=styled(kind, raising(fault))
    )
    thing = await pool.acquire()
    events = recorded(pool)
    with pytest.raises(ValueError, match="will not go"):
        await way(pool, thing)
    assert [event.error for event in events if event.kind == "destroyed"] == [fault]
    [logged] = [line for line in caplog.records if line.exc_info and line.exc_info[1] is fault]
    assert (logged.name, logged.levelno) == ("cenote", logging.ERROR)
    assert (pool.count, pool.stats().destroying) == (0, 0)


@pytest.mark.parametrize("way", [reject, discard])
async def test_a_sync_destructor_raises_from_the_call_itself(make_pool, way):
    pool = make_pool(
        Thing, before_release=lambda thing: False, destructor=raising(ValueError("no"))
    )
    thing = await pool.acquire()
    with pytest.raises(ValueError, match="no"):
        way(pool, thing)
    assert pool.count == 0


@pytest.mark.parametrize("kind", STYLES)
async def test_leaving_a_block_raises_what_release_would_raise(make_pool, kind):
    destructor = styled(kind, raising(ValueError("will not go")))
    pool = make_pool(Thing, max_uses=1, destructor=destructor)
    with pytest.raises(ValueError, match="will not go"):
        async with pool.acquire():
            pass
    assert pool.count == 0


@pytest.mark.parametrize("kind", STYLES)
async def test_the_waiter_is_served_though_the_destructor_fails(make_pool, kind):
    faults = [ValueError("will not go")]

    def destructor(thing):
        if faults:
            raise faults.pop()

    pool = make_pool(Thing, destructor=styled(kind, destructor), max_size=1)
    thing = await pool.acquire()
    waiter = await started(obtain(pool))
    with pytest.raises(ValueError, match="will not go"):
        await pool.discard(thing)
    pool.release(await waiter)


@pytest.mark.parametrize("kind", STYLES)
async def test_acquire_never_raises_what_a_destructor_raised(make_pool, kind, caplog):
    faults = [ValueError("will not go")]

    def destructor(thing):
        if faults:
            raise faults.pop()

    pool = make_pool(
        Thing,
        before_acquire=styled(kind, lambda thing: False),
        destructor=styled(kind, destructor),
        max_size=1,
    )
    old = await pool.acquire()
    pool.release(old)
    new = await pool.acquire()
    assert new is not old
    assert "will not go" in caplog.text
    pool.release(new)


async def test_try_acquire_never_raises_what_a_destructor_raised(make_pool):
    faults = [ValueError("will not go")]

    def destructor(thing):
        if faults:
            raise faults.pop()

    pool = make_pool(Thing, before_acquire=lambda thing: False, destructor=destructor, max_size=1)
    pool.release(old := await pool.acquire())
    new = pool.try_acquire()
    assert new is not None
    assert new is not old
    pool.release(new)


# -- destructors that take their time ------------------------------------------------------------


async def test_a_slot_is_freed_only_when_the_destructor_is_done(make_pool):
    destructor = Gate()
    pool = make_pool(Thing, destructor=destructor, max_size=1)
    pool.discard(await pool.acquire())
    waiter = await started(obtain(pool))
    assert (pool.count, pool.stats().destroying, waiter.done()) == (0, 1, False)
    assert pool.try_acquire() is None
    destructor.calls[0].set_result(None)
    thing = await waiter
    assert (pool.count, pool.stats().destroying) == (1, 0)
    pool.release(thing)
    closing = await started(pool.close())
    destructor.calls[1].set_result(None)
    await closing


@pytest.mark.parametrize("kind", STYLES)
async def test_the_backend_never_sees_more_than_max_size(make_pool, kind):
    alive, peak = set(), 0

    def factory():
        nonlocal peak
        thing = Thing()
        alive.add(thing)
        peak = max(peak, len(alive))
        return thing

    async def destructor(thing):
        for _ in range(3):
            await asyncio.sleep(0)
        alive.discard(thing)

    pool = make_pool(styled(kind, factory), destructor=destructor, max_size=2)

    async def use(number):
        thing = await pool.acquire()
        await asyncio.sleep(0)
        pool.release(thing) if number % 3 else pool.discard(thing)

    await asyncio.gather(*(use(number) for number in range(20)))
    await settle()
    assert peak == 2


@pytest.mark.virtual_time
@pytest.mark.parametrize("stubborn", [False, True])
async def test_an_abandoned_destructor_raises_nothing_and_frees_its_slot(
    make_pool, stubborn, caplog
):
    end = asyncio.Event()

    async def destructor(thing):
        if end.is_set():
            return
        try:
            await end.wait()
        except asyncio.CancelledError:
            if not stubborn:
                raise
            await end.wait()

    pool = make_pool(Thing, destructor=destructor, destructor_timeout=7.0, max_size=1)
    operation = pool.discard(await pool.acquire())
    waiter = await started(obtain(pool))
    await advance(6.9)
    assert not waiter.done()
    assert pool.stats().destroying == 1
    await advance(0.1)
    assert waiter.done()
    assert pool.stats().destroying == 0
    assert await operation is None
    assert "destructor" in caplog.text
    assert "destructor_timeout" in caplog.text
    end.set()
    pool.release(waiter.result())


@pytest.mark.virtual_time
async def test_what_an_abandoned_destructor_raises_later_disturbs_nobody(make_pool, caplog):
    end = asyncio.Event()

    async def destructor(thing):
        try:
            await end.wait()
        except asyncio.CancelledError:
            await end.wait()
            raise ValueError("too late") from None

    pool = make_pool(Thing, destructor=destructor, destructor_timeout=1.0, max_size=1)
    operation = pool.discard(await pool.acquire())
    await advance(1)
    await operation
    end.set()
    await settle()
    assert (pool.count, pool.stats().destroying) == (0, 0)
    assert "too late" in caplog.text
