"""A pool whose capacity is lent by something else: what it asks, and what it says, and when."""

import asyncio

import pytest

import cenote
from cenote import AcquireTimeoutError
from cenote.testing import settle
from tests.support.kit import STYLES, Gate, Thing, acquiring, styled

styles = pytest.mark.parametrize("style", STYLES)


class Bank:
    """A lender that lends what the test says, and writes down what it hears."""

    def __init__(self, lends=None):
        self.lends = lends
        self.open = True  # whether the lease has not ended
        self.heard = []
        self.pool = None
        self.left = None

    def check(self, least, most):
        if most > 100:
            raise ValueError("max_size must be 100 at most")

    def strategy(self):
        return None

    def opened(self, pool):
        self.pool = pool
        self.most = pool.max_size
        self.heard.append(("opened", pool.min_size, pool.max_size, pool.occupied))
        if self.lends is not None:
            self.lend(self.lends)
        return self

    def lend(self, size):
        self.pool.resize(max_size=size, ceiling=self.most)

    def begun(self):
        begun = asyncio.get_running_loop().create_future()
        begun.set_result(None)
        return begun

    def may_open(self):
        self.heard.append("may_open")
        return self.open

    def sentence(self):
        return "the fleet 'shop' uses 90 of 90"

    def resized(self, least, most):
        self.most = most
        self.heard.append(("resized", least, most))

    def closed(self):
        self.heard.append("closed")
        return self.left


@styles
async def test_the_lender_is_asked_before_each_factory(make_pool, style):
    bank = Bank()
    pool = make_pool(styled(style, Thing), max_size=2, fleet=bank)
    async with pool.acquire(), pool.acquire():
        pass
    async with pool.acquire():
        pass  # nothing is made, and nobody is asked
    assert bank.heard == [("opened", 0, 2, 0), "may_open", "may_open"]


@styles
async def test_nothing_is_made_before_the_lender_lends(make_pool, style):
    bank = Bank(lends=0)
    pool = make_pool(styled(style, Thing), min_size=1, max_size=4, fleet=bank)
    waiter = acquiring(pool)
    await settle()
    assert (pool.max_size, pool.occupied, pool.waiting_count) == (0, 0, 1)
    bank.lend(1)
    pool.release(await waiter)
    assert pool.occupied == 1


@styles
async def test_a_lease_that_has_ended_makes_acquires_wait(make_pool, style):
    bank = Bank()
    pool = make_pool(styled(style, Thing), max_size=4, fleet=bank)
    first = await pool.acquire()
    bank.open = False
    waiter = acquiring(pool)
    await settle()
    assert not waiter.done()
    assert pool.try_acquire() is None
    assert bank.heard.count("may_open") == 2  # it is not asked again and again
    assert pool.max_size == pool.occupied == 1
    with pytest.raises(AcquireTimeoutError):
        await pool.acquire(timeout=0)
    pool.release(first)
    second = await waiter
    assert second is first
    bank.open = True
    waiter = acquiring(pool)
    await settle()
    assert not waiter.done()
    bank.lend(2)
    pool.release(await waiter)
    pool.release(second)


@styles
async def test_a_probe_without_a_lease_makes_nothing(make_pool, style):
    bank = Bank()
    bank.open = False
    pool = make_pool(styled(style, Thing), max_size=2, fleet=bank)
    assert await pool.probe() is False
    assert pool.stats().created == 0


async def test_a_slot_that_is_freed_is_asked_for_once_more(make_pool):
    bank = Bank()
    pool = make_pool(Thing, max_size=4, fleet=bank)
    first = await pool.acquire()
    bank.open = False
    waiter = acquiring(pool)
    pool.discard(first)
    await settle()
    assert (pool.occupied, pool.max_size) == (0, 0)
    bank.open = True
    bank.lend(1)
    pool.release(await waiter)


async def test_a_timeout_says_what_the_lender_says(make_pool):
    pool = make_pool(Thing, max_size=4, fleet=Bank(lends=0))
    with pytest.raises(AcquireTimeoutError, match=r"0 waiting.*; the fleet 'shop' uses 90"):
        await pool.acquire(timeout=0)


async def test_open_waits_for_what_is_lent(make_pool):
    bank = Bank(lends=0)
    pool = make_pool(Thing, min_size=3, max_size=4, fleet=bank)
    opening = asyncio.create_task(pool.open())
    await settle()
    assert not opening.done()
    bank.lend(2)
    await opening
    assert pool.count == 2
    bank.lend(4)
    await settle()
    assert pool.count == 3


async def test_what_the_program_resizes_is_the_most_to_lend(make_pool):
    bank = Bank(lends=2)
    pool = make_pool(Thing, max_size=4, fleet=bank)
    await pool.open()
    pool.resize(max_size=8)
    assert (bank.heard[-1], pool.max_size) == (("resized", 0, 8), 2)
    pool.resize(min_size=5)
    assert (bank.heard[-1], pool.max_size) == (("resized", 5, 8), 2)
    with pytest.raises(ValueError, match=r"min_size \(5\) must not be more than max_size \(3\)"):
        pool.resize(max_size=3)
    pool.resize(min_size=0, max_size=1)
    assert (bank.heard[-1], pool.max_size) == (("resized", 0, 1), 1)


async def test_a_resize_before_the_opening_counts(make_pool):
    bank = Bank()
    pool = make_pool(Thing, max_size=4, fleet=bank)
    pool.resize(max_size=7)
    await pool.open()
    assert bank.heard == [("opened", 0, 7, 0)]


@styles
async def test_a_closed_pool_says_so_when_nothing_is_left(make_pool, style):
    bank, destructor = Bank(), Gate()
    pool = make_pool(Thing, destructor=destructor, max_size=2, fleet=bank)
    busy = await pool.acquire()
    closing = asyncio.create_task(pool.close())
    await settle()
    assert closing.done()
    assert bank.heard[-1] == "may_open"
    pool.release(busy)
    await settle()
    assert bank.heard[-1] == "may_open"
    destructor.open()
    await settle()
    assert bank.heard[-1] == "closed"
    bank.heard.append("once")
    await pool.close()
    assert bank.heard[-1] == "once"


async def test_close_waits_until_the_lender_has_all_back(make_pool):
    bank = Bank()
    bank.left = asyncio.get_running_loop().create_future()
    pool = make_pool(Thing, max_size=2, fleet=bank)
    async with pool.acquire():
        pass
    closing = asyncio.create_task(pool.close())
    await settle()
    assert not closing.done()
    assert bank.heard[-1] == "closed"
    bank.left.set_result(None)
    await closing


async def test_an_open_that_fails_ends_the_loan(make_pool):
    bank, results = Bank(), [OSError("down"), Thing()]

    def factory():
        result = results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    pool = make_pool(factory, min_size=1, max_size=2, fleet=bank)
    with pytest.raises(OSError, match="down"):
        await pool.open()
    assert bank.heard[-1] == "closed"
    await pool.open()
    assert [each[0] for each in bank.heard if isinstance(each, tuple)] == ["opened", "opened"]


async def test_a_pool_without_a_loop_ends_its_loan(make_pool):
    bank = Bank()
    pool = make_pool(Thing, fleet=bank, check_ledger=False)
    await pool.open()
    pool._forsake()
    assert bank.heard[-1] == "closed"


def test_bad_lenders_are_refused():
    with pytest.raises(TypeError, match=r"fleet must be a cenote.Fleet or None, not str"):
        cenote.Pool(Thing, fleet="redis://cache")
    with pytest.raises(TypeError, match=r"fleet must be .*, not the class Bank"):
        cenote.Pool(Thing, fleet=Bank)
    with pytest.raises(ValueError, match="max_size must be 100 at most"):
        cenote.Pool(Thing, fleet=Bank(), max_size=101)
    with pytest.raises(ValueError, match="max_size must be 100 at most"):
        cenote.Database("sqlite:///:memory:", fleet=Bank(), max_size=101)
