"""Rows have one interface on every driver."""

import asyncio
import dataclasses
import pickle
from collections.abc import Sequence

import pytest

import cenote
from cenote.sql.rows import make_rows
from tests.support.backends import Backend
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.real_time("talks to real servers"), pytest.mark.driver]


async def test_rows_are_the_same_on_every_driver(backend: Backend) -> None:
    async with backend.database() as db:
        row = await db.fetch_one("select 7 as id, 'Ada' as name")
    assert isinstance(row, cenote.Row)
    assert (row[0], row["id"], row[-1], row[0:1]) == (7, 7, "Ada", (7,))
    assert ("id" in row, "Ada" in row, 7 in row) == (True, False, False)
    assert (list(row), len(row), dict(row)) == ([7, "Ada"], 2, {"id": 7, "name": "Ada"})
    assert (list(row.keys()), list(row.values())) == (["id", "name"], [7, "Ada"])
    assert list(row.items()) == [("id", 7), ("name", "Ada")]
    assert row.columns == ("id", "name")
    assert (row.get("name"), row.get("x"), row.get("x", 1)) == ("Ada", None, 1)
    assert (row.get("x", default=1), row.get(name="id")) == (1, 7)
    assert row == (7, "Ada") == row
    assert isinstance(row, Sequence)
    assert (row.count(7), row.index("Ada")) == (1, 1)
    assert list(reversed(row)) == ["Ada", 7]
    match row:
        case [number, name]:
            assert (number, name) == (7, "Ada")
        case _:
            pytest.fail("a row matches like a tuple")
    assert hash(row) == hash((7, "Ada"))
    assert repr(row) == "<Row id=7 name='Ada'>"
    again = pickle.loads(pickle.dumps(row))
    assert isinstance(again, cenote.Row)
    assert (again, again["name"]) == (row, "Ada")
    assert not hasattr(row, "id")
    with pytest.raises(KeyError, match="nme"):
        row["nme"]
    with pytest.raises(IndexError):
        row[2]


async def test_a_row_may_be_the_parameters(backend: Backend) -> None:
    async with backend.database() as db, backend.table(db) as table:
        row = await db.fetch_one("select 7 as id, 'Ada' as name")
        await db.execute(f"insert into {table} values (?, ?)", row)
        await db.execute(f"insert into {table} values (:id, :name)", dict(row, id=8))
        rows = await db.fetch_all(f"select id + 10 as id, name from {table} order by id")
        await db.execute_many(f"insert into {table} values (?, ?)", rows)
        found = await db.fetch_all(f"select * from {table} order by id")
        assert found == [(7, "Ada"), (8, "Ada"), (17, "Ada"), (18, "Ada")]


async def test_columns_with_one_name_keep_their_places(backend: Backend) -> None:
    async with backend.database() as db:
        row = await db.fetch_one("select 1 as a, 2 as a, 3 as b")
        assert (row, list(row), len(row), row["a"]) == ((1, 2, 3), [1, 2, 3], 3, 2)
        assert (row.columns, dict(row)) == (("a", "a", "b"), {"a": 2, "b": 3})
        assert pickle.loads(pickle.dumps(row)) == row


@pytest.mark.parametrize("backend", ["asyncpg", "psycopg"], indirect=True)
async def test_a_row_may_have_no_columns(backend: Backend) -> None:
    async with backend.database() as db:
        for row in (await db.fetch_one("select"), *await db.fetch_all("select")):
            assert isinstance(row, cenote.Row)
            assert (row, dict(row), row.columns, list(row.keys())) == ((), {}, (), [])
        assert await db.fetch_val("select") is None


def test_a_missing_column_is_told_the_others() -> None:
    with pytest.raises(KeyError, match="no column 'nme'; there are: id, name"):
        make_rows(["id", "name"], [(7, "Ada")])[0]["nme"]


async def test_rows_of_streams_are_rows(backend: Backend) -> None:
    async with backend.database() as db:
        async for row in db.iterate("select 7 as id, 'Ada' as name"):
            assert isinstance(row, cenote.Row)
            assert ("id" in row, row == (7, "Ada")) == (True, True)


@dataclasses.dataclass
class User:
    id: int
    name: str


ONE = "select 7 as id, 'Ada' as name"


async def test_every_verb_turns_rows_into_objects(backend: Backend) -> None:
    ada = User(7, "Ada")
    async with backend.database() as db:
        for verbs in (db, await db.prepare(ONE)):
            sql = [ONE] if verbs is db else []
            assert await verbs.fetch_all(*sql, into=User) == [ada]
            assert await verbs.fetch_one(*sql, into=User) == ada
            assert [user async for user in verbs.iterate(*sql, into=User)] == [ada]
        async with db.transaction() as tx:
            assert await tx.fetch_all(ONE, into=User) == [ada]
            assert await tx.fetch_one(ONE, into=User) == ada
            assert [user async for user in tx.iterate(ONE, into=User)] == [ada]
        none = "select 7 as id, 'Ada' as name where 1 = 0"
        assert await db.fetch_one(none, into=User) is None
        assert await db.fetch_all(none, into=User) == []


async def test_columns_that_do_not_fit_lose_nothing(backend: Backend) -> None:
    async with backend.database(max_size=1) as db:
        wrong = "select 7 as id, 'Ada' as nme"
        with pytest.raises(TypeError, match="no field for the column 'nme'"):
            await db.fetch_one(wrong, into=User)
        with pytest.raises(TypeError, match="no field for the column 'nme'"):
            await db.iterate(wrong, into=User).start()
        with pytest.raises(TypeError, match="into must be a class or a function"):
            await db.fetch_all(wrong, into=7)
        assert await db.fetch_val("select 1") == 1
        assert db.pool.active_count == 0


async def test_start_fetches_the_first_rows(backend: Backend) -> None:
    async with backend.database(max_size=2) as db:
        stream = await db.iterate("select 1 as id").start()
        assert db.pool.active_count == 1
        assert await stream.start() is stream
        assert [row[0] async for row in stream] == [1]
        assert db.pool.active_count == 0
        empty = await db.iterate("select 1 as id where 1 = 0").start()
        assert [row async for row in empty] == []
        failed = db.iterate("select * from nosuch")
        with pytest.raises(Exception, match="nosuch"):
            await failed.start()
        with pytest.raises(cenote.PoolError, match=r"from nosuch.* has failed: call iterate"):
            await failed.start()  # it would look like one without rows
        async with asyncio.timeout(WAIT):
            assert await db.fetch_val("select 1") == 1
