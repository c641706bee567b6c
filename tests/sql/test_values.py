"""What goes in comes back, as the same type, on every driver."""

import asyncio
import datetime as dt
import sys
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.kinds import BEGIN, END, ID, KINDS, PAGE, PARIS, Color, Kind, Level

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def same(found: Any, value: Any) -> bool:
    """Equal, and of the same type."""
    if type(found) is not type(value) or found != value:
        return False
    return not isinstance(value, dt.datetime) or (found.tzinfo is None) == (value.tzinfo is None)


async def all_ways_in(db: Any, table: str, value: Any) -> int:
    """Insert a value by every verb; return the number of rows."""
    insert = f"insert into {table} values (?, ?)"
    await db.execute(insert, [1, value])
    await db.execute(f"insert into {table} values (:id, :value)", {"id": 2, "value": value})
    await db.execute_many(insert, [[3, value], [4, value], [5, None]])
    async with await db.prepare(insert) as statement:
        await statement.execute([6, value])
        await statement.execute_many([[7, value], [8, value]])
    async with db.transaction() as tx:
        await tx.execute(insert, [9, value])
        await tx.execute_many(insert, [[10, value]])
    return 10


async def all_ways_out(db: Any, sql: str) -> dict[str, list[Any]]:
    """The first column of the rows, by every verb."""
    found = {
        "fetch_all": await db.fetch_all(sql),
        "iterate": [row async for row in db.iterate(sql)],
        "fetch_all with parameters": await db.fetch_all(f"{sql} limit ?", [100]),
        "iterate with parameters": [row async for row in db.iterate(f"{sql} limit ?", [100])],
    }
    async with await db.prepare(f"{sql} limit ?") as statement:
        found["prepared fetch_all"] = await statement.fetch_all([100])
        found["prepared iterate"] = [row async for row in statement.iterate([100])]
        found["prepared fetch_one"] = [await statement.fetch_one([1])]
        found["prepared fetch_val"] = [[await statement.fetch_val([1])]]
    async with db.transaction() as tx:
        found["tx fetch_all"] = await tx.fetch_all(sql)
        found["tx iterate"] = [row async for row in tx.iterate(sql)]
    found["fetch_one"] = [await db.fetch_one(sql)]
    found["fetch_val"] = [[await db.fetch_val(sql)]]
    return {way: [row[0] for row in rows] for way, rows in found.items()}


@every_kind
async def test_what_goes_in_comes_back(backend: Backend, kind: Kind) -> None:
    declared = kind.declared(backend)
    async with (
        backend.database() as db,
        backend.table(db, f"id {{int}}, value {declared}") as table,
    ):
        for value in kind.values:
            await db.execute(f"delete from {table}")
            count = await all_ways_in(db, table, value)
            expected = kind.expected(value, backend)
            found = await all_ways_out(db, f"select value from {table} where id <> 5 order by id")
            for way, values in found.items():
                assert len(values) in (1, count - 1), way
                assert all(same(each, expected) for each in values), (way, values[0], expected)
            assert await db.fetch_val(f"select value from {table} where id = 5") is None
            assert (await db.fetch_all(f"select value from {table} where id = 5"))[0] == (None,)


@pytest.mark.once
@every_kind
def test_the_page_shows_each_type(kind: Kind) -> None:
    """`python -m tests.support.kinds` writes the table; here it is run."""
    page = PAGE.read_text("utf-8")
    table = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    assert kind.line() in table.splitlines()
    assert len(table.splitlines()) == len(KINDS) + 4


async def test_a_value_is_what_its_column_says(backend: Backend) -> None:
    """Several columns at once, some of them without conversions."""
    json = "jsonb" if backend.name in ("asyncpg", "psycopg") else "json"
    columns = f"id {{int}}, a {json}, name {{text}}, b boolean, c {json}"
    async with backend.database() as db, backend.table(db, columns) as table:
        row = (1, {"a": Color.RED, "b": [Level.HIGH]}, '{"no": 1}', True, None)
        await db.execute(f"insert into {table} values (?, ?, ?, ?, ?)", row)
        found = await db.fetch_one(f"select * from {table}")
        assert found == (1, {"a": "red", "b": [3]}, '{"no": 1}', True, None)
        assert found["name"] == '{"no": 1}'
        assert await db.fetch_val(f"select count(*) from {table} where a is not null") == 1


async def test_json_that_is_text_already_stays_it(backend: Backend) -> None:
    json = "jsonb" if backend.name in ("asyncpg", "psycopg") else "json"
    async with backend.database() as db, backend.table(db, f"value {json}") as table:
        await db.execute(f"insert into {table} values (?)", ['{"a": [1]}'])
        assert await db.fetch_val(f"select value from {table}") == {"a": [1]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [{"b": Decimal(1)}]}, r"\$\['a'\]\[0\]\['b'\] is of the type Decimal"),
        ([float("nan")], r"\$\[0\] is nan, a number that JSON does not have"),
        ({"a": {1, 2}}, r"\$\['a'\] is of the type set"),
        ({(1, 2): 3}, r"the key \(1, 2\) of \$ is of the type tuple"),
    ],
)
async def test_what_json_does_not_have_is_named(backend: Backend, value: Any, text: str) -> None:
    json = "jsonb" if backend.name in ("asyncpg", "psycopg") else "json"
    async with backend.database() as db, backend.table(db, f"value {json}") as table:
        for run in (db.execute, lambda sql, row: db.execute_many(sql, [[{}], row])):
            with pytest.raises(Exception, match=text):  # of asyncpg it is a DataError
                await run(f"insert into {table} values (?)", [value])
        assert await db.fetch_val(f"select count(*) from {table}") == 0


@pytest.mark.parametrize("values", ["nonsense", "python", ""])
def test_another_word_for_values_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"^values must be one of 'same', 'driver', not "):
        cenote.Database("sqlite:///:memory:", values=values)


async def test_the_driver_alone_decides_on_request(backend: Backend) -> None:
    json = "jsonb" if backend.name in ("asyncpg", "psycopg") else "json"
    expected: Any = {"asyncpg": ('{"a": 1}', True), "psycopg": ({"a": 1}, True)}
    async with (
        backend.database(values="driver") as db,
        backend.table(db, f"a {json}, b boolean") as table,
    ):
        await db.execute(f"insert into {table} values (?, ?)", ['{"a": 1}', True])
        row = await db.fetch_one(f"select * from {table}")
        assert row == expected.get(backend.name, ('{"a": 1}', 1))
        assert type(row[1]) is (bool if backend.name in expected else int)
        with pytest.raises(Exception, match=r"dict|mapping"):
            await db.execute(f"insert into {table} values (?, ?)", [{"a": 1}, True])


# -- PostgreSQL ----------------------------------------------------------------------------------

postgresql = pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)

ARRAYS = [
    ("int[]", [1, 2, None]),
    ("text[]", ["a", "", 'x"y', None]),
    ("uuid[]", [ID, None]),
    ("boolean[]", [True, False]),
    ("numeric[]", [Decimal("1.5"), 2]),
    ("double precision[]", [1.5, 2, None]),
    ("bigint[]", [1, -(2**63)]),
    ("smallint[]", [None, None]),
    ("timestamptz[]", [dt.datetime(2024, 1, 1, tzinfo=PARIS)]),
    ("int[]", [[1, 2], [3, 4]]),
    ("jsonb[]", [{"a": 1}, {"b": [2]}]),
    ("jsonb[]", [1, True, 1.5, None]),
    ("jsonb[]", [[{"a": 1}, 2], [3, None]]),
    ("json[]", [{"a": 1}]),
    ("jsonb", [1, "a", None, {"b": [Color.RED]}]),
    ("json", [1, 2]),
    ("json", []),
    ("text[]", []),
]


@postgresql
@pytest.mark.parametrize(("declared", "value"), ARRAYS)
async def test_a_list_is_what_its_parameter_says(
    backend: Backend, declared: str, value: list[Any]
) -> None:
    expected = [1, "a", None, {"b": ["red"]}] if declared == "jsonb" else value
    async with (
        backend.database() as db,
        backend.table(db, f"id int, value {declared}") as table,
    ):
        count = await all_ways_in(db, table, value)
        found = await all_ways_out(db, f"select value from {table} where id <> 5 order by id")
        for way, values in found.items():
            assert len(values) in (1, count - 1)
            assert values == [expected] * len(values), way
        for each in found["fetch_all"][0]:
            assert type(each) in (
                type(None),
                int,
                float,
                str,
                bool,
                list,
                dict,
                UUID,
                Decimal,
                dt.datetime,
            )


@postgresql
@pytest.mark.parametrize("declared", ["jsonb", "json", "int[]"])
async def test_a_list_is_what_the_type_behind_a_domain_says(
    backend: Backend, declared: str
) -> None:
    outer = f"d_{uuid4().hex[:12]}"
    async with backend.database(max_size=1) as db:
        await db.execute(f"create domain {outer}_i as {declared}")
        await db.execute(f"create domain {outer} as {outer}_i check (value is not null)")
        try:
            async with backend.table(db, f"id int, value {outer}") as table:
                insert = f"insert into {table} values (?, ?)"
                await db.execute(insert, [1, [1, 2]])
                await db.execute_many(insert, [[2, [1, 2]], [3, [1, 2]]])
                async with db.transaction():
                    await db.execute(f"update {table} set value = ? where id = ?", [[3, 4], 1])
                found = await db.fetch_all(f"select value from {table} order by id")
                assert found == [([3, 4],), ([1, 2],), ([1, 2],)]
        finally:
            await db.execute(f"drop domain {outer}, {outer}_i cascade")


@postgresql
async def test_a_list_of_numbers_fits_arrays_of_every_width(backend: Backend) -> None:
    """psycopg itself makes `smallint[]` of small integers, which does not compare with others."""
    async with backend.database() as db:
        for declared in ("smallint", "int", "bigint", "numeric"):
            sql = f"select array[1, 2]::{declared}[] = ?"
            assert await db.fetch_val(sql, [[1, 2]]) is True
            assert await db.fetch_val(sql, [[1, None]]) is False
    if backend.name == "psycopg":  # asyncpg refuses what is out of range
        async with backend.database() as db:
            assert await db.fetch_val("select 1::int = any(?)", [[1, 2**40]]) is True


@postgresql
async def test_a_list_that_the_server_cannot_place_is_an_array(backend: Backend) -> None:
    """Within a transaction too: asking ends nothing."""
    async with backend.database(max_size=1) as db, db.transaction():
        assert await db.fetch_val("select 1 where 2 = any(?)", [[1, 2]]) == 1
        if backend.name == "psycopg":  # asyncpg cannot run it at all
            assert await db.fetch_val("select count(*) from unnest(?)", [[1, 2]]) == 2
        assert await db.fetch_val("select ?::jsonb", [[Color.RED]]) == ["red"]
        assert await db.fetch_val("select ?::text[]", [[Color.RED]]) == ["red"]
        assert db.in_transaction


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_the_server_is_asked_once_for_each_text(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        sql = "select ?::jsonb"
        assert await db.fetch_val(sql, [[1]]) == [1]
        [connection] = db._loop_databases[asyncio.get_running_loop()].connections
        private = sys.modules["cenote.drivers.psycopg.private"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(private, "parameter_types", None)
            for value in ([2], [3]):
                assert await db.fetch_val(sql, [value]) == value
        assert len(connection._asked) == 1


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_the_server_is_asked_by_an_old_libpq_too(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has no pipeline."""
    private = sys.modules["cenote.drivers.psycopg.private"]
    monkeypatch.setattr(private, "HAS_PIPELINE", False)
    async with backend.database(max_size=1) as db:
        assert await db.fetch_val("select ?::jsonb", [[1]]) == [1]
        assert await db.fetch_val("select count(*) from unnest(?)", [[1, 2]]) == 2


@postgresql
async def test_lists_follow_a_change_of_the_table(backend: Backend) -> None:
    there = "alter table {} alter value type jsonb using to_jsonb(value)"
    back = "alter table {} alter value type int[] using '{{7}}'"
    async with (
        backend.database(max_size=1) as db,
        backend.database(max_size=1) as other,
        backend.table(db, "value int[]") as table,
    ):
        insert = f"insert into {table} values (?)"
        await db.execute(insert, [[1]])
        for change in (there, back, there):
            await db.execute(change.format(table))
            await db.execute(insert, [[2]])
        await other.execute(back.format(table))
        await db.execute(insert, [[3]])
        await other.execute(there.format(table))
        await db.execute(insert, [[4]])
        assert await db.fetch_val(f"select count(*) from {table} where value = ?", [[4]]) == 1


async def set_codecs(raw: Any) -> None:
    await raw.set_type_codec("jsonb", schema="pg_catalog", encoder=str, decoder=lambda text: "mine")


def set_dumpers(raw: Any) -> None:
    from psycopg.types.json import JsonbDumper, set_json_loads

    raw.adapters.register_dumper(dict, JsonbDumper)
    set_json_loads(lambda data: "mine", raw)


@postgresql
async def test_codecs_of_on_connect_go_before_ours(backend: Backend) -> None:
    greet = {"asyncpg": set_codecs, "psycopg": set_dumpers}[backend.name]
    async with backend.database(max_size=1, on_connect=greet, reset="always") as db:
        for _ in range(3):
            assert await db.fetch_val("select '{}'::jsonb") == "mine"
        await db.execute("set work_mem = '1MB'")
        await db.release()
        assert await db.fetch_val("select '{}'::jsonb") == "mine"
        assert await db.fetch_val("select ?::uuid", [ID]) == ID


@postgresql
async def test_values_outlast_a_reset(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        for _ in range(2):
            value = await db.fetch_val("select ?::jsonb", [{"a": 1}])
            number = await db.fetch_val("select ?::uuid", [ID])
            assert (value, number, type(number)) == ({"a": 1}, ID, UUID)
            await db.execute("set work_mem = '1MB'")
            await db.release()


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_codecs_cost_no_round_trip(backend: Backend) -> None:
    counts = []
    for values in ("same", "driver"):
        async with backend.database(max_size=1, values=values) as db, db.connection() as raw:
            counts.append(raw._protocol.queries_count)
    assert counts[0] == counts[1]


# -- SQLite --------------------------------------------------------------------------------------


async def test_sqlite_keeps_what_does_not_fit_its_type() -> None:
    async with cenote.Database("sqlite:///:memory:") as db:
        await db.execute(
            "create table t (d date, b boolean, j json, u uuid, n decimal, i interval)"
        )
        rows: list[Any] = [
            (20240229, 7, "{no", "x", "abc", 1.5),
            ("soon", "yes", b"\xff", b"\xff", 2.5, "x"),
            (1.25, 1.5, "5", ID.bytes, float("inf"), None),
        ]
        await db.execute_many("insert into t values (?, ?, ?, ?, ?, ?)", rows)
        found = [tuple(row) for row in await db.fetch_all("select * from t")]
        assert found == [
            (20240229, 7, "{no", "x", "abc", 1.5),
            ("soon", "yes", b"\xff", b"\xff", Decimal("2.5"), "x"),
            (1.25, 1.5, 5, ID, Decimal("Infinity"), None),
        ]


async def test_sqlite_numbers_compare_as_numbers() -> None:
    async with cenote.Database("sqlite:///:memory:") as db:
        await db.execute("create table t (price decimal(10, 2), took interval, at timestamptz)")
        for price in ("9.5", "10.25", "100"):
            await db.execute("insert into t (price) values (?)", [Decimal(price)])
        found = await db.fetch_all(
            "select price from t where price > ? order by 1", [Decimal("9.9")]
        )
        assert [row[0] for row in found] == [Decimal("10.25"), Decimal(100)]
        east = dt.datetime(2024, 1, 1, 9, tzinfo=dt.timezone(dt.timedelta(hours=9)))
        later = dt.datetime(2024, 1, 1, 1, tzinfo=dt.UTC)
        await db.execute("insert into t (at) values (?)", [east])
        assert await db.fetch_val("select count(*) from t where at < ?", [later]) == 1


async def test_sqlite_types_are_known_in_views_and_temporary_tables() -> None:
    async with cenote.Database("sqlite:///:memory:") as db, db.transaction():
        await db.execute("create temp table t (j json)")
        await db.execute("insert into t values (?)", [[1]])
        for sql in ("select x.j as other from t as x", "select j from (select * from t)"):
            assert await db.fetch_val(sql) == [1]
        assert await db.fetch_val("select j || '' from t") == "[1]"  # an expression has no type


async def test_sqlite_elsewhere_in_the_program_is_untouched() -> None:
    import sqlite3
    import warnings

    async with cenote.Database("sqlite:///:memory:") as db:
        await db.execute("create table t (j json, d date, b boolean)")
        await db.execute("insert into t values (?, ?, ?)", [{}, dt.date(2024, 2, 29), True])
        async with db.connection() as raw:
            assert await raw.execute_fetchall("select * from t") == [("{}", "2024-02-29", 1)]
        with sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES) as other:
            other.execute("create table t (j json, d date, b boolean)")
            other.execute("insert into t values ('{}', '2024-02-29', 1)")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of the converter of a date
                row = other.execute("select * from t").fetchone()
        other.close()
        assert row == ("{}", dt.date(2024, 2, 29), 1)


async def test_sqlite_converters_of_the_program_are_used_on_request() -> None:
    import sqlite3

    sqlite3.register_converter("point", lambda data: ("point", data))
    sqlite3.register_converter("json", lambda data: ("mine", data))
    options = {"connect_args": {"detect_types": sqlite3.PARSE_DECLTYPES}}
    try:
        async with cenote.Database("sqlite:///:memory:", **options) as db:
            await db.execute("create table t (j json, p point)")
            await db.execute("insert into t values (?, ?)", [{}, "1,2"])
            assert await db.fetch_one("select * from t") == (("mine", b"{}"), ("point", b"1,2"))
        async with cenote.Database("sqlite:///:memory:") as db:
            await db.execute("create table t (j json)")
            await db.execute("insert into t values (?)", [{}])
            assert await db.fetch_val("select * from t") == {}
    finally:
        for name in ("POINT", "JSON"):
            sqlite3.converters.pop(name, None)


# -- MySQL ---------------------------------------------------------------------------------------


async def test_mysql_keeps_other_numbers_of_a_bool(mysql: Backend) -> None:
    async with mysql.database() as db, mysql.table(db, "a tinyint(1), b tinyint(4)") as table:
        await db.execute_many(f"insert into {table} values (?, ?)", [[1, 1], [0, 0], [7, 7]])
        found = [tuple(row) for row in await db.fetch_all(f"select * from {table}")]
        assert [tuple(map(repr, row)) for row in found] == [
            ("True", "1"),
            ("False", "0"),
            ("7", "7"),
        ]


async def test_mysql_binary_stays_binary(mysql: Backend) -> None:
    async with mysql.database() as db, mysql.table(db, "a binary(16), b char(36)") as table:
        number = uuid4()
        await db.execute(f"insert into {table} values (?, ?)", [number.bytes, number])
        assert await db.fetch_one(f"select * from {table}") == (number.bytes, str(number))


@pytest.mark.parametrize("zone", ["+00:00", "+05:30", "-08:00", "SYSTEM"])
async def test_mysql_timestamps_are_moments_in_every_session(mysql: Backend, zone: str) -> None:
    """The clock of the session changes what the server sends and stores, and not the moment."""
    moment = dt.datetime(2024, 2, 29, 23, 30, 0, 7, PARIS)
    columns = "id int, a timestamp(6) null, b datetime(6)"
    async with mysql.database(max_size=2) as db, mysql.table(db, columns) as table:
        insert = f"insert into {table} values (?, ?, ?)"
        await db.execute(insert, [1, moment, moment])
        async with db.transaction():
            await db.execute(f"set time_zone = '{zone}'")
            await db.execute(insert, [2, moment, None])
            await db.execute_many(insert, [[3, moment, None], [4, moment, None]])
            equal = f"select count(*) from {table} where a = ?"
            assert await db.fetch_val(equal, [moment]) == 4
            for way, values in (await all_ways_out_here(db, f"select a from {table}")).items():
                assert values == [moment] * 4, way
                assert {value.tzinfo for value in values} == {dt.UTC}, way
        found = await db.fetch_all(f"select a, b from {table} where id = 1")
        assert found == [(moment, moment.astimezone(dt.UTC).replace(tzinfo=None))]


async def all_ways_out_here(db: Any, sql: str) -> dict[str, list[Any]]:
    """The first column of the rows, by the verbs, in the transaction that is open."""
    async with await db.prepare(f"{sql} limit ?") as statement:
        found = {
            "fetch_all": await db.fetch_all(sql),
            "iterate": [row async for row in db.iterate(sql)],
            "prepared": await statement.fetch_all([100]),
        }
    return {way: [row[0] for row in rows] for way, rows in found.items()}


async def test_mysql_sessions_in_an_unknown_zone_take_no_moments(mysql: Backend) -> None:
    moment = dt.datetime(2024, 2, 29, tzinfo=dt.UTC)
    async with mysql.database(max_size=1) as db, mysql.table(db, "a timestamp(6)") as table:
        await db.execute(f"insert into {table} values (?)", [moment])
        [connection] = db._loop_databases[asyncio.get_running_loop()].connections
        connection.raw.variables["time_zone"] = "Europe/Paris"  # a server may have no such zone
        with pytest.raises(ValueError, match=r"parameter 1 is .* 'Europe/Paris', .*on_connect"):
            await db.fetch_val("select ?", [moment])
        assert await db.fetch_val(f"select a from {table}") == moment.replace(tzinfo=None)


async def test_mysql_refuses_what_time_cannot_hold(mysql: Backend) -> None:
    longest = dt.timedelta(hours=838, minutes=59, seconds=59)
    async with mysql.database() as db, mysql.table(db, "a time(6)") as table:
        insert = f"insert into {table} values (?)"
        for value in (longest + dt.timedelta(seconds=1), -dt.timedelta(days=35)):
            with pytest.raises(ValueError, match=r"parameter 1 is a timedelta of .* 838:59:59"):
                await db.execute(insert, [value])
            with pytest.raises(ValueError, match="parameter 1 is a timedelta of"):
                await db.execute_many(insert, [[longest], [value]])
        await db.execute_many(insert, [[longest], [-longest]])
        found = await db.fetch_all(f"select a from {table} order by a")
        assert found == [(-longest,), (longest,)]


async def test_mysql_refuses_a_time_with_a_zone(mysql: Backend) -> None:
    async with mysql.database() as db:
        with pytest.raises(ValueError, match="parameter 1 is a time with a time zone"):
            await db.fetch_val("select ?", [dt.time(1, 2, tzinfo=dt.UTC)])
