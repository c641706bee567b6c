"""`python -m cenote check URL`: whether a database can be reached, and what answers there."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any, TextIO

from ..errors import AcquireTimeoutError, BackendFullError
from ..mask import explained
from ..messages import seconds
from ..sql.database import Database
from ..sql.view import address_of, library_of

PINGS = 5  # of which the fastest is shown
REMEDY_OF_FULL = "Raise the limit of the server, or lower max_size in the programs that share it."
VERSION = {
    "postgresql": "select current_setting('server_version')",
    "mysql": "select version()",
    "mariadb": "select version()",
    "sqlite": "select sqlite_version()",
}
NAMES = {"postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB", "sqlite": "SQLite"}
# Protocol and cipher of this very connection.
TLS_OF_POSTGRESQL = "select version, cipher from pg_stat_ssl where pid = pg_backend_pid()"
TLS_OF_MYSQL = "show session status where variable_name in ('Ssl_version', 'Ssl_cipher')"


def run(url: str, *, timeout: float = 10.0, out: TextIO | None = None) -> int:
    """Check a database and print what was found; return the exit status, 1 after any failure.

    Args:
        url: The URL of the database; its password is not shown.
        timeout: Seconds in which the connection must be made, and each statement answered.
        out: Where to print; None is stdout. Failures are printed to stderr.
    """
    page: TextIO = sys.stdout if out is None else out
    logging.getLogger("cenote").addHandler(logging.NullHandler())  # what it logs is shown here
    try:
        asyncio.run(_print_all(url, timeout, page))
    except Exception as error:
        print(f"cenote check: {in_words(error)}", file=sys.stderr)
        return 1
    print("ok", file=page)
    return 0


def in_words(error: Exception) -> str:
    """Return what is wrong and what to do, on one line."""
    full = error.__cause__
    if isinstance(error, AcquireTimeoutError) and isinstance(full, BackendFullError):
        return f"{full}. {REMEDY_OF_FULL}"
    own = type(error).__module__.startswith("cenote")
    return " ".join((str(error) if own else explained(error)).split())


async def _print_all(url: str, timeout: float, out: TextIO) -> None:
    try:
        db = Database(
            url, max_size=1, strategy=None, create_timeout=timeout, acquire_timeout=timeout
        )
    except (ValueError, ImportError) as error:  # their texts are for people, and show no password
        raise BadUrl(str(error)) from None
    print(f"{'database':10}  {repr(db).removeprefix('<Database ').removesuffix('>')}", file=out)
    print(f"{'driver':10}  {' '.join(filter(None, library_of(db)))}", file=out)
    try:
        await db.open()
        try:
            async for name, value in _findings(db, timeout):
                print(f"{name:10}  {value}", file=out)
        except Exception as error:
            raise NoAnswer(_why_no_answer(error, timeout)) from error
    finally:
        await db.close()


class BadUrl(Exception):
    """The URL cannot be used, or its driver is not installed."""


class NoAnswer(Exception):
    """A connection was made, and then a statement failed."""


def _why_no_answer(error: Exception, timeout: float) -> str:
    said = f"no answer to a statement within {seconds(timeout)}"
    if not isinstance(error, TimeoutError):
        said = f"a statement failed ({explained(error)})"
    return f"connected, but {said}. If a pooler is in between, check the server behind it."


async def _findings(db: Database, timeout: float) -> AsyncIterator[tuple[str, str]]:
    system = address_of(db).system
    async with asyncio.timeout(timeout):
        yield "server", await server_of(db, system)
        yield "TLS", await _tls(db, system)
        yield "round trip", f"{seconds(await _round_trip(db))} (the fastest of {PINGS})"


async def server_of(db: Database, system: str) -> str:
    """Return what answers, and its version; `system`: as the view of the database has it."""
    if system not in VERSION:
        return system
    version: Any = await db.fetch_val(VERSION[system])
    if system == "mysql" and "mariadb" in str(version).lower():
        system = "mariadb"
    return f"{NAMES[system]} {version}"


async def _tls(db: Database, system: str) -> str:
    found: list[str | None] = []
    if system == "sqlite":
        return "none: a file of this machine"
    if system == "postgresql":
        row = await db.fetch_one(TLS_OF_POSTGRESQL)
        found = [] if row is None else list(row)
    elif system in VERSION:
        rows = {row[0].lower(): row[1] for row in await db.fetch_all(TLS_OF_MYSQL)}
        found = [rows.get("ssl_version"), rows.get("ssl_cipher")]
    else:
        return "not known"
    return ", ".join(str(each) for each in found if each) or "no: the connection is not encrypted"


async def _round_trip(db: Database) -> float:
    best = float("inf")
    for _ in range(PINGS):
        begun = perf_counter()
        await db.fetch_val("select 1")
        best = min(best, perf_counter() - begun)
    return best
