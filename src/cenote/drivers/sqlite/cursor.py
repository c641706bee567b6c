"""Cursors of an asynchronous connection to SQLite, with the interface of aiosqlite's."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from .client import Connection

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Cursor:
    """A cursor whose calls run in the thread of its connection."""

    def __init__(self, connection: Connection, cursor: sqlite3.Cursor) -> None:
        self._connection = connection  # or its guard, with which the cursor ends
        self._cursor = cursor

    async def __aenter__(self) -> Cursor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._rows()

    async def _rows(self) -> AsyncIterator[Any]:
        count = self._connection.iter_chunk_size
        while rows := await self.fetchmany(count):
            for row in rows:
                yield row

    async def execute(self, sql: str, parameters: Any = ()) -> Cursor:
        await self._connection.run(self._cursor.execute, sql, parameters)
        return self

    async def executemany(self, sql: str, parameters: Iterable[Any]) -> Cursor:
        await self._connection.run(self._cursor.executemany, sql, parameters)
        return self

    async def executescript(self, sql_script: str) -> Cursor:
        await self._connection.run(self._cursor.executescript, sql_script)
        return self

    async def fetchone(self) -> Any:
        return await self._connection.run(self._cursor.fetchone)

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        count = self._cursor.arraysize if size is None else size
        return await self._connection.run(self._cursor.fetchmany, count)

    async def fetchall(self) -> list[Any]:
        return await self._connection.run(self._cursor.fetchall)

    async def close(self) -> None:
        await self._connection.run(self._cursor.close)

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._cursor.lastrowid

    @property
    def description(self) -> Any:
        return self._cursor.description

    @property
    def arraysize(self) -> int:
        return self._cursor.arraysize

    @arraysize.setter
    def arraysize(self, value: int) -> None:
        self._cursor.arraysize = value

    @property
    def row_factory(self) -> Any:
        return self._cursor.row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._cursor.row_factory = factory

    @property
    def connection(self) -> sqlite3.Connection:
        return self._cursor.connection


class Pending(Coroutine[Any, Any, R]):
    """A call under way: awaited for its result, or entered with `async with`, which closes a
    cursor at the end of the block."""

    __slots__ = ("_coroutine", "_result")

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._coroutine = coroutine
        self._result: R

    def __await__(self) -> Generator[Any, None, R]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> R:
        self._result = await self._coroutine
        return self._result

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self._result, Cursor):
            await self._result.close()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()


def pending(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Pending[R]]:
    """Let a coroutine method be used with `async with` as well."""

    @wraps(method)
    def call(self: S, /, *arguments: P.args, **options: P.kwargs) -> Pending[R]:
        return Pending(method(self, *arguments, **options))

    return call
