"""The private names of psycopg: they are used here only, and checked when this is imported."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from logging import DEBUG
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from ...log import log
from ...sql.driver import LONGEST_KEPT
from ...sql.loading import missing
from ...sql.rows import row_type
from ..library import Library
from ..postgresql import keeps

try:
    import psycopg
    from psycopg import generators
    from psycopg.adapt import AdaptersMap, PyFormat, Transformer
    from psycopg.pq import Conninfo, ConnStatus, ExecStatus, TransactionStatus
    from psycopg.rows import no_result, tuple_row
except ModuleNotFoundError as _error:
    if _error.name != "psycopg":
        raise
    raise missing("psycopg", "psycopg") from None

__all__ = ["AdaptersMap", "BatchCursor", "ConnStatus", "Connection", "Conninfo", "PyFormat",
           "StatementKeeper", "TransactionStatus", "psycopg", "tuple_row"]  # fmt: skip

R = TypeVar("R")

TESTED = ("3.3.0", "3.3.9")  # oldest and newest
HAS_PIPELINE: bool = psycopg.capabilities.has_pipeline()  # libpq 14 and later

library: Library = Library("psycopg", psycopg.__version__, TESTED)
preparing: Any = library.module("psycopg._preparing", "Prepare", "PrepareManager")
queries: Any = library.module("psycopg._queries", "PostgresQuery")
library.require(queries.PostgresQuery, ["convert", "query", "types"])
waiting: Any = library.module("psycopg.waiting", "Ready", "Wait")

arrays: Any = library.module("psycopg.types.array", "ListBinaryDumper", "ListDumper")
enums: Any = library.module("psycopg.types.enum", "EnumBinaryDumper", "EnumDumper")
documents: Any = library.module("psycopg.types.json", "Json", "Jsonb")

# Those that psycopg itself has for lists and for members of an Enum.
USUAL_DUMPERS: frozenset[type] = frozenset(
    {arrays.ListBinaryDumper, arrays.ListDumper, enums.EnumBinaryDumper, enums.EnumDumper}
)

if TYPE_CHECKING:
    from psycopg._preparing import Prepare, PrepareManager
else:
    Prepare, PrepareManager = preparing.Prepare, preparing.PrepareManager

MADE_BY_CONNECT = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold",
                   "prepared_max", "_isolation_level", "_read_only", "_deferrable",
                   "_begin_statement", "_num_transactions", "_tpc")  # fmt: skip

library.require(
    PrepareManager, ["clear", "get", "key", "maintain_gen", "maybe_add_to_cache", "validate"]
)
library.require_assigned(PrepareManager, ["_names", "_to_flush"])
library.require(Prepare, ["NO", "SHOULD", "YES"])
library.require_assigned(
    psycopg.AsyncConnection,
    [
        *MADE_BY_CONNECT, "_adapters", "_closed", "_deallocate", "_exec_command",
        "_notice_handlers", "_notifies_backlog", "_notify_handlers", "_pipeline", "_prepared",
        "_start_query", "cancel_safe", "lock", "pgconn", "transaction", "wait",
    ],
)  # fmt: skip
library.require_assigned(
    psycopg.AsyncCursor,
    [
        "_check_results", "_closed", "_convert_query", "_encoding", "_execute_gen",
        "_execute_send", "_get_prepared", "_last_query", "_results", "_send_prepare",
        "_send_query_prepared", "_set_results", "_start_query", "pgresult",
    ],
)  # fmt: skip
library.require_assigned(psycopg.AsyncServerCursor, ["_closed"])

FIRST_MADE = 16384  # the first number of a type that PostgreSQL does not have by itself
BASES = """
WITH RECURSIVE types (asked, oid, base) AS (
    SELECT oid, oid, typbasetype FROM pg_catalog.pg_type WHERE oid IN ({})
    UNION ALL
    SELECT asked, its.oid, its.typbasetype FROM types JOIN pg_catalog.pg_type its ON its.oid = base
)
SELECT asked, oid FROM types WHERE base = 0
"""

LONGEST_BUSY = 0.005  # seconds for which the rows of a series are sent without a pause

# What a generator of psycopg waits for, and what is sent to it.
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
        return row_type(()) if has_rows(cursor) else no_result
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
        busy = 0.0  # since when it has not waited; 0: it has
        while True:
            # A pipeline asks for every row of executemany() whether it may write, which it may
            # nearly always: to ask the event loop takes ten times as long as the rest of the row.
            if wanted & TO_WRITE and (now := ready_now(descriptor, wanted)):
                busy = busy or monotonic()
                if monotonic() - busy > LONGEST_BUSY:  # others have their turn, and a cancellation
                    await asyncio.sleep(0)
                    busy = 0.0
                wanted = steps.send(now)
                continue
            busy = 0.0
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


def ready_now(descriptor: int, wanted: int) -> int:
    """Which of what a generator of psycopg wants it may do without waiting."""
    reads, writes = bool(wanted & TO_READ), bool(wanted & TO_WRITE)
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN * reads | select.POLLOUT * writes)
        [(_, events)] = poll.poll(0) or [(descriptor, 0)]
        reads, writes = bool(events & select.POLLIN), bool(events & select.POLLOUT)
    else:  # Windows
        found = select.select([descriptor] * reads, [descriptor] * writes, [], 0)
        reads, writes = bool(found[0]), bool(found[1])
    ready: int = READABLE * reads | WRITABLE * writes
    return ready


def abandon(steps: Generator[int, int, Any]) -> None:
    """Close a generator of psycopg that is left in the middle. It ends a pipeline in order, so it
    may wait for something again and may fail; later, when it is collected, its
    connection is gone."""
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
    """A psycopg connection that a cancelled task can leave at once, to be destroyed, and that
    sends BEGIN and SAVEPOINT with the statement that follows."""

    prompt = False  # do not wait until a cancelled statement is over on the server
    left: BaseException | None = None  # with what it was
    unsent: tuple[bytes, ...] = ()  # commands that go before whatever is sent next

    def send_unsent(self) -> Any:
        unsent, self.unsent = self.unsent, ()
        for each in unsent:
            yield from super()._exec_command(each)

    def _start_query(self) -> Any:
        if self.unsent:
            yield from self.send_unsent()
        yield from super()._start_query()

    def _exec_command(self, *arguments: Any, **options: Any) -> Any:
        if self.unsent:
            yield from self.send_unsent()
        return (yield from super()._exec_command(*arguments, **options))

    @asynccontextmanager
    async def transaction(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        """As psycopg's own, which looks whether a transaction is open before it sends anything."""
        if self.unsent:
            async with self.lock:
                await self.wait(self.send_unsent())
        async with super().transaction(*arguments, **options) as transaction:
            yield transaction

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


class StatementKeeper(PrepareManager):
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


class BatchCursor(psycopg.AsyncCursor[Any]):
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


def install_keeper(raw: Any) -> StatementKeeper:
    """Let a `StatementKeeper` decide what stays prepared on this connection."""
    keeper = raw._prepared = StatementKeeper(raw._prepared)
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


def can_defer(raw: Any) -> bool:
    """Whether BEGIN may travel with the statement that follows."""
    return (
        isinstance(raw, Connection) and raw.cursor_factory is psycopg.AsyncCursor and HAS_PIPELINE
    )


async def execute_behind(
    raw: Any, cursor: Any, text: str, arguments: Any, prepare: bool | None
) -> None:
    """The same, with the commands that were not sent yet in front, in one round trip."""
    await drive(_execute_behind(raw, cursor, text, arguments, prepare), raw.pgconn.socket)


def _execute_behind(raw: Any, cursor: Any, text: str, arguments: Any, prepare: bool | None) -> Any:
    pgconn, keeper = raw.pgconn, raw._prepared
    unsent, raw.unsent = raw.unsent, ()
    try:
        yield from cursor._start_query(text)
        query = cursor._convert_query(text, arguments)
        prepared, name = cursor._get_prepared(query, prepare)
        pgconn.enter_pipeline_mode()
    except BaseException:
        raw.unsent = unsent  # nothing was sent
        raise
    refusal: psycopg.Error | None = None
    for each in unsent:
        pgconn.send_query_params(each, None)
    try:
        if prepared is Prepare.NO:
            cursor._execute_send(query, force_extended=True)
        else:
            if prepared is Prepare.SHOULD:
                cursor._send_prepare(name, query)
            cursor._send_query_prepared(name, query)
    except psycopg.Error as error:  # libpq refuses it
        refusal = error
    pgconn.pipeline_sync()
    answers = yield from _answers_to_sync(pgconn)
    pgconn.exit_pipeline_mode()
    before = len(unsent) + (prepared is Prepare.SHOULD)
    for results in answers[:before]:
        raise_refusal(results, raw)
    if refusal is not None:
        raise refusal
    results = answers[before]
    key = keeper.maybe_add_to_cache(query, prepared, name)
    if key is not None:
        keeper.validate(key, prepared, name, results)
    cursor._check_results(results)
    cursor._set_results(results)
    cursor._last_query = text
    yield from keeper.maintain_gen(raw)


def _answers_to_sync(pgconn: Any) -> Any:
    """The results of each command of a pipeline up to its end, or to the end of the connection."""
    answers: list[Any] = []
    while True:
        results = yield from generators.execute(pgconn)
        if results and results[0].status == ExecStatus.PIPELINE_SYNC:
            return answers
        if results:
            answers.append(results)
        if pgconn.status == ConnStatus.BAD:
            for each in answers:
                raise_refusal(each, None)
            raise psycopg.OperationalError("the connection is lost")


def raise_refusal(results: Any, raw: Any) -> None:
    """Raise what the server answered, if it is an error."""
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            encoding = "utf-8" if raw is None else raw.pgconn._encoding
            raise psycopg.errors.error_from_result(result, encoding=encoding)


async def command(raw: Any, text: str) -> bytes | None:
    """Run a statement without arguments and rows; gives what the server answered."""
    result = await drive(raw._exec_command(text), raw.pgconn.socket)
    return None if result is None else result.command_status


async def parameter_types(
    raw: Any, text: str, arguments: Sequence[Any], asked: Collection[int]
) -> list[int] | None:
    """Ask the server for the types of the parameters of a statement; None if it cannot tell.

    `asked` are the positions of those whose type is not given by the argument.
    """
    pgconn = raw.pgconn
    query = queries.PostgresQuery(Transformer(raw))
    query.convert(text, [None if at in asked else value for at, value in enumerate(arguments)])
    types = [0 if at in asked else oid for at, oid in enumerate(query.types)]
    describe = _describe if HAS_PIPELINE else _describe_in_two
    described = await drive(describe(pgconn, query.query, types), pgconn.socket)
    if described is None:
        return None
    found: list[int] = [described.param_type(at) or 0 for at in range(described.nparams)]
    made = {oid for at, oid in enumerate(found) if at in asked and oid >= FIRST_MADE}
    bases = await base_types(raw, made) if made else {}
    return [bases.get(oid, oid) for oid in found]


def _describe(pgconn: Any, text: bytes, types: Sequence[int]) -> Any:
    """Let the server read a statement and describe it; None if it cannot. In one message: behind a
    pooler two would reach two sessions, and the second would describe another task's."""
    refusal: psycopg.Error | None = None
    pgconn.enter_pipeline_mode()
    try:
        pgconn.send_prepare(b"", text, types)
        pgconn.send_describe_prepared(b"")
    except psycopg.Error as error:  # libpq refuses it
        refusal = error
    pgconn.pipeline_sync()
    answers = yield from _answers_to_sync(pgconn)
    pgconn.exit_pipeline_mode()
    if refusal is not None:
        raise refusal
    described = answers[-1][-1]
    return described if described.status == ExecStatus.COMMAND_OK else None


def _describe_in_two(pgconn: Any, text: bytes, types: Sequence[int]) -> Any:
    """The same with a libpq that has no pipeline."""
    pgconn.send_prepare(b"", text, types)
    prepared = yield from generators.execute(pgconn)
    if prepared[-1].status != ExecStatus.COMMAND_OK:
        return None
    pgconn.send_describe_prepared(b"")
    described = yield from generators.execute(pgconn)
    return described[-1]


async def base_types(raw: Any, oids: Iterable[int]) -> dict[int, int]:
    """Ask the server which type is behind each of these, as behind a domain; else it is itself."""
    text = BASES.format(",".join(map(str, oids)))
    result = await drive(raw._exec_command(text), raw.pgconn.socket)
    rows = ((result.get_value(at, 0), result.get_value(at, 1)) for at in range(result.ntuples))
    return {int(oid): int(base) for oid, base in rows}


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
