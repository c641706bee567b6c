"""The page of a fleet in a real browser: two processes, and a fleet that cannot be reached."""

import subprocess
import sys
from pathlib import Path

import pytest

import cenote
from tests.support.waiting import WAIT

pytestmark = pytest.mark.once

OTHER = """
import asyncio, sys, cenote

async def main(path):
    fleet = cenote.Fleet(budget=10, name="shop", path=path)
    async with cenote.Pool(object, max_size=8, fleet=fleet, name="jobs") as pool:
        async with pool.acquire(), pool.acquire():
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def other(tmp_path):
    """Another process, with two of its resources in use."""
    child = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path / "ledger")],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    yield child
    child.communicate(timeout=WAIT)
    assert child.returncode == 0


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (320, "dark"), (1280, "light")])
def test_all_processes_of_the_fleet_are_on_its_page(
    program, browser, other, tmp_path, width, scheme
):
    fleet = cenote.Fleet(budget=10, name="shop", path=tmp_path / "ledger")
    pool = program.pool(object, max_size=8, fleet=fleet, name="web")
    thing = program.acquire(pool)
    browser.open(program.serve(), width=width, height=900, scheme=scheme)
    browser.until(lambda: browser.text("#fleets .name") == "shop")
    browser.click("#fleets a")
    browser.until(lambda: browser.text("#fleet-name") == "shop" and browser.seen("#fleet-rows"))
    assert not browser.seen("#detail")
    browser.until(lambda: len(browser.texts("#fleet-rows tr")) == 2)
    assert browser.texts("#fleet-rows td:nth-child(3)") == ["jobs", "web"]
    names = browser.texts("#fleet-rows th")
    assert names[0] == str(other.pid)
    assert names[1].endswith(" (this one)")
    browser.until(lambda: browser.texts("#fleet-rows td:nth-child(5)") == ["2", "1"])
    browser.until(lambda: len(browser.texts("#fleet-holders li")) == 3)
    shown = " ".join(browser.texts("#fleet-holders .where"))
    assert f"jobs in process {other.pid} on " in shown
    assert "browsing.py:" in shown
    assert browser.texts("#fleet-numbers .big")[0] == "10"
    assert "2 processes on 1 host" in browser.text("#fleet-facts")
    assert browser.run("return document.querySelectorAll('#fleet-bar i').length") == 2
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.violations() == []
    assert browser.complaints() == []
    browser.click("#pools a")
    browser.until(lambda: browser.text("#pool-name") == "web" and not browser.seen("#fleet"))
    program.call(pool.release, thing)


def test_a_fleet_that_cannot_be_reached_stands_on_top(program, browser, tmp_path):
    fleet = cenote.Fleet(budget=10, name="shop", path=tmp_path / "missing" / "ledger")
    pool = program.pool(object, max_size=8, fleet=fleet, name="web")
    thing = program.acquire(pool)
    browser.open(f"{program.serve()}#fleet=shop")
    browser.until(lambda: "The fleet cannot be reached" in browser.texts("#trouble strong"))
    assert browser.text("#fleet-state") == "not reachable"
    assert browser.text("#trouble .cause")
    program.call(pool.release, thing)
