"""What extras may see of a database: its pools, its name, its address and its dialect."""

from __future__ import annotations

import asyncio
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import observe
from .connection_hooks import ConnectionHooks
from .disconnects import is_disconnect as is_disconnect

if TYPE_CHECKING:
    from ..pool import Pool
    from .database import Database
    from .dialects import Dialect


LIBRARIES = {"mysql": "asyncmy"}  # whose driver has another name


class Address(NamedTuple):
    """The server and the database that connections lead to, without user and password."""

    system: str  # such as "postgresql", as OpenTelemetry calls it
    hosts: tuple[tuple[str, int | None], ...]  # names and ports; empty for a file
    database: str | None


def address_of(database: Database) -> Address:
    """Return where the connections of the database lead."""
    driver = database._driver
    target = driver.config.target
    return Address(driver.system_name, tuple(target.hosts), target.database)


def library_of(database: Database) -> tuple[str, str | None]:
    """Return the library by which the database is reached, and its version, if that is known."""
    words = type(database._driver).__module__.split(".")
    name = words[2] if words[:2] == ["cenote", "drivers"] else words[0]
    if name == "sqlite":
        return "sqlite3", sqlite3.sqlite_version
    name = LIBRARIES.get(name, name)
    try:
        return name, version(name)
    except PackageNotFoundError:
        return name, None


def dialect_of(database: Database) -> Dialect:
    """Return the SQL dialect of the database."""
    return database._driver.dialect


def name_of(database: Database) -> str:
    """Return what its pools are called: the `name` option, or the address without user and
    password."""
    label: str = database._label
    return label


def given_name(database: Database) -> str | None:
    """Return the `name` option, or None if the database is only known by its address."""
    return database._label if database._named else None


def pool_here(database: Database) -> Pool[Any] | None:
    """Return the pool of the running loop, or None if the database was not used there yet."""
    loop_db = database._loop_databases.get(asyncio.get_running_loop())
    return None if loop_db is None else loop_db.pool


def holder_of_statement(database: Database) -> asyncio.Task[Any] | None:
    """Return the task whose connection a statement uses, for an observer that is called at its
    beginning: it may run in the transaction of another task. None at any other time."""
    loop_db = database._loop_databases.get(asyncio.get_running_loop())
    return None if loop_db is None else loop_db.observed_task


def database_of(pool: Pool[Any]) -> Database | None:
    """Return the database whose connections are in the pool, or None for any other pool."""
    maker = getattr(observe.factory_of(pool), "__self__", None)
    return maker.database if isinstance(maker, ConnectionHooks) else None
