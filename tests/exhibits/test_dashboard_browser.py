"""The dashboard in a real browser: Debian's chromium, driven by selenium."""

import asyncio
from contextlib import contextmanager

import pytest

import cenote
from cenote.extras.dashboard import asgi
from tests.support.kit import Gate, Thing

pytestmark = pytest.mark.once

TOKEN = "open-sesame-open-sesame"


def contents(tiles, *states):
    return [state for state in tiles if state != "free"] == list(states)


# -- what it shows -------------------------------------------------------------------------------


def test_the_page_follows_the_pool(program, browser):
    pool = program.pool(Thing, max_size=2, name="main")
    browser.open(program.serve())
    assert browser.text("#pool-name") == "main"
    assert browser.tiles() == ["free", "free"]

    first, second = program.acquire(pool), program.acquire(pool)
    browser.until(lambda: browser.tiles() == ["active", "active"])
    assert "browsing.py:" in browser.label(0)
    browser.until(lambda: len(browser.texts("#holders li")) == 2)

    async def wait():
        pool.release(await pool.acquire())

    program.start(wait(), "patient")
    browser.until(lambda: "patient" in (browser.text("#waiters li") or ""))
    assert "test_dashboard_browser.py:" in browser.text("#waiters li .where")
    browser.until(lambda: "1 waiting" in browser.text("#pools .words"))

    program.call(pool.release, first)
    browser.until(lambda: sorted(browser.tiles()) == ["active", "idle"])
    browser.until(lambda: not browser.texts("#waiters li"))
    program.call(pool.release, second)
    browser.until(lambda: browser.tiles() == ["idle", "idle"])
    browser.until(lambda: "created" in "".join(browser.texts("#events .what")))
    browser.until(lambda: "p95" in browser.text("#holds .now"))
    drawn = "return document.querySelector('#rate path.line').getAttribute('d')"
    browser.until(lambda: browser.run(drawn))


def test_every_state_is_told_apart(program, browser):
    opening, checking, ending = (program.call(Gate, *made) for made in ((Thing,), (), ()))
    pool = program.pool(opening, before_release=checking, destructor=ending, max_size=3)
    browser.open(program.serve())
    thing = program.start(pool.acquire(), "first")
    browser.until(lambda: contents(browser.tiles(), "creating"))
    program.call(opening.open)
    browser.until(lambda: contents(browser.tiles(), "active"))
    assert "task first" in browser.label(0)
    program.call(lambda: pool.release(thing.result()))
    browser.until(lambda: contents(browser.tiles(), "hook"))
    program.call(checking.open)
    browser.until(lambda: contents(browser.tiles(), "idle"))
    program.call(pool.retire)
    browser.until(lambda: contents(browser.tiles(), "destroying"))
    program.call(ending.open)
    browser.until(lambda: contents(browser.tiles()))


def test_a_database_and_its_pinned_connection(program, browser, tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    done = program.call(asyncio.Event)

    async def work():
        async with cenote.Database(url, max_size=2) as database, database.transaction():
            await done.wait()

    task = program.start(work(), "monthly report")
    browser.open(program.serve())
    browser.until(lambda: browser.text("#pool-name") == url)
    browser.until(lambda: contents(browser.tiles(), "active pinned"))
    assert "pinned: in a transaction" in browser.label(0)
    assert "monthly report" in browser.text("#holders li")
    assert browser.text("#holders li .tag") == "in a transaction"

    async def finish():
        done.set()
        await task

    program.do(finish())
    browser.until(lambda: browser.text("#pool-state") == "closed" or not browser.seen("#detail"))


def test_the_breaker_is_announced_with_its_history(program, browser):
    pool = program.pool(Thing, name="main")
    browser.open(program.serve())
    browser.until(lambda: browser.text("#breaker-state") == "closed")
    program.call(pool.deactivate)
    browser.until(lambda: browser.text("#breaker-state") == "open")
    assert browser.text("#live") == "main: the circuit breaker is open now"
    program.call(pool.recover)
    browser.until(lambda: browser.texts("#changes .name") == ["half-open", "open", "closed"])
    browser.until(lambda: browser.text("#pool-state") == "breaker half-open")


def test_one_of_several_pools(program, browser):
    program.pool(Thing, name="a", max_size=1)
    program.pool(Thing, name="b", max_size=3)
    browser.open(program.serve())
    assert browser.texts("#pools .name") == ["a", "b"]
    assert browser.text("#pool-name") == "a"
    browser.click("#pools li:nth-child(2) a")
    browser.until(lambda: browser.text("#pool-name") == "b" and len(browser.tiles()) == 3)
    assert browser.text("#pools [aria-current] .name") == "b"
    browser.driver.refresh()
    browser.until(lambda: browser.text("#pool-name") == "b")


# -- the door ------------------------------------------------------------------------------------


def test_signing_in_and_out(program, browser):
    pool = program.pool(Thing, max_size=2, name="main")
    url = program.serve(token=TOKEN)
    browser.go(url)
    assert browser.seen("input[name=token]")
    browser.write("#token", "not the token")
    browser.click("[type=submit]")
    browser.until(lambda: browser.text("[role=alert]") == "That token is wrong.")

    browser.write("#token", TOKEN)
    browser.click("[type=submit]")
    browser.until(lambda: browser.text("#link-text") == "Live")
    assert browser.driver.current_url == url
    thing = program.acquire(pool)
    browser.until(lambda: contents(browser.tiles(), "active"))
    program.call(pool.release, thing)
    browser.driver.refresh()
    browser.until(lambda: browser.text("#link-text") == "Live")
    (cookie,) = browser.driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert browser.run("return document.cookie") == ""

    browser.click("#sign-out")
    browser.until(lambda: browser.seen("input[name=token]"))
    assert browser.driver.get_cookies() == []
    browser.driver.get(url)
    assert browser.seen("input[name=token]")
    assert all(TOKEN not in each for each in browser.requests())
    # What it could not load is what it was refused: nothing else, above all nothing of the policy.
    refused = [each for each in browser.complaints() if "status of 401" not in each]
    assert refused == []


def test_a_page_is_shown_the_door_when_the_token_changes(program, browser):
    program.pool(Thing, name="main")
    browser.go(program.serve(token=TOKEN))
    browser.write("#token", TOKEN)
    browser.press("ENTER")
    browser.until(lambda: browser.text("#link-text") == "Live")
    port = program.server.port
    program.do(program.server.close())
    browser.until(lambda: browser.text("#link-text") == "Offline")
    program.serve(port=port, token=TOKEN[::-1])
    browser.until(lambda: browser.seen("input[name=token]"))


def test_no_sign_of_a_login_without_a_token(program, browser):
    program.pool(Thing)
    browser.open(program.serve())
    assert not browser.seen("#sign-out")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_the_door_can_be_read(program, browser, scheme, width):
    browser.go(program.serve(token=TOKEN), scheme=scheme, width=width, height=700)
    browser.write("#token", "not the token")
    browser.click("[type=submit]")
    browser.until(lambda: browser.text("[role=alert]") == "That token is wrong.")
    dark = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(14, 19, 24)") is (scheme == "dark")
    assert browser.run(FAINT) == []
    assert browser.run(OUTSIDE, width) == []
    assert browser.run("return document.documentElement.scrollWidth") <= width


def test_another_origin_cannot_watch(program, browser):
    """A page of another port, as any program of this machine may serve one."""
    program.pool(Thing)
    url = program.serve(interval=0.05)
    stranger = program.do(cenote.serve_dashboard(port=0))
    try:
        browser.open(stranger.url)
        said = browser.driver.execute_async_script(
            """
            const done = arguments[arguments.length - 1];
            fetch(arguments[0], {mode: 'no-cors'}).then(() => done('sent'), () => done('kept'));
            """,
            f"{url}events",
        )
        assert said == "kept"
        assert program.call(program.server._app._collector).viewers == 0
    finally:
        program.do(stranger.close())


# -- the buttons ---------------------------------------------------------------------------------


def test_no_buttons_without_a_control_token(program, browser):
    pool = program.pool(Thing)
    browser.open(program.serve())
    browser.until(lambda: browser.text("#breaker-state") == "closed")
    assert not browser.seen("[data-action], #token")
    status, said = post(browser, {"Content-Type": "application/json"})
    assert (status, pool.state) == (403, "ACTIVE")
    assert "read-only" in said


def test_the_buttons_need_the_token(program, browser):
    pool = program.pool(Thing)
    browser.open(program.serve(control_token=TOKEN))
    browser.until(lambda: browser.seen("[data-action=recover]"))

    browser.click("[data-action=recover]")
    assert browser.text("#control-result") == "Enter the control token first."
    browser.write("#token", "guess")
    browser.click("#unlock-button")
    browser.until(lambda: browser.text("#control-result") == "The control token is wrong.")
    assert browser.seen("#token")
    json_type = {"Content-Type": "application/json"}
    assert post(browser, json_type)[0] == 403
    assert post(browser, {**json_type, "Authorization": "Bearer guess"})[0] == 403
    assert pool.state == "ACTIVE"

    browser.write("#token", TOKEN)
    browser.click("#unlock-button")
    browser.until(lambda: not browser.seen("#token"))
    browser.click("[data-action=recover]")
    browser.until(lambda: browser.text("#breaker-state") == "half-open")
    assert pool.state == "RECOVERING"
    browser.click("[data-action=deactivate]")
    assert "again" in browser.text("[data-action=deactivate]")
    assert pool.state == "RECOVERING"
    browser.click("[data-action=deactivate]")
    browser.until(lambda: browser.text("#breaker-state") == "open")
    browser.click("[data-action=activate]")
    browser.until(lambda: browser.text("#breaker-state") == "closed")
    assert pool.state == "ACTIVE"

    kept = browser.run("return [document.cookie, JSON.stringify({...localStorage})].join()")
    assert TOKEN not in kept
    assert TOKEN not in browser.run("return document.documentElement.outerHTML")
    browser.click("#lock")
    assert browser.seen("#token")
    browser.click("[data-action=recover]")
    assert pool.state == "ACTIVE"


def test_an_order_for_another_process_is_told(program, browser):
    pool = program.pool(Thing)
    browser.open(program.serve(control_token=TOKEN))
    browser.until(lambda: browser.seen("[data-action=recover]"))
    browser.write("#token", TOKEN)
    browser.click("#unlock-button")
    browser.until(lambda: not browser.seen("#token"))
    browser.run("known.process = 'another'")
    browser.click("[data-action=recover]")
    browser.until(lambda: "Another process of this" in browser.text("#control-result"))
    assert pool.state == "ACTIVE"
    assert not browser.seen("#token")


def post(browser, headers):
    """Status and words of a POST by a script of the page."""
    script = """
        const done = arguments[arguments.length - 1];
        const body = '{"pool":1,"action":"recover"}';
        fetch('control', {method: 'POST', headers: arguments[0], body})
            .then(async (answer) => done([answer.status, (await answer.json()).error]))
    """
    return browser.driver.execute_async_script(script, headers)


# -- it goes on ----------------------------------------------------------------------------------


def test_it_survives_a_restart_of_the_server(program, browser):
    pool = program.pool(Thing, max_size=2, name="main")
    browser.open(program.serve())
    port = program.server.port
    browser.until(lambda: browser.tiles() == ["free", "free"])
    program.do(program.server.close())
    browser.until(lambda: browser.text("#link-text") == "Offline")
    assert browser.seen("#offline")
    thing = program.acquire(pool)
    program.serve(port=port)
    browser.until(lambda: browser.text("#link-text") == "Live")
    assert not browser.seen("#offline")
    browser.until(lambda: contents(browser.tiles(), "active"))
    program.call(pool.release, thing)
    browser.until(lambda: contents(browser.tiles(), "idle"))


def test_the_next_stream_is_not_noticed(program, browser, monkeypatch):
    monkeypatch.setattr(asgi, "STREAM", 0.5)
    pool = program.pool(Thing, max_size=2, name="main")
    thing = program.acquire(pool)
    browser.open(program.serve(interval=0.05))
    browser.until(lambda: contents(browser.tiles(), "active"))
    browser.click("#tiles button")
    browser.run("""
        window.shown = [];
        const note = () => window.shown.push(document.querySelector('#link-text').textContent);
        new MutationObserver(note).observe(document.querySelector('#link'),
            {subtree: true, childList: true, characterData: true, attributes: true});
    """)
    streams = lambda: [each for each in browser.requests() if "/events" in each]  # noqa: E731
    seen = []
    browser.until(lambda: seen.extend(streams()) or len(seen) >= 4)
    assert all("after=" in each for each in seen[1:]), seen
    assert browser.run("return window.shown") == []
    assert browser.text("#inspector").startswith("Slot 1, active")
    program.call(pool.deactivate)
    browser.until(lambda: browser.text("#breaker-state") == "open")
    program.call(pool.release, thing)


def test_a_page_that_is_left_costs_nothing(program, browser):
    pool = program.pool(Thing)
    browser.open(program.serve())
    browser.until(lambda: pool._engine.subscribers)
    browser.driver.get("about:blank")
    browser.until(lambda: not pool._engine.subscribers)


def test_it_is_quiet_and_asks_nobody_else(program, browser):
    pool = program.pool(Thing, name="main")
    url = program.serve(control_token=TOKEN)
    browser.open(url)
    program.call(pool.deactivate)
    browser.until(lambda: browser.text("#breaker-state") == "open")
    browser.click("#theme")
    browser.click("#tiles button")
    browser.click("#problems")
    browser.write("#token", TOKEN)
    browser.click("#unlock-button")
    browser.until(lambda: not browser.seen("#token"))
    assert browser.complaints() == []
    asked = browser.requests()
    assert url in asked
    assert all(each.startswith((url, "data:")) for each in asked), asked


def test_of_a_thousand_slots_only_those_that_changed_are_drawn(program, browser):
    """What an update costs the browser goes by what has changed, not by the size of the pool."""
    pool = program.pool(Thing, min_size=1000, max_size=1000, name="large")
    program.do(pool.open())
    browser.open(program.serve())
    browser.until(lambda: browser.tiles().count("idle") == 1000)
    browser.run("""
        window.touched = new Set();
        const list = document.querySelector('#tiles');
        new MutationObserver((records) => {
            for (const record of records) {
                const tile = record.target.closest ? record.target : record.target.parentElement;
                const place = [...list.children].indexOf(tile.closest('li'));
                window.touched.add(tile === list ? 'the list' : place);
            }
        }).observe(list, {subtree: true, childList: true, characterData: true, attributes: true});
    """)
    touched = "return [...window.touched]"
    things = [program.acquire(pool) for _ in range(20)]
    browser.until(lambda: browser.tiles().count("active") == 20)
    changed = {place for place, state in enumerate(browser.tiles()) if state == "active"}
    browser.until(lambda: set(browser.run(touched)) == changed)
    browser.run("draw(); draw();")  # without news
    assert set(browser.run(touched)) == changed
    for thing in things:
        program.call(pool.release, thing)
    browser.until(lambda: browser.tiles().count("idle") == 1000)
    assert set(browser.run(touched)) == changed


# -- for everybody -------------------------------------------------------------------------------


@contextmanager
def busy(program):
    """A pool with a bit of everything."""
    pool = program.pool(Thing, min_size=3, max_size=4, name="a-pool-with-a-rather-long-name" * 2)
    program.do(pool.open())
    things = [program.acquire(pool) for _ in range(4)]

    async def wait():
        pool.release(await pool.acquire())

    program.start(wait(), "somebody-who-waits-with-a-name-that-does-not-end" * 3)
    yield pool
    for thing in things:
        program.call(pool.release, thing)


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_runs_over_the_edge(program, browser, width):
    with busy(program) as pool:
        browser.open(program.serve(control_token=TOKEN), width=width, height=800)
        program.call(pool.recover)
        browser.until(lambda: browser.texts("#waiters li"))
        assert browser.run("return document.documentElement.scrollWidth") <= width
        outside = browser.run(OUTSIDE, width)
        assert outside == []


# Elements that reach beyond the window without being in something that scrolls.
OUTSIDE = """
    return [...document.querySelectorAll('main *')].filter((node) => {
        if (!node.checkVisibility() || node.closest('.vh, svg')) return false;
        const box = node.getBoundingClientRect();
        return box.width > 0 && (box.right > arguments[0] + 1 || box.left < -1);
    }).map((node) => node.outerHTML.slice(0, 120))
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read(program, browser, scheme):
    """Contrast as WCAG 2 AA wants it, in both schemes, of every text."""
    with busy(program) as pool:
        browser.open(program.serve(control_token=TOKEN), scheme=scheme)
        for action in (pool.deactivate, pool.recover, pool.activate):
            program.call(action)
        browser.until(lambda: len(browser.texts("#changes li")) == 4)
        dark = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(14, 19, 24)") is (scheme == "dark")
        assert browser.run(FAINT) == []


FAINT = """
    const parse = (color) => {
        const part = color.match(/[\\d.]+/g).map(Number);
        const scale = color.startsWith('color(') ? 255 : 1;
        return [part[0] * scale, part[1] * scale, part[2] * scale, part[3] ?? 1];
    };
    const light = (color) => {
        const [r, g, b] = color.slice(0, 3).map((value) => {
            const part = value / 255;
            return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
    const behind = (node) => {
        if (!node) return [255, 255, 255];
        const color = parse(getComputedStyle(node).backgroundColor);
        return color[3] === 1 ? color : over(color, behind(node.parentElement));
    };
    const faint = [];
    for (const node of document.querySelectorAll('body *')) {
        const words = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        if (!words || !node.checkVisibility() || node.closest('.vh, .free, script')) continue;
        const below = behind(node);
        let alpha = 1;
        for (let up = node; up; up = up.parentElement) alpha *= getComputedStyle(up).opacity;
        const color = parse(getComputedStyle(node).color);
        const front = over([color[0], color[1], color[2], color[3] * alpha], below);
        const [a, b] = [light(front), light(below)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) faint.push([node.className, node.textContent, ratio.toFixed(2)]);
    }
    return faint;
"""


def test_keys_and_names_reach_every_control(program, browser):
    pool = program.pool(Thing, max_size=12, name="main")
    thing = program.acquire(pool)
    browser.open(program.serve(control_token=TOKEN))
    browser.until(lambda: contents(browser.tiles(), "active"))
    nameless = browser.run("""
        return [...document.querySelectorAll('a, button, input, svg:not([aria-hidden])')]
            .filter((n) => n.checkVisibility())
            .filter((n) => !(n.ariaLabel || n.textContent.trim() || n.labels?.length))
            .map((n) => n.outerHTML)
    """)
    assert nameless == []
    landmarks = "header, nav[aria-label], main, section[aria-labelledby]"
    assert browser.run(f"return document.querySelectorAll({landmarks!r}).length") > 10

    # One stop for all slots; the arrows move between them.
    assert browser.run("return document.querySelectorAll('#tiles [tabindex=\"0\"]').length") == 1
    browser.run("document.querySelector('#tiles [tabindex=\"0\"]').focus()")
    browser.until(lambda: browser.text("#inspector").startswith("Slot 1, active"))
    browser.press("ARROW_RIGHT")
    browser.until(lambda: browser.text("#inspector") == "Slot 2 is free.")
    browser.press("END")
    browser.until(lambda: browser.text("#inspector") == "Slot 12 is free.")
    browser.press("ARROW_RIGHT", "HOME", "ENTER")
    browser.until(lambda: browser.text("#inspector").startswith("Slot 1, active"))
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    program.call(pool.release, thing)
    browser.until(lambda: browser.text("#inspector").startswith("Slot 1, idle"))


def test_the_theme_can_be_chosen(program, browser):
    url = program.serve()
    browser.open(url, scheme="dark")
    color = "return getComputedStyle(document.body).backgroundColor"
    dark = browser.run(color)
    browser.click("#theme")
    assert browser.run(color) != dark
    assert browser.text("#theme") == "Theme: light"
    browser.driver.refresh()
    browser.until(lambda: browser.text("#link-text") == "Live")
    assert browser.run(color) != dark
    browser.click("#theme")
    assert browser.run(color) == dark
    browser.click("#theme")
    assert browser.text("#theme") == "Theme: auto"
