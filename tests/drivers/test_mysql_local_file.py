"""LOAD DATA LOCAL: the server asks for a file of this machine, and gets it or an error."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import cenote
from cenote.drivers.mysql import private
from tests.support.backends import Backend
from tests.support.held import ids

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

LINES = 60_000  # more than one chunk


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "with a ' quote.csv"
    file.write_text("".join(f"{number},y\n" for number in range(LINES)))
    assert file.stat().st_size > private.FILE_CHUNK
    return file


def url(mysql: Backend) -> str:
    return f"{mysql.url}?local_infile=1"


def load(table: str) -> str:
    return f"load data local infile ? into table {table} fields terminated by ','"


async def test_a_local_file_is_loaded(mysql: Backend, lines: Path) -> None:
    async with mysql.database(url(mysql), max_size=1) as db, mysql.table(db) as table:
        assert await db.execute(load(table), [str(lines)]) == LINES
        assert len(await ids(db, table)) == LINES
        await db.execute(f"delete from {table}")
        async with db.transaction() as tx:
            assert await tx.execute(load(table), [str(lines)], timeout=60) == LINES
            await db.rollback()
        assert await ids(db, table) == []
        async with db.connection() as raw, raw.cursor() as cursor:
            text = load(table).replace("?", "%s")
            assert await cursor.execute(text, [str(lines)]) == LINES
        assert db.pool.stats().created == 1


async def test_a_file_that_is_not_there(mysql: Backend, tmp_path: Path) -> None:
    async with mysql.database(url(mysql), max_size=1) as db, mysql.table(db) as table:
        for name in (tmp_path / "nosuch.csv", tmp_path):
            with pytest.raises(private.errors.OperationalError, match="was not sent") as caught:
                await db.execute(load(table), [str(name)])
            assert isinstance(caught.value.__cause__, OSError)
            assert not cenote.is_disconnect(caught.value)
            assert await db.fetch_val("select 4711") == 4711  # and the wire is quiet
        assert db.pool.stats().created == 1


async def test_a_file_is_refused_without_the_option(mysql: Backend, lines: Path) -> None:
    async with mysql.database(max_size=1) as db, mysql.table(db) as table:
        with pytest.raises(private.errors.MySQLError):
            await db.execute(load(table), [str(lines)])
        assert await ids(db, table) == []
        assert db.pool.stats().created == 1


async def test_a_line_that_the_server_refuses(mysql: Backend, tmp_path: Path) -> None:
    file = tmp_path / "twice.csv"
    file.write_text("1,a\n1,b\n2,c\n")
    async with mysql.database(url(mysql), max_size=1) as db, mysql.table(db) as table:
        text = f"load data local infile ? replace into table {table} (nosuch)"
        with pytest.raises(private.errors.MySQLError):
            await db.execute(text, [str(file)])
        await db.execute(load(table), [str(file)])  # LOCAL: what is there already is kept
        assert await db.fetch_val("select count(*) from " + table) == 2
        assert db.pool.stats().created == 1


async def test_cancelled_while_a_file_is_sent(
    mysql: Backend, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = asyncio.Event()

    async def send(self: Any, name: str) -> None:
        sending.set()
        await asyncio.Event().wait()

    async with mysql.database(url(mysql), max_size=1) as db, mysql.table(db) as table:
        monkeypatch.setattr(private.Connection, "send_file", send)
        task = asyncio.create_task(db.execute(load(table), [str(lines)]))
        await sending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        assert await ids(db, table) == []
        assert await db.execute(load(table), [str(lines)]) == LINES
