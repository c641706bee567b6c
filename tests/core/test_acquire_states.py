"""The machine that drives a claim: its law on both sides, and the stages of real acquires."""

import asyncio
from typing import Any

import pytest

import cenote
from cenote import _core
from cenote.errors import IllegalTransition
from cenote.states import ACQUIRE, AcquireState
from cenote.testing import settle
from tests.core.test_table import cells, check_words

FRESH, BEGUN, READY, PAUSED, SLOW, OVER = AcquireState
native_only = pytest.mark.skipif(_core.kind != "native", reason="the pure core is in use")


def law_of_c(state: AcquireState, event: str) -> AcquireState:
    from cenote._core import native

    return native.acquire_after(state, event)


LAWS = [
    pytest.param(lambda state, event: ACQUIRE[state, event], id="python"),
    pytest.param(law_of_c, id="c", marks=native_only),
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("state", "event"), cells("acquire", AcquireState))
def test_every_state_and_event_of_an_acquire(law: Any, state: AcquireState, event: str) -> None:
    target = ACQUIRE.get((state, event))
    if target is not None:
        assert law(state, event) is target
        return
    with pytest.raises(IllegalTransition) as caught:
        law(state, event)
    check_words(caught.value, "acquire", state, event)


@pytest.mark.parametrize("law", LAWS)
def test_an_unknown_event_of_an_acquire_is_illegal(law: Any) -> None:
    with pytest.raises(IllegalTransition, match="acquire: 'explode' is not possible"):
        law(FRESH, "explode")


async def test_an_acquire_that_is_served_at_once_passes_ready(make_pool):
    stages = []
    pool = make_pool(object, max_size=1)
    pool.release(await pool.acquire())  # the factory was a matter of the slow part
    acquire = pool.acquire()
    pool.subscribe(lambda event: stages.append((event.kind, acquire.stage)))
    stages.append(("made", acquire.stage))
    resource = await acquire
    pool.release(resource)
    assert stages == [("made", FRESH), ("acquired", READY), ("released", OVER)]


async def test_an_acquire_that_waits_is_paused_or_slow(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    acquire = pool.acquire()
    task = asyncio.ensure_future(acquire)
    await settle()
    assert acquire.stage is (PAUSED if cenote.core == "native" else SLOW)
    pool.release(held)
    pool.release(await task)
    assert acquire.stage is OVER


@pytest.mark.parametrize("how", ["factory", "before_acquire"])
async def test_an_acquire_with_an_async_hook_is_slow(make_pool, how):
    gate = asyncio.Event()

    async def wait(*args):
        await gate.wait()
        return object()

    pool = make_pool(wait if how == "factory" else object, max_size=1)
    if how == "before_acquire":
        pool = make_pool(object, max_size=1, before_acquire=wait)
        pool.release(await pool.acquire())
    acquire = pool.acquire()
    task = asyncio.ensure_future(acquire)
    await settle()
    assert acquire.stage is SLOW
    gate.set()
    pool.release(await task)
    assert acquire.stage is OVER


@pytest.mark.parametrize("hook", [None, "async"])
async def test_a_cancelled_wait_is_over(make_pool, hook):
    async def accept(resource):
        return True

    pool = make_pool(object, max_size=1, before_acquire=accept if hook else None)
    held = await pool.acquire()
    acquire = pool.acquire()
    task = asyncio.ensure_future(acquire)
    await settle()
    task.cancel()
    await asyncio.wait([task])
    assert acquire.stage is OVER
    with pytest.raises(RuntimeError, match="used before"):
        await acquire
    pool.release(held)


@pytest.mark.parametrize("how", ["close", "throw"])
async def test_an_acquire_that_never_began_is_over(make_pool, how):
    acquire = make_pool(object).acquire()
    if how == "close":
        acquire.close()
    else:
        with pytest.raises(KeyError):
            acquire.throw(KeyError())
    assert acquire.stage is OVER
    with pytest.raises(RuntimeError, match="used before"):
        await acquire


async def test_an_acquire_that_a_closed_pool_refuses_stays_fresh(make_pool):
    pool = make_pool(object)
    await pool.close()
    acquire = pool.acquire()
    for _ in range(2):
        with pytest.raises(cenote.PoolClosedError):
            await acquire
        assert acquire.stage is FRESH


async def test_an_acquire_that_is_over_changes_no_more(make_pool):
    pool = make_pool(object, max_size=1)
    acquire = pool.acquire()
    resource = await acquire
    for again in (lambda: acquire.send(None), lambda: acquire.__await__().send(None)):
        with pytest.raises((RuntimeError, StopIteration)):
            again()
        assert acquire.stage is OVER
    acquire.close()
    assert pool.active_count == 1
    pool.release(resource)
