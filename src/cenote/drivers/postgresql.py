"""What the drivers of PostgreSQL share."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any, ClassVar

from ..sql.dialects import POSTGRESQL
from ..sql.driver import LONGEST_KEPT, Driver, DriverConnection
from ..sql.parsing.tokens import tokens
from ..sql.url import Secret, Target
from .options import port

# One message. Not DISCARD ALL, which would also drop the statements that the driver keeps ready:
# of those only what was prepared by SQL goes. The last answer says how many of them are left.
RESET = """
SET SESSION AUTHORIZATION DEFAULT;
RESET ROLE;
RESET ALL;
CLOSE ALL;
UNLISTEN *;
SELECT pg_catalog.pg_advisory_unlock_all();
DISCARD PLANS;
DISCARD TEMP;
DISCARD SEQUENCES;
DO $cenote$
DECLARE statement record;
BEGIN
    FOR statement IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE from_sql LOOP
        EXECUTE 'DEALLOCATE ' || pg_catalog.quote_ident(statement.name);
    END LOOP;
END $cenote$;
SELECT pg_catalog.setseed(
    pg_catalog.hashtext(pg_catalog.gen_random_uuid()::pg_catalog.text) / 2147483648.0
);
SELECT FROM pg_catalog.pg_prepared_statements WHERE NOT from_sql;
"""


# Options of the URL with a fixed set of values; the drivers would find out at the first connection.
WORDS = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "read-write", "read-only",
                             "prefer-standby"),
}  # fmt: skip


def is_conflict(sqlstate: object) -> bool:
    """Return whether a transaction was rolled back because of another one."""
    return sqlstate in ("40001", "40P01")  # serialization failure, deadlock


def is_cancellation(sqlstate: object) -> bool:
    """Return whether the server has cancelled a statement, because it was told to."""
    return sqlstate == "57014"  # query_canceled


def is_demotion(sqlstate: object) -> bool:
    return sqlstate == "25006"  # read_only_sql_transaction


def is_full(sqlstate: object, text: str) -> bool:
    """Return whether a server, or PgBouncer, allows no more connections: psycopg gives no SQLSTATE
    for an error of connecting."""
    return sqlstate == "53300" or any(each in text for each in FULL)  # too_many_connections


FULL = (
    "sorry, too many clients already", "remaining connection slots are reserved",
    "too many connections for ", "number of requested standby connections exceeds",
    "no more connections allowed",
)  # fmt: skip


def quoted(name: str) -> str:
    """Return a name as an identifier that means exactly this."""
    return '"' + name.replace('"', '""') + '"'


def server_options(target: Target, options: dict[str, str]) -> dict[str, Any]:
    """Whom to connect to, from the URL and from those options that say the same."""
    found: dict[str, Any] = {}
    if target.user is not None:
        found["user"] = target.user
    if target.database and "dbname" in options:
        raise ValueError("url has a database, and the option 'dbname' as well; keep one")
    database = target.database or options.pop("dbname", "")
    if database:
        found["database"] = database
    for name, known in WORDS.items():
        if name in options and options[name] not in known:
            raise ValueError(
                f"url option {name!r} must be one of {', '.join(known)}, not {options[name]!r}"
            )
    for name in ("host", "port"):
        if name in options and target.hosts:
            raise ValueError(f"url has a host, and the option {name!r} as well; keep one")
    if "port" in options:
        found["port"] = [port(text) for text in options["port"].split(",")]
    if "host" in options:
        found["host"] = options["host"].split(",")
        if "port" in found and len(found["port"]) not in (1, len(found["host"])):
            raise ValueError("url must have one port for each host, or one port for all")
    for name in ("host", "port"):
        if name in found and len(found[name]) == 1:
            found[name] = found[name][0]
    return found


def affected(status: str | None) -> int:
    """Of a command tag such as UPDATE 3, INSERT 0 1; those that change nothing count none."""
    word, _, number = (status or "").rpartition(" ")
    if word.split(" ")[0] in CHANGING and number.isdigit():
        return int(number)
    return 0


def keeps(text: str) -> bool:
    """Whether a prepared statement is kept for this text: one that the server plans, or that shows
    a setting. What is kept may be run again after its plan was refused, so that CALL, DO and their
    like are not; nor is a text with a literal such as 'now' or '01/02/03', whose value is worked
    out when it is prepared, by the clock, the date style and the time zone of that moment."""
    if len(text) > LONGEST_KEPT or PLANNED.match(text) is None:
        return False
    if FROZEN.search(text) is None:
        return True
    strings = (token for token in tokens(text, POSTGRESQL) if token[0] == "string")
    return not any(FROZEN.search(text, start, end) for _, start, end in strings)


def is_schema_change(text: str) -> bool:
    """Whether the text changes what names in other texts mean: CREATE, ALTER or DROP."""
    return CHANGE.match(text) is not None


START = r"(?:[\s(]|--[^\r\n]*+|/\*(?:(?!/\*|\*/).)*+\*/)*+"  # what stands before the first word
PLANNED = re.compile(
    rf"{START}(?:select|insert|update|delete|merge|values|table|with|show)\b",
    re.IGNORECASE | re.DOTALL,
)
CHANGE = re.compile(rf"{START}(?:create|alter|drop)\b", re.IGNORECASE | re.DOTALL)
# Command tags of what adds a name, and lets other texts mean what they did.
ADDING = ("CREATE TABLE", "CREATE INDEX", "CREATE SEQUENCE", "CREATE SCHEMA", "CREATE VIEW")
FROZEN = re.compile(
    r"\b(?:now|today|tomorrow|yesterday)\b|\d[-/:. ]\d|\d{8}"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\W*\d",
    re.IGNORECASE,
)


def is_refusal(
    sqlstate: str | None, function: str | None, context: str | None, position: object
) -> bool:
    """Whether the server refused a kept statement before it executed anything: the statement is
    not there any more, returns other columns, or takes other types than it did. `context` is set
    where a function that it called has failed; the analysis of a statement, and nothing that is
    executed, gives the `position` in its text."""
    if context and not context.startswith(PORTAL):
        return False
    if sqlstate in REFUSING:
        return function in (None, REFUSING[sqlstate])  # None: a proxy says so, for the server
    return sqlstate in RETYPED and position is not None


PORTAL = ("unnamed portal", 'portal "')  # with log_parameter_max_length_on_error
# By the function of the server that says so: feature_not_supported (a cached plan must not change
# its result type), invalid_sql_statement_name.
REFUSING = {"0A000": "RevalidateCachedQuery", "26000": "FetchPreparedStatement"}
RETYPED = frozenset({"42804", "42883"})  # datatype_mismatch, undefined_function (or operator)


def is_final(severity: str | None) -> bool:
    """Of an error that the server sent: whether it ends the session. Its SQLSTATE does not show it:
    dblink gives those of another connection, and RAISE any."""
    return severity in ("FATAL", "PANIC")


def has_cursor(keyword: str, text: str) -> bool:
    """Whether DECLARE can read it; the server itself collects what the others return."""
    return keyword in CURSORS and not (keyword == "WITH" and MODIFYING.search(text))


CURSORS = frozenset({"SELECT", "VALUES", "TABLE", "WITH"})
MODIFYING = re.compile(r"\b(insert|update|delete|merge)\b", re.IGNORECASE)
CHANGING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "MOVE"})


LONGEST_NAME = 63  # bytes of an application_name


def marked(name: str | None, mark: str) -> str:
    """Return an application_name that ends with a mark."""
    shown = (name or "").encode()[: LONGEST_NAME - 1 - len(mark)].decode(errors="ignore")
    return f"{shown} {mark}".strip()


class PostgresqlDriver(Driver):
    """What errors of a server mean, by their SQLSTATE."""

    marked_statement: ClassVar[str | None] = (
        "select count(*) from pg_stat_activity where application_name like ?"
    )

    @property
    def system_name(self) -> str:
        return "postgresql"

    async def connect(self, password: Secret | None) -> DriverConnection:
        return await self._connect(password, None)

    async def connect_marked(self, password: Secret | None, mark: str) -> DriverConnection:
        return await self._connect(password, mark)

    @abstractmethod
    async def _connect(self, password: Secret | None, mark: str | None) -> DriverConnection:
        """Open a connection; with a mark its application_name ends with that."""

    def is_stopped(self, error: BaseException) -> bool:
        return is_cancellation(getattr(error, "sqlstate", None))

    def is_conflict(self, error: BaseException) -> bool:
        return is_conflict(getattr(error, "sqlstate", None))

    def is_full(self, error: BaseException) -> bool:
        return is_full(getattr(error, "sqlstate", None), str(error))

    def is_demoted(self, error: BaseException) -> bool:
        return is_demotion(getattr(error, "sqlstate", None))
