"""What extras may see of a database: its pools, its name, its address and its dialect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import observe
from .per_loop import LoopDatabase

if TYPE_CHECKING:
    from ..pool import Pool
    from .database import Database
    from .dialects import Dialect


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


def dialect_of(database: Database) -> Dialect:
    """Return the SQL dialect of the database."""
    return database._driver.dialect


def given_name(database: Database) -> str | None:
    """Return the `name` option, or None if the database is only known by its address."""
    return database._label if database._named else None


def pool_here(database: Database) -> Pool[Any] | None:
    """Return the pool of the running loop, or None if the database was not used there yet."""
    loop_db = database._loop_databases.get(asyncio.get_running_loop())
    return None if loop_db is None else loop_db.pool


def database_of(pool: Pool[Any]) -> Database | None:
    """Return the database whose connections are in the pool, or None for any other pool."""
    maker = getattr(observe.factory_of(pool), "__self__", None)
    return maker.database if isinstance(maker, LoopDatabase) else None
