"""A statement is run once: a second time only if its plan was refused before it began."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import outcome, with_postgresql

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once, with_postgresql]

STATES = ["42883", "42804", "26000", "0A000", "42P01", "P0001"]


async def iterated(db: Any, text: str, parameters: Any) -> list[Any]:
    return [row async for row in db.iterate(text, parameters)]


async def by_a_statement(db: Any, text: str, parameters: Any) -> Any:
    async with await db.prepare(text) as statement:
        return await statement.fetch_all(parameters)


async def by_a_statement_many(db: Any, text: str, parameters: Any) -> Any:
    async with await db.prepare(text) as statement:
        return await statement.execute_many([parameters])


WAYS: dict[str, Callable[[Any, str, Any], Awaitable[Any]]] = {
    "execute": lambda db, text, parameters: db.execute(text, parameters),
    "fetch_all": lambda db, text, parameters: db.fetch_all(text, parameters),
    "fetch_one": lambda db, text, parameters: db.fetch_one(text, parameters),
    "fetch_val": lambda db, text, parameters: db.fetch_val(text, parameters),
    "iterate": iterated,
    "statement": by_a_statement,
    "execute_many": lambda db, text, parameters: db.execute_many(text, [parameters]),
    "statement_many": by_a_statement_many,
}
MANY = ("execute_many", "statement_many")

FUNCTIONS = """
create sequence {s};
create function {s}_fail(state text) returns int language plpgsql as $$
begin
    perform nextval('{s}');
    if state <> '' then raise exception 'mine' using errcode = state; end if;
    return 1;
end $$;
create procedure {s}_call(state text) language plpgsql as $$
begin
    perform nextval('{s}');
    commit;
    if state <> '' then raise exception 'mine' using errcode = state; end if;
end $$;
"""


class Counted:
    """How often something was run: what a sequence has given is never undone."""

    def __init__(self, db: Any, name: str) -> None:
        self.db = db
        self.name = name
        self.seen = 0

    async def more(self) -> int:
        """Since it was last asked."""
        number = await self.db.fetch_val(
            f"select case when is_called then last_value else 0 end from {self.name}"
        )
        more, self.seen = number - self.seen, number
        return int(more)


@contextlib.asynccontextmanager
async def counting(backend: Backend) -> AsyncIterator[Counted]:
    async with backend.database(max_size=1) as db:
        name = f"s_{uuid4().hex[:12]}"
        await db.execute(FUNCTIONS.format(s=name))
        try:
            yield Counted(db, name)
        finally:
            await db.execute(
                f"drop function {name}_fail; drop procedure {name}_call; drop sequence {name}"
            )


def is_alone(error: BaseException) -> bool:
    """No other error stands before it in the traceback."""
    context = error.__context__
    return context is None or error.__suppress_context__


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_a_function_that_raises(backend: Backend, way: str, pinned: bool) -> None:
    """With the codes of a plan that went stale, the first time and when it is prepared already."""
    run = WAYS[way]
    async with counting(backend) as counted, backend.database(max_size=2) as db:
        kept = f"select {counted.name}_fail(?)"
        if pinned:
            await db.execute("set application_name = 'mine'")
        for state in STATES:
            for text in (kept, f"{kept} /* {state} */"):
                error = await outcome(run(db, text, [state]))
                assert getattr(error, "sqlstate", None) == state
                assert is_alone(error)
                assert await counted.more() == 1
            await run(db, kept, [""])
            assert await counted.more() == 1


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_a_procedure_that_commits_and_raises(
    backend: Backend, way: str, pinned: bool
) -> None:
    run = WAYS[way]
    async with counting(backend) as counted, backend.database(max_size=2) as db:
        text = f"call {counted.name}_call(?)"
        if pinned:
            await db.execute("set application_name = 'mine'")
        for state in STATES * 2:
            error = await outcome(run(db, text, [state]))
            if way not in MANY:  # where COMMIT is refused
                assert getattr(error, "sqlstate", None) == state
            assert is_alone(error)
            assert await counted.more() == 1


@pytest.mark.parametrize("way", ["execute", "fetch_all", "fetch_one", "fetch_val", "iterate"])
@pytest.mark.parametrize(
    "text",
    [
        "do $$ begin perform nextval('{s}'); commit; perform nosuch(); end $$",
        "do $$ begin perform nextval('{s}'); commit; raise 'x' using errcode = '42804'; end $$",
        "do $$ begin perform nextval('{s}'); commit; execute 'execute nosuch'; end $$",
        "call {s}_call('42804')",
    ],
)
async def test_statements_without_parameters_run_once(
    backend: Backend, way: str, text: str
) -> None:
    async with counting(backend) as counted, backend.database(max_size=2) as db:
        for _ in range(3):
            error = await outcome(WAYS[way](db, text.format(s=counted.name), None))
            assert error.sqlstate in ("42883", "42804", "26000")
            assert is_alone(error)
            assert await counted.more() == 1
            await db.release()


async def test_several_statements_in_one_text_run_once(backend: Backend) -> None:
    async with counting(backend) as counted, backend.database(max_size=2) as db:
        for end in ("select nosuch()", "execute nosuch", f"select {counted.name}_fail('42804')"):
            text = f"begin; select nextval('{counted.name}'); commit; {end}"
            for _ in range(2):
                error = await outcome(db.execute(text))
                assert error.sqlstate in ("42883", "42804", "26000")
                assert is_alone(error)
                assert await counted.more() == 1 + end.endswith("('42804')")
                await db.release()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "iterate"])
async def test_a_plan_that_is_refused_inside(backend: Backend, way: str) -> None:
    """Not that of the statement, which has begun, but one of a function that it calls."""
    async with (
        counting(backend) as counted,
        backend.database(max_size=1) as db,
        backend.table(db) as table,
    ):
        name = f"{counted.name}_inner"
        await db.execute(
            f"create function {name}(x int) returns int language plpgsql as $$ "
            f"begin perform nextval('{counted.name}'); execute 'execute p'; return 1; end $$"
        )
        try:
            await db.execute(f"prepare p as select * from {table}")
            await WAYS[way](db, f"select {name}(?)", [1])
            assert await counted.more() == 1
            await db.execute(f"alter table {table} add column more int")
            error = await outcome(WAYS[way](db, f"select {name}(?)", [1]))
            assert error.sqlstate == "0A000"
            assert await counted.more() == 1
        finally:
            await db.execute(f"drop function {name}")


async def test_an_error_of_the_server_itself(backend: Backend) -> None:
    """A function in C that says undefined_function, without any context."""
    async with counting(backend) as counted, backend.database(max_size=1) as db:
        text = f"select nextval('{counted.name}'), has_function_privilege(?, 'execute')"
        for function in ("now()", "now()", "nosuch()", "nosuch()"):
            found = await outcome(db.fetch_one(text, [function]))
            assert function == "now()" or found.sqlstate == "42883"
            assert await counted.more() == 1


async def test_a_plan_that_is_refused(backend: Backend) -> None:
    """That is run again, and counts once."""
    async with (
        counting(backend) as counted,
        backend.database(max_size=1) as db,
        backend.table(db) as table,
    ):
        await db.execute(f"insert into {table} values (1, '5')")
        texts = {
            way: f"select t.*, nextval('{counted.name}') from {table} t where name = ? /* {way} */"
            for way in WAYS
        }
        values: list[Any] = ["5", "5", 5, 5, "5", "5"]
        alter = f"alter table {table} alter column name type {{}} using name::{{}}"
        async with backend.database(max_size=1) as other:
            for at, value in enumerate(values):
                if at in (2, 4):
                    await other.execute(alter.format(*[["int", "text"][at // 4]] * 2))
                for way, text in texts.items():
                    await WAYS[way](db, text, [value])
                    assert await counted.more() == 1, way
        assert db.pool.stats().created <= 2


async def test_of_a_series_only_the_first_element(backend: Backend) -> None:
    """asyncpg looks at an argument when it is its turn; those before it have been run by then."""
    async with (
        counting(backend) as counted,
        backend.database(max_size=1) as db,
        backend.table(db) as table,
    ):
        insert = f"insert into {table} values (nextval('{counted.name}')::int + ?, ?)"
        await db.execute_many(insert, [[0, "a"]])
        assert await counted.more() == 1
        error = await outcome(db.execute_many(insert, [[0, "b"], [0, None], [0, object()]]))
        assert isinstance(error, Exception)
        assert await counted.more() <= 2
        assert await db.fetch_val(f"select count(*) from {table}") == 1


@pytest.mark.parametrize("text", ["select nosuch(1)", "select nosuch(?)", "execute nosuch"])
async def test_what_was_not_kept_is_sent_once(backend: Backend, text: str) -> None:
    """With as many round trips as the bare driver makes."""
    parameters = [1] if "?" in text else None
    bare = {
        "asyncpg": lambda raw: raw.fetch(text.replace("?", "$1"), *parameters or ()),
        "psycopg": lambda raw: raw.execute(text.replace("?", "%s"), parameters),
    }[backend.name]
    with FaultProxy(backend.server.host, backend.server.port) as proxy:
        url = backend.url_through(proxy.host, proxy.port)
        async with backend.database(url, max_size=1) as db:
            async with db.connection() as raw:
                before = proxy.round_trips
                assert (await outcome(bare(raw))).sqlstate in ("42883", "26000")
                expected = proxy.round_trips - before
            for name in ("execute", "fetch_all", "fetch_one", "fetch_val") * 2:
                await db.release()
                before = proxy.round_trips
                error = await outcome(getattr(db, name)(text, parameters))
                assert error.sqlstate in ("42883", "26000")
                assert is_alone(error)
                assert proxy.round_trips - before <= expected


async def test_the_refused_one_leaves_no_trace(backend: Backend) -> None:
    """An error of the second time says nothing of the first."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        select = f"select id from {table} where name = ?"
        await db.fetch_all(select, ["a"])
        async with backend.database(max_size=1) as other:
            await other.execute(f"alter table {table} drop column name")
            await other.execute(f"alter table {table} add column name point")
        error = await outcome(db.fetch_all(select, ["a"]))
        assert isinstance(error, Exception)
        assert is_alone(error)
        assert "cached" not in str(error)


async def test_a_stale_type_in_transactions_only(backend: Backend) -> None:
    """The transaction fails, and the next one works: its plan was forgotten."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        insert = f"insert into {table} values (?, ?)"

        async def write(id_: int, name: Any) -> Any:
            async with db.transaction():
                await db.execute(insert, [id_, name])

        await write(1, "5")
        async with backend.database(max_size=1) as other:
            await other.execute(f"alter table {table} alter column name type int using name::int")
        six, seven = (6, 7) if backend.name == "asyncpg" else ("6", "7")
        assert isinstance(await outcome(write(2, six)), Exception)
        await write(3, seven)
        assert await db.fetch_val(f"select max(name) from {table}") == 7


async def test_a_table_that_a_transaction_itself_changes(backend: Backend) -> None:
    """There nothing can be run again: what was kept is forgotten before."""
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute(f"insert into {table} values (1, 'a')")
        select, one = f"select * from {table}", f"select * from {table} where id = ?"
        async with db.transaction():
            for at in range(3):
                for _ in range(2):
                    assert len(await db.fetch_one(select)) == 2 + at
                    assert len(await db.fetch_one(one, [1])) == 2 + at
                await db.execute(f"alter table {table} add column c{at} int")


@pytest.mark.parametrize("end", ["block", "raw", "savepoint", "aborted"])
async def test_a_change_that_is_rolled_back(backend: Backend, end: str) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        select = f"select * from {table} where id = ?"

        async def change() -> None:
            assert len((await db.fetch_all(select, [1]))[0]) == 2
            await db.execute(f"alter table {table} add column more int")
            assert len((await db.fetch_all(select, [1]))[0]) == 3

        await db.execute(f"insert into {table} values (1, 'a')")
        for _ in range(2):
            if end == "raw":
                await db.execute("begin")
                await change()
                await db.execute("rollback")
            elif end == "aborted":
                await db.begin()
                await change()
                await outcome(db.execute("select nosuch()"))
                await outcome(db.commit())
            else:
                async with contextlib.AsyncExitStack() as stack:
                    if end == "savepoint":
                        await stack.enter_async_context(db.transaction())
                    with contextlib.suppress(ZeroDivisionError):
                        async with db.transaction():
                            await change()
                            raise ZeroDivisionError
                    if end == "savepoint":
                        assert len((await db.fetch_all(select, [1]))[0]) == 2
            async with db.transaction():
                assert len((await db.fetch_all(select, [1]))[0]) == 2


async def test_tasks_that_meet_a_refused_plan_together(backend: Backend) -> None:
    async with (
        counting(backend) as counted,
        backend.database(max_size=3) as db,
        backend.table(db) as table,
    ):
        await db.execute(f"insert into {table} values (1, 'a')")
        text = f"select t.*, nextval('{counted.name}') from {table} t where id = ?"
        async with backend.database(max_size=1) as other:
            for column in ("x", "y", "z"):
                await asyncio.gather(*(db.fetch_all(text, [1]) for _ in range(20)))
                assert await counted.more() == 20
                await other.execute(f"alter table {table} add column {column} int")
