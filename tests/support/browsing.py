"""A real browser, and a program for it to watch."""

import asyncio
import json
import shutil
import threading
import time

import pytest

import cenote
from tests.support.servers import environment
from tests.support.waiting import WAIT

PROGRAMS = ("chromium", "chromedriver")
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


def missing():
    """Why there is no browser, and how to get one."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return (
            f"{', '.join(absent)} not installed: apt-get install chromium chromium-driver "
            f"(or: brew install chromium)"
        )
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium not installed: pip install selenium"
    return None


def launch(folder):
    """Chromium with a fresh profile in that folder."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for switch in (*SWITCHES, f"--user-data-dir={folder}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"), env=environment())
    return webdriver.Chrome(options=options, service=service)


class Browser:
    """What the tests ask of the page. What it complains about is collected."""

    def __init__(self, driver):
        self.driver = driver
        self.logs = []

    def open(self, url, *, width=1280, height=1000, scheme="light"):
        """Look at the dashboard, and wait until it lives."""
        self.go(url, width=width, height=height, scheme=scheme)
        self.until(lambda: self.text("#link-text") == "Live")

    def go(self, url, *, width=1280, height=1000, scheme="light"):
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def violations(self):
        """What axe complains about on this page: its rules, and where they are broken."""
        from axe_core_python.base import AXE_SCRIPT

        self.run(AXE_SCRIPT)
        found = self.driver.execute_async_script(
            "axe.run({ resultTypes: ['violations'] }).then(arguments[arguments.length - 1])"
        )
        return [
            (rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found["violations"]
        ]

    def text(self, selector):
        """Of the first that matches, as it is in the document; None: there is none."""
        return self.run("return document.querySelector(arguments[0])?.textContent", selector)

    def texts(self, selector):
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((n) => n.textContent)",
            selector,
        )

    def seen(self, selector):
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].some((n) => n.checkVisibility())",
            selector,
        )

    def tiles(self):
        """The states, by place."""
        return self.run(
            "return [...document.querySelectorAll('#tiles li')].map((n) => n.className)"
        )

    def label(self, place):
        return self.run(
            "return document.querySelectorAll('#tiles button .vh')[arguments[0]].textContent", place
        )

    def click(self, selector):
        self.driver.find_element("css selector", selector).click()

    def write(self, selector, words):
        field = self.driver.find_element("css selector", selector)
        field.clear()
        field.send_keys(words)

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        chain = ActionChains(self.driver)
        for key in keys:
            chain.send_keys(getattr(Keys, key))
        chain.perform()

    def until(self, condition):
        end = time.monotonic() + WAIT
        while not condition():
            if time.monotonic() > end:
                shown = self.run("return document.body.innerText")
                pytest.fail(f"never came: {condition}; the page says:\n{shown}")
            time.sleep(0.03)

    def complaints(self):
        self.logs += self.driver.get_log("browser")
        return [entry["message"] for entry in self.logs]

    def requests(self):
        events = (
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        )
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


class Program:
    """The program that is watched: a loop in a thread, since the tests themselves wait."""

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="program")
        self.thread.start()
        self.pools, self.tasks, self.server = [], [], None
        return self

    def __exit__(self, *_):
        try:
            self.do(self._end())
        finally:  # else the thread, and with it the test run, would never end
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()

    async def _end(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.server is not None:
            await self.server.close()
        for pool in self.pools:
            await pool.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT)

    def call(self, function, *arguments, **options):
        async def step():
            return function(*arguments, **options)

        return self.do(step())

    def pool(self, *arguments, **options):
        pool = self.call(cenote.Pool, *arguments, **options)
        self.pools.append(pool)
        return pool

    def start(self, coroutine, name):
        async def begin():
            task = asyncio.create_task(coroutine, name=name)
            self.tasks.append(task)
            return task

        return self.do(begin())

    def serve(self, **options):
        self.server = self.do(cenote.serve_dashboard(**{"port": 0, **options}))
        return self.server.url

    def acquire(self, pool, **options):
        async def acquire():
            return await pool.acquire(**options)

        return self.do(acquire())
