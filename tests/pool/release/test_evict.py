"""Idle resources, evicting one of them, and resources that are worn out."""

import pytest

import cenote
from cenote import NotAcquiredError
from cenote.testing import settle
from tests.support.kit import STYLES, Thing, acquiring, outcome, recorded, styled

styles = pytest.mark.parametrize("style", STYLES)


class Reports:
    def __init__(self):
        self.seen = []

    def report_success(self, pool):
        self.seen.append("success")

    def report_failure(self, pool, error):
        self.seen.append(error)


async def test_idle_resources_lists_what_is_idle(make_pool):
    pool = make_pool(Thing, max_size=3)
    things = [await pool.acquire() for _ in range(3)]
    assert pool.idle_resources() == []
    for thing in things[:2]:
        pool.release(thing)
    assert pool.idle_resources() == things[:2]
    pool.release(things[2])


@styles
async def test_evict_destroys_an_idle_resource(make_pool, style):
    gone = []
    pool = make_pool(Thing, destructor=styled(style, gone.append), max_size=2)
    one, two = await pool.acquire(), await pool.acquire()
    pool.release(one)
    pool.release(two)
    events = recorded(pool)
    await pool.evict(two)
    assert gone == [two]
    assert pool.idle_resources() == [one]
    assert [(event.kind, event.reason) for event in events] == [("destroyed", "evicted")]


@pytest.mark.parametrize("state", ["out", "foreign", "gone"])
async def test_evict_refuses_what_is_not_idle(make_pool, state):
    pool = make_pool(Thing)
    thing = await pool.acquire()
    if state == "gone":
        pool.discard(thing)
    with pytest.raises(NotAcquiredError, match=r"cannot evict .*: it is not idle"):
        pool.evict(Thing() if state == "foreign" else thing)
    if state != "gone":
        pool.release(thing)


async def test_what_the_destructor_raises_is_raised_from_evict(make_pool):
    def destroy(thing):
        raise OSError("stuck")

    pool = make_pool(Thing, destructor=destroy)
    pool.release(thing := await pool.acquire())
    with pytest.raises(OSError, match="stuck"):
        await pool.evict(thing)
    assert pool.occupied == 0


@styles
async def test_retire_destroys_without_a_failure(make_pool, style):
    reports = Reports()
    pool = make_pool(
        Thing, before_release=styled(style, lambda _: cenote.RETIRE), strategy=reports, max_size=1
    )
    events = recorded(pool)
    thing = await pool.acquire()
    waiter = acquiring(pool)
    await settle()
    await pool.release(thing)
    other = await outcome(waiter)
    assert other is not thing
    assert pool.stats().destroyed == {"worn_out": 1}
    assert pool.stats().rejected == 0
    assert reports.seen == ["success"]
    assert "rejected" not in [event.kind for event in events]
    pool.discard(other)


@styles
async def test_retire_works_at_the_end_of_a_block(make_pool, style):
    pool = make_pool(
        Thing, before_release=styled(style, lambda _: cenote.RETIRE), reuse_after_cancel=True
    )
    async with pool.acquire():
        pass
    with pytest.raises(KeyError):
        async with pool.acquire():
            raise KeyError
    await settle()
    assert pool.stats().destroyed == {"worn_out": 2}


def test_retire_is_shown_by_its_name():
    assert repr(cenote.RETIRE) == "cenote.RETIRE"
