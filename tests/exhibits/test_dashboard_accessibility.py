"""The page and its login, as axe sees them, with pools in every state."""

import asyncio

import pytest

import cenote
from tests.support.kit import Thing, outcome, raising

pytestmark = [
    pytest.mark.once,
    pytest.mark.parametrize("scheme", ["light", "dark"]),
    pytest.mark.parametrize("width", [320, 1280]),
]

SELECT = """
    [...document.querySelectorAll('#pools a')]
        .find((link) => link.textContent.includes(arguments[0])).click();
"""


async def hold(acquire):
    async with acquire:
        await asyncio.Event().wait()


async def report():
    async with cenote.Database("sqlite:///:memory:", name="database") as db, db.transaction():
        await db.execute("create table orders (id integer)")
        await asyncio.Event().wait()


def begin_trouble(program):
    """A breaker that is open, a pool with a lane in which all is in use, and a transaction."""
    strategy = cenote.ConsecutiveFailures(1, recovery_timeout=60.0)
    away = program.pool(raising(OSError("refused")), name="away", strategy=strategy)
    for _ in range(3):
        program.do(outcome(program.call(away.acquire)))
    full = program.pool(Thing, name="full", max_size=3)
    lane = program.call(full.lane, "batch", max_size=1)
    for number in range(6):
        acquire = program.call((lane if number < 3 else full).acquire)
        program.start(hold(acquire), f"request-{number}")
    program.start(report(), "report")


def test_axe_has_no_complaint_about_pools(program, browser, scheme, width):
    begin_trouble(program)
    browser.open(program.serve(), scheme=scheme, width=width)
    for name in ("full", "database", "away"):
        browser.run(SELECT, name)
        browser.until(lambda name=name: browser.text("#pool-name") == name)
        browser.until(lambda name=name: name == "away" or browser.tiles())
        assert browser.violations() == []


def test_axe_has_no_complaint_about_the_login(program, browser, scheme, width):
    browser.go(program.serve(token="open-sesame-open-sesame"), scheme=scheme, width=width)
    browser.write("#token", "not the token")
    browser.click("[type=submit]")
    browser.until(lambda: browser.text("[role=alert]") == "That token is wrong.")
    assert browser.violations() == []
