"""However a task leaves, and wherever: no slot is lost, nothing is swallowed, nobody is stuck."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest

import cenote
from tests.support.clock import VirtualLoop, advance, settle
from tests.support.kit import (
    HOOKS,
    Broken,
    FakeService,
    Fatal,
    Gate,
    RecordingStrategy,
    Stubborn,
    acquiring,
    give_all,
    hang,
    outcome,
    take_all,
)

virtual_time = pytest.mark.virtual_time
both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])
Pool = cenote.Pool[Any]
Modes = tuple[str | None, ...]


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


async def test_a_waiter_that_is_closed_leaves_the_queue_at_once(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    coroutine = body_of(pool, hang)
    coroutine.send(None)
    behind = acquiring(pool)
    await settle()
    assert pool.waiting_count == 2
    coroutine.close()
    assert pool.waiting_count == 1
    pool.release(held)
    assert await behind is held
    pool.release(held)


async def test_a_waiter_closed_after_its_grant_passes_it_on(make_pool):
    pool = make_pool(object, max_size=1)
    held = await pool.acquire()
    coroutine = body_of(pool, hang)
    coroutine.send(None)
    behind = acquiring(pool)
    await settle()
    pool.release(held)
    coroutine.close()
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


# -- hooks that raise a cancellation, and hooks that swallow one -----------------------------------


def raising_cancellation(kind: str) -> Callable[..., Any]:
    def raise_it(*resource):
        raise asyncio.CancelledError("from the hook")

    async def raise_it_later(*resource):
        await asyncio.sleep(0)
        raise_it()

    return raise_it if kind == "sync" else raise_it_later


@both_kinds
async def test_a_cancellation_raised_by_the_factory_comes_through(make_pool, kind):
    strategy = RecordingStrategy()
    pool = make_pool(raising_cancellation(kind), max_size=1, strategy=strategy)
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await pool.acquire()
    assert pool.stats().creating == 0
    assert strategy.reports == []


async def test_a_cancellation_raised_by_the_factory_comes_through_try_acquire(make_pool):
    pool = make_pool(raising_cancellation("sync"), max_size=1)
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            pool.try_acquire()


@both_kinds
@pytest.mark.parametrize("handed", [False, True], ids=["newcomer", "waiter"])
async def test_a_cancellation_raised_by_before_acquire_comes_through(make_pool, kind, handed):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), before_acquire=raising_cancellation(kind), max_size=1)
    held = await pool.acquire()
    if not handed:
        pool.release(held)
    task = acquiring(pool)
    await settle()
    if handed:
        pool.release(held)
    assert isinstance(await outcome(task), asyncio.CancelledError)
    assert service.destroyed == [held]
    resource = await pool.acquire()  # the slot is free
    assert pool.count == 1
    pool.release(resource)


@both_kinds
async def test_a_cancellation_raised_by_before_release_comes_through(make_pool, kind):
    service, strategy = FakeService(destructor="sync ok"), RecordingStrategy()
    pool = make_pool(
        **service.hooks(),
        before_release=raising_cancellation(kind),
        max_size=1,
        strategy=strategy,
    )
    resource = await pool.acquire()
    with pytest.raises(asyncio.CancelledError):
        await pool.release(resource)
    with pytest.raises(asyncio.CancelledError):
        async with pool.acquire():
            pass
    assert service.destroyed == service.made
    assert strategy.reports == []
    assert pool.count == 0


@both_kinds
async def test_a_cancellation_raised_by_the_destructor_comes_through(make_pool, kind):
    pool = make_pool(object, destructor=raising_cancellation(kind), max_size=1)
    resource = await pool.acquire()
    with pytest.raises(asyncio.CancelledError):
        await pool.discard(resource)
    assert (pool.count, pool.stats().destroying) == (0, 0)
    resource = await pool.acquire()
    with pytest.raises(asyncio.CancelledError):
        await pool.discard(resource)


async def test_a_failed_open_does_not_cancel_another_acquire(make_pool):
    first, cleanup, calls = Gate(), asyncio.Event(), []

    async def create():
        calls.append(True)
        if len(calls) == 1:
            return await first()
        if len(calls) == 2:
            try:
                await hang()
            finally:
                await cleanup.wait()
        return object()

    pool = make_pool(create, min_size=2)
    opening = asyncio.create_task(pool.open())
    await settle()
    first.calls[0].set_exception(Broken())  # the open fails, and the other creation is cancelled
    await settle()
    task = acquiring(pool)
    await settle()
    cleanup.set()
    assert isinstance(await outcome(opening), Broken)
    assert not isinstance(await outcome(task), asyncio.CancelledError)
    pool.release(await task)


async def swallow(*resource: Any) -> bool:
    """An async hook that answers its cancellation with yes."""
    with contextlib.suppress(asyncio.CancelledError):
        await hang()
    return True


async def test_an_acquirer_is_cancelled_though_before_acquire_swallows_it(make_pool):
    service = FakeService(destructor="sync ok")
    pool = make_pool(**service.hooks(), before_acquire=swallow, max_size=1)
    pool.release(await pool.acquire())
    task = acquiring(pool)
    await settle()
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    await settle()
    assert service.destroyed == service.made  # what it accepted came too late
    assert pool.count == 0


@virtual_time
@pytest.mark.parametrize("leave", ["cancel", "timeout", "deactivate"])
async def test_an_acquirer_leaves_at_once_despite_a_stubborn_hook(make_pool, leave):
    service, deaf = FakeService(destructor="sync ok"), Stubborn(object())
    pool = make_pool(**service.hooks(), before_acquire=deaf, max_size=1)
    pool.release(await pool.acquire())
    task = acquiring(pool, timeout=1)
    await settle()
    if leave == "cancel":
        task.cancel()
    elif leave == "deactivate":
        pool.deactivate()
    else:
        await advance(1)
    await settle()
    assert task.done()
    await outcome(task)
    pool.activate()
    await advance(1)  # the hook has had its chance
    assert service.destroyed == service.made
    await give_all(pool, await take_all(pool, 1))
    deaf.let_go.set()
    await settle()


@virtual_time
@pytest.mark.parametrize("hook", ["swallows", "deaf"])
async def test_a_release_whose_hook_hides_its_timeout_is_rejected(make_pool, hook):
    service, strategy, deaf = (
        FakeService(destructor="sync ok"),
        RecordingStrategy(),
        Stubborn(object()),
    )
    before_release = swallow if hook == "swallows" else deaf
    pool = make_pool(
        **service.hooks(), before_release=before_release, hook_timeout=1, strategy=strategy
    )
    resource = await pool.acquire()
    returned = asyncio.ensure_future(pool.release(resource))
    await advance(2)
    assert returned.done()
    await returned
    assert service.destroyed == [resource]
    (error,) = strategy.reports
    assert isinstance(error, TimeoutError)
    assert isinstance(error, cenote.PoolError)
    deaf.let_go.set()
    await settle()


@virtual_time
@pytest.mark.parametrize("hook", ["swallows", "deaf", "obeys"])
async def test_a_destructor_past_its_timeout_is_abandoned_and_raises_nothing(make_pool, hook):
    deaf = Stubborn(object())

    async def obey(resource):
        await hang()

    destructor = {"swallows": swallow, "deaf": deaf, "obeys": obey}[hook]
    pool = make_pool(object, destructor=destructor, destructor_timeout=3, max_size=1)
    begin = asyncio.get_running_loop().time()
    await pool.discard(await pool.acquire())
    assert asyncio.get_running_loop().time() - begin == 3
    assert (pool.count, pool.stats().destroying) == (0, 0)
    deaf.let_go.set()
    await settle()


@pytest.mark.parametrize("hook", ["factory", "before_acquire", "before_release", "destructor"])
async def test_a_task_cancelled_during_its_hook_is_cancelled(make_pool, hook):
    doors = Gate()
    hooks = {"factory": object, hook: doors}
    pool = make_pool(**hooks, max_size=1)

    async def use():
        async with pool.acquire():
            pass
        async with pool.acquire() as resource:
            await pool.discard(resource)

    task = asyncio.create_task(use())
    await settle()
    assert len(doors.calls) == 1
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    for call in doors.calls:
        if not call.done():
            call.set_result("made")
    closing = asyncio.create_task(pool.close())
    await settle()
    for call in doors.calls:
        if not call.done():
            call.set_result("made")
    await closing


# -- at every suspension ---------------------------------------------------------------------------

SIZE = 2
Act = Callable[["Victim"], None]


class Victim:
    """A task that uses the pool once; at its k-th suspension something happens to it."""

    def __init__(self, pool: Pool, point: int, leave: tuple[Act, str]) -> None:
        self.pool = pool
        self.point = point
        self.act, self.moment = leave
        self.suspensions = 0
        self.task: asyncio.Task[None] | None = None
        self.helpers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.task = asyncio.create_task(self._run(), name="victim")

    async def _run(self) -> None:
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        """Drives `_use` by hand and counts how often it suspends."""
        steps = self._use().__await__()
        advance = steps.send
        argument: Any = None
        while True:
            try:
                awaited = advance(argument)
            except StopIteration:
                return
            self.suspensions += 1
            self._strike(awaited)
            try:
                argument, advance = (yield awaited), steps.send
            except BaseException as error:
                argument, advance = error, steps.throw

    async def _use(self) -> None:
        async with self.pool.acquire(timeout=50):
            await asyncio.sleep(0)

    def _strike(self, awaited: asyncio.Future[Any] | None) -> None:
        loop = asyncio.get_running_loop()
        if self.moment == "again and again" and self.suspensions >= self.point > 0:
            self.act(self)
            loop.call_soon(self.act, self)
        elif self.suspensions != self.point:
            return
        elif self.moment == "granted" and awaited is not None:
            # What it waits for has come, but it has not run yet.
            awaited.add_done_callback(lambda _: self.act(self))
        else:
            loop.call_soon(self.act, self)


def cancel(victim: Victim) -> None:
    victim.task.cancel()


def time_out(victim: Victim) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.jump(loop.time() + 50)


def open_breaker(victim: Victim) -> None:
    victim.pool.deactivate()


def close_pool(victim: Victim) -> None:
    victim.helpers.append(asyncio.create_task(victim.pool.close()))


LEFT_WITH = {
    cancel: asyncio.CancelledError,
    time_out: cenote.AcquireTimeoutError,
    open_breaker: cenote.ServiceUnavailableError,
    close_pool: cenote.PoolClosedError,
}


async def use(pool: Pool) -> None:
    async with pool.acquire():
        await asyncio.sleep(0)


async def uncontended(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    victim.start()
    return []


async def idle(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    await give_all(pool, await take_all(pool, SIZE))
    victim.start()
    return []


async def handed(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    """The first in the queue; with a hook that rejects, it makes one in its slot."""
    return await queued(pool, victim, before=0, behind=1)


async def contended(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    return await queued(pool, victim, before=2, behind=2)


async def queued(
    pool: Pool, victim: Victim, *, before: int, behind: int
) -> list[asyncio.Task[None]]:
    held = await take_all(pool, SIZE)
    others = [asyncio.create_task(use(pool)) for _ in range(before)]
    await asyncio.sleep(0)
    victim.start()
    await asyncio.sleep(0)
    others += [asyncio.create_task(use(pool)) for _ in range(behind)]
    await settle()
    await give_all(pool, held)
    return others


async def creation_under_way(pool: Pool, victim: Victim) -> list[asyncio.Task[None]]:
    creator = asyncio.create_task(use(pool))
    await asyncio.sleep(0)
    creator.cancel()
    victim.start()
    await outcome(creator)
    return [asyncio.create_task(use(pool))]


async def run(make_pool: Any, modes: Modes, scenario: Any, leave: tuple[Act, str], k: int) -> int:
    """One run, in which the victim leaves at its k-th suspension; gives how many it had."""
    service = FakeService(**dict(zip(HOOKS, modes, strict=True)))
    pool = make_pool(**service.hooks(), max_size=SIZE)
    victim = Victim(pool, k, leave)
    others = await scenario(pool, victim)
    result = await outcome(victim.task)
    endings = [await outcome(task) for task in others]
    for helper in victim.helpers:
        await helper
    await settle()

    act, moment = leave
    left_with = LEFT_WITH[act]
    left = result is left_with or isinstance(result, left_with)
    assert victim.suspensions >= k
    assert left or result is None, result
    if k and (
        act is cancel or (k == 1 and moment != "granted" and scenario in (handed, contended))
    ):
        assert left
    for ending in endings:
        shared = act in (open_breaker, close_pool) and isinstance(ending, left_with)
        assert ending is None or shared, ending
    stats = pool.stats()
    assert (stats.active, stats.waiting, stats.creating, stats.destroying) == (0, 0, 0, 0), stats

    if not pool.closed:
        pool.activate()
        await give_all(pool, await take_all(pool, SIZE))
        await pool.close()
        await settle()
    stats = pool.stats()
    assert stats.created == sum(stats.destroyed.values()) == len(service.destroyed), stats
    assert service.live == 0
    assert service.peak <= SIZE
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return victim.suspensions


@pytest.mark.parametrize(
    "scenario",
    [uncontended, idle, handed, contended, creation_under_way],
    ids=lambda scenario: scenario.__name__,
)
@pytest.mark.parametrize(
    "leave",
    [
        (cancel, "suspended"),
        (cancel, "granted"),
        (cancel, "again and again"),
        pytest.param((time_out, "suspended"), marks=virtual_time),
        pytest.param((time_out, "granted"), marks=virtual_time),
        (open_breaker, "suspended"),
        (open_breaker, "granted"),
        (close_pool, "suspended"),
        (close_pool, "granted"),
    ],
    ids=lambda leave: f"{leave[0].__name__} {leave[1]}",
)
@pytest.mark.parametrize("factory", ["sync ok", "async ok"])
async def test_leaving_at_any_suspension_loses_nothing(make_pool, scenario, leave, factory):
    verdicts = [None, "sync no", "async ok", "async no"]
    destructors = ["sync ok", "async ok"]
    for modes in itertools.product([factory], verdicts, verdicts, destructors):
        suspensions = await run(make_pool, modes, scenario, leave, 0)
        assert suspensions > 0
        for k in range(1, suspensions + 1):
            try:
                await run(make_pool, modes, scenario, leave, k)
            except BaseException as error:
                error.add_note(f"at suspension {k} of {suspensions}, with {modes}")
                raise
