"""One connection to MySQL or MariaDB."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from logging import DEBUG
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ...log import log
from ...sql.dialects import MYSQL, Dialect, Isolation
from ...sql.driver import MANY, Arguments, Collected, DriverConnection, Prepared, RowCursor
from ...sql.notes import each_row, note_row, of_values
from ...sql.parsing.placeholders import Template, UsualText
from ...sql.parsing.session_rules import analyse
from ...sql.rows import make_rows
from ...sql.values import Conversions, convert_columns
from ..wire import Wire, hang_up
from .private import AUTOCOMMIT, IN_TRANSACTION, Connection, Rows, errors
from .values import KNOWN, conversions, first_large_int, literals, miscounted, parameters

if TYPE_CHECKING:
    from .driver import MysqlDriver

T = TypeVar("T")

SYNTAX, UNSUPPORTED, TOO_MANY_STATEMENTS, TOO_MANY_MARKS = 1064, 1295, 1461, 1390
NO_SUCH_SAVEPOINT = 1305
OF_VALUES = frozenset({1265, 1366, 3819})  # of MySQL, whose SQLSTATEs do not say so
WATCH = "cenote_watch"
UNPREPARABLE = frozenset({SYNTAX, UNSUPPORTED, TOO_MANY_STATEMENTS, TOO_MANY_MARKS})
REMEMBERED = 128  # texts that the server cannot prepare

BATCH = 1_000_000  # bytes, about, of what execute_many() sends at once
MOST_MARKS = 65_535  # in a prepared statement

WAITING = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "DO"})
CHANGING = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE"})
INSERTING = re.compile(r"\s*(?:insert|replace)\b", re.IGNORECASE)
AT_ROW = re.compile(r" at row ([0-9]+)\b")  # says MySQL of a value that does not fit
ASK_ROW = (
    "BEGIN NOT ATOMIC DECLARE n INT; GET DIAGNOSTICS CONDITION 1 n = ROW_NUMBER; SELECT n; END"
)
RETURNING = re.compile(r"\breturning\b", re.IGNORECASE)
# INSERT with nothing but placeholders as its values, of which there may be several lists.
INSERT_VALUES = re.compile(
    r"(\s*(?:insert|replace)\b[^?'\"`#/\\-]+\bvalues?\s*)"
    r"(\(\s*\?\s*(?:,\s*\?\s*)*\))"
    r"(\s*(?:(?:as|on\s+duplicate)\b[^?;]*)?);?\s*",
    re.IGNORECASE,
)

Who = tuple[str | None, str | None]  # role and database: both outlast a reset


class MysqlConnection(DriverConnection):
    """A connection of asyncmy, with the statements that it keeps prepared."""

    __slots__ = (
        "_changes",
        "_driver",
        "_plans",
        "_skipped",
        "_stale",
        "_unfit",
        "_unpreparable",
        "_wire",
        "typed",
        "who",
    )  # fmt: skip

    dialect: ClassVar[Dialect] = MYSQL
    cancels: ClassVar[bool] = True
    caches_statements: ClassVar[bool] = True
    gives_sqlstate: ClassVar[bool] = True
    interleaves: ClassVar[bool] = False
    keeping: ClassVar[frozenset[str]] = frozenset({"cursor", "prepare"})
    raw: Connection
    restarted: bool

    def __init__(self, raw: Connection, driver: MysqlDriver) -> None:
        super().__init__(raw)
        self._driver = driver
        self._plans: dict[Any, Any] = {}  # kind -> prepared statement; the last used is the last
        self._stale: list[Any] = []  # plans that are of no use any more, but still on the server
        self._unpreparable: set[str] = set()
        self._changes = 0  # of the settings of the session, after which the plans were made
        self._skipped = False  # rows of a stream that was to stop
        self._unfit = False  # it came back without autocommit, and was not reset
        self.who: Who | None = None  # as it was when it was new; None: unknown
        # MySQL keeps the types of the first parameters, and makes all others fit them: after 1.5 a
        # text would be 0.0. MariaDB does not.
        self.typed: bool = "MariaDB" not in raw.server_version
        self._wire = Wire(raw.transport.get_extra_info("socket").fileno())

    @property
    def in_transaction(self) -> bool:
        raw = self.raw
        return bool(raw.connected and (raw.server_status & IN_TRANSACTION or self._unfit))

    def returned(self) -> None:
        # The next task would be in a transaction as soon as it does anything.
        self._unfit = not self.raw.server_status & AUTOCOMMIT

    # -- statements ------------------------------------------------------------------------------

    async def execute(self, text: str, arguments: Arguments) -> int:
        return affected(text, await self._run(text, arguments))

    async def fetch_all(self, text: str, arguments: Arguments) -> list[Any]:
        return self.named(await self._run(text, arguments))

    async def fetch_one(self, text: str, arguments: Arguments) -> Any:
        rows = self.named(await self._run(text, arguments), most=1)
        return rows[0] if rows else None

    async def fetch_val(self, text: str, arguments: Arguments) -> Any:
        return self.first(await self._run(text, arguments))

    def named(self, result: Any, most: int | None = None) -> list[Any]:
        """The rows of a result."""
        if result.description is None:
            return []
        rows = (result.rows or ())[:most]
        if rows and (found := self.conversions(result)):
            rows = convert_columns(rows, found)
        return make_rows([column[0] for column in result.description], rows)

    def first(self, result: Any) -> Any:
        """The first value of the first row, or None."""
        if not result.rows:
            return None
        value = result.rows[0][0]
        for at, convert in self.conversions(result):
            if at == 0 and value is not None:
                return convert(value)
        return value

    def conversions(self, result: Any) -> Conversions:
        """What is converted of its rows."""
        if not self._driver.config.same_values:
            return ()
        return conversions(result, self.raw.variables)

    def _run(self, text: str, arguments: Any) -> Awaitable[Any]:
        """The first result. What has parameters is prepared, and they are sent apart from it."""
        raw = self.raw
        if not arguments:
            return raw.run(text)
        plain = raw.sending == "utf8" and KNOWN.issuperset(map(type, arguments))
        values = arguments if plain else self.values(arguments)
        statement = self._kept(text, values)
        if statement is None:
            return self._prepare_and_run(text, values)
        check_count(statement, values)
        return raw.run_prepared(statement, values)

    async def _prepare_and_run(self, text: str, values: Sequence[Any]) -> Any:
        raw = self.raw
        statement = await self._statement(text, values)
        if statement is None:
            return await raw.run(self._written(text, values))
        if len(text) <= self._driver.longest_kept:
            check_count(statement, values)
            return await raw.run_prepared(statement, values)
        try:
            check_count(statement, values)
            return await raw.run_prepared(statement, values)
        finally:
            await close_statement(statement)

    def values(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The parameters, checked: nothing is sent of a statement whose parameters are wrong."""
        raw = self.raw
        values = parameters(arguments, raw.variables, same_values=self._driver.config.same_values)
        if raw.sending != "utf8":
            for value in values:
                if isinstance(value, str):
                    raw.check_text(value)
        return values

    def _kept(self, text: str, values: Sequence[Any]) -> Any:
        """Prepared before, or None."""
        if type(text) is UsualText:
            check_usual(self.raw.variables.get("sql_mode"))
        plans, changes = self._plans, self.raw.changes
        if self._changes != changes:  # a plan is what the text meant in the old mode and charset
            self.forget_plans()
            self._changes = changes
        kind = self._kind(text, values) if self.typed else text
        statement = plans.pop(kind, None)
        if statement is not None:
            plans[kind] = statement
        return statement

    def _kind(self, text: str, values: Sequence[Any]) -> Any:
        return (text, *map(type, values)) if self.typed else text

    async def _statement(self, text: str, values: Sequence[Any]) -> Any:
        """Prepared, now or before; None: the server cannot prepare it. See let_go()."""
        plans, keeps = self._plans, len(text) <= self._driver.longest_kept
        statement = self._kept(text, values)
        if statement is not None:
            return statement
        if text in self._unpreparable:
            return None
        while self._stale:
            await close_statement(self._stale.pop())
        try:
            statement = await self.raw.prepare(text)
        except errors.MySQLError as error:
            if code(error) not in UNPREPARABLE:
                raise
            refused = code(error) != TOO_MANY_STATEMENTS
            if refused and keeps and len(self._unpreparable) < REMEMBERED:
                self._unpreparable.add(text)
            return None
        if keeps:
            plans[self._kind(text, values)] = statement
            if len(plans) > self._driver.plans_kept:
                await plans.pop(next(iter(plans))).close()
        return statement

    def _written(self, text: str, values: Sequence[Any]) -> str:
        """With the values in it, since it cannot be prepared."""
        return literals(text, values)

    async def let_go(self, text: str, statement: Any) -> None:
        """Of a statement that was run; it stays prepared if there is a cache for such texts."""
        if len(text) > self._driver.longest_kept:
            await close_statement(statement)

    # -- the same statement many times -----------------------------------------------------------

    async def execute_many(self, text: str, arguments: Sequence[Any]) -> None:
        rows = each_row(self.values, arguments)
        await self.atomically(lambda: self._run_batches(text, rows))

    async def atomically(self, work: Callable[[], Awaitable[object]], name: str = MANY) -> None:
        if not self.raw.server_status & (AUTOCOMMIT | IN_TRANSACTION):
            await self.begin(None, False)  # as every statement does without autocommit
        await super().atomically(work, name)

    async def _run_batches(self, text: str, rows: Sequence[Any]) -> None:
        """A message that is larger than max_allowed_packet costs the connection."""
        start = size = marks = 0
        for at, values in enumerate(rows):
            more = sum(len(value) if isinstance(value, str | bytes) else 16 for value in values)
            marks += len(values)
            if (size + more > BATCH or marks > MOST_MARKS) and at > start:
                await self._run_many(text, rows, start, at)
                start, size, marks = at, 0, len(values)
            size += more
        await self._run_many(text, rows, start, len(rows))

    async def _run_many(self, text: str, every: Sequence[Any], start: int, end: int) -> None:
        """Those from `start` to `end`, together if that is possible, else one after the other."""
        rows = every[start:end]
        at, last = start, end - 1
        try:
            if await self._run_at_once(text, rows):
                return
            for at, values in enumerate(rows, start):
                last = at
                await self._run(text, values)
        except ValueError as error:
            if (large := first_large_int(rows)) is not None:
                note_row(error, start + large)
            raise
        except errors.MySQLError as error:
            if of_values(error) or code(error) in OF_VALUES:
                failed = await self._failed_row(text, error) if last > at else None
                if failed is not None:
                    at = last = start + failed
                note_row(error, at, last)
            raise

    async def _failed_row(self, text: str, error: Exception) -> int | None:
        """Which of the rows of an INSERT that were sent at once has failed, if the server knows. Of
        UPDATE and DELETE it would count the rows of the table."""
        if not INSERTING.match(text):
            return None
        number = None
        if self.raw.has_bulk:
            try:
                ((number,),) = (await self.raw.run(ASK_ROW)).rows
            except errors.MySQLError as refused:  # before MariaDB 10.7
                log(DEBUG, "the row that failed is not known: %r", refused)
        elif (said := AT_ROW.search(str(error))) is not None:
            number = int(said[1])
        return number - 1 if number else None

    async def _run_at_once(self, text: str, rows: Sequence[Any]) -> bool:
        """False: it is not possible, and nothing was done."""
        together = len(rows) > 1 and rows[0] and changes_rows(text)
        if together and await self._run_bulk(text, rows):
            return True
        return bool(together) and await self._run_together(text, rows)

    async def _run_bulk(self, text: str, rows: Sequence[Any]) -> bool:
        """In one message, as MariaDB can; False: it is not possible, and nothing was done."""
        raw = self.raw
        if not raw.has_bulk or any(is_large(value) for values in rows for value in values):
            return False
        statement = await self._statement(text, ())
        if statement is None:
            return False
        try:
            check_count(statement, rows[0])
            await raw.run_bulk(statement, rows)
        except ValueError:  # values of several types in a column
            return False
        except errors.OperationalError as error:
            if code(error) != UNSUPPORTED:
                raise
            return False  # INSERT ... SELECT
        finally:
            await self.let_go(text, statement)
        return True

    async def _run_together(self, text: str, rows: Sequence[Any]) -> bool:
        """INSERT with as many lists of values as there are rows; False: it is another statement."""
        found = INSERT_VALUES.fullmatch(text)
        if found is None or found[2].count("?") != len(rows[0]):
            return False
        head, values, tail = found.groups()
        statement = await self.raw.prepare(f"{head}{','.join([values] * len(rows))}{tail}")
        try:
            await self.raw.run_prepared(statement, [value for row in rows for value in row])
        finally:
            await close_statement(statement)
        return True

    # -- streams ---------------------------------------------------------------------------------

    async def stream(self, text: str, arguments: Any, keyword: str, *, alone: bool) -> RowCursor:
        raw = self.raw
        if self.in_transaction and analyse(text, MYSQL).opaque:
            return Collected(await self.fetch_all(text, arguments))  # then it can be watched
        if not arguments:
            return MysqlRowCursor(self, await raw.open_rows(text), alone)
        values = self.values(arguments)
        statement = await self._statement(text, values)
        if statement is None:
            return MysqlRowCursor(self, await raw.open_rows(self._written(text, values)), alone)
        try:
            check_count(statement, values)
            rows = await raw.open_prepared(statement, values)
        except BaseException:
            await self.let_go(text, statement)
            raise
        return MysqlRowCursor(self, rows, alone, text, statement)

    # -- transactions ----------------------------------------------------------------------------

    # By the shortest way: nobody asks how many rows matched.

    async def begin(self, isolation: Isolation | None, read_only: bool) -> None:
        for text in MYSQL.begin(isolation, read_only):
            await self.raw.run(text)

    async def commit(self) -> bool:
        await self.raw.run(MYSQL.commit())
        return True

    async def savepoint(self, name: str) -> None:
        await self.raw.run(MYSQL.savepoint(name))

    async def release_savepoint(self, name: str) -> None:
        await self.raw.run(MYSQL.release_savepoint(name) or "")

    async def watch(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """The flag of the server is on before and after: only a savepoint shows whether it is still
        the same transaction."""
        await self.savepoint(WATCH)
        try:
            result = await call(self)
        except Exception:
            await self._look_back()
            raise
        await self._look_back()
        return result

    async def _look_back(self) -> None:
        """Whether it is still the same. Not after a cancellation: then the connection is given up,
        and a coroutine that is being closed cannot wait."""
        if self.in_transaction and not (self.is_dead or self.broken):
            self.restarted = not await self._released(WATCH)

    async def _released(self, name: str) -> bool:
        """Whether there was such a savepoint."""
        try:
            await self.release_savepoint(name)
        except errors.MySQLError as error:
            return code(error) != NO_SUCH_SAVEPOINT
        return True

    # -- life and death --------------------------------------------------------------------------

    async def close(self) -> None:
        if self.interrupted:
            await self._driver.kill(self.raw.thread_id())
        elif not self.broken:
            await self.raw.ensure_closed()

    async def stop(self) -> None:
        self._skipped = False
        await self._driver.kill_statement(self.raw.thread_id())

    async def absorb(self) -> None:
        # Not ping(), which no KILL QUERY hits: the order would be left for the next statement.
        rows, transport = self.raw.rows, self.raw.transport
        if rows is not None and rows.unread:
            self._skipped = True
            transport.resume_reading()
            await rows.close()
        await self.raw.run("SELECT 1")

    def is_spoiled(self, keyword: str) -> bool:
        # Functions that wait, such as SLEEP(), end early then, and give another value.
        return keyword in WAITING or self._skipped

    def terminate(self) -> None:
        raw = self.raw
        transport = raw.detach()
        if transport is not None:
            hang_up(transport, transport.abort)

    def looks_dead(self) -> bool:
        return self.raw.is_dead

    def peer_closed(self) -> bool:
        return self._wire.peer_closed()

    def has_unread_bytes(self) -> bool:
        return not self.looks_dead() and self._wire.has_unread_bytes()

    async def ping(self) -> None:
        await self.raw.ping(reconnect=False)

    async def look_again(self) -> None:
        # An error does not say whether it has ended the transaction; every other answer does.
        await self.raw.look_after()

    async def reset(self) -> bool:
        await self.raw.reset()
        self.forget_plans()
        self._stale.clear()  # the server has none of them any more
        self._unfit = False
        return await self._driver.set_up(self)

    async def prepare(self, template: Template, text: str) -> Prepared:
        if type(template.text) is UsualText:
            check_usual(self.raw.variables.get("sql_mode"))
        statement = await self.raw.prepare(template.text)
        return MysqlPrepared(self, template.text, statement)

    def forget_plans(self) -> None:
        self._stale += self._plans.values()
        self._plans.clear()
        self._unpreparable.clear()


class MysqlPrepared(Prepared):
    """A prepared statement of asyncmy, prepared again if MySQL gets parameters of other types."""

    __slots__ = ("_types", "statement")

    connection: MysqlConnection  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, connection: MysqlConnection, text: str, statement: Any) -> None:
        super().__init__(connection, text)
        self.statement: Any = statement
        self._types: list[type] | None = None  # of the parameters that it was first run with

    async def execute(self, arguments: Arguments) -> int:
        return affected(self.text, await self._run(arguments))

    async def fetch_all(self, arguments: Arguments) -> list[Any]:
        return self.connection.named(await self._run(arguments))

    async def fetch_one(self, arguments: Arguments) -> Any:
        rows = self.connection.named(await self._run(arguments), most=1)
        return rows[0] if rows else None

    async def fetch_val(self, arguments: Arguments) -> Any:
        return self.connection.first(await self._run(arguments))

    async def _run(self, arguments: Any) -> Any:
        connection = self.connection
        values = connection.values(arguments or ())
        check_count(self.statement, values)
        if connection.typed and self._types != (types := [*map(type, values)]):
            if self._types is not None:
                old, self.statement = self.statement, await connection.raw.prepare(self.text)
                await close_statement(old)
            self._types = types
        return await connection.raw.run_prepared(self.statement, values)

    async def close(self) -> None:
        await self.statement.close()


class MysqlRowCursor(RowCursor):
    """Rows as the server sends them; nothing else runs meanwhile."""

    def __init__(
        self,
        connection: MysqlConnection,
        rows: Rows,
        alone: bool,
        text: str = "",
        statement: Any = None,
    ) -> None:
        self.connection = connection
        self.rows = rows
        self.conversions: Conversions = connection.conversions(rows.result) if rows.names else ()
        self.alone = alone
        self.text = text  # of the statement, if it was prepared
        self.statement = statement
        self._hold(True)

    @property
    def has_unread_rows(self) -> bool:
        return self.rows.unread

    async def fetch(self, count: int) -> Sequence[Any]:
        if not self.rows.names:
            return []
        self._hold(False)
        rows = await self.rows.fetch(count)
        self._hold(True)
        if rows and self.conversions:
            return make_rows(self.rows.names, convert_columns(rows, self.conversions))
        return make_rows(self.rows.names, rows)

    async def close(self) -> None:
        self._hold(False)
        if self.alone and self.rows.unread:
            # Rather a new connection than to read all the rest.
            self.connection.interrupt()
            return
        await self.rows.close()
        if self.statement is not None:
            await self.connection.let_go(self.text, self.statement)

    def _hold(self, wait: bool) -> None:
        """asyncmy takes in whatever comes; the server has to wait for the reader."""
        transport = self.connection.raw.transport
        if transport is None or transport.is_closing():
            return
        if wait:
            transport.pause_reading()
        else:
            transport.resume_reading()


async def close_statement(statement: Any) -> None:
    """The server does not answer; if it is gone, what happened before says so."""
    try:
        await statement.close()
    except errors.MySQLError:
        pass


def check_count(statement: Any, values: Sequence[Any]) -> None:
    if statement.parameter_count != len(values):
        raise miscounted(statement.parameter_count, len(values))


def check_usual(mode: str | None) -> None:
    """Of a text in which placeholders were converted as they are read without these modes."""
    found = [each for each in ("NO_BACKSLASH_ESCAPES", "ANSI_QUOTES") if each in (mode or "")]
    if found:
        raise ValueError(
            f"the session has the sql_mode {', '.join(found)}, in which the placeholders of the "
            f"statement are at other places, because of a backslash beside a quote: pass the text "
            f"that has it as a parameter"
        )


def changes_rows(text: str) -> bool:
    """Whether it only changes some: then nobody waits for its rows."""
    return analyse(text, MYSQL).keyword in CHANGING and not RETURNING.search(text)


def is_large(value: Any) -> bool:
    """An int that asyncmy would send in bulk as a negative one."""
    return type(value) is int and value >= 2**63


def affected(text: str, result: Any) -> int:
    """Those that RETURNING gives are counted, too; those of a query are not."""
    if result.description is not None and analyse(text, MYSQL).keyword not in CHANGING:
        return 0
    return int(result.affected_rows or 0)


def code(error: BaseException) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0
