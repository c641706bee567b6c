"""Finalizers, clocks, signals and deep stacks in the middle of a step."""

import asyncio
import gc
import inspect
import logging
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from unittest import mock

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import Thing, acquiring, outcome
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.own_loop, pytest.mark.untraced]


@pytest.fixture(autouse=True)
def quick():
    """Many tests here collect again and again: what other tests left is not looked at."""
    gc.collect()
    gc.freeze()


class Cycle:
    """Garbage that only the collector finds; then it does something."""

    def __init__(self, action):
        self.me = self
        self.action = action

    def __del__(self):
        with suppress(RuntimeError, cenote.PoolError):
            self.action()


def lent(pool):
    """The resources that somebody holds."""
    return [holder.resource for holder in pool.holders()]


async def give_all_back(pool):
    for _ in range(20):
        for resource in lent(pool):
            pool.release(resource)
        await settle()


def whole(pool):
    stats = pool.stats()
    counts = (stats.active, stats.waiting, stats.creating, stats.destroying, pool.waiting_count)
    assert counts == (0, 0, 0, 0, 0), stats
    assert stats.count <= pool.max_size
    assert not pool._engine.core.in_hand()


ACTIONS = {
    "release": lambda pool: [pool.release(resource) for resource in lent(pool)[-1:]],
    "discard": lambda pool: [pool.discard(resource) for resource in lent(pool)[-1:]],
    "try_acquire": lambda pool: pool.try_acquire(),
    "retire": lambda pool: pool.retire(),
    "resize": lambda pool: pool.resize(max_size=1 + pool.max_size % 3),
    "breaker": lambda pool: (pool.deactivate(), pool.activate()),
    "acquire": lambda pool: asyncio.ensure_future(outcome(pool.acquire(timeout=1))),
}


def collecting_after(allocations, function):
    """Call it, with a collection at the n-th allocation of an object that the collector knows."""
    before = gc.get_threshold()
    gc.set_threshold(gc.get_count()[0] + allocations, 1000, 1000)
    gc.enable()
    try:
        return function()
    finally:
        gc.disable()
        gc.set_threshold(*before)


@pytest.fixture
def no_collector():
    """It runs where the test says so, and nowhere else."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


STEPS = {
    "release": lambda pool, thing: pool.release(thing),
    "discard": lambda pool, thing: pool.discard(thing),
    "try_acquire": lambda pool, _: pool.try_acquire(),
    "resize": lambda pool, _: pool.resize(max_size=3),
    "retire": lambda pool, _: pool.retire(),
}


@pytest.mark.parametrize("waiters", [0, 3])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("step", STEPS)
async def test_a_finalizer_at_any_allocation_loses_nothing(no_collector, step, action, waiters):
    """Nothing is lent twice, nothing is lost, and nobody sees an error that is not theirs."""
    errors = []

    def act():
        try:
            ACTIONS[action](pool)
        except cenote.NotAcquiredError:
            pass  # handed to somebody who has not run since
        except Exception as error:
            errors.append(error)

    for allocations in range(1, 40):
        pool = cenote.Pool(Thing, max_size=3)
        things = [await pool.acquire() for _ in range(3)]
        if not waiters:
            await pool.release(things.pop())  # one is idle
        if step == "try_acquire":
            await pool.discard(things.pop())  # there is room for one
        waiting = [acquiring(pool, timeout=5) for _ in range(waiters)]
        await settle()
        garbage = Cycle(act)
        del garbage
        with suppress(cenote.NotAcquiredError):  # what has just been released
            collecting_after(allocations, partial(STEPS[step], pool, things[0]))
        stats, holding = pool.stats(), lent(pool)
        assert stats.count + stats.creating + stats.destroying <= 3
        assert len(holding) == len({id(each) for each in holding})
        await settle()
        gc.collect()
        await settle()
        for _ in range(waiters + 2):
            await give_all_back(pool)
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        refused = cenote.ServiceUnavailableError
        assert all(isinstance(each, Thing | refused) for each in outcomes), outcomes
        assert not errors
        whole(pool)
        await pool.close()


async def test_a_log_handler_acts_after_the_step(make_pool, caplog):
    pool = make_pool(Thing, max_size=1, before_release=lambda thing: 1 / 0)
    asked = []

    class Handler(caplog.handler.__class__):
        def emit(self, record):
            asked.append(pool.try_acquire())
            pool.resize(max_size=2)
            asked.append(pool.max_size)

    handler = Handler()
    logging.getLogger("cenote").addHandler(handler)
    try:
        await pool.release(await pool.acquire())
    finally:
        logging.getLogger("cenote").removeHandler(handler)
    assert asked == [None, 1]
    await settle()
    assert pool.max_size == 2
    whole(pool)


@pytest.mark.real_time("the clock of the loop is the test's own")
def test_a_clock_that_empties_the_pool_is_harmless():
    class Loop(asyncio.SelectorEventLoop):
        mischief = None

        def time(self):
            if self.mischief is not None:
                self.mischief()
            return super().time()

    loop = Loop()

    async def main():
        pool = cenote.Pool(Thing, max_size=3)
        for thing in [await pool.acquire() for _ in range(3)]:
            pool.release(thing)

        def empty():
            loop.mischief = None
            pool.retire()
            gc.collect()

        for way in ("try", "await", "release"):
            thing = pool.try_acquire() if way == "release" else None
            loop.mischief = empty
            if way == "try":
                thing = pool.try_acquire()
            elif way == "await":
                thing = await pool.acquire()
            loop.mischief = None
            if thing is not None:
                await pool.release(thing)
            await asyncio.sleep(0)
        whole(pool)
        await pool.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.virtual_time
async def test_a_task_whose_hash_acquires_is_harmless(make_pool):
    """More of them than the heap of deadlines has room for at first."""
    loop = asyncio.get_running_loop()
    pool = make_pool(Thing, max_size=1)
    held = await pool.acquire()
    driven = []

    class Task(asyncio.Task):
        depth = 0

        def __hash__(self):
            if Task.depth < 20 and asyncio.current_task() is self:
                Task.depth += 1
                steps = pool.acquire(timeout=5).__await__()
                driven.append(steps)
                steps.send(None)
            return super().__hash__()

    async def wait():
        with pytest.raises(cenote.AcquireTimeoutError):
            await pool.acquire(timeout=3)

    task = Task(wait(), loop=loop)
    await settle()
    await advance(4)
    await task
    for steps in driven:
        steps.close()
    await pool.release(held)
    whole(pool)


ROOM = 130  # frames


def with_little_room(function, depth):
    """Call it so many frames down; whether those that are left were too few."""

    def dive(levels):
        return function() if levels == 0 else dive(levels - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + ROOM)
    try:
        dive(depth)
    except RecursionError:
        return True
    finally:
        sys.setrecursionlimit(limit)
    return False


HOOKS = {
    "plain": {},
    "hooks": {"before_acquire": lambda _: True, "before_release": lambda _: True},
    "destructor": {"destructor": lambda _: None, "max_uses": 1},
    "hold_warning": {"hold_warning": 5.0},
}


@pytest.mark.thorough
@pytest.mark.parametrize("options", HOOKS.values(), ids=HOOKS)
@pytest.mark.parametrize("subscribed", [False, True])
async def test_a_stack_that_is_too_deep_loses_nothing(options, subscribed):
    pool = cenote.Pool(Thing, max_size=2, **options)
    if subscribed:
        pool.subscribe(lambda event: None)
    await pool.release(await pool.acquire())

    def release():
        for resource in lent(pool):
            with suppress(cenote.NotAcquiredError):  # handed to somebody who has not run since
                pool.release(resource)

    def discard():
        for resource in lent(pool):
            pool.discard(resource)

    def drive():
        with suppress(StopIteration, cenote.AcquireTimeoutError, cenote.ServiceUnavailableError):
            pool.acquire(timeout=0).__await__().send(None)

    failed = 0
    for function in (pool.try_acquire, release, drive, discard, pool.retire, pool.deactivate):
        for depth in range(ROOM - 50, ROOM):
            # Nobody waits: a future whose set_result() is broken off never wakes its task.
            while function in (release, discard) and pool.try_acquire() is not None:
                pass
            failed += with_little_room(function, depth)
            await settle()
            pool.activate()
            await give_all_back(pool)
            whole(pool)
    assert failed
    await pool.close()


class Interrupt(BaseException):
    pass


def interrupting(function, number):
    """Raise in the n-th call that Python makes inside the package, as a signal handler may."""
    calls = 0
    inside = cenote.__file__.rpartition("/")[0]

    def profile(frame, event, argument):
        nonlocal calls
        if frame.f_code.co_filename.startswith(inside) and event in ("call", "c_return"):
            calls += 1
            if calls == number:
                sys.setprofile(None)
                raise Interrupt

    sys.setprofile(profile)
    try:
        return function()
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("options", HOOKS.values(), ids=HOOKS)
@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("subscribed", [False, True])
async def test_an_interrupt_at_any_call_loses_nothing(options, contended, subscribed):
    pool = cenote.Pool(Thing, max_size=2, **options)
    if subscribed:
        pool.subscribe(lambda event: None)

    def release():
        for resource in lent(pool)[:1]:
            pool.release(resource)

    def discard():
        for resource in lent(pool)[:1]:
            pool.discard(resource)

    def drive():
        with suppress(StopIteration, cenote.AcquireTimeoutError, cenote.ServiceUnavailableError):
            pool.acquire(timeout=0).__await__().send(None)

    interrupted = 0
    for function in (drive, release, pool.try_acquire, discard, pool.retire, pool.deactivate):
        for number in range(1, 80):
            waiting = []
            if contended:
                waiting = [acquiring(pool, timeout=5) for _ in range(3)]
                await settle()
            elif function in (release, discard):
                pool.try_acquire()
            try:
                interrupting(function, number)
            except Interrupt:
                interrupted += 1
            else:
                number = 1000
            await settle()
            pool.activate()
            await give_all_back(pool)
            await asyncio.gather(*waiting, return_exceptions=True)
            await give_all_back(pool)
            whole(pool)
            if number == 1000:
                break
    assert interrupted or cenote.core == "native"
    await pool.close()


@pytest.mark.parametrize("options", HOOKS.values(), ids=HOOKS)
async def test_an_interrupted_try_acquire_holds_nothing(options):
    """Its caller has no resource, so that nobody could give it back."""
    for number in range(1, 80):
        pool = cenote.Pool(Thing, max_size=1, **options)
        await pool.release(await pool.acquire())
        try:
            resource = interrupting(pool.try_acquire, number)
        except Interrupt:
            await settle()
            assert pool.active_count == 0
            await pool.close()
        else:
            if resource is not None:
                pool.release(resource)
            await pool.close()
            return


async def test_a_close_after_an_interrupted_close_works():
    for number in range(1, 60):
        pool = cenote.Pool(Thing, max_size=2, destructor=lambda _: None)
        await pool.release(await pool.acquire())
        closing = pool.close()

        def close(closing=closing):
            with suppress(StopIteration):
                closing.send(None)

        try:
            interrupting(close, number)
        except (Interrupt, BaseExceptionGroup):
            await settle()
            await asyncio.wait_for(pool.close(), WAIT)
            whole(pool)
            assert pool.closed
        else:
            closing.close()
            await pool.close()
            break
    assert number > 5


@pytest.mark.real_time("a signal comes when it comes")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="setitimer() is of Unix")
def test_signals_that_raise_lose_nothing():
    """For a while: a signal every fraction of a millisecond, whose handler raises."""
    loop = asyncio.new_event_loop()
    pool = cenote.Pool(Thing, max_size=2, hold_warning=60.0)
    pool.subscribe(lambda event: None)
    armed = False

    def handler(*_):
        nonlocal armed
        if armed:
            armed = False
            raise Interrupt

    async def work():
        nonlocal armed
        armed = True
        try:
            for _ in range(200):
                async with pool.acquire(timeout=5):
                    pass
        finally:
            armed = False

    async def rest():
        for _ in range(5):
            await asyncio.sleep(0)
        for resource in lent(pool):
            await pool.release(resource)
        for _ in range(5):
            await asyncio.sleep(0)

    before = signal.signal(signal.SIGALRM, handler)
    interrupted = 0
    try:
        for turn in range(60):
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + turn * 0.00003)
            with suppress(Interrupt):
                try:
                    loop.run_until_complete(work())
                except Interrupt:
                    interrupted += 1
                    raise
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            loop.run_until_complete(rest())
            whole(pool)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    loop.run_until_complete(pool.close())
    loop.close()


@pytest.mark.real_time("what is mocked is the real clock")
def test_a_mocked_clock_is_followed():
    now = time.monotonic()

    async def main():
        pool = cenote.Pool(Thing, max_size=1)
        thing = await pool.acquire()
        with mock.patch("time.monotonic", return_value=now + 1000.0):
            assert asyncio.get_running_loop().time() == now + 1000.0
            assert pool.holders()[0].seconds > 900
            await pool.release(thing)
            thing = await pool.acquire()
            assert pool.stats().max_hold_time > 900
            assert pool.holders()[0].seconds == 0
            with mock.patch("time.monotonic", return_value=now + 3000.0):
                await pool.release(thing)
            assert pool.stats().max_hold_time == pytest.approx(2000.0)
        with mock.patch("asyncio.base_events.time") as fake:
            fake.monotonic.return_value = now + 9000.0
            thing = await pool.acquire()
            assert pool.holders()[0].seconds == 0
            fake.monotonic.return_value = now + 9005.0
            assert pool.holders()[0].seconds == pytest.approx(5.0)
            await pool.release(thing)
        thing = await pool.acquire()
        assert pool.holders()[0].seconds < 100
        await pool.release(thing)
        await pool.close()

    asyncio.run(main())
