"""How a block may be left: normally, by an exception, by a cancellation, closed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import (
    Broken,
    FakeService,
    Fatal,
    Gate,
    RecordingStrategy,
    acquiring,
    give_all,
    hang,
    outcome,
    take_all,
)

virtual_time = pytest.mark.virtual_time
both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])
Pool = cenote.Pool[Any]


# -- leaving the block ---------------------------------------------------------------------------


async def body_of(pool: Pool, body: Callable[[], Awaitable[None]]) -> None:
    async with pool.acquire():
        await body()


async def fail() -> None:
    raise Broken


async def stop() -> None:
    raise Fatal


@both_kinds
async def test_a_cancelled_body_destroys_its_resource(make_pool, kind):
    service, strategy = (
        FakeService(destructor=f"{kind} ok", before_release="sync ok"),
        RecordingStrategy(),
    )
    pool = make_pool(**service.hooks(), max_size=1, strategy=strategy)
    task = asyncio.create_task(body_of(pool, hang))
    await settle()
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    assert service.destroyed == service.made
    assert pool.count == 0
    assert strategy.reports == []
    await give_all(pool, await take_all(pool, 1))


@both_kinds
async def test_any_other_base_exception_destroys_as_well(make_pool, kind):
    service, strategy = FakeService(destructor=f"{kind} ok"), RecordingStrategy()
    pool = make_pool(**service.hooks(), strategy=strategy)
    with pytest.raises(Fatal):
        await body_of(pool, stop)
    assert service.destroyed == service.made
    assert strategy.reports == []


async def test_an_ordinary_exception_releases(make_pool):
    service, strategy = FakeService(destructor="sync ok"), RecordingStrategy()
    pool = make_pool(**service.hooks(), strategy=strategy)
    with pytest.raises(Broken):
        await body_of(pool, fail)
    assert (pool.idle_count, service.destroyed) == (1, [])
    assert strategy.reports == ["success"]


async def inner_timeout() -> None:
    async with asyncio.timeout(1):
        await hang()


async def inner_wait_for() -> None:
    await asyncio.wait_for(hang(), 1)


async def inner_timeout_as_a_cause() -> None:
    try:
        await inner_timeout()
    except TimeoutError as error:
        raise Broken from error


async def inner_timeout_as_a_context() -> None:
    try:
        await inner_timeout()
    except TimeoutError:
        raise Broken  # noqa: B904  (the context is what is tested)


async def inner_timeout_whose_context_is_suppressed() -> None:
    try:
        await inner_timeout()
    except TimeoutError:
        raise Broken from None


@virtual_time
@pytest.mark.parametrize(
    "body",
    [
        inner_timeout,
        inner_wait_for,
        inner_timeout_as_a_cause,
        inner_timeout_as_a_context,
        inner_timeout_whose_context_is_suppressed,
    ],
)
async def test_a_cancellation_in_the_chain_of_the_exception_destroys(make_pool, body):
    service, strategy = FakeService(destructor="sync ok"), RecordingStrategy()
    pool = make_pool(**service.hooks(), strategy=strategy)
    with pytest.raises((TimeoutError, Broken)):
        await body_of(pool, body)
    assert service.destroyed == service.made
    assert strategy.reports == []


@virtual_time
async def test_an_outer_timeout_destroys_and_is_a_timeout(make_pool):
    service = FakeService(destructor="async ok")
    pool = make_pool(**service.hooks())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await body_of(pool, hang)
    assert service.destroyed == service.made
    assert asyncio.current_task().cancelling() == 0


async def test_a_chain_of_exceptions_that_goes_in_a_circle_ends(make_pool):
    pool = make_pool(object)
    first, second = Broken("first"), Broken("second")

    async def body():
        first.__cause__, second.__cause__ = second, first
        raise first

    with pytest.raises(Broken):
        await body_of(pool, body)
    assert pool.idle_count == 1


async def group_with_a_body_that_awaits() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        await hang()


async def group_with_a_body_that_is_over() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(hang())  # is cancelled, perhaps in the middle of using the resource
        group.create_task(fail())


@pytest.mark.parametrize("body", [group_with_a_body_that_awaits, group_with_a_body_that_is_over])
async def test_a_failed_task_group_destroys(make_pool, body):
    service, strategy = FakeService(destructor="sync ok"), RecordingStrategy()
    pool = make_pool(**service.hooks(), strategy=strategy)
    with pytest.raises(ExceptionGroup):
        await body_of(pool, body)
    assert service.destroyed == service.made
    assert strategy.reports == []


async def test_a_cancellation_that_the_body_swallows_is_invisible(make_pool):
    pool = make_pool(object)

    async def body():
        with contextlib.suppress(asyncio.CancelledError):
            await hang()

    task = asyncio.create_task(body_of(pool, body))
    await settle()
    task.cancel()
    await task
    assert pool.idle_count == 1


@pytest.mark.parametrize("before_release", [None, "sync ok", "async ok"])
async def test_reuse_after_cancel_releases_without_a_report(make_pool, before_release):
    service, strategy = (
        FakeService(before_release=before_release, destructor="sync ok"),
        RecordingStrategy(),
    )
    pool = make_pool(**service.hooks(), strategy=strategy, reuse_after_cancel=True)
    task = asyncio.create_task(body_of(pool, hang))
    await settle()
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    assert (pool.idle_count, service.destroyed) == (1, [])
    assert strategy.reports == []


@both_kinds
async def test_reuse_after_cancel_lets_before_release_reject(make_pool, kind):
    service, strategy = (
        FakeService(before_release=f"{kind} no", destructor="sync ok"),
        RecordingStrategy(),
    )
    pool = make_pool(**service.hooks(), strategy=strategy, reuse_after_cancel=True)
    with pytest.raises(Fatal):
        await body_of(pool, stop)
    assert service.destroyed == service.made
    assert strategy.reports == []


ways_out = pytest.mark.parametrize("way_out", [None, Broken, asyncio.CancelledError, Fatal])


@ways_out
@pytest.mark.parametrize("give", ["release", "discard"])
async def test_what_was_given_back_inside_the_block_is_left_alone(make_pool, give, way_out):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), max_size=1)
    with contextlib.suppress(way_out or Broken):
        async with pool.acquire() as resource:
            getattr(pool, give)(resource)
            again = await pool.acquire()  # of somebody else, as far as this block is concerned
            if way_out is not None:
                raise way_out
    assert pool.active_count == 1
    assert service.destroyed == ([resource] if give == "discard" else [])
    pool.release(again)


@both_kinds
async def test_leaving_normally_raises_the_error_of_the_destructor(make_pool, kind):
    service = FakeService(before_release="sync no", destructor=f"{kind} fails")
    pool = make_pool(**service.hooks(), max_size=1)
    with pytest.raises(Broken, match="destructor"):
        async with pool.acquire():
            pass
    assert pool.count == 0
    service.heal()
    await give_all(pool, await take_all(pool, 1))


@both_kinds
@pytest.mark.parametrize("how", ["no", "fails"])
async def test_leaving_normally_says_nothing_of_a_rejection(make_pool, kind, how):
    service = FakeService(before_release=f"{kind} {how}", destructor="sync ok")
    pool = make_pool(**service.hooks())
    async with pool.acquire():
        pass
    assert service.destroyed == service.made


@both_kinds
@pytest.mark.parametrize("way_out", [Broken("mine"), asyncio.CancelledError("mine"), Fatal("mine")])
@pytest.mark.parametrize("reuse", [False, True])
async def test_errors_of_the_return_never_replace_an_exception(make_pool, kind, way_out, reuse):
    service = FakeService(before_release=f"{kind} fails", destructor=f"{kind} fails")
    pool = make_pool(**service.hooks(), max_size=1, reuse_after_cancel=reuse)
    with pytest.raises(type(way_out), match="mine") as raised:
        async with pool.acquire():
            raise way_out
    assert raised.value is way_out
    assert service.destroyed == service.made
    service.heal()
    await give_all(pool, await take_all(pool, 1))


@pytest.mark.parametrize("way_out", [None, Broken])
async def test_a_cancellation_while_leaving_does_not_stop_the_return(make_pool, way_out):
    doors = Gate()
    pool = make_pool(object, before_release=doors)

    async def leave():
        async with pool.acquire():
            if way_out is not None:
                raise way_out

    task = asyncio.create_task(leave())
    await settle()
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    assert (pool.active_count, pool.idle_count) == (1, 0)  # the hook still looks at it
    doors.calls[0].set_result(None)
    await settle()
    assert (pool.active_count, pool.idle_count) == (0, 1)


# -- GeneratorExit -------------------------------------------------------------------------------


async def stream(pool: Pool) -> AsyncIterator[Any]:
    async with pool.acquire() as resource:
        yield resource
        yield resource


closings = pytest.mark.parametrize("closing", ["aclose of a generator", "close of a coroutine"])


async def close_block(pool: Pool, closing: str) -> Any:
    """Enter a block, then close it from outside; it must not suspend on the way out."""
    if closing == "aclose of a generator":
        generator = stream(pool)
        resource = await anext(generator)
        with pytest.raises(StopIteration):
            generator.aclose().send(None)
        return resource
    entered = []

    async def use():
        async with pool.acquire() as resource:
            entered.append(resource)
            await hang()

    coroutine = use()
    while not entered:
        coroutine.send(None)
        await asyncio.sleep(0)
    coroutine.close()  # RuntimeError if it suspended
    return entered[0]


@closings
async def test_a_closed_block_is_accounted_at_once(make_pool, closing):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), max_size=1)
    resource = await close_block(pool, closing)
    assert service.destroyed == [resource]
    assert (pool.count, pool.stats().released) == (0, 1)
    pool.release(pool.try_acquire())


@closings
async def test_a_closed_block_does_not_await_the_destructor(make_pool, closing):
    doors = Gate()
    pool = make_pool(object, destructor=doors, max_size=1)
    await close_block(pool, closing)
    stats = pool.stats()
    assert (stats.active, stats.destroying, stats.released) == (0, 1, 1)
    assert pool.try_acquire() is None
    await settle()
    doors.calls[0].set_result(None)
    await settle()
    assert pool.stats().destroying == 0


@closings
async def test_a_closed_block_does_not_await_before_release(make_pool, closing):
    doors = Gate()
    pool = make_pool(object, before_release=doors, reuse_after_cancel=True)
    resource = await close_block(pool, closing)
    assert pool.stats().released == 1
    await settle()
    doors.calls[0].set_result(None)
    await settle()
    assert pool.try_acquire() is resource
    pool.release(resource)
    await settle()
    doors.calls[1].set_result(None)


@closings
async def test_a_closed_block_hands_its_slot_to_a_waiter(make_pool, closing):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), max_size=1)
    waiter = []

    async def late():
        await asyncio.sleep(0)
        waiter.append(acquiring(pool))

    starting = asyncio.create_task(late())
    await close_block(pool, closing)
    await starting
    pool.release(await waiter[0])


@closings
async def test_a_closed_block_keeps_quiet_about_a_destructor_that_fails(make_pool, closing):
    service = FakeService(destructor="sync fails")
    pool = make_pool(**service.hooks(), max_size=1)
    await close_block(pool, closing)
    assert pool.count == 0


async def test_a_closed_generator_leaves_alone_what_was_released_inside(make_pool):
    pool = make_pool(object, max_size=1)
    generator = stream(pool)
    resource = await anext(generator)
    pool.release(resource)
    assert await pool.acquire() is resource
    await generator.aclose()
    assert pool.active_count == 1
    pool.release(resource)


@pytest.mark.parametrize("granted", [False, True], ids=["waiting", "granted"])
async def test_a_waiter_that_is_closed_makes_way_at_once(make_pool, granted):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    coroutine = body_of(pool, hang)
    coroutine.send(None)
    behind = acquiring(pool)
    await settle()
    assert pool.waiting_count == 2
    if granted:
        pool.release(held)
    coroutine.close()
    if not granted:
        assert pool.waiting_count == 1
        pool.release(held)
    assert await behind is held
    pool.release(held)


async def test_an_acquire_closed_during_before_acquire_frees_its_slot(make_pool):
    service, doors = FakeService(destructor="sync ok"), Gate()
    pool = make_pool(**service.hooks(), before_acquire=doors, max_size=1)
    pool.release(await pool.acquire())
    coroutine = body_of(pool, hang)
    coroutine.send(None)
    await settle()
    coroutine.close()
    await settle()
    assert doors.calls[0].cancelled()
    assert service.destroyed == service.made
    pool.release(await pool.acquire())


async def test_a_block_closed_while_leaving_is_still_left(make_pool):
    doors = Gate()
    pool = make_pool(object, before_release=doors)

    async def use():
        async with pool.acquire():
            pass

    coroutine = use()
    coroutine.send(None)  # it waits for before_release
    await settle()
    coroutine.close()
    doors.calls[0].set_result(None)
    await settle()
    assert pool.idle_count == 1
