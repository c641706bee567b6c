"""Who holds what in other processes: what each member shows beside the ledger of its host."""

import asyncio
import json
import os
import time

import pytest

import cenote
from cenote.events import Holder
from cenote.fleet import board as boards
from cenote.fleet.board import LocalBoard, holders_from, text_of
from cenote.fleet.ledger import MemberRow
from cenote.fleet.view import look_at
from tests.support.waiting import WAIT, eventually

pytestmark = pytest.mark.coreless

ROW = MemberRow("m", "vm", 7, "shop", 1, 1, 0.0, None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "board"


def holder(task="job", seconds=2.0, **more):
    fields = {"file": "/srv/app.py", "line": 7, "reason": None, **more}
    return Holder(resource=object(), task=task, seconds=seconds, **fields)


def test_what_a_member_shows_is_read_by_others(path):
    board = LocalBoard(path)
    board.show("m", text_of([holder(reason="in a transaction")], 100.0))
    (found,) = holders_from(ROW, LocalBoard(path).read(["m"])["m"])
    assert (found.host, found.process, found.pool) == ("vm", 7, "shop")
    assert (found.task, found.place, found.since) == ("job", "/srv/app.py:7", 98.0)
    assert found.reason == "in a transaction"
    board.show("m", "")
    assert board.read(["m"]) == {}


def test_only_the_longest_are_shown_in_few_bytes():
    holders = [holder(task=1000 * "\u4e16", file="/" + 1000 * "x") for _ in range(100)]
    text = text_of(holders, 100.0)
    assert len(json.loads(text)) == boards.MOST
    assert len(text.encode()) < boards.LARGEST


def test_credentials_in_the_names_of_tasks_are_masked():
    assert "hunter2" not in text_of([holder(reason="stream is open (select 'hunter2')")], 100.0)
    assert "hunter2" not in text_of([holder(task="sync pg://me:hunter2@host")], 100.0)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[1]", '[["a"]]', '{"a": 1}', '[["a", null, "x", null]]', "[" * 9999]
)
def test_what_makes_no_sense_is_left_out(text):
    assert holders_from(ROW, text) == []


def test_a_directory_that_is_a_link_is_not_used(path, tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir()
    path.symlink_to(target)
    board = LocalBoard(path)
    board.show("m", "[]")
    assert os.listdir(target) == []
    assert board.read(["m"]) == {}


def test_what_the_dead_have_left_is_removed(path):
    board = LocalBoard(path)
    for member in ("dead", "living"):
        board.show(member, "[]")
        os.utime(path / member, (0, time.time() - 2 * boards.OLD))
    assert board.read(["living"]) == {"living": "[]"}
    assert os.listdir(path) == ["living"]


@pytest.mark.real_time("a ledger in a file")
async def test_the_fleet_knows_who_holds_what(tmp_path):
    fleet = cenote.Fleet(budget=4, ttl=0.5, path=tmp_path / "ledger")
    async with cenote.Pool(object, max_size=4, fleet=fleet, name="shop") as pool:
        holding, end = asyncio.Event(), asyncio.Event()

        async def hold():
            async with pool.acquire():
                holding.set()
                await end.wait()

        task = asyncio.create_task(hold(), name="import")
        await holding.wait()
        found = []

        async def until(condition):
            async with asyncio.timeout(WAIT):
                while not condition():
                    found[:] = (await look_at(fleet))[1]
                    await asyncio.sleep(0.02)

        await until(lambda: found)
        (holder,) = found
        assert (holder.task, holder.pool, holder.process) == ("import", "shop", os.getpid())
        assert "test_board.py:" in holder.place
        assert abs(holder.since - time.time()) < 60
        end.set()
        await task
        await until(lambda: not found)
    await eventually(lambda: os.listdir(tmp_path / "ledger.who") == [])
