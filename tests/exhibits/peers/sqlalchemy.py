"""SQLAlchemy's tests of asyncio, of dialects and of reconnecting, on PostgreSQL with asyncpg."""

import asyncio
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from tests.support.servers import DATABASE, USER, PostgresServer

from .peer import Peer, Setting

# What its README asks for.
SETUP = f"""
create schema test_schema authorization {USER};
create schema test_schema_2 authorization {USER};
create extension hstore;
create extension citext;
"""


@contextmanager
def prepare(source: Path) -> Iterator[Setting]:
    """Start a server, and let the tests find the installed library, with its compiled parts."""
    library = source / "lib"
    if not library.is_symlink():
        shutil.rmtree(library)
        library.symlink_to(sysconfig.get_path("purelib"))
    with PostgresServer() as server:
        asyncio.run(_set_up(server))
        url = server.tcp_url().replace("postgresql://", "postgresql+asyncpg://")
        yield Setting(source, ("-p", "no:asyncio", "--dburi", url))


async def _set_up(server: PostgresServer) -> None:
    admin = await asyncpg.connect(server.url, database=DATABASE)
    try:
        await admin.execute(SETUP)
    finally:
        await admin.close()


PEER = Peer(
    name="sqlalchemy",
    distribution="SQLAlchemy",
    suites={
        "test/ext/asyncio": ("test/ext/asyncio",),
        "test/dialect/test_suite.py, test/engine/test_reconnect.py": (
            "test/dialect/test_suite.py",
            "test/engine/test_reconnect.py",
        ),
    },
    short=("test/ext/asyncio/test_engine.py", "test/engine/test_reconnect.py"),
    plug="plug_sqlalchemy",
    prepare=prepare,
    missing=PostgresServer.missing,
)
