"""A plugin of pytest that counts outcomes by driver and server.

    pytest -p tests.support.tally --tally FILE

`scripts/matrix.py` makes its table of the files. What a test runs on is read off its parameters and
fixtures; a test that uses no server counts for none.
"""

import functools
import json
import platform
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import cenote
from tests.support.servers import (
    MariaDBServer,
    MySQLServer,
    PgBouncer,
    PostgresServer,
    RedisServer,
    Server,
    environment,
)

# By the fixture that starts it; the first one that a test uses is what it is counted for.
SERVERS: dict[str, tuple[str, type[Server]]] = {
    "pgbouncer": ("PgBouncer", PgBouncer),
    "postgres_server": ("PostgreSQL", PostgresServer),
    "mysql_server": ("MySQL", MySQLServer),
    "mariadb_server": ("MariaDB", MariaDBServer),
    "redis_server": ("Redis", RedisServer),
}

# The driver that a parameter names, and the server behind it.
PARAMETERS = {
    "sqlite": ("sqlite3", None),
    "asyncpg": ("asyncpg", "postgres_server"),
    "psycopg": ("psycopg", "postgres_server"),
    "mariadb": ("asyncmy", "mariadb_server"),
    "mysql": ("asyncmy", "mariadb_server"),
}

# The library of the tests in a file, by a part of its name. The first one that fits.
FILES = {
    "sqlalchemy": "sqlalchemy",
    "redis": "redis",
    "mysql": "asyncmy",
    "asyncpg": "asyncpg",
    "sqlite": "sqlite3",
}

NONE = "-"
KIND = "ran on"  # of `user_properties`, which workers send
OUTCOMES = ("passed", "failed", "skipped")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tally", metavar="FILE", help="write the counts into this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("tally") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tally(config))


def pytest_itemcollected(item: pytest.Item) -> None:
    item.user_properties.append((KIND, list(kind_of(item))))


def kind_of(item: pytest.Item) -> tuple[str, str]:
    """The driver and the server of a test, with their versions; `-` for none."""
    driver, server = _parameters(item)
    names: list[str] = list(getattr(item, "fixturenames", ()))
    server = server or next((name for name in SERVERS if name in names), None)
    if driver is None and (server is not None or item.path.parent.name == "adapters"):
        driver = next((FILES[part] for part in FILES if part in item.path.name), None)
    where = server_version(server) if server else NONE
    if driver == "sqlite3":
        where = f"SQLite {sqlite3.sqlite_version}"
    return driver_version(driver) if driver else NONE, where


def _parameters(item: pytest.Item) -> tuple[str | None, str | None]:
    given = getattr(getattr(item, "callspec", None), "params", {})
    for name, value in given.items():
        if isinstance(value, str) and value in PARAMETERS:
            driver, server = PARAMETERS[value]
            # The fixture `backend` goes to MariaDB for mysql, unless --mysql is given.
            if value == "mysql" and (name != "backend" or item.config.getoption("mysql")):
                server = "mysql_server"
            return driver, server
    return None, None


@functools.cache
def driver_version(name: str) -> str:
    """`asyncpg 0.32.0`."""
    if name == "sqlite3":
        return name
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} (not installed)"


@functools.cache
def server_version(fixture: str) -> str:
    """`PostgreSQL 18.6`."""
    name, kind = SERVERS[fixture]
    if kind.missing():
        return f"{name} (not installed)"
    command = [*kind.__new__(kind)._resolve(kind.programs[0]), "--version"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    if "valkey" in done.stdout.lower():
        name = "Valkey"
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout)
    return f"{name} {found.group() if found else done.stdout.strip()}"


def python_version() -> str:
    """`CPython 3.14.10`, `PyPy 8.0.1 of Python 3.11`."""
    pypy = getattr(sys, "pypy_version_info", None)
    if pypy is None:
        return f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"PyPy {'.'.join(map(str, pypy[:3]))} of Python {sys.version_info[0]}.{sys.version_info[1]}"
    )


class Tally:
    """Counts reports, and writes the file in the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._cells: Counter[tuple[str, str, str]] = Counter()
        self._skips: Counter[str] = Counter()
        self._failures: list[str] = []
        self._begin = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        driver, server = dict(report.user_properties).get(KIND, (NONE, NONE))
        if hasattr(report, "wasxfail"):
            self._skip(driver, server, f"expected to fail: {report.wasxfail}")
        elif report.skipped:
            self._skip(driver, server, reason_of(report))
        else:
            self._cells[driver, server, report.outcome] += 1
            if report.failed:
                self._failures.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported, or that skips itself."""
        if report.skipped:
            self._skip(NONE, NONE, f"{report.nodeid}: {reason_of(report)}")
        elif report.failed:
            self._cells[NONE, NONE, "failed"] += 1
            self._failures.append(report.nodeid)

    def _skip(self, driver: str, server: str, reason: str) -> None:
        self._cells[driver, server, "skipped"] += 1
        self._skips[reason] += 1

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        cells: dict[tuple[str, str], dict[str, int]] = {}
        for (driver, server, outcome), count in self._cells.items():
            cells.setdefault((driver, server), dict.fromkeys(OUTCOMES, 0))[outcome] = count
        core = cenote.core
        record: dict[str, Any] = {
            "python": python_version(),
            "core": core,
            "loop": self._config.getoption("loop"),
            "cells": [[*place, counts] for place, counts in sorted(cells.items())],
            "skips": dict(sorted(self._skips.items())),
            "failures": sorted(self._failures),
            "seconds": round(time.monotonic() - self._begin),
            "status": int(exitstatus),
        }
        Path(self._config.getoption("tally")).write_text(json.dumps(record, indent=1) + "\n")


def reason_of(report: Any) -> str:
    """Why it was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return re.sub(r"^Skipped: ", "", text.splitlines()[0])
