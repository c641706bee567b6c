"""A transaction on a server, its table, and another connection that sees what is committed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.backends import Backend
from tests.support.faults import Watcher, no_slot_is_lost, watching
from tests.support.held import connections_of
from tests.support.waiting import eventually


class Setting:
    """A database with a table, and somebody else who looks at it."""

    def __init__(self, db: Any, table: str, watcher: Watcher) -> None:
        self.db = db
        self.table = table
        self.watcher = watcher

    async def insert(self, number: int, on: Any = None) -> None:
        await (on or self.db).execute(f"insert into {self.table} values ({number}, 'a')")

    async def rows(self) -> list[int]:
        return await self.watcher.rows(self.table)

    async def lose_connection(self) -> None:
        """The session of this task is killed, and the machine has heard of it."""
        session = await self.db.fetch_val(self.watcher.backend.session)
        raw = self.db.bound_connection
        (link,) = (link for link in connections_of(self.db) if link.raw is raw)
        await self.watcher.kill(session)
        await eventually(lambda: link.is_dead)


@asynccontextmanager
async def setting(
    backend: Backend, url: str | None = None, **options: Any
) -> AsyncIterator[Setting]:
    async with (
        watching(backend) as watcher,
        backend.database(url, **{"max_size": 3, **options}) as db,
        backend.table(watcher.db) as table,
    ):
        yield Setting(db, table, watcher)
        assert not db.in_transaction
        assert db.pin_reason is None
        await no_slot_is_lost(db)
