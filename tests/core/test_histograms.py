"""What a core counts in buckets, if somebody wants that."""

import pytest

from cenote import _core, observe
from cenote.testing import advance
from tests.support.kit import Thing


@pytest.mark.virtual_time
async def test_waits_and_holds_are_counted_with_their_sums(make_pool):
    pool = make_pool(Thing, max_size=1)
    histograms = observe.add_histograms(pool, [1.0, 2.0])
    for seconds in (0.5, 1.0, 1.5, 2.0, 2.5, 100.0):
        lease = await pool.acquire()
        await advance(seconds)
        pool.release(lease)
    assert histograms.waits == [(6, 0.0), (0, 0.0), (0, 0.0)]
    assert [count for count, _ in histograms.holds] == [2, 2, 2]
    assert [total for _, total in histograms.holds] == pytest.approx([1.5, 3.5, 102.5])
    assert sum(total for _, total in histograms.holds) == pytest.approx(pool.stats().hold_time)


async def test_each_of_several_counts_for_itself(make_pool):
    pool = make_pool(Thing)
    first = observe.add_histograms(pool, [1.0])
    async with pool.acquire():
        second = observe.add_histograms(pool, [1.0, 5.0])
    observe.remove_histograms(pool, first)
    async with pool.acquire():
        pass
    assert [count for count, _ in first.holds] == [1, 0]
    assert [count for count, _ in second.holds] == [2, 0, 0]
    assert [count for count, _ in second.waits] == [1, 0, 0]
    observe.remove_histograms(pool, second)
    assert pool._engine.core.histograms == ()


def test_bounds_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="bounds must not be empty"):
        _core.Histograms([])
    with pytest.raises((TypeError, ValueError)):
        _core.Histograms(["a"])


@pytest.mark.parametrize("bounds", [[1.0], [1.0, 2.0], [0.5, 1.0, 2.0, 4.0, 8.0]])
@pytest.mark.virtual_time
async def test_every_duration_is_in_its_bucket(make_pool, bounds):
    pool = make_pool(Thing)
    histograms = observe.add_histograms(pool, bounds)
    for place, bound in enumerate([*bounds, bounds[-1] * 2]):
        before = histograms.holds[place][0]
        lease = await pool.acquire()
        await advance(bound)
        pool.release(lease)
        assert histograms.holds[place][0] == before + 1
