"""`db.connection()`: the driver's own connection, for as long as its block and no longer."""

import asyncio
import copy
import gc
import inspect
import pickle
import sqlite3
import weakref
from collections.abc import Awaitable, Callable
from contextlib import closing
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

import cenote
from tests.support.backends import Backend
from tests.support.kit import start
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

CLASSES = {
    "sqlite": ("cenote.drivers.sqlite", "Connection"),
    "asyncpg": ("asyncpg", "Connection"),
    "psycopg": ("psycopg", "AsyncConnection"),
    "mysql": ("asyncmy", "Connection"),
}
OVER = "the block of connection\\(\\) that gave it is over"


def driver_class(backend: Backend) -> type:
    module, name = CLASSES[backend.name]
    found: type = getattr(import_module(module), name)
    return found


async def ask_sqlite(c: Any) -> Any:
    async with c.execute("select 7") as cursor:
        return (await cursor.fetchone())[0]


async def ask_asyncpg(c: Any) -> Any:
    return await c.fetchval("select 7")


async def ask_psycopg(c: Any) -> Any:
    return (await (await c.execute("select 7")).fetchone())[0]


async def ask_mysql(c: Any) -> Any:
    async with c.cursor() as cursor:
        await cursor.execute("select 7")
        return (await cursor.fetchone())[0]


ASK: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "sqlite": ask_sqlite,
    "asyncpg": ask_asyncpg,
    "psycopg": ask_psycopg,
    "mysql": ask_mysql,
}


# -- inside the block ----------------------------------------------------------------------------


async def test_it_is_the_drivers_connection(backend: Backend) -> None:
    async with backend.database() as db, db.connection() as c:
        raw = c.__wrapped__
        assert db.bound_connection is raw
        assert isinstance(c, driver_class(backend))
        assert isinstance(c, type(raw))
        assert not isinstance(c, cenote.Pool)
        assert c.__class__ is type(raw)
        assert c == raw
        assert raw == c
        assert hash(c) == hash(raw)
        assert {c: 1}[raw] == 1
        assert c != object()
        assert c is not None
        assert set(dir(raw)) <= set(dir(c))
        assert repr(raw) in repr(c)
        assert await ASK[backend.name](c) == 7
        async with db.connection() as again:
            assert again == c
            assert again.__wrapped__ is raw
        assert await ASK[backend.name](c) == 7
        with pytest.raises(cenote.NotAcquiredError):  # each has the guard of its own block
            again.__wrapped__  # noqa: B018


async def test_on_connect_and_bound_connection_have_the_bare_object(backend: Backend) -> None:
    seen: list[Any] = []
    async with backend.database(on_connect=seen.append) as db, db.connection() as c:
        assert seen[0] is c.__wrapped__
        assert type(seen[0]) is c.__class__
        assert type(db.bound_connection) is c.__class__


async def test_attributes_are_read_set_and_deleted_on_the_connection(backend: Backend) -> None:
    name = {"sqlite": "row_factory", "asyncpg": "codecs", "psycopg": "prepare_threshold"}.get(
        backend.name, "mine"
    )
    value: Any = tuple if backend.name == "sqlite" else 5
    async with backend.database() as db, db.connection() as c:
        setattr(c, name, value)
        assert getattr(c, name) is value
        assert getattr(c.__wrapped__, name) is value
        with pytest.raises(AttributeError, match="nosuch"):
            c.nosuch  # noqa: B018
        assert not hasattr(c, "nosuch")
        if backend.name == "mysql":
            del c.mine
            assert not hasattr(c.__wrapped__, "mine")


async def test_methods_look_like_those_of_the_driver(backend: Backend) -> None:
    method = {"sqlite": "commit", "asyncpg": "fetch", "psycopg": "commit", "mysql": "query"}
    name = method[backend.name]
    async with backend.database() as db, db.connection() as c:
        ours, theirs = getattr(c, name), getattr(c.__wrapped__, name)
        assert ours.__name__ == theirs.__name__
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)


async def test_a_method_that_was_replaced_is_the_one_that_runs(backend: Backend) -> None:
    if backend.name == "asyncpg":
        return  # its connections take no new attributes
    async with backend.database() as db, db.connection() as c:
        c.cursor = lambda *_: 42
        assert c.cursor() == 42
        del c.cursor


async def test_a_connection_is_not_copied(backend: Backend) -> None:
    async with backend.database() as db, db.connection() as c:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                attempt(c)


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_what_people_do_with_asyncpg(backend: Backend) -> None:
    import asyncpg

    heard: asyncio.Queue[Any] = asyncio.Queue()
    async with backend.database() as db, db.connection() as c:
        async with c.transaction():
            statement = await c.prepare("select $1::int + 1")
            assert await statement.fetchval(1) == 2
            cursor = await c.cursor("select generate_series(1, 3)")
            assert [row[0] for row in await cursor.fetch(2)] == [1, 2]
            assert [row[0] async for row in c.cursor("select 5")] == [5]
        transaction = asyncpg.transaction.Transaction(c, None, False, False)
        async with transaction:
            await c.execute("create temp table t (id int, name text)")
            await c.copy_records_to_table("t", records=[(1, "a"), (2, "b")])
            await c.executemany("insert into t values ($1, $2)", [(3, "c")])
        assert await c.fetchval("select count(*) from t") == 3
        await c.set_type_codec("json", encoder=str, decoder=len, schema="pg_catalog")
        assert await c.fetchval("""select '[1]'::json""") == 3
        await c.add_listener("news", lambda connection, *_: heard.put_nowait(connection))
        await c.execute("notify news")
        async with asyncio.timeout(WAIT):
            assert await heard.get() == c
        assert c.get_server_version().major > 9
        assert not c.is_closed()
        assert c.get_settings().server_version
        assert await asyncpg.utils._mogrify(c, "select $1", ["a"]) == "select 'a'"


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_what_people_do_with_psycopg(backend: Backend) -> None:
    from psycopg import AsyncClientCursor, AsyncCursor, AsyncRawCursor, sql
    from psycopg.rows import dict_row
    from psycopg.types import TypeInfo
    from psycopg.types.composite import CompositeInfo, register_composite
    from psycopg.types.json import set_json_loads

    async with backend.database() as db, db.connection() as c:
        async with c.transaction() as transaction, c.transaction():
            assert transaction.connection is c
            await c.execute("create temp table t (id int, name text)")
        async with c.cursor(row_factory=dict_row) as cursor:
            assert cursor.connection is c
            await cursor.execute("insert into t values (%s, %s) returning *", (1, "a"))
            assert await cursor.fetchall() == [{"id": 1, "name": "a"}]
            await cursor.executemany("insert into t values (%s, %s)", [(2, "b"), (3, "c")])
            async with cursor.copy("copy t from stdin") as copying:
                await copying.write_row((4, "d"))
            async with cursor.copy("copy t (id) to stdout") as copying:
                assert len([row async for row in copying.rows()]) == 4
            assert [row async for row in cursor.stream("select count(*) as n from t")] == [{"n": 4}]
        async with c.transaction(), c.cursor("named") as named:
            await named.execute("select id from t order by id")
            assert [row[0] async for row in named] == [1, 2, 3, 4]
        async with c.pipeline():
            first = await c.execute("select 1")
            second = await c.execute("select 2")
        assert (await first.fetchone(), await second.fetchone()) == ((1,), (2,))
        assert sql.SQL("select {}").format(sql.Literal("it's")).as_string(c) == "select 'it''s'"
        assert sql.Identifier("A").as_string(c) == '"A"'
        for kind in (AsyncCursor, AsyncClientCursor):
            made = kind(c)
            assert await (await made.execute("select %s + 1", [1])).fetchone() == (2,)
        raw_cursor = await AsyncRawCursor(c).execute("select $1 + 1", [1])
        assert await raw_cursor.fetchone() == (2,)
        assert AsyncClientCursor(c).mogrify("select %s", ["a"]) == "select 'a'"
        info = await TypeInfo.fetch(c, "int4")
        assert info is not None
        info.register(c)
        composite = await CompositeInfo.fetch(c, "t")
        assert composite is not None
        register_composite(composite, c)
        assert await (await c.execute("select t from t where id = 1")).fetchone() == (((1, "a")),)
        set_json_loads(len, c)
        assert await (await c.execute("""select '[1]'::json""")).fetchone() == (3,)
        await c.set_autocommit(False)
        await c.execute("select 1")
        await c.commit()
        assert c.info.dbname == "app"
        assert c.pgconn is c.__wrapped__.pgconn
        assert c.connection is c  # its own, and not the bare one
        await c.execute("listen news")
        await c.execute("notify news, 'hello'")
        await c.commit()
        async for note in c.notifies(timeout=WAIT, stop_after=1):
            assert note.payload == "hello"


@pytest.mark.parametrize("backend", ["mysql"], indirect=True)
async def test_what_people_do_with_asyncmy(backend: Backend) -> None:
    from asyncmy.cursors import DictCursor, SSCursor

    async with backend.database() as db, db.connection() as c:
        async with c.cursor(DictCursor) as cursor:
            assert cursor.connection is c
            await cursor.execute("select %s as a", ["x"])
            assert await cursor.fetchall() == [{"a": "x"}]
            await cursor.execute("create temporary table t (id int)")
            await cursor.executemany("insert into t values (%s)", [(1,), (2,)])
            assert cursor.rowcount == 2
        async with c.cursor(SSCursor) as cursor:
            await cursor.execute("select id from t order by id")
            assert await cursor.fetchall() == [(1,), (2,)]
        statement = await c.prepare("select ? + 1")
        assert (await statement.execute([1])).rows[0][0] == 2
        await statement.close()
        await c.begin()
        await c.query("insert into t values (3)")
        await c.rollback()
        await c.ping(reconnect=False)
        assert c.escape_string("it's") == r"it\'s"
        assert c.get_server_info()
        assert c.get_autocommit()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_what_people_do_with_a_connection_to_sqlite(backend: Backend) -> None:
    from cenote.drivers.sqlite import connect

    async with backend.database() as db, db.connection() as c:
        c.row_factory = sqlite3.Row
        await c.executescript("create table t (id int, name text); insert into t values (1, 'a')")
        async with c.execute("select * from t") as cursor:
            assert cursor.connection is c.sqlite
            assert [dict(row) async for row in cursor] == [{"id": 1, "name": "a"}]
        async with c.cursor() as cursor:
            await cursor.execute("insert into t values (?, ?)", (2, "b"))
            assert cursor.lastrowid == 2
        cursor = await c.executemany("insert into t values (?, ?)", [(3, "c")])
        await cursor.close()
        assert len(await c.execute_fetchall("select * from t")) == 3
        await c.create_function("twice", 1, lambda x: 2 * x)
        assert (await (await c.execute("select twice(4)")).fetchone())[0] == 8
        assert not c.in_transaction
        async with await connect(":memory:") as other:
            await c.backup(other)
            assert len(list(await other.execute_fetchall("select * from t"))) == 3
            await other.execute("delete from t")
            await other.commit()
            await other.backup(c)  # which asks whether it is a connection
        assert len(await c.execute_fetchall("select * from t")) == 0
        assert "BEGIN TRANSACTION;" in [line async for line in c.iterdump()]


async def called(method: Callable[[], Any]) -> Any:
    answer = method()
    return await answer if inspect.isawaitable(answer) else answer


# -- after the block -----------------------------------------------------------------------------


async def test_after_the_block_any_use_raises(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with db.connection() as c:
            method = c.close  # looked up inside, called outside
            waiting = ASK[backend.name](c)
        uses: list[Callable[[], Any]] = [
            lambda: c.__wrapped__,
            lambda: c.nosuch,
            lambda: hasattr(c, "row_factory"),
            lambda: setattr(c, "row_factory", None),
            lambda: delattr(c, "row_factory"),
        ]
        for use in uses:
            with pytest.raises(cenote.NotAcquiredError, match=OVER):
                use()
        with pytest.raises(cenote.NotAcquiredError, match=OVER):
            await ASK[backend.name](c)
        with pytest.raises(cenote.NotAcquiredError, match=OVER):
            await waiting
        with pytest.raises(cenote.NotAcquiredError, match="'close'"):
            await called(method)
        if backend.name != "asyncpg":  # whose connections are no context managers
            with pytest.raises(cenote.NotAcquiredError, match="__aenter__"):
                async with c:
                    pass
        # Debuggers and logs may look at it.
        assert "over" in repr(c)
        assert isinstance(c, driver_class(backend))
        assert c == c
        assert isinstance(hash(c), int)
        assert dir(c)
        assert await db.fetch_val("select 1") == 1


async def test_the_message_names_attribute_database_and_remedy(backend: Backend) -> None:
    async with backend.database(name="shop") as db:
        async with db.connection() as c:
            pass
        with pytest.raises(cenote.NotAcquiredError) as caught:
            c.commit  # noqa: B018
    assert str(caught.value) == (
        "database shop: cannot use 'commit' of this connection: the block of connection() that "
        "gave it is over, and it may be another task's by now. Use it inside of "
        "`async with db.connection() as c:`, in a task that ends before the block does."
    )


async def test_the_mistake_does_not_hit_another_task(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with db.connection() as mine:
            pass

        async def innocent() -> Any:
            async with db.connection() as c:
                holds.set()
                answer = await ASK[backend.name](c)
                await tried.wait()
                return answer, await ASK[backend.name](c)

        holds, tried = asyncio.Event(), asyncio.Event()
        other = start(innocent())
        await holds.wait()
        with pytest.raises(cenote.NotAcquiredError):
            await ASK[backend.name](mine)
        tried.set()
        assert await other == (7, 7)


async def test_it_ends_with_the_task_that_opened_the_block(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:

        async def forgetful() -> Any:
            return await db.connection().__aenter__()

        c = await start(forgetful())
        with pytest.raises(cenote.NotAcquiredError):
            await ASK[backend.name](c)
        assert await db.fetch_val("select 1") == 1


async def test_it_ends_with_the_database(backend: Backend) -> None:
    async with backend.database() as db, db.connection() as c:
        await db.close()
        with pytest.raises(cenote.NotAcquiredError):
            await ASK[backend.name](c)


async def test_it_ends_inside_a_transaction_that_goes_on(backend: Backend) -> None:
    async with backend.database() as db, db.transaction():
        async with db.connection() as c:
            assert await ASK[backend.name](c) == 7
        with pytest.raises(cenote.NotAcquiredError):
            await ASK[backend.name](c)
        async with db.connection() as c:
            assert await ASK[backend.name](c) == 7
        assert db.in_transaction


async def test_another_task_may_use_it_inside_the_block(backend: Backend) -> None:
    async with backend.database() as db, db.connection() as c:
        assert await start(ASK[backend.name](c)) == 7


CURSORS: dict[str, Callable[[Any], Any]] = {
    "sqlite": lambda c: c.execute("select 7"),
    "psycopg": lambda c: c.execute("select 7"),
    "mysql": lambda c: c.cursor(),
    "asyncpg": lambda c: c.prepare("select 7"),
}


async def use_cursor(backend: Backend, cursor: Any) -> None:
    if backend.name == "asyncpg":
        await cursor.fetchval()
    else:
        await cursor.execute("select 8")


async def test_cursors_end_with_the_block(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        async with db.connection() as c:
            cursor = CURSORS[backend.name](c)
            if inspect.isawaitable(cursor):
                cursor = await cursor
            await use_cursor(backend, cursor)
        with pytest.raises(cenote.NotAcquiredError, match=OVER):
            await use_cursor(backend, cursor)
        del cursor  # and its finalizer has nothing to complain about
        gc.collect()
        assert await db.fetch_val("select 1") == 1


PREPARED = "select count(*) from pg_prepared_statements where statement = 'select 7, 8'"


async def make_by_asyncpg(db: Any) -> list[Callable[[], Any]]:
    """Uses, after the block, of what asyncpg has made inside."""
    async with db.connection() as c:
        transaction, late = c.transaction(), c.transaction()
        await late.start()
        statement = await c.prepare("select 7, 8")
        cursor = await c.cursor("select generate_series(1, 3)")
        iterator = aiter(c.cursor("select generate_series(1, 3)"))
        assert (await anext(iterator))[0] == 1
        factory = statement.cursor()
        assert await c.fetchval(PREPARED) == 1

    async def left() -> None:
        async with late:
            pass

    return [
        statement.fetch, statement.fetchval, statement.get_query, statement.explain,
        lambda: cursor.fetch(1), lambda: cursor.forward(1), iterator.__anext__,
        lambda: aiter(factory).__anext__(), transaction.start, late.commit, late.rollback, left,
    ]  # fmt: skip


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_what_asyncpg_has_made_ends_with_the_block(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        uses = await make_by_asyncpg(db)
        for use in uses:
            with pytest.raises(cenote.NotAcquiredError, match=OVER):
                await called(use)
        assert await db.fetch_val(PREPARED) == 1
        # The server forgets it all the same, and their finalizers do not complain.
        del uses, use
        gc.collect()
        await db.fetch_val("select 1")
        assert await db.fetch_val(PREPARED) == 0
        assert db.pool.stats().created == 1


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_finalizers_after_the_connection_is_gone_are_silent(backend: Backend) -> None:
    db = cenote.Database(backend.url)
    async with db, db.connection() as c:
        statement = await c.prepare("select 7, 8")
        transport = c.__wrapped__._transport
    transport.abort()
    del c, transport
    gc.collect()
    del statement
    gc.collect()  # what it raised would fail the test


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_a_transaction_left_too_late_undoes_no_other(
    backend: Backend,
) -> None:
    async with backend.database(max_size=1) as db, backend.table(db, "id int") as table:
        async with db.connection() as c:
            late = c.transaction()
            await late.__aenter__()
        await db.rollback()

        async def innocent() -> None:
            async with db.transaction():
                await db.execute(f"insert into {table} values (1)")
                with pytest.raises(cenote.NotAcquiredError):
                    await late.__aexit__(KeyError, KeyError(), None)

        await start(innocent())
        assert await db.fetch_val(f"select count(*) from {table}") == 1


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_rows_that_were_fetched_can_be_read_afterwards(backend: Backend) -> None:
    async with backend.database() as db:
        async with db.connection() as c:
            cursor = await c.execute("select 7")
        assert await cursor.fetchall() == [(7,)]


async def test_a_guard_that_is_kept_keeps_no_connection(backend: Backend) -> None:
    async with backend.database(max_size=1, max_uses=1) as db:
        async with db.connection() as c:
            alive = weakref.ref(c.__wrapped__)
        await db.pool.retire()
        await db.fetch_val("select 1")
    gc.collect()
    assert alive() is None
    assert "over" in repr(c)


async def test_a_class_of_ones_own_keeps_its_methods(tmp_path: Any) -> None:
    """A driver whose connections are made in C, as in the guide to writing one."""
    from sqlite3 import Connection, connect

    from cenote.sql.guard import dismiss, stand_in

    class Mine(Connection):
        answer = 42

        def double(self, value: int) -> int:
            return 2 * value

    class MineLink:
        keeping: frozenset[str] = frozenset()
        finalizers: frozenset[str] = frozenset()
        guard_bases: tuple[type, ...] = ()
        raw: Any

    link: Any = MineLink()
    link.raw = connect(tmp_path / "a.db", factory=Mine)
    lease: Any = SimpleNamespace(
        ended=False, task=asyncio.current_task(), loop_db=SimpleNamespace(label="x")
    )
    c: Any = stand_in(link, lease)
    assert isinstance(c, Connection)
    assert isinstance(c, Mine)
    assert c.double(4) == 8
    assert c.answer == 42
    with c:  # a transaction
        assert c.execute("select 1").fetchone() == (1,)
    with closing(connect(":memory:")) as other:
        with pytest.raises(TypeError):
            other.backup(c)  # asks in C, to which only __wrapped__ is a connection
        other.backup(c.__wrapped__)
    dismiss(c)
    with pytest.raises(cenote.NotAcquiredError):
        c.double(4)
    link.raw.close()
