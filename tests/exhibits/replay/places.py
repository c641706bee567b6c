"""Where the statements run: private servers on loopback, and a new database for each script."""

import asyncio
import contextlib
import csv
import io
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cenote
from tests.support.servers import MariaDBServer, PostgresServer

from . import mysqltest, psql, tcl
from .fetch import Corpus
from .safety import danger
from .scripts import Script
from .sides import BareAsyncmy, BareAsyncpg, BarePsycopg, BareSqlite, Side

STATEMENT_TIMEOUT = 4  # seconds, by the server
LOG_PATIENCE = 20.0  # seconds until the log of the server must have a line
DATABASE = "exhibit"

csv.field_size_limit(1 << 30)  # a message of the log may have a whole statement


class Place(ABC):
    """One server, or one folder; `fresh()` begins anew."""

    drivers: tuple[str, ...]
    server: Any = None
    folder: Path | None = None  # where its process must be: names of files are relative to it

    async def open(self) -> None:  # noqa: B027
        """Prepare what every new database has."""

    @abstractmethod
    async def fresh(self) -> None:
        """A new database, and nothing left of the last one."""

    @abstractmethod
    def url(self, driver: str) -> str:
        """What cenote connects to."""

    @abstractmethod
    async def bare(self, driver: str, method: str) -> Side:
        """A connection without cenote."""

    def database(self, driver: str, **options: Any) -> Any:
        """cenote with one connection."""
        return cenote.Database(self.url(driver), max_size=1, acquire_timeout=10.0, **options)

    def executions(self) -> Counter[tuple[str, str]] | None:
        """What the server ran since the last call, by kind and text; None: it does not tell."""
        return None

    async def close(self) -> None:  # noqa: B027
        """Let go of its connections."""


class _PostgresServer(PostgresServer):
    """With a log that programs can read, and as the regression tests want it."""

    def _command(self) -> list[str]:
        settings = {
            "autovacuum": "off",
            "statement_timeout": f"{STATEMENT_TIMEOUT}s",
            "lock_timeout": f"{STATEMENT_TIMEOUT}s",
            "max_prepared_transactions": "10",
            "logging_collector": "on",
            "log_destination": "csvlog",
            "log_directory": str(self.directory / "csv"),
            "log_filename": "server.log",
            "log_rotation_age": "0",
            "log_rotation_size": "0",
            "log_file_mode": "0644",
            "log_statement": "all",
            "log_min_messages": "error",
            "log_min_error_statement": "error",
            "shared_buffers": "64MB",
            "jit": "off",
        }
        command = super()._command()
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command


class PostgresPlace(Place):
    drivers = ("asyncpg", "psycopg")

    def __init__(self, data: Path, setup: Script | None) -> None:
        self.server = _PostgresServer()
        self.data = data  # what COPY reads
        self.setup = setup  # of the template
        self.admin: Any = None
        self.read = 0  # bytes of the log

    async def open(self) -> None:
        import asyncpg

        self.admin = await asyncpg.connect(self._url("postgres"))
        await self.admin.execute("create database template_exhibit")
        raw = await asyncpg.connect(self._url("template_exhibit"))
        try:
            await raw.execute(LASTVAL)
            for statement in self.setup.statements if self.setup else ():
                with contextlib.suppress(asyncpg.PostgresError):  # C functions of the suite
                    await raw.execute(statement.text)
            await raw.execute("vacuum analyze")
        finally:
            await raw.close()
        await self.admin.execute("alter database template_exhibit with allow_connections false")
        rows = await self.admin.fetch("select rolname from pg_roles")
        self.roles = [row["rolname"] for row in rows]

    async def fresh(self) -> None:
        admin = self.admin
        for row in await admin.fetch("select gid, database from pg_prepared_xacts"):
            await self._forget_prepared(row["gid"], row["database"])
        await admin.execute("delete from pg_subscription")
        for row in await admin.fetch("select datname from pg_database where datname !~ $1", KEPT):
            await admin.execute(f"drop database {_quoted(row['datname'])} with (force)")
        for row in await admin.fetch("select slot_name from pg_replication_slots"):
            await admin.execute("select pg_drop_replication_slot($1)", row["slot_name"])
        for row in await admin.fetch("select roname from pg_replication_origin"):
            await admin.execute("select pg_replication_origin_drop($1)", row["roname"])
        for row in await admin.fetch("select spcname from pg_tablespace where spcname !~ '^pg_'"):
            await admin.execute(f"drop tablespace {_quoted(row['spcname'])}")
        rows = await admin.fetch(
            "select rolname from pg_roles where rolname <> all($1)", self.roles
        )
        for row in rows:
            await admin.execute(f"drop owned by {_quoted(row['rolname'])} cascade")
        for row in rows:
            await admin.execute(f"drop role {_quoted(row['rolname'])}")
        await admin.execute("alter role postgres reset all")
        await admin.execute(f"create database {DATABASE} template template_exhibit")

    async def _forget_prepared(self, name: str, database: str) -> None:
        import asyncpg

        raw = await asyncpg.connect(self._url(database))
        await raw.execute(f"rollback prepared '{name}'")
        await raw.close()

    def _url(self, database: str) -> str:
        return str(self.server.url).replace("/postgres?", f"/{database}?")

    def url(self, driver: str) -> str:
        scheme = "postgresql" if driver == "asyncpg" else f"postgresql+{driver}"
        return self._url(DATABASE).replace("postgresql", scheme, 1)

    async def bare(self, driver: str, method: str) -> Side:
        if driver == "asyncpg":
            return await BareAsyncpg.connect(self._url(DATABASE), method)
        return await BarePsycopg.connect(self._url(DATABASE), method)

    def executions(self) -> Counter[tuple[str, str]]:
        """From its log, in which every message is one execution or one error."""
        found: Counter[tuple[str, str]] = Counter()
        for record in self._records():
            if record[2] != DATABASE:
                continue
            kind, state, message, query = record[11], record[12], record[13], record[19]
            if kind == "LOG" and message.startswith(("statement: ", "execute ")):
                found["run", message.partition(": ")[2].strip()] += 1
            elif kind in ("ERROR", "FATAL"):
                found[f"failed with {state}", query.strip()] += 1
        return found

    def _records(self) -> Iterator[list[str]]:
        path = self.server.directory / "csv" / "server.csv"
        deadline = time.monotonic() + LOG_PATIENCE
        while True:
            with path.open("rb") as file:
                file.seek(self.read)
                data = file.read()
            # The collector writes whole messages, but maybe not yet the last one.
            if MARK.encode() in data and data.endswith(b"\n"):
                break
            if time.monotonic() > deadline:
                raise TimeoutError("the server's log does not get on")
            time.sleep(0.002)
        self.read += len(data)
        yield from csv.reader(io.StringIO(data.decode(errors="replace"), newline=""))

    async def mark(self) -> None:
        """Write the line up to which `executions()` reads."""
        await self.admin.execute(f"select '{MARK}'")

    async def close(self) -> None:
        if self.admin is not None:
            await self.admin.close()


class MariaPlace(Place):
    drivers = ("mysql",)
    user, password = "exhibit", "exhibit"

    def __init__(self) -> None:
        self.server = MariaDBServer()
        self.admin: Any = None

    async def open(self) -> None:
        import asyncmy

        self.admin = await asyncmy.connect(
            unix_socket=str(self.server.socket_path), user="root", autocommit=True
        )
        await self._ask(f"create user {self.user}@'%' identified by '{self.password}'")
        await self._ask(f"grant all on *.* to {self.user}@'%' with grant option")
        await self._ask(f"revoke shutdown, file, super on *.* from {self.user}@'%'")
        await self._ask(f"set global max_statement_time = {STATEMENT_TIMEOUT}")
        await self._ask(f"set global lock_wait_timeout = {STATEMENT_TIMEOUT}")
        await self._ask(f"set global innodb_lock_wait_timeout = {STATEMENT_TIMEOUT}")
        self.users = {row[0] for row in await self._ask("select user from mysql.global_priv")}
        self.databases = {row[0] for row in await self._ask("show databases")} - {"test"}
        self.variables = await self._globals()

    async def fresh(self) -> None:
        await self._end_sessions()
        for (name,) in await self._ask("show databases"):
            if name not in self.databases:
                await self._ask(f"drop database `{name}`")
        for (name,) in await self._ask("select user from mysql.global_priv"):
            if name not in self.users:
                await self._ask(f"delete from mysql.global_priv where user = '{name}'")
        await self._ask("flush privileges")
        for name, value in await self._globals() - self.variables:
            raise RuntimeError(f"a statement has changed the server: {name} is now {value}")
        await self._ask("create database test")
        await self._ask("create table test.exhibit_probe (a int) engine = innodb")

    async def _end_sessions(self) -> None:
        """Those of the last script: what they still do would disturb the next one."""
        deadline = time.monotonic() + LOG_PATIENCE
        query = f"select id from information_schema.processlist where user = '{self.user}'"
        while sessions := await self._ask(query):
            for (number,) in sessions:
                with contextlib.suppress(Exception):  # it is gone by now
                    await self._ask(f"kill {number}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"sessions of the last script do not end: {sessions}")
            await asyncio.sleep(0.002)

    async def _globals(self) -> set[tuple[str, str]]:
        return {
            (name, value)
            for name, value in await self._ask("show global variables")
            if name.startswith(("sql_", "default_", "character_", "collation_", "tx_"))
        }

    async def _ask(self, text: str) -> Any:
        async with self.admin.cursor() as cursor:
            await cursor.execute(text)
            return await cursor.fetchall() if cursor.description else []

    def url(self, driver: str) -> str:
        return self.server.tcp_url(user=self.user, password=self.password, database="test")

    async def bare(self, driver: str, method: str) -> Side:
        from asyncmy.constants.CLIENT import FOUND_ROWS

        place = {
            "host": self.server.host,
            "port": self.server.port,
            "user": self.user,
            "password": self.password,
            "db": "test",
            "charset": "utf8mb4",
            "client_flag": FOUND_ROWS,  # as cenote: execute() gives the rows that were matched
        }
        return await BareAsyncmy.connect(place, method)

    async def close(self) -> None:
        if self.admin is not None:
            self.admin.close()


class SqlitePlace(Place):
    drivers = ("sqlite",)

    folder: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    @property
    def path(self) -> Path:
        return self.folder / f"exhibit{self.number}.db"

    async def fresh(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self.number += 1

    def url(self, driver: str) -> str:
        return f"sqlite:///{self.path}"

    async def bare(self, driver: str, method: str) -> Side:
        return BareSqlite(self.path, method)


MARK = "end of an exhibit"
KEPT = "^(postgres|template.*|app)$"
LASTVAL = """
create function exhibit_lastval() returns text language plpgsql as $$
begin return lastval()::text; exception when others then return 'none'; end $$
"""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Stand:
    """Two places of one corpus, and its scripts."""

    def __init__(self, corpus: Corpus, *, bare: bool = False) -> None:
        self.corpus = corpus
        self.bare = bare  # without what the scripts of the corpus need
        self.places: list[Place] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Stand":
        folder = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cenote-exhibits-"))
        )
        folder.chmod(0o755)
        self.folder = folder
        self.environment: dict[str, str] = {}
        if self.corpus.name == "postgresql" and not self.bare:
            self._copy_data(folder)
        with contextlib.ExitStack() as stack:
            for number in range(2):
                place = self._place(folder, number)
                if place.server is not None:
                    stack.enter_context(place.server)
                self.places.append(place)
            self._stack.push(stack.pop_all())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _copy_data(self, folder: Path) -> None:
        """What the scripts read with COPY, where the server may read it."""
        for regress in self.corpus.folder().glob("*/src/test/regress"):
            shutil.copytree(regress / "data", folder / "data")
            self.environment = {
                "PG_ABS_SRCDIR": str(folder),
                "PG_ABS_BUILDDIR": str(folder),
                "PG_LIBDIR": str(folder),
                "PG_DLSUFFIX": ".so",
            }

    def _place(self, folder: Path, number: int) -> Place:
        if self.corpus.name == "postgresql":
            found = [] if self.bare else self.corpus.scripts()
            setups = [path for path in found if path.name == "test_setup.sql"]
            setup = self.load(setups[0]) if setups else None
            return PostgresPlace(folder / "data", setup)
        if self.corpus.name == "mariadb":
            return MariaPlace()
        inner = folder / f"side{number}"
        inner.mkdir()
        return SqlitePlace(inner)

    def load(self, path: Path) -> Script:
        """A script, split, without what must not be run."""
        name = f"{path.parent.name}/{path.name}"
        if self.corpus.name == "postgresql":
            if path.parent.name == "sql":
                name = f"{path.parent.parent.name}/{path.name}"
            script = psql.load(path, name, self.environment)
        elif self.corpus.name == "mariadb":
            script = mysqltest.load(path, name)
        else:
            script = tcl.load(path, name)
        return filtered(self.corpus.name, script)


def filtered(corpus: str, script: Script) -> Script:
    """Without the statements that leave the database, which are counted."""
    kept = []
    for statement in script.statements:
        if why := danger(corpus, statement.text):
            script.left_out[why] += 1
        else:
            kept.append(statement)
    script.statements = kept
    return script
