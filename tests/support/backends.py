"""The databases that the conformance suite runs on, one description each: no ifs in the tests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import cenote
from cenote.testing import check_ledger
from tests.support.servers import MariaDBServer, MySQLServer
from tests.support.waiting import WAIT


@dataclass(frozen=True)
class Backend:
    """One driver on one server."""

    name: str
    url: str
    server: Any  # None: embedded
    types: dict[str, str] = field(default_factory=dict)
    slow: str = ""  # a statement that runs for about half a minute
    session: str = ""  # a query for the number of the server's session; empty: there are none
    kill: str = ""  # ends the session whose number is put in
    sessions: str = ""  # how many sessions `app` has
    # Statements that touch the session, each with a query that shows it.
    touches: tuple[tuple[str, str], ...] = ()
    raw_begin: str = "BEGIN"
    interleaves: bool = True
    is_mariadb: bool = False
    integrity_error: str = "IntegrityError"

    @property
    def status(self) -> str:
        """The schema of the server's counters, on MySQL and MariaDB."""
        return "information_schema" if self.is_mariadb else "performance_schema"

    def need_mariadb(self, what: str) -> None:
        """Skip the test on a real MySQL, which does not have that."""
        if self.name == "mysql" and not self.is_mariadb:
            pytest.skip(f"MySQL has no {what}")

    @property
    def embedded(self) -> bool:
        return self.server is None

    def url_through(self, host: str, port: int) -> str:
        """The same, by way of a proxy."""
        place = f"@{self.server.host}:{self.server.port}/"
        assert place in self.url
        return self.url.replace(place, f"@{host}:{port}/")

    @contextlib.asynccontextmanager
    async def database(self, url: str | None = None, **options: Any) -> AsyncIterator[Any]:
        """A database that is closed at the end, with a ledger that must be even then."""
        db = cenote.Database(url or self.url, **options)
        try:
            yield db
        finally:
            loop_db = db._loop_databases.get(asyncio.get_running_loop())
            async with asyncio.timeout(WAIT):
                await db.close()
        if loop_db is not None:
            check_branch(loop_db)

    @contextlib.asynccontextmanager
    async def table(self, db: Any, columns: str = "id {int} primary key, name {text}") -> Any:
        """The name of a new table; dropped at the end."""
        name = f"t_{uuid4().hex[:12]}"
        await db.execute(f"create table {name} ({columns.format(**self.types)})")
        try:
            yield name
        except BaseException:
            await db.close()  # or its locks would keep the table for ever
            raise
        finally:
            async with self.database(max_size=1) as other:
                await other.execute(f"drop table if exists {name}")


def check_branch(loop_db: Any) -> None:
    """After the end nobody holds anything, nothing is counted twice, nothing is open."""
    check_ledger(loop_db.pool)
    assert not loop_db.sessions
    assert not loop_db.private
    assert not loop_db.joined
    assert not loop_db.connections


def sqlite(directory: Path) -> Backend:
    return Backend(
        name="sqlite",
        url=f"sqlite:///{directory / f'{uuid4().hex}.db'}",
        server=None,
        types={"int": "integer", "text": "text", "serial": "integer primary key", "float": "real"},
        slow=(
            "with recursive c(x) as (select 1 union all select x + 1 from c limit 300000000) "
            "select count(*) from c"
        ),
        touches=(
            (
                "create temp table secret (a int)",
                "select count(*) from pragma_table_list where schema = 'temp'",
            ),
            ("pragma foreign_keys = on", "pragma foreign_keys"),
            ("pragma cache_size = 123", "pragma cache_size"),
            ("attach ':memory:' as other", "select count(*) from pragma_database_list"),
        ),
        raw_begin="BEGIN IMMEDIATE",
    )


_POSTGRESQL = {
    "types": {"int": "int", "text": "text", "serial": "serial primary key", "float": "float8"},
    "slow": "select pg_sleep(30)",
    "session": "select pg_backend_pid()",
    "kill": "select pg_terminate_backend({})",
    "sessions": "select count(*) from pg_stat_activity where usename = 'app'",
    "touches": (
        ("set search_path to pg_catalog", "select current_setting('search_path')"),
        ("set time zone 'Asia/Tokyo'", "select current_setting('timezone')"),
        (
            "select set_config('cenote.mine', '1', false)",
            "select coalesce(current_setting('cenote.mine', true), '')",
        ),
        ("create temp table secret (a int)", "select to_regclass('pg_temp.secret')::text"),
        (
            "select pg_advisory_lock(4711)",
            "select count(*) from pg_locks "
            "where locktype = 'advisory' and pid = pg_backend_pid()",
        ),
        ("listen news", "select count(*) from pg_listening_channels()"),
        ("prepare mine as select 1", "select count(*) from pg_prepared_statements where from_sql"),
        (
            "set session characteristics as transaction read only",
            "select current_setting('default_transaction_read_only')",
        ),
    ),
}  # fmt: skip


def asyncpg(server: Any) -> Backend:
    return Backend(
        name="asyncpg",
        url=server.tcp_url(),
        server=server,
        integrity_error="UniqueViolationError",
        **_POSTGRESQL,  # type: ignore[arg-type]
    )


def psycopg(server: Any) -> Backend:
    return Backend(
        name="psycopg",
        url=server.tcp_url().replace("postgresql://", "postgresql+psycopg://"),
        server=server,
        integrity_error="UniqueViolation",
        **_POSTGRESQL,  # type: ignore[arg-type]
    )


def mysql(server: Any) -> Backend:
    return Backend(
        name="mysql",
        url=server.tcp_url(),
        server=server,
        types={
            "int": "int",
            "text": "varchar(200)",
            "serial": "int primary key auto_increment",
            "float": "double",
        },
        slow="select sleep(30)",
        session="select connection_id()",
        kill="kill {}",
        sessions="select count(*) from information_schema.processlist where user = 'app'",
        touches=(
            ("set sql_mode = 'ANSI_QUOTES'", "select @@sql_mode"),
            ("set time_zone = '+05:00'", "select @@time_zone"),
            ("set @mine = 5", "select @mine"),
            (
                "create temporary table secret (a int)",
                "select count(*) from information_schema.tables where table_name = 'secret'",
            ),
            ("select get_lock('mine', 0)", "select is_used_lock('mine')"),
            ("prepare mine from 'select 1'", "select 0"),
            ("use information_schema", "select database()"),
        ),
        interleaves=False,
        is_mariadb=isinstance(server, MariaDBServer) and not isinstance(server, MySQLServer),
    )  # fmt: skip
