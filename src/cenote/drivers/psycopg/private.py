"""What cenote needs of psycopg and psycopg does not offer."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from logging import DEBUG
from typing import Any, TypeVar

from ...log import log
from ...sql.driver import (
    LONGEST_KEPT,
    missing,
)
from ...sql.rows import row_type
from ..postgresql import (
    keeps,
)

try:
    import psycopg
    from psycopg._preparing import Prepare, PrepareManager
    from psycopg.pq import ExecStatus
    from psycopg.rows import no_result
    from psycopg.waiting import Ready, Wait
except ImportError:
    raise missing("psycopg", "psycopg") from None

R = TypeVar("R")

MADE_BY_CONNECT = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold",
                   "prepared_max", "_isolation_level", "_read_only", "_deferrable",
                   "_begin_statement", "_num_transactions", "_tpc")  # fmt: skip

# What a generator of psycopg waits for, and what it is told.
TO_READ, TO_WRITE = Wait.R.value, Wait.W.value
READABLE, WRITABLE = Ready.R.value, Ready.W.value

# What psycopg itself has prepared, and nothing of what its user has.
DEALLOCATE_OURS = b"""
DO $cenote$
DECLARE statement record;
BEGIN
    FOR statement IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE NOT from_sql LOOP
        EXECUTE 'DEALLOCATE ' || pg_catalog.quote_ident(statement.name);
    END LOOP;
END $cenote$
"""


def named(cursor: Any) -> Any:
    """A row factory of psycopg."""
    result = cursor.pgresult
    if result is None or not result.nfields:
        return tuple if has_rows(cursor) else no_result
    encoding = cursor._encoding
    return row_type(tuple([result.fname(at).decode(encoding) for at in range(result.nfields)]))


def has_rows(cursor: Any) -> bool:
    result = cursor.pgresult
    return result is not None and result.status == ExecStatus.TUPLES_OK


async def ride(steps: Generator[int, int, R], descriptor: int) -> R:
    """To the end of a generator of psycopg, which yields what it waits for. psycopg's own way
    wakes up ten times a second, or without a pause."""
    try:
        wanted = next(steps)
        loop = asyncio.get_running_loop()
        while True:
            ready = loop.create_future()
            if wanted & TO_READ:
                loop.add_reader(descriptor, tell, ready, READABLE)
            if wanted & TO_WRITE:
                loop.add_writer(descriptor, tell, ready, WRITABLE)
            try:
                state = await ready
            finally:
                if wanted & TO_READ:
                    loop.remove_reader(descriptor)
                if wanted & TO_WRITE:
                    loop.remove_writer(descriptor)
            wanted = steps.send(state)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except OSError as error:
        raise psycopg.OperationalError("the connection is lost") from error


def abandon(steps: Generator[int, int, Any]) -> None:
    """Close a generator of psycopg that is left in the middle. It ends a pipeline in order, so it
    may wait for something again and may fail; later, when it is collected, the connection that it
    speaks to is gone."""
    for _ in range(3):
        try:
            steps.close()
        except RuntimeError:  # it waits
            continue
        except Exception as error:
            log(DEBUG, "psycopg left a pipeline", error=error)
        return


def tell(future: asyncio.Future[int], state: int) -> None:
    if not future.done():
        future.set_result(state)


class Connection(psycopg.AsyncConnection[Any]):
    """A psycopg connection that can be left at once by who will destroy it."""

    hurried = False  # do not wait until a cancelled statement is over on the server
    left: BaseException | None = None  # with what it was

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        if not self.hurried:
            return await super().wait(gen, *arguments, **options)
        if self.left is not None:
            raise self.left  # psycopg wants to end its pipeline in order, and waits for it
        try:
            return await ride(gen, self.pgconn.socket)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.left = error
                abandon(gen)
            raise


class Keeper(PrepareManager):
    """Which statements psycopg keeps prepared on a connection."""

    def __init__(self, made: PrepareManager) -> None:
        super().__init__()
        self.prepare_threshold = made.prepare_threshold
        self.prepared_max = made.prepared_max
        self.missed = False  # of the statements since this was last set, one was not kept before
        self.guests = False  # statements of the user's own may be prepared on the server

    def get(self, query: Any, prepare: bool | None = None) -> tuple[Prepare, bytes]:
        name = self._names.get((query.query, query.types))
        if name is not None and prepare is not False:
            return Prepare.YES, name
        self.missed = True
        if not keeps(query.query.decode("latin-1")):
            return Prepare.NO, b""
        return super().get(query, prepare)

    def maybe_add_to_cache(self, query: Any, prep: Prepare, name: bytes) -> Any:
        if prep is Prepare.YES:
            self._names.move_to_end((query.query, query.types))
            return None
        if len(query.query) > LONGEST_KEPT:
            return self.key(query)  # psycopg would count how often it was run, by its text
        key = super().maybe_add_to_cache(query, prep, name)
        # psycopg looks at the answer to ROLLBACK, DISCARD ALL and their like only the first time.
        return self.key(query) if prep is Prepare.NO else key

    def maintain_gen(self, conn: Any) -> Any:
        while self._to_flush:
            name = self._to_flush.popleft()
            if name is None and self.guests:
                yield from conn._exec_command(DEALLOCATE_OURS)
            else:
                yield from conn._deallocate(name)


class Series(psycopg.AsyncCursor[Any]):
    """A cursor that knows which row of executemany() the server refused."""

    done = 0  # rows
    refusal: psycopg.Error | None = None  # of the next one

    def _check_results(self, results: Any) -> None:
        try:
            super()._check_results(results)
        except psycopg.Error as error:
            self.refusal = self.refusal or error  # those that follow are not executed
            raise
        self.done += 1
