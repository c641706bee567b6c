"""Nothing of one task is seen by the next; what needs no cleaning is not cleaned."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.support.backends import Backend, eventually
from tests.support.kit import Listener, outcome, start
from tests.support.proxy import Proxy
from tests.support.servers import MariaDBServer

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]

served = pytest.mark.parametrize("backend", ["asyncpg", "psycopg", "mysql"], indirect=True)
postgres = pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)
mysql = pytest.mark.parametrize("backend", ["mysql"], indirect=True)
sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)

CUSTOM = "select coalesce(current_setting('cenote.mine', true), '')"
TEMPORARY = "select count(*) from pg_class where relpersistence = 't' and pg_table_is_visible(oid)"
LOCKS = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
POSTGRESQL = (
    ("set cenote.mine = 'x'", CUSTOM),
    ("do $$ begin perform set_config('cenote.mine', 'x', false); end $$", CUSTOM),
    ("set session statement_timeout = 12345", "select current_setting('statement_timeout')"),
    ("set default_transaction_isolation = 'serializable'",
     "select current_setting('transaction_isolation')"),
    ("set datestyle = 'german'", "select '2001-02-03'::date::text"),
    ("set names 'latin1'", "select current_setting('client_encoding')"),
    ("select 1 as a into temp secret", TEMPORARY),
    ("explain analyze create temp table secret as select 1", TEMPORARY),
    ("create table pg_temp.secret (a int)", TEMPORARY),
    ("create temp view secret as select 1", TEMPORARY),
    ("create temp sequence secret", TEMPORARY),
    ("create function pg_temp.secret() returns int language sql as 'select 1'",
     "select count(*) from pg_proc where proname = 'secret'"),
    ("declare secret cursor with hold for select 1", "select count(*) from pg_cursors"),
    ("select pg_try_advisory_lock_shared(1)", LOCKS),
    ("select pg_advisory_lock(1), pg_advisory_lock(2, 3)", LOCKS),
    ('prepare "My Statement" as select 1', "select count(*) from pg_prepared_statements"
     " where from_sql"),
)  # fmt: skip
EXTRA: dict[str, tuple[tuple[str, str], ...]] = {
    "sqlite": (
        ("create temp view secret as select 1", "select count(*) from sqlite_temp_master"),
        ("create table temp.secret (a int)", "select count(*) from sqlite_temp_master"),
        ("create table 'temp'.secret (a int)", "select count(*) from sqlite_temp_master"),
        ("pragma query_only = 1", "pragma query_only"),
        ("pragma busy_timeout(7)", "pragma busy_timeout"),
        ("pragma case_sensitive_like = on", "select 'a' like 'A'"),
        ("pragma recursive_triggers = on", "pragma recursive_triggers"),
        ("pragma temp_store = 2", "pragma temp_store"),
        ("pragma main.synchronous = 0", "pragma synchronous"),
    ),
    "asyncpg": POSTGRESQL,
    "psycopg": POSTGRESQL,
    "mysql": (
        ("set autocommit = 0", "select @@autocommit"),
        ("set session autocommit = off", "select @@autocommit"),
        ("set session transaction isolation level serializable", "select @@tx_isolation"),
        ("set session transaction read only", "select @@tx_read_only"),
        ("set names latin1", "select concat(@@character_set_client, @@collation_connection)"),
        ("set @@session.sql_select_limit = 1", "select @@sql_select_limit"),
        ("set foreign_key_checks = 0", "select @@foreign_key_checks"),
        ("select 7 into @mine", "select @mine"),
        ("select @mine := 8", "select @mine"),
        ("select 'x' /*!, @mine := 9 */", "select @mine"),
        ("do get_lock('mine', 0)", "select is_used_lock('mine')"),
        ("select last_insert_id(99)", "select last_insert_id()"),
        ("begin not atomic set @mine = 1; end", "select @mine"),
        ("create temporary table secret2 (a int)", "select count(*) from secret2"),
        ("prepare mine from 'select 5'", "execute mine"),
    ),
}
# These two do leave a trace, but the queries for it see none. Others above do.
UNSEEN = {"create temporary table secret (a int)", "prepare mine from 'select 1'"}

RESET_TRIPS = {"asyncpg": 1, "psycopg": 1, "mysql": 3}  # mysql: also its database and its charset


async def in_task(awaitable: Awaitable[Any]) -> Any:
    """What it gives, in a task of its own that is over then, its connection back in the pool."""

    async def run() -> Any:
        return await awaitable

    return await asyncio.create_task(run())


async def settled(db: Any) -> None:
    """Until what the ended tasks held is clean, or gone."""
    await eventually(lambda: db.pool.active_count == 0 and db.pool.stats().destroying == 0)


def superuser(backend: Backend) -> str:
    if isinstance(backend.server, MariaDBServer):
        return f"mysql://root@/app?unix_socket={quote(str(backend.server.socket_path), safe='')}"
    return str(backend.server.url).replace("postgresql:", f"{backend.url.partition(':')[0]}:")


# -- what statements leave -----------------------------------------------------------------------


async def test_no_statement_leaves_a_trace(backend: Backend) -> None:
    traces = (*backend.touches, *EXTRA[backend.name])
    async with backend.database(max_size=1) as db:
        for touch, query in traces:
            if backend.name == "mysql" and not backend.is_mariadb:
                query = query.replace("@@tx_", "@@transaction_")
                if "not atomic" in touch:  # of MariaDB
                    continue

            async def look(query: str = query) -> Any:
                found = await outcome(db.fetch_val(query))
                return type(found) if isinstance(found, Exception) else found

            async def leave(touch: str = touch, look: Any = look) -> Any:
                await db.execute(touch)
                assert db.pin_reason is not None, touch
                return await look()

            before = await in_task(look())
            during = await in_task(leave())
            assert (touch in UNSEEN) == (during == before), touch
            assert await in_task(look()) == before, touch
        # What can be reset is reset, what cannot be is replaced.
        created = db.pool.stats().created
        assert created == 1 if "reset" in db.capabilities else created > len(traces)


ENDS = ["return", "error", "cancellation", "release", "exit"]


@pytest.mark.parametrize("end", ENDS)
async def test_whichever_way_a_task_ends(backend: Backend, end: str) -> None:
    touch, query = backend.touches[0]
    inside, never = asyncio.Event(), asyncio.Event()

    async def leave(db: Any) -> None:
        await db.execute(touch)
        inside.set()
        if end == "error":
            raise KeyError(end)
        if end == "cancellation":
            await never.wait()
        if end == "release":
            await db.release()
            assert db.bound_connection is None
            assert await db.fetch_val(query) == before
        if end == "exit":
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)

    async with backend.database(max_size=1) as db:
        before = await db.fetch_val(query)
        task = start(leave(db))
        await inside.wait()
        if end == "cancellation":
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or (task.exception() is None) == (end in ("return", "release"))
        assert await db.fetch_val(query) == before


async def test_an_open_transaction_is_rolled_back(backend: Backend) -> None:
    async with backend.database(max_size=1) as db, backend.table(db) as table:

        async def raw() -> None:
            await db.execute(backend.raw_begin)
            await db.execute(f"insert into {table} values (1, 'a')")

        async def begun() -> None:
            await db.begin()
            await db.execute(f"insert into {table} values (2, 'b')")

        async def failed() -> None:
            await db.begin()
            await db.execute(f"insert into {table} values (3, 'c')")
            await outcome(db.execute("selct 1"))

        for leave in (raw, begun, failed):
            await in_task(leave())
            assert await db.fetch_val(f"select count(*) from {table}") == 0
            assert not db.in_transaction
        assert db.pool.stats().created == 1  # that needs no other connection


async def test_a_transaction_and_a_setting(backend: Backend) -> None:
    touch, query = backend.touches[1]
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        before = await db.fetch_val(query)

        async def leave() -> None:
            await db.begin()
            await db.execute(f"insert into {table} values (1, 'a')")
            await db.execute(touch)

        await in_task(leave())
        assert await db.fetch_val(query) == before
        assert await db.fetch_val(f"select count(*) from {table}") == 0


async def test_a_statement_that_fails_may_have_touched(backend: Backend) -> None:
    """The first of two, the second of which is wrong."""
    touch, query = backend.touches[1]
    if backend.embedded:
        touch, query = "create temp table secret as select 1 union select abs(1, 2)", "select 0"
    async with backend.database(max_size=1) as db:
        before = await db.fetch_val(query)
        error = await in_task(outcome(db.execute(f"{touch}; selct 1")))
        assert isinstance(error, Exception)
        assert await db.fetch_val(query) == before


async def test_several_statements_in_one_text(backend: Backend) -> None:
    if backend.embedded:
        pytest.skip("sqlite3 takes one statement at a time")
    touch, query = backend.touches[1]
    async with backend.database(max_size=1) as db:
        before = await db.fetch_val(query)
        for _ in range(3):
            # finding: psycopg prepares it, and the server refuses to
            await in_task(db.execute(f"begin; {touch}; commit"))
            assert await db.fetch_val(query) == before
            assert not db.in_transaction


async def test_a_prepared_statement_that_touches(backend: Backend) -> None:
    touch, query = backend.touches[1]
    async with backend.database(max_size=1) as db:
        before = await db.fetch_val(query)

        async def leave() -> None:
            statement = await db.prepare(touch)
            await statement.execute()
            await statement.close()
            assert "touched" in db.pin_reason

        await in_task(leave())
        assert await db.fetch_val(query) == before


async def test_what_locks_a_table_is_let_go(backend: Backend) -> None:
    if backend.embedded:
        lock, use = "begin exclusive", "insert into {} values (1, 'a')"
    elif backend.name == "mysql":
        lock, use = "lock tables {} write", "insert into {} values (1, 'a')"
    else:
        lock, use = "lock table {}", "insert into {} values (1, 'a')"

    async def leave(db: Any, table: str) -> None:
        if lock.startswith("lock table "):
            await db.begin()
        await db.execute(lock.format(table))

    async with backend.database() as db, backend.table(db) as table, backend.database() as other:
        await in_task(leave(db, table))
        await other.execute(use.format(table))


@served
async def test_roles(backend: Backend) -> None:
    name = f"r_{uuid4().hex[:8]}"
    query = "select current_role()" if backend.name == "mysql" else "select current_user"
    statements = [f"set role {name}"]
    if backend.name != "mysql":
        statements += [f"set session authorization {name}", "set session authorization app"]
    async with backend.database(superuser(backend), max_size=1) as root:
        await root.execute(f"create role {name}")
        if backend.name == "mysql":  # whoever makes it has it on MariaDB only
            await root.execute(f"grant {name} to root@localhost")
        if backend.name != "mysql":
            query = "select current_user || session_user"
        try:
            before = await root.fetch_val(query)
            for statement in statements:
                await in_task(root.execute(statement))
                assert await root.fetch_val(query) == before, statement
        finally:
            await root.execute(f"drop role {name}")


@postgres
async def test_a_role_of_the_url_stays(backend: Backend) -> None:
    url = f"{superuser(backend)}&options=-c%20role%3Dapp"
    async with backend.database(url, max_size=1) as db:
        assert await db.fetch_val("select current_user") == "app"
        for statement in ("set role postgres", "set role none", "reset role", "set cenote.a = '1'"):
            await in_task(db.execute(statement))
            assert await db.fetch_val("select current_user") == "app", statement


@mysql
async def test_a_session_without_a_database_has_none_again(backend: Backend) -> None:
    url = backend.url.rpartition("/")[0] + "/"
    async with backend.database(url, max_size=1) as db:
        assert await db.fetch_val("select database()") is None
        await in_task(db.execute("use information_schema"))
        assert await db.fetch_val("select database()") is None
        await in_task(db.execute("set @mine = 1"))
        assert await db.fetch_val("select @mine") is None


@mysql
async def test_procedures_and_handlers(backend: Backend) -> None:
    name = f"p_{uuid4().hex[:8]}"
    async with backend.database(max_size=1) as db, backend.table(db) as table:
        await db.execute(f"create procedure {name}() set @mine = 5")
        try:
            await in_task(db.execute(f"call {name}()"))
            assert await db.fetch_val("select @mine") is None
        finally:
            await db.execute(f"drop procedure {name}")
        await in_task(db.execute(f"handler {table} open"))
        with pytest.raises(Exception, match=r"(?i)unknown table"):
            await db.execute(f"handler {table} read first")


# -- what is done to the driver's own connection -------------------------------------------------

Act = Callable[[Any], Awaitable[Any]]


async def asyncpg_codec(raw: Any) -> None:
    await raw.set_type_codec("json", encoder=str, decoder=len, schema="pg_catalog")


async def asyncpg_builtin_codec(raw: Any) -> None:
    await raw.set_builtin_type_codec("name", schema="pg_catalog", codec_name="text")


async def asyncpg_reads_json(raw: Any) -> Any:
    return await raw.fetchval("select '[1]'::json")


class Ear:
    """A callback that hears what the next task does."""

    def __init__(self) -> None:
        self.heard = 0

    def __call__(self, *_: Any) -> None:
        self.heard += 1


ear = Ear()


async def asyncpg_listener(raw: Any) -> None:
    await raw.add_listener("news", ear)


async def asyncpg_log_listener(raw: Any) -> None:
    raw.add_log_listener(ear)


async def asyncpg_query_logger(raw: Any) -> None:
    raw.add_query_logger(ear)


async def asyncpg_termination_listener(raw: Any) -> None:
    raw.add_termination_listener(ear)


async def asyncpg_makes_noise(raw: Any) -> int:
    await raw.execute("notify news; do $$ begin raise warning 'noise'; end $$")
    await raw.fetchval("select 1")
    await asyncio.sleep(0)
    return ear.heard


async def asyncpg_ends(raw: Any) -> int:
    raw.terminate()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return ear.heard


async def asyncpg_transaction(raw: Any) -> None:
    await raw.transaction().start()


async def asyncpg_transaction_read_only(raw: Any) -> None:
    await raw.transaction(readonly=True).start()


async def asyncpg_transacts(raw: Any) -> Any:
    async with raw.transaction(isolation="serializable"):
        return await raw.fetchval("select current_setting('transaction_isolation')")


async def psycopg_row_factory(raw: Any) -> None:
    raw.row_factory = lambda cursor: list


async def psycopg_cursor_factory(raw: Any) -> None:
    import psycopg

    raw.cursor_factory = psycopg.AsyncClientCursor
    raw.server_cursor_factory = type("Mine", (psycopg.AsyncServerCursor,), {})


async def psycopg_adapters(raw: Any) -> None:
    import psycopg

    class Loud(psycopg.adapt.Loader):
        def load(self, data: Any) -> str:
            return f"{bytes(data).decode()}!"

    raw.adapters.register_loader("text", Loud)
    raw.adapters.register_loader("int4", Loud)


async def psycopg_prepares(raw: Any) -> None:
    raw.prepare_threshold = None
    raw.prepared_max = 7


async def psycopg_autocommit(raw: Any) -> None:
    await raw.set_autocommit(False)


async def psycopg_autocommit_and_begins(raw: Any) -> None:
    await raw.set_autocommit(False)
    await raw.execute("select 1")


async def psycopg_isolation(raw: Any) -> None:
    import psycopg

    await raw.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
    await raw.set_read_only(True)
    await raw.set_deferrable(True)


async def psycopg_transaction(raw: Any) -> None:
    import psycopg

    # Not raw.transaction(): the end of a generator that nobody closed is the loop's.
    await psycopg.AsyncTransaction(raw).__aenter__()


async def psycopg_two_phases(raw: Any) -> None:
    await raw.set_autocommit(False)
    await raw.tpc_begin("mine")


async def psycopg_shows(raw: Any) -> Any:
    row = await (await raw.execute("select 1, 'a'")).fetchone()
    await raw.commit()
    return (
        row, type(row), raw.autocommit, raw.prepare_threshold, raw.prepared_max,
        raw.isolation_level, raw.read_only, raw.deferrable, raw.cursor_factory,
        raw.server_cursor_factory,
    )  # fmt: skip


async def psycopg_transacts(raw: Any) -> Any:
    async with raw.transaction():
        settings = "transaction_isolation", "transaction_read_only", "transaction_deferrable"
        return [
            await (await raw.execute(f"select current_setting('{name}')")).fetchone()
            for name in settings
        ]


async def psycopg_handlers(raw: Any) -> None:
    raw.add_notify_handler(ear)
    raw.add_notice_handler(ear)
    await raw.execute("listen news")


async def psycopg_makes_noise(raw: Any) -> int:
    await raw.execute("listen news")
    await raw.execute("notify news")
    await raw.execute("do $$ begin raise warning 'noise'; end $$")
    await raw.execute("select 1")
    return ear.heard


async def psycopg_hears_nothing(raw: Any) -> None:
    await raw.execute("listen news")
    await raw.execute("notify news, 'for me alone'")


async def psycopg_reads_news(raw: Any) -> list[Any]:
    return [news async for news in raw.notifies(timeout=0)]


async def mysql_autocommit(raw: Any) -> None:
    await raw.autocommit(False)


async def mysql_begin(raw: Any) -> None:
    await raw.begin()


async def mysql_select_db(raw: Any) -> None:
    await raw.select_db("information_schema")


async def mysql_prepare(raw: Any) -> None:
    await (await raw.prepare("set @mine = ?")).execute([5])


async def mysql_shows(raw: Any) -> Any:
    async with raw.cursor() as cursor:
        open_ones = "select count(*) from information_schema.innodb_trx"
        here = f"({open_ones} where trx_mysql_thread_id = connection_id())"
        await cursor.execute(f"select @@autocommit, {here}, database(), @mine")
        return (await cursor.fetchone(), raw.get_autocommit(), raw.autocommit_mode)


async def sqlite_function(raw: Any) -> None:
    await raw.create_function("upper", 1, lambda text: f"{text}!")


async def sqlite_factories(raw: Any) -> None:
    raw.row_factory = lambda cursor, row: list(row)
    raw.text_factory = bytes


async def sqlite_isolation(raw: Any) -> None:
    raw.isolation_level = "EXCLUSIVE"


async def sqlite_callbacks(raw: Any) -> None:
    await raw.set_trace_callback(ear)
    await raw.set_progress_handler(ear, 1)
    await raw._execute(raw._conn.set_authorizer, lambda *_: 1)


async def sqlite_shows(raw: Any) -> Any:
    rows = list(await raw.execute_fetchall("select upper('a'), 'b'"))
    return [list(row) for row in rows], type(rows[0]), raw.isolation_level, ear.heard


DONE: dict[str, list[tuple[Act, Act]]] = {
    "asyncpg": [
        (asyncpg_codec, asyncpg_reads_json),
        (asyncpg_builtin_codec, asyncpg_reads_json),
        (asyncpg_listener, asyncpg_makes_noise),
        (asyncpg_log_listener, asyncpg_makes_noise),
        (asyncpg_query_logger, asyncpg_makes_noise),
        (asyncpg_termination_listener, asyncpg_ends),
        (asyncpg_transaction, asyncpg_transacts),
        (asyncpg_transaction_read_only, asyncpg_transacts),
    ],
    "psycopg": [
        (psycopg_row_factory, psycopg_shows),
        (psycopg_cursor_factory, psycopg_shows),
        (psycopg_adapters, psycopg_shows),
        (psycopg_prepares, psycopg_shows),
        (psycopg_autocommit, psycopg_shows),
        (psycopg_autocommit_and_begins, psycopg_shows),
        (psycopg_isolation, psycopg_shows),
        (psycopg_isolation, psycopg_transacts),
        (psycopg_transaction, psycopg_transacts),
        (psycopg_two_phases, psycopg_shows),
        (psycopg_handlers, psycopg_makes_noise),
        (psycopg_hears_nothing, psycopg_reads_news),
    ],
    "mysql": [
        (mysql_autocommit, mysql_shows),
        (mysql_begin, mysql_shows),
        (mysql_select_db, mysql_shows),
        (mysql_prepare, mysql_shows),
    ],
    "sqlite": [
        (sqlite_function, sqlite_shows),
        (sqlite_factories, sqlite_shows),
        (sqlite_isolation, sqlite_shows),
        (sqlite_callbacks, sqlite_shows),
    ],
}


async def inside(db: Any, use: Act) -> Any:
    async with db.connection() as raw:
        return await use(raw)


@pytest.mark.parametrize(
    ("backend", "act", "look"),
    [(name, act, look) for name, pairs in DONE.items() for act, look in pairs],
    indirect=["backend"],
)
async def test_nothing_done_to_the_drivers_connection_is_left(
    backend: Backend, act: Act, look: Act
) -> None:
    ear.heard = 0
    async with backend.database() as fresh:
        expected = await in_task(inside(fresh, look))
    ear.heard = 0
    async with backend.database(max_size=1) as db:
        await in_task(inside(db, act))
        assert await in_task(inside(db, look)) == expected
        assert await db.fetch_val("select 1") == 1
        assert not db.in_transaction


async def test_leaving_the_block_is_enough(backend: Backend) -> None:
    """The task goes on, and has a clean connection like everybody else."""
    touch, query = backend.touches[0]
    async with backend.database(max_size=1) as db:
        before = await db.fetch_val(query)
        async with db.connection(), db.connection():
            await db.execute(touch)
            assert await db.fetch_val(query) != before
        assert db.pin_reason is not None  # a statement of ours, and not only the block
        await db.release()
        assert await db.fetch_val(query) == before
        act, look = DONE[backend.name][3 if backend.name == "mysql" else 0]
        async with db.connection() as raw:
            expected = await look(raw)
        async with db.connection() as raw:
            await act(raw)
        assert db.pin_reason is None
        assert db.pool.active_count == 0
        async with db.connection() as raw:
            assert await look(raw) == expected


# -- what is set for every connection ------------------------------------------------------------

GREETINGS = {
    "sqlite": ("pragma cache_size = 77", "pragma cache_size", 77),
    "asyncpg": ("set work_mem = '77kB'", "select current_setting('work_mem')", "77kB"),
    "psycopg": ("set work_mem = '77kB'", "select current_setting('work_mem')", "77kB"),
    "mysql": ("set @greeting = 77", "select @greeting", 77),
}


def greeting(backend: Backend) -> tuple[Act, str, Any]:
    """An on_connect, a query, and what it gives then."""
    statement, query, expected = GREETINGS[backend.name]

    async def greet(raw: Any) -> None:
        if backend.name == "mysql":
            await raw.query(statement)
        else:
            await raw.execute(statement)

    return greet, query, expected


async def test_on_connect_is_heard_by_every_task(backend: Backend) -> None:
    greet, query, expected = greeting(backend)
    overwrite = GREETINGS[backend.name][0].replace("77", "88")
    async with backend.database(max_size=1, on_connect=greet) as db:
        for _ in range(3):
            assert await db.fetch_val(query) == expected
        assert db.pool.stats().created == 1  # what it sets is not touched
        for touch, _query in (*backend.touches, (overwrite, "")):
            await in_task(db.execute(touch))
            assert await db.fetch_val(query) == expected, touch
        async with db.connection():
            pass
        assert await db.fetch_val(query) == expected
        await db.pool.retire()
        assert await db.fetch_val(query) == expected


async def test_connect_options_stay_set(backend: Backend) -> None:
    more = {
        "sqlite": ("cache_size=77", {}, "pragma cache_size", 77),
        "asyncpg": (
            "application_name=a",
            {"server_settings": {"work_mem": "77kB", "search_path": "pg_catalog"}},
            "select current_setting('work_mem') || current_setting('search_path')",
            "77kBpg_catalog",
        ),
        "psycopg": (
            "options=-c%20work_mem%3D77kB%20-c%20search_path%3Dpg_catalog",
            {},
            "select current_setting('work_mem') || current_setting('search_path')",
            "77kBpg_catalog",
        ),
        "mysql": (
            "sql_mode=ANSI_QUOTES&charset=latin1",
            {"init_command": "set @mine = 77"},
            "select concat(@mine, @@sql_mode, @@character_set_client, @@collation_connection)",
            "77ANSI_QUOTESlatin1latin1_swedish_ci",
        ),
    }
    options, arguments, query, expected = more[backend.name]
    url = f"{backend.url}?{options}"
    async with backend.database(url, connect_args=arguments, max_size=1) as db:
        assert await db.fetch_val(query) == expected
        for touch, _query in backend.touches:
            await in_task(db.execute(touch))
            assert await db.fetch_val(query) == expected, touch


@pytest.mark.parametrize("backend", ["psycopg"], indirect=True)
async def test_what_connect_is_given_stays_set(backend: Backend) -> None:
    import psycopg

    context = psycopg.adapt.AdaptersMap(psycopg.adapters)
    context.register_loader("int4", psycopg.types.numeric.FloatLoader)

    class Context:
        adapters = context
        connection = None

    arguments = {
        "context": Context(),
        "row_factory": psycopg.rows.dict_row,
        "prepare_threshold": 3,
        "cursor_factory": psycopg.AsyncClientCursor,
    }

    async def look(db: Any) -> Any:
        async with db.connection() as raw:
            row = await (await raw.execute("select 1 as a")).fetchone()
            return row, type(row["a"]), raw.prepare_threshold, raw.cursor_factory

    async with backend.database(connect_args=arguments, max_size=1) as db:
        for _ in range(3):
            assert await look(db) == ({"a": 1.0}, float, 3, psycopg.AsyncClientCursor)


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_codecs_of_on_connect_stay_set(backend: Backend) -> None:
    async with backend.database(max_size=1, on_connect=asyncpg_codec) as db:
        for touch, _query in (("select 1", ""), *backend.touches[:2]):
            assert await db.fetch_val("select '[1]'::json") == 3
            await in_task(db.execute(touch))


@pytest.mark.parametrize("backend", ["asyncpg"], indirect=True)
async def test_a_connection_class_of_the_users(backend: Backend) -> None:
    import asyncpg

    class Mine(asyncpg.Connection):  # type: ignore[misc]
        pass

    async with backend.database(connect_args={"connection_class": Mine}, max_size=1) as db:
        for touch, query in backend.touches:
            before = await db.fetch_val(query)
            await in_task(db.execute(touch))
            assert await db.fetch_val(query) == before, touch
        async with db.connection() as raw:
            assert type(raw.__wrapped__) is Mine
            assert isinstance(raw, Mine)


@pytest.mark.parametrize("style", ["sync", "async", "awaitable"])
async def test_when_on_connect_runs(backend: Backend, style: str) -> None:
    greeted: list[Any] = []

    async def slow(raw: Any) -> None:
        await asyncio.sleep(0)
        greeted.append(raw)

    hooks: dict[str, Any] = {"sync": greeted.append, "async": slow, "awaitable": lambda c: slow(c)}
    async with backend.database(max_size=1, on_connect=hooks[style]) as db:
        assert greeted == []
        for _ in range(3):
            await db.fetch_val("select 1")
        async with db.transaction():
            await db.fetch_val("select 1")
            assert greeted == [db.bound_connection]  # once, with the driver's own
        await in_task(db.execute(backend.touches[0][0]))
        await settled(db)
        await db.fetch_val("select 1")
        assert len(greeted) == 2  # after the reset, or on the new one
        assert (greeted[0] is greeted[1]) == ("reset" in db.capabilities)
        await db.pool.retire()
        await db.fetch_val("select 1")
        assert len(greeted) == 3


async def test_on_connect_leaves_no_transaction(backend: Backend) -> None:
    async def greet(raw: Any) -> None:
        if backend.name == "mysql":
            await raw.begin()
        else:
            await raw.execute("begin")

    async with backend.database(max_size=1, on_connect=greet) as db:
        await db.fetch_val("select 1")
        assert not db.in_transaction
        await in_task(db.execute(backend.touches[0][0]))
        await db.fetch_val("select 1")
        assert not db.in_transaction


@contextlib.asynccontextmanager
async def nothing_left(backend: Backend) -> AsyncIterator[str]:
    """A URL; at the end no connection that was made with it is open."""
    before = threading.active_count()
    if backend.embedded:
        yield backend.url
        await eventually(lambda: threading.active_count() <= before)
        return
    with Proxy(backend.server.host, backend.server.port) as proxy:
        yield backend.url_through(proxy.host, proxy.port)
        assert proxy.connections
        await asyncio.to_thread(proxy.wait_for, lambda counts: counts.open == 0)


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_a_failing_on_connect_closes_the_connection(backend: Backend, style: str) -> None:
    def refuse(raw: Any) -> None:
        raise KeyError("not today")

    async def slowly(raw: Any) -> None:
        await asyncio.sleep(0)
        refuse(raw)

    async with nothing_left(backend) as url:
        hook = refuse if style == "sync" else slowly
        async with backend.database(url, on_connect=hook, max_size=1) as db:
            for use in (lambda: db.fetch_val("select 1"), db.begin):
                with pytest.raises(KeyError, match="not today"):
                    await use()
            assert db.pool.count == 0
            assert db.pool.stats().created == 0


async def test_an_on_connect_that_never_ends(backend: Backend) -> None:
    async def hang(raw: Any) -> None:
        await asyncio.Event().wait()

    async with (
        nothing_left(backend) as url,
        backend.database(url, on_connect=hang, create_timeout=0.2) as db,
    ):
        error = await outcome(db.fetch_val("select 1"))
        assert isinstance(error, TimeoutError)
        assert db.pool.count == 0


# -- when there is a reset -----------------------------------------------------------------------


async def test_reset_never(backend: Backend) -> None:
    touch, query = backend.touches[1]
    greeted: list[Any] = []
    async with (
        backend.database(max_size=1, reset="never", on_connect=greeted.append) as db,
        backend.table(db) as table,
    ):
        before = await db.fetch_val(query)
        await in_task(db.execute(touch))
        assert await db.fetch_val(query) != before
        assert len(greeted) == 1

        async def leave() -> None:
            await db.begin()
            await db.execute(f"insert into {table} values (1, 'a')")

        await in_task(leave())  # a transaction is never handed on
        assert await db.fetch_val(f"select count(*) from {table}") == 0
        assert db.pool.stats().created == 1


async def test_reset_always(backend: Backend) -> None:
    greeted: list[Any] = []
    async with backend.database(max_size=1, reset="always", on_connect=greeted.append) as db:
        for count in range(3):
            await db.fetch_val("select 1")
            await settled(db)
            assert len(greeted) == (count + 2 if "reset" in db.capabilities else count + 1)


HIDDEN = {
    "asyncpg": (
        "create function {}() returns text language sql as "
        "'select set_config(''cenote.mine'', ''hidden'', false)'",
        CUSTOM,
    ),
    "mysql": ("create function {}() returns int begin set @mine = 5; return 1; end",
              "select @mine"),
}  # fmt: skip
HIDDEN["psycopg"] = HIDDEN["asyncpg"]


@served
async def test_what_a_function_changes_inside_a_select(backend: Backend) -> None:
    """Only `always` sees it."""
    create, query = HIDDEN[backend.name]
    name = f"f_{uuid4().hex[:8]}"
    async with backend.database() as db:
        await db.execute(create.format(name))
        try:
            for reset, seen in (("always", False), ("auto", True)):
                async with backend.database(max_size=1, reset=reset) as other:
                    before = await other.fetch_val(query)
                    await in_task(other.fetch_val(f"select {name}()"))
                    assert (await other.fetch_val(query) != before) == seen
        finally:
            await db.execute(f"drop function {name}" + "()" * (backend.name != "mysql"))


@contextlib.asynccontextmanager
async def on_the_wire(backend: Backend, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A database with one connection, and its round trips: `trips(awaitable)` counts them."""
    with Proxy(backend.server.host, backend.server.port) as proxy:
        url = backend.url_through(proxy.host, proxy.port)
        async with backend.database(url, max_size=1, **options) as db:

            async def trips(*awaitables: Awaitable[Any]) -> int:
                before = proxy.round_trips
                for each in awaitables:
                    await each
                await settled(db)
                return proxy.round_trips - before

            trips.proxy = proxy  # type: ignore[attr-defined]
            yield db, trips


@served
async def test_an_untouched_connection_pays_no_round_trip(backend: Backend) -> None:
    async with on_the_wire(backend) as (db, trips), backend.table(db) as table:
        insert = f"insert into {table} values (?, 'a')"

        async def transaction(key: int) -> None:
            async with db.transaction():
                await db.execute(insert, [key])

        warm = [
            db.fetch_val("select 1"),
            db.fetch_all(f"select * from {table} where id = ?", [0]),
            db.execute(insert, [-1]),
            transaction(-2),
        ]
        await trips(*warm)  # statements are prepared
        assert await trips(*(db.fetch_val("select 1") for _ in range(20))) == 20
        assert await trips(*(in_task(db.fetch_val("select 1")) for _ in range(20))) == 20
        select = f"select * from {table} where id = ?"
        assert await trips(*(db.fetch_all(select, [i]) for i in range(20))) == 20
        assert await trips(*(db.execute(insert, [i]) for i in range(20))) == 20
        assert await trips(*(transaction(100 + i) for i in range(5))) == 15  # begin, insert, commit
        assert await trips(*(outcome(db.execute("selct 1")) for _ in range(5))) == 5
        await trips(in_task(db.begin()))  # at a rollback psycopg forgets what it has prepared
        assert await trips(*(in_task(db.begin()) for _ in range(5))) == 10  # begin, rollback
        assert db.pool.stats().created == 1


@served
async def test_a_touched_connection_pays_for_its_reset(backend: Backend) -> None:
    more = RESET_TRIPS[backend.name]
    async with on_the_wire(backend) as (db, trips):

        async def block() -> None:
            async with db.connection():
                pass

        await trips(db.fetch_val("select 1"))
        for touch, _query in backend.touches:
            await trips(in_task(db.execute(touch)))  # some are prepared at first
            assert await trips(*(in_task(db.execute(touch)) for _ in range(5))) == 5 * (1 + more)
        assert await trips(block(), in_task(block())) == 2 * more
        assert db.pool.stats().created == 1

    greet, _query, _expected = greeting(backend)
    async with on_the_wire(backend, on_connect=greet) as (db, trips):
        await trips(db.fetch_val("select 1"), in_task(db.execute(backend.touches[0][0])))
        assert await trips(db.fetch_val("select 1")) == 1
        assert await trips(in_task(db.execute(backend.touches[0][0]))) == 1 + more + 1


@served
async def test_what_always_and_never_cost(backend: Backend) -> None:
    more = RESET_TRIPS[backend.name]
    for reset, expected in (("always", 1 + more), ("never", 1)):
        async with on_the_wire(backend, reset=reset) as (db, trips):
            await trips(db.fetch_val("select 1"))
            assert await trips(*(db.fetch_val("select 1") for _ in range(5))) == 5 * expected
            touch = backend.touches[1][0]
            await trips(in_task(db.execute(touch)))
            assert await trips(in_task(db.execute(touch))) == expected


# -- a reset that fails --------------------------------------------------------------------------


@served
@pytest.mark.parametrize("fault", ["cut", "silent", "killed"])
async def test_a_reset_that_fails(backend: Backend, fault: str) -> None:
    touch, query = backend.touches[1]
    limits = {"hook_timeout": 0.3, "destructor_timeout": 0.3}
    async with on_the_wire(backend, **limits) as (db, trips), backend.database() as other:
        proxy: Proxy = trips.proxy
        before = await db.fetch_val(query)
        session = await db.fetch_val(backend.session)

        async def leave() -> None:
            await db.execute(touch)
            if fault == "cut":
                proxy.cut_reply_after(0)
            elif fault == "silent":
                proxy.black_hole(True)
            else:
                await other.execute(backend.kill.format(session))

        await in_task(leave())
        await settled(db)
        proxy.black_hole(False)
        assert db.pool.count == 0
        assert await db.fetch_val(query) == before
        assert await db.fetch_val(backend.session) != session
        assert db.pool.stats().created == 2


async def test_an_on_connect_that_fails_after_a_reset(backend: Backend) -> None:
    touch, query = backend.touches[1]
    greeted: list[Any] = []

    async def greet(raw: Any) -> None:
        greeted.append(raw)
        if len(greeted) == 2:
            raise KeyError("the second time")

    async with (
        nothing_left(backend) as url,
        backend.database(url, max_size=1, on_connect=greet) as db,
    ):
        before = await db.fetch_val(query)
        await in_task(db.execute(touch))
        await settled(db)
        if "reset" in db.capabilities:
            assert db.pool.count == 0
        else:
            with pytest.raises(KeyError, match="the second time"):
                await db.fetch_val("select 1")  # a new one is greeted, and that fails
        assert await db.fetch_val(query) == before
        assert len(greeted) == 3
        assert greeted[2] is not greeted[0]


async def test_replacing_is_no_failure(backend: Backend) -> None:
    """The breaker counts lost connections and failed connects, and nothing else."""
    listener = Listener()
    async with backend.database(max_size=1, strategy=listener) as db:
        for touch, _query in backend.touches:
            await in_task(db.execute(touch))
            await settled(db)
        for act, _look in DONE[backend.name]:
            await in_task(inside(db, act))
            await settled(db)
        await outcome(db.execute("selct 1"))
    assert [each for each in listener.heard if each != "success"] == []


# -- pings ---------------------------------------------------------------------------------------


async def idle_before(awaitable: Awaitable[Any]) -> Any:
    """A moment later, also by a clock that counts milliseconds."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    await eventually(lambda: loop.time() > now)
    return await awaitable


@served
async def test_an_idle_connection_is_pinged_first(backend: Backend) -> None:
    async def first(**options: Any) -> int:
        async with on_the_wire(backend, **options) as (db, trips):
            return int(await trips(db.fetch_val("select 1")))

    fresh = await first()
    assert await first(ping_after_idle=0) == fresh  # what was made this moment is not pinged
    async with on_the_wire(backend, ping_after_idle=0) as (db, trips):
        await trips(db.fetch_val("select 1"))
        assert await trips(*(idle_before(db.fetch_val("select 1")) for _ in range(10))) == 20

        async def transaction() -> None:
            async with db.transaction():
                for _ in range(3):
                    await db.fetch_val("select 1")

        assert (
            await trips(idle_before(transaction())) == 6
        )  # one ping before the first, none in between
    async with on_the_wire(backend, ping_after_idle=3600) as (db, trips):
        await trips(db.fetch_val("select 1"))
        assert await trips(*(db.fetch_val("select 1") for _ in range(10))) == 10


@sqlite
async def test_an_idle_file_is_pinged_too(backend: Backend) -> None:
    heard: list[str] = []

    async def greet(raw: Any) -> None:
        await raw.set_trace_callback(heard.append)

    for patience, expected in ((0, 2), (3600, 1)):
        async with backend.database(max_size=1, ping_after_idle=patience, on_connect=greet) as db:
            await db.fetch_val("select 2")
            assert heard == ["select 2"]
            heard.clear()
            await idle_before(db.fetch_val("select 2"))
            assert len(heard) == expected
            heard.clear()


@served
async def test_a_ping_without_an_answer(backend: Backend) -> None:
    async with on_the_wire(backend, ping_after_idle=0, hook_timeout=0.2) as (db, trips):
        session = await db.fetch_val(backend.session)
        trips.proxy.half_open()
        assert await idle_before(db.fetch_val(backend.session)) != session
        assert db.pool.stats().created == 2


@served
async def test_the_health_check_pings(backend: Backend) -> None:
    async with on_the_wire(backend, healthcheck_interval=0.01) as (db, trips):
        proxy: Proxy = trips.proxy
        await db.fetch_val("select 1")
        before = proxy.round_trips
        await asyncio.to_thread(proxy.wait_for, lambda counts: counts.round_trips > before + 3)
        assert db.pool.stats().created == 1
        async with db.transaction():  # what is in use is not pinged
            before = proxy.round_trips
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert proxy.round_trips == before
        proxy.half_open()
        await eventually(lambda: db.pool.stats().destroyed.get("check_failed"))
        assert await db.fetch_val("select 1") == 1
        assert db.pool.stats().created == 2
