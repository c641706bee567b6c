"""An incident on the page, in a real browser: what is wrong in words, and charts with values."""

import asyncio
import contextlib
import re
import sqlite3

import pytest

import cenote
from tests.support.kit import Thing

pytestmark = pytest.mark.once


def test_an_outage_stands_on_top_in_words(program, browser):
    def fail():
        raise ConnectionRefusedError("connect to db:5432 refused")

    strategy = cenote.ConsecutiveFailures(2, recovery_timeout=60.0)
    pool = program.pool(fail, name="orders", strategy=strategy, max_size=20)

    async def insist():
        for _ in range(4):
            with pytest.raises((ConnectionRefusedError, cenote.ServiceUnavailableError)):
                await pool.acquire()

    program.do(insist())  # before the page is opened
    browser.open(program.serve(), width=1280, height=900)
    browser.until(lambda: "Circuit breaker open since" in (browser.text("#trouble li") or ""))
    said = browser.text("#trouble li")
    assert said.startswith("orders")
    assert "Next probe in " in said
    assert "Last failure: ConnectionRefusedError: connect to db:5432 refused" in said
    assert not browser.seen("#calm")
    assert browser.text("#pool-state") == "breaker open"
    assert re.match(r"Open for .* s: no acquire passes", browser.text("#breaker-facts"))  # no probe
    assert re.match(r"Last failure, .* s ago: Connection", browser.text("#breaker-failure"))
    top = browser.run("return document.querySelector('#trouble').getBoundingClientRect().top")
    assert top < 300  # in the first screen
    program.call(pool.activate)
    browser.until(lambda: browser.seen("#calm"))
    assert browser.texts("#trouble li") == []
    assert browser.texts("#changes .name") == ["closed", "open"]


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (250, "Next probe in 1 s."), (1001, "Next probe in 2 s."), (42_000, "Next probe in 42 s."),
        (0, "The next acquire is the probe."),
    ],
)  # fmt: skip
def test_the_time_of_a_probe_is_not_too_exact(program, browser, milliseconds, said):
    browser.open(program.serve())
    assert browser.run(f"return probe({{ retry: {milliseconds} }}, 0)") == said


def test_the_rate_of_refusals_is_that_of_the_outage(program, browser):
    """Not a mean with the calm seconds before."""
    browser.open(program.serve())
    samples = "[[1000, 5, 0, 0, 0, 0, 0], [2000, 5, 0, 0, 0, 0, 0], [3000, 0, 0, 0, 0, 90, 0]]"
    for since, rate in ((2500, "90"), ("null", "30")):
        pool = f"{{ state: 'INACTIVE', since: {since}, retry: null, saturated: null, denied: [] }}"
        (trouble,) = browser.run(f"return troublesOf({pool}, {samples}, 3500)")
        assert trouble[2][0] == f"{rate} acquires a second are refused."
    assert browser.run("return acquiring(1, 'fail', 'fails')") == "1 acquire a second fails"
    assert browser.run("return acquiring(1.3, 'fail', 'fails')") == "1.3 acquires a second fail"


def test_the_first_second_of_an_outage_names_refusals(program, browser):
    browser.open(program.serve())
    assert browser.run("return beginning({ denied: ['circuit'] })") == "Acquires are refused."
    assert browser.run("return beginning({ denied: ['shed'] })") == ""


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (["6, 'INACTIVE', false", "8, 'ACTIVE', false"], ["ACTIVE 6", "INACTIVE 2", "ACTIVE 2"]),
        (["6, 'ACTIVE', false"], [" 6", "ACTIVE 4"]),  # what was before is forgotten
        (["6, 'ACTIVE', true"], ["ACTIVE 10"]),  # it has not switched since the pool was made
        (["-5, 'ACTIVE', true", "-2, 'INACTIVE', false"], ["INACTIVE 10"]),
    ],
)
def test_the_bar_of_the_breaker_begins_with_what_was_before(program, browser, changes, parts):
    browser.open(program.serve())
    assert browser.run(STRIP.replace("CHANGES", f"[{'], ['.join(changes)}]")) == parts


STRIP = """
    charts.rate.from = 0;
    drawStrip([CHANGES], 10);
    return [...$('strip').children].map((part) => `${part.dataset.state} ${part.style.flexGrow}`);
"""


def test_a_breaker_opened_by_hand_says_so(program, browser):
    pool = program.pool(Thing, name="orders")
    program.call(pool.deactivate)
    browser.open(program.serve())
    browser.until(lambda: "until it is closed by hand" in (browser.text("#trouble li") or ""))


def test_a_saturated_pool_names_who_holds(program, browser):
    pool = program.pool(Thing, name="orders", max_size=1)
    thing = program.acquire(pool)

    async def wait():
        pool.release(await pool.acquire())

    program.start(wait(), "patient")
    browser.open(program.serve())
    browser.until(lambda: "All 1 in use since" in (browser.text("#trouble li") or ""))
    said = browser.text("#trouble li")
    assert "1 waiting" in said
    assert "browsing.py:" in said
    program.call(pool.release, thing)
    browser.until(lambda: browser.seen("#calm"))


def test_a_lane_at_its_limit_is_not_all(program, browser):
    browser.open(program.serve())
    state = "state: 'ACTIVE', max: 6, waiting: 2, idle: 0, saturated: 1000, since: null, top: []"
    for active, said in (
        (5, "Acquires wait since"),
        (6, "All 6 in use since"),
    ):
        (trouble,) = browser.run(f"return troublesOf({{ {state}, active: {active} }}, [], 9000)")
        assert trouble[1].startswith(said)
        assert trouble[1].endswith(", 2 waiting")


def test_refusals_and_timeouts_are_told_apart(program, browser):
    pool = program.pool(Thing, name="orders", max_size=1, max_waiting=0)
    thing = program.acquire(pool)

    async def insist(**options):
        while True:
            with contextlib.suppress(cenote.PoolError):
                await pool.acquire(**options)
            await asyncio.sleep(0.05)

    browser.open(program.serve())
    refused = program.start(insist(), "refused")
    browser.until(lambda: "Overloaded" in browser.texts("#trouble strong"))
    assert "The queue is full" in browser.text("#trouble li")
    program.call(refused.cancel)
    program.start(insist(timeout=0), "late")
    browser.until(lambda: any("a second time" in said for said in browser.texts("#trouble strong")))
    browser.until(lambda: "Overloaded" not in browser.texts("#trouble strong"))
    program.call(pool.release, thing)


def test_a_breaker_that_has_closed_is_no_overload(program, browser):
    pool = program.pool(Thing, name="orders", max_size=1)

    async def refuse():
        pool.deactivate()
        for _ in range(30):
            with pytest.raises(cenote.ServiceUnavailableError):
                await pool.acquire()

    browser.open(program.serve())
    program.do(refuse())
    browser.until(lambda: browser.texts("#trouble strong") and browser.run(REFUSED) > 0)
    program.call(pool.activate)
    browser.until(lambda: browser.text("#pool-state") == "serving")
    assert browser.run(REFUSED) > 0  # of the last seconds
    assert browser.texts("#trouble strong") == []


REFUSED = "return recently(known.samples.get(known.details.id) || [], 5)"


def test_lanes_have_a_table(program, browser):
    pool = program.pool(Thing, name="orders", max_size=3)
    browser.open(program.serve())
    assert not browser.seen("#lanes-card")
    lane = program.call(pool.lane, "batch", max_size=2, priority=-1)
    thing = program.acquire(lane)
    browser.until(lambda: browser.texts("#lanes th, #lanes td")[:5] == LANE)
    browser.until(lambda: "lane batch" in (browser.text("#holders .tag") or ""))
    assert "lane batch" in browser.label(0)
    program.call(pool.release, thing)


LANE = ["batch", "-1", "1 of 2", "0", ""]


def test_hostile_texts_are_shown_as_text(program, browser):
    """Whatever comes from outside (names, errors, statements) stays text."""
    evil = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'

    def fail():
        raise OSError(evil)

    async def work():
        db = cenote.Database("sqlite:///:memory:", name=f"db {evil}")
        quoted = evil.replace('"', '""')
        await db.fetch_all(f'select 1 as "{quoted}"')
        with pytest.raises(sqlite3.OperationalError):
            await db.fetch_all(f'select * from "{quoted}"')
        return db

    url = program.serve()  # which observes statements from now on
    db = program.do(work())
    pool = program.pool(Thing, name=f"pool {evil}", max_size=1)
    broken = program.pool(fail, name=f"broken {evil}", strategy=cenote.ConsecutiveFailures(1))
    with pytest.raises(OSError):
        program.acquire(broken)
    lane = program.call(pool.lane, f"lane {evil}")
    holding, end = program.call(asyncio.Event), program.call(asyncio.Event)

    async def hold():
        async with lane.acquire():
            holding.set()
            await end.wait()

    program.start(hold(), f"task {evil}")
    program.do(holding.wait())
    for name, selector in [
        (f"db {evil}", "#statements th"),
        (f"pool {evil}", "#holders .what"),
        (f"broken {evil}", "#breaker-failure"),
    ]:
        browser.open(url)
        browser.until(lambda: len(browser.texts("#pools .name")) == 3)
        browser.run(CHOOSE, name)
        browser.until(lambda name=name: browser.text("#pool-name") == name)
        browser.until(lambda where=selector: "<img" in (browser.text(where) or ""))
        assert browser.run("return window.hacked") is None
        assert browser.run("return document.querySelectorAll('main img, nav img').length") == 0
    assert any(evil in said for said in browser.texts("#trouble li"))
    program.call(end.set)
    program.do(db.close())


CHOOSE = """
    [...document.querySelectorAll('#pools a')]
        .find((link) => link.textContent.startsWith(arguments[0])).click()
"""


def test_trouble_of_another_pool_has_a_link(program, browser):
    program.pool(Thing, name="a")
    other = program.pool(Thing, name="b")
    browser.open(program.serve())
    assert browser.text("#pool-name") == "a"
    program.call(other.deactivate)
    browser.until(lambda: browser.text("#trouble .name") == "b")
    browser.click("#trouble .name")
    browser.until(lambda: browser.text("#pool-name") == "b")


def test_values_are_shown_under_pointer_and_keys(program, browser):
    pool = program.pool(Thing, name="orders")

    async def work():
        for _ in range(30):
            async with pool.acquire():
                await asyncio.sleep(0.05)

    browser.open(program.serve())
    program.do(work())
    browser.until(lambda: browser.run("return charts.rate.shown.length") > 2)
    for plot in ("#rate .lines", "#errors .lines", "#load .lines", "#holds .bars"):
        browser.run(POINT, plot)
        assert browser.seen(f"{plot} .tip"), plot
        assert any(letter.isdigit() for letter in browser.text(f"{plot} .tip")), plot
        browser.run(
            "document.querySelector(arguments[0]).dispatchEvent(new PointerEvent('pointerleave'))",
            plot,
        )
        assert not browser.seen(f"{plot} .tip")
    browser.run("document.querySelector('#rate .lines').focus()")
    browser.press("END")
    first = browser.text("#rate .tip")
    assert browser.seen("#rate .tip")
    browser.press("ARROW_LEFT")
    assert browser.text("#rate .tip") != first
    said = browser.run("return document.querySelector('#rate .lines').ariaValueText")
    assert said == browser.text("#rate .tip")
    browser.press("ESCAPE")
    assert not browser.seen("#rate .tip")


POINT = """
    const plot = document.querySelector(arguments[0]), box = plot.getBoundingClientRect();
    const place = {clientX: box.right - 2, clientY: box.top + 5, bubbles: true};
    plot.dispatchEvent(new PointerEvent('pointermove', place));
"""


def test_charts_have_ticks_and_a_growing_window(program, browser):
    pool = program.pool(Thing, name="orders")
    program.do(pool.open())
    browser.open(program.serve())
    browser.until(lambda: browser.texts("#rate .ticks span") == ["1", "0.5", "0"])
    assert browser.texts("#rate .axis span") == ["\u22121 min", "\u221230 s", "now"]
    # Ten minutes later, as the page would be told of them.
    browser.run("""
        const id = known.details.id, now = serverNow();
        const sample = (_, index) => [now - (590 - index) * 1000, 150, 0, 1, 0, 0, 0];
        known.samples.set(id, Array.from({length: 590}, sample));
        draw();
    """)
    assert browser.texts("#rate .axis span") == ["\u221210 min", "\u22125 min", "now"]
    assert browser.texts("#rate .ticks span") == ["200", "100", "0"]


def test_whatever_scrolls_can_be_reached_by_keys(program, browser):
    """What axe calls scrollable-region-focusable."""
    program.pool(Thing, name="orders")
    browser.open(program.serve())
    unreachable = browser.run("""
        return [...document.querySelectorAll('body *')]
            .filter((node) => /auto|scroll/.test(getComputedStyle(node).overflowY))
            .filter((node) => node.getClientRects().length)  // not hidden
            .filter((node) => node.tabIndex < 0 && !node.querySelector('a, button, input'))
            .map((node) => node.id || node.className)
    """)
    assert unreachable == []


def test_empty_cards_give_their_place_to_others(program, browser):
    pool = program.pool(Thing, name="orders", max_size=1)
    browser.open(program.serve())
    browser.until(lambda: not browser.seen("#waiting-card") and not browser.seen("#holders-card"))
    width = "return document.querySelector('.slots').getBoundingClientRect().width"
    assert browser.run(width) > 1000
    thing = program.acquire(pool)

    async def wait():
        pool.release(await pool.acquire())

    program.start(wait(), "patient")
    browser.until(lambda: browser.seen("#waiting-card") and browser.seen("#holders-card"))
    assert browser.run(width) < 1000
    program.call(pool.release, thing)
