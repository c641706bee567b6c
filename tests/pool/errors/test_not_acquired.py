"""`NotAcquiredError`: what is not out cannot come back."""

import pytest

import cenote
from cenote import (
    NotAcquiredError,
)
from cenote.testing import settle
from tests.support.kit import (
    Gate,
    RecordingStrategy,
    Thing,
    obtain,
    queued,
    recorded,
    started,
)

NAMES = [(None, "pool"), ("db", "pool 'db'")]
named = pytest.mark.parametrize(("name", "label"), NAMES)


# -- NotAcquiredError ----------------------------------------------------------------------------


@named
@pytest.mark.parametrize("verb", ["release", "discard"])
async def test_a_foreign_resource_is_refused(make_pool, name, label, verb):
    pool = make_pool(Thing, name=name)
    held = await pool.acquire()
    stranger = Thing()
    with pytest.raises(NotAcquiredError) as caught:
        getattr(pool, verb)(stranger)
    assert str(caught.value) == (
        f"{label}: cannot {verb} <Thing at {id(stranger):#x}>: it is not out. "
        f"It came from elsewhere, or was released or discarded before."
    )
    pool.release(held)


@pytest.mark.parametrize("second", ["release", "discard"])
@pytest.mark.parametrize("first", ["release", "discard"])
async def test_returning_twice_is_refused_and_changes_nothing(make_pool, first, second):
    listener = RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, max_size=2)
    held, thing = await pool.acquire(), await pool.acquire()
    getattr(pool, first)(thing)
    listener.reports.clear()
    events = recorded(pool)
    before = pool.stats()
    with pytest.raises(NotAcquiredError):
        getattr(pool, second)(thing)
    assert pool.stats() == before
    assert (events, listener.reports) == ([], [])
    pool.release(held)


async def test_a_foreign_resource_changes_nothing(make_pool):
    asked, listener = [], RecordingStrategy()
    pool = make_pool(Thing, strategy=listener, before_release=asked.append, destructor=asked.append)
    held = await pool.acquire()
    before = pool.stats()
    for stranger in (Thing(), None, 42):
        with pytest.raises(NotAcquiredError):
            pool.release(stranger)
        with pytest.raises(NotAcquiredError):
            pool.discard(stranger, OSError())
    assert pool.stats() == before
    assert (asked, listener.reports) == ([], [])
    pool.release(held)


async def test_an_idle_resource_is_not_out(make_pool):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    pool.release(thing)
    with pytest.raises(NotAcquiredError):
        pool.release(thing)
    assert await pool.acquire() is thing
    pool.release(thing)


async def test_a_granted_resource_is_not_out_yet(make_pool):
    pool = make_pool(Thing, max_size=1)
    thing, waiter = await queued(pool)
    pool.release(thing)
    with pytest.raises(NotAcquiredError):
        pool.release(thing)
    assert await waiter is thing
    pool.release(thing)


async def test_an_equal_resource_is_not_the_same(make_pool):
    pool = make_pool(list)
    held = await pool.acquire()
    with pytest.raises(NotAcquiredError):
        pool.release([])
    pool.release(held)


async def test_the_message_does_not_show_the_resource_itself(make_pool):
    class Connection:
        def __repr__(self):
            return "password"

    pool = make_pool(Connection)
    with pytest.raises(NotAcquiredError) as caught:
        pool.release(Connection())
    assert "password" not in str(caught.value)


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
