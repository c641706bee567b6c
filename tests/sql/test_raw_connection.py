"""What is done to the connection of the driver itself is undone before the next task."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.backends import Backend
from tests.support.held import in_task, settled
from tests.support.kit import RecordingStrategy, outcome

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


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
    await raw.set_authorizer(lambda *_: 1)


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


async def test_replacing_is_no_failure(backend: Backend) -> None:
    """The breaker counts lost connections and failed connects, and nothing else."""
    strategy = RecordingStrategy()
    async with backend.database(max_size=1, strategy=strategy) as db:
        for touch, _query in backend.touches:
            await in_task(db.execute(touch))
            await settled(db)
        for act, _look in DONE[backend.name]:
            await in_task(inside(db, act))
            await settled(db)
        await outcome(db.execute("selct 1"))
    assert [each for each in strategy.reports if each != "success"] == []
