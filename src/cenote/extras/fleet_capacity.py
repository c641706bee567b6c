"""`python -m cenote fleet check URL`: how many connections a server has for a fleet."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from ..sql.database import Database
from ..sql.view import address_of
from .check import BadUrl, in_words, server_of

SPARE: Final = 0.1  # part of what is left that is kept for strangers that come and go

LIMITS_OF_POSTGRESQL: Final = """
select current_setting('max_connections')::int,
       current_setting('superuser_reserved_connections')::int,
       coalesce(current_setting('reserved_connections', true), '0')::int,
       r.rolconnlimit, r.rolsuper, d.datconnlimit, current_user::text, current_database()::text
from pg_roles r, pg_database d
where r.rolname = current_user and d.datname = current_database()
"""
# Of others, a role without privileges does not see whether they are clients. The server's own
# processes, for which no connection is needed, have no user or no database.
SESSIONS_OF_POSTGRESQL: Final = """
select coalesce(usename::text, '?'), coalesce(datname::text, '-'),
       coalesce(application_name, ''), count(*)::int
from pg_stat_activity
where pid <> pg_backend_pid()
  and coalesce(backend_type = 'client backend', usename is not null and datname is not null)
group by 1, 2, 3
"""
LIMITS_OF_MYSQL: Final = """
select @@global.max_connections, @@session.max_user_connections,
       substring_index(current_user(), '@', 1), coalesce(database(), '')
"""
SESSIONS_OF_MYSQL: Final = """
select user, coalesce(db, '-'), '', count(*) from information_schema.processlist
where id <> connection_id() and user not in ('system user', 'event_scheduler')
group by user, db
"""
CONNECTED_TO_MYSQL: Final = "show global status like 'Threads_connected'"


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions of one kind at a server.

    Attributes:
        role: Whose they are.
        database: In which they are; `-` for none.
        program: What they call themselves; may be empty.
        count: How many there are.
    """

    role: str
    database: str
    program: str
    count: int

    def __str__(self) -> str:
        program = f" of {self.program!r}" if self.program else ""
        return f"{self.count}{program} (role {self.role}, database {self.database})"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a server has for the role and the database of a URL.

    Attributes:
        role: The role of the URL.
        database: Its database.
        limit: Connections of the whole server.
        reserve: Of these, those kept for administrators, in words and numbers.
        role_limit: Connections of the role at most; None for no limit.
        database_limit: Connections of the database at most; None for no limit.
        sessions: All that there are now, but for the one that asks.
        unseen: Sessions of any user that the role must not see.
    """

    role: str
    database: str
    limit: int
    reserve: tuple[tuple[str, int], ...]
    role_limit: int | None
    database_limit: int | None
    sessions: tuple[Sessions, ...]
    unseen: int = 0

    @property
    def strangers(self) -> list[Sessions]:
        """Those that are not of this role in this database."""
        return [each for each in self.sessions if not self._is_ours(each)]

    @property
    def ours(self) -> int:
        """How many sessions this role has in this database."""
        return sum(each.count for each in self.sessions if self._is_ours(each))

    def rooms(self) -> Iterator[tuple[str, int]]:
        """What each limit leaves for this role in this database, with the name of the limit."""
        reserve = sum(number for _, number in self.reserve)
        strangers = sum(each.count for each in self.strangers) + self.unseen
        yield "the server", self.limit - reserve - strangers
        if self.role_limit is not None:
            elsewhere = sum(e.count for e in self.strangers if e.role == self.role)
            yield f"role {self.role}", self.role_limit - elsewhere
        if self.database_limit is not None:
            others = sum(e.count for e in self.strangers if e.database == self.database)
            yield f"database {self.database}", self.database_limit - others

    def budget(self) -> int:
        """The budget that it suggests: what the narrowest limit leaves, less a spare part."""
        room = min(number for _, number in self.rooms())
        return max(0, room - max(1, round(room * SPARE)))

    def _is_ours(self, sessions: Sessions) -> bool:
        return sessions.role == self.role and sessions.database == self.database


def run(url: str, *, timeout: float = 10.0, out: TextIO | None = None) -> int:
    """Print the limits of a server and the budget they suggest; return the exit status.

    It is 1 after any failure, and if nothing is left for a fleet.

    Args:
        url: The URL of the database, as the pools of the fleet have it; its password is not shown.
        timeout: Seconds in which the connection must be made, and everything answered.
        out: Where to print; None is stdout. Failures are printed to stderr.
    """
    page: TextIO = sys.stdout if out is None else out
    logging.getLogger("cenote").addHandler(logging.NullHandler())  # what it logs is shown here
    try:
        server, capacity = asyncio.run(_ask(url, timeout))
    except Exception as error:
        print(f"cenote fleet check: {in_words(error)}", file=sys.stderr)
        return 1
    for name, value in [("server", server), *lines(capacity)]:
        print(f"{name:10}  {value}", file=page)
    return 0 if capacity.budget() else 1


def lines(capacity: Capacity) -> Iterator[tuple[str, str]]:
    """What is printed of it: names and values."""
    yield "limit", f"{capacity.limit} (max_connections)"
    yield "reserve", ", ".join(f"{number} ({name})" for name, number in capacity.reserve) or "none"
    yield "role", f"{capacity.role}: {_limit(capacity.role_limit)}"
    yield "database", f"{capacity.database}: {_limit(capacity.database_limit)}"
    strangers = sum(each.count for each in capacity.strangers) + capacity.unseen
    known = sorted(capacity.strangers, key=lambda each: -each.count)
    shown = "; ".join(map(str, known))
    if capacity.unseen:
        hidden = f"{capacity.unseen} that role {capacity.role} may not see"
        shown = f"{shown}; {hidden}" if shown else hidden
    yield "strangers", f"{strangers}: {shown}" if shown else "none"
    yield "fleet", f"{capacity.ours} sessions of this role in this database now"
    what, room = min(capacity.rooms(), key=lambda each: each[1])
    budget = capacity.budget()
    if budget:
        why = f"{what} has room for {room}; {room - budget} are kept for strangers to come"
    else:
        why = f"{what} has room for {max(0, room)}: raise that limit, or end the strangers"
    yield "budget", f"{budget}: {why}"


def _limit(number: int | None) -> str:
    return "no limit" if number is None else f"limit {number}"


async def _ask(url: str, timeout: float) -> tuple[str, Capacity]:
    try:
        db = Database(
            url, max_size=1, strategy=None, create_timeout=timeout, acquire_timeout=timeout
        )
    except (ValueError, ImportError) as error:  # their texts are for people, and show no password
        raise BadUrl(str(error)) from None
    try:
        system = address_of(db).system
        if system not in ("postgresql", "mysql"):
            raise BadUrl(
                f"{system} has no limit of connections that a fleet could share: give the URL of a "
                f"PostgreSQL, MySQL or MariaDB server"
            )
        await db.open()
        async with asyncio.timeout(timeout):
            server = await server_of(db, system)
            ask = _of_postgresql if system == "postgresql" else _of_mysql
            return server, await ask(db)
    finally:
        await db.close()


async def _of_postgresql(db: Database) -> Capacity:
    row: Any = await db.fetch_one(LIMITS_OF_POSTGRESQL)
    most, for_superusers, reserved, of_role, is_super, of_database, role, database = row
    reserve = [("superuser_reserved_connections", for_superusers)]
    if reserved:
        reserve.append(("reserved_connections", reserved))
    return Capacity(
        role,
        database,
        most,
        tuple(reserve),
        None if of_role < 0 or is_super else of_role,
        None if of_database < 0 or is_super else of_database,
        _sessions(await db.fetch_all(SESSIONS_OF_POSTGRESQL)),
    )


async def _of_mysql(db: Database) -> Capacity:
    row: Any = await db.fetch_one(LIMITS_OF_MYSQL)
    most, of_role, role, database = row
    connected: Any = await db.fetch_one(CONNECTED_TO_MYSQL)
    sessions = _sessions(await db.fetch_all(SESSIONS_OF_MYSQL))
    seen = sum(each.count for each in sessions) + 1
    return Capacity(
        role,
        database,
        int(most),
        (),
        int(of_role) or None,
        None,
        sessions,
        max(0, int(connected[1]) - seen),
    )


def _sessions(rows: Sequence[Any]) -> tuple[Sessions, ...]:
    return tuple(Sessions(str(row[0]), str(row[1]), str(row[2]), int(row[3])) for row in rows)
