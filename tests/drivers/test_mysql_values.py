"""A bound value never becomes SQL on MySQL and MariaDB, whatever the session is like."""

import datetime
import enum
import pathlib
import random
import uuid
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest

import cenote
from tests.exhibits import values
from tests.support.backends import Backend

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

SAMPLE = 5_000  # values; `make values` sends 100,000
PLAIN = "NO_BACKSLASH_ESCAPES"
ATTACK = "\\' or 1=1 -- "


async def test_hostile_values_come_back(mysql: Backend) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    outcome = await values.attack(mysql.url, SAMPLE, seed)
    assert outcome.returned + outcome.refused >= SAMPLE


def ways(db: Any) -> list[Callable[[str, list[Any]], Awaitable[list[Any]]]]:
    async def stream(sql: str, parameters: list[Any]) -> list[Any]:
        return [row async for row in db.iterate(sql, parameters)]

    async def several(sql: str, parameters: list[Any]) -> list[Any]:
        rows: list[Any] = await db.fetch_all(f"{sql}; select 1", parameters)
        return rows

    return [db.fetch_all, stream, several]


@pytest.mark.parametrize("size", [0, 100])
@pytest.mark.parametrize(
    ("options", "value"),
    [
        (f"?sql_mode='{PLAIN}'", b"\\' or 1=1 -- "),
        (f"?sql_mode='{PLAIN}'", "\\' or 1=1 -- "),
        ("?sql_mode='ANSI_QUOTES'", '" or 1=1 -- '),
        ("?charset=gbk", b"\xbf' or 1=1 -- "),
        ("?charset=gbk", b"\xbf\\' or 1=1 -- "),
        ("?charset=big5", b"\xa1\\' or 1=1 -- "),
        ("?charset=sjis", b"\x81\\' or 1=1 -- "),
        ("?charset=cp932", "\u8868' or 1=1 -- "),
    ],
)
async def test_no_row_is_found_by_an_attack(
    mysql: Backend, options: str, value: Any, size: int
) -> None:
    async with mysql.database(mysql.url + options, statement_cache_size=size) as db:
        for find in ways(db):
            assert await find("select 1 as x from dual where -1 = ?", [value]) == []


async def test_after_set_names_a_text_is_still_data(mysql: Backend) -> None:
    async with mysql.database() as db:
        await db.execute("set names gbk")
        for find in ways(db):
            find_me = "select 1 as x from dual where -1 = ?"
            assert await find(find_me, ["\u8a93' or 1=1 -- "]) == []
            [row] = await find("select ?", ["\u8a93' or 1=1 -- "])
            assert row[0] == "\u8a93' or 1=1 -- "
            with pytest.raises(UnicodeEncodeError):
                await find("select ?", ["\N{GRINNING FACE}"])
        await db.execute("set names utf8mb4")
        assert await db.fetch_val("select ?", ["\N{GRINNING FACE}"]) == "\N{GRINNING FACE}"


@pytest.mark.parametrize("charset", ["utf8mb4", "gbk"])
async def test_half_a_character_is_refused(mysql: Backend, charset: str) -> None:
    """json.loads() makes such texts."""
    async with mysql.database(f"{mysql.url}?charset={charset}") as db:
        for find in ways(db):
            with pytest.raises(UnicodeEncodeError):
                await find("select ?", ["\udcbf\udc27 or 1=1 -- "])
        with pytest.raises(UnicodeEncodeError):
            await db.execute_many("do ?", [["a"], ["\udc27"]])
        assert await db.fetch_val("select ?", ["a"]) == "a"


async def test_a_yen_is_no_backslash(mysql: Backend) -> None:
    """Python writes it as one in sjis."""
    async with mysql.database(f"{mysql.url}?charset=sjis") as db:
        for sql, parameters in (
            ("select ?", ["\N{YEN SIGN}"]),
            ("select '\N{YEN SIGN}', ' '", None),
        ):
            with pytest.raises(UnicodeEncodeError):
                await db.fetch_all(sql, parameters)


@pytest.mark.parametrize("charset", ["utf16", "ucs2", "utf32", "geostd8", "binary", "nonsense"])
def test_a_charset_that_nobody_can_speak_is_refused(charset: str) -> None:
    with pytest.raises(ValueError, match=f"'charset' is unknown.*'{charset}'"):
        cenote.Database(f"mysql://app@localhost/app?charset={charset}")


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


async def test_values_that_are_known(mysql: Backend) -> None:
    number = uuid.uuid4()
    async with mysql.database() as db:
        sent = [Color.RED, Level.HIGH, number, bytearray(b"a"), memoryview(b"b"), Decimal("1.50")]
        marks = "?, ?, ?, cast(? as binary), cast(? as binary), ?"
        expected = ("red", 3, str(number), b"a", b"b", Decimal("1.50"))
        for find in ways(db):
            assert tuple((await find(f"select {marks}", sent))[0]) == expected


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (pathlib.Path("a' or 1=1 -- "), r"str\(value\)"),
        ((1, 2), r"json.dumps\(value\)"),
        ({1, 2}, r"str\(value\)"),
        (object(), r"str\(value\)"),
    ],
)
async def test_an_object_of_another_type_is_refused(
    mysql: Backend, value: Any, remedy: str
) -> None:
    kind = type(value).__name__
    async with mysql.database() as db:
        for find in ways(db):
            with pytest.raises(TypeError, match=f"parameter 2 is of the type {kind}.*{remedy}"):
                await find("select ?, ?", [1, value])
        with pytest.raises(TypeError, match="parameter 1"):
            await db.execute_many("do ?", [[1], [value]])
        async with await db.prepare("select ?") as statement:
            with pytest.raises(TypeError, match="parameter 1"):
                await statement.fetch_all([value])
        assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().destroyed == {}


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), Decimal("NaN"), Decimal(10) ** 65, Decimal("1e-31"), 2**64],
)
async def test_a_number_that_the_server_would_change_is_refused(mysql: Backend, value: Any) -> None:
    async with mysql.database() as db:
        for find in ways(db):
            with pytest.raises(ValueError, match=r"parameter 1 is|out of 64-bit range"):
                await find("select ?", [value])


async def test_large_numbers_are_not_negative_when_there_are_many(mysql: Backend) -> None:
    async with mysql.database() as db, mysql.table(db, "a bigint unsigned") as table:
        await db.execute_many(f"insert into {table} values (?)", [[1], [2**64 - 1], [2**63]])
        found = await db.fetch_all(f"select a from {table} order by a")
        assert [row[0] for row in found] == [1, 2**63, 2**64 - 1]


async def test_what_cannot_be_prepared_has_its_values_all_the_same(mysql: Backend) -> None:
    async with mysql.database() as db, mysql.table(db) as table:
        assert len(await db.fetch_all("show tables like ?", [table])) == 1
        assert (
            await db.fetch_all("show tables like ?", [ATTACK.replace("\\", "").replace("'", "")])
            == []
        )
        insert = f"insert into {table} values (?, ?)"
        await db.execute(f"{insert}; {insert}", [1, ATTACK, 2, "b"])
        found = await db.fetch_all(f"select id, name from {table} order by id")
        assert [tuple(row) for row in found] == [(1, ATTACK), (2, "b")]
        now = datetime.datetime(2024, 2, 29, 1, 2, 3, 4)
        for value in (now, now.date(), datetime.timedelta(hours=-700, microseconds=1), 1e300):
            assert await db.fetch_val("select ?; select 1", [value]) == value


# -- placeholders --------------------------------------------------------------------------------


async def test_the_server_says_where_the_placeholders_are(mysql: Backend) -> None:
    async with mysql.database(f"{mysql.url}?sql_mode='{PLAIN}'") as db:
        sql = r"select 'C:\', '?', ?"
        *prepared, several = ways(db)
        for find in prepared:
            [row] = await find(sql, [", version() -- "])
            assert tuple(row) == ("C:\\", "?", ", version() -- ")
        with pytest.raises(ValueError, match="depends on the sql_mode"):
            await several(sql, [", version() -- "])
    async with mysql.database() as db:
        with pytest.raises(ValueError, match=r"cannot prepare.*syntax error"):
            await db.fetch_all(sql, [", version() -- "])


async def set_mode(connection: Any) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(f"set sql_mode = '{PLAIN}'")


@pytest.mark.parametrize("end", ["", "; select 1"])
@pytest.mark.parametrize("early", [False, True])
async def test_a_mode_set_by_a_cursor_makes_no_value_sql(
    mysql: Backend, early: bool, end: str
) -> None:
    """As the driver writes it, the text ends its first string elsewhere than the server does."""
    sql = rf"select 'a\'', ?, 'x'{end}"
    on_connect = set_mode if early else None
    async with mysql.database(on_connect=on_connect) as db, db.connection() as raw:
        if not early:
            await set_mode(raw)
        with pytest.raises(ValueError, match="depends on the sql_mode"):
            await db.fetch_all(sql, [", (select 5) -- "])
        with pytest.raises(ValueError, match=f"the session has the sql_mode {PLAIN}"):
            await db.fetch_all(r"select 'it\'s :b', :a", {"a": 1})


@pytest.mark.parametrize(
    "sql",
    [
        "select /*!50000 ' */ , ?, ' */; select 1",
        "select /*!50000 ' */ ?, ' */",
        "select /*M!50000 ' */ ?, ' */; select 1",
        "select /*+ ` */ ?, ` */ 1; select 1",
    ],
)
async def test_no_value_is_written_beside_a_comment_that_is_none(mysql: Backend, sql: str) -> None:
    async with mysql.database() as db:
        with pytest.raises(ValueError, match=r"a comment that some servers execute|0 placeholders"):
            await db.fetch_all(sql, [", (select 5) */ -- "])
        assert await db.fetch_val("select /*!50000 1 + */ ?", [1]) == 2  # prepared
        assert await db.fetch_val("select /*+ no_merge() */ ?; select 1", [1]) == 1


async def test_names_that_depend_on_the_sql_mode_are_refused(mysql: Backend) -> None:
    sql = r"select 'it\'s :b', :a"
    async with mysql.database() as db:
        assert tuple(await db.fetch_one(sql, {"a": 1})) == ("it's :b", 1)
        await db.execute(f"set sql_mode = '{PLAIN}'")
        with pytest.raises(ValueError, match=f"the session has the sql_mode {PLAIN}.*backslash"):
            await db.fetch_one(sql, {"a": 1})
        with pytest.raises(ValueError, match="backslash beside a quote"):
            await db.prepare(sql)


async def test_a_plan_is_not_used_in_another_sql_mode(mysql: Backend) -> None:
    async with mysql.database(max_size=1) as db:
        for mode, expected in (("", "a\n"), (PLAIN, "a\\n"), ("", "a\n")):
            await db.execute(f"set sql_mode = '{mode}'")
            assert tuple(await db.fetch_one(r"select 'a\n', ?", [1])) == (expected, 1)


async def test_a_plan_forgets_the_types_of_its_first_parameters(mysql: Backend) -> None:
    async with mysql.database(max_size=1) as db:
        several = [1.5, "a", None, 5, Decimal("2.5"), datetime.date(2024, 1, 1), "b"]
        async with await db.prepare("select ?") as statement:
            for value in several:
                assert await db.fetch_val("select ?", [value]) == value
                assert await statement.fetch_val([value]) == value


async def test_what_is_touched_in_this_sql_mode_is_reset(mysql: Backend) -> None:
    async with mysql.database(f"{mysql.url}?sql_mode='{PLAIN}'", max_size=1) as db:
        await db.execute(r"select '\'; set @x = 1; select '\'")
        assert db.pin_reason == "session state touched by SET"
        await db.release()
        assert await db.fetch_val("select @x") is None


async def test_the_placeholders_of_asyncmy_are_known(mysql: Backend) -> None:
    async with mysql.database() as db:
        assert tuple(await db.fetch_one("select %s, '100%%', %s", [1, "a"])) == (1, "100%", "a")
        named = "select %(b)s, %(a)s, %(b)s"
        assert tuple(await db.fetch_one(named, {"a": 1, "b": "x"})) == ("x", 1, "x")
        async with await db.prepare("select %s + 1") as statement:
            assert await statement.fetch_val([1]) == 2
        for sql in ("select '%s', %s", "select '5%', %s", "select %d, %s"):
            with pytest.raises(ValueError, match=r"driver's own placeholders, and [\"']%"):
                await db.fetch_all(sql, [1])
        with pytest.raises(ValueError, match="2 placeholders"):
            await db.fetch_all("select %s, %s", [1])


async def test_what_cannot_be_decoded_leaves_the_connection_as_it_was(mysql: Backend) -> None:
    async with mysql.database(f"{mysql.url}?charset=latin1", max_size=1) as db:
        # Which Python's codec does not have.
        sql = "select _latin1 x'81' union all select 'b' union all select 'c'"
        for find in ways(db)[:2]:
            with pytest.raises(UnicodeDecodeError):
                await find(sql, [])
            assert await db.fetch_val("select 5") == 5


async def test_names_that_cannot_be_decoded_leave_the_wire_quiet(mysql: Backend) -> None:
    sql = "select 'a' as `\u0531` union all select 'b'"
    async with mysql.database(max_size=1) as db:
        session = await db.fetch_val("select connection_id()")
        await db.execute("set character_set_results = 'armscii8'")
        for parameters in ([], [1]):
            text = f"{sql} from dual where 1 = ?" if parameters else sql
            for find in ways(db)[:2]:
                with pytest.raises(UnicodeDecodeError):
                    await find(text, parameters)
                assert await db.fetch_val("select connection_id()") == session


async def test_plans_that_are_forgotten_are_closed(mysql: Backend) -> None:
    async with mysql.database(max_size=1) as db:

        async def count() -> int:
            row = await db.fetch_one("show global status like 'Prepared_stmt_count'")
            return int(row[1])

        counts: list[int] = []
        for _ in range(3):
            for mode in (PLAIN, ""):
                await db.execute(f"set sql_mode = '{mode}'")
                for at in range(5):
                    assert await db.fetch_val(f"select ? + {at}", [1]) == at + 1
            counts.append(await count())
        assert counts == counts[:1] * 3
