"""When a connection is reset, what that costs, and a reset that fails."""

from typing import Any
from uuid import uuid4

import pytest

import cenote
from cenote.testing import FaultProxy
from tests.support.backends import Backend
from tests.support.faults import with_server
from tests.support.held import greeting, in_task, settled
from tests.support.kit import outcome
from tests.support.servers import PostgresServer
from tests.support.wire import on_the_wire

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.once]


CUSTOM = "select coalesce(current_setting('cenote.mine', true), '')"

RESET_TRIPS = {"asyncpg": 1, "psycopg": 1, "mysql": 3}  # mysql: also its database and its charset


# -- when there is a reset -----------------------------------------------------------------------


async def test_reset_never_keeps_what_was_set(backend: Backend) -> None:
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


async def test_reset_always_resets_untouched_connections(backend: Backend) -> None:
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


@with_server
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


@with_server
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
        begin = 0 if backend.name == "psycopg" else 1  # which sends it with the next statement
        assert await trips(*(transaction(100 + i) for i in range(5))) == 5 * (begin + 2)
        assert await trips(*(outcome(db.execute("selct 1")) for _ in range(5))) == 5
        await trips(in_task(db.begin()))  # at a rollback psycopg forgets what it has prepared
        assert await trips(*(in_task(db.begin()) for _ in range(5))) == 10 * begin  # and rollback
        assert db.pool.stats().created == 1


@with_server
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


@with_server
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


@with_server
@pytest.mark.parametrize("fault", ["cut", "silent", "killed"])
async def test_a_reset_that_fails(backend: Backend, fault: str) -> None:
    touch, query = backend.touches[1]
    limits = {"hook_timeout": 0.3, "destructor_timeout": 0.3}
    async with on_the_wire(backend, **limits) as (db, trips), backend.database() as other:
        proxy: FaultProxy = trips.proxy
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


async def test_a_copy_of_asyncpg_whose_output_fails_at_its_end(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(chunk: bytes) -> None:
        raise OSError("disk full")

    async with cenote.Database(
        postgres_server.url, max_size=1, hook_timeout=0.3, destructor_timeout=5.0
    ) as db:
        with pytest.raises(OSError, match="disk full"):
            async with db.connection() as raw:
                await raw.copy_from_query("select 1", output=fail)
        assert await db.fetch_val("select 1") == 1
    assert "longer than destructor_timeout" not in caplog.text
