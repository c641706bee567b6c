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


STATES = {"idle", "active", "hook", "destroying", "creating", "free"}


async def hold(acquire):
    async with acquire:
        await asyncio.Event().wait()


async def report():
    async with cenote.Database("sqlite:///:memory:", name="database") as db, db.transaction():
        await db.execute("create table orders (id integer)")
        await asyncio.Event().wait()


class Hooks:
    """They take no time at first, and later wait for the end."""

    def __init__(self):
        self.end = asyncio.Event()
        self.end.set()

    async def make(self):
        await self.end.wait()
        return Thing()

    async def wait(self, thing):
        await self.end.wait()


async def be_in_every_state(pool, hooks):
    """Most slots are idle, and the others in each other state; their numbers have two digits."""
    things = [await pool.acquire() for _ in range(13)]
    for thing in things[:10]:
        await pool.release(thing)
    hooks.end.clear()
    pool.release(things[10])
    pool.discard(things[11])
    pool.resize(min_size=14)


def begin_trouble(program):
    """A breaker that is open, a pool with a lane in which all is in use, a transaction, and slots
    in every state. Return what ends the last."""
    hooks = Hooks()
    mixed = program.pool(
        hooks.make, destructor=hooks.wait, before_release=hooks.wait, max_size=16, name="mixed",
        hook_timeout=60.0, destructor_timeout=60.0,
    )  # fmt: skip
    program.do(be_in_every_state(mixed, hooks))
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
    return hooks.end.set


def test_axe_has_no_complaint_about_pools(program, browser, scheme, width):
    end = begin_trouble(program)
    browser.open(program.serve(), scheme=scheme, width=width)
    for name in ("mixed", "full", "database", "away"):
        browser.run(SELECT, name)
        browser.until(lambda name=name: browser.text("#pool-name") == name)
        browser.until(lambda name=name: name == "away" or browser.tiles())
        if name == "mixed":
            browser.until(lambda: {*browser.tiles()} >= STATES)
        assert browser.violations() == []
    program.call(end)


def test_axe_has_no_complaint_about_the_login(program, browser, scheme, width):
    browser.go(program.serve(token="open-sesame-open-sesame"), scheme=scheme, width=width)
    browser.write("#token", "not the token")
    browser.click("[type=submit]")
    browser.until(lambda: browser.text("[role=alert]") == "That token is wrong.")
    assert browser.violations() == []
