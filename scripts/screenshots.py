#!/usr/bin/env python3
"""screenshots.py [FOLDER]: pictures of the dashboard for the docs (default: docs/images).

Needs chromium and selenium; with Pillow the files are a third of the size. Run it as
`.venv/bin/python -m scripts.screenshots`.
"""

import asyncio
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.support.browsing import Browser, Program, launch

import cenote

ROOT = Path(__file__).parent.parent

try:
    from PIL import Image
except ImportError:
    Image = None

SHOTS = (
    # name, width, scheme, pool, seconds to watch, as high as the page
    ("dashboard-light", 1280, "light", "orders", 75, True),
    ("dashboard-dark", 1280, "dark", "orders", 1, True),
    ("wide-database", 1280, "light", "database", 2, True),
    ("wide-open", 1280, "dark", "mail gateway", 2, True),
    ("narrow-light", 390, "light", "orders", 2, True),
    ("narrow-dark", 390, "dark", "database", 2, True),
    ("narrowest", 320, "light", "orders", 2, True),
)
KEPT = ("dashboard-light", "dashboard-dark")


class Connection:
    pass


class Shop:
    """A busy program: a pool with waiters, a transaction that stays open, an open breaker."""

    def __init__(self):
        self.down = False
        self.orders = cenote.Pool(
            self.connect,
            destructor=self.disconnect,
            before_release=self.reset,
            min_size=4,
            max_size=24,
            max_uses=150,
            hold_warning=2.0,
            strategy=cenote.ConsecutiveFailures(failure_threshold=3, recovery_timeout=4.0),
            name="orders",
        )
        self.cache = cenote.Pool(Connection, max_size=40, name="cache")
        self.mail = cenote.Pool(
            self.refuse,
            max_size=8,
            strategy=cenote.ConsecutiveFailures(failure_threshold=3, recovery_timeout=300.0),
            name="mail gateway",
        )
        self.folder = tempfile.TemporaryDirectory()
        self.database = cenote.Database(
            f"sqlite:///{self.folder.name}/shop.db", max_size=8, name="database"
        )

    async def connect(self):
        await asyncio.sleep(random.uniform(0.05, 0.4))
        if self.down:
            raise ConnectionRefusedError("connect to db.internal:5432 refused")
        return Connection()

    async def refuse(self):
        raise TimeoutError("smtp.internal:587 did not answer within 5 s")

    async def reset(self, _):
        await asyncio.sleep(random.uniform(0.005, 0.04))

    async def disconnect(self, _):
        await asyncio.sleep(0.3)

    async def take_orders(self):
        while True:
            await self.use(self.orders.acquire(timeout=3), random.expovariate(8))
            await asyncio.sleep(random.expovariate(5))

    async def read_cache(self):
        while True:
            await self.use(self.cache.acquire(timeout=3), random.expovariate(60))
            await asyncio.sleep(random.expovariate(12))

    async def print_invoices(self):
        while True:
            tasks = [
                asyncio.create_task(self.print_invoice(), name=f"invoice {number}")
                for number in range(random.randrange(14, 34))
            ]
            await asyncio.gather(*tasks)
            await asyncio.sleep(2.5)

    async def print_invoice(self):
        await self.use(self.orders.acquire(timeout=3), random.uniform(0.5, 2.5))

    async def export(self):
        while True:
            await self.use(self.orders.acquire(timeout=3), 40)

    async def use(self, acquire, seconds):
        try:
            async with acquire:
                await asyncio.sleep(seconds)
        except (cenote.PoolError, OSError):
            await asyncio.sleep(0.2)

    async def close_month(self):
        async with self.database.transaction():
            await self.database.execute("create table if not exists ledger (entry)")
            await asyncio.sleep(3600)

    async def read_ledger(self):
        while True:
            await self.database.fetch_all("select 1")
            await asyncio.sleep(random.uniform(0.001, 0.04))

    async def send_mail(self):
        while True:
            await self.use(self.mail.acquire(timeout=3), 0.1)

    async def fail_once(self):
        await asyncio.sleep(32)
        self.down = True
        self.orders.retire()
        await asyncio.sleep(3)
        self.down = False
        await asyncio.sleep(3600)


def main():
    logging.getLogger("cenote").addHandler(logging.NullHandler())
    random.seed(1)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with Program() as program, tempfile.TemporaryDirectory() as profile:
        shop = program.call(Shop)
        program.pools += [shop.orders, shop.cache, shop.mail]
        for number in range(34):
            program.start(shop.take_orders(), f"order {number}")
        for number in range(30):
            program.start(shop.read_cache(), f"basket {number}")
        for number in range(4):
            program.start(shop.read_ledger(), f"ledger {number}")
        for coroutine, name in (
            (shop.print_invoices(), "print invoices"),
            (shop.export(), "nightly export"),
            (shop.close_month(), "close the month"),
            (shop.send_mail(), "newsletter"),
            (shop.fail_once(), "outage"),
        ):
            program.start(coroutine, name)
        url = program.serve(control_token="open-sesame-open-sesame")
        driver = launch(profile)
        try:
            for shot in SHOTS:
                if len(sys.argv) > 1 or shot[0] in KEPT:
                    take(Browser(driver), url, folder, *shot)
        finally:
            driver.quit()
        program.do(shop.database.close())
        shop.folder.cleanup()


def take(browser, url, folder, name, width, scheme, pool, seconds, whole):
    browser.open(url, width=width, height=1000 if width > 600 else 844, scheme=scheme)
    names = browser.texts("#pools .name")
    browser.run(f"location.hash = 'pool={names.index(pool) + 1}'")
    browser.until(lambda: browser.text("#pool-name") == pool)
    time.sleep(seconds)
    if whole:
        height = browser.run("return document.documentElement.scrollHeight")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        time.sleep(0.6)
    if name in KEPT:
        browser.until(lambda: len(browser.texts("#waiters li")) > 5)
    path = folder / f"{name}.png"
    browser.driver.save_screenshot(str(path))
    if Image is not None:
        Image.open(path).quantize(256).save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main()
