"""What a release does, in which order, and what a rejection is."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Fatal,
    Gate,
    RecordingStrategy,
    Thing,
    Things,
    cancel,
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


@pytest.mark.parametrize(
    ("verb", "hook"), [("release", "before_release"), ("discard", "destructor")]
)
async def test_an_async_hook_goes_on_if_its_awaiter_is_cancelled(make_pool, verb, hook):
    gate = Gate()
    pool = make_pool(Thing, **{hook: gate})
    thing = await pool.acquire()

    async def give_back():
        await getattr(pool, verb)(thing)

    task = await started(give_back())
    await cancel(task)
    assert not gate.calls[0].done()
    assert pool.stats().destroying == (verb == "discard")
    gate.calls[0].set_result(True)
    await settle()
    assert (pool.stats().destroying, pool.idle_count) == (0, verb == "release")
    gate.open()


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


async def test_a_hook_that_ends_cancelled_ends_its_release_once(make_pool):
    async def examine(thing):
        raise asyncio.CancelledError

    pool = make_pool(Thing, before_release=examine)
    operation = pool.release(await pool.acquire())
    await settle()
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await operation


async def test_an_unawaited_release_logs_a_base_exception(make_pool, caplog):
    async def before_release(thing):
        await asyncio.sleep(0)
        raise Fatal("lost")

    pool = make_pool(Thing, before_release=before_release)
    pool.release(await pool.acquire())
    await settle()
    assert pool.count == 0
    (record,) = caplog.records
    assert "before_release failed" in record.message
    assert isinstance(record.exc_info[1], Fatal)
