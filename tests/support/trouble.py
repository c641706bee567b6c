"""A program in every trouble that docs/prometheus/alerts.yml knows, or in none; it says at which
port it is scraped, and ends with its standard input. `python -m tests.support.trouble [calm]`."""

import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

import cenote
from cenote.extras.prometheus import Collector


async def fail() -> object:
    raise ConnectionRefusedError("connect to db:5432 refused")


def nap(seconds: float) -> float:
    time.sleep(seconds)  # in the thread of the connection
    return seconds


async def again(work: Callable[[], Awaitable[Any]]) -> None:
    """Do it without an end, whatever comes of it."""
    while True:
        with contextlib.suppress(Exception):
            await work()
        await asyncio.sleep(0.02)


async def hold(pool: Any, seconds: float) -> None:
    async with pool.acquire():
        await asyncio.sleep(seconds)


@contextlib.contextmanager
def scraped(*pools: Any) -> Iterator[None]:
    """Export these, at a port that is printed."""
    registry = CollectorRegistry()
    collector = Collector(*pools, registry=registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    print(server.server_port, flush=True)
    yield
    collector.close()
    server.shutdown()
    thread.join()
    server.server_close()


async def until_end(*work: Callable[[], Awaitable[Any]]) -> None:
    """Do all of it, again and again, until the standard input ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(again(each)) for each in work]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()


async def be_in_trouble(folder: str) -> None:
    strategy = cenote.ConsecutiveFailures(
        2, recovery_timeout=0.3, success_threshold=1, max_recovery_timeout=0.3
    )
    full = cenote.Pool(object, max_size=1, acquire_timeout=0.5, name="full")
    busy = cenote.Pool(object, max_size=1, name="busy")
    away = cenote.Pool(fail, strategy=strategy, name="away")
    worn = cenote.Pool(object, max_uses=2, before_release=lambda _: False, name="worn")
    db = cenote.Database("sqlite:///:memory:", name="shop")
    reports = cenote.Database("sqlite:///:memory:", name="reports")
    reports.create_function("nap", 1, nap)
    batch = busy.lane("batch", max_size=1)
    home = Path(folder)
    fleet = cenote.Fleet(budget=2, name="trouble", path=home / "fleet")
    alone = cenote.Fleet(budget=2, name="alone", path=home / "missing" / "fleet")
    short = [cenote.Pool(object, max_size=2, fleet=fleet, name=f"short {n}") for n in (1, 2)]
    cut_off = cenote.Pool(object, max_size=2, fleet=alone, name="cut off")
    with scraped(full, busy, away, worn, db, reports, *short, cut_off):
        async with full, busy, worn, db, reports, full.acquire():
            await until_end(
                *[lambda: hold(full, 0)] * 4,
                *[lambda: hold(busy, 0.6)] * 3,
                lambda: hold(batch, 0.1),
                lambda: hold(away, 0),
                lambda: hold(cut_off, 0),
                *[partial(hold, pool, 0.6) for pool in short for _ in range(3)],
                lambda: hold(worn, 0),
                lambda: reports.fetch_val("select nap(1.2)"),
                lambda: db.fetch_val("select nothing from nowhere"),
            )
        for pool in (away, cut_off, *short):
            await pool.close()


async def be_calm(folder: str) -> None:
    """A database and a pool of a fleet, with as much to do as they can."""
    fleet = cenote.Fleet(budget=4, name="calm", path=Path(folder, "fleet"))
    pool = cenote.Pool(object, max_size=2, fleet=fleet, name="pool")
    db = cenote.Database("sqlite:///:memory:", max_size=2, name="shop")
    batch = db.lane("batch", max_size=1)

    async def work() -> None:
        async with batch, db.transaction():
            await db.fetch_val("select 1")

    with scraped(pool, db):
        async with pool, db:
            await until_end(*[lambda: hold(pool, 0.01)] * 2, work, lambda: db.fetch_val("select 1"))


if __name__ == "__main__":
    logging.getLogger("cenote").setLevel(logging.ERROR)  # of what is meant to happen
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run((be_calm if "calm" in sys.argv else be_in_trouble)(folder))
