"""Several leases of one task, all of the very same resource."""

import pytest

import cenote


@pytest.mark.parametrize("verb", ["release", "discard"])
async def test_an_early_release_in_an_inner_block_spares_the_outer(make_pool, verb):
    pool = make_pool(lambda: 42, max_size=2)
    async with pool.acquire() as outer:
        async with pool.acquire() as inner:
            assert inner is outer
            await getattr(pool, verb)(inner)
            assert pool.active_count == 1
        assert pool.active_count == 1
        assert len(pool.holders()) == 1
    assert pool.active_count == 0


async def test_each_block_releases_its_own_lease_whichever_was_given_back(make_pool):
    pool = make_pool(lambda: 42, max_size=3)
    async with pool.acquire() as first:
        async with pool.acquire():
            async with pool.acquire():
                pool.release(first)
                assert pool.active_count == 2
            assert pool.active_count == 2
        assert pool.active_count == 1
    assert pool.active_count == 0


async def test_a_lease_without_a_block_comes_back_first(make_pool):
    pool = make_pool(lambda: 42, max_size=2)
    async with pool.acquire():
        resource = await pool.acquire()
        pool.release(resource)
        assert pool.active_count == 1
    assert pool.active_count == 0
    with pytest.raises(cenote.NotAcquiredError):
        pool.release(resource)
