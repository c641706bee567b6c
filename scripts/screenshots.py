#!/usr/bin/env python3
"""screenshots.py [FOLDER] [--fleet]: pictures of the dashboard for the docs (default: docs/images).

They are of the demo: its shop, with an outage from the first second to five minutes after, and its
fleet, so this takes seven minutes; with --fleet only the latter. Needs chromium and selenium; with
Pillow the files are a third of the size. Run it as `.venv/bin/python -m scripts.screenshots`.
"""

import asyncio
import base64
import io
import logging
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.support.browsing import Browser, Program, launch

from cenote import caller
from cenote.demo import fleet, play, screen

ROOT = Path(__file__).parent.parent
CALM, RUSH, GONE, AFTER = 20.0, 14.0, 20.0, 310.0  # seconds of each act
OUTAGE = CALM + RUSH  # when it begins

try:
    from PIL import Image
except ImportError:
    Image = None

SHOTS = (
    # name, width, scheme, seconds after the beginning, whether it is as high as the page
    ("dashboard-saturated", 1280, "light", CALM + 8, False),
    ("dashboard-outage", 1280, "light", OUTAGE + 0.6, False),
    ("dashboard-light", 1280, "light", OUTAGE + 6, True),
    ("dashboard-dark", 1280, "dark", OUTAGE + 10, True),
    ("dashboard-narrow", 320, "light", OUTAGE + 14, False),
    ("dashboard-after", 1280, "light", OUTAGE + GONE + 300, True),
)


TOP = 620  # pixels of the first page's picture: what is wrong, the counts and the charts


def acts():
    """The acts of the demo that lead to the outage, and its end, in other lengths."""
    calm, rush, *_, gone, back = play.ACTS
    return tuple(
        replace(act, length=length)
        for act, length in ((calm, CALM), (rush, RUSH), (gone, GONE), (back, AFTER))
    )


# name, width, scheme, the beginning of what the demo of the fleet says, seconds after that
FLEET_SHOTS = (("dashboard-fleet", 1280, "light", "everybody is busy", 3.0),)


class Paper(io.StringIO):
    encoding = "utf-8"


async def perform(begun):
    async with play.Play(random.Random(1), 1.0, screen.Screen(Paper(), color=False)) as story:
        begun.set()
        await story.once()


async def perform_fleet(story):
    async with story:
        await story.once()


def make_fleet():
    paper = Paper()
    return fleet.FleetPlay(1.5, screen.Screen(paper, color=False), paper)


def take_fleet(folder, driver):
    with Program() as program:
        url = program.serve()
        story = program.call(make_fleet)
        playing = program.start(perform_fleet(story), "demo")
        browser = Browser(driver)
        for name, width, scheme, said, after in FLEET_SHOTS:
            while not (story.title.startswith(said) or playing.done()):
                time.sleep(0.05)
            browser.open(f"{url}#fleet=demo", width=width, height=900, scheme=scheme)
            browser.until(lambda: browser.text("#fleet-name") == "demo")
            time.sleep(after)
            take(browser, folder / f"{name}.png", width, width > 600)
        while not playing.done():
            time.sleep(0.1)


def main():
    logging.getLogger("cenote").addHandler(logging.NullHandler())
    logging.getLogger("cenote").propagate = False
    caller.internal[play.__file__] = False  # the demo plays an application
    caller.internal[fleet.__file__] = False
    play.ACTS = acts()
    arguments = [each for each in sys.argv[1:] if each != "--fleet"]
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    if "--fleet" not in sys.argv:
        take_outage(folder)
    with tempfile.TemporaryDirectory() as profile:
        driver = launch(profile)
        try:
            take_fleet(folder, driver)
        finally:
            driver.quit()


def take_outage(folder):
    with Program() as program, tempfile.TemporaryDirectory() as profile:
        url = program.serve()
        driver = launch(profile)
        try:
            begun = program.call(asyncio.Event)
            program.start(perform(begun), "demo")
            program.do(begun.wait())
            began = time.monotonic()
            browser = Browser(driver)
            for name, width, scheme, at, whole in SHOTS:
                open_page(browser, url, width, scheme, began + at)
                take(browser, folder / f"{name}.png", width, whole)
                if name in ("dashboard-light", "dashboard-dark"):
                    take_top(browser, folder / f"dashboard-top-{scheme}.png", width)
        finally:
            driver.quit()


def open_page(browser, url, width, scheme, at):
    """Open the page a few seconds before the picture is taken: it has a past all the same."""
    time.sleep(max(0.0, at - 4 - time.monotonic()))
    browser.open(url, width=width, height=900 if width > 600 else 844, scheme=scheme)
    browser.until(lambda: browser.text("#pool-name") == "shop")
    time.sleep(max(0.0, at - time.monotonic()))


def take(browser, path, width, whole):
    if whole:
        height = browser.run("return document.documentElement.scrollHeight")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        time.sleep(0.6)
    browser.driver.save_screenshot(str(path))
    finish(path)


def take_top(browser, path, width):
    clip = {"x": 0, "y": 0, "width": width, "height": TOP, "scale": 1}
    found = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})
    path.write_bytes(base64.b64decode(found["data"]))
    finish(path)


def finish(path):
    if Image is not None:
        Image.open(path).quantize(256).save(path, optimize=True)
    print(path, flush=True)


if __name__ == "__main__":
    main()
