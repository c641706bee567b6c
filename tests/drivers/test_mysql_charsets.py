"""Text on MySQL and MariaDB is sent and read as the session says, in each direction by itself."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asyncmy.cursors import SSCursor

from tests.support.backends import Backend

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

CLIENT, RESULTS = "set character_set_client = {}", "set character_set_results = {}"


@asynccontextmanager
async def session(mysql: Backend, *statements: str) -> AsyncIterator[Any]:
    async with mysql.database(max_size=1) as db:
        for sql in statements:
            await db.execute(sql)
        yield db


async def check_text(db: Any, text: str) -> None:
    """It comes and goes by every way, and the server has understood it."""
    digits = text.encode().hex().upper()
    written = f"select _utf8mb4 x'{digits}' as a"
    sent = "select hex(convert(? using utf8mb4)) as a"
    quoted = f"select hex(convert('{text}' using utf8mb4)) as a"
    assert await db.fetch_val(written) == text
    assert await db.fetch_val(f"{written} where 1 = ?", [1]) == text
    assert [row["a"] async for row in db.iterate(written)] == [text]
    assert await db.fetch_val(sent, [text]) == digits
    assert [row["a"] async for row in db.iterate(sent, [text])] == [digits]
    assert await db.fetch_val(quoted) == digits
    assert await db.fetch_val(f"{quoted} where 1 = ?", [1]) == digits
    async with await db.prepare(f"{sent} having a <> '{text}'") as statement:
        assert await statement.fetch_val([text]) == digits


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        ([CLIENT.format("latin1")], "\u00e9"),
        ([CLIENT.format("gbk")], "\u8336"),
        ([RESULTS.format("latin1")], "\u00e9"),
        ([RESULTS.format("gbk")], "\u8336"),
        ([RESULTS.format("utf16")], "\u00e9"),
        ([RESULTS.format("ucs2")], "\u00e9"),
        ([RESULTS.format("utf32")], "\u00e9"),
        ([RESULTS.format("null")], "\u00e9"),
        ([CLIENT.format("latin1"), RESULTS.format("null")], "\u00e9"),
        ([CLIENT.format("latin1"), RESULTS.format("cp1250")], "\u00e9"),
        (["set names latin1"], "\u00e9"),
        (["set names latin1", "set names utf8"], "\u20ac"),
        (["set names binary", "set names utf8mb4"], "\u20ac"),
    ],
)
async def test_each_direction_has_its_charset(
    mysql: Backend, statements: list[str], text: str
) -> None:
    async with session(mysql, *statements) as db:
        await check_text(db, text)
        await db.release()
        await check_text(db, "\u20ac\u8336")


async def test_names_and_many_rows_in_both_charsets(mysql: Backend) -> None:
    async with mysql.database(max_size=1) as db, mysql.table(db) as table:
        await db.execute(CLIENT.format("latin1"))
        row = await db.fetch_one("select 1 as `\u00e9`")
        assert [*row.keys()] == ["\u00e9"]
        insert = f"insert into {table} values (?, ?)"
        await db.execute_many(insert, [[1, "\u00e9"], [2, "\u00fc"]])
        await db.execute_many(f"update {table} set name = ? where id = ?", [["\u00e8", 1]])
        rows = await db.fetch_all(f"select name, hex(name) from {table} order by id")
        assert [row[0] for row in rows] == ["\u00e8", "\u00fc"]
        with pytest.raises(UnicodeEncodeError):
            await db.execute(f"insert into {table} values (3, '\u8336')")
        with pytest.raises(UnicodeEncodeError):
            await db.execute_many(insert, [[3, "a"], [4, "\u8336"]])
        await db.release()
        rows = await db.fetch_all(f"select name from {table} order by id")
        assert [row[0] for row in rows] == ["\u00e8", "\u00fc"]


async def test_cursors_of_the_driver_send_in_the_client_charset(mysql: Backend) -> None:
    async with (
        session(mysql, CLIENT.format("latin1")) as db,
        db.connection() as raw,
        raw.cursor() as cursor,
    ):
        await cursor.execute("select hex(convert('\u00e9' using utf8mb4)), _utf8mb4 x'C3A9'")
        assert await cursor.fetchone() == ("C3A9", "\u00e9")


async def check_binary(mysql: Backend, db: Any) -> None:
    """As with the bare driver: text goes as UTF-8, and comes back as bytes."""
    async with mysql.table(db) as table:
        assert await db.fetch_val("select 5 as `\u00e9`") == 5
        await db.execute(f"insert into {table} values (1, '\u00e9')")
        await db.execute(f"insert into {table} values (?, ?)", [2, "\u8336"])
        await db.execute_many(f"insert into {table} values (?, ?)", [[3, "\u20ac"], [4, "a"]])
        rows = await db.fetch_all(f"select name from {table} order by id")
        assert [row[0].decode() for row in rows] == ["\u00e9", "\u8336", "\u20ac", "a"]


async def test_a_session_in_binary(mysql: Backend) -> None:
    async with session(mysql, "set names binary") as db:
        await check_binary(mysql, db)
        await db.release()
        await check_text(db, "\u20ac")


async def test_results_in_binary_arrive_as_bytes(mysql: Backend) -> None:
    async with session(mysql, RESULTS.format("binary")) as db:
        await check_binary(mysql, db)


async def test_sessions_that_begin_in_binary(mysql: Backend) -> None:
    url = f"{mysql.url}?init_command=set%20names%20binary"
    async with mysql.database(url, max_size=1) as db:
        await check_binary(mysql, db)
        await db.execute("set @mine = 1")
        await db.release()
        await check_binary(mysql, db)
        assert db.pool.stats().created == 1


async def test_a_charset_that_python_does_not_have_is_no_guess(mysql: Backend) -> None:
    async with session(mysql, "set names geostd8") as db:
        assert await db.fetch_val("select 'a'") == "a"
        assert await db.fetch_val("select concat(?, 'b')", ["a"]) == "ab"
        with pytest.raises(UnicodeEncodeError):
            await db.fetch_val("select '\u10d0'")
        with pytest.raises(UnicodeEncodeError):
            await db.fetch_val("select ?", ["\u10d0"])
        with pytest.raises(UnicodeDecodeError):
            await db.fetch_val("select _utf8mb4 x'E18390'")
        assert await db.fetch_val("select 5") == 5


async def set_by_cursor(raw: Any) -> None:
    async with raw.cursor() as cursor:
        await cursor.execute("set names latin1")


async def set_by_stream(raw: Any) -> None:
    async with raw.cursor(SSCursor) as cursor:
        await cursor.execute("set names latin1")


async def set_by_statement(raw: Any) -> None:
    statement = await raw.prepare("set names latin1")
    await statement.execute()
    await statement.close()


@pytest.mark.parametrize("change", [set_by_cursor, set_by_stream, set_by_statement])
async def test_a_charset_that_the_driver_is_told_to_set(
    mysql: Backend, change: Callable[[Any], Awaitable[None]]
) -> None:
    async with mysql.database(max_size=1) as db:
        async with db.connection() as raw:
            await change(raw)
            await check_text(db, "\u00e9")
            statement = await raw.prepare("select hex(convert(? using utf8mb4))")
            assert (await statement.execute(["\u00e9"])).rows == (("C3A9",),)
            with pytest.raises(Exception, match="Expected 1 parameters, got 0"):
                await statement.execute()
        await check_text(db, "\u20ac")


async def call_by_cursor(db: Any, sql: str) -> None:
    async with db.connection() as raw, raw.cursor() as cursor:
        await cursor.execute(sql)


async def call_by_stream(db: Any, sql: str) -> None:
    async with db.connection() as raw, raw.cursor(SSCursor) as cursor:
        await cursor.execute(sql)
        await cursor.fetchall()


async def call_by_statement(db: Any, sql: str) -> None:
    async with db.connection() as raw:
        await (await raw.prepare(sql)).execute()


async def iterate(db: Any, sql: str) -> None:
    async for _ in db.iterate(sql):
        pass


async def execute(db: Any, sql: str) -> None:
    await db.execute(sql)


@pytest.mark.parametrize("body", ["{0}", "{0}; select 1"])
@pytest.mark.parametrize(
    "call", [execute, iterate, call_by_cursor, call_by_stream, call_by_statement]
)
async def test_a_charset_that_a_procedure_sets(
    mysql: Backend, call: Callable[[Any, str], Awaitable[None]], body: str
) -> None:
    """It stays in that of the results; that of the client is set back, which nobody tells."""
    async with mysql.database(max_size=1) as db:
        await db.execute("drop procedure if exists p_names")
        names = body.format("set names latin1")
        await db.execute(f"create procedure p_names() begin {names}; end")
        await db.release()
        async with db.connection():
            await call(db, "call p_names()")
            assert await db.fetch_val("select @@character_set_results") == "latin1"
            await check_text(db, "\u00e9")
        await db.execute("drop procedure p_names")


@pytest.mark.parametrize("mysql", ["mariadb"], indirect=True)
async def test_a_mode_for_one_statement_is_over_after_it(mysql: Backend) -> None:
    async with session(mysql, "set sql_mode = ''") as db, db.connection() as raw:
        await db.execute("set statement sql_mode = 'ANSI_QUOTES' for set @mine = 1")
        assert await db.fetch_val("select @@sql_mode") == (raw.variables["sql_mode"] or "") == ""
        assert await db.fetch_val('select "it\\"s :b", :a', {"a": 1}) == 'it"s :b'
