"""Steps that are broken off: what they have left undone is done, and only then is it looked for."""

import asyncio
import gc
import os
import sys

import pytest

import cenote
from cenote.pool import steps
from cenote.pool.claims import Claims
from cenote.pool.hooks import Hooks, HookTask
from cenote.pool.returns import Returns
from cenote.pool.waiter import Waiter
from cenote.testing import advance, check_ledger, settle
from tests.support.kit import Thing, acquiring, outcome, queued
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.own_loop, pytest.mark.untraced]  # no loop has a part in its steps


class Interrupt(BaseException):
    """As a signal handler raises it."""


@pytest.fixture
def tidyings(monkeypatch):
    """One entry for each time that a pool was looked through."""
    done, tidy = [], steps.tidy

    def counted(reference):
        done.append(reference)
        tidy(reference)

    monkeypatch.setattr(steps, "tidy", counted)
    return done


class Break:
    """Breaks off the next call of a method of a part of every pool, once it is armed."""

    def __init__(self, monkeypatch, part, method):
        self.armed = False
        whole = getattr(part, method)

        def broken(*args, **kwargs):
            if self.armed:
                self.armed = False
                raise Interrupt
            return whole(*args, **kwargs)

        monkeypatch.setattr(part, method, broken)


def hear_reports():
    """What the loop reports from here on: an interrupt in a callback is nobody's but the loop's."""
    reported = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, fault: reported.append(fault.get("exception")))
    return reported


def whole(pool):
    core = pool._engine.core
    counts = core.busy, core.waiting, core.granted_count, core.opening, core.closing, core.active
    assert counts == (0, 0, 0, 0, 0, 0)
    assert not core.in_hand()
    assert not pool._engine.hooks.tasks


# -- what is no break ----------------------------------------------------------------------------


async def test_an_ordinary_failure_asks_for_no_tidying(make_pool, tidyings):
    """That looks at every waiter and every slot: not for each acquire that a full pool refuses."""
    broken = []

    def make():
        if broken:
            raise OSError("down")
        return Thing()

    pool = make_pool(make, max_size=1, max_waiting=3)
    held, *waiting = await queued(pool, 3)
    for _ in range(5):
        with pytest.raises(cenote.AcquireTimeoutError):
            await pool.acquire(timeout=0)
        with pytest.raises(cenote.PoolOverloadedError):
            await pool.acquire(timeout=5)
        with pytest.raises(cenote.NotAcquiredError):
            await pool.release(Thing())
        await settle()
    pool.deactivate()
    for task in waiting:
        assert isinstance(await outcome(task), cenote.ServiceUnavailableError)
    with pytest.raises(cenote.ServiceUnavailableError):
        await pool.acquire()
    await settle()
    pool.activate()
    await pool.discard(held)
    broken.append(True)
    for _ in range(5):
        with pytest.raises(OSError, match="down"):
            await pool.acquire()
        await settle()
    assert tidyings == []
    broken.clear()
    await pool.release(await pool.acquire())


# -- what is broken off --------------------------------------------------------------------------


async def test_a_release_that_is_broken_off_wakes_the_next_waiter(tidyings, monkeypatch):
    """It was idle by then, and nothing was in hand any more."""
    interrupt = Break(monkeypatch, Returns, "expect")
    pool = cenote.Pool(Thing, max_size=1, max_idle=50.0)
    held, waiter = await queued(pool)
    interrupt.armed = True
    with pytest.raises(Interrupt):
        pool.release(held)
    assert await asyncio.wait_for(waiter, WAIT) is held
    assert len(tidyings) == 1
    await pool.release(held)
    whole(pool)
    await pool.close()


async def test_a_broken_off_cancellation_passes_its_grant_on(monkeypatch):
    interrupt = Break(monkeypatch, Claims, "interrupted")
    pool = cenote.Pool(Thing, max_size=1)
    held = await pool.acquire()
    first = pool.acquire().__await__()
    first.send(None)
    second = acquiring(pool)
    await settle()
    assert pool.waiting_count == 2
    pool.release(held)
    interrupt.armed = True
    with pytest.raises(Interrupt):
        first.throw(asyncio.CancelledError())
    await pool.release(await asyncio.wait_for(second, WAIT))
    await settle()
    whole(pool)
    await pool.close()


async def test_an_acquire_broken_off_between_steps_leaves_the_queue(monkeypatch):
    """Where it would suspend: it is in the queue by then, and nobody will drive it again."""

    async def make():
        return Thing()

    pool = cenote.Pool(make, max_size=2)  # there is room: the native core waits in Python, too
    held = await pool.acquire()

    def broken(waiting):
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(Waiter, "_future_of_wait", broken)
        with pytest.raises(Interrupt):
            pool.acquire().__await__().send(None)
    await settle()
    assert pool.waiting_count == 0
    await pool.release(held)
    await pool.release(await pool.acquire(timeout=0))
    whole(pool)
    await pool.close()


@pytest.mark.virtual_time
async def test_a_deadline_whose_step_is_broken_off_is_kept(monkeypatch):
    reported = hear_reports()
    interrupt = Break(monkeypatch, Claims, "timed_out")
    pool = cenote.Pool(Thing, max_size=1)
    held = await pool.acquire()
    waiter = acquiring(pool, timeout=3)
    await settle()
    interrupt.armed = True
    await advance(4)
    assert not interrupt.armed
    assert isinstance(await outcome(waiter), cenote.AcquireTimeoutError)
    await pool.release(held)
    whole(pool)
    await pool.close()
    assert [type(error) for error in reported] == [Interrupt]


async def answer(thing):
    await asyncio.sleep(0)
    return True


@pytest.mark.parametrize("hook", ["before_acquire", "before_release", "destructor"])
@pytest.mark.parametrize("where", ["_finish", "_deliver", "ended"])
async def test_a_hook_whose_answer_is_broken_off_keeps_nothing(monkeypatch, hook, where):
    """The slot is free, whoever waits is served, and whoever awaits the return goes on."""
    place = Hooks if where == "ended" else HookTask
    function, broken = getattr(place, where), []
    reported = hear_reports()

    def breaks(self, *args):
        if not broken and (place is Hooks or self.slot is not None):
            broken.append(True)
            raise Interrupt
        function(self, *args)

    pool = cenote.Pool(Thing, max_size=1, **{hook: answer})
    with monkeypatch.context() as patch:
        held, waiter = await queued(pool)
        patch.setattr(place, where, breaks)
        back = asyncio.ensure_future(
            pool.discard(held) if hook == "destructor" else pool.release(held)
        )
        thing = await asyncio.wait_for(waiter, WAIT)
        await outcome(asyncio.wait_for(back, WAIT))
        assert back.done()
        await pool.release(thing)
        await settle()
    assert broken
    whole(pool)
    await asyncio.wait_for(pool.close(), WAIT)
    assert pool.count == 0
    assert all(isinstance(error, Interrupt) for error in reported)


@pytest.mark.parametrize("where", ["_inspected", "_ask_on"])
async def test_an_inspection_whose_answer_is_lost_is_made_again(monkeypatch, where):
    """What was looked at is destroyed, as nobody knows what is left on its wire."""
    function, broken, gone = getattr(Waiter, where), [], []
    reported = hear_reports()

    async def refuse_the_first(thing):
        await asyncio.sleep(0)
        return thing is not first

    def breaks(self, *args):
        if not broken:
            broken.append(True)
            raise Interrupt
        function(self, *args)

    pool = cenote.Pool(Thing, max_size=1, before_acquire=refuse_the_first, destructor=gone.append)
    first = await pool.acquire()
    await pool.release(first)
    with monkeypatch.context() as patch:
        patch.setattr(Waiter, where, breaks)
        second = await asyncio.wait_for(pool.acquire(), WAIT)
    assert broken
    assert gone == [first]
    await pool.release(second)
    whole(pool)
    await pool.close()
    assert all(isinstance(error, Interrupt) for error in reported)


async def test_a_broken_off_delivery_is_made_after_all(monkeypatch):
    """The factory has returned it: it is not forgotten."""
    deliver, broken, made, gone = HookTask._deliver, [], [], []
    reported = hear_reports()

    async def make():
        await asyncio.sleep(0)
        made.append(Thing())
        return made[-1]

    def breaks(self, *args):
        if not broken:
            broken.append(True)
            raise Interrupt
        deliver(self, *args)

    monkeypatch.setattr(HookTask, "_deliver", breaks)
    pool = cenote.Pool(make, max_size=1, destructor=gone.append)
    thing = await pool.acquire(timeout=5)
    await pool.release(thing)
    whole(pool)
    await pool.close()
    assert broken
    assert gone == made == [thing]
    assert all(isinstance(error, Interrupt) for error in reported)


def interrupt_at(number):
    """Raise in the n-th call of a function of the package from here on, as a signal handler may."""
    inside, calls = os.path.dirname(cenote.__file__), []
    tests = os.path.join(inside, "testing")  # the loop

    def profile(frame, event, argument):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(inside) and not file.startswith(tests):
            calls.append(frame.f_code.co_name)
            if len(calls) == number:
                sys.setprofile(None)
                raise Interrupt

    sys.setprofile(profile)
    return calls


async def hold(pool, timeout=None):
    async with pool.acquire(timeout=timeout):
        await asyncio.sleep(0)


class Later:
    """The value, one turn of the loop later; unlike a coroutine it may be left unawaited."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        yield
        return self.value


def make_slowly():
    return Later(Thing())


def accept(thing):
    return Later(True)


def refuse(thing):
    return Later(False)


KINDS = {
    "plain": {"max_idle": 50.0},
    "looked at": {"before_acquire": accept, "before_release": accept, "destructor": accept},
    "used up": {"destructor": accept, "max_uses": 2},
    "refused": {"before_release": refuse},
}


@pytest.mark.virtual_time
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("factory", [Thing, make_slowly])
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
async def test_an_interrupt_of_a_busy_pool_stops_nobody_else(options, factory):
    """In whatever task or callback: the others are served, and the pool closes."""
    reported = hear_reports()
    gc.disable()  # a finalizer would be interrupted for nothing
    try:
        await sweep(factory, options)
    finally:
        reported.clear()
        gc.collect()  # coroutines that never began, here and not in the next test
        gc.enable()


async def sweep(factory, options):
    for number in range(1, 1000):
        pool = cenote.Pool(factory, max_size=1, **options)
        tasks = [asyncio.ensure_future(hold(pool)) for _ in range(3)]
        tasks += [asyncio.ensure_future(hold(pool, timeout)) for timeout in (0.5, 20)]
        calls = interrupt_at(number)
        try:
            await asyncio.sleep(0)
            tasks[2].cancel()
            await asyncio.wait(tasks, timeout=10)
        finally:
            sys.setprofile(None)
        for holder in pool.holders():  # the end of its block was broken off before it began
            pool.release(holder.resource)
        _, left = await asyncio.wait(tasks, timeout=10)
        assert not left, (number, calls[-1], pool)
        for task in tasks:
            task.cancelled() or task.exception()
        await settle()
        await asyncio.wait_for(hold(pool), WAIT)
        await settle()
        whole(pool)
        await asyncio.wait_for(pool.close(), WAIT)
        assert pool._engine.core.total == 0
        check_ledger(pool)
        if len(calls) < number:
            break
    assert number > 20


# -- what is put off -----------------------------------------------------------------------------


async def test_a_clean_return_put_off_gives_back_its_slot(make_pool):
    one = Thing()
    pool = make_pool(lambda: one, max_size=2)
    mine, other = pool.acquire(), pool.acquire()
    await mine
    await asyncio.ensure_future(other)  # in a task of its own
    await pool._engine.step(pool._engine.defer_return, other.slot, True)
    assert pool.active_count == 1
    assert [holder.task for holder in pool.holders()] == [asyncio.current_task().get_name()]
    await pool.release(one)
    whole(pool)


@pytest.mark.real_time("it ends the loop")
@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_an_operation_put_off_does_not_keep_an_exit(ending):
    def end(thing):
        raise ending

    async def main():
        pool = cenote.Pool(Thing, max_size=1, before_release=end)
        thing = await pool.acquire()
        pools.append(pool)
        back.append(pool._engine.step(pool.release, thing))
        await asyncio.wait_for(asyncio.Event().wait(), WAIT)

    pools, back = [], []
    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    with pytest.raises(ending):
        loop.run_until_complete(task)
    loop.run_until_complete(asyncio.sleep(0))
    assert back[0].done
    assert not back[0].errors
    whole(pools[0])
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.run_until_complete(pools[0].close())
    loop.close()
