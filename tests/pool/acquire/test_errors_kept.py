"""A pool keeps the error of a factory only as long as somebody may need it."""

import asyncio
import gc
import weakref

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import STYLES, Gate, Holding, Moody, Thing, acquiring, outcome, styled

pytestmark = pytest.mark.virtual_time


class Body:
    """What a request has in its variables."""


def alive(reference):
    gc.collect()
    return reference() is not None


async def request(references, work):
    """A request in whose variables a body is when its work fails."""
    body = Body()
    references.append(weakref.ref(body))
    await work()


async def failing(work):
    """The reference to the body of a request that failed, and was handled."""
    references = []
    try:
        await request(references, work)
    except OSError:
        pass
    else:
        raise AssertionError("it did not fail")
    return references[0]


@pytest.mark.parametrize("style", STYLES)
async def test_the_error_of_a_factory_is_let_go(make_pool, style):
    pool = make_pool(styled(style, Moody(down=True)), max_size=2)
    assert not alive(await failing(pool.acquire))


async def test_the_error_of_a_discarded_resource_is_let_go(make_pool):
    pool = make_pool(Thing)

    async def use():
        resource = await pool.acquire()
        try:
            raise OSError("lost")
        except OSError as error:
            pool.discard(resource, error)
            raise

    assert not alive(await failing(use))
    pool.deactivate()
    assert "last failure: OSError: lost" in str(await outcome(pool.acquire()))


async def one_of_two_fails(pool, factory):
    """One waiter has failed because of the factory, while another waits: the body of the first, the
    task of the second, and who holds the only resource."""
    holding = Holding(pool)
    await settle()
    factory.calls[0].set_result(Thing())
    await settle()
    oldest = asyncio.create_task(failing(pool.acquire))
    await settle()
    waiter = acquiring(pool, timeout=5)
    await settle()
    factory.calls[1].set_exception(OSError("backend down"))
    body = await oldest
    factory.calls[1] = None
    return body, waiter, holding


async def test_a_factory_error_is_kept_for_its_waiters(make_pool):
    factory = Gate()
    pool = make_pool(factory, max_size=2)
    body, waiter, holding = await one_of_two_fails(pool, factory)
    await advance(3)
    assert alive(body)  # the waiter's error will have it
    error = await outcome(waiter)
    assert isinstance(error, cenote.AcquireTimeoutError)
    assert isinstance(error.__cause__, OSError)
    del error, waiter
    await advance(2)
    assert not alive(body)
    await holding.leave()


async def test_a_factory_error_is_let_go_with_its_waiter(make_pool):
    """Also if it is served in the native core, where no step of Python hears of it."""
    factory = Gate()
    pool = make_pool(factory, max_size=2)
    body, waiter, holding = await one_of_two_fails(pool, factory)
    await holding.leave()
    resource = await waiter
    await advance(2)
    assert not alive(body)
    pool.release(resource)


async def test_a_closed_pool_keeps_no_factory_error(make_pool):
    factory = Moody(down=True)
    factory.down = False
    pool = make_pool(factory, max_size=1)
    resource = await pool.acquire()
    waiters = [acquiring(pool), acquiring(pool)]
    await settle()
    factory.down = True
    pool.discard(resource)
    await settle()
    closing = asyncio.create_task(pool.close())
    for waiter in waiters:
        await outcome(waiter)
    await closing
    assert pool._engine.creations.last_error is None
