"""The private names of psycopg: they are used here only, and checked when this is imported."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Mapping
from logging import DEBUG
from typing import TYPE_CHECKING, Any, TypeVar

from ...log import log
from ...sql.driver import LONGEST_KEPT
from ...sql.loading import missing
from ...sql.rows import row_type
from ..library import Library
from ..postgresql import keeps

try:
    import psycopg
    from psycopg.adapt import AdaptersMap
    from psycopg.pq import Conninfo, ConnStatus, ExecStatus, TransactionStatus
    from psycopg.rows import no_result, tuple_row
except ModuleNotFoundError as _error:
    if _error.name != "psycopg":
        raise
    raise missing("psycopg", "psycopg") from None

__all__ = ["ConnStatus", "Connection", "Conninfo", "Keeper", "Series", "TransactionStatus",
           "psycopg", "tuple_row"]  # fmt: skip

R = TypeVar("R")

TESTED = ("3.3.0", "3.3.9")  # oldest and newest

library: Library = Library("psycopg", psycopg.__version__, TESTED)
preparing: Any = library.module("psycopg._preparing", "Prepare", "PrepareManager")
waiting: Any = library.module("psycopg.waiting", "Ready", "Wait")

if TYPE_CHECKING:
    from psycopg._preparing import Prepare, PrepareManager
else:
    Prepare, PrepareManager = preparing.Prepare, preparing.PrepareManager

MADE_BY_CONNECT = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold",
                   "prepared_max", "_isolation_level", "_read_only", "_deferrable",
                   "_begin_statement", "_num_transactions", "_tpc")  # fmt: skip

library.require(PrepareManager, ["clear", "get", "key", "maintain_gen", "maybe_add_to_cache"])
library.require_assigned(PrepareManager, ["_names", "_to_flush"])
library.require(Prepare, ["NO", "SHOULD", "YES"])
library.require_assigned(
    psycopg.AsyncConnection,
    [
        *MADE_BY_CONNECT, "_adapters", "_closed", "_deallocate", "_exec_command",
        "_notice_handlers", "_notifies_backlog", "_notify_handlers", "_prepared", "cancel_safe",
        "lock", "pgconn", "wait",
    ],
)  # fmt: skip
library.require_assigned(
    psycopg.AsyncCursor,
    ["_check_results", "_closed", "_encoding", "_execute_gen", "_results", "pgresult"],
)
library.require_assigned(psycopg.AsyncServerCursor, ["_closed"])

# What a generator of psycopg waits for, and what it is told.
TO_READ, TO_WRITE = waiting.Wait.R.value, waiting.Wait.W.value
READABLE, WRITABLE = waiting.Ready.R.value, waiting.Ready.W.value

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


def row_factory(cursor: Any) -> Any:
    """A row factory of psycopg."""
    result = cursor.pgresult
    if result is None or not result.nfields:
        return tuple if has_rows(cursor) else no_result
    encoding = cursor._encoding
    return row_type(tuple([result.fname(at).decode(encoding) for at in range(result.nfields)]))


def has_rows(cursor: Any) -> bool:
    result = cursor.pgresult
    return result is not None and result.status == ExecStatus.TUPLES_OK


async def drive(steps: Generator[int, int, R], descriptor: int) -> R:
    """Run a generator of psycopg, which yields what it waits for, to its end and give its result.
    psycopg's own way wakes up ten times a second, or without a pause."""
    try:
        wanted = next(steps)
        loop = asyncio.get_running_loop()
        while True:
            ready = loop.create_future()
            if wanted & TO_READ:
                loop.add_reader(descriptor, set_ready, ready, READABLE)
            if wanted & TO_WRITE:
                loop.add_writer(descriptor, set_ready, ready, WRITABLE)
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


def set_ready(future: asyncio.Future[int], state: int) -> None:
    if not future.done():
        future.set_result(state)


class Connection(psycopg.AsyncConnection[Any]):
    """A psycopg connection that a cancelled task can leave at once, to be destroyed."""

    prompt = False  # do not wait until a cancelled statement is over on the server
    left: BaseException | None = None  # with what it was

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        if not self.prompt:
            return await super().wait(gen, *arguments, **options)
        if self.left is not None:
            raise self.left  # psycopg wants to end its pipeline in order, and waits for it
        try:
            return await drive(gen, self.pgconn.socket)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.left = error
                abandon(gen)
            raise


class Keeper(PrepareManager):
    """Which statements psycopg keeps prepared on a connection."""

    def __init__(self, made: PrepareManager) -> None:
        super().__init__()
        self.prepare_threshold: int | None = made.prepare_threshold
        self.prepared_max: int = made.prepared_max
        # Of the statements since this was last set, one was not kept before.
        self.missed: bool = False
        self.guests: bool = False  # statements of the user's own may be prepared on the server

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

    @property
    def unflushed(self) -> bool:
        """Whether something was forgotten that is still prepared on the server."""
        return bool(self._to_flush)

    @property
    def kept(self) -> int:
        """How many statements are prepared."""
        return len(self._names)

    def maintain_gen(self, conn: Any) -> Any:
        while self._to_flush:
            name = self._to_flush.popleft()
            if name is None and self.guests:
                yield from conn._exec_command(DEALLOCATE_OURS)
            else:
                yield from conn._deallocate(name)


class Series(psycopg.AsyncCursor[Any]):
    """A cursor that knows which row of executemany() the server refused."""

    done: int = 0  # rows
    refusal: psycopg.Error | None = None  # of the next one

    def _check_results(self, results: Any) -> None:
        try:
            super()._check_results(results)
        except psycopg.Error as error:
            self.refusal = self.refusal or error  # those that follow are not executed
            raise
        self.done += 1


# -- of any psycopg connection -------------------------------------------------------------------


def install_keeper(raw: Any) -> Keeper:
    """Let a `Keeper` decide what stays prepared on this connection."""
    keeper = raw._prepared = Keeper(raw._prepared)
    return keeper


def settings(raw: Any) -> Mapping[str, Any]:
    """What connect() has set, for `restore()`."""
    return {name: getattr(raw, name) for name in MADE_BY_CONNECT}


def restore(raw: Any, settings: Mapping[str, Any], context: Any) -> None:
    """Set everything of the client's side that belongs to a session back."""
    raw._notify_handlers.clear()
    raw._notice_handlers.clear()
    for name, value in settings.items():
        setattr(raw, name, value)
    raw._adapters = None if context is None else AdaptersMap(context.adapters)


def drop_notifies(raw: Any) -> None:
    """Forget notifications that came and were not read."""
    raw._notifies_backlog = deque()


async def execute(raw: Any, cursor: Any, text: str, arguments: Any, prepare: bool | None) -> None:
    """What execute() of a cursor does, without its lock and without its wait after a
    cancellation."""
    steps = cursor._execute_gen(text, arguments, prepare=prepare)
    await drive(steps, raw.pgconn.socket)


async def command(raw: Any, text: str) -> bytes | None:
    """Run a statement without arguments and rows; gives what the server answered."""
    result = await drive(raw._exec_command(text), raw.pgconn.socket)
    return None if result is None else result.command_status


def count_rows(cursor: Any) -> int:
    """Rows of the last result of a cursor."""
    rows: int = cursor._results[-1].ntuples
    return rows


def abandon_cursor(cursor: Any) -> None:
    """Mark a cursor as closed whose connection is destroyed: psycopg complains about open ones."""
    cursor._closed = True


def terminate(raw: Any) -> None:
    """Close at once."""
    raw._closed = True
    raw.pgconn.finish()
