"""SQLite as a database: in memory, on paths, its defaults and its functions."""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import cenote
import cenote.drivers
from tests.support.backends import Backend
from tests.support.faults import with_server
from tests.support.kit import outcome
from tests.support.waiting import WAIT, eventually, let_pass

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]
SQLITE = "sqlite:///:memory:"


@contextlib.asynccontextmanager
async def no_thread_left() -> AsyncIterator[None]:
    before = threading.active_count()
    yield
    await eventually(lambda: threading.active_count() <= before)


async def value(db: cenote.Database, sql: str) -> Any:
    return await db.fetch_val(sql)


async def test_a_database_in_memory_is_shared_by_its_connections() -> None:
    db = cenote.Database(SQLITE, max_size=3)
    await db.execute("create table t (a int)")
    async with db.transaction():
        await db.execute("insert into t values (1)")
    stream = db.iterate("select a from t union all select 2")
    assert (await anext(stream))[0] == 1  # on a connection of its own
    async with db.connection() as raw:
        assert await db.fetch_val("select a from t") == 1
        assert (await asyncio.create_task(value(db, "select count(*) from t"))) == 1
        assert raw.__wrapped__ is db.bound_connection
    await stream.aclose()
    assert db.pool is not None
    assert db.pool.stats().created >= 2
    await db.pool.retire()
    assert db.pool.count == 0
    assert await db.fetch_val("select a from t") == 1  # with no connection it is still there
    await db.close()
    with pytest.raises(cenote.PoolClosedError):
        await db.fetch_val("select a from t")


async def test_databases_in_memory_are_private() -> None:
    one, two = cenote.Database(SQLITE), cenote.Database(SQLITE)
    await one.execute("create table t (a int)")
    assert await two.fetch_val("select count(*) from sqlite_master") == 0
    place = one._driver._path  # type: ignore[attr-defined]
    with contextlib.closing(sqlite3.connect(place, uri=True)) as spy:
        assert spy.execute("select count(*) from sqlite_master").fetchone() == (1,)
    await one.close()
    with contextlib.closing(sqlite3.connect(place, uri=True)) as spy:  # gone: a new one
        assert spy.execute("select count(*) from sqlite_master").fetchone() == (0,)
    await two.close()


async def test_sqlite_paths_are_read_from_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    strange = "my ?#%25@&=ä file.db"
    for url, path in (
        ("sqlite:///relative.db", tmp_path / "relative.db"),
        ("sqlite:///./sub.db", tmp_path / "sub.db"),
        (f"sqlite:///{tmp_path}/absolute.db", tmp_path / "absolute.db"),
        (f"sqlite:///{quote(strange, safe='')}", tmp_path / strange),
    ):
        db = cenote.Database(url)
        monkeypatch.chdir("/")  # it means where the program was when it was constructed
        assert not path.exists()
        await db.execute("create table t (a int)")
        assert path.exists()
        await db.close()
        monkeypatch.chdir(tmp_path)
    # Nothing else is left: what was in the log is in the file.
    assert sorted(os.listdir(tmp_path)) == sorted(["relative.db", "sub.db", "absolute.db", strange])


async def test_sqlite_where_no_file_can_be(tmp_path: Path) -> None:
    async with no_thread_left():
        db = cenote.Database(f"sqlite:///{tmp_path}/no/such/folder.db")
        for _ in range(2):
            with pytest.raises(cenote.ConnectError, match="unable to open"):
                await db.fetch_val("select 1")
        await db.close()


async def test_sqlite_that_only_reads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    missing = cenote.Database(f"{url}?mode=rw")
    with pytest.raises(cenote.ConnectError, match="unable to open"):
        await missing.fetch_val("select 1")
    await missing.close()
    writer = cenote.Database(url)
    await writer.execute("create table t (a int)")
    reader = cenote.Database(f"{url}?mode=ro")
    assert await reader.fetch_val("select count(*) from t") == 0
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await reader.execute("insert into t values (1)")
    await reader.close()
    await writer.close()


async def test_sqlite_connections_have_safe_defaults(tmp_path: Path) -> None:
    async def shown(options: str, query: str, **more: Any) -> Any:
        db = cenote.Database(f"sqlite:///{tmp_path}/a.db{options}", **more)
        try:
            return await db.fetch_val(query)
        finally:
            await db.close()

    assert await shown("", "pragma journal_mode") == "wal"
    assert await shown("", "pragma busy_timeout") == 5000
    assert await shown("?timeout=1.5", "pragma busy_timeout") == 1500
    assert await shown("?timeout=0", "pragma busy_timeout") == 0
    assert await shown("?journal_mode=delete", "pragma journal_mode") == "delete"
    assert await shown("?foreign_keys=on", "pragma foreign_keys") == 1
    assert await shown("?foreign_keys=0", "pragma foreign_keys") == 0
    assert await shown("?synchronous=normal", "pragma synchronous") == 1
    assert await shown("?cache_size=-4000", "pragma cache_size") == -4000
    arguments = {"timeout": 2.0}
    assert await shown("", "pragma busy_timeout", connect_args=arguments) == 2000
    # Autocommit, and not the transactions of the sqlite3 module.
    db = cenote.Database(f"sqlite:///{tmp_path}/a.db")
    await db.execute("create table t (a int)")
    await db.execute("insert into t values (1)")
    assert not db.in_transaction
    assert db.pool is not None
    assert db.pool.active_count == 0
    await db.close()


class Sum:
    def __init__(self) -> None:
        self.total = 0

    def step(self, value: int) -> None:
        self.total += value

    def finalize(self) -> int:
        return self.total


def backwards(a: str, b: str) -> int:
    return (a < b) - (a > b)


async def test_functions_are_on_every_connection(tmp_path: Path) -> None:
    db = cenote.Database(f"sqlite:///{tmp_path}/a.db", max_size=2)
    db.create_function("double", 1, lambda x: 2 * x, deterministic=True)
    db.create_aggregate("mysum", 1, Sum)
    db.create_collation("backwards", backwards)

    async def check() -> None:
        assert await db.fetch_val("select double(21)") == 42
        assert await db.fetch_val("select mysum(a) from (select 1 a union select 2)") == 3
        rows = await db.fetch_all("select 'a' x union select 'b' order by x collate backwards")
        assert [row[0] for row in rows] == ["b", "a"]

    async with db.connection():  # one is busy here, the other there, and then both are new
        await check()
        await asyncio.create_task(check())
    await db.pool.retire()  # type: ignore[union-attr]
    await check()
    for register in (
        lambda: db.create_function("late", 0, int),
        lambda: db.create_aggregate("late", 1, Sum),
        lambda: db.create_collation("late", backwards),
    ):
        with pytest.raises(RuntimeError, match="before the first connection"):
            register()
    await db.close()
    with pytest.raises(RuntimeError, match="before the first connection"):
        db.create_function("late", 0, int)


async def test_a_function_that_cannot_be_registered(tmp_path: Path) -> None:
    async with no_thread_left():
        db = cenote.Database(f"sqlite:///{tmp_path}/a.db")
        db.create_function("wrong", 100_000, lambda: 1)
        with pytest.raises(cenote.ConnectError, match=r"Error creating function|'narg' must be"):
            await db.fetch_val("select 1")
        await db.close()


@with_server
async def test_functions_are_for_sqlite(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.raises(cenote.PoolError, match=r"create_function\(\) is for SQLite"):
            db.create_function("f", 0, int)
        with pytest.raises(cenote.PoolError, match=r"create_aggregate\(\) is for SQLite"):
            db.create_aggregate("f", 1, Sum)
        with pytest.raises(cenote.PoolError, match=r"create_collation\(\) is for SQLite"):
            db.create_collation("f", backwards)


async def test_sqlite_that_is_slow_to_open_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opened.set()
            go.wait(WAIT)
            super().__init__(*arguments, **options)

        def close(self) -> None:
            super().close()
            closed.set()

    url, options = f"sqlite:///{tmp_path}/a.db", {"connect_args": {"factory": Slow}}
    db = cenote.Database(url, create_timeout=10.0, **options)
    async with no_thread_left():
        try:
            fetching = asyncio.create_task(outcome(db.fetch_val("select 1")))
            await eventually(opened.is_set)
            let_pass(monkeypatch, 10.0)
            assert isinstance(await fetching, TimeoutError)
        finally:
            go.set()
        await eventually(closed.is_set)
        await db.close()
