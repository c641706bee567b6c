"""The classes of the errors, and the messages of the short ones."""

import pytest

from cenote import (
    AcquireTimeoutError,
    CircuitState,
    NotAcquiredError,
    PoolClosedError,
    PoolDeadlockError,
    PoolError,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from cenote.testing import advance, settle
from tests.support.kit import (
    STYLES,
    Gate,
    RecordingStrategy,
    Thing,
    acquiring,
    outcome,
    queued,
    start,
    styled,
)

NAMES = [(None, "pool"), ("db", "pool 'db'")]
named = pytest.mark.parametrize(("name", "label"), NAMES)


# -- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (PoolError, (Exception,)),
        (PoolClosedError, (PoolError,)),
        (ServiceUnavailableError, (PoolError,)),
        (PoolOverloadedError, (PoolError,)),
        (PoolDeadlockError, (PoolError,)),
        (AcquireTimeoutError, (PoolError, TimeoutError)),
        (NotAcquiredError, (PoolError, ValueError)),
    ],
)
def test_the_errors_have_their_base_classes(error, bases):
    assert error.__bases__ == bases


def test_unrelated_errors_are_not_caught_together():
    siblings = [
        PoolClosedError,
        ServiceUnavailableError,
        PoolOverloadedError,
        PoolDeadlockError,
        AcquireTimeoutError,
        NotAcquiredError,
    ]
    for one in siblings:
        assert [other for other in siblings if issubclass(one, other)] == [one]


# -- the short ones ------------------------------------------------------------------------------


@named
async def test_a_closed_pool_refuses_by_name(make_pool, name, label):
    pool = make_pool(Thing, name=name)
    await pool.close()
    words = f"{label} is closed. Create a new Pool."
    with pytest.raises(PoolClosedError) as caught:
        await pool.acquire()
    assert str(caught.value) == words
    with pytest.raises(PoolClosedError) as caught:
        await pool.open()
    assert str(caught.value) == words


@named
async def test_the_waiters_of_a_closed_pool_are_refused(make_pool, name, label):
    pool = make_pool(Thing, max_size=1, name=name)
    thing, waiter = await queued(pool)
    await pool.close()
    error = await outcome(waiter)
    assert isinstance(error, PoolClosedError)
    assert str(error) == f"{label} is closed. Create a new Pool."
    pool.release(thing)


@named
async def test_a_draining_pool_refuses_by_name(make_pool, name, label):
    pool = make_pool(Thing, name=name)
    thing = await pool.acquire()
    closing = start(pool.close(drain=60))
    await settle()
    with pytest.raises(PoolClosedError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"{label} is draining and takes no new acquires. Create a new Pool."
    )
    pool.release(thing)
    await closing


@named
async def test_an_overloaded_pool_says_its_limit(make_pool, name, label):
    pool = make_pool(Thing, max_size=1, max_waiting=2, name=name)
    thing = await pool.acquire()
    waiters = [acquiring(pool), acquiring(pool)]
    await settle()
    with pytest.raises(PoolOverloadedError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"{label}: 2 waiting already, max_waiting is 2. "
        f"Shed this request, or raise max_waiting or max_size."
    )
    assert pool.waiting_count == 2
    pool.release(thing)
    for waiter in waiters:
        pool.release(await waiter)


@pytest.mark.virtual_time
@named
async def test_an_unavailable_service_is_refused_by_name(make_pool, name, label):
    pool = make_pool(Thing, name=name)
    await pool.discard(await pool.acquire(), OSError("connection lost"))
    pool.deactivate()
    await advance(12)
    with pytest.raises(ServiceUnavailableError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"{label}: the service is unavailable (circuit breaker INACTIVE for 12 s); "
        f"last failure: OSError: connection lost. "
        f"Try again later; pool.recover() or pool.activate() lets acquires pass at once."
    )


@pytest.mark.parametrize(
    ("limit", "taken"), [(1, "1 trial acquire is taken"), (2, "2 trial acquires are taken")]
)
async def test_a_recovering_service_says_its_limit(make_pool, limit, taken):
    pool = make_pool(Thing, recovering_limit=limit, name="db")
    pool.recover()
    probes = [await pool.acquire() for _ in range(limit)]
    with pytest.raises(ServiceUnavailableError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"pool 'db': the service is unavailable (circuit breaker RECOVERING, and its {taken}). "
        f"Try again later; pool.recover() or pool.activate() lets acquires pass at once."
    )
    for probe in probes:
        pool.release(probe)
    assert pool.state is CircuitState.RECOVERING


@named
@pytest.mark.parametrize("style", STYLES)
async def test_a_release_rejected_by_false_says_so(make_pool, name, label, style):
    listener = RecordingStrategy()
    pool = make_pool(
        Thing, before_release=styled(style, lambda _: False), strategy=listener, name=name
    )
    await pool.release(await pool.acquire())
    (error,) = listener.reports
    assert type(error) is PoolError
    assert str(error) == f"{label}: before_release rejected the resource (it returned False)"


@pytest.mark.virtual_time
@named
async def test_a_hook_that_takes_too_long_is_named(make_pool, name, label, caplog):
    listener = RecordingStrategy()
    pool = make_pool(Thing, before_release=Gate(), strategy=listener, hook_timeout=2, name=name)
    await pool.release(await pool.acquire())
    (error,) = listener.reports
    assert isinstance(error, PoolError)
    assert isinstance(error, TimeoutError)
    assert str(error) == (
        f"{label}: before_release took longer than hook_timeout (2.0 s) and was cut off"
    )


@pytest.mark.virtual_time
@named
async def test_a_factory_that_takes_too_long_is_named(make_pool, name, label):
    pool = make_pool(Gate(), create_timeout=2, name=name)
    with pytest.raises(PoolError) as caught:
        await pool.acquire()
    assert isinstance(caught.value, TimeoutError)
    assert not isinstance(caught.value, AcquireTimeoutError)
    assert str(caught.value) == (
        f"{label}: the factory took longer than create_timeout (2.0 s) and was cancelled"
    )


@pytest.mark.virtual_time
@named
async def test_a_destructor_that_takes_too_long_is_named(make_pool, name, label, caplog):
    pool = make_pool(Thing, destructor=Gate(), destructor_timeout=2, name=name)
    await pool.discard(await pool.acquire())
    (record,) = [record for record in caplog.records if record.name == "cenote"]
    assert record.getMessage() == (
        f"{label}: destructor took longer than destructor_timeout (2.0 s) and was cut off; "
        f"its slot is free again"
    )


@named
@pytest.mark.parametrize("style", STYLES)
async def test_a_factory_that_returns_none_is_named(make_pool, name, label, style):
    pool = make_pool(styled(style, lambda: None), name=name)
    with pytest.raises(PoolError) as caught:
        await pool.acquire()
    assert str(caught.value) == (
        f"{label}: the factory returned None. Return the resource; None stands for 'nothing'."
    )


@named
@pytest.mark.parametrize("style", ["async", "awaitable"])
async def test_try_acquire_with_an_async_hook_is_refused(make_pool, name, label, style):
    pool = make_pool(Thing, min_size=1, before_acquire=styled(style, lambda _: True), name=name)
    await pool.open()
    with pytest.raises(PoolError) as caught:
        pool.try_acquire()
    assert str(caught.value) == (
        f"{label}: try_acquire() cannot run an async before_acquire. "
        f"Use `await pool.acquire(timeout=0)`."
    )
    assert pool.idle_count == 1


async def test_an_acquire_object_is_used_once(make_pool):
    pool = make_pool(Thing)
    asked = pool.acquire()
    thing = await asked
    with pytest.raises(RuntimeError) as caught:
        await asked
    assert str(caught.value) == (
        "this acquire() was used before; call pool.acquire() for each resource"
    )
    assert pool.active_count == 1
    pool.release(thing)


@named
async def test_several_failing_destructors_make_one_group(make_pool, name, label):
    errors = [OSError(n) for n in range(2)]
    left = iter(errors)

    def destroy(_):
        raise next(left)

    pool = make_pool(Thing, min_size=2, destructor=destroy, name=name)
    await pool.open()
    with pytest.raises(ExceptionGroup) as caught:
        await pool.close()
    assert caught.value.message == f"{label}: 2 destructors failed"
    assert list(caught.value.exceptions) == errors
