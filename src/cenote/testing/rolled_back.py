"""A block in which everything that is done in a database is undone at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import PoolError
from ..observe import task_name
from ..sql.database import Database
from ..sql.driver import Driver
from ..sql.per_loop import LoopDatabase
from .shared_connection import SharedDriver
from .shared_transaction import SharedTransaction

_endings: set[asyncio.Task[None]] = set()  # of blocks that were left, kept from collection


@asynccontextmanager
async def rolled_back(database: Database) -> AsyncIterator[Database]:
    """Undo at the end of the block whatever any task of this event loop does by `database` in it.

    Everything runs in one transaction on one connection: `transaction()` is a savepoint, a commit
    releases it, a statement outside of one fails alone, and tasks wait for one another. The block
    may be entered in one task and left in another, as pytest's plugins do with fixtures. It opens
    the database if that was closed, and another such block may be inside it.

    Raises:
        PoolError: A task is in a transaction of this database, or another event loop that is
            running uses it; and, at the end, if something has committed all the same.
    """
    if not isinstance(database, Database):
        raise TypeError(f"rolled_back() takes a Database, not {type(database).__name__}")
    if database.closed:
        await database.open()
    loop = asyncio.get_running_loop()
    _refuse_what_is_open(database, loop)
    outer = database._loop_databases.stand_ins.get(loop)
    base = LoopDatabase(database, loop, outer, min_size=0, max_size=1)
    shared = await _begin(base)
    held = database._loop_databases.pop(loop, None)
    database._loop_databases.stand_ins[loop] = SharedDriver.of(base.driver, shared)
    try:
        yield database
    finally:
        inner = database._loop_databases.pop(loop, None)
        _put_back(database, loop, held, outer)
        if inner is not None:
            inner.end()  # by the task that leaves the block
        gone = held if held is not None and database.closed else None
        ending = loop.create_task(_end(shared, inner, base, gone))
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)
        await asyncio.shield(ending)  # nothing stays open because this is cancelled
    if shared.committed and shared.lost is not None:
        raise shared.lost


async def _begin(base: LoopDatabase) -> SharedTransaction:
    """Begin the transaction on a connection of this pool."""
    try:
        connection = await base.pool.acquire()
        try:
            await connection.begin(None, False)
        except BaseException as error:
            if not isinstance(error, Exception):
                connection.interrupt()
            base.pool.discard(connection)
            raise
    except BaseException:
        await base.close()
        raise
    patience = base.database._pool_options["acquire_timeout"]
    return SharedTransaction(base.label, base.driver, connection, patience)


async def _end(
    shared: SharedTransaction,
    inner: LoopDatabase | None,
    base: LoopDatabase,
    gone: LoopDatabase | None,
) -> None:
    """Roll back, and close the pool of the stand-ins, that of the connection, and the one that was
    put back, if the database was closed inside."""
    try:
        if inner is not None:
            await inner.close()
    finally:
        await shared.undo()
        await base.pool.discard(shared.connection)
        await base.close()
        if gone is not None:
            await gone.close()


def _refuse_what_is_open(database: Database, loop: asyncio.AbstractEventLoop) -> None:
    """What would not be undone must not be possible without an error."""
    for other in [*database._loop_databases]:
        if (
            other is not loop
            and other.is_running()
            and other not in database._loop_databases.stand_ins
        ):
            raise PoolError(
                f"database {database._label}: another event loop, which is running, uses it, and "
                f"rolled_back() undoes what is done in its own loop alone. Enter it there."
            )
    present = database._loop_databases.get(loop)
    for session in [] if present is None else present.sessions.values():
        if session.in_transaction and present is not None:
            raise PoolError(
                f"database {database._label}: rolled_back() while task "
                f"{task_name(session.task)!r} is in a transaction, which it could not undo. "
                f"Enter it before the transaction is begun."
            )


def _put_back(
    database: Database,
    loop: asyncio.AbstractEventLoop,
    held: LoopDatabase | None,
    outer: Driver | None,
) -> None:
    """As it was before the block."""
    if held is not None:
        database._loop_databases[loop] = held
    if outer is None:
        del database._loop_databases.stand_ins[loop]
    else:
        database._loop_databases.stand_ins[loop] = outer
