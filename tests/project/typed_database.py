"""Checked by mypy and pyright in test_typing.py: what they make of a database. Never run."""

import enum
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict, assert_type

import attrs
import msgspec
import pydantic
from starlette.applications import Starlette
from starlette.routing import Route

import cenote
from cenote import Database, Pool, Row
from cenote.extras.asgi import lifespan, readiness, unavailable


@dataclass
class User:
    id: int
    name: str


class Named(NamedTuple):
    id: int
    name: str


class Keyed(TypedDict):
    id: int
    name: str


@attrs.define
class Attrs:
    id: int
    name: str


class Model(pydantic.BaseModel):
    id: int
    name: str


class Struct(msgspec.Struct):
    id: int
    name: str


class Color(enum.Enum):
    RED = "red"


def greeting(id: int, name: str) -> str:
    return f"{id} {name}"


async def set_up(connection: Any) -> None: ...


async def ask() -> str:
    return "secret"


SQL = "select id, name from users"

# Every option, of the database and of its pool.
db = Database(
    "postgresql://app@localhost/shop",
    on_connect=set_up,
    password=ask,
    statement_cache_size=0,
    reset="always",
    ping_after_idle=1,
    connect_args={"timeout": 3},
    child_tasks="error",
    pooled=True,
    persistent=False,
    values="driver",
    min_size=1,
    max_size=10,
    acquire_timeout=None,
    max_lifetime=600,
    max_waiting=100,
    strategy=cenote.ConsecutiveFailures(5),
    name="shop",
)


async def statements(parameters: Sequence[object], names: Mapping[str, object]) -> None:
    assert_type(await db.execute(SQL), int)
    assert_type(await db.execute(SQL, parameters), int)
    assert_type(await db.execute(SQL, names), int)
    assert_type(await db.execute(SQL, [1, "Ada", None, datetime.now(), {"a": [1]}, Color.RED]), int)
    assert_type(await db.execute(SQL, (1,)), int)
    await db.execute_many(SQL, [(1, "Ada"), (2, "Grace")])
    await db.execute_many(SQL, ({"id": id} for id in range(3)))
    assert_type(await db.fetch_all(SQL), list[Row])
    assert_type(await db.fetch_one(SQL, [1]), Row | None)
    assert_type(await db.fetch_val(SQL), Any)
    count: int = await db.fetch_val("select count(*) from users")
    assert_type(count, int)
    async for row in db.iterate(SQL, {"id": 1}):
        assert_type(row, Row)


async def rows() -> None:
    row = await db.fetch_one(SQL)
    if row is None:
        return
    number: int = row["id"]
    name: str = row[1]
    assert_type(row[0:1], tuple[Any, ...])
    assert_type("id" in row, bool)
    assert_type(len(row), int)
    assert_type(row.columns, tuple[str, ...])
    pairs: dict[str, Any] = dict(row)
    if row == (7, "Ada") or row != (8, "Grace"):
        print(hash(row), tuple(row), {row: 1})
    print(number, name, pairs, list(row), list(row.keys()), list(row.values()), row.get("id"))
    for value in row:
        print(value)
    match row:
        case [first, *rest]:
            print(first, rest)
    # A row may be the parameters.
    assert_type(await db.execute("insert into others values (?, ?)", row), int)
    await db.execute_many("insert into others values (?, ?)", await db.fetch_all(SQL))


async def objects() -> None:
    assert_type(await db.fetch_all(SQL, into=User), list[User])
    assert_type(await db.fetch_one(SQL, [7], into=User), User | None)
    assert_type(await db.fetch_all(SQL, into=Named), list[Named])
    assert_type(await db.fetch_all(SQL, into=Keyed), list[Keyed])
    assert_type(await db.fetch_all(SQL, into=Attrs), list[Attrs])
    assert_type(await db.fetch_all(SQL, into=Model), list[Model])
    assert_type(await db.fetch_one(SQL, into=Struct), Struct | None)
    assert_type(await db.fetch_all(SQL, into=greeting), list[str])
    async for user in db.iterate(SQL, into=User):
        assert_type(user, User)
    async with db.iterate(SQL, into=Model) as stream:
        async for model in await stream.start():
            assert_type(model, Model)
    async with await db.prepare(SQL) as statement:
        assert_type(await statement.execute([1]), int)
        assert_type(await statement.fetch_all(into=User), list[User])
        assert_type(await statement.fetch_one([1]), Row | None)
        async for named in statement.iterate([1], into=Named):
            assert_type(named, Named)


async def transactions() -> None:
    async with db.transaction(isolation="serializable", read_only=True) as tx:
        assert_type(await tx.execute(SQL), int)
        assert_type(await tx.fetch_one(SQL, into=User), User | None)
        assert_type(await tx.fetch_all(SQL), list[Row])
        async for row in tx.iterate(SQL):
            assert_type(row, Row)

    async def transfer(amount: int, *, note: str = "") -> str:
        return f"{amount} {note}"

    assert_type(await db.transact(transfer, 7, attempts=3, isolation="repeatable read"), str)
    await db.begin(isolation="read committed")
    try:
        await db.commit()
    except cenote.TransactionLostError as error:
        assert_type(error.outcome, Literal["rolled_back", "committed", "unknown"])
    assert_type(db.in_transaction, bool)
    assert_type(db.pin_reason, str | None)


async def around(pool: Pool[Any]) -> None:
    async with db as entered:
        assert_type(entered, Database)
    # The pool is None with pooled=False alone, which the program itself has written.
    print(db.pool.stats().idle, db.pool.active_count, db.pool.holders())
    await db.pool.retire()
    async with db.connection() as connection:
        await connection.copy_records_to_table("users", records=[(1, "Ada")])
    assert_type(db.capabilities, frozenset[str])

    app = Starlette(lifespan=lifespan(db, pool), routes=[Route("/ready", readiness(db))])
    app.add_route("/live", readiness(db, pool))
    app.add_exception_handler(cenote.PoolError, unavailable)
    app.mount("/other", readiness(db, details=False))
    manager: AbstractAsyncContextManager[Database] = db
    print(manager)
