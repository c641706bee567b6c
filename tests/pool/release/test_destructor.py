"""Destructors that fail, take their time, or are abandoned."""

import asyncio
import logging

import pytest

from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    Thing,
    obtain,
    raising,
    recorded,
    started,
    styled,
)

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
