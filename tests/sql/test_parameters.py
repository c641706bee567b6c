"""Parameters on real databases: what is refused, what is said, and the drivers' own styles."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.held import ids

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

Way = Callable[[Any, str, Any], Awaitable[Any]]


async def by_transaction(db: Any, sql: str, parameters: Any) -> Any:
    async with db.transaction() as tx:
        return await tx.fetch_all(sql, parameters)


async def inside(db: Any, sql: str, parameters: Any) -> Any:
    async with db.transaction():
        return await db.fetch_all(sql, parameters)


async def by_stream(db: Any, sql: str, parameters: Any) -> Any:
    return [row async for row in db.iterate(sql, parameters)]


WAYS: dict[str, Way] = {
    "execute": lambda db, sql, parameters: db.execute(sql, parameters),
    "fetch_all": lambda db, sql, parameters: db.fetch_all(sql, parameters),
    "fetch_one": lambda db, sql, parameters: db.fetch_one(sql, parameters),
    "fetch_val": lambda db, sql, parameters: db.fetch_val(sql, parameters),
    "iterate": by_stream,
    "transaction": by_transaction,
    "inside": inside,
}
OWN = {"sqlite": "?1", "asyncpg": "$1", "psycopg": "%s", "mysql": "%s"}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


@ways
@pytest.mark.parametrize(
    ("text", "count"),
    [("select ?", "1 placeholder (?)"), ("select :a, :b, :a", "2 placeholders (:a, :b)")],
)
async def test_an_error_for_want_of_parameters_counts_both(
    backend: Backend, way: Way, text: str, count: str
) -> None:
    async with backend.database() as db:
        with pytest.raises(Exception) as caught:
            await way(db, text, None)
        assert type(caught.value).__module__.split(".")[0] in (
            "sqlite3",
            "asyncpg",
            "psycopg",
            "asyncmy",
        )
        assert notes(caught.value) == [f"the statement has {count} and no parameters were given"]


async def test_the_drivers_own_placeholders_are_counted_too(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.raises(Exception) as caught:
            await db.execute(f"select {OWN[backend.name]}")
        count = f"1 placeholder ({OWN[backend.name]})"
        assert notes(caught.value) == [f"the statement has {count} and no parameters were given"]


async def test_other_errors_are_left_alone(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (1, 'what? :a %s')"
        await db.execute(insert)
        for text, parameters in ((insert, None), (f"insert into {table} values (?, 'a')", [1])):
            with pytest.raises(Exception) as caught:
                await db.execute(text, parameters)
            assert type(caught.value).__name__ == backend.integrity_error
            assert notes(caught.value) == []


@pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)
async def test_a_text_without_parameters_is_sent_as_it_is(backend: Backend) -> None:
    async with backend.database() as db:
        text = """select '{"k": 1}'::jsonb ? 'k', '100%'"""
        assert tuple(await db.fetch_one(text)) == (True, "100%")


@ways
async def test_parameters_without_placeholders_are_refused(backend: Backend, way: Way) -> None:
    own = OWN[backend.name]
    async with backend.database() as db:
        with pytest.raises(ValueError, match=r"0 placeholders.*1 parameter was given") as caught:
            await way(db, "select 1", [1])
        assert str(caught.value).endswith(f"and the driver's own {own}")
        with pytest.raises(ValueError, match="left over, not in the statement: 'a'"):
            await way(db, "select 1", {"a": 1})
        foreign = "select $1" if own != "$1" and backend.name != "sqlite" else "select %s"
        if backend.name == "mysql":
            foreign = "select 2"
        with pytest.raises(ValueError, match="known are \\? with a list"):
            await way(db, foreign, [1])
        assert await db.fetch_val("select 1", []) == 1
        assert await db.fetch_val("select 1", {}) == 1


async def test_they_are_refused_before_a_connection_is_taken(backend: Backend) -> None:
    async with backend.database() as db:
        for text, parameters in (
            ("select 1", [1]),
            ("select ?", [1, 2]),
            ("select :a", {"b": 1}),
            ("select ?", []),
        ):
            with pytest.raises(ValueError, match=r"placeholder|parameters"):
                await db.execute(text, parameters)
            with pytest.raises(ValueError, match=r"placeholder|parameters"):
                await db.execute_many(text, [parameters])
        assert db.pool.stats().created == 0


@pytest.mark.parametrize("backend", ["psycopg", "mysql"], indirect=True)
async def test_a_mixture_with_percent_signs_is_named(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.raises(ValueError, match="mixes \\? with %s"):
            await db.fetch_one("select %s, ?", [1, 2])
        with pytest.raises(ValueError, match="mixes :name with %\\(a\\)s"):
            await db.fetch_one("select %(a)s, :b", {"a": 1, "b": 2})
        assert tuple(await db.fetch_one("select '%s', ?", ["a"])) == ("%s", "a")


# -- prepare -------------------------------------------------------------------------------------

PREPARED: dict[str, list[tuple[str, Any]]] = {
    "sqlite": [
        ("select ?1 + ?2 + ?1", [2, 3]),
        ("select @a + $b + @a", {"a": 2, "b": 3}),
    ],
    "asyncpg": [("select $1::int + $2::int + $1::int", [2, 3])],
    "psycopg": [
        ("select %s::int + %s::int", [4, 3]),
        ("select %(a)s::int + %(b)s::int + %(a)s::int", {"a": 2, "b": 3}),
    ],
    "mysql": [
        ("select %s + %s", [4, 3]),
        ("select %(a)s + %(b)s + %(a)s", {"a": 2, "b": 3}),
    ],
}


async def test_prepare_takes_the_drivers_own_placeholders(backend: Backend) -> None:
    async with backend.database() as db:
        for text, parameters in PREPARED[backend.name]:
            assert await db.fetch_val(text, parameters) == 7
            async with await db.prepare(text) as statement:
                assert await statement.fetch_val(parameters) == 7
                assert [row[0] for row in await statement.fetch_all(parameters)] == [7]
                assert [row[0] async for row in statement.iterate(parameters)] == [7]


async def test_a_prepared_statement_counts_its_parameters(backend: Backend) -> None:
    cast = "::int" if backend.name in ("asyncpg", "psycopg") else ""
    async with backend.database() as db:
        async with await db.prepare(f"select ?{cast} + 1") as statement:
            for wrong in (None, [], [1, 2]):
                with pytest.raises(ValueError, match="1 placeholder"):
                    await statement.fetch_val(wrong)
                with pytest.raises(ValueError, match="1 placeholder"):
                    statement.iterate(wrong)
            assert await statement.fetch_val([1]) == 2
        async with await db.prepare(f"select :a{cast} + 1") as statement:
            with pytest.raises(ValueError, match="missing: 'a'"):
                await statement.fetch_val()
            assert await statement.fetch_val({"a": 1}) == 2
        async with await db.prepare("select 1") as statement:
            assert await statement.fetch_val() == 1


@pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)
async def test_prepare_reads_every_question_mark_as_a_placeholder(backend: Backend) -> None:
    async with backend.database() as db:
        with pytest.raises(Exception, match="syntax") as caught:
            async with await db.prepare("""select '{"k": 1}'::jsonb ? 'k'""") as statement:
                await statement.fetch_val(["k"])
        assert cenote.sqlstate(caught.value) == "42601"
        assert notes(caught.value) == [
            "every ? of a prepared statement is a placeholder: write ?? for the operator"
        ]
        async with await db.prepare("""select '{"k": 1}'::jsonb ?? ?""") as statement:
            assert await statement.fetch_val(["k"]) is True
        async with await db.prepare("""select '{"k": 1}'::jsonb ?? 'k'""") as statement:
            assert await statement.fetch_val() is True
            assert [row[0] async for row in statement.iterate()] == [True]


# -- execute_many --------------------------------------------------------------------------------

ROWS = [[1, "a"], [2, "b"], [2, "c"], [3, "d"]]  # the third one is refused


def row_notes(error: BaseException) -> list[str]:
    return [each for each in notes(error) if each.startswith("execute_many()")]


EXACT = "execute_many(): row 2 (counted from 0) failed; none is kept"
AMONG = (
    "execute_many(): one of the rows 0 to 3 (counted from 0) failed, and the server does not say "
    "which; none is kept"
)


async def says_which(backend: Backend, db: Any) -> bool:
    """Whether the server knows which of several rows in one message it has refused."""
    if backend.name != "mysql":
        return True
    version = str(await db.fetch_val("select version()"))
    major, minor = version.split(".")[:2]
    return "MariaDB" in version and (int(major), int(minor)) >= (10, 7)


async def many(db: Any, sql: str, rows: Any) -> None:
    await db.execute_many(sql, rows)


async def many_of_transaction(db: Any, sql: str, rows: Any) -> None:
    async with db.transaction() as tx:
        await tx.execute_many(sql, rows)


async def many_inside(db: Any, sql: str, rows: Any) -> None:
    async with db.transaction():
        await db.execute_many(sql, rows)


async def many_prepared(db: Any, sql: str, rows: Any) -> None:
    async with await db.prepare(sql) as statement:
        await statement.execute_many(rows)


@pytest.mark.parametrize("way", [many, many_of_transaction, many_inside, many_prepared])
async def test_execute_many_names_the_row_that_failed(backend: Backend, way: Any) -> None:
    async with backend.database() as db, backend.table(db) as table:
        with pytest.raises(Exception) as caught:
            await way(db, f"insert into {table} values (?, ?)", ROWS)
        assert type(caught.value).__name__ == backend.integrity_error
        known = await says_which(backend, db)
        assert row_notes(caught.value) == [EXACT if known else AMONG]
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        await way(db, f"insert into {table} values (?, ?)", ROWS[:2])
        with pytest.raises(Exception) as caught:
            await way(db, f"insert into {table} values (:id, :name)", [{"id": 2, "name": "z"}])
        assert row_notes(caught.value) == [EXACT.replace("row 2", "row 0")]


async def test_a_transaction_goes_on_after_rows_that_failed(backend: Backend) -> None:
    """`execute_many()` undoes what it did, and nothing else."""
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        async with db.transaction() as tx:
            await tx.execute(f"insert into {table} values (9, 'before')")
            with pytest.raises(Exception) as caught:
                await tx.execute_many(insert, ROWS)
            assert type(caught.value).__name__ == backend.integrity_error
            async with await tx.prepare(insert) as statement:
                with pytest.raises(Exception) as caught:
                    await statement.execute_many(ROWS)
                assert type(caught.value).__name__ == backend.integrity_error
            await tx.execute_many(insert, ROWS[:2])
        rows = await db.fetch_all(f"select id from {table} order by id")
        assert [row[0] for row in rows] == [1, 2, 9]


@pytest.mark.parametrize("failing", [0, 1, 12_345, 29_999])
async def test_one_row_of_very_many_is_named(backend: Backend, failing: int) -> None:
    """In whichever of the messages it is sent, and however many answers come before its own."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        if not await says_which(backend, db):
            pytest.skip("this server does not say which row it has refused")
        await db.execute(f"insert into {table} values (-1, 'there')")
        rows = [[number, "x" * 40] for number in range(30_000)]
        rows[failing][0] = -1
        with pytest.raises(Exception) as caught:
            await db.execute_many(f"insert into {table} values (?, ?)", rows)
        assert row_notes(caught.value) == [EXACT.replace("row 2", f"row {failing}")]
        assert await db.fetch_val(f"select count(*) from {table}") == 1
        await db.execute_many(f"insert into {table} values (?, ?)", rows[:failing])
        assert await db.fetch_val(f"select count(*) from {table}") == failing + 1
        assert db.pool.stats().created == 1


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_rows_that_return_much_are_counted(backend: Backend) -> None:
    """The answers of asyncpg are counted in pieces, and not kept."""
    async with backend.database() as db, backend.table(db, "id int, name text") as table:
        text = f"insert into {table} values (?, ?) returning repeat(name, 300), 1 / (700 - id)"
        with pytest.raises(Exception, match="division by zero") as caught:
            await db.execute_many(text, [[number, "x" * 20] for number in range(2_000)])
        assert row_notes(caught.value) == [EXACT.replace("row 2", "row 700")]
        await db.execute_many(text, [[number, "x" * 20] for number in range(700)])


@pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)
async def test_what_fails_after_all_rows_names_none_of_them(backend: Backend) -> None:
    columns = "id int unique deferrable initially deferred"
    async with backend.database() as db, backend.table(db, columns) as table:
        with pytest.raises(Exception, match="duplicate key") as caught:
            await db.execute_many(f"insert into {table} values (?)", [[1], [2], [1]])
        assert all("one of the rows 0 to 2" in each for each in row_notes(caught.value))


@pytest.mark.parametrize("backend", ["mysql"], indirect=True)
async def test_a_change_in_one_message_names_no_wrong_row(backend: Backend) -> None:
    """MariaDB would count the rows of the table."""
    async with backend.database() as db, backend.table(db) as table:
        await db.execute_many(f"insert into {table} values (?, ?)", [[i, "x"] for i in range(9)])
        rows = [[100, 1], [101, 2], [5, 3], [102, 4]]
        with pytest.raises(Exception, match="Duplicate entry") as caught:
            await db.execute_many(f"update {table} set id = ? where id = ?", rows)
        (note,) = row_notes(caught.value)
        assert note == EXACT or "one of the rows 0 to 3" in note


@pytest.mark.parametrize("row", [[2, object()], [2**65, "b"]], ids=["object", "large int"])
async def test_a_row_that_cannot_be_sent_is_named(backend: Backend, row: list[Any]) -> None:
    async with backend.database() as db, backend.table(db) as table:
        for insert in (f"insert into {table} values (?, ?)", f"insert into {table} select ?, ?"):
            with pytest.raises(Exception) as caught:
                await db.execute_many(insert, [[1, "a"], row])
            assert row_notes(caught.value) == [EXACT.replace("row 2", "row 1")], insert
        assert await db.fetch_val(f"select count(*) from {table}") == 0


@pytest.mark.parametrize("backend", ["asyncpg", "psycopg", "mysql"], indirect=True)
async def test_a_value_that_the_server_refuses_names_its_row(backend: Backend) -> None:
    """MySQL itself gives it an SQLSTATE that says nothing."""
    async with backend.database() as db, backend.table(db) as table:
        with pytest.raises(Exception) as caught:
            await db.execute_many(f"insert into {table} values (?, ?)", [[1, "a"], ["x", "b"]])
        assert row_notes(caught.value) == [EXACT.replace("row 2", "row 1")]


async def test_a_statement_that_is_wrong_names_no_row(backend: Backend) -> None:
    async with backend.database() as db:
        for text in ("insert into nosuch values (?, ?)", "selct ?, ?"):
            with pytest.raises(Exception) as caught:
                await db.execute_many(text, ROWS)
            assert row_notes(caught.value) == []


@pytest.mark.parametrize("backend", ["mysql"], indirect=True)
async def test_rows_that_run_one_by_one_are_named(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        text = f"insert into {table} select ?, ?"
        with pytest.raises(Exception) as caught:
            await db.execute_many(text, ROWS)
        assert row_notes(caught.value) == [EXACT]


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_what_fails_at_the_end_names_no_row(backend: Backend) -> None:
    async with backend.database(f"{backend.url}?foreign_keys=on") as db:
        await db.execute("create table a (id integer primary key)")
        await db.execute(
            "create table b (a integer references a (id) deferrable initially deferred)"
        )
        with pytest.raises(Exception, match="FOREIGN KEY") as caught:
            await db.execute_many("insert into b values (?)", [[1], [2]])
        assert row_notes(caught.value) == []


@pytest.mark.parametrize("way", [many, many_of_transaction, many_inside, many_prepared])
async def test_a_row_that_does_not_fit_is_named(backend: Backend, way: Any) -> None:
    async with backend.database() as db, backend.table(db) as table:
        with pytest.raises(ValueError, match="2 placeholders") as caught:
            await way(db, f"insert into {table} values (?, ?)", [[1, "a"], [2, "b"], [3]])
        assert row_notes(caught.value) == [
            "execute_many(): row 2 (counted from 0) does not fit; nothing was sent"
        ]
        assert await db.fetch_val(f"select count(*) from {table}") == 0


@pytest.mark.parametrize("way", [many, many_of_transaction, many_inside, many_prepared])
async def test_rows_of_two_kinds_name_the_first_other_one(backend: Backend, way: Any) -> None:
    async with backend.database() as db, backend.table(db) as table:
        for other in ({"id": 2, "name": "b"}, None, "ab", 5):
            with pytest.raises((TypeError, ValueError)) as caught:
                await way(db, f"insert into {table} values (?, ?)", [[1, "a"], other])
            assert row_notes(caught.value) == [
                "execute_many(): row 1 (counted from 0) does not fit; nothing was sent"
            ]
        with pytest.raises(ValueError, match="2 placeholders") as caught:
            await way(db, f"insert into {table} values (?, ?)", [None])
        assert len(row_notes(caught.value)) == 1
        assert await db.fetch_val(f"select count(*) from {table}") == 0


def rows_lazily(read: list[int]) -> Iterator[list[Any]]:
    for number in range(3):
        read.append(number)
        yield [number, "y"]


@pytest.mark.parametrize("way", [many, many_of_transaction, many_inside, many_prepared])
async def test_the_rows_may_come_from_any_iterable(backend: Backend, way: Any) -> None:
    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        read: list[int] = []
        await way(db, insert, rows_lazily(read))
        assert read == [0, 1, 2]
        await way(db, insert, {(3, "y"): "a dict of them", (4, "y"): ""}.keys())
        await way(db, insert, zip(range(5, 7), "yy", strict=True))
        await way(db, insert, iter([]))
        assert await ids(db, table) == [*range(7)]


@pytest.mark.parametrize("way", [many, many_of_transaction, many_inside, many_prepared])
async def test_an_iterable_that_raises_inserts_nothing(backend: Backend, way: Any) -> None:
    def rows() -> Iterator[list[Any]]:
        yield from rows_lazily([])
        raise KeyError("in the middle")

    async with backend.database() as db, backend.table(db) as table:
        with pytest.raises(KeyError, match="in the middle") as caught:
            await way(db, f"insert into {table} values (?, ?)", rows())
        assert row_notes(caught.value) == []
        assert await ids(db, table) == []


@pytest.mark.parametrize("way", [many, many_of_transaction, many_inside, many_prepared])
async def test_what_is_no_iterable_of_rows_is_refused(backend: Backend, way: Any) -> None:
    async def asynchronously() -> AsyncIterator[list[Any]]:
        yield [1, "a"]

    async with backend.database() as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"
        for rows in (7, None, "ab", {"id": 1}):
            with pytest.raises(TypeError, match=r"must be an iterable of parameters, one for each"):
                await way(db, insert, rows)
        with pytest.raises(
            TypeError, match=r"not async_generator: collect them first, \[row async"
        ):
            await way(db, insert, asynchronously())
