"""What cenote needs of asyncmy and asyncmy does not offer: its private names are used here only.

`Connection` runs prepared statements without asyncmy's own cache, reads rows piece by piece in both
protocols, follows what the server says of its session, and sends no password in clear text.
"""

from __future__ import annotations

import asyncio
import os
import re
from codecs import lookup
from collections.abc import Awaitable, Sequence
from importlib.metadata import version
from inspect import Signature, signature
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar

from ...sql.loading import missing
from ..library import Library
from .cursors import check, checked
from .login import CANNOT_LOG_IN, login_refusal
from .tracking import changed_variables

try:
    import asyncmy
except ModuleNotFoundError as _error:
    if _error.name != "asyncmy":
        raise
    raise missing("asyncmy", "mysql") from None

__all__ = ["AUTOCOMMIT", "FLAGS", "IN_TRANSACTION", "Connection", "Rows", "charset_by_name",
           "errors"]  # fmt: skip

TESTED = ("0.2.17", "0.2.18")  # oldest and newest

library: Library = Library("asyncmy", version("asyncmy"), TESTED)
untyped: Any = library.module("asyncmy.connection", "MySQLResult", "PreparedStatement")
errors: Any = library.module(
    "asyncmy.errors", "InterfaceError", "MySQLError", "OperationalError", "ProgrammingError"
)
charset_by_name: Any = library.module("asyncmy.charset", "charset_by_name").charset_by_name
client: Any = library.module("asyncmy.constants.CLIENT", "FOUND_ROWS", "SESSION_TRACK")
command: Any = library.module("asyncmy.constants.COMMAND", "COM_QUERY", "COM_STMT_EXECUTE")
status: Any = library.module(
    "asyncmy.constants.SERVER_STATUS", "SERVER_STATUS_AUTOCOMMIT", "SERVER_STATUS_IN_TRANS"
)
protocol: Any = library.module(
    "asyncmy.protocol", "pack_binary_params", "pack_bulk_rows", "parse_binary_rows_from_buffer",
    "parse_rows_from_buffer",
)  # fmt: skip

AUTOCOMMIT = status.SERVER_STATUS_AUTOCOMMIT
IN_TRANSACTION = status.SERVER_STATUS_IN_TRANS
# Since 0.2.18 asyncmy compares the columns of an answer with those that it has noted before.
COMPARES_COLUMNS = hasattr(protocol, "_parse_cached_binary_result")
COM_QUERY, COM_STMT_EXECUTE = command.COM_QUERY, command.COM_STMT_EXECUTE
FLAGS = client.FOUND_ROWS | client.SESSION_TRACK
SESSION_CHANGED = 0x4000  # a flag of the status: the OK packet says what has changed
COM_RESET_CONNECTION = 0x1F
COM_STMT_BULK_EXECUTE = 0xFA
UNSIGNED = 32  # a flag of a column

SETTLED = ("character_set_client", "character_set_results", "sql_mode", "time_zone",
           "system_time_zone")  # fmt: skip
SETTINGS = f"SELECT {', '.join(f'CAST(@@{name} AS BINARY)' for name in SETTLED)}".encode()
# One SET without a call: not SET STATEMENT ... FOR, no function, no comment, no other statement.
PLAIN_SET = re.compile(rb"\s*set\s+(?!statement\b)[^(;/#-]*", re.IGNORECASE)

FILE_NOT_FOUND = 1017
FILE_CHUNK = 256 * 1024  # bytes of a local file that are sent at once

# Of the server: it is shut down, the connection is killed or was idle for too long, ...
LAST_WORDS = frozenset({1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1317,
                        1927, 2000, 2002, 2003, 2006, 2012, 2013, 2014, 2027, 2055, 3169,
                        4031})  # fmt: skip

HEAD = Struct("<IBI")  # of COM_STMT_EXECUTE: number of the statement, no cursor, once
BULK_HEAD = Struct("<IH")  # of COM_STMT_BULK_EXECUTE: number of the statement, flags
WITH_TYPES = 128  # the flag that the types of the parameters are sent

# Of charsets that have another name in Python, besides those that asyncmy knows. What is not
# converted (binary, and no charset at all) is read and written as a new connection does it.
ENCODINGS: dict[str | None, str] = {
    None: "utf8",
    "binary": "utf8",
    "utf8mb3": "utf8",
    "ucs2": "utf_16_be",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
}


if TYPE_CHECKING:
    from ..library import Untyped

    class Base(Untyped):
        """What is called of the class that asyncmy itself has; the same below."""

        async def prepare(self, query: Any) -> Any: ...
        def cursor(self, cursor: Any = None) -> Any: ...
        async def query(self, sql: Any, unbuffered: bool = False) -> Any: ...
        async def _request_authentication(self) -> None: ...
        async def _process_auth(self, plugin_name: Any, auth_packet: Any) -> Any: ...

    class MySQLResult(Untyped):
        def _check_packet_is_eof(self, packet: Any) -> bool: ...
        async def _read_load_local_packet(self, first_packet: Any) -> None: ...

    class PreparedStatement(Untyped):
        async def execute(self, args: Any = ()) -> Any: ...
        async def execute_bulk(self, rows: Any) -> Any: ...
        async def close(self) -> None: ...

else:
    Base = asyncmy.Connection
    MySQLResult, PreparedStatement = untyped.MySQLResult, untyped.PreparedStatement

library.require(
    Base,
    [
        "_execute_command", "_process_auth", "_read_ok_packet", "_read_query_result",
        "_request_authentication", "cursor", "prepare", "query", "read_packet", "write_packet",
    ],
)  # fmt: skip
# What the constructor sets can be seen on a connection only, and making one needs a running loop:
# it is checked whenever one is made.
ATTRIBUTES = (
    "_affected_rows", "_auth_plugin_name", "_bulk_supported", "_connected", "_cursor_cls", "_db",
    "_deprecate_eof", "_encoding", "_init_command", "_local_infile", "_proto", "_result", "_secure",
    "_server_public_key", "_sql_mode", "_stream_broken", "_transport", "connected",
)  # fmt: skip
library.require(
    MySQLResult,
    [
        "_check_packet_is_eof", "_read_load_local_packet", "_read_ok_packet",
        "init_unbuffered_query", "read", "read_binary",
    ],
)  # fmt: skip
library.require(PreparedStatement, ["close", "execute", "execute_bulk", "parameter_count"])
is_end: Any = MySQLResult._check_packet_is_eof


class Result(MySQLResult):
    """asyncmy's, which does not read what the server says of the session at the end of rows."""

    __slots__ = ()

    message: Any  # of the base

    def _check_packet_is_eof(self, packet: Any) -> bool:
        if not is_end(self, packet):
            return False
        if self.server_status & SESSION_CHANGED:
            self.message = packet.read_all()
            if self.connection is not None:  # cenote reads the rows: a cursor of asyncmy does not
                self.connection._note(self)  # say that it has
        return True

    async def _read_load_local_packet(self, first_packet: Any) -> None:
        """The server asks for the file of LOAD DATA LOCAL. asyncmy takes its name for a str, and
        leaves the server waiting for what never comes."""
        connection = self.connection
        name = os.fsdecode(first_packet.get_all_data()[1:])
        failure: OSError | None = None
        try:
            if connection._local_infile:
                await connection.send_file(name)
        except OSError as error:
            failure = error
        connection.write_packet(b"")  # the end of the file, in any case
        self._read_ok_packet(await connection.read_packet())
        if failure is not None or not connection._local_infile:
            reason = failure or "the URL has no local_infile=1"
            raise errors.OperationalError(
                FILE_NOT_FOUND, f"LOAD DATA LOCAL: {name!r} was not sent: {reason}"
            ) from failure


class Statement(PreparedStatement):
    """asyncmy's statement, for users who have prepared it themselves."""

    guard: Any = None  # of connection(), with whose block it ends
    changes: int = 0  # of the session, when the columns of its answer were noted

    async def execute(self, args: Any = ()) -> Any:
        self._check()
        values = args if isinstance(args, tuple | list) else (args,)
        connection = self._connection
        if self._closed or len(values) != self.parameter_count:
            return await super().execute(args)  # which raises
        result = await connection.run_prepared(self, values)
        result.has_next = False  # all others are read
        connection._result = result
        connection._affected_rows = result.affected_rows
        return result

    async def execute_bulk(self, rows: Any) -> Any:
        self._check()
        return await super().execute_bulk(rows)

    async def close(self) -> None:
        self._check()
        await super().close()

    def _check(self) -> None:
        if self.guard is not None:
            check(self.guard)


class Connection(Base):
    """asyncmy's connection, with what it lacks.

    asyncmy has one encoding for both directions. Here `_encoding` is that of what the server sends
    (character_set_results), and `sending` that of what it is sent (character_set_client)."""

    __signature__: ClassVar[Signature] = signature(Base)
    _auth_plugin_name: str
    _encoding: str

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        library.require(self, ATTRIBUTES)
        self.sending: str = self._encoding
        self.variables: dict[str, str | None] = {}  # of the session, as far as they are tracked
        self.changes: int = 0  # of them: what was prepared before meant something else
        self.rows: Rows | None = None  # the last that were read as the server sends them
        self.unsure: bool = False  # whether they are still what the server has said of them

    # -- logging in ------------------------------------------------------------------------------

    async def _request_authentication(self) -> None:
        # With sha256_password asyncmy asks for a key, whatever it has; the server names that later.
        if self._server_public_key and self._auth_plugin_name == "sha256_password":
            self._auth_plugin_name = "caching_sha2_password"
        await super()._request_authentication()

    async def _process_auth(self, plugin_name: bytes, auth_packet: Any) -> Any:
        """The server asks for another way of logging in than it had announced."""
        if (why := login_refusal(plugin_name, secure=self._secure)) is not None:
            raise errors.OperationalError(CANNOT_LOG_IN, why)
        return await super()._process_auth(plugin_name, auth_packet)

    # -- statements ------------------------------------------------------------------------------

    def run(self, text: str) -> Awaitable[Any]:
        """A text without parameters: the first result; all others are read, and dropped."""
        if self.sending != "utf8":
            self.check_text(text)
        return self._run(COM_QUERY, text.encode(self.sending))

    async def run_all(self, text: str) -> list[Any]:
        """The results of several statements."""
        results: list[Any] = []
        await self._run(COM_QUERY, text.encode(self.sending), results=results)
        return results

    def run_prepared(self, statement: Any, arguments: Sequence[Any]) -> Awaitable[Any]:
        """The same for a prepared statement."""
        if statement.changes != self.changes:
            statement._meta = None  # noted when the settings were others
            statement.changes = self.changes
        return self._run(COM_STMT_EXECUTE, self._pack(statement, arguments), statement=statement)

    async def run_bulk(self, statement: Any, rows: Sequence[Sequence[Any]]) -> None:
        """In one message, as MariaDB can. ValueError: it is not possible, and nothing was done."""
        packed = protocol.pack_bulk_rows(rows, statement.parameter_count, self.sending)
        if packed is None:
            raise ValueError("a column has values of several types, or none")
        head = BULK_HEAD.pack(statement._statement_id, WITH_TYPES)
        await self._run(COM_STMT_BULK_EXECUTE, head + packed[0] + packed[1])

    @property
    def has_bulk(self) -> bool:
        return bool(self._bulk_supported)

    @property
    def transport(self) -> Any:
        """Of asyncio; None once the connection is closed."""
        return self._transport

    @property
    def is_dead(self) -> bool:
        """Whether asyncmy knows that the connection is over."""
        return not self.connected or bool(self._stream_broken)

    @property
    def database(self) -> str | None:
        """The database that connect() was given."""
        return self._db  # type: ignore[no-any-return]

    def settings(self) -> list[str]:
        """The statements by which connect() has set sql_mode, and those of init_command."""
        texts = [] if self._sql_mode is None else [f"SET sql_mode={self._sql_mode}"]
        return texts if self._init_command is None else [*texts, self._init_command, "COMMIT"]

    def detach(self) -> Any:
        """Count as closed; gives the transport, which is still open, or None."""
        transport: Any = self.transport
        self._transport, self._connected = None, False
        return transport

    async def reset(self) -> None:
        await self._execute_command(COM_RESET_CONNECTION, b"")
        await self._read_ok_packet()

    async def open_rows(self, text: str) -> Rows:
        """The rows of a text without parameters."""
        self.check_text(text)
        return await self._open(COM_QUERY, text.encode(self.sending), binary=False)

    async def open_prepared(self, statement: Any, arguments: Sequence[Any]) -> Rows:
        """The rows of a prepared statement."""
        return await self._open(COM_STMT_EXECUTE, self._pack(statement, arguments), binary=True)

    async def prepare(self, query: str) -> Any:
        """A statement of asyncmy; the text is checked as all others are."""
        bare = _bare(self)
        bare.check_text(query)
        made = await Base.prepare(bare, query.encode(bare.sending))
        statement = Statement(bare, made._statement_id, made.parameter_count)
        statement.changes = bare.changes
        statement.guard = None if bare is self else self
        return statement

    def cursor(self, cursor: type[Any] | None = None) -> Any:
        """A cursor of asyncmy, which takes a connection of its own kind and no guard."""
        bare = _bare(self)
        if bare is self:
            return super().cursor(cursor)
        kind: type = cursor or bare._cursor_cls
        made = Base.cursor(bare, checked(kind))
        made.guard = self
        return made

    async def query(self, sql: str | bytes, unbuffered: bool = False) -> Any:
        """What the cursors of asyncmy call."""
        if isinstance(sql, str):
            sql = sql.encode(self.sending, "surrogateescape")
        return await super().query(sql, unbuffered)

    async def _read_query_result(self, unbuffered: bool = False) -> None:
        """Read by the settings of the session, which are followed when anything changes them."""
        self._result = None
        result = Result(self)
        if unbuffered:
            await self._begin(result)
        else:
            await result.read()
        self._result = result
        self._affected_rows = result.affected_rows
        if not result.unbuffered_active:
            self._note(result)
            if self.unsure and not result.has_next:
                await self._settle()
                self._result = result  # the cursor looks for it

    async def send_file(self, name: str) -> None:
        """Send a local file, as LOAD DATA LOCAL wants it; it is read in another thread."""
        with await asyncio.to_thread(open, name, "rb") as file:
            while chunk := await asyncio.to_thread(file.read, FILE_CHUNK):
                self.write_packet(chunk)
                await self._proto.drain()

    def _pack(self, statement: Any, arguments: Sequence[Any]) -> bytes:
        head = HEAD.pack(statement._statement_id, 0, 1)
        if not arguments:
            return head
        packed: bytes = protocol.pack_binary_params(tuple(arguments), self.sending)
        return head + packed

    async def _run(
        self, command: int, payload: bytes, *, statement: Any = None, results: Any = None
    ) -> Any:
        """`statement`: the prepared one that is run, if it is one."""
        await self._execute_command(command, payload)
        first, noted = None, statement if COMPARES_COLUMNS else None  # of the first answer alone
        while True:
            result = Result(self)
            try:
                await (result.read() if statement is None else result.read_binary(noted))
            except errors.MySQLError as error:
                if error.args[0] in LAST_WORDS and error.sqlstate is not None:
                    await self.look_after()
                raise
            except Exception:  # something in it cannot be decoded
                await self._skip(result)
                raise
            self._note(result)
            if results is not None:
                results.append(result)
            first, noted = first or result, None
            if not result.has_next:
                if self.unsure and results is None:
                    await self._settle(payload if statement is None else b"")
                return first

    async def look_after(self) -> None:
        """Close the connection if it does not answer: an error may have been the last word of the
        server, or be that of a SIGNAL."""
        try:
            await self.ping(reconnect=False)
        except errors.MySQLError:
            self.close()
            self._connected = False

    def _note(self, result: Any) -> None:
        """What an answer says of the session."""
        status = result.server_status
        if status or result.description is None:
            self.server_status = status
        if status & SESSION_CHANGED:
            # Behind rows whose columns were noted asyncmy skips what has changed.
            skipped = result.message is None and result.description is not None
            changed = changed_variables(result.message) if result.message else {}
            if changed or skipped:
                self.variables.update(changed)
                self.changes += 1
                self.unsure = True
                self.follow_charset()

    async def _settle(self, text: bytes = b"") -> None:
        """Ask, after news: what a routine has changed the server may set back at the end of it, and
        does not say so. Of a `text` that runs none the news are believed."""
        if PLAIN_SET.fullmatch(text):
            self.unsure = False
            return
        self._encoding = "latin1"  # whatever the names of the columns come in, it can be read
        try:
            answer = await self._run(COM_QUERY, SETTINGS, results=[])
        except errors.MySQLError:  # the next statement will say why
            self.close()
            self._connected = False
            return
        self.settle(*answer.rows[0])

    def settle(self, *values: str | bytes | None) -> None:
        """What the server says of its `SETTLED` variables when it is asked."""
        for name, value in zip(SETTLED, values, strict=True):
            self.variables[name] = value.decode() if isinstance(value, bytes) else value
        self.unsure = False
        self.follow_charset()

    async def _skip(self, result: Any) -> None:
        """The rest of a result that cannot be read: the next statement finds a quiet wire."""
        result.has_next = False
        while self._deprecate_eof:
            packet = await self.read_packet()
            if result._check_packet_is_eof(packet):
                break
        self._note(result)
        if result.has_next or not self._deprecate_eof:
            self.close()
            self._connected = False

    async def _open(self, command: int, payload: bytes, *, binary: bool) -> Rows:
        await self._execute_command(command, payload)
        self._result = result = Result(self)  # where asyncmy notes that an error has ended it
        await self._begin(result)
        if not result.unbuffered_active:
            self._note(result)
        self.rows = Rows(self, result, binary=binary)
        return self.rows

    async def _begin(self, result: Any) -> None:
        """Read what comes before the rows."""
        try:
            await result.init_unbuffered_query()
        except BaseException as error:
            result.unbuffered_active = False
            result.connection = None
            if isinstance(error, Exception) and not isinstance(error, errors.MySQLError):
                await self._skip(result)  # the name of a column cannot be decoded
            raise

    # -- the charset -----------------------------------------------------------------------------

    def follow_charset(self) -> None:
        """Read and write as the session does, also after a change by the user."""
        variables = self.variables
        if "character_set_client" in variables:
            self.sending = encoding_of(variables["character_set_client"])
        if "character_set_results" in variables:
            self._encoding = encoding_of(variables["character_set_results"])

    def check_text(self, text: str) -> None:
        """UnicodeEncodeError if it would be another text for the server: in Japanese charsets
        Python writes a yen sign as the backslash."""
        encoding = self.sending
        if (
            encoding != "utf8"
            and not text.isascii()
            and text.encode(encoding).decode(encoding) != text
        ):
            raise UnicodeEncodeError(
                encoding, text, 0, len(text), "it would be another text when it is read again"
            )


class Rows:
    """A result that is read as the server sends it; nothing else runs on the connection."""

    __slots__ = ("_binary", "_connection", "_kinds", "_parse", "_pending", "_result", "names")

    def __init__(self, connection: Connection, result: Any, *, binary: bool) -> None:
        self._connection = connection
        self._result = result
        self._binary = binary
        self._pending: list[Any] = []  # read and not yet given
        self.names: list[str] = [column[0] for column in result.description or ()]
        self._parse: Any = protocol.parse_rows_from_buffer
        if binary:
            self._parse = protocol.parse_binary_rows_from_buffer
            converters: Any = result.converters or ()
            self._kinds = tuple(
                (field.type_code, bool(field.flags & UNSIGNED), *converter)
                for field, converter in zip(result.fields or (), converters, strict=True)
            )
        else:
            self._kinds = tuple(result.converters or ())

    @property
    def result(self) -> Any:
        """asyncmy's, with what it knows of the columns."""
        return self._result

    @property
    def unread(self) -> bool:
        return bool(self._result.unbuffered_active)

    async def fetch(self, count: int) -> list[Any]:
        """The next rows, at most so many; none: the end."""
        connection, rows = self._connection, self._pending
        wire = connection._proto
        while self.unread and len(rows) < count:
            before = len(rows)
            wire.pos, connection._next_seq_id = self._parse(
                wire.buffer, wire.pos, wire.length, self._kinds, connection._next_seq_id, rows,
                connection._deprecate_eof,
            )  # fmt: skip
            if len(rows) > before:
                continue
            packet = await self._read_packet()
            if self._result._check_packet_is_eof(packet):
                self._ended()
            elif self._binary:
                rows.append(packet.read_binary_row(self._kinds))
            else:
                rows.append(packet.read_row(self._kinds))
        self._pending = rows[count:]
        return rows[:count]

    async def close(self) -> None:
        """Read what is left, further results too."""
        self._pending = []
        connection, result = self._connection, self._result
        while self.unread:
            packet = await self._read_packet()
            if result._check_packet_is_eof(packet):
                self._ended()
        while result.has_next:
            result.has_next = False
            result = Result(connection)
            await (result.read_binary(None) if self._binary else result.read())
            connection._note(result)
        if connection.unsure:
            await connection._settle()

    async def _read_packet(self) -> Any:
        try:
            return await self._connection.read_packet()
        except errors.MySQLError:  # the last word, which asyncmy does not note
            self._result.unbuffered_active = False
            self._result.connection = None
            raise

    def _ended(self) -> None:
        self._result.unbuffered_active = False
        self._result.connection = None
        self._connection._note(self._result)


def encoding_of(name: str | None) -> str:
    """Python's name for a charset. ASCII for one that Python does not have: what is not ASCII
    raises then, and is not taken for something else."""
    if name is None or name in ENCODINGS:
        return ENCODINGS[name]
    charset = charset_by_name(name)
    encoding: str = name if charset is None else charset.encoding
    try:
        lookup(encoding)
    except LookupError:
        return "ascii"
    return encoding


def _bare(connection: Any) -> Any:
    """The connection itself, if this is a guard of it."""
    return connection if issubclass(type(connection), Connection) else connection.__wrapped__
