"""The page of a fleet: every process, what it was lent, and what is wrong."""

import asyncio
import os

import pytest

import cenote
from cenote.testing import advance
from tests.support.fleet_world import World
from tests.support.kit import Thing
from tests.support.viewer import until, use_virtual_clocks, watching

pytestmark = pytest.mark.virtual_time

app = cenote.dashboard.app


def fleet_of(viewer):
    """What the page was told last of the fleet; every process of the world knows the same."""
    return viewer.fleets[0]


async def test_every_process_of_the_fleet_is_shown(monkeypatch):
    use_virtual_clocks(monkeypatch)
    async with World(30) as world:
        first, second = world.process("alpha"), world.process("beta")
        pool, other = first.pool(max_size=20, name="web"), second.pool(max_size=20, name="jobs")
        leases = [await pool.acquire() for _ in range(3)]
        await other.release(await other.acquire())
        await advance(10)
        async with watching(app()) as viewer:
            await until(lambda: viewer.fleets and fleet_of(viewer)["rows"])
            fleet = fleet_of(viewer)
            assert (fleet["name"], fleet["budget"], fleet["problem"]) == ("shop", 30, None)
            assert fleet["circuit"] == "ACTIVE"
            assert [row[:4] for row in fleet["rows"]] == [
                ["alpha", os.getpid(), "web", pool.max_size],
                ["beta", os.getpid(), "jobs", other.max_size],
            ]
            assert fleet["rows"][0][4] == 3  # in use
            more = await pool.acquire()
            await until(lambda: fleet_of(viewer)["rows"][0][4] == 4)
            pool.release(more)
            for lease in leases:
                pool.release(lease)
            await other.close()
            await until(lambda: [row[2] for row in fleet_of(viewer)["rows"]] == ["web"])


async def test_a_fleet_that_does_not_answer_says_so(monkeypatch):
    use_virtual_clocks(monkeypatch)
    async with World(30) as world:
        pool = world.process().pool(max_size=20, name="web")
        thing = await pool.acquire()
        await advance(5)
        async with watching(app()) as viewer:
            await until(lambda: viewer.fleets and fleet_of(viewer)["rows"])
            world.away = True
            await until(lambda: fleet_of(viewer)["problem"] is not None)
            assert fleet_of(viewer)["problem"] == "LedgerError: refused"
            assert fleet_of(viewer)["rows"] == []
            world.away = False
            await until(lambda: fleet_of(viewer)["problem"] is None)
        pool.release(thing)


async def test_ledgers_are_asked_only_while_somebody_watches(monkeypatch):
    use_virtual_clocks(monkeypatch)
    async with World(30) as world:
        pool = world.process().pool(max_size=20, name="web")
        await pool.release(await pool.acquire())
        asked = [operation for _, operation, _ in world.log if operation == "rows"]
        assert asked == []
        async with watching(app()) as viewer:
            await advance(10)
            assert viewer.fleets
        await advance(5)  # what was on its way has come
        asked = [operation for _, operation, _ in world.log if operation == "rows"]
        assert 8 <= len(asked) <= 14  # once a second
        await advance(10)
        assert [operation for _, operation, _ in world.log if operation == "rows"] == asked
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not any("dashboard" in name for name in names)


async def test_a_process_without_fleets_is_told_of_none(make_pool):
    make_pool(Thing, name="plain")
    async with watching(app()) as viewer:
        assert all("fleets" not in message for message in viewer.messages)
