"""The audit: what a silent member has is counted at the backend before others get it."""

import asyncio

import pytest

import cenote
from cenote.testing import advance, now
from tests.support.fleet_world import World
from tests.support.kit import acquiring

MARK = "cenote:0123456789abcdef"


async def held(pool, number):
    """So many tasks that each wait for one resource; those that have one are done."""
    return [acquiring(pool) for _ in range(number)]


def two_members(world):
    """The process of the first, both pools, and the process of the second."""
    process, other = world.process(), world.process()
    pools = [each.pool(max_size=30, marks=True) for each in (process, other)]
    return process, *pools, other


async def give_back(pool, tasks):
    for task in tasks:
        if task.done():
            pool.release(task.result())
        else:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.virtual_time
async def test_a_silent_member_is_charged_what_it_has():
    async with World(30) as world:
        process, first, second, other = two_members(world)
        one = await held(first, 20)
        two = await held(second, 1)
        await advance(5)
        process.away = True
        await advance(20)
        two += await held(second, 29)
        await advance(5)
        assert (first.active_count, second.active_count) == (20, 10)
        assert [each.silent for each in await other.fleet.members()] == [True, False]
        await give_back(first, one)  # to its part, 15
        await advance(5)
        assert (first.occupied, second.active_count) == (15, 13)  # two may be on their way
        await advance(60)  # by now the server has given them up
        assert (first.occupied, second.active_count) == (15, 15)
        process.away = False
        await advance(5)
        assert second.active_count > 15
        await give_back(second, two)


@pytest.mark.virtual_time
async def test_a_member_that_has_died_is_counted_out():
    async with World(30) as world:
        process, first, second, _ = two_members(world)
        one = await held(first, 20)
        await advance(5)
        process.away = True  # and dead: the backend has closed everything
        for resource in [each for each, mark in world.backend.marks.items() if mark is not None]:
            world.backend.there.discard(resource)
        two = await held(second, 30)
        await advance(20)
        assert second.active_count == 30
        assert len(world.reference.rows) == 1
        await give_back(second, two)
        await give_back(first, one)


@pytest.mark.virtual_time
async def test_what_a_silent_member_is_opening_stays_charged():
    async with World(30) as world:
        process, first, second, other = two_members(world)
        one = await held(first, 1)
        two = await held(second, 1)
        await advance(5)
        world.backend.slow = 40.0
        one += await held(first, 2)
        await advance(1)
        assert (first.active_count, first.occupied) == (1, 3)  # two that no count shows
        process.away, world.backend.slow = True, 0.0
        two += await held(second, 29)
        await advance(20)
        assert [each.silent for each in await other.fleet.members()] == [True, False]
        assert (first.occupied, second.active_count) == (3, 27)
        await advance(20)
        assert (first.active_count, second.active_count) == (3, 27)
        world.debts = True  # it comes back with its part
        process.away = False
        await advance(5)
        await give_back(first, one)
        await give_back(second, two)


@pytest.mark.virtual_time
async def test_what_a_silent_member_opens_later_is_counted_as_well():
    async with World(30) as world:
        world.checks = False  # cut off, it may have its part
        process, first, second, _other = two_members(world)
        one = await held(first, 1)
        two = await held(second, 1)
        await advance(5)
        process.away = True
        two += await held(second, 29)
        await advance(15)
        assert second.active_count == 27
        one += await held(first, 9)
        await advance(5)
        assert first.active_count == 10
        [row, _] = world.reference.members(now())
        assert (row.silent, row.held) == (True, 12)
        assert second.max_size == 18  # it gives back what is too many
        process.away = False
        await give_back(first, one)
        await give_back(second, two)


@pytest.mark.virtual_time
async def test_a_count_that_fails_is_made_again():
    async with World(30) as world:
        process, other = world.process(), world.process()
        first = process.pool(max_size=20, marks=True)
        second = other.pool(max_size=20, marks=True)
        await first.release(await first.acquire())
        await second.release(await second.acquire())
        await advance(5)
        process.away = world.backend.down = True
        await advance(15)
        assert [each.silent for each in world.reference.members(1000)] == [True, False]
        [row] = [each for each in world.reference.rows.values() if each.silent]
        assert row.charge > 1
        world.backend.down = False
        await advance(5)
        assert row.charge == 1 + 2  # that it may be opening
        process.away = False


class MarkingLender:
    """Lends everything, and marks it."""

    mark = MARK

    def check(self, least, most):
        pass

    def strategy(self):
        return None

    def opened(self, pool):
        return self

    def audit_by(self, count, making):
        self.count, self.making = count, making

    def begun(self):
        begun = asyncio.get_running_loop().create_future()
        begun.set_result(None)
        return begun

    def may_open(self):
        return True

    def closed(self):
        return None


@pytest.mark.real_time("talks to real servers")
@pytest.mark.driver
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("name", [None, "a name of the user's own that is much longer than fits"])
async def test_postgresql_counts_what_has_a_mark(postgres_server, driver, name):
    pytest.importorskip(driver)
    url = postgres_server.url.replace("postgresql:", f"postgresql+{driver}:")
    if name is not None:
        url += f"&application_name={name.replace(' ', '%20')}"
    lender = MarkingLender()
    async with (
        cenote.Database(url, fleet=lender) as db,
        cenote.Database(url) as other,
    ):
        assert await other.fetch_val("select 1") == 1
        async with db.connection(), asyncio.TaskGroup() as group:
            shown = await db.fetch_val("show application_name")
            assert shown.endswith(MARK)
            assert shown.startswith("cenote" if name is None else "a name of the user's")
            assert await group.create_task(lender.count(MARK)) == 2  # that of the count as well
        assert lender.making == 4
        assert await lender.count("cenote:of another") == 0
        await db.execute("set search_path = public")  # it is reset, and marked still
        assert (await db.fetch_val("show application_name")).endswith(MARK)


async def test_sqlite_has_no_marks():
    lender = MarkingLender()
    async with cenote.Database("sqlite:///:memory:", fleet=lender) as db:
        assert await db.fetch_val("select 1") == 1
    assert not hasattr(lender, "count")
